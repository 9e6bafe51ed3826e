"""Losses whose decompositions in PyTorch are wrong, or fail without elements; one that is a kernel with its gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import disc

TARGETS = ([3, 0, -1, 1, -1], [-1] * 5, [0, 1, 2, 3, 4], [2, 2, -1, 0, 0])


@pytest.mark.parametrize("reduction", ["none", pytest.param("mean", marks=pytest.mark.long), "sum"])
@pytest.mark.parametrize("rows", [4, 1, pytest.param(None, marks=pytest.mark.long)])
def test_margins_of_several_labels(reduction: str, rows: int | None) -> None:
    def function(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.multilabel_margin_loss(x, target, reduction=reduction)

    x = torch.randn(4, 5)[0 if rows is None else slice(rows)].requires_grad_()
    target = torch.tensor(TARGETS)[0 if rows is None else slice(rows)]
    results = list[torch.Tensor | None]()
    for each in (function, torch.compile(function, backend="disc", options={"strict": True})):
        x.grad = None
        result = each(x, target)
        result.sum().backward()
        results += [result, x.grad]
    torch.testing.assert_close(results[2:], results[:2])


def test_compiled_margins() -> None:
    x, target = torch.randn(4, 5), torch.tensor(TARGETS)
    model = torch.nn.MultiLabelMarginLoss(reduction="none")
    torch.testing.assert_close(disc.compile(model, (x, target))(x, target), model(x, target))


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
def test_of_nothing(loss) -> None:  # pyright: ignore
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y: loss(x * 2, y), backend="disc", options={"strict": True})
    for rows in (0, 3):
        x = torch.randn(rows, 5, requires_grad=True)
        found = compiled(x, torch.ones(rows, 5))
        found.backward()
        gradient, x.grad = x.grad, None
        expected = loss(x * 2, torch.ones(rows, 5))
        expected.backward()
        torch.testing.assert_close([found, gradient], [expected, x.grad], equal_nan=True)


def test_of_one_row_with_its_gradient() -> None:
    """A sum over the row comes behind one that a gather alone reads: that is computed again where it is read, in whichever pass."""

    def function(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logs = torch.log_softmax(x, 1)
        hot = torch.where(torch.arange(10)[None] == label, logs.gather(1, label).sum().square(), 0.0)
        return hot - logs.exp() * hot.sum(1, keepdim=True)

    x, label = torch.randn(1, 10), torch.tensor([[3]])
    torch.testing.assert_close(torch.compile(function, backend="disc", options={"strict": True})(x, label), function(x, label))
