"""Prints one digest of the object files among its arguments: of what was compiled for a target, whatever machine compiled it.

MLIR's execution engine adds to every function a caller named `_mlir_…`, which nothing calls; LLVM schedules these for the CPU that it
finds itself on. They are left out, and so are unwind tables, which follow their sizes.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_RELOCATION = struct.Struct("<QQq")  # Elf64_Rela
_PROGBITS, _SYMTAB, _RELA = 1, 2, 4
_FUNCTION = 2
_EXECUTABLE = 4
_CALLER = "_mlir_"


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    content: bytes
    link: int
    target: int  # of relocations: the number of the section that they change


class _Symbol(NamedTuple):
    name: str
    kind: int
    section: int
    start: int
    size: int


def _text(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode()


def _sections(file: bytes) -> list[_Section]:
    header = _HEADER.unpack_from(file)
    first, count, names = header[6], header[12], header[13]
    raw = [_SECTION.unpack_from(file, first + number * _SECTION.size) for number in range(count)]
    table = file[raw[names][4] :]
    return [_Section(_text(table, each[0]), each[1], each[2], file[each[4] : each[4] + each[5]], each[6], each[7]) for each in raw]


def _symbols(sections: list[_Section]) -> list[_Symbol]:
    (table,) = [each for each in sections if each.kind == _SYMTAB]
    names = sections[table.link].content
    return [
        _Symbol(_text(names, name), information & 15, section, start, size)
        for name, information, _, section, start, size in _SYMBOL.iter_unpack(table.content)
    ]


def object_digest(file: bytes) -> bytes:
    """The digest of one object file (ELF, x86-64)."""
    sections = _sections(file)
    symbols = _symbols(sections)
    found = hashlib.sha256()

    def note(*values: object) -> None:
        found.update(repr(values).encode())

    kept: dict[int, list[_Symbol]] = {}
    for symbol in sorted(symbols, key=lambda each: (each.section, each.start, each.name)):
        if symbol.kind == _FUNCTION and not symbol.name.startswith(_CALLER):
            kept.setdefault(symbol.section, []).append(symbol)
            note(symbol.name, sections[symbol.section].content[symbol.start : symbol.start + symbol.size])
    for section in sections:
        if section.kind == _PROGBITS and not section.flags & _EXECUTABLE and section.name != ".eh_frame":
            note(section.name, section.content)
        elif section.kind == _RELA and sections[section.target].name != ".eh_frame":
            code = bool(sections[section.target].flags & _EXECUTABLE)
            for place, information, addend in _RELOCATION.iter_unpack(section.content):
                if not code or any(each.start <= place < each.start + each.size for each in kept.get(section.target, [])):
                    symbol = symbols[information >> 32]
                    note(section.name, place, information & 0xFFFFFFFF, addend, symbol.name or sections[symbol.section].name)
    return found.digest()


if __name__ == "__main__":
    digests = [object_digest(Path(each).read_bytes()) for each in sys.argv[1:] if each.endswith(".o")]
    print(hashlib.sha256(b"".join(digests)).hexdigest())
