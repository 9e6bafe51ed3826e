"""Examples of which an intermediate has a size of 1 by chance: the program takes other sizes, and the example, as eager does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled import Wrapped
from torch import Tensor
from torch.export import Dim

import disc
from disc.errors import ShapeConstraintError


def _strided(x: Tensor, layers: int) -> Tensor:
    for _ in range(layers):
        x = F.conv2d(x, torch.full((3, 3, 3, 3), 0.1), stride=2, padding=1).relu()
    return x


CASES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...], tuple[int, ...]]] = {  # function, example, another size
    "view": (lambda x: x.view(x.shape[0], 2, -1) * 2, (3, 2), (3, 8)),
    "unflatten": (lambda x: x.unflatten(1, (2, -1)).transpose(1, 2).softmax(-1), (3, 2), (5, 6)),
    "chunk": (lambda x: torch.cat([part * 2 for part in x.chunk(2, 1)]), (3, 2), (3, 8)),
    "slices": (lambda x: x[:, : x.shape[1] // 2] * x[:, x.shape[1] // 2 :], (3, 2), (3, 8)),
    "steps": (lambda x: x[:, ::2] - x[:, 1::2], (3, 2), (3, 8)),
    "pool": (lambda x: F.max_pool2d(x, 2).flatten(1) + 1, (3, 2, 2, 2), (2, 3, 8, 6)),
    "windows": (lambda x: x.unfold(1, 2, 1).sum(-1), (3, 2), (3, 7)),
    "product": (lambda x: x.view(x.shape[0], -1, 2) @ torch.ones(2, 3), (3, 2), (3, 8)),
    "distances": (F.pdist, (2, 3), (5, 3)),
    "pixels": (lambda x: F.pixel_shuffle(x, 2), (1, 4, 1, 1), (2, 8, 3, 5)),
    "no pixels": (lambda x: F.pixel_shuffle(x, 2), (1, 4, 2, 1), (0, 4, 3, 5)),
    "blocks of pixels": (lambda x: F.pixel_unshuffle(x, 2), (1, 1, 2, 2), (3, 2, 4, 6)),
    "heads": (lambda x: x.view(x.shape[0], -1, 2, 1).transpose(1, 2).reshape(x.shape[0], -1), (2, 2), (3, 10)),
    "parts of rows": (lambda x: x.view(-1, 2, 4).sum(1), (4, 8), (5, 16)),
    "parts of rows that are rows": (lambda x: x.view(-1, 2, 4).sum(1), (4, 4), (1, 16)),
    "groups": (lambda x: x.reshape(x.shape[0], 4, -1, *x.shape[2:]).mean(2), (2, 4, 1, 1), (3, 8, 2, 7)),
    "gates": (lambda x: F.glu(x, 1), (2, 2), (2, 12)),
    "strides": (
        lambda x: F.adaptive_avg_pool2d(_strided(x, 4), 1),
        (1, 3, 7, 5),
        (2, 3, 50, 33),
    ),  # 1 from the third on, which hides the fourth
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_sizes_of_one_by_chance(name: str) -> None:
    function, size, other = CASES[name]
    executable = disc.compile(Wrapped(function).eval(), (torch.randn(size),))
    for shape in (size, other):
        x = torch.randn(shape)
        torch.testing.assert_close(executable(x), function(x))


def test_a_dim_that_was_asked_for() -> None:
    function, size, other = CASES["view"]
    executable = disc.compile(Wrapped(function).eval(), (torch.randn(size),), dynamic_shapes=(({1: Dim.DYNAMIC},),))
    x = torch.randn(size[0], other[1])
    torch.testing.assert_close(executable(x), function(x))


def test_what_needs_its_size_keeps_it() -> None:
    """A weight fixes a dim, and a branch of Python that the larger example would take otherwise leaves the example's program."""
    layer = torch.nn.Linear(2, 3)
    executable = disc.compile(
        Wrapped(lambda x: layer(x).view(x.shape[0], 3, -1) if x.shape[0] < 4 else x[:, :1]).eval(), (torch.randn(3, 2),)
    )
    x = torch.randn(2, 2)
    torch.testing.assert_close(executable(x), layer(x).view(2, 3, 1))
    with pytest.raises(ShapeConstraintError):
        executable(torch.randn(5, 2))
    with pytest.raises(ShapeConstraintError):
        executable(torch.randn(3, 4))
