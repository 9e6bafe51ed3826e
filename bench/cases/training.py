"""Steps of training, from the loss to SGD: the models of paper 004 (appendix A), and a transformer with dropout."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.cases.case import Case, Inputs, Shape, random_tensor

CLASSES, BYTES, WORDS, VOCABULARY = 10, 256, 32_000, 1000
RATE = 1e-12  # SGD does all its work, and weights of f32 stay what they are: every call of every peer has the same loss


class TrainingStep(nn.Module):
    """The loss of a network in training mode, whose weights are then changed. `loss`: the network itself, or a compiled form of it. SGD is
    PyTorch's own for every peer. computed_in: what products are made in by `torch.autocast`, as every peer has it; weights, their gradients
    and SGD are in f32 always."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.loss: Callable[..., Tensor] = network
        self.optimizer: torch.optim.Optimizer | None = None
        self.computed_in = torch.float32

    def train(self, mode: bool = True) -> TrainingStep:
        """In training mode always."""
        return super().train(True)

    def compile_network(self, backend: str, options: dict[str, Any] | None = None) -> None:
        self.loss = torch.compile(self.network, backend=backend, dynamic=True, options=options)

    def forward(self, *inputs: Tensor) -> Tensor:
        if self.optimizer is None:
            self.optimizer = torch.optim.SGD(self.network.parameters(), lr=RATE)
        with torch.enable_grad():
            self.optimizer.zero_grad()
            with self._casting():
                loss = self.loss(*inputs)
            loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _casting(self) -> contextlib.AbstractContextManager[object]:
        if self.computed_in == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast("cpu", self.computed_in)


class Cnn(nn.Module):
    """Images of 28 x 28: [batch, 1, 28, 28]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 64, 5, padding=2), nn.Conv2d(64, 64, 5, padding=2)
        self.third = nn.Conv2d(64, 64, 2, stride=2)
        self.wide, self.head = nn.Linear(3136, 1024), nn.Linear(1024, CLASSES)

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.relu(self.third(F.relu(self.second(x))))
        return F.cross_entropy(self.head(F.relu(self.wide(x.flatten(1)))), classes)


class Transformer(nn.Module):
    """A word for every token, by layers with the norm first."""

    def __init__(self, width: int, heads: int, inside: int, layers: int, words: int, dropout: float) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        layer = nn.TransformerEncoderLayer(width, heads, inside, dropout, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layers(self.embedding(ids))).flatten(0, 1), words.flatten())


class MultiplicativeLstm(nn.Module):
    """m = (W_mx x) * (W_mh h), and the gates of an LSTM of x and m; weights of the state are normed. Steps are Python's loop."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        norm = torch.nn.utils.parametrizations.weight_norm
        self.embedding, self.head, self.hidden = nn.Embedding(BYTES, 64), nn.Linear(hidden, BYTES), hidden
        self.by_input, self.by_state = nn.Linear(64, hidden, bias=False), norm(nn.Linear(hidden, hidden, bias=False))
        self.gates, self.gates_of_m = nn.Linear(64, 4 * hidden), norm(nn.Linear(hidden, 4 * hidden, bias=False))

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        state = cell = torch.zeros(ids.shape[0], self.hidden, device=ids.device)
        states = []
        for x in self.embedding(ids).unbind(1):
            i, f, o, u = (self.gates(x) + self.gates_of_m(self.by_input(x) * self.by_state(state))).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(u)
            state = torch.sigmoid(o) * torch.tanh(cell)
            states.append(state)
        return F.cross_entropy(self.head(torch.stack(states, 1)).flatten(0, 1), words.flatten())


class LstmClassifier(nn.Module):
    """A class for the last token, by PyTorch's own layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(BYTES, 128), nn.LSTM(128, hidden, batch_first=True)
        self.head = nn.Linear(hidden, BYTES)

    def forward(self, ids: Tensor, words: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layer(self.embedding(ids))[0][:, -1]), words[:, -1])


class Forces(nn.Module):
    """An energy of the distances between atoms, [batch, atoms, 3]; its gradients by the places are fitted, too, as DeePMD does (Wang et al.
    2018): the widths of its nets."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs, self.fit = self._net(1, 25, 50, 100), nn.Sequential(self._net(100, 240, 240, 240), nn.Linear(240, 1))

    @staticmethod
    def _net(*widths: int) -> nn.Sequential:
        return nn.Sequential(*(layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.Tanh())))

    def energy(self, places: Tensor) -> Tensor:
        difference = places.unsqueeze(1) - places.unsqueeze(2)
        near = 1 / (difference.square().sum(-1, keepdim=True) + 1).sqrt()
        return self.fit(self.pairs(near).mean(2)).sum((1, 2))

    def forward(self, places: Tensor, energies: Tensor) -> Tensor:
        forces = -torch.func.grad(lambda each: self.energy(each).sum())(places)
        return F.mse_loss(self.energy(places), energies) + F.mse_loss(forces, places * 0.1)


def _images(shape: Shape) -> Inputs:
    generator = torch.Generator().manual_seed(sum(shape))
    return random_tensor(*shape, 1, 28, 28), torch.randint(CLASSES, shape, generator=generator)


def _atoms(shape: Shape) -> Inputs:
    return random_tensor(*shape, 3), random_tensor(shape[0])


def _words(count: int) -> Callable[[Shape], Inputs]:
    def inputs(shape: Shape) -> Inputs:
        generator = torch.Generator().manual_seed(sum(shape))
        return tuple(torch.randint(count, shape, generator=generator) for _ in range(2))

    return inputs


def _step(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: TrainingStep(make())


TRAINING_CASES = (
    Case("training-cnn", "CNN, 28 x 28", _step(Cnn), _images, ((64,), (256,)), (0,), (5,), network=True),
    Case(
        "training-transformer", "Transformer, 8 layers", _step(lambda: Transformer(512, 4, 1024, 8, WORDS, 0.0)), _words(WORDS),
        ((4, 100), (32, 100)), (0, 1), (3, 17), network=True,
    ),
    Case(
        "training-mlstm", "mLSTM, 16 steps", _step(lambda: MultiplicativeLstm(512)), _words(BYTES), ((16, 16), (32, 16)), (0,), (5, 16),
        network=True,
    ),
    Case(
        "training-lstm", "nn.LSTM, 256 units", _step(lambda: LstmClassifier(256)), _words(BYTES), ((16, 50), (32, 100)), (0, 1), (5, 16),
        network=True,
    ),
    Case("training-forces", "forces, as of DeePMD", _step(Forces), _atoms, ((2, 32), (4, 64)), (0, 1), (3, 9), network=True),
    # What is dropped is drawn anew in every call: losses agree as far as means do.
    Case(
        "training", "Transformer, 4 layers, dropout", _step(lambda: Transformer(256, 4, 1024, 4, VOCABULARY, 0.1)), _words(VOCABULARY),
        ((2, 32), (4, 128), (8, 64)), (0, 1), (3, 17), tolerance=0.05,
    ),
)  # fmt: skip
