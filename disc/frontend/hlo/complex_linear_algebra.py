"""Linear algebra of complex matrices, in parts, as ops of the specification and as calls of LAPACK; eigenvalues of real ones, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch_mlir import ir

from disc.frontend.hlo.complex_arithmetic import Parts, joined, parted
from disc.frontend.hlo.emit import Emitter, FormError, signless
from disc.frontend.hlo.linear_algebra import Result, is_square, least_of, no_faults, options_of, sized, sizes_of, vectors_of
from disc.ir.ops import element_of, rank_of

Value = ir.Value | Parts
Form = Callable[[Emitter, ir.Operation, Sequence[Value]], Sequence[Value]]
Sizes = Sequence[ir.Value | int]
WHOLE = 32  # bits of pivots and of numbers of what failed


def _complex(value: Value) -> Parts:
    if not isinstance(value, Parts) or rank_of(value.re) < 2:
        raise FormError("its operand is no complex matrix")
    return value


def _square(value: Value) -> Parts:
    found = _complex(value)
    if not is_square(found.re):
        raise FormError(f"a factor or a system of {found.re.type}")
    return found


def _turned(e: Emitter, x: Parts, conjugated: bool) -> Parts:
    im = e.turned(x.im)
    return Parts(e.turned(x.re), e.unary("negate", im) if conjugated else im)


def _pairs(sizes: Sizes, like: Parts) -> Result:
    """A complex result of these sizes."""
    return [*sizes, 2], element_of(like.re)


def _matrices(e: Emitter, x: Parts) -> tuple[list[ir.Value | int], ir.Value | int, ir.Value | int]:
    *batch, rows, columns = sizes_of(e, x.re)
    return batch, rows, columns


def _factor(e: Emitter, x: Parts, lower: bool) -> Parts:
    """From the triangle where the factor is put."""
    source = x if lower else _turned(e, x, conjugated=True)
    found = parted(e, sized(e, "disc.dynamic_complex_cholesky", [joined(e, source)], [_pairs(sizes_of(e, source.re), source)])[0])
    return found if lower else _turned(e, found, conjugated=True)


def cholesky(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    lower = "lower" in op.attributes and ir.BoolAttr(op.attributes["lower"]).value
    return [_factor(e, _square(given[0]), lower)]


def _solved(e: Emitter, a: Parts, b: Parts, *, left: bool, lower: bool, unit: bool, turned: bool, conjugated: bool) -> Parts:
    """X of op(A) * X = B, or of X * op(A) = B."""
    if conjugated:
        a = Parts(a.re, e.unary("negate", a.im))
    if turned != (not left):
        a, lower = _turned(e, a, conjugated=False), not lower
    right = joined(e, b if left else _turned(e, b, conjugated=False))
    found = e.one("disc.complex_triangular_solve", [right, joined(e, a)], right.type, {"upper": not lower, "unit": unit})
    return parted(e, found) if left else _turned(e, parted(e, found), conjugated=False)


def triangular_solve(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    left, lower, unit = (ir.BoolAttr(op.attributes[name]).value for name in ("left_side", "lower", "unit_diagonal"))
    form = str(op.attributes["transpose_a"])
    return [
        _solved(
            e, _square(given[0]), _complex(given[1]), left=left, lower=lower, unit=unit, turned="NO_TRANSPOSE" not in form,
            conjugated="ADJOINT" in form,
        )
    ]  # fmt: skip


# --- LAPACK ---------------------------------------------------------------------------------------------------------------------


def potrf(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    """(factor, 0)."""
    factor = _factor(e, _square(given[0]), options_of(op)["uplo"] == "L")
    return [factor, no_faults(e, sizes_of(e, factor.re)[:-2], op.results[1])]


def trsm(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    options = options_of(op)
    return [
        _solved(
            e, _square(given[0]), _complex(given[1]), left=options["side"] == "L", lower=options["uplo"] == "L",
            unit=options["diag"] == "U", turned=options["trans_x"] != "N", conjugated=options["trans_x"] == "C",
        )
    ]  # fmt: skip


def getrf(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    """(L and U in one, pivots from 1, the place of the first zero on the diagonal of U, from 1, or 0)."""
    x, whole = _complex(given[0]), signless(WHOLE)
    batch, rows, columns = _matrices(e, x)
    results = [_pairs([*batch, rows, columns], x), ([*batch, least_of(e, rows, columns)], whole), ([*batch, rows], whole), (batch, whole)]
    factors, pivots, _, zeros = sized(e, "disc.dynamic_complex_lu", [joined(e, x)], results)
    return [parted(e, factors), pivots, zeros]


def geqrf(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    """(R and reflections, their factors)."""
    x = _complex(given[0])
    batch, rows, columns = _matrices(e, x)
    results = [_pairs([*batch, rows, columns], x), _pairs([*batch, least_of(e, rows, columns)], x)]
    return [parted(e, each) for each in sized(e, "disc.dynamic_complex_householder", [joined(e, x)], results)]


def ungqr(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    """The columns of the product of reflections, as many as there were."""
    x, factors = _complex(given[0]), given[1]
    if not isinstance(factors, Parts):
        raise FormError("the factors of its reflections are not complex")
    operands = [joined(e, x), joined(e, factors)]
    return [parted(e, sized(e, "disc.dynamic_complex_householder_product", operands, [_pairs(sizes_of(e, x.re), x)])[0])]


def heevd(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    """(eigenvectors, eigenvalues, 0)."""
    x = _square(given[0])
    source = x if options_of(op)["uplo"] == "L" else _turned(e, x, conjugated=True)
    batch, rows, columns = _matrices(e, x)
    results = [([*batch, rows], element_of(x.re)), _pairs([*batch, rows, columns], x)]
    values, vectors = sized(e, "disc.dynamic_complex_eigh", [joined(e, source)], results)
    return [parted(e, vectors), values, no_faults(e, batch, op.results[2])]


def gesdd(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    """(what was there, singular values, U, V^H, 0)."""
    x = _complex(given[0])
    batch, rows, columns = _matrices(e, x)
    least = least_of(e, rows, columns)
    left, right = vectors_of(op, (rows, columns), least)
    results = [_pairs([*batch, rows, left], x), ([*batch, least], element_of(x.re)), _pairs([*batch, right, columns], x)]
    found = sized(e, "disc.dynamic_complex_svd", [joined(e, x)], results)
    return [x, found[1], parted(e, found[0]), parted(e, found[2]), no_faults(e, batch, op.results[4])]


def geev(e: Emitter, op: ir.Operation, given: Sequence[Value]) -> Sequence[Value]:
    """(eigenvalues, of a real matrix by their parts, left and right eigenvectors, 0)."""
    x = given[0]
    if options_of(op)["compute_left"] == "V":
        raise FormError("left eigenvectors: those of the conjugate transpose are theirs")
    part = x.re if isinstance(x, Parts) else x
    if rank_of(part) < 2 or not is_square(part):
        raise FormError(f"eigenvalues of {part.type}")
    like, source = Parts(part, part), joined(e, x) if isinstance(x, Parts) else x
    batch, rows, columns = _matrices(e, like)
    name = "disc.dynamic_complex_eig" if isinstance(x, Parts) else "disc.dynamic_eig"
    found = sized(e, name, [source], [_pairs([*batch, rows], like), _pairs([*batch, rows, columns], like)])
    values, vectors = (parted(e, each) for each in found)
    first = [values] if isinstance(x, Parts) else [values.re, values.im]
    return [*first, vectors, vectors, no_faults(e, batch, op.results[len(op.results) - 1])]


_TARGETS: Mapping[str, Form] = {
    "potrf": potrf, "trsm": trsm, "getrf": getrf, "geqrf": geqrf, "ungqr": ungqr, "heevd": heevd, "gesdd": gesdd, "gesvd": gesdd,
    "geev": geev,
}  # fmt: skip
CALLS: Mapping[str, Form] = {
    **{f"lapack_{element}{name}_ffi": form for name, form in _TARGETS.items() for element in "cz"},
    "lapack_sgeev_ffi": geev, "lapack_dgeev_ffi": geev,
}  # fmt: skip
