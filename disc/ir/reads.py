"""Which elements of its operands an element of an op's result is made of: one map per operand, from the index in the result.

    stablehlo.transpose %x, dims = [1, 0]               element (i, j) reads %x at (j, i)
    disc.slice(%x) {starts = ["S0"], strides = [2]}     element (i) reads %x at (S0 + 2 * i)
    stablehlo.reduce %x over [1]                        element (i) reads %x at (i, anywhere)

Analyses and index arithmetic ask these maps, not which op it is. A map says where elements are read, not that they all are: a pad reads its
source only where the position lies inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from disc.shapes import Dim, ShapeEnv

if TYPE_CHECKING:
    from disc.ir.graph import Attribute, Node

ZERO = Dim.of(0)
ONE = Dim.of(1)


@dataclass(frozen=True, slots=True)
class Place:
    """The position along one dim of an operand that is read for `index` of the result: (offset + the sum of step * index[dim]) / divisor.

    offset: in elements; steps: (dim of the result, elements of the operand per element of the result); divisor: above 1, only what is a
    multiple is read; undecided: or 0, where the operand has one element there, which every call decides; wide: and others, which depend
    on the same dims of the index.
    """

    offset: Dim = ZERO
    steps: tuple[tuple[int, int], ...] = ()
    divisor: int = 1
    undecided: bool = False
    wide: bool = False

    @property
    def same(self) -> int | None:
        """The dim of the result whose positions these are; None where there is no such dim."""
        if len(self.steps) != 1 or self.steps[0][1] != 1 or self.divisor != 1 or self.offset != ZERO or self.wide:
            return None
        return self.steps[0][0]

    def follows(self, dim: int) -> bool:
        """Whether the position changes with the one in dim `dim` of the result."""
        return any(dim == each for each, _ in self.steps)


def at(*dims: int, wide: bool = False) -> Place:
    """The position in dim `dims` of the result; wide: what positions there tell."""
    return Place(ZERO, tuple((dim, 1) for dim in dims), wide=wide)


# One for each dim of an operand. None: all along that dim is read, for every index alike.
Map = tuple[Place | None, ...]
Reads = Callable[["Node", ShapeEnv], tuple[Map, ...]]


# --- maps -------------------------------------------------------------------------------------------------------------


def nothing(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """No operands."""
    return ()


def elementwise(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """Every operand at the index of the result; those without dims have one element for all."""
    return tuple(tuple(map(at, range(len(operand.dims)))) for operand in node.operands)


def transpose(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    order = node.ints("permutation")
    return (tuple(at(order.index(dim)) for dim in range(len(order))),)


def broadcast(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """Dims of size 1 are repeated."""
    source, undecided = node.operands[0].dims, node.ints("maybe")
    return (
        tuple(
            Place() if source[number] == ONE else Place(ZERO, ((dim, 1),), undecided=number in undecided)
            for number, dim in enumerate(node.ints("dims"))
        ),
    )


def slice_(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    starts = [env.simplify(env.parse(text)) for text in node.texts("starts")]
    return (tuple(Place(start, ((dim, step),)) for dim, (start, step) in enumerate(zip(starts, node.ints("strides"), strict=True))),)


def diagonals(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    row, column = node.integer("row"), node.integer("column")
    distance = Place(node.dims[row], ((column, 1), (row, -1)))
    return (tuple(distance if dim == column else at(dim) for dim in range(len(node.dims)) if dim != row),)


def reverse(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    reversed_dims = node.ints("dimensions")
    sizes = enumerate(node.operands[0].dims)
    return (tuple(Place(size - 1, ((dim, -1),)) if dim in reversed_dims else at(dim) for dim, size in sizes),)


def pad(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    lows, between = [env.simplify(env.parse(text)) for text in node.texts("low")], node.ints("interior")
    return tuple(Place(low * -1, ((dim, 1),), step + 1) for dim, (low, step) in enumerate(zip(lows, between, strict=True))), ()


def concatenate(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    along, start, found = node.integer("dimension"), ZERO, list[Map]()
    for operand in node.operands:
        found.append(tuple(Place(start * -1 if dim == along else ZERO, ((dim, 1),)) for dim in range(len(node.dims))))
        start = start + operand.dims[along]
    return tuple(found)


def reduce(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """Operands along their kept dims; initial values."""
    gone, found = node.ints("dimensions"), list[Place | None]()
    for dim in range(len(node.operands[0].dims)):
        found.append(None if dim in gone else at(len([place for place in found if place is not None])))
    return _with_initials(node, tuple(found))


def reduce_window(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """A dim along which the window is one element, and moves by one, is kept."""
    rank = len(node.dims)
    ones, padding = (1,) * rank, node.attrs.get("padding")
    lists = [node.ints(name) or ones for name in ("window_dimensions", "window_strides", "base_dilations")]
    padded = np.zeros((rank, 2)) if padding is None else cast("np.ndarray[tuple[int, ...], np.dtype[np.generic]]", padding)
    plain = [all(each[dim] == 1 for each in lists) and not padded[dim].any() for dim in range(rank)]
    return _with_initials(node, tuple(at(dim, wide=not plain[dim]) for dim in range(rank)))


def _with_initials(node: Node, source: Map) -> tuple[Map, ...]:
    count = len(node.operands) // 2
    return (source,) * count + ((),) * count


def along_dim(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """Lines along dim `dim`, of which positions there tell how much."""
    return (tuple(at(dim, wide=dim == node.integer("dim")) for dim in range(len(node.dims))),)


def dot(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """Batch dims of both sides come first in the result, then the free ones of the left, then those of the right."""
    numbers = numbers_of(node, "dot_dimension_numbers")
    place = len(dims_in(numbers, "lhs_batch"))
    found: list[Map] = []
    for name, operand in zip(("lhs", "rhs"), node.operands[:2], strict=True):
        batch, contracted = dims_in(numbers, f"{name}_batch"), dims_in(numbers, f"{name}_contract")
        source: list[Place | None] = []
        for dim in range(len(operand.dims)):
            free = dim not in batch and dim not in contracted
            source.append(at(place) if free else at(batch.index(dim)) if dim in batch else None)
            place += free
        found.append(tuple(source))
    return tuple(found)


def scaled_dot(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """The steps are [columns, blocks]; columns come last in the result."""
    return *dot(node, env), (at(len(node.dims) - 1), None)


def convolution(node: Node, env: ShapeEnv) -> tuple[Map, ...]:
    """Of the image, windows; which of its channels an output reads follows from the groups. Of the kernel, what makes the output."""
    numbers, (image, kernel) = numbers_of(node, "dimension_numbers"), node.operands
    spatial = zip(dims_in(numbers, "input_spatial"), dims_in(numbers, "output_spatial"), strict=True)
    batch, feature = (cast("int", numbers[name]) for name in ("output_batch", "output_feature"))
    source: list[Place | None] = [None] * len(image.dims)
    weights: list[Place | None] = [None] * len(kernel.dims)
    for dim, result in spatial:
        source[dim] = at(result, wide=True)
    source[cast("int", numbers["input_batch"])] = at(batch) if node.integer("batch_group_count", 1) == 1 else at(batch, feature, wide=True)
    if node.integer("feature_group_count", 1) != 1:
        source[cast("int", numbers["input_feature"])] = at(feature, wide=True)
    weights[cast("int", numbers["kernel_output"])] = at(feature)
    return tuple(source), tuple(weights)


def numbers_of(node: Node, name: str) -> dict[str, Attribute]:
    """Dimension numbers, an attribute of a node."""
    value = node.attrs[name]
    assert isinstance(value, dict)
    return value


def dims_in(numbers: dict[str, Attribute], name: str) -> tuple[int, ...]:
    """The dims that dimension numbers list under `name`."""
    value = numbers[name]
    assert isinstance(value, tuple)
    return cast("tuple[int, ...]", value)
