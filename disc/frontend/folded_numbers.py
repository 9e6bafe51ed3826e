"""Floats of sizes as Python computes them, step by step: sympy multiplies and adds constants first, and joins terms.

    int(0.7 * (n * 0.9))    is traced as    int(0.63 * n),    63 for n = 100, where Python has 62

Within `steps_apart` it is `int(0.7 * Kept(0.9 * n))`. Of graphs that PyTorch has traced without it, `folded_reason` finds the numbers that
are not what Python has, and that decide: they are rounded to an integer, and so to a size.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import cast

import sympy
import torch
from torch import fx
from torch.fx.experimental.sym_node import SymNode
from torch.utils._sympy.functions import Identity, ToFloat

ROUNDERS = {math.trunc, math.floor, math.ceil, round, torch.sym_int}
_ARITHMETIC: dict[object, Callable[[sympy.Expr, sympy.Expr], sympy.Expr]] = {
    operator.mul: operator.mul, operator.add: operator.add, operator.sub: operator.sub,
}  # fmt: skip
_METHODS = {"mul": operator.mul, "add": operator.add, "sub": operator.sub}  # of PyTorch's symbolic numbers
_SHORT = 1 << 20  # of numerator and denominator: products and sums of a few of them, and of sizes, are exact in f64


class Kept(Identity):
    """A float that is rounded before the next step: sympy does not look inside."""

    _torch_handler_name = "identity"

    @classmethod
    def eval(cls, number: sympy.Expr) -> sympy.Expr | None:  # pyright: ignore[reportIncompatibleMethodOverride]  # sympy declares none
        return number if number.is_Number or isinstance(number, Kept) else None


@contextmanager
def steps_apart() -> Iterator[None]:
    """Within, symbolic floats are traced as Python computes them."""
    saved = {name: getattr(SymNode, name) for name in _METHODS}
    for name, op in _METHODS.items():
        setattr(SymNode, name, _apart_method(saved[name], op))
    try:
        yield
    finally:
        for name, real in saved.items():
            setattr(SymNode, name, real)


def _apart_method(real: Callable[[SymNode, SymNode], SymNode], op: object) -> Callable[[SymNode, SymNode], SymNode]:
    def method(left: SymNode, right: SymNode) -> SymNode:
        result = real(left, right)
        own, other, made = (cast("sympy.Expr", each._expr) for each in (left, right, result))
        if result.pytype is float and made.free_symbols:
            result._expr = _apart(op, own, other)
        return result

    return method


def folded_reason(node: fx.Node) -> str | None:
    """What a node that rounds a float relies on and Python does not compute, None where there is nothing."""
    if node.target not in ROUNDERS or not isinstance(node.meta.get("val"), torch.SymInt):
        return None
    for each in (each for each in _floats_behind(node) if each.target in _ARITHMETIC):
        left, right = (_expression(argument) for argument in each.args)
        result = _expression(each)
        if result != _apart(each.target, left, right):
            return f"PyTorch's trace makes {result} of it, which is rounded in another way than the steps that are written"
    return None


def _apart(op: object, left: sympy.Expr, right: sympy.Expr) -> sympy.Expr:
    """The sum, difference or product of two floats, of which sympy may join what is not rounded."""
    compute = _ARITHMETIC[op]
    return compute(left, right) if _is_exact(left) and _is_exact(right) else compute(_kept(left), _kept(right))


def _kept(number: sympy.Expr) -> sympy.Expr:
    return cast("sympy.Expr", Kept(number)) if isinstance(number, sympy.Add | sympy.Mul | sympy.Pow) else number


def _is_exact(number: sympy.Expr) -> bool:
    """Whether it is made of sizes and short binary fractions by sums and products alone, which no f64 rounds."""
    if number.is_integer or isinstance(number, ToFloat):
        return True
    if isinstance(number, sympy.Float):
        exact = Fraction(float(number))
        return exact.denominator <= _SHORT and abs(exact.numerator) <= _SHORT
    return isinstance(number, sympy.Add | sympy.Mul) and all(_is_exact(cast("sympy.Expr", each)) for each in number.args)


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
