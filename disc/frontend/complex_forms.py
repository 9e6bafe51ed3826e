"""ATen ops on complex tensors as functions of real ones, which are traced: op → form.

A form gets the arguments of a call by name, with a `Pair` for each complex tensor, and returns pairs or real tensors. What has no form
gives way to its decomposition (`complex_numbers.py`), or is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from disc.frontend import complex_functions as functions
from disc.frontend import complex_matrices as matrices
from disc.frontend import fourier
from disc.frontend.complex_functions import REAL_OF, Pair, multiply, pair_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Given:
    """One call. arguments: by name, defaults too. result: what PyTorch says of it, without data. real: the dtype of the parts of its
    complex result, or of its widest complex operand where it has a real one."""

    op: torch._ops.OpOverload
    arguments: Mapping[str, object]
    result: object
    real: torch.dtype

    def raw(self, name: str) -> object:
        return self.arguments.get(name)

    def pair(self, name: str) -> Pair:
        """A tensor or number as a complex one, of the result's dtype."""
        return pair_of(self.arguments[name], self.real)

    def call(self, part: Callable[[object], object]) -> object:
        """The op on each argument's `part`, with real dtypes."""
        return self.op(**{name: part(value) for name, value in self.arguments.items()})


@dataclass(frozen=True)
class Joined:
    """A complex tensor as a real one with one more dim of size 2, as it lies in memory: what a form of `JOINED` gets and gives."""

    tensor: Tensor


Form = Callable[[Given], object]


def _part(value: object, place: int, real: torch.dtype) -> object:
    """The real or imaginary part of an argument, or of what is in it."""
    if isinstance(value, Pair):
        return (value.re, value.im)[place].to(real)
    if isinstance(value, list | tuple):
        return [_part(each, place, real) for each in value]
    if isinstance(value, complex):
        return (value.real, value.imag)[place]
    return REAL_OF.get(value, value) if isinstance(value, torch.dtype) else value


def _as_data(value: object, real: torch.dtype) -> object:
    """Data that takes part in the result: what is real has an imaginary part of 0."""
    if isinstance(value, list | tuple):
        return [_as_data(each, real) for each in value]
    if isinstance(value, Tensor):
        return pair_of(value, real)
    return complex(value) if isinstance(value, bool | int | float | complex | torch.SymInt | torch.SymFloat) else value


def each_part(*data: str) -> Form:
    """The op on the real parts, and on the imaginary parts. data: arguments that may be real, and are no indices or masks."""

    def form(given: Given) -> object:
        given = Given(
            given.op,
            {name: _as_data(value, given.real) if name in data else value for name, value in given.arguments.items()},
            given.result,
            given.real,
        )
        re, im = (given.call(lambda value, place=place: _part(value, place, given.real)) for place in (0, 1))
        if isinstance(re, list | tuple) and isinstance(im, list | tuple):
            return [Pair(first, second) for first, second in zip(re, im, strict=True)]
        assert isinstance(re, Tensor) and isinstance(im, Tensor)
        return Pair(re, im)

    return form


def unary(function: Callable[[Pair], object]) -> Form:
    return lambda given: function(given.pair("self"))


def binary(function: Callable[[Pair, Pair], object], other: str = "other") -> Form:
    def form(given: Given) -> object:
        a, b = given.pair("self"), given.pair(other)
        alpha = given.raw("alpha")
        return function(a, b if alpha in (None, 1) else multiply(b, pair_of(alpha, given.real)))

    return form


def _is_real(value: object) -> bool:
    return not isinstance(value, Pair | complex)


def _factor(value: object, real: torch.dtype) -> Tensor | float:
    return value.to(real) if isinstance(value, Tensor) else value  # pyright: ignore[reportReturnType]


def product(given: Given) -> object:
    """A real factor multiplies both parts. (Eager's has an imaginary part of 0, which makes NaN of infinities.)"""
    a, b = given.raw("self"), given.raw("other")
    if _is_real(b):
        return given.pair("self").scaled(_factor(b, given.real))
    if _is_real(a):
        return given.pair("other").scaled(_factor(a, given.real))
    return multiply(given.pair("self"), given.pair("other"))


def quotient(given: Given) -> object:
    if given.raw("rounding_mode") is not None:
        return NotImplemented
    b = given.raw("other")
    if not _is_real(b):
        return functions.divide(given.pair("self"), given.pair("other"))
    a, divisor = given.pair("self"), _factor(b, given.real)
    return Pair(a.re / divisor, a.im / divisor)


def power(given: Given) -> object:
    exponent = given.raw("exponent")
    if isinstance(exponent, int | float | complex) and complex(exponent) in functions.POWERS:
        return functions.POWERS[complex(exponent)](given.pair("self"))
    return functions.power(given.pair("self"), given.pair("exponent"))


def _same_types(*factors: object) -> bool:
    """Products of matrices are not made of tensors of different types, in eager neither."""
    return all(isinstance(each, Pair) for each in factors) and len({each.dtype for each in factors if isinstance(each, Pair)}) == 1


def with_products(factors: tuple[str, str]) -> Form:
    """An op that is linear in two arguments: four real ones."""

    def form(given: Given) -> object:
        a, b = given.raw(factors[0]), given.raw(factors[1])
        if not (isinstance(a, Pair) and isinstance(b, Pair) and _same_types(a, b)):
            return NotImplemented

        def of(left: Tensor, right: Tensor) -> Tensor:
            named = {**given.arguments, factors[0]: left, factors[1]: right}
            found = given.op(**{name: _part(value, 0, given.real) for name, value in named.items()})
            assert isinstance(found, Tensor)
            return found

        return Pair(of(a.re, b.re) - of(a.im, b.im), of(a.re, b.im) + of(a.im, b.re))

    return form


def _matmul(a: Pair, b: Pair) -> Pair:
    return Pair(a.re @ b.re - a.im @ b.im, a.re @ b.im + a.im @ b.re)


def added_product(factors: tuple[str, str]) -> Form:
    """beta * self + alpha * (a @ b)."""

    def form(given: Given) -> object:
        if not _same_types(given.raw(factors[0]), given.raw(factors[1])):
            return NotImplemented
        found = _matmul(given.pair(factors[0]), given.pair(factors[1]))
        alpha, beta = given.raw("alpha"), given.raw("beta")
        if alpha != 1:
            found = multiply(found, pair_of(alpha, given.real))
        return found if beta == 0 else functions.add(found, multiply(given.pair("self"), pair_of(beta, given.real)))

    return form


def linear(given: Given) -> object:
    if not _same_types(given.raw("input"), given.raw("weight")):
        return NotImplemented
    weight = given.pair("weight")
    found = _matmul(given.pair("input"), Pair(weight.re.t(), weight.im.t()))
    return found if given.raw("bias") is None else functions.add(found, given.pair("bias"))


def convolution(given: Given) -> object:
    """Without a bias in the products: it is added once."""
    biased = given.raw("bias") is not None
    plain = Given(given.op, {**given.arguments, "bias": None}, given.result, given.real)
    found = with_products(("input", "weight"))(plain)
    if not biased or not isinstance(found, Pair):
        return found
    bias = given.pair("bias")
    shape = [-1, *[1] * (found.re.dim() - 2)]
    return functions.add(found, Pair(bias.re.reshape(shape), bias.im.reshape(shape)))


def dot(conjugated: bool) -> Form:
    def form(given: Given) -> object:
        a, b = given.pair("self"), given.pair("tensor" if "tensor" in given.arguments else "other")
        found = multiply(functions.conjugate(a) if conjugated else a, b)
        return Pair(found.re.sum(), found.im.sum())

    return form


def product_along(given: Given) -> object:
    """The product of the elements along a dim: of as many as are known, halved again and again, so that each result is a product of two;
    else that of the magnitudes, and the sum of the phases."""
    x, dim, keepdim = given.pair("self"), given.raw("dim"), given.raw("keepdim") is True
    if dim is None:
        x, dim = Pair(x.re.reshape(-1), x.im.reshape(-1)), 0
    assert isinstance(dim, int)
    if not x.re.dim():
        return x
    size = x.re.shape[dim]
    if not isinstance(size, int):
        magnitude, phase = _polar(x)
        return functions.polar(magnitude.prod(dim, keepdim), phase.sum(dim, keepdim))
    if size == 0:
        shape = [each for place, each in enumerate(x.re.shape) if place != dim % x.re.dim()]
        found = Pair(x.re.new_ones(shape), x.re.new_zeros(shape))
        return Pair(found.re.unsqueeze(dim), found.im.unsqueeze(dim)) if keepdim else found
    while size > 1:
        half = size // 2
        first, second = (Pair(x.re.narrow(dim, start, half), x.im.narrow(dim, start, half)) for start in (0, half))
        rest = [Pair(x.re.narrow(dim, 2 * half, 1), x.im.narrow(dim, 2 * half, 1))] if size % 2 else []
        both = [multiply(first, second), *rest]
        x = Pair(torch.cat([each.re for each in both], dim), torch.cat([each.im for each in both], dim)) if rest else both[0]
        size = half + size % 2
    return x if keepdim else Pair(x.re.squeeze(dim), x.im.squeeze(dim))


def _polar(x: Pair) -> tuple[Tensor, Tensor]:
    """(magnitudes, phases) in f64, in which the errors of many phases add up to none of f32."""
    wide = x.to(torch.float64)
    return functions.magnitude(wide), functions.phase(wide)


def products_along(given: Given) -> object:
    """The products of the elements up to each."""
    x, dim = given.pair("self"), given.raw("dim")
    assert isinstance(dim, int)
    magnitude, phase = _polar(x)
    return functions.polar(magnitude.cumprod(dim), phase.cumsum(dim)) if x.re.dim() else x


def variance(given: Given) -> object:
    """Of |z|: that of the parts added."""
    both = [given.call(lambda value, place=place: _part(value, place, given.real)) for place in (0, 1)]
    return both[0] + both[1]  # pyright: ignore[reportOperatorIssue]


def vector_norm(given: Given) -> object:
    arguments = {**given.arguments, "self": functions.magnitude(given.pair("self"))}
    return given.op(**{name: _part(value, 0, given.real) for name, value in arguments.items()})


def converted(given: Given) -> object:
    """To another dtype: a complex one, or a real one, which loses the imaginary part."""
    value, result = given.raw("self"), given.result
    assert isinstance(result, Tensor)
    if result.is_complex():
        return given.pair("self") if isinstance(value, Pair) else pair_of(value, given.real)
    assert isinstance(value, Pair)
    return functions.is_nonzero(value) if result.dtype == torch.bool else value.re.to(result.dtype)


def joined(given: Given) -> object:
    x = given.pair("self")
    return torch.stack([x.re, x.im], -1)


def parted(given: Given) -> object:
    x = given.raw("self")
    assert isinstance(x, Tensor)
    return Pair(x.select(-1, 0), x.select(-1, 1))


def complex_of(given: Given) -> object:
    re, im = given.raw("real"), given.raw("imag")
    assert isinstance(re, Tensor) and isinstance(im, Tensor)
    return Pair(*torch.broadcast_tensors(re, im))


def polar(given: Given) -> object:
    size, angle = given.raw("abs"), given.raw("angle")
    assert isinstance(size, Tensor) and isinstance(angle, Tensor)
    return functions.polar(size, angle)


def _sizes(given: Given) -> Sequence[int]:
    """Of the result, as the call has them: those that PyTorch has worked out of it are not known to the trace."""
    size, like = given.raw("size"), given.raw("self")
    if isinstance(size, list | tuple):
        return size
    return like.re.shape if isinstance(like, Pair) else like.shape if isinstance(like, Tensor) else ()


def filled(given: Given) -> object:
    """A tensor with one number in it."""
    number = pair_of(next(given.raw(name) for name in ("fill_value", "value", "s") if name in given.arguments), given.real)
    sizes = _sizes(given)
    return Pair(number.re.expand(sizes), number.im.expand(sizes))


def constant(value: float) -> Form:
    """Ones, or zeros; what is not initialized is zeros, too."""

    def form(given: Given) -> object:
        sizes = _sizes(given)
        return Pair(torch.full(sizes, value, dtype=given.real), torch.zeros(sizes, dtype=given.real))

    return form


def copied(given: Given) -> object:
    source, result, sizes = given.raw("src"), given.result, _sizes(given)
    assert isinstance(result, Tensor)
    if not result.is_complex():
        assert isinstance(source, Pair)
        return source.re.to(result.dtype).expand(sizes)
    found = given.pair("src")
    return Pair(found.re.expand(sizes), found.im.expand(sizes))


def _both(test: Callable[[Tensor], Tensor], some: bool) -> Form:
    def form(given: Given) -> object:
        x = given.pair("self")
        return test(x.re) | test(x.im) if some else test(x.re) & test(x.im)

    return form


def of_nonzero(*names: str) -> Form:
    """An op on truth values."""

    def form(given: Given) -> object:
        def truth(name: str, value: object) -> object:
            return functions.is_nonzero(value) if isinstance(value, Pair) and name in names else value

        return given.op(**{name: truth(name, value) for name, value in given.arguments.items()})

    return form


def scaled_sum(function: Callable[[Pair, Pair], Pair], left: str, right: str) -> Form:
    """self + value * function(left, right)."""

    def form(given: Given) -> object:
        found = function(given.pair(left), given.pair(right))
        value = given.raw("value")
        return functions.add(given.pair("self"), found if value in (None, 1) else multiply(found, pair_of(value, given.real)))

    return form


def interpolated(given: Given) -> object:
    start, end = given.pair("self"), given.pair("end")
    return functions.add(start, multiply(given.pair("weight"), functions.subtract(end, start)))


# Ops that move elements, or add them: argument names of data that may be real.
_MOVING = """
    view _unsafe_view reshape _reshape_copy unsqueeze squeeze permute transpose t expand slice select narrow split split_with_sizes
    unbind flip roll repeat index index_select gather diagonal diag_embed tril triu clone contiguous alias detach lift lift_fresh
    lift_fresh_copy unfold as_strided sum mean cumsum neg _neg_view trace embedding resolve_conj resolve_neg positive diag take
    view_copy expand_copy permute_copy slice_copy select_copy unsqueeze_copy squeeze_copy transpose_copy alias_copy detach_copy
    select_backward slice_backward diagonal_backward repeat_interleave nansum channel_shuffle pixel_shuffle pixel_unshuffle
"""
EACH_PART: dict[str, Sequence[str]] = {
    **dict.fromkeys(_MOVING.split(), ()),
    "cat": ("tensors",), "stack": ("tensors",), "where": ("self", "other"), "masked_fill": ("self", "value"),
    "scatter": ("self", "src", "value"), "scatter_add": ("self", "src"), "index_put": ("self", "values"),
    "_unsafe_index_put": ("self", "values"), "index_copy": ("self", "source"), "index_fill": ("self", "value"),
    "slice_scatter": ("self", "src"), "select_scatter": ("self", "src"), "diagonal_scatter": ("self", "src"),
    "masked_scatter": ("self", "source"), "constant_pad_nd": ("self", "value"),
}  # fmt: skip
_NAMED: dict[str, Form] = {
    **{name: unary(function) for name, function in functions.UNARY.items()},
    **{name: each_part(*data) for name, data in EACH_PART.items()},
    "abs": unary(functions.magnitude), "angle": unary(functions.phase), "real": unary(lambda x: x.re), "imag": unary(lambda x: x.im),
    "add": binary(functions.add), "sub": binary(functions.subtract), "rsub": binary(lambda a, b: functions.subtract(b, a)),
    "mul": product, "div": quotient, "true_divide": quotient, "pow": power,
    "eq": binary(functions.is_equal), "ne": binary(lambda a, b: ~functions.is_equal(a, b)),
    "isnan": _both(torch.isnan, True), "isinf": _both(torch.isinf, True), "isfinite": _both(torch.isfinite, False),
    "isreal": unary(lambda x: x.im == 0),
    **{name: of_nonzero("self", "other") for name in ("logical_and", "logical_or", "logical_xor", "logical_not", "any", "all", "nonzero")},
    "count_nonzero": of_nonzero("self"),
    "mm": with_products(("self", "mat2")), "bmm": with_products(("self", "mat2")), "matmul": with_products(("self", "other")),
    "mv": with_products(("self", "vec")),
    "addmm": added_product(("mat1", "mat2")), "baddbmm": added_product(("batch1", "batch2")), "addmv": added_product(("mat", "vec")),
    "linear": linear, "convolution": convolution, "dot": dot(False), "vdot": dot(True),
    "prod": product_along, "cumprod": products_along, "var": variance, "linalg_vector_norm": vector_norm,
    "view_as_real": joined, "view_as_complex": parted, "complex": complex_of, "polar": polar,
    "_to_copy": converted, "to": converted, "full": filled, "full_like": filled, "new_full": filled, "fill": filled,
    "scalar_tensor": filled,
    **{name: constant(0) for name in ("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_strided",
                                      "new_empty_strided", "_efficientzerotensor")},
    **{name: constant(1) for name in ("ones", "ones_like", "new_ones")},
    "copy": copied, "addcmul": scaled_sum(multiply, "tensor1", "tensor2"), "addcdiv": scaled_sum(functions.divide, "tensor1", "tensor2"),
    "lerp": interpolated,
}  # fmt: skip


def transformed(function: Callable[..., Tensor], *names: str) -> Form:
    """A Fourier transform. names: of what it takes besides the tensor."""

    def form(given: Given) -> object:
        x = given.raw("self")
        found = function(x.tensor if isinstance(x, Joined) else x, *(given.raw(name) for name in names))
        result = given.result
        assert isinstance(result, Tensor)
        return Joined(found) if result.is_complex() else found

    return form


def of_matrices(function: Callable[[Given, Tensor], Tensor | Sequence[Tensor]], source: str = "A") -> Form:
    """A function of matrices. source: the argument that has them."""

    def form(given: Given) -> object:
        found = function(given, _memory(given.raw(source)))
        results = given.result if isinstance(given.result, list | tuple) else [given.result]
        made = [found] if isinstance(found, Tensor) else found
        kept = [Joined(each) if isinstance(kind, Tensor) and kind.is_complex() else each for each, kind in zip(made, results, strict=True)]
        return kept[0] if isinstance(given.result, Tensor) else kept

    return form


def _memory(value: object) -> Tensor:
    """A complex tensor as it lies in memory, or a real one."""
    found = value.tensor if isinstance(value, Joined) else value
    assert isinstance(found, Tensor)
    return found


def _solved(given: Given, matrix: Tensor) -> Tensor:
    return matrices.solve(matrix, _memory(given.raw("B")), given.raw("left") is not False)


def _svd(given: Given, matrix: Tensor) -> Sequence[Tensor]:
    left, values, right = matrices.disc.complex_svd(matrix, given.raw("full_matrices") is not False)
    if given.raw("compute_uv") is not False:
        return left, values, right
    nothing = matrix.new_empty([0, 2])
    return nothing, values, nothing


def _hermitian(given: Given, matrix: Tensor) -> Sequence[Tensor]:
    values, vectors = matrices.eigh(matrix, str(given.raw("UPLO") or "L"))
    return values, matrix.new_empty([0, 2]) if given.raw("compute_v") is False else vectors


def _pairs(given: Given, matrix: Tensor) -> Sequence[Tensor]:
    return matrices.eig(matrix, isinstance(given.raw(next(iter(given.arguments))), Joined))


def _right(given: Given, name: str = "B") -> Tensor:
    return _memory(given.raw(name))


def _lu(given: Given, matrix: Tensor) -> Sequence[Tensor]:
    """(L and U in one, pivots, order, zeros)."""
    if given.raw("pivot") is False:
        raise NotImplementedError
    return matrices.disc.complex_lu(matrix, given.raw("check_errors") is True)


def _factors(given: Given, matrix: Tensor) -> Sequence[Tensor]:
    factors, pivots, _, zeros = _lu(given, matrix)
    return factors, pivots, zeros


def _parted_factors(given: Given, matrix: Tensor) -> Sequence[Tensor]:
    factors, _, order, _ = _lu(given, matrix)
    return matrices.unpacked(factors, order)


def _unpacked(given: Given, factors: Tensor) -> Sequence[Tensor]:
    pivots, nothing = given.raw("LU_pivots"), factors.new_empty([0, 2])
    assert isinstance(pivots, Tensor)
    exchange, lower, upper = matrices.unpacked(factors, matrices.disc.permutation(pivots, factors.shape[-3]))
    data, order = given.raw("unpack_data") is not False, given.raw("unpack_pivots") is not False
    return exchange if order else nothing, lower if data else nothing, upper if data else nothing


def _solved_by_factors(given: Given, factors: Tensor) -> Tensor:
    pivots = given.raw("pivots")
    assert isinstance(pivots, Tensor)
    order = matrices.disc.permutation(pivots, factors.shape[-3])
    return matrices.solved_by_factors(factors, order, _right(given), given.raw("left") is not False, given.raw("adjoint") is True)


def _with_factors(place: slice) -> Callable[[Given, Tensor], Sequence[Tensor]]:
    """Determinants, which of (determinant, sign, logarithm), with the factors and pivots."""
    return lambda given, matrix: [*matrices.disc.complex_determinant(matrix)[place], *_lu(given, matrix)[:2]]


def _solved_triangular(given: Given, matrix: Tensor) -> Tensor:
    upper, unit, left = (given.raw(name) is True for name in ("upper", "unitriangular", "left"))
    return matrices.solve_triangular(matrix, _right(given), upper, unit, left)


def _triangular_solve(given: Given, matrix: Tensor) -> Sequence[Tensor]:
    """The older form, which also returns the matrix."""
    upper, turned, unit = (given.raw(name) is True for name in ("upper", "transpose", "unitriangular"))
    own = matrices.turned(matrix) if turned else matrix
    return matrices.solve_triangular(own, _right(given, "self"), upper != turned, unit), matrix.clone()


def _cholesky_solved(given: Given, matrix: Tensor) -> Tensor:
    return matrices.cholesky_solve(matrices.adjoint(matrix) if given.raw("upper") is True else matrix, _right(given, "self"))


_INVERSE = of_matrices(lambda given, matrix: matrices.inverse(matrix))
_MATRICES: dict[str, Form] = {
    "linalg_solve": of_matrices(_solved), "linalg_inv": _INVERSE,
    "inverse": of_matrices(lambda given, matrix: matrices.inverse(matrix), "self"),
    "linalg_cholesky": of_matrices(lambda given, matrix: matrices.cholesky(matrix, given.raw("upper") is True), "self"),
    "cholesky": of_matrices(lambda given, matrix: matrices.cholesky(matrix, given.raw("upper") is True), "self"),
    "linalg_lu_factor_ex": of_matrices(_factors), "linalg_lu": of_matrices(_parted_factors), "lu_unpack": of_matrices(_unpacked, "LU_data"),
    "linalg_lu_solve": of_matrices(_solved_by_factors, "LU"), "linalg_solve_triangular": of_matrices(_solved_triangular, "self"),
    "triangular_solve": of_matrices(_triangular_solve), "cholesky_solve": of_matrices(_cholesky_solved, "input2"),
    "_linalg_solve_ex": of_matrices(
        lambda given, matrix: matrices.solve_ex(matrix, _right(given), given.raw("left") is not False, given.raw("check_errors") is True)
    ),
    "linalg_inv_ex": of_matrices(lambda given, matrix: matrices.inverse_ex(matrix, given.raw("check_errors") is True)),
    "linalg_cholesky_ex": of_matrices(
        lambda given, matrix: matrices.cholesky_ex(matrix, given.raw("upper") is True, given.raw("check_errors") is True), "self"
    ),
    "_linalg_det": of_matrices(_with_factors(slice(0, 1))), "_linalg_slogdet": of_matrices(_with_factors(slice(1, 3))),
    "linalg_householder_product": of_matrices(
        lambda given, matrix: matrices.disc.complex_householder_product(matrix, _right(given, "tau")), "input"
    ),
    "linalg_qr": of_matrices(lambda given, matrix: matrices.qr(matrix, str(given.raw("mode")))),
    "linalg_det": of_matrices(lambda given, matrix: matrices.disc.complex_determinant(matrix)[0]),
    "det": of_matrices(lambda given, matrix: matrices.disc.complex_determinant(matrix)[0], "self"),
    "linalg_slogdet": of_matrices(lambda given, matrix: matrices.disc.complex_determinant(matrix)[1:]),
    "linalg_eigh": of_matrices(_hermitian, "self"), "_linalg_eigh": of_matrices(_hermitian),
    "linalg_eigvalsh": of_matrices(lambda given, matrix: _hermitian(given, matrix)[0], "self"),
    "linalg_svd": of_matrices(_svd), "_linalg_svd": of_matrices(_svd),
    "linalg_svdvals": of_matrices(lambda given, matrix: _svd(given, matrix)[1]),
    "linalg_eig": of_matrices(_pairs, "self"),
    **{name: of_matrices(lambda given, matrix: _pairs(given, matrix)[0], "self") for name in ("linalg_eigvals", "_linalg_eigvals")},
}  # fmt: skip

# Forms that take and make tensors as they lie in memory.
JOINED: dict[object, Form] = {
    **{getattr(aten, name).default: form for name, form in _MATRICES.items()},
    aten._fft_c2c.default: transformed(fourier.complex_to_complex, "dim", "normalization", "forward"),
    aten._fft_r2c.default: transformed(fourier.real_to_complex, "dim", "normalization", "onesided"),
    aten._fft_c2r.default: transformed(fourier.complex_to_real, "dim", "normalization", "last_dim_size"),
}


def _table() -> dict[object, Form]:
    found: dict[object, Form] = {}
    for name, form in _NAMED.items():
        packet = getattr(aten, name, None)
        if packet is None:
            continue
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if not op._schema.is_mutable:
                found[op] = form
    return {**found, aten.detach_.default: _NAMED["detach"], **JOINED}  # of a constant that the model makes; it writes no element


FORMS = _table()
