"""Attention on a GPU: a dot, a softmax over its rows and a dot, with no buffer of scores.

A program goes over the keys in blocks for one block of rows, and keeps the maximum, the sum and the unfinished results of each row (the
online softmax): when a larger score comes, what was added up is scaled down.
"""

from __future__ import annotations

from dataclasses import dataclass

from disc.codegen.cuda.emit import Buffer, Emitter
from disc.codegen.cuda.gemm import TENSOR, factor, only_at
from disc.codegen.cuda.kernel import DeviceVersion, emit_version
from disc.codegen.cuda.rows import body_versions
from disc.codegen.cuda.text import Scope, Variable
from disc.codegen.cuda.types import in_memory, rounded
from disc.codegen.plan.attention import read_attention
from disc.codegen.plan.contraction import Operand, declare, forward_indices, read_contraction
from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.softmax import read_softmax
from disc.errors import CompilerBug
from disc.shapes import Dim
from disc.speculation.guards import Guard

MOST_WIDE = 256  # elements of a query, and columns of the result, which lie in registers


@dataclass(frozen=True)
class AttentionBlock:
    """A schedule: rows and keys of a block, warps, stages of the pipeline."""

    rows: int
    keys: int
    warps: int
    stages: int


DEFAULT = AttentionBlock(64, 64, 4, 3)


def attention_versions(fusion: Fusion, symbols: tuple[str, ...], block: AttentionBlock = DEFAULT) -> tuple[DeviceVersion, ...]:
    """The versions of an attention kernel by one schedule. Raises CompilerBug for one that is no softmax of rows that fit."""
    return tuple(_Attention(fusion, block, wide).version(symbols, guard) for guard, wide in body_versions(fusion.space(), fusion.body))


class _Attention:
    def __init__(self, fusion: Fusion, block: AttentionBlock, wide: bool) -> None:
        self.fusion, self.block, self.wide, self.space = fusion, block, wide, fusion.space()
        self.dot, self.last, self.scores, self.probability = read_attention(fusion.body)
        softmax = read_softmax(self.scores, self.probability)
        if softmax is None:
            raise CompilerBug(f"no CUDA kernel for attention that is no softmax (line {self.dot.line})")
        self.safe = softmax.safe
        self.one, self.two = read_contraction(self.space, self.dot), read_contraction(self.space, self.last)
        declare(self.space, self.one)
        self.space.variable("column", self.two.n)
        self.space.variable("key", self.two.k)
        factors = (self.one.left, self.one.right, self.two.right)
        if any(each.node.element not in TENSOR for each in factors):
            raise CompilerBug(f"no CUDA attention kernel for {', '.join(each.node.element for each in factors)} (line {self.dot.line})")
        self.depth, self.width = (_power(size, self.dot.line) for size in (self.one.k, self.two.n))

    def version(self, symbols: tuple[str, ...], guard: Guard) -> DeviceVersion:
        rows = (self.one.m + (self.block.rows - 1)) // self.block.rows
        return emit_version(
            self.fusion.body, self.space, symbols, f"[{self.block.rows}, {self.width}]", self._emit, (rows, self.one.batch),
            self.block.warps, guard=guard, wide=self.wide, stages=self.block.stages,
        )  # fmt: skip

    def _emit(self, e: Emitter, results: tuple[Buffer, ...]) -> None:
        w, block, widened = e.w, self.block, ".to(tl.int64)" if self.wide else ""
        w.bind("gb", Variable(w.let(f"tl.program_id(1){widened}", "b"), w.root))
        rows = w.let(f"tl.program_id(0){widened} * {block.rows} + tl.arange(0, {block.rows})[:, None]", "i")
        self._lanes(e, "gm", rows, w.root, 0, self.one.m)
        self._lanes(e, "gk", w.let(f"tl.arange(0, {self.depth})[None, :]", "k"), w.root, 1, self.one.k)
        query = factor(e, self.one.left, "gm", "gk", _element(self.one.left, self.one.right), (block.rows, self.depth))
        for name, start, shape in (("most", "float('-inf')", [block.rows, 1]), ("total", "0.0", [block.rows, 1])):
            w.statement(f"{name} = tl.full({shape}, {start}, tl.float32)")
        w.statement(f"sums = tl.zeros([{block.rows}, {self.width}], tl.float32)")
        with w.block(f"for step in range(0, {w.number(self.one.n)}, {block.keys}):") as scope:
            self._step(e, query, scope)
        columns = w.let(f"tl.arange(0, {self.width})[None, :]", "i")
        self._lanes(e, "column", columns, w.root, 1, self.two.n)
        # Without keys, the product has no terms; where all scores are -inf, an ordinary softmax is NaN and a safe one 0.
        empty = f"{w.number(self.one.n)} == 0" if not self.safe else "total == 0.0"
        finished = w.let(f"tl.where({empty}, 0.0, tl.div_rn(sums, tl.broadcast_to(total, sums.shape)))")
        at = self.two.result(Dim.symbol("gb"), Dim.symbol("gm"), Dim.symbol("column"))
        e.leaves[self.last] = only_at(self.last, at, w.let(rounded(finished, self.last.element)))
        indices = forward_indices(self.space, self.fusion.body, self.last, at)
        for root, result in zip(self.fusion.body.yields, results, strict=True):
            if root not in indices:
                raise CompilerBug(f"{root.op} (line {root.line}) is not reached from the second product of its fusion")
            e.store(result, self.space.linear(indices[root], root.dims), e.value(root, indices[root]))

    def _step(self, e: Emitter, query: str, scope: Scope) -> None:
        """One block of keys."""
        w, block = e.w, self.block
        self._lanes(e, "gn", w.let(f"step + tl.arange(0, {block.keys})[None, :]", "i"), scope, 1, self.one.n)
        self._lanes(e, "gk1", w.let(f"tl.arange(0, {self.depth})[:, None]", "k"), scope, 0, self.one.k)
        narrow = _element(self.one.left, self.one.right)
        keys = factor(e, self.one.right, "gn", "gk1", narrow, (self.depth, block.keys))
        precision = "tf32x3" if narrow == "tl.float32" else "ieee"
        product = w.let(f'tl.dot({query}, {keys}, input_precision="{precision}")')
        at = self.one.result(Dim.symbol("gb"), Dim.symbol("gm"), Dim.symbol("gn"))
        e.leaves[self.dot] = only_at(self.dot, at, w.let(rounded(product, self.dot.element)))
        index = forward_indices(self.space, self.fusion.body, self.dot, at)[self.scores]
        with w.shaped(block.rows, block.keys):
            score = e.value(self.scores, index)
        live = w.let(f"tl.where({w.variables['gn'].live}, {score}, float('-inf'))")
        w.statement(f"larger = tl.maximum(most, tl.max({live}, 1, keep_dims=True))")
        # Of a row that has seen nothing but -inf, differences would be NaN.
        w.statement("base = tl.where(larger == float('-inf'), 0.0, larger)")
        share = w.let(f"libdevice.exp({live} - base)")
        scale = w.let("libdevice.exp(most - base)")
        w.statement(f"total = total * {scale} + tl.sum({share}, 1, keep_dims=True)")
        w.statement("most = larger")
        self._lanes(e, "key", w.let(f"step + tl.arange(0, {block.keys})[:, None]", "i"), scope, 0, self.two.k)
        self._lanes(e, "column", w.let(f"tl.arange(0, {self.width})[None, :]", "i"), scope, 1, self.two.n)
        own = in_memory(self.two.right.node.element)
        values = factor(e, self.two.right, "column", "key", own, (block.keys, self.width))
        precision = "tf32x3" if own == "tl.float32" else "ieee"
        w.statement(f'sums = tl.dot({share}.to({own}), {values}, sums * {scale}, input_precision="{precision}")')

    def _lanes(self, e: Emitter, name: str, text: str, scope: Scope, axis: int, extent: Dim) -> None:
        w = e.w
        e.w.bind(name, Variable(text, scope, frozenset({axis}), w.let(f"{text} < {w.number(extent)}", "m")))


def _power(size: Dim, line: str) -> int:
    """The least power of two that holds a static size; at least 16, which tensor cores take."""
    if not size.is_const or size.const > MOST_WIDE:
        raise CompilerBug(f"no CUDA attention kernel for heads of {size} (line {line})")
    return max(16, 1 << max(size.const - 1, 0).bit_length())


def _element(left: Operand, right: Operand) -> str:
    elements = {left.node.element, right.node.element}
    return in_memory(elements.pop()) if len(elements) == 1 else "tl.float32"
