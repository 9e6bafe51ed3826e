"""Ops on lists of tensors are one op per tensor, with eager's results: all that PyTorch has, and what optimizers make of them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import disc
from disc.errors import DiscWarning
from disc.frontend.foreach import decompositions

SIZES = ((3, 4), (5,), (), (0, 2))
FUNCTIONS: Any = torch  # those on lists are no public ones
LEFT = {"aten._foreach_powsum.Scalar", "aten._foreach_addcmul.Tensor", "aten._foreach_addcdiv.Tensor"}


def argument(name: str, kind: str, seed: int) -> Any:
    torch.manual_seed(seed)
    if kind == "List[Tensor]":
        return [torch.rand(size) * 0.9 + 0.05 for size in (((3, 4), (4, 2)) if name == "mat2" else SIZES)]
    if kind.startswith("List"):
        return [0.5 + n for n in range(len(SIZES))]
    return torch.tensor(0.75) if kind == "Tensor" else 2 if name == "ord" else 0.75


@pytest.mark.parametrize("op", decompositions(), ids=str)
def test_they_are_eagers(op: torch._ops.OpOverload) -> None:
    given = [argument(each.name, str(each.type), seed) for seed, each in enumerate(op._schema.arguments)
             if not each.kwarg_only and each.name not in ("dtype", "non_blocking")]  # fmt: skip
    if op is torch.ops.aten._foreach_max.default:  # of nothing there is none
        given = [given[0][:-1]]
    if "_mm" in str(op):
        given = [[torch.rand(2, 3), torch.rand(0, 4)], [torch.rand(3, 4), torch.rand(4, 2)]]
    torch.testing.assert_close(decompositions()[op](*given), op(*given) or list(given[1 if "copy" in str(op) else 0]), rtol=0, atol=0)


def test_all_but_a_few_are_there() -> None:
    names = [each for each in torch._C._dispatch_get_all_op_names() if each.startswith("aten::_foreach_") and "out" not in each]
    functional = {each.replace("::", ".") for each in names if not each.split(".")[0].endswith("_")}
    known = {str(op).removesuffix(".default") for op in decompositions()}
    assert functional - known <= LEFT


class Lists(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        rows = [x.clone(), y.clone()]
        FUNCTIONS._foreach_mul_(rows, 2.0)
        FUNCTIONS._foreach_add_(rows, [y, x], alpha=0.5)
        FUNCTIONS._foreach_addcdiv_(rows, [x, y], [y.exp(), x.exp()], value=-0.1)
        return tuple(FUNCTIONS._foreach_sqrt(FUNCTIONS._foreach_abs(rows)))


def test_a_model_may_call_them() -> None:
    exe = disc.compile(Lists(), (torch.randn(3, 4), torch.randn(3, 4)))
    for size in ((5, 7), (1, 1), (0, 3)):
        x, y = torch.randn(size), torch.randn(size)
        torch.testing.assert_close(exe(x, y), Lists()(x, y))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.NAdam])
def test_an_optimizer_is_compiled_as_a_whole(kind: type[torch.optim.Optimizer]) -> None:
    """Under torch.compile, with one kernel for what all parameters of a shape go through."""

    def trained(compiled: bool) -> list[Tensor]:
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(7))]
        optimizer = kind(weights, lr=0.1, foreach=True)  # pyright: ignore[reportCallIssue]
        step = torch.compile(optimizer.step, backend="disc") if compiled else optimizer.step
        for n in range(3):
            for each in weights:
                each.grad = torch.full_like(each, 0.5 + n)
            step()
        return [each.detach() for each in weights]

    with warnings.catch_warnings():
        warnings.simplefilter("error", DiscWarning)
        found = trained(True)
    torch.testing.assert_close(found, trained(False))


def test_scaled_gradients() -> None:
    """Those of GradScaler, and its scale."""

    class Scaled(nn.Module):
        def forward(self, x: Tensor, y: Tensor, found: Tensor, scale: Tensor, steps: Tensor) -> tuple[Tensor, ...]:
            rows, found, scale, steps = [x.clone(), y.clone()], found.clone(), scale.clone(), steps.clone()
            FUNCTIONS._amp_foreach_non_finite_check_and_unscale_(rows, found, 1 / scale)
            FUNCTIONS._amp_update_scale_(scale, steps, found, 2.0, 0.5, 3)
            return (*rows, found, scale, steps)

    x, steps = torch.randn(3, 4), torch.zeros((), dtype=torch.int32)
    exe = disc.compile(Scaled(), (x, x, torch.zeros(1), torch.ones(1), steps))
    for size, last, before, count in ((5, 1.0, 0.0, 1), (1, torch.inf, 0.0, 1), (2, 1.0, 1.0, 2), (7, 1.0, 0.0, 2), (0, 1.0, 0.0, 1)):
        y = torch.full((size, 3), last)
        given = (torch.randn(2, size), y, torch.tensor([before]), torch.tensor([8.0]), torch.tensor(count, dtype=torch.int32))
        torch.testing.assert_close(exe(*given), Scaled()(*given))
