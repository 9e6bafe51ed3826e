"""Numbers that every call computes of its sizes in f64, as Python does, where integers alone do not say them.

int(0.7 * n)      62 for n = 90, where 7 * 90 // 10 is 63      →  a symbol that the program binds (`disc.size_of`)
0.7 * n > m       which decides a branch                       →  one that is 0 or 1
"""

from __future__ import annotations

import hashlib
import re

import sympy
from torch.utils._sympy import functions as torch_sympy
from torch.utils._sympy.symbol import SymT, symbol_is_type

ROUNDING = (torch_sympy.FloorToInt, torch_sympy.CeilToInt, torch_sympy.TruncToInt, torch_sympy.RoundToInt)
FLOOR_DIVISION = (torch_sympy.FloorDiv, torch_sympy.CleanDiv)
MODULO = (sympy.Mod, torch_sympy.Mod, torch_sympy.PythonMod)
COMPARISONS: dict[type[sympy.Basic], str] = {sympy.Eq: "eq", sympy.GreaterThan: "ge"}  # the others are negations of these
_STEPS = (
    sympy.Add, sympy.Mul, torch_sympy.IntTrueDiv, torch_sympy.FloatTrueDiv, torch_sympy.ToFloat, torch_sympy.OpaqueUnaryFn_sqrt,
    torch_sympy.Identity, torch_sympy.Min, torch_sympy.Max,
)  # fmt: skip
"""What IEEE rounds to one result, so that every machine has what Python has."""
_OF_INTEGERS = (*FLOOR_DIVISION, *MODULO, sympy.Min, sympy.Max)  # exact where all operands are

_EXPRESSIONS: dict[str, sympy.Basic] = {}  # by name: which is one and the same in every process


def name_of(number: sympy.Basic) -> str | None:
    """The name of the symbol that stands for a whole part of a float, or for whether a comparison of floats holds; None where Python's
    result is not known to the last bit."""
    if not isinstance(number, (*ROUNDING, *COMPARISONS)) or not all(map(_is_exact, number.args)):
        return None
    name = f"w{hashlib.sha256(sympy.srepr(number).encode()).hexdigest()[:12]}"
    _EXPRESSIONS[name] = number
    return name


def is_whole(number: sympy.Basic) -> bool:
    """Whether it is an integer. PyTorch's modulo says so of itself, whatever it is of, and sympy makes a floor of one of a float."""
    if not getattr(number, "is_integer", False):
        return False
    return isinstance(number, ROUNDING) or all(is_whole(each) for each in number.args if isinstance(each, sympy.Expr))


def expression_of(name: str) -> sympy.Basic | None:
    """What a name stands for; None for that of a symbol of PyTorch's."""
    return _EXPRESSIONS.get(name)


def words(number: sympy.Basic) -> str:
    """It, much as Python writes it."""
    return re.sub(r"\b(?:ToFloat|Trunc|Floor|Ceil|Round)(?:ToInt)?(?=\()", lambda found: _FUNCTIONS[found[0]], str(number))


_FUNCTIONS = {"ToFloat": "float", "TruncToInt": "int", "FloorToInt": "floor", "CeilToInt": "ceil", "RoundToInt": "round"}


def _is_exact(number: sympy.Basic) -> bool:
    if isinstance(number, sympy.Symbol):
        return bool(number.is_integer) and not symbol_is_type(number, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT))
    if number.is_Number:
        return True
    if isinstance(number, sympy.Pow):  # sympy's form of x * x
        whole = is_whole(number.base) and number.exp.is_Integer and number.exp > 0
        return (bool(whole) or number.exp == 2) and _is_exact(number.base)
    if isinstance(number, _OF_INTEGERS) and not is_whole(number):
        return False
    return isinstance(number, (*_STEPS, *ROUNDING, *_OF_INTEGERS)) and all(map(_is_exact, number.args))
