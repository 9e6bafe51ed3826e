"""Whether PyTorch's trace computes a float of sizes as Python does: sympy multiplies and adds constants first, and joins terms.

    int(0.7 * (n * 0.9))    is traced as    int(0.63 * n),    63 for n = 100, where Python has 62

The graph still has both products. A number that is rounded to an integer, and so decides about a size, or that is compared, and so decides
a branch, must be what Python has.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import cast

import sympy
import torch
from torch import fx

ROUNDERS = {math.trunc, math.floor, math.ceil, round, torch.sym_int}
_ARITHMETIC = {operator.mul: sympy.Mul, operator.add: sympy.Add, operator.sub: sympy.Add}
_SHORT = 1 << 20  # of numerator and denominator: products and sums of a few of them, and of sizes, are exact in f64
_METHODS = {  # of torch.SymFloat
    "__mul__": operator.mul, "__rmul__": operator.mul, "__add__": operator.add, "__radd__": operator.add, "__sub__": operator.sub,
}  # fmt: skip


def folded_reason(node: fx.Node) -> str | None:
    """What a node that rounds a float relies on and Python does not compute, None where there is nothing."""
    if node.target not in ROUNDERS or not isinstance(node.meta.get("val"), torch.SymInt):
        return None
    for each in (each for each in _floats_behind(node) if each.target in _ARITHMETIC):
        result = _expression(each)
        if _is_joined(each.target, [_expression(argument) for argument in each.args], result):
            return reason_of(result)
    return None


def reason_of(result: sympy.Expr) -> str:
    return f"PyTorch's trace makes {result} of it, which is rounded in another way than the steps that are written"


def watched(joined: set[sympy.Expr]) -> dict[str, Callable[[Callable[..., object]], Callable[..., object]]]:
    """By their names, what makes methods of `torch.SymFloat` note the results in which the trace has joined constants."""

    def watch(real: Callable[..., object], op: object) -> Callable[..., object]:
        def method(left: object, right: object) -> object:
            result = real(left, right)
            if isinstance(result, torch.SymFloat) and isinstance(right, float | int | torch.SymFloat | torch.SymInt):
                operands = [_expression(left), _expression(right)]
                if _is_joined(op, operands, _expression(result)):
                    joined.add(_expression(result))
            return result

        return method

    return {name: partial(watch, op=op) for name, op in _METHODS.items()}


def _is_joined(op: object, operands: list[sympy.Expr], result: sympy.Expr) -> bool:
    """Whether the result is not the op of its operands as they are, and constants of theirs may be rounded."""
    first, second = operands
    terms = [first, -second] if op is operator.sub else [first, second]
    as_written = isinstance(result, _ARITHMETIC[op]) and sorted(map(str, result.args)) == sorted(map(str, terms))
    return not as_written and not all(_is_short(number) for operand in operands for number in operand.atoms(sympy.Float))


def _floats_behind(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes of floats that it is made of."""
    pending, seen = list(node.all_input_nodes), set[fx.Node]()
    while pending:
        each = pending.pop()
        if each in seen or not isinstance(each.meta.get("val"), torch.SymFloat):
            continue
        seen.add(each)
        pending += each.all_input_nodes
        yield each


def _expression(value: object) -> sympy.Expr:
    value = value.meta["val"] if isinstance(value, fx.Node) else value
    if isinstance(value, torch.SymFloat | torch.SymInt):
        return value.node.expr
    return sympy.Float(value) if isinstance(value, float) else sympy.Integer(cast("int", value))


def _is_short(number: sympy.Float) -> bool:
    exact = Fraction(float(number))
    return exact.denominator <= _SHORT and abs(exact.numerator) <= _SHORT
