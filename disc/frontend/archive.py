"""Is a zip archive what PyTorch writes? A `.pt2` file is checked by this before PyTorch reads it."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path

from disc.errors import UnsupportedFormatError

MAX_ENTRIES = 65_536
_ENCRYPTED = 1  # bit of the general purpose flags (APPNOTE.TXT, 4.4.4)
_LOCAL_HEADER = 30  # bytes, before the name


def check_archive(path: str | Path) -> None:
    """Raises UnsupportedFormatError, naming the entry and the fault, for an archive that PyTorch would not have written.

    Such as one whose entries leave the folder they are unpacked to, are links, occur twice, overlap, are encrypted, or are compressed (so
    no entry is larger than the file), or that is no archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            problem = _problem(archive.infolist(), Path(path).stat().st_size)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise UnsupportedFormatError(f"{path} is not a .pt2 archive: {error}") from error
    if problem is not None:
        raise UnsupportedFormatError(f"{path} is not a .pt2 archive that PyTorch wrote: {problem}")


def _problem(entries: Sequence[zipfile.ZipInfo], file_size: int) -> str | None:
    if len(entries) > MAX_ENTRIES:
        return f"it has {len(entries)} entries, more than {MAX_ENTRIES}"
    names: set[str] = set()
    end = 0
    for entry in sorted(entries, key=lambda each: each.header_offset):
        fault = _fault(entry)
        if entry.orig_filename in names:
            fault = "occurs twice"
        if entry.header_offset < end:
            fault = "overlaps the entry before it"
        end = entry.header_offset + _LOCAL_HEADER + len(entry.orig_filename.encode()) + entry.compress_size
        if end > file_size:
            fault = "lies outside the file"
        if fault is not None:
            return f"entry {entry.orig_filename!r} {fault}"
        names.add(entry.orig_filename)
    return None


def _fault(entry: zipfile.ZipInfo) -> str | None:
    name = entry.orig_filename
    if not name or "\0" in name or "\\" in name or name.startswith("/") or ".." in name.split("/") or ":" in name.split("/")[0]:
        return "has a name that may leave the archive"
    if stat.S_ISLNK(entry.external_attr >> 16):
        return "is a link"
    if entry.flag_bits & _ENCRYPTED:
        return "is encrypted"
    if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
        return "is compressed"
    return None
