"""LSTM, GRU and RNN as loops over the sequence, so that its length and the batch stay symbolic.

PyTorch traces these functions once per step of the example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.packed_sequences import packed_by_sizes, packed_of
from disc.frontend.recurrent_cells import GRU, LSTM, RNN_RELU, RNN_TANH, Cell, State
from disc.frontend.recurrent_layers import Weights, layer


def lstm(x: Tensor, states: object, *others: object) -> tuple[Tensor, ...]:
    """`torch.lstm`."""
    return _recurrent(LSTM, x, states, *others)


def gru(x: Tensor, state: object, *others: object) -> tuple[Tensor, ...]:
    """`torch.gru`."""
    return _recurrent(GRU, x, state, *others)


def rnn_tanh(x: Tensor, state: object, *others: object) -> tuple[Tensor, ...]:
    """`torch.rnn_tanh`."""
    return _recurrent(RNN_TANH, x, state, *others)


def rnn_relu(x: Tensor, state: object, *others: object) -> tuple[Tensor, ...]:
    """`torch.rnn_relu`."""
    return _recurrent(RNN_RELU, x, state, *others)


def _recurrent(cell: Cell, x: Tensor, given: object, *others: object, alive: Tensor | None = None) -> State:
    """The output and the last states of all layers. given, others: states, weights, bias, layers, dropout, train, bidirectional,
    batch_first; or batch sizes, and these up to bidirectional."""
    if not isinstance(others[1], bool):
        assert isinstance(given, Tensor)
        first = cast("Tensor", others[0][0] if isinstance(others[0], list | tuple) else others[0])
        packed = packed_of(given) or packed_by_sizes(given, first.shape[1], x.shape[0])
        output, *final = _recurrent(cell, packed.padded(x), *others, False, alive=packed.alive)
        return (packed.packed(output), *final)
    weights, bias, layers, dropout, training, both, batch_first = others
    assert isinstance(weights, list | tuple) and isinstance(layers, int) and isinstance(dropout, float)
    states = cast("State", tuple(given) if isinstance(given, list | tuple) else (given,))
    directions = 2 if both else 1
    parts = list(_weights(weights, bool(bias), len(weights) // (layers * directions)))
    value = x.transpose(0, 1) if batch_first else x
    last: list[State] = []
    for depth in range(layers):
        value = F.dropout(value, dropout) if depth and training and dropout else value
        outputs: list[Tensor] = []
        for direction in range(directions):
            number = depth * directions + direction
            first = tuple(each[number] for each in states)
            state, output = layer(cell, value, first, parts[number], alive, backwards=direction == 1)
            last.append(state)
            outputs.append(output)
        value = torch.cat(outputs, -1) if both else outputs[0]
    stacked = tuple(torch.stack([state[place] for state in last]) for place in range(len(states)))
    return (value.transpose(0, 1) if batch_first else value, *stacked)


def _weights(flat: Sequence[Tensor], bias: bool, count: int) -> Iterator[Weights]:
    """The flat list of weights has for each layer and direction: of inputs, of the state, their biases, of the projection."""
    for first in range(0, len(flat), count):
        own = list(flat[first : first + count])
        biases = (own[2], own[3]) if bias else (None, None)
        rest = own[4:] if bias else own[2:]
        yield Weights(own[0], own[1], *biases, rest[0] if rest else None)


RECURRENT_FORMS: dict[Callable[..., object], Callable[..., object]] = {
    torch.lstm: lstm, torch.gru: gru, torch.rnn_tanh: rnn_tanh, torch.rnn_relu: rnn_relu,
}  # fmt: skip
