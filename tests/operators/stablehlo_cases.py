"""A program for every op of the StableHLO specification, with letters for dynamic dims (`tests/diff/stablehlo_oracle.py`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from compiled import Array
from stablehlo_oracle import OracleProgram

import disc
from disc.errors import CompilerBug, DiscError, UnsupportedOpError
from disc.frontend.hlo.forms import COLLECTIVES
from tests.operators.op_rows import COMPILED, FAULT, IN_PART, REFUSED, Row, route

SIZES = (3, 1, 0, 17)  # of N
FLOATS, SIGNED, INTEGERS = ("f32", "f64", "bf16"), ("i64",), ("i64", "ui8")
NUMBERS, ALL, BITS = ("f32", "bf16", "i64", "ui8"), ("f32", "bf16", "i64", "i1"), (*INTEGERS, "i1")
TOLERANCE = 2e-6

Case = tuple[Sequence[str], Callable[[str], str]]  # element types, and the program of one


def _main(arguments: str, body: str, results: str, more: str = "") -> str:
    return f"func.func @main({arguments}) -> ({results}) {{\n{body}\n}}\n{more}"


def _unary(name: str) -> Callable[[str], str]:
    return lambda t: _main(
        f"%a: tensor<Nx4x{t}>", f"%r = stablehlo.{name} %a : tensor<Nx4x{t}>\nreturn %r : tensor<Nx4x{t}>", f"tensor<Nx4x{t}>"
    )


def _to(name: str, to: str) -> Callable[[str], str]:
    return lambda t: _main(
        f"%a: tensor<Nx4x{t}>",
        f"%r = stablehlo.{name} %a : (tensor<Nx4x{t}>) -> tensor<Nx4x{to}>\nreturn %r : tensor<Nx4x{to}>",
        f"tensor<Nx4x{to}>",
    )


def _binary(name: str) -> Callable[[str], str]:
    return lambda t: _main(
        f"%a: tensor<Nx4x{t}>, %b: tensor<Nx4x{t}>",
        f"%r = stablehlo.{name} %a, %b : tensor<Nx4x{t}>\nreturn %r : tensor<Nx4x{t}>",
        f"tensor<Nx4x{t}>",
    )


def _line(arguments: str, op: str, result: str) -> Callable[[str], str]:
    """`%r = op`, with T for the element type."""

    def program(t: str) -> str:
        put = [re.sub(r"\bT\b|(?<=x)T(?=>)", t, part) for part in (arguments, op, result)]
        return _main(put[0], f"%r = {put[1]}\nreturn %r : {put[2]}", put[2])

    return program


def _text(text: str) -> Callable[[str], str]:
    return lambda t: re.sub(r"(?<=<)T(?=>)|(?<=x)T(?=>)", t, text)


_ADD = "({\n^bb0(%x: tensor<T>, %y: tensor<T>):\n%s = stablehlo.add %x, %y : tensor<T>\nstablehlo.return %s : tensor<T>\n})"
_A, _R = "%a: tensor<Nx4xT>", "tensor<Nx4xT>"
_GROUPS = "replica_groups = dense<0> : tensor<1x1xi64>"
_CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 0, type = 0>"
_BATCH = "%a: tensor<Nx3xT>, %s: tensor<3xT>, %o: tensor<3xT>"
_TWICE = "({\n^bb0(%x: tensor<T>):\n%s = stablehlo.add %x, %x : tensor<T>\nstablehlo.return %s : tensor<T>\n})"

CASES: dict[str, Case] = {
    **{f"stablehlo.{name}": (FLOATS, _unary(name)) for name in (
        "cbrt", "ceil", "cosine", "exponential", "exponential_minus_one", "floor", "log", "log_plus_one", "logistic", "round_nearest_afz",
        "round_nearest_even", "rsqrt", "sine", "sqrt", "tan", "tanh")},
    **{f"stablehlo.{name}": ((*FLOATS, *SIGNED), _unary(name)) for name in ("abs", "negate", "sign")},
    **{f"stablehlo.{name}": (INTEGERS, _unary(name)) for name in ("count_leading_zeros", "popcnt")},
    "stablehlo.not": (BITS, _unary("not")),
    "stablehlo.is_finite": (FLOATS, _to("is_finite", "i1")),
    "stablehlo.convert": (ALL, _to("convert", "f32")),
    "stablehlo.bitcast_convert": (("f32", "i32"), _to("bitcast_convert", "i32")),
    "stablehlo.reduce_precision": (FLOATS, _line(_A, "stablehlo.reduce_precision %a, format = e5m7 : tensor<Nx4xT>", _R)),
    **{f"stablehlo.{name}": (ALL, _binary(name)) for name in ("add", "maximum", "minimum", "multiply")},
    **{f"stablehlo.{name}": (NUMBERS, _binary(name)) for name in ("subtract",)},
    "stablehlo.divide": (FLOATS, _binary("divide")),
    "stablehlo.remainder": (FLOATS, _binary("remainder")),
    "stablehlo.power": ((*FLOATS, *SIGNED), _binary("power")),
    "stablehlo.atan2": (FLOATS, _binary("atan2")),
    **{f"stablehlo.{name}": (BITS, _binary(name)) for name in ("and", "or", "xor")},
    **{f"stablehlo.{name}": (INTEGERS, _binary(name)) for name in ("shift_left", "shift_right_arithmetic", "shift_right_logical")},
    "stablehlo.compare": (ALL, _line("%a: tensor<Nx4xT>, %b: tensor<Nx4xT>", "stablehlo.compare LT, %a, %b : (tensor<Nx4xT>, tensor<Nx4xT>) -> tensor<Nx4xi1>", "tensor<Nx4xi1>")),
    "stablehlo.select": (ALL, _line("%p: tensor<Nx4xi1>, %a: tensor<Nx4xT>, %b: tensor<Nx4xT>", "stablehlo.select %p, %a, %b : tensor<Nx4xi1>, tensor<Nx4xT>", _R)),
    "stablehlo.clamp": (NUMBERS, _line("%l: tensor<T>, %a: tensor<Nx4xT>, %h: tensor<T>", "stablehlo.clamp %l, %a, %h : (tensor<T>, tensor<Nx4xT>, tensor<T>) -> tensor<Nx4xT>", _R)),
    "stablehlo.map": (FLOATS, _line("%a: tensor<Nx4xT>", f'"stablehlo.map"(%a) {_TWICE} {{dimensions = array<i64: 0, 1>}} : (tensor<Nx4xT>) -> tensor<Nx4xT>', _R)),
    "stablehlo.constant": (ALL[:1], _line(_A, "stablehlo.constant dense<3> : tensor<2x4xi32>", "tensor<2x4xi32>")),
    "stablehlo.iota": (NUMBERS[:4], _line(_A, "stablehlo.iota dim = 0 : tensor<5x4xT>", "tensor<5x4xT>")),
    "stablehlo.dynamic_iota": (NUMBERS[:4], _text("""func.func @main(%a: tensor<Nx4xf32>) -> tensor<Nx4xT> {
%n = stablehlo.get_dimension_size %a, dim = 0 : (tensor<Nx4xf32>) -> tensor<i32>
%m = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
%c = stablehlo.constant dense<4> : tensor<1xi32>
%s = stablehlo.concatenate %m, %c, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
%r = stablehlo.dynamic_iota %s, dim = 0 : (tensor<2xi32>) -> tensor<Nx4xT>
return %r : tensor<Nx4xT>
}""")),
    "stablehlo.get_dimension_size": (("f32",), _line(_A, "stablehlo.get_dimension_size %a, dim = 0 : (tensor<Nx4xT>) -> tensor<i32>", "tensor<i32>")),
    "stablehlo.reshape": (ALL, _line("%a: tensor<6x4xT>", "stablehlo.reshape %a : (tensor<6x4xT>) -> tensor<24xT>", "tensor<24xT>")),
    "stablehlo.dynamic_reshape": (ALL, _text("""func.func @main(%a: tensor<Nx4xT>) -> tensor<Nx2x2xT> {
%n = stablehlo.get_dimension_size %a, dim = 0 : (tensor<Nx4xT>) -> tensor<i32>
%m = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
%c = stablehlo.constant dense<2> : tensor<2xi32>
%s = stablehlo.concatenate %m, %c, dim = 0 : (tensor<1xi32>, tensor<2xi32>) -> tensor<3xi32>
%r = stablehlo.dynamic_reshape %a, %s : (tensor<Nx4xT>, tensor<3xi32>) -> tensor<Nx2x2xT>
return %r : tensor<Nx2x2xT>
}""")),
    "stablehlo.broadcast_in_dim": (ALL, _line("%a: tensor<4xT>", "stablehlo.broadcast_in_dim %a, dims = [1] : (tensor<4xT>) -> tensor<3x4xT>", "tensor<3x4xT>")),
    "stablehlo.dynamic_broadcast_in_dim": (ALL, _text("""func.func @main(%a: tensor<Nx4xT>, %b: tensor<4xT>) -> tensor<Nx4xT> {
%n = stablehlo.get_dimension_size %a, dim = 0 : (tensor<Nx4xT>) -> tensor<i32>
%m = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
%c = stablehlo.constant dense<4> : tensor<1xi32>
%s = stablehlo.concatenate %m, %c, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
%r = stablehlo.dynamic_broadcast_in_dim %b, %s, dims = [1] : (tensor<4xT>, tensor<2xi32>) -> tensor<Nx4xT>
return %r : tensor<Nx4xT>
}""")),
    "stablehlo.transpose": (ALL, _line(_A, "stablehlo.transpose %a, dims = [1, 0] : (tensor<Nx4xT>) -> tensor<4xNxT>", "tensor<4xNxT>")),
    "stablehlo.reverse": (ALL, _line(_A, "stablehlo.reverse %a, dims = [0, 1] : tensor<Nx4xT>", _R)),
    "stablehlo.slice": (ALL, _line("%a: tensor<6x4xT>", "stablehlo.slice %a [1:5:2, 0:4] : (tensor<6x4xT>) -> tensor<2x4xT>", "tensor<2x4xT>")),
    "stablehlo.real_dynamic_slice": (ALL, _text("""func.func @main(%a: tensor<Nx4xT>) -> tensor<Nx2xT> {
%n = stablehlo.get_dimension_size %a, dim = 0 : (tensor<Nx4xT>) -> tensor<i32>
%m = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
%c = stablehlo.constant dense<3> : tensor<1xi32>
%l = stablehlo.concatenate %m, %c, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
%b = stablehlo.constant dense<[0, 1]> : tensor<2xi32>
%t = stablehlo.constant dense<1> : tensor<2xi32>
%r = stablehlo.real_dynamic_slice %a, %b, %l, %t : (tensor<Nx4xT>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<Nx2xT>
return %r : tensor<Nx2xT>
}""")),
    "stablehlo.concatenate": (ALL, _line("%a: tensor<Nx4xT>, %b: tensor<Nx3xT>", "stablehlo.concatenate %a, %b, dim = 1 : (tensor<Nx4xT>, tensor<Nx3xT>) -> tensor<Nx7xT>", "tensor<Nx7xT>")),
    "stablehlo.pad": (ALL, _line("%a: tensor<3x4xT>, %z: tensor<T>", "stablehlo.pad %a, %z, low = [1, 0], high = [2, -1], interior = [1, 0] : (tensor<3x4xT>, tensor<T>) -> tensor<8x3xT>", "tensor<8x3xT>")),
    "stablehlo.dynamic_pad": (ALL, _text("""func.func @main(%a: tensor<Nx4xT>, %z: tensor<T>) -> tensor<Nx7xT> {
%l = stablehlo.constant dense<[0, 1]> : tensor<2xi32>
%h = stablehlo.constant dense<[0, 2]> : tensor<2xi32>
%i = stablehlo.constant dense<0> : tensor<2xi32>
%r = stablehlo.dynamic_pad %a, %z, %l, %h, %i : (tensor<Nx4xT>, tensor<T>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<Nx7xT>
return %r : tensor<Nx7xT>
}""")),
    "stablehlo.gather": (ALL, _line("%a: tensor<5x4xT>, %i: tensor<Nx1xi64>", '"stablehlo.gather"(%a, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>, indices_are_sorted = false} : (tensor<5x4xT>, tensor<Nx1xi64>) -> tensor<Nx4xT>', _R)),
    "stablehlo.dynamic_gather": (ALL, _text("""func.func @main(%a: tensor<5x4xT>, %i: tensor<Nx1xi64>) -> tensor<Nx4xT> {
%s = stablehlo.constant dense<[1, 4]> : tensor<2xi64>
%r = "stablehlo.dynamic_gather"(%a, %i, %s) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>} : (tensor<5x4xT>, tensor<Nx1xi64>, tensor<2xi64>) -> tensor<Nx4xT>
return %r : tensor<Nx4xT>
}""")),
    "stablehlo.scatter": (NUMBERS, _line("%a: tensor<5x4xT>, %i: tensor<Nx1xi64>, %u: tensor<Nx4xT>", f'"stablehlo.scatter"(%a, %i, %u) {_ADD} {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}} : (tensor<5x4xT>, tensor<Nx1xi64>, tensor<Nx4xT>) -> tensor<5x4xT>', "tensor<5x4xT>")),
    "stablehlo.dynamic_slice": (ALL, _line("%a: tensor<5x4xT>, %i: tensor<i64>", "stablehlo.dynamic_slice %a, %i, %i, sizes = [2, 3] : (tensor<5x4xT>, tensor<i64>, tensor<i64>) -> tensor<2x3xT>", "tensor<2x3xT>")),
    "stablehlo.dynamic_update_slice": (ALL, _line("%a: tensor<5x4xT>, %u: tensor<2x3xT>, %i: tensor<i64>", "stablehlo.dynamic_update_slice %a, %u, %i, %i : (tensor<5x4xT>, tensor<2x3xT>, tensor<i64>, tensor<i64>) -> tensor<5x4xT>", "tensor<5x4xT>")),
    "stablehlo.reduce": (NUMBERS, _line("%a: tensor<Nx4xT>, %z: tensor<T>", "stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1] : (tensor<Nx4xT>, tensor<T>) -> tensor<NxT>", "tensor<NxT>")),
    "stablehlo.reduce_window": (NUMBERS, _line("%a: tensor<Nx6xT>, %z: tensor<T>", f'"stablehlo.reduce_window"(%a, %z) {_ADD} {{window_dimensions = array<i64: 1, 3>, window_strides = array<i64: 1, 2>}} : (tensor<Nx6xT>, tensor<T>) -> tensor<Nx2xT>', "tensor<Nx2xT>")),
    # From 0: how often an initial value is met, which is none of the scatter function, the specification leaves open.
    "stablehlo.select_and_scatter": (FLOATS, _text(f"""func.func @main(%a: tensor<Nx6xT>, %u: tensor<Nx2xT>) -> tensor<Nx6xT> {{
%z = stablehlo.constant dense<0.0> : tensor<T>
%r = "stablehlo.select_and_scatter"(%a, %u, %z) ({{
^bb0(%p: tensor<T>, %q: tensor<T>):
%g = stablehlo.compare GE, %p, %q : (tensor<T>, tensor<T>) -> tensor<i1>
stablehlo.return %g : tensor<i1>
}}, {_ADD[1:-1]}) {{window_dimensions = array<i64: 1, 3>, window_strides = array<i64: 1, 3>}} : (tensor<Nx6xT>, tensor<Nx2xT>, tensor<T>) -> tensor<Nx6xT>
return %r : tensor<Nx6xT>
}}""")),
    "stablehlo.dot": (FLOATS, _line("%a: tensor<Nx4xT>, %b: tensor<4x3xT>", "stablehlo.dot %a, %b : (tensor<Nx4xT>, tensor<4x3xT>) -> tensor<Nx3xT>", "tensor<Nx3xT>")),
    "stablehlo.dot_general": ((*FLOATS, *SIGNED), _line("%a: tensor<Nx4xT>, %b: tensor<4x3xT>", "stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<Nx4xT>, tensor<4x3xT>) -> tensor<Nx3xT>", "tensor<Nx3xT>")),
    "stablehlo.convolution": (FLOATS, _line("%a: tensor<Nx6x2xT>, %w: tensor<3x2x4xT>", "stablehlo.convolution(%a, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {stride = [1], pad = [[1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<Nx6x2xT>, tensor<3x2x4xT>) -> tensor<Nx6x4xT>", "tensor<Nx6x4xT>")),
    "stablehlo.dynamic_conv": (FLOATS, _text("""func.func @main(%a: tensor<Nx6x2xT>, %w: tensor<3x2x4xT>) -> tensor<Nx6x4xT> {
%p = stablehlo.constant dense<[[1, 1]]> : tensor<1x2xi64>
%r = "stablehlo.dynamic_conv"(%a, %w, %p) {window_strides = array<i64: 1>, dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>, feature_group_count = 1 : i64, batch_group_count = 1 : i64} : (tensor<Nx6x2xT>, tensor<3x2x4xT>, tensor<1x2xi64>) -> tensor<Nx6x4xT>
return %r : tensor<Nx6x4xT>
}""")),
    "stablehlo.sort": (NUMBERS, _line(_A, '"stablehlo.sort"(%a) ({\n^bb0(%x: tensor<T>, %y: tensor<T>):\n%s = stablehlo.compare LT, %x, %y : (tensor<T>, tensor<T>) -> tensor<i1>\nstablehlo.return %s : tensor<i1>\n}) {dimension = 1 : i64, is_stable = true} : (tensor<Nx4xT>) -> tensor<Nx4xT>', _R)),
    "stablehlo.fft": (("f32", "f64"), _text("""func.func @main(%a: tensor<Nx4xT>) -> tensor<Nx4xT> {
%c = stablehlo.fft %a, type = RFFT, length = [4] : (tensor<Nx4xT>) -> tensor<Nx3xcomplex<T>>
%r = stablehlo.fft %c, type = IRFFT, length = [4] : (tensor<Nx3xcomplex<T>>) -> tensor<Nx4xT>
return %r : tensor<Nx4xT>
}""")),
    **{f"stablehlo.{name}": (("f32", "f64"), _text(f"""func.func @main(%a: tensor<Nx4xT>, %b: tensor<Nx4xT>) -> tensor<Nx4xT> {{
%c = stablehlo.complex %a, %b : tensor<Nx4xcomplex<T>>
%r = stablehlo.{part} %c : (tensor<Nx4xcomplex<T>>) -> tensor<Nx4xT>
return %r : tensor<Nx4xT>
}}""")) for name, part in (("complex", "real"), ("real", "real"), ("imag", "imag"))},
    "stablehlo.cholesky": (("f32", "f64"), _text("""func.func @main(%a: tensor<4x3x3xT>) -> tensor<4x3x3xT> {
%p = stablehlo.dot_general %a, %a, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<4x3x3xT>, tensor<4x3x3xT>) -> tensor<4x3x3xT>
%i = stablehlo.constant dense<[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]> : tensor<3x3xT>
%s = stablehlo.broadcast_in_dim %i, dims = [1, 2] : (tensor<3x3xT>) -> tensor<4x3x3xT>
%d = stablehlo.add %p, %s : tensor<4x3x3xT>
%r = stablehlo.cholesky %d, lower = true : tensor<4x3x3xT>
return %r : tensor<4x3x3xT>
}""")),
    "stablehlo.triangular_solve": (("f32", "f64"), _line("%a: tensor<Nx3x3xT>, %b: tensor<Nx3x2xT>", '"stablehlo.triangular_solve"(%a, %b) {left_side = true, lower = true, unit_diagonal = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>} : (tensor<Nx3x3xT>, tensor<Nx3x2xT>) -> tensor<Nx3x2xT>', "tensor<Nx3x2xT>")),
    "stablehlo.batch_norm_inference": (FLOATS[:2], _text("""func.func @main(%a: tensor<Nx3xT>, %s: tensor<3xT>, %o: tensor<3xT>) -> tensor<Nx3xT> {
%v = stablehlo.multiply %s, %s : tensor<3xT>
%r = "stablehlo.batch_norm_inference"(%a, %s, %o, %o, %v) {epsilon = 0.01 : f32, feature_index = 1 : i64} : (tensor<Nx3xT>, tensor<3xT>, tensor<3xT>, tensor<3xT>, tensor<3xT>) -> tensor<Nx3xT>
return %r : tensor<Nx3xT>
}""")),
    "stablehlo.batch_norm_training": (FLOATS[:2], _text(f"""func.func @main({_BATCH}) -> tensor<Nx3xT> {{
%r:3 = "stablehlo.batch_norm_training"(%a, %s, %o) {{epsilon = 0.01 : f32, feature_index = 1 : i64}} : (tensor<Nx3xT>, tensor<3xT>, tensor<3xT>) -> (tensor<Nx3xT>, tensor<3xT>, tensor<3xT>)
return %r#0 : tensor<Nx3xT>
}}""")),
    "stablehlo.batch_norm_grad": (FLOATS[:2], _text(f"""func.func @main({_BATCH}, %g: tensor<Nx3xT>) -> tensor<Nx3xT> {{
%v = stablehlo.multiply %s, %s : tensor<3xT>
%r:3 = "stablehlo.batch_norm_grad"(%a, %s, %o, %v, %g) {{epsilon = 0.01 : f32, feature_index = 1 : i64}} : (tensor<Nx3xT>, tensor<3xT>, tensor<3xT>, tensor<3xT>, tensor<Nx3xT>) -> (tensor<Nx3xT>, tensor<3xT>, tensor<3xT>)
return %r#0 : tensor<Nx3xT>
}}""")),
    "stablehlo.while": (FLOATS[:2], _text("""func.func @main(%a: tensor<Nx4xT>, %n: tensor<i64>) -> tensor<Nx4xT> {
%one = stablehlo.constant dense<1> : tensor<i64>
%z = stablehlo.constant dense<0> : tensor<i64>
%r:2 = stablehlo.while(%i = %z, %x = %a) : tensor<i64>, tensor<Nx4xT>
cond {
  %c = stablehlo.compare LT, %i, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
} do {
  %j = stablehlo.add %i, %one : tensor<i64>
  %y = stablehlo.add %x, %x : tensor<Nx4xT>
  stablehlo.return %j, %y : tensor<i64>, tensor<Nx4xT>
}
return %r#1 : tensor<Nx4xT>
}""")),
    "stablehlo.if": (FLOATS[:2], _text("""func.func @main(%p: tensor<i1>, %a: tensor<Nx4xT>) -> tensor<Nx4xT> {
%r = "stablehlo.if"(%p) ({
  %y = stablehlo.add %a, %a : tensor<Nx4xT>
  stablehlo.return %y : tensor<Nx4xT>
}, {
  stablehlo.return %a : tensor<Nx4xT>
}) : (tensor<i1>) -> tensor<Nx4xT>
return %r : tensor<Nx4xT>
}""")),
    "stablehlo.case": (FLOATS[:2], _text("""func.func @main(%p: tensor<i32>, %a: tensor<Nx4xT>) -> tensor<Nx4xT> {
%r = "stablehlo.case"(%p) ({
  %y = stablehlo.add %a, %a : tensor<Nx4xT>
  stablehlo.return %y : tensor<Nx4xT>
}, {
  stablehlo.return %a : tensor<Nx4xT>
}) : (tensor<i32>) -> tensor<Nx4xT>
return %r : tensor<Nx4xT>
}""")),
    "stablehlo.composite": (FLOATS[:2], _text("""func.func @main(%a: tensor<Nx4xT>) -> tensor<Nx4xT> {
%r = stablehlo.composite "own.double" %a {decomposition = @double} : (tensor<Nx4xT>) -> tensor<Nx4xT>
return %r : tensor<Nx4xT>
}
func.func private @double(%a: tensor<Nx4xT>) -> tensor<Nx4xT> {
%r = stablehlo.add %a, %a : tensor<Nx4xT>
return %r : tensor<Nx4xT>
}""")),
    "stablehlo.custom_call": (("f32",), _line(_A, 'stablehlo.custom_call @unknown(%a) : (tensor<Nx4xT>) -> tensor<Nx4xT>', _R)),
    "stablehlo.optimization_barrier": (ALL, _line(_A, "stablehlo.optimization_barrier %a : tensor<Nx4xT>", _R)),
    "stablehlo.tuple": (("f32",), _text("""func.func @main(%a: tensor<Nx4xT>) -> tensor<Nx4xT> {
%t = stablehlo.tuple %a, %a : tuple<tensor<Nx4xT>, tensor<Nx4xT>>
%r = stablehlo.get_tuple_element %t[1] : (tuple<tensor<Nx4xT>, tensor<Nx4xT>>) -> tensor<Nx4xT>
return %r : tensor<Nx4xT>
}""")),
    # Whether all that is drawn lies between the ends; which numbers, the specification leaves open.
    "stablehlo.rng": (("f32", "f64", "i64"), _text("""func.func @main(%a: tensor<Nx4xT>) -> tensor<Nx4xi1> {
%n = stablehlo.get_dimension_size %a, dim = 0 : (tensor<Nx4xT>) -> tensor<i32>
%m = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
%c = stablehlo.constant dense<4> : tensor<1xi32>
%s = stablehlo.concatenate %m, %c, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
%i = stablehlo.constant dense<-2> : tensor<i32>
%j = stablehlo.constant dense<3> : tensor<i32>
%l = stablehlo.convert %i : (tensor<i32>) -> tensor<T>
%h = stablehlo.convert %j : (tensor<i32>) -> tensor<T>
%r = stablehlo.rng %l, %h, %s, distribution = UNIFORM : (tensor<T>, tensor<T>, tensor<2xi32>) -> tensor<Nx4xT>
%b = stablehlo.clamp %l, %r, %h : (tensor<T>, tensor<Nx4xT>, tensor<T>) -> tensor<Nx4xT>
%e = stablehlo.compare EQ, %b, %r : (tensor<Nx4xT>, tensor<Nx4xT>) -> tensor<Nx4xi1>
return %e : tensor<Nx4xi1>
}""")),
    "stablehlo.rng_bit_generator": (("ui64",), _text("""func.func @main(%a: tensor<2xT>) -> tensor<2x4xui32> {
%s, %r = stablehlo.rng_bit_generator %a, algorithm = THREE_FRY : (tensor<2xT>) -> (tensor<2xT>, tensor<2x4xui32>)
return %r : tensor<2x4xui32>
}""")),
    "stablehlo.uniform_quantize": (("f32",), _text("""func.func @main(%a: tensor<Nx4xT>) -> tensor<Nx4xT> {
%q = stablehlo.uniform_quantize %a : (tensor<Nx4xT>) -> tensor<Nx4x!quant.uniform<i8:f32, 0.1:3>>
%r = stablehlo.uniform_dequantize %q : (tensor<Nx4x!quant.uniform<i8:f32, 0.1:3>>) -> tensor<Nx4xT>
return %r : tensor<Nx4xT>
}""")),
    **{f"stablehlo.{name}": (("f32",), _line(_A, line, _R)) for name, line in {
        "all_gather": f'"stablehlo.all_gather"(%a) {{all_gather_dim = 1 : i64, {_GROUPS}, {_CHANNEL}}} : (tensor<Nx4xT>) -> tensor<Nx4xT>',
        "all_reduce": f'"stablehlo.all_reduce"(%a) {_ADD} {{{_GROUPS}, {_CHANNEL}}} : (tensor<Nx4xT>) -> tensor<Nx4xT>',
        "all_to_all": f'"stablehlo.all_to_all"(%a) {{split_dimension = 1 : i64, concat_dimension = 1 : i64, split_count = 1 : i64, {_GROUPS}, {_CHANNEL}}} : (tensor<Nx4xT>) -> tensor<Nx4xT>',
        "collective_broadcast": f'"stablehlo.collective_broadcast"(%a) {{{_GROUPS}, {_CHANNEL}}} : (tensor<Nx4xT>) -> tensor<Nx4xT>',
        "collective_permute": f'"stablehlo.collective_permute"(%a) {{source_target_pairs = dense<0> : tensor<1x2xi64>, {_CHANNEL}}} : (tensor<Nx4xT>) -> tensor<Nx4xT>',
        "reduce_scatter": f'"stablehlo.reduce_scatter"(%a) {_ADD} {{scatter_dimension = 1 : i64, {_GROUPS}, {_CHANNEL}}} : (tensor<Nx4xT>) -> tensor<Nx4xT>',
    }.items()},
    "stablehlo.replica_id": (("f32",), _line(_A, "stablehlo.replica_id : tensor<ui32>", "tensor<ui32>")),
    "stablehlo.partition_id": (("f32",), _line(_A, "stablehlo.partition_id : tensor<ui32>", "tensor<ui32>")),
    **{f"stablehlo.{name}": (("f32",), _text(f"""func.func @main(%a: tensor<Nx4xT>) -> tensor<Nx4xT> {{
%t = stablehlo.after_all : !stablehlo.token
{line}
return %a : tensor<Nx4xT>
}}""")) for name, line in {
        "after_all": "%u = stablehlo.after_all %t, %t : !stablehlo.token",
        "infeed": '%v:2 = "stablehlo.infeed"(%t) : (!stablehlo.token) -> (tensor<3xf32>, !stablehlo.token)',
        "outfeed": '%u = "stablehlo.outfeed"(%a, %t) : (tensor<Nx4xT>, !stablehlo.token) -> !stablehlo.token',
        "recv": f'%v:2 = "stablehlo.recv"(%t) {{{_CHANNEL.replace("type = 0", "type = 3")}, is_host_transfer = true}} : (!stablehlo.token) -> (tensor<3xf32>, !stablehlo.token)',
        "send": f'%u = "stablehlo.send"(%a, %t) {{{_CHANNEL.replace("type = 0", "type = 2")}, is_host_transfer = true}} : (tensor<Nx4xT>, !stablehlo.token) -> !stablehlo.token',
    }.items()},
}  # fmt: skip
# In the dialect alone: no part of the specification any more, or not yet.
CASES |= {
    "stablehlo.async_start": (("f32",), _text(f"""func.func @main(%a: tensor<Nx4xT>) -> tensor<Nx4xT> {{
%f = "stablehlo.async_start"(%a) ({{
^bb0(%b: tensor<Nx4xT>):
%g = "stablehlo.all_gather"(%b) {{all_gather_dim = 1 : i64, {_GROUPS}, {_CHANNEL}}} : (tensor<Nx4xT>) -> tensor<Nx4xT>
stablehlo.return %g : tensor<Nx4xT>
}}) : (tensor<Nx4xT>) -> !stablehlo.future<tensor<Nx4xT>>
%r = "stablehlo.async_done"(%f) : (!stablehlo.future<tensor<Nx4xT>>) -> tensor<Nx4xT>
return %r : tensor<Nx4xT>
}}""")),
    "stablehlo.broadcast": (ALL, _line("%a: tensor<4xT>", '"stablehlo.broadcast"(%a) {broadcast_sizes = array<i64: 2>} : (tensor<4xT>) -> tensor<2x4xT>', "tensor<2x4xT>")),
    "stablehlo.create_token": (("f32",), _text("""func.func @main(%a: tensor<Nx4xT>) -> tensor<Nx4xT> {
%t = stablehlo.create_token : !stablehlo.token
return %a : tensor<Nx4xT>
}""")),
    "stablehlo.cross-replica-sum": (("f32",), _line(_A, f'"stablehlo.cross-replica-sum"(%a) {{{_GROUPS}}} : (tensor<Nx4xT>) -> tensor<Nx4xT>', _R)),
    "stablehlo.einsum": (FLOATS, _line("%a: tensor<Nx4xT>, %b: tensor<4x3xT>", '"stablehlo.einsum"(%a, %b) {einsum_config = "ab,bc->ac"} : (tensor<Nx4xT>, tensor<4x3xT>) -> tensor<Nx3xT>', "tensor<Nx3xT>")),
    "stablehlo.torch_index_select": (NUMBERS, _text("""func.func @main(%a: tensor<5x4xT>, %i: tensor<Nxi64>) -> tensor<Nx4xT> {
%l = stablehlo.constant dense<0> : tensor<i64>
%h = stablehlo.constant dense<4> : tensor<i64>
%c = stablehlo.clamp %l, %i, %h : (tensor<i64>, tensor<Nxi64>, tensor<i64>) -> tensor<Nxi64>
%r = "stablehlo.torch_index_select"(%a, %c) {dim = 0 : i64, batch_dims = 0 : i64} : (tensor<5x4xT>, tensor<Nxi64>) -> tensor<Nx4xT>
return %r : tensor<Nx4xT>
}""")),
    "stablehlo.unary_einsum": (FLOATS, _line(_A, '"stablehlo.unary_einsum"(%a) {einsum_config = "ab->a"} : (tensor<Nx4xT>) -> tensor<NxT>', "tensor<NxT>")),
}  # fmt: skip
CASES["stablehlo.async_done"] = CASES["stablehlo.async_start"]
CASES["stablehlo.get_tuple_element"] = CASES["stablehlo.tuple"]
CASES["stablehlo.uniform_dequantize"] = CASES["stablehlo.uniform_quantize"]
CASES = dict(sorted(CASES.items()))


def _normalized(x: Array, scale: Array, offset: Array, mean: Array, variance: Array) -> Array:
    return (x - mean) / np.sqrt(variance + 0.01) * scale + offset


def _gradient(x: Array, scale: Array, mean: Array, spread: Array, gradient: Array) -> list[Array]:
    """By the input, of a normalization with these statistics (as the specification has it)."""
    centered, inverse = x - mean, 1 / np.sqrt(spread * spread + 0.01)
    shared = gradient.sum(0) + centered * inverse * inverse * (gradient * centered).sum(0)
    return [scale * inverse * (gradient - shared / len(x))] if len(x) else [x]


def _bits_of_xla(state: Array) -> Array:
    jax = pytest.importorskip("jax")
    key = jax.numpy.asarray(state.view(np.uint32))
    drawn = jax.lax.rng_bit_generator(key, (2, 4), np.uint32, jax.lax.RandomAlgorithm.RNG_THREE_FRY)[1]
    return np.asarray(drawn)


# In numpy, of the programs above, where StableHLO's interpreter has no rule for the op.
REFERENCES: dict[str, Callable[..., Sequence[Array]]] = {
    "stablehlo.batch_norm_inference": lambda a, s, o: [_normalized(a, s, o, o, s * s)],
    "stablehlo.batch_norm_training": lambda a, s, o: [_normalized(a, s, o, a.mean(0), a.var(0)) if len(a) else a],
    "stablehlo.batch_norm_grad": lambda a, s, o, g: _gradient(a, s, o, s, g),
    "stablehlo.async_done": lambda a: [a],
    "stablehlo.async_start": lambda a: [a],
    "stablehlo.broadcast": lambda a: [np.broadcast_to(a, (2, 4))],
    "stablehlo.create_token": lambda a: [a],
    "stablehlo.cross-replica-sum": lambda a: [a],
    "stablehlo.fft": lambda a: [a],
    "stablehlo.einsum": lambda a, b: [a @ b],
    "stablehlo.torch_index_select": lambda a, i: [a[np.clip(i, 0, 4)]],
    "stablehlo.unary_einsum": lambda a: [a.sum(1)],
    "stablehlo.cholesky": lambda a: [np.linalg.cholesky(a @ a.swapaxes(1, 2) + np.eye(3, dtype=a.dtype))],
    "stablehlo.dot": lambda a, b: [a @ b],
    **{f"stablehlo.{name}": lambda a: [a] for name in (*COLLECTIVES, "collective_permute")},
    "stablehlo.partition_id": lambda a: [np.array(0, np.uint32)],
    "stablehlo.replica_id": lambda a: [np.array(0, np.uint32)],
    "stablehlo.rng": lambda a: [np.ones(a.shape, np.bool_)],
    "stablehlo.rng_bit_generator": lambda a: [_bits_of_xla(a)],
    "stablehlo.real_dynamic_slice": lambda a: [a[:, 1:3]],
}


def verified_stablehlo(name: str) -> Row:
    """Compiles the op's program in each element type, and compares with the reference interpreter."""
    elements, program = CASES[name]
    row = Row("stablehlo", name, COMPILED, cases=len(elements), rests_on={name: route(name)})
    for element in elements:
        sizes = SIZES if "<Nx" in program(element) else SIZES[:1]
        try:
            compiled = OracleProgram(program(element), lambda path: [disc.compile(path)])
            for size in sizes:
                compiled.check({"N": size}, relative=TOLERANCE, reference=REFERENCES.get(name))
        except DiscError as error:
            row.reason = row.reason or _reason(error)
            if isinstance(error, CompilerBug):
                row.status = FAULT
                return row
        except Exception as error:
            row.status, row.reason = FAULT, f"{element}: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
            return row
        else:
            row.dtypes.append(element)
            row.agreeing += 1
            row.sizes += len(sizes) - 1
            row.sizes_right += len(sizes) - 1
    if row.agreeing < row.cases:
        row.status = IN_PART if row.agreeing else REFUSED
    return row


def _reason(error: DiscError) -> str:
    if isinstance(error, UnsupportedOpError):
        return f"{error.ops[0].op}: {error.ops[0].reason}"
    return f"{type(error).__name__}: {re.sub(r'/[^ ]*/', '', str(error).splitlines()[0])[:200]}"
