"""What recorded calls give: objects that stand for tensors which are not there yet.

They are no subclass of `torch.Tensor` (making one takes longer than recording the call does), but say that they are tensors, and every
method and operator of a tensor goes to the recorder that made them, as PyTorch's own functions do when they are given one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._C import DisableTorchFunction

if TYPE_CHECKING:
    from disc.frontend.lazy.recorder import Recorder
    from disc.frontend.lazy.traces import Made, Run


class LazyTensor:
    """run, number: which value of which run it is. value: the tensor, once it is there. facts: of the tensor, whatever its sizes are."""

    __slots__ = ("__dict__", "__weakref__", "_facts", "_number", "_recorder", "_run", "_value")

    def __init__(self, recorder: Recorder, run: Run, number: int, facts: Made, value: torch.Tensor | None = None) -> None:
        self._recorder, self._run, self._number, self._facts, self._value = recorder, run, number, facts, value

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        """A function of PyTorch where nothing is recorded: the tensors are needed."""
        return func(*(real(each) for each in args), **{name: real(each) for name, each in (kwargs or {}).items()})

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        return torch.Tensor

    def __hash__(self) -> int:
        return id(self)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.unbind(0))  # pyright: ignore[reportAttributeAccessIssue]

    def __deepcopy__(self, memo: dict[int, object]) -> torch.Tensor:
        return real(self).__deepcopy__(memo)

    def __reduce_ex__(self, protocol: object) -> Any:
        return real(self).__reduce_ex__(protocol)  # pyright: ignore[reportArgumentType]

    def __getattr__(self, name: str) -> Any:
        """What somebody has set on the tensor itself."""
        if name.startswith("__") or name == "_is_param":
            raise AttributeError(name)
        return getattr(real(self), name)


def real(value: Any) -> Any:
    """With tensors where there are lazy ones, computed now if need be."""
    kind = type(value)
    if kind is LazyTensor:
        if value._value is None:
            value._recorder.settle()
        if value._value is None:
            raise RuntimeError("disc.lazy: the tensor was not computed: a call recorded before it failed")
        return value._value
    if kind is list or kind is tuple:
        return kind(map(real, value))
    if kind is dict:
        return {name: real(each) for name, each in value.items()}
    if kind is slice:
        return slice(real(value.start), real(value.stop), real(value.step))
    return value


def _method(function: Callable[..., object]) -> Callable[..., object]:
    def method(self: LazyTensor, *args: object, **kwargs: object) -> object:
        with DisableTorchFunction():
            return self._recorder.call(function, (self, *args), kwargs)

    return method


def _attribute(descriptor: Any) -> property:
    get, put = descriptor.__get__, cast("Callable[..., object] | None", getattr(descriptor, "__set__", None))

    def read(self: LazyTensor) -> object:
        with DisableTorchFunction():
            return self._recorder.call(get, (self,), {})

    def write(self: LazyTensor, value: object) -> None:
        assert put is not None
        with DisableTorchFunction():
            self._recorder.call(put, (self, value), {})

    return property(read, write if put is not None else None)


OWN = {*vars(LazyTensor), *vars(object), "__class_getitem__", "__torch_dispatch__", "__weakref__", "__dict__", "__getstate__"}
for _name in dir(torch.Tensor):
    _found = getattr(torch.Tensor, _name)
    if _name in OWN and _name not in ("__repr__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__format__"):
        continue
    if hasattr(_found, "__get__") and not callable(_found):
        setattr(LazyTensor, _name, _attribute(_found))
    elif callable(_found) and not isinstance(_found, MethodType):
        setattr(LazyTensor, _name, _method(_found))
