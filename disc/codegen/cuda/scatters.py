"""Scatters on a GPU: updates go into a copy of the operand one after the other, in their order, so that sums are the same in every call.

Two updates can meet only where the positions that their indices name alone (a slot: a row of a table) are equal. Slots are dealt out to
programs; each copies its own, then looks through all updates for those that are its own. Lanes run over what an update covers of a slot;
where that is all of it, several programs share a slot, each with columns of its own. So no two programs write one element, nothing is
atomic, and one launch is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from disc.codegen.cuda.emit import Buffer, Emitter, Predicate
from disc.codegen.cuda.kernel import DeviceVersion, emit_version
from disc.codegen.cuda.rows import body_versions
from disc.codegen.cuda.structural import combined_by_body
from disc.codegen.cuda.text import Variable
from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.index import ONE, ZERO
from disc.errors import TargetError
from disc.ir.graph import Node
from disc.shapes import Dim, Truth, dim_min
from disc.speculation.guards import Guard
from disc.targets.cuda_thresholds import KERNELS

SCATTER = "stablehlo.scatter"
LANES, WARPS, PARTS = KERNELS.scatter  # lanes: updates that are looked through at once, and elements of a slot
NEVER = 0x7FFFFFFFFFFFFFFF  # the number of no update


@dataclass(frozen=True)
class _Numbers:
    """The dimension numbers of a scatter. scatter_map, inserted, operand_batch, indices_batch, vector_dim, window_dims: as
    StableHLO has them (scatter_dims_to_operand_dims, inserted_window_dims, input_batching_dims, scatter_indices_batching_dims,
    index_vector_dim, update_window_dims). batch: the dims of the updates that number them, in order; windows: the dims of the
    operand that a window covers; slots: its others."""

    scatter_map: tuple[int, ...]
    inserted: tuple[int, ...]
    operand_batch: tuple[int, ...]
    indices_batch: tuple[int, ...]
    vector_dim: int
    batch: tuple[int, ...]
    window_dims: tuple[int, ...]
    windows: tuple[int, ...]
    slots: tuple[int, ...]


def _numbers(node: Node) -> _Numbers:
    numbers = node.attrs["scatter_dimension_numbers"]
    assert isinstance(numbers, dict)
    read = {key: tuple(each for each in value if isinstance(each, int)) for key, value in numbers.items() if isinstance(value, tuple)}
    vector_dim = numbers["vector_dim"]
    assert isinstance(vector_dim, int)
    source, updates = node.operands[0], node.operands[-1]
    batch = tuple(axis for axis in range(len(updates.dims)) if axis not in read["window_dims"])
    slots = tuple(axis for axis in range(len(source.dims)) if axis in read["inserted"] or axis in read["operand_batch"])
    windows = tuple(axis for axis in range(len(source.dims)) if axis not in slots)
    return _Numbers(
        read["scatter_map"], read["inserted"], read["operand_batch"], read["indices_batch"], vector_dim, batch, read["window_dims"],
        windows, slots,
    )  # fmt: skip


def scatter_extents(fusion: Fusion) -> tuple[Dim, ...]:
    """What the kernel loops over."""
    scatter = _Scatter(fusion, False)
    return scatter.slots, scatter.count, scatter.window, scatter.kept


def scatter_versions(fusion: Fusion, symbols: tuple[str, ...]) -> tuple[DeviceVersion, ...]:
    """The versions of a fusion around one `stablehlo.scatter`. Raises TargetError for one of which only some results are read."""
    return tuple(_Scatter(fusion, wide).version(symbols, guard) for guard, wide in body_versions(fusion.space(), fusion.body))


class _Scatter:
    """slots, count, window, kept: the number of slots, of updates, of elements that one covers, and that a slot has. shared: whether every
    update covers all of its slot, and programs share it."""

    def __init__(self, fusion: Fusion, wide: bool) -> None:
        self.fusion, self.wide, self.space = fusion, wide, fusion.space()
        found = next(each for each in fusion.body.nodes if each.op == SCATTER)
        self.results = found.siblings or (found,)
        self.node = self.results[0]
        if set(fusion.body.yields) != set(self.results):
            raise TargetError(f"no CUDA kernel for a scatter of which only some results are read (line {self.node.line})")
        self.numbers = numbers = _numbers(self.node)
        operands, number = self.node.operands, len(self.results)
        self.sources, self.indices, self.updates = operands[:number], operands[number], operands[number + 1 :]
        self.dims, moved = self.sources[0].dims, self.updates[0].dims
        self.slot_sizes, self.kept_sizes = ([self.dims[axis] for axis in axes] for axes in (numbers.slots, numbers.windows))
        self.window_sizes, self.batch_sizes = ([moved[axis] for axis in axes] for axes in (numbers.window_dims, numbers.batch))
        env = self.space.env
        self.slots, self.kept = env.product(self.slot_sizes), env.product(self.kept_sizes)
        self.window, self.count = env.product(self.window_sizes), env.product(self.batch_sizes)
        covers = all(env.equal(a, b) is Truth.YES for a, b in zip(self.window_sizes, self.kept_sizes, strict=True))
        moves = any(axis in numbers.scatter_map for axis in numbers.windows)
        self.shared = covers and not moves and env.le(self.kept, LANES) is not Truth.YES
        self.parts = dim_min(self.slots, Dim.of(PARTS))

    def version(self, symbols: tuple[str, ...], guard: Guard) -> DeviceVersion:
        chunks = (self.kept + (LANES - 1)) // LANES if self.shared else ONE
        grid = (self.parts * chunks,)
        return emit_version(self.fusion.body, self.space, symbols, f"[{LANES}]", self._emit, grid, WARPS, guard=guard, wide=self.wide)

    def _emit(self, e: Emitter, results: tuple[Buffer, ...]) -> None:
        w = e.w
        by_root = dict(zip(self.fusion.body.yields, results, strict=True))
        stored = [by_root[each] for each in self.results]
        program = w.let("tl.program_id(0).to(tl.int64)" if self.wide else "tl.program_id(0)", "i")
        parts, slots = w.number(self.parts), w.number(self.slots)
        part, chunk = w.let(f"{program} % {parts}", "i"), w.let(f"{program} // {parts}", "i")
        run = w.let(f"tl.cdiv({slots}, {parts})", "i")  # slots of a part, which lie side by side
        first = w.let(f"{part} * {run}", "i")
        self._copy(e, stored, chunk, first, w.let(f"tl.minimum({first} + {run}, {slots})", "i"))
        w.statement("tl.debug_barrier()")
        with w.block(f"for step in range(0, {w.number(self.count)}, {LANES}):") as scope:
            self._lanes(e, "update", "step", self.count)
            variable = w.variables["update"]
            mine = self._is_mine(e, self._begin(e, Dim.symbol("update"), True), f"// {run} == {part}", variable.live)
            w.statement(f"left = tl.where({mine}, {variable.name}.to(tl.int64), {NEVER})")
            w.statement("taken = tl.min(left)")
            with w.block(f"while taken < {NEVER}:") as scope:
                w.bind("taken", Variable(w.let("taken" if self.wide else "taken.to(tl.int32)", "i"), scope))
                self.space.variable("taken", self.count)
                with self._columns(e, "column", self.window, chunk):
                    self._update(e, stored)
                w.statement(f"left = tl.where(left == taken, {NEVER}, left)")
                w.statement("taken = tl.min(left)")
                w.statement("tl.debug_barrier()")

    def _lanes(self, e: Emitter, name: str, begin: str, extent: Dim, end: str = "") -> None:
        w = e.w
        self.space.variable(name, extent)
        place = w.let(f"{begin} + tl.arange(0, {LANES})", "p")
        w.bind(name, Variable(place, w.scope, frozenset({0}), w.let(f"{place} < {end or w.number(extent)}", "m")))

    @contextmanager
    def _columns(self, e: Emitter, name: str, extent: Dim, chunk: str) -> Iterator[None]:
        """Lanes over the elements of a slot or a window: those of the program, or block by block all of them."""
        if self.shared:
            self._lanes(e, name, f"{chunk} * {LANES}", extent)
            yield
            return
        begin = e.w.name("begin")
        with e.w.block(f"for {begin} in range(0, {e.w.number(extent)}, {LANES}):"):
            self._lanes(e, name, begin, extent)
            yield

    def _copy(self, e: Emitter, stored: Sequence[Buffer], chunk: str, first: str, end: str) -> None:
        """The operands, in the slots from `first` to `end`."""
        w = e.w
        if self.shared:
            with w.block(f"for slot in range({first}, {end}):") as scope:
                w.bind("slot", Variable(w.let("tl.zeros([], tl.int64) + slot", "i") if self.wide else "slot", scope))
                with self._columns(e, "kept", self.kept, chunk):
                    self._copy_at(e, stored, self.space.variable("slot", self.slots), Dim.symbol("kept"))
            return
        kept = w.number(self.kept)
        low, high = w.let(f"{first} * {kept}", "i"), w.let(f"{end} * {kept}", "i")
        with w.block(f"for place in range({low}, {high}, {LANES}):"):
            self._lanes(e, "flat", "place", self.slots * self.kept, high)
            slot, column = self.space.delinear(Dim.symbol("flat"), (self.slots, self.kept))
            self._copy_at(e, stored, slot, column)

    def _copy_at(self, e: Emitter, stored: Sequence[Buffer], slot: Dim, column: Dim) -> None:
        index = [ZERO] * len(self.dims)
        places = (*self.space.delinear(slot, self.slot_sizes), *self.space.delinear(column, self.kept_sizes))
        for axis, position in zip((*self.numbers.slots, *self.numbers.windows), places, strict=True):
            index[axis] = position
        for source, result in zip(self.sources, stored, strict=True):
            e.store(result, self.space.linear(index, self.dims), e.value(source, tuple(index)))

    def _begin(self, e: Emitter, update: Dim, reports: bool) -> list[Dim]:
        """Where the window of an update begins in the operand."""
        numbers, w = self.numbers, e.w
        batch = self.space.delinear(update, self.batch_sizes)
        variable = w.variables[update.symbols()[0]]
        positions = [ZERO] * len(self.dims)
        for number, axis in enumerate(numbers.scatter_map):
            at = [*batch]
            if numbers.vector_dim < len(self.indices.dims):
                at.insert(numbers.vector_dim, Dim.of(number))
            raw = w.let(f"{e.value(self.indices, tuple(at))}.to(tl.int64)")
            if reports and e.fault and axis in numbers.inserted:
                size = w.number(self.dims[axis])
                e.report(w.let(f"(({raw} < 0) | ({raw} >= {size})) & {variable.live}", "m"), raw, size)
            data = w.name("data")
            self.space.env.symbol(data, None)
            positions[axis] = w.bind(data, Variable(raw, w.scope, variable.axes, variable.live, signed=True))
        without_vector = [axis for axis in range(len(self.indices.dims)) if axis != numbers.vector_dim]
        for axis, indices_axis in zip(numbers.operand_batch, numbers.indices_batch, strict=True):
            positions[axis] = batch[without_vector.index(indices_axis)]
        return positions

    def _is_mine(self, e: Emitter, begin: Sequence[Dim], condition: str, live: str) -> str:
        """The mask of the updates whose slot there is, and is the program's."""
        w, slots = e.w, self.numbers.slots
        inside: Predicate = ()
        for axis in slots:
            inside = e.within(begin[axis], ZERO, self.dims[axis], inside)
        slot = w.number(self.space.linear([begin[axis] for axis in slots], self.slot_sizes))
        return w.let(" & ".join([live, *(each.text for each in inside), f"(({slot}) {condition})"]), "m")

    def _update(self, e: Emitter, stored: Sequence[Buffer]) -> None:
        """One update, of a slot that there is; any part of its window may lie outside."""
        space, numbers, taken = self.space, self.numbers, Dim.symbol("taken")
        index = self._begin(e, taken, False)
        batch, window = space.delinear(taken, self.batch_sizes), space.delinear(Dim.symbol("column"), self.window_sizes)
        predicate: Predicate = ()
        for axis, position in zip(numbers.windows, window, strict=True):
            index[axis] = index[axis] + position
            predicate = e.within(index[axis], ZERO, self.dims[axis], predicate)
        at = [ZERO] * len(self.updates[0].dims)
        for axis, position in zip((*numbers.batch, *numbers.window_dims), (*batch, *window), strict=True):
            at[axis] = position
        offset = space.linear(index, self.dims)
        current = [e.load(buffer, offset, predicate) for buffer in stored]
        values = [e.value(each, tuple(at), predicate) for each in self.updates]
        for buffer, value in zip(stored, combined_by_body(e, self.node, current, values), strict=True):
            e.store(buffer, offset, value, predicate)
