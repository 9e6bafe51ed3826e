"""NumPy's functions of dynamic sizes, while a module is exported.

    np.floor(x.shape[0] / 2)          a number that every call computes, a float as NumPy's own
    np.hypot(x.shape[0], 3)           without a symbolic form: Python's number, which fixes the dim

NumPy asks what is no number of its own for `__array_ufunc__`, or for `__array_function__`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch.utils import _pytree as pytree

from disc.frontend.plain_numbers import asking, plain

SYMBOLIC = (torch.SymInt, torch.SymFloat)
Form = Callable[..., object]  # NotImplemented is for operands that it does not take


class NumPyFloat(torch.SymFloat):
    """As np.float64 is a float."""

    dtype, shape, ndim = np.dtype(np.float64), (), 0

    def item(self) -> torch.SymFloat:
        return torch.SymFloat(self.node)


class NumPyInt(torch.SymInt):
    """As np.int64 is none of Python's integers."""

    dtype, shape, ndim = np.dtype(np.int64), (), 0

    def item(self) -> torch.SymInt:
        return torch.SymInt(self.node)


def of_numpy(value: object) -> object:
    """A symbolic number as one of NumPy's; a condition is decided, as there is none that is one of NumPy's."""
    if isinstance(value, torch.SymBool | bool):
        return np.bool_(plain(value))
    if isinstance(value, torch.SymFloat):
        return NumPyFloat(value.node)
    return NumPyInt(value.node) if isinstance(value, torch.SymInt) else value


def of_python(value: object) -> object:
    """One of NumPy's numbers, symbolic or not, as Python's."""
    if isinstance(value, NumPyFloat | NumPyInt | np.integer | np.floating):
        return value.item()
    return value


def _converted(value: torch.SymInt | torch.SymFloat, dtype: Any) -> object:
    wanted = np.dtype(dtype)
    if wanted == np.int64:
        return of_numpy(torch.sym_int(value))
    return of_numpy(torch.sym_float(value)) if wanted == np.float64 else wanted.type(plain(value))


def _plain_member(name: str) -> property:
    return property(lambda value: getattr(plain(value), name))


def _staying(kind: type, name: str) -> Form:
    """The method of symbolic numbers, whose result is of NumPy's types."""
    return lambda value, *others: of_numpy(getattr(kind, name)(value, *others))


def _compared(kind: type, name: str) -> Form:
    """The comparison of symbolic numbers, whose result is of NumPy's type where the user's code compares."""

    def compare(value: object, other: object) -> object:
        found = getattr(kind, name)(value, other)
        return found if asking() is None or found is NotImplemented else of_numpy(found)

    return compare


_METHODS: dict[str, Form] = {
    "astype": _converted, "round": lambda x, digits=0: np.round(x, digits), "clip": lambda *args: np.clip(*args),
}  # fmt: skip
for _own, _kind in ((NumPyFloat, torch.SymFloat), (NumPyInt, torch.SymInt)):
    for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        for _method in (f"__{_name}__", f"__r{_name}__"):
            setattr(_own, _method, _staying(_kind, _method))
    for _name in ("__neg__", "__pos__", "__abs__"):
        setattr(_own, _name, _staying(_kind, _name))
    for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
        setattr(_own, _name, _compared(_kind, _name))
    for _name, _form in _METHODS.items():
        setattr(_own, _name, _form)
    for _name in (name for name in dir(_own.dtype.type) if not name.startswith("_") and not hasattr(_own, name)):
        if _name not in ("real", "imag", "numerator", "denominator"):  # which sizes have
            setattr(_own, _name, _plain_member(_name))


# --- functions ------------------------------------------------------------------------------------------------------------------


def protocols(functions: Mapping[str, Form]) -> dict[tuple[type, str], Form]:
    """What NumPy calls. functions: of `math`, by name, for which there are symbolic forms."""
    ufuncs = {**_UFUNCS, **{getattr(np, _NAMES.get(name, name)): form for name, form in functions.items() if name not in _NO_UFUNCS}}

    def ufunc(value: object, function: np.ufunc, method: str, *inputs: object, **kwargs: object) -> object:
        inputs = tuple(each[()] if isinstance(each, np.ndarray) and not each.ndim else each for each in inputs)  # as NumPy compares its own
        form = ufuncs.get(function) if method == "__call__" and not kwargs and _has_64_bits(inputs, function in _COMPARISONS) else None
        found = form(*map(of_python, inputs)) if form is not None else NotImplemented
        if found is not NotImplemented:
            return of_numpy(found)
        if any(isinstance(each, np.ndarray) and each.dtype == object for each in inputs):  # which holds sizes itself
            return getattr(function, method)(*map(_as_object, inputs), **kwargs)
        with _narrow(function in ufuncs and all(map(_is_number, inputs)) and not _has_64_bits(inputs, function in _COMPARISONS)):
            return getattr(function, method)(*pytree.tree_map(plain, inputs), **pytree.tree_map(plain, kwargs))

    def other(value: object, function: Form, types: object, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        form = _FUNCTIONS.get(function) if not kwargs and _has_64_bits(args) else None
        found = form(*map(of_python, args)) if form is not None else NotImplemented
        return function(*pytree.tree_map(plain, args), **pytree.tree_map(plain, kwargs)) if found is NotImplemented else of_numpy(found)

    return {
        (kind, name): form
        for kind in (*SYMBOLIC, torch.SymBool)
        for name, form in (("__array_ufunc__", ufunc), ("__array_function__", other))
    }


_IS_NARROW = ContextVar("_IS_NARROW", default=False)


def computes_in_fewer_bits() -> bool:
    """Whether a size is asked for its number by arithmetic in fewer than 64 bits."""
    return _IS_NARROW.get()


@contextmanager
def _narrow(is_so: bool) -> Iterator[None]:
    token = _IS_NARROW.set(is_so)
    try:
        yield
    finally:
        _IS_NARROW.reset(token)


def makers() -> dict[tuple[ModuleType, str], Form]:
    """In the place of functions that ask neither: an array of a size would be one of objects."""
    arange, isscalar = (cast("Form", each) for each in (np.arange, np.isscalar))
    return {
        (np, "arange"): lambda *args, **kwargs: arange(*map(plain, args), **pytree.tree_map(plain, kwargs)),
        (np, "isscalar"): lambda element: isinstance(element, SYMBOLIC) or isscalar(element),
    }


def _has_64_bits(values: Sequence[object], are_compared: bool = False) -> bool:
    """Whether all are numbers, with which NumPy computes in int64 and f64: its own of fewer bits decide that, Python's do not."""
    if not all(map(_is_number, values)):
        return False
    whole = all(isinstance(each, int | np.integer | torch.SymInt) for each in values)
    return (are_compared and whole) or np.result_type(*map(_type, values)) in (np.int64, np.float64)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating | torch.SymInt | torch.SymFloat)


def _type(value: object) -> Any:
    return getattr(value, "dtype", 0.0 if isinstance(value, float | torch.SymFloat) else 0)


def _as_object(value: object) -> object:
    return np.array(value, dtype=object) if isinstance(value, SYMBOLIC) else value


def _whole(function: Callable[[Any], Any]) -> Form:
    """floor, ceil, trunc: of an integer it is that, of a float a float."""
    return lambda x: torch.sym_float(function(x)) if isinstance(x, torch.SymFloat) else x


def _power(base: Any, exponent: Any) -> object:
    if isinstance(base, torch.SymInt) and isinstance(exponent, int):
        return base**exponent if exponent >= 0 else NotImplemented
    return torch.sym_float(base) ** exponent if isinstance(base, SYMBOLIC) and isinstance(exponent, float) else NotImplemented


def _round(x: Any, digits: int = 0) -> object:
    return x if isinstance(x, torch.SymInt) and digits >= 0 else torch.sym_float(round(x)) if digits == 0 else NotImplemented


def _clip(x: Any, low: Any, high: Any) -> object:
    return torch.sym_min(torch.sym_max(x, low), high)


_NAMES = {"atan": "arctan", "asinh": "arcsinh"}
_NO_UFUNCS = frozenset({"erf", "lgamma"})
_COMPARISONS: dict[np.ufunc, Form] = {
    np.less: operator.lt, np.less_equal: operator.le, np.greater: operator.gt, np.greater_equal: operator.ge,
    np.equal: operator.eq, np.not_equal: operator.ne,
}  # fmt: skip
_UFUNCS: dict[np.ufunc, Form] = {
    np.floor: _whole(math.floor), np.ceil: _whole(math.ceil), np.trunc: _whole(math.trunc),
    np.rint: lambda x: torch.sym_float(round(x)),
    np.absolute: lambda x: torch.sym_max(x, -x), np.negative: operator.neg, np.positive: operator.pos, np.square: lambda x: x * x,
    np.add: operator.add, np.subtract: operator.sub, np.multiply: operator.mul, np.true_divide: operator.truediv,
    np.floor_divide: operator.floordiv, np.remainder: operator.mod, np.power: _power,
    np.minimum: torch.sym_min, np.maximum: torch.sym_max, np.fmin: torch.sym_min, np.fmax: torch.sym_max,
    **_COMPARISONS,
}  # fmt: skip
_FUNCTIONS: dict[Form, Form] = {np.round: _round, np.around: _round, np.clip: _clip}
