"""Numbers that must be finite, or the call fails: an op of this compiler, and PyTorch's, too, for graphs that are not compiled."""

from __future__ import annotations

import torch
from torch import Tensor

_OPS = torch.library.Library("disc", "FRAGMENT")
_OPS.define("check_finite(Tensor numbers) -> Tensor")


def _check_finite(numbers: Tensor) -> Tensor:
    if not torch.isfinite(numbers).all():
        raise RuntimeError("a number is infinite or NaN")
    return numbers.clone()


_OPS.impl("check_finite", _check_finite, "CPU")
_OPS.impl("check_finite", torch.empty_like, "Meta")


def finite(numbers: Tensor) -> Tensor:
    """The numbers, f32 or f64, in a call in which all of them are finite."""
    return torch.ops.disc.check_finite(numbers)
