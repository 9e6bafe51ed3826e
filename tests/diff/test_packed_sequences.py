"""Packed sequences under torch.compile: one graph for all batches and lengths, in training, too; what eager refuses is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

from disc.errors import DiscWarning
from disc.frontend import dynamo

FEATURES = 3
# Batch, length of the padded input, lengths of the sequences. One of a size of 1 or 0 is a graph of its own to Dynamo.
CASES: list[tuple[int, Sequence[int]]] = [(6, (6, 1, 4, 3, 2)), (7, (7, 7, 2, 1)), (5, (1, 1, 1)), (11, (3, 5, 2, 7, 1, 1, 2)), (4, (4, 4))]


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    dynamo.reset_statistics()
    yield
    torch._dynamo.reset()


class Packing(nn.Module):
    """sorted: lengths come in order, and the modules are told so. total: the result is as long as the input."""

    def __init__(
        self, layer: Callable[..., nn.RNNBase], *, batch_first: bool = True, sorted: bool = False, total: bool = False, **further: Any
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = layer(FEATURES, 4, batch_first=batch_first, **further)
        self.batch_first, self.sorted, self.total = batch_first, sorted, total

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[object, ...]:
        packed = pack_padded_sequence(x, lengths, batch_first=self.batch_first, enforce_sorted=self.sorted)
        output, last = self.layer(packed)
        length = x.shape[1 if self.batch_first else 0] if self.total else None
        rows, found = pad_packed_sequence(output, self.batch_first, padding_value=-1.0, total_length=length)
        return rows, found, last


MODELS: dict[str, Callable[[], Packing]] = {
    "lstm": lambda: Packing(nn.LSTM),
    "lstm, sorted": lambda: Packing(nn.LSTM, sorted=True, total=True),
    "lstm, deep": lambda: Packing(nn.LSTM, num_layers=2, bidirectional=True, batch_first=False),
    "lstm, projected": lambda: Packing(nn.LSTM, proj_size=2, bidirectional=True),
    "gru": lambda: Packing(nn.GRU, bidirectional=True, total=True),
    "gru, sorted": lambda: Packing(nn.GRU, num_layers=2, sorted=True),
    "rnn": lambda: Packing(nn.RNN, nonlinearity="relu", bias=False, batch_first=False),
    "rnn, sorted": lambda: Packing(nn.RNN, bidirectional=True, sorted=True),
}
LONG = {"lstm", "lstm, deep", "lstm, projected", "gru, sorted", "rnn", "rnn, sorted"}
NAMES = [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in MODELS]


def _inputs(model: Packing, length: int, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    shape = (len(lengths), length) if model.batch_first else (length, len(lengths))
    return torch.randn(*shape, FEATURES), torch.tensor(sorted(lengths, reverse=True) if model.sorted else list(lengths))


def _compiled(model: nn.Module) -> Callable[..., Any]:
    return torch.compile(model, backend="disc", dynamic=True, fullgraph=True, options={"strict": True})


def _floats(results: object) -> list[Tensor]:
    return [each for each in pytree.tree_leaves(results) if each.is_floating_point()]


@pytest.mark.parametrize("name", NAMES)
def test_any_batch_and_lengths(name: str) -> None:
    model = MODELS[name]().eval()
    compiled = _compiled(model)
    with torch.no_grad():
        for length, lengths in CASES:
            inputs = _inputs(model, length, lengths)
            torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-5, atol=1e-5)
        assert dynamo.statistics().graphs == 1 and not dynamo.statistics().eager
        for length, lengths in ((1, (1, 1)), (5, (4,)), (1, (1,))):
            inputs = _inputs(model, length, lengths)
            torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name: str) -> None:
    """Numbers in the padding, infinite ones too, reach no gradient."""
    model = MODELS[name]()
    compiled = _compiled(model)
    for length, lengths in CASES:
        x, count = _inputs(model, length, lengths)
        padding = torch.arange(length) >= count.unsqueeze(1)
        x[padding if model.batch_first else padding.T] = torch.nan
        found, wanted = (_gradients(model, call, x, count) for call in (compiled, model))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert dynamo.statistics().graphs == 2 and not dynamo.statistics().eager


def _gradients(model: nn.Module, call: Callable[..., object], x: Tensor, lengths: Tensor) -> list[Tensor | None]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    sum(((each * torch.randn_like(each)).sum() for each in _floats(call(x, lengths))), torch.zeros(())).backward()
    return [x.grad, *(each.grad for each in model.parameters())]


class Between(nn.Module):
    """What a program does between packing and padding: computes with the data, writes it, makes another packed sequence."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.LSTM(FEATURES, 4, batch_first=True), nn.GRU(4, 2, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[object, ...]:
        x = x + 1
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        x.mul_(3)
        packed.data.mul_(2)
        output, _ = self.first(packed)
        changed = PackedSequence(
            output.data.tanh() + packed.data[:, :1], output.batch_sizes, output.sorted_indices, output.unsorted_indices
        )
        further, last = self.second(changed)
        return packed.data, changed, *pad_packed_sequence(further, batch_first=True), last, x


def test_data_that_is_computed_with_and_written() -> None:
    model = Between().eval()
    compiled = _compiled(model)
    with torch.no_grad():
        for length, lengths in CASES:
            inputs = (torch.randn(len(lengths), length, FEATURES), torch.tensor(lengths))
            torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-5, atol=1e-5)
    assert dynamo.statistics().graphs == 1


@pytest.mark.parametrize("kind", [nn.LSTM, pytest.param(nn.GRU, marks=pytest.mark.long)])
def test_sequences_packed_elsewhere(kind: Callable[..., nn.RNNBase]) -> None:
    model = kind(FEATURES, 4, bidirectional=True).eval()
    compiled = _compiled(model)
    with torch.no_grad():
        for length, lengths in CASES:
            packed = pack_padded_sequence(torch.randn(length, len(lengths), FEATURES), torch.tensor(lengths), enforce_sorted=False)
            found, wanted = compiled(packed), model(packed)
            assert isinstance(found[0], PackedSequence)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


REFUSED = {
    "longer than the input": (6, [7, 1]),
    "no element": (6, [3, 0]),
    "negative": (6, [3, -1]),
    "too many": (6, [3, 2, 1]),
    "too few": (6, [3]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*REFUSED, "not sorted"])
def test_errors_are_eagers(name: str) -> None:
    model = MODELS["lstm, sorted"]().eval()
    compiled = torch.compile(model, backend="disc", dynamic=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DiscWarning)
        compiled(torch.randn(3, 5, FEATURES), torch.tensor([5, 4, 1]))
        length, lengths = REFUSED.get(name, (6, [2, 3]))
        inputs = (torch.randn(2, length, FEATURES), torch.tensor(lengths))
        with pytest.raises(RuntimeError):
            model(*inputs)
        with pytest.raises(RuntimeError):
            compiled(*inputs)
