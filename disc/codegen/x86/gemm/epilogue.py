"""What follows the sums of a dot or convolution: they are read from a tile in L1, and every root is stored a row at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from disc.codegen.plan.contraction import forward_indices, trace_views
from disc.codegen.plan.index import ONE, Index
from disc.codegen.x86.emit import Emitter, Predicate
from disc.codegen.x86.function import Frame, store_roots
from disc.codegen.x86.gemm.micro import prefetch
from disc.codegen.x86.gemm.plan import PANEL, ROWS, RootSink
from disc.codegen.x86.memory import Buffer, address
from disc.ir.graph import Body, Node
from disc.shapes import Dim


@dataclass(frozen=True, eq=False)
class Epilogue:
    """node: the contraction; at: the index in its result of (gb, gm, gn); columns: how many there are, of which a tile holds `width`;
    element: of the sums; kind: what to call the contraction in messages; sink: takes its one root, which is no result of
    the kernel then."""

    body: Body
    node: Node
    at: Index
    columns: Dim
    width: int
    element: str
    kind: str
    sink: RootSink | None = None

    def store_row(self, frame: Frame, tile: str, row: str, columns: tuple[str, str]) -> None:
        """Stores `columns` of the row bound to gm of every root; the sums are row `row` of the tile at `tile`."""
        e = frame.emitter
        name_row, name_start = e.name("row"), e.name("start")
        e.space.variable(name_row, Dim.of(ROWS))
        e.space.variable(name_start, self.columns)
        with e.bind(name_row, row), e.bind(name_start, columns[0]):
            sums = Buffer(tile, (), self.element)
            offset = Dim.symbol(name_row) * PANEL
            if self.columns == ONE:  # the index of a value names no column then, so it would be taken for one that all rows share
                e.floor = frame.b.scope
            else:
                offset += Dim.symbol("gn") - Dim.symbol(name_start)

            def value(index: Index, predicate: Predicate | None) -> str:
                del index
                return e.load(sums, offset, predicate)

            indices = forward_indices(e.space, self.body, self.node, self.at)

            def store(names: list[str], carried: list[str]) -> list[str]:
                del names, carried
                if self.sink is None:
                    store_roots(frame, indices, self.kind)
                else:
                    self.sink(e.value(frame.roots[0], indices[frame.roots[0]]))
                return []

            e.leaves[self.node] = value
            whole = self.columns.is_const and self.columns.const % self.width == 0
            e.lane_loop("gn", columns[0], columns[1], Dim.of(self.width) if whole else Dim.symbol("gn"), 1, [], store)
            del e.leaves[self.node]
            e.floor = None

    def prefetch(self, frame: Frame, start: str, count: str, column: str) -> None:
        """Prefetches what `store_row` will touch for `count` rows from `start`: the lines that it writes, and those of inputs that lie
        like the result, such as a residual. Done before the micro-kernel computes (stores that miss cost 6 % at 512 x 3072)."""
        b, e = frame.b, frame.emitter
        indices = forward_indices(e.space, self.body, self.node, self.at)
        with b.loop(b.index(0), count, b.index(1)) as row, e.bind("gm", b.op(f"arith.addi {start}, {row.index} : i64")):
            for vector in range(self.width // b.lanes):
                with e.bind("gn", b.op(f"arith.addi {column}, {b.index(vector * b.lanes)} : i64")):
                    for buffer, offset, written in self._touched(frame, indices):
                        b.statement(prefetch(address(b, buffer, b.scalar(offset)), write=written))

    def _touched(self, frame: Frame, indices: dict[Node, Index]) -> Iterator[tuple[Buffer, Dim, bool]]:
        """(buffer, offset, is it written) of what has an element of its own for every row of sums."""
        e = frame.emitter
        for root, output in zip(frame.roots, frame.outputs, strict=True) if self.sink is None else ():
            if root in indices:
                yield output, e.space.linear(indices[root], root.dims), True
        for buffer, offset in read_beside(e, self.body, self.node, indices):
            yield buffer, offset, False


def read_beside(e: Emitter, body: Body, dot: Node, indices: dict[Node, Index]) -> Iterator[tuple[Buffer, Dim]]:
    """(buffer, offset) of inputs that values computed from `dot` read like it, an element of their own for every row (`gm`): a residual,
    a bias of scores. indices: as `forward_indices` finds them."""
    for node in (each for each in body.nodes if each in indices and each is not dot):
        for operand in (each for each in node.operands if each not in indices and each.dims == node.dims):
            traced = trace_views(e.space, operand, indices[node])
            leaf = e.leaves.get(traced[0]) if traced is not None else None
            if traced is not None and isinstance(leaf, Buffer) and "gm" in traced[1].symbols():
                yield leaf, traced[1]
