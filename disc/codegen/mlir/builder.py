"""Emits MLIR text: nested scopes, loops, constants, and integer expressions hoisted to the outermost scope that knows them.

A value that depends only on outer loop variables is appended to the *outer* scope while the inner loop is still open:
since an inner loop's text joins its parent when it closes, such a value always dominates its uses. That is how loop
invariants leave inner loops without a separate pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from disc.shapes import Dim, FloorDiv, Max, Min, Mod, Symbol
from disc.shapes.algebra import inner_first, is_natural


@dataclass(eq=False, slots=True)
class Scope:
    """One region under construction. `memo` holds what was already emitted in it."""

    depth: int  # scopes around this one
    parent: Scope | None
    lines: list[str] = field(default_factory=list)
    memo: dict[object, str] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Variable:
    """A loop variable: its SSA value (i64), the scope it lives in, and whether it stands for `lanes` consecutive values.

    mask: for a lane variable, the SSA mask (vector<lanes x i1>) of the lanes that exist, None when all do.
    aligned: the scalar value is a multiple of the lane count. signed: it is a scalar input, which may be negative.
    vector: for positions read from data, the i64 lanes themselves.
    """

    name: str
    ssa: str
    scope: Scope
    lane: bool = False
    mask: str | None = None
    aligned: bool = False
    signed: bool = False
    vector: str | None = None


@dataclass(eq=False, slots=True)
class Loop:
    """An open scf.for: `index` is its i64 variable, `carried` the loop-carried values, `results` valid after it closed."""

    index: str
    carried: list[str]
    scope: Scope
    yields: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)


VECTOR_ELEMENTS = {"f32": "f32", "bf16": "f32", "f16": "f32", "f64": "f64", "i1": "i1"}


def register_element(element: str) -> str:
    """The element type that a value of `element` has in a register: bf16 and f16 compute in f32, unsigned is signless."""
    found = VECTOR_ELEMENTS.get(element)
    if found is not None:
        return found
    return "i" + element.lstrip("ui")


class Builder:
    """One kernel function under construction."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.root = Scope(0, None)
        self.scope = self.root
        self.variables: dict[str, Variable] = {}
        self._count = 0
        self.globals: list[str] = []
        self.table: list[int] = []  # 32-bit words of the function's table in memory, to which %table points

    # --- text -------------------------------------------------------------------------------------------------------

    def fresh(self) -> str:
        """A new SSA name."""
        self._count += 1
        return f"%v{self._count}"

    def op(self, text: str, result_type: str = "") -> str:
        """Appends `%n = text` to the current scope and returns `%n`. `result_type` documents the type of the result."""
        del result_type
        name = self.fresh()
        self.scope.lines.append(f"{name} = {text}")
        return name

    def statement(self, text: str) -> None:
        """Appends an op without results."""
        self.scope.lines.append(text)

    def vec(self, element: str) -> str:
        """The vector type text of a register element."""
        return f"vector<{self.lanes}x{element}>"

    @contextmanager
    def at(self, scope: Scope) -> Iterator[None]:
        """Emits into `scope` (an open ancestor of the current one) for the duration."""
        saved, self.scope = self.scope, scope
        try:
            yield
        finally:
            self.scope = saved

    @contextmanager
    def in_turns(self) -> Iterator[Callable[[], None]]:
        """Emits independent computations with their ops in turns; each begins by calling what this yields.

        A long chain of dependent instructions fills a CPU's schedulers before the next chain comes into its sight; side by side, several
        hide each other's latencies. Nested regions are not taken apart: where there are any, one computation follows the other.
        """
        lines = self.scope.lines
        starts: list[int] = []
        yield lambda: starts.append(len(lines))
        parts = [lines[start:end] for start, end in pairwise([*starts, len(lines)])]
        if not any(line.endswith(("{", "}")) for part in parts for line in part):
            lines[len(lines) - sum(map(len, parts)) :] = _in_turns(parts)

    # --- constants --------------------------------------------------------------------------------------------------

    def const(self, value: float | int, element: str) -> str:
        """A splat constant vector of `element`."""
        return self._constant(f"arith.constant dense<{_literal(value, element)}> : {self.vec(element)}")

    def index(self, value: int) -> str:
        """An i64 scalar constant."""
        return self._constant(f"arith.constant {value} : i64")

    def constant(self, text: str) -> str:
        """Any constant op text, emitted once per function."""
        return self._constant(text)

    def from_table(self, values: Sequence[float], element: str) -> str:
        """A vector of `values` (a splat of a single one) of f32 or f64 from the function's table.

        What the compiler knows as a constant it loads again at every use in a loop that is short of registers. These objects are of the
        large code model, in which that takes the constant's 64-bit address first; what was loaded once it keeps, on the stack if need be.
        """
        key = ("table", tuple(float_literal(value, element) for value in values), element)
        found = self.root.memo.get(key)
        if found is not None:
            return found
        step = 1 if element == "f32" else 2
        while len(self.table) % (step * len(values)):
            self.table.append(0)
        pointer, loaded = self.fresh(), self.fresh()
        loads = element if len(values) == 1 else f"vector<{len(values)}x{element}>"
        self.globals.append(f"{pointer} = llvm.getelementptr %table[{len(self.table)}] : (!llvm.ptr) -> !llvm.ptr, i32")
        self.globals.append(
            f"{loaded} = llvm.load {pointer} invariant {{alignment = {4 * step * len(values)} : i64}} : !llvm.ptr -> {loads}"
        )
        for value in values:
            bits = int(float_literal(value, element), 16)
            self.table.extend((bits >> 32 * word) & 0xFFFFFFFF for word in range(step))
        if len(values) == 1:
            splat = self.fresh()
            self.globals.append(f"{splat} = vector.broadcast {loaded} : {element} to {self.vec(element)}")
            loaded = splat
        self.root.memo[key] = loaded
        return loaded

    def table_text(self, function: str) -> tuple[str, str]:
        """The table of the function with this name: its definition, and the line that defines %table; both empty without a table.

        It is not constant and visible to other files, or the compiler would look into it.
        """
        if not self.table:
            return "", ""
        words = ", ".join(str(word - (1 << 32) if word >> 31 else word) for word in self.table)
        size, name = len(self.table), f"{function}_table"
        value = f"dense<[{words}]> : tensor<{size}xi32>"
        text = f"llvm.mlir.global external hidden @{name}({value}) {{alignment = 64 : i64}} : !llvm.array<{size} x i32>\n"
        return text, f"%table = llvm.mlir.addressof @{name} : !llvm.ptr"

    def _constant(self, text: str) -> str:
        found = self.root.memo.get(text)
        if found is None:
            found = self.fresh()
            self.globals.append(f"{found} = {text}")
            self.root.memo[text] = found
        return found

    # --- loops ------------------------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, low: str, high: str, step: str, initial: Sequence[tuple[str, str]] = ()) -> Iterator[Loop]:
        """An scf.for over i64. `initial` lists (SSA value, type) pairs; the body must fill `loop.yields`."""
        parent = self.scope
        child = Scope(parent.depth + 1, parent)
        loop = Loop(self.fresh(), [self.fresh() for _ in initial], child)
        self.scope = child
        yield loop
        self.scope = parent
        header = f"scf.for {loop.index} = {low} to {high} step {step}"
        if initial:
            types = ", ".join(type_ for _, type_ in initial)
            pairs = ", ".join(f"{name} = {value}" for name, (value, _) in zip(loop.carried, initial, strict=True))
            result = self.fresh()
            header = f"{result}:{len(initial)} = {header} iter_args({pairs}) -> ({types})"
            child.lines.append(f"scf.yield {', '.join(loop.yields)} : {types}")
            loop.results = [f"{result}#{number}" for number in range(len(initial))]
        parent.lines.append(f"{header} : i64 {{")
        parent.lines.extend(child.lines)
        parent.lines.append("}")

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """An scf.if without results; `condition` is an i1."""
        parent = self.scope
        child = Scope(parent.depth + 1, parent)
        self.scope = child
        yield
        self.scope = parent
        parent.lines.append(f"scf.if {condition} {{")
        parent.lines.extend(child.lines)
        parent.lines.append("}")

    def where_any(self, mask: str, values: Sequence[str], types: Sequence[str], compute: Callable[[], Sequence[str]]) -> list[str]:
        """An scf.if: what `compute` emits where any lane of the i1 vector `mask` is set, else `values`; types: of both."""
        some = self.op(f"vector.reduction <or>, {mask} : {self.vec('i1')} into i1", "i1")
        parent, listed = self.scope, ", ".join(types)
        self.scope = Scope(parent.depth + 1, parent)
        chosen, lines = compute(), self.scope.lines
        self.scope = parent
        result = self.fresh()
        parent.lines.append(f"{result}:{len(types)} = scf.if {some} -> ({listed}) {{")
        parent.lines += [*lines, f"scf.yield {', '.join(chosen)} : {listed}", "} else {", f"scf.yield {', '.join(values)} : {listed}", "}"]
        return [f"{result}#{number}" for number in range(len(types))]

    def for_each(
        self, table: Sequence[float], values: Sequence[tuple[str, str]], step: Callable[[str, Sequence[str]], Sequence[str]]
    ) -> Sequence[str]:
        """A loop over f64 numbers: `step` takes one, in all lanes, and `values`, (SSA value, type), or what it gave before."""
        numbers, whole, wide = ", ".join(f"{each:.17e}" for each in table), f"vector<{len(table)}xf64>", self.vec("f64")
        constant = self.op(f"arith.constant dense<[{numbers}]> : {whole}", whole)
        bounds = [self.op(f"arith.constant {each} : i64", "i64") for each in (0, len(table), 1)]
        with self.loop(bounds[0], bounds[1], bounds[2], values) as loop:
            place = self.op(f"arith.index_cast {loop.index} : i64 to index", "index")
            number = self.op(f"vector.extract {constant}[{place}] : f64 from {whole}", "f64")
            loop.yields = list(step(self.op(f"vector.broadcast {number} : f64 to {wide}", wide), loop.carried))
        return loop.results

    @contextmanager
    def variable(self, name: str, ssa: str, *, lane: bool = False, mask: str | None = None, aligned: bool = False) -> Iterator[Variable]:
        """Binds symbol `name` to an SSA i64 in the current scope for the duration."""
        saved = self.variables.get(name)
        bound = Variable(name, ssa, self.scope, lane, mask, aligned)
        self.variables[name] = bound
        try:
            yield bound
        finally:
            if saved is None:
                del self.variables[name]
            else:
                self.variables[name] = saved

    # --- integer expressions ----------------------------------------------------------------------------------------

    def scope_of(self, dim: Dim) -> Scope:
        """The innermost scope among those of the variables in `dim`."""
        return max((self.variables[name].scope for name in dim.symbols()), key=lambda scope: scope.depth, default=self.root)

    def lane_variable(self, dim: Dim) -> Variable | None:
        """The lane variable that `dim` mentions, if any."""
        for name in dim.symbols():
            variable = self.variables[name]
            if variable.lane:
                return variable
        return None

    def scalar(self, dim: Dim) -> str:
        """The i64 value of `dim`, lane variables taken at their first lane; emitted where it can be known earliest."""
        if dim.is_const:
            return self.index(dim.const)
        scope = self.scope_of(dim)
        key = ("dim", dim, tuple(self.variables[name].ssa for name in dim.symbols()))
        found = scope.memo.get(key)
        if found is None:
            done: set[Dim] = set()
            for inner in inner_first(dim, done.__contains__):
                self.scalar(inner)
                done.add(inner)
            with self.at(scope):
                found = self._sum(dim)
            scope.memo[key] = found
        return found

    def _sum(self, dim: Dim) -> str:
        terms = sorted(((self._term_depth(term), number, term) for number, term in enumerate(dim.monomials)), key=lambda entry: entry[:2])
        total: str | None = None
        for _, _, (coefficient, factors) in terms:
            value = self._product(coefficient, factors)
            total = value if total is None else self._fold("arith.addi", total, value)
        return total if total is not None else self.index(0)

    def _term_depth(self, term: tuple[int, tuple[tuple[object, int], ...]]) -> int:
        return max((self._atom_scope(atom).depth for atom, _ in term[1]), default=0)

    def _atom_scope(self, atom: object) -> Scope:
        if isinstance(atom, Symbol):
            return self.variables[atom.name].scope
        left, right = _parts(atom)
        return max(self.scope_of(left), self.scope_of(right), key=lambda scope: scope.depth)

    def _product(self, coefficient: int, factors: tuple[tuple[object, int], ...]) -> str:
        value: str | None = None
        ordered = sorted(enumerate(factors), key=lambda entry: (self._atom_scope(entry[1][0]).depth, entry[0]))
        for _, (atom, power) in ordered:
            base = self._atom(atom)
            for _ in range(power):
                value = base if value is None else self._fold("arith.muli", value, base)
        if value is None:
            return self.index(coefficient)
        return value if coefficient == 1 else self._fold("arith.muli", value, self.index(coefficient))

    def _fold(self, op: str, left: str, right: str) -> str:
        key = (op, left, right)
        found = self.scope.memo.get(key)
        if found is None:
            found = self.scope.memo[key] = self.op(f"{op} {left}, {right} : i64", "i64")
        return found

    def _atom(self, atom: object) -> str:
        if isinstance(atom, Symbol):
            return self.variables[atom.name].ssa
        left, right = _parts(atom)
        name = {FloorDiv: "arith.floordivsi", Mod: "mod", Min: "arith.minsi", Max: "arith.maxsi"}[type(atom)]
        a, b = self.scalar(left), self.divisor(right) if isinstance(atom, FloorDiv | Mod) else self.scalar(right)
        if name == "mod":
            quotient = self.op(f"arith.floordivsi {a}, {b} : i64", "i64")
            return self.op(f"arith.subi {a}, {self.op(f'arith.muli {quotient}, {b} : i64', 'i64')} : i64", "i64")
        if name == "arith.floordivsi" and all(is_natural(each, lambda symbol: self.variables[symbol].signed) for each in (left, right)):
            name = "arith.divui"
        return self.op(f"{name} {a}, {b} : i64", "i64")

    def divisor(self, dim: Dim) -> str:
        """The value of a `dim` that something is divided by."""
        return self.scalar(dim)


def _parts(atom: object) -> tuple[Dim, Dim]:
    assert isinstance(atom, FloorDiv | Mod | Min | Max)
    return atom.left, atom.right


def _literal(value: float | int, element: str) -> str:
    if element == "i1":
        return "true" if value else "false"
    if element.startswith("i"):
        return str(int(value))
    return float_literal(float(value), element)


def float_literal(value: float, element: str) -> str:
    """A float literal that MLIR reads back bit for bit: hexadecimal."""
    import struct

    if element == "f32":
        try:
            return f"0x{struct.unpack('<I', struct.pack('<f', value))[0]:08X}"
        except OverflowError:
            return "0x7F800000" if value > 0 else "0xFF800000"
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def _in_turns(parts: Sequence[Sequence[str]]) -> list[str]:
    """The lines of all parts, one of each part in turn, but none before those that define its operands: values that several parts need
    are in the first of them."""
    pending = {name for part in parts for line in part for name in _RESULT.findall(line)}
    merged: list[str] = []
    rest = [list(reversed(part)) for part in parts]
    while any(rest):
        for part in rest:
            if part and pending.isdisjoint(_NAME.findall(_RESULT.sub("", part[-1]))):
                line = part.pop()
                pending.difference_update(_RESULT.findall(line))
                merged.append(line)
    return merged


_RESULT = re.compile(r"^(%\w+)(?=(?::\d+)? = )")
_NAME = re.compile(r"%\w+")
