"""Modules of random control flow, recurrent layers and state: every call gives eager's results and leaves eager's buffers, or raises a
DiscError.

    python tests/fuzz/test_flow_random.py 100 400          # these seeds, without pytest
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_rows

import disc
from disc.config import Options
from disc.errors import CompilerBug, DiscError

SEEDS = (2, 5)
MANY = 200
CALLS = 8
WIDTH, ROOM, MOST_ROWS = 6, 12, 7  # of every row; rows of the cache; rows of an input

Function = Callable[[Tensor], Tensor]  # rows to rows, of the same shape


class Flow(nn.Module):
    """Steps on rows [rows, WIDTH], each of which may run others: `str` lists them."""

    total: Tensor
    cache: Tensor

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(WIDTH))
        self.register_buffer("cache", torch.zeros(ROOM, WIDTH))
        self.layers = nn.ModuleList()
        self.texts: list[str] = []
        kinds = [rng.choice(["branch", "sizes", "loop", "scan", "map", "layer", "sum", "write", "copy"]) for _ in range(rng.randint(1, 3))]
        self.steps: list[Function] = []
        for kind in kinds:
            text, step = getattr(self, f"_{kind}")(rng, 0)
            self.texts.append(text)
            self.steps.append(step)
        self.reads_cache = rng.random() < 0.6

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x + self.cache.sum(0) if self.reads_cache else x

    def __str__(self) -> str:
        return "; ".join(self.texts) + ("; + cache" if self.reads_cache else "")

    # --- what runs in branches and loops ---------------------------------------------------------------------------------

    def _function(self, rng: random.Random, depth: int) -> tuple[str, Function]:
        kinds = ["tanh", "double", "minus", "linear", "softmax"] + (["branch", "loop"] if depth < 2 else [])
        kind = rng.choice(kinds)
        if kind in ("branch", "loop"):
            return getattr(self, f"_{kind}")(rng, depth)
        if kind == "linear":
            layer = nn.Linear(WIDTH, WIDTH)
            self.layers.append(layer)
            return kind, lambda a: layer(a)
        found: dict[str, Function] = {
            "tanh": torch.tanh, "double": lambda a: a * 2, "minus": lambda a: a - 0.25, "softmax": lambda a: a.softmax(-1),
        }  # fmt: skip
        return kind, found[kind]

    def _branch(self, rng: random.Random, depth: int) -> tuple[str, Function]:
        bound = rng.choice([-0.5, 0.0, 0.5])
        (one, then), (two, other) = self._function(rng, depth + 1), self._function(rng, depth + 1)
        return f"{one} if sum > {bound} else {two}", lambda a: torch.cond(a.sum() > bound, then, other, (a,))

    def _sizes(self, rng: random.Random, depth: int) -> tuple[str, Function]:
        least = rng.randint(0, 5)
        (one, then), (two, other) = self._function(rng, depth + 1), self._function(rng, depth + 1)
        return f"{one} if rows > {least} else {two}", lambda a: torch.cond(a.shape[0] > least, then, other, (a,))

    def _loop(self, rng: random.Random, depth: int) -> tuple[str, Function]:
        trips, on_data = rng.randint(0, 4), rng.random() < 0.4
        text, step = self._function(rng, depth + 1)

        def run(a: Tensor) -> Tensor:
            def goes_on(count: Tensor, b: Tensor) -> Tensor:
                return (count < trips) & (b.abs().sum() < 50) if on_data else count < trips

            start = torch.zeros((), dtype=torch.int64)
            return while_loop(goes_on, lambda count, b: (count + 1, step(b).clone()), (start, a))[1]

        return f"{trips} times{' at most' * on_data} ({text})", run

    # --- what runs on all rows -------------------------------------------------------------------------------------------

    def _scan(self, rng: random.Random, depth: int) -> tuple[str, Function]:
        text, step = self._function(rng, 1)
        backwards = rng.random() < 0.5

        def run(a: Tensor) -> Tensor:
            def combine(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
                new = (step(row) * 0.5 + state).clamp(-3, 3)
                return new, new * 2

            return scan(combine, a.new_zeros(WIDTH), a, reverse=backwards)[1]  # pyright: ignore

        return f"scan{' backwards' * backwards} ({text})", run

    def _map(self, rng: random.Random, depth: int) -> tuple[str, Function]:
        text, step = self._function(rng, 1)
        return f"map ({text})", lambda a: map_rows(step, a)  # pyright: ignore

    def _layer(self, rng: random.Random, depth: int) -> tuple[str, Function]:
        kind = rng.choice([nn.LSTM, nn.GRU, nn.RNN])
        both, count = rng.random() < 0.4, rng.randint(1, 2)
        layer = kind(WIDTH, WIDTH, num_layers=count, bidirectional=both)
        self.layers.append(layer)
        return f"{kind.__name__} x{count}{' both' * both}", lambda a: layer(a.unsqueeze(1))[0].squeeze(1)[:, :WIDTH]

    # --- state -----------------------------------------------------------------------------------------------------------

    def _sum(self, rng: random.Random, depth: int) -> tuple[str, Function]:
        def run(a: Tensor) -> Tensor:
            self.total.mul_(0.5).add_(a.sum(0))
            return a + self.total

        return "sum", run

    def _write(self, rng: random.Random, depth: int) -> tuple[str, Function]:
        first = rng.randint(0, ROOM - MOST_ROWS)

        def run(a: Tensor) -> Tensor:
            self.cache[first : first + a.shape[0]] = a
            return a * 0.5

        return f"write from {first}", run

    def _copy(self, rng: random.Random, depth: int) -> tuple[str, Function]:
        step = rng.randint(1, 3)

        def run(a: Tensor) -> Tensor:
            places = torch.arange(a.shape[0]) * step % ROOM
            self.cache.index_copy_(0, places, a)
            return a - 1

        return f"copy to every {step}.", run


def check(seed: int) -> int:
    """How many calls gave a result."""
    rng, model = _made(seed)
    where = (seed, str(model))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exe = disc.compile(_made(seed)[1], (torch.randn(rng.randint(2, MOST_ROWS), WIDTH),), options=Options(cache=False))
    except CompilerBug:
        raise
    except DiscError as error:
        print(where, "refused:", str(error)[:300])
        return 0
    right = 0
    for _ in range(CALLS):
        x = torch.randn(rng.randint(0, MOST_ROWS), WIDTH) * rng.choice([0.3, 1.0])
        before = {name: value.clone() for name, value in model.named_buffers()}
        try:
            with torch.no_grad():
                expected = model(x)
            result = exe(x)
        except CompilerBug:
            raise
        except Exception as error:
            assert isinstance(error, DiscError) or _eager_fails(model, x, before), (where, error)
            _restore(model, exe, before)
            continue
        assert isinstance(result, Tensor) and result.shape == expected.shape, where
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4, msg=lambda text, x=x: f"{where}, {list(x.shape)}: {text}")
        for name, value in exe.state.items():
            wanted = dict(model.named_buffers())[name]
            torch.testing.assert_close(
                torch.from_numpy(value), wanted, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{where} {name}: {text}"
            )
        right += 1
    return right


def _made(seed: int) -> tuple[random.Random, Flow]:
    """The same each time. (A deep copy's steps would run the original's layers.)"""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    return rng, Flow(rng).eval()


def _eager_fails(model: Flow, x: Tensor, before: dict[str, Tensor]) -> bool:
    for name, value in model.named_buffers():
        value.copy_(before[name])
    try:
        with torch.no_grad():
            model(x)
    except Exception:
        return True
    return False


def _restore(model: Flow, exe: disc.Executable, before: dict[str, Tensor]) -> None:
    for name, value in model.named_buffers():
        value.copy_(before[name])
        if name in exe.state:
            exe.state[name] = before[name].numpy()


def test_random_flow() -> None:
    assert sum(check(seed) for seed in SEEDS) > len(SEEDS)


@pytest.mark.long
def test_more_random_flow() -> None:
    assert sum(check(seed) for seed in range(1000, 1000 + MANY)) > 2 * MANY


if __name__ == "__main__":
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        print(number, check(number), flush=True)
