"""Emits the value of any node of a fusion at any index, as a vector of lanes ("input-inline", paper §4.2).

The consumer asks for a value at an index; views turn the index into that of their operand, element-wise ops ask their
operands at the same index, buffers are loaded, reductions open loops. Whatever depends only on outer loop variables is
emitted in the outer scope and remembered there, so a row's mean is computed once per row without a special case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np

from ..._dim_algebra import of_atom
from ...errors import CompilerBug
from ...ir.graph import Body, Node
from ...shapes import Dim, FloorDiv, Symbol, Truth
from ..index import ONE, ZERO, Index, IndexSpace, split_linear, terms_of, view_index
from .builder import Builder, Scope, Variable, register_element
from .elementwise import ELEMENTWISE, constant_splat, convert, emit_elementwise
from .memory import Buffer, load_contiguous, load_gather, load_scalar, prefetch, store_contiguous, store_scalar, store_scatter


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
    """A row of an expensive value kept in per-thread scratch between the stages of a stitched kernel."""

    buffer: Buffer
    row_start: Dim
    pending: bool = False
    ready: bool = False


Override = Callable[[Index, "Predicate | None"], str]
Ahead = Callable[[Node, Dim], Dim | None]
Rule = Callable[["Emitter", Node, Index, "Predicate | None"], str]


@dataclass(eq=False)
class Emitter:
    """Values of nodes at indices.

    rules: the ops that are neither element-wise nor views. leaves: nodes that are not to be emitted (inputs, a dot's tile) and where
    they are instead.
    """

    b: Builder
    space: IndexSpace
    rules: Mapping[str, Rule]
    leaves: dict[Node, Buffer | Override] = field(default_factory=dict)
    caches: dict[Node, list[RowCache]] = field(default_factory=dict)  # one per row that is worked on at once
    fault: str | None = None  # where to report an index out of range: three i64 (flag, index, size); None = indices are clamped
    floor: Scope | None = None  # nothing is emitted further out than this, however little its index depends on
    whole: Dim | None = None  # a length that is known to be a multiple of the lanes in this version
    streams: bool = False  # results go past the caches in this version
    on_lines: Dim | None = None  # an offset that, with the open lane loop's position, is a multiple of the lane count
    before: str | None = None  # of a row that is gone through along the lines of the result: its elements' distance from the line's start
    ahead: Ahead | None = None  # where the cache line lies that is to be fetched when an input is read at an offset
    fetched: set[Node] = field(default_factory=set)  # inputs of which lines were
    _names: int = 0
    row_loop: bool = False  # the open lane loop passes over a whole row in order

    # --- variables --------------------------------------------------------------------------------------------------

    def name(self, prefix: str) -> str:
        """A new variable name; never reused, so that an index names its loop."""
        self._names += 1
        return f"{prefix}_{self._names}"

    @contextmanager
    def bind(self, name: str, ssa: str, *, lane: bool = False, mask: str | None = None, aligned: bool = False) -> Iterator[Variable]:
        """Binds a loop variable; a lane variable gets a companion `name.base` that stands for its first lane."""
        with self.b.variable(name, ssa, lane=lane, mask=mask, aligned=aligned) as variable:
            if not lane:
                yield variable
                return
            with self.b.variable(name + ".base", ssa):
                yield variable

    def lane_loop(
        self, name: str, low: str, high: str, extent: Dim, unroll: int, carried: Sequence[tuple[str, str]], body: LaneBody
    ) -> list[str]:
        """Runs `body` over [low, high) with lane variable(s): whole vectors first, then masked ones. Returns the carried values.

        low must be a multiple of the lane count; extent is what is known of high - low. `body(names, values)` gets the names of
        `unroll` lane variables and the carried values (`unroll` copies) and returns the new ones. Where no values are
        carried, the whole vectors that are left come in halves of `unroll`, then in quarters, and so on.
        """
        step = self.b.lanes * unroll
        known = extent.const if extent.is_const else None
        names = [name] + [f"{name}.{number}" for number in range(1, unroll)]
        for extra in names[1:]:
            self.space.variable(extra, self.space.extents[name])
        for each in names:
            self.space.variable(each + ".base", self.space.extents[name])
        start, values = low, list(carried)
        if known is None or known >= step:
            start, values = self._whole_vectors(names, low, high, step, values, body)
        if (known is not None and known % step == 0) or (unroll == 1 and self._is_whole(extent)):
            return [value for value, _ in values]
        if unroll > 1 and not carried:
            return self.lane_loop(name, start, high, extent if known is None else Dim.of(known % step), unroll // 2, [], body)
        return self._masked_vectors(name, start, high, unroll, values, body)

    def _is_whole(self, extent: Dim) -> bool:
        return self.whole is not None and self.space.env.exact_div(extent, self.whole) is not None

    def _whole_vectors(
        self, names: list[str], low: str, high: str, step: int, values: list[tuple[str, str]], body: LaneBody
    ) -> tuple[str, list[tuple[str, str]]]:
        """The loop over whole steps: where it ends, and the carried values."""
        b = self.b
        length = b.op(f"arith.subi {high}, {low} : i64")
        rest = b.op(f"arith.remui {length}, {b.index(step)} : i64")
        end = b.op(f"arith.subi {high}, {rest} : i64")
        with b.loop(low, end, b.index(step), values) as loop:
            self._unrolled(names, loop.index, loop.carried, loop.yields, body)
        return end, [(result, type_) for result, (_, type_) in zip(loop.results, values, strict=True)]

    def _unrolled(self, names: list[str], index: str, carried: list[str], yields: list[str], body: LaneBody) -> None:
        b = self.b
        bases = [index] + [b.op(f"arith.addi {index}, {b.index(b.lanes * number)} : i64") for number in range(1, len(names))]
        with ExitStack() as bound:
            for each, base in zip(names, bases, strict=True):
                bound.enter_context(self.bind(each, base, lane=True, aligned=True))
            yields.extend(body(names, carried))

    def _masked_vectors(self, name: str, start: str, high: str, unroll: int, values: list[tuple[str, str]], body: LaneBody) -> list[str]:
        b = self.b
        with b.loop(start, high, b.index(b.lanes), values) as loop:
            mask = self.tail_mask(b.op(f"arith.subi {high}, {loop.index} : i64"))
            with self.bind(name, loop.index, lane=True, mask=mask, aligned=True):
                each = len(values) // unroll if unroll else 0
                updated = body([name], loop.carried[:each])
                loop.yields.extend(updated)
                loop.yields.extend(loop.carried[each:])
        return loop.results if values else []

    def line_loop(self, name: str, high: str, base: Dim, body: Callable[[], None]) -> None:
        """Runs `body` over lanes [0, high) in vectors that begin where `base` plus the position is a multiple of the lane count, so that a
        result that lies there is stored in whole lines; the first and last vectors are masked."""
        b, lanes = self.b, self.b.index(self.b.lanes)
        self.space.variable(name + ".base", self.space.extents[name])
        before = b.op(f"arith.remui {b.scalar(base)}, {lanes} : i64")
        cut = b.op(f"arith.cmpi ne, {before}, {b.index(0)} : i64")
        self.before = before
        with b.when(cut):
            below = self.tail_mask(before)
            mask = b.op(f"arith.xori {below}, {self.tail_mask(b.op(f'arith.addi {before}, {high} : i64'))} : {b.vec('i1')}")
            with self.bind(name, b.op(f"arith.subi {b.index(0)}, {before} : i64"), lane=True, mask=mask):
                body()
        low = b.op(f"arith.select {cut}, {b.op(f'arith.subi {lanes}, {before} : i64')}, {b.index(0)} : i64")
        length = b.op(f"arith.maxsi {b.op(f'arith.subi {high}, {low} : i64')}, {b.index(0)} : i64")
        rest = b.op(f"arith.remui {length}, {lanes} : i64")
        end = b.op(f"arith.addi {low}, {b.op(f'arith.subi {length}, {rest} : i64')} : i64")
        with b.loop(low, end, lanes) as loop, self.bind(name, loop.index, lane=True):
            self.on_lines = base
            body()
            self.on_lines = None
        with b.when(b.op(f"arith.cmpi ne, {rest}, {b.index(0)} : i64")), self.bind(name, end, lane=True, mask=self.tail_mask(rest)):
            body()
        self.before = None

    def tail_mask(self, remaining: str) -> str:
        """The mask of the first `remaining` (i64) lanes: of none below 1, of all from their number on."""
        b = self.b
        capped = b.op(f"arith.minsi {remaining}, {b.index(b.lanes)} : i64")
        short = b.op(f"arith.trunci {capped} : i64 to i32")
        splat = b.op(f"vector.broadcast {short} : i32 to {b.vec('i32')}")
        return b.op(f"arith.cmpi slt, {self.lane_numbers('i32')}, {splat} : {b.vec('i32')}")

    def lane_numbers(self, element: str) -> str:
        """The constant <0, 1, 2, ...>."""
        numbers = ", ".join(str(number) for number in range(self.b.lanes))
        return self.b.constant(f"arith.constant dense<[{numbers}]> : {self.b.vec(element)}")

    # --- values -----------------------------------------------------------------------------------------------------

    def value(self, node: Node, index: Index, predicate: Predicate | None = None) -> str:
        """The vector of `node`'s register values at `index`; lanes without a mask bit hold anything."""
        if predicate is not None and predicate.varies and all(self.b.lane_variable(dim) is None for dim in index):
            predicate = predicate.uniform
        scope = self.scope(index, predicate)
        key = ("value", node.id, index, predicate)
        found = scope.memo.get(key)
        if found is None:
            with self.b.at(scope):
                found = self._cached(node, index, predicate)
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

    def _cached(self, node: Node, index: Index, predicate: Predicate | None) -> str:
        found = self._cache_at(node, index) if predicate is None else None
        if found is None:
            return self._emit(node, index, predicate)
        cache, position = found
        if cache.ready:
            variable = self.b.lane_variable(position)
            if self.before is not None and variable is not None and position == Dim.symbol(variable.name):
                return self._load_shifted(cache.buffer, variable.ssa, self.before)
            return self.load(cache.buffer, position, None)
        result = self._emit(node, index, predicate)
        if self.row_loop:
            self.store(cache.buffer, position, result)
            cache.pending = True
        return result

    def _cache_at(self, node: Node, index: Index) -> tuple[RowCache, Dim] | None:
        """The cache of the row that `index` lies in, and the position in it."""
        for cache in self.caches.get(node, ()):
            position = self.space.env.simplify(self.space.linear(index, node.dims) - cache.row_start)
            variable = self.b.lane_variable(position)
            if variable is not None and len([name for name in position.symbols() if name in self.space.extents]) == 1:
                return cache, position
        return None

    def finish_caches(self) -> None:
        """The rows that the last loop stored can be read from now on."""
        for cache in (each for rows in self.caches.values() for each in rows):
            cache.ready, cache.pending = cache.ready or cache.pending, False

    def _emit(self, node: Node, index: Index, predicate: Predicate | None) -> str:
        leaf = self.leaves.get(node)
        if isinstance(leaf, Buffer):
            offset = self.space.linear(index, leaf.dims)
            if self.ahead is not None:
                self._fetch(node, leaf, offset, self.ahead(node, offset))
            return self.load(leaf, offset, predicate)
        if leaf is not None:
            return leaf(index, predicate)
        viewed = view_index(self.space, node, index)
        if viewed is not None:
            return self.value(node.operands[0], viewed, predicate)
        if node.op in ELEMENTWISE:
            operands = [self.value(operand, index if operand.dims else (), predicate) for operand in node.operands]
            return emit_elementwise(self.b, node, operands)
        rule = self.rules.get(node.op)
        if rule is None:
            raise CompilerBug(f"no x86 rule for {node.op} (line {node.line or 'unknown'})")
        return rule(self, node, index, predicate)

    def _load_shifted(self, buffer: Buffer, position: str, before: str) -> str:
        """The elements of a row in scratch from `position` on, out of the two vectors that were stored there: a load of parts of both would
        have to wait until both stores are done. Elements before the row, and past it, are anything."""
        b, element = self.b, register_element(buffer.element)
        start = b.op(f"arith.addi {position}, {before} : i64")
        first = b.op(f"arith.maxsi {b.op(f'arith.subi {start}, {b.index(b.lanes)} : i64')}, {b.index(0)} : i64")
        low, high = (load_contiguous(b, buffer, offset, None) for offset in (first, start))
        distance = b.op(f"arith.trunci {b.op(f'arith.subi {b.index(b.lanes)}, {before} : i64')} : i64 to i32")
        splat = b.op(f"vector.broadcast {distance} : i32 to {b.vec('i32')}")
        order = b.op(f"arith.addi {self.lane_numbers('i32')}, {splat} : {b.vec('i32')}")
        name, vector = f"llvm.x86.avx512.vpermi2var.{'ps' if element == 'f32' else 'd'}.512", b.vec(element)
        return b.op(f'llvm.call_intrinsic "{name}"({low}, {order}, {high}) : ({vector}, {b.vec("i32")}, {vector}) -> {vector}')

    # --- memory -----------------------------------------------------------------------------------------------------

    def uniform_divisions(self, dim: Dim) -> Dim:
        """Divisions whose result is the same in every lane are written over the first lane's variable."""

        def image(atom: object) -> Dim:
            whole = of_atom(atom)  # pyright: ignore[reportArgumentType]
            if not isinstance(atom, FloorDiv):
                return whole
            variable = self.b.lane_variable(atom.left)
            if variable is None or not variable.aligned or variable.name.endswith(".base") or not atom.right.is_const:
                return whole
            form = split_linear(atom.left, variable.name)
            if form is None or form[0] != ONE or atom.right.const % self.b.lanes or self._multiple(form[1]) % self.b.lanes:
                return whole
            return atom.left.replace({variable.name: Dim.symbol(variable.name + ".base")}) // atom.right

        return dim.map_atoms(image)

    def _multiple(self, dim: Dim) -> int:
        """A number that divides `dim` whatever its variables are (0 for 0)."""
        if dim == ZERO:
            return 0
        result = 0
        for coefficient, _ in dim.monomials:
            result = int(np.gcd(result, coefficient))
        return result

    def load(self, buffer: Buffer, offset: Dim, predicate: Predicate | None) -> str:
        """The elements at `offset` (in elements) of `buffer`, in register form."""
        offset = self.uniform_divisions(offset)
        variable = self.b.lane_variable(offset)
        if variable is None:
            return load_scalar(self.b, buffer, self.b.scalar(offset), predicate.mask if predicate else None)
        mask = self.combined_mask(variable, predicate)
        form = split_linear(offset, variable.name)
        if form is not None and form[0] == ONE and variable.vector is None and self.b.lane_variable(form[1]) is None:
            return load_contiguous(self.b, buffer, self.b.scalar(offset), mask)
        return load_gather(self.b, buffer, self.lane_vector(offset), mask)

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
        """Prefetches what `target` stands for; an address past the end does no harm."""
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

    def lane_vector(self, dim: Dim) -> str:
        """The i64 value of `dim` in every lane."""
        b = self.b
        dim = self.uniform_divisions(dim)
        scope = b.scope_of(dim)
        key = ("lanes", dim)
        found = scope.memo.get(key)
        if found is None:
            with b.at(scope):
                found = self._lane_vector(dim)
            scope.memo[key] = found
        return found

    def _lane_vector(self, dim: Dim) -> str:
        b, vector = self.b, self.b.vec("i64")
        variable = b.lane_variable(dim)
        if variable is None:
            return b.op(f"vector.broadcast {b.scalar(dim)} : i64 to {vector}")
        total: str | None = None
        for coefficient, product in dim.monomials:
            term: str | None = None if coefficient == 1 and product else b.const(coefficient, "i64")
            for atom, power in product:
                value = self._lane_atom(atom)
                for _ in range(power):
                    term = value if term is None else b.op(f"arith.muli {term}, {value} : {vector}")
            assert term is not None
            total = term if total is None else b.op(f"arith.addi {total}, {term} : {vector}")
        assert total is not None
        return total

    def _lane_atom(self, atom: object) -> str:
        b, vector = self.b, self.b.vec("i64")
        if isinstance(atom, Symbol):
            variable = b.variables[atom.name]
            if variable.vector is not None:
                return variable.vector
            splat = b.op(f"vector.broadcast {variable.ssa} : i64 to {vector}")
            return b.op(f"arith.addi {splat}, {self.lane_numbers('i64')} : {vector}") if variable.lane else splat
        left, right = self.lane_vector(atom.left), self.lane_vector(atom.right)  # pyright: ignore[reportAttributeAccessIssue]
        if type(atom).__name__ in ("Min", "Max"):
            return b.op(f"arith.{type(atom).__name__.lower()}si {left}, {right} : {vector}")
        quotient = self._divide_lanes(left, right)
        if isinstance(atom, FloorDiv):
            return quotient
        return b.op(f"arith.subi {left}, {b.op(f'arith.muli {quotient}, {right} : {vector}')} : {vector}")

    def _divide_lanes(self, left: str, right: str) -> str:
        """floor(left / right) in f64, which is exact for positions below 2^52 after one correction step each way."""
        b, vector, mask = self.b, self.b.vec("i64"), self.b.vec("i1")
        zero, one = b.const(0, "i64"), b.const(1, "i64")
        right = b.op(f"arith.maxsi {right}, {one} : {vector}")
        double = b.vec("f64")
        x = b.op(f"arith.sitofp {left} : {vector} to {double}")
        y = b.op(f"arith.sitofp {right} : {vector} to {double}")
        guess = b.op(f"math.floor {b.op(f'arith.divf {x}, {y} : {double}')} : {double}")
        quotient = b.op(f"arith.fptosi {guess} : {double} to {vector}")
        rest = b.op(f"arith.subi {left}, {b.op(f'arith.muli {quotient}, {right} : {vector}')} : {vector}")
        high = b.op(f"arith.cmpi sge, {rest}, {right} : {vector}")
        low = b.op(f"arith.cmpi slt, {rest}, {zero} : {vector}")
        quotient = b.op(f"arith.addi {quotient}, {b.op(f'arith.select {high}, {one}, {zero} : {mask}, {vector}')} : {vector}")
        return b.op(f"arith.subi {quotient}, {b.op(f'arith.select {low}, {one}, {zero} : {mask}, {vector}')} : {vector}")

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

    def data_variable(self, node: Node, index: Index, predicate: Predicate | None, high: Dim) -> Dim:
        """An integer read from data as a position, clamped to [0, high]: a new variable."""
        b = self.b
        name = self.name("data")
        raw = self.value(node, index, predicate)
        with b.at(self.scope(index, predicate)):
            wide = convert(b, raw, node.element, "i64")
            limit = self.lane_vector(high)
            self._report_fault(wide, limit, index, predicate)
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

    def _report_fault(self, wide: str, limit: str, index: Index, predicate: Predicate | None) -> None:
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
            chosen = b.op(f"arith.select {bad}, {wide}, {b.const(0, 'i64')} : {b.vec('i1')}, {b.vec('i64')}")
            shown = b.op(f"vector.reduction <add>, {chosen} : {b.vec('i64')} into i64") if variable is not None else None
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


LaneBody = Callable[[list[str], list[str]], list[str]]
