"""What an artifact says of itself: the manifest's types, the part of it that belongs to a target, the binary form for the runtime.

docs/artifact.md describes both.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NotRequired, TypedDict, cast

import numpy as np

from disc.artifact.bounds import contradiction, disagreement, hidden_outputs, unbounded
from disc.artifact.records import mismatch
from disc.artifact.skeletons import SkeletonRecord
from disc.artifact.structures import StructuresRecord
from disc.errors import ArtifactError, printable

if TYPE_CHECKING:
    import numpy.typing as npt

FORMAT_VERSION = 2  # written; those from OLDEST_VERSION on are read
OLDEST_VERSION = 1
SIGNATURE_VERSION = 1
REPLACES = 0x400  # added to the dtype of an output that may be computed in the memory of an input
# Added to the dtype of an input: that it is written to; must be row-major; is written to, and of no use afterwards.
WRITTEN, ROW_MAJOR, SPOILED = 0x100, 0x200, 0x800
ALIGNMENT = 64  # bytes: sections and weights

# In the order of ral_dtype.
DTYPES = ("i1", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "f16", "bf16", "f32", "f64", "complex64", "complex128")

# MLIR element type → the NumPy dtype that stores it. bf16 has no NumPy dtype and is stored as its 16 bits.
STORAGE: dict[str, npt.DTypeLike] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16,
    "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "ui8": np.uint8, "ui16": np.uint16, "ui32": np.uint32, "ui64": np.uint64,
    "complex64": np.complex64, "complex128": np.complex128,
}  # fmt: skip


NamedWeight = tuple[str, str, "npt.NDArray[np.generic]"]  # name, MLIR element type, the data


class InputRecord(TypedDict):
    """One argument; a dim is its size or the name of its symbol. written: the code may write to its memory. spoiled: of one that
    is written, what lies there is of no use after the call. row_major: the user's lines by whose reading of its strides it must be
    row-major."""

    name: str
    dtype: str
    dims: list[int | str]
    written: NotRequired[bool]
    spoiled: NotRequired[bool]
    row_major: NotRequired[str]


class OutputRecord(TypedDict):
    """One result; `dims` (for display) as in `InputRecord`. replaces: the number of the input in whose memory the code may be told to
    compute it."""

    name: str
    dtype: str
    rank: int
    dims: NotRequired[list[int | str]]
    replaces: NotRequired[int]


class SymbolRecord(TypedDict):
    """One dim symbol, as `disc.symbolic_dim` has it."""

    name: str
    min: int
    max: NotRequired[int]
    divisor: int
    source: NotRequired[str]
    expr: NotRequired[str]
    what: NotRequired[str]


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

    symbol: its name. inputs, outputs: the axis of each that has this size, SHARED for an input without rows, which requests that are joined
    must have in common.
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
    """What happened to the conditions on sizes under which the program was exported, for display.

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


class BufferRecord(TypedDict):
    """A tensor that an executable keeps from call to call. weight: the number of its first value in the table of weights."""

    name: str
    dtype: str
    dims: list[int]
    weight: int


class StateRecord(TypedDict):
    """What the code takes and gives besides the arguments and results of a call.

    The last inputs are the buffers and, where `seeded`, an i64 scalar, the seed of the call's random numbers. The last outputs are the
    next values of the buffers and of the inputs that the call writes. written: the numbers of these. updated: the numbers of those inputs
    that are buffers whose next values the code writes in place: no output has these.
    """

    buffers: list[BufferRecord]
    written: list[int]
    seeded: bool
    updated: NotRequired[list[int]]


class TargetRecord(TypedDict):
    """What belongs to the code for one target. weights: the numbers, in the manifest's table, of those that the code counts; functions:
    the names of the library functions that it calls, absent where it calls none. tools: versions of what made a GPU's code, for display."""

    checks: list[CheckRecord]
    kernels: list[dict[str, object]]  # "name", and whatever else `explain` shows
    counters: list[str]
    weights: list[int]
    functions: NotRequired[list[str]]
    tools: NotRequired[dict[str, object]]


class Manifest(TypedDict):
    """What an artifact says about itself and its code for one target. The last three are filled in when it is written; `weights` are
    those of the target, in the order in which its code counts them."""

    compiler: str
    inputs: list[InputRecord]
    outputs: list[OutputRecord]
    single: bool  # a call returns its one output itself, not a tuple
    structure: NotRequired[object]  # how the results stand in the model's value (disc/artifact/structure.py); absent: a plain tuple
    symbols: list[SymbolRecord]
    checks: list[CheckRecord]
    kernels: list[dict[str, object]]  # "name", and whatever else `explain` shows
    counters: list[str]
    options: dict[str, object]
    fixed: NotRequired[list[FixedRecord]]
    batch: NotRequired[BatchRecord]
    batch_refusal: NotRequired[str]  # why there is none, for display
    decisions: NotRequired[DecisionsRecord]
    fixed_dims: NotRequired[list[str]]  # who fixed a dim that could have been dynamic, for display
    folded_tables: NotRequired[list[str]]  # what became tables of a function of their rows, for display
    packed: NotRequired[PackedRecord]
    packed_refusal: NotRequired[str]  # why there is none though it was requested, for display
    warnings: NotRequired[list[str]]  # what was warned of when it was imported, for display
    functions: NotRequired[list[str]]  # of the library, that the code calls
    tools: NotRequired[dict[str, object]]  # that made a GPU's code, for display
    state: NotRequired[StateRecord]
    structures: NotRequired[StructuresRecord]  # of a model over structures: sections "block/..." have its programs
    skeleton: NotRequired[SkeletonRecord]  # of one that decides by values, likewise
    format: NotRequired[int]
    code: NotRequired[list[str]]
    weights: NotRequired[list[WeightRecord]]


class StoredManifest(TypedDict):
    """What a file holds: a `Manifest` whose parts are separate for each target (format 2)."""

    compiler: str
    inputs: list[InputRecord]
    outputs: list[OutputRecord]
    single: bool
    structure: NotRequired[object]
    symbols: list[SymbolRecord]
    options: dict[str, object]
    fixed: NotRequired[list[FixedRecord]]
    batch: NotRequired[BatchRecord]
    batch_refusal: NotRequired[str]
    decisions: NotRequired[DecisionsRecord]
    fixed_dims: NotRequired[list[str]]
    folded_tables: NotRequired[list[str]]
    packed: NotRequired[PackedRecord]
    packed_refusal: NotRequired[str]
    warnings: NotRequired[list[str]]
    state: NotRequired[StateRecord]
    structures: NotRequired[StructuresRecord]
    skeleton: NotRequired[SkeletonRecord]
    format: int
    code: list[str]
    weights: list[WeightRecord]
    targets: dict[str, TargetRecord]  # by the names in `code`


def arguments_of(manifest: Manifest | StoredManifest) -> list[InputRecord]:
    """The inputs that a caller gives."""
    inputs, state = manifest["inputs"], manifest.get("state")
    return inputs if state is None else inputs[: len(inputs) - len(state["buffers"]) - state["seeded"]]


def results_of(manifest: Manifest | StoredManifest) -> list[OutputRecord]:
    """The outputs that a caller gets."""
    outputs, state = manifest["outputs"], manifest.get("state")
    return outputs if state is None else outputs[: len(outputs) - hidden_outputs(state)]


def stored_manifest(
    manifest: Manifest, code: Mapping[str, bytes], weights: Sequence[NamedWeight], targets: Mapping[str, TargetRecord] | None = None
) -> StoredManifest:
    """What the file of `write_artifact` says."""
    table: list[WeightRecord] = []
    for (name, dtype, array), offset in zip(weights, weight_offsets(weights), strict=True):
        table.append({"name": name, "dtype": dtype, "shape": list(array.shape), "offset": offset, "size": array.nbytes})
    common = {key: value for key, value in manifest.items() if key not in TargetRecord.__annotations__}
    isas = ordered_isas(code)
    records = targets if targets is not None else dict.fromkeys(isas, _whole(manifest, len(weights)))
    return cast("StoredManifest", {**common, "format": FORMAT_VERSION, "code": isas, "weights": table, "targets": dict(records)})


def _whole(manifest: Manifest, weights: int) -> TargetRecord:
    """What all targets have in a manifest of format 1."""
    return {
        "checks": manifest["checks"],
        "kernels": manifest["kernels"],
        "counters": manifest["counters"],
        "weights": [*range(weights)],
    }


def manifest_for(stored: StoredManifest, isa: str | None = None) -> Manifest:
    """What the file says for one target; None: the best, or for a file without code what all targets have in common."""
    none: TargetRecord = {"checks": [], "kernels": [], "counters": [], "weights": []}
    record = stored["targets"][isa] if isa is not None else stored["targets"][stored["code"][-1]] if stored["code"] else none
    common = {key: value for key, value in stored.items() if key not in ("targets", "weights")}
    return cast("Manifest", {**common, **record, "weights": [stored["weights"][number] for number in record["weights"]]})


def signature_name(isa: str) -> str:
    """The section with the signature for the code of an ISA."""
    return f"signature/{isa}"


def manifest_bytes(manifest: Manifest | StoredManifest) -> bytes:
    """The manifest as it is stored: JSON, indented for people."""
    return json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n"


def ordered_isas(code: Mapping[str, bytes]) -> list[str]:
    """The ISA names of `code`, best last: those of other devices than the CPU, then by level, then by the number of further features."""
    return sorted(code, key=lambda isa: (":" not in isa, isa.split("+")[0], isa.count("+"), _natural(isa)))


def _natural(text: str) -> list[tuple[bool, int, str]]:
    """In the order of people: sm_90 before sm_100."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"([0-9]+)", text)]


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

    def value(self, name: str, dtype: str, rank: int, kind: int = 0) -> None:
        self.text(name)
        self.count(DTYPES.index(dtype) + kind)
        self.count(rank)

    def integers(self, values: Sequence[int]) -> None:
        self.out += struct.pack(f"<{len(values)}q", *values)


def signature_bytes(manifest: Manifest) -> bytes:
    """What the runtime needs to know of a manifest for one target, with the places of its weights."""
    writer = _SignatureWriter()
    writer.count(len(manifest["inputs"]))
    for record in manifest["inputs"]:
        kind = (WRITTEN if record.get("written") else 0) + (ROW_MAJOR if "row_major" in record else 0)
        kind += SPOILED if record.get("spoiled") else 0
        writer.value(record["name"], record["dtype"], len(record["dims"]), kind)
        writer.integers([dim if isinstance(dim, int) else -1 for dim in record["dims"]])
        if "row_major" in record:
            writer.text(record["row_major"])
    writer.count(len(manifest["outputs"]))
    for record in manifest["outputs"]:
        replaced = record.get("replaces")
        writer.value(record["name"], record["dtype"], record["rank"], 0 if replaced is None else REPLACES)
        if replaced is not None:
            writer.count(replaced)
    writer.texts([record["message"] for record in manifest["checks"]])
    writer.texts([str(record["name"]) for record in manifest["kernels"]])
    writer.texts(manifest["counters"])
    weights = manifest.get("weights", [])
    writer.count(len(weights))
    for record in weights:
        writer.text(record["name"])
        writer.integers([record["offset"], record["size"]])
    functions = manifest.get("functions", [])
    if functions:
        writer.texts(functions)
    return bytes(writer.out)


def _storage_key(array: npt.NDArray[np.generic]) -> tuple[object, ...]:
    """Equal for arrays that are the same bytes in memory."""
    return (array.__array_interface__["data"][0], array.nbytes, None if array.flags.c_contiguous else (array.shape, array.strides))


def weight_offsets(weights: Sequence[NamedWeight]) -> list[int]:
    """The place of each weight in the weights section; shared storage has one place."""
    places: dict[tuple[object, ...], int] = {}
    offsets: list[int] = []
    end = 0
    for _, _, array in weights:
        key = _storage_key(array)
        if key not in places:
            places[key] = end = aligned(end, ALIGNMENT)
            end += array.nbytes
        offsets.append(places[key])
    return offsets


def aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def parse_manifest(sections: Mapping[str, bytes | memoryview], isa: str | None = None) -> Manifest:
    """The manifest for one target, out of the sections `manifest` and `signature...`. isa: as of `read_manifest`.

    Raises ArtifactError if it is malformed, or the signature of a target is not its own.
    """
    stored, manifests = stored_manifests(sections)
    if "targets" not in stored:
        return manifests["signature"]
    if isa is None and not stored["code"]:
        return manifest_for(stored)
    return manifests[signature_name(isa or stored["code"][-1])]


def stored_manifests(sections: Mapping[str, bytes | memoryview]) -> tuple[StoredManifest | Manifest, Mapping[str, Manifest]]:
    """What the section says as a whole, and for each target, by the section with its signature. Raises as `parse_manifest`."""
    try:
        value = json.loads(bytes(sections["manifest"]))
    except (ValueError, RecursionError):
        raise ArtifactError("section 'manifest' is not JSON") from None
    stored = isinstance(value, dict) and value.get("format") == FORMAT_VERSION
    problem = unbounded(value) or mismatch(value, StoredManifest if stored else Manifest, "manifest")
    found = cast("StoredManifest", value)
    problem = problem or (disagreement(found) if stored else None)
    manifests = _manifests(found) if problem is None else {}
    described = [*manifests.values()] or (
        [manifest_for(found)] if problem is None and ("structures" in found or "skeleton" in found) else []
    )
    problem = problem or next(filter(None, map(contradiction, described)), None)
    if problem is not None:
        raise ArtifactError(f"section 'manifest' is malformed: {printable(problem)}")
    for name, manifest in manifests.items():
        _check_signature(manifest, name, sections.get(name))
    return found, manifests


def block_manifest(section: bytes | memoryview, number: int) -> StoredManifest:
    """The manifest of one program of a model over structures. Raises ArtifactError."""
    try:
        value = json.loads(bytes(section))
    except (ValueError, RecursionError):
        raise ArtifactError(f"section 'block/{number}/manifest' is not JSON") from None
    problem = unbounded(value) or mismatch(value, StoredManifest, "manifest") or disagreement(cast("StoredManifest", value))
    stored = cast("StoredManifest", value)
    described = [manifest_for(stored, isa) for isa in stored["code"]] if problem is None else []
    problem = problem or next(filter(None, map(contradiction, described)), None)
    if problem is not None or not described:
        raise ArtifactError(f"section 'block/{number}/manifest' is malformed: {printable(problem or 'it has no code')}")
    return stored


def _manifests(value: StoredManifest | Manifest) -> dict[str, Manifest]:
    """By the name of the section with the signature of each."""
    if "targets" not in value:
        return {"signature": cast("Manifest", value)}
    stored = cast("StoredManifest", value)
    return {signature_name(isa): manifest_for(stored, isa) for isa in stored["code"]}


def _check_signature(manifest: Manifest, name: str, found: bytes | memoryview | None) -> None:
    try:
        own = signature_bytes(manifest)
    except (ValueError, KeyError, struct.error) as error:
        raise ArtifactError("section 'manifest' is malformed: a dtype, a name or a number that cannot be stored") from error
    if own != found:
        raise ArtifactError(f"section '{printable(name)}' differs from what the manifest says")
