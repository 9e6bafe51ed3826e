"""Index algebra: positions in tensors as integer expressions over loop variables.

A loop variable is a symbol with an extent; the position of an element is a tuple of `Dim`s over loop variables and shape
symbols. Splitting and merging dims (reshape) divides and multiplies these expressions; divisions that the extents prove
exact disappear, so that a load through a chain of views becomes one affine offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from disc.ir.graph import Body, Node
from disc.ir.op_table import IN_RANGE, OPS, VIEWS, WHAT
from disc.ir.reads import Map, Place
from disc.shapes import Dim, FloorDiv, Mod, ShapeEnv, Symbol, Truth, dim_max, dim_min
from disc.shapes.algebra import Atom, of_atom, of_terms

Index = tuple[Dim, ...]
_INDEXED = ("disc.gather", "stablehlo.scatter")  # the operand in the middle has the indices
ZERO = Dim.of(0)
ONE = Dim.of(1)


@dataclass
class IndexSpace:
    """The loop variables of one kernel with their extents, and the divisions that could not be resolved.

    checked_indices: an index in data that is out of range is an error, not clamped. broadcasts_resolved: the version under construction
    runs only where no run-time broadcast expands. places: where each view reads its operand.
    """

    env: ShapeEnv
    checked_indices: bool = False
    broadcasts_resolved: bool = False
    extents: dict[str, Dim] = field(default_factory=dict)
    unresolved: list[tuple[Dim, Dim]] = field(default_factory=list)
    places: dict[Node, Map] = field(default_factory=dict)
    _groups: dict[tuple[Index, Index], list[tuple[tuple[int, ...], tuple[int, ...]]] | None] = field(default_factory=dict)

    def variable(self, name: str, extent: Dim) -> Dim:
        """Declares loop variable `name` running over [0, extent)."""
        if name not in self.extents:
            self.env.symbol(name)
        self.extents[name] = extent
        return Dim.symbol(name)

    def linear(self, index: Sequence[Dim], dims: Sequence[Dim]) -> Dim:
        """The row-major position of `index` in a tensor of `dims`."""
        total = ZERO
        for position, size in zip(index, dims, strict=True):
            total = total * size + position
        return total

    def divide(self, value: Dim, divisor: Dim) -> Dim:
        """floor(value / divisor): terms that divide exactly leave; the rest vanishes when the extents prove 0 <= rest < divisor."""
        if divisor == ONE:
            return value
        if value == ZERO:
            return ZERO
        quotient, rest = self._split(value, divisor)
        if rest == ZERO or self.within(rest, divisor):
            return quotient
        self.unresolved.append((rest, divisor))
        return quotient + rest // divisor

    def _split(self, value: Dim, divisor: Dim) -> tuple[Dim, Dim]:
        quotient, rest = ZERO, ZERO
        for term in terms_of(value):
            exact = self.env.exact_div(term, divisor)
            if exact is None:
                rest = rest + term
            else:
                quotient = quotient + exact
        return quotient, rest

    def within(self, position: Dim, size: Dim) -> bool:
        """True when 0 <= position < size for all values of the loop variables."""
        if position == ZERO and size == ONE:
            return True
        low, high = self.bounds(position)
        if low is None or high is None:
            return False
        return self.env.le(ZERO, low) is Truth.YES and self.env.lt(high, size) is Truth.YES

    def bounds(self, value: Dim) -> tuple[Dim | None, Dim | None]:
        """The least and greatest value over the loop variables, None where a variable is not simply monotone."""
        lowest: dict[str, Dim] = {}
        highest: dict[str, Dim] = {}
        value, quotients = self._quotients(value)
        for name in value.symbols():
            extent = quotients.get(name, self.extents.get(name))
            if extent is None:
                continue
            sign = _monotone(value, name)
            if sign is None:
                return None, None
            lowest[name] = ZERO if sign > 0 else extent - 1
            highest[name] = extent - 1 if sign > 0 else ZERO
        return value.replace(lowest), value.replace(highest)

    def _quotients(self, value: Dim) -> tuple[Dim, dict[str, Dim]]:
        """`value` with a variable of its own for each quotient of a loop variable by a divisor of its extent, and their extents: the outer
        of two merged loops."""
        found: dict[str, Dim] = {}

        def image(atom: Atom) -> Dim:
            variable = atom.left.sole_atom if isinstance(atom, FloorDiv) else None
            if isinstance(atom, FloorDiv) and isinstance(variable, Symbol) and variable.name in self.extents:
                extent = self.env.exact_div(self.extents[variable.name], atom.right)
                if extent is not None:
                    name = f"quotient_{len(found)}"
                    found[name] = extent
                    return Dim.symbol(name)
            return of_atom(atom)

        return value.map_atoms(image), found

    def delinear(self, position: Dim, dims: Sequence[Dim]) -> Index:
        """The inverse of `linear` for a position inside a tensor of `dims`."""
        result: list[Dim] = []
        rest = position
        stride = self.env.product(dims)
        for number, size in enumerate(dims):
            if size == ONE:
                result.append(ZERO)
                continue
            if all(later == ONE for later in dims[number + 1 :]):
                result.append(rest)
                rest = ZERO
                continue
            stride = self.env.product(dims[number + 1 :])
            unresolved = len(self.unresolved)
            quotient = self.divide(rest, stride)
            result.append(quotient)
            # What the third division leaves, and each after it, is written as a remainder: as a difference, every further one would
            # multiply the sizes of the numbers that are divided, beyond 64 bits at last.
            third = len(self.unresolved) > unresolved and self._is_divided_twice(rest)
            rest = self.unresolved[-1][0] % stride if third else rest - quotient * stride
        return tuple(result)

    def _is_divided_twice(self, value: Dim) -> bool:
        return any(self._divisions(inner) for division in self._divisions(value) for inner in division.operands())

    def _divisions(self, value: Dim) -> list[Atom]:
        """The quotients and remainders of loop variables in a sum; those of sizes alone do not count."""
        found = [atom for atom in value.atoms() if isinstance(atom, FloorDiv | Mod)] if value.depth else []
        return [atom for atom in found if any(name in self.extents for name in atom.left.symbols())]

    def reshape(self, index: Index, dims: Sequence[Dim], source: Sequence[Dim]) -> Index:
        """The index in a tensor of dims `source` of the element at `index` of its reshape to `dims`."""
        key = (tuple(source), tuple(dims))
        if key not in self._groups:
            self._groups[key] = self.env.reshape_groups(source, dims)
        groups = self._groups[key]
        if groups is None:
            return self.delinear(self.linear(index, dims), source)
        result: list[Dim] = [ZERO] * len(source)
        for inner, outer in groups:
            position = self.linear([index[axis] for axis in outer], [dims[axis] for axis in outer])
            for axis, value in zip(inner, self.delinear(position, [source[axis] for axis in inner]), strict=True):
                result[axis] = value
        return tuple(result)


def terms_of(value: Dim) -> list[Dim]:
    """The monomials of `value` as expressions."""
    return [of_terms((term,)) for term in value.monomials]


def _monotone(value: Dim, name: str) -> int | None:
    """+1 or -1 when every term that mentions `name` is a plain product with that sign, else None."""
    signs: list[int] = []
    for coefficient, factors in value.monomials:
        if any(not isinstance(atom, Symbol) for atom, _ in factors):
            return None
        if any(isinstance(atom, Symbol) and atom.name == name for atom, _ in factors):
            signs.append(1 if coefficient > 0 else -1)
    if not signs or any(sign != signs[0] for sign in signs):
        return None
    return signs[0]


def split_linear(value: Dim, name: str) -> tuple[Dim, Dim] | None:
    """(a, rest) with value == a * name + rest, both free of `name`; None when `name` is inside a division or squared."""
    if name not in value.symbols():
        return ZERO, value
    symbol = Symbol(name)
    slope, rest = [], []
    for coefficient, product in value.monomials:
        power = dict(product).get(symbol, 0)
        others = tuple(entry for entry in product if entry[0] != symbol)
        if power > 1 or any(name in operand.symbols() for atom, _ in others for operand in atom.operands()):
            return None
        (slope if power else rest).append((coefficient, others))
    return of_terms(slope), of_terms(rest)


def view_index(space: IndexSpace, node: Node, index: Index) -> Index | None:
    """The index in operand 0 that `node` (a pure view) reads for its element at `index`; None when it is not a pure view."""
    if node.op not in VIEWS:
        return None
    (source,) = node.operands
    reads = OPS[node.op].reads
    if reads is None:
        return space.reshape(index, node.dims, source.dims)
    if node not in space.places:
        (space.places[node],) = reads(node, space.env)
    places = space.places[node]
    return tuple(_position(space, place, size, index) for place, size in zip(places, source.dims, strict=True))


def _position(space: IndexSpace, place: Place | None, size: Dim, index: Index) -> Dim:
    """Where an undecided place is, is decided without a branch: 0 where the operand's size is 1."""
    assert place is not None and place.divisor == 1, "a view reads at a place that its index determines"
    position = place.offset
    for dim, step in place.steps:
        position = position + index[dim] * step
    return position * dim_min(dim_max(size - 1, ZERO), ONE) if place.undecided and not space.broadcasts_resolved else position


def part_at(space: IndexSpace, node: Node, index: Index) -> tuple[Node, Index] | None:
    """The one part of a concatenation that its element at `index` lies in, wherever the loops are, and the index there; else None."""
    if node.op != "stablehlo.concatenate":
        return None
    axis, start = node.integer("dimension"), ZERO
    for operand in node.operands:
        position, size = index[axis] - start, operand.dims[axis]
        if space.within(position, size):
            return operand, (*index[:axis], position, *index[axis + 1 :])
        start = start + size
    return None


def part_index(index: Index, axis: int, position: Dim, part: Node) -> Index:
    """The index in a part of a concatenation along `axis` at `position` of it: of one element there is no other place."""
    place = ZERO if part.dims[axis] == ONE else position
    return (*index[:axis], place, *index[axis + 1 :])


def checks_indices(checked: bool, body: Body) -> bool:
    """True when the kernel of a fusion gets one more argument, where it reports an index out of range. checked: are these errors?"""
    return checked and any(node.op in _INDEXED and IN_RANGE not in node.attrs for node in body.nodes)


def lookups(body: Body) -> list[tuple[Node, frozenset[Node], str]]:
    """What a fusion reads or writes at indices that may be out of range, the arguments that these are computed from, and what it means."""
    indexed = [node for node in body.nodes if node.op in _INDEXED and IN_RANGE not in node.attrs]
    return [
        (node.operands[0], _arguments_of(node.operands[len(node.operands) // 2], body), str(node.attrs.get(WHAT, ""))) for node in indexed
    ]


def _arguments_of(value: Node, body: Body) -> frozenset[Node]:
    """The arguments of a fusion that a value in it is computed from."""
    found = {value}
    for node in reversed(body.nodes):
        if node in found:
            found.update(node.operands)
    return frozenset(found.intersection(body.arguments))
