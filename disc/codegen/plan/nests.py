"""Chooses the loops over a tensor's dims: where they must split, which may merge, and which go through a concatenation part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from disc.codegen.plan.index import ONE, ZERO, Index, IndexSpace, split_linear, terms_of
from disc.codegen.plan.probe import Probe, is_divided
from disc.ir.graph import Node
from disc.shapes import Dim, FloorDiv, Truth


@dataclass(frozen=True)
class LoopVariable:
    """One loop of a nest: its symbol name and extent."""

    name: str
    extent: Dim


@dataclass(frozen=True)
class Nest:
    """Loop variables, outermost first, and the index in the iterated dims that they represent."""

    variables: tuple[LoopVariable, ...]
    index: Index


Visit = Callable[[Probe, Index], None]


def choose_nest(space: IndexSpace, dims: Sequence[Dim], leaves: frozenset[Node], visit: Visit, prefix: str) -> Nest:
    """Loops over `dims` such that every load is affine where that is possible, and as few loops as that allows.

    A loop whose variable is divided by a number that divides its extent is split there (the two halves of a head split); then
    neighbors are merged as long as no load needs them apart.
    """
    return _merge(space, _split_up(space, _initial(space, dims, prefix), leaves, visit, 1), leaves, visit)


def choose_nests(
    space: IndexSpace, dims: Sequence[Dim], leaves: frozenset[Node], visit: Visit, prefix: str, most: int, repeats: int
) -> list[Nest]:
    """As `choose_nest`, but a loop that runs over the parts of a concatenation becomes one nest per part, each with loops of its own.

    Together the nests go through every element once, in order of the parts. They are at most `most`. repeats: neighbors along the last
    loop, at most, that are loaded at once where they read one element: it is not split for them.
    """
    pending, done = [_split_up(space, _initial(space, dims, prefix), leaves, visit, repeats)], []
    while pending:
        nest = pending.pop(0)
        pieces, merged = _wanted_cut(space, nest, leaves, visit), None
        if pieces is None:
            merged = _merge(space, nest, leaves, visit)
            # Of loops that became one, a part of a flattened concatenation may end anywhere.
            pieces = _wanted_cut(space, merged, leaves, visit) if len(merged.variables) < len(nest.variables) else None
        if pieces is None or len(pieces) + len(pending) + len(done) > most:
            done.append(merged or _merge(space, nest, leaves, visit))
        else:
            pending[:0] = [_split_up(space, piece, leaves, visit, repeats) for piece in pieces]
    return done


def _initial(space: IndexSpace, dims: Sequence[Dim], prefix: str) -> Nest:
    variables: list[LoopVariable] = []
    index: list[Dim] = []
    for number, size in enumerate(dims):
        if size == ONE:
            index.append(ZERO)
            continue
        name = f"{prefix}{number}"
        index.append(space.variable(name, size))
        variables.append(LoopVariable(name, size))
    return Nest(tuple(variables), tuple(index))


def _split_up(space: IndexSpace, nest: Nest, leaves: frozenset[Node], visit: Visit, repeats: int) -> Nest:
    for _ in range(4):
        split = _wanted_split(space, nest, leaves, visit, repeats)
        if split is None:
            break
        nest = split
    return nest


def _run(space: IndexSpace, nest: Nest, leaves: frozenset[Node], visit: Visit) -> tuple[Probe, list[tuple[Dim, Dim]]]:
    saved, space.unresolved = space.unresolved, []
    probe = Probe(space, leaves)
    visit(probe, nest.index)
    found, space.unresolved = space.unresolved, saved
    return probe, found


def _wanted_split(space: IndexSpace, nest: Nest, leaves: frozenset[Node], visit: Visit, repeats: int) -> Nest | None:
    probe, unresolved = _run(space, nest, leaves, visit)
    whole = bool(nest.variables) and all(reads_repeated(offset, nest.variables[-1].name, repeats) for offset in probe.offsets)
    for value, divisor in unresolved:
        for variable in nest.variables:
            if variable.name not in value.symbols() or variable.extent == divisor or (whole and variable is nest.variables[-1]):
                continue
            outer = space.env.exact_div(variable.extent, divisor)
            if outer is None or outer == ONE:
                continue
            return _split(space, nest, variable, outer, divisor)
    return None


def reads_repeated(offset: Dim, name: str, repeats: int) -> bool:
    """Whether neighbors along the loop `name` read neighbors in memory, or the same element up to `repeats` times, a power of two."""
    terms = [term for term in terms_of(offset) if name in term.symbols()]
    atom = terms[0].sole_atom if len(terms) == 1 else None
    if not isinstance(atom, FloorDiv):
        return not terms or (atom is not None and terms[0] == Dim.symbol(name))
    form, times = split_linear(atom.left, name), atom.right
    return form is not None and form[0] == ONE and times.is_const and times.const <= repeats and times.const.bit_count() == 1


def _split(space: IndexSpace, nest: Nest, variable: LoopVariable, outer: Dim, inner: Dim) -> Nest:
    names = (_name(space, variable.name + "o", outer), _name(space, variable.name + "i", inner))
    whole = space.variable(names[0], outer) * inner + space.variable(names[1], inner)
    index = tuple(position.replace({variable.name: whole}) for position in nest.index)
    variables: list[LoopVariable] = []
    for each in nest.variables:
        if each is variable:
            variables.extend((LoopVariable(names[0], outer), LoopVariable(names[1], inner)))
        else:
            variables.append(each)
    return Nest(tuple(variables), index)


def _name(space: IndexSpace, name: str, extent: Dim) -> str:
    """`name`, or one like it where another nest has a variable of this name and another extent."""
    while space.extents.get(name, extent) != extent:
        name += "_"
    return name


def _merge(space: IndexSpace, nest: Nest, leaves: frozenset[Node], visit: Visit) -> Nest:
    position = len(nest.variables) - 2
    _, before = _run(space, nest, leaves, visit)
    while position >= 0:
        merged = _merged(space, nest, position)
        probe, after = _run(space, merged, leaves, visit)
        name = merged.variables[position].name
        if len(after) <= len(before) and not any(is_divided(value, name) for value in (*probe.offsets, *probe.positions)):
            nest, before = merged, after
        position -= 1
    return nest


def _merged(space: IndexSpace, nest: Nest, position: int) -> Nest:
    first, second = nest.variables[position], nest.variables[position + 1]
    name = _name(space, f"{first.name}{second.name}", first.extent * second.extent)
    whole = space.variable(name, first.extent * second.extent)
    outer = whole // second.extent
    inner = whole - outer * second.extent
    index = tuple(each.replace({first.name: outer, second.name: inner}) for each in nest.index)
    variables = (*nest.variables[:position], LoopVariable(name, first.extent * second.extent), *nest.variables[position + 2 :])
    return Nest(variables, index)


# --- the parts of a concatenation -----------------------------------------------------------------------------------------


def _wanted_cut(space: IndexSpace, nest: Nest, leaves: frozenset[Node], visit: Visit) -> list[Nest] | None:
    """The nests that one loop of `nest` becomes, so that each reads fewer parts of a concatenation; None when no loop can be cut."""
    probe, _ = _run(space, nest, leaves, visit)
    for node, position in probe.joints:
        for variable in nest.variables:
            borders = _borders(space, variable, node, position)
            if borders is not None and len(borders) > 2:
                return [_piece(space, nest, variable, *ends) for ends in pairwise(borders)]
    return None


def _borders(space: IndexSpace, variable: LoopVariable, node: Node, position: Dim) -> list[Dim] | None:
    """Where in [0, extent] of the loop another part of the concatenation begins, both ends included; None when that is not known.

    The position is slope * variable + offset + rest with 0 <= rest < slope, so that a border at a multiple of the slope is one of the loop.
    """
    form = split_linear(position, variable.name)
    if form is None or form[0] == ZERO or space.env.le(ZERO, form[0]) is not Truth.YES:
        return None
    slope, others = form
    varying = [term for term in terms_of(others) if any(name in space.extents for name in term.symbols())]
    rest = sum(varying, ZERO)
    if rest != ZERO and not space.within(rest, slope):
        return None
    sizes = [operand.dims[node.integer("dimension")] for operand in node.operands]
    whole = others == rest and space.env.equal(variable.extent * slope, sum(sizes, ZERO)) is Truth.YES
    found, start = [ZERO], ZERO - (others - rest)
    for size in sizes[:-1]:
        start = start + size
        border = space.env.exact_div(start, slope) if start != ZERO else ZERO
        border = border if border is None or whole else _clamped(space, border, variable.extent)
        if border is None:
            return None
        if border not in (found[-1], variable.extent):
            found.append(border)
    return [*found, variable.extent]


def _clamped(space: IndexSpace, border: Dim, extent: Dim) -> Dim | None:
    """`border` within [0, extent], None when it is not known on which side of the ends it lies."""
    env = space.env
    if env.le(border, ZERO) is Truth.YES:
        return ZERO
    if env.le(extent, border) is Truth.YES:
        return extent
    return border if env.le(ZERO, border) is Truth.YES and env.le(border, extent) is Truth.YES else None


def _piece(space: IndexSpace, nest: Nest, variable: LoopVariable, low: Dim, high: Dim) -> Nest:
    """The nest with `variable` running over [low, high) alone."""
    extent = high - low
    name = _name(space, f"{variable.name}p", extent)
    position = low if extent == ONE else low + space.variable(name, extent)
    new = () if extent == ONE else (LoopVariable(name, extent),)
    place = nest.variables.index(variable)
    return Nest(
        (*nest.variables[:place], *new, *nest.variables[place + 1 :]),
        tuple(each.replace({variable.name: position}) for each in nest.index),
    )
