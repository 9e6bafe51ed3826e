"""Random programs under `disc.lazy`: values, what is written, losses and gradients are eager PyTorch's, over changing sizes; loops of Python
with random numbers of steps, too, which must not be compiled for each of these."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

import disc
from disc.frontend.lazy import public
from tests.fuzz.seeds import seeds

WIDTH = 4
BATCHES = (3, 3, 3, 5, 3, 1, 7, 5, 0, 3)


@dataclass
class State:
    """What a program works on. held: values that stay alive from step to step; read: numbers that it has read."""

    weights: list[nn.Parameter]
    buffers: list[Tensor]
    held: dict[int, Tensor] = field(default_factory=dict)
    read: list[Tensor] = field(default_factory=list)


Values = list[Tensor]  # of a step, all [batch, WIDTH]
Action = Callable[[Values, State], None]


def fresh_state(seed: int) -> State:
    generator = torch.Generator().manual_seed(seed)
    weights = [nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator) / 2) for _ in range(3)]
    return State(weights, [torch.zeros(WIDTH), torch.ones(2, WIDTH)])


def action(draw: random.Random) -> Action:
    """One of many, with its numbers drawn."""
    a, b, w, kind = draw.randrange(100), draw.randrange(100), draw.randrange(3), draw.randrange(23)

    def run(values: Values, state: State) -> None:
        x, y, weight = values[a % len(values)], values[b % len(values)], state.weights[w]
        plain = x.detach()
        if kind <= 3:
            values.append(torch.tanh(x @ weight))
        elif kind == 4:
            values.append(x * 0.5 + y)
        elif kind == 5:
            values.append(torch.relu(x - 0.1) + x.mean(0, keepdim=True).nan_to_num())
        elif kind == 6:
            values.append(x.reshape(-1, 2, WIDTH // 2).transpose(1, 2).reshape(-1, WIDTH))
        elif kind == 7:
            values.append(torch.cat([x[:, 2:], y[:, :2]], 1))
        elif kind == 8:
            values.append(plain.clone().add_(1).mul_(y.detach()))
        elif kind == 9:
            z = plain.clone()
            z[:, 1] = y.detach()[:, 0]
            values.append(z)
        elif kind == 10:
            with torch.no_grad():
                state.buffers[0].mul_(0.5).add_(x.sum(0))
        elif kind == 11:
            with torch.no_grad():
                state.buffers[1][0] = x.sum(0)
            values.append(x + state.buffers[1][1])
        elif kind == 12:
            state.held[b % 3] = x.detach() * 2
        elif kind == 13 and 0 in state.held:
            values.append(x + state.held[0].sum(0))
        elif kind == 14:
            state.read.append(torch.tensor(x.sum().item()))
        elif kind == 15 and x.sum() > 0:
            values.append(x * 2)
        elif kind == 16:
            values.append(x.view(x.shape[0], WIDTH // 2, -1 if x.shape[0] else 2).flip(1).flatten(1))
        elif kind == 17:
            values.append(torch.softmax(x, -1) + x.size(-1))
        elif kind == 18:
            state.held[3] = x.detach().t()
        elif kind == 19:
            loss = x.square().sum() + y.sum()
            if loss.requires_grad:
                grads = torch.autograd.grad(loss, state.weights, allow_unused=True, retain_graph=True)
                values.extend(plain + each.sum() for each in grads if each is not None)
        elif kind == 20:
            values.append(plain[plain[:, 0] > 0].sum(0) + x)
        elif kind == 21:
            z = plain.clone()
            z.view(-1)[::2] += 1
            values.append(z)
        elif kind == 22:
            with torch.no_grad():
                weight.mul_(0.99)

    return run


def program(seed: int) -> Callable[[State], None]:
    """Some actions, a loss of all values, its backward pass (sometimes after it has been read), and SGD by hand."""
    draw = random.Random(seed)
    actions = [action(draw) for _ in range(draw.randrange(2, 14))]
    trains, before, holds = draw.random() < 0.8, draw.random() < 0.3, draw.random() < 0.3

    def step(batch: int, state: State) -> None:
        values = [torch.linspace(-0.9, 1.3, batch * WIDTH).view(batch, WIDTH)]
        for each in actions:
            each(values, state)
        values = [each for each in values if each.isfinite().all()] if before and holds else values
        loss = sum((each.square().mean().nan_to_num() for each in values[1:]), values[0].sum())
        if before:
            state.read.append(torch.tensor(float(loss)))  # pyright: ignore[reportArgumentType]
        if holds:
            state.held[4] = values[-1]
        if trains and loss.requires_grad:  # pyright: ignore[reportAttributeAccessIssue]
            loss.backward()  # pyright: ignore[reportAttributeAccessIssue]
            with torch.no_grad():
                for each in state.weights:
                    if each.grad is not None:
                        each.sub_(each.grad.clamp(-1, 1), alpha=0.1)
                        each.grad = None
        if not before:
            state.read.append(torch.tensor(float(loss)))  # pyright: ignore[reportArgumentType]

    return lambda state: [step(batch, state) for batch in BATCHES] and None


def run(seed: int) -> None:
    public._thread.__init__()
    expected, found = fresh_state(seed), fresh_state(seed)
    try:
        program(seed)(expected)
    except RuntimeError:  # a weight is changed that its backward pass needs
        with pytest.raises(RuntimeError), disc.lazy():
            program(seed)(found)
        return
    with disc.lazy():
        program(seed)(found)
    theirs = [*expected.read, *expected.weights, *expected.buffers, *expected.held.values()]
    ours = [*found.read, *found.weights, *found.buffers, *found.held.values()]
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.as_tensor(mine.detach().numpy()), wanted.detach(), rtol=2e-3, atol=2e-4, equal_nan=True)


@pytest.mark.parametrize("seed", seeds(3, 200))
def test_programs(seed: int) -> None:
    run(seed)


UNITS, INPUTS, WORDS, CLASSES = 6, 5, 11, 3
MOST_COMPILES = 3  # for batches of 1, for others, and for what some sizes alone allow


class Tagger(nn.Module):
    """A network over the steps of a sequence, drawn: the cell, how steps get their rows, what is made of the states, and the loss."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.cell, self.rows, self.loss = draw.choice(("lstm", "gru", "rnn", "own", "memory")), draw.randrange(3), draw.randrange(4)
        self.upper, self.back = draw.random() < 0.3, draw.random() < 0.3
        self.embedding, self.head = nn.Embedding(WORDS, INPUTS), nn.Linear(UNITS, CLASSES)
        kinds = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}
        makes: Callable[[int, int], nn.Module] = kinds.get(self.cell, lambda inputs, units: nn.Linear(inputs + units, 4 * units))
        self.cells = nn.ModuleList([makes(INPUTS, UNITS), makes(UNITS, UNITS), makes(INPUTS, UNITS)])

    def step(self, cell: nn.Module, row: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        if self.cell == "lstm":
            return cell(row, state)
        if self.cell in ("gru", "rnn"):
            return cell(row, state[0]), state[1]
        i, f, g, o = cell(torch.cat([row, state[0]], 1)).chunk(4, 1)
        if self.cell == "memory":  # outer products, and what normalizes them
            memory = torch.sigmoid(f).unsqueeze(2) * state[1] + i.unsqueeze(2) @ torch.tanh(g).unsqueeze(1)
            return (memory @ o.unsqueeze(2)).squeeze(2) / (1 + o.square().sum(1, keepdim=True)), memory
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def states(self, cell: nn.Module, rows: list[Tensor]) -> list[Tensor]:
        h = torch.zeros(rows[0].shape[0], UNITS)
        state, found = (h, torch.zeros(rows[0].shape[0], UNITS, UNITS) if self.cell == "memory" else h), list[Tensor]()
        for row in rows:
            state = self.step(cell, row, state)
            found.append(state[0])
        return found

    def forward(self, ids: Tensor, classes: Tensor) -> Tensor:
        x, length = self.embedding(ids), ids.shape[1]
        rows = [self.embedding(ids[:, t]) if self.rows == 0 else x[:, t] for t in range(length)] if self.rows < 2 else list(x.unbind(1))
        found = self.states(self.cells[0], rows)
        found = self.states(self.cells[1], found) if self.upper else found
        if self.back:
            found = [one + other for one, other in zip(found, self.states(self.cells[2], rows[::-1])[::-1], strict=True)]
        if self.loss == 0:
            return nn.functional.cross_entropy(self.head(torch.stack(found, 1)).flatten(0, 1), classes.flatten())
        if self.loss == 1:
            return nn.functional.cross_entropy(self.head(found[-1]), classes[:, 0])
        losses = [nn.functional.cross_entropy(self.head(each), classes[:, t]) for t, each in enumerate(found)]
        return torch.stack(losses).mean() if self.loss == 2 else sum(losses, torch.zeros(())) / length


def sizes(draw: random.Random, count: int) -> list[tuple[int, int]]:
    """Batches and lengths. Some are alike, or the size of a layer; the first ones may be odd."""
    chosen = [(draw.randrange(1, 9), draw.randrange(2, 18)) for _ in range(count)]
    odd = draw.choice(([(1, 9), (1, 4)], [(3, 2), (2, 2)], [(9, 9), (7, 7)], [(UNITS, UNITS), (UNITS, 12)], [(4, 5), (4, 3)], []))
    return [*odd, *chosen, (UNITS, UNITS), (UNITS, CLASSES), (WORDS, INPUTS), (1, UNITS), *chosen[-3:]]


def run_loops(seed: int, count: int) -> None:
    draw = random.Random(seed)
    public._thread.__init__()
    torch.manual_seed(seed)
    network = Tagger(draw)
    twin = copy.deepcopy(network)
    kind = draw.choice((torch.optim.SGD, torch.optim.AdamW))
    optimizers, clips = [kind(each.parameters(), lr=0.05) for each in (network, twin)], draw.random() < 0.5

    def step(number: int, *given: Tensor) -> float:
        model = (network, twin)[number]
        optimizers[number].zero_grad()
        loss = model(*given)
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers[number].step()
        return loss.item()

    for batch, length in sizes(draw, count):
        ids, classes = torch.randint(0, WORDS, (batch, length)), torch.randint(0, CLASSES, (batch, length))
        with disc.lazy():
            loss = step(0, ids, classes)
        assert loss == pytest.approx(step(1, ids, classes), abs=1e-4, rel=1e-4)
        for ours, expected in zip(network.parameters(), twin.parameters(), strict=True):
            assert (ours.grad is None) == (expected.grad is None)
            if ours.grad is not None:
                torch.testing.assert_close(ours.grad, expected.grad, atol=1e-4, rtol=1e-3)
            with torch.no_grad():
                ours.copy_(expected)  # AdamW makes much of tiny differences
    found = disc.lazy.stats()
    assert found.compiles <= MOST_COMPILES and not found.refused, (found.compiles, found.shared, found.refused)


@pytest.mark.parametrize("seed", seeds(1, 40))
def test_loops_of_random_lengths(seed: int) -> None:
    run_loops(seed, 6 if seed == 0 else 24)
