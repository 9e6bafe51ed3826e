"""A model that decides by values, without its Python: its skeleton, and a program for each of its blocks."""

from __future__ import annotations

import base64
import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from disc.artifact.skeletons import (
    CHOICE,
    EQUALITIES,
    ITEMS,
    KINDS,
    LIKES,
    OTHER,
    REAL,
    TENSOR,
    TRUTH,
    SkeletonRecord,
    SlotRecord,
    choices_of,
    has_texts,
    language_of,
    skeleton_text,
    tensors_of,
)
from disc.errors import (
    ArtifactError,
    CycleError,
    InputRankError,
    InputTypeError,
    InstanceError,
    NodeKindError,
    ShapeConstraintError,
    StructureError,
    TooManyNodesError,
)
from disc.ral import _ral
from disc.ral.block_programs import Array, BlockPrograms, as_array, given_out
from disc.ral.flat_values import dtype_of, flat_instances, results_of
from disc.ral.gpu_programs import Program
from disc.ral.schedule import Schedule, ScheduledBlock

_OWN: dict[str, type[Exception]] = {each.__name__: each for each in (CycleError, NodeKindError, StructureError)}
_DTYPES = ("i1", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64", "f16", "bf16", "f32", "f64")


@dataclass(frozen=True)
class _Block:
    context: _ral.Context


class SkeletalProgram(BlockPrograms):
    """Stands in place of a loaded program (`_ral.Context`): takes the tensors of instances, runs the skeleton, and calls the blocks.

    Several threads may call it at once; each has tables of its own.
    """

    def __init__(self, record: SkeletonRecord, programs: Sequence[Program], isa: str, view: memoryview) -> None:
        """record, view: of a file that was checked; programs: one for each block. Raises ArtifactError for code that cannot be run."""
        if record["language"] != language_of(_ral.SKELETON_OPS):
            raise ArtifactError("its skeleton was written by another version of disc: save the model again with this one")
        super().__init__(programs, isa, view)
        self._record = record
        self._inputs = tensors_of(record["slots"])
        try:
            blocks = _scheduled(record, self._contexts)
            self._schedule = Schedule(blocks)
            self._skeleton = native_skeleton(record)
        except (ValueError, TypeError, IndexError) as error:
            raise ArtifactError(f"its skeleton cannot be run: {error}") from error

    def call(self, inputs: tuple[object, ...], out: object) -> object:
        """As of `_ral.Context`. An instance that fails is a StructureError, which names it and its line."""
        arrays = self._checked(inputs)
        results, failures = self._run(arrays)
        if failures:
            number, error = next(iter(failures.items()))
            raise StructureError(f"instance {number} failed: {error}") from error
        if out is not None:
            for to, each in zip(given_out(out, len(results)), results, strict=True):
                np.copyto(to, each, casting="no")
            return out
        made = [self.like_given(each, inputs[0]) for each in results]
        return made[0] if self.single else tuple(made)

    def batch(self, instances: Sequence[object]) -> list[object]:
        """The results of instances: whatever Python objects have the attributes that the model reads, or mappings. Raises InstanceError
        where some fail."""
        if not isinstance(instances, Sequence) or isinstance(instances, str | bytes):
            raise InputTypeError(f"batch takes a list of instances, not a {type(instances).__name__}")
        arrays = flat_instances(self._record, instances, self.most_nodes)
        results, failures = self._run(arrays)
        good = len(instances) - len(failures)
        made = iter(results_of(self._record, results, good, lambda array: self.like_given(np.array(array), None)))
        values = [failures[number] if number in failures else next(made) for number in range(len(instances))]
        if failures:
            number, error = next(iter(failures.items()))
            more = f"; {len(failures) - 1} others failed too" if len(failures) > 1 else ""
            text = f"instance {number} failed: {type(error).__name__}: {error}{more}; the results of the others are in `.results`"
            raise InstanceError(text, values, failures)
        return values

    def table_bytes(self) -> int:
        return self._skeleton.table_bytes()

    def _checked(self, inputs: tuple[object, ...]) -> list[Array]:
        """Raises InputRankError, InputTypeError, ShapeConstraintError, DeviceError."""
        if len(inputs) != len(self._inputs):
            names = ", ".join(each["name"] for each in self._inputs)
            raise InputRankError(f"expected {len(self._inputs)} inputs ({names}), got {len(inputs)}")
        return [self._array(slot, each) for slot, each in zip(self._inputs, inputs, strict=True)]

    def _array(self, slot: SlotRecord, given: object) -> Array:
        array, dtype = as_array(slot["name"], given), dtype_of(self._record, slot)
        dims = self._record["tables"][slot["table"]]["dims"] if slot["kind"] == TENSOR else []
        if array.dtype != dtype:
            raise InputTypeError(f"input '{slot['name']}' must be {np.dtype(dtype)}, got {array.dtype}")
        if array.ndim != 1 + len(dims):
            raise InputRankError(f"input '{slot['name']}' must have {1 + len(dims)} dims, got {array.ndim}")
        if list(array.shape[1:]) != dims:
            raise ShapeConstraintError(f"input '{slot['name']}' has rows {list(array.shape[1:])}, not {dims}")
        return self.contiguous(array)

    def _run(self, arrays: Sequence[Array]) -> tuple[list[Array], dict[int, Exception]]:
        """The tensors of results, of the instances that did not fail, and the errors of others."""
        names = [each["name"] for each in self._inputs]
        ran = self._skeleton.run(self._schedule.native, list(arrays), names, self.most_nodes)
        if len(ran) == 1:
            raise TooManyNodesError(f"the structure has {ran[0]} nodes; at most {self.most_nodes} are accepted")
        failed, columns, _ = ran
        with self._lock:
            self._calls += 1
        results: list[Array] = []
        for slot, (numbers, reals, offsets) in zip(self._record["results"], columns, strict=True):
            if not slot["name"]:
                continue
            if slot["kind"] == TENSOR:
                dims = self._record["tables"][slot["table"]]["dims"]
                results.append(numbers.reshape(-1).view(dtype_of(self._record, slot)).reshape(len(numbers), *dims))
            else:
                chosen = reals if slot["kind"] == REAL else offsets if slot["kind"] == ITEMS else numbers
                results.append(chosen.astype(np.bool_) if slot["kind"] == TRUTH else chosen)
        return results, {number: _error(kind, words, where) for number, kind, words, where in failed}


def _error(kind: str, words: str, where: str) -> Exception:
    """What an instance raised. kind: Python's name of the error, empty where `words` begin with it, or where a block failed."""
    if not kind:
        kind, _, rest = words.partition(": ")
        found = getattr(builtins, kind, None)
        if not (isinstance(found, type) and issubclass(found, Exception)):
            return ShapeConstraintError(f"{words}{f' ({where})' if where else ''}")
        words = rest
    found = _OWN.get(kind) or getattr(builtins, kind, None)
    made = found if isinstance(found, type) and issubclass(found, Exception) else StructureError
    return made(f"{words} ({where})" if where else words)


def _scheduled(record: SkeletonRecord, contexts: Sequence[_ral.Context]) -> list[ScheduledBlock]:
    """The blocks, by their kinds. Raises ValueError."""
    blocks: list[ScheduledBlock | None] = [None] * len(contexts)
    for _, _, block, _, rows, results, values, _, _ in cast("list[tuple[Any, ...]]", record["kinds"]):
        if block >= 0:
            blocks[block] = ScheduledBlock(_Block(contexts[block]), tuple(rows), values, tuple(results))
    if None in blocks:
        raise ValueError("a program that no block is")
    return cast("list[ScheduledBlock]", blocks)


def native_skeleton(record: SkeletonRecord) -> _ral.Skeleton:
    """What runs it. Raises ValueError, TypeError."""
    inputs = {id(slot): number for number, slot in enumerate(tensors_of(record["slots"]))}
    slots = [
        (
            KINDS.index(each["kind"]),
            inputs.get(id(each), -1),
            each["domain"],
            each["inner"],
            each["table"] if each["kind"] == TENSOR else 0,
            each["parts"],
            _tuples(each.get("choices", [])),
        )
        for each in record["slots"]
    ]
    results = [
        (KINDS.index(each["kind"]), each["table"] if each["kind"] == TENSOR else 0, each["parts"], each.get("keys", []))
        for each in record["results"]
    ]
    tables = [(dtype_number(each["dtype"]), each["dims"], _bytes(each["dtype"], each["dims"])) for each in record["tables"]]
    head = (record["root"], record["result"], record["kind"], len(inputs), record["domains"])
    return _ral.Skeleton(
        [
            (each["name"], each["file"], each["parameters"], each["registers"], each["memo"], each["code"], list(map(tuple, each["lines"])))
            for each in record["functions"]
        ],
        _tuples(record["constants"]),
        record["texts"],
        [(*each[:4], *map(_tuples, cast("list[Any]", each[4:]))) for each in record["names"]],
        [
            (
                like,
                text,
                _tuples(items),
                [(name, tuple(value)) for name, value in attributes],
                function,
                _tuples(bound),
                sequence,
                _tuples(keys[0]) if keys else None,
            )
            for like, text, items, attributes, function, bound, sequence, *keys in cast("list[list[Any]]", record["objects"])
        ],
        tables,
        [(table, base64.b64decode(str(text))) for table, text in record["rows"]],
        _tuples(record["regions"]),
        _tuples(record["kinds"]),
        slots,
        results,
        [(LIKES.index(each["like"]), EQUALITIES.index(each["equality"]), each["parts"]) for each in record["nodes"]],
        head,
    )


def _tuples(given: Sequence[Sequence[object]]) -> list[tuple[Any, ...]]:
    return [tuple(each) for each in given]


def _bytes(dtype: str, dims: Sequence[int]) -> int:
    size = _ral_size(dtype)
    for dim in dims:
        size *= dim
    return size


def _ral_size(dtype: str) -> int:
    return 1 if dtype == "i1" else int(dtype.lstrip("uibf")) // 8


def dtype_number(dtype: str) -> int:
    return _DTYPES.index(dtype)


def skeleton_lines(record: SkeletonRecord) -> list[str]:
    """The skeleton as text."""
    inputs = ", ".join(each["name"] for each in tensors_of(record["slots"]))
    blocks = [
        f"block {number}: {record['regions'][int(cast('Any', each[0]))][0]}"
        for number, each in enumerate(record["kinds"])
        if int(cast("Any", each[2])) >= 0
    ]
    choices = [
        _choices_line(record, each, others=others)
        for slots, others in ((record["slots"], True), (record["results"], False))
        for each in slots
        if each["kind"] == CHOICE
    ]
    return [f"instances: {inputs} (-1 = none)", *choices, *blocks, *skeleton_text(record, _ral.SKELETON_OPS)]


def _choices_line(record: SkeletonRecord, slot: SlotRecord, *, others: bool) -> str:
    """others: whether it may be another text, as one of an instance may."""
    texts = has_texts(slot)
    known = [f"{number} {text!r}" if texts else f"{number} {text}" for number, text in enumerate(choices_of(record, slot))]
    return f"{slot['name']}: {', '.join(known)}{f', another text {OTHER}' if texts and others else ''}"
