"""While a module is exported: forms of functions that keep sizes symbolic, and a record of who fixes a size.

PyTorch's own C++ code of some functions reads sizes as plain integers, by which torch.export fixes a dim to the example's size.
"""

from __future__ import annotations

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

    def __torch_function__(
        self, func: Callable[..., object], types: Sequence[type], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        form = FORMS.get(func, func)
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
