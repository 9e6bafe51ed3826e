"""Random programs over tensors whose dims all have one size, against eager: nothing may take one dim for another of the same size.

Rows, columns, sums over either and their places in the other, turned values, products, softmaxes, norms, distances and triangles are drawn
alike, in the forms that passes and kernels look for and in those that differ from them by a dim. A failure names its seed; more seeds:

    python tests/fuzz/test_squares_random.py 100 400
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from seeds import seeds  # noqa: E402

import disc  # noqa: E402

SIZE = 24
SEEDS = 60
TOLERANCE, WORSE_THAN_EAGER = 1e-4, 30.0  # of the largest value; and of eager's own error, in programs that enlarge rounding


class Program(nn.Module):
    """The same ops in every call: they are drawn anew from `seed`."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, x: Tensor, y: Tensor, row: Tensor) -> tuple[Tensor, ...]:
        return tuple(Draw(self.seed, x, y, row).results())


class Draw:
    """A program in the making. squares: its values of [..., SIZE, SIZE] so far; rows: of [SIZE]."""

    def __init__(self, seed: int, x: Tensor, y: Tensor, row: Tensor) -> None:
        self.random = random.Random(seed)
        self.squares, self.rows = [x, y, x * 0.5], [row]

    def results(self) -> list[Tensor]:
        steps: list[Callable[[], Tensor | None]] = [
            self.mixed, self.without_a_reduction, self.over_a_reduction, self.turned, self.product, self.softmax, self.triangle,
            self.distances, self.norm, self.with_a_row, self.between_elements,
        ]  # fmt: skip
        for _ in range(self.random.randint(4, 9)):
            value = self.random.choice(steps)()
            if value is not None:
                self.squares.append(value)
        return self.squares[-self.random.randint(1, 2) :]

    def square(self) -> Tensor:
        return self.random.choice(self.squares)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def reduced(self, x: Tensor) -> Tensor:
        """Over either dim, for the elements of its row, or, without `keepdim`, of other rows."""
        op = self.random.choice(("sum", "mean", "amax", "amin"))
        return getattr(x.square() if self.chance(0.2) else x, op)(-1 if self.chance(0.75) else -2, keepdim=self.chance(0.6))

    def mixed(self) -> Tensor:
        return self.square() + self.square() if self.chance(0.5) else self.square() * self.square().tanh()

    def without_a_reduction(self) -> Tensor:
        x = self.square()
        less = x - self.reduced(x)
        return less.clamp(-8, 8).exp() if self.chance(0.5) else less

    def over_a_reduction(self) -> Tensor:
        x = self.square()
        return x / (self.reduced(x).abs() + 0.01)

    def turned(self) -> Tensor:
        return self.square().transpose(-1, -2)

    def product(self) -> Tensor:
        left, right = ((self.square() / 8).tanh() for _ in range(2))
        return left @ (right.transpose(-1, -2) if self.chance(0.5) else right) / 4

    def softmax(self) -> Tensor:
        x = self.square().clamp(-20, 20)
        exponential = (x - x.amax(-1, keepdim=self.chance(0.6))).exp()
        return exponential / (exponential.sum(-1, keepdim=self.chance(0.6)) if self.chance(0.8) else exponential.sum(-2, keepdim=True))

    def triangle(self) -> Tensor:
        x, places = self.square().clamp(-20, 20), torch.arange(SIZE)
        hidden = places[:, None] >= places if self.chance(0.5) else places[:, None] < places
        hidden = hidden.t() if self.chance(0.3) else hidden
        masked = x.masked_fill(hidden, float("-inf") if self.chance(0.4) else -9.0)
        return masked.softmax(-1).nan_to_num(0.25) if self.chance(0.7) else masked.exp()

    def distances(self) -> Tensor:
        left, right = self.square().tanh(), self.square().tanh()
        lengths = left.square().sum(-1, keepdim=self.chance(0.6)), right.square().sum(-1)
        other = lengths[1].unsqueeze(-2) if self.chance(0.5) or right.dim() > 2 else lengths[1]
        first = lengths[0] if lengths[0].dim() == left.dim() else lengths[0].unsqueeze(-2)
        return (first + other - 2 * (left @ right.transpose(-1, -2))) / 4

    def norm(self) -> Tensor:
        x = self.square()
        less = x - x.mean(-1, keepdim=self.chance(0.7))
        return less * (less.square().mean(-1, keepdim=self.chance(0.7)) + 0.01).rsqrt() * self.random.choice(self.rows)

    def with_a_row(self) -> Tensor:
        row = self.random.choice(self.rows)
        return torch.relu(self.square() + (row if self.chance(0.5) else row.unsqueeze(-1)))

    def between_elements(self) -> Tensor | None:
        left, right = self.square(), self.square()
        if self.chance(0.5):
            return (left.unsqueeze(-2) - right.unsqueeze(-3)).square().sum(-1) / 4
        distances = (left - right).abs().sum(-1) / SIZE
        self.rows.append(distances if distances.dim() == 1 else distances.mean(0))
        return None


def run_seed(seed: int) -> str:
    """ "" when the program of this seed is right, else what is wrong."""
    drawn, generator = random.Random(seed * 7 + 1), torch.Generator().manual_seed(seed)
    batch = drawn.choice(((), (), (SIZE,), (1,)))
    x, y = (torch.randn(*batch, SIZE, SIZE, generator=generator) for _ in range(2))
    inputs = x, y, torch.randn(SIZE, generator=generator)
    program = Program(seed)
    theirs, exact = program(*inputs), program(*(each.double() for each in inputs))
    size: object = torch.export.Dim.AUTO
    dynamic = drawn.choice((None, ({}, {}, {}), tuple(dict.fromkeys(range(each.dim()), size) for each in inputs)))
    executable = disc.compile(program, inputs) if dynamic is None else disc.compile(program, inputs, dynamic_shapes=dynamic)
    for number, (ours, eager, right) in enumerate(zip(executable.flat(*inputs), theirs, exact, strict=True)):
        assert isinstance(ours, Tensor)
        if not torch.equal(ours.isnan(), eager.isnan()):
            return f"seed {seed}: result {number} has NaN elsewhere than eager's"
        error, own = (float((each.double() - right).nan_to_num(0, 0, 0).abs().max()) for each in (ours, eager))
        if error > TOLERANCE * max(float(right.nan_to_num(0, 0, 0).abs().max()), 1e-6) and error > WORSE_THAN_EAGER * own:
            return f"seed {seed}: result {number} is off by {error:.3g}, eager by {own:.3g}"
    return ""


@pytest.mark.parametrize("seed", seeds(6, SEEDS))
def test_random_squares(seed: int) -> None:
    message = run_seed(seed)
    assert not message, message


if __name__ == "__main__":
    reports = [run_seed(number) for number in range(int(sys.argv[1]), int(sys.argv[2]))]
    print("\n".join(filter(None, reports)) or "all right")
    sys.exit(any(reports))
