"""`torch.histogram`, for which PyTorch has no rule that tells sizes without data, and `torch.bincount`: forms of them while a module is
exported."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from disc.frontend.finite import finite

FLOATS = (torch.float32, torch.float64)


def _limits(x: Tensor, given: Sequence[float] | None) -> tuple[Tensor, Tensor]:
    """Of the bins, without dims: those given, else the least and the largest element, 0 and 1 of nothing; where they are equal, half a unit
    further apart on either side."""
    if given is not None:
        low, high = (torch.full([], each, dtype=x.dtype) for each in given)
    else:
        low = torch.cat([x, x.new_full([1], math.inf)]).amin()
        high = torch.cat([x, x.new_full([1], -math.inf)]).amax()
        nothing = low > high
        low, high = finite(torch.stack([torch.where(nothing, 0.0, low), torch.where(nothing, 1.0, high)])).unbind()
    widened = torch.where(low == high, 0.5, 0.0).to(x.dtype)
    return low - widened, high + widened


def _borders(x: Tensor, bins: int, given: Sequence[float] | None) -> Tensor:
    """As eager's linspace: each half from its own end."""
    low, high = _limits(x, given)
    place = torch.arange(bins + 1)
    step = (high - low) / bins
    rising, falling = low + place.to(x.dtype) * step, high - (bins - place).to(x.dtype) * step
    return torch.where(place < (bins + 1) // 2, rising, falling)


def _is_taken(x: Tensor, bins: object, given: Sequence[float] | None, weight: Tensor | None) -> bool:
    if x.dtype not in FLOATS or (weight is not None and (weight.dtype != x.dtype or weight.shape != x.shape)):
        return False
    if isinstance(bins, Tensor):
        return bins.dim() == 1 and bins.dtype == x.dtype and given is None and bins.shape[0] > 1
    limits = given is None or (len(given) == 2 and all(map(math.isfinite, given)) and given[0] <= given[1])
    return isinstance(bins, int) and bins > 0 and limits


def histogram(
    input: Tensor, bins: int | Tensor, *, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    """Bins hold their left borders, the last one its right one too; what lies outside, and NaN, is in none."""
    if not _is_taken(input, bins, range, weight):
        return torch.histogram(input, bins, range=range, weight=weight, density=density)  # pyright: ignore  # says what is wrong
    x = input.reshape(-1)
    borders = bins if isinstance(bins, Tensor) else _borders(x, bins, range)
    count = borders.shape[0] - 1
    inside = (x >= borders[0]) & (x <= borders[-1])
    place = (torch.searchsorted(borders, x, right=True) - 1).clamp(max=count - 1)
    counted = torch.where(inside, 1.0 if weight is None else weight.reshape(-1), 0.0).to(x.dtype)
    found = x.new_zeros([count]).index_add(0, torch.where(inside, place, 0), counted)
    if density:
        found = found / found.sum() / borders.diff()
    return torch.return_types.histogram((found, borders))  # pyright: ignore


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """At least a dynamic size of counts. PyTorch takes every size to be 2 or more, and so the number of counts that are no fewer."""
    if not isinstance(minlength, torch.SymInt) or weights is not None or input.dim() != 1 or input.dtype not in WHOLE:
        return torch.bincount(input, weights, minlength)
    numbers = input.to(torch.int64)
    torch._check(torch.cat([numbers, numbers.new_zeros([1])]).amin().item() >= 0, lambda: "bincount takes numbers that are not negative")
    least = torch.full([1], minlength - 1)
    return torch.zeros(torch.cat([numbers, least]).amax().item() + 1, dtype=torch.int64).index_add(0, numbers, torch.ones_like(numbers))  # pyright: ignore


WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FORMS: dict[Callable[..., object], Callable[..., object]] = {
    torch.histogram: histogram, torch.Tensor.histogram: histogram, torch.bincount: bincount, torch.Tensor.bincount: bincount,
}  # fmt: skip
