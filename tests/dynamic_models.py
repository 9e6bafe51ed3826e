"""Models over trees, graphs, lists and decisions, as a user writes them, and their instances. Sizes are tiny."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import nn

WORDS = 20


@dataclass(eq=False)
class Tree:
    word: int = 0
    left: Tree | None = None
    right: Tree | None = None

    @property
    def is_leaf(self) -> bool:
        return self.left is None


def parse_tree(draw: random.Random, words: int) -> Tree:
    if words == 1:
        return Tree(draw.randrange(WORDS))
    cut = draw.randint(1, words - 1)
    return Tree(0, parse_tree(draw, cut), parse_tree(draw, words - cut))


def trees(count: int, seed: int = 0, most: int = 6) -> list[Tree]:
    draw = random.Random(seed)
    return [parse_tree(draw, draw.randint(1, most)) for _ in range(count)]


class TreeFC(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, hidden)
        self.fc = nn.Linear(2 * hidden, hidden)

    def forward(self, tree):
        if tree.is_leaf:
            return self.emb.weight[tree.word]
        return torch.relu(self.fc(torch.cat([self(tree.left), self(tree.right)])))


class TreeLSTM(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, hidden)
        self.w_iou = nn.Linear(hidden, 3 * hidden)
        self.u_iou = nn.Linear(hidden, 3 * hidden)
        self.u_f = nn.Linear(hidden, hidden)

    def forward(self, tree):
        if tree.is_leaf:
            return self.leaf(self.emb.weight[tree.word])
        return self.node(self(tree.left), self(tree.right))

    def leaf(self, x):
        i, o, u = self.w_iou(x).chunk(3)
        c = torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(c), c

    def node(self, left, right):
        (h_left, c_left), (h_right, c_right) = left, right
        i, o, u = self.u_iou(h_left + h_right).chunk(3)
        f_left, f_right = torch.sigmoid(self.u_f(h_left)), torch.sigmoid(self.u_f(h_right))
        c = torch.sigmoid(i) * torch.tanh(u) + f_left * c_left + f_right * c_right
        return torch.sigmoid(o) * torch.tanh(c), c


class TreeGRU(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.emb = nn.Embedding(WORDS, hidden)
        self.u = nn.Linear(hidden, 2 * hidden)
        self.u_n = nn.Linear(hidden, hidden)
        self.w = nn.Linear(hidden, hidden)

    def forward(self, tree):
        if tree.left is None:
            return torch.tanh(self.w(self.emb.weight[tree.word]))
        h = self(tree.left) + self(tree.right)
        r, z = torch.sigmoid(self.u(h)).chunk(2)
        n = torch.tanh(self.u_n(r * h))
        return n + z * (h - n)


class MVRNN(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(WORDS, hidden)
        self.matrices = nn.Parameter(torch.eye(hidden) + 0.1 * torch.randn(WORDS, hidden, hidden))
        self.w = nn.Linear(2 * hidden, hidden)
        self.w_m = nn.Parameter(torch.randn(hidden, 2 * hidden) / hidden)

    def forward(self, tree):
        if tree.is_leaf:
            return self.vectors.weight[tree.word], self.matrices[tree.word]
        a, left = self(tree.left)
        b, right = self(tree.right)
        return torch.tanh(self.w(torch.cat([left @ b, right @ a]))), self.w_m @ torch.cat([left, right])


@dataclass(eq=False)
class Grid:
    words: list[list[int]]


class DAGRNN(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, hidden)
        self.u, self.w = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden, bias=False)
        self.hidden = hidden

    def forward(self, grid):
        above = [torch.zeros(self.hidden) for _ in grid.words[0]]
        for row in grid.words:
            west = torch.zeros(self.hidden)
            for column, word in enumerate(row):
                west = torch.tanh(self.u(self.emb.weight[word]) + self.w(above[column] + west))
                above[column] = west
        return above[-1]


@dataclass(eq=False)
class Node:
    word: int
    parents: list[Node] = field(default_factory=list)


class GraphRNN(nn.Module):
    """Over nodes that several others share."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, hidden)
        self.w = nn.Linear(hidden, hidden)

    def forward(self, node):
        x = self.emb.weight[node.word]
        if not node.parents:
            return torch.tanh(x)
        return torch.tanh(x + self.w(sum(self(parent) for parent in node.parents)))


class BiRNN(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.emb = nn.Embedding(WORDS, hidden)
        self.forth, self.back = nn.Linear(2 * hidden, hidden), nn.Linear(2 * hidden, hidden)
        self.out = nn.Linear(2 * hidden, 4)

    def cell(self, layer, word, h):
        return torch.sigmoid(layer(torch.cat([self.emb.weight[word], h])))

    def forward(self, words):
        h, forth = torch.zeros(self.hidden), []
        for word in words:
            h = self.cell(self.forth, word, h)
            forth.append(h)
        h, back = torch.zeros(self.hidden), []
        for word in reversed(words):
            h = self.cell(self.back, word, h)
            back.append(h)
        return [self.out(torch.cat([f, b])) for f, b in zip(forth, reversed(back), strict=True)]


class LSTM(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.emb, self.cell, self.hidden = nn.Embedding(WORDS, hidden), nn.LSTMCell(hidden, hidden), hidden

    def forward(self, words):
        h, c = torch.zeros(1, self.hidden), torch.zeros(1, self.hidden)
        for word in words:
            h, c = self.cell(self.emb.weight[word].unsqueeze(0), (h, c))
        return h


class GRU(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.emb, self.cell, self.hidden = nn.Embedding(WORDS, hidden), nn.GRUCell(hidden, hidden), hidden

    def forward(self, words):
        h = torch.zeros(1, self.hidden)
        for word in words:
            h = self.cell(self.emb.weight[word].unsqueeze(0), h)
        return h


class NestedRNN(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.outer = nn.GRUCell(hidden, hidden)
        self.w_o, self.w_e, self.u_e = (nn.Linear(hidden, hidden) for _ in range(3))

    def forward(self, counts):
        outer, inner = torch.zeros(1, self.hidden), torch.zeros(1, self.hidden)
        for count in counts:
            outer = self.outer(inner, outer)
            node = torch.tanh(self.w_o(outer))
            for _ in range(count):
                inner = torch.sigmoid(self.w_e(node) + self.u_e(inner))
        return inner


class DRNN(nn.Module):
    """Makes a tree from the top; whether a node has children is in the data, but the value is read before."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.w_a, self.w_f, self.w_p = (nn.Linear(2 * hidden, hidden) for _ in range(3))
        self.w_t, self.w_o = nn.Linear(hidden, 2), nn.Linear(hidden, 5)

    def forward(self, shape):
        found = []
        start = torch.zeros(self.hidden)
        self.grow(shape, start, start, found)
        return found

    def grow(self, shape, parent, sibling, found):
        a = torch.sigmoid(self.w_a(torch.cat([parent, sibling])))
        f = torch.sigmoid(self.w_f(torch.cat([sibling, parent])))
        h = torch.tanh(self.w_p(torch.cat([a, f])))
        p = torch.sigmoid(self.w_t(h))
        found.append(torch.softmax(self.w_o(h), 0))
        before = torch.zeros(self.hidden)
        if float(p[0]) < 2.0:
            for child in shape.parents:
                before = self.grow(child, h, before, found)
        return h


class StackRNN(nn.Module):
    """Shift and reduce, as the scores say where both can be done."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.emb = nn.Embedding(WORDS, hidden)
        self.cell, self.join = nn.Linear(2 * hidden, hidden), nn.Linear(2 * hidden, hidden)
        self.score = nn.Linear(2 * hidden, 2)

    def forward(self, words):
        buffer, stack = [self.emb.weight[word] for word in reversed(words)], []
        history = torch.zeros(self.hidden)
        while buffer or len(stack) > 1:
            top = stack[-1] if stack else torch.zeros(self.hidden)
            s = self.score(torch.cat([top, history]))
            action = int(s.argmax())
            if (action == 0 or len(stack) < 2) and buffer:
                stack.append(buffer.pop())
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(torch.tanh(self.join(torch.cat([left, right]))))
            history = torch.tanh(self.cell(torch.cat([stack[-1], history])))
        return stack[0] if stack else history


class Exits(nn.Module):
    """Layers that share weights, until a classifier is sure (as Berxit)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(hidden, 2, 2 * hidden, dropout=0.0, batch_first=True).eval()
        self.classifier = nn.Linear(hidden, 3)

    def forward(self, x):
        scores = None
        for _ in range(4):
            x = self.layer(x.unsqueeze(0)).squeeze(0)
            scores = torch.softmax(self.classifier(x[0]), -1)
            if scores.max() > 0.5:
                break
        return scores


def sentences(count: int, seed: int = 0, most: int = 6) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(WORDS) for _ in range(draw.randint(1, most))] for _ in range(count)]


def grids(count: int, seed: int = 0) -> list[Grid]:
    draw = random.Random(seed)
    return [Grid([[draw.randrange(WORDS) for _ in range(3)] for _ in range(draw.randint(1, 3))]) for _ in range(count)]


def shapes(count: int, seed: int = 0) -> list[Node]:
    """Trees as nodes with their children in `parents`."""
    draw = random.Random(seed)

    def grown(depth: int) -> Node:
        return Node(draw.randrange(WORDS), [grown(depth + 1) for _ in range(draw.randint(0, 3 - depth))] if depth < 3 else [])

    return [grown(0) for _ in range(count)]


def tokens(count: int, seed: int = 0) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return [2 * torch.randn(5, 8, generator=made) for _ in range(count)]


CASES = {
    "TreeFC": (TreeFC, trees), "TreeLSTM": (TreeLSTM, trees), "TreeGRU": (TreeGRU, trees), "MV-RNN": (MVRNN, trees), "DAG-RNN": (DAGRNN, grids),
    "GraphRNN": (GraphRNN, shapes), "BiRNN": (BiRNN, sentences), "LSTM": (LSTM, sentences), "GRU": (GRU, sentences),
    "NestedRNN": (NestedRNN, lambda count: [[len(words), 2] for words in sentences(count, most=3)]), "DRNN": (DRNN, shapes),
    "StackRNN": (StackRNN, sentences), "exits": (Exits, tokens),
}  # fmt: skip
