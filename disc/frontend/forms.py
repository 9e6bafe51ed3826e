"""While a module is exported: forms of functions that keep sizes symbolic, and a record of who fixes a size.

PyTorch's own C++ code of some functions reads sizes as plain integers, by which torch.export fixes a dim to the example's size.
"""

from __future__ import annotations

import operator
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence

import sympy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._guards import detect_fake_mode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from disc.frontend.locations import user_line

Form = Callable[..., object]


class SymbolicForms(TorchFunctionMode):
    """Calls FORMS in the place of the functions that would fix a dim.

    fixed: a size → what fixed a dim to it, "unflatten (model.py:12)". A weight that fixes a dim (a convolution's channels) does not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fixed: dict[int, str] = {}
        self._known = 0
        self._numbers = Numbers()

    def __torch_function__(
        self, func: Callable[..., object], types: Sequence[type], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        form = FORMS.get(func, func)
        if self._numbers.concern(func, args):
            return self._numbers.call(func, args, kwargs or {})
        mode = detect_fake_mode(args)
        if mode is None or mode.shape_env is None:
            return form(*args, **(kwargs or {}))
        replacements = mode.shape_env.replacements
        if len(replacements) != self._known:
            self._record(replacements, "a condition in Python before it")
        result = form(*args, **(kwargs or {}))
        if len(replacements) != self._known:
            tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
            # A size that was fixed just now is still a SymInt; those of a weight never were.
            static = [value.shape for value in tensors if all(isinstance(size, int) for size in value.shape)]
            self._record(replacements, getattr(func, "__name__", str(func)), {size for shape in static for size in shape})
        return result

    def _record(self, replacements: Mapping[sympy.Symbol, sympy.Expr], who: str, weights: Collection[int] = ()) -> None:
        """Looks at what was replaced since the last call. weights: the sizes of its static operands, which may fix a dim."""
        new = list(replacements.values())[self._known :]
        self._known = len(replacements)
        sizes = [int(value) for value in new if value.is_Integer and value not in weights]
        place = user_line("".join(traceback.format_stack()[:-2])) if sizes else None
        for size in sizes:
            self.fixed.setdefault(size, f"{who} ({place[0]}:{place[1]})" if place else who)


class Numbers:
    """Tensors of one element that hold a size: `torch.tensor(x.shape[1])`, and sums, differences and products of such with integers.

    As the bound of a slice or of a clamp PyTorch would read such a tensor as data, of which it knows nothing; here the bound is the size.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[Tensor, torch.SymInt]] = {}  # by id; the tensor stays alive, so that no other one gets its id

    def concern(self, func: Callable[..., object], args: Sequence[object]) -> bool:
        """True for a call that makes or reads such a tensor."""
        if func == torch.scalar_tensor:
            return isinstance(args[0], torch.SymInt)
        return bool(self._sizes) and func in READERS and any(id(argument) in self._sizes for argument in args)

    def call(self, func: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """The result of `func`; where it is such a tensor, it is known as one from now on."""
        sizes = [self._size(argument) for argument in args]
        if func == torch.Tensor.item:
            return sizes[0]
        if func in CLAMPS and id(args[0]) not in self._sizes:
            return func(*sizes, **kwargs)
        result = func(*args, **kwargs)
        size = sizes[0] if func in KEEPERS else ARITHMETIC[func](*sizes) if func in ARITHMETIC and _whole(sizes) and not kwargs else None
        if isinstance(size, torch.SymInt) and isinstance(result, Tensor) and result.dtype == torch.int64:
            self._sizes[id(result)] = (result, size)
        return result

    def _size(self, value: object) -> object:
        return self._sizes[id(value)][1] if id(value) in self._sizes else value


def _whole(values: Sequence[object]) -> bool:
    return all(isinstance(value, int | torch.SymInt) for value in values)


KEEPERS = frozenset({torch.scalar_tensor, torch.Tensor.to, torch.Tensor.detach, torch.Tensor.detach_})
CLAMPS = frozenset({torch.clamp, torch.Tensor.clamp})
ARITHMETIC: dict[Callable[..., object], Callable[..., object]] = {
    torch.Tensor.add: operator.add, torch.Tensor.__add__: operator.add, torch.Tensor.__radd__: operator.add,
    torch.Tensor.sub: operator.sub, torch.Tensor.__sub__: operator.sub, torch.Tensor.__rsub__: lambda right, left: left - right,
    torch.Tensor.mul: operator.mul, torch.Tensor.__mul__: operator.mul, torch.Tensor.__rmul__: operator.mul,
}  # fmt: skip
READERS = frozenset({torch.Tensor.item, *KEEPERS, *CLAMPS, *ARITHMETIC})


def max_pool_1d(
    x: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """As an image of one row."""

    def row(value: int | Sequence[int], other: int) -> list[int]:
        return [other, value if isinstance(value, int) else value[0]]

    image, shape = x.unsqueeze(-2), (row(kernel_size, 1), row(stride or kernel_size, 1), row(padding, 0), row(dilation, 1), ceil_mode)
    if return_indices:
        values, indices = F.max_pool2d_with_indices(image, *shape)
        return values.squeeze(-2), indices.squeeze(-2)
    return F.max_pool2d(image, *shape).squeeze(-2)


def take_along_dim(x: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """`gather` after the other dims are broadcast."""
    if dim is None:
        return x.reshape(-1).gather(0, indices.reshape(-1))
    place = dim % x.dim()
    others = torch.broadcast_shapes(*((*each.shape[:place], *each.shape[place + 1 :]) for each in (x, indices)))

    def spread(value: Tensor) -> Tensor:
        return value.expand(*others[:place], value.shape[place], *others[place:])

    return spread(x).gather(place, spread(indices))


FORMS: dict[Callable[..., object], Form] = {
    F.max_pool1d: max_pool_1d,
    torch.max_pool1d: max_pool_1d,
    torch.take_along_dim: take_along_dim,
    torch.Tensor.take_along_dim: take_along_dim,
}
