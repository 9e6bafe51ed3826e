"""name-dims and what carries it: host arithmetic, symbols of a module, legality of stages, the pass manager."""

import re
from pathlib import Path

import numpy as np
import pytest
from torch_mlir import ir

from disc.errors import CompilerBug, ShapeConstraintError, UnsupportedFormatError, UnsupportedOpError
from disc.ir.dialect import disc_context
from disc.ir.interp.oracle import interpret
from disc.ir.ops import array_to_dense, dense_to_array, dims_of, location_text, main_block, tensor_type
from disc.ir.passes import CompileState, Pass, run_passes
from disc.ir.reports import read_report
from disc.ir.stages import check_stage, load_env, parse_module, stage_of, store_env
from disc.passes.pipelines import FRONT, parse_passes
from disc.passes.shape.host_values import ONE, HostArithmetic, Ratio, broadcast_size, ratio_of
from disc.shapes import Dim, ShapeEnv

PREFIX = "func.func @main"


@pytest.fixture(autouse=True)
def context():
    with disc_context() as entered:
        yield entered


def named(text: str) -> ir.Module:
    module = parse_module(text)
    run_passes(module, FRONT, CompileState())
    return module


# --- host arithmetic --------------------------------------------------------------------------------------------------


def test_undecided_comparisons_are_zero_or_one():
    env = ShapeEnv()
    a, b = env.symbol("S0"), env.symbol("S1")
    arithmetic = HostArithmetic(env)
    expressions = {
        "LT": lambda x, y: x < y, "LE": lambda x, y: x <= y, "GT": lambda x, y: x > y,
        "GE": lambda x, y: x >= y, "EQ": lambda x, y: x == y, "NE": lambda x, y: x != y,
    }  # fmt: skip
    for direction, expected in expressions.items():
        dim = arithmetic.compare(direction, a, b)
        for x in range(4):
            for y in range(4):
                assert dim.evaluate({"S0": x, "S1": y}) == int(expected(x, y)), direction


def test_decided_comparisons_are_constants():
    env = ShapeEnv()
    a = env.symbol("S0", lo=2)
    arithmetic = HostArithmetic(env)
    assert arithmetic.compare("GT", a, ONE) == 1
    assert arithmetic.compare("EQ", a, ONE) == 0


def test_selects_of_comparisons():
    env = ShapeEnv()
    a, b, other = env.symbol("S0"), env.symbol("S1"), env.symbol("S2")
    arithmetic = HostArithmetic(env)
    values = [(x, y) for x in range(4) for y in range(4)]
    for direction, smaller in [("LT", True), ("LE", True), ("GT", False), ("GE", False)]:
        chosen = arithmetic.select(arithmetic.compare(direction, a, b), a, b)
        assert isinstance(chosen, Dim)
        assert [chosen.evaluate({"S0": x, "S1": y}) for x, y in values] == [min(x, y) if smaller else max(x, y) for x, y in values]
    general = arithmetic.select(arithmetic.compare("LT", a, b), other, a)
    assert isinstance(general, Dim)
    assert [general.evaluate({"S0": x, "S1": y, "S2": 9}) for x, y in values] == [9 if x < y else x for x, y in values]


def test_broadcast_size_is_right_for_zero_and_one():
    env = ShapeEnv()
    size = broadcast_size(env, env.symbol("S0"), env.symbol("S1"))
    for x, y, expected in [(0, 1, 0), (1, 0, 0), (0, 0, 0), (1, 1, 1), (1, 7, 7), (7, 1, 7), (7, 7, 7)]:
        assert size.evaluate({"S0": x, "S1": y}) == expected


def test_a_size_above_one_decides_a_broadcast():
    env = ShapeEnv()
    a, b = env.symbol("S0"), env.symbol("S1", lo=2)
    assert broadcast_size(env, a, b) == b
    assert broadcast_size(env, b, a) == b


def test_quotients_in_f64_round_like_integers():
    env = ShapeEnv()
    arithmetic = HostArithmetic(env)
    quotient = arithmetic.divide(Ratio(env.symbol("S0")), Ratio(Dim.of(3)))
    assert quotient is not None
    up, down = arithmetic.ceil(quotient), arithmetic.floor(quotient)
    assert up is not None and down is not None
    for size in range(10):
        assert up.numerator.evaluate({"S0": size}) == -(-size // 3)
        assert down.numerator.evaluate({"S0": size}) == size // 3


def test_long_fractions_are_data():
    assert ratio_of(0.5) == Ratio(ONE, Dim.of(2))
    assert ratio_of(0.1) is None
    assert ratio_of(float("inf")) is None


# --- the pass ---------------------------------------------------------------------------------------------------------


def test_late_facts_reach_earlier_types():
    module = named(f"""{PREFIX}(%a: tensor<?xf32>, %b: tensor<4xf32>) -> tensor<?xf32> {{
      %0 = stablehlo.exponential %a : tensor<?xf32>
      %1 = stablehlo.add %0, %b : (tensor<?xf32>, tensor<4xf32>) -> tensor<?xf32>
      return %1 : tensor<?xf32>
    }}""")
    env = load_env(module)
    for op in list(main_block(module).operations)[:-1]:
        assert dims_of(op.results[0], env) == (Dim.of(4),)
    assert 'lhs = "S0", rhs = "4"' in str(module)


def test_the_relation_is_checked_on_entry():
    module = named(f"""{PREFIX}(%a: tensor<?xf32>, %b: tensor<?xf32>) -> tensor<?xf32> {{
      %0 = stablehlo.add %a, %b : tensor<?xf32>
      return %0 : tensor<?xf32>
    }}""")
    ones = np.ones(3, np.float32)
    assert interpret(module, [ones, ones])[0].shape == (3,)
    with pytest.raises(ShapeConstraintError):
        interpret(module, [ones, np.ones(1, np.float32)])


@pytest.mark.parametrize("left", [0, 1, 5])
@pytest.mark.parametrize("right", [0, 1, 5])
def test_undecided_broadcast_computes_like_numpy(left: int, right: int):
    module = named(f"""{PREFIX}(%a: tensor<?x3xf32>, %b: tensor<?x1xf32>) -> tensor<?x3xf32> {{
      %0 = chlo.broadcast_add %a, %b : (tensor<?x3xf32>, tensor<?x1xf32>) -> tensor<?x3xf32>
      return %0 : tensor<?x3xf32>
    }}""")
    a = np.arange(left * 3, dtype=np.float32).reshape(left, 3)
    b = np.arange(right, dtype=np.float32).reshape(right, 1)
    if 1 in (left, right) or left == right:
        np.testing.assert_array_equal(np.asarray(interpret(module, [a, b])[0]), a + b)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_shape_arithmetic_computes_like_numpy(size: int):
    """Rows 1.. of x, padded by the size in front, reshaped, divided by the size."""
    module = named(f"""{PREFIX}(%x: tensor<?x2xf32>) -> tensor<?xf32> {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c2 = arith.constant 2 : index
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %none = arith.constant dense<0> : tensor<2xindex>
      %ones = arith.constant dense<1> : tensor<2xindex>
      %n = tensor.dim %x, %c0 : tensor<?x2xf32>
      %from = tensor.from_elements %c1, %c0 : tensor<2xindex>
      %to = tensor.from_elements %n, %c2 : tensor<2xindex>
      %low = tensor.from_elements %n, %c0 : tensor<2xindex>
      %a = stablehlo.real_dynamic_slice %x, %from, %to, %ones
        : (tensor<?x2xf32>, tensor<2xindex>, tensor<2xindex>, tensor<2xindex>) -> tensor<?x2xf32>
      %b = stablehlo.dynamic_pad %a, %zero, %low, %none, %none
        : (tensor<?x2xf32>, tensor<f32>, tensor<2xindex>, tensor<2xindex>, tensor<2xindex>) -> tensor<?x2xf32>
      %m = tensor.dim %b, %c0 : tensor<?x2xf32>
      %flat = arith.muli %m, %c2 : index
      %s = tensor.from_elements %flat : tensor<1xindex>
      %c = stablehlo.dynamic_reshape %b, %s : (tensor<?x2xf32>, tensor<1xindex>) -> tensor<?xf32>
      %i = arith.index_cast %n : index to i64
      %t = tensor.from_elements %i : tensor<1xi64>
      %f = stablehlo.convert %t : (tensor<1xi64>) -> tensor<1xf32>
      %d = chlo.broadcast_divide %c, %f : (tensor<?xf32>, tensor<1xf32>) -> tensor<?xf32>
      return %d : tensor<?xf32>
    }}""")
    x = np.arange(size * 2, dtype=np.float32).reshape(size, 2)
    expected = np.concatenate([np.zeros((size, 2), np.float32), x[1:]]).reshape(-1) / np.float32(size)
    np.testing.assert_array_equal(np.asarray(interpret(module, [x])[0]), expected)


def test_sizes_used_as_data_in_a_vector():
    module = named(f"""{PREFIX}(%x: tensor<?x?xf32>) -> tensor<3xi32> {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c7 = arith.constant 7 : i64
      %n = tensor.dim %x, %c0 : tensor<?x?xf32>
      %m = tensor.dim %x, %c1 : tensor<?x?xf32>
      %i = arith.index_cast %n : index to i64
      %j = arith.index_cast %m : index to i64
      %t = tensor.from_elements %i, %c7, %j : tensor<3xi64>
      %r = stablehlo.convert %t : (tensor<3xi64>) -> tensor<3xi32>
      return %r : tensor<3xi32>
    }}""")
    np.testing.assert_array_equal(np.asarray(interpret(module, [np.zeros((2, 5), np.float32)])[0]), [2, 7, 5])


def test_every_data_dependent_size_is_reported_with_its_line():
    text = f"""{PREFIX}(%n: tensor<1xi64>) -> tensor<?xf32> {{
      %0 = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi64>) -> tensor<?xf32> loc("model.py":12:0)
      %1 = "stablehlo.sort"(%0) ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %p = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      }}) {{dimension = 0 : i64}} : (tensor<?xf32>) -> tensor<?xf32> loc("model.py":13:0)
      return %1 : tensor<?xf32>
    }}"""
    with pytest.raises(UnsupportedOpError) as caught:
        named(text)
    assert [op.location for op in caught.value.ops] == ["model.py:12", "model.py:13"]
    assert "depends on tensor data" in str(caught.value)


def test_contradicting_sizes_name_the_op():
    text = """module attributes {disc.symbols = {s0 = {min = 5 : i64}}} {
    func.func @main(%a: tensor<?xf32> {disc.dims = ["s0"]}, %b: tensor<4xf32>) -> tensor<?xf32> {
      %1 = stablehlo.add %a, %b : (tensor<?xf32>, tensor<4xf32>) -> tensor<?xf32> loc("model.py":3:0)
      return %1 : tensor<?xf32>
    }}"""
    with pytest.raises(ShapeConstraintError, match=r"stablehlo.add at model.py:3"):
        named(text)


def test_front_end_symbols():
    module = named("""module attributes {disc.symbols = {s0 = {min = 1 : i64, max = 8 : i64}, s1 = {min = 0 : i64}}} {
    func.func @main(%a: tensor<?x?xf32> {disc.dims = ["2*s0 + 1", "s1"]}, %b: tensor<?xf32> {disc.dims = ["s0"]}) -> tensor<?x?xf32> {
      return %a : tensor<?x?xf32>
    }}""")
    env = load_env(module)
    assert env.sources == {"S0": "arg0.1", "S1": "arg1.0"}
    first, second = main_block(module).arguments
    assert [str(dim) for dim in dims_of(first, env)] == ["S1 * 2 + 1", "S0"]
    assert [str(dim) for dim in dims_of(second, env)] == ["S1"]
    assert env.range(dims_of(second, env)[0]) == (1, 8)


def test_a_symbol_that_is_only_found_inside_an_expression():
    module = named("""module attributes {disc.symbols = {s0 = {min = 1 : i64, max = 8 : i64}}} {
    func.func @main(%a: tensor<?x?xf32> {disc.dims = ["2*s0 + 1", "s0 * 3"]}) -> tensor<?x?xf32> {
      return %a : tensor<?x?xf32>
    }}""")
    env = load_env(module)
    dims = dims_of(main_block(module).arguments[0], env)
    assert env.sources == {"S0": "arg0.0"}
    assert env.range(dims[0]) == (3, 17)
    assert [dim.evaluate({"S0": 9}) for dim in dims] == [9, 12]


# --- symbols, types, attributes ---------------------------------------------------------------------------------------

MODULE = """
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, max = 64 : i64, divisor = 8 : i64, source = "arg0.1"} : () -> ()
func.func @main(%a: tensor<?x?xf32, [@S0, @S1]>) -> tensor<?x?xf32, [@S0, @S1]> {
  return %a : tensor<?x?xf32, [@S0, @S1]>
}"""


def test_new_sizes_get_derived_symbols_once():
    module = parse_module(MODULE)
    env = load_env(module)
    rows, columns = dims_of(main_block(module).arguments[0], env)
    kind = tensor_type([rows * columns, Dim.of(3), columns * rows], ir.F32Type.get(), env)
    assert str(kind) == "tensor<?x3x?xf32, [@S2, 3, @S2]>"
    assert 'divisor = 8 : i64, expr = "S0 * S1", min = 0 : i64, sym_name = "S2"' in str(module)
    again = load_env(module)
    assert again.simplify(again.parse("S2")) == again.parse("S0 * S1")
    assert again.symbol_name(again.parse("S1 * S0")) == "S2"


def test_a_new_fact_unites_names():
    module = parse_module(MODULE)
    env = load_env(module)
    argument = main_block(module).arguments[0]
    rows, columns = dims_of(argument, env)
    assert (env.symbol_name(rows), env.symbol_name(columns)) == ("S0", "S1")
    env.equate(rows, columns)
    assert dims_of(argument, env) == (rows, rows)
    assert (env.symbol_name(rows), env.symbol_name(columns)) == ("S0", "S0")


def test_store_and_load_keep_the_facts():
    module = parse_module(MODULE)
    env = load_env(module)
    env.equate(env.parse("S0"), env.parse("S1"))
    store_env(module, env)
    text = str(module)
    again = load_env(module)
    assert again.simplify(again.parse("S1")) == again.parse("S0")
    assert (again.range(again.parse("S0")), again.divisor(again.parse("S0"))) == ((0, 64), 8)
    store_env(module, again)
    assert str(module) == text


@pytest.mark.parametrize(
    "text",
    ["dense<[1.0, -2.5, 0x7F80]> : tensor<3xbf16>", "dense<1.5> : tensor<2x2xbf16>", "dense<[true, false, true]> : tensor<3xi1>",
     "dense<[1, 255]> : tensor<2xui8>", "dense<[[1, -2], [3, 4]]> : tensor<2x2xi64>", "dense<[1.5, 2.5]> : tensor<2xf16>"],
)  # fmt: skip
def test_dense_attributes_survive_numpy(text: str):
    attribute = ir.Attribute.parse(text)
    array = dense_to_array(attribute)
    assert array_to_dense(array, ir.RankedTensorType(attribute.type)) == attribute


def test_location_text():
    module = parse_module("""func.func @main() {
      return loc("encoder/layer"("bert.py":12:4))
    }""")
    assert location_text(main_block(module).operations[0].operation) == "bert.py:12"


# --- stages and the pass manager --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("%0 = stablehlo.exponential %a : (tensor<?xf32, [@S0]>) -> tensor<?xf32>", "does not name its dims"),
        ("%0 = stablehlo.exponential %a : (tensor<?xf32, [@S0]>) -> tensor<?xf32, [@S9]>", "neither its size nor a defined symbol"),
        ("%0 = arith.addf %a, %a : tensor<?xf32, [@S0]>", "no such op is left"),
        ('%0 = "disc.slice"(%a) {starts = ["0"]} : (tensor<?xf32, [@S0]>) -> tensor<?xf32, [@S0]>', "lacks the attribute 'strides'"),
    ],
)
def test_illegal_ops_are_named(body: str, fault: str):
    module = parse_module(f"""
    "disc.symbolic_dim"() {{sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"}} : () -> ()
    func.func @main(%a: tensor<?xf32, [@S0]>) {{
      {body} loc("model.py":7:0)
      return
    }}""")
    assert stage_of(module) == "named"
    with pytest.raises(CompilerBug, match=rf"at model.py:7 is not legal at stage named: .*{re.escape(fault)}"):
        check_stage(module, "named")


class Failing(Pass):
    name = "failing"

    def apply(self, module: ir.Module, state: CompileState) -> None:
        main_block(module).operations[0].operation.erase()
        raise IndexError("oops")


def test_a_failing_pass_leaves_a_reproducer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    module = parse_module(MODULE)
    with pytest.raises(CompilerBug, match=r"pass failing: IndexError: oops") as caught:
        run_passes(module, [Failing()], CompileState())
    (file,) = tmp_path.iterdir()
    assert f"disc debug replay {file}" in str(caught.value)
    report = read_report(file)
    assert (report.where, report.arguments, report.error) == ("pass failing", "--passes=failing", "IndexError: oops")
    assert stage_of(parse_module(report.module)) == "named"


def test_dumps_are_numbered(tmp_path: Path):
    module = parse_module(MODULE)
    run_passes(module, parse_passes("resolve-broadcasts,mlir:cse"), CompileState(dump=tmp_path / "dump"))
    assert [path.name for path in sorted((tmp_path / "dump").iterdir())] == ["001-resolve-broadcasts.mlir", "002-mlir-cse.mlir"]
    first = (tmp_path / "dump" / "001-resolve-broadcasts.mlir").read_text()
    assert re.match(r"// resolve-broadcasts: \d+\.\d ms\n", first)
    parse_module(first)


def test_text_that_is_no_ir():
    with pytest.raises(UnsupportedFormatError, match="not valid IR"):
        parse_module("func.func @main(")
