"""A model over trees and graphs: a program for each kind of node, and what finds the order in which they run."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from disc.artifact import file as artifact
from disc.artifact.manifest import STORAGE, Manifest
from disc.artifact.structures import NODES, ROOTS, KindRecord, StructuresRecord, fields_of, tensor_names
from disc.errors import (
    ArtifactError,
    DeviceError,
    InputRankError,
    InputTypeError,
    OutOfMemoryError,
    ShapeConstraintError,
    TargetError,
    TooManyNodesError,
)
from disc.ral import _ral
from disc.ral.gpu_programs import Program, from_sections
from disc.ral.nested import flat_arrays
from disc.ral.plain_objects import NotPlain, check_plain
from disc.ral.schedule import NodeKind, Numbers, Question, Schedule, ScheduledBlock, Structures

Array = npt.NDArray[np.generic]
Arranged = tuple[Numbers, Numbers, Numbers, list[int]]  # as of `Structures.arrange`
MOST_NODES = 1 << 24


@dataclass(frozen=True)
class _Block:
    """A program without an `Executable`."""

    context: _ral.Context


class StructuredProgram:
    """Stands in place of a loaded program (`_ral.Context`): takes the arrays of a structure, and calls the programs of its blocks.

    Several threads may call it at once; each has tables of its own.
    """

    like: object = None
    open_gpu: object = None
    kept: int = 0
    graphs: int = 0
    written: Sequence[int] = ()
    single = False

    def __init__(self, record: StructuresRecord, programs: Sequence[Program], isa: str, view: memoryview) -> None:
        """record, view: of a file that was checked; programs: one for each kind."""
        self.most_nodes = MOST_NODES
        self._record, self._view, self._isa = record, view, isa
        self._contexts = [context for context, _ in programs]
        self._names = tensor_names(record)
        kinds = [_node_kind(number, kind) for number, kind in enumerate(record["kinds"])]
        self._schedule = Schedule(
            [_scheduled(kind, context, record) for kind, context in zip(record["kinds"], self._contexts, strict=True)]
        )
        objects, arrays = _question(record["objects"]), _question(record["arrays"])
        read = {*record["fields"], *record["columns"], *_asked(objects)}
        check = lambda kind: check_plain(kind, read)  # noqa: E731 - it needs no name
        self._structures = Structures(self._schedule, kinds, len(record["results"]), objects, check, arrays)
        self._free: list[list[Array]] = []  # tables that no call uses
        self._lock = threading.Lock()
        self._calls = self._copied = self._copied_bytes = 0

    # --- calls ------------------------------------------------------------------------------------------------------------------

    def call(self, inputs: tuple[object, ...], out: object) -> object:
        """As of `_ral.Context`: results [roots, ...] of the tensors that `tensor_names` lists."""
        arrays = self._checked(inputs)
        results = self._run(self._arranged(arrays), out)
        if out is not None:
            return out
        made = [self._like(each, inputs[0]) for each in results]
        return made[0] if self.single else tuple(made)

    def batch(self, instances: Sequence[object]) -> list[list[object]]:
        """The results of each instance."""
        if not isinstance(instances, Sequence) or isinstance(instances, str | bytes):
            raise InputTypeError(f"batch takes a list of instances, not a {type(instances).__name__}")
        if all(isinstance(each, Mapping) for each in instances):
            arrays = flat_arrays(self._record, cast("Sequence[Mapping[str, object]]", instances), self.most_nodes)
            arranged = self._arranged(arrays)
        else:
            arranged = self._walked(instances)
        results = [[self._like(row, None) for row in each] for each in self._run(arranged, None)]
        return [list(each) for each in zip(*results, strict=True)]

    def _walked(self, instances: Sequence[object]) -> Arranged:
        try:
            return self._structures.walk(instances, [0] * len(self._record["tables"]))
        except (NotPlain, AttributeError) as error:
            raise InputTypeError(
                f"an instance is no structure of this model ({error}): give plain objects, mappings, or tensors"
            ) from error

    def _checked(self, inputs: tuple[object, ...]) -> list[Numbers]:
        """Raises InputRankError, InputTypeError, DeviceError, ShapeConstraintError."""
        if len(inputs) != len(self._names):
            raise InputRankError(f"expected {len(self._names)} inputs ({', '.join(self._names)}), got {len(inputs)}")
        arrays = [self._numbers(name, each) for name, each in zip(self._names, inputs, strict=True)]
        for name, each in zip(self._names[:-1], arrays[:-1], strict=True):
            if len(each) != len(arrays[0]):
                first = f"input '{self._names[0]}' has {len(arrays[0])}"
                raise ShapeConstraintError(f"input '{name}' has {len(each)} nodes, {first}: all but the roots have a number for each node")
        return arrays

    def _numbers(self, name: str, given: object) -> Numbers:
        array = _as_array(name, given)
        if array.dtype != np.int64:
            raise InputTypeError(f"input '{name}' must be i64, got {array.dtype}")
        if array.ndim != 1:
            raise InputRankError(f"input '{name}' must have 1 dim, got {array.ndim}")
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
            with self._lock:
                self._copied, self._copied_bytes = self._copied + 1, self._copied_bytes + array.nbytes
        return cast("Numbers", array)

    def _arranged(self, arrays: Sequence[Numbers]) -> Arranged:
        *nodes, roots = arrays
        count = len(nodes[0]) if nodes else len(roots)
        if count > self.most_nodes:
            raise TooManyNodesError(f"the structure has {count} nodes; at most {self.most_nodes} are accepted")
        columns = dict(zip(self._record["columns"], nodes, strict=False))
        children = dict(zip(self._record["fields"], nodes[len(columns) :], strict=True))
        return self._structures.arrange(count, children, columns, roots, [0] * len(self._record["tables"]))

    def _run(self, arranged: Arranged, out: object) -> list[Array]:
        """Runs the batches; the results of the roots."""
        batches, indices, rows, used = arranged
        tables = self._tables(used)
        self._schedule.run(tables, [0] * len(used), batches, indices)
        given = [None] * rows.shape[1] if out is None else _given(out, rows.shape[1])
        results = [
            _taken(tables[table], rows[:, place], to) for place, (table, to) in enumerate(zip(self._record["results"], given, strict=True))
        ]
        with self._lock:
            self._free.append(tables)
            self._calls += 1
        return results

    def _tables(self, used: Sequence[int]) -> list[Array]:
        """Tables of at least so many rows. They are kept from call to call: what is handed out is copied."""
        with self._lock:
            tables: list[Array] = self._free.pop() if self._free else [np.empty((0,)) for _ in used]
        for place, (count, each) in enumerate(zip(used, self._record["tables"], strict=True)):
            if (
                tables[place].ndim == 1 + len(each["dims"])
                and tables[place].shape[0] >= count
                and tables[place].dtype == STORAGE[each["dtype"]]
            ):
                continue
            tables[place] = _empty((count + count // 4, *each["dims"]), each["dtype"])
        return tables

    def _like(self, array: Array, given: object) -> object:
        """A tensor of PyTorch where the caller has given some; else the array."""
        model = given if given is not None else self.like
        torch = sys.modules.get("torch")
        return torch.from_numpy(array) if torch is not None and isinstance(model, torch.Tensor) else array

    # --- what `_ral.Context` has besides ----------------------------------------------------------------------------------------

    @property
    def threads(self) -> int:
        return self._contexts[0].threads

    @threads.setter
    def threads(self, count: int) -> None:
        for each in self._contexts:
            each.threads = count

    def isa(self) -> str:
        return self._isa

    def file_view(self) -> memoryview:
        """The file's bytes."""
        return self._view

    def verify(self) -> None:
        """All was checked when it was loaded."""

    def remap(self, descriptor: int) -> None:
        """What it reads is memory of its own."""

    def synchronize(self) -> None:
        """Nothing runs on a GPU."""

    def stats(self) -> dict[str, int]:
        """As of `_ral.Context`; calls: of the whole."""
        blocks = [each.stats() for each in self._contexts]
        tables = sum(each.nbytes for kept in list(self._free) for each in kept)
        return {
            "calls": self._calls,
            "copied_inputs": self._copied,
            "copied_bytes": self._copied_bytes,
            "arena_bytes": tables + sum(each["arena_bytes"] for each in blocks),
        }

    def graph_stats(self) -> dict[str, int]:
        """None: all runs on the CPU."""
        return {}

    def counters(self) -> list[int]:
        return list(chain.from_iterable(each.counters() for each in self._contexts))

    def kernels(self) -> tuple[list[int], list[int]]:
        found = [each.kernels() for each in self._contexts]
        return [each for launches, _ in found for each in launches], [each for _, times in found for each in times]

    def set_profile(self, on: int) -> None:
        for each in self._contexts:
            each.set_profile(on)

    def take_trace(self) -> list[list[int]]:
        """As of `_ral.Context`, kernels numbered through all blocks."""
        found: list[list[int]] = []
        first = 0
        for each in self._contexts:
            found += [[event[0] + first, *event[1:]] for event in each.take_trace()]
            first += len(each.kernels()[0])
        return found

    def force_choice(self, number: int) -> None:
        for each in self._contexts:
            each.force_choice(number)

    def handle(self) -> NoReturn:
        raise TargetError("a model over structures is several programs, and none for ral.h")


def load_structured(
    path: str | os.PathLike[str], threads: int, isa: str | None, digest: bytes | None
) -> tuple[StructuredProgram, Manifest]:
    """The program of a file, and its manifest with the kernels of all blocks. digest: of the header, where it must be a certain one.

    Raises ArtifactError, TargetError.
    """
    view = artifact.read_whole(path, digest)
    try:
        manifest = artifact.parse_manifest(artifact.text_sections(view))
        record, blocks = manifest["structures"], artifact.block_contents(view)  # pyright: ignore[reportTypedDictNotRequiredAccess]
        if len(blocks) != len(record["kinds"]):
            raise ArtifactError(f"it has {len(blocks)} programs for {len(record['kinds'])} kinds of nodes")
    except ArtifactError as error:
        raise ArtifactError(f"'{artifact.shown_path(path)}': {error}") from None
    programs = [
        from_sections(each.manifest, each.code, [array for _, _, array in each.weights].__getitem__, threads, isa) for each in blocks
    ]
    return StructuredProgram(record, programs, programs[0][0].isa(), view), described(manifest, [about for _, about in programs])


def read_described(path: str | os.PathLike[str]) -> Manifest:
    """The manifest of any file, without loading its code: of a model over structures with what its blocks' programs say, for the best
    target. Raises ArtifactError."""
    manifest = artifact.read_manifest(path)
    if "structures" not in manifest:
        return manifest
    count = len(manifest["structures"]["kinds"])
    blocks = [artifact.block_manifest(artifact.read_section(path, f"block/{number}/manifest"), number) for number in range(count)]
    weights = [weight for block in blocks for weight in block["weights"]]
    whole = described(manifest, [artifact.manifest_for(block, block["code"][-1]) for block in blocks])
    return cast("Manifest", {**whole, "code": blocks[0]["code"], "weights": weights})


def described(manifest: Manifest, blocks: Sequence[Manifest]) -> Manifest:
    """The manifest with the checks, kernels and counters of the blocks' programs, which are numbered: "0.kernel3"."""
    kernels: list[dict[str, object]] = []
    counters: list[str] = []
    for number, block in enumerate(blocks):
        for each in block["kernels"]:
            shifted = [place + len(counters) for place in cast("list[int]", each.get("counters", []))]
            names = {key: f"{number}.{each[key]}" for key in ("name", "kernel") if key in each}
            kernels.append({**each, **names, **({"counters": shifted} if "counters" in each else {})})
        counters += [f"{number}.{name}" for name in block["counters"]]
    checks = [check for block in blocks for check in block["checks"]]
    return cast("Manifest", {**manifest, "checks": checks, "kernels": kernels, "counters": counters})


def structure_lines(record: StructuresRecord) -> list[str]:
    """The kinds of nodes, as text."""
    lines = [f"structures: i64[{NODES}] {', '.join(tensor_names(record)[:-1])} (-1 = none); i64[{ROOTS}] {tensor_names(record)[-1]}"]
    for number, kind in enumerate(record["kinds"]):
        parts = [*kind["columns"], *(f"{row['field']} (result {row['result']})" for row in kind["rows"])]
        lines.append(f"kind {number}: {kind['name']} ({kind['line']}) of {', '.join(parts) or 'nothing'}")
    return lines


def _empty(shape: tuple[int, ...], dtype: str) -> Array:
    """Raises OutOfMemoryError."""
    try:
        return np.empty(shape, STORAGE[dtype])
    except (MemoryError, ValueError) as error:  # the latter for sizes beyond all memory
        raise OutOfMemoryError(f"there is no memory for {shape[0]} rows of {dtype}{list(shape[1:])}") from error


def _as_array(name: str, given: object) -> Array:
    """Raises InputTypeError, DeviceError."""
    if isinstance(given, np.ndarray):
        return cast("Array", given)
    device = getattr(given, "device", None)
    if str(device or "cpu").partition(":")[0].lower() not in ("cpu", "cpudevice") and hasattr(given, "__dlpack__"):
        raise DeviceError(f"input '{name}' lies on {device}: structures are read by the CPU")
    try:
        return np.from_dlpack(cast("Any", given)) if hasattr(given, "__dlpack__") else np.asarray(memoryview(cast("Any", given)))
    except (TypeError, BufferError, ValueError, RuntimeError) as error:
        raise InputTypeError(f"input '{name}' is no tensor but a {type(given).__name__}") from error


def _given(out: object, count: int) -> list[Array]:
    """The arrays that results go to. Raises InputRankError."""
    buffers = out if isinstance(out, tuple | list) else (out,)
    if len(buffers) != count:
        raise InputRankError(f"out has {len(buffers)} buffers for {count} results")
    return [_as_array(f"out[{place}]", each) for place, each in enumerate(buffers)]


def _taken(table: Array, rows: Numbers, to: Array | None) -> Array:
    """The rows, in `to` where that is given. Raises ShapeConstraintError, InputTypeError."""
    if to is None:
        return table.take(rows, 0)
    if to.dtype != table.dtype:
        raise InputTypeError(f"out must be {table.dtype}, got {to.dtype}")
    if to.shape != (len(rows), *table.shape[1:]):
        raise ShapeConstraintError(f"out must have the shape {(len(rows), *table.shape[1:])}, got {to.shape}")
    to[...] = table[rows]
    return to


def _node_kind(number: int, kind: KindRecord) -> NodeKind:
    rows = tuple((row["field"], row["result"]) for row in kind["rows"])
    return NodeKind(
        number, {name: name for name in fields_of(kind)}, {name: name for name in kind["columns"]}, rows, tuple(kind["columns"])
    )


def _scheduled(kind: KindRecord, context: _ral.Context, record: StructuresRecord) -> ScheduledBlock:
    rows = tuple(record["results"][row["result"]] for row in kind["rows"])
    return ScheduledBlock(_Block(context), rows, len(kind["columns"]), tuple(record["results"]))


def _question(node: object) -> Question | int:
    if isinstance(node, int):
        return node
    asked = cast("dict[str, Any]", node)
    return Question(asked["attribute"], asked["none"], _question(asked["yes"]), _question(asked["no"]))


def _asked(node: Question | int) -> set[str]:
    return set() if isinstance(node, int) else {node.attribute, *_asked(node.yes), *_asked(node.no)}
