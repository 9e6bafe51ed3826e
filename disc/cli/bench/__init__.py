"""`disc bench`: times an artifact, and the same model elsewhere, in turns."""
