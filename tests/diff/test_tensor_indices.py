"""Indices: tensors of no dims in programs, in what control flow runs and in graphs of torch.compile; parts of any size that are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compiled import Wrapped
from torch import Tensor

import disc
from disc.errors import DiscError, ShapeConstraintError
from disc.frontend import dynamo
from disc.frontend.tensor_indices import put, take

number = torch.tensor
INDICES: list[tuple[Any, ...]] = [
    (number(1),), (number(-1), number(2)), (slice(1, None), number(2)), (..., number(3)), (..., number(3), slice(2)),
    (None, number(1), None, number(2)), (number(1), ..., number(0)), (number([0, 1]), number(2)),
    (number(2), number([0, 1]), slice(None), number([1, 2])), (torch.arange(12).reshape(3, 4) % 3 == 0, number(1)),
    (number(0), torch.arange(20).reshape(4, 5) % 3 == 0, number(1)), ([0, 2], number(1)), (slice(None), number(1), [0, 2]),
    (0, number(1), 2), ([True, False, True], number(1)), (number(1, dtype=torch.int32), slice(None, None, 2), number([0, 1])),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_forms_mean_what_pytorch_means(index: tuple[Any, ...]) -> None:
    x = torch.randn(3, 4, 5, 6)
    assert torch.equal(take(x, index), x[index])
    for value in (torch.randn_like(x[index]), 3.0):
        written, wanted = x.clone(), x.clone()
        put(written, index, value)
        wanted[index] = value
        assert torch.equal(written, wanted)


def written(x: Tensor, i: Tensor) -> Tensor:
    y = x * 2
    y[i] = 0
    y[:, i] = x[i]
    y[i, 1:] += 3
    return y


def test_rows_that_data_choose_are_written() -> None:
    compiled = disc.compile(Wrapped(written), (torch.randn(4, 4), torch.tensor(2)))
    for size, i in ((5, 4), (1, 0), (7, -7), (3, -1)):
        x = torch.randn(size, size)
        torch.testing.assert_close(compiled(x, torch.tensor(i)), written(x, torch.tensor(i)))
    with pytest.raises(ShapeConstraintError, match=r"index 3 is out of range for a dim of size 3 at .*test_tensor_indices\.py"):
        compiled(torch.randn(3, 3), torch.tensor(3))


def loop(x: Tensor, i: Tensor) -> Tensor:
    def step(k: Tensor, y: Tensor, i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = y.clone()
        y[k, i] = x[k, i] + 1
        y[:, k] = x[:, i]
        y[..., i] += x[k, ...]
        y[k, 1:] = 5
        return k + 1, y, i + 0

    return torch.while_loop(lambda k, y, i: k < x.shape[0], step, (torch.tensor(0), x + 0, i))[1]


def unrolled(x: Tensor, i: Tensor) -> Tensor:
    y = x.clone()
    for k in range(x.shape[0]):
        y[k, i] = x[k, i] + 1
        y[:, k] = x[:, i]
        y[..., i] += x[k, ...]
        y[k, 1:] = 5
    return y


def test_loops_index_by_their_counter() -> None:
    """Plain PyTorch refuses them."""
    compiled = disc.compile(Wrapped(loop), (torch.randn(4, 4), torch.tensor(2)))
    for size, i in ((1, 0), (2, -1), (5, 4), (7, 3)):
        x = torch.randn(size, size)
        torch.testing.assert_close(compiled(x, torch.tensor(i)), unrolled(x, torch.tensor(i)))


def test_branches_index_by_a_number() -> None:
    def branches(x: Tensor, i: Tensor) -> Tensor:
        return torch.cond(i > 1, lambda x: x[i] + 1, lambda x: x[i] * 2, (x,))

    compiled = disc.compile(Wrapped(branches), (torch.randn(4, 3), torch.tensor(1)))
    for size, i in ((7, 6), (1, 0), (3, -1)):
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x, torch.tensor(i)), x[i] + 1 if i > 1 else x[i] * 2)


def test_graphs_of_torch_compile_are_whole() -> None:
    torch._dynamo.reset()
    dynamo.reset_statistics()
    compiled = torch.compile(lambda x, i: written(x, i) + 1, backend="disc", fullgraph=True, dynamic=True)
    for size, i in ((5, 4), (3, -1)):
        x = torch.randn(size, size)
        torch.testing.assert_close(compiled(x, torch.tensor(i)), written(x, torch.tensor(i)) + 1)
    found = dynamo.statistics()
    assert found.graphs == found.compiled == 1 and not found.eager


def test_too_many_indices_are_the_users_error() -> None:
    with pytest.raises(DiscError, match="too many indices"):
        disc.compile(Wrapped(lambda x, i: x.__setitem__((i, i, i), 0) or x), (torch.randn(3, 3), torch.tensor(1)))  # pyright: ignore


def shifted(x: Tensor, i: Tensor) -> Tensor:
    """As labels are shifted to be the inputs of a decoder."""
    y = x.new_zeros(x.shape)
    y[:, 1:] = x[:, :-1].clone()
    y[:, 0] = i
    return y


def parts(x: Tensor, i: Tensor) -> Tensor:
    y = x * 1
    y[:, 1:] *= 2
    y[:, ::2] = 0.5
    y[:, 1::2] = x[:, 1::2] * 3
    y[-1:] = i
    y[None, :, :-1] = y[:, 1:] * 2
    z = torch.zeros(x.shape, dtype=torch.int64)
    z[:, 1:] = x[:, 1:] * 10
    z[..., -1] = 2.7
    return y + z


@pytest.mark.parametrize("function", [shifted, parts])
def test_parts_of_one_element_are_written(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    compiled = disc.compile(Wrapped(function), (torch.randn(4, 4), torch.tensor(2.0)))
    for shape in ((3, 2), (1, 1), (2, 1), (0, 5), (3, 3), (2, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x, torch.tensor(3.0)), function(x, torch.tensor(3.0)))


def test_places_that_are_sizes_are_written() -> None:
    """Each was the example's number, which fixed the dim."""

    def written(x: Tensor) -> Tensor:
        n, m = x.shape
        y = torch.zeros(2, n + 1, m + 1, 3)
        y[0, n, ..., m, 1] = 5
        y[..., n, m, 2] = x.sum()
        y[1, n, None, ..., :1, -1] = 7
        y[:, n // 2, m // 2] += 2
        flat = torch.select_scatter(x.reshape(-1), torch.ones(()), 0, -n)
        return y.sum(0) + flat[n - 1]

    compiled = disc.compile(written, (torch.randn(4, 8),))
    for shape in ((1, 1), (3, 2), (5, 7), (2, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), written(x))
