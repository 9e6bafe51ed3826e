"""`stablehlo.custom_call`: the targets that JAX uses and that have a meaning here. Any other is refused by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch_mlir import ir

from disc.frontend.hlo import devices, linear_algebra, slices, sorting
from disc.frontend.hlo.emit import FormError, Values, named_form
from disc.ir.ops import string_attr

CHECKED = "shape_assertion"  # becomes a condition on sizes in name-dims


def _passed_on(op: ir.Operation) -> Values:
    """What a compiler for several devices is told of a value."""
    return list(op.operands)


PASSED_ON = ("Sharding", "annotate_device_placement")
PARTS = ("SPMDFullToShardShape", "SPMDShardToFullShape")
CALLS: Mapping[str, Callable[[ir.Operation], Values | None]] = {
    CHECKED: lambda op: None,
    **dict.fromkeys(PASSED_ON, _passed_on),
    **dict.fromkeys(PARTS, devices.whole),
    "stablehlo.dynamic_reduce_window": slices.dynamic_reduce_window,
    "stablehlo.dynamic_top_k": sorting.dynamic_top_k,
    "ApproxTopK": sorting.approximate_top_k,
    **linear_algebra.CALLS,
}


def call_form(op: ir.Operation) -> Values | None:
    """Raises: FormError for another target, and for a call that is none of the target's."""
    target = string_attr(op, "call_target_name")
    if target not in CALLS:
        raise FormError(f"there is no rule for the target {target!r}")
    return named_form(target, CALLS[target], op)
