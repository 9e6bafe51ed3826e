"""Lanes: loops whose variable represents a vector of neighboring positions, and positions as vectors.

A lane variable's companion `name.base` is its first lane. What is left of a loop after whole vectors is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np

from disc.codegen.mlir.builder import Builder, Variable
from disc.codegen.plan.index import ONE, ZERO, IndexSpace, split_linear
from disc.shapes import Dim, FloorDiv, Mod, Symbol
from disc.shapes.algebra import inner_first, of_atom
from disc.shapes.recursion import Recursive, run_recursive

LaneBody = Callable[[list[str], list[str]], list[str]]  # (names of the lane variables, carried values) → new values
AskingBody = Callable[[list[str], list[str]], Recursive[list[str]]]  # the same, where a rule asks for values in it


@dataclass(eq=False)
class Lanes:
    """Opens lane loops in `b`, whose variables it adds to `space`.

    whole: a length that is known to be a multiple of the lanes in this version. on_lines: an offset that, with the open lane loop's
    position, is a multiple of the lanes. before: of a row that is iterated along the cache lines of the result, its elements' distance from
    the first line's start.
    """

    b: Builder
    space: IndexSpace
    whole: Dim | None = field(default=None, kw_only=True)
    on_lines: Dim | None = field(default=None, kw_only=True)
    before: str | None = field(default=None, kw_only=True)
    _names: int = field(default=0, kw_only=True)  # given so far

    # --- variables --------------------------------------------------------------------------------------------------

    def name(self, prefix: str) -> str:
        """A new variable name; never reused, so that an index names its loop."""
        self._names += 1
        return f"{prefix}_{self._names}"

    @contextmanager
    def bind(self, name: str, ssa: str, *, lane: bool = False, mask: str | None = None, aligned: bool = False) -> Iterator[Variable]:
        """Binds a loop variable; a lane variable gets a companion `name.base` for its first lane."""
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

        def asking(names: list[str], values: list[str]) -> Recursive[list[str]]:
            yield from ()
            return body(names, values)

        return run_recursive(self.asking_lane_loop(name, low, high, extent, unroll, carried, asking))

    def asking_lane_loop(
        self, name: str, low: str, high: str, extent: Dim, unroll: int, carried: Sequence[tuple[str, str]], body: AskingBody
    ) -> Recursive[list[str]]:
        """`lane_loop` for rules."""
        step = self.b.lanes * unroll
        known = extent.const if extent.is_const else None
        names = [name] + [f"{name}.{number}" for number in range(1, unroll)]
        for extra in names[1:]:
            self.space.variable(extra, self.space.extents[name])
        for each in names:
            self.space.variable(each + ".base", self.space.extents[name])
        start, values = low, list(carried)
        if known is None or known >= step:
            start, values = yield from self._whole_vectors(names, low, high, step, values, body)
        if (known is not None and known % step == 0) or (unroll == 1 and self._is_whole(extent)):
            return [value for value, _ in values]
        if unroll > 1 and not carried:
            rest = extent if known is None else Dim.of(known % step)
            return (yield from self.asking_lane_loop(name, start, high, rest, unroll // 2, [], body))
        return (yield from self._masked_vectors(name, start, high, unroll, values, body))

    def _is_whole(self, extent: Dim) -> bool:
        return self.whole is not None and self.space.env.exact_div(extent, self.whole) is not None

    def _whole_vectors(
        self, names: list[str], low: str, high: str, step: int, values: list[tuple[str, str]], body: AskingBody
    ) -> Recursive[tuple[str, list[tuple[str, str]]]]:
        """The loop over whole steps: where it ends, and the carried values."""
        b = self.b
        length = b.op(f"arith.subi {high}, {low} : i64")
        rest = b.op(f"arith.remui {length}, {b.index(step)} : i64")
        end = b.op(f"arith.subi {high}, {rest} : i64")
        with b.loop(low, end, b.index(step), values) as loop:
            loop.yields = yield from self._unrolled(names, loop.index, loop.carried, body)
        return end, [(result, type_) for result, (_, type_) in zip(loop.results, values, strict=True)]

    def _unrolled(self, names: list[str], index: str, carried: list[str], body: AskingBody) -> Recursive[list[str]]:
        b = self.b
        bases = [index] + [b.op(f"arith.addi {index}, {b.index(b.lanes * number)} : i64") for number in range(1, len(names))]
        with ExitStack() as bound:
            for each, base in zip(names, bases, strict=True):
                bound.enter_context(self.bind(each, base, lane=True, aligned=True))
            return (yield from body(names, carried))

    def _masked_vectors(
        self, name: str, start: str, high: str, unroll: int, values: list[tuple[str, str]], body: AskingBody
    ) -> Recursive[list[str]]:
        b = self.b
        with b.loop(start, high, b.index(b.lanes), values) as loop:
            mask = self.tail_mask(b.op(f"arith.subi {high}, {loop.index} : i64"))
            with self.bind(name, loop.index, lane=True, mask=mask, aligned=True):
                each = len(values) // unroll if unroll else 0
                updated = yield from body([name], loop.carried[:each])
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

    # --- positions as vectors ---------------------------------------------------------------------------------------

    def lane_vector(self, dim: Dim) -> str:
        """The i64 value of `dim` in every lane."""
        b = self.b
        dim = self.uniform_divisions(dim)
        scope = b.scope_of(dim)
        key = ("lanes", dim)
        found = scope.memo.get(key)
        if found is None:
            done: set[Dim] = set()
            for inner in inner_first(dim, done.__contains__):
                self.lane_vector(inner)
                done.add(inner)
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
        if isinstance(atom, FloorDiv | Mod) and atom.right.is_const and atom.right.const.bit_count() == 1:
            return self._shift_lanes(left, atom.right.const, isinstance(atom, FloorDiv))
        if type(atom).__name__ in ("Min", "Max"):
            return b.op(f"arith.{type(atom).__name__.lower()}si {left}, {right} : {vector}")
        quotient = self._divide_lanes(left, right)
        if isinstance(atom, FloorDiv):
            return quotient
        return b.op(f"arith.subi {left}, {b.op(f'arith.muli {quotient}, {right} : {vector}')} : {vector}")

    def _shift_lanes(self, left: str, power: int, quotient: bool) -> str:
        """floor(left / power) of a power of two, or what remains."""
        b, vector = self.b, self.b.vec("i64")
        if quotient:
            return b.op(f"arith.shrsi {left}, {b.const(power.bit_length() - 1, 'i64')} : {vector}")
        return b.op(f"arith.andi {left}, {b.const(power - 1, 'i64')} : {vector}")

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
            if form is None or form[0] != ONE or atom.right.const % self.b.lanes or self.multiple_of(form[1]) % self.b.lanes:
                return whole
            return atom.left.replace({variable.name: Dim.symbol(variable.name + ".base")}) // atom.right

        return dim.map_atoms(image)

    def multiple_of(self, dim: Dim) -> int:
        """A number that divides `dim` whatever its variables are (0 for 0)."""
        if dim == ZERO:
            return 0
        result = 0
        for coefficient, _ in dim.monomials:
            result = int(np.gcd(result, coefficient))
        return result
