"""What recorded calls give: tensors that stand for others which are not there yet.

Their own memory is that of one empty tensor. PyTorch hands every function that it is given one over to the recorder that made it, and so
does every method and attribute here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import is_
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch

from disc.ral._ral import LazyAttribute, LazyMethod

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
        return iter(self.unbind(0))  # pyright: ignore[reportAttributeAccessIssue]

    def __deepcopy__(self, memo: dict[int, object]) -> torch.Tensor:
        return real(self).__deepcopy__(memo)

    def __reduce_ex__(self, protocol: object) -> Any:
        return real(self).__reduce_ex__(protocol)  # pyright: ignore[reportArgumentType]

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
    if kind is list or kind is tuple:
        items = [real(each) for each in value]
        return value if all(map(is_, items, value)) else kind(items)
    if kind is dict:
        items = [real(each) for each in value.values()]
        return value if all(map(is_, items, value.values())) else dict(zip(value, items, strict=True))
    if kind is slice:
        return slice(real(value.start), real(value.stop), real(value.step))
    return value


OWN = {*vars(LazyTensor), *vars(object), "__class_getitem__", "__torch_dispatch__", "__weakref__", "__dict__", "__getstate__"}
for _name in dir(torch.Tensor):
    _found = getattr(torch.Tensor, _name)
    if _name in OWN and _name not in ("__repr__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__format__"):
        continue
    if hasattr(_found, "__get__") and not callable(_found):
        setattr(LazyTensor, _name, LazyAttribute(_found.__get__, getattr(_found, "__set__", None)))
    elif callable(_found) and not isinstance(_found, MethodType):
        setattr(LazyTensor, _name, LazyMethod(_found))
