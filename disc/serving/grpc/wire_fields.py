"""The fields of a protobuf message, found in its bytes, and how many of them a request may have.

protobuf makes an object of every field: a megabyte of empty inputs, two bytes each, becomes half a million of them, and seconds of work. So
fields are counted before anything is parsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from disc.errors import RequestError
from disc.serving.settings import Limits
from disc.serving.tensors import MAX_RANK

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
PARAMETERS, INPUTS, OUTPUTS, RAW_INPUTS = 4, 5, 6, 7  # of ModelInferRequest
_SHAPE, _CONTENTS = 3, 5  # of InferInputTensor
_FP32, _FP64, _BYTES = 6, 7, 8  # of InferTensorContents; the others are varints
_VARINT_BYTES = 10  # at most


class Field(NamedTuple):
    """begin: of the field; content, end: of its value."""

    number: int
    kind: int
    begin: int
    content: int
    end: int


class Budget:
    """Fields that a message may still have."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise RequestError(f"the message has more than {self._most} fields; send elements packed, or as raw contents")


def fields_of(data: bytes, begin: int, end: int, budget: Budget) -> Iterator[Field]:
    """The fields of the message in data[begin:end]. Raises RequestError for what is no message, or has too many."""
    position = begin
    while position < end:
        budget.spend()
        start = position
        tag, position = _varint(data, position, end)
        kind = tag & 7
        content = position
        if kind == LENGTH_DELIMITED:
            size, content = _varint(data, position, end)
        elif kind == VARINT:
            size = _varint(data, position, end)[1] - position
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise RequestError("the message is no ModelInferRequest")
        if size > end - content:
            raise RequestError("the message is cut off")
        position = content + size
        yield Field(tag >> 3, kind, start, content, position)


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64 and position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise RequestError("the message is cut off")


def check_tensors(data: bytes, tensors: list[Field], limits: Limits, budget: Budget) -> None:
    """Bounds what is inside the inputs, outputs and parameters of a request. Raises RequestError."""
    for tensor in tensors:
        for field in fields_of(data, tensor.content, tensor.end, budget):
            if tensor.number != INPUTS or field.kind != LENGTH_DELIMITED:
                continue
            if field.number == _SHAPE and field.end - field.content > _VARINT_BYTES * MAX_RANK:
                raise RequestError(f"an input has too many dims; at most {MAX_RANK} are accepted")
            if field.number == _CONTENTS:
                _check_contents(data, field, limits, budget)


def _check_contents(data: bytes, contents: Field, limits: Limits, budget: Budget) -> None:
    count = 0
    for field in fields_of(data, contents.content, contents.end, budget):
        size = field.end - field.content
        if field.kind != LENGTH_DELIMITED or field.number == _BYTES:
            count += 1
        elif field.number in (_FP32, _FP64):
            count += size // (4 if field.number == _FP32 else 8)
        else:  # the last byte of each varint is below 128
            count += int(np.count_nonzero(np.frombuffer(data, np.uint8, size, field.content) < 0x80))
        if count > limits.elements:
            raise RequestError(f"an input has more than {limits.elements} elements")
