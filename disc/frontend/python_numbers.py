"""Functions of `math` of a size that is dynamic, while a module is exported.

Python's own read the size as a plain number, by which torch.export fixes the dim to the example's. Here the result is a number that every
call computes from its sizes, in f64: a root is an expression of sizes, as an exported program may hold it; the others are the item of a
tensor. A model that decides by one, or counts with it, is exported with Python's own after all (`Functions.plain`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import sympy
import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from torch.utils._sympy.symbol import SymT, symbol_is_type

from disc.frontend.numpy_numbers import SYMBOLIC, makers, protocols
from disc.frontend.replaced import replaced
from disc.frontend.size_conversions import conversions, converted
from disc.frontend.symbols import SymbolError, to_text

UNBACKED = SymT.UNBACKED_FLOAT
Number = float | torch.SymInt | torch.SymFloat
Function = Callable[..., object]


class Functions:
    """plain: whether functions other than roots are Python's own; used: whether another one was called with a size."""

    def __init__(self, plain: bool = False) -> None:
        self.plain = plain
        self.used = False

    @contextmanager
    def of_sizes(self, named: Sequence[object]) -> Iterator[None]:
        """Within, functions of sizes that a model calls, which consists of `named`, stay symbolic; all others are what they were."""
        forms = {"sqrt": torch.sym_sqrt} if self.plain else {"sqrt": torch.sym_sqrt, "log": self._logarithm} | {  # pyright: ignore[reportAttributeAccessIssue]
            name: self._number_of(function) for name, function in FUNCTIONS.items()
        }  # fmt: skip
        functions = {(math, name): _where_symbolic(form, getattr(math, name)) for name, form in forms.items()}
        # What NumPy calls for its function of that name, of the elements of an array of objects.
        methods = {name: _method(forms.get(name, getattr(math, name))) for name in ("sqrt", "log", *FUNCTIONS)}
        functions |= {(kind, name): method for kind in SYMBOLIC for name, method in methods.items()}
        logarithms = {} if self.plain else {name: self._number_of(getattr(torch, name)) for name in ("log", "log2", "log10")}
        functions |= protocols(forms | logarithms) | makers()  # NumPy has one of 0
        with replaced(functions), converted(named, {} if self.plain else conversions(self._told)):
            yield

    def _told(self) -> None:
        self.used = True

    def _number_of(self, function: Callable[[Tensor], Tensor]) -> Function:
        def form(x: Number) -> object:
            self.used = True
            return function(torch.full((), x, dtype=torch.float64)).item()  # pyright: ignore  # PyTorch declares plain numbers

        return form

    def _logarithm(self, x: Number, base: Number | None = None) -> object:
        found = self._number_of(_defined(torch.log))(x)
        return found if base is None else found / math.log(base)  # pyright: ignore[reportOperatorIssue, reportArgumentType]


def decides_sizes(graph: fx.Graph) -> bool:
    """Whether a size of a graph is computed of such a number, which is data to it, or has no form as an integer."""
    for node in graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            sizes = value.shape if isinstance(value, Tensor) else [value]
            for each in (each for each in sizes if isinstance(each, torch.SymInt)):
                if any(symbol_is_type(symbol, UNBACKED) for symbol in each.node.expr.free_symbols) or not _is_whole(each.node.expr):
                    return True
    return False


def _is_whole(size: sympy.Expr) -> bool:
    try:
        to_text(size)
    except SymbolError:
        return False
    return True


def _method(form: Function) -> Function:
    return lambda number: form(number)


def _where_symbolic(form: Function, pythons: Function) -> Function:
    def function(*args: object) -> object:
        return (form if any(isinstance(each, SYMBOLIC) for each in args) else pythons)(*args)

    return function


def _defined(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Of 0 Python has no logarithm: such a call fails."""
    return lambda x: torch.ops.disc.check_finite(function(x))


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "log2": _defined(torch.log2), "log10": _defined(torch.log10), "log1p": torch.log1p, "exp": torch.exp, "exp2": torch.exp2,
    "expm1": torch.expm1, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh,
    "atan": torch.atan, "asinh": torch.asinh, "erf": torch.erf, "lgamma": torch.lgamma,
}  # fmt: skip
