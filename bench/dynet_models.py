"""The models of the suite dynamic in DyNet, whose graph of a batch is recorded and batched in each call (Neubig et al., 2017).

DyNet's wheel is `dyNET38`. It reads its settings once, when it is imported: a process is one strategy's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.cases import Instances, TrainedInstances
from bench.cases.training import RATE

MEGABYTES = 2048  # DyNet takes all that it will use at the start
Cell = Callable[..., Any]


def dynet_of(strategy: int) -> Any:
    """The module. strategy: of `autobatch`: 1 takes what is ready by depth, 2 from an agenda."""
    import dynet_config  # pyright: ignore[reportMissingImports]

    dynet_config.set(mem=MEGABYTES, autobatch=strategy, random_seed=1)
    import dynet  # pyright: ignore[reportMissingImports]

    return dynet


class Weights:
    """The weights of a module by name: matrices and biases as parameters, tables as lookup parameters."""

    def __init__(self, dynet: Any, model: Instances) -> None:
        self.collection = dynet.ParameterCollection()
        self._made: dict[str, Any] = {}
        for name, each in model.model.named_parameters():
            add = self.collection.lookup_parameters_from_numpy if name in TABLES else self.collection.parameters_from_numpy
            array = each.detach().numpy()
            self._made[name] = add(array.swapaxes(1, 2) if array.ndim == 3 else array)  # it reads a table's matrices by columns

    def __getitem__(self, name: str) -> Any:
        return self._made[name]

    def linear(self, dynet: Any, name: str, x: Any) -> Any:
        """`nn.Linear` of this name."""
        return dynet.affine_transform([self[f"{name}.bias"], self[f"{name}.weight"], x])


TABLES = ("emb.weight", "vectors.weight", "matrices")


def bind(dynet: Any, model: Instances, instances: Sequence[Any]) -> Callable[[], Any]:
    """The call: the first results of all instances as an array, [instances, hidden]; of a step of training the loss."""
    weights = Weights(dynet, model)
    build = BUILDERS[type(model.model).__name__](dynet, weights)

    def results() -> Any:
        dynet.renew_cg()
        return dynet.concatenate_cols([build(each) for each in instances])

    trainer = dynet.SimpleSGDTrainer(weights.collection, learning_rate=RATE)

    def step() -> Any:
        loss = dynet.mean_elems(dynet.square(results()))
        loss.forward()
        loss.backward()
        trainer.update()
        return np.asarray(loss.value(), np.float32)

    if isinstance(model, TrainedInstances):
        return step
    return lambda: results().npvalue().reshape(-1, len(instances)).T


def _tree(leaf: Cell, node: Cell) -> Cell:
    def of(tree: Any) -> Any:
        return leaf(tree.word) if tree.is_leaf else node(*of(tree.left), *of(tree.right))

    return lambda tree: of(tree)[0]


def _parts(dynet: Any, value: Any, count: int) -> list[Any]:
    width = value.dim()[0][0] // count
    return [dynet.pick_range(value, number * width, (number + 1) * width) for number in range(count)]


def tree_fc(dynet: Any, weights: Weights) -> Cell:
    def node(left: Any, right: Any) -> tuple[Any, ...]:
        return (dynet.rectify(weights.linear(dynet, "fc", dynet.concatenate([left, right]))),)

    return _tree(lambda word: (weights["emb.weight"][word],), node)


def tree_lstm(dynet: Any, weights: Weights) -> Cell:
    def gated(gates: Any, kept: Sequence[Any]) -> tuple[Any, Any]:
        i, o, u = _parts(dynet, gates, 3)
        c = dynet.esum([dynet.cmult(dynet.logistic(i), dynet.tanh(u)), *kept])
        return dynet.cmult(dynet.logistic(o), dynet.tanh(c)), c

    def leaf(word: int) -> tuple[Any, Any]:
        return gated(weights.linear(dynet, "w_iou", weights["emb.weight"][word]), ())

    def node(h_left: Any, c_left: Any, h_right: Any, c_right: Any) -> tuple[Any, Any]:
        kept = [dynet.cmult(dynet.logistic(weights.linear(dynet, "u_f", h)), c) for h, c in ((h_left, c_left), (h_right, c_right))]
        return gated(weights.linear(dynet, "u_iou", h_left + h_right), kept)

    return _tree(leaf, node)


def tree_gru(dynet: Any, weights: Weights) -> Cell:
    def leaf(word: int) -> tuple[Any, ...]:
        _, z, n = _parts(dynet, weights.linear(dynet, "w", weights["emb.weight"][word]), 3)
        n = dynet.tanh(n)
        return (n - dynet.cmult(dynet.logistic(z), n),)

    def node(left: Any, right: Any) -> tuple[Any, ...]:
        h = left + right
        r, z = _parts(dynet, dynet.logistic(weights.linear(dynet, "u", h)), 2)
        n = dynet.tanh(weights.linear(dynet, "u_n", dynet.cmult(r, h)))
        return (n + dynet.cmult(z, h - n),)

    return _tree(leaf, node)


def mv_rnn(dynet: Any, weights: Weights) -> Cell:
    def node(a: Any, a_matrix: Any, b: Any, b_matrix: Any) -> tuple[Any, Any]:
        vector = dynet.tanh(weights.linear(dynet, "w", dynet.concatenate([b_matrix * a, a_matrix * b])))
        return vector, weights["w_m"] * dynet.concatenate([a_matrix, b_matrix])

    return _tree(lambda word: (weights["vectors.weight"][word], weights["matrices"][word]), node)


def dag_rnn(dynet: Any, weights: Weights) -> Cell:
    def of(grid: Sequence[Sequence[int]]) -> Any:
        zero = dynet.zeros(weights["w.weight"].shape()[0])
        above = [zero for _ in grid[0]]
        for row in grid:
            west = zero
            for column, word in enumerate(row):
                x = weights.linear(dynet, "u", weights["emb.weight"][word])
                west = dynet.tanh(x + weights["w.weight"] * (above[column] + west))
                above[column] = west
        return above[-1]

    return of


def bi_rnn(dynet: Any, weights: Weights) -> Cell:
    """The first word's scores: DyNet computes whatever was recorded before what is asked for, so those of all words."""

    def states(words: Sequence[int], name: str) -> list[Any]:
        h, found = dynet.zeros(weights[f"u_{name}.weight"].shape()[0]), []
        for word in words:
            h = dynet.logistic(weights.linear(dynet, f"w_{name}", weights["emb.weight"][word]) + weights[f"u_{name}.weight"] * h)
            found.append(h)
        return found

    def of(words: Sequence[int]) -> Any:
        both = zip(states(words, "forth"), states(words[::-1], "back")[::-1], strict=True)
        scores = [weights.linear(dynet, "out", dynet.concatenate([f, b])) for f, b in both]
        return scores[0]

    return of


BUILDERS: dict[str, Callable[[Any, Weights], Cell]] = {
    "TreeFC": tree_fc,
    "TreeLSTM": tree_lstm,
    "TreeGRU": tree_gru,
    "MVRNN": mv_rnn,
    "DAGRNN": dag_rnn,
    "BiRNN": bi_rnn,
}
