"""Decompositions of distances, losses, bags of embeddings, segments, masked and diagonal scatters and memberships. Shapes stay symbolic."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import decomposition_table as _PYTORCH

from disc.frontend.checked_values import between, checked, required
from disc.frontend.eager_strides import Decomposition

aten = torch.ops.aten
FEW = 32  # numbers with which each element is compared: sorting them takes a launch of its own


# --- distances ------------------------------------------------------------------------------------------------------------------


def distance(difference: Tensor, p: float) -> Tensor:
    """The p-norm over the last dim, of which there may be nothing."""
    size = difference.abs()
    if p == 0:
        return (difference != 0).to(difference.dtype).sum(-1)  # a NaN differs from 0
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    if math.isinf(p):
        return size.amax(-1).clamp(min=0)
    return (size**p).sum(-1) ** (1 / p)


def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Each difference as it is: the form with a matrix product, which eager takes for many rows, cancels where rows are close."""
    return distance(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """Pair k is (i, j) with i < j, row by row: i solves a quadratic equation, exactly in f64 up to tens of millions of rows."""
    rows = x.shape[0]
    k = torch.arange(rows * (rows - 1) // 2)
    middle = torch.full_like(k, rows, dtype=torch.float64) - 0.5
    i = (middle - torch.sqrt(middle * middle - 2 * k - 1)).to(torch.int64)
    j = k - rows * i + i * (i + 1) // 2 + i + 1
    return distance(x.index_select(0, i) - x.index_select(0, j), p)


def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    """PyTorch's own, of numbers that eager takes."""
    x, target = (
        between(each, 1, f"binary_cross_entropy: all elements of {name} must be between 0 and 1")
        for each, name in ((x, "input"), (target, "target"))
    )
    return _PYTORCH[aten.binary_cross_entropy.default](x, target, weight, reduction)


def one_hot(x: Tensor, num_classes: int) -> Tensor:
    if x.dtype != torch.int64 or (isinstance(num_classes, int) and num_classes < 1):
        return F.one_hot(x, num_classes)
    classes = checked(x, num_classes, "one_hot: a class value must be from 0 to below the number of classes: got {actual} of {expected}")
    return (classes.unsqueeze(-1) == torch.arange(num_classes, device=x.device)).to(torch.int64)


def _max_unpool(op: torch._ops.OpOverload) -> Decomposition:
    """PyTorch's own, which counts a negative index from the end."""

    def decomposition(x: Tensor, indices: Tensor, output_size: Sequence[int], *args: object) -> Tensor:
        what = "max_unpool: an index must be that of an element of a plane: got {actual} of {expected}"
        return _PYTORCH[op](x, checked(indices, math.prod(output_size), what), output_size, *args)

    return decomposition


def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """Of each row: how far classes that are not meant come within 1 of those that are, which stand in `target` before its first -1.
    (PyTorch's decomposition counts class 0 for each place behind that.) reduction: 0: none, 1: mean, 2: sum."""
    rows, labels = torch.atleast_2d(x), torch.atleast_2d(target)
    classes = torch.arange(rows.shape[1])
    torch._check(x.shape == target.shape, lambda: f"inconsistent target size: {target.shape} for input of size: {x.shape}")
    valid = classes < torch.where(labels == -1, classes, rows.shape[1]).amin(-1, keepdim=True)
    chosen = torch.where(valid, labels, 0)
    meant = ((chosen.unsqueeze(-1) == classes) & valid.unsqueeze(-1)).any(1)
    margins = torch.relu(1 - rows.gather(1, chosen).unsqueeze(-1) + rows.unsqueeze(1))
    loss = torch.where(valid.unsqueeze(-1) & ~meant.unsqueeze(1), margins, 0.0).sum([1, 2]) / rows.shape[1]
    return loss.reshape(x.shape[:-1]) if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


# --- masks and bags -------------------------------------------------------------------------------------------------------------


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The n-th place under the mask takes element n of `source`. One element in front stands for all places beside the mask; where there
    are more places than elements, an index is out of range, which compiled programs refuse."""
    x, mask = torch.broadcast_tensors(x, mask)
    number = torch.cumsum(mask.flatten().to(torch.int64), 0).reshape(mask.shape)
    padded = torch.cat([torch.zeros([1], dtype=source.dtype), source.flatten()])
    return torch.where(mask, padded[torch.where(mask, number, 0)], x)


def diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Places on the diagonal take elements of `src`. (PyTorch's decomposition writes into a view of a copy, which is no function: what
    traces it drops the write, or refuses the program.) One element in front stands for rows or columns beyond the end of the diagonal."""
    diagonal = x.diagonal(offset, dim1, dim2)
    torch._check(
        src.shape == diagonal.shape, lambda: f"expected src to have a size equal to the slice of self: {src.shape}, {diagonal.shape}"
    )
    moved = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = torch.arange(moved.shape[-2]).unsqueeze(-1), torch.arange(moved.shape[-1])
    along = (rows.squeeze(-1) if offset >= 0 else columns) + 1
    padded = torch.cat([src.new_zeros([*src.shape[:-1], 1]), src], -1)
    spread = padded.index_select(-1, torch.where(along <= src.shape[-1], along, 0)).unsqueeze(-1 if offset >= 0 else -2)
    hit, new = (each.expand(moved.shape).movedim((-2, -1), (dim1, dim2)).contiguous() for each in (columns - rows == offset, spread))
    return torch.where(hit, new.to(x.dtype), x)


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    return x.reshape(-1).index_put([index.reshape(-1)], source.reshape(-1), accumulate).reshape(x.shape)


def index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """A scatter, whose index is that of the whole slice; only a mean of integers is rounded otherwise."""
    if x.dim() == 0 or index.dim() != 1 or (reduce == "mean" and not x.is_floating_point()):
        return NotImplemented
    place = dim % x.dim()
    spread = index.reshape([-1 if each == place else 1 for each in range(x.dim())]).expand(source.shape)
    return x.scatter_reduce(place, spread, source, reduce, include_self=include_self)


def embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = 0, sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Sums (mode 0), means (mode 1) and maxima (mode 2) of rows, a bag from one offset to the next; and what eager tells of the bags: the
    bag of each row, their sizes, and again or, of maxima, the rows that have them."""
    if indices.dim() != 1:
        return NotImplemented
    bags = offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]
    position = torch.arange(indices.shape[0])
    what = "embedding_bag: an offset must be from 0 to the number of indices, and the first one 0: got {actual}"
    most = torch.where(torch.arange(offsets.shape[0]) == 0, 0, indices.shape[0])
    wrong = checked(torch.where((offsets < 0) | (offsets > most), offsets, 0), 1, what)
    offsets = torch.where(wrong.sum() == 0, offsets, 0)
    bag = (position.unsqueeze(-1) >= offsets[:bags]).to(torch.int64).sum(-1) - 1
    if include_last_offset:  # what comes after the last offset is in no bag; eager takes it into the last one
        bag = torch.clamp(bag, max=bags - 1)
    rows = weight.index_select(0, indices)
    counted = torch.ones_like(indices) if padding_idx < 0 else (indices != padding_idx).to(indices.dtype)
    sizes = torch.zeros([bags], dtype=indices.dtype).index_add(0, bag, counted)
    told = bag.to(indices.dtype)
    if mode == 2:
        values, places = _maxima_of_bags(rows, bag, counted != 0, bags)
        return values, told, sizes, torch.where(places < indices.shape[0], indices[places % indices.shape[0]], 0)
    result = _sums_of_bags(rows, bag, counted != 0, bags, per_sample_weights)
    if mode == 1:
        return (result / sizes.clamp(min=1).unsqueeze(-1)).to(weight.dtype), told, sizes, sizes
    untold = padding_idx < 0 and weight.dtype != torch.float64  # on its fast path eager does not say which rows are in a bag
    return result.to(weight.dtype), told[: 0 if untold else indices.shape[0]], torch.zeros_like(sizes), torch.zeros_like(sizes)


def _bags_of_rows(grad: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
    """What comes after the last offset is in the last bag."""
    bag = (torch.arange(indices.shape[0]).unsqueeze(-1) >= offsets).to(torch.int64).sum(-1) - 1
    return bag.clamp(max=grad.shape[0] - 1)


def embedding_bag_backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, told: Tensor, sizes: Tensor, maxima: Tensor, count: int, scale_grad_by_freq: bool,
    mode: int, sparse: bool, per_sample_weights: Tensor | None, padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    """The gradient of the table, which has `count` rows. told, sizes, maxima: what `embedding_bag` gave beside its values."""
    if sparse or scale_grad_by_freq or indices.dim() != 1:  # eager's counts of a row are not those of its appearances
        return NotImplemented
    dtype, columns = grad.dtype, grad.shape[1]
    grad = grad.to(torch.float32) if dtype in (torch.float16, torch.bfloat16) else grad
    if mode == 2:
        some = torch.where((sizes != 0).unsqueeze(-1), grad, 0.0)
        places = maxima * columns + torch.arange(columns)
        table = torch.zeros([count * columns], dtype=grad.dtype).index_add(0, places.reshape(-1), some.reshape(-1))
        return table.reshape([count, columns]).to(dtype)
    grad = grad / sizes.clamp(min=1).unsqueeze(-1).to(grad.dtype) if mode == 1 else grad
    rows = grad.index_select(0, _bags_of_rows(grad, indices, offsets))
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    rows = rows if padding_idx < 0 else torch.where((indices != padding_idx).unsqueeze(-1), rows, 0.0)
    return torch.zeros([count, columns], dtype=rows.dtype).index_add(0, indices, rows).to(dtype)


def per_sample_weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, told: Tensor, mode: int, padding_idx: int = -1
) -> Tensor:
    if indices.dim() != 1:
        return NotImplemented
    bags = _bags_of_rows(grad, indices, offsets)
    products = (grad.index_select(0, bags) * weight.index_select(0, indices)).sum(-1)
    return products if padding_idx < 0 else torch.where(indices != padding_idx, products, 0.0)


def _sums_of_bags(rows: Tensor, bag: Tensor, counts: Tensor, bags: int, weights: Tensor | None) -> Tensor:
    """16-bit floats are added in f32."""
    rows = rows.to(torch.float32) if rows.dtype in (torch.float16, torch.bfloat16) else rows
    if weights is not None:
        rows = rows * weights.unsqueeze(-1)
    rows = torch.where(counts.unsqueeze(-1), rows, 0.0)
    return torch.zeros([bags, rows.shape[1]], dtype=rows.dtype).index_add(0, bag, rows)


def _maxima_of_bags(rows: Tensor, bag: Tensor, counts: Tensor, bags: int) -> tuple[Tensor, Tensor]:
    """([bags, columns] maxima, 0 of nothing; the first positions that have them, beyond all positions for nothing).

    As in eager, a NaN is greater than nothing, but stays where it comes first.
    """
    beyond = rows.shape[0]
    position = torch.arange(beyond)
    first = torch.full([bags], beyond).scatter_reduce(0, bag, torch.where(counts, position, beyond), "amin")
    skipped = (rows != rows) & (position != first[bag]).unsqueeze(-1) | counts.logical_not().unsqueeze(-1)
    rows = torch.where(skipped, -math.inf, rows)
    spread = bag.unsqueeze(-1).expand(rows.shape)
    values = torch.full([bags, rows.shape[1]], -math.inf, dtype=rows.dtype).scatter_reduce(0, spread, rows, "amax")
    hits = counts.unsqueeze(-1) & ((rows == values[bag]) | (rows != rows))
    places = torch.full([bags, rows.shape[1]], beyond).scatter_reduce(0, spread, torch.where(hits, position.unsqueeze(-1), beyond), "amin")
    return torch.where((first < beyond).unsqueeze(-1), values, 0.0), places


def segment_reduce(
    data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None, offsets: Tensor | None = None,
    axis: int = 0, unsafe: bool = False, initial: float | None = None,
) -> Tensor:  # fmt: skip
    """Of segments one after the other along `axis`, as long as `lengths`, or from one of `offsets` to the next. What is in none, beside
    `offsets`, is reduced into a segment more, which is cut off."""
    given = lengths if lengths is not None else offsets
    if given is None or indices is not None or not 0 <= axis < data.dim() or given.dim() != axis + 1 or not data.is_floating_point():
        return NotImplemented
    count, given = data.shape[axis], given.to(torch.int64)
    if lengths is not None:
        sound = (given >= 0).all(-1, keepdim=True)
        total = given.sum(-1, keepdim=True)
        sound = sound & (total <= count if unsafe else total == count)
        given = required(
            given, sound, "segment_reduce: lengths must not be negative, and add up to the size along axis: {actual} rows or more do not"
        )
        ends = given.cumsum(-1)
        starts = ends - given
    else:
        starts, ends = given[..., :-1], given[..., 1:]
        sound = (starts >= 0) & (starts <= ends) & (ends <= count)
        ends = required(
            ends,
            sound,
            "segment_reduce: offsets must be from 0 to the size along axis, each no less than the one before: {actual} or more are not",
        )
    segments = ends.shape[-1]
    place = torch.arange(count).expand([*ends.shape[:-1], count]).contiguous()
    of = torch.searchsorted(ends.contiguous(), place, right=True)
    of = torch.where(place >= starts.amin(-1, keepdim=True), of, segments) if offsets is not None else of
    of = of.reshape([*of.shape, *[1] * (data.dim() - axis - 1)]).expand(data.shape)
    how, neutral = _REDUCED[reduce]
    shape = [*data.shape[:axis], segments + 1, *data.shape[axis + 1 :]]
    found = data.new_full(shape, neutral if initial is None else initial).scatter_reduce(axis, of, data, how).narrow(axis, 0, segments)
    if reduce != "mean":
        return found
    size = (ends - starts).reshape([*ends.shape, *[1] * (data.dim() - axis - 1)])
    return torch.where(size > 0, found / size.to(data.dtype), found if initial is not None else math.nan)


_REDUCED = {"sum": ("sum", 0.0), "mean": ("sum", 0.0), "max": ("amax", -math.inf), "min": ("amin", math.inf), "prod": ("prod", 1.0)}


def isin(elements: Tensor, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each element is among others, of which few are compared one by one, and many are sorted: an element that is among them comes
    before more of them from the right than from the left. A NaN is among none."""
    kind = torch.result_type(elements, test_elements)
    left, right = elements.to(kind), test_elements.to(kind).reshape(-1)
    count = right.shape[0]
    if isinstance(count, int) and count <= FEW:
        found = (left.unsqueeze(-1) == right).any(-1)
    else:
        numbers = right.nan_to_num(math.inf, math.inf, -math.inf) if kind.is_floating_point else right  # a search takes no NaN
        ordered = torch.sort(numbers)[0]
        found = torch.searchsorted(ordered, left, right=True) > torch.searchsorted(ordered, left)
        if kind.is_floating_point:
            found = torch.where(left == math.inf, (right == math.inf).any(), found & (left == left))
    return found.logical_not() if invert else found


def isin_of_number(elements: Tensor, test_element: float, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    return elements != test_element if invert else elements == test_element


def number_isin(element: float, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    found = (test_elements == element).any()
    return found.logical_not() if invert else found


def conv_tbc(x: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """A 1-D convolution of [time, batch, channels] by [kernel, channels, outputs]."""
    return torch.conv1d(x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad).permute(2, 0, 1)


TABLE: dict[torch._ops.OperatorBase, Decomposition] = {
    aten._cdist_forward.default: cdist,
    aten._pdist_forward.default: pdist,
    aten.multilabel_margin_loss.default: multilabel_margin_loss,
    aten.binary_cross_entropy.default: binary_cross_entropy,
    **{op: _max_unpool(op) for op in (aten.max_unpool2d.default, aten.max_unpool3d.default)},
    aten.masked_scatter.default: masked_scatter,
    aten.diagonal_scatter.default: diagonal_scatter,
    aten.conv_tbc.default: conv_tbc,
    aten.put.default: put,
    aten.index_reduce.default: index_reduce,
    aten.segment_reduce.default: segment_reduce,
    aten.isin.Tensor_Tensor: isin,
    aten.isin.Tensor_Scalar: isin_of_number,
    aten.isin.Scalar_Tensor: number_isin,
    aten._embedding_bag.default: embedding_bag,
    aten._embedding_bag_forward_only.default: embedding_bag,
    aten._embedding_bag_backward.default: embedding_bag_backward,
    aten._embedding_bag_per_sample_weights_backward.default: per_sample_weights_backward,
}
