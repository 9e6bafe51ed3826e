"""The `.disc` file: writing, reading back, checking. docs/artifact.md has the layout; disc/ral/src/core/file.cc is the other reader."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NotRequired, TypedDict, cast

import numpy as np
import numpy.typing as npt

from disc.artifact.bounds import contradiction, unbounded
from disc.artifact.output import whole_file
from disc.artifact.records import mismatch
from disc.errors import ArtifactError, OutputError, printable

FORMAT_VERSION = 1
SIGNATURE_VERSION = 1
MAGIC = b"DISC\r\n\x1a\n"
ALIGNMENT = 64  # bytes: sections and weights
PAGE = 4096  # bytes: the weights section, so that it can be mapped
WEIGHTS_CHUNK = 16 << 20  # bytes: the hash of the weights is the hash of the hashes of such chunks

# In the order of ral_dtype.
DTYPES = ("i1", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "f16", "bf16", "f32", "f64")

_HEADER = struct.Struct("<8sIIQQ")  # magic, version, section count, file size, reserved 0
_ENTRY = struct.Struct("<64sQQ32s")  # name, offset, size, SHA-256
_DIGEST_SIZE = 32
_MAX_SECTIONS = 64
# Bytes of what is read into memory as a whole; of the largest models, manifests have some megabytes. Code is copied to memory, too.
_MAX_SIZES = {"manifest": 32 << 20, "signature": 32 << 20}
_MAX_CODE_SIZE = 1 << 30
_REQUIRED = ("manifest", "signature", "weights")

NamedWeight = tuple[str, str, npt.NDArray[np.generic]]  # name, MLIR element type, the data


class InputRecord(TypedDict):
    """One argument; a dim is its size or the name of its symbol."""

    name: str
    dtype: str
    dims: list[int | str]


class OutputRecord(TypedDict):
    """One result; `dims` (for people) as in `InputRecord`."""

    name: str
    dtype: str
    rank: int
    dims: NotRequired[list[int | str]]


class SymbolRecord(TypedDict):
    """One dim symbol, as `disc.symbolic_dim` has it."""

    name: str
    min: int
    max: NotRequired[int]
    divisor: int
    source: NotRequired[str]
    expr: NotRequired[str]


class CheckRecord(TypedDict):
    """One run-time check. The message may hold {actual} and {expected}; with neither, ": got ..., expected ..." follows it."""

    message: str


class WeightRecord(TypedDict):
    """One weight's place. offset: bytes into the weights section, two names may share it; size: bytes."""

    name: str
    dtype: str
    shape: list[int]
    offset: int
    size: int


class BatchRecord(TypedDict):
    """The dim along which a program treats every row alone, as `find-batch-dim` proved: requests may be joined along it.

    symbol: its name. inputs, outputs: the axis of each that has this size.
    """

    symbol: str
    inputs: list[int]
    outputs: list[int]


class FixedRecord(TypedDict):
    """An argument that is no tensor and was fixed at compile time. position: among all arguments; value: as Python prints it."""

    name: str
    position: int
    value: str


class DecisionsRecord(TypedDict):
    """What became of the conditions on sizes under which the program was made, for people.

    proved: how many hold for all sizes that the other checks let through. layout: how many concern strides alone, in PyTorch.
    checked: the messages, as in `checks`, of those that every call is checked for.
    """

    proved: int
    layout: int
    checked: list[str]


class PackedRecord(TypedDict):
    """What the program was before `pack-sequences` made it one over sequences of any lengths (`disc.serving.packing` calls it).

    rows, length: the symbols of the first two dims of its inputs. inputs, results, symbols: as in the manifest, of that program.
    outputs: for each result "tokens" ([rows, length, ...]) or "sequences" ([rows, ...]). least: tokens of a sequence, at the least.
    """

    rows: str
    length: str
    inputs: list[InputRecord]
    results: list[OutputRecord]
    symbols: list[SymbolRecord]
    outputs: list[str]
    least: int


class Manifest(TypedDict):
    """What an artifact says about itself. The last three are filled in when it is written."""

    compiler: str
    inputs: list[InputRecord]
    outputs: list[OutputRecord]
    single: bool  # a call returns its one output itself, not a tuple
    symbols: list[SymbolRecord]
    checks: list[CheckRecord]
    kernels: list[dict[str, object]]  # "name", and whatever else `explain` shows
    counters: list[str]
    options: dict[str, object]
    fixed: NotRequired[list[FixedRecord]]
    batch: NotRequired[BatchRecord]
    batch_refusal: NotRequired[str]  # why there is none, for people
    decisions: NotRequired[DecisionsRecord]
    packed: NotRequired[PackedRecord]
    packed_refusal: NotRequired[str]  # why there is none though it was asked for, for people
    format: NotRequired[int]
    code: NotRequired[list[str]]
    weights: NotRequired[list[WeightRecord]]


@dataclass(frozen=True)
class Section:
    """One entry of the section table. offset, size: bytes in the file; digest: SHA-256 (for "weights", of its chunks' SHA-256)."""

    name: str
    offset: int
    size: int
    digest: bytes


# ---- Writing ----------------------------------------------------------------------------------------------------------------------


def write_artifact(
    path: str | os.PathLike[str],
    manifest: Manifest,
    code: Mapping[str, bytes],
    weights: Sequence[NamedWeight] = (),
    stablehlo: bytes | None = None,
) -> None:
    """Writes an artifact in one step: whoever reads `path` sees the old file or the whole new one.

    code: ISA ("x86-64-v3", "x86-64-v4+avx512bf16") → shared object. weights: in the order in which generated code counts them.
    stablehlo: the program as portable bytecode. Raises OutputError.
    """
    complete = complete_manifest(manifest, code, weights)
    sections: list[tuple[str, bytes]] = [("manifest", manifest_bytes(complete)), ("signature", signature_bytes(complete))]
    sections += [(f"code/{isa}", code[isa]) for isa in ordered_isas(code)]
    if stablehlo is not None:
        sections.append(("stablehlo", stablehlo))
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
        table = _read_table(file)
        weights = table[-1]
        if weights.name != "weights":
            raise ArtifactError("the weights are not the last section")
        sections = [(section.name, _read_checked(file, section)) for section in table[:-1] if section.name != name]
        file.seek(weights.offset)
        pieces = iter(lambda: file.read(WEIGHTS_CHUNK), b"")
        with whole_file(target) as copy:
            _write_sections(copy, [*sections, (name, content)], (memoryview(piece) for piece in pieces))


def complete_manifest(manifest: Manifest, code: Mapping[str, bytes], weights: Sequence[NamedWeight]) -> Manifest:
    """The manifest with "format", "code" and "weights" filled in."""
    table: list[WeightRecord] = []
    for (name, dtype, array), offset in zip(weights, _offsets(weights), strict=True):
        table.append({"name": name, "dtype": dtype, "shape": list(array.shape), "offset": offset, "size": array.nbytes})
    return {**manifest, "format": FORMAT_VERSION, "code": ordered_isas(code), "weights": table}


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest as it is stored: JSON, indented for people."""
    return json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n"


def ordered_isas(code: Mapping[str, bytes]) -> list[str]:
    """The ISA names of `code`, best last: by level, then by the number of further features."""
    return sorted(code, key=lambda isa: (isa.split("+")[0], isa.count("+"), isa))


class _SignatureWriter:
    """The binary form of names and types that the runtime reads (docs/artifact.md, "Signature")."""

    def __init__(self) -> None:
        self.out = bytearray(struct.pack("<I", SIGNATURE_VERSION))

    def count(self, value: int) -> None:
        self.out += struct.pack("<I", value)

    def text(self, value: str) -> None:
        encoded = value.encode()
        if b"\0" in encoded:
            raise ValueError(f"a name may not hold a NUL character: {value!r}")
        self.count(len(encoded))
        self.out += encoded

    def texts(self, values: Sequence[str]) -> None:
        self.count(len(values))
        for value in values:
            self.text(value)

    def value(self, name: str, dtype: str, rank: int) -> None:
        self.text(name)
        self.count(DTYPES.index(dtype))
        self.count(rank)

    def integers(self, values: Sequence[int]) -> None:
        self.out += struct.pack(f"<{len(values)}q", *values)


def signature_bytes(manifest: Manifest) -> bytes:
    """What the runtime needs to know of a complete manifest."""
    writer = _SignatureWriter()
    writer.count(len(manifest["inputs"]))
    for record in manifest["inputs"]:
        writer.value(record["name"], record["dtype"], len(record["dims"]))
        writer.integers([dim if isinstance(dim, int) else -1 for dim in record["dims"]])
    writer.count(len(manifest["outputs"]))
    for record in manifest["outputs"]:
        writer.value(record["name"], record["dtype"], record["rank"])
    writer.texts([record["message"] for record in manifest["checks"]])
    writer.texts([str(record["name"]) for record in manifest["kernels"]])
    writer.texts(manifest["counters"])
    weights = manifest.get("weights", [])
    writer.count(len(weights))
    for record in weights:
        writer.text(record["name"])
        writer.integers([record["offset"], record["size"]])
    return bytes(writer.out)


def _storage_key(array: npt.NDArray[np.generic]) -> tuple[object, ...]:
    """Equal for arrays that are the same bytes in memory."""
    return (array.__array_interface__["data"][0], array.nbytes, None if array.flags.c_contiguous else (array.shape, array.strides))


def _offsets(weights: Sequence[NamedWeight]) -> list[int]:
    """The place of each weight in the weights section; shared storage has one place."""
    places: dict[tuple[object, ...], int] = {}
    offsets: list[int] = []
    end = 0
    for _, _, array in weights:
        key = _storage_key(array)
        if key not in places:
            places[key] = end = _aligned(end, ALIGNMENT)
            end += array.nbytes
        offsets.append(places[key])
    return offsets


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


class _ChunkedHash:
    """SHA-256 over the SHA-256 of each chunk of `WEIGHTS_CHUNK` bytes, fed piece by piece."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._chunk = hashlib.sha256()
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
        self._chunk = hashlib.sha256()
        self._filled = 0

    def digest(self) -> bytes:
        """The hash of all that was fed; call it once, at the end."""
        if self._filled:
            self._close_chunk()
        return hashlib.sha256(self._digests).digest()


def _raw(array: npt.NDArray[np.generic]) -> memoryview:
    """The bytes of an array in row-major order; a copy only if they do not lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _weight_pieces(weights: Sequence[NamedWeight]) -> Iterator[memoryview]:
    """The bytes of the weights section: each storage once, with the padding before it."""
    end = 0
    for (_, _, array), offset in zip(weights, _offsets(weights), strict=True):
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


def _write_sections(file: BinaryIO, sections: Sequence[tuple[str, bytes]], weights: Iterable[memoryview]) -> None:
    """Writes the sections, then the header, which needs their hashes."""
    table_end = _HEADER.size + (len(sections) + 1) * _ENTRY.size
    end = table_end + _DIGEST_SIZE
    file.write(bytes(end))
    table = bytearray()
    for name, content in sections:
        offset = _aligned(end, ALIGNMENT)
        file.write(bytes(offset - end) + content)
        table += _entry(Section(name, offset, len(content), hashlib.sha256(content).digest()))
        end = offset + len(content)
    offset = _aligned(end, PAGE)
    file.write(bytes(offset - end))
    size, digest = _write_weights(file, weights)
    table += _entry(Section("weights", offset, size, digest))
    header = _HEADER.pack(MAGIC, FORMAT_VERSION, len(sections) + 1, offset + size, 0) + table
    file.seek(0)
    file.write(header + hashlib.sha256(header).digest())


def _entry(section: Section) -> bytes:
    name = section.name.encode()
    if len(name) > 64:
        raise ValueError(f"the section name {section.name!r} is longer than 64 bytes")
    return _ENTRY.pack(name, section.offset, section.size, section.digest)


# ---- Reading ----------------------------------------------------------------------------------------------------------------------


def system_path(path: str | os.PathLike[str]) -> bytes:
    """The path as the system takes it. Raises ArtifactError for one that no file can have: with a NUL, or characters that have no bytes."""
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        raise ArtifactError(f"'{shown_path(path)}': cannot be opened: the path holds a lone surrogate") from None
    if b"\0" in encoded:
        raise ArtifactError(f"'{shown_path(path)}': cannot be opened: the path holds a NUL character")
    return encoded


def shown_path(path: str | os.PathLike[str]) -> str:
    """The path in a message."""
    return printable(os.fsdecode(path))


def read_sections(path: str | os.PathLike[str]) -> list[Section]:
    """The section table; the header and the padding have been checked, the sections have not. Raises ArtifactError."""
    with _reading(path) as file:
        return _read_table(file)


def read_section(path: str | os.PathLike[str], name: str) -> bytes:
    """The content of one section, checked. Raises ArtifactError, also if there is none of this name."""
    with _reading(path) as file:
        for section in _read_table(file):
            if section.name == name:
                return _read_checked(file, section)
        raise ArtifactError(f"section '{name}' is missing")


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """The manifest, checked. Raises ArtifactError."""
    with _reading(path) as file:
        content = {section.name: _read_checked(file, section) for section in _read_table(file) if section.name in ("manifest", "signature")}
        return parse_manifest(content["manifest"], content["signature"])


def parse_manifest(content: bytes, signature: bytes | memoryview) -> Manifest:
    """The manifest of these two sections. Raises ArtifactError if it is malformed, or the signature is not its own."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise ArtifactError("section 'manifest' is not JSON") from None
    problem = unbounded(value) or mismatch(value, Manifest, "manifest") or contradiction(value)
    if problem is not None:
        raise ArtifactError(f"section 'manifest' is malformed: {printable(problem)}")
    manifest = cast("Manifest", value)
    try:
        own = signature_bytes(manifest)
    except (ValueError, KeyError, struct.error) as error:
        raise ArtifactError("section 'manifest' is malformed: a dtype, a name or a number that cannot be stored") from error
    if own != signature:
        raise ArtifactError("section 'signature' differs from what the manifest says")
    return manifest


def verify(path: str | os.PathLike[str]) -> None:
    """Checks every byte of the file. Raises ArtifactError, naming the section that is damaged."""
    with _reading(path) as file:
        content: dict[str, bytes] = {}
        table = _read_table(file)
        for section in table:
            if section.name == "weights":
                _check_weights(file, section)
            elif section.name in _MAX_SIZES:
                content[section.name] = _read_checked(file, section)
            else:
                _check_hash(file, section)
        manifest = parse_manifest(content["manifest"], content["signature"])
        _check_places(manifest, next(section.size for section in table if section.name == "weights"))


def checked_section(file: memoryview, name: str) -> memoryview:
    """A section of a whole file that the runtime has mapped and checked."""
    count: int = _HEADER.unpack_from(file)[2]
    for found, offset, size, _ in _ENTRY.iter_unpack(file[_HEADER.size : _HEADER.size + count * _ENTRY.size]):
        if found.rstrip(b"\0") == name.encode():
            return file[offset : offset + size]
    raise ArtifactError(f"section '{name}' is missing")


def read_header(path: str | os.PathLike[str], name: str) -> tuple[list[Section], bytes, bytes | None]:
    """The section table, the hash of the header (32 bytes: it covers the hashes of all sections), and the content of section `name`,
    checked, if there is one; all of one open file, whatever becomes of the path meanwhile. Raises ArtifactError."""
    with _reading(path) as file:
        sections = _read_table(file)
        file.seek(_HEADER.size + len(sections) * _ENTRY.size)
        digest = file.read(_DIGEST_SIZE)
        return sections, digest, next((_read_checked(file, section) for section in sections if section.name == name), None)


@contextlib.contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """The opened file; errors raised in the body name it."""
    try:
        descriptor = os.open(system_path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe must not wait for a writer
    except OSError as error:
        raise ArtifactError(f"'{shown_path(path)}': cannot be opened: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ArtifactError("not a regular file")
        with open(descriptor, "rb") as file:
            yield file
    except OutputError:  # of what the body writes
        raise
    except OSError as error:
        raise ArtifactError(f"'{shown_path(path)}': cannot be read: {error.strerror}") from error
    except ArtifactError as error:
        raise ArtifactError(f"'{shown_path(path)}': {error}") from None


def _read_table(file: BinaryIO) -> list[Section]:
    size = os.fstat(file.fileno()).st_size
    head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        raise ArtifactError(f"header: the file has {size} bytes, too few for an artifact")
    magic, version, count, file_size, reserved = _HEADER.unpack(head)
    if magic != MAGIC:
        raise ArtifactError("header: not a disc artifact")
    if version > FORMAT_VERSION:
        newer = f"header: format version {version} is newer than this runtime reads ({FORMAT_VERSION})"
        raise ArtifactError(f"{newer}; rebuild the artifact or upgrade disc")
    if version != FORMAT_VERSION:
        raise ArtifactError(f"header: format version {version} is no longer read; rebuild the artifact with this disc")
    if file_size != size:
        raise ArtifactError(f"header: the file should have {file_size} bytes and has {size}")
    if reserved or count > _MAX_SECTIONS:
        raise ArtifactError("header: damaged")
    table = file.read(count * _ENTRY.size)
    if hashlib.sha256(head + table).digest() != file.read(_DIGEST_SIZE):
        raise ArtifactError("header: hash differs, the file is damaged")
    return _checked_places(file, table, size)


def _checked_places(file: BinaryIO, table: bytes, size: int) -> list[Section]:
    """The entries of the table: in order, without overlap, with nothing but zeros between."""
    sections: list[Section] = []
    end = _HEADER.size + len(table) + _DIGEST_SIZE
    for field, offset, length, digest in _ENTRY.iter_unpack(table):
        name = field.rstrip(b"\0")
        if not name or b"\0" in name:
            raise ArtifactError(f"header: section {len(sections)} has a malformed name")
        section = Section(name.decode(errors="backslashreplace"), offset, length, digest)
        if offset != _aligned(end, PAGE if section.name == "weights" else ALIGNMENT) or offset + length > size:
            raise ArtifactError(f"section '{printable(section.name)}' has a wrong place")
        file.seek(end)
        if any(file.read(offset - end)):
            raise ArtifactError(f"padding before section '{printable(section.name)}' is damaged")
        if any(section.name == other.name for other in sections):
            raise ArtifactError(f"section '{printable(section.name)}' occurs twice")
        if section.size > (_MAX_CODE_SIZE if section.name.startswith("code/") else _MAX_SIZES.get(section.name, size)):
            raise ArtifactError(f"section '{printable(section.name)}' is larger than any that disc writes ({section.size} bytes)")
        sections.append(section)
        end = offset + length
    if end != size:
        raise ArtifactError("header: bytes after the last section")
    for required in _REQUIRED:
        if all(section.name != required for section in sections):
            raise ArtifactError(f"section '{required}' is missing")
    return sections


def _damaged(section: Section) -> ArtifactError:
    return ArtifactError(f"section '{printable(section.name)}': hash differs, the file is damaged")


def _read_checked(file: BinaryIO, section: Section) -> bytes:
    file.seek(section.offset)
    content = file.read(section.size)
    if hashlib.sha256(content).digest() != section.digest:
        raise _damaged(section)
    return content


def _check_hash(file: BinaryIO, section: Section) -> None:
    """As `_read_checked`, of a section that need not fit into memory."""
    hashed = hashlib.sha256()
    for piece in _pieces(file, section):
        hashed.update(piece)
    if hashed.digest() != section.digest:
        raise _damaged(section)


def _check_weights(file: BinaryIO, section: Section) -> None:
    hashed = _ChunkedHash()
    for piece in _pieces(file, section):
        hashed.update(memoryview(piece))
    if hashed.digest() != section.digest:
        raise _damaged(section)


def _pieces(file: BinaryIO, section: Section) -> Iterator[bytes]:
    file.seek(section.offset)
    rest = section.size
    while rest:
        piece = file.read(min(rest, WEIGHTS_CHUNK))
        if not piece:
            raise _damaged(section)
        yield piece
        rest -= len(piece)


def _check_places(manifest: Manifest, size: int) -> None:
    """Raises ArtifactError for a weight that lies outside the weights section, which has `size` bytes."""
    for record in manifest.get("weights", []):
        if record["offset"] + record["size"] > size:
            raise ArtifactError(f"weight '{printable(record['name'])}' lies outside section 'weights'")
