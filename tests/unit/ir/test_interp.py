"""The interpreter against StableHLO's own reference interpreter, PyTorch, and by hand where neither applies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.errors import InputRankError, InputTypeError, ShapeConstraintError
from disc.ir.bf16 import bf16_bits, bf16_values, round_to_bf16
from disc.ir.dialect import disc_context
from disc.ir.graph import dense_array
from disc.ir.interp.oracle import interpret
from disc.ir.interp.values import constant_attribute, constant_value, is_splat
from disc.ir.ops import dense_to_array
from disc.ir.stages import parse_module
from disc.ir.weights import Weight, WeightTable

Array = np.ndarray[Any, Any]
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.3, -0.7, 3.7, 1e-42, 88.0, -105.0, np.inf, -np.inf, np.nan], np.float32
)  # fmt: skip


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with disc_context():
        yield


def run(text: str, *inputs: Array, weights: WeightTable | None = None) -> list[Array]:
    return interpret(parse_module(text), inputs, weights)


def reference(text: str, *inputs: Array) -> list[Array]:
    """What StableHLO's reference interpreter says."""
    module = ir.Module.parse(text)
    types = ir.FunctionType(ir.TypeAttr(module.body.operations[0].attributes["function_type"]).value).inputs
    arguments = [
        ir.DenseElementsAttr.get(np.ascontiguousarray(x), type=ir.ShapedType(t).element_type, shape=list(x.shape))
        for x, t in zip(inputs, types, strict=True)
    ]
    return [np.array(result) for result in _stablehlo.eval_module(module, arguments)]


def agree(text: str, *inputs: Array) -> None:
    for ours, theirs in zip(run(text, *inputs), reference(text, *inputs), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=3e-6, atol=1e-6)


def function(arguments: str, body: str, results: str) -> str:
    return f"func.func @main({arguments}) -> {results} {{\n{body}\n}}"


def unary(op: str, element: str, size: int, result: str | None = None) -> str:
    kind, out = f"tensor<{size}x{element}>", f"tensor<{size}x{result or element}>"
    return function(f"%x: {kind}", f'%r = "{op}"(%x) : ({kind}) -> {out}\nreturn %r : {out}', out)


def binary(op: str, element: str, size: int) -> str:
    kind = f"tensor<{size}x{element}>"
    return function(f"%x: {kind}, %y: {kind}", f'%r = "{op}"(%x, %y) : ({kind}, {kind}) -> {kind}\nreturn %r : {kind}', kind)


@pytest.mark.parametrize(
    "name",
    [
        "abs",
        "cbrt",
        "ceil",
        "cosine",
        "exponential",
        "exponential_minus_one",
        "floor",
        "log",
        "log_plus_one",
        "logistic",
        "negate",
        "round_nearest_afz",
        "round_nearest_even",
        "rsqrt",
        "sign",
        "sine",
        "sqrt",
        "tan",
        "tanh",
    ],
)
def test_float_unary(name: str) -> None:
    values = SPECIAL[:-3] if name in ("sine", "cosine", "tan") else SPECIAL
    agree(unary(f"stablehlo.{name}", "f32", values.size), values)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "remainder", "power", "maximum", "minimum", "atan2"])
def test_float_binary(name: str) -> None:
    left, right = (grid.reshape(-1) for grid in np.meshgrid(SPECIAL, SPECIAL))
    agree(binary(f"stablehlo.{name}", "f32", left.size), left, right)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "and", "or", "xor"])
@pytest.mark.parametrize("element", ["i8", "ui8", "i32", "i64"])
def test_integer_binary(name: str, element: str) -> None:
    dtype = np.dtype({"i8": "i1", "ui8": "u1", "i32": "i4", "i64": "i8"}[element])
    limits = np.iinfo(dtype)
    values = np.array([0, 1, 2, 3, 7, limits.max, limits.min], dtype)
    values = np.concatenate([values, np.array([-1, -2, -7]).astype(dtype)])
    left, right = (grid.reshape(-1) for grid in np.meshgrid(values, values))
    if name in ("divide", "remainder"):
        # The reference interpreter traps on these two.
        legal = (right != 0) & ~((left == limits.min) & (right == np.array(-1).astype(dtype)))
        left, right = left[legal], right[legal]
    agree(binary(f"stablehlo.{name}", element, left.size), left, right)


@pytest.mark.parametrize("name", ["shift_left", "shift_right_logical", "shift_right_arithmetic"])
def test_shifts(name: str) -> None:
    left, right = (g.reshape(-1) for g in np.meshgrid(np.array([1, -1, 77, -128], np.int8), np.array([0, 1, 3, 7, 8, 100], np.int8)))
    agree(binary(f"stablehlo.{name}", "i8", left.size), left, right)


@pytest.mark.parametrize("name", ["popcnt", "count_leading_zeros", "not", "negate", "sign", "abs"])
def test_integer_unary(name: str) -> None:
    agree(unary(f"stablehlo.{name}", "i16", 6), np.array([0, 1, -1, 300, -300, 32767], np.int16))


def test_integer_power_of_negative_exponent() -> None:
    (result,) = run(binary("stablehlo.power", "i32", 5), np.array([2, 1, -1, -1, 3], np.int32), np.array([-1, -3, -2, -3, 4], np.int32))
    assert result.tolist() == [0, 1, 1, -1, 81]


@pytest.mark.parametrize(
    ("name", "eager"),
    [
        ("erf", torch.erf), ("erfc", torch.erfc), ("erf_inv", torch.erfinv), ("lgamma", torch.lgamma), ("digamma", torch.digamma),
        ("sinh", torch.sinh), ("cosh", torch.cosh), ("asin", torch.asin), ("acos", torch.acos), ("atan", torch.atan),
        ("asinh", torch.asinh), ("acosh", torch.acosh), ("atanh", torch.atanh), ("tan", torch.tan), ("square", torch.square),
    ],
)  # fmt: skip
def test_chlo_unary(name: str, eager: Any) -> None:
    values = np.concatenate([SPECIAL, np.linspace(-4.9, 4.9, 40).astype(np.float32), np.linspace(-0.999, 0.999, 30).astype(np.float32)])
    expected = eager(torch.from_numpy(values)).numpy()
    (result,) = run(unary(f"chlo.{name}", "f32", values.size), values)
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-6)


def test_chlo_predicates() -> None:
    assert run(unary("chlo.is_inf", "f32", SPECIAL.size, "i1"), SPECIAL)[0].sum() == 2
    assert run(unary("chlo.is_neg_inf", "f32", SPECIAL.size, "i1"), SPECIAL)[0].sum() == 1
    assert run(unary("stablehlo.is_finite", "f32", SPECIAL.size, "i1"), SPECIAL)[0].sum() == SPECIAL.size - 3


@pytest.mark.parametrize("kind", ["FLOAT", "TOTALORDER"])
@pytest.mark.parametrize("direction", ["EQ", "NE", "LT", "LE", "GT", "GE"])
def test_compare(direction: str, kind: str) -> None:
    left, right = (grid.reshape(-1) for grid in np.meshgrid(SPECIAL, SPECIAL))
    tensor, out = f"tensor<{left.size}xf32>", f"tensor<{left.size}xi1>"
    text = function(
        f"%x: {tensor}, %y: {tensor}",
        f"%r = stablehlo.compare {direction}, %x, %y, {kind} : ({tensor}, {tensor}) -> {out}\nreturn %r : {out}",
        out,
    )
    (result,) = run(text, left, right)
    if kind == "FLOAT":
        expected = {"EQ": left == right, "NE": left != right, "LT": left < right}.get(direction)
        expected = expected if expected is not None else {"LE": left <= right, "GT": left > right, "GE": left >= right}[direction]
    else:
        order = [np.where(x.view(np.int32) < 0, x.view(np.int32).astype(np.int64) ^ 0x7FFFFFFF, x.view(np.int32)) for x in (left, right)]
        expected = {"EQ": order[0] == order[1], "NE": order[0] != order[1], "LT": order[0] < order[1]}.get(direction)
        other = {"LE": order[0] <= order[1], "GT": order[0] > order[1], "GE": order[0] >= order[1]}
        expected = expected if expected is not None else other[direction]
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("target", ["i1", "i8", "i32", "i64", "f16", "f64", "f32"])
@pytest.mark.parametrize("source", ["i1", "i8", "i32", "f16", "f32", "f64"])
def test_convert_inside_the_range(source: str, target: str) -> None:
    dtype = np.dtype({"i1": "?", "i8": "i1", "i32": "i4", "f16": "f2", "f32": "f4", "f64": "f8"}[source])
    values = np.array([0.0, 1.0, 1.75, 3.5, 100.0]).astype(dtype)
    agree(unary("stablehlo.convert", source, values.size, target), values)


def test_convert_saturates() -> None:
    values = np.array([1e30, -1e30, np.nan, np.inf, -1.5, 2147483520.0], np.float32)
    (result,) = run(unary("stablehlo.convert", "f32", 6, "i32"), values)
    assert result.tolist() == [2147483647, -2147483648, 0, 2147483647, -1, 2147483520]


def test_bf16_rounds_as_torch() -> None:
    values = np.random.default_rng(0).integers(0, 2**32, 10000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    expected = torch.from_numpy(values).bfloat16()
    np.testing.assert_array_equal(round_to_bf16(values), expected.float().numpy())
    (result,) = run(unary("stablehlo.convert", "f32", values.size, "bf16"), values)
    np.testing.assert_array_equal(result, expected.float().numpy())
    product = run(binary("stablehlo.multiply", "bf16", values.size), result, result[::-1].copy())[0]
    np.testing.assert_array_equal(product, (expected * expected.flip(0)).float().numpy())


def test_bf16_constants_survive_both_ways() -> None:
    bits = np.random.default_rng(1).integers(0, 2**16, 300).astype(np.uint16)
    for part in (bits, bits[:7], bits[:1], np.repeat(bits[:1], 5)):
        attribute = constant_attribute(bf16_values(part), ir.Type.parse(f"tensor<{part.size}xbf16>"))
        read = bf16_bits(constant_value(attribute))
        numbers = ~np.isnan(bf16_values(part))
        np.testing.assert_array_equal(read[numbers], part[numbers])


def test_constants_keep_their_named_type() -> None:
    type_ = ir.Type.parse("tensor<2x3xi1, [2, 3]>")
    mixed, same = np.array([[True, False, True], [False, True, True]]), np.ones((2, 3), np.bool_)
    for value in (mixed, same):
        attribute = constant_attribute(value, type_)
        assert attribute.type == type_  # pyright: ignore[reportAttributeAccessIssue]
        np.testing.assert_array_equal(constant_value(attribute), value)
    assert is_splat(same) and not is_splat(np.array([0.0, -0.0])) and not is_splat(np.zeros(0))


@pytest.mark.parametrize(
    ("numbers", "left", "right", "out"),
    [
        ("contracting_dims = [1] x [0]", (3, 5), (5, 7), (3, 7)),
        ("contracting_dims = [0] x [1]", (5, 3), (7, 5), (3, 7)),
        ("batching_dims = [0] x [1], contracting_dims = [2] x [0]", (2, 3, 5), (5, 2, 4), (2, 3, 4)),
        ("contracting_dims = [0, 2] x [2, 0]", (2, 3, 5), (5, 4, 2), (3, 4)),
        ("contracting_dims = [] x []", (2,), (3,), (2, 3)),
    ],
)
def test_dot_general(numbers: str, left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...]) -> None:
    a, b, c = (f"tensor<{'x'.join(map(str, (*shape, 'f32')))}>" for shape in (left, right, out))
    body = f"%r = stablehlo.dot_general %x, %y, {numbers} : ({a}, {b}) -> {c}\nreturn %r : {c}"
    generator = np.random.default_rng(2)
    inputs = [generator.standard_normal(shape).astype(np.float32) for shape in (left, right)]
    agree(function(f"%x: {a}, %y: {b}", body, c), *inputs)


def test_dot_over_nothing_is_zero() -> None:
    a, b, c = "tensor<3x0xf32>", "tensor<0x7xf32>", "tensor<3x7xf32>"
    body = f"%r = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : ({a}, {b}) -> {c}\nreturn %r : {c}"
    (result,) = run(function(f"%x: {a}, %y: {b}", body, c), np.zeros((3, 0), np.float32), np.zeros((0, 7), np.float32))
    np.testing.assert_array_equal(result, np.zeros((3, 7), np.float32))


CONVOLUTION = """
func.func @main(%x: tensor<2x{ci}x9x8xf32>, %k: tensor<{co}x{ck}x3x2xf32>) -> tensor<{out}xf32> {{
  %r = stablehlo.convolution(%x, %k) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
    window = {{{window}}} {{batch_group_count = {bg} : i64, feature_group_count = {fg} : i64}}
    : (tensor<2x{ci}x9x8xf32>, tensor<{co}x{ck}x3x2xf32>) -> tensor<{out}xf32>
  return %r : tensor<{out}xf32>
}}"""


@pytest.mark.parametrize(
    "case",
    [
        {"window": "stride = [1, 1]", "ci": 4, "ck": 4, "co": 6, "fg": 1, "bg": 1, "out": "2x6x7x7"},
        {"window": "stride = [2, 1], pad = [[1, 1], [0, 2]], rhs_dilate = [2, 3]", "ci": 4, "ck": 2, "co": 6, "fg": 2, "bg": 1,
         "out": "2x6x4x7"},
        {"window": "stride = [1, 1], pad = [[2, -1], [1, 1]], lhs_dilate = [2, 2]", "ci": 4, "ck": 4, "co": 6, "fg": 1, "bg": 1,
         "out": "2x6x16x16"},
        {"window": "stride = [1, 1], reverse = [true, true]", "ci": 4, "ck": 1, "co": 8, "fg": 4, "bg": 1, "out": "2x8x7x7"},
        {"window": "stride = [1, 1]", "ci": 4, "ck": 4, "co": 6, "fg": 1, "bg": 2, "out": "1x6x7x7"},
    ],
)  # fmt: skip
def test_convolution(case: dict[str, Any]) -> None:
    generator = np.random.default_rng(3)
    x = generator.standard_normal((2, case["ci"], 9, 8)).astype(np.float32)
    kernel = generator.standard_normal((case["co"], case["ck"], 3, 2)).astype(np.float32)
    agree(CONVOLUTION.format(**case), x, kernel)


def test_convolution_channels_last() -> None:
    text = """
    func.func @main(%x: tensor<2x9x8x4xf32>, %k: tensor<3x2x4x6xf32>) -> tensor<2x7x7x6xf32> {
      %r = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1]}
        {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<2x9x8x4xf32>, tensor<3x2x4x6xf32>) -> tensor<2x7x7x6xf32>
      return %r : tensor<2x7x7x6xf32>
    }"""
    generator = np.random.default_rng(4)
    agree(text, generator.standard_normal((2, 9, 8, 4)).astype(np.float32), generator.standard_normal((3, 2, 4, 6)).astype(np.float32))


REDUCE = """
func.func @main(%x: tensor<{a}x{b}x{c}xf32>) -> tensor<{b}xf32> {{
  %z = stablehlo.constant dense<{init}> : tensor<f32>
  %r = stablehlo.reduce(%x init: %z) applies stablehlo.{op} across dimensions = [0, 2] : (tensor<{a}x{b}x{c}xf32>, tensor<f32>) -> tensor<{b}xf32>
  return %r : tensor<{b}xf32>
}}"""


@pytest.mark.parametrize(("op", "init"), [("add", "0.0"), ("multiply", "1.0"), ("maximum", "0xFF800000"), ("minimum", "0x7F800000")])
@pytest.mark.parametrize(("a", "b", "c"), [(3, 4, 5), (1, 2, 1), (0, 3, 2), (7, 0, 2)])
def test_reduce(op: str, init: str, a: int, b: int, c: int) -> None:
    agree(REDUCE.format(op=op, init=init, a=a, b=b, c=c), np.random.default_rng(5).standard_normal((a, b, c)).astype(np.float32))


def test_reduce_of_two_operands_is_argmax() -> None:
    text = """
    func.func @main(%x: tensor<3x7xf32>) -> (tensor<3xf32>, tensor<3xi64>) {
      %i = stablehlo.iota dim = 1 : tensor<3x7xi64>
      %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %zero = stablehlo.constant dense<0> : tensor<i64>
      %r:2 = "stablehlo.reduce"(%x, %i, %low, %zero) ({
      ^bb0(%a: tensor<f32>, %ai: tensor<i64>, %b: tensor<f32>, %bi: tensor<i64>):
        %ge = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
        %v = stablehlo.select %ge, %a, %b : tensor<i1>, tensor<f32>
        %w = stablehlo.select %ge, %ai, %bi : tensor<i1>, tensor<i64>
        stablehlo.return %v, %w : tensor<f32>, tensor<i64>
      }) {dimensions = array<i64: 1>} : (tensor<3x7xf32>, tensor<3x7xi64>, tensor<f32>, tensor<i64>) -> (tensor<3xf32>, tensor<3xi64>)
      return %r#0, %r#1 : tensor<3xf32>, tensor<3xi64>
    }"""
    x = np.random.default_rng(6).standard_normal((3, 7)).astype(np.float32)
    agree(text, x)
    assert run(text, x)[1].tolist() == x.argmax(1).tolist()


def test_reduce_window_is_max_pooling() -> None:
    text = """
    func.func @main(%x: tensor<2x3x9x9xf32>) -> tensor<2x3x5x4xf32> {
      %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %r = "stablehlo.reduce_window"(%x, %low) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %m = stablehlo.maximum %a, %b : tensor<f32>
        stablehlo.return %m : tensor<f32>
      }) {window_dimensions = array<i64: 1, 1, 3, 2>, window_strides = array<i64: 1, 1, 2, 2>, window_dilations = array<i64: 1, 1, 1, 2>,
          padding = dense<[[0, 0], [0, 0], [1, 1], [0, 0]]> : tensor<4x2xi64>} : (tensor<2x3x9x9xf32>, tensor<f32>) -> tensor<2x3x5x4xf32>
      return %r : tensor<2x3x5x4xf32>
    }"""
    agree(text, np.random.default_rng(7).standard_normal((2, 3, 9, 9)).astype(np.float32))


GATHER = """
func.func @main(%x: tensor<3x4x2x2xf32>, %i: tensor<2x2x3x2xi64>) -> tensor<2x2x3x2x2xf32> {
  %r = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [3, 4], collapsed_slice_dims = [1],
    operand_batching_dims = [3], start_indices_batching_dims = [1], start_index_map = [0, 2], index_vector_dim = 3>,
    slice_sizes = array<i64: 2, 1, 2, 1>} : (tensor<3x4x2x2xf32>, tensor<2x2x3x2xi64>) -> tensor<2x2x3x2x2xf32>
  return %r : tensor<2x2x3x2x2xf32>
}"""


def test_gather_clamps() -> None:
    generator = np.random.default_rng(8)
    agree(GATHER, generator.standard_normal((3, 4, 2, 2)).astype(np.float32), generator.integers(-2, 5, (2, 2, 3, 2)))


@pytest.mark.parametrize("body", ["%m = stablehlo.add %a, %b", "%m = stablehlo.maximum %a, %b", "%m = stablehlo.negate %b"])
def test_scatter(body: str) -> None:
    text = f"""
    func.func @main(%x: tensor<5x4xf32>, %i: tensor<6x1xi64>, %u: tensor<6x3xf32>) -> tensor<5x4xf32> {{
      %r = "stablehlo.scatter"(%x, %i, %u) ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        {body} : tensor<f32>
        stablehlo.return %m : tensor<f32>
      }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
            scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}}
         : (tensor<5x4xf32>, tensor<6x1xi64>, tensor<6x3xf32>) -> tensor<5x4xf32>
      return %r : tensor<5x4xf32>
    }}"""
    generator = np.random.default_rng(9)
    x, u = generator.standard_normal((5, 4)).astype(np.float32), generator.standard_normal((6, 3)).astype(np.float32)
    agree(text, x, np.array([[1], [4], [1], [-1], [1], [7]]), u)


def test_select_and_scatter_is_the_gradient_of_pooling() -> None:
    text = """
    func.func @main(%x: tensor<6x6xf32>, %s: tensor<3x3xf32>) -> tensor<6x6xf32> {
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %r = "stablehlo.select_and_scatter"(%x, %s, %z) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %p = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      }, {
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %m = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %m : tensor<f32>
      }) {window_dimensions = array<i64: 3, 3>, window_strides = array<i64: 2, 2>,
          padding = dense<[[1, 0], [0, 1]]> : tensor<2x2xi64>} : (tensor<6x6xf32>, tensor<3x3xf32>, tensor<f32>) -> tensor<6x6xf32>
      return %r : tensor<6x6xf32>
    }"""
    generator = np.random.default_rng(10)
    agree(text, generator.standard_normal((6, 6)).astype(np.float32), generator.standard_normal((3, 3)).astype(np.float32))


STRUCTURE = """
func.func @main(%x: tensor<3x4xf32>, %i: tensor<i64>, %j: tensor<i64>, %u: tensor<2x2xf32>) -> (tensor<2x2xf32>, tensor<3x4xf32>,
    tensor<6x5xf32>, tensor<2x2xf32>, tensor<4x5x3xf32>, tensor<3x4xf32>, tensor<2x6xf32>, tensor<3x5xi32>) {
  %z = stablehlo.constant dense<7.0> : tensor<f32>
  %0 = stablehlo.dynamic_slice %x, %i, %j, sizes = [2, 2] : (tensor<3x4xf32>, tensor<i64>, tensor<i64>) -> tensor<2x2xf32>
  %1 = stablehlo.dynamic_update_slice %x, %u, %i, %j : (tensor<3x4xf32>, tensor<2x2xf32>, tensor<i64>, tensor<i64>) -> tensor<3x4xf32>
  %2 = stablehlo.pad %x, %z, low = [-1, 1], high = [2, 0], interior = [1, 0] : (tensor<3x4xf32>, tensor<f32>) -> tensor<6x5xf32>
  %3 = stablehlo.slice %x [1:3, 0:4:2] : (tensor<3x4xf32>) -> tensor<2x2xf32>
  %4 = stablehlo.broadcast_in_dim %x, dims = [2, 0] : (tensor<3x4xf32>) -> tensor<4x5x3xf32>
  %5 = stablehlo.reverse %x, dims = [1] : tensor<3x4xf32>
  %t = stablehlo.transpose %x, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
  %6 = stablehlo.reshape %t : (tensor<4x3xf32>) -> tensor<2x6xf32>
  %7 = stablehlo.iota dim = 1 : tensor<3x5xi32>
  return %0, %1, %2, %3, %4, %5, %6, %7 : tensor<2x2xf32>, tensor<3x4xf32>, tensor<6x5xf32>, tensor<2x2xf32>, tensor<4x5x3xf32>,
    tensor<3x4xf32>, tensor<2x6xf32>, tensor<3x5xi32>
}"""


@pytest.mark.parametrize("start", [0, 1, 9, -3])
def test_ops_that_move_data(start: int) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    u = np.array([[50, 51], [52, 53]], np.float32)
    agree(STRUCTURE, x, np.array(start), np.array(start), u)


NAMED = """
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, max = 64 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg1"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S2", min = 0 : i64, divisor = 3 : i64, source = "arg2.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S3", min = 0 : i64, divisor = 4 : i64, expr = "S0 * 4"} : () -> ()
"disc.relation"() {lhs = "S0 * 3", rhs = "S2"} : () -> ()
func.func @main(%x: tensor<?x4xf32, [@S0, 4]>, %n: tensor<i64>, %y: tensor<?xf32, [@S2]>)
    -> (tensor<?xf32, [@S3]>, tensor<?x?xi64, [@S0, @S1]>, tensor<?x3xf32, [@S0, 3]>, tensor<i64>, tensor<?x4xf32, [@S0, 4]>,
        tensor<?x4xf32, [@S0, 4]>) {
  %0 = "disc.reshape"(%x) : (tensor<?x4xf32, [@S0, 4]>) -> tensor<?xf32, [@S3]>
  %1 = "disc.iota"() {dim = 1 : i64} : () -> tensor<?x?xi64, [@S0, @S1]>
  %2 = "disc.slice"(%x) {starts = ["0", "S1 - S1 + 1"], strides = array<i64: 1, 1>} : (tensor<?x4xf32, [@S0, 4]>) -> tensor<?x3xf32, [@S0, 3]>
  %3 = "disc.dim_value"() {expr = "S0 * S1"} : () -> tensor<i64>
  %4 = "disc.cumulative"(%x) {dim = 0 : i64, kind = "sum"} : (tensor<?x4xf32, [@S0, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  %w = "disc.weight"() {name = "w"} : () -> tensor<1x4xf32, [1, 4]>
  %5 = "disc.broadcast_in_dim"(%w) {dims = array<i64: 0, 1>, maybe = array<i64>} : (tensor<1x4xf32, [1, 4]>) -> tensor<?x4xf32, [@S0, 4]>
  return %0, %1, %2, %3, %4, %5 : tensor<?xf32, [@S3]>, tensor<?x?xi64, [@S0, @S1]>, tensor<?x3xf32, [@S0, 3]>, tensor<i64>,
    tensor<?x4xf32, [@S0, 4]>, tensor<?x4xf32, [@S0, 4]>
}"""


@pytest.mark.parametrize("n", [0, 1, 5])
def test_named_stage(n: int) -> None:
    weights = WeightTable({"w": Weight(np.arange(4, dtype=np.float32)[None], "f32")})
    x = np.random.default_rng(11).standard_normal((n, 4)).astype(np.float32)
    flat, iota, part, value, scan, spread = run(NAMED, x, np.array(2), np.zeros(3 * n, np.float32), weights=weights)
    np.testing.assert_array_equal(flat, x.reshape(-1))
    np.testing.assert_array_equal(iota, np.broadcast_to(np.arange(2), (n, 2)))
    np.testing.assert_array_equal(part, x[:, 1:])
    assert value == 2 * n
    np.testing.assert_allclose(scan, np.cumsum(x, 0), rtol=1e-6)
    np.testing.assert_array_equal(spread, np.broadcast_to(np.arange(4, dtype=np.float32), (n, 4)))


def test_wrong_inputs_are_refused() -> None:
    x, n, y = np.zeros((2, 4), np.float32), np.array(2), np.zeros(6, np.float32)
    with pytest.raises(InputRankError, match="2 inputs given, 3 expected"):
        run(NAMED, x, n)
    with pytest.raises(InputRankError, match="input 0 has 1 dims, 2 are expected"):
        run(NAMED, x[0], n, y)
    with pytest.raises(InputTypeError, match="input 2 holds float64"):
        run(NAMED, x, n, y.astype(np.float64))
    with pytest.raises(ShapeConstraintError, match="S0 is 65, above its maximum of 64"):
        run(NAMED, np.zeros((65, 4), np.float32), n, np.zeros(195, np.float32))
    with pytest.raises(ShapeConstraintError, match="not divisible by 3"):
        run(NAMED, x, n, np.zeros(7, np.float32))
    with pytest.raises(ShapeConstraintError, match="does not hold: 6 and 9"):
        run(NAMED, x, n, np.zeros(9, np.float32))
    with pytest.raises(ShapeConstraintError, match="input 0 has the sizes"):
        run(NAMED, np.zeros((2, 5), np.float32), n, y)


MAYBE = """
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg1.0"} : () -> ()
func.func @main(%x: tensor<?xf32, [@S0]>, %y: tensor<?xf32, [@S1]>) -> tensor<?xf32, [@S1]> {
  %0 = "disc.broadcast_in_dim"(%x) {dims = array<i64: 0>, maybe = array<i64: 0>} : (tensor<?xf32, [@S0]>) -> tensor<?xf32, [@S1]>
  %1 = stablehlo.add %0, %y : tensor<?xf32, [@S1]>
  return %1 : tensor<?xf32, [@S1]>
}"""


def test_broadcast_decided_at_run_time() -> None:
    y = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(run(MAYBE, np.array([5], np.float32), y)[0], y + 5)
    np.testing.assert_array_equal(run(MAYBE, y, y)[0], y + y)
    with pytest.raises(ShapeConstraintError, match="a dim of size 2 cannot be broadcast to size 3"):
        run(MAYBE, y[:2], y)


FUSION = """
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
func.func @main(%x: tensor<?x2xf32, [@S0, 2]>, %y: tensor<2xf32, [2]>) -> (tensor<?xf32, [@S0]>, tensor<?x2xf32, [@S0, 2]>) {
  %f:2 = "kernel.fusion"(%x, %y) ({
  ^bb0(%a: tensor<?x2xf32, [@S0, 2]>, %b: tensor<2xf32, [2]>):
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = "disc.broadcast_in_dim"(%b) {dims = array<i64: 1>, maybe = array<i64>} : (tensor<2xf32, [2]>) -> tensor<?x2xf32, [@S0, 2]>
    %1 = stablehlo.add %a, %0 : tensor<?x2xf32, [@S0, 2]>
    %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<?x2xf32, [@S0, 2]>, tensor<f32>) -> tensor<?xf32, [@S0]>
    "kernel.yield"(%2, %1) : (tensor<?xf32, [@S0]>, tensor<?x2xf32, [@S0, 2]>) -> ()
  }) {kind = "loop", name = "f"} : (tensor<?x2xf32, [@S0, 2]>, tensor<2xf32, [2]>) -> (tensor<?xf32, [@S0]>, tensor<?x2xf32, [@S0, 2]>)
  return %f#0, %f#1 : tensor<?xf32, [@S0]>, tensor<?x2xf32, [@S0, 2]>
}"""


@pytest.mark.parametrize("n", [0, 1, 7])
def test_fusion(n: int) -> None:
    x, y = np.arange(2 * n, dtype=np.float32).reshape(n, 2), np.array([3, 5], np.float32)
    rows, total = run(FUSION, x, y)
    np.testing.assert_array_equal(total, x + y)
    np.testing.assert_array_equal(rows, (x + y).sum(1))


BF16 = round_to_bf16(np.concatenate([SPECIAL, np.array([1.2549e32, -1.3203, 6.39468e-36, 0.1, -3.3e38, 1.17e-38], np.float32)]))


@pytest.mark.parametrize("shape", [[], [1], [2], [3, 8], [24, 24]])
def test_bf16_constants_are_read_to_the_bit(shape: list[int]) -> None:
    """However they are printed: as decimals, which are only near their value, as bits, or packed when there are many."""
    values = np.resize(BF16[5:], shape) if shape != [3, 8] else BF16.reshape(shape)
    attribute = constant_attribute(values, ir.RankedTensorType.get(shape, ir.BF16Type.get()))
    np.testing.assert_array_equal(dense_to_array(attribute), bf16_bits(values))
    np.testing.assert_array_equal(dense_array(attribute), bf16_bits(values))
    np.testing.assert_array_equal(bf16_bits(constant_value(attribute)), bf16_bits(values))


@pytest.mark.parametrize("value", BF16)
def test_bf16_splats_are_read_to_the_bit(value: float) -> None:
    values = np.full((2, 3), value, np.float32)
    attribute = constant_attribute(values, ir.RankedTensorType.get([2, 3], ir.BF16Type.get()))
    for bits in (dense_to_array(attribute), dense_array(attribute), bf16_bits(constant_value(attribute))):
        np.testing.assert_array_equal(bits, bf16_bits(values))
