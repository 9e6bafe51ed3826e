"""Values that PyTorch refuses in its kernels: an op of this compiler, and PyTorch's, too, for graphs that are not compiled.

The check is an index (`disc.gather` of an iota), so it fuses, and is reported as other indices are (`WHAT` in `ir/op_table.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor

_OPS = torch.library.Library("disc", "FRAGMENT")
_OPS.define("check_index(Tensor indices, SymInt size, str what) -> Tensor")


def _check_index(indices: Tensor, size: int, what: str) -> Tensor:
    wrong = indices[(indices < 0) | (indices >= size)]
    if wrong.numel():
        raise RuntimeError(what.format(actual=int(wrong[0]), expected=size))
    return indices.clone()


_OPS.impl("check_index", _check_index, "CompositeExplicitAutograd")
_OPS.impl("check_index", lambda indices, size, what: torch.empty_like(indices), "Meta")


def checked(indices: Tensor, size: int | torch.SymInt, what: str) -> Tensor:
    """`indices` in a call in which all of them are from 0 to below `size`. what: the message, with {actual} and {expected}."""
    return torch.ops.disc.check_index(indices, size, what)


def required(values: Tensor, holds: Tensor, what: str) -> Tensor:
    """`values` in a call in which all of `holds`, which has their shape or is broadcast to it, is true. what: the message, with {actual}
    for how many do not hold, at least."""
    return torch.where(checked(torch.where(holds, 0, 1), 1, what) == 0, values, 0)


def between(values: Tensor, most: float, what: str) -> Tensor:
    """`values` in a call in which all of them are from 0 to `most`: 1, or infinity. what: the message; the value is added."""
    outside = torch.where((values >= 0) & (values <= most), 0, torch.floor(values).to(torch.int64))
    return torch.where(checked(outside, 1, what + ROUNDED) == 0, values, 0)


ROUNDED = ": got {actual} (rounded down)"  # a NaN is the smallest i64
