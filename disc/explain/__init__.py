"""What `Executable.explain` says, as text, JSON or a page."""
