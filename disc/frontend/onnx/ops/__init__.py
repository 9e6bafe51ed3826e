"""The tables of rules: operator → the torch functions that compute it, by domain."""

from __future__ import annotations

from collections.abc import Callable

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.ops import (
    attention,
    control,
    draws,
    elementwise,
    features,
    indexing,
    microsoft,
    microsoft_attention,
    microsoft_quantized,
    ngrams,
    optimizers,
    quantized,
    recurrent,
    reductions,
    regions,
    resampling,
    signals,
    structure,
    windows,
)
from disc.frontend.onnx.values import Result

Rule = Callable[[Node], Result]
# Draw numbers: never computed when compiling, however constant their inputs are.
RANDOM = frozenset({*draws.RULES, "Dropout"})
# Whose results may be far larger than their inputs.
EXPANDING = frozenset({"ConstantOfShape", "Expand", "Tile", "Range", "Pad", "Resize", "OneHot", "EyeLike", "ConvTranspose"})
# That take tensors of types without arithmetic.
NARROW_TYPES = frozenset({"Constant", "Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "Identity", *structure.MOVING})
NARROW_TYPES |= frozenset({"If", "Loop", "Optional", "OptionalHasElement", "OptionalGetElement"})


def _merged() -> dict[tuple[str, str], Rule]:
    table: dict[tuple[str, str], Rule] = {}
    for domain, modules in {
        "": (
            attention,
            elementwise,
            structure,
            indexing,
            reductions,
            windows,
            resampling,
            quantized,
            recurrent,
            control,
            signals,
            regions,
            draws,
            ngrams,
        ),
        "ai.onnx.ml": (features,),
        "ai.onnx.preview.training": (optimizers,),
        "com.microsoft": (microsoft, microsoft_attention, microsoft_quantized),
    }.items():
        for module in modules:
            for op, rule in module.RULES.items():
                if (domain, op) in table:
                    raise ValueError(f"two rules for {op}")
                table[domain, op] = rule
    return table


RULES = _merged()


def rule_for(domain: str, op: str) -> Rule | None:
    return RULES.get(("" if domain == "ai.onnx" else domain, op))
