"""LSTM, GRU and RNN compiled once for all batches and lengths: layers, directions, projections, biases, states that are given;
packed sequences."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import disc
from disc.errors import DiscError


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.deep = torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.projected = torch.nn.LSTM(8, 5, proj_size=2, batch_first=True)
        self.gated = torch.nn.GRU(3, 4, bidirectional=True)
        self.plain = torch.nn.RNN(8, 3, nonlinearity="relu", bias=False)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x: [batch, length, 3]; state: [2, batch, 4], of the GRU."""
        deep, (hidden, cell) = self.deep(x)
        projected, (short, long) = self.projected(deep)
        gated, last = self.gated(x.transpose(0, 1), state)
        plain, end = self.plain(gated)
        return deep, hidden, cell, projected, short, long, gated, last, plain, end


class OneLayer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        output, (hidden, cell) = self.layer(x)
        return output, hidden, cell


def test_an_lstm_takes_any_batch_and_length() -> None:
    model = OneLayer().eval()
    compiled = disc.compile(model, (torch.randn(3, 4, 3),))
    names = [str(record["name"]) for record in compiled.manifest["kernels"]]
    assert sum("update_slice" in name for name in names) == 1, "the outputs of all steps are stacked, and nothing that only gradients need"
    for batch, length in ((3, 4), (1, 1), (2, 1), (1, 7), (5, 16), (17, 3)):
        x = torch.randn(batch, length, 3)
        with torch.no_grad():
            wanted = model(x)
        torch.testing.assert_close(compiled(x), wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(DiscError, match="must be at least 1"):
        compiled(torch.randn(2, 0, 3))


class Packed(torch.nn.Module):
    def __init__(self, both: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.LSTM(3, 4, batch_first=True, bidirectional=both)
        self.gated = torch.nn.GRU(8, 2, batch_first=True) if both else None

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        packed, (hidden, cell) = self.layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        rows, found = pad_packed_sequence(packed, batch_first=True, padding_value=-1.0)
        if self.gated is None:
            return rows, found, hidden, cell, packed.data
        ordered = pack_padded_sequence(rows, lengths.sort(descending=True).values, batch_first=True)
        padded, _ = pad_packed_sequence(self.gated(ordered)[0], total_length=x.shape[1])
        return rows, found, hidden, cell, padded


@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.long)])
def test_packed_sequences_take_any_lengths(both: bool) -> None:
    model = Packed(both).eval()
    compiled = disc.compile(model, (torch.randn(4, 6, 3), torch.tensor([6, 1, 4, 3])))
    for length, lengths in ((6, [6, 1, 4, 3]), (7, [2, 5]), (3, [3]), (9, [1, 2, 2])):
        inputs = (torch.randn(len(lengths), length, 3), torch.tensor(lengths))
        with torch.no_grad():
            wanted = model(*inputs)
        torch.testing.assert_close(compiled(*inputs), wanted, rtol=1e-5, atol=1e-5)
    for wrong, message in (
        ([7, 1], "input 'lengths': .*at most that of the padded input: got 7"),
        ([0, 2], "greater than 0, but 1 or more"),
    ):
        with pytest.raises(DiscError, match=message):
            compiled(torch.randn(2, 6, 3), torch.tensor(wrong))


class Sequences(torch.nn.Module):
    """Layers of `kind` one behind the other, of whole sequences, or of packed ones."""

    def __init__(self, kind: str, packed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = {
            "lstm": torch.nn.LSTM(3, 4),
            "projected": torch.nn.LSTM(3, 4, proj_size=2),
            "gru": torch.nn.GRU(3, 4),
            "rnn": torch.nn.RNN(3, 4, bias=False),
        }
        self.layer, self.packed = layers[kind], packed

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> list[torch.Tensor]:
        given = pack_padded_sequence(x, lengths, enforce_sorted=False) if self.packed else x
        output, state = self.layer(given)
        return [output.data if self.packed else output, *(state if isinstance(state, tuple) else (state,))]


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("case", [
    ("lstm", False, torch.bfloat16), ("gru", True, torch.bfloat16),
    *(pytest.param(each, marks=pytest.mark.long) for each in (
        ("lstm", True, torch.bfloat16), ("projected", False, torch.bfloat16), ("projected", True, torch.float16), ("gru", False, torch.float16),
        ("rnn", False, torch.bfloat16), ("rnn", True, torch.float16), ("lstm", True, torch.float16),
    )),
])  # fmt: skip
def test_training_within_autocast(case: tuple[str, bool, torch.dtype]) -> None:
    """Results, their types and gradients are eager's, but for roundings. Of whole sequences oneDNN has no LSTM in f16."""
    kind, packed, dtype = case
    model = Sequences(kind, packed)
    compiled = torch.compile(model, backend="disc", dynamic=True, options={"threads": 1, "cache": False})
    for batch, length in ((3, 4), (5, 7)):
        x, lengths, results = torch.randn(length, batch, 3), torch.arange(length - 1, length - 1 - batch, -1).clamp(min=1) + 1, []
        for function in (model, compiled):
            with torch.autocast("cpu", dtype):
                values = function(x, lengths)
            torch.stack([each.float().square().sum() for each in values]).sum().backward()
            results.append([*values, *(each.grad for each in model.parameters())])
            model.zero_grad()
        for ours, theirs in zip(results[1], results[0], strict=True):
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs, atol=0.03 * max(float(theirs.detach().abs().max()), 0.1), rtol=0.03)


@pytest.mark.long
def test_recurrent_layers_of_all_kinds_take_any_batch_and_length() -> None:
    model = Recurrent().eval()
    compiled = disc.compile(model, (torch.randn(3, 4, 3), torch.randn(2, 3, 4)))
    for batch, length in ((3, 4), (1, 1), (2, 1), (1, 7), (5, 16), (17, 3)):
        inputs = (torch.randn(batch, length, 3), torch.randn(2, batch, 4))
        with torch.no_grad():
            wanted = model(*inputs)
        torch.testing.assert_close(compiled(*inputs), wanted, rtol=1e-5, atol=1e-5)
