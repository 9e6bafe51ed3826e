"""Factors of products as blocks: of tiles of a matrix in memory, or of what is computed element by element."""

from __future__ import annotations

from disc.codegen.cuda.emit import Buffer, Emitter, Override, Predicate
from disc.codegen.cuda.text import Scope, Variable
from disc.codegen.cuda.types import in_memory
from disc.codegen.plan.contraction import Operand, trace_views
from disc.codegen.plan.index import Index, IndexSpace
from disc.errors import CompilerBug
from disc.ir.graph import Node
from disc.shapes import Dim, Truth

TENSOR = ("f32", "f16", "bf16")  # elements whose products tensor cores sum in f32


def bind_lanes(e: Emitter, space: IndexSpace, name: str, text: str, axis: int, extent: Dim, size: int, scope: Scope) -> None:
    """Binds a position to lanes along an axis. They need no mask where blocks of `size` fit the extent exactly."""
    place = e.w.let(text, "i")
    whole = space.env.divides(size, extent) is Truth.YES
    e.w.bind(name, Variable(place, scope, frozenset({axis}), "" if whole else e.w.let(f"{place} < {e.w.number(extent)}", "m")))


def common_element(left: Operand, right: Operand) -> str:
    """The type in which both factors are held exactly."""
    elements = {left.node.element, right.node.element}
    return in_memory(elements.pop()) if len(elements) == 1 else "tl.float32"


def factor(e: Emitter, operand: Operand, free: str, symbol: str, element: str, shape: tuple[int, int]) -> str:
    """A block of a factor, whose lanes run over the symbols of its rows or columns and of k; 0 where it has no element.

    One that lies in memory is loaded as it is, so that the load can go to shared memory steps ahead of the product.
    """
    w = e.w
    index, bounds = operand.locate(Dim.symbol("gb"), Dim.symbol(free), Dim.symbol(symbol))
    predicate: Predicate = ()
    with w.shaped(*shape):
        for position, low, high in bounds:
            predicate = e.within(position, low, high, predicate)
        source = trace_views(e.space, operand.node, index)
        leaf = e.leaves.get(source[0]) if source is not None else None
        if source is not None and isinstance(leaf, Buffer) and in_memory(leaf.element) == element and symbol in source[1].symbols():
            found = e.load_stored(leaf, source[1], predicate)
            return found if free in source[1].symbols() else w.let(f"tl.broadcast_to({found}, [{shape[0]}, {shape[1]}])")
        value = e.value(operand.node, index, predicate)
    conditions = [each for each in (w.variables[symbol].live, *(each.text for each in predicate)) if each]
    kept = w.let(f"tl.where({' & '.join(conditions)}, {value}, {zero(operand.node)})") if conditions else value
    return w.let(f"tl.broadcast_to({kept}.to({element}), [{shape[0]}, {shape[1]}])")


def only_at(node: Node, at: Index, value: str) -> Override:
    """The value of a product, which is known at one index alone."""

    def leaf(index: Index, predicate: Predicate) -> str:
        if tuple(index) != tuple(at):
            raise CompilerBug(f"the product of line {node.line} is read at another index than it is computed at")
        return value

    return leaf


def zero(node: Node) -> str:
    """As a literal of the element of `node`."""
    return "0.0" if node.element in ("f64", "f32", "f16", "bf16") else "0"
