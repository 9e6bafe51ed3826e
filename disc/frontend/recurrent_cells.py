"""What LSTM, GRU and RNN do at each step behind their products, and the gradients of that.

The equations, and the order of the gates in the weights, are those of torch.nn.LSTM, GRU and RNN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Gradients:
    """Of a step: with respect to its row, to the product with its state, and to its state apart from that product.

    All are [batch, ...]; hidden: None where the state counts through the product alone.
    """

    row: Tensor
    own: Tensor
    hidden: Tensor | None
    further: State


@dataclass(frozen=True)
class Cell:
    """forward: (parts, state) → the next state, its hidden values first. parts: the gates' part of the input, [batch, gates * hidden], and
    that of the state, or their sum where they are `summed`. backward: (parts, state, gradients of the next state) → the gradients. keeps:
    whether a state counts apart from products, so that within autocast the next one is as wide."""

    forward: Callable[[State, State], State]
    backward: Callable[[State, State, State], Gradients]
    summed: bool = True
    keeps: bool = True

    def parts(self, row: Tensor, own: Tensor) -> State:
        """Of a step, for `forward` and `backward`."""
        return (row + own,) if self.summed else (row, own)


def _lstm_forward(parts: State, state: State) -> State:
    enter, forget, new, leave = parts[0].chunk(4, -1)
    cell = forget.sigmoid() * state[1] + enter.sigmoid() * new.tanh()
    return (leave.sigmoid() * cell.tanh(), cell)


def _lstm_backward(parts: State, state: State, gradients: State) -> Gradients:
    enter, forget, new, leave = parts[0].chunk(4, -1)
    enter, forget, new, leave = enter.sigmoid(), forget.sigmoid(), new.tanh(), leave.sigmoid()
    shown = (forget * state[1] + enter * new).tanh()
    cell = gradients[1] + gradients[0] * leave * (1 - shown * shown)
    gates = torch.cat((
        cell * new * enter * (1 - enter), cell * state[1] * forget * (1 - forget), cell * enter * (1 - new * new),
        gradients[0] * shown * leave * (1 - leave),
    ), -1)  # fmt: skip
    return Gradients(gates, gates, None, (cell * forget,))


def _gru_forward(parts: State, state: State) -> State:
    (reset, update, new), (own_reset, own_update, own_new) = (each.chunk(3, -1) for each in parts)
    keep = (update + own_update).sigmoid()
    fresh = (new + (reset + own_reset).sigmoid() * own_new).tanh()
    return (fresh + keep * (state[0] - fresh),)


def _gru_backward(parts: State, state: State, gradients: State) -> Gradients:
    (reset, update, new), (own_reset, own_update, own_new) = (each.chunk(3, -1) for each in parts)
    opened, keep = (reset + own_reset).sigmoid(), (update + own_update).sigmoid()
    fresh = (new + opened * own_new).tanh()
    to_new = gradients[0] * (1 - keep) * (1 - fresh * fresh)
    to_reset = to_new * own_new * opened * (1 - opened)
    to_update = gradients[0] * (state[0] - fresh) * keep * (1 - keep)
    row_gates, own_gates = (torch.cat((to_reset, to_update, each), -1) for each in (to_new, to_new * opened))
    return Gradients(row_gates, own_gates, gradients[0] * keep, ())


def _plain(activation: Callable[[Tensor], Tensor], backward: Callable[[Tensor, Tensor], Tensor]) -> Cell:
    """backward: (gradient, value of the activation) → gradient of what is before it."""

    def gradients(parts: State, state: State, given: State) -> Gradients:
        before = backward(given[0], activation(parts[0]))
        return Gradients(before, before, None, ())

    return Cell(lambda parts, state: (activation(parts[0]),), gradients, keeps=False)


LSTM = Cell(_lstm_forward, _lstm_backward)
GRU = Cell(_gru_forward, _gru_backward, summed=False)
RNN_TANH = _plain(torch.tanh, lambda gradient, value: gradient * (1 - value * value))
RNN_RELU = _plain(torch.relu, lambda gradient, value: torch.where(value <= 0, 0.0, gradient))
