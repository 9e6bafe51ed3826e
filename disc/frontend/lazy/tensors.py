"""What recorded calls give: tensors that stand for others which are not there yet.

Their own memory is that of one empty tensor. PyTorch hands every function that it is given one over to the recorder that made it, and so
does every method and attribute here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from operator import is_
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from disc.frontend.lazy.calls import TENSORS
from disc.ral._ral import LazyAttribute, LazyMethod, retire_handle, value_holders

if TYPE_CHECKING:
    from disc.frontend.lazy.traces import Made, Run
    from disc.ral._ral import Follower


class LazyTensor(torch.Tensor):
    """run, number: which value of which run it is. value: the tensor, once it is there. facts: of the tensor, whatever its sizes are.

    follower: of the recorder that gave it, which writes all of these, and gives a tensor that nobody holds any more another time.
    """

    __slots__ = ("_facts", "_follower", "_number", "_run", "_value")
    _follower: Follower
    _run: Run
    _number: int
    _facts: Made
    _value: torch.Tensor | None

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        """A function of PyTorch where nothing is recorded: the tensors are needed."""
        return func(*(real(each) for each in args), **{name: real(each) for name, each in (kwargs or {}).items()})

    def __iter__(self) -> Iterator[Any]:
        if self.dim() == 0:  # pyright: ignore[reportAttributeAccessIssue]
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind(0))  # pyright: ignore[reportAttributeAccessIssue]

    def __deepcopy__(self, memo: dict[int, object]) -> torch.Tensor:
        value = self._up_to_now()
        with torch._C.DisableTorchFunction():
            copied = value.__deepcopy__(memo)
            if self._is_parameter():
                return torch.nn.Parameter(copied.detach(), copied.requires_grad)
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def __reduce_ex__(self, protocol: object) -> Any:
        value = self._up_to_now()
        if self._is_parameter():
            with torch._C.DisableTorchFunction():
                value = torch.nn.Parameter(value.detach(), value.requires_grad)
        vars(value).update({name: each for name, each in vars(self).items() if name != "_is_param"})
        return value.__reduce_ex__(protocol)  # pyright: ignore[reportArgumentType]

    def _up_to_now(self) -> torch.Tensor:
        """The tensor, behind all that is recorded, which may write it."""
        self._follower.recorder.settle()
        return real(self)

    def _is_parameter(self) -> bool:
        """As PyTorch marks parameters that are made of other tensors than its own."""
        return bool(vars(self).get("_is_param"))

    def __getattr__(self, name: str) -> Any:
        """What somebody has set on the tensor that this one stands for: nothing before that is there. Modules ask whatever they are given
        whether it is a parameter or a buffer."""
        if name.startswith("__") or self._value is None:
            raise AttributeError(f"'Tensor' object has no attribute '{name}'")
        return getattr(self._value, name)


# Native code that does not ask fails on it, or what it gives has no values to read. Where a number is wanted, PyTorch takes it, and asks.
_NOTHING = torch.empty((), dtype=torch.int64, device="meta")


def new_handle() -> LazyTensor:
    """One that stands for nothing yet."""
    return torch.Tensor._make_subclass(LazyTensor, _NOTHING)  # pyright: ignore[reportReturnType, reportAttributeAccessIssue]


def real(value: Any) -> Any:
    """With tensors where there are lazy ones, computed now if need be. What holds none stays the object that it is: what is called may
    write to a list of outputs, or give it back."""
    kind = type(value)
    if kind is LazyTensor:
        if value._value is None:
            value._follower.recorder.settle()
        if value._value is None:
            raise RuntimeError("disc.lazy: the tensor was not computed: a call recorded before it failed")
        return value._value
    if isinstance(value, list | tuple):
        items = [real(each) for each in value]
        return value if all(map(is_, items, value)) else kind(items) if kind is list or kind is tuple else _with_items(value, items)
    if isinstance(value, dict):
        items = [real(each) for each in value.values()]
        if all(map(is_, items, value.values())):
            return value
        found = {} if kind is dict else copy.copy(value)
        found.update(zip(value, items, strict=True))
        return found
    if kind is slice:
        return slice(real(value.start), real(value.stop), real(value.step))
    return value


def flat(value: Any) -> list[Any]:
    """The tensors and lazy tensors of arguments."""
    if isinstance(value, list | tuple):
        return [found for each in value for found in flat(each)]
    if type(value) is dict:
        return [found for each in value.values() for found in flat(each)]
    return [value] if type(value) is LazyTensor or type(value) in TENSORS else []


def _with_items(value: Any, items: list[Any]) -> Any:
    """A sequence of a class of its own with others in it."""
    if isinstance(value, tuple):
        made = getattr(type(value), "_make", type(value))  # of named tuples
        return made(items)
    found = copy.copy(value)
    found[:] = items
    return found


def become_plain(handle: LazyTensor, *, itself: bool = False) -> None:
    """Makes an object that stands for a tensor that tensor, of PyTorch's own class: others may hold it anywhere. One without a value,
    as a call before it failed, stays what it is, and says so.

    Where somebody holds the tensor as another object, both have the same memory: PyTorch has one object for a tensor. What gradients are
    written to cannot be two, and stays what it is, which hands all over to that; and so does any other with `itself`."""
    value = handle._value
    if value is None:
        return
    kind, given = type(value), vars(value)
    hooks, hooks_behind = value._backward_hooks, value._post_accumulate_grad_hooks
    shared = value._use_count() > 1  # pyright: ignore[reportAttributeAccessIssue]  # by a graph, say: PyTorch holds the object then
    del value
    assert handle._value is not None
    if value_holders(handle) > shared or not _swapped(handle, handle._value):
        value = handle._value
        if itself or (value.requires_grad and (value.is_leaf or value.retains_grad)):
            return
        with torch.enable_grad():
            same = value.view_as(value) if value.requires_grad else value.detach()
        _swapped(handle, same)
        hooks = hooks_behind = None  # the value's own, which the gradient comes by
    attributes = vars(handle)
    retire_handle(handle, torch.nn.Parameter if attributes.pop("_is_param", False) else kind)
    for name, each in given.items():
        attributes.setdefault(name, each)
    if hooks is not None:
        handle._backward_hooks = hooks
    if hooks_behind is not None:
        handle._post_accumulate_grad_hooks = hooks_behind


def _swapped(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the objects could change tensors. PyTorch refuses what its C++ looks at from aside."""
    try:
        torch._C._swap_tensor_impl(one, other)
    except RuntimeError:
        return False
    return True


OWN = {*vars(LazyTensor), *vars(object), "__class_getitem__", "__torch_dispatch__", "__weakref__", "__dict__", "__getstate__"}
for _name in dir(torch.Tensor):
    _found = getattr(torch.Tensor, _name)
    if _name in OWN and _name not in ("__repr__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__format__"):
        continue
    if hasattr(_found, "__get__") and not callable(_found):
        setattr(LazyTensor, _name, LazyAttribute(_found.__get__, getattr(_found, "__set__", None), getattr(_found, "__delete__", None)))
    elif callable(_found) and not isinstance(_found, MethodType):
        setattr(LazyTensor, _name, LazyMethod(_found))
