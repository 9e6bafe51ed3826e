"""Every kernel that may compute a fusion computes it: plans that stand in the program are compiled, run and agree with the interpreter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from torch_mlir import ir

from disc.api import executable_of
from disc.codegen.choose_kernels import ChooseKernels
from disc.codegen.fusions import PLAN
from disc.codegen.plan.text import Plan, read_plan
from disc.codegen.session import compile_state, generate
from disc.codegen.x86.plans import KINDS
from disc.config import Options
from disc.errors import PlanError
from disc.ir.dialect import disc_context
from disc.ir.interp.oracle import interpret
from disc.ir.ops import block_ops, main_block
from disc.ir.passes import run_passes
from disc.ir.stages import parse_module
from disc.ir.weights import Weight, WeightTable
from disc.passes.pipelines import FUSION
from disc.ral.executable import Executable
from disc.speculation.session import open_session
from disc.targets.x86 import host_isa

GOLDEN = Path(__file__).parents[1] / "codegen"
ISA = host_isa()
LANES = 16 if ISA.startswith("x86-64-v4") else 8
S0, S1 = (
    f'"disc.symbolic_dim"() {{sym_name = "S{number}", min = 0 : i64, divisor = 1 : i64, source = "arg0.{number}"}} : () -> ()\n'
    for number in range(2)
)
CONVOLUTION = (
    S0
    + """
func.func @main(%x: tensor<?x11x9x32xf32, [@S0, 11, 9, 32]>) -> tensor<?x11x9x48xf32, [@S0, 11, 9, 48]> {
  %w = "disc.weight"() {name = "w"} : () -> tensor<3x3x32x48xf32, [3, 3, 32, 48]>
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<?x11x9x32xf32, [@S0, 11, 9, 32]>, tensor<3x3x32x48xf32, [3, 3, 32, 48]>) -> tensor<?x11x9x48xf32, [@S0, 11, 9, 48]>
  %1 = stablehlo.negate %0 : tensor<?x11x9x48xf32, [@S0, 11, 9, 48]>
  return %1 : tensor<?x11x9x48xf32, [@S0, 11, 9, 48]>
}
"""
)
ROW = """
func.func @main(%x: tensor<1x40xf32, [1, 40]>, %y: tensor<40x70xf32, [40, 70]>) -> tensor<1x70xf32, [1, 70]> {
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<1x40xf32, [1, 40]>, tensor<40x70xf32, [40, 70]>) -> tensor<1x70xf32, [1, 70]>
  return %0 : tensor<1x70xf32, [1, 70]>
}
"""
LINEAR = (
    S0
    + """
func.func @main(%x: tensor<?x40xf32, [@S0, 40]>) -> tensor<?x70xf32, [@S0, 70]> {
  %w = "disc.weight"() {name = "w"} : () -> tensor<40x70xf32, [40, 70]>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<?x40xf32, [@S0, 40]>, tensor<40x70xf32, [40, 70]>) -> tensor<?x70xf32, [@S0, 70]>
  %1 = stablehlo.negate %0 : tensor<?x70xf32, [@S0, 70]>
  return %1 : tensor<?x70xf32, [@S0, 70]>
}
"""
)
SOFTMAX = (
    S0
    + S1
    + """
func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S0, @S1]> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %mb = "disc.broadcast_in_dim"(%m) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S1]>
  %d = stablehlo.subtract %x, %mb : tensor<?x?xf32, [@S0, @S1]>
  %e = stablehlo.exponential %d : tensor<?x?xf32, [@S0, @S1]>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %sb = "disc.broadcast_in_dim"(%s) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S1]>
  %p = stablehlo.divide %e, %sb : tensor<?x?xf32, [@S0, @S1]>
  return %p : tensor<?x?xf32, [@S0, @S1]>
}
"""
)
THREE_REDUCTIONS = (
    S0
    + S1
    + """
func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S0, @S1]> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [1] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %sb = "disc.broadcast_in_dim"(%s) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S1]>
  %d = stablehlo.subtract %x, %sb : tensor<?x?xf32, [@S0, @S1]>
  %t = stablehlo.tanh %d : tensor<?x?xf32, [@S0, @S1]>
  %q = stablehlo.reduce(%t init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x?xf32, [@S0, @S1]>, tensor<f32>) -> tensor<?xf32, [@S0]>
  %r = stablehlo.add %q, %m : tensor<?xf32, [@S0]>
  %rb = "disc.broadcast_in_dim"(%r) {dims = array<i64: 0>, maybe = array<i64>} : (tensor<?xf32, [@S0]>) -> tensor<?x?xf32, [@S0, @S1]>
  %p = stablehlo.add %t, %rb : tensor<?x?xf32, [@S0, @S1]>
  return %p : tensor<?x?xf32, [@S0, @S1]>
}
"""
)
TRANSPOSE = (
    S0
    + S1
    + """
func.func @main(%x: tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S1, @S0]> {
  %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S1, @S0]>
  %1 = stablehlo.negate %0 : tensor<?x?xf32, [@S1, @S0]>
  return %1 : tensor<?x?xf32, [@S1, @S0]>
}
"""
)
FLAT = (
    S0
    + """
func.func @main(%x: tensor<?x24xf32, [@S0, 24]>) -> tensor<?x24xf32, [@S0, 24]> {
  %0 = stablehlo.tanh %x : tensor<?x24xf32, [@S0, 24]>
  return %0 : tensor<?x24xf32, [@S0, 24]>
}
"""
)
POOL = (
    S0
    + """
func.func @main(%x: tensor<?x13x11x16xf32, [@S0, 13, 11, 16]>) -> tensor<?x13x11x16xf32, [@S0, 13, 11, 16]> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%x, %low) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %1 = stablehlo.maximum %a, %b : tensor<f32>
      stablehlo.return %1 : tensor<f32>
  }) {window_dimensions = array<i64: 1, 3, 3, 1>, window_strides = array<i64: 1, 1, 1, 1>, padding = dense<[[0, 0], [1, 1], [1, 1], [0, 0]]> : tensor<4x2xi64>} : (tensor<?x13x11x16xf32, [@S0, 13, 11, 16]>, tensor<f32>) -> tensor<?x13x11x16xf32, [@S0, 13, 11, 16]>
  return %0 : tensor<?x13x11x16xf32, [@S0, 13, 11, 16]>
}
"""
)
ATTENTION = (
    S0
    + """
func.func @main(%q: tensor<?x50x32xf32, [@S0, 50, 32]>, %k: tensor<?x70x32xf32, [@S0, 70, 32]>, %v: tensor<?x70x32xf32, [@S0, 70, 32]>) -> tensor<?x50x32xf32, [@S0, 50, 32]> {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %x = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<?x50x32xf32, [@S0, 50, 32]>, tensor<?x70x32xf32, [@S0, 70, 32]>) -> tensor<?x50x70xf32, [@S0, 50, 70]>
  %m = stablehlo.reduce(%x init: %low) applies stablehlo.maximum across dimensions = [2] : (tensor<?x50x70xf32, [@S0, 50, 70]>, tensor<f32>) -> tensor<?x50xf32, [@S0, 50]>
  %mb = "disc.broadcast_in_dim"(%m) {dims = array<i64: 0, 1>, maybe = array<i64>} : (tensor<?x50xf32, [@S0, 50]>) -> tensor<?x50x70xf32, [@S0, 50, 70]>
  %d = stablehlo.subtract %x, %mb : tensor<?x50x70xf32, [@S0, 50, 70]>
  %e = stablehlo.exponential %d : tensor<?x50x70xf32, [@S0, 50, 70]>
  %s = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<?x50x70xf32, [@S0, 50, 70]>, tensor<f32>) -> tensor<?x50xf32, [@S0, 50]>
  %sb = "disc.broadcast_in_dim"(%s) {dims = array<i64: 0, 1>, maybe = array<i64>} : (tensor<?x50xf32, [@S0, 50]>) -> tensor<?x50x70xf32, [@S0, 50, 70]>
  %p = stablehlo.divide %e, %sb : tensor<?x50x70xf32, [@S0, 50, 70]>
  %r = stablehlo.dot_general %p, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<?x50x70xf32, [@S0, 50, 70]>, tensor<?x70x32xf32, [@S0, 70, 32]>) -> tensor<?x50x32xf32, [@S0, 50, 32]>
  return %r : tensor<?x50x32xf32, [@S0, 50, 32]>
}
"""
)
DEPTHWISE = (
    S0
    + """
func.func @main(%x: tensor<?x11x9x32xf32, [@S0, 11, 9, 32]>) -> tensor<?x11x9x32xf32, [@S0, 11, 9, 32]> {
  %w = "disc.weight"() {name = "w"} : () -> tensor<3x3x1x32xf32, [3, 3, 1, 32]>
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]]}
    {batch_group_count = 1 : i64, feature_group_count = 32 : i64} : (tensor<?x11x9x32xf32, [@S0, 11, 9, 32]>, tensor<3x3x1x32xf32, [3, 3, 1, 32]>) -> tensor<?x11x9x32xf32, [@S0, 11, 9, 32]>
  return %0 : tensor<?x11x9x32xf32, [@S0, 11, 9, 32]>
}
"""
)
SCAN = (
    S0
    + """
func.func @main(%x: tensor<?x24xf32, [@S0, 24]>) -> tensor<?x24xf32, [@S0, 24]> {
  %0 = "disc.cumulative"(%x) {dim = 0 : i64, kind = "max"} : (tensor<?x24xf32, [@S0, 24]>) -> tensor<?x24xf32, [@S0, 24]>
  return %0 : tensor<?x24xf32, [@S0, 24]>
}
"""
)
SORT = (
    S0
    + """
func.func @main(%x: tensor<?x24xf32, [@S0, 24]>) -> tensor<?x24xf32, [@S0, 24]> {
  %0:2 = "disc.sort"(%x) {dim = 0 : i64, descending = true} : (tensor<?x24xf32, [@S0, 24]>) -> (tensor<?x24xf32, [@S0, 24]>, tensor<?x24xi64, [@S0, 24]>)
  return %0#0 : tensor<?x24xf32, [@S0, 24]>
}
"""
)
PRODUCT = f"product{{form = f32, left = in-place, right = RIGHT, panel = 64, vectors = {LANES // 4}}}"
TREE = "tree{schedules = [12x16+ahead, 6x4096+panels], nodes = [m>8?1:2, @0, @1], split_rows = 0}"
INDIRECT = f"indirect{{form = f32, panel = 48, lanes = {LANES}, taps = 9, rows = 120, order = rows}}"


FLAT_REGION = "region{form = flat, tiles = 1, rows = 1, short = 0, columns = 1, vectors = [1], stages = [], cached = []}"


class Forced:
    """A program and the plan of its last fusion.

    inputs: arrays, or shapes of f32; weights: shapes of those called w and k.
    """

    def __init__(self, text: str, inputs: Sequence[tuple[int, ...] | np.ndarray], *weights: tuple[int, ...]) -> None:
        generator = np.random.default_rng(0)
        self.text = text
        self.inputs = [generator.standard_normal(each, np.float32) if isinstance(each, tuple) else each for each in inputs]
        self.weights = WeightTable()
        for name, weight in zip("wk", weights, strict=False):
            self.weights.entries[name] = Weight(generator.standard_normal(weight, np.float32) / 8, "f32")

    def compiled(self, plan: str | None) -> tuple[Executable, Plan]:
        """With this plan, or the one that is chosen; and what the plan then is."""
        module = parse_module(self.text)
        session = open_session(ISA, Options(cache=False))
        state = compile_state(WeightTable(dict(self.weights.entries)), session)
        run_passes(module, FUSION[:-1], state)
        fusion = [op for op in block_ops(main_block(module)) if op.name == "kernel.fusion"][-1]
        if plan is not None:
            with module.context:
                fusion.attributes[PLAN] = ir.DictAttr.get({ISA: ir.StringAttr.get(plan)})
        run_passes(module, (ChooseKernels(session.tree),), state)
        text = ir.StringAttr(ir.DictAttr(fusion.attributes[PLAN])[ISA]).value
        executable = executable_of(module, generate(module, state, session), session, {"single": True})
        return executable, read_plan(text, KINDS)

    def check(self, plan: str, *shapes: tuple[int, ...]) -> None:
        """What is compiled has this plan, and gives what the interpreter gives; for one input of further shapes as well."""
        generator = np.random.default_rng(1)
        calls = [self.inputs, *([generator.standard_normal(shape, np.float32)] for shape in shapes)]
        with disc_context():
            executable, found = self.compiled(plan)
            assert str(found) == plan
            module = parse_module(self.text)
            for inputs in calls:
                result = executable(*inputs)
                assert isinstance(result, np.ndarray)
                np.testing.assert_allclose(result, interpret(module, inputs, self.weights)[0], rtol=1e-4, atol=1e-4)


def golden(name: str) -> str:
    """The program of a golden plan."""
    return (GOLDEN / f"{name}.mlir").read_text()


def convolution(images: int = 2) -> Forced:
    return Forced(CONVOLUTION, [(images, 11, 9, 32)], (3, 3, 32, 48))


def product(right: str, left: str = "in-place") -> str:
    return PRODUCT.replace("RIGHT", right).replace("left = in-place", f"left = {left}")


@pytest.mark.parametrize(
    "plan",
    [
        INDIRECT,
        INDIRECT.replace("taps = 9", "taps = 2").replace("rows = 120, order = rows", "rows = 18, order = panels"),
        f"winograd{{tile = 2, block = 6, least = 0, enough = 1, direct = {INDIRECT}}}",
        f"winograd{{tile = 4, block = 24, least = 0, enough = 1, direct = {INDIRECT}}}",
        f"winograd{{tile = 4, block = 12, least = 100, enough = 1, direct = {INDIRECT}}}",
    ],
)
def test_a_convolution(plan: str) -> None:
    convolution().check(plan)


@pytest.mark.parametrize(
    ("left", "right"), [("per-tile", "patches"), ("per-tile", "per-panel"), ("in-place", "patches"), ("in-place", "per-panel")]
)
def test_a_convolution_as_product(left: str, right: str) -> None:
    """Rows of the product are channels, columns are positions."""
    forced = convolution()
    plan = f"gemm{{product = {product(right, left)}, turned = false, few = no, tree = {TREE}}}"
    try:
        forced.check(plan)
    except PlanError as error:
        assert left == "in-place", error  # the kernel's channels do not lie one behind the other
        assert "left must be per-tile" in str(error)


@pytest.mark.parametrize(
    "operands",
    [
        product("packed-ahead"),
        product("per-panel"),
        product("in-place", "per-tile"),
        product("packed-ahead", "per-tile").replace("panel = 64", "panel = 32"),
    ],
)
def test_a_linear_layer(operands: str) -> None:
    forced, more = Forced(LINEAR, [(30, 40)], (40, 70)), [(rows, 40) for rows in (0, 1, 5, 7)]
    forced.check(f"gemm{{product = {operands}, turned = false, few = no, tree = {TREE}}}", *more)


def test_a_linear_layer_whose_k_is_split() -> None:
    tree = "tree{schedules = [6x4096/3], nodes = [@0], split_rows = 64}"
    Forced(LINEAR.replace("40", "400"), [(20, 400)], (400, 70)).check(
        f"gemm{{product = {product('packed-ahead')}, turned = false, few = no, tree = {tree}}}"
    )


@pytest.mark.parametrize("kind", ["gemm", "few-rows"])
@pytest.mark.parametrize("right", ["in-place", "per-panel"])
def test_a_row(kind: str, right: str) -> None:
    few = "across" if kind == "few-rows" else "no"
    Forced(ROW, [(1, 40), (40, 70)]).check(f"{kind}{{product = {product(right)}, turned = false, few = {few}, tree = {TREE}}}")


@pytest.mark.parametrize(("rows", "parts"), [(4, 32), (1, 3), (8, 0)])
def test_rows(rows: int, parts: int) -> None:
    forced, more = Forced(SOFTMAX, [(9, 40)]), [(0, 5), (1, 1), (3, 17), (2, 140_000)]
    with disc_context():
        _, chosen = forced.compiled(None)
    text = str(chosen).replace("parts = 32", f"parts = {parts}")
    text = re.sub(r"rows = \d+, short = \d+", f"rows = {rows}, short = {64 if rows > 1 else 0}", text)
    if not parts:
        text = text.replace("versions = [0, ", "versions = [")
    forced.check(text, *more)
    for cached in ("[]", "[5]", "[5, 6]"):
        if f"cached = {cached}" not in text:
            forced.check(re.sub(r"cached = \[[^]]*\]", f"cached = {cached}", text), *more)


@pytest.mark.parametrize("vectors", [(1, 1, 1), (8, 2, 4), (2, 8, 8)])
def test_vectors_of_rows(vectors: tuple[int, ...]) -> None:
    forced, more = Forced(SOFTMAX, [(9, 40)]), [(0, 5), (1, 1), (3, 17), (5, 129), (2, 1000)]
    with disc_context():
        _, chosen = forced.compiled(None)
    text = re.sub(r"vectors = \[\d+, \d+, \d+\]", f"vectors = {list(vectors)}", str(chosen))
    forced.check(text, *more)
    forced.check(re.sub(r"short = \d+", "short = 1000", text), *more)


def test_a_reduction_in_a_later_round() -> None:
    """The maximum is needed by the result alone, the second sum needs the first."""
    forced, more = Forced(THREE_REDUCTIONS, [(9, 40)]), [(0, 5), (1, 1), (3, 17), (2, 1000)]
    with disc_context():
        _, chosen = forced.compiled(None)
    assert "stages = [[3, 4], [8]]" in str(chosen)
    forced.check(str(chosen).replace("[[3, 4], [8]]", "[[3], [4, 8]]"), *more)
    with disc_context(), pytest.raises(PlanError, match="stages a reduction comes before what it needs"):
        forced.compiled(str(chosen).replace("[[3, 4], [8]]", "[[4], [3, 8]]"))
    with disc_context(), pytest.raises(PlanError, match="stages must have those of"):
        forced.compiled(str(chosen).replace("[[3, 4], [8]]", "[[3, 4], [4]]"))


@pytest.mark.parametrize(("program", "shape", "forms"), [(TRANSPOSE, (67, 70), ("blocks", "groups")), (FLAT, (33, 24), ("flat", "groups"))])
def test_loops(program: str, shape: tuple[int, int], forms: tuple[str, ...]) -> None:
    with disc_context():
        _, chosen = Forced(program, [shape]).compiled(None)
    for form in forms:
        Forced(program, [shape]).check(str(chosen).replace(f"form = {forms[0]}", f"form = {form}"))


@pytest.mark.parametrize(
    "plan",
    [
        "window-last{band = 14, strip = 28, rows = 2, columns = 7}",
        "window-last{band = 3, strip = 4, rows = 1, columns = 4}",
        "pool{band = 32, rows = 4}",
        "pool{band = 6, rows = 3}",
    ],
)
def test_a_pool(plan: str) -> None:
    """A pool is also a loop that reads the window of every element."""
    Forced(POOL, [(2, 13, 11, 16)]).check(plan)


@pytest.mark.parametrize(
    "plan",
    [
        "window-last{band = 4, strip = 6, rows = 2, columns = 3}",
        "depthwise-window{band = 8, rows = 4}",
        "depthwise-window{band = 3, rows = 1}",
        f"gemm{{product = {product('patches', 'per-tile')}, turned = false, few = no, tree = {TREE}}}",
    ],
)
def test_a_depthwise_convolution(plan: str) -> None:
    Forced(DEPTHWISE, [(2, 11, 9, 32)], (3, 3, 1, 32)).check(plan)


@pytest.mark.parametrize(
    "plan",
    [
        "attention-blocks{FIRST_SECOND, rows = 96, keys = 512, causal = false, segments = false, dots = false, safe = false}",
        "attention-blocks{FIRST_SECOND, rows = 6, keys = 64, causal = false, segments = false, dots = false, safe = false}",
        "attention-rows{FIRST_SECOND, rows = 96, cached = []}",
        "attention-rows{FIRST_SECOND, rows = 12, cached = []}",
    ],
)
def test_attention(plan: str) -> None:
    operands = f"first = {product('per-panel')}, second = {product('in-place' if 'rows = 96' in plan else 'per-panel')}"
    Forced(ATTENTION, [(2, 50, 32), (2, 70, 32), (2, 70, 32)]).check(plan.replace("FIRST_SECOND", operands))


@pytest.mark.parametrize("causal", ["true", "false"])
def test_causal_attention(causal: str) -> None:
    """The bound is a hint: without it every key is computed."""
    operands = f"first = {product('per-panel')}, second = {product('in-place').replace('64', '32')}"
    forced = Forced(golden("attention-causal"), [(2, 70, 32)] * 3)
    forced.check(f"attention-blocks{{{operands}, rows = 6, keys = 64, causal = {causal}, segments = false, dots = false, safe = false}}")


@pytest.mark.parametrize("segments", ["true", "false"])
def test_attention_within_segments(segments: str) -> None:
    """Sequences of 1, 6, 7 and 56 tokens."""
    ends = np.cumsum([1, 6, 7, 56])
    past = ends[np.searchsorted(ends, np.arange(70), side="right")]
    first = np.append(0, ends)[np.searchsorted(ends, np.arange(70), side="right")]
    operands = f"first = {product('per-panel')}, second = {product('in-place').replace('64', '32')}"
    forced = Forced(golden("attention-segments"), [(2, 70, 32)] * 3 + [first, past])
    forced.check(f"attention-blocks{{{operands}, rows = 12, keys = 64, causal = false, segments = {segments}, dots = false, safe = false}}")


@pytest.mark.parametrize("tile_bytes", [524288, 8192])
def test_an_expansion(tile_bytes: int) -> None:
    window = "window-last{band = 14, strip = 28, rows = 2, columns = 7}"
    plan = f"expansion{{link = 0, product = {product('packed-ahead')}, window = {window}, tile_bytes = {tile_bytes}}}"
    Forced(golden("expansion"), [(2, 14, 14, 32)], (32, 128), (3, 3, 1, 128)).check(plan)


def test_the_window_of_an_expansion_alone() -> None:
    """The product then is a kernel of its own."""
    plan = "window-last{band = 4, strip = 7, rows = 2, columns = 7}"
    Forced(golden("expansion"), [(2, 14, 14, 32)], (32, 128), (3, 3, 1, 128)).check(plan)


def test_a_scatter() -> None:
    """Updates to one row are added in their order."""
    forced = Forced(golden("scatter"), [(7, 24), np.array([1, 6, 1, 0, 1]), (5, 24)])
    forced.check("scatter{}")


@pytest.mark.parametrize("lanes", ["across", "no"])
def test_a_scan(lanes: str) -> None:
    Forced(SCAN, [(9, 24)]).check(f"scan{{lanes = {lanes}}}")


def test_a_library_function() -> None:
    Forced(SORT, [(9, 24)]).check("library{function = sort}", (0, 24), (1, 24), (130, 24))


@pytest.mark.parametrize(
    ("forced", "plan", "message"),
    [
        (convolution(), "rows{regions = [], streamed = [], versions = [0], parts = 0, searches = []}", "a fusion of kind compute cannot be a kernel rows"),
        (convolution(), INDIRECT.replace("taps = 9", "taps = 10"), "taps must be from 1 to 9"),
        (convolution(), INDIRECT.replace("rows = 120", "rows = 20"), "rows must be a multiple of 6"),
        (convolution(), INDIRECT.replace("panel = 48", "panel = 64"), "panel follows from the fusion and must be 48"),
        (convolution(), f"winograd{{tile = 6, block = 6, least = 0, enough = 1, direct = {INDIRECT}}}", "tile must be 2 or 4"),
        (convolution(), "winograd{tile = 2}", "at 17 of the plan"),
        (convolution(), "gemn{}", "there is no plan 'gemn'"),
        (convolution(), "depthwise-window{band = 8, rows = 8}", "needs one window over planes"),
        (Forced(ROW, [(1, 40), (40, 70)]), f"gemm{{product = {product('packed-ahead')}, turned = false, few = no, tree = {TREE}}}",
         "right must be in-place or per-panel"),
        (Forced(ROW, [(1, 40), (40, 70)]), f"few-rows{{product = {product('in-place')}, turned = false, few = along, tree = {TREE}}}",
         "few must be across"),
        (Forced(LINEAR, [(2, 40)], (40, 70)), f"few-rows{{product = {product('in-place')}, turned = false, few = across, tree = {TREE}}}",
         "needs few rows, always"),
        (Forced(LINEAR, [(2, 40)], (40, 70)),
         f"gemm{{product = {product('in-place')}, turned = false, few = no, tree = {TREE.replace('6x4096+panels', '6x4096+panels/2')}}}", "k of this product cannot be split"),
        (Forced(LINEAR, [(2, 40)], (40, 70)),
         f"gemm{{product = {product('in-place')}, turned = false, few = no, tree = {TREE.replace('m>8?1:2', 'm>8?0:2')}}}", "must go on at later nodes"),
        (Forced(SCAN, [(9, 24)]), "scatter{}", "the fusion is a scan"),
        (Forced(SCAN, [(9, 24)]), "library{function = sort}", "needs an op that a function of the runtime computes"),
        (Forced(SORT, [(9, 24)]), "scatter{}", "needs a scan or scatter"),
        (Forced(SORT, [(9, 24)]), "library{function = search}", "function follows from the fusion and must be sort"),
        (Forced(FLAT, [(2, 24)]), f"rows{{regions = [{FLAT_REGION.replace('flat', 'blocks')}], streamed = [], versions = [1], parts = 0, searches = []}}",
         "form must be groups or flat"),
        (Forced(FLAT, [(2, 24)]), f"rows{{regions = [{FLAT_REGION.replace('[1]', '[3]')}], streamed = [], versions = [1], parts = 0, searches = []}}",
         "vectors must be 1 of [1, 2, 4, 8]"),
        (Forced(FLAT, [(2, 24)]), f"rows{{regions = [{FLAT_REGION.replace('short = 0', 'short = 64')}], streamed = [], versions = [1], parts = 0, searches = []}}",
         "short must be from 0 to 0"),
        (Forced(FLAT, [(2, 24)]), f"rows{{regions = [{FLAT_REGION}], streamed = [], versions = [0, 1], parts = 0, searches = []}}",
         "streamed there must be 1"),
        (Forced(FLAT, [(2, 24)]), "update{}", "needs a slice or a scatter over an argument which nothing reads afterwards"),
        (Forced(POOL, [(2, 13, 11, 16)]), "pool{band = 7, rows = 3}", "band must be a multiple of rows"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(forced: Forced, plan: str, message: str) -> None:
    """By the name of the fusion, the field and the reason."""
    with disc_context(), pytest.raises(PlanError, match=r"the plan of fusion .* for x86-64") as error:
        forced.compiled(plan)
    assert message in str(error.value)
