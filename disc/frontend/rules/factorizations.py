"""QR, LU, eigenvalue and singular value decompositions, and the exponential of a matrix: f32 and f64."""

from __future__ import annotations

import operator

import sympy
import torch

from disc.frontend.call import Call
from disc.frontend.complex_matrices import disc
from disc.frontend.effect_tokens import CHECKS
from disc.frontend.op_builder import OpBuilder, RuleError, Tensor
from disc.frontend.rules.indexing import gathered
from disc.frontend.rules.linalg import determinant, factor, inverse, is_vector_of, real, sign_and_logarithm, solve, transposed, triangular
from disc.frontend.rules.overrides import Fault, Override, overrides
from disc.frontend.rules.places import INDEX
from disc.frontend.rules.sorting import library, sized_library, sort_along
from disc.frontend.rules.views import slice_along
from disc.frontend.symbols import Shape, Size, to_size

aten = torch.ops.aten
# Ops that return numbers of what failed, which composite functions of PyTorch check themselves afterwards.
CHECKED = (
    aten.linalg_cholesky_ex.default, aten.linalg_inv_ex.default, aten._linalg_solve_ex.default, aten.linalg_lu_factor_ex.default,
    disc.complex_lu.default, disc.complex_cholesky_ex.default,
)  # fmt: skip


def _least(x: Tensor) -> Size:
    """min(rows, columns)."""
    return to_size(sympy.Min(*map(sympy.sympify, x.shape[-2:])))


def _where(e: OpBuilder, direction: str, x: Tensor, otherwise: Tensor) -> Tensor:
    """Elements whose row is `direction` their column ("le": the upper triangle); those of `otherwise` elsewhere."""
    row, column = e.iota(x.shape, x.rank - 2, INDEX), e.iota(x.shape, x.rank - 1, INDEX)
    return e.select(e.compare(direction, row, column), x, otherwise)


def identity(e: OpBuilder, shape: Shape, dtype: torch.dtype) -> Tensor:
    return _where(e, "eq", e.full(1, shape, dtype), e.full(0, shape, dtype))


def _upper(e: OpBuilder, x: Tensor, rows: Size) -> Tensor:
    """Of the first rows: zeros below the diagonal."""
    first = slice_along(e, x, x.rank - 2, 0, rows)
    return _where(e, "le", first, e.full(0, first.shape, x.dtype))


def _unit_lower(e: OpBuilder, x: Tensor, columns: Size) -> Tensor:
    """Of the first columns: zeros above the diagonal, which is 1."""
    first = slice_along(e, x, x.rank - 1, 0, columns)
    return _where(e, "gt", first, identity(e, first.shape, x.dtype))


# --- QR -------------------------------------------------------------------------------------------------------------------------


def _reflections(e: OpBuilder, x: Tensor) -> tuple[Tensor, Tensor]:
    found = sized_library(e, "disc.dynamic_householder", [real(x)], [(x.shape, x.dtype), ((*x.shape[:-2], _least(x)), x.dtype)])
    return found[0], found[1]


def _product(e: OpBuilder, packed: Tensor, factors: Tensor, columns: Size) -> Tensor:
    """The first columns of the product of reflections."""
    shape = (*packed.shape[:-1], columns)
    return sized_library(e, "disc.dynamic_householder_product", [packed, factors], [(shape, packed.dtype)])[0]


def qr(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    x, mode = call.tensor("A"), call.text("mode")
    packed, factors = _reflections(e, x)
    r = _upper(e, packed, x.shape[-2] if mode == "complete" else _least(x))
    if mode == "r":
        return e.full(0, (0,), x.dtype), r
    return _product(e, packed, factors, r.shape[-2]), r


def householder_product(e: OpBuilder, call: Call) -> Tensor:
    x = real(call.tensor("input"))
    return _product(e, x, call.tensor("tau"), x.shape[-1])


# --- LU -------------------------------------------------------------------------------------------------------------------------


def factored(e: OpBuilder, x: Tensor, checked: bool = False) -> tuple[Tensor, ...]:
    """(L and U in one, pivots, order of the rows, first zeros on the diagonal of U). checked: a zero there fails the call."""
    batch, whole = x.shape[:-2], torch.int32
    results = [(x.shape, x.dtype), ((*batch, _least(x)), whole), (x.shape[:-1], whole), (batch, whole)]
    return sized_library(e, "disc.dynamic_lu_checked" if checked else "disc.dynamic_lu", [real(x)], results)


def lu_factor(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    if call.arguments["pivot"] is False:
        raise RuleError("an LU factorization without pivots, which eager refuses on a CPU, too")
    factors, pivots, _, zeros = factored(e, call.tensor("A"), is_checked(call))
    return factors, pivots, zeros


def _unpacked(e: OpBuilder, factors: Tensor, order: Tensor) -> tuple[Tensor, ...]:
    """(P, L, U)."""
    rows, least = factors.shape[-2], _least(factors)
    shape = (*factors.shape[:-1], rows)
    row = e.iota(shape, len(shape) - 2, torch.int32)
    to = e.broadcast(e.unsqueeze(order, order.rank - 1), shape)
    exchange = e.convert(e.compare("eq", row, to), factors.dtype)
    return exchange, _unit_lower(e, factors, least), _upper(e, factors, least)


def lu(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    if call.arguments["pivot"] is False:
        raise RuleError("an LU factorization without pivots, which eager refuses on a CPU, too")
    factors, _, order, _ = factored(e, call.tensor("A"))
    return _unpacked(e, factors, order)


def _order(e: OpBuilder, pivots: Tensor, rows: Size) -> Tensor:
    """Of rows, after exchanges."""
    return sized_library(e, "disc.dynamic_permutation", [pivots], [((*pivots.shape[:-1], rows), torch.int32)])[0]


def lu_unpack(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    factors, pivots = real(call.tensor("LU_data")), call.tensor("LU_pivots")
    if pivots.rank != factors.rank - 1:
        raise RuleError(f"pivots of rank {pivots.rank} for factors of rank {factors.rank}: they have a dim less")
    exchange, lower, upper = _unpacked(e, factors, _order(e, pivots, factors.shape[-2]))
    nothing = e.full(0, (0,), factors.dtype)
    data, order = call.flag("unpack_data"), call.flag("unpack_pivots")
    return exchange if order else nothing, lower if data else nothing, upper if data else nothing


def _permuted(e: OpBuilder, x: Tensor, order: Tensor) -> Tensor:
    """Rows in another order."""
    return gathered(e, x, e.broadcast(e.unsqueeze(order, order.rank), x.shape), x.rank - 2)


def solved_by_factors(e: OpBuilder, factors: Tensor, order: Tensor, right: Tensor, turned: bool = False) -> Tensor:
    """X of A * X = right, or A^T * X = right."""
    if not turned:
        half = triangular(e, factors, _permuted(e, right, order), upper=False, unit=True)
        return triangular(e, factors, half, upper=True, unit=False)
    half = triangular(e, transposed(e, factors), right, upper=False, unit=False)
    found = triangular(e, transposed(e, factors), half, upper=True, unit=True)
    return _permuted(e, found, sort_along(order, order.rank - 1, False)[1])


def by_factors(e: OpBuilder, factors: Tensor, order: Tensor, right: Tensor, left: bool, turned: bool) -> Tensor:
    """X of A * X = right, with A^T if `turned`; of X * A = right if not `left`. Batches of either."""
    batch = e.broadcast_shape(factors.shape[:-2], right.shape[:-2])
    factors, order = e.broadcast(factors, (*batch, *factors.shape[-2:])), e.broadcast(order, (*batch, order.shape[-1]))
    right = e.broadcast(right, (*batch, *right.shape[-2:]))
    if left:
        return solved_by_factors(e, factors, order, right, turned)
    return transposed(e, solved_by_factors(e, factors, order, transposed(e, right), not turned))


def lu_solve(e: OpBuilder, call: Call) -> Tensor:
    factors = real(call.tensor("LU"))
    order = _order(e, call.tensor("pivots"), factors.shape[-2])
    return by_factors(e, factors, order, call.tensor("B"), call.flag("left"), call.flag("adjoint"))


# --- eigenvalues, singular values -----------------------------------------------------------------------------------------------


def eigh(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    x = real(call.tensor("A"))
    x = transposed(e, x) if (call.text("UPLO") or "L").upper() == "U" else x
    values, vectors = sized_library(e, "disc.dynamic_eigh", [x], [(x.shape[:-1], x.dtype), (x.shape, x.dtype)])
    return values, vectors if call.flag("compute_v") else e.full(0, (0,), x.dtype)


def svd(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    x = real(call.tensor("A"))
    (*batch, rows, columns), least = x.shape, _least(x)
    full = call.flag("full_matrices")
    shapes = ((*batch, rows, rows if full else least), (*batch, least), (*batch, columns if full else least, columns))
    left, values, right = sized_library(e, "disc.dynamic_svd", [x], [(shape, x.dtype) for shape in shapes])
    if call.flag("compute_uv"):
        return left, values, right
    nothing = e.full(0, (0,), x.dtype)
    return nothing, values, nothing


# --- with numbers of what failed, which composite functions check ---------------------------------------------------------------


def is_checked(call: Call) -> bool:
    """Whether `_linalg_check_errors` reads the numbers of what failed, the last result: then a failure ends the call here."""
    last = len(call.results) - 1
    return call.flag("check_errors") or any(
        user.target is operator.getitem and user.args[1] == last and any(each.target in CHECKS for each in user.users)
        for user in call.node.users
    )


def check_errors(e: OpBuilder, call: Call) -> None:
    """Of an op that ended the call itself.

    Raises: RuleError for another one.
    """
    numbers = call.node.all_input_nodes[0]
    if numbers.target is not operator.getitem or numbers.all_input_nodes[0].target not in CHECKED:
        raise RuleError("what it checks is not made by an op of this compiler")


def no_failures(e: OpBuilder, batch: Shape) -> Tensor:
    return e.full(0, batch, torch.int32)


def cholesky_ex(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    x, is_upper = real(call.tensor("self")), call.flag("upper")
    if is_checked(call):
        return factor(e, x, is_upper), no_failures(e, x.shape[:-2])
    x = transposed(e, x) if is_upper else x
    found, numbers = sized_library(e, "disc.dynamic_cholesky_ex", [x], [(x.shape, x.dtype), (x.shape[:-2], torch.int32)])
    return transposed(e, found) if is_upper else found, numbers


def inverse_ex(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    x = real(call.tensor("A"))
    if is_checked(call):
        return inverse(e, call), no_failures(e, x.shape[:-2])
    factors, _, order, zeros = factored(e, x)
    return solved_by_factors(e, factors, order, identity(e, x.shape, x.dtype)), zeros


def solve_ex(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    """Eager, too, goes on where U has a zero on its diagonal, and divides by it."""
    x = real(call.tensor("A"))
    factors, pivots, order, zeros = factored(e, x)
    if is_checked(call):
        return solve(e, call), factors, pivots, zeros
    right, is_vector = call.tensor("B"), is_vector_of(call.tensor("B"), x)
    found = by_factors(e, factors, order, e.unsqueeze(right, right.rank) if is_vector else right, call.flag("left") or is_vector, False)
    return e.reshape(found, call.shape) if is_vector else found, factors, pivots, zeros


def determinant_with_factors(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    return determinant(e, call), *factored(e, call.tensor("A"))[:2]


def logarithm_with_factors(e: OpBuilder, call: Call) -> tuple[Tensor, ...]:
    return *sign_and_logarithm(e, call), *factored(e, call.tensor("A"))[:2]


def matrix_exp(e: OpBuilder, call: Call) -> Tensor:
    x = real(call.tensor("self"))
    return library("disc.matrix_exp", [x], [(x.shape, x.dtype)])[0]


OVERRIDES: dict[object, Override] = {
    **overrides(Fault.REFUSED, "no lowering to ops that disc has", {
        aten.linalg_qr.default: qr, aten.linalg_householder_product.default: householder_product,
        aten.linalg_lu_factor_ex.default: lu_factor, aten.linalg_lu.default: lu, aten.lu_unpack.default: lu_unpack,
        aten.linalg_lu_solve.default: lu_solve, aten._linalg_eigh.default: eigh, aten._linalg_svd.default: svd,
        aten.linalg_matrix_exp.default: matrix_exp, aten.linalg_cholesky_ex.default: cholesky_ex, aten.linalg_inv_ex.default: inverse_ex,
        aten._linalg_solve_ex.default: solve_ex, aten._linalg_det.default: determinant_with_factors,
        aten._linalg_slogdet.default: logarithm_with_factors,
    }),
}  # fmt: skip
