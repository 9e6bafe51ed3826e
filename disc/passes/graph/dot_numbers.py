"""The dimension numbers of a dot_general as a value that passes can permute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.ir.ops import build

Sides = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class DotNumbers:
    """batching, contracting: (dims of the left operand, dims of the right operand), paired by position."""

    batching: Sides
    contracting: Sides

    @staticmethod
    def of(dot: ir.Operation) -> DotNumbers:
        numbers = _stablehlo.DotDimensionNumbers(dot.attributes["dot_dimension_numbers"])
        return DotNumbers(
            (tuple(numbers.lhs_batching_dimensions), tuple(numbers.rhs_batching_dimensions)),
            (tuple(numbers.lhs_contracting_dimensions), tuple(numbers.rhs_contracting_dimensions)),
        )

    def bound(self, side: int) -> tuple[int, ...]:
        """The batching and contracting dims of one operand."""
        return (*self.batching[side], *self.contracting[side])

    def free(self, side: int, rank: int) -> list[int]:
        return [dim for dim in range(rank) if dim not in self.bound(side)]

    def with_dims_of(self, side: int, image: Sequence[int]) -> DotNumbers:
        """Dim d of the operand on this side becomes `image[d]`."""

        def mapped(sides: Sides) -> Sides:
            new = tuple(image[dim] for dim in sides[side])
            return (new, sides[1]) if side == 0 else (sides[0], new)

        return DotNumbers(mapped(self.batching), mapped(self.contracting))

    def with_batch_order(self, order: Sequence[int]) -> DotNumbers:
        left, right = self.batching
        return DotNumbers((tuple(left[i] for i in order), tuple(right[i] for i in order)), self.contracting)

    def swapped(self) -> DotNumbers:
        return DotNumbers((self.batching[1], self.batching[0]), (self.contracting[1], self.contracting[0]))

    def attribute(self) -> ir.Attribute:
        return _stablehlo.DotDimensionNumbers.get(
            lhs_batching_dimensions=list(self.batching[0]),
            rhs_batching_dimensions=list(self.batching[1]),
            lhs_contracting_dimensions=list(self.contracting[0]),
            rhs_contracting_dimensions=list(self.contracting[1]),
        )

    def build_dot(
        self, like: ir.Operation, operands: Sequence[ir.Value], type_: ir.Type, before: ir.Operation | None = None
    ) -> ir.Operation:
        """A dot_general with these numbers and the other attributes and the location of `like`, before it by default."""
        attributes = {name: like.attributes[name] for name in like.attributes} | {"dot_dimension_numbers": self.attribute()}
        return build("stablehlo.dot_general", operands, [type_], attributes, location=like.location, before=before or like)
