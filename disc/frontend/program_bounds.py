"""What a program of unknown origin may look like, so that it does not end the process that reads it, nor overflow in a later stage."""

from __future__ import annotations

import math
import re

import numpy as np
from torch_mlir import ir

from disc.errors import UnsupportedFormatError
from disc.ir.op_table import ALONG_DIM

MAX_NESTING = 256  # of regions, attributes and types; MLIR's parser and passes recurse in C++, and at some 1,000 levels the stack ends
MAX_RANK = 1024  # that dimension numbers name; MLIR's parser makes a list that long
MAX_LIST = 1 << 20  # elements of a window's padding, two for each dim, and of a list of sizes; StableHLO's verifier makes a list of them
MAX_ELEMENTS = 1 << 48  # of one tensor, its dynamic dims aside: more than any machine can address, few enough to be multiplied

DIMENSION_NUMBERS = re.compile(rb"\[(?=[^\[\]]*\b[bfoi]\b)([^\[\]\n]*)\]")
# What is a list of numbers: how it is written, the sizes of its tensor, and its name in a message around these sizes.
LISTS = (
    (re.compile(rb"tensor\.from_elements[^\n]*tensor<([0-9]+)x"), "a list of {} sizes"),
    (re.compile(rb"padding\s*=\s*dense<[^>]*>\s*:\s*tensor<([0-9x]+)x"), "a padding of {} numbers"),
)


def check_nesting(text: bytes, name: str) -> None:
    """Raises UnsupportedFormatError for MLIR text whose brackets are nested too deeply."""
    codes = np.frombuffer(text.replace(b"->", b"  "), np.uint8)
    steps = np.zeros(256, np.int8)
    steps[list(b"([{<")], steps[list(b")]}>")] = 1, -1
    depth = np.cumsum(steps[codes], dtype=np.int64)
    # From the lowest point before: a `>` of a comparison closes nothing.
    nesting = int((depth - np.minimum.accumulate(depth)).max(initial=0))
    if nesting > MAX_NESTING:
        raise UnsupportedFormatError(f"{name}: brackets are nested {nesting} deep; {MAX_NESTING} are the limit")


def check_numbers(text: bytes, name: str) -> None:
    """Raises UnsupportedFormatError for numbers in MLIR text for which its parser or verifier would take memory until the process ends, and
    for a NUL, which no name may hold."""
    if b"\0" in text or b"\\00" in text:
        raise UnsupportedFormatError(f"{name} is neither MLIR text nor bytecode: it has a NUL character")
    for match in DIMENSION_NUMBERS.finditer(text):
        large = [number for number in re.findall(rb"[0-9]+", match.group(1)) if len(number) > 4 or int(number) > MAX_RANK]
        if large:
            raise UnsupportedFormatError(f"{name}: dimension number {large[0].decode()[:40]} is beyond {MAX_RANK}")
    for pattern, words in LISTS:
        for match in pattern.finditer(text):
            sizes = [size for size in match.group(1).split(b"x") if size]
            if any(len(size) > 9 for size in sizes) or math.prod(map(int, sizes)) > MAX_LIST:
                what = words.format(match.group(1).decode()[:40])
                raise UnsupportedFormatError(f"{name}: {what}; {MAX_LIST} are the limit")


def check_sizes(module: ir.Module, name: str) -> None:
    """Raises UnsupportedFormatError for a tensor type of an impossible size, and for an op along a dim that is not there."""
    seen: dict[ir.Type, None] = {}  # in the order of the program
    along: list[tuple[str, int, int]] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        blocks = [block for region in op.regions for block in region.blocks]
        for value in (*op.results, *(argument for block in blocks for argument in block.arguments)):
            seen.setdefault(value.type)
        if op.name in ALONG_DIM:
            along.append((op.name, ir.IntegerAttr(op.attributes["dim"]).value, ir.RankedTensorType(op.operands[0].type).rank))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op_name, dim, rank in along:
        if not 0 <= dim < rank:
            raise UnsupportedFormatError(f"{name}: {op_name} along dim {dim} of {rank}")
    for kind in seen:
        _check_type(kind, name)


def _check_type(kind: ir.Type, name: str) -> None:
    if isinstance(kind, ir.RankedTensorType):
        count = math.prod(max(kind.get_dim_size(axis), 1) for axis in range(kind.rank) if not kind.is_dynamic_dim(axis))
        if count > MAX_ELEMENTS:
            raise UnsupportedFormatError(f"{name}: {kind} has more than 2^48 elements")
