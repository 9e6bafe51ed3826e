"""Programs that read how their tensors lie in memory: each call gives what eager PyTorch gives, or is refused with the line that reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import disc
from disc.errors import DiscError, ShapeConstraintError, UnsupportedOpError

Program = Callable[[Tensor], object]


def _made_contiguous(x: Tensor) -> Tensor:
    y = x.t()
    if not y.is_contiguous():
        y = y.contiguous()
    return y * 2


def _changed_where_not(x: Tensor) -> Tensor:
    y = x.t()
    if not y.is_contiguous():
        y = y.contiguous() + 1
    return y * 2


def _in_a_branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x * x.stride(0), lambda x: x + 1, (x,))


# What is read → the program, and how many of CALLS it answers at least.
ANSWERED: dict[str, tuple[Program, int]] = {
    "stride of a dim": (lambda x: torch.zeros(2) + x.stride(0), 4),
    "stride of the last": (lambda x: torch.zeros(2) + x.stride(-1), 6),
    "strides": (lambda x: torch.zeros(2) + x.stride()[0] * 3 + x.stride()[1], 2),
    "order of dims": (lambda x: torch.zeros(2) + x.dim_order()[0], 2),
    "the op": (lambda x: x.new_full((2,), torch.ops.aten.sym_stride.int(x, 0)), 4),
    "dense": (lambda x: torch.zeros(2) + torch.ops.aten.is_non_overlapping_and_dense(x), 2),
    "contiguous": (lambda x: torch.zeros(2) + (1 if x.is_contiguous() else 2), 11),
    "contiguous view": (lambda x: torch.zeros(2) + (1 if x.t().is_contiguous() else 2), 2),
    "contiguous slice": (lambda x: torch.zeros(2) + (1 if x[:, :3].is_contiguous() else 2), 2),
    "contiguous sum": (lambda x: torch.zeros(2) + (1 if (x.t() + 1).is_contiguous() else 2), 2),
    "contiguous or made so": (lambda x: (x if x.is_contiguous() else x.contiguous()) + 1, 13),
    "view made contiguous": (_made_contiguous, 13),
    "view changed where not contiguous": (_changed_where_not, 2),
    "the same strides": (lambda x: x.as_strided((x.shape[0], x.shape[1]), x.stride()) + 1, 11),
    "no memory": (lambda x: torch.zeros(2) + x.element_size() + x.itemsize + x.nbytes + x.t().numel() + (x.layout == torch.strided), 13),
}
REFUSED: dict[str, Program] = {
    "offset": lambda x: x + x.storage_offset(),
    "stride of a view": lambda x: x + x.t().stride(0),
    "stride of a sum": lambda x: x + (x + 1).stride(0),
    "whether it is a view": lambda x: x + 1 if x._is_view() else x + 2,
    "of what it is a view": lambda x: x + 1 if x._base is None else x + 2,
    "in a branch": _in_a_branch,
}


def _calls() -> list[Tensor]:
    return [
        torch.randn(3, 5), torch.randn(4, 7), torch.randn(7, 4).t(), torch.randn(1, 5), torch.randn(1, 1), torch.randn(0, 5),
        torch.randn(8, 14)[::2, ::2], torch.randn(4, 1), torch.randn(1, 4).t(), torch.randn(5, 1).t(), torch.randn(3, 0),
        torch.randn(2, 8)[:1], torch.randn(20)[3:].view(1, 17)[:, :5],
    ]  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ANSWERED)
def test_a_call_is_right_or_refused(name: str) -> None:
    program, least = ANSWERED[name]
    executable = disc.compile(program, (torch.randn(3, 5),))
    answered = 0
    for x in _calls():
        try:
            found = executable(x)
        except ShapeConstraintError as error:
            assert "test_layout_reads.py:" in str(error)
            continue
        torch.testing.assert_close(found, program(x))
        answered += 1
    assert answered >= least


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_call_can_be_checked_for_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedOpError, match=r"Tensor\.\w+ at test_layout_reads\.py:\d+: "):
        disc.compile(REFUSED[name], (torch.randn(3, 5),))


def test_only_the_inputs_that_are_read_must_be_row_major(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(5, 4).t())

        def forward(self, scale: int, x: Tensor, pair: dict[str, Tensor]) -> Tensor:
            return (x @ self.weight).sum() * scale + self.weight.stride(1) + pair["a"].sum() + pair["b"] * pair["b"].stride(0)

    model = Model().eval()
    compiled = disc.compile(model, (2, torch.randn(3, 4), {"a": torch.randn(3, 5), "b": torch.randn(4, 6)}))
    compiled.save(tmp_path / "model.disc")
    for executable in (compiled, disc.load(tmp_path / "model.disc")):
        x, a = torch.randn(4, 5).t(), torch.randn(2, 7).t()
        pair = {"a": a, "b": torch.randn(2, 3)}
        torch.testing.assert_close(executable(x, *pair.values()), model(2, x, pair), atol=1e-5, rtol=1e-5)
        with pytest.raises(ShapeConstraintError, match=r"pair_b.*must be contiguous: the program decides by its strides at test_layout_"):
            executable(x, a, torch.randn(3, 2).t())


def test_an_example_in_another_order_is_no_rule() -> None:
    with pytest.raises(DiscError, match="the example has an input there that is not row-major"):
        disc.compile(lambda x: x + 1 if x.is_contiguous() else x + 2, (torch.randn(5, 3).t(),))


def test_sizes_that_are_fixed_have_their_strides() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.t().stride(1) + (x + 1).stride(0)

    executable, x = disc.compile(Model(), (torch.randn(3, 5),), {"x": {}}), torch.randn(3, 5)
    torch.testing.assert_close(executable(x), Model()(x))
    with pytest.raises(ShapeConstraintError, match="must be contiguous"):
        executable(torch.randn(5, 3).t())
