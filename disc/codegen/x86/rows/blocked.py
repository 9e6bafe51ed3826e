"""Loop kernels that read an input across its rows: square blocks are transposed in registers, strip by strip.

A strip is some neighboring elements of the input's rows: whole cache lines of it are read, and used at once; of the results, each
block writes whole vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from disc.codegen.mlir.builder import register_element
from disc.codegen.plan.index import ONE, ZERO, Index, IndexSpace, split_linear
from disc.codegen.plan.nests import LoopVariable
from disc.codegen.plan.probe import Probe
from disc.codegen.plan.rows import RowPlan, root_index
from disc.codegen.x86.emit import Emitter, Override, Predicate
from disc.codegen.x86.function import Frame
from disc.codegen.x86.gemm.transpose import transpose_square
from disc.codegen.x86.memory import Buffer, load_contiguous, load_reversed
from disc.ir.graph import Node
from disc.ir.op_table import ELEMENTWISE, VIEWS
from disc.shapes import Dim

DOWN = ZERO - ONE
REGISTERS = ("f32", "i32")  # register elements that a vector of the ISA's width holds `lanes` of


@dataclass(frozen=True)
class Blocked:
    """reads: inputs and the offsets at which they are read, a row apart from lane to lane and contiguous along loop variable `across`,
    up or down. strip: elements along it in a task."""

    across: LoopVariable
    others: tuple[LoopVariable, ...]
    lane: LoopVariable
    reads: tuple[tuple[Node, Dim], ...]
    strip: int

    @property
    def strips(self) -> Dim:
        """Strips along `across`."""
        return (self.across.extent + (self.strip - 1)) // self.strip

    def tasks(self, space: IndexSpace) -> Dim:
        """A task is one strip at one position of the other loops."""
        return space.env.product([variable.extent for variable in self.others]) * self.strips


def plan_blocks(space: IndexSpace, plan: RowPlan, strip: int) -> Blocked | None:
    """The blocks, in strips of `strip` elements, of loops over element-wise ops and views; None when no input is read across its rows."""
    if [len(tile.variables) for tile in plan.tiles] != [1] or not plan.group:
        return None
    (tile,) = plan.tiles
    lane = tile.lane
    probe = Probe(space, frozenset())
    for root in plan.full_roots:
        probe.visit(root, root_index(space, tile.index, plan.space, root))
    if not all(node.op in ("input", "stablehlo.constant") or node.op in ELEMENTWISE or node.op in VIEWS for node in probe.ops):
        return None
    for across in plan.group:
        reads = [read for read in dict.fromkeys(probe.reads) if _is_across(read, lane.name, across.name)]
        if reads:
            return Blocked(across, tuple(variable for variable in plan.group if variable is not across), lane, tuple(reads), strip)
    return None


def _is_across(read: tuple[Node, Dim], lane: str, across: str) -> bool:
    node, offset = read
    steps = split_linear(offset, lane), split_linear(offset, across)
    return (
        register_element(node.element) in REGISTERS
        and steps[0] is not None
        and steps[1] is not None
        and steps[0][0] not in (ZERO, ONE, DOWN)
        and steps[1][0] in (ONE, DOWN)
        and not any(name in steps[0][0].symbols() for name in (lane, across))
    )


def emit_blocked(frame: Frame, plan: RowPlan, blocked: Blocked) -> None:
    """Tasks [begin, end) of `Blocked.tasks`."""
    b, e = frame.b, frame.emitter
    with b.loop(frame.begin, frame.end, b.index(1)) as task, ExitStack() as bound:
        name = e.name("task")
        position = e.space.variable(name, blocked.tasks(e.space))
        bound.enter_context(e.bind(name, task.index))
        *values, strip = e.space.delinear(position, [*(variable.extent for variable in blocked.others), blocked.strips])
        for variable, value in zip(blocked.others, values, strict=True):
            bound.enter_context(e.bind(variable.name, b.scalar(value)))
        low = b.scalar(strip * blocked.strip)
        high = b.op(f"arith.minsi {b.op(f'arith.addi {low}, {b.index(blocked.strip)} : i64')}, {b.scalar(blocked.across.extent)} : i64")
        _emit_strip(frame, plan, blocked, low, high)


def _emit_strip(frame: Frame, plan: RowPlan, blocked: Blocked, low: str, high: str) -> None:
    """Whole blocks first, then those that the ends of the two loops cut."""
    b = frame.b
    lanes = b.index(b.lanes)
    extent = b.scalar(blocked.lane.extent)
    rest = b.op(f"arith.remui {b.op(f'arith.subi {high}, {low} : i64')}, {lanes} : i64")
    whole = b.op(f"arith.subi {high}, {rest} : i64")
    whole_lanes = b.op(f"arith.subi {extent}, {b.op(f'arith.remui {extent}, {lanes} : i64')} : i64")
    e = frame.emitter
    reach = b.index(b.lanes if e.streams else e.target.thresholds.rows.reach)  # from memory, what lies side by side is best read at once
    with b.loop(b.index(0), whole_lanes, reach) as part:
        end = b.op(f"arith.minsi {b.op(f'arith.addi {part.index}, {reach} : i64')}, {whole_lanes} : i64")
        with b.loop(low, whole, lanes) as outer, b.loop(part.index, end, lanes) as inner:
            _Block(frame, plan, blocked, inner.index, outer.index).emit()
    with b.loop(b.index(0), extent, lanes) as outer:
        cut = b.op(f"arith.cmpi sge, {outer.index}, {whole_lanes} : i64")
        first = b.op(f"arith.select {cut}, {low}, {whole} : i64")
        with b.loop(first, high, lanes) as inner:
            _Block(frame, plan, blocked, outer.index, inner.index, ends=(extent, high)).emit()


@dataclass(frozen=True)
class _Block:
    """One square of results: lanes from `lane`, one vector for each position from `across` on. ends: of both, where a block is cut."""

    frame: Frame
    plan: RowPlan
    blocked: Blocked
    lane: str
    across: str
    ends: tuple[str, str] | None = None

    def emit(self) -> None:
        b, e = self.frame.b, self.frame.emitter
        mask = None if self.ends is None else e.tail_mask(self._left(self.lane, self.ends[0]))
        with ExitStack() as bound:
            names = [f"{self.blocked.across.name}.{number}" for number in range(b.lanes)]
            for number, name in enumerate(names):
                e.space.variable(name, self.blocked.across.extent)
                bound.enter_context(e.bind(name, b.op(f"arith.addi {self.across}, {b.index(number)} : i64")))
            found = {each: vector for read in self.blocked.reads for each, vector in self._transposed(read, names).items()}
            lane = self.blocked.lane.name
            bound.enter_context(e.bind(lane, self.lane, lane=True, mask=mask, aligned=True))
            leaves = {node: e.leaves[node] for node, _ in self.blocked.reads}
            for node, leaf in leaves.items():
                e.leaves[node] = _reader(e, node, leaf, found)
            for number, name in enumerate(names):
                self._store(name, number)
            e.leaves.update(leaves)

    def _left(self, position: str, end: str) -> str:
        return self.frame.b.op(f"arith.subi {end}, {position} : i64")

    def _transposed(self, read: tuple[Node, Dim], names: Sequence[str]) -> dict[tuple[Node, Dim], str]:
        """The vectors that one read gives, by offset. Rows past the end repeat the last one, columns past it are not read."""
        b, e = self.frame.b, self.frame.emitter
        node, offset = read
        leaf = e.leaves[node]
        assert isinstance(leaf, Buffer)
        mask = None if self.ends is None else e.tail_mask(self._left(self.across, self.ends[1]))
        steps = split_linear(offset, self.blocked.across.name)
        load = load_reversed if steps is not None and steps[0] == DOWN else load_contiguous
        rows: list[str] = []
        for number in range(b.lanes):
            row = b.op(f"arith.addi {self.lane}, {b.index(number)} : i64")
            if self.ends is not None:
                row = b.op(f"arith.minsi {row}, {b.op(f'arith.subi {self.ends[0]}, {b.index(1)} : i64')} : i64")
            with e.bind(self.blocked.lane.name, row), e.bind(self.blocked.across.name, self.across):
                rows.append(load(b, leaf, b.scalar(offset), mask))
        vectors = transpose_square(b, rows, register_element(node.element))
        offsets = [offset.replace({self.blocked.across.name: Dim.symbol(name)}) for name in names]
        return {(node, each): vector for each, vector in zip(offsets, vectors, strict=True)}

    def _store(self, name: str, number: int) -> None:
        b = self.frame.b
        if self.ends is None:
            self._store_all(name)
            return
        with b.when(b.op(f"arith.cmpi sgt, {self._left(self.across, self.ends[1])}, {b.index(number)} : i64")):
            self._store_all(name)

    def _store_all(self, name: str) -> None:
        e = self.frame.emitter
        for root, output in zip(self.frame.roots, self.frame.outputs, strict=True):
            index = root_index(e.space, self.plan.tiles[0].index, self.plan.space, root)
            at = tuple(position.replace({self.blocked.across.name: Dim.symbol(name)}) for position in index)
            e.store(output, e.space.linear(at, root.dims), e.value(root, at), result=True)


def _reader(e: Emitter, node: Node, leaf: object, found: dict[tuple[Node, Dim], str]) -> Override:
    """Reads `node` from the transposed vectors, or from memory where it is also read otherwise."""
    assert isinstance(leaf, Buffer)

    def read(index: Index, predicate: Predicate | None) -> str:
        offset = e.space.linear(index, leaf.dims)
        vector = found.get((node, offset)) if predicate is None else None
        return vector if vector is not None else e.load(leaf, offset, predicate)

    return read
