"""Attention on a GPU: a dot, a softmax over its rows and a dot, with no buffer of scores.

A program goes over the keys in blocks for one block of rows, and keeps the maximum, the sum and the unfinished results of each row (the
online softmax; FlashAttention, Dao et al. 2022, algorithm 1): when a larger score comes, what was added up is scaled down. Blocks of keys
that exist, and that every row sees, come first and need no masks; what is left is a loop of its own. Keys beyond a causal bound are not
read, as in PyTorch's own kernels for GPUs: values there that are infinite or NaN do not reach rows that do not see them. Where there are
few rows, several programs share the keys of a block of rows, and the one that comes last joins what they found, in the order of the keys.

Scores stay in f32 from the product to the probabilities, also where their type is f16 or bf16, as in PyTorch's own kernels: rounded after
every op, as elsewhere, they took a quarter of the time on an H200, and made results less exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from disc.codegen.cuda.emit import Buffer, Emitter
from disc.codegen.cuda.factors import TENSOR, bind_lanes, common_element, factor, only_at
from disc.codegen.cuda.joins import Join
from disc.codegen.cuda.kernel import DeviceChoice, DeviceVersion, emit_version
from disc.codegen.cuda.rows import body_versions
from disc.codegen.cuda.text import Scope, Variable
from disc.codegen.cuda.types import in_memory, rounded
from disc.codegen.cuda.vectors import guards_of, vector_guards
from disc.codegen.plan.attention import read_attention
from disc.codegen.plan.contraction import Contraction, declare, forward_indices, read_contraction
from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.index import ONE, IndexSpace, view_index
from disc.codegen.plan.softmax import read_causal, read_segments, read_softmax
from disc.errors import CompilerBug, TargetError
from disc.ir.graph import Body
from disc.ir.op_table import ELEMENTWISE
from disc.shapes import Dim, Truth
from disc.speculation.block_schedules import AttentionBlock
from disc.speculation.block_trees import HALF, HEADS, AttentionTree
from disc.speculation.guards import ALWAYS, Aligned, Divides, Guard, all_of
from disc.targets.cuda_thresholds import KERNELS

MOST_HELD, MOST_HELD_SINGLE = 256, 128  # elements of a query, and columns of the result, that lie in registers: of 16 bits, and of f32
CHUNK = 64  # elements of longer queries at a time
WIDE = 128  # columns of a wider result of a program
# exp2 is one instruction where denormal results may be 0, exp five. (Factors folded into one multiply-add would overflow at the masks of
# many models, the least number of f32.)
LOG2_E = repr(math.log2(math.e))


def attention_versions(
    fusion: Fusion, symbols: tuple[str, ...], tree: AttentionTree, precision: str
) -> tuple[tuple[DeviceVersion, ...], DeviceChoice]:
    """The versions of an attention kernel, and what chooses among those that have a schedule, which are those that load 16 bytes at a time.

    tree: as `attention_tree` gives it; precision: of products of f32, as Triton's dot takes it. Raises TargetError for one that is no
    softmax, or of other elements than tensor cores multiply.
    """
    space = fusion.space()
    narrow, *wide = body_versions(space, fusion.body)
    # Where elements are loaded one by one, registers hold the smallest block, and fewer of them where positions have 64 bits.
    plain, least = (replace(find(tree.schedules, key=lambda each: each.rows * each.keys), parts=1) for find in (max, min))
    first = _Attention(fusion, plain, precision, False)
    divides = first.divides()
    beside = first.beside()
    loads = (narrow[0], *divides, Aligned(16))
    versions, sure = list[DeviceVersion](), True
    for number, block in enumerate(tree.schedules):
        attention = _Attention(fusion, block, precision, False)
        few = attention.join.fits
        truth = few.implied_by(space.env) if block.parts > 1 else Truth.YES
        sure = sure and truth is Truth.YES
        if truth is Truth.NO:
            continue
        guards = loads if truth is Truth.YES else (*loads, few)
        if beside and block.parts == 1:
            versions.append(replace(attention.version(symbols, all_of((*guards, *beside))), schedule=number))
        versions.append(replace(attention.version(symbols, all_of(guards)), schedule=number))
    if not sure:  # the tree may choose parts where there is no scratch for them
        versions.append(first.version(symbols, all_of(loads)))
    if divides and wide:
        versions.append(_Attention(fusion, least, precision, False).version(symbols, narrow[0]))
    last = AttentionBlock(*KERNELS.wide_attention) if wide else least
    versions.append(_Attention(fusion, last, precision, bool(wide)).version(symbols, ALWAYS))
    return tuple(versions), DeviceChoice(tree, (first.one.m, first.one.n, first.one.k, first.one.batch))


def attention_tree(fusion: Fusion, trees: Mapping[tuple[str, int], AttentionTree], precision: str) -> AttentionTree:
    """The tree of an attention fusion's schedules, with what is known of its sizes decided. trees: by the kind of product and one of HEADS,
    whose blocks of keys and values registers and shared memory hold."""
    space, (dot, last, scores, _) = fusion.space(), read_attention(fusion.body)
    one, two = read_contraction(space, dot), read_contraction(space, last)
    most = _most_held(one, two)
    held = max(_held(one.k, most) or CHUNK, _held(two.n, most) or WIDE)
    tree = trees[HALF if most == MOST_HELD else precision, next(each for each in HEADS if each >= held)]
    if not (_held(one.k, most) and _held(two.n, most)):  # loops within that over the keys need registers, too: the smallest block
        least = min(tree.schedules, key=lambda each: each.rows * each.keys)
        size = least.rows, least.keys
        blocks = tuple(each if (each.rows, each.keys) == size else replace(least, parts=1) for each in tree.schedules)
        tree = replace(tree, schedules=blocks)
    declare(space, one)
    if any(_scored(space, fusion.body, one)):  # registers hold them, too
        small = tuple(each for each in tree.schedules if each.rows <= KERNELS.scored_rows)
        largest = max(small, key=lambda each: (each.parts == 1, each.rows * each.keys))
        tree = replace(tree, schedules=tuple(each if each in small else largest for each in tree.schedules))
    if read_segments(space, one, scores) is not None:  # whose keys are few: each block of rows has those of its own sequences
        tree = replace(tree, schedules=tuple(replace(each, parts=1) for each in tree.schedules))
    return tree.prune({number: size.const for number, size in enumerate((one.m, one.n, one.k, one.batch)) if size.is_const})


class _Attention:
    def __init__(self, fusion: Fusion, block: AttentionBlock, precision: str, wide: bool) -> None:
        self.fusion, self.block, self.precision, self.wide, self.space = fusion, block, precision, wide, fusion.space()
        self.dot, self.last, self.scores, self.probability = read_attention(fusion.body)
        softmax = read_softmax(self.scores, self.probability)
        if softmax is None:
            raise TargetError(f"no kernel for GPUs of attention that is no softmax (line {self.dot.line})")
        self.safe = softmax.safe
        self.one, self.two = read_contraction(self.space, self.dot), read_contraction(self.space, self.last)
        declare(self.space, self.one)
        self.space.variable("column", self.two.n)
        self.space.variable("key", self.two.k)
        factors = (self.one.left, self.one.right, self.two.right)
        if any(each.node.element not in TENSOR for each in factors):
            elements = ", ".join(each.node.element for each in factors)
            raise TargetError(f"no kernel for GPUs of attention on {elements} (line {self.dot.line})")
        self.between = frozenset(forward_indices(self.space, fusion.body, self.dot, self.one.place()))
        self.segments = read_segments(self.space, self.one, self.scores)
        self.causal = None if self.segments is not None else read_causal(self.space, fusion.body, self.one, self.scores)
        most = _most_held(self.one, self.two)
        self.single, self.holds_query = most == MOST_HELD_SINGLE, _held(self.one.k, most) > 0
        self.depth, self.width = _held(self.one.k, most) or CHUNK, _held(self.two.n, most) or WIDE
        self.row_blocks, self.column_blocks = _ceil(self.one.m, block.rows), _ceil(self.two.n, self.width)
        tiles = self.row_blocks * self.column_blocks * self.one.batch
        self.tiles, self.join = tiles, Join(block.parts, block.rows * (self.width + 2), tiles)

    def version(self, symbols: tuple[str, ...], guard: Guard) -> DeviceVersion:
        block = self.block
        return emit_version(
            self.fusion.body, self.space, symbols, f"[{block.rows}, {self.width}]", self._emit, (self.tiles * block.parts,), block.warps,
            guard=guard, wide=self.wide, stages=block.stages, scratch=self.join.scratch() if block.parts > 1 else None, flushes=True,
        )  # fmt: skip

    def divides(self) -> tuple[Divides, ...]:
        """Conditions for loads of 16 bytes."""
        return vector_guards(self.space, self.fusion.body, self.two, self.one)  # the loops of the first one are declared last

    def beside(self) -> tuple[Divides, ...]:
        """The same of tensors of a number for each score, such as a bias, where registers hold what is loaded at a time."""
        if self.single or self.depth > CHUNK:
            return ()
        return guards_of(self.space, _scored(self.space, self.fusion.body, self.one))

    # --- the program ----------------------------------------------------------------------------------------------------

    def _emit(self, e: Emitter, results: tuple[Buffer, ...]) -> None:
        w, block = e.w, self.block
        e.unrounded = self.between
        program = w.let(f"tl.program_id(0){'.to(tl.int64)' if self.wide else ''}", "i")
        part = w.let(f"{program} % {block.parts}", "i") if block.parts > 1 else ""
        tile = w.let(f"{program} // {block.parts}", "i") if part else program
        blocks = w.number(self.row_blocks)
        number, rest = w.let(f"{tile} % {blocks}", "i"), w.let(f"{tile} // {blocks}", "i")
        if self.causal is not None:  # those with the most keys first
            number = w.let(f"{blocks} - 1 - {number}", "i")
        row, column, batch = w.let(f"{number} * {block.rows}", "i"), "0", rest
        if self.column_blocks != ONE:
            across = w.number(self.column_blocks)
            column, batch = w.let(f"{rest} % {across} * {self.width}", "i"), w.let(f"{rest} // {across}", "b")
        w.bind("gb", Variable(batch if self.one.batch != ONE else "0", w.root))
        self.columns = w.let(f"{column} + tl.arange(0, {self.width})[None, :]", "i")
        if self.segments is not None:
            self._each_segment(e, results, row)
            return
        self._lanes(e, "gm", f"{row} + tl.arange(0, {block.rows})[:, None]", 0, self.one.m, block.rows, w.root)
        begin, plain, end = self._keys(e, row, part)
        self._attend(e, begin, plain, end, w.number(self.one.n))
        if not part:
            self._finish(e, results)
            return
        self._leave(e, tile, part)
        with self.join.last(e, tile):
            self._join(e, tile)
            self._finish(e, results)

    def _each_segment(self, e: Emitter, results: tuple[Buffer, ...], row: str) -> None:
        """The rows of a block sequence by sequence, each with its own keys alone: what another one holds, NaN too, does not reach it.
        Bounds outside of the tokens there are, which only a broken caller gives, are cut, so that nothing beyond them is read."""
        w, block, segments = e.w, self.block, self.segments
        assert segments is not None
        first, past = (e.leaves[node] for node in (segments.first, segments.past))
        assert isinstance(first, Buffer) and isinstance(past, Buffer)
        stop = w.let(f"tl.minimum({row} + {block.rows}, {w.number(self.one.m)})", "i")
        w.statement(f"place = {row}")
        with w.block(f"while place < {stop}:") as scope:
            integer = "tl.int64" if self.wide else "tl.int32"
            length = w.number(self.one.n)
            begin = w.let(f"tl.minimum(tl.maximum(tl.load({first.pointer} + place), 0), {length}).to({integer})", "i")
            end = w.let(f"tl.minimum(tl.maximum(tl.load({past.pointer} + place), {begin}), {length}).to({integer})", "i")
            rows = w.let(f"{row} + tl.arange(0, {block.rows})[:, None]", "i")
            live = w.let(f"({rows} >= place) & ({rows} < tl.minimum({end}, {stop}))", "m")
            w.bind("gm", Variable(rows, scope, frozenset({0}), live))
            self._attend(e, begin, "", end, end)
            self._finish(e, results)
            w.statement(f"place = tl.maximum({end}, place + 1)")

    def _keys(self, e: Emitter, row: str, part: str) -> tuple[str, str, str]:
        """The keys of a block of rows, or those of them that are the part's: where they begin, where whole blocks end that all rows see
        ("" where it is not told), and where all end."""
        w, keys = e.w, self.block.keys
        begin, end = "0", w.number(self.one.n)
        if self.causal is not None:
            last = w.let(f"tl.minimum({row} + {self.block.rows}, {w.number(self.one.m)}) - 1", "i")
            end = w.let(f"tl.minimum({self._seen(e, last)}, {end})", "i")
        if part:
            span = w.let(f"tl.cdiv(tl.cdiv({end}, {keys}), {self.block.parts}) * {keys}", "i")
            begin, end = w.let(f"{part} * {span}", "i"), w.let(f"tl.minimum({part} * {span} + {span}, {end})", "i")
        if self._in_blocks() and self.causal is None:
            return begin, end, end
        if not self.holds_query or self.block.rows < KERNELS.plain_rows or (self.single and self.depth > CHUNK):  # registers are few
            return begin, "", end
        limit = end if self.causal is None else w.let(f"tl.minimum({self._seen(e, row)}, {end})", "i")
        return begin, w.let(f"{begin} + tl.maximum({limit} - {begin}, 0) // {keys} * {keys}", "i"), end

    def _seen(self, e: Emitter, row: str) -> str:
        """How many keys a row sees."""
        w = e.w
        assert self.causal is not None
        lanes = w.variables["gm"]
        w.bind("gm", Variable(row, w.root))
        seen = w.let(f"tl.maximum({w.number(self.causal.columns)}, 0)", "i")
        w.bind("gm", lanes)
        return seen

    def _in_blocks(self) -> bool:
        """True when there are whole blocks of keys alone."""
        return self.segments is None and self.space.env.divides(self.block.keys, self.one.n) is Truth.YES

    def _attend(self, e: Emitter, begin: str, plain: str, end: str, last: str) -> None:
        """Leaves `most`, `total` and `sums` of the rows over the keys [begin, end), which end at `last` at the latest. Those before
        `plain`, "" for none, are whole blocks that all rows see."""
        w, block = e.w, self.block
        query = ""
        if self.holds_query:
            self._lanes(e, "gk", f"tl.arange(0, {self.depth})[None, :]", 1, self.one.k, self.depth, w.scope)
            query = factor(e, self.one.left, "gm", "gk", common_element(self.one.left, self.one.right), (block.rows, self.depth))
        w.statement(f"most = tl.full([{block.rows}, 1], float('-inf'), tl.float32)")
        w.statement(f"total = tl.zeros([{block.rows}, 1], tl.float32)")
        w.statement(f"sums = tl.zeros([{block.rows}, {self.width}], tl.float32)")
        if plain:
            with w.block(f"for step in range({begin}, {plain}, {block.keys}):") as scope, self._all_seen(e):
                self._step(e, query, scope, "")
        if plain != end:
            stages = ", num_stages=1" if plain else ""  # few blocks are left then
            with w.block(f"for step in tl.range({plain or begin}, {end}, {block.keys}{stages}):") as scope:
                self._step(e, query, scope, last)

    @contextmanager
    def _all_seen(self, e: Emitter) -> Iterator[None]:
        """The causal mask holds everywhere."""
        if self.causal is not None:
            e.leaves[self.causal.compare] = lambda index, predicate: e.w.let("tl.full([], 1, tl.int1)")
        yield
        if self.causal is not None:
            del e.leaves[self.causal.compare]

    def _step(self, e: Emitter, query: str, scope: Scope, last: str) -> None:
        """One block of keys."""
        w, block = e.w, self.block
        self._keys_lanes(e, "gn", "[None, :]", 1, scope, last)
        product = self._scores(e, query, scope)
        at = self.one.place()
        e.leaves[self.dot] = only_at(self.dot, at, product)
        index = forward_indices(self.space, self.fusion.body, self.dot, at)[self.scores]
        with w.shaped(block.rows, block.keys):
            score = e.value(self.scores, index)
        live = w.variables["gn"].live
        seen = w.let(f"tl.where({live}, {score}, float('-inf'))") if live else score
        w.statement(f"larger = tl.maximum(most, tl.max({seen}, 1, keep_dims=True))")
        # Of a row that has seen nothing but -inf, differences would be NaN.
        w.statement("base = tl.where(larger == float('-inf'), 0.0, larger)")
        share = w.let(f"tl.exp2(({seen} - base) * {LOG2_E})")
        scale = w.let(f"tl.exp2((most - base) * {LOG2_E})")
        w.statement(f"total = total * {scale} + tl.sum({share}, 1, keep_dims=True)")
        w.statement("most = larger")
        self._keys_lanes(e, "key", "[:, None]", 0, scope, last)
        self._lanes(e, "column", self.columns, 1, self.two.n, self.width, scope)
        own = in_memory(self.two.right.node.element)
        values = factor(e, self.two.right, "column", "key", own, (block.keys, self.width))
        w.statement(f'sums = tl.dot({share}.to({own}), {values}, sums * {scale}, input_precision="{self._precise(own)}")')

    def _scores(self, e: Emitter, query: str, scope: Scope) -> str:
        """The product of the rows and a block of keys."""
        w, block = e.w, self.block
        narrow = common_element(self.one.left, self.one.right)
        if query:
            self._lanes(e, "gk1", f"tl.arange(0, {self.depth})[:, None]", 0, self.one.k, self.depth, scope)
            keys = factor(e, self.one.right, "gn", "gk1", narrow, (self.depth, block.keys))
            return w.let(f'tl.dot({query}, {keys}, input_precision="{self._precise(narrow)}")')
        w.statement(f"scores = tl.zeros([{block.rows}, {block.keys}], tl.float32)")
        with w.block(f"for chunk in range(0, {w.number(self.one.k)}, {self.depth}):") as inner:
            self._lanes(e, "gk", f"chunk + tl.arange(0, {self.depth})[None, :]", 1, self.one.k, self.depth, inner)
            self._lanes(e, "gk1", f"chunk + tl.arange(0, {self.depth})[:, None]", 0, self.one.k, self.depth, inner)
            left = factor(e, self.one.left, "gm", "gk", narrow, (block.rows, self.depth))
            right = factor(e, self.one.right, "gn", "gk1", narrow, (self.depth, block.keys))
            w.statement(f'scores = tl.dot({left}, {right}, scores, input_precision="{self._precise(narrow)}")')
        return "scores"

    def _finish(self, e: Emitter, results: tuple[Buffer, ...]) -> None:
        """What follows the division by the sums of the rows, and the results."""
        w = e.w
        with w.part() as scope:
            self._lanes(e, "column", self.columns, 1, self.two.n, self.width, scope)
            # Without keys, the product has no terms; where all scores are -inf, an ordinary softmax is NaN and a safe one 0.
            empty = f"{w.number(self.one.n)} == 0" if not self.safe else "total == 0.0"
            finished = w.let(f"tl.where({empty}, 0.0, tl.div_rn(sums, tl.broadcast_to(total, sums.shape)))")
            at = self.two.result(Dim.symbol("gb"), Dim.symbol("gm"), Dim.symbol("column"))
            e.leaves[self.last] = only_at(self.last, at, w.let(rounded(finished, self.last.element)))
            indices = forward_indices(self.space, self.fusion.body, self.last, at)
            for root, result in zip(self.fusion.body.yields, results, strict=True):
                if root not in indices:
                    raise CompilerBug(f"{root.op} (line {root.line}) is not reached from the second product of its fusion")
                e.store_block(result, root, indices[root], ("gm", "column"))

    # --- parts of the keys ----------------------------------------------------------------------------------------------

    def _places(self, e: Emitter) -> tuple[str, str, str]:
        """Where a part's maxima, sums of shares and results lie in its words."""
        w, rows = e.w, self.block.rows
        with w.at(w.root):
            first = w.let(f"tl.arange(0, {rows})[:, None]", "i")
            second = w.let(f"{rows} + tl.arange(0, {rows})[:, None]", "i")
            third = f"{2 * rows} + tl.arange(0, {rows})[:, None] * {self.width} + tl.arange(0, {self.width})[None, :]"
            return first, second, w.let(third, "i")

    def _leave(self, e: Emitter, tile: str, part: str) -> None:
        for place, name in zip(self._places(e), ("most", "total", "sums"), strict=True):
            self.join.leave(e, tile, part, place, name)

    def _join(self, e: Emitter, tile: str) -> None:
        """`total` and `sums` of all parts, scaled to the largest score of any."""
        w, block = e.w, self.block
        first, second, third = self._places(e)
        w.statement(f"top = tl.full([{block.rows}, 1], float('-inf'), tl.float32)")
        for (most,) in self.join.found(e, tile, [first], block.rows, block.warps):
            w.statement(f"top = tl.maximum(top, {most})")
        w.statement("top = tl.where(top == float('-inf'), 0.0, top)")
        w.statement(f"total = tl.zeros([{block.rows}, 1], tl.float32)")
        w.statement(f"sums = tl.zeros([{block.rows}, {self.width}], tl.float32)")
        for most, part_total, part_sums in self.join.found(e, tile, [first, second, third], block.rows * (self.width + 2), block.warps):
            w.statement(f"scale = tl.exp2(({most} - top) * {LOG2_E})")
            w.statement(f"total += {part_total} * scale")
            w.statement(f"sums += {part_sums} * scale")

    # --- lanes ----------------------------------------------------------------------------------------------------------

    def _keys_lanes(self, e: Emitter, name: str, lanes: str, axis: int, scope: Scope, last: str) -> None:
        """Binds the keys of a block; those from `last` on, "" for none, do not count."""
        w = e.w
        place = w.let(f"step + tl.arange(0, {self.block.keys}){lanes}", "i")
        live = w.let(f"{place} < {last}", "m") if last and not self._in_blocks() else ""
        w.bind(name, Variable(place, scope, frozenset({axis}), live))

    def _lanes(self, e: Emitter, name: str, text: str, axis: int, extent: Dim, size: int, scope: Scope) -> None:
        bind_lanes(e, self.space, name, text, axis, extent, size, scope)

    def _precise(self, element: str) -> str:
        return self.precision if element == "tl.float32" else "ieee"


def _scored(space: IndexSpace, body: Body, one: Contraction) -> Iterator[tuple[Dim, str]]:
    """(offset of the element at the loops' position, element) of each tensor of a number for each score, such as a bias."""
    for node, index in forward_indices(space, body, one.node, one.place()).items():
        for operand in node.operands if node.op in ELEMENTWISE else ():
            source, place = operand, index
            while source.op != "input" and source is not one.node and len(source.operands) == 1:
                viewed = view_index(space, source, place)
                if viewed is None and source.op not in ELEMENTWISE:
                    break
                source, place = source.operands[0], place if viewed is None else viewed
            offset = space.linear(place, source.dims) if source.op == "input" else Dim.of(0)
            if {"gm", "gn"} <= set(offset.symbols()):
                yield offset, source.element


def _most_held(one: Contraction, two: Contraction) -> int:
    """By the elements of both products."""
    single = "tl.float32" in (common_element(one.left, one.right), in_memory(two.right.node.element))
    return MOST_HELD_SINGLE if single else MOST_HELD


def _held(size: Dim, most: int) -> int:
    """The least power of two, 16 at least, that holds a static size of at most `most`; else 0."""
    if not size.is_const or size.const > most:
        return 0
    return max(16, 1 << max(size.const - 1, 0).bit_length())


def _ceil(size: Dim, by: int) -> Dim:
    return (size + (by - 1)) // by
