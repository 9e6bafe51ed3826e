"""What kind a value is, and what a call of a function would be: decides which steps of a function are tensor code."""

from __future__ import annotations

import math
import operator
from collections import defaultdict, deque
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from disc.frontend.batched.ordering import greatest_by, least_by, sorted_by
from disc.frontend.batched.patterns import is_mapping, is_sequence
from disc.frontend.batched.rows import Row, is_record

CONSTANTS = (type(None), bool, int, float, str, bytes, complex, slice, type(...), torch.dtype, torch.device, torch.Size, torch.layout,
             torch.memory_format, range)  # fmt: skip
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
# Functions of Python without effects, which take rows as they are.
FRESH = frozenset(
    {list, dict, set, deque, defaultdict, sorted, sorted_by, iter, enumerate, zip, reversed, map, filter}
)  # they return new ones
PURE = FRESH | {len, range, tuple, frozenset, str, repr, id, type, hash, callable, hasattr, getattr, isinstance, issubclass, slice, any,
                all, abs, min, max, round, divmod, pow, ord, chr, object, super, int, float, bool, complex, bytes, property, vars,
                least_by, is_mapping, is_sequence, greatest_by, torch.is_tensor, torch.device, torch.Size}  # fmt: skip
_BARE = (torch.nn.Module, FunctionType, MethodType, BuiltinFunctionType, type)
GIVEN = frozenset({torch.tensor, torch.as_tensor, torch.from_numpy, torch.asarray, torch.scalar_tensor})  # make a tensor of data
OF_DTYPES = frozenset({torch.FloatTensor, torch.DoubleTensor, torch.LongTensor, torch.IntTensor, torch.BoolTensor})  # the same, as classes
CHANGING = frozenset({"append", "extend", "insert", "pop", "remove", "clear", "update", "add", "setdefault", "sort", "reverse", "discard",
                      "popitem", "appendleft", "popleft", "extendleft", "rotate", "__setitem__", "__delitem__"})  # fmt: skip
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # of a module
_MODULES = torch.nn.modules.module
HOOKS_OF_ALL = (_MODULES._global_forward_hooks, _MODULES._global_forward_pre_hooks, _MODULES._global_backward_hooks,
                _MODULES._global_backward_pre_hooks)  # fmt: skip
BATCHED = "__disc_batched__"  # an attribute of the `__call__` that `disc.batched` gives a class
READS = {"item": "item", "tolist": "tolist", "__bool__": "bool", "__float__": "float", "__int__": "int", "__index__": "int"}
CASTS = {bool: "bool", float: "float", int: "int"}


def unwrapped(callee: Any) -> Any:
    """What a `Batched` is around; other callees as they are."""
    return callee if isinstance(callee, _BARE) else getattr(callee, "__disc_target__", callee)


def kind_of(value: object) -> str:
    """ "tensor", "module", "namespace" (a Python module or class), "constant", "tensors" (a container that holds some), "container",
    "callable" or "object"."""
    if isinstance(value, Row | torch.Tensor):
        return "tensor"
    if isinstance(value, torch.nn.Module):
        return "module"
    if isinstance(value, CONSTANTS):
        return "constant"
    if isinstance(value, CONTAINERS):
        return "tensors" if holds_tensors(value) else "container"
    if isinstance(value, ModuleType | type):
        return "namespace"
    if is_record(value) and holds_tensors(value):
        return "tensors"
    return "callable" if callable(value) else "object"


def holds_tensors(value: object, depth: int = 4) -> bool:
    """Whether it is a tensor or a row, or holds one in lists, tuples, dicts or dataclasses."""
    if isinstance(value, Row | torch.Tensor):
        return True
    if depth == 0 or isinstance(value, (*CONSTANTS, torch.nn.Module)):
        return False
    if isinstance(value, dict):
        return any(holds_tensors(each, depth - 1) for each in value.values())
    if isinstance(value, CONTAINERS):
        return any(holds_tensors(each, depth - 1) for each in value)
    if is_record(value):
        return any(holds_tensors(getattr(value, name, None), depth - 1) for name in type(value).__dataclass_fields__)  # pyright: ignore
    return False


def category_of(callee: object) -> str:
    """What a call would be: "torch" (PyTorch computes a tensor), "read" (a tensor's value on the host), "cast" (of `float(x)`: a read where
    x is a tensor), "given" (a tensor made of data; `data_category` says more), "pure", "changing" (of a container), "maker" (a record of
    its arguments), "function" (the user's), or "unknown"."""
    if isinstance(callee, BuiltinFunctionType):
        return _builtin_category(callee)
    if isinstance(callee, type):
        return _class_category(callee)
    if isinstance(callee, torch.nn.Module):
        return _module_category(callee)
    function = callee.__func__ if isinstance(callee, MethodType) else callee
    if _hashed_in(function, GIVEN):
        return "given"
    if _hashed_in(function, PURE):
        return "pure"
    if isinstance(function, FunctionType):
        if isinstance(callee, MethodType) and isinstance(callee.__self__, torch.Tensor):
            return "torch"
        return "torch" if _is_torch(function.__module__) else "function"
    return "torch" if _is_torch(getattr(type(callee), "__module__", None)) else "unknown"


def data_category(arguments: tuple[object, ...], named: dict[str, object]) -> str:
    """What a call of one of `GIVEN` makes: "number" is a tensor of one, "numbers" of a list of whole ones, which blocks can make, too;
    "given" all others."""
    if len(arguments) != 1 or named.keys() - {"dtype"}:
        return "given"
    (data,) = arguments
    if type(data) in (bool, int, float):
        return "number"
    return "numbers" if type(data) in (list, tuple) and data and all(type(each) is int for each in data) else "given"  # pyright: ignore


def _builtin_category(callee: BuiltinFunctionType) -> str:
    owner = callee.__self__
    if isinstance(owner, torch.Tensor):
        return "read" if callee.__name__ in READS else "torch"
    if isinstance(owner, (*CONTAINERS, str, bytes)):
        return "changing" if callee.__name__ in CHANGING else "pure"
    if callee in GIVEN:
        return "given"
    if callee is next:
        return "changing"
    if callee is sum:
        return "sum"
    if getattr(torch, callee.__name__, None) is callee:  # their owner and module are None
        return "torch"
    if callee in PURE or owner in (math, operator) or (isinstance(owner, CONSTANTS) and owner is not None):
        return "pure"
    return "torch" if _is_torch(getattr(owner, "__module__", None) or getattr(owner, "__name__", None)) else "unknown"


def _class_category(callee: type) -> str:
    if callee in CASTS:
        return "cast"
    if callee in OF_DTYPES:
        return "given"
    if callee in PURE or issubclass(callee, BaseException):
        return "pure"
    if issubclass(callee, tuple) and hasattr(callee, "_fields"):
        return "maker"
    if "__dataclass_params__" in vars(callee) and callee.__dataclass_params__.init and not hasattr(callee, "__post_init__"):  # pyright: ignore
        return "maker"
    return "unknown"


def _module_category(module: torch.nn.Module) -> str:
    if not calls_forward(module):
        return "unknown"
    return "torch" if _is_torch(type(module).__module__) else "function"


def calls_forward(module: torch.nn.Module) -> bool:
    """Whether a call of the module is one of its class's `forward`, and nothing more."""
    if "forward" in vars(module) or any(map(len, (*HOOKS_OF_ALL, *hooks_of(module)))):
        return False
    call = type(module).__call__
    return call is torch.nn.Module.__call__ or hasattr(call, BATCHED) or _is_torch(type(module).__module__)


def hooks_of(module: torch.nn.Module) -> list[dict[int, Any]]:
    """The tables of what a call of the module runs besides its `forward`, and besides `HOOKS_OF_ALL`."""
    return [getattr(module, name) for name in HOOKS]


def _is_torch(name: str | None) -> bool:
    return name is not None and (name == "torch" or name.startswith("torch."))


def _hashed_in(value: object, table: frozenset[object]) -> bool:
    try:
        return value in table
    except TypeError:
        return False
