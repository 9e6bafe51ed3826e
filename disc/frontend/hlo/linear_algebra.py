"""Factors of matrices and solutions of triangular systems, as ops of the specification and as calls of LAPACK that JAX makes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch_mlir import ir

from disc.frontend.hlo.emit import Emitter, FormError, Values, is_float, kind_of, signless, width_of
from disc.ir.ops import element_of, rank_of

Result = tuple[Sequence[ir.Value | int], ir.Type]
CHARACTERS = {ord(each): each for each in "LURNTCASV"}


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


def options_of(op: ir.Operation) -> dict[str, str]:
    """The characters of LAPACK's arguments by their names."""
    given = ir.DictAttr(op.attributes["mhlo.backend_config"])
    found = {entry.name: ir.IntegerAttr(entry.attr).value for entry in given if isinstance(entry.attr, ir.IntegerAttr)}
    return {name: CHARACTERS.get(number, "") for name, number in found.items()}


def sized(e: Emitter, name: str, operands: Values, results: Sequence[Result]) -> Values:
    """A library op whose results have these sizes, each an index or a number, and element types."""
    dynamic = ir.ShapedType.get_dynamic_size()
    kinds = [ir.RankedTensorType.get([size if isinstance(size, int) else dynamic for size in sizes], kind) for sizes, kind in results]
    return e.make(name, [*operands, *(e.sizes(sizes) for sizes, _ in results)], kinds)


def sizes_of(e: Emitter, x: ir.Value) -> list[ir.Value | int]:
    return [size if size >= 0 else e.size(x, dim) for dim, size in enumerate(kind_of(x).shape)]


def least_of(e: Emitter, rows: ir.Value | int, columns: ir.Value | int) -> ir.Value | int:
    if isinstance(rows, int) and isinstance(columns, int):
        return min(rows, columns)
    return e.one("arith.minsi", [e.index(rows), e.index(columns)], ir.IndexType.get())


def _matrices(e: Emitter, x: ir.Value) -> tuple[list[ir.Value | int], ir.Value | int, ir.Value | int]:
    """(batch, rows, columns) of matrices of f32 or f64."""
    if rank_of(x) < 2 or not is_float(element_of(x)) or width_of(element_of(x)) < 32:
        raise FormError(f"linear algebra of {x.type}")
    *batch, rows, columns = sizes_of(e, x)
    return batch, rows, columns


def no_faults(e: Emitter, batch: Sequence[ir.Value | int], like: ir.Value) -> ir.Value:
    """0 for each matrix: where there is no result, the call fails."""
    kind = ir.RankedTensorType.get(kind_of(like).shape, element_of(like))
    if kind.has_static_shape:
        return e.array(np.zeros(kind.shape, np.int32), kind)
    zero = e.constant(0, element_of(like))
    return e.one("stablehlo.dynamic_broadcast_in_dim", [zero, e.sizes(batch)], kind, {"broadcast_dimensions": []})


def potrf(op: ir.Operation) -> Values:
    """(factor, 0)."""
    e, options = Emitter(op), options_of(op)
    factor = _factor(e, op.operands[0], options["uplo"] == "L")
    return [factor, no_faults(e, sizes_of(e, factor)[:-2], op.results[1])]


def trsm(op: ir.Operation) -> Values:
    options = options_of(op)
    return [
        _solved(
            Emitter(op), op.operands[0], op.operands[1], left=options["side"] == "L", lower=options["uplo"] == "L",
            unit=options["diag"] == "U", turned=options["trans_x"] != "N",
        )
    ]  # fmt: skip


def getrf(op: ir.Operation) -> Values:
    """(L and U in one, pivots from 1, the place of the first zero on the diagonal of U, from 1, or 0)."""
    e, x = Emitter(op), op.operands[0]
    batch, rows, columns = _matrices(e, x)
    whole = signless(32)
    results = [
        ([*batch, rows, columns], element_of(x)),
        ([*batch, least_of(e, rows, columns)], whole),
        ([*batch, rows], whole),
        (batch, whole),
    ]
    factors, pivots, _, zeros = sized(e, "disc.dynamic_lu", [x], results)
    return [factors, pivots, zeros]


def geqrf(op: ir.Operation) -> Values:
    """(R and reflections, their factors)."""
    e, x = Emitter(op), op.operands[0]
    batch, rows, columns = _matrices(e, x)
    return sized(
        e,
        "disc.dynamic_householder",
        [x],
        [([*batch, rows, columns], element_of(x)), ([*batch, least_of(e, rows, columns)], element_of(x))],
    )


def orgqr(op: ir.Operation) -> Values:
    """The columns of the product of reflections, as many as there were."""
    e, (x, factors) = Emitter(op), op.operands[:2]
    batch, rows, columns = _matrices(e, x)
    return sized(e, "disc.dynamic_householder_product", [x, factors], [([*batch, rows, columns], element_of(x))])


def syevd(op: ir.Operation) -> Values:
    """(eigenvectors, eigenvalues, 0)."""
    e, x, options = Emitter(op), op.operands[0], options_of(op)
    _check_real(x)
    source = x if options["uplo"] == "L" else e.turned(x)
    batch, rows, columns = _matrices(e, x)
    values, vectors = sized(e, "disc.dynamic_eigh", [source], [([*batch, rows], element_of(x)), ([*batch, rows, columns], element_of(x))])
    return [vectors, values, no_faults(e, batch, op.results[2])]


def is_square(x: ir.Value) -> bool:
    return kind_of(x).shape[-1] == kind_of(x).shape[-2]


def vectors_of(
    op: ir.Operation, sides: tuple[ir.Value | int, ir.Value | int], least: ir.Value | int
) -> tuple[ir.Value | int, ir.Value | int]:
    """How many singular vectors there are on the left and on the right. sides: rows and columns. Raises: FormError."""
    mode = options_of(op)["mode"]
    if mode not in ("A", "S", "N"):
        raise FormError(f"a singular value decomposition of mode {mode!r}")
    full = mode == "A" or (mode == "N" and is_square(op.results[2]) and is_square(op.results[3]))  # what N makes of them is not read
    return sides if full else (least, least)


def gesdd(op: ir.Operation) -> Values:
    """(what was there, singular values, U, V^T, 0)."""
    e, x = Emitter(op), op.operands[0]
    batch, rows, columns = _matrices(e, x)
    least = least_of(e, rows, columns)
    left, right = vectors_of(op, (rows, columns), least)
    shapes = ([*batch, rows, left], [*batch, least], [*batch, right, columns])
    found = sized(e, "disc.dynamic_svd", [x], [(shape, element_of(x)) for shape in shapes])
    return [x, found[1], found[0], found[2], no_faults(e, batch, op.results[4])]


_TARGETS = {
    "potrf": potrf, "trsm": trsm, "getrf": getrf, "geqrf": geqrf, "orgqr": orgqr, "syevd": syevd, "gesdd": gesdd, "gesvd": gesdd,
}  # fmt: skip
CALLS = {f"lapack_{element}{name}_ffi": form for name, form in _TARGETS.items() for element in "sd"}
