"""Views of dense tensors have the sizes that a program gives them, while graphs are traced.

PyTorch makes a view dim by dim and compares sizes on the way: of an example of 4 x 8, `x.view(-1, 2, 4)` gets the sizes (s0, 2, s1 // 2),
which are right where s1 is 8 alone; and `4 * s0 * s1 // (2 * s1)`, which is 2 * s0, decides about strides. A tensor that is dense and
row-major has a view of any sizes of as many elements, and any other is copied to one where PyTorch does not see that it has the view.
A spectrum is made with its sizes: PyTorch gives a tensor other sizes, which compares them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sympy
import torch
import torch._meta_registrations
import torch._prims_common as utils
import torch._refs
from torch import Tensor
from torch._C import DispatchKey
from torch._subclasses.fake_impls import _compute_stride
from torch.fx.experimental.symbolic_shapes import has_guarding_hint

from disc.frontend.python_kernels import python_kernels
from disc.frontend.replaced import replaced
from disc.frontend.symbols import to_size

aten = torch.ops.aten
RESHAPE = aten.reshape.default
SymbolicSize = int | torch.SymInt


@contextmanager
def dense_views() -> Iterator[None]:
    """While it is entered, PyTorch's own rules for views and reshapes give way to those here where they may."""
    original = torch._refs._reshape_view_helper

    def view(a: Tensor, *shape: object, allow_copy: bool = False) -> Tensor:
        made = _view(a, utils.extract_shape_from_varargs(shape, validate=False))  # pyright: ignore[reportArgumentType]
        return original(a, *shape, allow_copy=allow_copy) if made is None else made  # pyright: ignore[reportArgumentType]

    own = {(torch._refs, "_reshape_view_helper"): view, (torch._meta_registrations, "_exec_fft"): _spectrum}
    with replaced(own), python_kernels({(RESHAPE, DispatchKey.CompositeImplicitAutograd): _reshape}):
        yield


def _spectrum(out: Tensor, x: Tensor, sizes: Sequence[SymbolicSize], dims: Sequence[int], *, forward: bool) -> Tensor:
    """A Fourier transform's result, laid out as MKL's: the transformed dims innermost, in their order, the others in that of `x`."""
    others = sorted((dim for dim in range(x.dim()) if dim not in dims), key=lambda dim: x.stride(dim), reverse=True)
    strides: list[SymbolicSize] = [0] * x.dim()
    elements: SymbolicSize = 1
    for dim in reversed([*others, *dims]):
        strides[dim] = elements
        elements *= sizes[dim]
    return out.new_empty_strided(sizes, strides)  # pyright: ignore[reportArgumentType]


def _view(a: Tensor, shape: Sequence[SymbolicSize]) -> Tensor | None:
    """The view of `a`; None where PyTorch's own rule has nothing to decide, or has to: sizes of numbers, or of data; no such view."""
    if not a.dim() or not len(shape) or not _is_symbolic(a, shape):
        return None
    sizes = _inferred(a, shape)
    if len(sizes) == a.dim() and all(map(_same, sizes, a.shape)):
        return None
    if not utils.is_contiguous_or_false(a):
        strides = _compute_stride(a.shape, a.stride(), sizes, size_oblivious=True)
        return None if strides is None else a.as_strided(sizes, strides)  # pyright: ignore[reportArgumentType]
    _match(a.shape, sizes)
    torch._check(_as_many(a.shape, sizes), lambda: f"Could not reshape a tensor with shape {a.shape} as a tensor with shape {sizes}!")
    return a.as_strided(sizes, utils.make_contiguous_strides_for(sizes))  # pyright: ignore[reportArgumentType]


def _reshape(a: Tensor, shape: Sequence[SymbolicSize]) -> Tensor:
    """`aten.reshape`: PyTorch's C++ code decides by the sizes of the example whether there is a view."""
    if not a.dim() or not len(shape) or not _is_symbolic(a, shape):
        return RESHAPE._op_dk(DispatchKey.CompositeImplicitAutograd, a, shape)
    sizes = _inferred(a, shape)
    if utils.is_contiguous_or_false(a) or _compute_stride(a.shape, a.stride(), sizes, size_oblivious=True) is not None:
        return a.view(sizes)  # pyright: ignore[reportArgumentType]
    return aten._unsafe_view.default(a.clone(memory_format=torch.contiguous_format), sizes)


def _inferred(a: Tensor, shape: Sequence[SymbolicSize]) -> Sequence[SymbolicSize]:
    return utils.infer_size(shape, a.numel())  # pyright: ignore[reportArgumentType, reportReturnType]


def _is_symbolic(a: Tensor, shape: Sequence[SymbolicSize]) -> bool:
    """Whether sizes of the tensor are symbolic, and none depends on data."""
    return not all(isinstance(size, int) for size in a.shape) and all(
        isinstance(size, int) or has_guarding_hint(size) for size in (*a.shape, *shape)
    )


def _same(left: SymbolicSize, right: SymbolicSize) -> bool:
    return to_size(left) == to_size(right)


def _match(have: Sequence[SymbolicSize], wanted: Sequence[SymbolicSize]) -> None:
    """Sizes at the same place, from the first on and from the last on, are taken for one where the program names them and they are equal
    in the example; the last may be a number, as that of a weight: of `logits.view(-1, 50)`, 50 are the columns of the logits."""
    count = min(len(have), len(wanted))
    matched = 0
    while matched < count and _is_one(have[matched], wanted[matched], numbers=False):
        matched += 1
    for place in range(1, count - matched + 1):
        if not _is_one(have[-place], wanted[-place], numbers=True):
            return


def _is_one(have: SymbolicSize, wanted: SymbolicSize, numbers: bool) -> bool:
    """Whether two sizes are one, from now on if not before."""
    if _same(have, wanted):
        return True
    named = isinstance(have, torch.SymInt) and (numbers if isinstance(wanted, int) else isinstance(to_size(wanted), sympy.Symbol))
    return (
        named and _example(have) == _example(wanted) and bool(have == wanted)
    )  # what is compared is decided, and a difference means nothing


def _example(size: SymbolicSize) -> int | None:
    return size.node.hint if isinstance(size, torch.SymInt) else size


def _as_many(have: Sequence[SymbolicSize], wanted: Sequence[SymbolicSize]) -> bool | torch.SymBool:
    """Whether there are as many elements, of which factors that both have are left out, if there are elements."""
    if any(_example(size) == 0 for size in have):
        return math.prod(have) == math.prod(wanted)
    rest, others = list(have), list(wanted)
    for size in have:
        found = next((place for place, other in enumerate(others) if _same(size, other)), None)
        if found is not None:
            del others[found]
            del rest[next(place for place, other in enumerate(rest) if _same(size, other))]
    return math.prod(rest) == math.prod(others)
