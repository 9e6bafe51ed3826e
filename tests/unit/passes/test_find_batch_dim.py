"""find-batch-dim on PyTorch programs: those whose rows are independent, and those whose rows are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from disc.frontend.models import import_model
from disc.ir.dialect import make_context
from disc.ir.graph import parse_attributes
from disc.ir.passes import CompileState, run_passes
from disc.passes.graph.find_batch_dim import FindBatchDim
from disc.passes.pipelines import FRONT, GRAPH

X = torch.randn(3, 5, 8)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.function(*inputs)


def found(model: nn.Module | Callable[..., Any], *inputs: torch.Tensor, shapes: object = None) -> dict[str, object]:
    """The module attributes that the pass leaves."""
    module = model if isinstance(model, nn.Module) else Function(model)
    imported = import_model(module, inputs or (X,), shapes, make_context())  # pyright: ignore[reportArgumentType]
    run_passes(imported.module, [*FRONT, *GRAPH[: GRAPH.index(FindBatchDim()) + 1]], CompileState(weights=imported.weights))
    with imported.module.context:
        return {key: value for key, value in parse_attributes(imported.module.operation).items() if key.startswith("disc.batch")}


class Attention(nn.Module):
    """With a causal mask and positions, both made from sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.place = nn.Linear(8, 24), nn.Embedding(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in self.project(x + self.place(torch.arange(length))).chunk(3, -1))
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        scores = (q @ k.transpose(-1, -2)).masked_fill(~mask, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


INDEPENDENT: dict[str, tuple[Any, ...]] = {
    "mlp": (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)),),
    "softmax over another dim": (lambda x: x.softmax(1),),
    "scan along another dim": (lambda x: x.cumsum(2),),
    "merged and parted": (lambda x: (x.reshape(-1, 8) @ torch.ones(8, 4)).reshape(x.shape[0], -1, 4),),
    "first token": (lambda x: x[:, 0],),
    "positions along another dim": (lambda x: x + torch.arange(x.shape[1])[:, None],),
    "joined along another dim": (lambda x, y: torch.cat([x, y], 1), X, X),
    "own indices": (nn.Embedding(10, 4), torch.zeros(3, 5, dtype=torch.int64)),
    "own rows by number": (lambda x, i: x[torch.arange(x.shape[0]), i], X, torch.zeros(3, dtype=torch.int64)),
    "attention": (Attention(),),
    "convolution": (nn.Conv2d(3, 4, 3, padding=1), torch.randn(2, 3, 8, 8)),
    "pooling": (nn.MaxPool2d(2), torch.randn(2, 3, 8, 8)),
    "batch norm in eval mode": (nn.BatchNorm1d(8).eval(), torch.randn(4, 8)),
    "several results": (lambda x: (x.sum(-1), x.amax((1, 2))),),
}
MIXING: dict[str, tuple[Any, ...]] = {
    "softmax over the batch": (lambda x: x.softmax(0),),
    "sum over the batch": (lambda x: x.sum(0),),
    "mean taken off": (lambda x: x - x.mean(0, keepdim=True),),
    "divided by a maximum of all": (lambda x: x / x.abs().max(),),
    "batch norm in training mode": (nn.BatchNorm1d(8, track_running_stats=False).train(), torch.randn(4, 8)),
    "flip": (lambda x: x.flip(0),),
    "scan along the batch": (lambda x: x.cumsum(0),),
    "scatter": (lambda x, i: x.index_add(0, i, torch.ones(2, 5, 8)), X, torch.tensor([0, 1])),
    "scatter along another dim": (lambda x, i: x.scatter(1, i, 1.0), X, torch.zeros(3, 5, 8, dtype=torch.int64)),
    "other rows by number": (lambda x, i: x[i], X, torch.zeros(3, dtype=torch.int64)),
    "row numbers as data": (lambda x: x + torch.arange(x.shape[0])[:, None, None],),
    "the batch size as data": (lambda x: x * x.shape[0],),
    "products of rows": (lambda x: x.flatten(1) @ x.flatten(1).T,),
    "shifted by one row": (lambda x: torch.cat([x[1:], x[:1]]),),
    "joined along the batch": (lambda x, y: torch.cat([x, y]), X, X),
    "the last row": (lambda x: x[-1],),
    "rows in another dim of the result": (lambda x: x.transpose(0, 1),),
    "merged in the wrong order": (lambda x: x.transpose(0, 1).reshape(-1, 8),),
    "rows merged for good": (lambda x: x.reshape(-1, 8),),
    "a matrix that all share": (lambda x, w: x @ w, X, torch.randn(8, 8)),
    "a vector of the rows in a row": (lambda x, w: x[:, 0, 0] * torch.cat([w[1:], w[:1]]), X, torch.randn(3)),
    "a result of the weights alone": (lambda x: (x, torch.ones(3)),),
}
SHARED: dict[str, tuple[Any, ...]] = {
    "vector": (lambda x, w: x * w, X, torch.randn(8)),
    "scalar": (lambda x, s: x * s, X, torch.tensor(2.0)),
    "indices": (lambda x, i: x[:, i], X, torch.tensor([0, 2])),
}


@pytest.mark.parametrize("case", INDEPENDENT)
def test_independent_rows_are_proved(case: str) -> None:
    model, *inputs = INDEPENDENT[case]
    attributes = found(model, *inputs)
    assert "disc.batch" in attributes, attributes


@pytest.mark.parametrize("case", MIXING)
def test_rows_that_influence_each_other_are_refused(case: str) -> None:
    model, *inputs = MIXING[case]
    attributes = found(model, *inputs)
    assert "disc.batch" not in attributes, attributes
    assert attributes["disc.batch_refusal"]


@pytest.mark.parametrize("case", SHARED)
def test_what_has_no_rows_is_shared(case: str) -> None:
    model, *inputs = SHARED[case]
    batch = found(model, *inputs, shapes=(({0: torch.export.Dim.AUTO}, {}),))["disc.batch"]
    assert isinstance(batch, dict) and list(batch["inputs"]) == [0, -1], batch  # pyright: ignore[reportArgumentType]


def test_the_refusal_names_the_op_and_the_line() -> None:
    words = str(found(lambda x: x.flip(0))["disc.batch_refusal"])
    assert words.startswith("stablehlo.reverse at ") and "test_find_batch_dim.py:" in words
