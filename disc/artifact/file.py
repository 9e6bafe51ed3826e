"""The `.disc` file: writing, reading back, checking. docs/artifact.md has the layout; disc/ral/src/core/file.cc is the other reader."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import re
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

import numpy as np

from disc.artifact.manifest import (
    ALIGNMENT,
    FORMAT_VERSION,
    OLDEST_VERSION,
    STORAGE,
    Manifest,
    NamedWeight,
    StoredManifest,
    TargetRecord,
    WeightRecord,
    aligned,
    block_manifest,
    manifest_bytes,
    manifest_for,
    parse_manifest,
    signature_bytes,
    signature_name,
    stored_manifest,
    stored_manifests,
    weight_offsets,
)
from disc.artifact.output import whole_file
from disc.artifact.pointers import POINTER, POINTER_MAGIC
from disc.errors import ArtifactError, OutputError, check_path, printable

if TYPE_CHECKING:
    import hashlib

    import numpy.typing as npt

MAGIC = b"DISC\r\n\x1a\n"
PAGE = 4096  # bytes: the weights section, so that it can be mapped
WEIGHTS_CHUNK = 16 << 20  # bytes: the hash of the weights is the hash of the hashes of such chunks

MODELS = (".pt2", ".onnx", ".mlir", ".mlirbc")  # the suffixes of what becomes an artifact
FOLDER = "a folder, not an artifact: give a .disc file; what disc.hf has saved, its from_pretrained loads"

_HEADER = struct.Struct("<8sIIQQ")  # magic, version, section count, file size, reserved 0
_ENTRY = struct.Struct("<64sQQ32s")  # name, offset, size, SHA-256
_DIGEST_SIZE = 32
_Bytes = BinaryIO | mmap.mmap
_MAX_SECTIONS = 64
# Bytes of what is read into memory as a whole; of the largest models, manifests have some megabytes. Code is copied to memory, too.
_MAX_TEXT_SIZE = 32 << 20
_MAX_CODE_SIZE = 1 << 30


class Section(NamedTuple):
    """One entry of the section table. offset, size: bytes in the file; digest: SHA-256 (for "weights", of its chunks' SHA-256)."""

    name: str
    offset: int
    size: int
    digest: bytes


class Contents(NamedTuple):
    """A whole program: what `write_artifact` writes. weights: by their numbers in the manifest's table."""

    manifest: StoredManifest
    code: Mapping[str, bytes | memoryview]
    weights: Sequence[NamedWeight]


# ---- Writing ----------------------------------------------------------------------------------------------------------------------


def write_artifact(
    path: str | os.PathLike[str],
    manifest: Manifest,
    code: Mapping[str, bytes],
    weights: Sequence[NamedWeight] = (),
    stablehlo: bytes | None = None,
    targets: Mapping[str, TargetRecord] | None = None,
) -> None:
    """Writes an artifact in one step: readers of `path` see the old file or the whole new one.

    code: ISA ("x86-64-v3", "x86-64-v4+avx512bf16") → shared object. weights: all that any code reads. targets: what belongs to each of
    `code`; None: all have the checks, kernels and counters of `manifest`, and count the weights in their order. stablehlo: the program as
    portable bytecode. Raises OutputError.
    """
    stored = stored_manifest(manifest, code, weights, targets)
    sections: list[tuple[str, bytes]] = [("manifest", manifest_bytes(stored))]
    for isa in stored["code"]:
        sections += [(signature_name(isa), signature_bytes(manifest_for(stored, isa))), (f"code/{isa}", code[isa])]
    if stablehlo is not None:
        sections.append(("stablehlo", stablehlo))
    with whole_file(path) as file:
        _write_sections(file, sections, _weight_pieces(weights))


def write_structures(path: str | os.PathLike[str], manifest: Manifest, blocks: Sequence[Contents]) -> None:
    """Writes a model over structures: `manifest`, with `structures`, and a program for each of its kinds. Weights that blocks share in
    memory are written once. In one step, as `write_artifact`. Raises OutputError; ArtifactError for more sections than a file has."""
    weights = [weight for block in blocks for weight in block.weights]
    offsets = iter(weight_offsets(weights))
    sections = [("manifest", manifest_bytes(stored_manifest(manifest, {}, ())))]
    for number, block in enumerate(blocks):
        table = [{**record, "offset": next(offsets)} for record in block.manifest["weights"]]
        sections.append((f"block/{number}/manifest", manifest_bytes(cast("StoredManifest", {**block.manifest, "weights": table}))))
        sections += [(f"block/{number}/code/{isa}", bytes(code)) for isa, code in block.code.items()]
    if len(sections) >= _MAX_SECTIONS:
        raise ArtifactError(f"{len(blocks)} kinds of nodes for {len(blocks[0].code)} targets are more than a file has sections for")
    with whole_file(path) as file:
        _write_sections(file, sections, _weight_pieces(weights))


def write_bytes(path: str | os.PathLike[str], content: bytes | memoryview) -> None:
    """Writes the bytes of a whole artifact, in one step as `write_artifact`. Raises OutputError."""
    with whole_file(path) as file:
        file.write(content)


def write_with_section(source: str | os.PathLike[str], target: str | os.PathLike[str], name: str, content: bytes) -> None:
    """Copies an artifact, with section `name` added or replaced, in one step; `target` may be `source`. Raises ArtifactError
    and OutputError."""
    with _reading(source) as file:
        version, table = _read_table(file)
        weights = table[-1]
        if weights.name != "weights":
            raise ArtifactError("the weights are not the last section")
        sections = [(section.name, _read_checked(file, section)) for section in table[:-1] if section.name != name]
        file.seek(weights.offset)
        pieces = iter(lambda: file.read(WEIGHTS_CHUNK), b"")
        with whole_file(target) as copy:
            _write_sections(copy, [*sections, (name, content)], (memoryview(piece) for piece in pieces), version)


class _ChunkedHash:
    """SHA-256 over the SHA-256 of each chunk of `WEIGHTS_CHUNK` bytes, fed piece by piece."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._chunk = _sha256()
        self._filled = 0

    def update(self, piece: memoryview) -> None:
        while len(piece):
            part = piece[: WEIGHTS_CHUNK - self._filled]
            self._chunk.update(part)
            self._filled += len(part)
            piece = piece[len(part) :]
            if self._filled == WEIGHTS_CHUNK:
                self._close_chunk()

    def _close_chunk(self) -> None:
        self._digests += self._chunk.digest()
        self._chunk = _sha256()
        self._filled = 0

    def digest(self) -> bytes:
        """The hash of all that was fed; call it once, at the end."""
        if self._filled:
            self._close_chunk()
        return _sha256(self._digests).digest()


def _sha256(content: bytes | bytearray | memoryview = b"") -> hashlib._Hash:
    import hashlib  # `load` leaves hashing to the runtime, and OpenSSL is a part of what `import disc` would cost

    return hashlib.sha256(content)


def _raw(array: npt.NDArray[np.generic]) -> memoryview:
    """The bytes of an array in row-major order; a copy only if they do not lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _weight_pieces(weights: Sequence[NamedWeight]) -> Iterator[memoryview]:
    """The bytes of the weights section: each storage once, with the padding before it."""
    end = 0
    for (_, _, array), offset in zip(weights, weight_offsets(weights), strict=True):
        if offset < end or not array.nbytes:
            continue  # storage that has been written
        yield memoryview(bytes(offset - end))
        yield _raw(array)
        end = offset + array.nbytes


def _write_weights(file: BinaryIO, pieces: Iterable[memoryview]) -> tuple[int, bytes]:
    """Writes the weights section at the current place; returns its size and digest."""
    hashed = _ChunkedHash()
    size = 0
    for piece in pieces:
        file.write(piece)
        hashed.update(piece)
        size += len(piece)
    return size, hashed.digest()


def _write_sections(
    file: BinaryIO, sections: Sequence[tuple[str, bytes]], weights: Iterable[memoryview], version: int = FORMAT_VERSION
) -> None:
    """Writes the sections, then the header, which needs their hashes."""
    table_end = _HEADER.size + (len(sections) + 1) * _ENTRY.size
    end = table_end + _DIGEST_SIZE
    file.write(bytes(end))
    table = bytearray()
    for name, content in sections:
        offset = aligned(end, ALIGNMENT)
        file.write(bytes(offset - end) + content)
        table += _entry(Section(name, offset, len(content), _sha256(content).digest()))
        end = offset + len(content)
    offset = aligned(end, PAGE)
    file.write(bytes(offset - end))
    size, digest = _write_weights(file, weights)
    table += _entry(Section("weights", offset, size, digest))
    header = _HEADER.pack(MAGIC, version, len(sections) + 1, offset + size, 0) + table
    file.seek(0)
    file.write(header + _sha256(header).digest())


def _entry(section: Section) -> bytes:
    name = section.name.encode()
    if len(name) > 64:
        raise ValueError(f"the section name {section.name!r} is longer than 64 bytes")
    return _ENTRY.pack(name, section.offset, section.size, section.digest)


# ---- Reading ----------------------------------------------------------------------------------------------------------------------


def hint(path: str | os.PathLike[str]) -> str:
    """What to do with a path that names a model and no artifact; "" for any other."""
    name = shown_path(path)
    if name.startswith("hf:"):
        return f"; disc compile {name} --task ... makes an artifact of it"
    is_factory = re.fullmatch(r"[\w.]+:\w+", name) is not None and not os.path.exists(path)
    return f"; disc compile {name} makes an artifact of it" if is_factory or name.endswith(MODELS) else ""


def system_path(path: str | os.PathLike[str]) -> bytes:
    """The path as the system takes it. Raises ArtifactError for one that no file can have: with a NUL, or characters that have no bytes;
    ArgumentError for what is no path."""
    check_path(path)
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        raise ArtifactError(f"'{shown_path(path)}': cannot be opened: the path holds a lone surrogate") from None
    if b"\0" in encoded:
        raise ArtifactError(f"'{shown_path(path)}': cannot be opened: the path holds a NUL character")
    return encoded


def file_view(path: str | os.PathLike[str]) -> memoryview:
    """The bytes of any file, mapped, so that a large one is not copied."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"")  # nothing can be mapped
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def shown_path(path: str | os.PathLike[str]) -> str:
    """The path in a message."""
    return printable(os.fsdecode(path))


def read_sections(path: str | os.PathLike[str]) -> list[Section]:
    """The section table; the header and the padding have been checked, the sections have not. Raises ArtifactError."""
    with _reading(path) as file:
        return _read_table(file)[1]


def read_section(path: str | os.PathLike[str], name: str) -> bytes:
    """The content of one section, checked. Raises ArtifactError, also if there is none of this name."""
    with _reading(path) as file:
        for section in _read_table(file)[1]:
            if section.name == name:
                return _read_checked(file, section)
        raise ArtifactError(f"section '{name}' is missing")


def read_manifest(path: str | os.PathLike[str], isa: str | None = None) -> Manifest:
    """The manifest for one target (None: the best that the file has code for), checked. Raises ArtifactError."""
    with _reading(path) as file:
        return parse_manifest(
            {section.name: _read_checked(file, section) for section in _read_table(file)[1] if _is_text(section.name)}, isa
        )


def verify(path: str | os.PathLike[str]) -> None:
    """Checks every byte of the file. Raises ArtifactError, naming the section that is damaged."""
    with _reading(path) as file:
        content: dict[str, bytes] = {}
        _, table = _read_table(file)
        for section in table:
            if section.name == "weights":
                _check_weights(file, section)
            elif _is_text(section.name):
                content[section.name] = _read_checked(file, section)
            else:
                _check_hash(file, section)
        stored, _ = stored_manifests(content)
        size = next(section.size for section in table if section.name == "weights")
        _check_places(stored, size)
        number = 0
        while (block := content.get(f"block/{number}/manifest")) is not None:
            _check_places(block_manifest(block, number), size)
            number += 1


def read_whole(path: str | os.PathLike[str], expected: bytes | None = None) -> memoryview:
    """The whole file in memory of this process, so that nobody can change it, every byte checked. expected: the hash of its header, where
    that must be a certain one. Raises ArtifactError, OutOfMemoryError."""
    with _reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        memory = mmap.mmap(-1, max(size, 1))  # on a page, as the weights are
        if file.readinto(memory) != size:  # pyright: ignore[reportAttributeAccessIssue] - it is a BufferedReader
            raise ArtifactError("it was changed while it was read")
        found = _read_table(memory, size)[1]
        digest = memory[_HEADER.size + len(found) * _ENTRY.size :][:_DIGEST_SIZE] if expected else None
        if digest != expected:
            raise ArtifactError("it is not the file whose signature was checked")
        for section in found:
            (_check_weights if section.name == "weights" else _check_hash)(memory, section)
    return memoryview(memory)[:size]


def contents_of(file: memoryview) -> Contents:
    """A program of a whole file that was checked; nothing is copied. Raises ArtifactError."""
    found = sections(file)
    stored = cast("StoredManifest", stored_manifests(text_sections(file))[0])
    code = {name.removeprefix("code/"): section for name, section in found.items() if name.startswith("code/")}
    return Contents(stored, code, _named_weights(stored, found["weights"]))


def block_contents(file: memoryview) -> list[Contents]:
    """The programs of a model over structures, of such a file. Raises ArtifactError."""
    found = sections(file)
    blocks: list[Contents] = []
    while f"block/{len(blocks)}/manifest" in found:
        number = len(blocks)
        stored, before = block_manifest(found[f"block/{number}/manifest"], number), f"block/{number}/code/"
        code = {name.removeprefix(before): section for name, section in found.items() if name.startswith(before)}
        if sorted(code) != sorted(stored["code"]):
            raise ArtifactError(f"section 'block/{number}/manifest': its code is missing")
        _check_places(stored, found["weights"].nbytes)
        blocks.append(Contents(stored, code, _named_weights(stored, found["weights"])))
    return blocks


def _named_weights(stored: StoredManifest, section: memoryview) -> list[NamedWeight]:
    """Views of the weights. Raises ArtifactError for one whose bytes are not those of its shape."""
    weights: list[NamedWeight] = []
    for record in stored["weights"]:
        piece, storage = section[record["offset"] : record["offset"] + record["size"]], np.dtype(STORAGE.get(record["dtype"], np.void))
        if not storage.itemsize or math.prod(record["shape"]) * storage.itemsize != piece.nbytes:
            raise ArtifactError(f"weight '{printable(record['name'])}' has not the bytes of its shape")
        weights.append((record["name"], record["dtype"], np.ndarray(record["shape"], storage, piece)))
    return weights


def text_sections(file: memoryview) -> dict[str, memoryview]:
    """What `parse_manifest` reads, of a whole file that the runtime has mapped and checked."""
    return {name: section for name, section in sections(file).items() if _is_text(name)}


def sections(file: memoryview) -> dict[str, memoryview]:
    """All of such a file, by name; of these the runtime checks the weights later."""
    return {name: file[offset : offset + size] for name, offset, size in _places(file)}


def stored_first_values(file: memoryview) -> dict[str, npt.NDArray[np.generic]]:
    """The first values of a program's state, by name, copied out of a whole file that the runtime has mapped and checked but for the
    weights. Raises ArtifactError."""
    stored = cast("StoredManifest", stored_manifests(text_sections(file))[0])
    weights = next(offset for name, offset, _ in _places(file) if name == "weights")

    def read(record: WeightRecord) -> npt.NDArray[np.generic]:
        start = weights + record["offset"]
        return np.frombuffer(file[start : start + record["size"]], STORAGE[record["dtype"]]).reshape(record["shape"]).copy()

    return first_values(stored, read)


def first_values(stored: StoredManifest, read: Callable[[WeightRecord], npt.NDArray[np.generic]]) -> dict[str, npt.NDArray[np.generic]]:
    """The first values of a program's state, by name. read: the values of a weight."""
    state = stored.get("state")
    return {each["name"]: read(stored["weights"][each["weight"]]) for each in state["buffers"]} if state is not None else {}


def _places(file: memoryview) -> list[tuple[str, int, int]]:
    """Name, offset and size of each section."""
    count: int = _HEADER.unpack_from(file)[2]
    entries = _ENTRY.iter_unpack(file[_HEADER.size : _HEADER.size + count * _ENTRY.size])
    return [(found.rstrip(b"\0").decode(errors="replace"), offset, size) for found, offset, size, _ in entries]


def _is_text(name: str) -> bool:
    return name in ("manifest", "signature") or name.startswith("signature/") or (name.startswith("block/") and name.endswith("/manifest"))


def read_header(path: str | os.PathLike[str], name: str) -> tuple[int, list[Section], bytes, bytes | None]:
    """The format version, the section table, the hash of the header (32 bytes: it covers the hashes of all sections), and the content of
    section `name`, checked, if there is one; all of one open file, whatever happens to the path in the meantime. Raises ArtifactError."""
    with _reading(path) as file:
        version, sections = _read_table(file)
        file.seek(_HEADER.size + len(sections) * _ENTRY.size)
        digest = file.read(_DIGEST_SIZE)
        return version, sections, digest, next((_read_checked(file, section) for section in sections if section.name == name), None)


@contextlib.contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """The opened file; errors raised in the body name it."""
    try:
        descriptor = os.open(system_path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe must not wait for a writer
    except OSError as error:
        raise ArtifactError(f"'{shown_path(path)}': cannot be opened: {error.strerror}{hint(path)}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise ArtifactError(FOLDER if stat.S_ISDIR(status.st_mode) else "not a regular file")
        with open(descriptor, "rb") as file:
            yield file
    except OutputError:  # of what the body writes
        raise
    except OSError as error:
        raise ArtifactError(f"'{shown_path(path)}': cannot be read: {error.strerror}") from error
    except ArtifactError as error:
        raise ArtifactError(f"'{shown_path(path)}': {error}{hint(path)}") from None


def _read_table(file: _Bytes, size: int | None = None) -> tuple[int, list[Section]]:
    """The format version and the sections. size: of the file, where it is in memory."""
    size = os.fstat(cast("BinaryIO", file).fileno()).st_size if size is None else size
    head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        raise ArtifactError(f"header: the file has {size} bytes, too few for an artifact")
    magic, version, count, file_size, reserved = _HEADER.unpack(head)
    if magic != MAGIC:
        raise ArtifactError(POINTER if magic == POINTER_MAGIC else "header: not a disc artifact")
    if version > FORMAT_VERSION:
        newer = f"header: format version {version} is newer than this runtime reads ({FORMAT_VERSION})"
        raise ArtifactError(f"{newer}; rebuild the artifact or upgrade disc")
    if version < OLDEST_VERSION:
        raise ArtifactError(f"header: format version {version} is no longer read; rebuild the artifact with this disc")
    if file_size != size:
        raise ArtifactError(f"header: the file should have {file_size} bytes and has {size}")
    if reserved or count > _MAX_SECTIONS:
        raise ArtifactError("header: damaged")
    table = file.read(count * _ENTRY.size)
    if _sha256(head + table).digest() != file.read(_DIGEST_SIZE):
        raise ArtifactError("header: hash differs, the file is damaged")
    sections = _checked_places(file, table, size)
    required = (
        ["signature"]
        if version == OLDEST_VERSION
        else [signature_name(each.name[5:]) for each in sections if each.name.startswith("code/")]
    )
    for name in ("manifest", *required, "weights"):
        if all(section.name != name for section in sections):
            raise ArtifactError(f"section '{printable(name)}' is missing")
    return version, sections


def _checked_places(file: _Bytes, table: bytes, size: int) -> list[Section]:
    """The entries of the table: in order, without overlap, with nothing but zeros between."""
    sections: list[Section] = []
    end = _HEADER.size + len(table) + _DIGEST_SIZE
    for field, offset, length, digest in _ENTRY.iter_unpack(table):
        name = field.rstrip(b"\0")
        if not name or b"\0" in name:
            raise ArtifactError(f"header: section {len(sections)} has a malformed name")
        section = Section(name.decode(errors="backslashreplace"), offset, length, digest)
        if offset != aligned(end, PAGE if section.name == "weights" else ALIGNMENT) or offset + length > size:
            raise ArtifactError(f"section '{printable(section.name)}' has a wrong place")
        file.seek(end)
        if any(file.read(offset - end)):
            raise ArtifactError(f"padding before section '{printable(section.name)}' is damaged")
        if any(section.name == other.name for other in sections):
            raise ArtifactError(f"section '{printable(section.name)}' occurs twice")
        most = _MAX_CODE_SIZE if section.name.startswith("code/") else _MAX_TEXT_SIZE if _is_text(section.name) else size
        if section.size > most:
            raise ArtifactError(f"section '{printable(section.name)}' is larger than any that disc writes ({section.size} bytes)")
        sections.append(section)
        end = offset + length
    if end != size:
        raise ArtifactError("header: bytes after the last section")
    return sections


def _damaged(section: Section) -> ArtifactError:
    return ArtifactError(f"section '{printable(section.name)}': hash differs, the file is damaged")


def _read_checked(file: BinaryIO, section: Section) -> bytes:
    file.seek(section.offset)
    content = file.read(section.size)
    if _sha256(content).digest() != section.digest:
        raise _damaged(section)
    return content


def _check_hash(file: _Bytes, section: Section) -> None:
    """As `_read_checked`, of a section that need not fit into memory."""
    hashed = _sha256()
    for piece in _pieces(file, section):
        hashed.update(piece)
    if hashed.digest() != section.digest:
        raise _damaged(section)


def _check_weights(file: _Bytes, section: Section) -> None:
    hashed = _ChunkedHash()
    for piece in _pieces(file, section):
        hashed.update(memoryview(piece))
    if hashed.digest() != section.digest:
        raise _damaged(section)


def _pieces(file: _Bytes, section: Section) -> Iterator[bytes]:
    file.seek(section.offset)
    rest = section.size
    while rest:
        piece = file.read(min(rest, WEIGHTS_CHUNK))
        if not piece:
            raise _damaged(section)
        yield piece
        rest -= len(piece)


def _check_places(manifest: Manifest | StoredManifest, size: int) -> None:
    """Raises ArtifactError for a weight that lies outside the weights section, which has `size` bytes."""
    for record in manifest.get("weights", []):
        if record["offset"] + record["size"] > size:
            raise ArtifactError(f"weight '{printable(record['name'])}' lies outside section 'weights'")
