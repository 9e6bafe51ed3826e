"""Ops of StableHLO that are made of others before a program is compiled: against NumPy, or the reference where it has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from compiled import Array
from stablehlo_oracle import OracleProgram

import disc
from disc.errors import UnsupportedOpError
from disc.ir.philox import words_at
from disc.ral.executable import Executable

SIZES = (3, 1, 0, 17)


def compiled(folder: Path, text: str) -> Executable:
    path = folder / "program.mlir"
    path.write_text(text)
    return disc.compile(path)


def check(exe: Executable, oracle: Callable[..., Sequence[Array]], shapes: Sequence[tuple[int, ...]], sizes: Sequence[int] = SIZES) -> None:
    """shapes: -1 for the dynamic dim."""
    random = np.random.default_rng(0)
    for size in sizes:
        given = [random.normal(size=[size if each == -1 else each for each in shape]).astype(np.float32) for shape in shapes]
        returned = exe(*given)
        results = returned if isinstance(returned, tuple) else (returned,)
        for number, (ours, wanted) in enumerate(zip(results, oracle(*given), strict=True)):
            np.testing.assert_allclose(np.asarray(ours), wanted, 2e-4, 2e-5, err_msg=f"result {number}, size {size}")


BATCH_NORM = """func.func @main(%a: tensor<?x3xf32>, %s: tensor<3xf32>, %o: tensor<3xf32>, %g: tensor<?x3xf32>)
    -> (tensor<?x3xf32>, tensor<?x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<?x3xf32>, tensor<3xf32>, tensor<3xf32>) {
  %v = stablehlo.multiply %s, %s : tensor<3xf32>
  %i = "stablehlo.batch_norm_inference"(%a, %s, %o, %o, %v) {epsilon = 0.01 : f32, feature_index = 1 : i64}
    : (tensor<?x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> tensor<?x3xf32>
  %t:3 = "stablehlo.batch_norm_training"(%a, %s, %o) {epsilon = 0.01 : f32, feature_index = 1 : i64}
    : (tensor<?x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<?x3xf32>, tensor<3xf32>, tensor<3xf32>)
  %r:3 = "stablehlo.batch_norm_grad"(%a, %s, %o, %v, %g) {epsilon = 0.01 : f32, feature_index = 1 : i64}
    : (tensor<?x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<?x3xf32>) -> (tensor<?x3xf32>, tensor<3xf32>, tensor<3xf32>)
  return %i, %t#0, %t#1, %t#2, %r#0, %r#1, %r#2
    : tensor<?x3xf32>, tensor<?x3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<?x3xf32>, tensor<3xf32>, tensor<3xf32>
}"""


def test_batch_norms(tmp_path: Path) -> None:
    def oracle(a: Array, s: Array, o: Array, g: Array) -> list[Array]:
        deviation, centered, count = np.sqrt(s * s + 0.01), a - o, len(a)
        slope = count * g - g.sum(0) - (g * centered).sum(0) * centered / deviation**2
        return [
            centered / deviation * s + o, (a - a.mean(0)) / np.sqrt(a.var(0) + 0.01) * s + o, a.mean(0), a.var(0),
            s / deviation / count * slope, (g * centered / deviation).sum(0), g.sum(0),
        ]  # fmt: skip

    check(compiled(tmp_path, BATCH_NORM), oracle, [(-1, 3), (3,), (3,), (-1, 3)], (3, 1, 17))


MATRICES = """func.func @main(%a: tensor<?x3x3xf32>, %b: tensor<?x3x2xf32>)
    -> (tensor<?x3x3xf32>, tensor<?x3x3xf32>, tensor<?x3x2xf32>, tensor<?x2x3xf32>) {
  %p = stablehlo.dot_general %a, %a, batching_dims = [0] x [0], contracting_dims = [2] x [2]
    : (tensor<?x3x3xf32>, tensor<?x3x3xf32>) -> tensor<?x3x3xf32>
  %i = stablehlo.constant dense<[[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]]> : tensor<3x3xf32>
  %q = chlo.broadcast_add %p, %i : (tensor<?x3x3xf32>, tensor<3x3xf32>) -> tensor<?x3x3xf32>
  %l = stablehlo.cholesky %q, lower = true : tensor<?x3x3xf32>
  %u = stablehlo.cholesky %q : tensor<?x3x3xf32>
  %x = "stablehlo.triangular_solve"(%q, %b) {left_side = true, lower = true, unit_diagonal = false,
    transpose_a = #stablehlo<transpose TRANSPOSE>} : (tensor<?x3x3xf32>, tensor<?x3x2xf32>) -> tensor<?x3x2xf32>
  %t = stablehlo.transpose %b, dims = [0, 2, 1] : (tensor<?x3x2xf32>) -> tensor<?x2x3xf32>
  %y = "stablehlo.triangular_solve"(%q, %t) {left_side = false, lower = false, unit_diagonal = true,
    transpose_a = #stablehlo<transpose NO_TRANSPOSE>} : (tensor<?x3x3xf32>, tensor<?x2x3xf32>) -> tensor<?x2x3xf32>
  return %l, %u, %x, %y : tensor<?x3x3xf32>, tensor<?x3x3xf32>, tensor<?x3x2xf32>, tensor<?x2x3xf32>
}"""


def test_factors_and_triangular_systems(tmp_path: Path) -> None:
    def oracle(a: Array, b: Array) -> list[Array]:
        matrix = a.astype(np.float64) @ a.swapaxes(1, 2) + 3 * np.eye(3)
        lower = np.linalg.cholesky(matrix)
        unit = np.triu(matrix, 1) + np.eye(3)
        right = np.linalg.solve(unit.swapaxes(1, 2), b).swapaxes(1, 2)  # X U = B^T is U^T X^T = B
        return [lower, lower.swapaxes(1, 2), np.linalg.solve(np.tril(matrix).swapaxes(1, 2), b), right]

    check(compiled(tmp_path, MATRICES), oracle, [(-1, 3, 3), (-1, 3, 2)])


SMALL = """func.func @main(%a: tensor<?x4xf32>)
    -> (tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>, tensor<ui32>, tensor<?x2xf32>, tensor<?x2xi32>, tensor<?x?xf32>, tensor<?x3xf32>) {
  %t = stablehlo.after_all : !stablehlo.token
  %c = stablehlo.composite "own.double" %a {decomposition = @double} : (tensor<?x4xf32>) -> tensor<?x4xf32>
  %m = "stablehlo.map"(%a) ({
  ^bb0(%x: tensor<f32>):
    %half = stablehlo.constant dense<0.5> : tensor<f32>
    %p = stablehlo.multiply %x, %half : tensor<f32>
    %g = stablehlo.compare GT, %p, %half : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %w = stablehlo.select %g, %half, %p : tensor<i1>, tensor<f32>
    stablehlo.return %w : tensor<f32>
  }) {dimensions = array<i64: 0, 1>} : (tensor<?x4xf32>) -> tensor<?x4xf32>
  %tuple = stablehlo.tuple %c, %m : tuple<tensor<?x4xf32>, tensor<?x4xf32>>
  %e = stablehlo.get_tuple_element %tuple[1] : (tuple<tensor<?x4xf32>, tensor<?x4xf32>>) -> tensor<?x4xf32>
  %b:2 = stablehlo.optimization_barrier %e, %c : tensor<?x4xf32>, tensor<?x4xf32>
  %s = stablehlo.custom_call @Sharding(%a) : (tensor<?x4xf32>) -> tensor<?x4xf32>
  %i = stablehlo.replica_id : tensor<ui32>
  %v, %k = stablehlo.composite "chlo.top_k" %a {composite_attributes = {k = 2 : i64, largest = true}, decomposition = @two}
    : (tensor<?x4xf32>) -> (tensor<?x2xf32>, tensor<?x2xi32>)
  %two = stablehlo.constant dense<2> : tensor<i32>
  %d = "stablehlo.set_dimension_size"(%a, %two) {dimension = 1 : i64} : (tensor<?x4xf32>, tensor<i32>) -> tensor<?x?xf32>
  %q = stablehlo.uniform_quantize %a : (tensor<?x4xf32>) -> tensor<?x4x!quant.uniform<i8:f32, 0.125:3>>
  %z = stablehlo.constant dense<2.0> : tensor<4x3xf32>
  %zq = stablehlo.uniform_quantize %z : (tensor<4x3xf32>) -> tensor<4x3x!quant.uniform<i8:f32, 0.125>>
  %dot = stablehlo.dot_general %q, %zq, contracting_dims = [1] x [0] : (tensor<?x4x!quant.uniform<i8:f32, 0.125:3>>,
    tensor<4x3x!quant.uniform<i8:f32, 0.125>>) -> tensor<?x3x!quant.uniform<i8:f32, 0.25>>
  %f = stablehlo.uniform_dequantize %dot : (tensor<?x3x!quant.uniform<i8:f32, 0.25>>) -> tensor<?x3xf32>
  return %b#0, %b#1, %s, %i, %v, %k, %d, %f : tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>, tensor<ui32>, tensor<?x2xf32>,
    tensor<?x2xi32>, tensor<?x?xf32>, tensor<?x3xf32>
}
func.func private @double(%a: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %r = stablehlo.add %a, %a : tensor<?x4xf32>
  return %r : tensor<?x4xf32>
}
func.func private @two(%a: tensor<?x4xf32>) -> (tensor<?x2xf32>, tensor<?x2xi32>) {
  %v, %i = chlo.top_k(%a, k = 2) : tensor<?x4xf32> -> (tensor<?x2xf32>, tensor<?x2xi32>)
  return %v, %i : tensor<?x2xf32>, tensor<?x2xi32>
}"""


def test_composites_tuples_quantized_values_and_what_stands_for_its_operand(tmp_path: Path) -> None:
    def quantized(x: Array, step: float, zero: int) -> Array:
        return (np.clip(np.rint(x / np.float32(step)) + zero, -128, 127) - zero) * np.float32(step)

    def oracle(a: Array) -> list[Array]:
        order = np.argsort(-a, 1, kind="stable")[:, :2]
        dots = quantized(quantized(a, 0.125, 3) @ np.full((4, 3), 2, np.float32), 0.25, 0)
        return [np.minimum(a * 0.5, 0.5), a + a, a, np.zeros((), np.uint32), np.take_along_axis(a, order, 1), order, a[:, :2], dots]

    exe = compiled(tmp_path, SMALL)
    check(exe, oracle, [(-1, 4)])


def sort_of(comparator: str, second: str = "i32") -> str:
    return f"""func.func @main(%a: tensor<Nx5xf32>, %b: tensor<Nx5x{second}>) -> (tensor<Nx5xf32>, tensor<Nx5x{second}>) {{
  %r:2 = "stablehlo.sort"(%a, %b) ({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>, %u: tensor<{second}>, %v: tensor<{second}>):
    {comparator}
    stablehlo.return %s : tensor<i1>
  }}) {{dimension = DIM : i64, is_stable = true}} : (tensor<Nx5xf32>, tensor<Nx5x{second}>) -> (tensor<Nx5xf32>, tensor<Nx5x{second}>)
  return %r#0, %r#1 : tensor<Nx5xf32>, tensor<Nx5x{second}>
}}"""


SCALARS = "(tensor<f32>, tensor<f32>) -> tensor<i1>"
WORDS = "(tensor<i32>, tensor<i32>) -> tensor<i1>"
COMPARATORS = {
    "ascending": f"%s = stablehlo.compare LT, %x, %y : {SCALARS}",
    "descending": f"%s = stablehlo.compare GT, %x, %y : {SCALARS}",
    "turned": f"%s = stablehlo.compare LT, %y, %x : {SCALARS}",
    "total": f"%s = stablehlo.compare GT, %x, %y, TOTALORDER : {SCALARS}",
    "of the second": f"%s = stablehlo.compare GT, %u, %v : {WORDS}",
    "of a function": f"%f = stablehlo.abs %x : tensor<f32>\n%g = stablehlo.abs %y : tensor<f32>\n%s = stablehlo.compare LT, %f, %g : {SCALARS}",
    "two keys": f"%l = stablehlo.compare LT, %u, %v : {WORDS}\n%e = stablehlo.compare EQ, %v, %u : {WORDS}\n"
    f"%m = stablehlo.compare GT, %x, %y : {SCALARS}\n%n = stablehlo.and %m, %e : tensor<i1>\n%s = stablehlo.or %l, %n : tensor<i1>",
    "no keys": "%d = stablehlo.subtract %x, %y : tensor<f32>\n%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
    f"%s = stablehlo.compare LT, %d, %z : {SCALARS}",
    "no equality": f"%l = stablehlo.compare LT, %u, %v : {WORDS}\n%e = stablehlo.compare EQ, %u, %u : {WORDS}\n"
    f"%k = stablehlo.compare LE, %u, %v : {WORDS}\n%n = stablehlo.and %k, %e : tensor<i1>\n"
    f"%m = stablehlo.compare LT, %x, %y : {SCALARS}\n%h = stablehlo.and %n, %m : tensor<i1>\n%s = stablehlo.or %l, %h : tensor<i1>",
}  # fmt: skip
LONG = ("total", "ascending", "turned", "of the second")


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.long) if each in LONG else each for each in COMPARATORS])
def test_sorts_by_comparators(name: str) -> None:
    for dim in (0, 1) if name == "two keys" else (1,):
        program = OracleProgram(sort_of(COMPARATORS[name]).replace("DIM", str(dim)))
        for size in (4, 0, 1):
            program.check({"N": size}, relative=0)


def test_total_order_tells_zeros_apart() -> None:
    """The reference does not."""
    program = OracleProgram(sort_of(COMPARATORS["total"]).replace("DIM", "1"))
    values = np.array([[0.0, -0.0, -1.0, np.inf, 0.0], [-0.0, 0.0, -np.inf, 2.0, -2.0]], np.float32)
    for executable in program.executables:
        ordered, places = executable(values, np.arange(10, dtype=np.int32).reshape(2, 5))  # pyright: ignore[reportGeneralTypeIssues]
        assert np.array_equal(places, [[3, 0, 4, 1, 2], [8, 6, 5, 9, 7]])
        assert np.array_equal(np.signbit(ordered), [[False, False, False, True, True], [False, False, True, True, True]])


def test_rounded_and_reinterpreted_bits() -> None:
    """Every f32 of few bits, among them infinity and NaN."""
    lines = [
        f"%{number} = stablehlo.reduce_precision %a, format = e{exponent}m{mantissa} : tensor<Nxf32>"
        for number, (exponent, mantissa) in enumerate(((5, 10), (8, 7), (4, 3), (8, 0), (5, 23)))
    ]
    results = ", ".join(f"%{number}" for number in range(5))
    body = "\n".join(lines)
    program = OracleProgram(
        f"func.func @main(%a: tensor<Nxf32>, %w: tensor<NxI64>) -> ({', '.join(['tensor<Nxf32>'] * 5)}, tensor<Nx8xui8>, tensor<Nxf64>) {{\n"
        f"{body}\n%p = stablehlo.bitcast_convert %w : (tensor<NxI64>) -> tensor<Nx8xui8>\n"
        "%q = stablehlo.bitcast_convert %p : (tensor<Nx8xui8>) -> tensor<Nxf64>\n"
        f"return {results}, %p, %q : {', '.join(['tensor<Nxf32>'] * 5)}, tensor<Nx8xui8>, tensor<Nxf64>\n}}".replace("I64", "i64")
    )
    bits = (np.arange(2**12, dtype=np.uint32) << 20 | np.uint32(0x80FFF)) + np.tile(np.array([0, 1, 0x7FF81], np.uint32), 2**12)[: 2**12]
    words = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 2**12)
    program.check({"N": 2**12}, relative=0, inputs=[bits.view(np.float32), words])


CHLO = """func.func @main(%x: tensor<?xf32>, %y: tensor<?xf32>) -> (tensor<?xf32>, tensor<?xf32>, tensor<?xf32>, tensor<?xf32>) {
  %a = chlo.bessel_i1e %x : tensor<?xf32> -> tensor<?xf32>
  %b = chlo.next_after %x, %y : tensor<?xf32>, tensor<?xf32> -> tensor<?xf32>
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %s = stablehlo.abs %x : tensor<?xf32>
  %n = chlo.broadcast_add %s, %one : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %f = stablehlo.floor %n : tensor<?xf32>
  %c = chlo.polygamma %f, %n : tensor<?xf32>, tensor<?xf32> -> tensor<?xf32>
  %m = chlo.broadcast_add %n, %one : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %d = chlo.zeta %m, %n : tensor<?xf32>, tensor<?xf32> -> tensor<?xf32>
  return %a, %b, %c, %d : tensor<?xf32>, tensor<?xf32>, tensor<?xf32>, tensor<?xf32>
}"""


@pytest.mark.long
def test_functions_of_chlo(tmp_path: Path) -> None:
    def oracle(x: Array, y: Array) -> list[Array]:
        wide = torch.from_numpy(np.abs(x).astype(np.float64)) + 1
        polygamma = [torch.special.polygamma(int(each), each.reshape(1)).item() for each in wide]
        zeta = torch.special.zeta(wide + 1, wide).numpy()
        return [torch.special.i1e(torch.from_numpy(x)).numpy(), np.nextafter(x, y), np.array(polygamma), zeta]

    check(compiled(tmp_path, CHLO), oracle, [(-1,), (-1,)])


DRAWS = """func.func @main(%x: tensor<?x3xf32>, %a: tensor<f32>, %b: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>, %d: tensor<f64>)
    -> (tensor<?x3xf32>, tensor<2x3xf32>, tensor<5xi32>, tensor<1000xf32>, tensor<3xf64>, tensor<bf16>) {
  %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x3xf32>) -> tensor<i32>
  %m = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %three = stablehlo.constant dense<3> : tensor<1xi32>
  %s = stablehlo.concatenate %m, %three, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %u = stablehlo.rng %a, %b, %s, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<2xi32>) -> tensor<?x3xf32>
  %t = stablehlo.constant dense<[2, 3]> : tensor<2xi64>
  %v = stablehlo.rng %a, %b, %t, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<2x3xf32>
  %five = stablehlo.constant dense<5> : tensor<1xi64>
  %w = stablehlo.rng %i, %j, %five, distribution = UNIFORM : (tensor<i32>, tensor<i32>, tensor<1xi64>) -> tensor<5xi32>
  %many = stablehlo.constant dense<1000> : tensor<1xi64>
  %g = stablehlo.rng %a, %b, %many, distribution = NORMAL : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<1000xf32>
  %two = stablehlo.constant dense<3> : tensor<1xi64>
  %h = stablehlo.rng %d, %d, %two, distribution = NORMAL : (tensor<f64>, tensor<f64>, tensor<1xi64>) -> tensor<3xf64>
  %none = stablehlo.constant dense<> : tensor<0xi64>
  %p = stablehlo.constant dense<1.0> : tensor<bf16>
  %q = stablehlo.constant dense<2.0> : tensor<bf16>
  %k = stablehlo.rng %p, %q, %none, distribution = UNIFORM : (tensor<bf16>, tensor<bf16>, tensor<0xi64>) -> tensor<bf16>
  return %u, %v, %w, %g, %h, %k : tensor<?x3xf32>, tensor<2x3xf32>, tensor<5xi32>, tensor<1000xf32>, tensor<3xf64>, tensor<bf16>
}"""


def test_random_numbers_of_the_seed_of_a_call(tmp_path: Path) -> None:
    exe = compiled(tmp_path, DRAWS)
    scalars = [np.array(each) for each in (np.float32(2), np.float32(6), np.int32(-3), np.int32(4), np.float64(0.5))]

    def drawn(rows: int, seed: int) -> list[Array]:
        return [np.asarray(each) for each in exe(np.zeros((rows, 3), np.float32), *scalars, seed=seed)]  # pyright: ignore

    def words(stream: int, count: int, word: int = 0) -> Array:
        return words_at(np.arange(count), np.asarray(7, np.int64), stream, word)

    for rows in (0, 1, 17):
        uniform, other, integers, normal, wide, half = drawn(rows, 7)
        np.testing.assert_allclose(uniform.reshape(-1), 2 + 4 * ((words(0, rows * 3) >> 8) * 2.0**-24), rtol=1e-6)
        np.testing.assert_allclose(other.reshape(-1), 2 + 4 * ((words(1, 6) >> 8) * 2.0**-24), rtol=1e-6)
        long = words(2, 5).astype(np.uint64) | words(2, 5, 1).astype(np.uint64) << np.uint64(32)
        assert np.array_equal(integers, (long % 7).astype(np.int64) - 3)
        radius, turn = (((words(3, 1000, word) >> 9) + 0.5) * 2.0**-23 for word in (0, 2))
        np.testing.assert_allclose(normal, 2 + 6 * np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * turn), rtol=1e-4, atol=1e-4)
        assert abs(normal.mean() - 2) < 0.8 and abs(normal.std() - 6) < 0.6 and len(set(wide.tolist())) == 3
        assert half.shape == ()
    assert not np.array_equal(drawn(17, 7)[0], drawn(17, 8)[0])


LOOP = """func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %a = stablehlo.constant dense<0.0> : tensor<f32>
  %b = stablehlo.constant dense<1.0> : tensor<f32>
  %s = stablehlo.constant dense<4> : tensor<1xi64>
  %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<4xf32>
  cond {
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %u = stablehlo.rng %a, %b, %s, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<4xf32>
    %z = stablehlo.add %y, %u : tensor<4xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %z : tensor<i32>, tensor<4xf32>
  }
  return %r#1 : tensor<4xf32>
}"""


def of_devices(line: str, count: int = 1) -> str:
    return f"""module attributes {{mhlo.num_partitions = {count} : i32, mhlo.num_replicas = 1 : i32}} {{
func.func @main(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {{
  {line} : (tensor<?x4xf32>) -> tensor<?x4xf32>
  return %r : tensor<?x4xf32>
}} }}"""


GATHER = '%r = "stablehlo.all_gather"(%x) {all_gather_dim = 0 : i64, replica_groups = dense<GROUPS>}'
PERMUTE = '%r = "stablehlo.collective_permute"(%x) {source_target_pairs = dense<GROUPS>}'
PART = "%r = stablehlo.custom_call @SPMDFullToShardShape(%x)"


def test_exchanges_with_no_other_device(tmp_path: Path) -> None:
    x = np.ones((3, 4), np.float32)
    for line, wanted in (
        (GATHER.replace("GROUPS", "0> : tensor<1x1xi64"), x),
        (PERMUTE.replace("GROUPS", "0> : tensor<1x2xi64"), x),
        (PERMUTE.replace("GROUPS", "> : tensor<0x2xi64"), 0 * x),
        (PART, x),
    ):
        assert np.array_equal(np.asarray(compiled(tmp_path, of_devices(line))(x)), wanted), line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LOOP, "stablehlo.rng at .*random numbers are not drawn in a loop"),
        (of_devices(GATHER.replace("GROUPS", "[[0, 1]]> : tensor<1x2xi64")), "all_gather at .* it exchanges data with other devices"),
        (of_devices(PERMUTE.replace("GROUPS", "[[0, 1]]> : tensor<1x2xi64")), "collective_permute at .* it exchanges data"),
        (of_devices(GATHER.replace("GROUPS", "0> : tensor<1x1xi64"), 8), "all_gather at .* it exchanges data with other devices"),
        (of_devices(PART, 8), "custom_call at .* it exchanges data with other devices"),
    ],
)
def test_what_one_call_on_one_device_cannot_do(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOpError, match=words):
        compiled(tmp_path, text)


EINSUMS = """func.func @main(%a: tensor<?x3x3xf32>, %b: tensor<4x?x3xf32>, %c: tensor<2x5xf32>)
    -> (tensor<?x4x3xf32>, tensor<4xf32>, tensor<2x?xf32>, tensor<?xf32>, tensor<3x?xf32>, tensor<4x?x3xf32>) {
  %0 = "stablehlo.einsum"(%a, %b) {einsum_config = "nij,bnj->nbi"} : (tensor<?x3x3xf32>, tensor<4x?x3xf32>) -> tensor<?x4x3xf32>
  %1 = "stablehlo.einsum"(%a, %b) {einsum_config = "nii,bnj->b"} : (tensor<?x3x3xf32>, tensor<4x?x3xf32>) -> tensor<4xf32>
  %2 = "stablehlo.einsum"(%c, %a) {einsum_config = "xy,nij->xn"} : (tensor<2x5xf32>, tensor<?x3x3xf32>) -> tensor<2x?xf32>
  %3 = "stablehlo.unary_einsum"(%a) {einsum_config = "nii->n"} : (tensor<?x3x3xf32>) -> tensor<?xf32>
  %4 = "stablehlo.unary_einsum"(%a) {einsum_config = "nij->jn"} : (tensor<?x3x3xf32>) -> tensor<3x?xf32>
  %5 = "stablehlo.einsum"(%b, %a) {einsum_config = "b...i, ...ij -> b...j"} : (tensor<4x?x3xf32>, tensor<?x3x3xf32>) -> tensor<4x?x3xf32>
  return %0, %1, %2, %3, %4, %5 : tensor<?x4x3xf32>, tensor<4xf32>, tensor<2x?xf32>, tensor<?xf32>, tensor<3x?xf32>, tensor<4x?x3xf32>
}"""


def test_dims_with_letters(tmp_path: Path) -> None:
    def oracle(a: Array, b: Array, c: Array) -> list[Array]:
        pairs = {"nij,bnj->nbi": (a, b), "nii,bnj->b": (a, b), "xy,nij->xn": (c, a), "nii->n": (a,), "nij->jn": (a,)}
        return [*(np.einsum(config, *given) for config, given in pairs.items()), np.einsum("bni,nij->bnj", b, a)]

    check(compiled(tmp_path, EINSUMS), oracle, [(-1, 3, 3), (4, -1, 3), (2, 5)])


@pytest.mark.parametrize("config", ["ab,bc->ad", "abc,bc->ac", "ab,bc", "a1,bc->ac", "ab,bc->aca"])
def test_letters_that_do_not_fit_are_refused(tmp_path: Path, config: str) -> None:
    text = f"""func.func @main(%a: tensor<?x4xf32>, %b: tensor<4x3xf32>) -> tensor<?x3xf32> {{
  %0 = "stablehlo.einsum"(%a, %b) {{einsum_config = "{config}"}} : (tensor<?x4xf32>, tensor<4x3xf32>) -> tensor<?x3xf32>
  return %0 : tensor<?x3xf32>
}}"""
    with pytest.raises(UnsupportedOpError, match=r"stablehlo\.einsum"):
        compiled(tmp_path, text)


SELECTS = """func.func @main(%a: tensor<?x5x4xf32>, %b: tensor<?x2xf32>) -> (tensor<?x?x2x4xf32>, tensor<?x2x4xf32>) {
  %i = stablehlo.convert %b : (tensor<?x2xf32>) -> tensor<?x2xi32>
  %0 = "stablehlo.torch_index_select"(%a, %i) {dim = 1 : i64, batch_dims = 0 : i64} : (tensor<?x5x4xf32>, tensor<?x2xi32>) -> tensor<?x?x2x4xf32>
  %1 = "stablehlo.torch_index_select"(%a, %i) {dim = 1 : i64, batch_dims = 1 : i64} : (tensor<?x5x4xf32>, tensor<?x2xi32>) -> tensor<?x2x4xf32>
  return %0, %1 : tensor<?x?x2x4xf32>, tensor<?x2x4xf32>
}"""


def test_rows_that_numbers_choose(tmp_path: Path) -> None:
    def oracle(a: Array, b: Array) -> list[Array]:
        rows = np.clip(b.astype(np.int32), 0, 4)
        return [a[:, rows], a[np.arange(len(a))[:, None], rows]]

    check(compiled(tmp_path, SELECTS), oracle, [(-1, 5, 4), (-1, 2)])
