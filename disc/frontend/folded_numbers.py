"""Floats of sizes as Python computes them, step by step: sympy multiplies and adds constants first, and joins terms.

    int(0.7 * (n * 0.9))    is traced as    int(0.63 * n),    63 for n = 100, where Python has 62

Within `steps_apart` it is `int(0.7 * Kept(0.9 * n))`. What PyTorch computes otherwise than Python is refused there, where it may matter:

    (n * 1.0) // 0.1        is traced as    floor(n / 0.1),    10 for n = 1, where Python has 9
    (n * 0.3) % 1.0                         an integer

Of graphs that PyTorch has traced without it, `folded_reason` finds the numbers that
are not what Python has, and that decide: they are rounded to an integer, and so to a size.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import cast

import sympy
import torch
from torch import fx
from torch.fx import traceback
from torch.fx.experimental.sym_node import SymNode
from torch.utils._sympy.functions import FloatTrueDiv, Identity, IntTrueDiv, ToFloat

from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.frontend.computed_numbers import is_whole
from disc.frontend.locations import running_line, user_line

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
    methods = {name: _apart_method(getattr(SymNode, name), op) for name, op in _METHODS.items()}
    with _replaced(SymNode, methods), divided_as_in_python():
        yield


@contextmanager
def divided_as_in_python() -> Iterator[None]:
    """Within, `//`, `%`, `divmod` and `is_integer` of symbolic floats are Python's, or refused."""
    floats, integers = (_division_methods(kind) for kind in (torch.SymFloat, torch.SymInt))
    with _replaced(torch.SymFloat, {**floats, "is_integer": _is_integer}), _replaced(torch.SymInt, integers):
        yield


@contextmanager
def _replaced(kind: type, methods: Mapping[str, object]) -> Iterator[None]:
    saved = {name: vars(kind).get(name) for name in methods}
    for name, method in methods.items():
        setattr(kind, name, method)
    try:
        yield
    finally:
        for name, real in saved.items():
            if real is None:
                delattr(kind, name)
            else:
                setattr(kind, name, real)


def _apart_method(real: Callable[[SymNode, SymNode], SymNode], op: object) -> Callable[[SymNode, SymNode], SymNode]:
    def method(left: SymNode, right: SymNode) -> SymNode:
        result = real(left, right)
        own, other, made = (cast("sympy.Expr", each._expr) for each in (left, right, result))
        if result.pytype is float and made.free_symbols:
            result._expr = _apart(op, own, other)
        return result

    return method


def _division_methods(kind: type) -> dict[str, object]:
    found: dict[str, object] = {
        f"__{prefix}{name}__": _division(op, real, swapped=bool(prefix))
        for op, name in (("//", "floordiv"), ("%", "mod"))
        for prefix in ("", "r")
        if (real := getattr(kind, f"__{prefix}{name}__", None)) is not None
    }
    found["__divmod__"] = lambda own, other: (own // other, own % other)
    found["__rdivmod__"] = lambda own, other: (other // own, other % own)
    return found


def _division(op: str, real: Callable[[object, object], object], swapped: bool) -> Callable[[object, object], object]:
    """The method `real`; of floats, as Python computes them."""

    def divide(own: object, other: object) -> object:
        operands = (other, own) if swapped else (own, other)
        is_of_floats = any(isinstance(each, float | torch.SymFloat) for each in operands)
        if not is_of_floats or not all(isinstance(each, int | float | torch.SymInt | torch.SymFloat) for each in operands):
            return real(own, other)
        _refuse_rounded(op, operands)
        left, right = (cast("float", torch.sym_float(each)) for each in operands)
        floor = cast("float", torch.sym_float(math.floor(left / right)))
        return floor if op == "//" else left - floor * right

    return divide


def _refuse_rounded(op: str, operands: tuple[object, object]) -> None:
    """Python's quotient is the floor of the exact one, and so is that of the f64, where both operands are exact.

    Raises: UnsupportedOpError where one of them may not be.
    """
    if not all(_is_exact(_expression(each)) for each in operands):
        reason = "floats that are rounded have another quotient and remainder in Python than in PyTorch's trace: divide integers"
        raise UnsupportedOpError([UnsupportedOp(f"{op} of floats of sizes", reason, _user_line())])


def _is_integer(number: torch.SymFloat) -> object:
    return number == torch.sym_float(math.floor(number))


def _user_line() -> str:
    """Of the node of a graph that is traced again, or of the code that runs."""
    traced = user_line(traceback.get_current_meta().get("stack_trace"))
    return f"{traced[0]}:{traced[1]}" if traced is not None else running_line()


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
    if is_whole(number) or isinstance(number, ToFloat):
        return True
    if isinstance(number, IntTrueDiv | FloatTrueDiv):
        by = cast("sympy.Expr", number.args[1])
        return bool(by.is_Number) and _is_power_of_two(float(by)) and _is_exact(cast("sympy.Expr", number.args[0]))
    if isinstance(number, sympy.Float):
        exact = Fraction(float(number))
        return exact.denominator <= _SHORT and abs(exact.numerator) <= _SHORT
    return isinstance(number, sympy.Add | sympy.Mul) and all(_is_exact(cast("sympy.Expr", each)) for each in number.args)


def _is_power_of_two(number: float) -> bool:
    return 1 / _SHORT <= number <= _SHORT and math.frexp(number)[0] == 0.5


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
