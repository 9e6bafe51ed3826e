"""Calls of ops that PyTorch's samples do not reach: name → calls of one dtype, each (args..., {kwargs}), a function to call in front of
them where the op alone is no program. A call that eager refuses in a dtype is none of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten, prims = torch.ops.aten, torch.ops.prims
Make = Callable[[torch.dtype], Sequence[tuple[Any, ...]]]


def draw(dtype: torch.dtype, *shape: int) -> Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(0, 9, shape).to(dtype)


def positive(dtype: torch.dtype, *shape: int) -> Tensor:
    return draw(dtype, *shape).abs() + (0.1 if dtype.is_floating_point else 1) if dtype != torch.bool else torch.ones(shape, dtype=dtype)


def _only_floats(make: Make) -> Make:
    return lambda d: make(d) if d.is_floating_point else ()


def _only(dtype: torch.dtype, make: Make) -> Make:
    return lambda d: make(d) if d == dtype else ()


def _in_place(name: str, *args: object) -> Make:
    return lambda d: [(lambda x: getattr(F, name)(x.clone(), *args), draw(d, 3, 5))]


def _pooled(name: str, rank: int) -> Make:
    """Max pooling that returns its indices."""
    return lambda d: [(draw(d, 2, 3, *[7, 8, 6][:rank]), 3, 2, 1), (draw(d, 2, 3, *[7, 8, 6][:rank]), 2)]


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> tuple[Any, ...]:
    """By a constant weight, as sizes of kernels are."""
    return (lambda x: aten.convolution.default(x, weight, bias, *settings)), x


def _convolution_backward(x: Tensor, weight: Tensor, *settings: Any) -> tuple[Any, ...]:
    """Of the result itself, by all three operands: the weight is a constant, as sizes of kernels are."""

    def call(x: Tensor) -> object:
        result = aten.convolution.default(x, weight, None, *settings)
        return aten.convolution_backward.default(result, x, weight, [result.shape[1]], *settings, [True, True, True])

    return call, x


def _group_norm_backward(x: Tensor, weight: Tensor) -> object:
    sizes = (x.shape[0], 4, x.shape[2] * x.shape[3], 2)
    y, mean, rstd = aten.native_group_norm.default(x, weight, None, *sizes, 1e-5)
    return aten.native_group_norm_backward.default(y, x, mean, rstd, weight, *sizes, [True, True, True])


def _layer_norm_backward(x: Tensor, weight: Tensor | None) -> object:
    y, mean, rstd = aten.native_layer_norm.default(x, [x.shape[-1]], weight, weight, 1e-5)
    return aten.native_layer_norm_backward.default(
        y, x, [x.shape[-1]], mean, rstd, weight, weight, [True, weight is not None, weight is not None]
    )


def _order(
    op: Callable[..., tuple[Tensor, Tensor]], dim: int, *args: object, **kwargs: object
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """The values, and what stands at the places: which of equal elements is meant, eager leaves open."""

    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        values, places = op(x, *args, **kwargs)
        return values, x.gather(dim, places)

    return call


CORE: dict[str, Make] = {
    "aten._native_batch_norm_legit.no_stats": _only_floats(lambda d: [(draw(d, 4, 3, 5), draw(d, 3), draw(d, 3), True, 0.1, 1e-5), (draw(d, 4, 3, 5), None, None, True, 0.1, 1e-5)]),
    **{f"aten.{name}_pad3d.default": _only_floats(lambda d, name=name: [
        (draw(d, 2, 3, 4, 5, 6), [1, 2, 0, 1, 2, 3]), (draw(d, 3, 4, 5, 6), [1, 2, 0, 1, 2, 3])]) for name in ("reflection", "replication")},
    "aten.empty.memory_format": lambda d: [(lambda x: aten.empty.memory_format(x.shape, dtype=x.dtype).fill_(1), draw(d, 3, 4))],
    "aten.empty_strided.default": lambda d: [(lambda x: aten.empty_strided.default(x.shape, [1, x.shape[0]], dtype=x.dtype).fill_(1), draw(d, 3, 4))],
    "aten._local_scalar_dense.default": lambda d: [(lambda x: x * aten._local_scalar_dense.default(x.flatten()[1:2]), draw(d, 3, 4))],
    "aten.as_strided.default": lambda d: [(lambda x: (~x if d == torch.bool else x * 2).as_strided([2, 3], [1, 2], 1), draw(d, 3, 4)), (draw(d, 3, 4), [2, 3], [1, 2], 1)],
    **{f"aten.max_pool{rank}d_with_indices.default": _only_floats(lambda d, rank=rank: [(draw(d, 2, 3, *[7, 8, 6][:rank]), [3] * rank, [2] * rank, [1] * rank)]) for rank in (2, 3)},
    "aten.topk.default": lambda d: [(_order(aten.topk.default, dim, k, dim, largest), draw(d, 6, 8)) for k, dim, largest in ((3, 1, True), (6, 0, False))] if d != torch.bool else (),
    "aten._adaptive_avg_pool2d_backward.default": _only_floats(lambda d: [(draw(d, 2, 3, 2, 4), draw(d, 2, 3, 6, 8)), (draw(d, 2, 3, 3, 2), draw(d, 2, 3, 7, 5))]),
    "aten._embedding_bag.default": _only_floats(lambda d: [
        (draw(d, 10, 4), torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 4]), False, mode) for mode in (0, 1, 2)
    ]),
    "aten._native_batch_norm_legit_no_training.default": _only_floats(lambda d: [
        (draw(d, 2, 3, 4, 5), draw(d, 3), draw(d, 3), draw(d, 3), positive(d, 3), 0.1, 1e-5), (draw(d, 2, 3, 4), None, None, draw(d, 3), positive(d, 3), 0.1, 1e-5)
    ]),
    "aten.adaptive_avg_pool1d.default": _only_floats(lambda d: [(draw(d, 2, 3, 8), [4]), (draw(d, 2, 3, 7), [3]), (draw(d, 2, 3, 7), [1])]),
    "aten.atan2.out": lambda d: [(lambda x, y: aten.atan2.out(x, y, out=torch.empty_like(x)), draw(d, 3, 4), draw(d, 3, 4))],
    "aten.avg_pool1d.default": _only_floats(lambda d: [(draw(d, 2, 3, 9), [3]), (draw(d, 2, 3, 9), [3], [2], [1], True, False)]),
    "aten.avg_pool2d_backward.default": _only_floats(lambda d: [
        (lambda x, a=a: aten.avg_pool2d_backward.default(aten.avg_pool2d.default(x, *a), x, *a), draw(d, 2, 3, 7, 8))
        for a in (([2, 2], [2, 2], [0, 0], False, True, None), ([3, 3], [2, 2], [1, 1], True, False, None), ([3, 3], [2, 2], [1, 1], False, True, 5))
    ]),
    "aten.bitwise_and.Scalar": lambda d: [(draw(d, 3, 4), 5)],
    "aten.bitwise_or.Scalar": lambda d: [(draw(d, 3, 4), 5)],
    "aten.bitwise_xor.Scalar": lambda d: [(draw(d, 3, 4), 5)],
    "aten.col2im.default": lambda d: [(draw(d, 2, 12, 12), [4, 5], [2, 2], [1, 1], [0, 0], [1, 1]), (draw(d, 2, 12, 20), [7, 9], [2, 2], [1, 1], [1, 1], [2, 2])],
    "aten.convolution.default": _only_floats(lambda d: [
        _convolution(draw(d, 2, 3, 7, 8), draw(d, 4, 3, 3, 3), draw(d, 4), [1, 1], [0, 1], [1, 1], False, [0, 0], 1),
        _convolution(draw(d, 2, 4, 7, 8), draw(d, 4, 3, 3, 3), draw(d, 3), [2, 2], [1, 1], [1, 1], True, [1, 0], 1),
        _convolution(draw(d, 2, 4, 9), draw(d, 6, 2, 3), None, [2], [1], [2], False, [0], 2),
        _convolution(draw(d, 2, 2, 5, 6, 7), draw(d, 3, 2, 2, 3, 3), None, [1, 2, 1], [0, 1, 1], [1, 1, 1], False, [0, 0, 0], 1),
    ]),
    "aten.convolution_backward.default": _only_floats(lambda d: [
        _convolution_backward(draw(d, 2, 3, 7, 8), draw(d, 4, 3, 3, 3), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        _convolution_backward(draw(d, 2, 2, 7, 8), draw(d, 4, 1, 3, 3), [2, 2], [1, 1], [1, 1], False, [0, 0], 2),
        _convolution_backward(draw(d, 2, 3, 8), draw(d, 4, 3, 3), [3], [2], [2], False, [0], 1),
        _convolution_backward(draw(d, 2, 4, 4, 5), draw(d, 4, 3, 3, 3), [2, 2], [1, 1], [1, 1], True, [1, 0], 1),
    ]),
    "aten.copy.default": lambda d: [(draw(d, 3, 4), draw(torch.float32, 3, 4)), (draw(d, 3, 4), draw(d, 4))],
    "aten.div.Scalar_mode": lambda d: [(draw(d, 3, 4), 3, {"rounding_mode": mode}) for mode in (None, "floor", "trunc")],
    "aten.embedding_dense_backward.default": _only_floats(lambda d: [
        (draw(d, 2, 3, 5), torch.tensor([[1, 2, 1], [0, 3, 3]]), 6, padding, scale) for padding, scale in ((-1, False), (3, False), (0, True))
    ]),
    "aten.fmod.Scalar": lambda d: [(draw(d, 3, 4), 3)],
    "aten.gt.Scalar": lambda d: [(draw(d, 3, 4), 1), (draw(d, 3, 4), 0.5)],
    "aten.native_dropout.default": _only_floats(lambda d: [(draw(d, 3, 4), 0.5, True), (draw(d, 3, 4), 0.5, False)]),
    "aten.native_group_norm_backward.default": _only_floats(lambda d: [(_group_norm_backward, draw(d, 2, 4, 3, 5), draw(d, 4))]),
    "aten.native_layer_norm_backward.default": _only_floats(lambda d: [(_layer_norm_backward, draw(d, 3, 4, 5), draw(d, 5)), (_layer_norm_backward, draw(d, 3, 4, 5), None)]),
    "aten.pow.Scalar": lambda d: [(2, draw(d, 3, 4)), (0.5, draw(d, 3, 4))],
    "aten.randperm.default": _only(torch.int64, lambda d: [(lambda x: aten.randperm.default(x.shape[0]), draw(d, 5))]),
    "aten.scatter.value": lambda d: [(draw(d, 4, 5), 1, torch.tensor([[0, 1], [2, 3]]), 3)],
    "aten.slice_scatter.default": lambda d: [(draw(d, 8, 5), draw(d, 3, 5), 0, 1, 4), (draw(d, 8, 5), draw(d, 4, 5), 0, 0, 8, 2)],
    "aten._fft_c2r.default": _only_floats(lambda d: [(lambda x: aten._fft_c2r.default(torch.view_as_complex(x), [1], 0, 6), draw(d, 3, 4, 2))]),
    "aten.sym_is_contiguous.default": lambda d: [(lambda x: x + 1 if aten.is_contiguous.default(x) else x - 1, draw(d, 3, 4))],
    "aten.sym_numel.default": lambda d: [(lambda x: x * aten.sym_numel.default(x), draw(d, 3, 4))],
    "aten.sym_size.int": lambda d: [(lambda x: x * aten.sym_size.int(x, 1), draw(d, 3, 4))],
    "aten.sym_storage_offset.default": lambda d: [(lambda x: x[1:] * aten.sym_storage_offset.default(x[1:]), draw(d, 3, 4))],
    "aten.sym_stride.int": lambda d: [(lambda x: x * aten.sym_stride.int(x, 0), draw(d, 3, 4))],
    "aten.upsample_bilinear2d.vec": lambda d: [(draw(d, 2, 3, 4, 5), [8, 9], False, None), (draw(d, 2, 3, 4, 5), None, True, [2.0, 1.5])],
    "aten.upsample_nearest2d.vec": lambda d: [(draw(d, 2, 3, 4, 5), [8, 9], None), (draw(d, 2, 3, 4, 5), None, [2.0, 1.5])],
    "aten.var.dim": _only_floats(lambda d: [(draw(d, 3, 4), [1], unbiased, keep) for unbiased in (True, False) for keep in (True, False)]),
}  # fmt: skip

PRIMS: dict[str, Make] = {
    "prims.cbrt.default": _only_floats(lambda d: [(draw(d, 3, 4),)]),
    "prims.maximum_value.default": lambda d: [(lambda x: x.clamp(max=prims.maximum_value.default(x.dtype)), draw(d, 3, 4))],
    "prims.minimum_value.default": lambda d: [(lambda x: x.clamp(min=prims.minimum_value.default(x.dtype)), draw(d, 3, 4))],
    "prims.full.default": lambda d: [(lambda x: x + prims.full.default(x.shape, 1, dtype=x.dtype, device=x.device, requires_grad=False), draw(d, 3, 4))],
    "prims.full_like.default": lambda d: [(lambda x: prims.full_like.default(x, 2, dtype=x.dtype, device=x.device, requires_grad=False), draw(d, 3, 4))],
    "prims.empty.default": lambda d: [(lambda x: prims.empty.default(x.shape, dtype=x.dtype, device=x.device, requires_grad=False), draw(d, 3, 4))],
    "prims.xor_sum.default": _only(torch.int64, lambda d: [(draw(d, 3, 4), [1])]),
    "prims.device_put.default": lambda d: [(draw(d, 3, 4), torch.device("cpu"))],
    "prims.real.default": lambda d: [(lambda x: prims.real.default(torch.complex(x, x)), draw(d, 3, 4))],
    "prims.collapse.default": lambda d: [(draw(d, 2, 3, 4), 1, 2)],
    **{f"prims.{name}.default": lambda d, name=name: [(lambda x: getattr(prims, name).default(torch.complex(x, -x)), draw(d, 3, 4))]
       for name in ("conj", "conj_physical", "imag")},
    "prims.fma.default": _only_floats(lambda d: [(draw(d, 3, 4), draw(d, 3, 4), draw(d, 3, 4))]),
    "prims.fft_c2c.default": _only_floats(lambda d: [(lambda x: prims.fft_c2c.default(torch.complex(x, x), dim=[1], forward=True), draw(d, 3, 4))]),
    "prims.fft_c2r.default": _only_floats(lambda d: [(lambda x: prims.fft_c2r.default(torch.complex(x, x), dim=[1], last_dim_size=6), draw(d, 3, 4))]),
    "prims.copy_strided.default": lambda d: [(draw(d, 3, 4), [1, 3])],
    "prims.resize.default": lambda d: [(lambda x: prims.resize.default(x.clone(), [2, 3]), draw(d, 3, 4))],
    "prims.reshape.default": lambda d: [(lambda x: prims.reshape.default(x, [x.shape[0] * x.shape[1]]), draw(d, 3, 4))],
}  # fmt: skip

FUNCTIONAL: dict[str, Make] = {
    **{f"F.{name}_": _in_place(f"{name}_") for name in ("celu", "elu", "hardtanh", "leaky_relu", "relu", "rrelu", "selu")},
    "F.threshold_": _in_place("threshold_", 0.5, 2.0),
    **{f"F.adaptive_max_pool{rank}d_with_indices": lambda d, rank=rank: [(draw(d, 2, 3, *[8, 6, 4][:rank]), 2), (draw(d, 2, 3, *[7, 5, 4][:rank]), 3)]
       for rank in (1, 2, 3)},
    **{f"F.max_pool{rank}d_with_indices": _pooled(f"max_pool{rank}d", rank) for rank in (1, 2, 3)},
    **{f"F.lp_pool{rank}d": _only_floats(lambda d, rank=rank: [(draw(d, 2, 3, *[7, 8, 6][:rank]), 2.0, 3, 2)]) for rank in (1, 2, 3)},
    **{f"F.fractional_max_pool{rank}d_with_indices": _only_floats(lambda d, rank=rank: [
        (draw(d, 2, 3, *[9, 8, 7][:rank]), 2, {"output_size": 4, "_random_samples": torch.rand(2, 3, rank).to(d)})]) for rank in (2, 3)},
    "F.affine_grid": _only_floats(lambda d: [(lambda theta, x, corners=corners: F.affine_grid(theta, x.shape, align_corners=corners), draw(d, 2, 2, 3), draw(d, 2, 3, 4, 5)) for corners in (True, False)]),
    "F.ctc_loss": _only_floats(lambda d: [
        (draw(d, 6, 2, 5).log_softmax(-1), torch.tensor([[1, 2, 3], [2, 2, 4]]), torch.tensor([6, 5]), torch.tensor([3, 2]))]),
    "F.conv_tbc": _only_floats(lambda d: [(draw(d, 7, 2, 3), draw(d, 3, 3, 4), draw(d, 4), 1)]),
    "F.dropout1d": _only_floats(lambda d: [(draw(d, 2, 3, 4), 0.5, False), (draw(d, 2, 3, 4), 0.5, True)]),
    "F.feature_alpha_dropout": _only_floats(lambda d: [(draw(d, 2, 3, 4), 0.5, False), (draw(d, 2, 3, 4), 0.5, True)]),
    "F.fold": _only_floats(lambda d: [(draw(d, 2, 12, 12), [4, 5], [2, 2]), (draw(d, 2, 12, 20), [7, 9], [2, 2], 2, 1)]),
    "F.gumbel_softmax": _only_floats(lambda d: [(draw(d, 3, 5),)]),
    "F.grouped_mm": _only(torch.bfloat16, lambda d: [(draw(d, 24, 16), draw(d, 3, 16, 8), {"offs": torch.tensor([8, 16, 24], dtype=torch.int32)})]),
    "F.native_channel_shuffle": lambda d: [(draw(d, 2, 6, 4, 5), 3)],
    "F.scaled_mm": _only_floats(lambda d: [
        (lambda a, b: F.scaled_mm(a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t().contiguous().t(), torch.ones(()), F.ScalingType.TensorWise, torch.ones(()), F.ScalingType.TensorWise),
         draw(d, 16, 32), draw(d, 32, 16))]),
    "F.upsample": _only_floats(lambda d: [(draw(d, 2, 3, 4, 5), (8, 9)), (draw(d, 2, 3, 4, 5), None, 2, "bilinear")]),
}  # fmt: skip

WRITTEN: dict[str, Make] = {**CORE, **PRIMS, **FUNCTIONAL}
