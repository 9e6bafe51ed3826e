"""Models to be trained: those of paper 004 (appendix A), small, a recurrent classifier and a fit of forces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10
WORDS = 20


class Cnn(nn.Module):
    """Three convolutions, the last by strides, two linear layers. 8 channels for the paper's 64."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, channels, 5, padding=2), nn.Conv2d(channels, channels, 5, padding=2)
        self.third = nn.Conv2d(channels, channels, 2, stride=2)
        self.wide, self.head = nn.Linear(channels * 49, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.relu(self.third(F.relu(self.second(x))))
        return F.cross_entropy(self.head(F.relu(self.wide(x.flatten(1)))), y)


class NormedCnn(nn.Module):
    """What the paper's has not: batch norm, pools whose windows overlap, averages, strides of 2 by kernels of 3, groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.grouped, self.head = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=2), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 3, 2, 1)
        x = F.avg_pool2d(F.relu(self.grouped(x)), 3, 2, 1)
        return F.cross_entropy(self.head(x.mean((2, 3))), y)


class Transformer(nn.Module):
    """Layers with the norm first, which predict every word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layers(self.embedding(ids))).flatten(0, 1), y.flatten())


class MultiplicativeLstm(nn.Module):
    """m = (W_mx x) * (W_mh h), and an LSTM's gates of x and m, three steps written out; recurrent weights are normed (paper 004, A)."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 4), nn.Linear(hidden, WORDS)
        norm = torch.nn.utils.parametrizations.weight_norm
        self.by_input, self.by_state = nn.Linear(4, hidden, bias=False), norm(nn.Linear(hidden, hidden, bias=False))
        self.gates, self.gates_of_m = nn.Linear(4, 4 * hidden), norm(nn.Linear(hidden, 4 * hidden, bias=False))
        self.hidden = hidden

    def forward(self, ids: Tensor, y: Tensor) -> Tensor:
        state = cell = torch.zeros(ids.shape[0], self.hidden)
        states = []
        for x in self.embedding(ids).unbind(1):
            m = self.by_input(x) * self.by_state(state)
            i, f, o, u = (self.gates(x) + self.gates_of_m(m)).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(u)
            state = torch.sigmoid(o) * torch.tanh(cell)
            states.append(state)
        return F.cross_entropy(self.head(torch.stack(states, 1)).flatten(0, 1), y.flatten())


class LstmClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(WORDS, 6), nn.LSTM(6, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layer(self.embedding(ids))[0][:, -1]), y)


class Forces(nn.Module):
    """An energy of distances between atoms; its gradients by the places are fitted, too, so weights have second derivatives (DeePMD)."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.fit = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

    def energy(self, places: Tensor) -> Tensor:
        difference = places.unsqueeze(1) - places.unsqueeze(2)
        near = 1 / (difference.square().sum(-1, keepdim=True) + 1).sqrt()
        return self.fit(self.pairs(near).sum(2)).sum((1, 2))

    def forward(self, places: Tensor, y: Tensor) -> Tensor:
        forces = -torch.func.grad(lambda each: self.energy(each).sum())(places)
        return F.mse_loss(self.energy(places), y) + F.mse_loss(forces, places * 0.1)


@dataclass(frozen=True)
class Training:
    """inputs: (batch, length) → the two arguments of `make()`, whose result is a loss; sizes: of the steps; long: takes some 10 s."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int, int], tuple[Tensor, Tensor]]
    sizes: tuple[tuple[int, int], ...]
    long: bool = False


def _images(channels: int) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    return lambda batch, size: (torch.randn(batch, channels, size, size), torch.randint(CLASSES, (batch,)))


def _words(batch: int, length: int) -> tuple[Tensor, Tensor]:
    return torch.randint(WORDS, (batch, length)), torch.randint(WORDS, (batch, length))


TRAININGS = {
    "cnn": Training(Cnn, _images(1), ((3, 28), (4, 28), (2, 28), (7, 28)), long=True),
    "normed-cnn": Training(NormedCnn, _images(3), ((3, 17), (4, 22)), long=True),
    "transformer": Training(Transformer, _words, ((2, 5), (3, 7), (5, 4), (2, 16)), long=True),
    "mlstm": Training(MultiplicativeLstm, _words, ((2, 3), (5, 3), (3, 3)), long=True),
    "lstm": Training(LstmClassifier, lambda b, n: (torch.randint(WORDS, (b, n)), torch.randint(CLASSES, (b,))), ((2, 4), (3, 6), (5, 3))),
    "forces": Training(Forces, lambda b, n: (torch.randn(b, n, 3), torch.randn(b)), ((2, 5), (3, 4))),
}  # fmt: skip
