"""The value of any node of a fusion at any index, as text of a Triton function ("input-inline", paper §4.2).

The consumer requests a value at an index; views map the index to that of their operand, element-wise ops request their operands at the
same index, buffers are loaded. A value goes to the outermost scope that knows its index, and is remembered there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from disc.codegen.cuda.elementwise import emit_elementwise
from disc.codegen.cuda.text import Scope, Variable, Writer
from disc.codegen.cuda.types import NARROW, in_memory
from disc.codegen.plan.index import Index, IndexSpace, view_index
from disc.codegen.plan.nests import LoopVariable
from disc.errors import TargetError
from disc.ir.graph import Node
from disc.ir.op_table import ELEMENTWISE
from disc.shapes import Dim, Truth
from disc.shapes.recursion import Recursive, run_recursive


@dataclass(frozen=True)
class Condition:
    """Where a value may be read. text: the name of a mask; symbols: of the positions that decide it."""

    text: str
    symbols: tuple[str, ...]


Predicate = tuple[Condition, ...]


@dataclass(frozen=True, eq=False)
class Buffer:
    """An argument or a result. pointer: the name of the parameter."""

    pointer: str
    dims: tuple[Dim, ...]
    element: str


Override = Callable[[Index, Predicate], str]
Rule = Callable[["Emitter", Node, Index, Predicate], "str | Recursive[str]"]


@dataclass(eq=False)
class Emitter:
    """Values of nodes at indices.

    rules: of the ops that are neither element-wise nor views. leaves: nodes that lie in memory, or whose value a kernel gives by itself.
    fault: the parameter where an index out of range is reported, three i64 (flag, index, size); "" where indices are clamped. unrounded:
    element-wise nodes of f16 and bf16 whose values stay in f32.
    """

    w: Writer
    space: IndexSpace
    rules: Mapping[str, Rule]
    leaves: dict[Node, Buffer | Override] = field(default_factory=dict)
    fault: str = ""
    unrounded: frozenset[Node] = frozenset()

    def value(self, node: Node, index: Index, predicate: Predicate = ()) -> str:
        """The name of the value of `node` at `index`; lanes for which the predicate does not hold are anything."""
        return run_recursive(self.compute(node, index, predicate))

    def compute(self, node: Node, index: Index, predicate: Predicate = ()) -> Recursive[str]:
        """`value`, for rules: what a value needs may go back through as many ops as the kernel has."""
        scope, key = self.scope(index, predicate), ("value", node.id, index, predicate)
        found = self.w.known(key)
        if found is None:
            with self.w.at(scope):
                found = yield from self._emit(node, index, predicate)
            scope.memo[key] = found
        assert isinstance(found, str)
        return found

    def scope(self, index: Index, predicate: Predicate = ()) -> Scope:
        """The outermost scope that knows both."""
        symbols = [name for dim in index for name in dim.symbols()]
        return self.w.scope_of((*symbols, *(name for condition in predicate for name in condition.symbols)))

    def _emit(self, node: Node, index: Index, predicate: Predicate) -> Recursive[str]:
        leaf = self.leaves.get(node)
        if isinstance(leaf, Buffer):
            return self.load(leaf, self.space.linear(index, leaf.dims), predicate)
        if leaf is not None:
            return leaf(index, predicate)
        viewed = view_index(self.space, node, index)
        if viewed is not None:
            return (yield self.compute(node.operands[0], viewed, predicate))
        if node.op in ELEMENTWISE:
            operands: list[str] = []
            for operand in node.operands:
                operands.append((yield self.compute(operand, index if operand.dims else (), predicate)))
            return emit_elementwise(self.w, node, operands, exact=node in self.unrounded)
        rule = self.rules.get(node.op)
        if rule is None:
            raise TargetError(f"no CUDA rule for {node.op} (line {node.line or 'unknown'})")
        found = rule(self, node, index, predicate)
        return found if isinstance(found, str) else (yield from found)

    # --- memory -----------------------------------------------------------------------------------------------------

    def load(self, buffer: Buffer, offset: Dim, predicate: Predicate = ()) -> str:
        """The elements at `offset`, in register form."""
        found = self.load_stored(buffer, offset, predicate)
        return self.w.let(f"{found}.to(tl.float32)") if buffer.element in NARROW else found

    def load_stored(self, buffer: Buffer, offset: Dim, predicate: Predicate = ()) -> str:
        """The same as they lie in memory; 0 in lanes that do not count."""
        place, mask = self._place(buffer, offset, predicate)
        masked = f", mask={mask}, other=0" if mask else ""
        return self.w.let(f"tl.load({place}{masked})")

    def store(self, buffer: Buffer, offset: Dim, value: str, predicate: Predicate = ()) -> None:
        """Stores register values. Where they are the same in all lanes, so is what is stored."""
        place, mask = self._place(buffer, offset, predicate)
        stored = f"{value}.to({in_memory(buffer.element)})"
        names = [*offset.symbols(), *(name for each in predicate for name in each.symbols)]
        if self.w.axes_of(names):  # a value that varies along fewer axes
            stored = f"tl.broadcast_to({stored}, ({place}).shape)"
        elif not mask:  # one element, whose value is a scalar or, where lanes were reduced, a block of equal ones
            place = f"{place} + tl.zeros({stored}.shape, tl.int32)"
        self.w.statement(f"tl.store({place}, {stored}{f', mask={mask}' if mask else ''})")

    def store_block(self, buffer: Buffer, root: Node, index: Index, loops: Sequence[str]) -> None:
        """Stores the values of `root` at the positions of two loops, which are the lanes of a block. An index says nothing of a loop of one
        iteration: its first lane stores, and what is computed stays behind the leaves that do not name it either."""
        w, offset = self.w, self.space.linear(index, buffer.dims)
        silent = [name for name in loops if name not in offset.symbols()]
        lanes = tuple(Condition(w.variables[name].live, (name,)) for name in silent if w.variables[name].live)
        with w.not_before(w.scope) if silent else nullcontext():
            self.store(buffer, offset, self.value(root, index), lanes)

    def _place(self, buffer: Buffer, offset: Dim, predicate: Predicate) -> tuple[str, str]:
        """Pointers, and their mask, "" for none. A mask that varies along more axes than the offset makes pointers for all of these."""
        w = self.w
        names = offset.symbols()
        live = dict.fromkeys(w.variables[name].live for name in names)
        conditions = [*(each for each in live if each), *(each.text for each in predicate)]
        mask = w.let(" & ".join(conditions), "m") if conditions else ""
        number = w.number(offset)
        beyond = w.axes_of([name for each in predicate for name in each.symbols]) - w.axes_of(names)
        return f"{buffer.pointer} + {w.let(f'tl.where({mask}, {number}, 0)', 'i') if beyond else number}", mask

    # --- predicates -------------------------------------------------------------------------------------------------

    def within(self, position: Dim, low: Dim, high: Dim, predicate: Predicate) -> Predicate:
        """`predicate` and low <= position < high; what the extents of the loops prove is left out."""
        env, (lowest, highest) = self.space.env, self.space.bounds(position)
        checks: list[tuple[str, Dim]] = []
        if lowest is None or env.le(low, lowest) is not Truth.YES:
            checks.append((">=", low))
        if highest is None or env.lt(highest, high) is not Truth.YES:
            checks.append(("<", high))
        for sign, limit in checks:
            symbols = tuple(dict.fromkeys((*position.symbols(), *limit.symbols())))
            with self.w.at(self.w.scope_of(symbols)):
                text = self.w.let(f"{self.w.number(position)} {sign} {self.w.number(limit)}", "m")
            predicate = (*predicate, Condition(text, symbols))
        return predicate

    def mask(self, predicate: Predicate) -> str:
        """One mask for all conditions."""
        symbols = [name for each in predicate for name in each.symbols]
        with self.w.at(self.w.scope_of(symbols)):
            return self.w.let(" & ".join(each.text for each in predicate), "m")

    def data_variable(self, node: Node, index: Index, predicate: Predicate, high: Dim) -> Recursive[Dim]:
        """An integer read from data as a position, clamped to [0, high]: a new symbol."""
        w = self.w
        raw: str = yield self.compute(node, index, predicate)
        symbols = tuple(dict.fromkeys(name for dim in (*index, high) for name in dim.symbols()))
        symbols = tuple(dict.fromkeys((*symbols, *(name for each in predicate for name in each.symbols))))
        scope = w.scope_of(symbols)
        with w.at(scope):
            wide = w.let(f"{raw}.to(tl.int64)")
            limit = w.number(high)
            axes = w.axes_of(symbols)
            live = dict.fromkeys(w.variables[name].live for name in symbols)
            conditions = [*(each for each in live if each), *(each.text for each in predicate)]
            if self.fault:
                bad = w.let(" & ".join([f"(({wide} < 0) | ({wide} > {limit}))", *conditions]), "m")
                self.report(bad, wide, f"{limit} + 1")
            clamped = w.let(f"tl.minimum(tl.maximum({wide}, 0), {limit})", "i")
            if not w.wide:
                clamped = w.let(f"{clamped}.to(tl.int32)", "i")
            name = w.name("data")
            mask = w.let(" & ".join(each for each in live if each), "m") if any(live) else ""
            w.bind(name, Variable(clamped, scope, axes, mask))
        return self.space.variable(name, high + 1)

    def report(self, bad: str, index: str, size: str) -> None:
        """Reports a fault where the mask `bad` holds: the largest such index, and the size that it does not fit."""
        w = self.w
        everywhere = f"tl.broadcast_to({bad}, {w.shape})"
        with w.block(f"if tl.max({everywhere}.to(tl.int32)) > 0:"):
            w.statement(
                f"tl.store({self.fault} + 1, tl.max(tl.where({everywhere}, tl.zeros([], tl.int64) + {index}, -0x7FFFFFFFFFFFFFFF)))"
            )
            w.statement(f"tl.store({self.fault} + 2, tl.zeros([], tl.int64) + {size})")
            w.statement(f"tl.store({self.fault}, tl.full([], 1, tl.int64))")

    def bind_loops(self, flat: Dim, variables: Sequence[LoopVariable]) -> None:
        """Gives the variables of a nest their values at a position in all of it, a bound symbol."""
        w, (name,) = self.w, flat.symbols()
        source = w.variables[name]
        for variable, position in zip(variables, self.space.delinear(flat, [each.extent for each in variables]), strict=True):
            w.bind(variable.name, Variable(w.number(position), source.scope, source.axes, source.live))
