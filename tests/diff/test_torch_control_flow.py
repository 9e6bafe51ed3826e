"""`torch.cond`, `while_loop`, `scan`, `map` and `associative_scan`: on data and on sizes, with weights within; no trip, one, many; both branches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows

import disc
from disc.errors import UnsupportedOpError


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)


class OnData(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: self.linear(a), lambda a: a - 1, (x,)) + x


class OnSizes(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        few = torch.cond(x.shape[0] > 1, lambda a: a * 2, lambda a: a - 1, (x,))
        return torch.cond((x.shape[0] > 3) & (x.shape[0] != 5), lambda a: self.linear(a), lambda a: a.tanh(), (few,))


class Loop(Layer):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def body(count: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return count + 1, torch.cond(a.sum() > 0, lambda b: self.linear(b).tanh(), lambda b: b + 0.5, (a,))

        return while_loop(lambda count, a: count < a.abs().sum(), body, (torch.zeros(()), x))


class Scan(Layer):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def step(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            new = torch.cond(state.sum() > 0, lambda a, b: self.linear(a + b).tanh(), lambda a, b: a + b, (state, row))
            return new, new * 2

        return scan(step, x.new_zeros(4), map_rows(lambda row: self.linear(row).exp(), x))  # pyright: ignore[reportArgumentType]


class Associative(Layer):
    """h[i] = a[i] * h[i + 1] + x[i], over pairs, backwards; what it begins with and its number of steps both vary."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def combine(left: tuple[torch.Tensor, torch.Tensor], right: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            return left[0] * right[0], right[0] * left[1] + right[1]

        return associative_scan(combine, (self.linear(x).sigmoid(), x), 0, reverse=True, combine_mode="generic")[1]  # pyright: ignore


@pytest.mark.parametrize("kind", [OnData, OnSizes, Loop, Scan, Associative])
def test_control_flow_agrees_with_eager(kind: type[Layer]) -> None:
    model = kind().eval()
    compiled = disc.compile(model, (torch.randn(6, 4),))
    for rows in (1, 2, 3, 4, 5, 17):
        for scale in (-3.0, 0.0, 0.3, 2.0):
            x = torch.randn(rows, 4).abs() * scale
            with torch.no_grad():
                wanted = model(x)
            torch.testing.assert_close(compiled(x), wanted, rtol=1e-5, atol=1e-5)


def _repeated(x: Tensor, step: Callable[[Tensor], Tensor]) -> Tensor:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, step(x)), (torch.tensor(0), x))[1]


def _if_positive(x: Tensor, then: Callable[[Tensor], Tensor], otherwise: Callable[[Tensor], Tensor] = torch.sum) -> Tensor:
    return torch.cond(x.sum() > 0, then, otherwise, (x,))


# Sizes that depend on data, in a branch or a loop.
SELECTING: dict[str, Callable[[Tensor], Tensor]] = {
    "mask": lambda x: _if_positive(x, lambda a: a[a > 0].sum(), lambda a: a[a < 0].exp().sum()),
    "places": lambda x: _if_positive(x, lambda a: a.nonzero().sum() + a.sum()),
    "number": lambda x: _if_positive(x, lambda a: torch.full((), (a > 0.5).nonzero().shape[0]) * 1.0),
    "unique": lambda x: _if_positive(x, lambda a: torch.unique(a.round()).sum()),
    "twice": lambda x: _if_positive(x, lambda a: (a[a > 0] * a[a > 0].exp()).sum()),
    "inner": lambda x: _if_positive(x, lambda a: torch.cond(a.norm() > 3, lambda b: b[b > 1].sum(), lambda b: b[b > 0].sum(), (a,))),
    "of one before": lambda x: torch.cond(x.sum() > 0, lambda a: (a * 2).sum(), lambda a: a[a < -0.5].sum(), (x[x.abs() > 0.1],)),
    "loop": lambda x: _repeated(x, lambda a: a * 0.5 + a[a > 0].sum()),
    "rows in a loop": lambda x: _repeated(x, lambda a: a * 0.5 + (a[a[:, 0] > 0].t() @ a[a[:, 0] > 0]).sum() * 0.01),
    "counted": lambda x: while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a + torch.arange(i.item() + 1).sum()), (torch.tensor(0), x))[1],
    "each row": lambda x: map_rows(lambda row, *_: torch.sort(row[row > 0])[0].cumsum(0).sum(), x),
    "carried": lambda x: scan(lambda c, row: (c + row[row > 0].sum(), c * 1), torch.zeros(()), x)[1],
}  # fmt: skip


@pytest.mark.parametrize("name", SELECTING)
def test_sizes_from_data_in_branches_and_loops(name: str, tmp_path: Path) -> None:
    function = SELECTING[name]
    executable = disc.compile(lambda x: function(x), (torch.randn(6, 4),))
    executable.save(tmp_path / "model.disc")
    loaded = disc.load(tmp_path / "model.disc")
    for shape in [(3, 5), (1, 1), (7, 2), (23, 17)]:
        for x in (torch.randn(shape), -torch.randn(shape).abs(), torch.randn(shape).abs(), torch.zeros(shape)):
            wanted = function(x)
            torch.testing.assert_close(executable(x), wanted, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(loaded(x), wanted, rtol=1e-4, atol=1e-4)


REFUSED_SIZES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "other sizes": (lambda x: _if_positive(x, lambda a: (a[a > 0] + a.flatten()).sum()), "in a branch or a loop it may be 0"),
    "one element": (lambda x: _if_positive(x, lambda a: a[a > 0].amax()), "in a branch or a loop it may be 0"),
    "condition": (lambda x: while_loop(lambda a: a[a > 0].sum() > 1, lambda a: (a * 0.5,), (x,))[0], "in the condition of a loop"),
    "result": (lambda x: _if_positive(x, lambda a: a[a > 0], lambda a: a[a < 0]), "depends on data"),
}


@pytest.mark.parametrize("name", REFUSED_SIZES)
def test_sizes_of_branches_and_loops_that_reach_outside_are_refused(name: str) -> None:
    function, reason = REFUSED_SIZES[name]
    with pytest.raises(UnsupportedOpError, match=rf"test_torch_control_flow.py:\d+: .*{reason}"):
        disc.compile(lambda x: function(x), (torch.randn(6, 4),))


def test_functions_that_were_traced_before() -> None:
    """What Dynamo keeps of an earlier trace, or of eager mode, fixes no size; one step after a slice is as good as many."""

    def along(x: torch.Tensor) -> torch.Tensor:
        def step(state: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return state * 0.5 + row, row.clone()

        return scan(step, x[:, 0].clone(), x[:, 1:].transpose(0, 1))[0]

    def wanted(x: torch.Tensor) -> torch.Tensor:
        state = x[:, 0]
        for place in range(1, x.shape[1]):
            state = state * 0.5 + x[:, place]
        return state

    along(torch.randn(2, 5, 3))
    for _ in range(2):
        executable = disc.compile(along, (torch.randn(2, 5, 3),), options=disc.Options(cache=False))
        for shape in ((2, 5, 3), (4, 2, 7), (1, 9, 1)):
            x = torch.randn(shape)
            torch.testing.assert_close(executable(x), wanted(x))
