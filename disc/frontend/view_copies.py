"""What a trace makes of views where derivatives are taken: `slice_copy` for `slice`. Where nothing is written the two are one."""

from __future__ import annotations

import torch

from disc.frontend.eager_strides import Decomposition

aten = torch.ops.aten
VIEWS = (
    "alias", "detach", "diagonal", "expand", "permute", "select", "slice", "split", "split_with_sizes", "squeeze", "t", "transpose",
    "unbind", "unfold", "unsqueeze", "view", "view_as_complex", "view_as_real",
)  # fmt: skip


def _table() -> dict[torch._ops.OperatorBase, Decomposition]:
    found: dict[torch._ops.OperatorBase, Decomposition] = {}
    for name in VIEWS:
        view, copy = getattr(aten, name), getattr(aten, f"{name}_copy")
        overloads = [each for each in copy.overloads() if not each.endswith("out") and each in view.overloads()]
        found |= {getattr(copy, each): getattr(view, each) for each in overloads}
    return found


TABLE: dict[torch._ops.OperatorBase, Decomposition] = _table()
