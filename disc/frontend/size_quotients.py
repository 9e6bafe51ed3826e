"""Whole quotients of sizes, while a module is exported.

PyTorch cancels what both sides of `a // b` have in common and lets SymPy simplify what is left of each. Where sizes are sums and quotients
of sums themselves (a map padded to whole windows, stage by stage), that takes seconds for one quotient, and minutes for a model. Here the
factors that both sides hold as they stand are taken out; nothing else is looked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import sympy
from torch.utils._sympy.functions import FloorDiv

_PYTORCHS = FloorDiv.eval
Term = tuple[int, list[sympy.Expr]]  # a number times factors


def _eval(kind: type[FloorDiv], base: sympy.Expr, divisor: sympy.Expr) -> object:
    cancelled = None if divisor.is_zero or not isinstance(base, sympy.Add | sympy.Mul) else _cancelled(base, divisor)
    return _PYTORCHS.__func__(kind, base, divisor) if cancelled is None else FloorDiv(*cancelled)


def _cancelled(base: sympy.Expr, divisor: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr] | None:
    """Both sides without what they have in common; None where they have nothing."""
    below = _factored(divisor)
    for parts in ((base,), sympy.Add.make_args(base)):
        above = [_factored(part) for part in parts]
        if below is None or None in above:
            return None
        terms = [term for term in above if term is not None]
        number = math.gcd(below[0], *(each for each, _ in terms))
        shared = [factor for factor in dict.fromkeys(below[1]) if all(factor in factors for _, factors in terms)]
        if number != 1 or shared:
            return sympy.Add(*(_without(term, number, shared) for term in terms)), _without(below, number, shared)
    return None


def _factored(term: sympy.Expr) -> Term | None:
    """SymPy multiplies a number into a sum: 2 * (a + b) is 2 * a + 2 * b, whose factor a + b is found here. None with a fraction."""
    number, factors = sympy.Integer(1), list[sympy.Expr]()
    for each in sympy.Mul.make_args(term):
        content, rest = each.primitive() if isinstance(each, sympy.Add) else (each, sympy.Integer(1)) if each.is_Number else (1, each)
        number *= content
        factors += [rest] if rest != 1 else []
    return (int(number), factors) if number.is_Integer else None


def _without(term: Term, number: int, shared: list[sympy.Expr]) -> sympy.Expr:
    factors = list(term[1])
    for each in shared:
        factors.remove(each)
    return sympy.Mul(term[0] // number, *factors)


@contextmanager
def quick_quotients() -> Iterator[None]:
    """Quotients of sizes with a common factor are made without a search for a shorter form."""
    FloorDiv.eval = classmethod(_eval)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        FloorDiv.eval = _PYTORCHS  # pyright: ignore[reportAttributeAccessIssue]
