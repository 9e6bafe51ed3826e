"""One layer of a recurrent network in one direction, as a loop over its steps, and its gradients as a loop backwards.

The products with the inputs of all steps are made before the loop, and in training the gradients of the weights behind it: each is one
product, where PyTorch's own gradient of `scan` adds to the weights' gradients in every step.

Within autocast products are in its type, as in PyTorch, and weights are converted before the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops.scan import scan_op
from torch.autograd.function import once_differentiable

from disc.frontend.recurrent_cells import LSTM, Cell, Gradients, State


@dataclass(frozen=True)
class Weights:
    """Of one layer in one direction; `project` of an LSTM with projections alone."""

    inputs: Tensor
    state: Tensor
    input_bias: Tensor | None
    state_bias: Tensor | None
    project: Tensor | None


def layer(cell: Cell, x: Tensor, first: State, weights: Weights, alive: Tensor | None, *, backwards: bool) -> tuple[State, Tensor]:
    """x: [length, batch, size]; alive: [length, batch], where the state goes on: elsewhere it stays, and the output is anything.

    The last state, and the output of every step: [length, batch, hidden].
    """
    further = (weights.state, weights.state_bias, weights.project)
    given = (x, weights.inputs, weights.input_bias, *first, *further)
    trained = (
        torch.is_grad_enabled() and not torch.compiler.is_exporting() and any(each.requires_grad for each in given if each is not None)
    )
    if trained and alive is not None:
        x = torch.where(alive.unsqueeze(-1), x, 0)  # a product with a NaN there would be one of the weights' gradient
    rows = F.linear(x, weights.inputs, weights.input_bias)
    rows, narrow = rows.flip(0) if backwards else rows, rows.dtype
    further = cast("Further", tuple(None if each is None else each.to(narrow) for each in further))
    whole = alive is None and cell is LSTM  # PyTorch computes these by a function of oneDNN, all of whose results are narrow
    if whole or not cell.keeps or weights.project is not None:
        first = (first[0].to(narrow), *first[1:])
    alive = alive.flip(0) if backwards and alive is not None else alive
    if trained:
        output, *last = cast("list[Tensor]", _Steps.apply(cell, rows, *further, alive, *first))
    else:
        output, *last = _forward(cell, rows, further, first, alive)
    if whole and weights.project is None:
        last = [each.to(narrow) for each in last]
    return tuple(last), (output.flip(0) if backwards else output)


Further = tuple[Tensor, Tensor | None, Tensor | None]  # the weights that each step reads: of the state, its bias, the projection


def _forward(cell: Cell, rows: Tensor, further: Further, first: State, alive: Tensor | None, *, kept: bool = False) -> list[Tensor]:
    """The outputs of all steps, then the last state. kept: then what gradients need of each step: what it adds of the state, or the sum
    of that and its row (`Cell.parts`), its further state (an LSTM's cells), and its hidden values before a projection."""
    read = [rows] if alive is None else [rows, alive]
    count, given = len(first), [each.clone() for each in further if each is not None]

    def step(*operands: Tensor) -> list[Tensor]:
        state, row, (weight, bias, project) = operands[:count], operands[count], _spread(operands[count + len(read) :], further)
        own = F.linear(state[0].to(weight.dtype), weight, bias)
        parts = cell.parts(row, own)
        hidden, *others = cell.forward(parts, state)
        output = hidden if project is None else F.linear(hidden.to(project.dtype), project)
        if alive is not None:
            goes_on = operands[count + 1].unsqueeze(-1)
            output, *others = (torch.where(goes_on, new, old) for new, old in zip((output, *others), state, strict=True))
        values = [parts[-1], *others, *([] if project is None else [hidden])] if kept else []
        output, *others = _like(state, (output, *others))
        return [output, *others, *(each.clone() for each in (output, *values))]

    found = _scan(step, first, read, given)
    return [found[count], *found[:count], *found[count + 1 :]]


class _Steps(torch.autograd.Function):
    """(cell, rows, weight, bias, projection, alive, *first state) → the outputs of all steps, *last state."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: torch.autograd.function.FunctionCtx,
        cell: Cell,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        project: Tensor | None,
        alive: Tensor | None,
        *first: Tensor,
    ) -> tuple[Tensor, ...]:
        count = 1 + len(first)
        found = _forward(cell, rows, (weight, bias, project), first, alive, kept=True)
        ctx.cell, ctx.states = cell, len(first)  # pyright: ignore[reportAttributeAccessIssue]
        own = None if cell.summed else rows
        ctx.save_for_backward(own, weight, bias, project, alive, found[0], *first, *found[count:])  # pyright: ignore[reportArgumentType]
        return tuple(found[:count])

    @staticmethod
    @once_differentiable
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        cell, states = cast("tuple[Cell, int]", (ctx.cell, ctx.states))  # pyright: ignore[reportAttributeAccessIssue]
        rows, weight, bias, project, alive, output, *kept = ctx.saved_tensors  # pyright: ignore[reportAttributeAccessIssue]
        first, values = kept[:states], kept[states + 1 :]
        parts = [each for each in (rows, kept[states]) if each is not None]
        # What is sliced is longer than the sequence: of a slice of length - 1 PyTorch would ask whether that is 1.
        before = [torch.cat((start.unsqueeze(0), each))[:-1] for start, each in zip(first, (output, *values), strict=False)]
        given = [each.clone() for each in (weight, project) if each is not None]

        def step(*operands: Tensor) -> list[Tensor]:
            after, gates = operands[:states], operands[states : states + len(parts)]
            to_output, *state = operands[states + len(parts) : known]
            goes_on, (weight, *projected) = operands[known:read], operands[read:]
            total = after[0] + to_output
            hidden = total.to(weight.dtype) @ projected[0] if projected else total
            found = cell.backward(gates, tuple(state), (hidden, *after[1:]))
            if goes_on:
                found = _where(goes_on[0].unsqueeze(-1), found, (total, *after[1:]))
                total = torch.where(goes_on[0].unsqueeze(-1), total, 0)
            to_row, to_own = found.row.to(gates[0].dtype), found.own.to(weight.dtype)
            past = to_own @ weight
            stacked = [to_row, *([] if found.own is found.row else [to_own]), *([total] if projected else [])]
            passed = past if found.hidden is None else past + found.hidden
            return [*_like(after, (passed, *found.further)), *(each.clone() for each in stacked)]

        stacks = (*parts, gradients[0], *before, *([] if alive is None else [alive]))
        read = states + len(stacks)
        known = read if alive is None else read - 1
        found = _scan(step, gradients[1:], [each.flip(0) for each in stacks], given)
        to_row, *stacked = (each.flip(0) for each in found[states:])
        total = stacked.pop() if project is not None else None
        to_own = stacked[0] if stacked else to_row
        return (
            None,
            to_row,
            _product(to_own, before[0]),
            None if bias is None else to_own.sum((0, 1)),
            None if total is None else _product(total.to(weight.dtype), values[-1]),
            None,
            *found[:states],
        )


def _like(state: State, changed: State) -> State:
    """The next state in the types of the one before: within autocast products are narrower."""
    return tuple(new.to(old.dtype) for new, old in zip(changed, state, strict=True))


def _where(goes_on: Tensor, found: Gradients, passed: State) -> Gradients:
    """The gradients of a step; where the state stays, those of the next one."""
    row, own = (torch.where(goes_on, each, 0) for each in (found.row, found.own))
    hidden = torch.where(goes_on, 0 if found.hidden is None else found.hidden, passed[0])
    further = tuple(torch.where(goes_on, each, other) for each, other in zip(found.further, passed[1:], strict=True))
    return Gradients(row, row if found.own is found.row else own, hidden, further)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """The sum over all steps and rows of the products of what is there, [left size, right size]."""
    return left.flatten(0, 1).t() @ right.flatten(0, 1).to(left.dtype)


def _spread(given: Sequence[Tensor], further: Further) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The weights of a step as its operands, in the places where there are any."""
    own = iter(given)
    return cast("tuple[Tensor, Tensor | None, Tensor | None]", tuple(None if each is None else next(own) for each in further))


def _scan(step: object, first: Sequence[Tensor], rows: Sequence[Tensor], given: Sequence[Tensor]) -> list[Tensor]:
    """The last state, and what each step returns behind its state, stacked. PyTorch forbids what `scan` reads to share memory."""
    return list(scan_op(step, [each.clone() for each in first], list(rows), tuple(given)))
