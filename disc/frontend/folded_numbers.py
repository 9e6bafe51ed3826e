"""Whether PyTorch's trace computes a float of sizes as Python does: sympy multiplies and adds constants first, and joins terms.

    int(0.7 * (n * 0.9))    is traced as    int(0.63 * n),    63 for n = 100, where Python has 62

The graph still has both products. A number that is rounded to an integer, and so decides about a size, must be what Python has.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from fractions import Fraction
from typing import cast

import sympy
import torch
from torch import fx

ROUNDERS = {math.trunc, math.floor, math.ceil, round, torch.sym_int}
ARITHMETIC = {operator.mul: sympy.Mul, operator.add: sympy.Add, operator.sub: sympy.Add}
SHORT = 1 << 20  # of numerator and denominator: products and sums of a few of them, and of sizes, are exact in f64


def folded_reason(node: fx.Node) -> str | None:
    """What a node that rounds a float relies on and Python does not compute, None where there is nothing."""
    if node.target not in ROUNDERS or not isinstance(node.meta.get("val"), torch.SymInt):
        return None
    for each in _floats_behind(node):
        kind = ARITHMETIC.get(each.target)  # pyright: ignore[reportArgumentType, reportCallIssue]
        if kind is None:
            continue
        operands, result = [_expression(argument) for argument in each.args], _expression(each)
        if each.target is operator.sub:
            operands[1] = -operands[1]
        as_written = isinstance(result, kind) and sorted(map(str, result.args)) == sorted(map(str, operands))
        if not as_written and not all(_is_short(number) for operand in operands for number in operand.atoms(sympy.Float)):
            return f"PyTorch's trace makes {result} of it, which is rounded in another way than the steps that are written"
    return None


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
    return exact.denominator <= SHORT and abs(exact.numerator) <= SHORT
