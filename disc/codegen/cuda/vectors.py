"""Which sizes must be multiples for tensors to be loaded and stored 16 bytes at a time (paper 002, §5.2.1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from disc.codegen.plan.contraction import Contraction, Operand, declare, forward_indices, trace_views
from disc.codegen.plan.index import ONE, IndexSpace, split_linear, terms_of
from disc.ir.graph import Body
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim, Truth
from disc.shapes.algebra import Symbol
from disc.speculation.guards import Divides

BYTES = 16  # of the widest load of a thread


def vector_guards(space: IndexSpace, body: Body, *products: Contraction, small: bool = False) -> tuple[Divides, ...]:
    """Conditions under which rows of the operands and of the results, where these lie in memory, begin at multiples of 16 bytes from where
    their tensor does. A tensor whose sizes say that its rows do not, or leave it open in another way than by a symbol, asks for nothing;
    without `small`, nor does one that a size of 1 makes smaller than another.

    Afterwards the loops of the last product are declared."""
    return guards_of(space, (each for c in products for each in _tensors(space, body, c, small)))


def guards_of(space: IndexSpace, tensors: Iterable[tuple[Dim, str]]) -> tuple[Divides, ...]:
    """The same of any tensors: (offset of the element at the loops' position, element) of each."""
    found: dict[Divides, None] = {}
    for offset, element in tensors:
        found.update(dict.fromkeys(_needed(space, offset, BYTES // ELEMENT_BYTES[element]) or ()))
    return tuple(sorted(found, key=str))


def line_guards(space: IndexSpace, c: Contraction) -> tuple[Divides, ...] | None:
    """Conditions under which rows of both factors, whose loops are declared, begin at multiples of 16 bytes; None where they never do."""
    known: dict[Divides, None] = {}
    for operand, free in ((c.left, "gm"), (c.right, "gn")):
        found = _source(space, operand, free)
        guards = None if found is None else _needed(space, found[0], BYTES // ELEMENT_BYTES[found[1]])
        if guards is None:
            return None
        known.update(dict.fromkeys(guards))
    return tuple(sorted(known, key=str))


def whole_lines(space: IndexSpace, c: Contraction, *steps: tuple[Dim, str]) -> bool:
    """Whether there are `line_guards`, which also see to it that each of `steps`, (elements, element), is a multiple of 16 bytes."""
    known = line_guards(space, c)
    return known is not None and all(_known_to_divide(space, known, BYTES // ELEMENT_BYTES[element], step) for step, element in steps)


def _known_to_divide(space: IndexSpace, known: Collection[Divides], number: int, size: Dim) -> bool:
    """Whether `number` divides a size, term by term, where all of `known` hold."""
    return all(
        space.env.divides(number, term) is Truth.YES or any(Divides(number, Dim.symbol(name)) in known for name in _factors(space, term))
        for term in terms_of(size)
    )


def _tensors(space: IndexSpace, body: Body, c: Contraction, small: bool) -> Iterator[tuple[Dim, str]]:
    """(offset of the element at the loops' position, element) of each tensor that the loops of a product go over, which are declared;
    without `small`, not of those that a size of 1 makes smaller than another."""
    declare(space, c)
    ones = {operand: sizes.count(ONE) for operand, sizes in (("left", (c.m, c.k)), ("right", (c.k, c.n)), ("result", (c.m, c.n)))}
    large = {name for name, count in ones.items() if small or count == min(ones.values())}
    batch, row, column = (Dim.symbol(name) for name in ("gb", "gm", "gn"))
    for name, operand, free in (("left", c.left, "gm"), ("right", c.right, "gn")):
        found = _source(space, operand, free)
        if found is not None and name in large:
            yield found
    at = c.result(batch, row, column)
    indices = forward_indices(space, body, c.node, at)
    for root in body.yields:
        if root in indices and "result" in large:
            yield space.linear(indices[root], root.dims), root.element


def _source(space: IndexSpace, operand: Operand, free: str) -> tuple[Dim, str] | None:
    """The same of the tensor that a factor is a view of. free: its rows or columns."""
    found = trace_views(space, operand.node, operand.locate(*(Dim.symbol(name) for name in ("gb", free, "gk")))[0])
    return None if found is None else (found[1], found[0].element)


def _needed(space: IndexSpace, offset: Dim, number: int) -> list[Divides] | None:
    """What makes `offset` go on by one along a loop variable and by multiples of `number` along the others; None where nothing does."""
    if number < 2:
        return None
    loops = [name for name in offset.symbols() if name in space.extents]
    inner = next((name for name in loops if (split_linear(offset, name) or (None,))[0] == ONE), None)
    if inner is None:
        return None
    steps = [term for term in terms_of(offset) if term != Dim.symbol(inner)]
    return _all_divide(space, [space.extents[inner], *steps], number)


def _all_divide(space: IndexSpace, sizes: Iterable[Dim], number: int) -> list[Divides] | None:
    found: list[Divides] = []
    for size in sizes:
        if space.env.divides(number, size) is Truth.YES:
            continue
        symbol = _factor(space, size)
        if symbol is None:
            return None
        found.append(Divides(number, symbol))
    return found


def _factor(space: IndexSpace, size: Dim) -> Dim | None:
    """A base symbol that `size` is a multiple of; the last one of several, which is that of the inner dim."""
    names = _factors(space, size)
    return Dim.symbol(names[-1]) if names else None


def _factors(space: IndexSpace, size: Dim) -> list[str]:
    """The base symbols that `size` is a multiple of."""
    if len(size.monomials) != 1:
        return []
    return [atom.name for atom, _ in size.monomials[0][1] if isinstance(atom, Symbol) and atom.name not in space.extents]
