"""Tiles of an attention kernel: a block of rows times a panel, tile by tile, and what is done with each row of a tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from disc.codegen.plan.contraction import forward_indices
from disc.codegen.plan.index import ONE, ZERO, Index
from disc.codegen.x86.attention.plan import Blocks
from disc.codegen.x86.attention.running_softmax import RowState
from disc.codegen.x86.emit import Predicate
from disc.codegen.x86.function import Frame
from disc.codegen.x86.gemm.dots import FewRows
from disc.codegen.x86.gemm.epilogue import read_beside
from disc.codegen.x86.gemm.micro import call_micro
from disc.codegen.x86.gemm.packing import strips
from disc.codegen.x86.gemm.plan import PANEL, ROWS, Gemm
from disc.codegen.x86.memory import Buffer, address, prefetch
from disc.ir.graph import Body, Node
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim


@dataclass(eq=False)
class Task:
    """One block of rows: its first row and number of rows, the keys [begin, end) that it may see, and where its scratch is."""

    frame: Frame
    blocks: Blocks
    body: Body
    low: str
    rows: str
    keys: tuple[str, str]
    places: dict[str, str]

    def at(self, name: str) -> Frame:
        """The frame with scratch from `name` on."""
        return replace(self.frame, scratch=self.places[name])

    def buffer(self, name: str, element: str = "f32") -> Buffer:
        return Buffer(self.places[name], (), element)

    def state(self, row: str) -> RowState:
        """What the softmax keeps of a row; probabilities are stored as the second dot reads them."""
        b = self.frame.b
        start = b.op(f"arith.muli {row}, {b.index(self.blocks.plan.keys * 4)} : i64")
        scores = address(b, self.buffer("scores", "i8"), start)
        maximum, total, scale = (address(b, self.buffer(name), row) for name in ("maxima", "sums", "scales"))
        blocks = self.blocks
        return RowState(scores, maximum, total, scale, blocks.plan.keys, blocks.probability.element, blocks.second.form.left)


def share(frame: Frame, number: str, whole: str, parts: str) -> tuple[str, str]:
    """[begin, end) of part `number` of `whole` in equal parts."""
    b = frame.b
    begin = b.op(f"arith.divui {b.op(f'arith.muli {number}, {whole} : i64')}, {parts} : i64")
    after = b.op(f"arith.addi {number}, {b.index(1)} : i64")
    return begin, b.op(f"arith.divui {b.op(f'arith.muli {after}, {whole} : i64')}, {parts} : i64")


@dataclass(frozen=True)
class Panel:
    """A panel of B: its first row, bytes from row to row, rows."""

    pointer: str
    step: str
    k: str


@dataclass(frozen=True)
class TileRow:
    """One row of a tile of products. place: where the tile is; number: the row within the block, offset: where it starts in the tile, as
    expressions; columns: [begin, end) of the tile."""

    place: str
    number: Dim
    offset: Dim
    columns: tuple[str, str]


def each_row(
    task: Task,
    gemm: Gemm,
    names: tuple[str, str, str],
    panel: Panel,
    columns: tuple[str, str],
    each: Callable[[TileRow], None],
    few: FewRows | None = None,
) -> None:
    """All rows of the block times one panel, or as dot products where they are `few`; names: where tile and row pointers are, and the
    bytes from k to k + 1; `each` row is handled with gm bound. What is added to a tile is prefetched while it is computed: a bias of scores
    is larger than an L2, and is read in pieces of a panel's width, which the hardware does not foresee."""
    b, e = task.frame.b, task.frame.emitter
    place, pointers, k_step = names
    row_name, start_name = e.name("row"), e.name("start")
    most = Dim.of(task.blocks.plan.rows)
    number, start = e.space.variable(row_name, most), e.space.variable(start_name, most)
    with strips(task.frame.b, gemm, columns, panel.pointer) as (strip, moved), _tiles(task) as (low, count):
        array = b.op(f"llvm.getelementptr {task.places[pointers]}[{low}] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr")
        tile = task.places[place]
        right = f"{moved}, {panel.step}, {panel.k}, {tile}, {b.index(PANEL)}"
        no_prefetch = f"{task.frame.scratch}, {b.index(0)}, {b.index(0)}"
        fresh = b.constant("arith.constant false")  # the tile is written, not added to
        call = f"{array}, {b.index(0)}, {k_step}, {right}, {fresh}, {no_prefetch}"
        _fetch_beside(task, gemm, (low, count), strip[0])
        if few is None:
            _micro(task, gemm, (count, strip), call)
        else:
            with b.when(few.wanted):
                _dots(task, gemm, few, (array, count), b.op(f"arith.subi {strip[1]}, {strip[0]} : i64"), tile)
            with b.when(b.op(f"arith.xori {few.wanted}, {b.constant('arith.constant true')} : i1")):
                _micro(task, gemm, (count, strip), call)
        high = b.op(f"arith.addi {low}, {count} : i64")
        with e.bind(start_name, low), b.loop(low, high, b.index(1)) as row:
            position = b.op(f"arith.addi {task.low}, {row.index} : i64")
            with e.bind(row_name, row.index), e.bind("gm", position):
                each(TileRow(place, number, (number - start) * PANEL, strip))


def _fetch_beside(task: Task, gemm: Gemm, rows: tuple[str, str], column: str) -> None:
    """Prefetches the elements of inputs that are read together with a tile of products; rows: (first, number)."""
    b, e, c = task.frame.b, task.frame.emitter, gemm.contraction
    indices = forward_indices(e.space, task.body, c.node, c.place())
    beside = list(read_beside(e, task.body, c.node, indices))
    if not beside:
        return
    first = b.op(f"arith.addi {task.low}, {rows[0]} : i64")
    with b.loop(first, b.op(f"arith.addi {first}, {rows[1]} : i64"), b.index(1)) as row, e.bind("gm", row.index):
        for buffer, offset in beside:
            for start in range(0, gemm.width, e.target.caches.line // ELEMENT_BYTES[buffer.element]):
                with e.bind("gn", b.op(f"arith.addi {column}, {b.index(start)} : i64")):
                    prefetch(b, buffer, b.scalar(offset))


@contextmanager
def _tiles(task: Task) -> Iterator[tuple[str, str]]:
    """Loops over tiles of equal height: the first row of each and the number of its rows."""
    b = task.frame.b
    tiles = b.op(f"arith.ceildivui {task.rows}, {b.index(ROWS)} : i64")
    with b.loop(b.index(0), tiles, b.index(1)) as tile:
        low, high = share(task.frame, tile.index, task.rows, tiles)
        yield low, b.op(f"arith.subi {high}, {low} : i64")


def _micro(task: Task, gemm: Gemm, size: tuple[str, tuple[str, str]], operands: str) -> None:
    """Calls the micro-kernel for this number of rows and of columns."""
    b = task.frame.b
    rows, columns = size
    span = b.op(f"arith.subi {columns[1]}, {columns[0]} : i64")
    call_micro(b, gemm.form, gemm.lanes, task.blocks.row_counts(), task.blocks.vector_counts(gemm), (rows, span), operands)


def _dots(task: Task, gemm: Gemm, few: FewRows, rows: tuple[str, str], columns: str, tile: str) -> None:
    """The tile of few rows; rows: (array of their pointers, number)."""
    b = task.frame.b
    with b.loop(b.index(0), rows[1], b.index(1)) as row:
        slot = b.op(f"llvm.getelementptr {rows[0]}[{row.index}] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr")
        pointer = b.op(f"llvm.load {slot} : !llvm.ptr -> !llvm.ptr")
        target = address(b, Buffer(tile, (), "f32"), b.op(f"arith.muli {row.index}, {b.index(PANEL)} : i64"))
        few.call(b, gemm.contraction.k.const, pointer, columns, target)


def store_row(task: Task, gemm: Gemm, row: TileRow, adjust: Callable[[str], str], put: Callable[[dict[Node, Index]], None]) -> None:
    """Runs `put` over the columns of a row of a tile, the dot's value there being `adjust` of the tile's."""
    b, e, c = task.frame.b, task.frame.emitter, gemm.contraction
    tile = task.buffer(row.place, gemm.element)
    name = e.name("start")
    offset = row.offset + (ZERO if c.n == ONE else Dim.symbol("gn") - e.space.variable(name, c.n))

    def dot_value(index: Index, predicate: Predicate | None) -> str:
        del index
        return adjust(e.load(tile, offset, predicate))

    indices = forward_indices(e.space, task.body, c.node, c.place())

    def columns(names: list[str], carried: list[str]) -> list[str]:
        del names, carried
        put(indices)
        return []

    e.leaves[c.node] = dot_value
    e.floor = b.scope if c.n == ONE else None  # the index of a value names no column then: it would be taken for one of all rows
    with e.bind(name, row.columns[0]):
        e.lane_loop("gn", *row.columns, _known_width(task, gemm), 1, [], columns)
    e.floor = None
    del e.leaves[c.node]


def _known_width(task: Task, gemm: Gemm) -> Dim:
    """The columns of a tile, gn where they are not known."""
    return Dim.of(gemm.width) if task.blocks.whole_tiles(gemm) else Dim.symbol("gn")
