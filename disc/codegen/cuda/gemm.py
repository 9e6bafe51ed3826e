"""Products on a GPU: blocks of the result on the tensor cores, operands read through their views, with what follows as an epilogue.

A convolution is the same product, its operand the patches of the image, which are found by index and never stored (implicit GEMM).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from disc.codegen.cuda.emit import Buffer, Emitter, Override, Predicate
from disc.codegen.cuda.kernel import DeviceVersion, emit_version
from disc.codegen.cuda.rows import body_versions
from disc.codegen.cuda.text import Variable
from disc.codegen.cuda.types import in_memory, rounded
from disc.codegen.plan.contraction import Contraction, Operand, declare, forward_indices, read_contraction
from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.index import Index
from disc.codegen.plan.rows import check_single_dot
from disc.errors import CompilerBug
from disc.ir.graph import Node
from disc.shapes import Dim
from disc.speculation.guards import Guard

TENSOR = ("f32", "f16", "bf16")  # elements whose products tensor cores sum in f32


@dataclass(frozen=True)
class Block:
    """A schedule. rows, columns: of the result in a block; depth: values of k of a step; warps; stages: of the pipeline; group: blocks of
    rows that go one after the other over the same columns, so that these stay in L2."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    group: int = 8


DEFAULT = Block(64, 64, 32, 4, 3)


def product_versions(fusion: Fusion, symbols: tuple[str, ...], block: Block = DEFAULT) -> tuple[DeviceVersion, ...]:
    """The versions of a compute kernel by one schedule."""
    return tuple(_Product(fusion, block, wide).version(symbols, guard) for guard, wide in body_versions(fusion.space(), fusion.body))


class _Product:
    def __init__(self, fusion: Fusion, block: Block, wide: bool) -> None:
        self.fusion, self.block, self.wide, self.space = fusion, block, wide, fusion.space()
        self.node = check_single_dot(fusion.body)
        if self.node.op == "disc.scaled_dot":
            raise CompilerBug(f"no CUDA kernel for products of int8 (line {self.node.line})")
        self.c: Contraction = read_contraction(self.space, self.node)
        declare(self.space, self.c)

    def version(self, symbols: tuple[str, ...], guard: Guard) -> DeviceVersion:
        block, c = self.block, self.c
        blocks = ((c.m + (block.rows - 1)) // block.rows) * ((c.n + (block.columns - 1)) // block.columns)
        return emit_version(
            self.fusion.body, self.space, symbols, f"[{block.rows}, {block.columns}]", self._emit, (blocks, c.batch), block.warps,
            guard=guard, wide=self.wide, stages=block.stages,
        )  # fmt: skip

    def _emit(self, e: Emitter, results: tuple[Buffer, ...]) -> None:
        w, block, c = e.w, self.block, self.c
        widened = ".to(tl.int64)" if self.wide else ""
        w.bind("gb", Variable(w.let(f"tl.program_id(1){widened}", "b"), w.root))
        m, n = w.number(c.m), w.number(c.n)
        down, across = w.let(f"tl.cdiv({m}, {block.rows})", "i"), w.let(f"tl.cdiv({n}, {block.columns})", "i")
        # Neighboring programs work on `group` blocks of rows by one of columns: what these read stays in L2.
        program = w.let(f"tl.program_id(0){widened}", "i")
        width = w.let(f"{across} * {block.group}", "i")
        first = w.let(f"{program} // {width} * {block.group}", "i")
        height = w.let(f"tl.minimum({down} - {first}, {block.group})", "i")
        row = w.let(f"({first} + {program} % {width} % {height}) * {block.rows}", "i")
        column = w.let(f"{program} % {width} // {height} * {block.columns}", "i")
        rows = w.let(f"{row} + tl.arange(0, {block.rows})[:, None]", "i")
        columns = w.let(f"{column} + tl.arange(0, {block.columns})[None, :]", "i")
        w.bind("gm", Variable(rows, w.root, frozenset({0}), w.let(f"{rows} < {m}", "m")))
        w.bind("gn", Variable(columns, w.root, frozenset({1}), w.let(f"{columns} < {n}", "m")))
        sums = self._tensor(e) if self._on_tensor_cores() else self._outer(e)
        at = c.result(Dim.symbol("gb"), Dim.symbol("gm"), Dim.symbol("gn"))
        value = w.let(rounded(sums, self.node.element))
        e.leaves[self.node] = only_at(self.node, at, value)
        indices = forward_indices(self.space, self.fusion.body, self.node, at)
        for root, result in zip(self.fusion.body.yields, results, strict=True):
            if root not in indices:
                raise CompilerBug(f"{root.op} (line {root.line}) is not reached from the product of its fusion")
            e.store(result, self.space.linear(indices[root], root.dims), e.value(root, indices[root]))

    def _on_tensor_cores(self) -> bool:
        return self.node.element in TENSOR and all(each.node.element in TENSOR for each in (self.c.left, self.c.right))

    def _tensor(self, e: Emitter) -> str:
        """Sums of products of whole blocks. f32 is multiplied as three products of tf32."""
        w, block = e.w, self.block
        w.statement(f"sums = tl.zeros([{block.rows}, {block.columns}], tl.float32)")
        with w.block(f"for step in range(0, {w.number(self.c.k)}, {block.depth}):") as scope:
            factors: list[str] = []
            narrow = self._narrow()
            for operand, symbol, free, lanes, axis in (
                (self.c.left, "gk", "gm", "[None, :]", 1),
                (self.c.right, "gk1", "gn", "[:, None]", 0),
            ):
                place = w.let(f"step + tl.arange(0, {block.depth}){lanes}", "k")
                live = w.let(f"{place} < {w.number(self.c.k)}", "m")
                w.bind(symbol, Variable(place, scope, frozenset({axis}), live))
                shape = (block.rows, block.depth) if axis else (block.depth, block.columns)
                factors.append(factor(e, operand, free, symbol, narrow, shape))
            precision = "tf32x3" if narrow == "tl.float32" else "ieee"
            w.statement(f'sums = tl.dot({factors[0]}, {factors[1]}, sums, input_precision="{precision}")')
        return "sums"

    def _narrow(self) -> str:
        """The type in which both factors are held exactly."""
        elements = {self.c.left.node.element, self.c.right.node.element}
        return in_memory(elements.pop()) if len(elements) == 1 else "tl.float32"

    def _outer(self, e: Emitter) -> str:
        """A column by a row at a time, for elements that tensor cores do not sum exactly."""
        w, element = e.w, self.node.element
        w.statement(f"sums = tl.zeros([{self.block.rows}, {self.block.columns}], {in_memory(element)})")
        with w.block(f"for step in range(0, {w.number(self.c.k)}):") as scope:
            factors: list[str] = []
            for operand, symbol, free in ((self.c.left, "gk", "gm"), (self.c.right, "gk1", "gn")):
                w.bind(symbol, Variable(w.let("tl.zeros([], tl.int64) + step", "i") if self.wide else "step", scope))
                index, bounds = operand.locate(Dim.symbol("gb"), Dim.symbol(free), Dim.symbol(symbol))
                predicate: Predicate = ()
                for position, low, high in bounds:
                    predicate = e.within(position, low, high, predicate)
                value = e.value(operand.node, index, predicate)
                kept = f"tl.where({e.mask(predicate)}, {value}, {_zero(operand.node)})" if predicate else value
                factors.append(w.let(f"{kept}.to({in_memory(element)})"))
            product = f"{factors[0]} {'&' if element == 'i1' else '*'} {factors[1]}"
            w.statement(f"sums = sums {'|' if element == 'i1' else '+'} {product}")
        return "sums"


def factor(e: Emitter, operand: Operand, free: str, symbol: str, element: str, shape: tuple[int, int]) -> str:
    """A block of a factor, whose lanes run over the symbols of its rows or columns and of k; 0 where it has no element."""
    w = e.w
    index, bounds = operand.locate(Dim.symbol("gb"), Dim.symbol(free), Dim.symbol(symbol))
    predicate: Predicate = ()
    with w.shaped(*shape):
        for position, low, high in bounds:
            predicate = e.within(position, low, high, predicate)
        value = e.value(operand.node, index, predicate)
    live = " & ".join([w.variables[symbol].live, *(each.text for each in predicate)])
    kept = w.let(f"tl.where({live}, {value}, {_zero(operand.node)})")
    return w.let(f"tl.broadcast_to({kept}.to({element}), [{shape[0]}, {shape[1]}])")


def only_at(node: Node, at: Index, value: str) -> Override:
    """The value of a product, which is known at one index alone."""

    def leaf(index: Index, predicate: Predicate) -> str:
        if tuple(index) != tuple(at):
            raise CompilerBug(f"the product of line {node.line} is read at another index than it is computed at")
        return value

    return leaf


def _zero(node: Node) -> str:
    return "0.0" if node.element in ("f64", "f32", "f16", "bf16") else "0"


def blocks_of(sizes: Sequence[int]) -> Block:
    """A schedule whose blocks are no larger than (rows, columns, k) need, at least 16 each, as tensor cores take them."""
    rows, columns, depth = (max(16, min(most, 1 << (size - 1).bit_length())) for size, most in zip(sizes, (64, 64, 32), strict=True))
    return Block(rows, columns, depth, 4, 3)
