"""Interpreter rules of library ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch_mlir import ir

from disc.errors import InputValueError, ShapeConstraintError, SingularMatrixError
from disc.ir.interp import special
from disc.ir.interp.values import Array, Rule, Scope, element_name, held_dtype
from disc.ir.ops import int_attr


def bool_attr(op: ir.Operation, name: str) -> bool:
    """A bool attribute of an op."""
    return ir.BoolAttr(op.attributes[name]).value


def stable_places(x: Array, dim: int, descending: bool) -> Array:
    """Where the elements of each line along `dim` are, in their order: equal ones in that of the line, NaN as the largest."""
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    return np.flip(x.shape[dim] - 1 - np.argsort(np.flip(x, dim), axis=dim, kind="stable"), dim)


def _sort(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (x,), dim = operands, int_attr(op, "dim")
    if x.ndim == 0:
        return [x, np.zeros((), np.int64)]
    places = stable_places(x, dim, bool_attr(op, "descending"))
    return [np.take_along_axis(x, places, dim), places.astype(np.int64)]


def _topk(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (x,), dim = operands, int_attr(op, "dim")
    if x.ndim == 0:
        return [x, np.zeros((), np.int64)]
    count = scope.shape(op.results[0].type)[dim]
    if count > x.shape[dim]:
        raise ShapeConstraintError(f"topk: k = {count} is above the size {x.shape[dim]} of dim {dim}")
    places = stable_places(x, dim, bool_attr(op, "largest")).take(range(count), dim)
    return [np.take_along_axis(x, places, dim), places.astype(np.int64)]


def _search(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    """Asks the element in the middle of what is left, as the runtime does: with NaN the answer depends on whom one asks."""
    values, lines = operands
    right, size = bool_attr(op, "right"), lines.shape[-1] if lines.ndim else 1
    flat = lines.reshape(-1, size)
    row = np.arange(values.size).reshape(values.shape) // max(values.shape[-1] if values.ndim else 1, 1) if lines.ndim > 1 else 0
    begin, end = np.zeros(values.shape, np.int64), np.full(values.shape, size, np.int64)
    while (begin < end).any():
        middle = (begin + end) // 2
        found = flat[row, np.minimum(middle, size - 1)]
        before = ~(found > values if right else found >= values) & (begin < end)
        begin, end = np.where(before, middle + 1, begin), np.where(before, end, np.minimum(middle, end))
    return [begin.astype(held_dtype(element_name(op.results[0].type)))]


def _count(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (size,), flat = scope.shape(op.results[0].type), operands[0].reshape(-1)
    return [np.bincount(flat[(flat >= 0) & (flat < size)], minlength=size).astype(np.int64)]


def _reduce_segments(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    """Floats are summed in f64, as the runtime does."""
    (source, starts, ends), maximum = operands, bool_attr(op, "maximum")
    result = np.zeros(scope.shape(op.results[0].type), source.dtype)
    floats = source.dtype.kind not in "iub"
    least = -np.inf if floats else np.iinfo(source.dtype).min
    for segment, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        rows = source[max(start, 0) : max(end, 0)]
        result[segment] = rows.max(0, initial=least) if maximum else rows.sum(0, dtype=np.float64 if floats else source.dtype)
    return [result]


def _grouped_dot(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    rows, matrices, ends = operands
    result, begin = np.zeros(scope.shape(op.results[0].type), np.float64), 0
    for matrix, end in zip(matrices, ends.tolist(), strict=True):
        if not begin <= end <= len(rows):
            raise InputValueError(f"grouped_dot: a group ends at row {end}, which must be from {begin} to {len(rows)}")
        result[begin:end] = rows[begin:end].astype(np.float64) @ matrix.astype(np.float64)
        begin = end
    return [result.astype(rows.dtype)]


def _met(op: ir.Operation, source: Array, sizes: tuple[int, ...], window: tuple[int, ...]) -> Array:
    """What every place of a window meets: [b, c, out..., window...] in f64."""
    low = int_attr(op, "top"), int_attr(op, "left")
    wide = np.zeros((*source.shape[:2], *(out + size - 1 for out, size in zip(sizes, window, strict=True))))
    here, there = [slice(None)] * 2, [slice(None)] * 2
    for first, size, room in zip(low, source.shape[2:], wide.shape[2:], strict=True):
        begin, end = max(first, 0), max(min(first + size, room), max(first, 0))
        here.append(slice(begin, end))
        there.append(slice(begin - first, end - first))
    wide[tuple(here)] = source[tuple(there)]
    return np.lib.stride_tricks.sliding_window_view(wide, window, (2, 3))


def _tiled_convolution(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    source, kernel = operands
    met = _met(op, source, scope.shape(op.results[0].type)[2:], kernel.shape[2:])
    return [np.einsum("bcyxvh,ocvh->boyx", met.astype(np.float64), kernel.astype(np.float64), optimize=True).astype(source.dtype)]


def _kernel_gradient(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    source, gradient = operands
    met = _met(op, source, gradient.shape[2:], scope.shape(op.results[0].type)[2:])
    return [np.einsum("bcyxvh,boyx->ocvh", met.astype(np.float64), gradient.astype(np.float64), optimize=True).astype(source.dtype)]


def _cholesky(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [_solved(np.linalg.cholesky, operands[0])]


def _cholesky_ex(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    factors, failed = np.zeros_like(operands[0]), np.zeros(operands[0].shape[:-2], np.int32)
    for place in np.ndindex(*failed.shape):
        size = operands[0].shape[-1]
        matrix = operands[0][place]
        minor = next((k for k in range(1, size + 1) if not _is_positive(matrix[:k, :k])), 0)
        factors[place], failed[place] = _left(matrix, minor) if minor else np.linalg.cholesky(matrix), minor
    return [factors, failed]


def _left(matrix: Array, minor: int) -> Array:
    """What is left of a matrix whose leading minor of this order is not positive-definite."""
    done, left = minor - 1, np.tril(matrix)
    left[:done, :done] = np.linalg.cholesky(matrix[:done, :done])
    left[done:, :done] = np.linalg.solve(left[:done, :done], matrix[done:, :done].conj().T).conj().T
    left[done, done] -= left[done, :done] @ left[done, :done].conj()
    return left


def _is_positive(matrix: Array) -> bool:
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True


def _triangular_solve(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    right, matrix = operands
    triangle = np.triu(matrix) if bool_attr(op, "upper") else np.tril(matrix)
    if bool_attr(op, "unit"):
        places = np.arange(matrix.shape[-1])
        triangle[..., places, places] = 1
    return [_solved(np.linalg.solve, triangle, right)]


def _solve(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [_solved(np.linalg.solve, operands[1], operands[0])]


def _inverse(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [_solved(np.linalg.inv, operands[0])]


def _determinant(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    sign, logarithm = np.linalg.slogdet(operands[0])
    found = (np.linalg.det(operands[0]), sign, logarithm)
    return [np.asarray(each, operands[0].dtype) for each in found]


def _lu(op: ir.Operation, operands: list[Any], scope: Scope) -> list[Any]:
    """Partial pivoting: of the largest sizes in a column, those of a complex number's parts added, the first."""
    factors = operands[0].copy()
    *batch, rows, columns = factors.shape
    pivots = np.zeros((*batch, min(rows, columns)), np.int32)
    order, zeros = np.broadcast_to(np.arange(rows, dtype=np.int32), (*batch, rows)).copy(), np.zeros(batch, np.int32)
    for place in np.ndindex(*batch):
        own = factors[place]
        for step in range(min(rows, columns)):
            below = own[step:, step]
            best = step + int(np.argmax(np.abs(below.real) + np.abs(below.imag)))
            pivots[(*place, step)] = best + 1
            own[[step, best]], order[place][[step, best]] = own[[best, step]], order[place][[best, step]]
            if own[step, step] == 0:
                zeros[place] = zeros[place] or step + 1
                continue
            own[step + 1 :, step] /= own[step, step]
            own[step + 1 :, step + 1 :] -= np.outer(own[step + 1 :, step], own[step, step + 1 :])
    return [factors, pivots, order, zeros]


def _checked(factor: Rule) -> Rule:
    def rule(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
        results = factor(op, operands, scope)
        if results[3].any():
            raise SingularMatrixError("a diagonal element of U is zero: the factors solve no system")
        return results

    return rule


def _permutation(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (pivots,), shape = operands, scope.shape(op.results[0].type)
    order = np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape).copy()
    for place in np.ndindex(*shape[:-1]):
        for step, pivot in enumerate(pivots[place].tolist()):
            if not step < pivot <= shape[-1]:
                raise InputValueError(f"permutation: exchange {step} is with row {pivot}, which must be from {step + 1} to {shape[-1]}")
            order[place][[step, pivot - 1]] = order[place][[pivot - 1, step]]
    return [order]


def _householder(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (x,) = operands
    nothing = np.zeros((*x.shape[:-2], min(x.shape[-2:])))
    packed, factors = np.linalg.qr(x, mode="raw") if x.size else (x.swapaxes(-1, -2), nothing)
    return [packed.swapaxes(-1, -2).astype(x.dtype), factors.astype(x.dtype)]


def _householder_product(op: ir.Operation, operands: list[Any], scope: Scope) -> list[Any]:
    packed, factors = operands
    columns = scope.shape(op.results[0].type)[packed.ndim - 1]
    shape = (*packed.shape[:-1], columns)
    found = np.broadcast_to(np.eye(*shape[-2:], dtype=packed.dtype), shape).copy()
    for step in reversed(range(factors.shape[-1])):
        v = packed[..., :, step].copy()
        v[..., : step + 1] = 0
        v[..., step] = 1
        found -= factors[..., step, None, None] * v[..., :, None] * (v.conj()[..., None, :] @ found)
    return [found]


def _eigh(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    return [np.asarray(each, operands[0].dtype) for each in np.linalg.eigh(_finite(operands[0]))]


def _svd(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    left, right = (scope.shape(op.results[place].type) for place in (0, 2))
    full = left[-1] == left[-2] and right[-1] == right[-2]
    return [np.asarray(each, operands[0].dtype) for each in np.linalg.svd(_finite(operands[0]), full_matrices=full)]


def _finite(x: Array) -> Array:
    if not np.isfinite(x).all():
        raise InputValueError("the matrix has elements that are infinite or NaN")
    return x


def _matrix_exp(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    """Scaling, the Taylor series in f64, squaring."""
    x = operands[0].astype(np.float64)
    size = np.abs(x).sum(-2, initial=0).max(initial=0)
    squarings = max(0, int(np.ceil(np.log2(size))) + 1) if np.isfinite(size) and size > 0 else 0
    found = term = np.broadcast_to(np.eye(x.shape[-1]), x.shape).copy()
    for k in range(1, 30):
        term = term @ (x / 2.0**squarings) / k
        found = found + term
    for _ in range(squarings):
        found = found @ found
    return [found.astype(operands[0].dtype)]


def _joined(x: Any) -> Array:
    """Complex numbers as pairs."""
    return np.stack([x.real, x.imag], -1) if x.dtype.kind == "c" else x


def _of_complex(function: Callable[..., Any], count: int = 1) -> Rule:
    """A function of complex matrices. count: of its results."""

    def rule(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
        given: list[Any] = [
            (each[..., 0] + 1j * each[..., 1]).astype(np.result_type(each.dtype, np.complex64)) for each in map(_finite, operands)
        ]
        if function in (_singular_values, _orthogonal):
            given.append([scope.shape(result.type) for result in op.results])
        try:
            found = function(*given)
        except np.linalg.LinAlgError as error:
            raise SingularMatrixError(str(error)) from error
        kinds = [len(scope.shape(result.type)) for result in op.results]
        results = [np.asarray(each) for each in ([found] if count == 1 else list(found))]
        whole = [each if each.ndim == rank else _joined(each.astype(given[0].dtype)) for each, rank in zip(results, kinds, strict=True)]
        return [each.astype(operands[0].dtype) for each in whole]

    return rule


def _of_pairs(rule: Rule) -> Rule:
    """A rule for matrices of any kind of numbers, for complex ones."""

    def own(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
        found: list[Any] = rule(op, [_complex(each) for each in operands], scope)
        return [_joined(each).astype(operands[0].dtype) if each.dtype.kind == "c" else each for each in found]

    return own


def _determinants(x: Array) -> tuple[Array, ...]:
    return np.linalg.det(x), *np.linalg.slogdet(x)


def _singular_values(x: Array, shapes: list[tuple[int, ...]]) -> tuple[Array, ...]:
    least = min(x.shape[-2:])
    return np.linalg.svd(x, full_matrices=shapes[0][-2] != least or shapes[2][-3] != least)


def _orthogonal(x: Array, shapes: list[tuple[int, ...]]) -> tuple[Array, ...]:
    return np.linalg.qr(x, "reduced" if shapes[0][-2] == min(x.shape[-2:]) else "complete")


def _eig(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    found = np.linalg.eig(_finite(operands[0]))
    return [_joined(each.astype(np.complex128)).astype(operands[0].dtype) for each in found]


def _order_rows(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (rows,) = operands
    if not rows.shape[1]:
        return [np.arange(len(rows), dtype=np.int64)]
    return [np.lexsort(rows.T[::-1] + 0).astype(np.int64)]


def _check_weights(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (weights,) = operands
    if not np.isfinite(weights).all() or (weights < 0).any() or (weights.sum(-1) == 0).any():
        raise InputValueError("check_weights: weights must be finite, none negative, and not all 0")
    return [weights]


def _check_finite(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    if not np.isfinite(operands[0]).all():
        raise InputValueError("check_finite: a number is not finite")
    return [operands[0]]


def _check_rates(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    if not (np.isfinite(operands[0]) & (operands[0] >= 0)).all():
        raise InputValueError("check_rates: a rate must be finite, and not negative")
    return [operands[0]]


def _logcumsumexp(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    with np.errstate(invalid="ignore"):
        return [np.logaddexp.accumulate(operands[0], int_attr(op, "dim"), dtype=operands[0].dtype)]


def _special(function: Callable[[float, float], float]) -> Rule:
    def rule(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
        pairs = zip(*(each.ravel().tolist() for each in operands), strict=True)
        return [np.array([function(*pair) for pair in pairs], operands[0].dtype).reshape(operands[0].shape)]

    return rule


def _of_integers(function: Callable[[Array, Array], Array]) -> Rule:
    return lambda op, operands, scope: [function(*operands)]


def _scaled(x: Array, count: int, norm: int) -> Array:
    """Sums over so many elements."""
    return x / (1, count**0.5, count)[norm]


def _complex(x: Array) -> Array:
    return x[..., 0] + 1j * x[..., 1]


def _parts(x: Array, like: Array) -> Array:
    return np.stack([np.real(x), np.imag(x)], -1).astype(like.dtype)


def _fft(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (x,), dim = operands, int_attr(op, "dim")
    found = np.fft.ifft(_complex(x), axis=dim, norm="forward") if bool_attr(op, "inverse") else np.fft.fft(_complex(x), axis=dim)
    return [_parts(_scaled(found, x.shape[dim], int_attr(op, "norm")), x)]


def _rfft(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (x,), dim = operands, int_attr(op, "dim")
    return [_parts(_scaled(np.fft.rfft(x, axis=dim), x.shape[dim], int_attr(op, "norm")), x)]


def _irfft(op: ir.Operation, operands: list[Array], scope: Scope) -> list[Array]:
    (x,), dim = operands, int_attr(op, "dim")
    count = scope.shape(op.results[0].type)[dim]
    found = np.fft.irfft(_complex(x), count, axis=dim, norm="forward")
    return [_scaled(found, count, int_attr(op, "norm")).astype(x.dtype)]


def _solved(function: Callable[..., Array], *operands: Array) -> Array:
    """Raises SingularMatrixError, as a call of compiled code does, where there is no solution."""
    try:
        return function(*operands).astype(operands[0].dtype)
    except np.linalg.LinAlgError as error:
        raise SingularMatrixError(str(error)) from error


RULES: dict[str, Rule] = {
    "disc.cholesky": _cholesky, "disc.cholesky_ex": _cholesky_ex,
    "disc.triangular_solve": _triangular_solve, "disc.solve": _solve, "disc.inverse": _inverse,
    "disc.determinant": _determinant, "disc.lu": _lu, "disc.lu_checked": _checked(_lu),
    "disc.permutation": _permutation, "disc.householder": _householder,
    "disc.householder_product": _householder_product, "disc.eigh": _eigh, "disc.svd": _svd, "disc.matrix_exp": _matrix_exp,
    "disc.complex_cholesky": _of_complex(np.linalg.cholesky), "disc.complex_cholesky_ex": _of_pairs(_cholesky_ex),
    "disc.complex_determinant": _of_complex(_determinants, 3),
    "disc.complex_eig": _of_complex(np.linalg.eig, 2), "disc.complex_eigh": _of_complex(np.linalg.eigh, 2),
    "disc.complex_householder": _of_pairs(_householder), "disc.complex_householder_product": _of_pairs(_householder_product),
    "disc.complex_lu": _of_pairs(_lu), "disc.complex_lu_checked": _of_pairs(_checked(_lu)),
    "disc.complex_triangular_solve": _of_pairs(_triangular_solve),
    "disc.complex_qr": _of_complex(_orthogonal, 2), "disc.complex_solve": _of_complex(lambda right, a: np.linalg.solve(a, right)),
    "disc.complex_svd": _of_complex(_singular_values, 3), "disc.eig": _eig,
    "disc.order_rows": _order_rows, "disc.check_weights": _check_weights, "disc.check_finite": _check_finite,
    "disc.check_rates": _check_rates,
    "disc.logcumsumexp": _logcumsumexp, "disc.zeta": _special(special.zeta), "disc.igamma": _special(special.igamma),
    "disc.igammac": _special(special.igammac), "disc.gcd": _of_integers(np.gcd), "disc.lcm": _of_integers(np.lcm),
    "disc.fft": _fft, "disc.rfft": _rfft, "disc.irfft": _irfft,
    "disc.count": _count, "disc.grouped_dot": _grouped_dot,
    "disc.kernel_gradient": _kernel_gradient, "disc.tiled_convolution": _tiled_convolution,
    "disc.reduce_segments": _reduce_segments, "disc.search": _search,
    "disc.sort": _sort, "disc.topk": _topk,
}  # fmt: skip
