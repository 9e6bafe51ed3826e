"""Attention with a running softmax: keys in blocks, so that scores take the same room for every length.

For a block of rows: scores of a block of keys into scratch, their exponentials in place, their product with the values onto the rows'
results, which are scaled whenever a row's maximum grows (Dao et al., FlashAttention, arXiv 2205.14135, algorithm 1; Milakov and
Gimelshein, arXiv 1805.02867, for the running maximum and sum). The division by the sums comes last, on the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from disc.codegen.plan.contraction import declare
from disc.codegen.plan.index import ONE, ZERO, Index
from disc.codegen.x86.attention.plan import Blocks
from disc.codegen.x86.attention.running_softmax import emit_row
from disc.codegen.x86.attention.tiles import Panel, Task, TileRow, each_row, share, store_row
from disc.codegen.x86.function import Frame, store_roots
from disc.codegen.x86.gemm.dots import few_rows
from disc.codegen.x86.gemm.packing import pack_columns, pack_left, right_panel
from disc.codegen.x86.memory import Buffer, address
from disc.ir.graph import Body, Node
from disc.shapes import Dim


def emit_blocks(frame: Frame, blocks: Blocks, body: Body) -> None:
    """All tasks of [begin, end): a task is (batch, block of rows)."""
    b, e = frame.b, frame.emitter
    c = blocks.first.contraction
    count = blocks.row_blocks()
    places = {name: address(b, Buffer(frame.scratch, (), "i8"), b.scalar(offset)) for name, offset in blocks.places().items()}
    with b.loop(frame.begin, frame.end, b.index(1)) as task:
        position = e.space.variable("gtask", c.batch * count)
        with e.bind("gtask", task.index):
            batch = e.space.divide(position, count)
            number, block = b.scalar(batch), b.scalar(position - batch * count)
            low, high = share(frame, block, b.scalar(c.m), b.scalar(count))
            with e.bind("gb", number):
                for rows, keys in _segments(frame, blocks, low, high):
                    count = b.op(f"arith.subi {rows[1]}, {rows[0]} : i64")
                    _emit_task(Task(frame, blocks, body, rows[0], count, keys, places))


def _segments(frame: Frame, blocks: Blocks, low: str, high: str) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """The rows [low, high) and the keys that they may see; of packed sequences, the rows of each, in a loop. Bounds outside of the tokens
    there are, which only a broken caller gives, are cut, so that nothing beyond them is read."""
    b, length = frame.b, frame.b.scalar(blocks.first.contraction.n)
    if blocks.segments is None:
        yield (low, high), (b.index(0), length)
        return
    with b.loop(low, high, b.index(1)) as row:
        first, past = (_token_bound(frame, node, row.index) for node in (blocks.segments.first, blocks.segments.past))
        starts = [b.op(f"arith.cmpi eq, {row.index}, {each} : i64") for each in (low, first)]
        with b.when(b.op(f"arith.ori {starts[0]}, {starts[1]} : i1")):
            begin = b.op(f"arith.minsi {b.op(f'arith.maxsi {first}, {b.index(0)} : i64')}, {length} : i64")
            end = b.op(f"arith.minsi {b.op(f'arith.maxsi {past}, {begin} : i64')}, {length} : i64")
            stop = b.op(f"arith.minsi {b.op(f'arith.maxsi {past}, {row.index} : i64')}, {high} : i64")
            yield (row.index, stop), (begin, end)


def _token_bound(frame: Frame, node: Node, row: str) -> str:
    leaf = frame.emitter.leaves[node]
    assert isinstance(leaf, Buffer)
    return frame.b.op(f"llvm.load {address(frame.b, leaf, row)} : !llvm.ptr -> i64")


def _emit_task(task: Task) -> None:
    b, blocks = task.frame.b, task.blocks
    declare(task.frame.emitter.space, blocks.first.contraction)
    step = _query_rows(task)
    _score_rows(task)
    begin, keys, block_keys = task.keys[0], _keys(task), b.index(blocks.plan.keys)
    least = keys
    if blocks.segments is None:
        least = b.op(f"arith.maxsi {keys}, {b.index(1)} : i64")  # without keys, one empty block makes zeros of the results
    with b.loop(begin, least, block_keys) as block:
        end = b.op(f"arith.minsi {b.op(f'arith.addi {block.index}, {block_keys} : i64')}, {keys} : i64")
        declare(task.frame.emitter.space, blocks.first.contraction)
        _scores(task, block.index, end, step)
        count = b.op(f"arith.subi {end}, {block.index} : i64")
        first = b.op(f"arith.cmpi eq, {block.index}, {begin} : i64")
        with b.loop(b.index(0), task.rows, b.index(1)) as row:
            emit_row(task.frame, task.state(row.index), count, first)
        declare(task.frame.emitter.space, blocks.second.contraction)
        last = b.op(f"arith.cmpi sge, {end}, {keys} : i64")
        _results(task, block.index, count, first, last)


def _query_rows(task: Task) -> str:
    """Fills the array of row pointers of the first dot, packing rows that cannot be read in place; returns bytes from k to k + 1."""
    b, e, gemm = task.frame.b, task.frame.emitter, task.blocks.first
    with b.loop(b.index(0), task.rows, b.index(1)) as row:
        slot = b.op(f"llvm.getelementptr {task.places['query_rows']}[{row.index}] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr")
        with e.bind("gm", b.op(f"arith.addi {task.low}, {row.index} : i64")):
            if gemm.left is None:
                place = pack_left(task.at("queries"), gemm, row.index)
            else:
                leaf = e.leaves[gemm.left.leaf]
                assert isinstance(leaf, Buffer)
                place = address(b, leaf, b.scalar(gemm.left.rest))
            b.statement(f"llvm.store {place}, {slot} : !llvm.ptr, !llvm.ptr")
    if gemm.left is None:
        return b.index(gemm.left_size)
    return b.op(f"arith.muli {b.scalar(gemm.left.k_step)}, {b.index(gemm.left_size)} : i64")


def _score_rows(task: Task) -> None:
    b = task.frame.b
    with b.loop(b.index(0), task.rows, b.index(1)) as row:
        slot = b.op(f"llvm.getelementptr {task.places['score_rows']}[{row.index}] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr")
        start = b.op(f"arith.muli {row.index}, {b.index(task.blocks.plan.keys * 4)} : i64")
        b.statement(f"llvm.store {address(b, task.buffer('scores', 'i8'), start)}, {slot} : !llvm.ptr, !llvm.ptr")


# --- which keys -----------------------------------------------------------------------------------------------------------


def _keys(task: Task) -> str:
    """Where the keys that the rows see end. Those beyond a causal bound are left out when their values are finite: zero times infinity
    or NaN is NaN."""
    b, e, causal = task.frame.b, task.frame.emitter, task.blocks.causal
    begin, length = task.keys
    if causal is None:
        return length
    high = b.op(f"arith.addi {task.low}, {task.rows} : i64")
    with e.bind("gm", b.op(f"arith.subi {high}, {b.index(1)} : i64")):
        seen = b.op(f"arith.minsi {b.op(f'arith.maxsi {b.scalar(causal.columns)}, {begin} : i64')}, {length} : i64")
    return b.op(f"arith.select {_finite(task, seen, length)}, {seen}, {length} : i1, i64")


def _finite(task: Task, begin: str, end: str) -> str:
    """An i1: no value of the keys [begin, end) is infinite or NaN."""
    b, e, gemm = task.frame.b, task.frame.emitter, task.blocks.second
    c = gemm.contraction
    declare(e.space, c)
    zero, vector = b.const(0, "f32"), b.vec("f32")
    with b.loop(begin, end, b.index(1), [(zero, vector)]) as key, e.bind("gk", key.index):

        def add(names: list[str], carried: list[str]) -> list[str]:
            value = e.value(c.right.node, c.right.locate(Dim.symbol("gb"), Dim.symbol(names[0]), Dim.symbol("gk"))[0])
            added = b.op(f"math.fma {value}, {zero}, {carried[0]} : {vector}")
            mask = b.variables[names[0]].mask
            return [added if mask is None else b.op(f"arith.select {mask}, {added}, {carried[0]} : {b.vec('i1')}, {vector}")]

        key.yields = e.lane_loop("gn", b.index(0), b.scalar(c.n), c.n, 1, [(key.carried[0], vector)], add)
    clean = b.op(f"arith.cmpf oeq, {key.results[0]}, {zero} : {vector}")
    declare(e.space, task.blocks.first.contraction)
    return b.op(f"vector.reduction <and>, {clean} : {b.vec('i1')} into i1")


# --- scores ---------------------------------------------------------------------------------------------------------------


def _scores(task: Task, begin: str, end: str, step: str) -> None:
    """Scores of all rows and the keys [begin, end)."""
    b, gemm = task.frame.b, task.blocks.first
    always = b.constant("arith.constant true")
    with b.loop(begin, end, b.index(gemm.panel)) as panel:
        few = few_rows(task.frame, gemm, task.rows, panel.index) if task.blocks.plan.dots else None
        packs = always if few is None else b.op(f"arith.xori {few.wanted}, {always} : i1")
        stop = b.op(f"arith.minsi {b.op(f'arith.addi {panel.index}, {b.index(gemm.panel)} : i64')}, {end} : i64")
        number = b.op(f"arith.divui {panel.index}, {b.index(gemm.panel)} : i64")
        pointer, key_step = right_panel(task.at("keys"), gemm, number, panel.index, stop, packs, None)
        source = Panel(pointer, key_step, b.scalar(gemm.contraction.k))
        each_row(task, gemm, ("keys", "query_rows", step), source, (panel.index, stop), _score_row(task, begin), few)


def _score_row(task: Task, begin: str) -> Callable[[TileRow], None]:
    """Stores a row of a tile of scores, [begin, ...) of the row's keys."""
    b, e, causal, segments = task.frame.b, task.frame.emitter, task.blocks.causal, task.blocks.segments
    target = task.buffer("scores")
    name = e.name("first")
    e.space.variable(name, task.blocks.first.contraction.n)

    def store(row: TileRow) -> None:
        def put(indices: dict[Node, Index]) -> None:
            scores = task.blocks.scores
            e.store(target, row.number * task.blocks.plan.keys + Dim.symbol("gn") - Dim.symbol(name), e.value(scores, indices[scores]))

        with e.bind(name, begin):
            store_row(task, task.blocks.first, row, lambda value: value, put)

    def each(row: TileRow) -> None:
        seen = segments.compares if segments is not None else ()  # the keys are those of the sequence
        e.leaves.update(dict.fromkeys(seen, lambda index, predicate: b.const(1, "i1")))
        masked(row)
        for compare in seen:
            del e.leaves[compare]

    def masked(row: TileRow) -> None:
        if causal is None:
            store(row)
            return
        whole = b.op(f"arith.cmpi sle, {row.columns[1]}, {b.scalar(causal.columns)} : i64")
        with b.when(whole):
            e.leaves[causal.compare] = lambda index, predicate: b.const(1, "i1")
            store(row)
            del e.leaves[causal.compare]
        with b.when(b.op(f"arith.xori {whole}, {b.constant('arith.constant true')} : i1")):
            store(row)

    return each


# --- results --------------------------------------------------------------------------------------------------------------


def _results(task: Task, begin: str, count: str, first: str, last: str) -> None:
    """Adds the values of `count` keys from `begin` to the results of all rows; the last block finishes and stores them."""
    b, gemm = task.frame.b, task.blocks.second
    width = b.index(gemm.panel)
    with b.loop(b.index(0), b.scalar(gemm.contraction.n), width) as panel:
        stop = b.op(f"arith.minsi {b.op(f'arith.addi {panel.index}, {width} : i64')}, {b.scalar(gemm.contraction.n)} : i64")
        source = _value_panel(task, (panel.index, stop), begin, count)
        step = b.index(gemm.left_size)
        each_row(task, gemm, ("values", "score_rows", step), source, (panel.index, stop), lambda row: _result_row(task, row, first, last))


def _value_panel(task: Task, columns: tuple[str, str], begin: str, count: str) -> Panel:
    """The values of the keys: read in place where their columns are neighbors and fill the panel, else packed."""
    b, e, gemm = task.frame.b, task.frame.emitter, task.blocks.second
    n = gemm.contraction.n
    scratch = address(b, task.buffer("values", "i8"), b.index(gemm.tile_bytes))
    packed_step = b.index(gemm.panel_step)
    end = b.op(f"arith.addi {begin}, {count} : i64")
    if not gemm.direct:
        pack_columns(task.frame, gemm, scratch, columns, (begin, end))
        return Panel(scratch, packed_step, count)
    assert gemm.right is not None
    leaf = e.leaves[gemm.right.leaf]
    assert isinstance(leaf, Buffer)
    with e.bind("gn", columns[0]):
        offset = b.op(f"arith.addi {b.scalar(gemm.right.rest)}, {b.op(f'arith.muli {begin}, {b.scalar(gemm.right.k_step)} : i64')} : i64")
    place = address(b, leaf, offset)
    step = b.op(f"arith.muli {b.scalar(gemm.right.k_step)}, {b.index(gemm.form.unit)} : i64")
    if n.is_const and n.const % gemm.panel == 0:
        return Panel(place, step, count)
    whole = b.op(f"arith.cmpi eq, {b.op(f'arith.subi {columns[1]}, {columns[0]} : i64')}, {b.index(gemm.panel)} : i64")
    with b.when(b.op(f"arith.xori {whole}, {b.constant('arith.constant true')} : i1")):
        pack_columns(task.frame, gemm, scratch, columns, (begin, end))
    pointer = b.op(f"arith.select {whole}, {place}, {scratch} : i1, !llvm.ptr")
    return Panel(pointer, b.op(f"arith.select {whole}, {step}, {packed_step} : i64"), count)


def _result_row(task: Task, row: TileRow, first: str, last: str) -> None:
    b, e, blocks = task.frame.b, task.frame.emitter, task.blocks
    vector = b.vec("f32")
    results = task.buffer("results")
    place = row.number * blocks.columns + (ZERO if blocks.second.contraction.n == ONE else Dim.symbol("gn"))
    state = task.state(b.scalar(row.number))
    scale = state.load_scale(b)

    def add(value: str) -> str:
        added = b.op(f"math.fma {e.load(results, place, None)}, {scale}, {value} : {vector}")
        return b.op(f"arith.select {first}, {value}, {added} : {vector}")

    with b.when(last):
        inverse = state.inverse(b, blocks.softmax.safe, b.scalar(blocks.first.contraction.n))

        def finish(indices: dict[Node, Index]) -> None:
            store_roots(task.frame, indices, "second dot")

        store_row(task, blocks.second, row, lambda value: b.op(f"arith.mulf {add(value)}, {inverse} : {vector}"), finish)
    with b.when(b.op(f"arith.xori {last}, {b.constant('arith.constant true')} : i1")):
        node = blocks.second.contraction.node
        store_row(task, blocks.second, row, add, lambda indices: e.store(results, place, e.value(node, indices[node])))
