"""Cumulative sums, products and extremes on a GPU.

Along the last dim a program scans lines block by block and carries what came before. Along another dim every lane goes down a line of its
own, so that neighboring lanes read neighboring elements.
"""

from __future__ import annotations

from dataclasses import dataclass

from disc.codegen.cuda.elementwise import combined
from disc.codegen.cuda.emit import Buffer, Emitter
from disc.codegen.cuda.kernel import DeviceVersion, emit_version
from disc.codegen.cuda.rows import body_versions
from disc.codegen.cuda.structural import combiner
from disc.codegen.cuda.text import Variable
from disc.codegen.cuda.types import in_register, literal
from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.index import ONE, Index
from disc.ir.graph import Node
from disc.ir.reducers import identity
from disc.shapes import Dim, Truth
from disc.speculation.guards import ALWAYS, AtMost, Guard, all_of
from disc.targets.cuda_thresholds import KERNELS

SCAN = "disc.cumulative"
_KINDS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}


@dataclass(frozen=True)
class ScanBlock:
    """columns: elements of a line that are scanned at once; rows: lines of a program; warps."""

    columns: int
    rows: int
    warps: int


SHORT, LONG, ACROSS = (ScanBlock(*each) for each in KERNELS.scans)  # across: each lane a line


def scan_extents(fusion: Fusion) -> tuple[Dim, ...]:
    """(length of a line, number of lines)."""
    scan = _Scan(fusion, ACROSS, False)
    return scan.length, scan.lines


def scan_versions(fusion: Fusion, symbols: tuple[str, ...]) -> tuple[DeviceVersion, ...]:
    """The versions of a fusion around one `disc.cumulative`: by the length of its lines where lanes run along them."""
    space = fusion.space()
    first = _Scan(fusion, ACROSS, False)
    blocks: list[tuple[ScanBlock, Guard]] = [(ACROSS, ALWAYS)]
    if first.along:
        short = AtMost(SHORT.columns, first.length)
        truth = Truth.NO if first.lines == ONE else short.implied_by(space.env)
        blocks = [(SHORT, ALWAYS)] if truth is Truth.YES else [(LONG, ALWAYS)] if truth is Truth.NO else [(SHORT, short), (LONG, ALWAYS)]
    return tuple(
        _Scan(fusion, block, wide).version(symbols, all_of((fits, guard)))
        for block, fits in blocks
        for guard, wide in body_versions(space, fusion.body)
    )


class _Scan:
    def __init__(self, fusion: Fusion, block: ScanBlock, wide: bool) -> None:
        self.fusion, self.block, self.wide, self.space = fusion, block, wide, fusion.space()
        self.node: Node = next(node for node in fusion.body.nodes if node.op == SCAN)
        dims = self.node.dims
        self.axis = self.node.integer("dim") % len(dims)
        self.others = [axis for axis in range(len(dims)) if axis != self.axis]
        self.length = dims[self.axis]
        self.lines = self.space.env.product([dims[axis] for axis in self.others])
        self.along = all(dims[axis] == ONE for axis in self.others if axis > self.axis)
        self.kind = _KINDS[str(self.node.attrs["kind"])]

    def version(self, symbols: tuple[str, ...], guard: Guard) -> DeviceVersion:
        block, grid = self.block, ((self.lines + (self.block.rows - 1)) // self.block.rows,)
        shape = f"[{block.rows}, {block.columns}]" if self.along else f"[{block.rows}]"
        emit = self._along if self.along else self._across
        return emit_version(self.fusion.body, self.space, symbols, shape, emit, grid, block.warps, guard=guard, wide=self.wide)

    def _along(self, e: Emitter, results: tuple[Buffer, ...]) -> None:
        w, block, node = e.w, self.block, self.node
        self._lines(e, "[:, None]")
        start = self._start()
        w.statement(f"carried = tl.broadcast_to({start}, [{block.rows}, 1])")
        with w.block(f"for begin in range(0, {w.number(self.length)}, {block.columns}):") as scope:
            place = w.let(f"begin + tl.arange(0, {block.columns})[None, :]", "p")
            live = w.let(f"{place} < {w.number(self.length)}", "m")
            w.bind("place", Variable(place, scope, frozenset({1}), live))
            index = self._index(self.space.variable("place", self.length))
            element = w.let(f"tl.where({live}, tl.broadcast_to({e.value(node.operands[0], index)}, {w.shape}), {start})")
            if self.kind == "add" and node.element != "i1":
                scanned, whole = f"tl.cumsum({element}, 1)", f"tl.sum({element}, 1, keep_dims=True)"
            else:
                function = combiner(e, self.kind, node.element)
                scanned, whole = f"tl.associative_scan({element}, 1, {function})", f"tl.reduce({element}, 1, {function}, keep_dims=True)"
            type_ = in_register(node.element)
            found = w.let(combined(self.kind, node.element, "carried", w.let(f"{scanned}.to({type_})")))
            e.store(results[0], self.space.linear(index, node.dims), found)
            w.statement(f"carried = {combined(self.kind, node.element, 'carried', w.let(f'{whole}.to({type_})'))}")

    def _across(self, e: Emitter, results: tuple[Buffer, ...]) -> None:
        w, node = e.w, self.node
        self._lines(e, "")
        w.statement(f"carried = tl.broadcast_to({self._start()}, {w.shape})")
        with w.block(f"for step in range(0, {w.number(self.length)}):") as scope:
            w.bind("place", Variable(w.let("tl.zeros([], tl.int64) + step", "i") if self.wide else "step", scope))
            index = self._index(self.space.variable("place", self.length))
            element = e.value(node.operands[0], index)
            w.statement(f"carried = tl.broadcast_to({combined(self.kind, node.element, 'carried', element)}, {w.shape})")
            e.store(results[0], self.space.linear(index, node.dims), "carried")

    def _lines(self, e: Emitter, lanes: str) -> None:
        """Binds the number of a line."""
        w, rows = e.w, self.block.rows
        program = "tl.program_id(0).to(tl.int64)" if self.wide else "tl.program_id(0)"
        line = w.let(f"{program} * {rows} + tl.arange(0, {rows}){lanes}", "g")
        w.bind("line", Variable(line, w.root, frozenset({0}), w.let(f"{line} < {w.number(self.lines)}", "m")))

    def _index(self, place: Dim) -> Index:
        dims = self.node.dims
        index = [place] * len(dims)
        line = self.space.variable("line", self.lines)
        for axis, position in zip(self.others, self.space.delinear(line, [dims[axis] for axis in self.others]), strict=True):
            index[axis] = position
        return tuple(index)

    def _start(self) -> str:
        return literal(identity(self.kind, self.node.element).item(), self.node.element)
