"""Loops of Python over the steps of a sequence under `disc.lazy`: one program for all numbers of steps, which computes what eager does."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import disc
from disc.frontend.lazy.statistics import LazyStatistics

HIDDEN, WORDS, WIDTH = 20, 29, 12


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(2 * HIDDEN, WORDS)
        self.forth, self.back = nn.GRUCell(WIDTH, HIDDEN), nn.GRUCell(WIDTH, HIDDEN)

    def zeros(self, ids: Tensor) -> Tensor:
        return torch.zeros(ids.shape[0], HIDDEN)


class BothDirections(Network):
    """Two loops of equal calls one behind the other, the second over rows from the end; all their states are stacked, in either order."""

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        rows, state, forth, back = self.embedding(ids), self.zeros(ids), list[Tensor](), list[Tensor]()
        for t in range(ids.shape[1]):
            state = self.forth(rows[:, t], state)
            forth.append(state)
        state = self.zeros(ids)
        for t in reversed(range(ids.shape[1])):
            state = self.back(rows[:, t], state)
            back.append(state)
        states = torch.cat([torch.stack(forth, 1), torch.stack(back[::-1], 1)], -1)
        return F.cross_entropy(self.head(states).flatten(0, 1), words.flatten())


class NextWord(Network):
    """A loss of every step, of a row and the next one, added up; a number of the program (the divisor) goes with the number of steps."""

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        state, loss = self.zeros(ids), torch.zeros(())
        for t in range(ids.shape[1] - 1):
            state = self.forth(self.embedding(ids[:, t]), state)
            loss = loss + F.cross_entropy(self.head(torch.cat([state, state * 0.5], 1)), ids[:, t + 1])
        return loss / (ids.shape[1] - 1)


class TwoLayers(Network):
    """A loop over what another one has made; rows by `unbind`; the first state is the cell's own; the last value alone is used."""

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        state, upper, states = None, self.zeros(ids), list[Tensor]()
        for row in self.embedding(ids).unbind(1):
            state = self.forth(row, state)
            states.append(state)
        for each in states:
            upper = torch.tanh(upper + each).mul(0.75)
        return F.cross_entropy(self.head(torch.cat([upper, states[-1]], 1)), words[:, 0])


def steps(kind: type[Network], sizes: Sequence[tuple[int, int]], *, read_before: bool = False) -> LazyStatistics:
    """Steps of training with batches and lengths that change: losses and weights as in eager mode."""
    torch.manual_seed(0)
    network = kind()
    twin = copy.deepcopy(network)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (network, twin)]

    def step(number: int, *given: Tensor) -> float:
        optimizers[number].zero_grad()
        loss = (network, twin)[number](*given)
        if read_before:
            loss.item()
        loss.backward()
        optimizers[number].step()
        return loss.item()

    for batch, length in sizes:
        ids, words = torch.randint(0, WORDS, (batch, length)), torch.randint(0, WORDS, (batch, length))
        with disc.lazy():
            loss = step(0, ids, words)
        assert loss == pytest.approx(step(1, ids, words), abs=1e-5)
        for ours, expected in zip(network.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
            assert (ours.grad is None) == (expected.grad is None)
    return disc.lazy.stats()


class Series(Network):
    """The cell asks how many dims a row has, before it is known that it has as many rows as its state."""

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        x, state = torch.linspace(-1, 1, WIDTH) * ids.unsqueeze(-1), self.zeros(ids)
        for t in range(ids.shape[1]):
            state = self.forth(x[:, t], state)
        return state.square().mean()


class PartsOfRows(Network):
    """Of each row a part is taken, by an index of several numbers, and of the rows of one sequence of the batch."""

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        x, state = self.embedding(ids), self.zeros(ids)
        for t in range(ids.shape[1]):
            parts = x[:, t, None, :3].sum(2) + x[:, t, 1:2] * x[0, t, 2] + x[..., t, 0:1]
            state = self.forth(x[:, t], state) + 0.1 * parts * (words[:, t, None] > 3)
        return state.square().mean()


class KeptState(Network):
    """Begins with what the call before has left in a buffer: setting that asks nothing that would end the trace."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(1, HIDDEN))

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        state = self.last.expand(ids.shape[0], HIDDEN)
        for t in range(ids.shape[1]):
            state = self.forth(self.embedding(ids[:, t]), state)
        self.last = state.detach().mean(0, keepdim=True)
        return state.square().mean()


class Masked(Network):
    """The first step alone has a product of which no gradient is, so that the loop begins with the second one."""

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        rows, mask, state = self.embedding(ids), (ids > 2).float(), self.zeros(ids)
        for t in range(ids.shape[1]):
            kept = mask[:, t : t + 1]
            state = kept * self.forth(rows[:, t], state) + (1 - kept) * state
        return state.square().mean()


class ChosenWords(Network):
    """The next word is what the step before found likeliest: no gradient goes to the head, which PyTorch leaves without one."""

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        state, word, states = self.zeros(ids), ids[:, 0], list[Tensor]()
        for t in range(ids.shape[1]):
            state = self.forth(self.embedding(word) + self.embedding(ids[:, t]), state)
            word = self.head(torch.cat([state, state], 1)).argmax(1)
            states.append(state)
        return torch.stack(states).square().mean()


class Truncated(Network):
    """Outputs that nobody uses; a state that is let go of in every step, and one of which gradients are off."""

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        state, loss, unused = self.zeros(ids), torch.zeros(()), list[Tensor]()
        for t in range(ids.shape[1]):
            state = self.forth(self.embedding(ids[:, t]), state.detach())
            with torch.no_grad():
                target = torch.tanh(state * 2)
            loss = loss + (state - target).square().mean()
            unused.append(self.head(torch.cat([state, state], 1)))
        return loss


class Watched(Network):
    """Outputs that are kept, with a view of them, and no part of the loss: no gradient goes to the head. What every step counts has none."""

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        state, right, outputs = self.zeros(ids), torch.zeros(()), list[Tensor]()
        for t in range(ids.shape[1]):
            state = self.forth(self.embedding(ids[:, t]), state)
            outputs.append(self.head(torch.cat([state, state], 1)))
            right = right + (outputs[-1].argmax(1) == words[:, t]).float().mean()
        kept = torch.stack(outputs)
        self.seen = right, kept, kept.transpose(0, 1)
        return state.square().mean()


class WrittenInPlace(Network):
    """In a step: a loss from before the loop that comes to require gradients, values of the step in part and in whole, what gradients are
    off for, and a new tensor."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(HIDDEN))

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        state, loss, again = self.zeros(ids), torch.zeros(()), 0
        for t in range(ids.shape[1]):
            row = torch.zeros_like(state)
            row[:, 1:] = state[:, :-1] * 0.5
            row += state
            row.masked_fill_(row > 0.4, 0.1)
            state = self.forth(self.embedding(ids[:, t]), F.relu(row, inplace=True)) + torch.zeros(ids.shape[0], HIDDEN)
            with torch.no_grad():
                self.mean.mul_(0.9).add_(state[0]).add_(state[-1], alpha=0.1)
            state = state + 0.1 * torch.tanh(self.mean)
            loss += F.cross_entropy(self.head(torch.cat([state, row], 1)), words[:, t])
            again += state.square().mean()
        return (loss + again) / 64


class WrittenRows(Network):
    """Rows are written behind one that stays, in two parts, from one row for all, in reverse, and where gradients are off."""

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        batch, length = ids.shape
        rows, state, seen = self.embedding(ids), self.zeros(ids), torch.empty(length, batch, HIDDEN)
        states, same = torch.zeros(batch, length + 1, 2 * HIDDEN), torch.zeros(batch, length, HIDDEN, dtype=torch.float64)
        for t in range(length):
            state = self.forth(rows[:, t], state)
            states[:, t + 1, :HIDDEN] = state
            states[:, t + 1, HIDDEN:] = 2 * state
            same[:, length - 1 - t] = state[0]
            with torch.no_grad():
                seen[t] = state
        outputs = self.head(states[:, 1:].flatten(0, 1))
        return F.cross_entropy(outputs, words.flatten()) + (same.float() * seen.transpose(0, 1)).mean() + states[:, 0].sum()


class WrittenFromOutside(Network):
    """What a loop writes has a view outside of it, and stands in a list many times."""

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        rows, state, sums = self.embedding(ids), self.zeros(ids), list[Tensor]()
        total = rows.mean() * torch.ones(3)
        view = total[1:]
        for t in range(ids.shape[1]):
            state = self.forth(rows[:, t], state)
            total += state.mean()
            sums.append(total)
        return view.square().sum() + torch.stack(sums).mean()


FIRST, FURTHER = [(4, 11)] * 3, [(5, 14)] * 2 + [(3, 9)] * 2 + [(6, 4)] * 2 + [(2, 25)] * 2  # grad is None in the first step alone


@pytest.mark.parametrize(
    "kind", [BothDirections, TwoLayers, Series, PartsOfRows, KeptState, Masked, ChosenWords, Truncated, WrittenInPlace, WrittenRows]
)
def test_one_program_serves_all_numbers_of_steps(kind: type[Network]) -> None:
    found = steps(kind, FIRST + FURTHER)
    assert (found.compiles, found.shared, found.hits, dict(found.refused)) == (1, 4, 4, {})


class Neighbors(Network):
    """A step reads two rows of a list, and what is carried has strides of its own where the batch is 1, as a half and in a sum's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * WIDTH + HIDDEN, 2 * HIDDEN)

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        x, state, states = self.embedding(ids), self.zeros(ids), list[Tensor]()
        for row, other in itertools.pairwise([x[:, t] for t in range(ids.shape[1])]):
            up, down = self.gates(torch.cat([row, other, state], 1)).chunk(2, 1)
            state = torch.sigmoid(up) * torch.tanh(down)
            states.append(state)
        return torch.stack(states, 1).square().mean() + self.head(torch.cat([states[-1], state], 1)).square().mean()


def test_no_size_has_to_come_twice() -> None:
    """The first call finds no gradients. Of the next ones the second makes a program, and the second of a batch of 1 another; programs serve
    numbers of steps that came before there were any."""
    sizes = [
        (4, 11),
        (1, 4),
        (3, 5),
        (6, 14),
        (1, 10),
        (5, 25),
        (1, 13),
        (4, 17),
        (1, 7),
        (8, 3),
        (3, 8),
        (1, 10),
        (2, 3),
        (7, 14),
        (1, 13),
    ]
    found = steps(Neighbors, sizes)
    assert (found.compiles, found.shared, found.hits) == (2, 7, 3)


class Averaged(Network):
    """A loss by the number of steps, and a state that begins as a tensor from outside: its first sum has another name."""

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        state, loss = self.zeros(ids), torch.zeros(())
        for t in range(ids.shape[1]):
            state = torch.tanh(state @ self.forth.weight_hh[:HIDDEN] + self.embedding(ids[:, t]).sum(1, keepdim=True))
            loss = loss + F.cross_entropy(self.head(torch.cat([state, 1 - state], 1)), words[:, t])
        return loss / ids.shape[1]


def test_few_steps_are_a_loop_where_their_number_varies() -> None:
    found = steps(Averaged, [(4, 5), (4, 4), (3, 6), (2, 3), (6, 2), (5, 12), (5, 3), (2, 2), (4, 12)])
    assert (found.compiles, found.shared, found.hits) == (1, 3, 3)


def test_a_number_that_goes_with_the_steps_becomes_general() -> None:
    found = steps(NextWord, [*FIRST, *FURTHER, (4, 17), (4, 17)])
    assert (found.compiles, found.hits) == (2, 4)


@pytest.mark.parametrize("kind", [TwoLayers, Watched])
def test_gradients_are_asked_for_once_the_loss_has_been_read(kind: type[Network]) -> None:
    found = steps(kind, FIRST + FURTHER[:4], read_before=True)
    assert found.shared >= 2 and not found.refused


def states_of(x: Tensor, weight: Tensor) -> tuple[list[Tensor], Tensor]:
    state, states = torch.zeros(x.shape[0], weight.shape[0]), list[Tensor]()
    for t in range(x.shape[1]):
        state = torch.tanh(x[:, t : t + 1].squeeze(1) + state @ weight)
        states.append(state)
    return states, torch.stack(states[::-1]).sum(0) + states[0]


def test_all_states_are_held_and_rows_keep_their_dim() -> None:
    weight = torch.randn(6, 6) * 0.3
    for length in (9, 9, 12, 12, 2, 2, 10, 10):
        x = torch.randn(3, length, 6)
        with torch.no_grad(), disc.lazy():
            states, total = states_of(x, weight)
            first = states[0].tolist()
        expected, sum_of_them = states_of(x, weight)
        for ours, mine in zip((torch.tensor(first), *states, total), (expected[0], *expected, sum_of_them), strict=True):
            torch.testing.assert_close(ours, mine, atol=1e-5, rtol=1e-5)
    assert disc.lazy.stats().shared >= 2


def test_a_loop_over_a_tensor_that_is_kept_has_a_fixed_number_of_steps() -> None:
    x, weight = torch.randn(3, 9, 6), torch.randn(6, 6) * 0.3  # what is given again has fixed sizes, as weights have
    for _ in range(3):
        with torch.no_grad(), disc.lazy():
            total = states_of(x, weight)[1].tolist()
        torch.testing.assert_close(torch.tensor(total), states_of(x, weight)[1], atol=1e-5, rtol=1e-5)
    assert (disc.lazy.stats().compiles, disc.lazy.stats().hits) == (1, 1)


def test_layers_with_weights_of_their_own_are_no_loop() -> None:
    def deep(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
        for each in weights:
            x = torch.tanh(x @ each)
        return x

    weights = [torch.randn(5, 5) for _ in range(12)]
    for count in (12, 12, 12, 10, 10, 10):
        x = torch.randn(3, 5)
        with torch.no_grad(), disc.lazy():
            found = deep(x, weights[:count]).tolist()
        torch.testing.assert_close(torch.tensor(found), deep(x, weights[:count]), atol=1e-5, rtol=1e-5)
    assert (disc.lazy.stats().compiles, disc.lazy.stats().shared) == (2, 0)


class WrittenBehind(Network):
    """A state that is in the list of all states is written in place behind the loop."""

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        state, states = torch.tanh(self.embedding(ids).sum(1) @ self.forth.weight_ih[:WIDTH, :]), list[Tensor]()
        for row in self.embedding(ids).unbind(1):
            state = torch.sin(state + row)
            states.append(state)
        states[-1].mul_(3)
        return torch.stack(states).square().mean()


class WrittenRowsAreRead(Network):
    """By the next step, as rows and in whole; two steps write one row."""

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        states, sums = (torch.zeros(ids.shape[0], ids.shape[1] + 1, HIDDEN) for _ in range(2))
        twice = torch.zeros(ids.shape[1] + 1, 3)
        for t in range(ids.shape[1]):
            states[:, t + 1] = self.forth(self.embedding(ids[:, t]), states[:, t].clone())
            sums[:, t] = states[:, t + 1] + sums.mean()
            twice[t] = states[0, t + 1, :3]
            twice[t + 1] = 3 * twice[t]
        return states.square().mean() + sums.mean() + twice.square().mean()


class WrittenByNext(Network):
    """A step writes what the one before has made, and a copy of a state that shares its memory and has no gradients."""

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        state, states = self.embedding(ids[:, 0]), list[Tensor]()
        for t in range(ids.shape[1]):
            state = torch.cat([state[:, 1:], state[:, :1] + 1], 1)
            alone = state.detach()
            alone += 0.25
            states.append(state)
            states[max(t - 1, 0)].add_(0.5)
        return torch.stack(states).mean() * self.embedding(words).sum()


@pytest.mark.parametrize("kind", [WrittenBehind, WrittenByNext, WrittenRowsAreRead, WrittenFromOutside])
def test_what_a_scan_would_change_is_no_loop(kind: type[Network]) -> None:
    steps(kind, [(4, 9)] * 4 + [(3, 10)])


def test_calls_of_lists_of_other_lengths_are_no_steps() -> None:
    x = torch.randn(3, 4)
    with disc.lazy():
        sums = [torch.stack([x] * count).sum(0) for count in range(1, 6)]
        for count, each in enumerate(sums, 1):
            torch.testing.assert_close(each, x * count)


def test_values_that_nobody_needs_have_no_gradients() -> None:
    class Unused(Network):
        def forward(self, ids: Tensor, words: Tensor) -> Tensor:
            state, unused = self.zeros(ids), list[Tensor]()
            for t in range(ids.shape[1]):
                state = self.forth(self.embedding(ids[:, t]), state)
                unused.append(self.head(torch.cat([state, state], 1)))
            return state.square().mean()

    found = steps(Unused, [(4, 9)] * 4 + [(3, 10)] * 2)
    assert (found.compiles, found.shared, found.hits) == (1, 1, 2)


def test_gradients_of_gradients_of_a_loop() -> None:
    """A scan keeps for its gradients what is no function of its operands to PyTorch: the loop is compiled step by step."""
    weight = nn.Parameter(torch.randn(4, 4) * 0.3)

    def states(x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] @ weight + h)
        return h, torch.autograd.grad(h.square().sum(), x, create_graph=True)[0]

    for whole in (True, False):
        for batch, steps in ((3, 9), (3, 9), (3, 9), (3, 12), (4, 9), (3, 12)):
            x, given = torch.randn(batch, steps, 4), list[list[Tensor | None]]()
            for lazily in (True, False):
                leaf, weight.grad = x.clone().requires_grad_(), None
                with disc.lazy() if lazily else nullcontext():
                    h, slope = states(leaf)
                    if whole:
                        (slope.square().sum() + h.sum()).backward()
                if not whole:
                    (slope.square().sum() + h.sum()).backward()
                given.append([h, slope, leaf.grad, weight.grad])
            torch.testing.assert_close(*given, rtol=1e-4, atol=1e-5)
    assert disc.lazy.stats().hits and not disc.lazy.stats().refused, disc.lazy.stats()


def test_a_graph_is_retained_behind_recording() -> None:
    weight = nn.Parameter(torch.randn(4, 4) * 0.3)
    for batch, steps in ((3, 9), (3, 9), (3, 9), (3, 12), (4, 9), (3, 12)):
        x, given = torch.randn(batch, steps, 4), list[list[Tensor | None]]()
        for lazily in (True, False):
            leaf, weight.grad, states = x.clone().requires_grad_(), None, list[Tensor]()
            with disc.lazy() if lazily else nullcontext():
                h = torch.zeros(batch, 4)
                for t in range(steps):
                    h = torch.tanh(leaf[:, t] @ weight + h)
                    states.append(h)
            torch.stack(states[::3]).sum().backward(retain_graph=True)
            states[5].square().sum().backward()
            given.append([*states, leaf.grad, weight.grad])
        torch.testing.assert_close(*given, rtol=1e-4, atol=1e-5)
    assert disc.lazy.stats().hits, disc.lazy.stats()


def test_steps_are_checkpoints() -> None:
    cell = nn.GRUCell(4, 6)
    for batch, steps in ((3, 8), (3, 8), (4, 9)):
        x, given = torch.randn(batch, steps, 4), list[list[Tensor | None]]()
        for lazily in (True, False):
            cell.zero_grad()
            with disc.lazy() if lazily else nullcontext():
                h = torch.zeros(batch, 6)
                for t in range(steps):
                    h = checkpoint(cell, x[:, t], h, use_reentrant=False)
            h.square().sum().backward()
            given.append([h, cell.weight_hh.grad])
        torch.testing.assert_close(*given, rtol=1e-4, atol=1e-5)
