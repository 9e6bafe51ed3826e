"""What models are made of beside the usual layers: recurrent layers, library functions, a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.cases.case import Case, Inputs, Shape, random_tensor

STEPS: tuple[Shape, ...] = tuple((batch, length) for batch in (1, 8) for length in (1, 10, 100, 500))
LINES: tuple[Shape, ...] = ((1, 100), (1, 1000), (1, 10_000), (1, 100_000), (1, 1_000_000), (10, 10), (1000, 10), (1000, 100), (300, 1000))
MATRICES: tuple[Shape, ...] = ((1, 10), (1, 30), (1, 100), (1, 300), (1, 1000), (100, 32))
TOKENS: tuple[Shape, ...] = ((1, 1), (1, 16), (1, 128), (4, 128))


# --- recurrent layers: (batch, length) ------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """The outputs of all steps."""

    def __init__(self, layer: nn.LSTM | nn.GRU) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


def _recurrent(kind: type[nn.LSTM | nn.GRU], hidden: int) -> Case:
    return Case(
        f"{kind.__name__.lower()}-{hidden}", f"{kind.__name__}, {hidden} to {hidden}",
        lambda: Recurrent(kind(hidden, hidden, batch_first=True)), lambda shape: (random_tensor(*shape, hidden),), STEPS, (0, 1), (3, 7),
    )  # fmt: skip


# --- library functions: (lines, elements of each), (matrices, rows of each) -----------------------------------------------------


class Function(nn.Module):
    """`function` of the input: the values are compared, whatever else it gives is made too."""

    def __init__(self, function: Callable[[Tensor], Tensor | tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.function(x)


def _sorted(x: Tensor) -> tuple[Tensor, ...]:
    return torch.sort(x, -1)


def _best(k: int) -> Callable[[Tensor], tuple[Tensor, ...]]:
    return lambda x: torch.topk(x, k, -1)


def _lines(name: str, title: str, function: Callable[[Tensor], tuple[Tensor, ...]], least: int = 1, integers: bool = False) -> Case:
    """least: elements that a line must have."""

    def inputs(shape: Shape) -> Inputs:
        values = random_tensor(*shape)
        return ((values * 2**20).to(torch.int64),) if integers else (values,)

    shapes = tuple(shape for shape in LINES if shape[1] >= least)
    return Case(name, title, lambda: Function(function), inputs, shapes, (0, 1), (5, 300))


def _matrices(shape: Shape) -> Inputs:
    """Positive-definite."""
    count, size = shape
    values = random_tensor(count, size, size)
    return (values @ values.mT + size * torch.eye(size),)


# --- a mixture of experts: (batch, length) --------------------------------------------------------------------------------------

WIDTH = 512


def _experts() -> nn.Module:
    """Mixtral's block, 2 of 8 experts, by PyTorch's grouped product: the fastest in eager mode of the forms that transformers has."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(hidden_size=WIDTH, intermediate_size=1024, num_local_experts=8, num_experts_per_tok=2)
    config._experts_implementation = "grouped_mm"
    block = MixtralSparseMoeBlock(config)
    for weight in block.parameters():
        nn.init.normal_(weight, std=0.02)
    return block


RECURRENT_CASES = tuple(_recurrent(kind, hidden) for kind in (nn.LSTM, nn.GRU) for hidden in (128, 512, 1024))
LIBRARY_CASES = (
    _lines("sort", "Sort", _sorted),
    _lines("sort-integers", "Sort of i64", _sorted, integers=True),
    *(_lines(f"top-{k}", f"Top {k}", _best(k), k) for k in (1, 10, 100)),
    Case("cholesky", "Cholesky", lambda: Function(torch.linalg.cholesky), _matrices, MATRICES, (0, 1, 2), (3, 70)),
)
BLOCK_CASES = (Case("experts", "Mixture of experts", _experts, lambda shape: (random_tensor(*shape, WIDTH),), TOKENS, (0, 1), (2, 7)),)
