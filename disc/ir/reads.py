"""Which elements of its operands an element of an op's result is made of: one map per operand, from the index in the result.

    stablehlo.transpose %x, dims = [1, 0]               element (i, j) reads %x at (j, i)
    disc.slice(%x) {starts = ["S0"], strides = [2]}     element (i) reads %x at (S0 + 2 * i)
    stablehlo.reduce %x over [1]                        element (i) reads %x at (i, anywhere)

Analyses and index arithmetic use these maps, not the name of the op. A map says where elements are read, not that they all are: a pad reads
its source only where the position lies inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from disc.shapes import Dim, ShapeEnv

if TYPE_CHECKING:
    from disc.ir.graph import Attribute, Node

ZERO = Dim.of(0)


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
    """The position in dim `dims` of the result; wide: as much as positions there determine."""
    return Place(ZERO, tuple((dim, 1) for dim in dims), wide=wide)


# One for each dim of an operand. None: all along that dim is read, for every index alike.
Map = tuple[Place | None, ...]
Reads = Callable[["Node", ShapeEnv], tuple[Map, ...]]


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
