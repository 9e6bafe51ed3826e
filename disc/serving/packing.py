"""Calls of a packed program (`Options(packed=True)`): requests of different lengths, one behind the other along one dim of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from disc.artifact.manifest import Manifest, PackedRecord
from disc.errors import ArtifactError, InputRankError, ShapeConstraintError
from disc.ral.executable import Executable

Array = np.ndarray[Any, Any]
ROWS, TOKENS, LENGTH = "sequences", "tokens", 2


class PackedLayout:
    """Where the rows of requests lie in the inputs and outputs of one call.

    A request is what the unpacked program takes: inputs of [rows, length, ...] or [rows, ...]; each row is a sequence of its own.
    """

    def __init__(self, record: PackedRecord) -> None:
        """Raises ArtifactError for a record that contradicts itself."""
        self.least = record["least"]
        self.outputs = tuple(record["outputs"])
        self.inputs = tuple(_kind(each["dims"], record) for each in record["inputs"])
        if len(self.outputs) != len(record["results"]) or TOKENS not in self.inputs or not {ROWS, TOKENS}.issuperset(self.outputs):
            raise ArtifactError("the manifest contradicts itself: its packed inputs and outputs are not rows or tokens")

    def shape(self, inputs: Sequence[Array]) -> tuple[int, int]:
        """(rows, length) of a request. Raises InputRankError and ShapeConstraintError where its inputs do not agree."""
        if len(inputs) != len(self.inputs):
            raise InputRankError(f"expected {len(self.inputs)} inputs, got {len(inputs)}")
        sizes = {array.shape[:LENGTH] for array, kind in zip(inputs, self.inputs, strict=True) if kind == TOKENS}
        rows, length = next(iter(sizes)) if len(sizes) == 1 and len(next(iter(sizes))) == LENGTH else (-1, -1)
        if rows < 0 or any(array.shape[:1] != (rows,) for array in inputs):
            shapes = ", ".join(str(array.shape) for array in inputs)
            raise ShapeConstraintError(f"all inputs of a packed program must have the same rows and tokens, got {shapes}")
        if length < self.least:
            raise ShapeConstraintError(f"a sequence must have at least {self.least} tokens, got {length}")
        return rows, length

    def join(self, requests: Sequence[Sequence[Array]]) -> list[Array]:
        """The inputs of one call for all requests. Raises as `shape`."""
        shapes = [self.shape(inputs) for inputs in requests]
        columns = zip(zip(*requests, strict=True), self.inputs, strict=True)
        joined = [_together(arrays, kind) for arrays, kind in columns]
        lengths = np.repeat([length for _, length in shapes], [rows for rows, _ in shapes]).astype(np.int64)
        ends = np.cumsum(lengths)
        starts = ends - lengths
        return [*joined, np.repeat(starts, lengths), np.repeat(ends, lengths), starts, ends]

    def split(self, outputs: Sequence[Array], shapes: Sequence[tuple[int, int]]) -> list[list[Array]]:
        """The outputs of each request, as views; shapes: (rows, length) of each."""
        results: list[list[Array]] = []
        row = token = 0
        for rows, length in shapes:
            own = [
                output[row : row + rows]
                if kind == ROWS
                else output[0, token : token + rows * length].reshape(rows, length, *output.shape[LENGTH:])
                for output, kind in zip(outputs, self.outputs, strict=True)
            ]
            results.append(own)
            row, token = row + rows, token + rows * length
        return results


def _kind(dims: Sequence[int | str], record: PackedRecord) -> str:
    return TOKENS if len(dims) >= LENGTH and dims[1] == record["length"] else ROWS


def _together(arrays: Sequence[Array], kind: str) -> Array:
    if kind == ROWS:
        return np.concatenate(arrays)
    return np.concatenate([array.reshape(-1, *array.shape[LENGTH:]) for array in arrays])[None]


def layout_of(manifest: Manifest) -> PackedLayout | None:
    """The layout of a packed program, None for any other. Raises ArtifactError."""
    record = manifest.get("packed")
    return None if record is None else PackedLayout(record)


def call_packed(executable: Executable, requests: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Runs a packed program once for all `requests` and returns the outputs of each.

    Raises ArtifactError for a program that is not packed, and what a call of it raises.
    """
    layout = layout_of(executable.manifest)
    if layout is None:
        reason = executable.manifest.get("packed_refusal", "it was not compiled with Options(packed=True)")
        raise ArtifactError(f"this program is not packed: {reason}")
    shapes = [layout.shape(inputs) for inputs in requests]
    return layout.split(cast("list[Array]", executable.flat(*layout.join(requests))), shapes)
