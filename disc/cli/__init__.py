"""The `disc` command."""
