"""Indices in data that do not fit their dim: refused in the call, as in eager, by everything that reads or writes there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import disc
from disc.errors import ShapeConstraintError

X, VALUES = torch.zeros(4, 3), torch.ones(2, 3)
Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# Name → (call of x, a vector of indices and values for its rows; the lowest index that is valid).
CALLS: dict[str, tuple[Call, int]] = {
    "index": (lambda x, i, v: x[i] + v, -4),
    "index_select": (lambda x, i, v: x.index_select(0, i) + v, 0),
    "gather": (lambda x, i, v: x.gather(0, i[:, None].expand(-1, 3)) + v, 0),
    "index_put": (lambda x, i, v: x.index_put((i,), v), -4),
    "index_put, adding": (lambda x, i, v: x.index_put((i,), v, accumulate=True), -4),
    "scatter": (lambda x, i, v: x.scatter(0, i[:, None].expand(-1, 3), v), 0),
    "scatter_add": (lambda x, i, v: x.scatter_add(0, i[:, None].expand(-1, 3), v), 0),
    "index_copy": (lambda x, i, v: x.index_copy(0, i, v), 0),
    "index_add": (lambda x, i, v: x.index_add(0, i, v), 0),
}


class TwoTables(nn.Module):
    """Two inputs hold indices of one kernel, a third one none."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(10, 8), nn.Embedding(3, 8)

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (self.words(ids) + self.kinds(kinds)) * mask.unsqueeze(-1)


def test_the_inputs_that_hold_indices_are_named() -> None:
    ones = torch.ones(2, 5, dtype=torch.int64)
    executable = disc.compile(TwoTables().eval(), (ones, ones, ones), options=disc.Options(cache=False, threads=1))
    for inputs, index, size in ((10 * ones, ones, ones), 10, 10), ((ones, 4 * ones, 7 * ones), 4, 3):
        with pytest.raises(
            ShapeConstraintError, match=f"^input 'ids' or 'kinds': index {index} is out of range for a dim of size {size} at"
        ):
            executable(*inputs)


def test_the_tables_are_named() -> None:
    """Also where not all indices come from inputs: the size that the message names tells which table it was, and that whose it is."""
    ones, words, kinds = torch.ones(2, 5, dtype=torch.int64), r"words.weight \[10, 8\]", r"kinds.weight \[3, 8\]"
    options = disc.Options(cache=False, threads=1)
    both = disc.compile(TwoTables().eval(), (ones, ones, ones), options=options)
    with pytest.raises(ShapeConstraintError, match=f"; looked up: {words}, indexed by input 'ids'; {kinds}, indexed by input 'kinds'$"):
        both(10 * ones, ones, ones)
    of_itself = disc.compile(Counted().eval(), (ones,), options=options)
    with pytest.raises(
        ShapeConstraintError, match=f"^index 10 is out of range for a dim of size 10 at .*; looked up: {words}, indexed by input 'ids'; "
    ):
        of_itself(10 * ones)
    single = disc.compile(nn.Embedding(10, 8).eval(), (ones,), options=options)
    with pytest.raises(ShapeConstraintError, match=r"^input 'input': index 10 .*; looked up: weight \[10, 8\]$"):
        single(10 * ones)


class Counted(nn.Module):
    """Indices of a kernel come from an input and from a buffer."""

    places: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(10, 8), nn.Embedding(3, 8)
        self.register_buffer("places", torch.tensor([0, 2, 1, 0, 2, 1, 1]))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.words(ids) + self.kinds(self.places[: ids.shape[1]])


@pytest.mark.parametrize(
    ("start", "end", "fits", "refused"),
    [
        (2, 4, [(7, 2), (4, 2)], [(7, 1), (7, 3), (3, 2)]),
        (2, None, [(7, 5), (2, 0)], [(7, 1), (7, 3)]),
        (0, -2, [(7, 5), (3, 1)], [(7, 4), (7, 7)]),
    ],
)
def test_a_range_that_is_written_must_have_the_size_of_what_is_written(
    start: int, end: int | None, fits: list[tuple[int, int]], refused: list[tuple[int, int]]
) -> None:
    model = Calls(lambda x, i, v: x.slice_scatter(v, 0, start, end) + i.sum()).eval()
    i, options = torch.tensor([1, 2]), disc.Options(cache=False, threads=1)
    executable = disc.compile(model, (torch.zeros(6, 3), i, torch.ones(len(range(6)[start:end]), 3)), options=options)
    for rows, written in fits:
        inputs = (torch.zeros(rows, 3), i, torch.ones(written, 3))
        torch.testing.assert_close(executable(*inputs), model(*inputs))
    for rows, written in refused:
        with pytest.raises(ShapeConstraintError):
            executable(torch.zeros(rows, 3), i, torch.ones(written, 3))


@pytest.mark.parametrize("index", [2, -3])
def test_a_slice_that_is_written_must_exist(index: int) -> None:
    model = Calls(lambda x, i, v: x.select_scatter(v[:, 0], 0, index) + i.sum())
    values = torch.ones(3, 2)
    executable = disc.compile(model.eval(), (torch.zeros(5, 3), torch.tensor([1, 2]), values), options=disc.Options(cache=False, threads=1))
    for rows in (3, 4, 7):
        inputs = (torch.zeros(rows, 3), torch.tensor([1, 2]), values)
        torch.testing.assert_close(executable(*inputs), model(*inputs))
    with pytest.raises(ShapeConstraintError, match="dim 0 of input 'x' must be at least 3"):
        executable(torch.zeros(2, 3), torch.tensor([1, 2]), values)


class Calls(nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return self.call(x, indices, values)


@pytest.mark.parametrize("name", CALLS)
def test_out_of_range(name: str) -> None:
    call, lowest = CALLS[name]
    executable = disc.compile(Calls(call).eval(), (X, torch.tensor([1, 2]), VALUES), options=disc.Options(cache=False, threads=1))
    for index in (0, 3, lowest):
        indices = torch.tensor([1, index])
        torch.testing.assert_close(executable(X, indices, VALUES), call(X, indices, VALUES))
    for index in (4, lowest - 1, 2**40):
        with pytest.raises((IndexError, RuntimeError)):
            call(X, torch.tensor([1, index]), VALUES)
        with pytest.raises(ShapeConstraintError, match=r"is out of range for a dim of size 4 at .*test_index_bounds.py:\d+"):
            executable(X, torch.tensor([1, index]), VALUES)
    empty = torch.zeros(0, 3)
    with pytest.raises(ShapeConstraintError, match="is out of range for a dim of size 0"):
        executable(empty, torch.tensor([0, 0]), VALUES)
