"""Modules with random branches on sizes: for any sizes a compiled program gives eager's result or raises a DiscError, never another result."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import disc
from disc.config import Options
from disc.errors import DiscError

Sizes = Callable[[Tensor, Tensor], int]
SEEDS = 12
MANY = 400


def _size(rng: random.Random, depth: int = 0) -> tuple[str, Sizes]:
    """A random expression of the sizes of two matrices, with its text."""
    if depth > 2 or rng.random() < 0.35:
        axis, other = rng.randrange(2), rng.random() < 0.4
        return f"{'xy'[other]}{axis}", lambda x, y: (y if other else x).shape[axis]
    kind = rng.choice("+-*/%mMc")
    text, left = _size(rng, depth + 1)
    if kind in "/%c":
        number = rng.randint(1, 5)
        return f"({text} {kind} {number})", {
            "/": lambda x, y: left(x, y) // number, "%": lambda x, y: left(x, y) % number, "c": lambda x, y: left(x, y) + number,
        }[kind]  # fmt: skip
    more, right = _size(rng, depth + 1)
    return f"({text} {kind} {more})", {
        "+": lambda x, y: left(x, y) + right(x, y), "-": lambda x, y: left(x, y) - right(x, y), "*": lambda x, y: left(x, y) * right(x, y),
        "m": lambda x, y: min(left(x, y), right(x, y)), "M": lambda x, y: max(left(x, y), right(x, y)),
    }[kind]  # fmt: skip


def _test(rng: random.Random) -> tuple[str, Callable[[Tensor, Tensor], bool]]:
    text, left = _size(rng)
    number = rng.randint(0, 6)
    more, right = (str(number), lambda x, y: number) if rng.random() < 0.6 else _size(rng)
    sign = rng.choice(["==", "!=", "<", "<=", ">", ">="])
    compare: dict[str, Callable[[int, int], bool]] = {
        "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b,
    }  # fmt: skip
    return f"{text} {sign} {more}", lambda x, y: compare[sign](left(x, y), right(x, y))


class Branches(nn.Module):
    """A few branches, each of which changes the value or the shape of the result."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.steps = [(_test(rng), rng.randrange(6)) for _ in range(rng.randint(1, 3))]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for (_, test), kind in self.steps:
            if kind == 4:
                x = x[:, : min(x.shape[1], y.shape[1])]
            elif kind == 5:
                x = (x.unsqueeze(0) + 1).squeeze()
                x = x if x.dim() == 2 else x.reshape(-1, 1)
            elif test(x, y):
                x = [x * 2, x + 1, x[:1], torch.cat([x, x], 1)][kind]
        return x + y.sum()

    def __str__(self) -> str:
        return "; ".join(f"{kind} if {text}" for (text, _), kind in self.steps)


def check(seed: int) -> int:
    """How many calls gave a result."""
    rng = random.Random(seed)
    model = Branches(rng)
    torch.manual_seed(seed)

    def draw(low: int) -> tuple[Tensor, Tensor]:
        return torch.randn(rng.randint(low, 7), rng.randint(low, 7)), torch.randn(rng.randint(low, 7), rng.randint(low, 7))

    try:
        exe = disc.compile(model, draw(1), options=Options(cache=False))
    except DiscError:
        return 0
    right = 0
    for _ in range(24):
        inputs = draw(0)
        try:
            result = exe(*inputs)
        except DiscError:
            continue
        try:
            expected = model(*inputs)
        except Exception:  # eager refuses what disc computes: no number to be wrong
            continue
        where = (seed, str(model), [tuple(each.shape) for each in inputs])
        assert isinstance(result, Tensor) and result.shape == expected.shape, where
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4, msg=lambda text, where=where: f"{where}: {text}")
        right += 1
    return right


def test_random_branches_on_sizes() -> None:
    assert sum(check(seed) for seed in range(SEEDS)) > SEEDS


@pytest.mark.long
def test_many_random_branches_on_sizes() -> None:
    assert sum(check(seed) for seed in range(1000, 1000 + MANY)) > MANY
