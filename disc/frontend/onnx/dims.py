"""Example inputs of an ONNX model: sizes for its dims, several choices of them.

A size stands for all sizes, but a trace can fail on one: an image of 3 x 3 does not pass five poolings, and a mask of 96 x 96 does not
fit a table of 64 positions. So there are choices, and the first that can be traced is taken.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

from disc.frontend.onnx.inputs import Input
from disc.ir.python_source import parse_expression

SMALL = (2, 3, 5, 7, 4, 6, 8, 9, 10, 11, 12, 13)
ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
LONGEST_NAME = 200


def example_sizes(inputs: Sequence[Input]) -> Iterator[list[tuple[int, ...]]]:
    """Choices of sizes for all inputs, best first: as the names of dims say, then dims at the same place alike; small ones and those of
    images."""
    seen: list[list[tuple[int, ...]]] = []
    for alike in (False, True):
        for large in (False, True):
            choice = _sizes(inputs, alike, large)
            if choice not in seen:
                seen.append(choice)
                yield choice


def _sizes(inputs: Sequence[Input], alike: bool, large: bool) -> list[tuple[int, ...]]:
    """alike: what stands at the same place of some inputs has one size, whatever its name: exporters give equal dims different names."""
    groups = _groups(inputs, alike)
    sizes: dict[str, int] = {}
    for each in inputs:
        for place, dim in enumerate(each.dims):
            if isinstance(dim, str) and (group := groups[_key(each, place)]) not in sizes:
                sizes[group] = _size(len(sizes), place, large or (len(each.dims) >= 4 and place >= 2))
    named = {dim: sizes[groups[dim]] for each in inputs for dim in each.dims if isinstance(dim, str) and dim}
    return [
        tuple(
            dim if isinstance(dim, int) else _computed(dim, named) or sizes[groups[_key(each, place)]]
            for place, dim in enumerate(each.dims)
        )
        for each in inputs
    ]


def _size(number: int, place: int, large: bool) -> int:
    """large: multiples of 32, as networks want that halve an image and double it again."""
    return 64 + 32 * (number % 8) if large and place else SMALL[number % len(SMALL)]


def _key(each: Input, place: int) -> str:
    return str(each.dims[place]) or f"{place} of every input"


def _groups(inputs: Sequence[Input], alike: bool) -> dict[str, str]:
    """Dim → the one that stands for all that have its size."""
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent.setdefault(key, key) != key:
            key = parent[key]
        return key

    for each in inputs:
        for place, dim in enumerate(each.dims):
            if isinstance(dim, str):
                first = root(f"{place} of every input") if alike else root(_key(each, place))
                parent[root(_key(each, place))] = first
    return {key: root(key) for key in list(parent)}


def _computed(name: str, sizes: Mapping[str, int]) -> int | None:
    """The size of a dim whose name is a sum or product of others, "past + length"; None for any other name."""
    if name.isidentifier() or not name or len(name) > LONGEST_NAME:
        return None
    try:
        value = _evaluated(parse_expression(name), sizes)
    except (SyntaxError, KeyError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return value if 0 < value < 2**31 else None


def _evaluated(node: ast.expr, sizes: Mapping[str, int]) -> int:
    """Raises: KeyError, ValueError for what is no arithmetic on known sizes."""
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        return ARITHMETIC[type(node.op)](_evaluated(node.left, sizes), _evaluated(node.right, sizes))
    raise ValueError(type(node).__name__)
