"""Numbers rounded as quantization would round them, of which PyTorch cannot infer the shape: forms in functions of torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from disc.frontend.checked_values import required
from disc.frontend.layer_formulas import wide

OUTSIDE = "`zero_point` must be between `quant_min` and `quant_max`."  # eager's words


def per_tensor(input: Tensor, scale: Tensor | float, zero_point: Tensor | int, quant_min: int, quant_max: int) -> Tensor:
    """As in eager a NaN becomes the least number."""
    if not isinstance(zero_point, Tensor) and not quant_min <= zero_point <= quant_max:
        raise RuntimeError(OUTSIDE)
    values, step = _scaled(input, scale)
    zero = zero_point.reshape(()).to(torch.int32) if isinstance(zero_point, Tensor) else zero_point
    rounded = torch.round(values * (1 / step))
    numbers = torch.where(rounded == rounded, rounded + zero, quant_min).clamp(quant_min, quant_max).to(torch.float32)
    return ((numbers - zero) * step).to(input.dtype)


def per_channel(input: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int) -> Tensor:
    """As in eager numbers are integers before they are bounded: infinity becomes the least one."""
    if zero_point.dtype not in (torch.int32, torch.float32, torch.float16) or zero_point.dim() != 1 or scale.shape != zero_point.shape:
        return torch.fake_quantize_per_channel_affine(input, scale, zero_point, axis, quant_min, quant_max)  # says what is wrong
    along = [-1 if dim == axis % input.dim() else 1 for dim in range(input.dim())]
    zero = required(zero_point, (zero_point >= quant_min) & (zero_point <= quant_max), OUTSIDE + " Got {actual} or more outside.").reshape(
        along
    )
    values, step = _scaled(input, scale)
    step = step.reshape(along)
    ratio = values * (1 / step)
    rounded = torch.round(ratio + zero) if zero_point.is_floating_point() else torch.round(ratio) + zero
    numbers = rounded.to(torch.int64).clamp(quant_min, quant_max)
    return ((numbers - zero) * step).to(input.dtype)


def _scaled(x: Tensor, scale: Tensor | float) -> tuple[Tensor, Tensor]:
    """Numbers in f32, or f64, and the scale in f32: eager multiplies by its inverse."""
    values = wide(x)
    step = scale.to(torch.float32) if isinstance(scale, Tensor) else torch.full((), scale, dtype=torch.float32)
    return values, step


FORMS: dict[Callable[..., object], Callable[..., object]] = {
    torch.fake_quantize_per_tensor_affine: per_tensor,
    torch.fake_quantize_per_channel_affine: per_channel,
}
