"""Example inputs of an ONNX model: sizes for its dims, several choices of them.

A size stands for all sizes, but a trace can fail on one: an image of 3 x 3 does not pass five poolings, and a mask of 96 x 96 does not
fit a table of 64 positions. So there are choices, and the first that can be traced is taken. Dims of different names that an operator
wants to be equal, as of two factors, are found by running the graph without data.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

from disc.frontend.onnx.inputs import Input
from disc.ir.python_source import parse_expression

SMALL = (2, 3, 5, 7, 4, 6, 8, 9, 10, 11, 12, 13)
ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
}  # fmt: skip
LONGEST_NAME = 200
MOST_NODES = 20_000  # that are run to find dims that must be equal: some ten seconds


def example_sizes(inputs: Sequence[Input]) -> Iterator[list[tuple[int, ...]]]:
    """Choices of sizes for all inputs, best first: as the names of dims say, then dims at the same place alike; small ones and those of
    images."""
    seen: list[list[tuple[int, ...]]] = []
    for alike in (False, True):
        for large in (False, True):
            choice = _sizes(inputs, _groups(inputs, alike), large)
            if choice not in seen:
                seen.append(choice)
                yield choice


def equal_sizes(inputs: Sequence[Input], reached: Callable[[list[tuple[int, ...]]], int]) -> list[tuple[int, ...]] | None:
    """Sizes, of which as few as possible are equal, that take a run of the graph further than those of the names do; None for none.

    reached: how many nodes can be run with some sizes.
    """
    start = groups = _groups(inputs, alike=False)
    best = reached(_sizes(inputs, groups, large=False))
    while (further := _further(inputs, groups, reached, best)) is not None:
        best, groups = further
    return _sizes(inputs, groups, large=False) if groups is not start else None


def _further(
    inputs: Sequence[Input], groups: dict[str, str], reached: Callable[[list[tuple[int, ...]]], int], best: int
) -> tuple[int, dict[str, str]] | None:
    """Groups of which one pair more is equal, or two, as an operator may want, and that take a run further than `best`."""
    pairs = len(list(itertools.combinations(dict.fromkeys(groups.values()), 2)))
    for count in (1, 2):
        if math.comb(pairs, count) * (best + 1) <= MOST_NODES:
            found = _furthest(inputs, groups, reached, count)
            if found[0] > best:
                return found
    return None


def _furthest(
    inputs: Sequence[Input], groups: dict[str, str], reached: Callable[[list[tuple[int, ...]]], int], count: int
) -> tuple[int, dict[str, str]]:
    """How far `count` pairs of equal groups take a run, and the groups that do: the first of the best."""
    best, found = -1, groups
    for pairs in itertools.combinations(itertools.combinations(dict.fromkeys(groups.values()), 2), count):
        trial = groups
        for first, second in pairs:
            one, other = trial.get(first, first), trial.get(second, second)
            trial = {key: one if group == other else group for key, group in trial.items()}
        far = reached(_sizes(inputs, trial, large=False))
        if far > best:
            best, found = far, trial
    return best, found


def _sizes(inputs: Sequence[Input], groups: Mapping[str, str], large: bool) -> list[tuple[int, ...]]:
    """groups: dims of one have one size."""
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
    """Dim → the one that stands for all that have its size.

    alike: what stands at the same place of some inputs has one size, whatever its name: exporters give equal dims different names."""
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
