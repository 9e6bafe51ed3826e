"""Steps merged above the slices of a dot: bit for bit in the interpreter, and within eager's tolerance when compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from compiled import module_program, randn
from torch import nn
from torch_mlir import ir

from disc.config import Options
from disc.ir.bf16 import round_to_bf16
from disc.ir.dialect import disc_context
from disc.ir.interp.oracle import interpret
from disc.ir.interp.values import held_dtype, stored_weight
from disc.ir.ops import block_ops, main_block
from disc.ir.passes import CompileState, run_passes
from disc.ir.stages import parse_module
from disc.ir.weights import WeightTable
from disc.passes.graph.fold_constants import FoldConstants
from disc.passes.graph.merge_slices import MergeSlices
from disc.passes.graph.simplify import Simplify

Array = np.ndarray[Any, Any]
FLOATS = ("f64", "f32", "f16", "bf16")
SPECIAL = [0.0, -0.0, 1.0, -1.5, 3.0, 1e-3, -7.0, float("inf"), float("-inf"), float("nan"), 1e-40, 6e4]
STEPS = ("add", "subtract", "multiply", "divide")
WIDTH = 4  # columns of a slice


@pytest.fixture
def _context() -> Iterator[None]:
    with disc_context():
        yield


def kind(dims: Sequence[int | str], element: str) -> str:
    sizes = "x".join(["?" if isinstance(dim, str) else str(dim) for dim in dims] + [element])
    names = ", ".join(f"@{dim}" if isinstance(dim, str) else str(dim) for dim in dims)
    return f"tensor<{sizes}, [{names}]>" if dims else f"tensor<{element}>"


class Text:
    """A module in the making: one dot of three slices, and chains of steps on them."""

    def __init__(self, element: str, random: np.random.Generator) -> None:
        self.element = element
        self.random = random
        self.lines: list[str] = []
        self.weights = WeightTable()

    def fresh(self, text: str) -> str:
        self.lines.append(f"%v{len(self.lines)} = {text}")
        return f"%v{len(self.lines) - 1}"

    def weight(self, element: str, *sizes: int) -> str:
        name = f"w{len(self.lines)}"
        values = self.random.choice(SPECIAL, sizes).astype(held_dtype(element))
        self.weights.entries[name] = stored_weight(round_to_bf16(values) if element == "bf16" else values, element)
        return self.fresh(f'"disc.weight"() {{name = "{name}"}} : () -> {kind(sizes, element)}')

    def row(self, element: str, dims: Sequence[int | str]) -> str:
        """A constant operand: a scalar, or one element per column."""
        shape = () if self.random.random() < 0.5 else (WIDTH,) if len(dims) == 2 else (2, WIDTH // 2)
        scalar = self.random.choice(["-0.0", "0.0", "1.0", "0.125", "3.0"])
        row = self.weight(element, *shape) if shape else self.fresh(f"stablehlo.constant dense<{scalar}> : tensor<{element}>")
        axes = ", ".join(str(len(dims) - len(shape) + axis) for axis in range(len(shape)))
        attributes = f"dims = array<i64{': ' + axes if axes else ''}>, maybe = array<i64>"
        return self.fresh(f'"disc.broadcast_in_dim"({row}) {{{attributes}}} : ({kind(shape, element)}) -> {kind(dims, element)}')

    def step(self, value: str, dims: Sequence[int | str]) -> str:
        """One step on a value, of 16-bit floats often in f32."""
        wide = "f32" if self.element in ("f16", "bf16") and self.random.random() < 0.5 else self.element
        narrow, computed = kind(dims, self.element), kind(dims, wide)
        if wide != self.element:
            value = self.fresh(f"stablehlo.convert {value} : ({narrow}) -> {computed}")
        row = self.row(wide, dims)
        operands = [value, row] if self.random.random() < 0.7 else [row, value]
        value = self.fresh(f"stablehlo.{self.random.choice(STEPS)} {', '.join(operands)} : {computed}")
        return value if wide == self.element else self.fresh(f"stablehlo.convert {value} : ({computed}) -> {narrow}")

    def chain(self, value: str) -> tuple[str, str]:
        """Up to three steps on a slice, its columns split somewhere between."""
        dims: list[int | str] = ["S0", WIDTH]
        count = int(self.random.integers(0, 4))
        split = int(self.random.integers(0, count + 2))
        for place in range(count):
            if place == split:
                heads = kind(["S0", 2, WIDTH // 2], self.element)
                value = self.fresh(f'"disc.reshape"({value}) : ({kind(dims, self.element)}) -> {heads}')
                dims = ["S0", 2, WIDTH // 2]
            value = self.step(value, dims)
        return value, kind(dims, self.element)

    def module(self) -> str:
        e = self.element
        x, y, part = kind(["S0", 1], e), kind(["S0", 3 * WIDTH], e), kind(["S0", WIDTH], e)
        w = self.weight(e, 3 * WIDTH, 1)
        dot = self.fresh(f"stablehlo.dot_general %x, {w}, contracting_dims = [1] x [1] : ({x}, {kind([3 * WIDTH, 1], e)}) -> {y}")
        slices = [
            self.fresh(f'"disc.slice"({dot}) {{starts = ["0", "{WIDTH * place}"], strides = array<i64: 1, 1>}} : ({y}) -> {part}')
            for place in range(3)
        ]
        results = [self.chain(each) for each in slices]
        types = ", ".join(each for _, each in results)
        body = "\n".join(self.lines)
        return f"""
        "disc.symbolic_dim"() {{sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"}} : () -> ()
        func.func @main(%x: {x}) -> ({types}) {{
          {body}
          return {", ".join(name for name, _ in results)} : {types}
        }}"""


def assert_same_bits(ours: Array, theirs: Array) -> None:
    np.testing.assert_array_equal(ours, theirs)
    numbers = ~np.isnan(theirs)
    np.testing.assert_array_equal(np.signbit(ours[numbers]), np.signbit(theirs[numbers]))


@pytest.mark.usefixtures("_context")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("seed", range(25))
def test_random_chains_keep_every_bit(element: str, seed: int) -> None:
    """Infinities, NaN, denormals and signs of zero included. Steps with a neutral element are all gone from the slices."""
    text = Text(element, np.random.default_rng(seed))
    source = text.module()
    before, after = parse_module(source), parse_module(source)
    state = CompileState(WeightTable(dict(text.weights.entries)), Options(debug_checks=True))
    run_passes(after, [MergeSlices(), FoldConstants(), Simplify()], state)
    x = np.array(SPECIAL, held_dtype(element)).reshape(-1, 1)
    for rows in (0, 1, len(SPECIAL)):
        inputs = [round_to_bf16(x[:rows]) if element == "bf16" else x[:rows]]
        for expected, got in zip(interpret(before, inputs, text.weights), interpret(after, inputs, state.weights), strict=True):
            assert_same_bits(got, expected)
    ops = block_ops(main_block(after))
    assert all(op.name != "stablehlo.concatenate" for op in ops)
    left = [op for op in ops if op.name.removeprefix("stablehlo.") in STEPS and is_sliced(op)]
    assert all(op.name in ("stablehlo.subtract", "stablehlo.divide") for op in left)


def is_sliced(op: ir.Operation) -> bool:
    """Does it read a slice?"""
    makers = [operand.owner.operation.name for operand in op.operands if not isinstance(operand, ir.BlockArgument)]  # pyright: ignore[reportAttributeAccessIssue]
    return "disc.slice" in makers


@pytest.mark.usefixtures("_context")
def test_equal_scalars_of_many_layers_are_one_weight() -> None:
    part, whole, square = kind(["S0", 4], "f32"), kind(["S0", 8], "f32"), kind([8, 4], "f32")
    lines = ["%h0 = stablehlo.negate %x : " + part]
    for layer in range(3):
        lines.append(f"""
        %w{layer} = "disc.weight"() {{name = "w{layer}"}} : () -> {square}
        %d{layer} = stablehlo.dot_general %h{layer}, %w{layer}, contracting_dims = [1] x [1] : ({part}, {square}) -> {whole}
        %p{layer} = "disc.slice"(%d{layer}) {{starts = ["0", "0"], strides = array<i64: 1, 1>}} : ({whole}) -> {part}
        %q{layer} = "disc.slice"(%d{layer}) {{starts = ["0", "4"], strides = array<i64: 1, 1>}} : ({whole}) -> {part}
        %s{layer} = stablehlo.multiply %p{layer}, %c : {part}
        %h{layer + 1} = stablehlo.maximum %s{layer}, %q{layer} : {part}""")
    text = f"""
    "disc.symbolic_dim"() {{sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"}} : () -> ()
    func.func @main(%x: {part}) -> {part} {{
      %half = stablehlo.constant dense<0.5> : tensor<f32>
      %c = "disc.broadcast_in_dim"(%half) {{dims = array<i64>, maybe = array<i64>}} : (tensor<f32>) -> {part}
      {"".join(lines)}
      return %h3 : {part}
    }}"""
    module, state = parse_module(text), CompileState(options=Options(debug_checks=True))
    run_passes(module, [MergeSlices(), Simplify()], state)
    assert list(state.weights) == ["merged.scalars"]
    assert state.weights["merged.scalars"].array.tolist() == [0.5] * 4 + [1.0] * 4
    assert sum(op.name == "disc.weight" for op in block_ops(main_block(module))) == 4


class Attention(nn.Module):
    """The projections of an attention; the key has no bias, as in Whisper."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(-2, -3) for part in (self.q, self.k, self.v))
        scores = (q * (q.shape[-1] ** -0.5)) @ k.transpose(-1, -2)
        return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_projections_are_one_kernel(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    program = module_program(Attention(32, 4).to(dtype), randn(2, 5, 32, dtype=dtype), dynamic=[[0, 1]])
    for batch, length in ((1, 1), (2, 7), (3, 16), (1, 33), (5, 2)):
        program.check(randn(batch, length, 32, dtype=dtype))
    for executable in program.executables:
        kernels = executable.manifest["kernels"]
        assert all(op in str(kernels[0]["ops"]) for op in ("stablehlo.dot_general", "stablehlo.add", "stablehlo.multiply"))
        assert all(each["kind"] != "loop" for each in kernels)
