"""What passes for a softmax: its maximum and its sum are those of each element's own row."""

from __future__ import annotations

import pytest

from disc.codegen.plan.softmax import read_softmax
from disc.ir.dialect import disc_context
from disc.ir.graph import Snapshot
from disc.ir.ops import main_block
from disc.ir.stages import load_env, parse_module

ROWS, COLUMN = "tensor<8x8xf32, [8, 8]>", "tensor<8xf32, [8]>"


def spread(name: str, source: str, dim: int, *, reshaped: bool) -> str:
    kind, along = COLUMN, f"array<i64: {dim}>"
    text = ""
    if reshaped:
        sizes = ["8", "1"] if dim == 0 else ["1", "8"]
        kind, along = f"tensor<{'x'.join(sizes)}xf32, [{', '.join(sizes)}]>", "array<i64: 0, 1>"
        text = f'%{name}.r = "disc.reshape"({source}) : ({COLUMN}) -> {kind}\n'
        source = f"%{name}.r"
    return text + f'%{name} = "disc.broadcast_in_dim"({source}) {{dims = {along}, maybe = array<i64>}} : ({kind}) -> {ROWS}'


@pytest.mark.parametrize("reshaped", [False, True])
@pytest.mark.parametrize(("maximum", "total", "found"), [(0, 0, True), (1, 0, False), (0, 1, False), (1, 1, False)])
def test_the_reductions_are_of_the_row(maximum: int, total: int, found: bool, reshaped: bool) -> None:
    """maximum, total: the dim of the scores that the reduction's one dim becomes."""
    text = f"""func.func @main(%x: {ROWS}) -> {ROWS} {{
    %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : ({ROWS}, tensor<f32>) -> {COLUMN}
    {spread("mb", "%m", maximum, reshaped=reshaped)}
    %d = stablehlo.subtract %x, %mb : {ROWS}
    %e = stablehlo.exponential %d : {ROWS}
    %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : ({ROWS}, tensor<f32>) -> {COLUMN}
    {spread("sb", "%s", total, reshaped=reshaped)}
    %p = stablehlo.divide %e, %sb : {ROWS}
    return %p : {ROWS}
    }}"""
    with disc_context():
        module = parse_module(text)
        body = Snapshot(load_env(module)).block(main_block(module))
        assert (read_softmax(body.arguments[0], body.yields[0]) is not None) is found
