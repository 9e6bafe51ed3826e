"""LSTM, GRU and RNN as loops over the sequence, so that its length and the batch stay symbolic.

PyTorch traces these functions once per step of the example. Here the products with the inputs of all steps are one product before the loop;
each step adds that of the state. The equations, and the order of the gates in the weights, are those of torch.nn.LSTM, GRU and RNN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops import scan

State = tuple[Tensor, ...]
Cell = Callable[[State, Tensor, "Weights"], State]


@dataclass(frozen=True)
class Weights:
    """Of one layer in one direction; `project` of an LSTM with projections alone."""

    inputs: Tensor
    state: Tensor
    input_bias: Tensor | None
    state_bias: Tensor | None
    project: Tensor | None


def lstm(x: Tensor, states: object, *others: object) -> tuple[Tensor, ...]:
    """`torch.lstm` of a batch of sequences, not of packed ones."""
    if not isinstance(states, list | tuple):
        return torch.lstm(x, states, *others)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return _recurrent(torch.lstm, _lstm_cell, x, states, *others)


def gru(x: Tensor, state: object, *others: object) -> tuple[Tensor, ...]:
    """`torch.gru`."""
    return _recurrent(torch.gru, _gru_cell, x, state, *others)


def rnn_tanh(x: Tensor, state: object, *others: object) -> tuple[Tensor, ...]:
    """`torch.rnn_tanh`."""
    return _recurrent(torch.rnn_tanh, _plain_cell(torch.tanh), x, state, *others)


def rnn_relu(x: Tensor, state: object, *others: object) -> tuple[Tensor, ...]:
    """`torch.rnn_relu`."""
    return _recurrent(torch.rnn_relu, _plain_cell(torch.relu), x, state, *others)


def _recurrent(function: Callable[..., tuple[Tensor, ...]], cell: Cell, x: Tensor, given: object, *others: object) -> State:
    """The output and the last states of all layers. others: weights, bias, layers, dropout, train, bidirectional, batch_first."""
    if len(others) != 7 or isinstance(others[0], Tensor) or (others[4] and others[3]):
        return function(x, given, *others)  # packed sequences, or dropout between layers
    weights, bias, layers, _, _, both, batch_first = others
    assert isinstance(weights, list | tuple) and isinstance(layers, int)
    states = cast("State", tuple(given) if isinstance(given, list | tuple) else (given,))
    directions = 2 if both else 1
    parts = list(_weights(weights, bool(bias), len(weights) // (layers * directions)))
    value = x.transpose(0, 1) if batch_first else x
    last: list[State] = []
    for layer in range(layers):
        outputs: list[Tensor] = []
        for direction in range(directions):
            number = layer * directions + direction
            first = tuple(each[number] for each in states)
            state, output = _layer(cell, value, first, parts[number], backwards=direction == 1)
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


def _layer(cell: Cell, x: Tensor, first: State, weights: Weights, *, backwards: bool) -> tuple[State, Tensor]:
    """The last state, and the output of every step."""
    inputs = F.linear(x, weights.inputs, weights.input_bias)

    def step(state: list[Tensor], row: Tensor) -> tuple[list[Tensor], Tensor]:
        new = cell(tuple(state), row, weights)
        return list(new), new[0].clone()

    state, output = scan(step, [each.clone() for each in first], inputs, reverse=backwards)
    return tuple(state), output


def _lstm_cell(state: State, row: Tensor, weights: Weights) -> State:
    hidden, cell = state
    gates = row + F.linear(hidden, weights.state, weights.state_bias)
    enter, forget, new, leave = gates.chunk(4, -1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    hidden = leave.sigmoid() * cell.tanh()
    return (hidden if weights.project is None else F.linear(hidden, weights.project), cell)


def _gru_cell(state: State, row: Tensor, weights: Weights) -> State:
    (hidden,) = state
    own = F.linear(hidden, weights.state, weights.state_bias)
    reset, update, new = row.chunk(3, -1)
    own_reset, own_update, own_new = own.chunk(3, -1)
    keep = (update + own_update).sigmoid()
    fresh = (new + (reset + own_reset).sigmoid() * own_new).tanh()
    return (fresh + keep * (hidden - fresh),)


def _plain_cell(activation: Callable[[Tensor], Tensor]) -> Cell:
    def cell(state: State, row: Tensor, weights: Weights) -> State:
        return (activation(row + F.linear(state[0], weights.state, weights.state_bias)),)

    return cell


RECURRENT_FORMS: dict[Callable[..., object], Callable[..., object]] = {
    torch.lstm: lstm, torch.gru: gru, torch.rnn_tanh: rnn_tanh, torch.rnn_relu: rnn_relu,
}  # fmt: skip
