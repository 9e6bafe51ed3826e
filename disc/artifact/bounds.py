"""Checks that a manifest is possible. For untrusted files: every number is bounded here before memory is allocated for it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NotRequired, TypedDict, cast

from disc.artifact.records import mismatch
from disc.artifact.skeletons import malformed_skeleton
from disc.artifact.structure import malformed
from disc.artifact.structures import malformed_structures

if TYPE_CHECKING:
    from disc.artifact.manifest import (
        BatchRecord,
        InputRecord,
        Manifest,
        OutputRecord,
        StateRecord,
        StoredManifest,
        SymbolRecord,
        WeightRecord,
    )

SHARED = -1  # in the place of an axis of the batch: an input without rows
MAX_RANK = 64  # as in disc/ral/src/core/signature.cc
_DEEPEST = 32  # lists and objects within each other
_SOURCE = re.compile(r"arg([0-9]{1,9})(?:\.([0-9]{1,9}))?")
MADE = "kernel"  # the source of a size that a kernel computes
_LARGEST = (1 << 63) - 1


class _VersionRecord(TypedDict):
    """predicted: picoseconds of a thread. From `grid` on: of a GPU's code. threads: of a block; registers, and bytes of stack, of a thread;
    shared: bytes, of a block; scratch: bytes of global memory for each block; bytes: of the code."""

    function: str
    guard: str
    predicted: NotRequired[str]
    grid: NotRequired[list[str]]
    threads: NotRequired[int]
    registers: NotRequired[int]
    stack: NotRequired[int]
    shared: NotRequired[int]
    scratch: NotRequired[int]
    bytes: NotRequired[int]


class _KernelRecord(TypedDict):
    """One launch; all but the name is for `explain`."""

    name: str
    kernel: NotRequired[str]
    kind: NotRequired[str]
    ops: NotRequired[list[str]]
    lines: NotRequired[list[str]]
    modules: NotRequired[list[str]]
    versions: NotRequired[list[_VersionRecord]]
    counters: NotRequired[list[int]]
    notes: NotRequired[list[str]]
    plan: NotRequired[str]
    scratch: NotRequired[str]
    tasks: NotRequired[str]
    flops: NotRequired[str | None]
    bytes: NotRequired[str | None]
    inputs: NotRequired[list[str]]
    results: NotRequired[list[str]]
    operands: NotRequired[list[str]]
    arithmetic: NotRequired[str]  # of products that a GPU's tensor cores do


# Older artifacts lack a plan, scratch and modules; few kernels have an arithmetic.
EXPLAINED = frozenset(_KernelRecord.__annotations__) - {"name", "plan", "scratch", "modules", "arithmetic"}


def unbounded(value: object) -> str | None:
    """What is wrong with JSON whatever it means: nested too deep, a number that no field can have, text that has no bytes."""
    level: list[object] = [value]
    for _ in range(_DEEPEST):
        texts = [each for each in level if isinstance(each, str)]
        below: list[object] = []
        for each in level:
            if isinstance(each, dict):
                texts += each
                below += each.values()
            elif isinstance(each, list):
                below += each
            elif (isinstance(each, float) and not math.isfinite(each)) or (isinstance(each, int) and not -_LARGEST - 1 <= each <= _LARGEST):
                return "a number that is not finite, or needs more than 64 bits"
        if any("\ud800" <= character <= "\udfff" for text in texts if not text.isascii() for character in text):
            return "text with a lone surrogate"
        if not below:
            return None
        level = below
    return f"lists and objects are nested deeper than {_DEEPEST}"


def disagreement(stored: StoredManifest) -> str | None:
    """What in a stored manifest does not fit its list of targets; None if all does."""
    if sorted(stored["targets"]) != sorted(stored["code"]) or len(set(stored["code"])) != len(stored["code"]):
        return "manifest.targets: not those of manifest.code"
    for isa, record in stored["targets"].items():
        if any(not 0 <= number < len(stored["weights"]) for number in record["weights"]):
            return f"manifest.targets[{isa!r}].weights: a number of none of the {len(stored['weights'])} weights"
    state = stored.get("state")
    if state is not None and any(not 0 <= record["weight"] < len(stored["weights"]) for record in state["buffers"]):
        return f"manifest.state.buffers: a first value that is none of the {len(stored['weights'])} weights"
    return _weights(stored["weights"])


def contradiction(manifest: Manifest) -> str | None:
    """What cannot be in a manifest whose values have their types, beginning with its place; None if it may be true."""
    inputs, outputs = manifest["inputs"], manifest["outputs"]
    found = _values(inputs, outputs, "manifest") or _symbols(manifest["symbols"], inputs, "manifest.symbols")
    found = found or _kernels(manifest) or _weights(manifest.get("weights", [])) or _batch(manifest.get("batch"), inputs, outputs)
    places = [record["position"] for record in manifest.get("fixed", [])]
    if found is None and (len(set(places)) < len(places) or any(not 0 <= place < len(inputs) + len(places) for place in places)):
        found = "manifest.fixed: positions that no arguments have"
    packed = manifest.get("packed")
    if found is None and packed is not None:
        found = _values(packed["inputs"], packed["results"], "manifest.packed")
        found = found or _symbols(packed["symbols"], packed["inputs"], "manifest.packed.symbols")
    found = found or _state(manifest) or _replaced(inputs, outputs)
    results = len(outputs) - (hidden_outputs(state) if (state := manifest.get("state")) is not None else 0)
    if found is None and manifest["single"] and results != 1:
        found = f"manifest.single: a program with {results} outputs cannot return its one output"
    if found is None and "structure" in manifest:
        problem = "is there beside manifest.single" if manifest["single"] else malformed(manifest["structure"], results)
        found = None if problem is None else f"manifest.structure: {problem}"
    if found is None and "structures" in manifest:
        found = malformed_structures(manifest["structures"], inputs, outputs)
    if found is None and "skeleton" in manifest:
        found = malformed_skeleton(manifest["skeleton"], inputs, outputs)
    return found


def hidden_outputs(state: StateRecord) -> int:
    """How many of the last outputs are next values of inputs."""
    return len(state["buffers"]) + len(state["written"]) - len(state.get("updated", []))


def _replaced(inputs: Sequence[InputRecord], outputs: Sequence[OutputRecord]) -> str | None:
    taken = set[int]()
    for number, record in enumerate(outputs):
        place = record.get("replaces")
        if place is None:
            continue
        own = inputs[place] if 0 <= place < len(inputs) else None
        if own is None or place in taken or own.get("written") or (own["dtype"], len(own["dims"])) != (record["dtype"], record["rank"]):
            return f"manifest.outputs[{number}].replaces: no input of its type, or one that something else writes to"
        taken.add(place)
    return None


def _state(manifest: Manifest) -> str | None:
    state, inputs, outputs = manifest.get("state"), manifest["inputs"], manifest["outputs"]
    if state is None:
        return None
    count = len(inputs) - len(state["buffers"]) - state["seeded"]
    if count < 0 or not 0 <= hidden_outputs(state) <= len(outputs):
        return "manifest.state: more values than the program has inputs or outputs"
    if any(not 0 <= number < count for number in state["written"]) or len(set(state["written"])) < len(state["written"]):
        return "manifest.state.written: not inputs that a call gives, each once"
    updated, buffers = state.get("updated", []), range(count, count + len(state["buffers"]))
    if not set(updated) <= set(buffers) or len(set(updated)) < len(updated) or not all(inputs[number].get("written") for number in updated):
        return "manifest.state.updated: not buffers that the code writes to, each once"
    for buffer, record in zip(state["buffers"], inputs[count:], strict=False):
        if (buffer["dtype"], buffer["dims"]) != (record["dtype"], record["dims"]):
            return f"manifest.state.buffers: {buffer['name']!r} is not of the type of its input"
    if state["seeded"] and (inputs[-1]["dtype"], inputs[-1]["dims"]) != ("i64", []):
        return "manifest.state: the last input is no seed"
    return None


def _values(inputs: Sequence[InputRecord], outputs: Sequence[OutputRecord], where: str) -> str | None:
    for number, record in enumerate(inputs):
        if len(record["dims"]) > MAX_RANK:
            return f"{where}.inputs[{number}]: rank {len(record['dims'])}, more than {MAX_RANK}"
        if any(isinstance(dim, int) and not 0 <= dim <= _LARGEST for dim in record["dims"]):
            return f"{where}.inputs[{number}].dims: a size that no dim can have"
    for number, record in enumerate(outputs):
        if not 0 <= record["rank"] <= MAX_RANK:
            return f"{where}.outputs[{number}].rank: {record['rank']}, not 0 to {MAX_RANK}"
        if "dims" in record and len(record["dims"]) != record["rank"]:
            return f"{where}.outputs[{number}].dims: {len(record['dims'])} dims of a result of rank {record['rank']}"
    return None


def _symbols(symbols: Sequence[SymbolRecord], inputs: Sequence[InputRecord], where: str) -> str | None:
    for number, record in enumerate(symbols):
        if record["divisor"] < 1 or record.get("max", record["min"]) < record["min"]:
            return f"{where}[{number}]: an impossible range or divisor"
        source = record.get("source", MADE)
        if source == MADE:
            continue
        match = _SOURCE.fullmatch(source)
        dims = inputs[int(match[1])]["dims"] if match and int(match[1]) < len(inputs) else None
        if match is None or dims is None or (match[2] is None) != (not dims) or (match[2] and int(match[2]) >= len(dims)):
            return f"{where}[{number}].source: {source!r} is no dim and no scalar of the inputs"
    return None


def _kernels(manifest: Manifest) -> str | None:
    for number, record in enumerate(manifest["kernels"]):
        where = f"manifest.kernels[{number}]"
        problem = mismatch(record, _KernelRecord, where)
        if problem is not None:
            return problem
        counters, versions = cast("list[int]", record.get("counters", [])), cast("list[object]", record.get("versions", []))
        if "versions" in record and len(counters) != len(versions):
            return f"{where}: {len(counters)} counters of {len(versions)} versions"
        if any(not 0 <= counter < len(manifest["counters"]) for counter in counters):
            return f"{where}.counters: a number of none of the {len(manifest['counters'])} counters"
    return None


def _weights(weights: Sequence[WeightRecord]) -> str | None:
    for number, record in enumerate(weights):
        if not (0 <= record["offset"] <= _LARGEST and 0 <= record["size"] <= _LARGEST):
            return f"manifest.weights[{number}]: a place that no weight can have"
        if len(record["shape"]) > MAX_RANK or any(not 0 <= size <= _LARGEST for size in record["shape"]):
            return f"manifest.weights[{number}].shape: a shape that no weight can have"
    return None


def _batch(batch: BatchRecord | None, inputs: Sequence[InputRecord], outputs: Sequence[OutputRecord]) -> str | None:
    if batch is None:
        return None
    ranks = {"inputs": [len(record["dims"]) for record in inputs], "outputs": [record["rank"] for record in outputs]}
    for key, of_values in ranks.items():
        axes, least = cast("Mapping[str, list[int]]", batch)[key], SHARED if key == "inputs" else 0
        if len(axes) != len(of_values) or any(not least <= axis < rank for axis, rank in zip(axes, of_values, strict=True)):
            return f"manifest.batch.{key}: no axes of the {key}"
    return None
