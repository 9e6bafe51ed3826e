"""Models over trees, grids and sentences, written for one instance: Cortex's (Fegade et al., MLSys 2021, table 2) and a tagger that reads
both ways (ACROBAT, Fegade et al., MLSys 2023, table 3), as a user would write them.

The input of a case is the numbers of the instances of a batch, the same instances in every run: parse trees with 2 to 52 words (19 in the
mean, as in the Stanford treebank), perfect trees with 128 leaves, grids of 10 x 10, sentences of 2 to 52 words.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bench.cases.case import Case
from bench.cases.training import RATE

WORDS, MATRICES, SIDE, LEAVES, COUNT, CLASSES = 1000, 200, 10, 128, 64, 16
BATCHES = ((1,), (10,), (64,))


@dataclass(eq=False)
class Tree:
    word: int = 0
    left: Tree | None = None
    right: Tree | None = None

    @property
    def is_leaf(self) -> bool:
        return self.left is None


def parse_tree(draw: random.Random, words: int) -> Tree:
    """Cuts anywhere, or cuts one word off: then to the left, where a treebank's sentences begin with short phrases."""
    if words == 1:
        return Tree(draw.randrange(WORDS))
    cut = draw.randint(1, words - 1) if draw.random() < 0.47 else 1 if draw.random() < 0.75 else words - 1
    return Tree(0, parse_tree(draw, cut), parse_tree(draw, words - cut))


def perfect_tree(draw: random.Random, words: int) -> Tree:
    if words == 1:
        return Tree(draw.randrange(WORDS))
    return Tree(0, perfect_tree(draw, words // 2), perfect_tree(draw, words // 2))


@cache
def parse_trees() -> list[Tree]:
    draw = random.Random(0)
    return [parse_tree(draw, min(52, max(2, round(draw.gammavariate(4.22, 4.53))))) for _ in range(COUNT)]


@cache
def trees_of_few_words() -> list[Tree]:
    """The parse trees with the words of a vocabulary of 200: each of them has a matrix."""

    def renamed(tree: Tree) -> Tree:
        left, right = (None if child is None else renamed(child) for child in (tree.left, tree.right))
        return Tree(tree.word % MATRICES, left, right)

    return [renamed(tree) for tree in parse_trees()]


@cache
def sentences() -> list[list[int]]:
    """As long as the parse trees' sentences."""
    draw = random.Random(0)
    return [[draw.randrange(WORDS) for _ in range(min(52, max(2, round(draw.gammavariate(4.22, 4.53)))))] for _ in range(COUNT)]


@cache
def perfect_trees() -> list[Tree]:
    draw = random.Random(0)
    return [perfect_tree(draw, LEAVES) for _ in range(COUNT)]


@cache
def grids() -> list[list[list[int]]]:
    draw = random.Random(0)
    return [[[draw.randrange(WORDS) for _ in range(SIDE)] for _ in range(SIDE)] for _ in range(COUNT)]


class TreeModel(nn.Module):
    """`leaf(word)` and `node(*results of the left child, *results of the right one)` take one node, or many along a first dim."""

    def forward(self, tree: Tree) -> Any:
        if tree.is_leaf:
            return self.leaf(tree.word)
        return self.node(self(tree.left), self(tree.right))

    def by_hand(self, trees: Sequence[Tree]) -> Tensor:
        """All trees level by level, as one batches by hand."""
        levels: list[list[Tree]] = []
        for tree in trees:
            _height(tree, levels)
        place = {id(node): number for number, node in enumerate(node for level in levels for node in level)}
        tables: list[Tensor] = []
        used = 0
        for level in levels:
            if not tables:
                made = _parts(self.leaf(torch.tensor([node.word for node in level])))
                tables = [torch.empty(len(place), *each.shape[1:]) for each in made]
            else:
                sides = [torch.tensor([place[id(getattr(node, side))] for node in level]) for side in ("left", "right")]
                left, right = ([table[rows] for table in tables] for rows in sides)
                made = _parts(self.node(_whole(left), _whole(right)))
            for table, each in zip(tables, made, strict=True):
                table[used : used + len(level)] = each
            used += len(level)
        return tables[0][torch.tensor([place[id(tree)] for tree in trees])]

    def leaf(self, word: Any) -> Any:
        raise NotImplementedError

    def node(self, left: Any, right: Any) -> Any:
        raise NotImplementedError


def _height(tree: Tree, levels: list[list[Tree]]) -> int:
    height = 0 if tree.left is None or tree.right is None else 1 + max(_height(tree.left, levels), _height(tree.right, levels))
    while len(levels) <= height:
        levels.append([])
    levels[height].append(tree)
    return height


def _parts(made: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def _whole(parts: list[Tensor]) -> Any:
    return parts[0] if len(parts) == 1 else tuple(parts)


class TreeFC(TreeModel):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.emb, self.fc = nn.Embedding(WORDS, hidden), nn.Linear(2 * hidden, hidden)

    def leaf(self, word: Any) -> Tensor:
        return self.emb.weight[word]

    def node(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.relu(self.fc(torch.cat([left, right], -1)))


class TreeLSTM(TreeModel):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.emb, self.w_iou = nn.Embedding(WORDS, hidden), nn.Linear(hidden, 3 * hidden)
        self.u_iou, self.u_f = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def leaf(self, word: Any) -> tuple[Tensor, Tensor]:
        i, o, u = self.w_iou(self.emb.weight[word]).chunk(3, -1)
        c = torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(c), c

    def node(self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        (h_left, c_left), (h_right, c_right) = left, right
        i, o, u = self.u_iou(h_left + h_right).chunk(3, -1)
        c = torch.sigmoid(i) * torch.tanh(u)
        c = c + torch.sigmoid(self.u_f(h_left)) * c_left + torch.sigmoid(self.u_f(h_right)) * c_right
        return torch.sigmoid(o) * torch.tanh(c), c


class TreeGRU(TreeModel):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.emb, self.w = nn.Embedding(WORDS, hidden), nn.Linear(hidden, 3 * hidden)
        self.u, self.u_n = nn.Linear(hidden, 2 * hidden), nn.Linear(hidden, hidden)

    def leaf(self, word: Any) -> Tensor:
        _, z, n = self.w(self.emb.weight[word]).chunk(3, -1)
        n = torch.tanh(n)
        return n - torch.sigmoid(z) * n

    def node(self, left: Tensor, right: Tensor) -> Tensor:
        h = left + right
        r, z = torch.sigmoid(self.u(h)).chunk(2, -1)
        n = torch.tanh(self.u_n(r * h))
        return n + z * (h - n)


class MVRNN(TreeModel):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.vectors, self.w = nn.Embedding(MATRICES, hidden), nn.Linear(2 * hidden, hidden)
        self.matrices = nn.Parameter(torch.eye(hidden) + 0.1 / hidden**0.5 * torch.randn(MATRICES, hidden, hidden))
        self.w_m = nn.Parameter(torch.randn(hidden, 2 * hidden) / (2 * hidden) ** 0.5)

    def leaf(self, word: Any) -> tuple[Tensor, Tensor]:
        return self.vectors.weight[word], self.matrices[word]

    def node(self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        (a, a_matrix), (b, b_matrix) = left, right
        crossed = [(b_matrix @ a.unsqueeze(-1)).squeeze(-1), (a_matrix @ b.unsqueeze(-1)).squeeze(-1)]
        return torch.tanh(self.w(torch.cat(crossed, -1))), self.w_m @ torch.cat([a_matrix, b_matrix], -2)


class DAGRNN(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden, self.emb = hidden, nn.Embedding(WORDS, hidden)
        self.u, self.w = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden, bias=False)

    def forward(self, grid: list[list[int]]) -> Tensor:
        above = [torch.zeros(self.hidden) for _ in grid[0]]
        for row in grid:
            west = torch.zeros(self.hidden)
            for column, word in enumerate(row):
                west = torch.tanh(self.u(self.emb.weight[word]) + self.w(above[column] + west))
                above[column] = west
        return above[-1]

    def by_hand(self, grids: Sequence[list[list[int]]]) -> Tensor:
        """All grids, one diagonal after the other."""
        words = torch.tensor(grids)
        states = torch.zeros(len(grids), SIDE + 1, SIDE + 1, self.hidden)  # with a border of zeros
        for number in range(2 * SIDE - 1):
            row = torch.arange(max(0, number - SIDE + 1), min(SIDE, number + 1))
            column = number - row
            x = self.u(self.emb.weight[words[:, row, column]])
            states[:, row + 1, column + 1] = torch.tanh(x + self.w(states[:, row, column + 1] + states[:, row + 1, column]))
        return states[:, SIDE, SIDE]


class BiRNN(nn.Module):
    """The scores of the classes of each word; the first result is that of the first word."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden, self.emb = hidden, nn.Embedding(WORDS, hidden)
        self.w_forth, self.u_forth = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden, bias=False)
        self.w_back, self.u_back = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Linear(2 * hidden, CLASSES)

    def forward(self, words: list[int]) -> tuple[Tensor, ...]:
        forth = self.states(words, self.w_forth, self.u_forth)
        back = self.states(words[::-1], self.w_back, self.u_back)[::-1]
        return tuple([self.out(torch.cat([f, b])) for f, b in zip(forth, back, strict=True)])

    def states(self, words: list[int], w: nn.Linear, u: nn.Linear) -> list[Tensor]:
        h, found = torch.zeros(self.hidden), []
        for word in words:
            h = torch.sigmoid(w(self.emb.weight[word]) + u(h))
            found.append(h)
        return found

    def by_hand(self, sentences: Sequence[list[int]]) -> Tensor:
        """Sentences in order of their length, a step for all that are long enough."""
        order = sorted(range(len(sentences)), key=lambda each: -len(sentences[each]))
        longest = [sentences[each] for each in order]
        states = [self._steps(longest, self.w_forth, self.u_forth), self._steps([each[::-1] for each in longest], self.w_back, self.u_back)]
        lengths = torch.tensor([len(each) for each in longest])
        at = torch.arange(int(lengths.max()))
        mirrored = (lengths.unsqueeze(1) - 1 - at).clamp(min=0)
        back = states[1].gather(1, mirrored.unsqueeze(-1).expand(-1, -1, self.hidden))
        scores = self.out(torch.cat([states[0], back], -1))[at < lengths.unsqueeze(1)]
        starts = torch.cumsum(lengths, 0) - lengths
        return scores[starts[torch.argsort(torch.tensor(order))]]

    def _steps(self, longest: Sequence[Sequence[int]], w: nn.Linear, u: nn.Linear) -> Tensor:
        states = torch.zeros(len(longest), len(longest[0]), self.hidden)
        h = torch.zeros(len(longest), self.hidden)
        for at in range(len(longest[0])):
            words = torch.tensor([each[at] for each in longest if at < len(each)])
            h = torch.sigmoid(w(self.emb.weight[words]) + u(h[: len(words)]))
            states[: len(words), at] = h
        return states


class Instances(nn.Module):
    """A model for one instance, called with numbers of instances. Of several results the first counts."""

    def __init__(self, model: nn.Module, made: Callable[[], Sequence[Any]]) -> None:
        super().__init__()
        self.model, self._made = model, made

    def chosen(self, numbers: Tensor) -> list[Any]:
        """The instances of these numbers."""
        made = self._made()
        return [made[number] for number in numbers.tolist()]

    def forward(self, numbers: Tensor) -> Tensor:
        return stacked([self.model(each) for each in self.chosen(numbers)])

    def by_hand(self, numbers: Tensor) -> Tensor:
        return self.model.by_hand(self.chosen(numbers))  # pyright: ignore[reportCallIssue]


class TrainedInstances(Instances):
    """A step of training: the mean square of the first results, and then weights are changed. SGD is PyTorch's own for every peer of it."""

    def __init__(self, model: nn.Module, made: Callable[[], Sequence[Any]]) -> None:
        super().__init__(model, made)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.step(lambda: super(TrainedInstances, self).forward(numbers))

    def step(self, results: Callable[[], Tensor]) -> Tensor:
        """The loss, of results that have gradients."""
        with torch.enable_grad():
            self._optimizer.zero_grad()
            loss = results().square().mean()
            loss.backward()
        self._optimizer.step()
        return loss.detach()


def stacked(results: Sequence[Any]) -> Tensor:
    """The first result of each instance."""
    return torch.stack([each[0] if isinstance(each, tuple) else each for each in results])


def _case(
    name: str, model: Callable[[int], nn.Module], made: Callable[[], Sequence[Any]], hidden: int, kind: type[Instances] = Instances
) -> Case:
    words = ("-training", ", a step of training") if kind is TrainedInstances else ("", "")
    return Case(
        f"{name.lower().replace('-', '')}-{hidden}{words[0]}",
        f"{name}, hidden {hidden}{words[1]}",
        lambda: kind(model(hidden), made),
        lambda shape: (torch.arange(shape[0]),),
        BATCHES,
        (0,),
        (8,),
    )


DYNAMIC_CASES: tuple[Case, ...] = (
    *(_case("TreeFC", TreeFC, perfect_trees, hidden) for hidden in (256, 512)),
    *(_case("TreeLSTM", TreeLSTM, parse_trees, hidden) for hidden in (256, 512)),
    *(_case("TreeGRU", TreeGRU, parse_trees, hidden) for hidden in (256, 512)),
    *(_case("MV-RNN", MVRNN, trees_of_few_words, hidden) for hidden in (64, 128)),
    *(_case("DAG-RNN", DAGRNN, grids, hidden) for hidden in (256, 512)),
    *(_case("BiRNN", BiRNN, sentences, hidden) for hidden in (256, 512)),
    *(_case("TreeLSTM", TreeLSTM, parse_trees, hidden, TrainedInstances) for hidden in (256, 512)),
)
