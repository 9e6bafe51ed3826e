"""Each graph pass leaves the values alone: interpreted before and after, over sizes 0, 1 and primes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_mlir import ir

from disc.config import Options
from disc.ir.bf16 import bf16_bits, round_to_bf16
from disc.ir.dialect import disc_context
from disc.ir.interp.oracle import interpret
from disc.ir.interp.values import element_name, held_dtype
from disc.ir.ops import block_ops, main_block, string_attr
from disc.ir.passes import CompileState, Pass, run_passes
from disc.ir.stages import parse_module
from disc.ir.weights import Weight, WeightTable
from disc.passes.graph.fold_batch_norm import FoldBatchNorm
from disc.passes.graph.fold_constants import FoldConstants
from disc.passes.graph.fold_pads import FoldPads
from disc.passes.graph.fold_transposes import FoldTransposes
from disc.passes.graph.merge_dots import MergeDots
from disc.passes.graph.merge_slices import MergeSlices
from disc.passes.graph.simplify import Simplify
from disc.passes.pipelines import GRAPH
from disc.targets.thresholds import DeviceThresholds
from disc.targets.x86_thresholds import CPU

GOLDEN = Path(__file__).resolve().parents[1] / "ir"
PASSES: dict[str, Sequence[Pass]] = {
    "simplify": [Simplify()],
    "fold-transposes": [FoldTransposes()],
    "merge-dots": [MergeDots()],
    "merge-slices": [MergeSlices()],
    "fold-batch-norm": [FoldBatchNorm()],
    "fold-pads": [FoldPads()],
    "fold-constants": [FoldConstants()],
    "graph": GRAPH,
}
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with disc_context():
        yield


def random_array(shape: Sequence[int], element: str, generator: np.random.Generator) -> Array:
    if element == "i1":
        return generator.random(shape) < 0.5
    if element.startswith(("i", "ui")):
        return generator.integers(0, 5, shape).astype(held_dtype(element))
    values = generator.standard_normal(shape).astype(held_dtype(element))
    return round_to_bf16(values) if element == "bf16" else values


def random_weights(module: ir.Module, generator: np.random.Generator) -> WeightTable:
    table = WeightTable()
    for op in block_ops(main_block(module)):
        if op.name == "disc.weight":
            kind = ir.RankedTensorType(op.results[0].type)
            element = element_name(kind)
            values = random_array(kind.shape, element, generator)
            table.entries[string_attr(op, "name")] = Weight(bf16_bits(values) if element == "bf16" else values, element)
    return table


def random_inputs(module: ir.Module, sizes: dict[str, int], generator: np.random.Generator) -> list[Array]:
    """Inputs whose dynamic dims have the given sizes."""
    inputs: list[Array] = []
    for argument in main_block(module).arguments:
        kind = ir.RankedTensorType(argument.type)
        dims = list(ir.ArrayAttr(kind.encoding)) if kind.encoding is not None else []
        shape = [sizes[d.value] if isinstance(d, ir.FlatSymbolRefAttr) else ir.IntegerAttr(d).value for d in dims]
        inputs.append(random_array(shape, element_name(kind), generator))
    return inputs


def base_symbols(module: ir.Module) -> list[str]:
    definitions = [op.operation for op in module.body.operations if op.operation.name == "disc.symbolic_dim"]
    return [string_attr(op, "sym_name") for op in definitions if "source" in op.attributes]


def check(text: str, passes: Sequence[Pass], exact: bool, thresholds: DeviceThresholds = CPU) -> ir.Module:
    """Compares before and after for several sizes; returns the module after the passes."""
    generator = np.random.default_rng(0)
    before, after = parse_module(text), parse_module(text)
    weights = random_weights(before, generator)
    state = CompileState(WeightTable(dict(weights.entries)), Options(debug_checks=True), thresholds)
    run_passes(after, passes, state)
    for size in (0, 1, 2, 7, 13):
        inputs = random_inputs(before, {name: size + i for i, name in enumerate(base_symbols(before))}, generator)
        for expected, got in zip(interpret(before, inputs, weights), interpret(after, inputs, state.weights), strict=True):
            assert expected.dtype == got.dtype
            np.testing.assert_allclose(got, expected, rtol=0 if exact else 1e-6, atol=0 if exact else 1e-6)
    return after


@pytest.mark.parametrize(
    "name", ["simplify", "fold-transposes", "merge-dots", "merge-slices", "fold-batch-norm", "fold-pads", "fold-constants"]
)
@pytest.mark.parametrize("passes", PASSES)
def test_goldens(name: str, passes: str) -> None:
    for program in (GOLDEN / f"{name}.mlir").read_text().split("// -----\n"):
        check(program, PASSES[passes], exact=False)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 3.0, float("inf"), float("-inf"), float("nan"), 1e-40, 3e38, 8.0, -4.0]


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "divide", "maximum", "minimum", "power"])
@pytest.mark.parametrize("value", ["0.0", "-0.0", "1.0", "-1.0", "2.0", "3.0", "0.5", "8.0", "-4.0", "1.0e-38", "0x7F800000", "0xFF800000"])
@pytest.mark.parametrize("right", [True, False])
def test_rules_with_a_constant_are_exact(op: str, value: str, right: bool) -> None:
    """Bit for bit, also at signed zeros, infinities, NaN and denormals."""
    kind = f"tensor<{len(SPECIAL)}xf32, [{len(SPECIAL)}]>"
    operands = "%x, %c" if right else "%c, %x"
    text = f"""
    func.func @main(%x: {kind}) -> {kind} {{
      %c = stablehlo.constant dense<{value}> : {kind}
      %r = stablehlo.{op} {operands} : {kind}
      return %r : {kind}
    }}"""
    before, after = parse_module(text), parse_module(text)
    run_passes(after, [Simplify()], CompileState(options=Options(debug_checks=True)))
    x = np.array(SPECIAL, np.float32)
    expected, got = interpret(before, [x])[0], interpret(after, [x])[0]
    np.testing.assert_array_equal(got, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("source", ["i1", "i8", "ui8", "i32", "i64", "bf16", "f16", "f32", "f64"])
@pytest.mark.parametrize("middle", ["i8", "ui8", "i16", "i32", "i64", "bf16", "f16", "f32", "f64"])
def test_convert_of_convert(source: str, middle: str) -> None:
    values = np.array([0.0, -0.0, 1.0, -1.0, 1.75, -2.5, 127.0, -128.0, 255.0, 3e4, -3e4, 65504.0])
    for target in ("i1", "i8", "ui8", "i32", "bf16", "f16", "f32", "f64"):
        a, b, c = (f"tensor<12x{element}, [12]>" for element in (source, middle, target))
        text = f"""
        func.func @main(%x: {a}) -> {c} {{
          %0 = stablehlo.convert %x : ({a}) -> {b}
          %1 = stablehlo.convert %0 : ({b}) -> {c}
          return %1 : {c}
        }}"""
        before, after = parse_module(text), parse_module(text)
        run_passes(after, [Simplify()], CompileState(options=Options(debug_checks=True)))
        unsigned = np.maximum(values, 0) if source.startswith("u") else values
        x = (unsigned != 0) if source == "i1" else unsigned.astype(np.int64 if source[0] in "iu" else np.float64).astype(held_dtype(source))
        x = round_to_bf16(x) if source == "bf16" else x
        np.testing.assert_array_equal(interpret(after, [x])[0], interpret(before, [x])[0])


def layer(index: int, width: int) -> str:
    """One attention layer on %h{index}: 4 projections, 2 products, 2 linear layers, as a front end writes them."""
    full, heads = f"tensor<?x?x{width}xf32, [@S0, @S1, {width}]>", f"tensor<?x?x2x{width // 2}xf32, [@S0, @S1, 2, {width // 2}]>"
    turned, square = f"tensor<?x2x?x{width // 2}xf32, [@S0, 2, @S1, {width // 2}]>", "tensor<?x2x?x?xf32, [@S0, 2, @S1, @S1]>"
    across, matrix = f"tensor<?x2x{width // 2}x?xf32, [@S0, 2, {width // 2}, @S1]>", f"tensor<{width}x{width}xf32, [{width}, {width}]>"
    vector = f"tensor<{width}xf32, [{width}]>"
    lines: list[str] = []

    def linear(name: str, source: str) -> None:
        p = f"l{index}{name}"
        lines.append(f"""
        %{p}w = "disc.weight"() {{name = "{p}.weight"}} : () -> {matrix}
        %{p}t = stablehlo.transpose %{p}w, dims = [1, 0] : ({matrix}) -> {matrix}
        %{p}d = stablehlo.dot_general {source}, %{p}t, contracting_dims = [2] x [0] : ({full}, {matrix}) -> {full}
        %{p}b = "disc.weight"() {{name = "{p}.bias"}} : () -> {vector}
        %{p}c = "disc.broadcast_in_dim"(%{p}b) {{dims = array<i64: 2>, maybe = array<i64>}} : ({vector}) -> {full}
        %{p} = stablehlo.add %{p}d, %{p}c : {full}""")

    def split(name: str) -> None:
        p = f"l{index}{name}"
        lines.append(f"""
        %{p}r = "disc.reshape"(%{p}) : ({full}) -> {heads}
        %{p}h = stablehlo.transpose %{p}r, dims = [0, 2, 1, 3] : ({heads}) -> {turned}""")

    for name in ("q", "k", "v"):
        linear(name, f"%h{index}")
        split(name)
    lines.append(f"""
        %l{index}key = stablehlo.transpose %l{index}kh, dims = [0, 1, 3, 2] : ({turned}) -> {across}
        %l{index}s = stablehlo.dot_general %l{index}qh, %l{index}key, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : ({turned}, {across}) -> {square}
        %l{index}n = stablehlo.tanh %l{index}s : {square}
        %l{index}m = stablehlo.dot_general %l{index}n, %l{index}vh, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : ({square}, {turned}) -> {turned}
        %l{index}u = stablehlo.transpose %l{index}m, dims = [0, 2, 1, 3] : ({turned}) -> {heads}
        %l{index}f = "disc.reshape"(%l{index}u) : ({heads}) -> {full}""")
    linear("o", f"%l{index}f")
    lines.append(f"%l{index}a = stablehlo.add %l{index}o, %h{index} : {full}")
    linear("i", f"%l{index}a")
    linear("j", f"%l{index}i")
    lines.append(f"%h{index + 1} = stablehlo.tanh %l{index}j : {full}")
    return "\n".join(lines)


def encoder(layers: int, width: int) -> str:
    full = f"tensor<?x?x{width}xf32, [@S0, @S1, {width}]>"
    body = "\n".join(layer(index, width) for index in range(layers))
    return f"""
    "disc.symbolic_dim"() {{sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"}} : () -> ()
    "disc.symbolic_dim"() {{sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg0.1"}} : () -> ()
    func.func @main(%h0: {full}) -> {full} {{
      {body}
      return %h{layers} : {full}
    }}"""


def count(module: ir.Module, name: str) -> int:
    return sum(op.name == name for op in block_ops(main_block(module)))


def test_query_key_and_value_of_every_layer_are_one_product() -> None:
    """BERT with 24 layers: 8 products per layer become 6, and no transpose of a weight is left."""
    text = encoder(24, 8)
    before, after = parse_module(text), parse_module(text)
    run_passes(after, GRAPH, CompileState(random_weights(before, np.random.default_rng(0)), Options()))
    assert count(before, "stablehlo.dot_general") == 192
    assert count(after, "stablehlo.dot_general") == 144
    assert count(after, "stablehlo.concatenate") == 0


def test_encoder_keeps_its_values() -> None:
    after = check(encoder(2, 8), GRAPH, exact=False)
    assert count(after, "stablehlo.transpose") == 2


BATCHED = """
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg2.0"} : () -> ()
func.func @main(%x: tensor<?x4xf32, [@S0, 4]>, %y: tensor<?x4xf32, [@S0, 4]>, %z: tensor<?x4xf32, [@S1, 4]>)
    -> (tensor<?x4xf32, [@S0, 4]>, tensor<?x4xf32, [@S0, 4]>, tensor<?x4xf32, [@S1, 4]>, tensor<?x4xf32, [@S0, 4]>) {
  %a = "disc.weight"() {name = "a"} : () -> tensor<4x4xf32, [4, 4]>
  %0 = stablehlo.dot_general %x, %a, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<4x4xf32, [4, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  %3 = stablehlo.dot_general %0, %a, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<4x4xf32, [4, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  %b = "disc.weight"() {name = "b"} : () -> tensor<4x4xf32, [4, 4]>
  %t = stablehlo.tanh %y : tensor<?x4xf32, [@S0, 4]>
  %1 = stablehlo.dot_general %t, %b, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<4x4xf32, [4, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  %2 = stablehlo.dot_general %z, %b, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S1, 4]>, tensor<4x4xf32, [4, 4]>) -> tensor<?x4xf32, [@S1, 4]>
  return %0, %1, %2, %3 : tensor<?x4xf32, [@S0, 4]>, tensor<?x4xf32, [@S0, 4]>, tensor<?x4xf32, [@S1, 4]>, tensor<?x4xf32, [@S0, 4]>
}"""


def test_products_of_equal_shapes_are_batched_where_none_needs_another() -> None:
    """%0 and %1 go together; %2 has another number of rows, %3 needs %0."""
    after = check(BATCHED, [MergeDots()], exact=False)
    assert count(after, "stablehlo.dot_general") == 3
    fewer = replace(CPU, graph=replace(CPU.graph, batch_bytes=63))
    large = check(BATCHED, [MergeDots()], exact=False, thresholds=fewer)
    assert count(large, "stablehlo.dot_general") == 4


def test_products_of_one_weight_are_one_with_more_rows() -> None:
    """The weight is read as it is, once; with a batch dim, or another number of rows, products stay apart."""
    text = """
    "disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
    func.func @main(%x: tensor<?x4xf32, [@S0, 4]>, %y: tensor<?x4xf32, [@S0, 4]>) -> (tensor<?x5xf32, [@S0, 5]>, tensor<?x5xf32, [@S0, 5]>) {
      %w = "disc.weight"() {name = "w"} : () -> tensor<5x4xf32, [5, 4]>
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<5x4xf32, [5, 4]>) -> tensor<?x5xf32, [@S0, 5]>
      %1 = stablehlo.dot_general %y, %w, contracting_dims = [1] x [1] : (tensor<?x4xf32, [@S0, 4]>, tensor<5x4xf32, [5, 4]>) -> tensor<?x5xf32, [@S0, 5]>
      return %0, %1 : tensor<?x5xf32, [@S0, 5]>, tensor<?x5xf32, [@S0, 5]>
    }"""
    after = check(text, [MergeDots()], exact=False)
    assert count(after, "stablehlo.dot_general") == 1 and count(after, "stablehlo.concatenate") == 1
    assert "tensor<2x?x4xf32" in str(after)


def test_a_transposed_weight_is_a_view() -> None:
    text = """
    func.func @main() -> (tensor<8x4xf32, [8, 4]>, tensor<8x4xbf16, [8, 4]>) {
      %a = "disc.weight"() {name = "a"} : () -> tensor<4x8xf32, [4, 8]>
      %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<4x8xf32, [4, 8]>) -> tensor<8x4xf32, [8, 4]>
      %b = "disc.weight"() {name = "b"} : () -> tensor<4x8xbf16, [4, 8]>
      %1 = stablehlo.transpose %b, dims = [1, 0] : (tensor<4x8xbf16, [4, 8]>) -> tensor<8x4xbf16, [8, 4]>
      return %0, %1 : tensor<8x4xf32, [8, 4]>, tensor<8x4xbf16, [8, 4]>
    }"""
    module = parse_module(text)
    state = CompileState(random_weights(module, np.random.default_rng(0)), Options(debug_checks=True))
    run_passes(module, [FoldConstants()], state)
    for name in ("a", "b"):
        folded = state.weights[f"folded.transpose.{name}"].array
        assert folded.shape == (8, 4) and np.shares_memory(folded, state.weights[name].array)


def test_equal_constants_are_stored_once() -> None:
    """Layers that share their weights (ALBERT) share what is folded from them."""
    half, whole = "tensor<8x4xf32, [8, 4]>", "tensor<16x4xf32, [16, 4]>"
    weights = [f'%{name}{layer} = "disc.weight"() {{name = "{name}"}} : () -> {half}' for layer in range(3) for name in "ab"]
    joined = [f"%c{layer} = stablehlo.concatenate %a{layer}, %b{layer}, dim = 0 : ({half}, {half}) -> {whole}" for layer in range(3)]
    body = "\n".join([*weights, *joined])
    module = parse_module(f"func.func @main() -> ({whole}, {whole}, {whole}) {{ {body} return %c0, %c1, %c2 : {whole}, {whole}, {whole} }}")
    state = CompileState(random_weights(module, np.random.default_rng(0)), Options(debug_checks=True))
    run_passes(module, [FoldConstants()], state)
    assert list(state.weights) == ["a", "b", "folded.concatenate.a"]
