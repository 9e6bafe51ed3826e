"""Complex matrices, and combinations of complex numbers, in StableHLO: against NumPy and the interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from compiled import text_program

import disc
from disc.errors import UnsupportedOpError

FACTORS = """func.func @main(%a: tensor<?x3x3xcomplex<f64>>, %b: tensor<?x3x2xcomplex<f64>>) -> (tensor<?x3x3xcomplex<f64>>,
    tensor<?x3x3xcomplex<f64>>, tensor<?x3x2xcomplex<f64>>, tensor<?x2x3xcomplex<f64>>, tensor<?xcomplex<f64>>, tensor<?x3xcomplex<f64>>) {
  %l = stablehlo.cholesky %a, lower = true : tensor<?x3x3xcomplex<f64>>
  %u = stablehlo.cholesky %a : tensor<?x3x3xcomplex<f64>>
  %x = "stablehlo.triangular_solve"(%a, %b) {left_side = true, lower = true, unit_diagonal = false,
    transpose_a = #stablehlo<transpose ADJOINT>} : (tensor<?x3x3xcomplex<f64>>, tensor<?x3x2xcomplex<f64>>) -> tensor<?x3x2xcomplex<f64>>
  %t = stablehlo.transpose %b, dims = [0, 2, 1] : (tensor<?x3x2xcomplex<f64>>) -> tensor<?x2x3xcomplex<f64>>
  %y = "stablehlo.triangular_solve"(%a, %t) {left_side = false, lower = false, unit_diagonal = true,
    transpose_a = #stablehlo<transpose NO_TRANSPOSE>} : (tensor<?x3x3xcomplex<f64>>, tensor<?x2x3xcomplex<f64>>) -> tensor<?x2x3xcomplex<f64>>
  %one = stablehlo.constant dense<(2.0, 1.0)> : tensor<complex<f64>>
  %p = stablehlo.reduce(%b init: %one) across dimensions = [1, 2]
    : (tensor<?x3x2xcomplex<f64>>, tensor<complex<f64>>) -> tensor<?xcomplex<f64>>
    reducer(%i: tensor<complex<f64>>, %j: tensor<complex<f64>>) {
      %k = stablehlo.multiply %i, %j : tensor<complex<f64>>
      stablehlo.return %k : tensor<complex<f64>>
    }
  %r, %s = stablehlo.reduce(%b init: %one), (%b init: %one) across dimensions = [2]
    : (tensor<?x3x2xcomplex<f64>>, tensor<?x3x2xcomplex<f64>>, tensor<complex<f64>>, tensor<complex<f64>>)
      -> (tensor<?x3xcomplex<f64>>, tensor<?x3xcomplex<f64>>)
    reducer(%i: tensor<complex<f64>>, %j: tensor<complex<f64>>) (%m: tensor<complex<f64>>, %n: tensor<complex<f64>>) {
      %k = stablehlo.add %i, %j : tensor<complex<f64>>
      %q = stablehlo.multiply %m, %n : tensor<complex<f64>>
      %v = stablehlo.add %k, %q : tensor<complex<f64>>
      stablehlo.return %v, %q : tensor<complex<f64>>, tensor<complex<f64>>
    }
  return %l, %u, %x, %y, %p, %r : tensor<?x3x3xcomplex<f64>>, tensor<?x3x3xcomplex<f64>>, tensor<?x3x2xcomplex<f64>>,
    tensor<?x2x3xcomplex<f64>>, tensor<?xcomplex<f64>>, tensor<?x3xcomplex<f64>>
}"""


def test_factors_systems_and_combinations(tmp_path: Path) -> None:
    path = tmp_path / "program.mlir"
    path.write_text(FACTORS)
    exe = disc.compile(path, options=disc.Options(cache=False))
    random = np.random.default_rng(0)
    for size in (3, 1, 0, 17):
        x, b = (random.normal(size=(size, 3, k)) + 1j * random.normal(size=(size, 3, k)) for k in (3, 2))
        a = x @ x.conj().swapaxes(1, 2) + 3 * np.eye(3)
        lower, unit = np.linalg.cholesky(a), np.triu(a, 1) + np.eye(3)
        total, product = np.full((size, 3), 2 + 1j), np.full((size, 3), 2 + 1j)
        for k in range(2):
            product = product * b[..., k]
            total = total + b[..., k] + product
        wanted = [
            lower, lower.conj().swapaxes(1, 2), np.linalg.solve(np.tril(a).conj().swapaxes(1, 2), b),
            np.linalg.solve(unit.swapaxes(1, 2), b).swapaxes(1, 2), (2 + 1j) * b.prod((1, 2)), total,
        ]  # fmt: skip
        found = exe(a, b)
        assert isinstance(found, tuple)
        for number, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
            np.testing.assert_allclose(np.asarray(ours), theirs, 1e-10, 1e-12, err_msg=f"result {number}, size {size}")


LAPACK = """func.func @main(%x: tensor<?x4x3xf64>, %y: tensor<?x4x3xf64>) -> (RESULTS) {
  %z = stablehlo.complex %x, %y : tensor<?x4x3xcomplex<f64>>
  %lu:3 = stablehlo.custom_call @lapack_zgetrf_ffi(%z) : (tensor<?x4x3xcomplex<f64>>)
    -> (tensor<?x4x3xcomplex<f64>>, tensor<?x3xi32>, tensor<?xi32>)
  %qr:2 = stablehlo.custom_call @lapack_zgeqrf_ffi(%z) : (tensor<?x4x3xcomplex<f64>>) -> (tensor<?x4x3xcomplex<f64>>, tensor<?x3xcomplex<f64>>)
  %q = stablehlo.custom_call @lapack_zungqr_ffi(%qr#0, %qr#1) : (tensor<?x4x3xcomplex<f64>>, tensor<?x3xcomplex<f64>>)
    -> tensor<?x4x3xcomplex<f64>>
  %p = stablehlo.dot_general %z, %z, batching_dims = [0] x [0], contracting_dims = [1] x [1]
    : (tensor<?x4x3xcomplex<f64>>, tensor<?x4x3xcomplex<f64>>) -> tensor<?x3x3xcomplex<f64>>
  %s = stablehlo.custom_call @lapack_ztrsm_ffi(%p, %p) {mhlo.backend_config = {diag = 78 : ui8, side = 82 : ui8, trans_x = 67 : ui8,
    uplo = 85 : ui8}} : (tensor<?x3x3xcomplex<f64>>, tensor<?x3x3xcomplex<f64>>) -> tensor<?x3x3xcomplex<f64>>
  PARTS
}"""
COMPLEX = ("%lu#0:?x4x3", "%qr#0:?x4x3", "%qr#1:?x3", "%q:?x4x3", "%s:?x3x3")


def test_calls_of_lapack_as_interpreted() -> None:
    """Equal rows, so that a column has several candidates for its pivot, and no rows at all."""
    lines: list[str] = []
    values = ["%lu#1", "%lu#2"]
    kinds = ["tensor<?x3xi32>", "tensor<?xi32>"]
    for number, each in enumerate(COMPLEX):
        name, _, shape = each.partition(":")
        for part in ("real", "imag"):
            lines.append(f"%{part}{number} = stablehlo.{part} {name} : (tensor<{shape}xcomplex<f64>>) -> tensor<{shape}xf64>")
            values.append(f"%{part}{number}")
            kinds.append(f"tensor<{shape}xf64>")
    lines.append(f"return {', '.join(values)} : {', '.join(kinds)}")
    program = text_program(LAPACK.replace("RESULTS", ", ".join(kinds)).replace("PARTS", "\n  ".join(lines)))
    random = np.random.default_rng(0)
    for size in (3, 1, 0, 17):
        x, y = (random.normal(size=(size, 4, 3)) for _ in range(2))
        x[:1, 2], y[:1, 2] = x[:1, 0], y[:1, 0]
        program.check([x, y], ulps=0, absolute=1e-9)


def test_operands_that_no_verifier_has_seen(tmp_path: Path) -> None:
    path = tmp_path / "program.mlir"
    for call, words in (
        ("@lapack_cgetrf_ffi(%z) : (tensor<?x3xcomplex<f32>>) -> tensor<?x3xcomplex<f32>>", "its results are not those of"),
        (
            "@lapack_ctrsm_ffi(%z, %z) : (tensor<?x3xcomplex<f32>>, tensor<?x3xcomplex<f32>>) -> tensor<?x3xcomplex<f32>>",
            "attributes are not",
        ),
        ("@lapack_cgees_ffi(%z) : (tensor<?x3xcomplex<f32>>) -> tensor<?x3xcomplex<f32>>", "there is no rule for the target"),
    ):
        path.write_text(f"func.func @main(%z: tensor<?x3xcomplex<f32>>) -> tensor<?x3xcomplex<f32>> {{\n  %r = stablehlo.custom_call {call}\n"
                        "  return %r : tensor<?x3xcomplex<f32>>\n}")  # fmt: skip
        with pytest.raises(UnsupportedOpError, match=words):
            disc.compile(path)
