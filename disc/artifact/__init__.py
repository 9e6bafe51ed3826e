"""The `.disc` file: docs/artifact.md has the layout."""

from disc.artifact.file import read_manifest, verify

__all__ = ["read_manifest", "verify"]
