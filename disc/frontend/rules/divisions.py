"""Quotients that are truncated or floored, and remainders. PyTorch refuses an integer by zero."""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch
from torch_mlir import ir

from disc.frontend.branch_demands import only_in
from disc.frontend.call import Call
from disc.frontend.conditions import relation
from disc.frontend.decisions import Decision
from disc.frontend.locations import line_text
from disc.frontend.op_builder import OpBuilder, Tensor
from disc.frontend.rules.elementwise import computed, truncated
from disc.frontend.rules.overrides import Fault, Override, overrides
from disc.frontend.rules.places import required
from disc.frontend.symbols import product, to_size
from disc.shapes import any_of

aten = torch.ops.aten


def divided(e: OpBuilder, call: Call, body: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """`computed`, of integers by a tensor that has no zero."""

    def checked(a: Tensor, b: Tensor) -> Tensor:
        is_data = isinstance(call.raw("other"), Tensor) and not b.dtype.is_floating_point and not _is_constant(b)
        if is_data:
            what = f"{call.node.target}: an integer is divided by zero: got {{actual}} such divisor or more"
            b = required(e, e.compare("ne", b, e.scalar(0, b.dtype)), b, what)
        if isinstance(size := call.raw("other"), sympy.Expr) and not b.dtype.is_floating_point:
            fits = any_of((relation("!=", to_size(size), 0), relation("==", product(a.shape), 0)))  # nothing is divided of an empty tensor
            why = f"the divisor of {call.node.target} at {line_text(call.node)}"
            e.decisions.append(only_in(e.premise, Decision(fits, why)))
        return body(a, b)

    return computed(e, call, checked)


def _is_constant(x: Tensor) -> bool:
    """Whether it is one number, which is not 0."""
    owner = x.value.owner
    if not isinstance(owner, ir.Operation) or owner.name != "stablehlo.constant":
        return False
    values = ir.DenseIntElementsAttr(owner.attributes["value"])
    return values.is_splat and int(values[0]) != 0


def fmod(e: OpBuilder, call: Call) -> Tensor:
    return divided(e, call, lambda a, b: e.binary("remainder", a, b))


def div(e: OpBuilder, call: Call) -> Tensor:
    mode = call.text("rounding_mode")
    if mode == "floor":
        return floor_divide(e, call)

    def body(a: Tensor, b: Tensor) -> Tensor:
        quotient = e.binary("divide", a, b)
        if mode is None or not quotient.dtype.is_floating_point:
            return quotient
        return truncated(e, quotient)

    return divided(e, call, body)


def floor_divide(e: OpBuilder, call: Call) -> Tensor:
    def body(a: Tensor, b: Tensor) -> Tensor:
        quotient = e.binary("divide", a, b)
        if quotient.dtype.is_floating_point:
            return _floor_of_quotient(e, a, b, quotient)
        if not quotient.dtype.is_signed:
            return quotient
        # StableHLO truncates: one less where a remainder is left and the signs differ.
        adjust = _is_beyond(e, e.binary("remainder", a, b), b)
        return e.select(adjust, e.binary("subtract", quotient, e.scalar(1, a.dtype)), quotient)

    return divided(e, call, body)


def _is_beyond(e: OpBuilder, rest: Tensor, b: Tensor) -> Tensor:
    """Whether a remainder is left whose sign is not that of the divisor."""
    zero = e.scalar(0, b.dtype)
    differ = e.compare("ne", e.compare("lt", rest, zero), e.compare("lt", b, zero))
    return e.binary("and", differ, e.compare("ne", rest, zero))


def _floor_of_quotient(e: OpBuilder, a: Tensor, b: Tensor, quotient: Tensor) -> Tensor:
    """As Python divides floats: 1 // 0.1 is 9, though 1 / 0.1 rounds to 10, and an infinite dividend gives NaN."""
    zero, one, half = (e.scalar(value, b.dtype) for value in (0.0, 1.0, 0.5))
    rest = e.binary("remainder", a, b)
    whole = e.binary("divide", e.binary("subtract", a, rest), b)
    whole = e.select(_is_beyond(e, rest, b), e.binary("subtract", whole, one), whole)
    floor = e.unary("floor", whole)
    floor = e.select(e.compare("gt", e.binary("subtract", whole, floor), half), e.binary("add", floor, one), floor)
    floor = e.select(e.compare("eq", whole, zero), e.binary("multiply", quotient, zero), floor)  # a zero has the quotient's sign
    return e.select(e.compare("eq", b, zero), quotient, floor)


def remainder(e: OpBuilder, call: Call) -> Tensor:
    def body(a: Tensor, b: Tensor) -> Tensor:
        rest = e.binary("remainder", a, b)
        if not rest.dtype.is_signed:
            return rest
        # Python's sign rule: the result takes the sign of the divisor.
        return e.select(_is_beyond(e, rest, b), e.binary("add", rest, b), rest)

    return divided(e, call, body)


OVERRIDES: dict[object, Override] = {
    **overrides(Fault.REFUSED, "no StableHLO lowering", {aten.fmod.Scalar: fmod}),
    **overrides(Fault.WRONG, "a quotient that is truncated or floored is off for infinities, zeros and large numbers", {
        aten.div.Tensor_mode: div, aten.div.Scalar_mode: div,
        aten.floor_divide.default: floor_divide, aten.floor_divide.Scalar: floor_divide,
    }),
    **overrides(Fault.WRONG, "negative divisors, infinities, large quotients", {
        aten.remainder.Tensor: remainder, aten.remainder.Scalar: remainder, aten.fmod.Tensor: fmod,
    }),
}  # fmt: skip
