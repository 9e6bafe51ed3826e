"""Emits the value of any node of a fusion at any index, as a vector of lanes ("input-inline", paper §4.2).

The consumer requests a value at an index; views map the index to that of their operand, element-wise ops request their
operands at the same index, buffers are loaded, reductions open loops. Whatever depends only on outer loop variables is
emitted in the outer scope and remembered there, so a row's mean is computed once per row without a special case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from disc.codegen.mlir.builder import Scope, Variable, register_element
from disc.codegen.plan.index import ONE, Index, split_linear, terms_of, view_index
from disc.codegen.x86.elementwise import constant_splat, convert, emit_elementwise
from disc.codegen.x86.lanes import Lanes
from disc.codegen.x86.memory import (
    Buffer,
    load_alternate,
    load_contiguous,
    load_gather,
    load_repeated,
    load_reversed,
    load_scalar,
    prefetch,
    store_contiguous,
    store_scalar,
    store_scatter,
)
from disc.errors import CompilerBug
from disc.ir.graph import Body, Node
from disc.ir.op_table import ELEMENTWISE
from disc.shapes import Dim, FloorDiv, Truth
from disc.shapes.recursion import Recursive, run_recursive
from disc.targets.target import Target

TWO = Dim.of(2)
_IN_LINE = {ONE: load_contiguous, TWO: load_alternate, ONE * -1: load_reversed}  # by elements from lane to lane


@dataclass(frozen=True, eq=False)
class Predicate:
    """Which lanes may touch memory: an SSA mask, valid from `scope` inwards.

    uniform: the conditions among them that are the same in every lane. A value at an index without a lane variable answers to
    those alone: it may be a reduction with lanes of its own, to which the others mean nothing.
    """

    mask: str
    scope: Scope
    uniform: Predicate | None = None
    varies: bool = False


@dataclass(eq=False)
class RowCache:
    """A row of an expensive value kept in per-thread scratch between the stages of a stitched kernel. row_start: the position of its first
    element in the value, length: its elements."""

    buffer: Buffer
    row_start: Dim
    length: Dim
    pending: bool = False
    ready: bool = False


Override = Callable[[Index, "Predicate | None"], str]
Ahead = Callable[[Node, Dim], Dim | None]
Beside = Callable[[Node, Index], None]
Rule = Callable[["Emitter", Node, Index, "Predicate | None"], "str | Recursive[str]"]


@dataclass(eq=False)
class Emitter(Lanes):
    """Values of nodes at indices.

    target: what the code is made for. rules: the ops that are neither element-wise nor views; one that needs values of other nodes asks
    for them by `yield e.compute(...)`. leaves: nodes that are not to be emitted (inputs, a dot's tile) and where they are instead.
    """

    target: Target
    rules: Mapping[str, Rule]
    leaves: dict[Node, Buffer | Override] = field(default_factory=dict)
    own_rules: dict[Node, Rule] = field(default_factory=dict)  # of single nodes, before those of their ops
    silent_maxima: set[Node] = field(default_factory=set)  # maxima of rows that need not carry a NaN: something else does
    caches: dict[Node, list[RowCache]] = field(default_factory=dict)  # one per row that is worked on at once
    fault: str | None = None  # where to report an index out of range: three i64 (flag, index, size); None = indices are clamped
    floor: Scope | None = None  # nothing is emitted further out than this, however little its index depends on
    streams: bool = False  # results bypass the caches in this version
    ahead: Ahead | None = None  # where the cache line lies that is to be fetched when an input is read at an offset
    fetched: set[Node] = field(default_factory=set)  # inputs of which lines were
    side_by_side: int | None = None  # vectors that the loops of row reductions compute so; None: as the rules have it
    beside: Beside | None = None  # what else is done at each index at which a row reduction reads what it reduces
    row_loop: bool = False  # the open lane loop passes over a whole row in order

    # --- values -----------------------------------------------------------------------------------------------------

    def value(self, node: Node, index: Index, predicate: Predicate | None = None) -> str:
        """The vector of `node`'s register values at `index`; lanes without a mask bit hold anything."""
        return run_recursive(self.compute(node, index, predicate))

    def compute(self, node: Node, index: Index, predicate: Predicate | None = None) -> Recursive[str]:
        """`value`, for rules: what a value needs may go back through as many ops as the kernel has."""
        if predicate is not None and predicate.varies and all(self.b.lane_variable(dim) is None for dim in index):
            predicate = predicate.uniform
        scope = self.scope(index, predicate)
        key = ("value", node.id, index, predicate)
        found = scope.memo.get(key)
        if found is None:
            with self.b.at(scope):
                found = yield from self._cached(node, index, predicate)
            scope.memo[key] = found
        return found

    def scope(self, index: Sequence[Dim], predicate: Predicate | None) -> Scope:
        """Where a value at `index` under `predicate` is computed: the outermost scope that knows both."""
        scopes = [self.b.scope_of(dim) for dim in index]
        if predicate is not None:
            scopes.append(predicate.scope)
        if self.floor is not None:
            scopes.append(self.floor)
        return max(scopes, key=lambda scope: scope.depth, default=self.b.root)

    def _cached(self, node: Node, index: Index, predicate: Predicate | None) -> Recursive[str]:
        found = self._cache_at(node, index) if predicate is None else None
        if found is None:
            return (yield from self._emit(node, index, predicate))
        cache, position = found
        if cache.ready:
            variable = self.b.lane_variable(position)
            if self.before is not None and variable is not None and position == Dim.symbol(variable.name):
                return self._load_shifted(cache.buffer, position, variable.ssa, self.before)
            return self.load(cache.buffer, position, None)
        result = yield from self._emit(node, index, predicate)
        if self.row_loop:
            self.store(cache.buffer, position, result)
            cache.pending = True
        return result

    def _cache_at(self, node: Node, index: Index) -> tuple[RowCache, Dim] | None:
        """The cache of the row that `index` lies in, and the position in it."""
        for cache in self.caches.get(node, ()):
            position = self.space.env.simplify(self.space.linear(index, node.dims) - cache.row_start)
            variable = self.b.lane_variable(position)
            if variable is None or len([name for name in position.symbols() if name in self.space.extents]) != 1:
                continue
            if self.space.within(position, cache.length):  # not an element of another row, as far from this one's as that row is
                return cache, position
        return None

    def finish_caches(self) -> None:
        """The rows that the last loop stored can be read from now on."""
        for cache in (each for rows in self.caches.values() for each in rows):
            cache.ready, cache.pending = cache.ready or cache.pending, False

    def _emit(self, node: Node, index: Index, predicate: Predicate | None) -> Recursive[str]:
        leaf = self.leaves.get(node)
        if isinstance(leaf, Buffer):
            offset = self.space.linear(index, leaf.dims)
            if self.ahead is not None:
                self._fetch(node, leaf, offset, self.ahead(node, offset))
            return self.load(leaf, offset, predicate)
        if leaf is not None:
            return leaf(index, predicate)
        own = self.own_rules.get(node)
        if own is None:
            viewed = view_index(self.space, node, index)
            if viewed is not None:
                return (yield self.compute(node.operands[0], viewed, predicate))
            if node.op in ELEMENTWISE:
                operands: list[str] = []
                for operand in node.operands:
                    operands.append((yield self.compute(operand, index if operand.dims else (), predicate)))
                return emit_elementwise(self.b, node, operands)
        rule = own or self.rules.get(node.op)
        if rule is None:
            raise CompilerBug(f"no x86 rule for {node.op} (line {node.line or 'unknown'})")
        found = rule(self, node, index, predicate)
        return found if isinstance(found, str) else (yield from found)

    def _load_shifted(self, buffer: Buffer, position: Dim, first_lane: str, before: str) -> str:
        """The elements of a row in scratch from `position` on, out of the two vectors that were stored there: a load of parts of both would
        have to wait until both stores are done. Elements before the row, and past it, are anything."""
        b, element = self.b, register_element(buffer.element)
        if element not in ("f32", "i32"):  # the permutation of two vectors knows four bytes alone
            places = b.op(f"arith.maxsi {self.lane_vector(position)}, {b.const(0, 'i64')} : {b.vec('i64')}")
            return load_gather(b, buffer, places, None)
        start = b.op(f"arith.addi {first_lane}, {before} : i64")
        first = b.op(f"arith.maxsi {b.op(f'arith.subi {start}, {b.index(b.lanes)} : i64')}, {b.index(0)} : i64")
        low, high = (load_contiguous(b, buffer, offset, None) for offset in (first, start))
        distance = b.op(f"arith.trunci {b.op(f'arith.subi {b.index(b.lanes)}, {before} : i64')} : i64 to i32")
        splat = b.op(f"vector.broadcast {distance} : i32 to {b.vec('i32')}")
        order = b.op(f"arith.addi {self.lane_numbers('i32')}, {splat} : {b.vec('i32')}")
        vector, numbers = b.vec(element), b.vec("i32")
        if b.lanes == 16:
            name = f"llvm.x86.avx512.vpermi2var.{'ps' if element == 'f32' else 'd'}.512"
            return b.op(f'llvm.call_intrinsic "{name}"({low}, {order}, {high}) : ({vector}, {numbers}, {vector}) -> {vector}')
        # AVX2 permutes one register, by the low bits of the order.
        name = f"llvm.x86.avx2.perm{'ps' if element == 'f32' else 'd'}"
        halves = [b.op(f'llvm.call_intrinsic "{name}"({half}, {order}) : ({vector}, {numbers}) -> {vector}') for half in (low, high)]
        in_high = b.op(f"arith.cmpi sge, {order}, {b.const(b.lanes, 'i32')} : {numbers}")
        return b.op(f"arith.select {in_high}, {halves[1]}, {halves[0]} : {b.vec('i1')}, {vector}")

    # --- memory -----------------------------------------------------------------------------------------------------

    def load(self, buffer: Buffer, offset: Dim, predicate: Predicate | None) -> str:
        """The elements at `offset` (in elements) of `buffer`, in register form."""
        offset = self.uniform_divisions(offset)
        variable = self.b.lane_variable(offset)
        if variable is None:
            return load_scalar(self.b, buffer, self.b.scalar(offset), predicate.mask if predicate else None)
        mask = self.combined_mask(variable, predicate)
        form = split_linear(offset, variable.name)
        in_line = form is not None and variable.vector is None and self.b.lane_variable(form[1]) is None
        repeats = self._repeats(offset, variable)
        if repeats is None and (form is None or not in_line or form[0] not in _IN_LINE):
            return load_gather(self.b, buffer, self.lane_vector(offset), mask)
        reach = self.b.lanes * (2 if repeats is None and form is not None and form[0] == TWO else 1) - 1
        down = repeats is None and form is not None and form[0] == ONE * -1
        margins = (0, reach) if down else (reach, 0)
        start = self.b.scalar(offset) if predicate is None or not buffer.dims else self._near(buffer, offset, *margins)
        if repeats is not None:
            return load_repeated(self.b, buffer, start, *repeats, mask)
        assert form is not None
        return _IN_LINE[form[0]](self.b, buffer, start, mask)

    def _repeats(self, offset: Dim, variable: Variable) -> tuple[int, int] | None:
        """(times, phase) where each element is that of `times` lanes in a row, of the first `phase` less: (lane + phase) // times."""
        divided = [term for term in terms_of(offset) if variable.name in term.symbols()]
        atom = divided[0].sole_atom if len(divided) == 1 else None
        if not isinstance(atom, FloorDiv) or not variable.aligned or not atom.right.is_const or atom.right.const >= self.b.lanes:
            return None
        form, times = split_linear(atom.left, variable.name), atom.right.const
        if form is None or form[0] != ONE or self.b.lanes % times:
            return None
        constant = form[1].constant_term
        return (times, constant % times) if self.multiple_of(form[1] - constant) % times == 0 else None

    def _near(self, buffer: Buffer, offset: Dim, before: int, after: int) -> str:
        """The first lane's `offset`, or 0 where no lane lies in the tensor: it is up to `before` elements before or `after` elements behind
        it where one does. The CPU takes hundreds of cycles over lanes that are masked off where nothing is mapped, and a predicate that is
        off leaves an offset anywhere."""
        b = self.b
        env, count = self.space.env, self.space.env.product(buffer.dims)
        lowest, highest = self.space.bounds(offset)
        start = b.scalar(offset)
        is_low = lowest is not None and env.le(-before, lowest) is Truth.YES
        if is_low and highest is not None and env.lt(highest, count + after) is Truth.YES:
            return start
        with b.at(self.scope((offset, count), None)):
            reached = b.op(f"arith.addi {start}, {b.index(before)} : i64")
            near = b.op(f"arith.cmpi ult, {reached}, {b.scalar(count + before + after)} : i64")
            return b.op(f"arith.select {near}, {start}, {b.index(0)} : i64")

    def store(self, buffer: Buffer, offset: Dim, value: str, *, result: bool = False) -> None:
        """Stores register values at `offset`; without a lane variable, lane 0 alone. result: of the kernel, on a cache line's boundary."""
        offset = self.uniform_divisions(offset)
        variable = self.b.lane_variable(offset)
        if variable is None:
            store_scalar(self.b, buffer, self.b.scalar(offset), value)
            return
        form = split_linear(offset, variable.name)
        if form is None or form[0] != ONE or variable.vector is not None or self.b.lane_variable(form[1]) is not None:
            store_scatter(self.b, buffer, self.lane_vector(offset), value, variable.mask)
            return
        lined = form[1] == self.on_lines or (variable.aligned and self.whole_vectors_before(form[1]))
        stream = result and self.streams and variable.mask is None and lined
        store_contiguous(self.b, buffer, self.b.scalar(offset), value, variable.mask, stream=stream)

    def whole_vectors_before(self, offset: Dim) -> bool:
        """True when `offset` is a multiple of the lane count."""

        def divides(term: Dim) -> bool:
            if self.space.env.divides(self.b.lanes, term) is Truth.YES:
                return True
            return self.whole is not None and self.space.env.exact_div(term, self.whole) is not None

        return all(divides(term) for term in terms_of(offset))

    def _fetch(self, node: Node, buffer: Buffer, offset: Dim, target: Dim | None) -> None:
        """Prefetches the value of `target`; an address past the end does no harm."""
        variable = self.b.lane_variable(offset)
        if target is not None and variable is not None and variable.mask is None:
            prefetch(self.b, buffer, self.b.scalar(target))
            self.fetched.add(node)

    def combined_mask(self, variable: Variable | None, predicate: Predicate | None) -> str | None:
        """The lanes that exist and may touch memory; None = all."""
        tail = variable.mask if variable is not None else None
        if predicate is None:
            return tail
        if tail is None:
            return predicate.mask
        return self.b.op(f"arith.andi {tail}, {predicate.mask} : {self.b.vec('i1')}")

    # --- predicates -------------------------------------------------------------------------------------------------

    def within(self, position: Dim, low: Dim, high: Dim, predicate: Predicate | None) -> Predicate | None:
        """`predicate` and low <= position < high; conditions that the loop extents prove are dropped."""
        b = self.b
        checks = []
        bounds = self.space.bounds(position)
        env = self.space.env
        if bounds[0] is None or env.le(low, bounds[0]).name != "YES":
            checks.append(("sge", low))
        if bounds[1] is None or env.lt(bounds[1], high).name != "YES":
            checks.append(("slt", high))
        for comparison, limit in checks:
            scope = self.scope((position, limit), predicate)
            with b.at(scope):
                mask = b.op(f"arith.cmpi {comparison}, {self.lane_vector(position)}, {self.lane_vector(limit)} : {b.vec('i64')}")
                predicate = self._and(predicate, mask, scope, b.lane_variable(position) is not None or b.lane_variable(limit) is not None)
        return predicate

    def _and(self, predicate: Predicate | None, mask: str, scope: Scope, varies: bool) -> Predicate:
        """`predicate` with one more condition; `scope` is that of both."""
        b = self.b
        whole = mask if predicate is None else b.op(f"arith.andi {mask}, {predicate.mask} : {b.vec('i1')}")
        if varies:
            uniform = None if predicate is None else predicate.uniform if predicate.varies else predicate
            return Predicate(whole, scope, uniform, True)
        if predicate is None or not predicate.varies:
            return Predicate(whole, scope)
        if predicate.uniform is None:
            return Predicate(whole, scope, Predicate(mask, scope), True)
        both = b.op(f"arith.andi {mask}, {predicate.uniform.mask} : {b.vec('i1')}")
        return Predicate(whole, scope, Predicate(both, scope), True)

    def data_variable(self, node: Node, index: Index, predicate: Predicate | None, high: Dim, reported: bool = True) -> Recursive[Dim]:
        """An integer read from data as a position, clamped to [0, high]: a new variable. reported: where it had to be clamped."""
        b = self.b
        name = self.name("data")
        raw: str = yield self.compute(node, index, predicate)
        with b.at(self.scope(index, predicate)):
            wide = convert(b, raw, node.element, "i64")
            limit = self.lane_vector(high)
            if reported:
                self.report_fault(wide, limit, index, predicate)
            capped = b.op(f"arith.minsi {wide}, {limit} : {b.vec('i64')}")
            capped = b.op(f"arith.maxsi {capped}, {b.const(0, 'i64')} : {b.vec('i64')}")
            lane = any(b.lane_variable(dim) is not None for dim in index)
            first = b.op(f"vector.extract {capped}[0] : i64 from {b.vec('i64')}")
            variable = Variable(name, first, b.scope, lane)
            variable.vector = capped if lane else None
            if lane:
                variable.mask = next((found.mask for dim in index if (found := b.lane_variable(dim)) is not None), None)
        b.variables[name] = variable
        return self.space.variable(name, high + 1)

    def report_fault(self, wide: str, limit: str, index: Index, predicate: Predicate | None) -> None:
        """Records an index below 0 or above `limit` in a lane that counts."""
        if self.fault is None:
            return
        b = self.b
        low = b.op(f"arith.cmpi slt, {wide}, {b.const(0, 'i64')} : {b.vec('i64')}")
        high = b.op(f"arith.cmpi sgt, {wide}, {limit} : {b.vec('i64')}")
        bad = b.op(f"arith.ori {low}, {high} : {b.vec('i1')}")
        variable = next((found for dim in index if (found := b.lane_variable(dim)) is not None), None)
        active = self.combined_mask(variable, predicate)
        if active is not None:
            bad = b.op(f"arith.andi {bad}, {active} : {b.vec('i1')}")
        with b.when(b.op(f"vector.reduction <or>, {bad} : {b.vec('i1')} into i1")):
            chosen = b.op(f"arith.select {bad}, {wide}, {b.const(-(2**63), 'i64')} : {b.vec('i1')}, {b.vec('i64')}")
            shown = b.op(f"vector.reduction <maxsi>, {chosen} : {b.vec('i64')} into i64") if variable is not None else None
            first = b.op(f"vector.extract {wide}[0] : i64 from {b.vec('i64')}") if shown is None else shown
            size = b.op(f"vector.extract {limit}[0] : i64 from {b.vec('i64')}")
            for number, value in enumerate((b.index(1), first, b.op(f"arith.addi {size}, {b.index(1)} : i64"))):
                slot = b.op(f"llvm.getelementptr {self.fault}[{number}] : (!llvm.ptr) -> !llvm.ptr, i64")
                b.statement(f"llvm.store {value}, {slot} : i64, !llvm.ptr")

    # --- bodies -----------------------------------------------------------------------------------------------------

    def body(self, body: Body, arguments: Sequence[str]) -> list[str]:
        """The values that a reduction body yields for these argument vectors."""
        values: dict[Node, str] = dict(zip(body.arguments, arguments, strict=True))
        for node in body.nodes:
            if node in values:
                continue
            if node.op == "stablehlo.constant":
                values[node] = constant_splat(self.b, node)
                continue
            values[node] = emit_elementwise(self.b, node, [values[operand] for operand in node.operands])
        return [values[node] for node in body.yields]
