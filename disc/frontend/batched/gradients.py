"""Batches whose results have gradients: what a recorder ran is gone through backwards, launch by launch, each launch as one launch.

Gradients of rows lie in tables like the rows'. A row that several launches read, as a node that several parents share, gets the sum of
what they hand back; a weight gets what all rows of all launches add in one sum, at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from disc.errors import DiscError
from disc.frontend.batched.blocks import Block, CompileBlock
from disc.frontend.batched.differentiate import Gradient, Graph, forward_graph, gradient_graph
from disc.frontend.batched.model import Model
from disc.frontend.batched.recorder import Recorder
from disc.frontend.batched.regions import Kind
from disc.frontend.batched.rows import Row, RowClass

if TYPE_CHECKING:
    from disc.ral._ral import Launch
    from disc.ral.executable import Executable


class TrainedBlock:
    """A block for B instances, and its gradient, as programs that take the weights: a `Lifted` that is part of no native schedule."""

    def __init__(self, block: Block, compile_block: CompileBlock) -> None:
        self.executable: Executable | None = None
        self._block = block
        self._compile = compile_block
        self._graph = forward_graph(block)
        self._forward = self._compiled(self._graph, ())
        self._gradient: tuple[Gradient, Executable] | str | None = None

    def __call__(self, tables: Sequence[Tensor], rows: Sequence[Tensor], values: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        """As `Lifted`."""
        self._forward(*tables, *rows, *values, *_plain(self._graph.weights), out=out[0] if len(out) == 1 else tuple(out))

    def gradient(self) -> tuple[Gradient, Executable] | str | None:
        """What gives the gradients, made when it is first asked for; why it cannot be compiled; None where there are no gradients."""
        if self._gradient is None:
            try:
                found = gradient_graph(self._block)
                if found is None:
                    return None
                self._gradient = found, self._compiled(found.graph, found.results)
            except DiscError as error:
                self._gradient = f"{type(error).__name__}: {error}"
        return self._gradient

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


class _Entry:
    """Launches of one kind that ran together. places, results: i64 [rows, B], [results, B], in the tables of their classes. values: i64
    [values, B]."""

    def __init__(self, kind: Kind, launches: Sequence[Launch]) -> None:
        self.kind = kind
        self.given: list[tuple[Row, ...]] = [each.rows for each in launches]
        self.made: list[tuple[Row, ...]] = [each.results for each in launches]
        self.values = torch.tensor([each.values for each in launches], dtype=torch.int64).reshape(len(launches), kind.values).t()

    def rows(self) -> list[Row]:
        return [row for rows in (*self.given, *self.made) for row in rows]

    def places(self, groups: Sequence[tuple[Row, ...]], count: int) -> Tensor:
        return torch.tensor([[row.place for row in rows] for rows in groups], dtype=torch.int64).reshape(len(groups), count).t()


class GradientRecorder(Recorder):
    """Keeps what ran, and gives rows that become tensors their gradients."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._entries: list[_Entry] = []
        self._leaves: dict[int, Tensor] = {}  # weights and given tensors that may have gradients, by identity
        self._inputs: dict[int, Row] = {}  # the rows of the latter

    # --- forward ----------------------------------------------------------------------------------------------------------------

    def constant(self, launch: Launch) -> None:
        """What depends on weights alone is computed once, and has gradients like anything else."""
        super().constant(launch)
        self._keep(launch.kind, [launch])

    def compute(self, row: Row) -> None:
        with torch.no_grad():
            super().compute(row)
        self._attach([row])

    def hand_out(self, rows: Sequence[Row]) -> None:
        self._attach(rows)

    def _run_group(self, group: list[Launch]) -> None:
        with torch.no_grad():
            super()._run_group(group)
        ran = [each for each in group if each.error is None]
        if ran:
            self._keep(ran[0].kind, ran)
            self._attach([row for each in ran for row in each.results])  # those that PyTorch computed

    def _keep(self, kind: Kind, launches: Sequence[Launch]) -> None:
        entry = _Entry(kind, launches)
        self._entries.append(entry)
        for weight, _ in kind.weights:
            if weight.requires_grad:
                self._leaves[id(weight)] = weight
        for rows in entry.given:
            for row in rows:
                if row.launch is None and row.value is not None and row.value.requires_grad and id(row.value) not in self._leaves:
                    self._leaves[id(row.value)] = row.value
                    self._inputs[id(row.value)] = row

    def _attach(self, rows: Sequence[Row]) -> None:
        """Gives the rows that have values gradients."""
        found = {id(row): row for row in rows if row.launch is not None and row.value is not None and _may_need(row.value)}
        leaves = tuple(self._leaves.values())
        if not found or not leaves:
            return
        with torch.enable_grad():
            values = _Results.apply(_Sweep(self, list(found.values()), leaves), *leaves)
        for row, value in zip(found.values(), values, strict=True):
            row.value, row.version = value, value._version

    # --- backward ---------------------------------------------------------------------------------------------------------------

    def entries(self) -> list[_Entry]:
        return list(self._entries)

    def input_of(self, leaf: Tensor) -> Row | None:
        """The row of a given tensor."""
        return self._inputs.get(id(leaf))


def _may_need(value: Tensor) -> bool:
    return value.is_floating_point() and not value.requires_grad


class _Sweep:
    """One way back through what ran up to now, from `rows` to `leaves`."""

    def __init__(self, recorder: GradientRecorder, rows: Sequence[Row], leaves: Sequence[Tensor]) -> None:
        self.recorder = recorder
        self.rows = rows
        self.values = [row.value for row in rows]
        self.leaves = leaves
        self.entries = recorder.entries()
        self.versions = [each._version for each in leaves]

    def run(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of the leaves. Raises RuntimeError where a weight has changed meanwhile, as PyTorch does."""
        for leaf, version in zip(self.leaves, self.versions, strict=True):
            if leaf._version != version:
                shape = list(leaf.shape)
                raise RuntimeError(f"a tensor {shape} that `batch` computed with was changed in place before its gradient was computed")
        self.recorder.place([row for entry in self.entries for row in entry.rows() if row.place < 0])
        self.gradients: dict[RowClass, Tensor] = {}
        self.reached: dict[RowClass, Tensor] = {}
        self.sums: dict[int, Tensor] = {}
        terms: dict[Kind, list[Sequence[Tensor]]] = {}
        for row, gradient in zip(self.rows, gradients, strict=True):
            if gradient is not None:
                self._hand_back(row.kind, torch.tensor([row.place]), gradient.unsqueeze(0))
        for entry in reversed(self.entries):
            self._entry(entry, terms)
        for kind, launches in terms.items():
            self._sum(kind, launches)
        return [self._of_leaf(leaf) for leaf in self.leaves]

    def _of_leaf(self, leaf: Tensor) -> Tensor | None:
        row, found = self.recorder.input_of(leaf), self.sums.get(id(leaf))
        if row is not None and row.place >= 0 and row.kind in self.reached and self.reached[row.kind][row.place]:
            own = self.gradients[row.kind][row.place]
            return own if found is None else own + found
        return found

    def _hand_back(self, kind: RowClass, places: Tensor, gradient: Tensor) -> None:
        if kind not in self.gradients:
            rows = self.recorder.table(kind).used
            self.gradients[kind] = torch.zeros((rows, *kind.shape), dtype=kind.dtype)
            self.reached[kind] = torch.zeros(rows, dtype=torch.bool)
        self.gradients[kind].index_add_(0, places, gradient)
        self.reached[kind][places] = True

    def _entry(self, entry: _Entry, terms: dict[Kind, list[Sequence[Tensor]]]) -> None:
        kind = entry.kind
        made = entry.places(entry.made, len(kind.results))
        known = [self.reached[each][places] for each, places in zip(kind.results, made, strict=True) if each in self.reached]
        mask = torch.stack(known).any(0) if known else torch.zeros(len(entry.made), dtype=torch.bool)
        if not mask.any():
            return
        given = entry.places(entry.given, len(kind.rows))[:, mask]
        made, values = made[:, mask], entry.values[:, mask]
        block = kind.lifted
        compiled = block.gradient() if isinstance(block, TrainedBlock) else "it is not compiled"
        if compiled is None:
            return
        if isinstance(compiled, str):
            for each in range(given.shape[1]):
                self._one(kind, given[:, each], values[:, each], made[:, each])
            return
        gradient, executable = compiled
        tables = [self.recorder.table(each).data for each in kind.block.tables()]
        inputs = [self._gathered(kind.results[place], made[place]) for place in gradient.results]
        vectors = [each.contiguous() for each in (*given, *values)]
        made_of = executable(*tables, *vectors, *inputs, *_plain(gradient.graph.weights))
        found = cast("list[Tensor]", list(made_of) if isinstance(made_of, tuple) else [made_of])
        for place, each in zip(gradient.rows, found, strict=False):
            self._hand_back(kind.rows[place], given[place], each)
        terms.setdefault(kind, []).append(found)

    def _gathered(self, kind: RowClass, places: Tensor) -> Tensor:
        if kind in self.gradients:
            return self.gradients[kind][places]
        return torch.zeros((len(places), *kind.shape), dtype=kind.dtype)

    def _sum(self, kind: Kind, launches: Sequence[Sequence[Tensor]]) -> None:
        """What all rows of all launches of a kind add to weights."""
        block = kind.lifted
        assert isinstance(block, TrainedBlock)
        compiled = block.gradient()
        assert isinstance(compiled, tuple)
        gradient, _ = compiled
        first = len(gradient.rows)
        joined = {place: torch.cat([each[place] for each in launches]) for place in range(first, len(launches[0]))}
        results = [joined.get(place, launches[0][place]) for place in range(len(launches[0]))]
        for term in gradient.terms:
            weight = gradient.graph.weights[term.weight]
            term.added(results, self._sum_of(weight))

    def _sum_of(self, weight: Tensor) -> Tensor:
        found = self.sums.get(id(weight))
        if found is None:
            found = self.sums[id(weight)] = torch.zeros_like(weight, requires_grad=False)
        return found

    def _one(self, kind: Kind, given: Tensor, values: Tensor, made: Tensor) -> None:
        """The gradient of one call, in PyTorch."""
        rows = [self.recorder.table(each).data[place].clone() for each, place in zip(kind.rows, given, strict=True)]
        leaves = [each.requires_grad_() if each.is_floating_point() else each for each in rows]
        weights = [weight for weight, _ in kind.weights if weight.requires_grad]
        with torch.enable_grad():
            results = kind.run(*leaves, *values)
        reached = [(each, self.gradients[of][place]) for each, of, place in zip(results, kind.results, made, strict=True)
                   if each.requires_grad and of in self.gradients]  # fmt: skip
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


class _Results(torch.autograd.Function):
    """The results of a batch as tensors that depend on the leaves."""

    @staticmethod
    def forward(ctx: Any, sweep: _Sweep, *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.sweep = sweep
        ctx.set_materialize_grads(False)
        return tuple(value.detach() for value in sweep.values if value is not None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _swept(ctx, *gradients)


@once_differentiable
def _swept(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    return None, *ctx.sweep.run(gradients)


class TrainedModel(Model):
    """A model whose batches have gradients. Weights are no part of blocks: they may change from batch to batch."""

    gradients: ClassVar[bool] = True

    def mode(self) -> contextlib.AbstractContextManager[None]:
        return torch.enable_grad()

    def recorder(self) -> Recorder:
        return GradientRecorder(self._lower, self._programs_now(), self.techniques)

    def is_stale(self, kind: Kind) -> bool:
        return any(not weight.requires_grad and not contents.are_those_of(weight) for weight, contents in kind.weights)
