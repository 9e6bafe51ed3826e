"""Which products cuBLASLt may compute, and how it is told where the matrices lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fused_programs import Fused
from torch import nn

from disc.codegen.cuda.emission import emit_device, may_have
from disc.codegen.cuda.gemm import has_library_product
from disc.codegen.cuda.plans import product_plan
from disc.codegen.plan.text import IllegalPlan
from disc.speculation.block_families import ANY_PRODUCT
from disc.speculation.block_schedules import CUBLASLT
from disc.speculation.block_trees import FAST, SINGLE, BlockTree
from disc.speculation.schedules import LIBRARY
from disc.speculation.tree import LEAF

DYNAMIC = torch.export.Dim.DYNAMIC
PLAN = product_plan(BlockTree((ANY_PRODUCT, CUBLASLT), ((LIBRARY, 0, 1, 2), (LEAF, 0, 0, 0), (LEAF, 1, 0, 0))), SINGLE)
HALF, BRAIN, DOUBLE = torch.float16, torch.bfloat16, torch.float64


class Model(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(16, 24)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer, *inputs)


def compute(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...], element: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """The compute fusion of a program of a layer and inputs whose dims vary, but for those of 16, 8 and 2; and its target."""
    inputs = tuple(torch.zeros(shape, dtype=element) for shape in shapes)
    dims = tuple({axis: DYNAMIC for axis, size in enumerate(shape) if size not in (16, 8, 2, 1)} for shape in shapes)
    program = Fused.of_model(Model(function).eval(), inputs, (dims,))
    (work,) = (place.work for place in program.places if place.work.kind == "compute")
    return work, program.target


# Sizes: m, n, batch; k; from line to line of the left, right and result; from matrix to matrix of each. "T": values of k lie apart. The bias.
TAKEN: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...], torch.dtype, str]] = {
    "layer": (lambda layer, x: layer(x), ((3, 5, 16),), torch.float32, "S0 * S1, 24, 1; 16; 16, 16, 24; 0, 0, 0; --; 2"),
    "product": (lambda _, x, y: x @ y, ((5, 11), (11, 7)), torch.float32, "S0, S2, 1; S1; S1, S2, S2; 0, 0, 0; -T; -1"),
    "turned": (
        lambda _, x, y: x.mT @ y.mT, ((3, 11, 5), (3, 7, 11)), BRAIN,
        "S2, S3, S0; S1; S2, S1, S3; S1 * S2, S1 * S3, S2 * S3; T-; -1",
    ),
    "heads": (
        lambda _, x, y: x @ y, ((3, 8, 5, 16), (3, 8, 16, 7)), HALF,
        "S1, S2, S0 * 8; 16; 16, S2, S2; S1 * 16, S2 * 16, S1 * S2; -T; -1",
    ),
    "sum in f32": (lambda _, x, y, z: x @ y + z, ((5, 11), (11, 8), (8,)), BRAIN, "S0, 8, 1; S1; S1, 8, 8; 0, 0, 0; -T; 2"),
    "one row": (lambda _, x, y: x @ y, ((1, 11), (11, 7)), torch.float32, "1, S1, 1; S0; S0, S1, S1; 0, 0, 0; -T; -1"),
}  # fmt: skip
REFUSED: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...], torch.dtype]] = {
    "something behind it": (lambda layer, x: torch.relu(layer(x)), ((5, 16),), torch.float32),
    "a wider bias": (lambda _, x, y, z: (x @ y).float() + z.float() * 1, ((5, 11), (11, 8), (8,)), BRAIN),
    "a matrix is added": (lambda _, x, y, z: x @ y + z, ((5, 11), (11, 7), (5, 7)), torch.float32),
    "another element": (lambda _, x, y: x @ y, ((5, 11), (11, 7)), DOUBLE),
    "a narrower result": (lambda _, x, y: (x @ y).to(BRAIN), ((5, 11), (11, 7)), torch.float32),
    "heads beside each other": (lambda _, x, y: x.unflatten(-1, (2, 8)).transpose(1, 2) @ y, ((3, 5, 16), (3, 2, 8, 7)), torch.float32),
    "a convolution": (lambda _, x, y: nn.functional.conv2d(x, y), ((3, 16, 5, 7), (8, 16, 1, 1)), torch.float32),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_the_library_is_told(name: str) -> None:
    function, shapes, element, expected = TAKEN[name]
    work, target = compute(function, *shapes, element=element)
    may_have(work, PLAN)
    version = emit_device(work, PLAN, target).versions[0]
    product = version.product
    assert product is not None and version.schedule == 1 and "aligned(16)" in str(version.guard)
    k, *rest = map(str, product.numbers)
    apart = "".join("T" if each.apart else "-" for each in (product.left, product.right))
    sizes = ", ".join(map(str, product.sizes[:3]))
    assert "; ".join([sizes, k, ", ".join(rest[:3]), ", ".join(rest[3:]), apart, str(product.bias)]) == expected
    assert ("at_least(1, " in str(version.guard)) == (k != "16")


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_has_not(name: str) -> None:
    function, shapes, element = REFUSED[name]
    work, _ = compute(function, *shapes, element=element)
    assert not has_library_product(work)
    with pytest.raises(IllegalPlan, match="cublaslt has products of matrices with nothing, or a bias, behind them"):
        may_have(work, PLAN)


@pytest.mark.parametrize("name", ["product", "turned", "heads"])
@pytest.mark.parametrize("precision", [SINGLE, FAST])
def test_factors_are_rounded_where_that_is_asked_for(precision: str, name: str) -> None:
    """Those of f32: the library has no such sums of narrower ones."""
    function, shapes, element, _ = TAKEN[name]
    work, target = compute(function, *shapes, element=element)
    plan = product_plan(BlockTree((CUBLASLT, ANY_PRODUCT), ((LIBRARY, 0, 1, 2), (LEAF, 1, 0, 0), (LEAF, 0, 0, 0))), precision)
    product = emit_device(work, plan, target).versions[0].product
    assert product is not None and product.tf32 == (precision == FAST and element is torch.float32)
