"""Whole quotients of sizes, and their bounds, while a module is exported.

PyTorch cancels what both sides of `a // b` have in common and lets SymPy simplify what is left of each. Where sizes are sums and quotients
of sums themselves (a map padded to whole windows, stage by stage), that takes seconds for one quotient, and minutes for a model. Here the
factors that both sides hold as they stand are taken out; nothing else is looked for.

It lets SymPy solve what it found of each size, too: of most that they are at least 2. SymPy takes 2 ms for each, a sixth of the time in
which a small module with two dims is exported, and gives the bound as it was, turned round.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

import sympy
from sympy.solvers import inequalities
from torch.utils._sympy.functions import FloorDiv

from disc.frontend.replaced import replaced

_PYTORCHS = FloorDiv.eval
_SYMPYS = inequalities.reduce_inequalities
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


def _reduced(relations: object, symbols: object = ()) -> object:
    """A lower bound of an integer, alone, is its own solution; all else is SymPy's."""
    (only,) = relations if isinstance(relations, set) and len(relations) == 1 else (None,)
    if isinstance(only, sympy.Ge) and only.lhs == symbols and only.lhs.is_integer and isinstance(only.rhs, sympy.Integer):
        return only.reversed
    return _SYMPYS(relations, symbols)  # pyright: ignore[reportArgumentType]


def quick_quotients() -> AbstractContextManager[None]:
    """Quotients of sizes with a common factor are made without a search for a shorter form, lower bounds are solved without SymPy."""
    return replaced({(FloorDiv, "eval"): classmethod(_eval), (inequalities, "reduce_inequalities"): _reduced})
