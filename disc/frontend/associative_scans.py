"""`associative_scan` over a dim of any size: PyTorch's form for the CPU halves the dim as often as the example's size says."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._higher_order_ops import scan
from torch.utils import _pytree as pytree

# `torch._higher_order_ops` has the function under the name of its module.
_module = importlib.import_module("torch._higher_order_ops.associative_scan")
_halving = _module.generic_associative_scan


@contextmanager
def sequential_scans() -> Iterator[None]:
    """Within, a scan over a dynamic dim is a loop."""
    _module.generic_associative_scan = _scan  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        _module.generic_associative_scan = _halving  # pyright: ignore[reportAttributeAccessIssue]


def _scan(
    operator: functools.partial[Sequence[Tensor]], leaves: Sequence[Tensor], dim: int = 0, additional_inputs: Sequence[object] = ()
) -> Sequence[Tensor]:
    """The scan along dim 0. operator: PyTorch's partial call of a function of single elements under `vmap`."""
    if isinstance(leaves[0].shape[0], int):
        return _halving(operator, leaves, dim, additional_inputs)
    function = inspect.getclosurevars(operator.keywords["combine_fn"]).nonlocals["func"]  # what `vmap` was called with
    single = functools.partial(operator.func, **{**operator.keywords, "combine_fn": function})
    behind_first = torch.arange(leaves[0].shape[0]) > 0

    def step(state: list[Tensor], row: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        behind, *fresh = row
        combined = pytree.tree_leaves(single(*state, *fresh, *additional_inputs))
        new = [_copied(torch.where(behind, each, one)) for each, one in zip(combined, fresh, strict=True)]
        return new, [each.clone() for each in new]

    return scan(step, [_copied(each[0]) for each in leaves], [behind_first, *leaves])[1]


def _copied(value: Tensor) -> Tensor:
    """What `scan` carries has the same strides in each step."""
    return value.clone(memory_format=torch.contiguous_format)
