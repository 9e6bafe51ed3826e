"""How a result lies in memory: eager's strides as an order of the dims, for all sizes at once."""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch

from disc.frontend.symbols import MAXIMUM, Shape, Size, product, same_size, to_shape, to_size

UNKNOWN_LAYOUT = "its result is not dense in memory"


@dataclass(frozen=True)
class Layout:
    """A dense tensor of any order of dims.

    order: all dims, outermost in memory first, those of size 1 before the others. inside: of every dim, how many dims of other sizes than 1
    lie inside of it; their sizes multiplied are its stride. (The stride of a dim of size 1 says nothing about memory, but PyTorch reads
    from it how results of later ops should lie.) single: the dims of size 1. row_major: as a fresh tensor of these sizes lies.
    """

    order: tuple[int, ...]
    inside: tuple[int, ...]
    single: frozenset[int]
    row_major: bool

    def apply(self, value: torch.Tensor) -> torch.Tensor:
        """`value`, row-major with its dims in `order`, as the tensor of this layout."""
        strides, sizes = [1], [1] * len(self.order)
        for size, dim in zip(reversed(value.shape), reversed(self.order), strict=True):
            sizes[dim] = size
            if dim not in self.single:
                strides.append(strides[-1] * max(size, 1))
        return value.as_strided(sizes, [strides[count] for count in self.inside])


def memory_layout(value: torch.Tensor) -> Layout | None:
    """The layout of the tensor, proved for all its sizes; None where it is not proved to be dense."""
    sizes, strides = _plain(to_shape(value.shape), to_shape(value.stride()))
    rank = len(sizes)
    single = frozenset(dim for dim, size in enumerate(sizes) if size == 1)
    natural = tuple(sum(size != 1 for size in sizes[dim + 1 :]) for dim in range(rank))
    if 0 in sizes:
        return Layout(tuple(range(rank)), natural, single, True)
    left, order = [dim for dim in range(rank) if dim not in single], []
    products: list[Size] = [1]  # of the innermost 0, 1, ... dims
    while left:
        dim = next((dim for dim in reversed(left) if same_size(strides[dim], products[-1])), None)
        if dim is None:
            return None
        left.remove(dim)
        order.insert(0, dim)
        products.append(product([sizes[dim], products[-1]]))
    inside = {dim: len(order) - 1 - place for place, dim in enumerate(order)}
    for dim in sorted(single):
        counts = [natural[dim], *range(len(products))]
        inside[dim] = next((count for count in counts if same_size(strides[dim], products[count])), natural[dim])
    in_order = order == sorted(order)
    found = tuple(inside[dim] for dim in range(rank))
    whole = tuple(range(rank)) if in_order else (*sorted(single), *order)
    return Layout(whole, found, single, in_order and found == natural)


def _plain(sizes: Shape, strides: Shape) -> tuple[Shape, Shape]:
    """PyTorch writes Max(1, s) where s may be 0; the strides of an empty tensor do not matter. A size that is itself such an extreme gets a
    name of its own, as it says how many elements there are."""
    kept = {part: sympy.Dummy(integer=True) for size in sizes for part in _maxima(size)}

    def plain(stride: Size) -> Size:
        if isinstance(stride, int):
            return stride
        named = stride.xreplace(kept)
        others = {part: [size for size in part.args if size != 1] for part in _maxima(named)}
        return to_size(named.xreplace({part: parts[0] for part, parts in others.items() if len(parts) == 1}))

    named = tuple(size if isinstance(size, int) else to_size(size.xreplace(kept)) for size in sizes)
    return named, tuple(map(plain, strides))


def _maxima(size: Size | sympy.Basic) -> list[sympy.Basic]:
    return [] if isinstance(size, int) else [part for part in sympy.preorder_traversal(size) if isinstance(part, MAXIMUM)]
