"""What `disc tune` keeps in the cache folder for the programs that are compiled later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from disc.artifact.output import whole_file, writing
from disc.errors import warn

Kept = TypeVar("Kept")


def keep(path: Path, text: str) -> Path:
    """Writes the text and a newline to the file, whose folder is made. Returns the file. Raises OutputError."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:  # compiles read it at any time
        file.write(f"{text}\n".encode())
    return path


def read_kept(path: Path, read: Callable[[str], Kept], what: str) -> Kept | None:
    """What `read`, which raises ValueError, makes of the file's text; None where there is no file, and, with a DiscWarning that calls it
    `what`, where it cannot be read."""
    try:
        return read(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        warn(f"the {what} of disc tune in '{path}' cannot be read, those that come with disc are taken: {reason}")
        return None
