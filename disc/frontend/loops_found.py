"""Loops that Python has unrolled into a graph: equal runs of nodes one behind the other.

A run of nodes is a loop where iteration by iteration every operand is one of: a value of the same iteration; what the iteration before has
in the same place (it is carried); the same value from outside; the next row of a tensor from outside. Anything else is none, layers with
weights of their own above all. Nothing is assumed of the nodes: that they are equal is looked up, operand by operand.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

import numpy as np
import torch
from torch import fx
from torch.utils import _pytree as pytree

from disc.frontend.output_views import is_view
from disc.frontend.random_ops import draws_in_eager

aten = torch.ops.aten
FEWEST_STEPS = 8  # fewer iterations are no loop worth one: layers with shared weights fuse better unrolled
FEWEST_NODES = 3  # of an iteration, beside views
MOST_TRIED = 64  # runs that are looked at, those with the most nodes first
NODE = "an operand"


@dataclass(frozen=True)
class Run:
    """Nodes first, first + 1, ...: `steps` times `period` of them, alike by what they compute and by the kinds of their results."""

    first: int
    period: int
    steps: int

    @property
    def size(self) -> int:
        return self.period * self.steps


@dataclass(frozen=True)
class Rows:
    """Rows first, first + step, ... of `source` along `dim`, one for each iteration. step: 1 or -1."""

    source: fx.Node
    dim: int
    first: int
    step: int


@dataclass(frozen=True)
class Carried:
    """What place `place` of the iteration before has; before the first one, `start`."""

    place: int
    start: fx.Node


@dataclass(frozen=True)
class Local:
    """What place `place` of the same iteration has."""

    place: int


Source = Rows | Carried | Local | fx.Node


@dataclass
class Loop:
    """iterations: their nodes. sources: of place and operand. No part of the body are places that are rows of something outside (cut), and
    those that are the same in every iteration (fixed: as the first one has them)."""

    iterations: Sequence[Sequence[fx.Node]]
    sources: dict[tuple[int, int], Source] = field(default_factory=dict)
    cut: dict[int, Rows] = field(default_factory=dict)
    fixed: dict[int, fx.Node] = field(default_factory=dict)
    _dropped: set[int] = field(default_factory=set)

    @property
    def body(self) -> list[tuple[int, fx.Node]]:
        out = self.cut.keys() | self.fixed.keys() | self._dropped
        return [(place, node) for place, node in enumerate(self.iterations[0]) if place not in out]

    def of_kind(self, kind: type[Carried] | type[Rows] | type[fx.Node]) -> list[Source]:
        """The different sources of a kind, in the order of their first use."""
        return list(dict.fromkeys(each for each in self.sources.values() if isinstance(each, kind)))

    def carried(self) -> list[Carried]:
        """What goes from one iteration to the next."""
        return cast("list[Carried]", self.of_kind(Carried))

    def uses(self, source: Source) -> int:
        """How many operands of the body it is."""
        return sum(each == source for each in self.sources.values())

    def readers(self, node: fx.Node) -> list[fx.Node]:
        """The nodes outside that read what a node of an iteration has."""
        return [user for user in node.users if user not in self._own]

    @cached_property
    def _own(self) -> frozenset[fx.Node]:
        return frozenset(node for each in self.iterations for node in each)

    def is_read_outside(self, place: int, *, before_last: bool = False) -> bool:
        """Whether a value of a place is; before_last: whether one is, of another iteration than the last."""
        return any(self.readers(each[place]) for each in self.iterations[: -1 if before_last else None])

    def leave_out(self, places: Iterable[int]) -> None:
        """Takes places out of the body that nothing in it needs."""
        gone = set(places)
        self._dropped |= gone
        self.sources = {(place, number): source for (place, number), source in self.sources.items() if place not in gone}

    def drop(self, place: int, kept: Container[int]) -> None:
        """Takes a place out of the body, and of those that it alone needs all but `kept`."""
        self._dropped.add(place)
        read = [self.sources.pop(key) for key in [key for key in self.sources if key[0] == place]]
        carried = {each.place for each in self.carried()}
        for each in dict.fromkeys(source.place for source in read if isinstance(source, Local)):
            needed = self.uses(Local(each)) or each in carried or each in kept or self.is_read_outside(each)
            if not needed:
                self.drop(each, kept)


def find_loop(graph: fx.Graph) -> Loop | None:
    """The one with the most nodes, of a graph whose nodes have fake results in `meta["val"]`."""
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    known: dict[Hashable, int] = {}
    codes = np.array([known.setdefault(_signature(node), len(known)) for node in nodes], np.int64)
    candidates = sorted(runs(codes), key=lambda run: (-run.size, run.period))
    numbers = {node: number for number, node in enumerate(nodes)}
    for run in candidates[:MOST_TRIED]:
        for shift in range(run.period if _goes_on_alike(nodes, numbers, run) else 0):
            steps = (run.size + _rest(codes, run) - shift) // run.period
            loop = _matched(nodes, Run(run.first + shift, run.period, steps)) if steps >= FEWEST_STEPS else None
            if loop is not None:
                return loop
    return None


def runs(codes: np.ndarray[tuple[int, ...], np.dtype[np.int64]], fewest: int = FEWEST_STEPS) -> Iterator[Run]:
    """Longest stretches of `fewest` steps and more in which every node is like the one a period before."""
    for period in range(1, len(codes) // fewest + 1):
        alike = np.concatenate(([0], (codes[period:] == codes[:-period]).astype(np.int8), [0]))
        edges = np.flatnonzero(np.diff(alike))
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            steps = (end - begin) // period + 1
            if steps >= fewest:
                yield Run(begin, period, steps)


def _goes_on_alike(nodes: Sequence[fx.Node], numbers: Mapping[fx.Node, int], run: Run) -> bool:
    """Whether two iterations in the middle of a run have operands that go on by a period, stay the same or are rows: without that it is no
    loop, wherever iterations begin. Layers of a network mostly end here."""
    first = run.first + run.steps // 2 * run.period
    pairs = zip(nodes[first - run.period : first], nodes[first : first + run.period], strict=True)
    return all(
        mine is theirs or numbers.get(theirs, 0) - numbers.get(mine, 0) == run.period or (row_of(mine) and row_of(theirs))
        for before, after in pairs
        for mine, theirs in zip(before.all_input_nodes, after.all_input_nodes, strict=False)
    )


def _rest(codes: np.ndarray[tuple[int, ...], np.dtype[np.int64]], run: Run) -> int:
    """How many nodes behind the run go on as it does."""
    place = run.first + run.size
    while place < len(codes) and codes[place] == codes[place - run.period]:
        place += 1
    return place - run.first - run.size


def _signature(node: fx.Node) -> Hashable:
    """What a node computes, its operands and the number of the row that it takes apart."""
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    skipped = 2 if node.target is aten.select.int else 1 if _is_member(node) else None
    values = tuple(
        NODE if isinstance(leaf, fx.Node) else None if place == skipped else (type(leaf).__name__, repr(leaf))
        for place, leaf in enumerate(leaves)
    )
    return node.target, str(spec), values, _kind(node)


def _is_member(node: fx.Node) -> bool:
    """Whether it is one of the rows that `unbind` gives."""
    source = node.args[0] if node.args else None
    return node.target is operator.getitem and isinstance(source, fx.Node) and source.target is aten.unbind.int


def _kind(node: fx.Node) -> Hashable:
    return tuple(_tensor_kind(each) for each in pytree.tree_leaves(node.meta.get("val")))


def _tensor_kind(value: object) -> Hashable:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return value.dtype, value.device, *(size.node.expr if isinstance(size, torch.SymInt) else size for size in value.shape)


# --- matching --------------------------------------------------------------------------------------------------------------------


def _matched(nodes: Sequence[fx.Node], run: Run) -> Loop | None:
    """The loop, or None where the nodes of the run are none."""
    own = nodes[run.first : run.first + run.size]
    loop = Loop([own[place : place + run.period] for place in range(0, run.size, run.period)])
    if any(not may_repeat(node) for node in loop.iterations[0]):
        return None
    where = {node: (step, place) for step, each in enumerate(loop.iterations) for place, node in enumerate(each)}
    for place in range(run.period):
        rows = _rows([each[place] for each in loop.iterations], where)
        if rows is not None:
            loop.cut[place] = rows
    if not all(_match_place(loop, place, where) for place, _ in loop.body):
        return None
    carried = loop.carried()
    computing = [node for _, node in loop.body if not is_view(node)]
    several = [place for place, node in loop.body if not isinstance(node.meta["val"], torch.Tensor)]  # results of one node
    if len(computing) < FEWEST_NODES or any(loop.is_read_outside(place) for place in several):
        return None
    return loop if carried and all(_keeps_its_kind(loop, each) for each in carried) else None


def may_repeat(node: fx.Node, *, sizes: bool = False) -> bool:
    """Whether it computes tensors, or sizes where these may be, draws nothing and writes nothing."""
    op = node.target
    plain = op is operator.getitem or (isinstance(op, torch._ops.OpOverload) and not op._schema.is_mutable and not draws_in_eager(op))
    values = pytree.tree_leaves(node.meta.get("val"))
    kinds = (torch.Tensor, torch.SymInt) if sizes else torch.Tensor
    return plain and bool(values) and all(isinstance(each, kinds) for each in values)


def _match_place(loop: Loop, place: int, where: Mapping[fx.Node, tuple[int, int]]) -> bool:
    """Finds where the operands of a place come from; False where they come from no one place."""
    leaves = [pytree.tree_leaves((each[place].args, each[place].kwargs)) for each in loop.iterations]
    for number, given in enumerate(zip(*leaves, strict=True)):
        if not all(isinstance(each, fx.Node) for each in given):
            if any(each != given[0] or type(each) is not type(given[0]) for each in given):
                return False
            continue
        source = _source(loop, cast("tuple[fx.Node, ...]", given), where)
        if source is None:
            return False
        loop.sources[place, number] = source
    own = [key for key in loop.sources if key[0] == place]
    if all(isinstance(loop.sources[key], fx.Node) for key in own):
        loop.fixed[place] = loop.iterations[0][place]
        for key in own:
            del loop.sources[key]
    return True


def _source(loop: Loop, given: Sequence[fx.Node], where: Mapping[fx.Node, tuple[int, int]]) -> Source | None:
    """What one operand is in all iterations."""
    places = [where.get(node) for node in given]
    last = places[-1]
    if last is None:
        return given[0] if all(node is given[0] for node in given) else _rows(given, where)
    place = last[1]
    if all(each == (number, place) for number, each in enumerate(places)):
        return loop.cut.get(place) or loop.fixed.get(place) or Local(place)
    before = all(each == (number, place) for number, each in enumerate(places[1:]))
    return Carried(place, given[0]) if before and places[0] is None else None


def _rows(given: Sequence[fx.Node], where: Mapping[fx.Node, tuple[int, int]]) -> Rows | None:
    """The rows of one tensor from outside that these nodes are, one after the other, forwards or backwards."""
    (first, second), found = (row_of(node) for node in given[:2]), [row_of(node) for node in given]
    if first is None or second is None:
        return None
    source, dim, start = first
    step = second[2] - start
    wanted = [(source, dim, start + number * step) for number in range(len(given))]
    return Rows(source, dim, start, step) if step in (1, -1) and found == wanted and source not in where else None


def row_of(node: fx.Node) -> tuple[fx.Node, int, int] | None:
    """(tensor, dim, number), the last two not negative, of a node that is a row of a tensor: `select`, a member of `unbind`, or what
    PyTorch makes of that, a slice of one row without its dim."""
    if node.target is aten.select.int:
        source, dim, number = node.args
    elif node.target is aten.squeeze.dims and (cut := node.all_input_nodes[0]).target is aten.slice.Tensor and len(cut.args) == 4:
        source, dim, number, past = cut.args
        if not isinstance(number, int) or number < 0 or past != number + 1 or node.args[1] not in ([dim], (dim,)):
            return None
    elif _is_member(node):
        unbind, number = cast("tuple[fx.Node, int]", node.args)
        source, dim = unbind.args[0], (unbind.args[1] if len(unbind.args) > 1 else unbind.kwargs.get("dim", 0))
    else:
        return None
    if not isinstance(source, fx.Node) or not isinstance(dim, int) or not isinstance(number, int):
        return None
    shape = source.meta["val"].shape
    dim %= len(shape)
    if number < 0 and not isinstance(shape[dim], int):
        return None
    return source, dim, number if number >= 0 else number + shape[dim]


def _keeps_its_kind(loop: Loop, carried: Carried) -> bool:
    """Whether it is a tensor of one kind in all iterations, before the first one too, that the body makes."""
    node = loop.iterations[0][carried.place]
    made = carried.place not in loop.cut and carried.place not in loop.fixed
    return made and isinstance(node.meta["val"], torch.Tensor) and _kind(carried.start) == _kind(node)
