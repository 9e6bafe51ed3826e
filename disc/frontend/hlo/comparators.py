"""Reads the comparator of a `stablehlo.sort`: by which keys, in which directions.

    ^bb0(%a, %b, %c, %d):                       keys: (%a, ascending), (%c, descending)
      %0 = compare LT, %a, %b
      %1 = compare EQ, %a, %b
      %2 = compare GT, %c, %d
      %3 = and %1, %2
      return or %0, %3

A key is a computation on the elements of one position, the same on both sides. It is computed for all elements, and a stable sort by the
last key, then the one before, is the order of the comparator. What JAX puts around floats, so that both zeros are equal and NaN is the
largest number, says what the library's order is anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.ir.interp.values import constant_value
from disc.ir.ops import element_of, terminator_of
from disc.ir.rewriting import defining, producer

DESCENDS = {"LT": False, "LE": False, "GT": True, "GE": True}  # with LE and GE the order of equal elements is open


@dataclass(frozen=True)
class Key:
    """value: what is compared, of the first of two positions; total: floats are compared as IEEE 754's totalOrder does."""

    value: ir.Value
    descending: bool
    total: bool


def sort_keys(block: ir.Block) -> list[Key] | None:
    """The keys of a comparator, the first decides first; None for another kind of comparator."""
    return _Reader(block).keys(terminator_of(block).operands[0])


class _Reader:
    """Arguments 2i and 2i + 1 are the elements of operand i at the first and at the second position."""

    def __init__(self, block: ir.Block) -> None:
        self.places = {argument: number for number, argument in enumerate(block.arguments)}

    def keys(self, value: ir.Value) -> list[Key] | None:
        single = self.single(value)
        if single is not None:
            return [single]
        return self.lexicographic(value)

    def single(self, value: ir.Value) -> Key | None:
        op = defining(value, "stablehlo.compare")
        direction = _direction(op) if op is not None else ""
        if op is None or direction not in DESCENDS:
            return None
        left, right = op.operands
        side = self.side(left)
        if side is None or self.side(right) != 1 - side or not self.mirrored(left, right):
            return None
        return Key(left if side == 0 else right, DESCENDS[direction] != (side == 1), _is_total(op))

    def lexicographic(self, value: ir.Value) -> list[Key] | None:
        """`first or (equal and rest)`, or `select(equal, rest, first)`."""
        op = defining(value, "stablehlo.or", "stablehlo.select")
        if op is None:
            return None
        if op.name == "stablehlo.select":
            forms = [(op.operands[2], op.operands[0], op.operands[1])]
        else:
            forms = [
                (first, *pair)
                for first, second in (list(op.operands), list(op.operands)[::-1])
                for both in [defining(second, "stablehlo.and")]
                if both is not None
                for pair in (list(both.operands), list(both.operands)[::-1])
            ]
        for first, equal, rest in forms:
            key = self.single(first)
            if key is not None and self.is_equality(equal, key):
                others = self.keys(rest)
                return None if others is None else [key, *others]
        return None

    def is_equality(self, value: ir.Value, key: Key) -> bool:
        op = defining(value, "stablehlo.compare")
        if op is None or _direction(op) != "EQ" or _is_total(op) != key.total:
            return False
        left, right = op.operands
        return any(self.same(one, key.value) and self.mirrored(one, other) for one, other in ((left, right), (right, left)))

    def side(self, value: ir.Value) -> int | None:
        """0 for a computation on elements of the first position alone, 1 for the second."""
        sides: set[int] = set()
        pending = [value]
        while pending:
            each = pending.pop()
            if each in self.places:
                sides.add(self.places[each] % 2)
                continue
            op = producer(each)
            if op is not None and op.regions:
                return None
            pending += list(op.operands) if op is not None else []
        return sides.pop() if len(sides) == 1 else None

    def is_constant(self, value: ir.Value) -> bool:
        op = producer(value)
        return value not in self.places and (op is None or all(map(self.is_constant, op.operands)))

    def mirrored(self, left: ir.Value, right: ir.Value) -> bool:
        """Whether both compute the same, each at its position."""
        return self._alike(left, right, 1)

    def same(self, left: ir.Value, right: ir.Value) -> bool:
        return self._alike(left, right, 0)

    def _alike(self, left: ir.Value, right: ir.Value, apart: int) -> bool:
        if left in self.places or right in self.places:
            if left not in self.places or right not in self.places:
                return False
            one, other = self.places[left], self.places[right]
            return one // 2 == other // 2 and (one ^ other) == apart
        if left == right:
            return apart == 0 or self.is_constant(left)
        first, second = producer(left), producer(right)
        if first is None or second is None or first.name != second.name or len(first.results) != 1 or first.regions or second.regions:
            return False
        texts = [{name: str(op.attributes[name]) for name in op.attributes} for op in (first, second)]
        pairs = list(zip(first.operands, second.operands, strict=False))
        return texts[0] == texts[1] and len(first.operands) == len(second.operands) and all(self._alike(a, b, apart) for a, b in pairs)


def plain_key(key: Key) -> tuple[ir.Value, bool]:
    """What is compared without what makes zeros equal and NaN the largest number; whether both are done."""
    value, zeros, nans = key.value, False, False
    while (op := defining(value, "stablehlo.select")) is not None:
        condition, replaced, rest = op.operands
        test = defining(condition, "stablehlo.compare")
        if test is None:
            break
        left, right = test.operands
        if _direction(test) == "NE" and left == right and _reads_same(left, rest) and _holds(replaced, np.isnan):
            nans = True
        elif (
            _direction(test) == "EQ" and left == rest and _holds(right, lambda each: each == 0) and _holds(replaced, lambda each: each == 0)
        ):
            zeros = True
        else:
            break
        value = rest
    return (value, True) if zeros and nans else (key.value, False)


def _reads_same(tested: ir.Value, rest: ir.Value) -> bool:
    """Whether `rest` is what was tested for NaN, or that with its zeros made equal."""
    op = defining(rest, "stablehlo.select")
    return tested == rest or (op is not None and op.operands[2] == tested)


def _holds(value: ir.Value, test: object) -> bool:
    op = defining(value, "stablehlo.constant")
    if op is None or not isinstance(element_of(value), ir.FloatType):
        return False
    return bool(np.all(test(constant_value(op.attributes["value"]).astype(np.float64))))  # pyright: ignore[reportCallIssue]


def _direction(op: ir.Operation) -> str:
    return _stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value


def _is_total(op: ir.Operation) -> bool:
    return "compare_type" in op.attributes and _stablehlo.ComparisonTypeAttr(op.attributes["compare_type"]).value == "TOTALORDER"
