"""Gradients of pooling, of most element by element of the input: no scatter, and nothing depends on an order. Shapes stay symbolic.

Element u of the padded input is in the windows u // stride - j, for the few j below kernel / stride.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch._prims_common as utils
import torch.nn.functional as F
from torch import Tensor, fx
from torch._C import DispatchKey
from torch._decomp import global_decomposition_table
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

from disc.frontend.eager_strides import Decomposition

aten = torch.ops.aten
ALIASES = (aten.detach.default, aten.alias.default)
SCATTERED = global_decomposition_table["post_autograd"].get(aten.max_pool2d_with_indices_backward.default)


@dataclass(frozen=True)
class Axis:
    """A dim, which counts from the end, of `size` elements, and how windows of `kernel` elements slide along it: by `stride` elements,
    `padding` of them before the first and behind the last."""

    dim: int
    size: int
    kernel: int
    stride: int
    padding: int

    @property
    def windows(self) -> int:
        """In how many windows an element is at most."""
        return -(-self.kernel // self.stride)

    def spread(self, x: Tensor, j: int, fill: float) -> Tensor:
        """For each element of the input what `x` has for the window u // stride - j, `fill` where there is none."""
        after = -self.dim - 1  # dims
        repeated = x.unsqueeze(self.dim).expand(*[-1] * (x.dim() - after), self.stride, *[-1] * after).flatten(self.dim - 1, self.dim)
        edges = [*[0, 0] * after, j * self.stride - self.padding, self.size]
        return F.pad(repeated, edges, value=fill).narrow(self.dim, 0, self.size)

    def in_window(self, j: int) -> Tensor | None:
        """Which elements are in the window u // stride - j, shaped to fit behind other dims; None: all."""
        if (j + 1) * self.stride <= self.kernel:
            return None
        place = (torch.arange(self.size) + self.padding) % self.stride + j * self.stride
        return (place < self.kernel).reshape([-1, *[1] * (-self.dim - 1)])


def axes_of(x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], count: int = 2) -> list[Axis]:
    """Those of the last `count` dims."""
    kernels, paddings = (list(each) * (count // len(each)) for each in (kernel, padding))
    strides = list(stride) * (count // len(stride)) if stride else kernels
    return [Axis(dim, x.shape[dim], *each) for dim, *each in zip(range(-count, 0), kernels, strides, paddings, strict=True)]


def wide(gradient: Tensor) -> Tensor:
    """Sums of 16-bit floats are made in f32."""
    return gradient.to(torch.float32) if gradient.dtype in (torch.float16, torch.bfloat16) else gradient


def maximum_backward(
    gradient: Tensor, x: Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil_mode: bool, indices: Tensor,
) -> Tensor:  # fmt: skip
    """Each element takes the gradients of those of its windows whose maximum it is.

    Where the graph shows that `indices` are of this pool: eager adds what others name too, wherever they point.
    """
    settings = (kernel_size, stride, padding, dilation, ceil_mode)
    if any(step != 1 for step in dilation) or not is_of_pool(node_of(indices), node_of(x), settings):
        return SCATTERED(gradient, x, *settings, indices) if SCATTERED else NotImplemented
    return from_windows(gradient, x, kernel_size, stride, padding, indices)


def node_of(value: Tensor) -> fx.Node | None:
    """The node that a traced value stands for, behind aliases; None where nothing is traced."""
    mode = get_proxy_mode()
    node = get_proxy_slot(value, mode.tracer, None, lambda slot: slot.proxy.node) if mode else None
    while isinstance(node, fx.Node) and node.target in ALIASES:
        node = node.args[0]
    return node if isinstance(node, fx.Node) else None


def is_of_pool(indices: fx.Node | None, x: fx.Node | None, settings: Sequence[object]) -> bool:
    """Whether `indices` are the second result of the pool of x by `settings` (kernel, stride, padding, dilation, ceil mode)."""
    if indices is None or x is None or indices.target is not operator.getitem or indices.args[1] != 1:
        return False
    pool = indices.args[0]
    if not isinstance(pool, fx.Node) or pool.target is not aten.max_pool2d_with_indices.default or pool.kwargs:
        return False
    source, *given = pool.args
    while isinstance(source, fx.Node) and source.target in ALIASES:
        source = source.args[0]
    return source is x and same_settings(given, settings)


def same_settings(given: Sequence[object], settings: Sequence[object]) -> bool:
    """Of the forward op, which may leave out the last ones, and of its gradient."""
    filled = [*given, *([], [0, 0], [1, 1], False)[len(given) - 1 :]]
    return all(_both(a) == _both(b) for a, b in zip(filled, settings, strict=True))


def _both(setting: object) -> object:
    """[k] is [k, k]."""
    if not isinstance(setting, Sequence):
        return setting
    return [*setting] * 2 if len(setting) == 1 else [*setting]


def from_windows(
    gradient: Tensor, x: Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], indices: Tensor
) -> Tensor:
    """The gradient of a pool without dilation whose `indices`, shaped like `gradient`, each lie in their window."""
    rows, columns = axes_of(x, kernel_size, stride, padding)
    place = torch.arange(rows.size).unsqueeze(-1) * columns.size + torch.arange(columns.size)
    total = None
    for values, owners in _pairs(wide(gradient), indices, rows, columns):
        part = torch.where(owners == place, values, 0.0)
        total = part if total is None else total + part
    assert total is not None
    return total.to(gradient.dtype)


def _pairs(gradient: Tensor, indices: Tensor, rows: Axis, columns: Axis) -> Iterator[tuple[Tensor, Tensor]]:
    for j in range(rows.windows):
        values, owners = rows.spread(gradient, j, 0), rows.spread(indices, j, -1)
        for i in range(columns.windows):
            yield columns.spread(values, i, 0), columns.spread(owners, i, -1)


def by_places(gradient: Tensor, x: Tensor, indices: Tensor, count: int) -> Tensor:
    """The gradient of maxima of windows over the last `count` dims: added where each of `indices`, row-major over these dims, points."""
    first, values = x.dim() - count, wide(gradient)
    zeros = values.new_zeros(x.shape).flatten(first)
    return zeros.scatter_add(-1, indices.flatten(first), values.flatten(first)).reshape(x.shape).to(gradient.dtype)


def maximum_backward_3d(
    gradient: Tensor, x: Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil_mode: bool, indices: Tensor,
) -> Tensor:  # fmt: skip
    return by_places(gradient, x, indices, 3)


def average_backward(
    count: int, gradient: Tensor, x: Tensor, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """count: dims of a window. Its elements may leave out padding, and always leave out what hangs over the end."""
    result = wide(gradient)
    for axis in axes_of(x, kernel_size, stride, padding, count):
        if divisor_override is None:
            result = result / _lengths(axis, gradient.shape[axis.dim], count_include_pad).to(result.dtype)
        total = None
        for j in range(axis.windows):
            part, inside = axis.spread(result, j, 0), axis.in_window(j)
            part = part if inside is None else torch.where(inside, part, 0.0)
            total = part if total is None else total + part
        assert total is not None
        result = total
    return (result if divisor_override is None else result / divisor_override).to(gradient.dtype)


def _lengths(axis: Axis, count: int, padded: bool) -> Tensor:
    """Of `count` windows, shaped to fit behind other dims. padded: with the padding."""
    start = torch.arange(count) * axis.stride - axis.padding
    end = torch.clamp(start + axis.kernel, max=axis.size + axis.padding)
    length = end - start if padded else torch.clamp(end, max=axis.size) - torch.clamp(start, min=0)
    return length.reshape([-1, *[1] * (-axis.dim - 1)])


def mean_pool_2d(x: Tensor, output_size: Sequence[int]) -> Tensor:
    """`aten.adaptive_avg_pool2d`."""
    return _mean_pool(aten.adaptive_avg_pool2d.default, x, output_size)


def mean_pool_3d(x: Tensor, output_size: Sequence[int]) -> Tensor:
    """`aten.adaptive_avg_pool3d`."""
    return _mean_pool(aten.adaptive_avg_pool3d.default, x, output_size)


def _mean_pool(pool: torch._ops.OpOverload, x: Tensor, output_size: Sequence[int]) -> Tensor:
    """To one element per channel, of channels that lie innermost: a mean with the strides of its source. PyTorch writes these strides into
    it, whose gradient is a scatter by strides; here they come of views."""
    count = len(output_size)
    if any(size != 1 for size in output_size) or x.dim() != count + 2 or utils.suggest_memory_format(x) == torch.contiguous_format:
        return pool._op_dk(DispatchKey.CompositeImplicitAutograd, x, output_size)
    means = x.mean(list(range(-count, 0)))
    return means.reshape(x.shape[0], *[1] * count, x.shape[1]).movedim(-1, 1)


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {
    aten.max_pool2d_with_indices_backward.default: maximum_backward,
    aten.max_pool3d_with_indices_backward.default: maximum_backward_3d,
    aten.adaptive_max_pool2d_backward.default: partial(by_places, count=2),
    aten.adaptive_max_pool3d_backward.default: partial(by_places, count=3),
    aten.avg_pool2d_backward.default: partial(average_backward, 2),
    aten.avg_pool3d_backward.default: partial(average_backward, 3),
}
