"""Reductions of rows whose dims have equal sizes, so that another dim might pass for the row: what is turned, moved or chosen behind them.

What is read must lie in the operand, whichever row needs it: nothing is mapped before the first and behind the last element.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled import between_unmapped_memory, module_program, randn
from torch import Tensor

SIZE, OTHER, FACTORS = 48, 40, (6, 8)
ORDER = torch.randperm(SIZE, generator=torch.Generator().manual_seed(0))
Function = Callable[[Tensor], Tensor]
Results = Callable[[Tensor], object]


def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


NORMS = (layer_norm, softmax, unit)


def turned(norm: Function, order: tuple[int, ...]) -> dict[str, Results]:
    """What is legal for dims of any sizes."""
    return {
        "alone": lambda x: norm(x).permute(order).contiguous(),
        "relu": lambda x: torch.relu(norm(x).permute(order)),
        "before": lambda x: norm(x.permute(order)),
        "again": lambda x: norm(torch.relu(norm(x).permute(order))),
        "both": lambda x: (norm(x), torch.relu(norm(x).permute(order))),
    }


def of_squares(norm: Function) -> dict[str, Results]:
    """What needs two dims of one size, or moves rows and parts of rows."""
    lower, upper = FACTORS
    return {
        "added": lambda x: norm(x) + norm(x).t(),
        "sums as a row": lambda x: norm(x) * x.sum(-1),
        "means turned": lambda x: (norm(x), x.mean(-1).unsqueeze(0) * 2),
        "rows moved": lambda x: norm(x).roll(1, 0) * 2,
        "elements moved": lambda x: norm(x).roll(1, 1) * 2,
        "rows reversed": lambda x: norm(x).flip(0) * 2,
        "elements reversed": lambda x: norm(x).flip(1) * 2,
        "rows chosen": lambda x: norm(x)[ORDER] * 2,
        "elements chosen": lambda x: norm(x)[:, ORDER] * 2,
        "rows of elements chosen": lambda x: torch.gather(norm(x), 0, ORDER.expand(SIZE, SIZE)) * 2,
        "elements of rows chosen": lambda x: torch.gather(norm(x), 1, ORDER.expand(SIZE, SIZE)) * 2,
        "one row for all": lambda x: norm(x) + norm(x)[:1],
        "one sum for all": lambda x: x.exp() * x.sum(-1)[:1],
        "rows shuffled": lambda x: norm(x).reshape(lower, upper, SIZE).transpose(0, 1).reshape(SIZE, SIZE) * 2,
        "parts of rows apart": lambda x: norm(x).reshape(SIZE, lower, upper).transpose(0, 1).reshape(SIZE, SIZE) * 2,
        "blocks": lambda x: norm(x).reshape(lower, upper, lower, upper).permute(0, 2, 1, 3).reshape(SIZE, SIZE) * 2,
        "a lower triangle": lambda x: norm(x).tril(),
    }


def kernels_of(function: Results, *sizes: int) -> list[tuple[str, int]]:
    """The kind of each kernel and how many reductions it has, where all sizes are constants; results are checked."""
    x = randn(*sizes)
    program = module_program(function, x, dynamic=((),))
    for first in (True, False):
        program.check(between_unmapped_memory(x, 1 << 20, first=first))
    return sorted((each.kind, each.ops.count("stablehlo.reduce")) for each in program.executables[0].explain().kernels)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("order", [each for rank in (2, 3) for each in itertools.permutations(range(rank)) if each != tuple(range(rank))])
def test_equal_sizes_change_no_kernel(norm: Function, order: tuple[int, ...]) -> None:
    """A dim that is as large as the row is not the row: the reductions of other rows would be made anew for every element."""
    for name, function in turned(norm, order).items():
        cube, block = (kernels_of(function, *sizes[: len(order)]) for sizes in ((SIZE, SIZE, SIZE), (6, OTHER, SIZE)))
        assert cube == block, name


@pytest.mark.sampled(6)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", of_squares(softmax))
def test_rows_of_a_square(norm: Function, name: str) -> None:
    kernels_of(of_squares(norm)[name], SIZE, SIZE)
    module_program(of_squares(norm)[name], randn(SIZE, SIZE), dynamic=((),)).check(randn(SIZE, SIZE, seed=1))


@pytest.mark.parametrize("own", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("batch", [(), (SIZE,)])
def test_rows_of_others_between_products(own: tuple[bool, bool], batch: tuple[int, ...]) -> None:
    """As many queries as keys: what is subtracted from, or divides, the scores of a query is another query's. It was a softmax."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-1, -2)
        exponential = (scores - scores.amax(-1, keepdim=own[0])).exp()
        return (exponential / exponential.sum(-1, keepdim=own[1])) @ value

    inputs = [randn(*batch, SIZE, 16, seed=seed) / 2 for seed in range(3)]
    for dynamic in ((), (0,)):
        module_program(attend, *inputs, dynamic=(dynamic,) * 3).check(*inputs)
