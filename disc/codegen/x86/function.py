"""The frame around every kernel: `void k(const int64_t* args, int64_t begin, int64_t end, void* scratch)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from disc.codegen.mlir.builder import Builder, Variable
from disc.codegen.plan.index import ZERO, Index, IndexSpace, checks_indices
from disc.codegen.x86.emit import Emitter
from disc.codegen.x86.memory import Buffer
from disc.codegen.x86.structural import RULES
from disc.errors import CompilerBug
from disc.ir.graph import Body, Node
from disc.shapes import Dim, Truth
from disc.targets.target import Target


@dataclass(eq=False)
class Frame:
    """A kernel function under construction."""

    emitter: Emitter
    begin: str
    end: str
    scratch: str
    outputs: tuple[Buffer, ...]
    roots: tuple[Node, ...]
    arguments: tuple[Node, ...]
    count: int  # of the kernel's own arguments

    @property
    def b(self) -> Builder:
        return self.emitter.b


def emit_function(
    name: str,
    body: Body,
    outputs: tuple[Node, ...],
    symbols: tuple[str, ...],
    space: IndexSpace,
    target: Target,
    emit: Callable[[Frame], None],
) -> str:
    """The MLIR text of one kernel function. `emit` fills the body; inputs are bound as leaves, symbols as variables."""
    b = Builder(target.lanes)
    emitter = Emitter(b, space, target, RULES)
    pointers = [_argument(b, number, "!llvm.ptr") for number in range(len(body.arguments) + len(outputs))]
    for argument, pointer in zip(body.arguments, pointers, strict=False):
        emitter.leaves[argument] = Buffer(pointer, argument.dims, argument.element)
    results = tuple(
        Buffer(pointer, node.dims, node.element) for pointer, node in zip(pointers[len(body.arguments) :], outputs, strict=True)
    )
    declared = frozenset(space.env.names())
    for number, symbol in enumerate(symbols):
        signed = symbol in declared and space.env.le(0, Dim.symbol(symbol)) is not Truth.YES
        b.variables[symbol] = Variable(symbol, _argument(b, len(pointers) + number, "i64"), b.root, signed=signed)
    if checks_indices(space.checked_indices, body):
        emitter.fault = _argument(b, len(pointers) + len(symbols), "!llvm.ptr")
    count = len(pointers) + len(symbols) + checks_indices(space.checked_indices, body)
    emit(Frame(emitter, "%begin", "%end", "%scratch", results, outputs, body.arguments, count))
    table, address = b.table_text(name)
    lines = [f"func.func @{name}(%args: !llvm.ptr, %begin: i64, %end: i64, %scratch: !llvm.ptr) {{"]
    lines += [address, *b.globals, *b.root.lines, "return", "}"]
    return table + "\n".join([*lines[:1], *("  " + line for line in lines[1:-1]), lines[-1]]) + "\n"


def store_roots(frame: Frame, indices: dict[Node, Index], source: str) -> None:
    """Stores a lane vector of every root at its index. source: what the roots are computed from, for the message.

    Raises CompilerBug for a root without an index.
    """
    e = frame.emitter
    for root, output in zip(frame.roots, frame.outputs, strict=True):
        if root not in indices:
            raise CompilerBug(f"{root.op} (line {root.line}) is not reached from the {source} of its fusion")
        e.store(output, e.space.linear(indices[root], root.dims), e.value(root, indices[root]))


def partials_argument(frame: Frame) -> str:
    """The pointer behind all other arguments: to the memory of a `Split`."""
    with frame.b.at(frame.b.root):
        return _argument(frame.b, frame.count, "!llvm.ptr")


def _argument(b: Builder, number: int, type_: str) -> str:
    slot = b.op(f"llvm.getelementptr %args[{number}] : (!llvm.ptr) -> !llvm.ptr, i64")
    return b.op(f"llvm.load {slot} : !llvm.ptr -> {type_}")


def rounded_up(value: Dim, multiple: int) -> Dim:
    """`value` rounded up to a multiple."""
    return (value + (multiple - 1)) // multiple * multiple


def product_cost(target: Target, *products: tuple[str, Dim]) -> Dim:
    """Cycles of a task of products, each (the element that its instructions take of the left operand, multiply-adds)."""
    totals: dict[int, Dim] = {}
    for element, macs in products:
        rate = target.macs_per_cycle(element)
        totals[rate] = totals.get(rate, ZERO) + macs
    return sum((macs // rate for rate, macs in totals.items()), Dim.of(target.thresholds.task_cycles))
