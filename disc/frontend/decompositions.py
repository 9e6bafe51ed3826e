"""Our decompositions of composite ATen ops: in f32 (never f64), in few passes over the data, and with shapes that stay symbolic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions, global_decomposition_table

from disc.frontend import (
    composites,
    convolution_gradients,
    distance_gradients,
    encoder_layers,
    foreach,
    fractional_pools,
    grouped_convolutions,
    loss_gradients,
    matrix_functions,
    multinomials,
    order_statistics,
    paddings,
    pool_gradients,
    resampling,
    sampled_images,
    sampled_volumes,
    sized_forms,
    special_functions,
    view_copies,
    windows,
)
from disc.frontend.allow_list import has_lowering
from disc.frontend.eager_strides import Decomposition, keep_strides
from disc.frontend.grouped_convolutions import has_dynamic_groups
from disc.frontend.layer_formulas import gelu, native_group_norm, native_layer_norm, wide
from disc.frontend.random_ops import draws_in_eager
from disc.frontend.rules.max_pooling import looks_in_large_windows
from disc.frontend.user_lowerings import lowering_of, registered_table

aten = torch.ops.aten

# Every decomposition that PyTorch has, for the ops that neither have a lowering nor a decomposition of ours.
PYTORCH: dict[torch._ops.OperatorBase, Decomposition] = dict(global_decomposition_table["post_autograd"])

# Composite ops that stay whole: each is lowered as it is, which is better than its decomposition.
KEPT = (aten.linear.default, aten.matmul.default, aten.select_scatter.default)


def rms_norm(x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    dims = list(range(x.dim() - len(normalized_shape), x.dim()))
    values = wide(x)
    epsilon = torch.finfo(values.dtype).eps if eps is None else eps
    result = values * torch.rsqrt((values * values).mean(dims, keepdim=True) + epsilon)
    return (result if weight is None else result * weight).to(x.dtype)


def batch_norm_inference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One multiplication and one addition per element; both factors are constants of the model."""
    per_channel = [1, x.shape[1], *[1] * (x.dim() - 2)]
    scale = torch.rsqrt(wide(variance) + eps)
    if weight is not None:
        scale = scale * weight
    shift = -wide(mean) * scale
    if bias is not None:
        shift = shift + bias
    result = wide(x) * scale.reshape(per_channel) + shift.reshape(per_channel)
    return result.to(x.dtype), x.new_empty([0]), x.new_empty([0])


def below_maximum(values: Tensor, dim: int) -> Tensor:
    """The distance of each value to the maximum of its row. There is no maximum of no values."""
    if is_empty(values) or not values.dim():
        return values - values
    return values - values.amax(dim, keepdim=True)


def is_empty(x: Tensor) -> bool:
    """Whether there are no elements, whatever the dynamic sizes are."""
    return any(isinstance(size, int) and size == 0 for size in x.shape)


def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    values = wide(x)
    exponentials = torch.exp(below_maximum(values, dim))
    result = exponentials / exponentials.sum(dim, keepdim=True)
    return result if half_to_float else result.to(x.dtype)


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    values = wide(x)
    shifted = below_maximum(values, dim)
    result = shifted - torch.log(torch.exp(shifted).sum(dim, keepdim=True))
    return result if half_to_float else result.to(x.dtype)


def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax whose rows of -inf alone give 0: the maximum of such a row is replaced by 0, its sum by 1."""
    values = wide(x if dtype is None else x.to(dtype))
    if is_empty(values):
        return softmax(values, dim, False).to(dtype or x.dtype)
    maximum = values.amax(dim, keepdim=True)
    exponentials = torch.exp(values - torch.where(maximum == -math.inf, 0.0, maximum))
    total = exponentials.sum(dim, keepdim=True)
    return (exponentials / torch.where(total == 0.0, 1.0, total)).to(dtype or x.dtype)


def silu(x: Tensor) -> Tensor:
    values = wide(x)
    return (values * torch.sigmoid(values)).to(x.dtype)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return torch.where(x > 0, x, x * negative_slope)


def rrelu(
    x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """In evaluation: with the mean of the slopes; in training with one for each element, the noise."""
    if not training:
        return leaky_relu(x, (lower + upper) / 2), noise
    slopes = torch.where(x > 0, 1.0, torch.rand_like(x) * (upper - lower) + lower).to(x.dtype)
    return x * slopes, slopes


def elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    return torch.where(x > 0, x * scale, torch.expm1(x * input_scale) * (alpha * scale))


def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    return torch.clamp(x, min_val, max_val) if x.is_floating_point() else torch.clamp(x, int(min_val), int(max_val))


def round_decimals(x: Tensor, *, decimals: int = 0) -> Tensor:
    """Eager's own steps, with a power that is infinite where its type does not hold it. (PyTorch's decomposition multiplies by the inverse,
    and computes the power as an integer of any length.)"""
    values = wide(x)
    exponent = abs(decimals)
    factor = values.new_full([], 10.0**exponent if exponent <= math.log10(torch.finfo(values.dtype).max) else math.inf)
    rounded = torch.round(values * factor) / factor if decimals > 0 else torch.round(values / factor) * factor
    return rounded.to(x.dtype)


def addbmm(x: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if not (x.is_floating_point() or x.is_complex()):
        alpha, beta = int(alpha), int(beta)  # as eager, whose factors have the type of the tensors
    product = torch.bmm(left, right).sum(0) * alpha
    return product if beta == 0 else product + x * beta  # what is multiplied by 0 may be infinite


def variance_of(x: Tensor, dim: Sequence[int] | None, correction: float | None, keepdim: bool) -> tuple[Tensor, Tensor]:
    if correction is not None and correction < 0:
        return NotImplemented  # what a variance of nothing is depends on it
    dims = [d % x.dim() for d in dim] if dim and x.dim() else list(range(x.dim()))
    values = wide(x)
    mean = values.mean(dims, keepdim=True) if dims else values
    centered = values - mean
    count = math.prod(x.shape[d] for d in dims)
    taken = 1 if correction is None else correction
    divisor = sized_forms.less_by(count, taken, 0, values.dtype)
    squares = centered * centered
    variance = (squares.sum(dims, keepdim=True) if dims else squares) / divisor
    if not keepdim:
        shape = [size for i, size in enumerate(x.shape) if i not in dims]
        variance, mean = variance.reshape(shape), mean.reshape(shape)
    return variance.to(x.dtype), mean.to(x.dtype)


def var(x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    both = variance_of(x, dim, correction, keepdim)
    return NotImplemented if both is NotImplemented else both[0]


def var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return variance_of(x, dim, correction, keepdim)


def repeated_heads(x: Tensor, heads: int) -> Tensor:
    """[batch..., kv heads, length, size] with each head standing for `heads // kv heads` query heads."""
    groups = heads // x.shape[-3]
    if groups == 1:
        return x
    spread = x.unsqueeze(-3).expand(*x.shape[:-2], groups, *x.shape[-2:])
    return spread.reshape(*x.shape[:-3], heads, *x.shape[-2:])


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(q kᵀ · scale + mask) v, with PyTorch's meaning of every argument."""
    if enable_gqa:
        key, value = repeated_heads(key, query.shape[-3]), repeated_heads(value, query.shape[-3])
    factor = 1 / torch.sym_sqrt(query.shape[-1]) if scale is None else scale  # of an integer as `math.sqrt`, which would fix a size
    scores = torch.matmul(query * factor, key.transpose(-2, -1))
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device).unsqueeze(-1)
        columns = torch.arange(key.shape[-2], device=query.device)
        scores = torch.where(columns <= rows, scores, -math.inf)
    if attn_mask is None:
        weights = softmax(scores, -1, False)
    else:
        weights = safe_softmax(torch.where(attn_mask, scores, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask, -1)
    return torch.matmul(dropout(weights, dropout_p, True), value)


def take(x: Tensor, index: Tensor) -> Tensor:
    return aten.index.Tensor(x.reshape(-1), [index])  # in brackets, an index without dims would become a number of Python


def adaptive_average_pool_2d(x: Tensor, output_size: Sequence[int]) -> Tensor:
    if all(size == 1 for size in output_size):
        return x.mean([-2, -1], keepdim=True)
    if all(isinstance(size, int) and size % count == 0 for size, count in zip(x.shape[-2:], output_size, strict=True)):
        return PYTORCH[aten._adaptive_avg_pool2d.default](x, output_size)  # pyright: ignore[reportReturnType]  # windows of equal size
    return windows.adaptive_average(x, output_size)


def _not_of_bytes(op: torch._ops.OpOverload) -> Decomposition:
    """PyTorch's own, but of bytes: eager rounds these once for each dim, in a fixed-point arithmetic that depends on the CPU."""

    def decomposition(x: Tensor, *args: object, **kwargs: object) -> Tensor:
        return NotImplemented if x.dtype == torch.uint8 else PYTORCH[op](x, *args, **kwargs)  # pyright: ignore

    return decomposition


def _of_something(op: torch._ops.OpOverload) -> Decomposition:
    """PyTorch's own of the gradient of a loss, which divides by the number of elements, a Python number. That of nothing is nothing."""

    def decomposition(gradient: Tensor, x: Tensor, target: Tensor, *args: object) -> Tensor:
        return torch.zeros_like(x) if is_empty(x) else PYTORCH[op](gradient, x, target, *args)  # pyright: ignore

    return decomposition


LOSSES = (aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default, aten.huber_loss_backward.default)
RESAMPLING = (aten.upsample_bilinear2d.vec, aten.upsample_bilinear2d.default, aten.upsample_bicubic2d.vec, aten.upsample_bicubic2d.default)


def trilinear(
    a: Tensor, b: Tensor, c: Tensor, expand_a: Sequence[int], expand_b: Sequence[int], expand_c: Sequence[int], dims: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:  # fmt: skip
    for dim in sorted(expand_a):
        a = a.unsqueeze(dim)
    for dim in sorted(expand_b):
        b = b.unsqueeze(dim)
    for dim in sorted(expand_c):
        c = c.unsqueeze(dim)
    return (a * b * c).sum(list(dims), dtype=a.dtype)


def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """The elements that are kept, scaled, and which these are. That is drawn as bytes, which is what a backward pass keeps."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = aten.bernoulli.p(torch.empty_like(x, dtype=torch.bool), 1 - p)
    return (wide(x) * kept * (1 / (1 - p) if p < 1 else 0.0)).to(x.dtype), kept


def dropout(x: Tensor, p: float, train: bool) -> Tensor:
    return aten.native_dropout(x, p, train)[0] if train and p != 0 else x


def _noise(x: Tensor, p: float, per_feature: bool) -> Tensor:
    """Which elements are kept, or whole features (the first two dims), as numbers of the type of `x`."""
    shape = [*x.shape[:2], *[1] * (x.dim() - 2)] if per_feature else list(x.shape)
    return (torch.rand(shape, dtype=torch.float32, device=x.device) < 1 - p).to(x.dtype)


def feature_dropout(x: Tensor, p: float, train: bool) -> Tensor:
    if not train or p == 0:
        return x
    return x * (_noise(x, p, True) * (1 / (1 - p) if p < 1 else 0.0))


def _alpha_dropout(per_feature: bool) -> Decomposition:
    """Keeps mean and variance of what SELU gives (G. Klambauer et al., "Self-Normalizing Neural Networks", 2017)."""

    def decomposition(x: Tensor, p: float, train: bool) -> Tensor:
        if not train or p == 0:
            return x
        if p == 1:
            return x * 0
        alpha = 1.7580993408473766
        a = 1 / math.sqrt((alpha * alpha * p + 1) * (1 - p))
        kept = _noise(x, p, per_feature)
        return x * (kept * a) + ((kept - 1) * (alpha * a) + alpha * a * p)

    return decomposition


def randperm(n: int, *, dtype: torch.dtype = torch.int64, layout: None = None, device: None = None, pin_memory: None = None) -> Tensor:
    """The order of random keys, which are 63 bits long."""
    return torch.argsort(torch.randint(0, (1 << 63) - 1, [n], dtype=torch.int64), stable=True).to(dtype)


OURS: dict[torch._ops.OperatorBase, Decomposition] = {
    aten._neg_view.default: torch.neg,
    aten.native_layer_norm.default: native_layer_norm,
    aten.rms_norm.default: rms_norm,
    aten.native_group_norm.default: native_group_norm,
    aten._native_batch_norm_legit_no_training.default: batch_norm_inference,
    aten._softmax.default: softmax,
    aten._log_softmax.default: log_softmax,
    aten._safe_softmax.default: safe_softmax,
    aten.gelu.default: gelu,
    aten.silu.default: silu,
    aten.leaky_relu.default: leaky_relu,
    aten.rrelu_with_noise_functional.default: rrelu,
    aten.elu.default: elu,
    aten.hardtanh.default: hardtanh,
    aten.addbmm.default: addbmm,
    aten.round.decimals: round_decimals,
    aten.var.correction: var,
    aten.var_mean.correction: var_mean,
    aten.scaled_dot_product_attention.default: attention,
    aten._adaptive_avg_pool2d.default: adaptive_average_pool_2d,
    aten.take.default: take,
    aten._trilinear.default: trilinear,
    **{op: _not_of_bytes(op) for op in RESAMPLING if op in PYTORCH},
    **{op: _of_something(op) for op in LOSSES},
    aten.native_dropout.default: native_dropout,
    aten.dropout.default: dropout,
    aten.feature_dropout.default: feature_dropout,
    aten.alpha_dropout.default: _alpha_dropout(False),
    aten.feature_alpha_dropout.default: _alpha_dropout(True),
    aten.randperm.default: randperm,
    aten._is_all_true.default: lambda x: x.all(),
    aten._is_any_true.default: lambda x: x.any(),
    **order_statistics.DECOMPOSITIONS,
    **windows.TABLE,
    **fractional_pools.TABLE,
    **paddings.TABLE,
    **pool_gradients.TABLE,
    **composites.TABLE,
    **foreach.SCALED,
    **convolution_gradients.TABLE,
    **grouped_convolutions.TABLE,
    **distance_gradients.TABLE,
    **loss_gradients.TABLE,
    **encoder_layers.TABLE,
    **matrix_functions.TABLE,
    **multinomials.TABLE,
    **resampling.TABLE,
    **sampled_images.TABLE,
    **sampled_volumes.TABLE,
    **sized_forms.TABLE,
    **special_functions.TABLE,
    **view_copies.TABLE,
}


# A rule takes some calls of these: the others, which are told by the function, give way to the decomposition, which is better than none.
PARTLY_LOWERED: dict[torch._ops.OperatorBase, tuple[Callable[[fx.Node], bool], Decomposition]] = {
    aten.max_pool2d_with_indices.default: (looks_in_large_windows, windows.maximum_with_indices_2d),
    aten.max_pool3d_with_indices.default: (looks_in_large_windows, windows.maximum_with_indices_3d),
    aten.convolution.default: (has_dynamic_groups, grouped_convolutions.convolution),
}


def find_decomposition(op: torch._ops.OpOverload) -> Decomposition | None:
    """What an exported call of `op` gives way to: the user's, else ours, else the op's own as a composite one, else PyTorch's, else
    a prim's ATen form."""
    if (registered := lowering_of(op)) is not None:
        return registered
    if op in OURS:
        return OURS[op]
    if op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        return op.decompose
    return PYTORCH.get(op) or getattr(op, "impl_aten", None)


# AOTAutograd makes a literal (`torch.tensor([1.0])`) a fake tensor in `lift_fresh`; PyTorch's decomposition would pass it on as it is.
LIFTING = (aten.lift_fresh.default, aten.lift.default)
# PyTorch's decomposition writes into memory that it has made, which AOTAutograd does not take; complex numbers have forms of ours.
WRITING = (aten.complex.default, aten.polar.default)


def export_table() -> dict[torch._ops.OperatorBase, Decomposition]:
    """The table for `ExportedProgram.run_decompositions`: an op with a rule stays, ours come before PyTorch's."""
    table = dict(_pytorch_table(_composite_ops()))
    for op in KEPT:
        table.pop(op, None)
    return {**table, **OURS, **registered_table()}


def training_table(eager_random: bool = False) -> dict[torch._ops.OperatorBase, Decomposition]:
    """The table for AOTAutograd, where composite ops are gone already.

    Results have eager's strides. eager_random: what draws random numbers stays whole, so that PyTorch draws what it does in eager mode.
    Otherwise that is lowered as it is, or by a decomposition of ours.
    """
    return {**_training_table(eager_random, _composite_ops()), **_with_strides({**_of_dynamo(), **registered_table()})}


@lru_cache(4)
def _training_table(eager_random: bool, composite_ops: tuple[str, ...]) -> dict[torch._ops.OperatorBase, Decomposition]:
    table = {**_pytorch_table(composite_ops), **OURS}
    kept = {
        op: decomposition
        for op, decomposition in table.items()
        if op not in (*LIFTING, *WRITING) and (not draws_in_eager(op) or (op in OURS and not eager_random))
    }
    return _with_strides(kept)


def _with_strides(table: Mapping[torch._ops.OperatorBase, Decomposition]) -> dict[torch._ops.OperatorBase, Decomposition]:
    return {op: keep_strides(op, each) if isinstance(op, torch._ops.OpOverload) else each for op, each in table.items()}


def _composite_ops() -> tuple[str, ...]:
    """The names of all composite ops that there are now: a library that is loaded may bring some."""
    return tuple(torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"))


@lru_cache(2)
def _pytorch_table(composite_ops: tuple[str, ...]) -> dict[torch._ops.OperatorBase, Decomposition]:
    """PyTorch's own, which it collects for 50 ms: once for the composite ops that there are."""
    without_rules = {op: decomposition for op, decomposition in PYTORCH.items() if not has_lowering(op)}
    return {**without_rules, **dict(core_aten_decompositions().items()), **foreach.decompositions()}


def _of_dynamo() -> dict[torch._ops.OperatorBase, Decomposition]:
    """Dynamo writes `addcmul_` and `addcdiv_` of optimizers as a prim, which it registers when it first does. The product is rounded, as
    by eager's kernels for CPUs."""
    return {torch.ops.prims.fma.default: lambda a, b, c: a * b + c} if hasattr(torch.ops.prims, "fma") else {}
