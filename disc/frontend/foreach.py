"""Ops on lists of tensors (`aten._foreach_add.List`), as an optimizer with `foreach=True` calls them: in a graph they are one op for every
tensor, which fusions join. `aten._foreach_addcmul.Tensor` and `addcdiv.Tensor`, whose factors lie in memory, stay PyTorch's. And the ops
of `torch.amp.GradScaler`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

One = Callable[..., Tensor]
PREFIX = "aten::_foreach_"


def _addcmul(x: Tensor, first: Tensor, second: Tensor, value: float = 1) -> Tensor:
    return torch.addcmul(x, first, second, value=value)


def _addcdiv(x: Tensor, first: Tensor, second: Tensor, value: float = 1) -> Tensor:
    return torch.addcdiv(x, first, second, value=value)


def _norm(x: Tensor, order: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    return torch.linalg.vector_norm(x, order, dtype=dtype)


def _maximum(x: Tensor, other: Tensor | float) -> Tensor:
    return torch.maximum(x, other) if isinstance(other, Tensor) else torch.clamp_min(x, other)


def _minimum(x: Tensor, other: Tensor | float) -> Tensor:
    return torch.minimum(x, other) if isinstance(other, Tensor) else torch.clamp_max(x, other)


def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return torch.ops.aten.copy(x, source, non_blocking)


# Where the op on one tensor is not the function of `torch` of that name.
OTHERS: dict[str, One | None] = {
    "addcmul": _addcmul, "addcdiv": _addcdiv, "norm": _norm, "max": torch.amax, "maximum": _maximum, "minimum": _minimum, "copy": _copy,
    "zero": torch.zeros_like, "powsum": None,
}  # fmt: skip
IN_MEMORY = ("addcmul.Tensor", "addcdiv.Tensor")


def unscaled(gradients: list[Tensor], found: Tensor, factor: Tensor) -> tuple[list[Tensor], Tensor]:
    """Gradients times the inverse of their scale; and 1 where one was not finite, else what `found` was. 16-bit floats by way of f32."""
    wrong = torch.stack([each.isfinite().logical_not().any() for each in gradients]).any()
    return [(each * factor).to(each.dtype) for each in gradients], torch.where(wrong, torch.ones_like(found), found)


def updated_scale(
    scale: Tensor, steps: Tensor, found: Tensor, growth: float, backoff: float, interval: int
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The scale after a step, and for how many steps all gradients have been finite; each of one element, in a shape of its own."""
    wrong, more = (found != 0).reshape(()), (steps + 1).reshape(())
    grows, wide = more == interval, scale.to(torch.float64)
    grown = (wide * growth).to(scale.dtype)
    kept = torch.where(grows & grown.isfinite(), grown, scale)
    return torch.where(wrong, (wide * backoff).to(scale.dtype), kept), torch.where(wrong | grows, 0, more).reshape(steps.shape)


SCALED: dict[torch._ops.OperatorBase, Callable[..., Any]] = {
    torch.ops.aten._amp_foreach_non_finite_check_and_unscale.default: unscaled,
    torch.ops.aten._amp_update_scale.default: updated_scale,
}


def decompositions() -> dict[torch._ops.OperatorBase, Callable[..., list[Tensor]]]:
    """Of all that there are in this version of PyTorch."""
    return {op: _for_each(one) for op, one in _ops()}


def _ops() -> Iterator[tuple[torch._ops.OpOverload, One]]:
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix(PREFIX).partition(".")
        if not name.startswith(PREFIX) or base.endswith("_") or "out" in overload or f"{base}.{overload}" in IN_MEMORY:
            continue
        one = OTHERS[base] if base in OTHERS else getattr(torch, base, None)
        if one is not None:
            yield getattr(getattr(torch.ops.aten, f"_foreach_{base}"), overload or "default"), one


def _for_each(one: One) -> Callable[..., list[Tensor]]:
    """`one` of the first, the second ... elements of the lists; what is no list is the same for all."""

    def every(*args: Any, **kwargs: Any) -> list[Tensor]:
        lists = [cast("list[Any]", each) for each in (*args, *kwargs.values()) if isinstance(each, list | tuple)]
        return [
            one(*(_element(each, n) for each in args), **{name: _element(each, n) for name, each in kwargs.items()})
            for n in range(len(lists[0]))
        ]

    return every


def _element(value: Any, number: int) -> Any:
    return value[number] if isinstance(value, list | tuple) else value
