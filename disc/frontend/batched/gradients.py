"""Gradients of batches: what ran is gone through backwards, launch by launch, each as one launch.

Gradients of rows lie in tables like the rows'. A row that several launches read, as a node that several parents share, gets the sum of
what they hand back; a weight gets what all rows of all launches add in one sum, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from disc.errors import DiscError
from disc.frontend.batched.blocks import Block, CompileBlock
from disc.frontend.batched.differentiate import Gradient, Graph, Product, forward_graph, gradient_graph
from disc.frontend.batched.regions import Kind
from disc.frontend.batched.rows import RowClass

if TYPE_CHECKING:
    from disc.ral.executable import Executable


class TrainedBlock:
    """A block for B instances, and its gradient, as programs that take the weights."""

    takes_weights = True

    def __init__(self, block: Block, compile_block: CompileBlock, product: Product) -> None:
        self.product = product
        self._block = block
        self._compile = compile_block
        self._graph = forward_graph(block)
        self._forward = self._compiled(self._graph, ())
        self.executable: Executable | None = self._forward

    def __call__(self, tables: Sequence[Tensor], rows: Sequence[Tensor], values: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        """As `Lifted`."""
        self._forward(*tables, *rows, *values, *_plain(self._graph.weights), out=out[0] if len(out) == 1 else tuple(out))

    @cached_property
    def gradient(self) -> tuple[Gradient, Executable] | str | None:
        """What gives the gradients, made when it is first asked for; why it cannot be compiled; None where there are no gradients."""
        try:
            found = gradient_graph(self._block)
            return None if found is None else (found, self._compiled(found.graph, found.results))
        except DiscError as error:
            return f"{type(error).__name__}: {error}"

    def _compiled(self, graph: Graph, gradients: Sequence[int]) -> Executable:
        """gradients: the places of results whose gradients the graph takes."""
        block, tables = self._block, self._block.tables()
        numbers = [torch.zeros((), dtype=torch.int64) for _ in range(block.values)]
        given = [*block.rows, *(block.results[place] for place in gradients)]
        zeros = [torch.zeros(each.shape, dtype=each.dtype) for each in given]
        count = len(block.rows)
        example = (*zeros[:count], *numbers, *zeros[count:], *_plain(graph.weights))
        return self._compile(graph.module, example, [*map(tables.index, block.rows), *(None for _ in (*numbers, *gradients))])


def _plain(weights: Sequence[Tensor]) -> list[Tensor]:
    return [each.detach() for each in weights]


# --- what ran -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launches:
    """Calls of one kind that ran together. given, made: i64 [rows, B], [results, B], places in the tables of their classes. values: i64
    [values, B]."""

    kind: Kind
    given: Tensor
    values: Tensor
    made: Tensor

    def of(self, mask: Tensor) -> Launches:
        """Some of the calls. mask: bool [B]."""
        return self if mask.all() else Launches(self.kind, self.given[:, mask], self.values[:, mask], self.made[:, mask])


class Ran(Protocol):
    """What a batch computed."""

    def before(self, count: int) -> Sequence[Launches]:
        """The first `count` of them, in order; whatever they read and made lies in tables."""
        ...

    def rows_of(self, kind: RowClass) -> Tensor:
        """[rows, *shape]; the rows that are in use."""
        ...

    def given(self, leaf: Tensor) -> tuple[RowClass, int] | None:
        """The row of a tensor of an instance."""
        ...


Target = Callable[[], tuple[RowClass, int]]


@dataclass(frozen=True)
class _Results:
    """Tensors that depend on leaves by the first `count` launches. targets: their rows, known when a gradient is computed.
    versions: of the leaves, as PyTorch counts writes to them."""

    ran: Ran
    count: int
    values: Sequence[Tensor]
    targets: Sequence[Target]
    leaves: Sequence[Tensor]
    versions: Sequence[int]


def attached(ran: Ran, count: int, values: Sequence[Tensor], targets: Sequence[Target], leaves: Sequence[Tensor]) -> Sequence[Tensor]:
    """The values as tensors whose gradients reach the leaves: weights, and tensors of instances."""
    if not leaves or not values:
        return values
    with torch.enable_grad():
        return _Attach.apply(_Results(ran, count, values, targets, leaves, [each._version for each in leaves]), *leaves)


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, results: _Results, *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.results = results
        ctx.set_materialize_grads(False)
        return tuple(value.detach() for value in results.values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _swept(ctx, *gradients)


@once_differentiable
def _swept(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    return None, *Sweep(ctx.results).run(gradients)


# --- the way back ---------------------------------------------------------------------------------------------------------------


class Sweep:
    """One way back through launches."""

    def __init__(self, results: _Results) -> None:
        self._of = results
        self._gradients: dict[RowClass, Tensor] = {}
        self._reached: dict[RowClass, Tensor] = {}
        self._sums: dict[int, Tensor] = {}  # of weights, by identity
        self._terms: dict[Kind, list[Sequence[Tensor]]] = {}

    def run(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of the leaves. Raises RuntimeError where one has changed meanwhile, as PyTorch does."""
        for leaf, version in zip(self._of.leaves, self._of.versions, strict=True):
            if leaf._version != version:
                shape = list(leaf.shape)
                raise RuntimeError(f"a tensor {shape} that `batch` computed with was changed in place before its gradient was computed")
        launches = self._of.ran.before(self._of.count)
        self._begin(gradients)
        for each in reversed(launches):
            self._back(each)
        for kind, found in self._terms.items():
            self._sum(kind, found)
        return [self._of_leaf(leaf) for leaf in self._of.leaves]

    def _begin(self, gradients: Sequence[Tensor | None]) -> None:
        groups: dict[RowClass, list[tuple[int, Tensor]]] = {}
        for target, gradient in zip(self._of.targets, gradients, strict=True):
            if gradient is not None:
                kind, place = target()
                groups.setdefault(kind, []).append((place, gradient))
        for kind, found in groups.items():
            self._hand_back(kind, torch.tensor([place for place, _ in found]), torch.stack([each for _, each in found]))

    def _of_leaf(self, leaf: Tensor) -> Tensor | None:
        found = self._sums.get(id(leaf))
        given = self._of.ran.given(leaf)
        if given is None or given[0] not in self._reached or not self._reached[given[0]][given[1]]:
            return found
        own = self._gradients[given[0]][given[1]]
        return own if found is None else own + found

    def _hand_back(self, kind: RowClass, places: Tensor, gradient: Tensor) -> None:
        if kind not in self._gradients:
            table = self._of.ran.rows_of(kind)
            self._gradients[kind] = torch.zeros_like(table)
            self._reached[kind] = torch.zeros(len(table), dtype=torch.bool)
        self._gradients[kind].index_add_(0, places, gradient)
        self._reached[kind][places] = True

    def _back(self, launches: Launches) -> None:
        kind = launches.kind
        known = [self._reached[each][places] for each, places in zip(kind.results, launches.made, strict=True) if each in self._reached]
        mask = torch.stack(known).any(0) if known else torch.zeros(0, dtype=torch.bool)
        if not mask.any():
            return
        chosen = launches.of(mask)
        compiled = kind.lifted.gradient if isinstance(kind.lifted, TrainedBlock) else "it is not compiled"
        if compiled is None:
            return
        if isinstance(compiled, str):
            for each in range(chosen.made.shape[1]):
                self._one(kind, chosen.given[:, each], chosen.values[:, each], chosen.made[:, each])
            return
        gradient, executable = compiled
        tables = [self._of.ran.rows_of(each) for each in kind.block.tables()]
        inputs = [self._gathered(kind.results[place], chosen.made[place]) for place in gradient.results]
        vectors = [each.contiguous() for each in (*chosen.given, *chosen.values)]
        made = executable(*tables, *vectors, *inputs, *_plain(gradient.graph.weights))
        found = cast("list[Tensor]", list(made) if isinstance(made, tuple) else [made])
        for place, each in zip(gradient.rows, found, strict=False):
            self._hand_back(kind.rows[place], chosen.given[place], each)
        self._terms.setdefault(kind, []).append(found)

    def _gathered(self, kind: RowClass, places: Tensor) -> Tensor:
        if kind in self._gradients:
            return self._gradients[kind][places]
        return torch.zeros((len(places), *kind.shape), dtype=kind.dtype)

    def _sum(self, kind: Kind, launches: Sequence[Sequence[Tensor]]) -> None:
        """What all rows of all launches of a kind add to weights."""
        assert isinstance(kind.lifted, TrainedBlock)
        compiled = kind.lifted.gradient
        assert isinstance(compiled, tuple)
        gradient, _ = compiled
        first = len(gradient.rows)
        results = [torch.cat([each[place] for each in launches]) if place >= first else launches[0][place]
                   for place in range(len(launches[0]))]  # fmt: skip
        for term in gradient.terms:
            term.added(results, self._sum_of(gradient.graph.weights[term.weight]), kind.lifted.product)

    def _sum_of(self, weight: Tensor) -> Tensor:
        found = self._sums.get(id(weight))
        if found is None:
            found = self._sums[id(weight)] = torch.zeros_like(weight, requires_grad=False)
        return found

    def _one(self, kind: Kind, given: Tensor, values: Tensor, made: Tensor) -> None:
        """The gradient of one call, in PyTorch."""
        rows = [self._of.ran.rows_of(each)[place].clone() for each, place in zip(kind.rows, given, strict=True)]
        leaves = [each.requires_grad_() if each.is_floating_point() else each for each in rows]
        weights = [weight for weight, _ in kind.weights if weight.requires_grad]
        with torch.enable_grad():
            results = kind.run(*leaves, *values)
        reached = [(each, self._gradients[of][place]) for each, of, place in zip(results, kind.results, made, strict=True)
                   if each.requires_grad and of in self._gradients]  # fmt: skip
        places = [place for place, each in enumerate(leaves) if each.requires_grad]
        sources = [*(leaves[place] for place in places), *weights]
        if not reached or not sources:
            return
        outputs, gradients = zip(*reached, strict=True)
        found = torch.autograd.grad(outputs, sources, gradients, allow_unused=True)
        for place, each in zip(places, found, strict=False):
            if each is not None:
                self._hand_back(kind.rows[place], given[place : place + 1], each.unsqueeze(0))
        for weight, each in zip(weights, found[len(places) :], strict=True):
            if each is not None:
                self._sum_of(weight).add_(each)
