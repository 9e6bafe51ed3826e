"""Which calls of PyTorch draw random numbers in eager mode. What draws from the seed of a call in compiled code, `lowering` knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch


def draws_in_eager(op: object) -> bool:
    """Whether it is an op of PyTorch that draws random numbers."""
    return isinstance(op, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


def draws(op: object, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether a call draws random numbers: an attention that would for dropout alone, and has none, does not."""
    if not isinstance(op, torch._ops.OpOverload) or not draws_in_eager(op):
        return False
    names = [each.name for each in op._schema.arguments]
    if "dropout_p" not in names:
        return True
    place = names.index("dropout_p")
    return (args[place] if place < len(args) else kwargs.get("dropout_p", 0.0)) != 0.0
