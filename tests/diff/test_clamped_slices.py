"""Slices that end or begin at a constant take what there is, as in Python: one compile, whichever the example shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import disc
from disc.errors import ShapeConstraintError

AUTO = torch.export.Dim.AUTO
SIZES = (0, 1, 2, 3, 4, 5, 7, 13)


def first(x: Tensor) -> Tensor:
    return x[:, :4] * 2


def last(x: Tensor) -> Tensor:
    return x[:, -4:] * 2


def mean(x: Tensor) -> Tensor:
    return x[:, :3].sum(1) + x[..., -9:].amax(-1).sum(1, keepdim=True)


def both_ends(x: Tensor) -> Tensor:
    return x[:, :5] + x[:, -5:]


def beyond_the_whole(x: Tensor) -> Tensor:
    return x[:, :512] + x * 2


def padded_to(x: Tensor) -> Tensor:
    short = x[:, :4]
    return F.pad(short, (0, 0, 0, 4 - short.shape[1]))


def of_a_slice(x: Tensor) -> Tensor:
    return x[:, -6:][:, :4].flip(1)


def beside_other_places(x: Tensor) -> Tensor:
    return x[None, ..., :4, 1:] + x[0, None, :4, :-1]


def beside_an_op_that_pytorch_decomposes(x: Tensor) -> Tensor:
    """PyTorch traces such programs anew, with its guards run as Python on the sizes."""
    return torch.quantile(x, 0.3, 2)[:, -4:] + torch.median(x[:, :4].int(), 2).values


CASES = {
    each.__name__: each
    for each in (first, last, mean, both_ends, beyond_the_whole, padded_to, of_a_slice, beside_an_op_that_pytorch_decomposes)
}


@pytest.mark.parametrize("example", [3, 6])
@pytest.mark.parametrize("name", CASES)
def test_one_compile_serves_all_sizes(name: str, example: int) -> None:
    compiled = disc.compile(CASES[name], [torch.randn(2, example, 10)], dynamic_shapes=[{1: AUTO}])
    for size in SIZES[name == beside_an_op_that_pytorch_decomposes.__name__ :]:  # there are no quantiles of no rows
        x = torch.randn(2, size, 10)
        torch.testing.assert_close(compiled(x), CASES[name](x))


def test_other_places_of_the_index() -> None:
    """`None`, an ellipsis, whole numbers; a dim whose size is known."""
    compiled = disc.compile(beside_other_places, [torch.randn(3, 6, 7)], dynamic_shapes=[{1: AUTO}])
    for size in SIZES:
        x = torch.randn(3, size, 7)
        torch.testing.assert_close(compiled(x), beside_other_places(x))


class Window(torch.nn.Module):
    """The last 5 of what is cached and what is new."""

    def forward(self, past: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.cat([past, new], 1)[:, -5:]
        return torch.softmax(new @ kept.mT, -1) @ kept, kept


@pytest.mark.parametrize("past", [0, 9])
def test_a_window_of_a_cache(past: int) -> None:
    compiled = disc.compile(Window(), [torch.randn(2, past, 8), torch.randn(2, 3, 8)], dynamic_shapes=[{1: AUTO}, {1: AUTO}])
    for size, new in ((0, 1), (0, 2), (1, 1), (3, 2), (4, 1), (5, 1), (12, 7)):
        given = torch.randn(2, size, 8), torch.randn(2, new, 8)
        torch.testing.assert_close(tuple(compiled(*given)), Window()(*given))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("cut", [lambda x: x[:, 2:6] + 1, lambda x: x[:, :-2] + 1, lambda x: x[:, 1:] + 1])
def test_what_is_cut_off_must_be_there(cut: Callable[[Tensor], Tensor]) -> None:
    compiled = disc.compile(cut, [torch.randn(2, 7)], dynamic_shapes=[{1: AUTO}])
    for size in SIZES:
        x = torch.randn(2, size)
        try:
            result = compiled(x)
        except ShapeConstraintError:
            assert size < 6
            continue
        torch.testing.assert_close(result, cut(x))


TAKEN: dict[str, Callable[[Tensor], Tensor]] = {
    "first": lambda x: x * x[:2].shape[0],
    "last": lambda x: x * x[-2:].shape[0],
    "second": lambda x: x * x[1:2].shape[0],
    "twice": lambda x: x * x[1:][:1].shape[0],
    "elements": lambda x: x * x[:2].numel(),
    "length": lambda x: x * len(x[:2]),
    "made": lambda x: torch.full((x[:2].shape[0],), 1.0),
    "made of one": lambda x: torch.full((x[:1].shape[0],), 1.0),
    "branch": lambda x: x * (2 if x[:2].shape[0] == 2 else 3),
    "top": lambda x: x * x.topk(2, 0)[0].shape[0],
    "narrow": lambda x: x * x.narrow(0, 0, 2).shape[0],
    "unfold": lambda x: x * x.unfold(0, 2, 1).shape[1],
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_slice_of_which_the_size_alone_is_read(name: str) -> None:
    """Nothing of it is left in the graph, and PyTorch takes every size to be at least 2: what is not there is an error, no number."""
    compiled = disc.compile(TAKEN[name], [torch.randn(5)], dynamic_shapes=[{0: AUTO}])
    for size in SIZES:
        x = torch.randn(size)
        if size >= (1 if "one" in name else 2):
            torch.testing.assert_close(compiled(x), TAKEN[name](x))
        else:
            with pytest.raises(ShapeConstraintError, match=r"test_clamped_slices\.py"):
                compiled(x)


FROM_THE_END: dict[str, Callable[[Tensor], object]] = {
    "last": lambda x: x[:, -x.shape[0] :] * 2,
    "all but the last": lambda x: x[:, : -x.shape[0]] * 2,
    "parts": lambda x: [part * 2 for part in x.tensor_split([-x.shape[0]], 1)],
    "of a flat one": lambda x: x.flatten()[-x.shape[0] :] * 2,
}


@pytest.mark.parametrize("name", FROM_THE_END)
def test_a_computed_number_of_elements_from_the_end(name: str) -> None:
    """`-n` is the first place where n is 0; PyTorch, which takes n for positive, counts from the end."""
    compiled = disc.compile(FROM_THE_END[name], [torch.randn(3, 7)])
    for shape in ((0, 3), (1, 1), (2, 5), (3, 0), (3, 3), (5, 2)):
        x = torch.randn(shape)
        try:
            result = compiled(x)
        except ShapeConstraintError:
            assert shape[0] == 0 or shape[1] < shape[0]
            continue
        torch.testing.assert_close(result, FROM_THE_END[name](x))


def test_a_part_is_written_of_a_computed_number_of_elements_from_the_end() -> None:
    """More than there are demand nothing of Python; here they are refused, where the result had as many rows as were written."""

    def written(x: Tensor) -> Tensor:
        y = x.reshape(-1).clone()
        y[-x.shape[0] :] = 0
        return y

    compiled = disc.compile(written, [torch.randn(4, 8)])
    for shape in ((1, 1), (3, 2), (5, 1)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), written(x))
    for shape in ((3, 0), (0, 3)):
        with pytest.raises(ShapeConstraintError, match=r"test_clamped_slices\.py"):
            compiled(torch.randn(shape))
