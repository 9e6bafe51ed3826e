"""Artifacts taken apart and put together again with right hashes, written from docs/artifact.md alone: no reader is tested against its writer."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field, replace

MAGIC = b"DISC\r\n\x1a\n"
CHUNK = 16 << 20


@dataclass(frozen=True)
class Part:
    """One section. offset, size, digest: what the table says, where that is not the truth."""

    name: bytes
    content: bytes
    offset: int | None = None
    size: int | None = None
    digest: bytes | None = None

    def said_digest(self) -> bytes:
        if self.digest is not None:
            return self.digest
        if self.name != b"weights":
            return hashlib.sha256(self.content).digest()
        chunks = [self.content[start : start + CHUNK] for start in range(0, len(self.content), CHUNK)]
        return hashlib.sha256(b"".join(hashlib.sha256(chunk).digest() for chunk in chunks)).digest()


@dataclass(frozen=True)
class Container:
    """An artifact. The other fields are what the header says, where that is not the truth."""

    parts: tuple[Part, ...]
    magic: bytes = MAGIC
    version: int = 1
    count: int | None = None
    file_size: int | None = None
    reserved: int = 0
    header_digest: bytes | None = None
    padding: bytes = b"\0"
    tail: bytes = b""
    places: dict[bytes, int] = field(default_factory=dict)  # where parts really lie

    def changed(self, name: bytes, **fields: object) -> Container:
        return replace(self, parts=tuple(replace(part, **fields) if part.name == name else part for part in self.parts))

    def without(self, name: bytes) -> Container:
        return replace(self, parts=tuple(part for part in self.parts if part.name != name))

    def __getitem__(self, name: bytes) -> bytes:
        return next(part.content for part in self.parts if part.name == name)

    def to_bytes(self) -> bytes:
        end = 32 + 112 * len(self.parts) + 32
        table, body = b"", b""
        for part in self.parts:
            align = 4096 if part.name == b"weights" else 64
            place = self.places.get(part.name, -(-end // align) * align)
            body += self.padding * (place - end) + part.content
            offset = place if part.offset is None else part.offset
            size = len(part.content) if part.size is None else part.size
            table += struct.pack("<64sQQ32s", part.name, offset % 2**64, size % 2**64, part.said_digest())
            end = place + len(part.content)
        count = len(self.parts) if self.count is None else self.count
        size = end + len(self.tail) if self.file_size is None else self.file_size
        header = struct.pack("<8sIIQQ", self.magic, self.version, count, size, self.reserved) + table
        return header + (self.header_digest or hashlib.sha256(header).digest()) + body + self.tail


def taken_apart(content: bytes) -> Container:
    """The container of a good artifact."""
    magic, version, count, _, _ = struct.unpack_from("<8sIIQQ", content)
    parts: list[Part] = []
    for index in range(count):
        name, offset, size, _ = struct.unpack_from("<64sQQ32s", content, 32 + 112 * index)
        parts.append(Part(name.rstrip(b"\0"), content[offset : offset + size]))
    return Container(tuple(parts), magic, version)
