"""Files that a clone without Git LFS has in the place of the large ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from disc.errors import UnsupportedFormatError

if TYPE_CHECKING:
    from pathlib import Path

POINTER = "this is a pointer of Git LFS, not the file that it stands for: fetch that with git lfs pull"
POINTER_MAGIC = b"version "  # where an artifact has its magic number
_BEGINS = POINTER_MAGIC + b"https://git-lfs.github.com/spec/"


def is_pointer(path: str | os.PathLike[str]) -> bool:
    """Whether the file is three lines of Git LFS that stand for another one; False where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_BEGINS)) == _BEGINS
    except OSError:
        return False


def check_pointer(path: Path) -> None:
    """Raises UnsupportedFormatError for such a file."""
    if is_pointer(path):
        raise UnsupportedFormatError(f"{path}: {POINTER}")
