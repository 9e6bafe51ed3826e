"""Forms of functions of sizes, and of products of matrices, that keep the sizes symbolic; with plain integers they are PyTorch's own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import sympy
import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.checked_values import required
from disc.frontend.eager_strides import Decomposition

ANY_SIZE = 8  # that a size which depends on data is taken for, where its number decides nothing but an order
Size = int  # or torch.SymInt, which PyTorch's declarations leave out
Form = Callable[..., object]


def _is_symbolic(sizes: Sequence[object]) -> bool:
    return any(isinstance(each, torch.SymInt) for each in sizes)


def _is_plain(options: Mapping[str, object]) -> bool:
    """Of a tensor that is made: on the CPU, dense, without a gradient."""
    usual = {"device": (None, "cpu", torch.device("cpu")), "layout": (None, torch.strided)}
    return all(value in usual[name] if name in usual else not value for name, value in options.items())


def less_by(size: Size, number: float, least: int, dtype: torch.dtype = torch.float64) -> float | Tensor:
    """max(size - number, least), to compute with. Of a symbolic size it is a tensor without dims: PyTorch takes every size to be at least
    2, by which it would decide which is larger, and a difference of sizes that may be negative for 0 would be a bound."""
    if isinstance(size, int):
        return max(size - number, least)
    return (torch.full((), size, dtype=dtype) - number).clamp(min=least)


# --- points and windows ---------------------------------------------------------------------------------------------------------


def points(start: float, end: float, count: Size, dtype: torch.dtype) -> Tensor:
    """As eager's linspace: each half from its own end, so that both ends are exact."""
    places = torch.arange(count)
    step = (end - start) / less_by(count, 1, 1)
    left, right = start + places.to(dtype) * step, end - (count - places - 1).to(dtype) * step
    return torch.where(places * 2 < count, left, right)


def linspace(start: float, end: float, steps: Size, *, dtype: torch.dtype | None = None, **others: object) -> Tensor:
    wanted = dtype or torch.get_default_dtype()
    simple = isinstance(start, int | float) and isinstance(end, int | float) and wanted in (torch.float32, torch.float64)
    if not simple or not _is_symbolic([steps]) or not _is_plain(others):
        return torch.linspace(start, end, steps, dtype=dtype, **others)  # pyright: ignore
    return points(start, end, steps, wanted)


def _frequencies(original: Form, halved: bool) -> Form:
    """`torch.fft.fftfreq`, or `rfftfreq` of the half that is not negative: as eager, numbers times the one step between them."""

    def frequencies(n: Size, d: float = 1.0, *, dtype: torch.dtype | None = None, **others: object) -> Tensor:
        wanted = dtype or torch.get_default_dtype()
        if not _is_symbolic([n]) or not _is_plain(others) or not isinstance(d, int | float) or wanted not in (torch.float32, torch.float64):
            return original(n, d, dtype=dtype, **others)  # pyright: ignore
        step = (1 / (torch.scalar_tensor(n, dtype=torch.float64) * d)).to(wanted)
        if halved:
            return torch.arange(n // 2 + 1) * step
        places = torch.arange(n)
        return torch.where(places < (n + 1) // 2, places, places - n) * step

    return frequencies


def _cosines(weights: Sequence[float]) -> Callable[[Tensor, float | Tensor], Tensor]:
    """The sum of weights[k] * cos(2 * pi * k * i / last)."""

    def window(i: Tensor, last: float | Tensor) -> Tensor:
        turn = i * (2 * math.pi / last)
        return sum((weight * torch.cos(turn * k) for k, weight in enumerate(weights) if k), torch.full_like(i, weights[0]))

    return window


def _triangle(i: Tensor, last: float | Tensor) -> Tensor:
    rising = i * (2 / last)
    return torch.where(rising <= 1, rising, 2 - rising)


def _kaiser(beta: float) -> Callable[[Tensor, float | Tensor], Tensor]:
    def window(i: Tensor, last: float | Tensor) -> Tensor:
        place = i * (2 / last) - 1
        return torch.special.i0(beta * torch.sqrt((1 - place * place).clamp(min=0))) / torch.special.i0(torch.full_like(place, beta))

    return window


def windowed(count: Size, periodic: bool, window: Callable[[Tensor, float | Tensor], Tensor], dtype: torch.dtype | None) -> Tensor:
    """window: of places and the last one, which a periodic window leaves out. One element alone is 1."""
    i = torch.arange(count, dtype=dtype or torch.get_default_dtype())
    values = window(i, less_by(count, 0 if periodic else 1, 1))
    return torch.where(torch.arange(count) + count == 1, 1.0, values)


def _window(make: Callable[..., Callable[[Tensor, float | Tensor], Tensor]]) -> Decomposition:
    """make: of the numbers that a window takes."""

    def decomposition(
        window_length: Size, periodic: bool = True, *numbers: float, dtype: torch.dtype | None = None, **others: object
    ) -> Tensor:
        shape = {name: others.pop(name) for name in ("alpha", "beta") if name in others}
        if not _is_plain(others) or (dtype or torch.get_default_dtype()) not in (torch.float32, torch.float64):
            return NotImplemented
        return windowed(window_length, periodic, make(*numbers, **shape), dtype)

    return decomposition


def _hamming(alpha: float = 0.54, beta: float = 0.46) -> Callable[[Tensor, float | Tensor], Tensor]:
    return _cosines([alpha, -beta])


WINDOWS: dict[str, Decomposition] = {
    "hann_window": _window(lambda: _cosines([0.5, -0.5])),
    "hamming_window": _window(_hamming),
    "blackman_window": _window(lambda: _cosines([0.42, -0.5, 0.08])),
    "bartlett_window": _window(lambda: _triangle),
    "kaiser_window": _window(lambda beta=12.0: _kaiser(beta)),
}


def _window_form(name: str) -> Form:
    original = getattr(torch, name)

    def form(window_length: Size, *args: object, **kwargs: object) -> object:
        found = WINDOWS[name](window_length, *args, **kwargs) if _is_symbolic([window_length]) else NotImplemented
        return original(window_length, *args, **kwargs) if found is NotImplemented else found

    return form


def affine_grid(theta: Tensor, size: Sequence[Size], align_corners: bool | None = None) -> Tensor:
    dims = list(size)[2:]
    if not _is_symbolic(size) or not theta.is_floating_point() or theta.dim() != 3 or tuple(theta.shape[1:]) != (len(dims), len(dims) + 1):
        return F.affine_grid(theta, size, align_corners)  # pyright: ignore
    return affine_grid_generator(theta, size, bool(align_corners))


def affine_grid_generator(theta: Tensor, size: Sequence[Size], align_corners: bool) -> Tensor:
    """The op that `affine_grid` calls once it has checked them; the gradient of PyTorch's takes sizes as integers alone."""
    dims = list(size)[2:]
    columns: list[Tensor] = []
    for number, count in enumerate(dims):
        along = points(-1.0, 1.0, count, theta.dtype)
        scale = torch.sym_min(count - 1, 1) if align_corners else (count - 1) / count
        columns.insert(0, (along * scale).reshape([-1 if each == number else 1 for each in range(len(dims))]).expand(dims))
    base = torch.stack([*columns, torch.ones_like(columns[0])], -1).reshape(1, -1, len(dims) + 1)
    return (base @ theta.transpose(1, 2)).reshape([theta.shape[0], *dims, len(dims)])


# --- views ----------------------------------------------------------------------------------------------------------------------


def _rest(sizes: Sequence[Size], given: Sequence[Size]) -> Size | None:
    """The size that -1 stands for among the `given` ones, in a view of a tensor with these `sizes`; None where PyTorch may say it.

    PyTorch divides one product by another, and cancels their common factors by algebra on the whole of both: where sizes are themselves
    sums and quotients (a map padded to whole windows, stage by stage), that takes minutes for one view. Here equal dims cancel first.
    """
    if sum(isinstance(each, int) and each == -1 for each in given) != 1 or not any(map(_is_composed, sizes)):
        return None
    above, below = list(sizes), list[Size]()
    for each in (each for each in given if not (isinstance(each, int) and each == -1)):
        match = next((place for place, size in enumerate(above) if _expression(size) == _expression(each)), None)
        if match is None:
            below.append(each)
        else:
            del above[match]
    dividend, divisor = (sympy.Mul(*map(_expression, dims)) for dims in (above, below))
    if divisor.is_zero or (dividend / divisor).as_numer_denom()[1] != 1:
        return None
    return math.prod(above) // math.prod(below) if below else math.prod(above)


def _expression(size: Size) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _is_composed(size: Size) -> bool:
    """Whether it is more than a symbol, or a multiple of one."""
    return isinstance(size, torch.SymInt) and not all(each.is_Atom for each in sympy.Mul.make_args(size.node.expr))


def _view_form(original: Callable[..., Tensor]) -> Form:
    def view(x: Tensor, *shape: object, **named: object) -> Tensor:
        given = cast(
            "Sequence[object]", shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape or named.get("shape", ())
        )
        if not all(isinstance(each, int | torch.SymInt) for each in given):
            return original(x, *shape, **named)
        sizes = cast("Sequence[Size]", given)
        rest = _rest(x.shape, sizes)
        if rest is None:
            return original(x, *shape, **named)
        return original(x, tuple(rest if isinstance(each, int) and each == -1 else each for each in sizes))

    return view


# --- products -------------------------------------------------------------------------------------------------------------------


def kron(x: Tensor, y: Tensor) -> Tensor:
    if not _is_symbolic([*x.shape, *y.shape]):
        return torch.kron(x, y)
    rank = max(x.dim(), y.dim())
    left, right = ([*[1] * (rank - each.dim()), *each.shape] for each in (x, y))
    outer = x.reshape([part for size in left for part in (size, 1)]) * y.reshape([part for size in right for part in (1, size)])
    return outer.reshape([a * b for a, b in zip(left, right, strict=True)])


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """From left to right: PyTorch's own order depends on the example's sizes, as its result does in its last digits."""
    if not _is_symbolic([size for each in tensors for size in each.shape]):
        return torch.linalg.multi_dot(tensors)
    return functools.reduce(torch.matmul, tensors)


def einsum(*arguments: object) -> Tensor:
    """Of three operands or more, opt_einsum chooses the order by their sizes, and fixes them: here by those of the example, as numbers."""
    operands = arguments[1:]
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        return einsum(arguments[0], *operands[0])
    if len(operands) <= 2 or not isinstance(arguments[0], str) or not all(isinstance(each, Tensor) for each in operands):
        with torch.backends.opt_einsum.flags(enabled=False):  # pyright: ignore
            return torch.einsum(*arguments)  # pyright: ignore
    tensors = cast("tuple[Tensor, ...]", operands)
    path = None
    if torch.backends.opt_einsum.is_available():
        shapes = [tuple(map(_size_of_example, each.shape)) for each in tensors]
        pairs = torch.backends.opt_einsum.get_opt_einsum().contract_path(arguments[0], *shapes, shapes=True)[0]
        path = [place for pair in pairs for place in pair]
    return torch._VF.einsum(arguments[0], tensors, path=path)  # pyright: ignore


def _size_of_example(size: Size) -> int:
    return size if isinstance(size, int) else size.node.hint or ANY_SIZE


# --- differences ----------------------------------------------------------------------------------------------------------------


def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """One difference after the other: PyTorch's own takes their number from the example where there are several."""
    if n < 2 or not _is_symbolic(input.shape):
        return torch.diff(input, n, dim, prepend, append)
    parts = [each for each in (prepend, input, append) if each is not None]
    joined = torch.cat(parts, dim) if len(parts) > 1 else input
    return functools.reduce(lambda x, _: torch.diff(x, 1, dim), range(n), joined)


def gradient(input: Tensor, *, spacing: object = 1, dim: object = None, edge_order: int = 1) -> tuple[Tensor, ...] | list[Tensor]:
    """As eager's for points at equal distances, whose sizes it reads as integers."""
    spacings = spacing if isinstance(spacing, list | tuple) else None
    dims = list(range(input.dim())) if dim is None else [dim] if isinstance(dim, int) else dim
    distances = spacings or [spacing] * len(cast("list[int]", dims))
    numbers = all(isinstance(each, int | float) for each in distances) and len(distances) == len(cast("list[int]", dims))
    if edge_order != 1 or not numbers or not _is_symbolic(input.shape):
        return torch.gradient(input, spacing=spacing, dim=dim, edge_order=edge_order)  # pyright: ignore
    return [_gradient(input, each, cast("float", step)) for each, step in zip(cast("list[int]", dims), distances, strict=True)]


def _gradient(x: Tensor, dim: int, step: float) -> Tensor:
    size = x.shape[dim]
    torch._check(size >= 2, lambda: "torch.gradient expected each dimension size to be at least edge_order+1")
    first = (x.narrow(dim, 1, 1) - x.narrow(dim, 0, 1)) / step
    inner = (x.narrow(dim, 2, size - 2) - x.narrow(dim, 0, size - 2)) / (2 * step)
    last = (x.narrow(dim, size - 1, 1) - x.narrow(dim, size - 2, 1)) / step
    return torch.cat([first, inner, last], dim)


def powers(x: Tensor, count: Size | None, increasing: bool) -> Tensor:
    """x to the powers 0, 1, ..., in the last dim, by products as eager computes them."""
    first = torch.arange(x.shape[-1] if count is None else count) == 0
    rising = torch.where(first, 1, x.unsqueeze(-1)).cumprod(-1)
    return rising if increasing else rising.flip(-1)


def vander(x: Tensor, N: Size | None = None, increasing: bool = False) -> Tensor:
    if x.dim() != 1 or x.is_complex() or not _is_symbolic([*x.shape, N]):
        return torch.vander(x, N, increasing)  # pyright: ignore
    return powers(x, N, increasing)


def _norm(original: Callable[..., Tensor]) -> Form:
    """Of a matrix by its largest or smallest singular value: PyTorch's own takes their number from the example."""

    def norm(A: Tensor, ord: object = None, dim: object = None, keepdim: bool = False, **others: object) -> Tensor:
        if A.dim() != 2 or A.is_complex() or ord not in (2, -2) or isinstance(ord, str) or dim is not None or any(others.values()):
            return original(A, *([] if ord is None else [ord]), dim=dim, keepdim=keepdim, **others)
        values = torch.linalg.svdvals(A)
        found = values.amax(-1) if ord == 2 else values.amin(-1)
        return found.reshape(1, 1) if keepdim else found

    return norm


# --- losses ---------------------------------------------------------------------------------------------------------------------


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Whether a variance is negative is asked in every call; PyTorch's own asks in Python."""
    shapes = isinstance(var, Tensor) and (var.shape in (input.shape, input.shape[:-1]) or var.shape == (*input.shape[:-1], 1))
    if not isinstance(var, Tensor) or not shapes or reduction not in ("none", "mean", "sum"):
        return F.gaussian_nll_loss(input, target, var, full, eps, reduction)
    var = required(var, (var < 0).logical_not(), "gaussian_nll_loss: var has negative entry/entries: got {actual} or more")
    spread = (var.unsqueeze(-1) if input.shape[:-1] == var.shape else var).clamp(min=eps)
    loss = 0.5 * (torch.log(spread) + (input - target) ** 2 / spread)
    loss = loss + 0.5 * math.log(2 * math.pi) if full else loss
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


aten = torch.ops.aten
TABLE: dict[torch._ops.OperatorBase, Decomposition] = {
    **{
        getattr(getattr(aten, name), overload): WINDOWS[name]
        for name in ("hamming_window", "blackman_window", "bartlett_window", "kaiser_window")
        for overload in getattr(aten, name).overloads()
        if "out" not in overload
    },
}
FORMS: dict[Callable[..., object], Form] = {
    **{getattr(torch, name): _window_form(name) for name in WINDOWS},
    **{original: _view_form(original) for original in (torch.Tensor.view, torch.Tensor.reshape, torch.reshape)},
    torch.linspace: linspace,
    torch.fft.fftfreq: _frequencies(torch.fft.fftfreq, halved=False),
    torch.fft.rfftfreq: _frequencies(torch.fft.rfftfreq, halved=True),
    torch.kron: kron,
    torch.Tensor.kron: kron,
    torch.linalg.multi_dot: multi_dot,
    torch.einsum: einsum,
    torch.diff: diff,
    torch.Tensor.diff: diff,
    torch.gradient: gradient,
    torch.vander: vander,
    torch.linalg.norm: _norm(torch.linalg.norm),
    F.affine_grid: affine_grid,
    F.gaussian_nll_loss: gaussian_nll_loss,
}
