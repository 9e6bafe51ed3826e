"""Python's `//` and `%` of sizes as JAX writes them: of StableHLO's, which round towards zero, with a step where signs differ.

    %q = divide %a, %b;  select(sign(a) != sign(b) and remainder(a, b) != 0, %q - 1, %q)     is  a // b
    %r = remainder %a, %b;  select((r < 0) != (b < 0) and r != 0, %r + %b, %r)               is  a % b

The steps between are no expressions of sizes where the sign of `a` is open; what they come to is.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.ir.rewriting import defining
from disc.passes.shape.host_values import ONE, ZERO, HostArithmetic, HostValue, known_int, scalar
from disc.shapes import Dim, Truth


def floored(arithmetic: HostArithmetic, values: Mapping[ir.Value, HostValue], op: ir.Operation) -> HostValue | None:
    """The value of a select that is one of the two; None for another, and where the divisor may not be positive."""
    condition, stepped, plain = op.operands
    quotient, rest = defining(plain, "stablehlo.divide"), defining(plain, "stablehlo.remainder")
    made = quotient or rest
    parts = defining(condition, "stablehlo.and")
    if made is None or parts is None:
        return None
    a, b = made.operands
    is_form = _is_quotient(values, parts, stepped, plain, a, b) if quotient is not None else _is_rest(values, parts, stepped, plain, b)
    numbers = [values[each].item() for each in (a, b) if each in values and values[each].ndim == 0]
    sizes = [each for each in numbers if isinstance(each, Dim)]
    if not is_form or len(sizes) != 2 or arithmetic.env.lt(ZERO, sizes[1]) is not Truth.YES:
        return None
    found = arithmetic.floor_divide(*sizes) if quotient is not None else arithmetic.env.simplify(sizes[0] % sizes[1])
    return None if found is None else scalar(found)


def _is_quotient(
    values: Mapping[ir.Value, HostValue], parts: ir.Operation, stepped: ir.Value, plain: ir.Value, a: ir.Value, b: ir.Value
) -> bool:
    step = defining(stepped, "stablehlo.subtract")
    if step is None or step.operands[0] != plain or not _is(values, step.operands[1], ONE):
        return False
    for signs, rest in (list(parts.operands), list(parts.operands)[::-1]):
        compared, left = _compared(signs, "NE"), _compared(rest, "NE")
        if compared is None or left is None or not _is(values, left[1], ZERO):
            continue
        found = [defining(each, "stablehlo.sign") for each in compared]
        of = [each.operands[0] for each in found if each is not None]
        remainder = defining(left[0], "stablehlo.remainder")
        if of in ([a, b], [b, a]) and remainder is not None and list(remainder.operands) == [a, b]:
            return True
    return False


def _is_rest(values: Mapping[ir.Value, HostValue], parts: ir.Operation, stepped: ir.Value, plain: ir.Value, b: ir.Value) -> bool:
    step = defining(stepped, "stablehlo.add")
    if step is None or list(step.operands) not in ([plain, b], [b, plain]):
        return False
    for signs, rest in (list(parts.operands), list(parts.operands)[::-1]):
        compared, left = _compared(signs, "NE"), _compared(rest, "NE")
        if compared is None or left is None or left[0] != plain or not _is(values, left[1], ZERO):
            continue
        below = [_compared(each, "LT") for each in compared]
        of = [pair[0] for pair in below if pair is not None and _is(values, pair[1], ZERO)]
        if of in ([plain, b], [b, plain]):
            return True
    return False


def _compared(value: ir.Value, direction: str) -> tuple[ir.Value, ir.Value] | None:
    op = defining(value, "stablehlo.compare")
    if op is None or _stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value != direction:
        return None
    left, right = op.operands
    return left, right


def _is(values: Mapping[ir.Value, HostValue], value: ir.Value, number: Dim) -> bool:
    found = values.get(value)
    return found is not None and found.ndim == 0 and known_int(found.item()) == number.const
