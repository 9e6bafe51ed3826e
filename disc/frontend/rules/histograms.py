"""Histograms of equal bins: places by arithmetic, counts by a function of the runtime."""

from __future__ import annotations

import math

import torch

from disc.frontend.call import Call
from disc.frontend.op_builder import REDUCED_PRECISION, OpBuilder, RuleError, Tensor
from disc.frontend.rules.overrides import Fault, Override, overrides
from disc.frontend.rules.sorting import sized_library
from disc.frontend.rules.special import finite
from disc.frontend.symbols import product

aten = torch.ops.aten


def histc(e: OpBuilder, call: Call) -> Tensor:
    """Bins from min to max, or, where these are equal, from the least to the largest element, by the formula of eager's kernel."""
    x, bins = call.tensor("self"), call.integer("bins")
    if not x.dtype.is_floating_point:
        raise RuleError(f"a histogram of {x.dtype}")
    wide = e.convert(x, torch.float32) if x.dtype in REDUCED_PRECISION else x
    low, high = (e.scalar(call.scalar(name), wide.dtype) for name in ("min", "max"))
    if call.scalar("min") == call.scalar("max"):
        low, high = _extremes(e, wide)
    counts = sized_library(e, "disc.dynamic_count", [_places(e, wide, low, high, bins)], [((bins,), torch.int64)])[0]
    return e.convert(counts, x.dtype)


def _places(e: OpBuilder, x: Tensor, low: Tensor, high: Tensor, bins: int) -> Tensor:
    """i64: the bin of each element, -1 of those in none."""
    scaled = e.binary("multiply", e.binary("subtract", x, low), e.scalar(bins, x.dtype))
    whole = e.convert(e.binary("divide", scaled, e.binary("subtract", high, low)), torch.int64)
    whole = e.binary("minimum", whole, e.scalar(bins - 1, torch.int64))
    inside = e.binary("and", e.compare("ge", x, low), e.compare("le", x, high))
    return e.select(inside, whole, e.scalar(-1, torch.int64))


def _extremes(e: OpBuilder, x: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest element, 0 of nothing; where they are equal, one unit further apart on either side."""
    dims, zero, one = list(range(x.rank)), e.scalar(0, x.dtype), e.scalar(1, x.dtype)
    low, high = e.reduce(x, "minimum", math.inf, dims), e.reduce(x, "maximum", -math.inf, dims)
    nothing = e.compare("eq", e.size_scalar(product(x.shape), torch.int64), e.scalar(0, torch.int64))
    low, high = (finite(e.select(nothing, zero, each)) for each in (low, high))
    equal = e.compare("eq", low, high)
    return e.select(equal, e.binary("subtract", low, one), low), e.select(equal, e.binary("add", high, one), high)


OVERRIDES: dict[object, Override] = overrides(Fault.REFUSED, "no lowering to ops that disc has", {aten.histc.default: histc})
