"""Convolutions, pooling, resampling, and norms over channels: operators on batch, channels and positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.values import Number, Result, larger, smaller

Rule = Callable[[Node], Result]
Pads = list[tuple[Number, Number]]


def _flat(pads: Pads) -> list[Number]:
    """As `F.pad` takes them: the last dim first."""
    return [size for both in reversed(pads) for size in both]


def window_pads(node: Node, x: Tensor, kernel: Sequence[Number], strides: Sequence[int], dilations: Sequence[int]) -> Pads:
    """What is put before and behind each dim of positions."""
    rank, how = x.dim() - 2, node.attr_text("auto_pad", "NOTSET")
    if how == "VALID":
        return [(0, 0)] * rank
    if how in ("SAME_UPPER", "SAME_LOWER"):
        pads: Pads = []
        for size, window, step, wide in zip(x.shape[2:], kernel, strides, dilations, strict=True):
            total = larger(0, ((size + step - 1) // step - 1) * step + (window - 1) * wide + 1 - size)
            less, more = total // 2, total - total // 2
            pads.append((less, more) if how == "SAME_UPPER" else (more, less))
        return pads
    given = node.attr_ints("pads", [0] * 2 * rank)
    return list(zip(given[:rank], given[rank:], strict=True))


def _conv(node: Node) -> Tensor:
    return convolution(node, node.tensor(0), node.tensor(1), node.optional(2))


def convolution(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None, fill: int = 0) -> Tensor:
    rank = x.dim() - 2
    strides, dilations = node.attr_ints("strides", [1] * rank), node.attr_ints("dilations", [1] * rank)
    pads = window_pads(node, x, weight.shape[2:], strides, dilations)
    same = all(isinstance(low, int) and isinstance(high, int) and low == high for low, high in pads)
    if not same:
        x = F.pad(x, _flat(pads), value=fill)
    padding = [int(low) for low, _ in pads] if same else [0] * rank
    return torch.ops.aten.convolution(x, weight, bias, strides, padding, dilations, False, [0] * rank, node.attr_int("group", 1))


def _conv_transpose(node: Node) -> Tensor:
    x, weight, rank = node.tensor(0), node.tensor(1), node.tensor(0).dim() - 2
    strides, dilations = node.attr_ints("strides", [1] * rank), node.attr_ints("dilations", [1] * rank)
    extra, group = node.attr_ints("output_padding", [0] * rank), node.attr_int("group", 1)
    spans = [(int(size) - 1) * wide for size, wide in zip(weight.shape[2:], dilations, strict=True)]
    pads = _transposed_pads(node, x, spans, strides, extra)
    # All the positions that windows reach, and the wanted part of them.
    y = torch.ops.aten.convolution(x, weight, None, strides, [0] * rank, dilations, True, [0] * rank, group)
    y = F.pad(y, _flat([(-low, more - high) for (low, high), more in zip(pads, extra, strict=True)]))
    bias = node.optional(2)
    return y if bias is None else y + bias.reshape(-1, *[1] * rank)


def _transposed_pads(node: Node, x: Tensor, spans: Sequence[int], strides: Sequence[int], extra: Sequence[int]) -> Pads:
    """What is taken away before and behind each dim."""
    rank, how = len(spans), node.attr_text("auto_pad", "NOTSET")
    wanted: Sequence[Number] | None = node.attr_ints("output_shape")[-rank:] if node.given("output_shape") else None
    if how in ("SAME_UPPER", "SAME_LOWER") and wanted is None:
        wanted = [size * step for size, step in zip(x.shape[2:], strides, strict=True)]
    if wanted is None:
        given = node.attr_ints("pads", [0] * 2 * rank)
        return list(zip(given[:rank], given[rank:], strict=True)) if how != "VALID" else [(0, 0)] * rank
    pads: Pads = []
    for size, span, step, more, want in zip(x.shape[2:], spans, strides, extra, wanted, strict=True):
        total = (size - 1) * step + span + 1 + more - want
        half = total // 2
        pads.append((half, total - half) if how == "SAME_UPPER" else (total - half, half))
    return pads


# --- pooling ----------------------------------------------------------------------------------------------------------------------


def _pool_windows(node: Node, x: Tensor) -> tuple[list[int], list[int], list[int], Pads]:
    """Sizes of the windows, strides, dilations, pads; with `ceil_mode` the last window, which may begin in the pad behind, has its room."""
    kernel = node.attr_ints("kernel_shape")
    strides, dilations = node.attr_ints("strides", [1] * len(kernel)), node.attr_ints("dilations", [1] * len(kernel))
    pads = window_pads(node, x, kernel, strides, dilations)
    if not node.attr_int("ceil_mode", 0) or node.attr_text("auto_pad", "NOTSET") != "NOTSET":
        return kernel, strides, dilations, pads
    roomy: Pads = []
    for size, window, step, wide, (low, high) in zip(x.shape[2:], kernel, strides, dilations, pads, strict=True):
        room = size + low + high - (window - 1) * wide - 1
        steps, last = (room + step - 1) // step, (size + low - 1) // step
        steps -= smaller(1, larger(0, steps - last))  # it would begin in the pad
        roomy.append((low, high + larger(0, steps * step - room)))
    return kernel, strides, dilations, roomy


def _max_pool(node: Node) -> Result:
    x = node.tensor(0)
    if node.outputs > 1:
        return _max_pool_with_indices(node, x)
    kernel, strides, dilations, pads = _pool_windows(node, x)
    return _max_windows(x, kernel, strides, dilations, pads)


def _max_windows(x: Tensor, kernel: list[int], strides: list[int], dilations: list[int], pads: Pads) -> Tensor:
    low = -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1]
    even = all(
        isinstance(before, int) and isinstance(behind, int) and before == behind and 2 * before <= window
        for (before, behind), window in zip(pads, kernel, strict=True)
    )
    if even:
        return pool(x, kernel, strides, [int(before) for before, _ in pads], dilations)
    return pool(F.pad(x, _flat(pads), value=low), kernel, strides, 0, dilations)


def _max_pool_with_indices(node: Node, x: Tensor) -> Result:
    """The places count through all of x, rows first, or columns first within an image with `storage_order`."""
    kernel, strides, dilations, pads = _pool_windows(node, x)
    low = -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    padded = F.pad(x, _flat(pads), value=low)
    y, at = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1](padded, kernel, strides, 0, dilations, return_indices=True)
    places: list[Tensor] = []
    for size, (before, _) in zip(reversed(padded.shape[2:]), reversed(pads), strict=True):
        places.append(torch.remainder(at, size) - before)
        at = torch.div(at, size, rounding_mode="floor")
    sizes = list(x.shape[2:])
    if not node.attr_int("storage_order"):
        places, sizes = places[::-1], sizes
    else:
        sizes = sizes[::-1]
    flat = torch.zeros_like(at)
    for place, size in zip(places, sizes, strict=True):
        flat = flat * size + place
    image: Number = 1
    for size in sizes:
        image = image * size
    planes = torch.arange(x.shape[0] * x.shape[1]).reshape(x.shape[0], x.shape[1], *[1] * len(kernel))
    return y, flat + planes * image


def _window_sums(x: Tensor, kernel: list[int], strides: list[int], dilations: list[int], pads: Pads) -> Tensor:
    """The sum in each window."""
    x = F.pad(x, _flat(pads))
    if dilations == [1] * len(kernel):
        pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel) - 1]
        count = 1
        for size in kernel:
            count *= size
        return pool(x, kernel, strides) * count
    channels = x.shape[1]
    rank = len(kernel)
    ones = torch.ones(1, 1, *kernel, dtype=x.dtype)
    flat = x.reshape(x.shape[0] * channels, 1, *x.shape[2:])
    y = torch.ops.aten.convolution(flat, ones, None, strides, [0] * rank, dilations, False, [0] * rank, 1)
    return y.reshape(x.shape[0], channels, *y.shape[2:])


def _average_pool(node: Node) -> Tensor:
    x = node.tensor(0)
    kernel, strides, dilations, pads = _pool_windows(node, x)
    sums = _window_sums(x, kernel, strides, dilations, pads)
    counted = x.new_ones((1, 1, *x.shape[2:]))
    if node.attr_int("count_include_pad"):
        plain = window_pads(node, x, kernel, strides, dilations)  # of these, not of the room behind them
        counted = F.pad(counted, _flat(plain), value=1)
        pads = [(0, after - have) for (_, after), (_, have) in zip(pads, plain, strict=True)]
    return sums / _window_sums(counted, kernel, strides, dilations, pads)


def _lp_pool(node: Node) -> Tensor:
    x, p = node.tensor(0), node.attr_int("p")
    return _window_sums(x.abs() ** p, *_pool_windows(node, x)) ** (1 / p)


def _positions(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


def _global_lp(node: Node) -> Tensor:
    x, p = node.tensor(0), node.attr_int("p")
    return (x.abs() ** p).sum(_positions(x), True) ** (1 / p)


def _max_unpool(node: Node) -> Tensor:
    x, at = node.tensor(0), node.tensor(1)
    kernel = node.attr_ints("kernel_shape")
    strides, pads = node.attr_ints("strides", [1] * len(kernel)), node.attr_ints("pads", [0] * 2 * len(kernel))
    pooled = [
        (size - 1) * step - pads[i] - pads[i + len(kernel)] + window
        for i, (size, step, window) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    shape = [*x.shape[:2], *pooled]
    count: Number = 1
    for size in shape:
        count = count * size
    y = torch.zeros([count], dtype=x.dtype).scatter(0, at.reshape(-1), x.reshape(-1)).reshape(shape)
    if not node.has(2):
        return y
    wanted = node.integers(2, "output shape")  # the places count in what the pooling read; what is beyond it is 0
    return F.pad(y, _flat([(0, want - size) for want, size in zip(wanted[2:], pooled, strict=True)]))


# --- norms ------------------------------------------------------------------------------------------------------------------------


def _batch_norm(node: Node) -> Result:
    x, scale, bias, mean, variance = node.tensors()
    if node.attr_int("training_mode", 0):
        return _trained_batch_norm(node, x, scale, bias, mean, variance)
    if len({each.dtype for each in (x, scale, bias, mean, variance)}) == 1:
        return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, node.attr_float("epsilon"))
    shape = [-1] + [1] * (x.dim() - 2)
    factor = scale.to(mean.dtype) * torch.rsqrt(variance + node.attr_float("epsilon"))
    return ((x.to(mean.dtype) - mean.reshape(shape)) * factor.reshape(shape) + bias.to(mean.dtype).reshape(shape)).to(x.dtype)


def _trained_batch_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Result:
    """The result, and the running mean and variance (of the whole population) after this batch."""
    dims, shape, momentum = [0, *_positions(x)], [-1] + [1] * (x.dim() - 2), node.attr_float("momentum")
    wide = x.to(mean.dtype)
    own = wide.mean(dims)
    spread = ((wide - own.reshape(shape)) ** 2).mean(dims)
    factor = scale.to(mean.dtype) * torch.rsqrt(spread + node.attr_float("epsilon"))
    y = (wide - own.reshape(shape)) * factor.reshape(shape) + bias.to(mean.dtype).reshape(shape)
    return y.to(x.dtype), mean * momentum + own * (1 - momentum), variance * momentum + spread * (1 - momentum)


def _instance_norm(node: Node) -> Tensor:
    x, scale, bias = node.tensors()
    return F.instance_norm(x, weight=scale, bias=bias, eps=node.attr_float("epsilon"))


def _group_norm(node: Node) -> Tensor:
    x, scale, bias = node.tensors()
    groups = node.attr_int("num_groups")
    if node.opset < 21:  # one scale for a group
        size = x.shape[1] // groups
        scale, bias = scale.repeat_interleave(size), bias.repeat_interleave(size)
    return F.group_norm(x, groups, scale, bias, node.attr_float("epsilon"))


def _local_response(node: Node) -> Tensor:
    x, size = node.tensor(0), node.attr_int("size")
    squares = F.pad((x * x).unsqueeze(1), [0, 0] * (x.dim() - 2) + [(size - 1) // 2, size // 2])
    sums = squares[:, :, : x.shape[1]]
    for i in range(1, size):
        sums = sums + squares[:, :, i : i + x.shape[1]]
    return x / (node.attr_float("bias") + node.attr_float("alpha") / size * sums.squeeze(1)) ** node.attr_float("beta")


RULES: dict[str, Rule] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _max_pool, "AveragePool": _average_pool, "LpPool": _lp_pool,
    "GlobalAveragePool": lambda node: node.tensor(0).mean(_positions(node.tensor(0)), True),
    "GlobalMaxPool": lambda node: node.tensor(0).amax(_positions(node.tensor(0)), True), "GlobalLpPool": _global_lp,
    "MaxUnpool": _max_unpool, "BatchNormalization": _batch_norm, "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm, "LRN": _local_response,
}  # fmt: skip
