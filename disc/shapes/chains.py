"""Quotients of one symbol by several constants, written with independent parts that are at least 0.

`S // 16`, `S // 8` and `S` depend on each other: `S // 8` is `2 * (S // 16)` and a bit, S is `8 * (S // 8)` and a remainder. Interval
arithmetic over the parts then sees what it cannot see over the quotients: `S // 16 * 16 <= S`, or that the map behind one more convolution
with stride 2 is never larger (`(S + 15) // 16 <= (S + 7) // 8`). A remainder `S % c` is `S - S // c * c`, hence parts as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache

from disc.shapes.algebra import Atom, Dim, FloorDiv, Mod, Symbol, of_atom

End = int | float
Interval = tuple[End, End]

_MAXIMUM_PERIOD = 128
"""The least difference of two quotients is found by looking at one period; strides of networks multiply to 64 at most."""


def in_parts(dim: Dim, symbol_range: Callable[[str], Interval]) -> tuple[Dim, dict[Atom, Interval]] | None:
    """The expression over parts and the ranges of the parts; None where no two quotients, or a quotient and its symbol, meet."""
    chains: dict[str, dict[tuple[int, int], None]] = {}
    for atom in dim.atoms():
        found = _quotient(atom)
        if found is None:
            continue
        name, offset, divisor = found
        chain = chains.setdefault(name, {})
        chain[divisor, offset] = None
        if isinstance(atom, Mod):
            chain[1, 0] = None
    images: dict[Atom, Dim] = {}
    ranges: dict[Atom, Interval] = {}
    for name, chain in chains.items():
        if Symbol(name) in dim.atoms():
            chain[1, 0] = None
        if len(chain) > 1:
            _write_chain(name, chain, symbol_range(name), images, ranges)
    if not images:
        return None
    return dim.map_atoms(lambda atom: _image(atom, images)), ranges


def _quotient(atom: Atom) -> tuple[str, int, int] | None:
    """(symbol, offset, divisor) of `(symbol + offset) // divisor` or `% divisor`, the divisor a positive constant; else None."""
    if not isinstance(atom, FloorDiv | Mod) or not atom.right.is_const or atom.right.const < 1:
        return None
    offset = atom.left.constant_term
    symbol = (atom.left - offset).sole_atom
    return (symbol.name, offset, atom.right.const) if isinstance(symbol, Symbol) else None


def _image(atom: Atom, images: dict[Atom, Dim]) -> Dim:
    if isinstance(atom, Mod) and _quotient(atom) is not None:
        quotient = FloorDiv(atom.left, atom.right)
        symbol = (atom.left - atom.left.constant_term).atoms()[0]
        if quotient in images and symbol in images:
            return images[symbol] + atom.left.constant_term - images[quotient] * atom.right
    return images.get(atom, of_atom(atom))


def _write_chain(
    name: str, members: Iterable[tuple[int, int]], within: Interval, images: dict[Atom, Dim], ranges: dict[Atom, Interval]
) -> None:
    """Adds the substitution of each (divisor, offset), the coarsest first: a multiple of the one before and a new part."""
    least, largest = within
    if not isinstance(least, int):
        return
    symbol = of_atom(Symbol(name))
    whole: Dim | None = None
    before = (1, 0)
    for divisor, offset in sorted(members, key=lambda member: (-member[0], member[1])):
        atom = Symbol(name) if divisor == 1 else FloorDiv(symbol + offset, Dim.of(divisor))
        if whole is None:
            multiple, low, high = 0, (least + offset) // divisor, math.inf
        else:
            step = _step(least, *before, divisor, offset)
            if step is None:
                continue
            multiple, low, high = step
        if multiple <= 1 and isinstance(largest, int):
            lowest = (least + before[1]) // before[0] if multiple else 0
            high = min(high, (largest + offset) // divisor - multiple * lowest)
        part = Symbol(f"{atom}'")
        ranges[part] = (low, high)
        whole = of_atom(part) if whole is None else whole * multiple + of_atom(part)
        images[atom] = whole
        before = (divisor, offset)


@cache
def _step(least: int, coarse: int, coarse_offset: int, fine: int, fine_offset: int) -> tuple[int, int, End] | None:
    """(multiple, low, high) with `low <= (n + fine_offset) // fine - multiple * ((n + coarse_offset) // coarse) <= high` for n from
    `least` on, low at least 0 and the multiple as large as it can be; None where there is none.

    The difference grows from period to period, or stays, so one period shows the least, and the largest where it stays.
    """
    if coarse % fine or coarse > _MAXIMUM_PERIOD:
        return None
    numbers = range(least, least + coarse)
    ratio = coarse // fine
    for multiple in dict.fromkeys((ratio, 1)):
        differences = [(n + fine_offset) // fine - multiple * ((n + coarse_offset) // coarse) for n in numbers]
        if min(differences) >= 0:
            return multiple, min(differences), max(differences) if multiple == ratio else math.inf
    return None
