"""Gradients of batches: what ran is gone through backwards, each launch as one, and all of them by one native call, but for those that
gradients have reached in part and those that no program computes.

Gradients of rows lie in tables like the rows'. A row that several launches read, as a node that several parents share, gets the sum of
what they hand back; a weight gets what all rows of all launches add in one sum, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from disc.frontend.batched.differentiate import Gradient, Source
from disc.frontend.batched.regions import Kind
from disc.frontend.batched.reused import Loan, Memory
from disc.frontend.batched.rows import RowClass
from disc.frontend.batched.sweeps import Backward, Name, Sweeps, may_go_back, program_of, rows_in
from disc.frontend.batched.trained_blocks import Layouts, TrainedBlock, gradient_tables

if TYPE_CHECKING:
    from disc.ral.executable import Executable

# --- what ran -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Launches:
    """Calls of one kind that ran together. count: B of them. numbers: i64 [(rows + values) * B], contiguous: the places of the rows that
    they were given, in the tables of their classes, and their other values. places: i64 [results, B], those of results; None where they
    follow one by one from `starts` on, None where they do not. first: the row of the first call in what the kind's calls keep; None where
    they kept nothing."""

    kind: Kind
    count: int
    numbers: Tensor
    starts: tuple[int, ...] | None
    first: int | None
    places: Tensor | None = None

    def __len__(self) -> int:
        return self.count

    @cached_property
    def given(self) -> Tensor:
        """[rows, B]"""
        rows = len(self.kind.rows)
        return self.numbers[: rows * self.count].view(rows, self.count)

    @cached_property
    def values(self) -> Tensor:
        """[values, B]"""
        return self.numbers[len(self.kind.rows) * self.count :].view(self.kind.values, self.count)

    @cached_property
    def made(self) -> Tensor:
        """[results, B]"""
        if self.starts is None:
            assert self.places is not None
            return self.places
        return torch.tensor(self.starts).unsqueeze(1) + torch.arange(self.count)

    def of(self, mask: Tensor) -> Launches:
        """Some of the calls. mask: bool [B]."""
        numbers = self.numbers.view(-1, self.count)[:, mask].flatten()
        return Launches(self.kind, int(mask.sum()), numbers, None, None, self.made[:, mask])


class Ran(Protocol):
    """What a batch computed. memory: for what one way back needs. layouts: the weights as its programs took them. sweeps: those of its
    model."""

    memory: Memory
    layouts: Layouts
    sweeps: Sweeps

    def before(self, count: int) -> Sequence[Launches]:
        """The first `count` of them, in order; whatever they read and made lies in tables."""
        ...

    def rows_of(self, kind: RowClass) -> Tensor:
        """[rows, *shape]; the rows that are in use."""
        ...

    def kept_by(self, kind: Kind) -> Sequence[Tensor]:
        """What its calls kept, [calls, ...] each."""
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
        # what PyTorch computed may be a view of a weight, which takes its gradient from that, and none of what is made here
        return tuple(value.clone() if value._is_view() else value.detach() for value in results.values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _swept(ctx, *gradients)


@once_differentiable
def _swept(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    return None, *WayBack(ctx.results).run(gradients)


# --- the way back ---------------------------------------------------------------------------------------------------------------


@dataclass
class _Part:
    """Calls of a kind whose gradients were computed together. kept: what they kept, made: what the gradient's program made, [B, ...]."""

    launches: Launches
    kept: Sequence[Tensor]
    made: Sequence[Tensor]


@dataclass
class _Terms:
    """What the weights of a kind get. total: its calls; kept, made: as of `_Part` for all of them, in the order in which they ran, where
    they kept something. whole: launches all of whose gradients are in `made`; parts: others."""

    total: int
    kept: Sequence[Tensor]
    made: Sequence[Tensor]
    whole: list[Launches] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)

    def part(self, launches: Launches) -> _Part:
        """A launch of `whole`."""
        assert launches.first is not None
        rows = slice(launches.first, launches.first + len(launches))
        return _Part(launches, [each[rows] for each in self.kept], [each[rows] for each in self.made])


class WayBack:
    """One way back through launches."""

    def __init__(self, results: _Results) -> None:
        self._of = results
        self._loan = Loan(results.ran.memory)
        self._gradients: dict[RowClass, Tensor] = {}
        self._reached: dict[RowClass, Tensor] = {}
        self._sums: dict[int, Tensor] = {}  # of weights, by identity
        self._terms: dict[Kind, _Terms] = {}
        self._rows: dict[RowClass, list[Tensor]] = {}  # for what a launch hands back
        self._launches: Sequence[Launches] = ()

    def run(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of the leaves. Raises RuntimeError where one has changed meanwhile, as PyTorch does."""
        for leaf, version in zip(self._of.leaves, self._of.versions, strict=True):
            if leaf._version != version:
                shape = list(leaf.shape)
                raise RuntimeError(f"a tensor {shape} that `batch` computed with was changed in place before its gradient was computed")
        try:
            self._launches = self._of.ran.before(self._of.count)
            self._begin(gradients)
            self._go_back()
            for kind, terms in self._terms.items():
                self._sum(kind, terms)
            return [self._of_leaf(leaf) for leaf in self._of.leaves]
        finally:
            self._loan.end()

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
        return own.clone() if found is None else own + found

    def _go_back(self) -> None:
        """Through all launches, by native calls where one can."""
        launches, left = self._launches, len(self._launches)
        kinds = [kind for kind in dict.fromkeys(each.kind for each in launches) if may_go_back(kind)]
        sweep = self._of.ran.sweeps.backward(kinds)
        tables = self._tables_of(sweep)
        used = [rows_in(tables[name]) for name in sweep.tables]
        records, offset = list[list[int]](), 0
        for each in launches:
            records.append(sweep.launch(each.kind, len(each), offset, each.first, each.starts))
            offset += len(each.numbers)
        numbers = torch.cat([each.numbers for each in launches]).numpy() if launches else np.empty(0, np.int64)
        laid = np.array(records, np.int64).reshape(left, -1 if records else 3)
        while left:
            left, ran = sweep.run(tables, used, laid, numbers, left, backwards=True)
            for number in np.flatnonzero(np.frombuffer(ran, np.uint8)).tolist():
                self._terms[launches[number].kind].whole.append(launches[number])
            if left:
                left -= 1
                self._back(launches[left])

    def _tables_of(self, sweep: Backward) -> dict[Name, Tensor]:
        """The tables that it names."""
        terms = {kind: self._terms_of(kind, program_of(kind)[0]) for kind in sweep.kinds}
        most: dict[Name, int] = {}
        for each in self._launches:
            for name in sweep.rooms.get(each.kind, ()):
                most[name] = max(most.get(name, 0), len(each))
        tables: dict[Name, Tensor] = {
            **sweep.weights(self._of.ran.layouts),
            **{name: self._loan.tensor((count, *name[1].shape), name[1].dtype) for name, count in most.items()},
        }
        for name in sweep.tables:
            what, of, place = name
            if what == "rows":
                tables[name] = self._of.ran.rows_of(of)
            elif what in ("gradients", "flags"):
                self._begin_rows(of)
                tables[name] = self._gradients[of] if what == "gradients" else self._reached[of]
            elif what in ("kept", "made"):
                tables[name] = (terms[of].kept if what == "kept" else terms[of].made)[place]
        return tables

    def _begin_rows(self, kind: RowClass) -> None:
        """Makes the table of gradients of a class, and says that none of them is reached."""
        if kind not in self._gradients:
            count = len(self._of.ran.rows_of(kind))
            self._gradients[kind] = self._loan.tensor((count, *kind.shape), kind.dtype).zero_()
            self._reached[kind] = torch.zeros(count, dtype=torch.bool)

    def _hand_back(self, kind: RowClass, places: Tensor, gradient: Tensor) -> None:
        self._begin_rows(kind)
        self._gradients[kind].index_add_(0, places, gradient)
        self._reached[kind][places] = True

    def _back(self, launches: Launches) -> None:
        kind = launches.kind
        mask = self._mask(launches)
        if mask is None:
            return
        compiled = kind.lifted.gradient if isinstance(kind.lifted, TrainedBlock) else "it is not compiled"
        if compiled is None:
            return
        if isinstance(compiled, str):
            chosen = launches.of(mask)
            if isinstance(kind.lifted, TrainedBlock):
                kind.lifted.eager += len(chosen)
            for each in range(len(chosen)):
                self._one(kind, chosen.given[:, each], chosen.values[:, each], chosen.made[:, each])
            return
        gradient, executable = compiled
        terms = self._terms_of(kind, gradient)
        if launches.first is not None and mask.all():
            part = terms.part(launches)
            terms.whole.append(launches)
        else:
            part = self._apart(launches, mask, gradient, terms)
            terms.parts.append(part)
        if executable is not None:
            self._run(part, gradient, executable)

    def _mask(self, launches: Launches) -> Tensor | None:
        """Which calls a gradient has reached, bool [B]; None where it is none."""
        results = zip(launches.kind.results, launches.made, strict=True)
        known = [self._reached[each][places] for each, places in results if each in self._reached]
        mask = torch.stack(known).any(0) if known else None
        return mask if mask is not None and mask.any() else None

    def _terms_of(self, kind: Kind, gradient: Gradient) -> _Terms:
        found = self._terms.get(kind)
        if found is None:
            total = sum(len(each) for each in self._launches if each.kind is kind)
            made = [self._loan.tensor((total, *each.shape), each.dtype) for each in gradient.made]
            found = self._terms[kind] = _Terms(total, [each[:total] for each in self._of.ran.kept_by(kind)], made)
        return found

    def _apart(self, launches: Launches, mask: Tensor, gradient: Gradient, terms: _Terms) -> _Part:
        """Some calls, or calls that kept nothing, which then run again."""
        chosen = launches.of(mask)
        if launches.first is not None:
            rows = slice(launches.first, launches.first + len(launches))
            kept = [each[rows][mask] for each in terms.kept]
        else:
            block = chosen.kind.lifted
            assert isinstance(block, TrainedBlock)
            out = [torch.empty((len(chosen), *each.shape), dtype=each.dtype) for each in (*chosen.kind.results, *block.kept)]
            tables = [self._of.ran.rows_of(each) for each in chosen.kind.block.tables()]
            vectors = [each.contiguous() for each in (*chosen.given, *chosen.values)]
            block.run(tables, vectors, [], out, self._of.ran.layouts)
            kept = out[len(chosen.kind.results) :]
        return _Part(chosen, kept, [torch.empty((len(chosen), *each.shape), dtype=each.dtype) for each in gradient.made])

    def _run(self, part: _Part, gradient: Gradient, executable: Executable) -> None:
        """The gradient's program; hands back what rows get."""
        launches, kind = part.launches, part.launches.kind
        count = len(launches)
        tables = [self._of.ran.rows_of(each) for each in gradient_tables(kind.block, gradient)]
        given = [launches.given[each.place].contiguous() if each.kind == "row" else self._value(part, each) for each in gradient.inputs]
        incoming = [self._gathered(launches, place) for place in gradient.results]
        rows = [each[:count] for each in self._rows_for(kind, gradient)]
        out = (*rows, *part.made)
        block = kind.lifted
        assert isinstance(block, TrainedBlock)
        weights = self._of.ran.layouts.of(gradient.graph.weights, block.products)
        executable(*tables, *given, *incoming, *weights, out=out[0] if len(out) == 1 else out)
        for place, each in zip(gradient.rows, rows, strict=True):
            self._hand_back(kind.rows[place], launches.given[place], each)

    def _value(self, part: _Part, source: Source) -> Tensor:
        """What lies at the source for each of the calls."""
        launches = part.launches
        if source.kind == "number":
            return launches.values[source.place].contiguous()
        if source.kind == "row":
            return self._of.ran.rows_of(launches.kind.rows[source.place])[launches.given[source.place]]
        if source.kind == "result":
            table = self._of.ran.rows_of(launches.kind.results[source.place])
            return _rows(table, launches, source.place)
        return (part.kept if source.kind == "kept" else part.made)[source.place]

    def _rows_for(self, kind: Kind, gradient: Gradient) -> list[Tensor]:
        """Room for what each call hands back to its rows: it is used again by every launch."""
        most = max(len(each) for each in self._launches if each.kind is kind)
        used = dict[RowClass, int]()
        found = list[Tensor]()
        for each in (kind.rows[place] for place in gradient.rows):
            known, number = self._rows.setdefault(each, []), used.get(each, 0)
            used[each] = number + 1
            if number == len(known):
                known.append(self._loan.tensor((most, *each.shape), each.dtype))
            elif len(known[number]) < most:
                known[number] = self._loan.tensor((most, *each.shape), each.dtype)
            found.append(known[number])
        return found

    def _gathered(self, launches: Launches, place: int) -> Tensor:
        """The gradients of a result."""
        kind = launches.kind.results[place]
        if kind in self._gradients:
            return _rows(self._gradients[kind], launches, place)
        return torch.zeros((len(launches), *kind.shape), dtype=kind.dtype)

    def _sum(self, kind: Kind, terms: _Terms) -> None:
        """What all rows of all launches of a kind add to weights."""
        block = kind.lifted
        assert isinstance(block, TrainedBlock)
        assert isinstance(block.gradient, tuple)
        gradient = block.gradient[0]
        if sum(map(len, terms.whole)) == terms.total:
            in_order = [each for each in self._launches if each.kind is kind]
            numbers = torch.cat([each.numbers.view(-1, len(each)) for each in in_order], 1).flatten()
            reads_results = any(source.kind == "result" for term in gradient.terms for source in term.parts)
            made = torch.cat([each.made for each in in_order], 1) if reads_results else None
            parts = [_Part(Launches(kind, terms.total, numbers, None, 0, made), terms.kept, terms.made)]
        else:
            parts = [*map(terms.part, terms.whole), *terms.parts]
        if not parts:
            return
        for term in gradient.terms:
            found = []
            for source in term.parts:
                values = [self._value(each, source) for each in parts]
                value = values[0] if len(values) == 1 else torch.cat(values)
                found.append(value.reshape(len(value), *source.shape))
            self._sums[id(term.weight)] = term.added(found, self._sums.get(id(term.weight)), block.products)

    def _one(self, kind: Kind, given: Tensor, values: Tensor, made: Tensor) -> None:
        """The gradient of one call, in PyTorch."""
        rows = [self._of.ran.rows_of(each)[place].clone() for each, place in zip(kind.rows, given, strict=True)]
        leaves = [each.requires_grad_() if each.is_floating_point() else each for each in rows]
        weights = [weight for weight, _ in kind.weights if weight.requires_grad]
        with torch.enable_grad():
            results = kind.run(*leaves, *values)
        # Copies: a sum hands on the very tensor that it is given, and what is handed back is added to the same table.
        reached = [(each, self._gradients[of][place].clone()) for each, of, place in zip(results, kind.results, made, strict=True)
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
                known = self._sums.get(id(weight))
                self._sums[id(weight)] = each.clone() if known is None else known.add_(each)


def _rows(table: Tensor, launches: Launches, place: int) -> Tensor:
    """Those of a result."""
    if launches.starts is None:
        return table[launches.made[place]]
    return table[launches.starts[place] : launches.starts[place] + len(launches)]
