"""The text of source lines as this machine has it now: an artifact names lines, and holds no source."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

LONGEST = 160  # characters that are shown of a line


def source_texts(lines: Iterable[str]) -> dict[str, str]:
    """ "model.py:13" → that line without its indentation, of those that are found. The file may be another one than at compile time.

    Only Python files below the working folder and the entries of `sys.path` are read, whatever an artifact of unknown origin names.
    """
    found = ((line, _text(line)) for line in dict.fromkeys(lines))
    return {line: text for line, text in found if text}


def _text(line: str) -> str:
    name, _, number = line.rpartition(":")
    path = PurePosixPath(name)
    if not number.isdecimal() or path.suffix != ".py" or path.is_absolute() or ".." in path.parts:
        return ""
    file = next((each for each in (Path(folder, path) for folder in (Path.cwd(), *sys.path)) if each.is_file()), None)
    text = linecache.getline(str(file), int(number)).strip() if file is not None else ""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
