"""`torch.cond`, `while_loop`, `scan`, `map` and `associative_scan`: on data and on sizes, with weights within; no trip, one, many; both branches."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows

import disc
from disc.errors import ShapeConstraintError, UnsupportedOpError


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


class Cells(Layer):
    """PyTorch's cells write in place into the parts of a split product."""

    def __init__(self) -> None:
        super().__init__()
        self.gated, self.long, self.plain = torch.nn.GRUCell(4, 4), torch.nn.LSTMCell(4, 4), torch.nn.RNNCell(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def body(count: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return count + 1, self.plain(self.gated(a, x), self.long(a, (a, x))[0])

        return while_loop(lambda count, a: count < 3, body, (torch.tensor(0), x))[1]


class Associative(Layer):
    """h[i] = a[i] * h[i + 1] + x[i], over pairs, backwards; what it begins with and its number of steps both vary."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def combine(left: tuple[torch.Tensor, torch.Tensor], right: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            return left[0] * right[0], right[0] * left[1] + right[1]

        return associative_scan(combine, (self.linear(x).sigmoid(), x), 0, reverse=True, combine_mode="generic")[1]  # pyright: ignore


@pytest.mark.parametrize("kind", [OnData, OnSizes, Loop, Cells, Scan, Associative])
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


@pytest.mark.sampled(2)
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


def _total(x: Tensor) -> Tensor:
    return x.sum()


def _in_loop(x: Tensor) -> Tensor:
    def step(x: Tensor) -> Tensor:
        return torch.cond(x.shape[0] >= 4, lambda a: a - a.topk(4)[0].sum(), lambda a: a * 2, (x,))

    return _repeated(x, step) if x.shape[0] >= 4 else x * 8  # PyTorch itself traces both branches where no size decides in eager mode


# What an op of a branch asks of sizes, where sizes choose the branch.
DEMANDING: dict[str, Callable[[Tensor], Tensor]] = {
    "topk": lambda x: torch.cond(x.shape[0] >= 4, lambda a: a.topk(4)[0].sum(), _total, (x,)),
    "element": lambda x: torch.cond(x.shape[0] > 5, lambda a: a[5] * 1, _total, (x,)),
    "slice": lambda x: torch.cond(x.shape[0] > 5, lambda a: a[2:5].sum(), _total, (x,)),
    "size of a slice": lambda x: torch.cond(x.shape[0] > 5, lambda a: (a[:-4].exp() * a[4:].cos()).cumsum(0).sum(), _total, (x,)),
    "result": lambda x: torch.cond(x.shape[0] > 2, lambda a: torch.cat([a[2:], a[:2]]), lambda a: a * 2, (x,)),
    "made": lambda x: torch.cond(x.shape[0] > 5, lambda a: a.new_ones(a.shape[0] - 4).cumsum(0).sum() * a.sum(), _total, (x,)),
    "padding": lambda x: torch.cond(
        x.shape[0] > 3, lambda a: torch.nn.functional.pad(a[None], (3, 3), mode="reflect").sum(), _total, (x,)
    ),
    "nested": lambda x: torch.cond(
        x.shape[0] > 2,
        lambda a: torch.cond(a.shape[0] > 5, lambda b: b.topk(6)[0].sum(), lambda b: b.topk(3)[0].sum(), (a,)),
        _total,
        (x,),
    ),
    "either": lambda x: torch.cond(x.shape[0] < 4, _total, lambda a: a[3] * 2, (x,)) + torch.cond(
        x.shape[0] >= 7, lambda a: a.topk(7)[0].sum(), _total, (x,)
    ),
    "assertion": lambda x: torch.cond(x.shape[0] > 5, lambda a: (torch._check(a.shape[0] >= 5), a.exp().sum())[1], _total, (x,)),
    "loop": lambda x: _repeated(x, lambda a: torch.cond(a.shape[0] >= 4, lambda b: b - b.topk(4)[0].sum(), lambda b: b * 2, (a,))),
}  # fmt: skip


@pytest.mark.parametrize("name", DEMANDING)
def test_a_branch_demands_sizes_of_the_calls_that_take_it(name: str) -> None:
    function = DEMANDING[name]
    executable = disc.compile(lambda x: function(x), (torch.randn(9),), options=disc.Options(cache=False))
    for size in (0, 1, 2, 3, 4, 5, 6, 7, 11, 64):
        x = torch.randn(size)
        wanted = _in_loop(x) if name == "loop" else function(x)
        torch.testing.assert_close(executable(x), wanted, rtol=1e-5, atol=1e-5)


def test_a_size_that_the_branch_taken_cannot_have_is_an_error() -> None:
    executable = disc.compile(lambda x: torch.cond(x.shape[0] >= 2, lambda a: a.topk(4)[0].sum(), _total, (x,)), (torch.randn(9),))
    for size in (0, 1, 4, 7):
        x = torch.randn(size)
        torch.testing.assert_close(executable(x), x.topk(4)[0].sum() if size > 1 else x.sum())
    for size in (2, 3):
        with pytest.raises(ShapeConstraintError, match=r"dim 0 of input 'x' must be at least 4.*test_torch_control_flow.py:\d+"):
            executable(torch.randn(size))


def test_a_condition_of_python_in_a_branch_is_checked() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cond(x.shape[0] > 4, lambda a: a.sum() * (2 if a.shape[0] % 3 == 2 else 1), lambda a: a.sum() - 1, (x,))

    executable = disc.compile(function, (torch.randn(8),))
    for size in (2, 3, 5, 6, 8):
        x = torch.randn(size)
        if size % 3 == 2:
            torch.testing.assert_close(executable(x), function(x))
        else:
            with pytest.raises(ShapeConstraintError, match=r"test_torch_control_flow.py:\d+"):
                executable(x)


def test_two_sizes_of_a_branch() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.cond(x.shape[0] > y.shape[0], lambda a, b: a[b.shape[0] :].exp().sum(), lambda a, b: a.sum() * b.sum(), (x, y))

    executable = disc.compile(function, (torch.randn(9), torch.randn(6)))
    for size in (0, 1, 2, 5, 7):
        for other in (0, 1, 3, 6, 7):
            x, y = torch.randn(size), torch.randn(other)
            torch.testing.assert_close(executable(x, y), function(x, y))


def test_branches_that_give_back_what_they_take() -> None:
    """Where both do, the result is a copy of the input; where it is a state, too."""
    branches = (lambda a: a.clone(), lambda a: a * 1)

    class Kept(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.count.copy_(torch.cond(x.sum() > 0, *branches, (self.count,)))
            return torch.cond(x.sum() > 0, *branches, (x,)) if x.dim() > 1 else self.count + x.sum()

    for example in (torch.randn(6, 4), torch.randn(6)):
        executable = disc.compile(Kept(), (example,), options=disc.Options(cache=False))
        for size in (0, 1, 5):
            for sign in (1, -1):
                x = torch.rand(size, *example.shape[1:]) * sign
                before = x.clone()
                found = executable(x)
                torch.testing.assert_close(found, x if x.dim() > 1 else torch.zeros(3) + x.sum())
                found.zero_()
                assert torch.equal(x, before)


def test_what_a_scan_reads_and_stacks_in_reverse_is_not_copied() -> None:
    """Rows are read and written from the end; what is read the other way, too, or of other dims, is reversed all the same."""

    def step(state: torch.Tensor, rows: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        state = state * 0.5 + rows[0]
        return state, [state.clone(), state * rows[1], state - rows[2]]

    def along(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        last, (turned, both, plain) = scan(step, x.new_zeros(3), [x.flip(0), y, x.flip(1)])  # pyright: ignore[reportArgumentType]
        return last, turned.flip(0), both, both.flip(0) + 1, plain.flip(1)

    executable = disc.compile(along, (torch.randn(5, 3), torch.randn(5, 3)), options=disc.Options(cache=False))
    for rows in (1, 2, 3, 17):
        x, y = torch.randn(rows, 3), torch.randn(rows, 3)
        torch.testing.assert_close(executable(x, y), along(x, y))
    once = disc.compile(lambda x: scan(step, x.new_zeros(3), [x.flip(0)] * 3)[1][0].flip(0), (torch.randn(5, 3),))  # pyright: ignore
    assert not [name for name, *_ in once.profile(torch.randn(7, 3)) if "reverse" in name]


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


FLOATS: dict[str, Callable[[Tensor], Tensor]] = {
    "half": lambda x: torch.cond(x.shape[0] * 0.5 > 2.25, lambda a: a.sum(), lambda a: a.sum() * 5, (x,)),
    "rounded": lambda x: torch.cond(x.shape[0] * 0.3 > 1.2, lambda a: a.sum(), lambda a: a.sum() * 5, (x,)),
    "root": lambda x: torch.cond(math.sqrt(x.shape[0]) > 2.5, lambda a: a.sum(), lambda a: a.sum() * 5, (x,)),
    "not": lambda x: torch.cond(torch.sym_not(x.shape[0] / 2 == 2.5), lambda a: a.sum(), lambda a: a.sum() * 5, (x,)),
    "demanding": lambda x: torch.cond(
        x.shape[0] * 0.5 <= 2.25, lambda a: torch.cat([a, a.new_ones(5 - a.shape[0])]).cumsum(0).sum(), lambda a: a.sum() * 5, (x,)
    ),
}


@pytest.mark.parametrize("name", FLOATS)
def test_branches_on_floats_of_sizes(name: str) -> None:
    """Compared in f64, not by their whole parts."""
    compiled = disc.compile(FLOATS[name], [torch.rand(3)], dynamic_shapes=[{0: torch.export.Dim.AUTO}])
    for size in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13):
        x = torch.rand(size)
        torch.testing.assert_close(compiled(x), FLOATS[name](x))


def _last_of(a: Tensor) -> Tensor:
    return a[max(a.shape[0] - 6, 0) :].sum() * min(a.shape[0], 4) + max(a.shape[0], 5)


def _until(x: Tensor) -> Tensor:
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * max(a.shape[0], 4)), (torch.tensor(0), x))[1]  # pyright: ignore


def _scaled(a: Tensor, b: Tensor) -> Tensor:
    return a * max(b.shape[0], 4) + min(b.shape[0], 6)


EXTREMES: dict[str, Callable[[Tensor], Tensor]] = {
    "cond": lambda x: torch.cond(x.sum() > -1e9, _last_of, lambda a: a.sum(), (x,)),
    "while_loop": _until,
    "map": lambda x: map_rows(_scaled, x, x * 1),  # pyright: ignore
}


@pytest.mark.parametrize("name", EXTREMES)
def test_the_larger_and_the_smaller_of_sizes(name: str) -> None:
    """PyTorch puts functions of its own in the place of Python's while it exports, by which Dynamo took each for the other."""
    compiled = disc.compile(EXTREMES[name], [torch.rand(7)], dynamic_shapes=[{0: torch.export.Dim.AUTO}])
    for size in (2, 3, 4, 5, 6, 7, 9, 13):
        x = torch.rand(size)
        torch.testing.assert_close(compiled(x), EXTREMES[name](x))
