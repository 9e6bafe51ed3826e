"""Loop and stitch kernels on a GPU: flat blocks of elements, and blocks of rows that stay on chip between the stages of a row.

A row up to the largest block lies whole in registers, so that no stage loads it again. A longer one is gone through once per round of its
reductions (`RowPlan.stages`), and once to store. Where such rows are few, several programs share a row: each leaves what its part gives in
scratch. Where one round of reductions is all that is done with rows, the program that comes last combines the parts, in their order. Else
there is a launch for each round, and one to store: its programs combine what the launches before have left, each for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from disc.codegen.cuda.columns import column_version, reduces_columns, shared_versions
from disc.codegen.cuda.elementwise import combined
from disc.codegen.cuda.emit import Buffer, Emitter, Predicate
from disc.codegen.cuda.joins import Join
from disc.codegen.cuda.kernel import DeviceVersion, Scratch, emit_version
from disc.codegen.cuda.plans import LoopPlan, RowBlock, RowsPlan
from disc.codegen.cuda.structural import RULES, reduced_along, reduced_kind
from disc.codegen.cuda.text import Variable
from disc.codegen.cuda.vectors import BYTES, guards_of
from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.index import ONE, ZERO, Index, IndexSpace
from disc.codegen.plan.nests import LoopVariable, Nest, choose_nest
from disc.codegen.plan.probe import Probe
from disc.codegen.plan.rows import Dominant, RowPlan, plan_rows, root_index
from disc.ir.graph import Body, Node
from disc.ir.reducers import IN_ORDER
from disc.shapes import Dim, Truth
from disc.shapes.recursion import Recursive
from disc.speculation.guards import ALWAYS, Aligned, AtLeast, AtMost, Divides, Guard, all_of, asked_of
from disc.targets.cuda_thresholds import KERNELS
from disc.targets.thresholds import Thresholds

# Elements of a tensor whose positions fit into 32 bits, also of the last block of the last part, of which most are none.
MOST_NARROW = (1 << 31) - (1 << 20)
Reduced = tuple[Node, Index, str]  # a reduction, its index, and the name of its value


def body_versions(space: IndexSpace, body: Body) -> list[tuple[Guard, bool]]:
    """(guard, whether positions need 64 bits), the narrow version first, where the symbols leave open which it is."""
    sizes = {space.env.product(node.dims) for node in body.nodes if node.dims}
    narrow = all_of(
        AtMost(MOST_NARROW, size) for size in sorted(sizes, key=str) if AtMost(MOST_NARROW, size).implied_by(space.env) is not Truth.YES
    )
    if narrow == ALWAYS:
        return [(ALWAYS, False)]
    return [(narrow, False), (ALWAYS, True)]


def _vectored(space: IndexSpace, body: Body, divides: tuple[Divides, ...]) -> list[tuple[Guard, bool]]:
    """`body_versions`, and before them one whose tensors are loaded and stored 16 bytes at a time, as far as `divides` says."""
    versions = body_versions(space, body)
    return [(all_of((versions[0][0], *divides, Aligned(BYTES))), False), *versions]


def _guards_at(space: IndexSpace, places: Iterable[tuple[Node, Index]], rows: frozenset[str] = frozenset()) -> tuple[Divides, ...]:
    """What makes rows of all tensors in memory that these results, each at an index, are made of begin at multiples of 16 bytes. rows: the
    variables that number rows; tensors that vary along no other have one element of a row."""
    probe, tensors = Probe(space, frozenset()), list[tuple[Dim, str]]()
    for root, index in places:
        tensors.append((space.linear(index, root.dims), root.element))
        probe.visit(root, index)
    tensors += [(offset, node.element) for node, offset in probe.reads]
    return guards_of(space, [each for each in tensors if not rows.issuperset(space.extents.keys() & set(each[0].symbols()))])


# --- loops ----------------------------------------------------------------------------------------------------------------


def loop_versions(fusion: Fusion, symbols: tuple[str, ...], plan: LoopPlan) -> tuple[DeviceVersion, ...]:
    """The versions of a loop kernel. Full blocks need no masks; the last one is a branch of its own."""
    body, space = fusion.body, fusion.space()
    dims = _loop_dims(body)
    nest = _loop_nest(space, body, dims)
    divides = _guards_at(space, [(root, root_index(space, nest.index, dims, root)) for root in body.yields])
    versions, shared = _vectored(space, body, divides), tuple[DeviceVersion, ...]()
    if reduces_columns(body):
        shared = tuple(shared_versions(fusion, lambda own: _loop_nest(own, body, dims), dims, symbols, versions[0][0]))
    return (*shared, *(_loop_version(fusion, symbols, plan, guard, wide) for guard, wide in versions))


def _loop_dims(body: Body) -> tuple[Dim, ...]:
    """Of the largest result."""
    return max((root.dims for root in body.yields), key=lambda each: len([dim for dim in each if dim != ONE]))


def _loop_version(fusion: Fusion, symbols: tuple[str, ...], plan: LoopPlan, guard: Guard, wide: bool) -> DeviceVersion:
    body, space, dims = fusion.body, fusion.space(), _loop_dims(fusion.body)
    nest = _loop_nest(space, body, dims)
    if reduces_columns(body):
        return column_version(fusion, space, nest, dims, symbols, guard, wide)
    count, block = space.env.product(dims), plan.block

    def emit(e: Emitter, results: tuple[Buffer, ...]) -> None:
        w = e.w
        program = "tl.program_id(0).to(tl.int64)" if wide else "tl.program_id(0)"
        begin = w.let(f"{program} * {block}", "i")
        place = w.let(f"{begin} + tl.arange(0, {block})", "i")
        flat = space.variable("flat", count)
        for head, live in ((f"if {begin} + {block} <= {w.number(count)}:", ""), ("else:", f"{place} < {w.number(count)}")):
            with w.block(head) as scope:
                mask = w.let(live, "m") if live else ""
                w.bind("flat", Variable(place, scope, frozenset({0}), mask))
                e.bind_loops(flat, nest.variables)
                for root, result in zip(body.yields, results, strict=True):
                    index = root_index(space, nest.index, dims, root)
                    e.store(result, space.linear(index, root.dims), e.value(root, index))

    return emit_version(body, space, symbols, f"[{block}]", emit, ((count + (block - 1)) // block,), plan.warps, guard=guard, wide=wide)


def _loop_nest(space: IndexSpace, body: Body, dims: Sequence[Dim]) -> Nest:
    def visit(probe: Probe, index: Index) -> None:
        for root in body.yields:
            at = root_index(probe.space, index, dims, root)
            probe.offsets.append(probe.space.linear(at, root.dims))
            probe.visit(root, at)

    return choose_nest(space, dims, frozenset(), visit, "d")


# --- rows -----------------------------------------------------------------------------------------------------------------


def row_versions(fusion: Fusion, symbols: tuple[str, ...], planned: RowsPlan, thresholds: Thresholds) -> tuple[DeviceVersion, ...]:
    """The versions of a stitch kernel: by the length of its rows."""
    space = fusion.space()
    plan = plan_rows(space, fusion.body, frozenset(), thresholds)
    length = space.env.product(plan.space[len(plan.group_dims) :])
    places = [(root, root_index(space, plan.tiles[0].index, plan.space, root)) for root in plan.full_roots]
    places += [(root, root_index(space, plan.group_index, plan.group_dims, root)) for root in plan.group_roots]
    versions = _vectored(space, fusion.body, _guards_at(space, places, frozenset(each.name for each in plan.group)))
    found: list[DeviceVersion] = []
    for block in (*planned.blocks, planned.looped):
        fits = AtMost(block.columns, length)
        looped = block is planned.looped
        if looped:
            for guard, wide in versions:
                found += () if wide else _shared_versions(fusion, symbols, thresholds, block, guard)
        truth = Truth.NO if looped else fits.implied_by(space.env)
        if truth is Truth.NO and not looped:
            continue
        for guard, wide in versions:
            both = guard if truth is Truth.YES or looped else all_of((fits, guard))
            if wide and block.columns > KERNELS.wide_row:
                if truth is Truth.YES:
                    found.append(_row_version(fusion, symbols, thresholds, planned.looped, True, guard, True))
                continue  # the last version is for those, too
            found.append(_row_version(fusion, symbols, thresholds, block, looped, both, wide))
        if truth is Truth.YES:
            break
    return tuple(found)


def _row_version(
    fusion: Fusion, symbols: tuple[str, ...], thresholds: Thresholds, block: RowBlock, looped: bool, guard: Guard, wide: bool
) -> DeviceVersion:
    space = fusion.space()
    plan = plan_rows(space, fusion.body, frozenset(), thresholds)
    rows = _Rows(fusion, space, plan, block, looped, wide)
    grid = ((rows.groups + (block.rows - 1)) // block.rows,)
    shape = f"[{block.rows}, {block.columns}]"
    return emit_version(fusion.body, space, symbols, shape, rows.emit, grid, block.warps, guard=guard, wide=wide)


def _shared_versions(
    fusion: Fusion, symbols: tuple[str, ...], thresholds: Thresholds, block: RowBlock, guard: Guard
) -> Iterator[DeviceVersion]:
    """Those for rows that several programs share. Every part has a block of its row at least."""

    def rows_of(parts: int) -> _Rows:
        space = fusion.space()
        return _Rows(fusion, space, plan_rows(space, fusion.body, frozenset(), thresholds), block, True, False, parts)

    for parts in KERNELS.row_parts:
        plain = rows_of(parts)
        asked = asked_of((plain.join.fits, AtLeast(parts * block.columns, plain.length)), plain.space.env)
        if not plain.may_share or asked is None:
            continue
        versions = [
            emit_version(
                fusion.body, rows.space, symbols, f"[{block.rows}, {block.columns}]", emit, (rows.tiles * parts,), block.warps,
                guard=all_of((asked, guard)), scratch=rows.scratch(),
            )
            for rows, emit in _launches(plain, rows_of, parts)
        ]  # fmt: skip
        yield replace(versions[-1], ahead=tuple(versions[:-1]))


def _launches(
    plain: _Rows, rows_of: Callable[[int], _Rows], parts: int
) -> Iterator[tuple[_Rows, Callable[[Emitter, tuple[Buffer, ...]], None]]]:
    """The launches of a kernel whose rows programs share, one after the other."""
    if plain.in_one_launch:
        yield plain, plain.emit
        return
    for step in range(len(plain.plan.stages) + 1):
        rows = rows_of(parts)
        yield rows, partial(rows.emit, step=step)


class _Rows:
    """One version of a stitch kernel. parts: programs that share a row."""

    def __init__(self, fusion: Fusion, space: IndexSpace, plan: RowPlan, block: RowBlock, looped: bool, wide: bool, parts: int = 1) -> None:
        self.fusion, self.space, self.plan, self.block, self.wide = fusion, space, plan, block, wide
        self.row_dims = plan.space[len(plan.group_dims) :]
        self.length = space.env.product(self.row_dims)
        self.groups = plan.groups(space)
        self.tile = plan.tiles[0].variables if plan.tiles else (LoopVariable("p0", self.length),)
        self.whole = not looped
        if not plan.tiles:
            space.variable("p0", self.length)
        self.parts, self.tiles = parts, (self.groups + (block.rows - 1)) // block.rows
        self.join = Join(parts, block.rows * sum(len(node.siblings) for stage in plan.stages for node, _ in stage), self.tiles)

    @property
    def may_share(self) -> bool:
        """Whether programs may share a row: the values of its reductions have the size of a word."""
        dominants = [node for stage in self.plan.stages for node, _ in stage]
        return bool(dominants) and all(
            IN_ORDER not in node.attrs and {each.element for each in node.siblings} == {"f32"} for node in dominants
        )

    @property
    def in_one_launch(self) -> bool:
        """Whether the last program of a row can do all that is left: one round of reductions is all that is asked of a row."""
        return len(self.plan.stages) == 1 and not self.plan.full_roots

    def scratch(self) -> Scratch:
        """Where programs that share a row leave their parts; only those of one launch count each other."""
        return self.join.scratch() if self.in_one_launch else replace(self.join.scratch(), zeroed=ZERO)

    def emit(self, e: Emitter, results: tuple[Buffer, ...], step: int | None = None) -> None:
        """step: the number of the launch, of several."""
        w, body = e.w, self.fusion.body
        e.rules = {**RULES, "stablehlo.reduce": self._reduce}
        program = "tl.program_id(0).to(tl.int64)" if self.wide else "tl.program_id(0)"
        tile, part = program, ""
        if self.parts > 1:
            tile, part = w.let(f"{program} // {self.parts}", "i"), w.let(f"{program} % {self.parts}", "i")
        group = w.let(f"{tile} * {self.block.rows} + tl.arange(0, {self.block.rows})[:, None]", "g")
        live = w.let(f"{group} < {w.number(self.groups)}", "m")
        w.bind("group", Variable(group, w.root, frozenset({0}), live))
        e.bind_loops(self.space.variable("group", self.groups), self.plan.group)
        stored = dict(zip(body.yields, results, strict=True))
        if step is not None:
            self._step(e, tile, part, stored, step)
            return
        if part:
            self._share(e, tile, part, stored)
            return
        if self.whole:
            self._columns(e, "0")
            self._store_rows(e, stored)
        else:
            for stage in self.plan.stages:
                self._remember(e, self._round(e, stage, "0", w.number(self.length)))
            if self.plan.full_roots:
                with self._pass(e, "0", w.number(self.length)):
                    self._store_rows(e, stored)
        self._store_groups(e, stored)

    def _share(self, e: Emitter, tile: str, part: str, stored: dict[Node, Buffer]) -> None:
        """Reduces this program's part of a row. The program that comes last combines the parts, and computes what follows."""
        w, block = e.w, self.block
        begin, end = self._span(e, part)
        (stage,) = self.plan.stages
        found = self._round(e, stage, begin, end)
        lanes = [w.let(f"tl.arange(0, {block.rows})[:, None] + {number * block.rows}", "i") for number in range(len(found))]
        for (_, _, value), places in zip(found, lanes, strict=True):
            self.join.leave(e, tile, part, places, value)
        starts = [self._start(e, node) for node, _, _ in found]
        with self.join.last(e, tile) as scope, w.not_before(scope):
            totals = [w.name("total") for _ in found]
            for name, start in zip(totals, starts, strict=True):
                w.statement(f"{name} = tl.broadcast_to({start}, [{block.rows}, 1])")
            for values in self.join.found(e, tile, lanes, block.rows * len(lanes), block.warps):
                for (node, _, _), name, value in zip(found, totals, values, strict=True):
                    w.statement(f"{name} = {combined(reduced_kind(node), node.element, name, value)}")
            self._remember(e, [(node, index, name) for (node, index, _), name in zip(found, totals, strict=True)])
            self._store_groups(e, stored)

    def _span(self, e: Emitter, part: str) -> tuple[str, str]:
        """Where a part of a row begins, and where the next one does."""
        w, block, length = e.w, self.block, e.w.number(self.length)
        span = w.let(f"tl.cdiv(tl.cdiv({length}, {block.columns}), {self.parts}) * {block.columns}", "i")
        return w.let(f"{part} * {span}", "i"), w.let(f"tl.minimum({part} * {span} + {span}, {length})", "i")

    def _step(self, e: Emitter, tile: str, part: str, stored: dict[Node, Buffer], step: int) -> None:
        """One of several launches: a round of reductions of a part of a row, or its results, by what the launches before have found."""
        w, rows, stages, first = e.w, self.block.rows, self.plan.stages, 0
        begin, end = self._span(e, part)
        for stage in stages[:step]:
            found: list[Reduced] = []
            for number, (node, index) in enumerate(_wanted(stage), first):
                lanes = w.let(f"tl.arange(0, {rows})[:, None] + {number * rows}", "i")
                every = w.let(self.join.left(tile, f"tl.arange(0, {self.parts})[None, :]", lanes))
                found.append((node, index, reduced_along(e, node, every, 1)))
            first += len(found)
            self._remember(e, found)
        if step < len(stages):
            for number, (_, _, value) in enumerate(self._round(e, stages[step], begin, end), first):
                self.join.leave(e, tile, part, w.let(f"tl.arange(0, {rows})[:, None] + {number * rows}", "i"), value)
            return
        if self.plan.full_roots:
            with self._pass(e, begin, end):
                self._store_rows(e, stored)
        if self.plan.group_roots:
            with w.block(f"if {part} == 0:"):
                self._store_groups(e, stored)

    def _store_groups(self, e: Emitter, stored: dict[Node, Buffer]) -> None:
        for root in self.plan.group_roots:
            index = root_index(self.space, self.plan.group_index, self.plan.group_dims, root)
            e.store(stored[root], self.space.linear(index, root.dims), e.value(root, index))

    def _store_rows(self, e: Emitter, stored: dict[Node, Buffer]) -> None:
        for root in self.plan.full_roots:
            index = root_index(self.space, self.plan.tiles[0].index, self.plan.space, root)
            e.store(stored[root], self.space.linear(index, root.dims), e.value(root, index))

    def _columns(self, e: Emitter, begin: str) -> None:
        """Binds the position in the row to the lanes of a block that begins at `begin`."""
        w = e.w
        lanes = f"tl.arange(0, {self.block.columns})[None, :]"
        place = w.let(lanes if begin == "0" else f"{begin} + {lanes}", "p")
        live = w.let(f"{place} < {w.number(self.length)}", "m")
        w.bind("place", Variable(place, w.scope, frozenset({1}), live))
        e.bind_loops(self.space.variable("place", self.length), self.tile)

    @contextmanager
    def _pass(self, e: Emitter, first: str, past: str) -> Iterator[None]:
        """Statements for all blocks of the rows between two positions, one after the other."""
        begin = e.w.name("begin")
        with e.w.block(f"for {begin} in range({first}, {past}, {self.block.columns}):"):
            self._columns(e, begin)
            yield

    def _start(self, e: Emitter, node: Node) -> str:
        """What a reduction begins with."""
        return e.value(node.operands[len(node.operands) // 2 + node.result], ())

    def _remember(self, e: Emitter, found: Sequence[Reduced]) -> None:
        """From now on `_reduce` finds these values."""
        for node, index, value in found:
            with e.w.at(e.scope(index)):
                e.w.scope.memo["value", node.id, index, ()] = value

    def _round(self, e: Emitter, stage: Sequence[Dominant], first: str, past: str) -> list[Reduced]:
        """Reductions of which none needs another, in one pass over the rows between two positions."""
        w = e.w
        wanted = _wanted(stage)
        held = [w.name("sum") for _ in wanted]
        starts = [self._start(e, node) for node, _ in wanted]
        for name, start in zip(held, starts, strict=True):
            w.statement(f"{name} = tl.broadcast_to({start}, {w.shape})")
        with self._pass(e, first, past):
            for (node, index), name, start in zip(wanted, held, starts, strict=True):
                value = self._live(e, e.value(node.operands[node.result], self._source(node, index)), start)
                w.statement(f"{name} = {combined(reduced_kind(node), node.element, name, value)}")
        found: list[Reduced] = []
        for (node, index), name in zip(wanted, held, strict=True):
            with w.at(e.scope(index)):
                found.append((node, index, reduced_along(e, node, name, 1)))
        return found

    def _reduce(self, e: Emitter, node: Node, index: Index, predicate: Predicate) -> str | Recursive[str]:
        """The rule of reductions: of a row across the lanes, else in each lane by itself."""
        w = e.w
        names = [name for dim in index for name in dim.symbols()]
        length = self.space.env.product([node.operands[0].dims[axis] for axis in node.ints("dimensions")])
        if 1 in w.axes_of(names) or IN_ORDER in node.attrs or self.space.env.equal(length, self.length) is not Truth.YES:
            return RULES["stablehlo.reduce"](e, node, index, predicate)
        rows = tuple(each for each in predicate if 1 not in w.axes_of(each.symbols))
        known = w.known(("value", node.id, index, rows))
        if isinstance(known, str):
            return known
        return self._across(e, node, index, rows) if self.whole else RULES["stablehlo.reduce"](e, node, index, rows)

    def _across(self, e: Emitter, node: Node, index: Index, predicate: Predicate) -> Recursive[str]:
        count = len(node.operands) // 2
        start: str = yield e.compute(node.operands[count + node.result], ())
        value: str = yield e.compute(node.operands[node.result], self._source(node, index), predicate)
        return reduced_along(e, node, self._live(e, value, start), 1)

    def _source(self, node: Node, index: Index) -> Index:
        """The index in what is reduced, of the row at `index` and the position of the lane."""
        reduced, kept = node.ints("dimensions"), iter(index)
        sizes = node.operands[0].dims
        extents = [sizes[axis] for axis in sorted(reduced)]
        if self.plan.tiles:
            at = self.plan.tiles[0].index[len(self.plan.group_dims) :]
        else:
            at = self.space.delinear(Dim.symbol("p0"), self.row_dims)
        same = [dim for dim in extents if dim != ONE] == [dim for dim in self.row_dims if dim != ONE]
        if same:
            present = iter([position for position, dim in zip(at, self.row_dims, strict=True) if dim != ONE])
            positions = iter([next(present) if dim != ONE else Dim.of(0) for dim in extents])
        else:
            positions = iter(self.space.delinear(self.space.linear(at, self.row_dims), extents))
        return tuple(next(positions) if axis in reduced else next(kept) for axis in range(len(sizes)))

    def _live(self, e: Emitter, value: str, start: str) -> str:
        """The value, in lanes past the end of the row what changes nothing."""
        return e.w.let(f"tl.where({e.w.variables['place'].live}, {value}, {start})")


def _wanted(stage: Sequence[Dominant]) -> list[tuple[Node, Index]]:
    """The results of a round of reductions whose order is free."""
    return [(result, index) for node, index in stage if IN_ORDER not in node.attrs for result in node.siblings]
