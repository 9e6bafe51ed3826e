""".pt2 archives made to harm: each refused by the name of its fault, before PyTorch sees it."""

from __future__ import annotations

import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from disc.errors import UnsupportedFormatError
from disc.frontend.exported import load_pt2

VERSION = b'{"torch_version": "2.13.0"}'


def archive(path: Path, *entries: zipfile.ZipInfo | str, compression: int = zipfile.ZIP_STORED, content: bytes = b"x" * 100) -> None:
    with zipfile.ZipFile(path, "w", compression) as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # of duplicate names
        for entry in ("a/version.json", *entries):
            file.writestr(entry, VERSION if entry == "a/version.json" else content)


def link(path: Path) -> None:
    entry = zipfile.ZipInfo("a/link")
    entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    archive(path, entry, content=b"/etc/passwd")


def raw_name(name: bytes) -> Callable[[Path], None]:
    """An entry whose name zipfile would not write."""

    def make(path: Path) -> None:
        placeholder = "N" * len(name)
        archive(path, placeholder)
        path.write_bytes(path.read_bytes().replace(placeholder.encode(), name))

    return make


def patched(offset: int, value: bytes, *, entry: int = -1) -> Callable[[Path], None]:
    """Another value in a field of an entry of the central directory (APPNOTE.TXT, 4.3.12); `offset` counts from its signature."""

    def make(path: Path) -> None:
        archive(path, "a/one", "a/two")
        content = bytearray(path.read_bytes())
        places = [place for place in range(len(content)) if content[place : place + 4] == b"PK\1\2"]
        start = places[entry] + offset
        content[start : start + len(value)] = value
        path.write_bytes(content)

    return make


def bomb(path: Path) -> None:
    archive(path, "a/zeros", compression=zipfile.ZIP_DEFLATED, content=bytes(100 << 20))
    assert path.stat().st_size < 1 << 20


def cut(path: Path) -> None:
    archive(path, "a/one")
    path.write_bytes(path.read_bytes()[:-30])


def many(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for index in range(65_537):
            file.writestr(zipfile.ZipInfo(f"{index}"), b"")


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "is not a .pt2 archive: File is not a zip file"),
    "text": (lambda path: path.write_text("hello"), "is not a .pt2 archive: File is not a zip file"),
    "cut": (cut, "is not a .pt2 archive: File is not a zip file"),
    "pickle": (lambda path: path.write_bytes(b"\x80\x02c__builtin__\neval\n"), "is not a .pt2 archive: File is not a zip file"),
    "parent": (lambda path: archive(path, "../evil"), "entry '../evil' has a name that may leave the archive"),
    "parent in the middle": (lambda path: archive(path, "a/../../evil"), "entry 'a/../../evil' has a name that may leave"),
    "parent at the end": (lambda path: archive(path, "a/.."), "entry 'a/..' has a name that may leave"),
    "absolute": (lambda path: archive(path, "/etc/evil"), "entry '/etc/evil' has a name that may leave"),
    "backslashes": (raw_name(b"..\\evil"), "entry '..\\\\evil' has a name that may leave"),
    "drive": (lambda path: archive(path, "C:/evil"), "entry 'C:/evil' has a name that may leave"),
    "NUL in the name": (raw_name(b"a/one\0two"), "has a name that may leave"),
    "no name": (lambda path: archive(path, zipfile.ZipInfo("")), "entry '' has a name that may leave"),
    "symbolic link": (link, "entry 'a/link' is a link"),
    "twice": (lambda path: archive(path, "a/one", "a/one"), "entry 'a/one' occurs twice"),
    "bomb": (bomb, "entry 'a/version.json' is compressed"),
    "encrypted": (patched(8, b"\1\0"), "entry 'a/two' is encrypted"),
    "size larger than stored": (patched(24, struct.pack("<I", 2**31)), "entry 'a/two' is compressed"),
    "both sizes beyond the file": (patched(20, struct.pack("<II", 2**31, 2**31)), "entry 'a/two' lies outside the file"),
    "the same place twice": (patched(42, bytes(4)), "overlaps the entry before it"),
    "overlap inside": (patched(42, struct.pack("<I", 60)), "overlaps the entry before it"),
    "place beyond the file": (patched(42, struct.pack("<I", 2**31)), "lies outside the file"),
    "too many": (many, "it has 65537 entries, more than 65536"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_refused_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.export.load", lambda _: pytest.fail("PyTorch saw the file"))
    make, message = CASES[name]
    path = tmp_path / "a.pt2"
    make(path)
    with pytest.raises(UnsupportedFormatError) as caught:
        load_pt2(path)
    assert message in str(caught.value)
