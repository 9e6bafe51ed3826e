"""Factors of matrices and solutions of triangular systems, as ops of the specification and as calls of LAPACK that JAX makes."""

from __future__ import annotations

import numpy as np
from torch_mlir import ir

from disc.frontend.hlo.emit import Emitter, FormError, Values, is_float, kind_of, width_of
from disc.ir.ops import element_of, rank_of

CHARACTERS = {ord(each): each for each in "LURNTC"}


def _check_real(x: ir.Value) -> None:
    """Of matrices [..., n, n]."""
    if rank_of(x) < 2 or kind_of(x).shape[-1] != kind_of(x).shape[-2]:
        raise FormError(f"a factor or a system of {x.type}")
    if not is_float(element_of(x)) or width_of(element_of(x)) < 32:
        raise FormError(f"linear algebra of {element_of(x)}")


def _factor(e: Emitter, x: ir.Value, lower: bool) -> ir.Value:
    """From the triangle where the factor is put."""
    _check_real(x)
    source = x if lower else e.turned(x)
    found = e.one("disc.cholesky", [source], source.type)
    return found if lower else e.turned(found)


def cholesky(op: ir.Operation) -> Values:
    lower = "lower" in op.attributes and ir.BoolAttr(op.attributes["lower"]).value
    return [_factor(Emitter(op), op.operands[0], lower)]


def _solved(e: Emitter, a: ir.Value, b: ir.Value, *, left: bool, lower: bool, unit: bool, turned: bool) -> ir.Value:
    """X of op(A) * X = B, or of X * op(A) = B."""
    _check_real(a)
    if turned != (not left):
        a, lower = e.turned(a), not lower
    right = b if left else e.turned(b)
    found = e.one("disc.triangular_solve", [right, a], right.type, {"upper": not lower, "unit": unit})
    return found if left else e.turned(found)


def triangular_solve(op: ir.Operation) -> Values:
    left, lower, unit = (ir.BoolAttr(op.attributes[name]).value for name in ("left_side", "lower", "unit_diagonal"))
    turned = "NO_TRANSPOSE" not in str(op.attributes["transpose_a"])
    return [_solved(Emitter(op), *op.operands, left=left, lower=lower, unit=unit, turned=turned)]


# --- LAPACK ---------------------------------------------------------------------------------------------------------------------


def _options(op: ir.Operation) -> dict[str, str]:
    """The characters of LAPACK's arguments by their names."""
    given = ir.DictAttr(op.attributes["mhlo.backend_config"])
    found = {entry.name: ir.IntegerAttr(entry.attr).value for entry in given if isinstance(entry.attr, ir.IntegerAttr)}
    return {name: CHARACTERS.get(number, "") for name, number in found.items()}


def potrf(op: ir.Operation) -> Values:
    """(factor, 0): where there is none, the call fails."""
    e, options = Emitter(op), _options(op)
    factor = _factor(e, op.operands[0], options["uplo"] == "L")
    rank = rank_of(factor)
    kind = ir.RankedTensorType.get(kind_of(factor).shape[: rank - 2], element_of(op.results[1]))
    if kind.has_static_shape:
        return [factor, e.array(np.zeros(kind.shape, np.int32), kind)]
    sizes = e.sizes([e.size(factor, dim) for dim in range(rank - 2)])
    zero = e.constant(0, element_of(op.results[1]))
    return [factor, e.one("stablehlo.dynamic_broadcast_in_dim", [zero, sizes], kind, {"broadcast_dimensions": []})]


def trsm(op: ir.Operation) -> Values:
    options = _options(op)
    return [
        _solved(
            Emitter(op), op.operands[0], op.operands[1], left=options["side"] == "L", lower=options["uplo"] == "L",
            unit=options["diag"] == "U", turned=options["trans_x"] != "N",
        )
    ]  # fmt: skip


CALLS = {
    **{f"lapack_{element}potrf_ffi": potrf for element in "sd"},
    **{f"lapack_{element}trsm_ffi": trsm for element in "sd"},
}
