"""Dims of size 0 and 1 of an example: those that the model needs stay, these alone, and everyone is told who needed them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import disc
from disc.errors import DiscWarning, ShapeConstraintError
from disc.frontend.widening import Widening

OPTIONS = disc.Options(cache=False, threads=1)
HERE = r"test_needed_sizes.py:\d+"
T = torch.randn


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


class Case(NamedTuple):
    """example and others: sizes of the inputs; fixed: (input, dim, size, who), in order, of the warnings; others are right, too."""

    function: Callable[..., Tensor]
    example: tuple[tuple[int, ...], ...]
    others: tuple[tuple[tuple[int, ...], ...], ...]
    fixed: tuple[tuple[int, int, int, str], ...]


CASES = {
    "squeeze": Case(lambda x: x.squeeze(1) * 2, ((1, 1, 4),), (((3, 1, 5),), ((0, 1, 1),)), ((0, 1, 1, "squeeze"),)),
    "squeeze of two": Case(lambda x: x.squeeze((0, 2)) * 2, ((1, 3, 1),), (((1, 7, 1),),), ((0, 0, 1, "squeeze"), (0, 2, 1, "squeeze"))),
    "squeeze of all": Case(lambda x: x.squeeze() * 2, ((3, 1, 4),), (((2, 1, 5),),), ((0, 1, 1, "squeeze"),)),
    "expand": Case(lambda x, y: x.expand(y.shape[0], -1) * y, ((1, 1), (3, 1)), (((1, 5), (6, 5)), ((1, 2), (0, 2))), ((0, 0, 1, "expand"),)),
    "where": Case(lambda x, y: torch.where(x > 0, y, 0.0), ((1, 1), (1, 4)), (((5, 1), (5, 3)), ((2, 1), (2, 0))), ((0, 1, 1, "where"),)),
    "two operands": Case(lambda x, y: x + y, ((3, 1), (1, 4)), (((5, 1), (1, 2)),), ((0, 1, 1, "add"), (1, 0, 1, "add"))),
    "product": Case(lambda x, y: x @ y, ((1, 3, 4), (2, 4, 1)), (((1, 2, 6), (5, 6, 3)),), ((0, 0, 1, "decided"),)),
    "baddbmm": Case(torch.baddbmm, ((1, 1, 5), (1, 3, 4), (1, 4, 5)), (((3, 1, 2), (3, 2, 6), (3, 6, 2)),), ((0, 1, 1, "baddbmm"),)),
    "branch": Case(lambda x: x * 2 if x.shape[0] == 1 else x + 1, ((1, 4),), (((1, 7),),), ((0, 0, 1, "decided"),)),
    "no past": Case(lambda x, y: F.pad(x, (1, 0)) + y, ((0,), (1,)), (((0,), (3,)),), ((0, 0, 0, "add"),)),
    "channel of a weight": Case(nn.Conv1d(1, 2, 3, padding=1), ((1, 1, 4),), (((3, 1, 7),),), ()),
    "rest of a slice": Case(lambda x: x[:, 1:] + 1, ((1, 1),), (((4, 2),), ((3, 9),)), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_must_stay_stays(name: str) -> None:
    case = CASES[name]
    model = Calls(case.function).eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DiscWarning)
        executable = disc.compile(model, tuple(map(T, case.example)), options=OPTIONS)
    told = [str(each.message) for each in caught if each.category is DiscWarning]
    assert len(told) == len(case.fixed), told
    for text, (place, dim, size, who) in zip(told, case.fixed, strict=True):
        assert f"dim {dim} of input 'inputs_{place}' is fixed to {size}: {who} at " in text and "test_needed_sizes.py:" in text, text
        assert f"fixed  {text.split('; ')[0]}" in str(executable.explain())
    for sizes in (case.example, *case.others):
        inputs = tuple(map(T, sizes))
        torch.testing.assert_close(executable(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)


def test_a_rank_is_checked_in_every_call() -> None:
    executable = disc.compile(Calls(lambda x: x.squeeze() + 1), (T(3, 4),), options=OPTIONS)
    torch.testing.assert_close(executable(x := T(5, 7)), x + 1)
    with pytest.raises(
        ShapeConstraintError, match=rf"dim 1 of input 'inputs_0' must not be 1 \(squeeze at .*{HERE} would remove it\): got 1"
    ):
        executable(T(5, 1))


def test_a_weight_is_named_by_explain_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", DiscWarning)
        executable = disc.compile(nn.Linear(1, 4), (T(3, 1),), options=OPTIONS)
    assert "fixed  dim 1 of input 'input' is fixed to 1: linear at " in str(executable.explain())


@pytest.mark.parametrize("name", ["where", "squeeze"])
def test_what_was_asked_for_is_refused(name: str) -> None:
    case = CASES[name]
    (place, dim, size, who), *_ = case.fixed
    every = tuple({i: Dim.DYNAMIC if (number, i) == (place, dim) else Dim.AUTO for i in range(len(sizes))}
                  for number, sizes in enumerate(case.example))  # fmt: skip
    with pytest.raises(
        ShapeConstraintError, match=rf"dim {dim} of input 'inputs\[{place}\]' is {size} in the example .*: {who} at .*{HERE}"
    ):
        disc.compile(Calls(case.function), tuple(map(T, case.example)), (every,), options=OPTIONS)


def test_a_branch_on_a_size_that_was_asked_for_is_checked_in_every_call() -> None:
    """The example's sizes do not matter."""
    executable = disc.compile(Calls(CASES["branch"].function), (T(1, 4),), (({0: Dim("rows"), 1: Dim.AUTO},),), options=OPTIONS)
    torch.testing.assert_close(executable(x := T(5, 7)), x + 1)
    with pytest.raises(ShapeConstraintError, match=r"must not be 1 \(decided at"):
        executable(T(1, 4))


class Keeps(nn.Module):
    """Holds on to what it has computed last."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.last is not None and type(self.last) is not Tensor:
            raise AssertionError("a tensor of another run")
        result = torch.where(mask, x, 0.0)
        self.last = result
        return result


def _in_chunks(x: Tensor, y: Tensor) -> Tensor:
    """Rows in chunks of 4, and y, whose rows nothing relates to those of x."""
    x = F.pad(x, (0, 0, 0, -x.shape[0] % 4))
    more = torch.cat([x, torch.zeros(-(-x.shape[0] // 4) % 3, x.shape[1])])
    return more.unflatten(0, (-1, more.shape[0])).sum(0) * y.sum()


def test_named_dims_of_which_pytorch_cannot_prove_all() -> None:
    """That `(n + 3) // 4` is never 1, which nothing needs: names and ranges are checked in every call."""
    rows = Dim("rows", min=1, max=64)
    executable = disc.compile(Calls(_in_chunks), (T(9, 3), T(9, 2)), (({0: rows}, {0: rows}),), options=OPTIONS)
    for count in (1, 3, 4, 5, 8, 13, 64):
        x, y = T(count, 3), T(count, 2)
        torch.testing.assert_close(torch.as_tensor(executable(x, y)), _in_chunks(x, y))
    with pytest.raises(ShapeConstraintError, match="dim 0 of input 'inputs_1' must equal dim 0 of input 'inputs_0': got 9, expected 8"):
        executable(T(8, 3), T(9, 2))
    with pytest.raises(ShapeConstraintError, match="must be at most 64"):
        executable(T(65, 3), T(65, 2))


def test_dims_computed_of_a_named_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where PyTorch cannot prove all of them either, and where an example of 1 is widened, and what is computed of it with it."""
    rows = Dim("rows", max=64)
    executable = disc.compile(Calls(_in_chunks), (T(13, 3), T(4, 2)), (({0: 3 * rows + 1}, {0: rows}),), options=OPTIONS)
    for count in (1, 3, 4, 5, 8, 13, 64):
        x, y = T(3 * count + 1, 3), T(count, 2)
        torch.testing.assert_close(torch.as_tensor(executable(x, y)), _in_chunks(x, y))
    for wrong, words in (((14, 4), r"must equal S1 \* 3 \+ 1"), ((196, 65), "must be at most 193")):
        with pytest.raises(ShapeConstraintError, match=words):
            executable(T(wrong[0], 3), T(wrong[1], 2))

    def shifted(x: Tensor, y: Tensor) -> Tensor:
        return F.pad(x[1:] + y, (0, 0, 1, 0)) * x

    executable = disc.compile(Calls(shifted), (T(2, 3), T(1, 3)), (({0: rows + 1}, {0: rows}),), options=OPTIONS)
    for count in (1, 0, 4):
        x, y = T(count + 1, 3), T(count, 3)
        torch.testing.assert_close(torch.as_tensor(executable(x, y)), shifted(x, y))
    with pytest.raises(ShapeConstraintError, match=r"dynamic_shapes has a dim that may be negative: .*3\*rows - 2"):
        disc.compile(Calls(shifted), (T(2, 3), T(1, 3)), (({0: 3 * rows - 2}, None),), options=OPTIONS)
    monkeypatch.setattr(Widening, "unnamed", property(lambda _: True, lambda *_: None), raising=False)
    executable = disc.compile(Calls(lambda x, y: x.sum() * y), (T(10, 3), T(6, 2)), (({0: 3 * rows + 1}, {0: 2 * rows}),), options=OPTIONS)
    assert torch.as_tensor(executable(T(7, 3), T(4, 2))).shape == (4, 2)
    for wrong in ((8, 4), (7, 6), (10, 4), (196, 130)):
        with pytest.raises(ShapeConstraintError):
            executable(T(wrong[0], 3), T(wrong[1], 2))


def test_a_loop_over_a_dim_that_was_asked_for_is_named() -> None:
    def each_row(x: Tensor) -> Tensor:
        total = x[0]
        for row in range(1, x.shape[0]):
            total = torch.tanh(total + x[row])
        return total

    for dim in (Dim("rows", max=64), Dim.DYNAMIC):
        with pytest.raises(ShapeConstraintError, match=rf"dim 0 of input .* is taken for a number at {HERE}, which fixes it: .*while_loop"):
            disc.compile(Calls(each_row), (T(6, 3),), (({0: dim},),), options=OPTIONS)


def test_runs_without_data_leave_nothing_behind() -> None:
    model = Keeps()
    x, mask = T(1, 4), torch.ones(1, 1, dtype=torch.bool)
    with pytest.warns(DiscWarning, match="where at"):
        disc.compile(model, (x, mask), options=OPTIONS)
    model.last = None
    torch.testing.assert_close(model(x, mask), x)


class Step(nn.Module):
    """A step of a decoder: a mask that is too short is filled up, as in transformers."""

    def forward(self, new: Tensor, mask: Tensor, past: Tensor) -> Tensor:
        whole = torch.cat((past, new), 1)
        if (missing := whole.shape[1] - mask.shape[1]) > 0:
            mask = F.pad(mask, (0, missing), value=1.0)
        return torch.softmax(new @ whole.mT - 9.0 * (1 - mask[:, None]), -1) @ whole


def test_sizes_for_which_the_example_s_branch_is_taken() -> None:
    """The mask is as long as past and new together: so it has to be in the export, of an empty past too."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DiscWarning)
        executable = disc.compile(Step(), (T(1, 1, 4), torch.ones(1, 1), T(1, 0, 4)), options=OPTIONS)
    for batch, tokens, past in ((1, 1, 0), (1, 1, 6), (3, 5, 0), (2, 3, 9)):
        inputs = T(batch, tokens, 4), torch.randint(0, 2, (batch, past + tokens)).float(), T(batch, past, 4)
        torch.testing.assert_close(executable(*inputs), Step()(*inputs), rtol=1e-4, atol=1e-4)
