"""Programs whose sizes are 1 by chance: an example of 4 channels, of which `pixel_shuffle(x, 2)` makes one.

torch.export takes a size of 1 for a constant wherever it comes up, so the dims that such a size is computed from are fixed, or decide.
Where the model runs on an example that is larger there, the program is made of that one, as long as it is the model for the user's
example, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram

from disc.frontend.decisions import Decision, Found
from disc.frontend.needed_sizes import DrySession, Run, fails, inputs_of
from disc.frontend.symbolic_forms import SymbolicForms
from disc.frontend.widening import Key, Widening
from disc.shapes.algebra import Mod, Symbol

MOST_EXPORTS = 3  # of larger examples; each takes as long as the first
TIMES, MORE_TIMES = 2, 4  # how much larger they are, and how much more where a size is still 1: strides of a network multiply
MOST_TIMES = TIMES * MORE_TIMES ** (MOST_EXPORTS - 1)


@dataclass(frozen=True)
class Dims:
    """The dims of a program's inputs.

    keys: expression of a size → where it stands; example: expression → size in the user's example; fixed: dims that a number became of,
    each with who fixed it, None for a weight; wrong: dims that are fixed to another size than the example's.
    """

    keys: dict[str, list[Key]]
    example: dict[str, int]
    fixed: dict[Key, str | None]
    wrong: list[Key]


def dims_of(program: ExportedProgram, widening: Widening, forms: SymbolicForms) -> Dims:
    found = Dims({}, {}, {}, [])
    for _, tensor, value in inputs_of(program, widening.bound):
        for dim, size in enumerate(value.shape):
            key = (id(tensor), dim)
            if not isinstance(size, torch.SymInt):
                if size != tensor.shape[dim]:
                    found.wrong.append(key)
                continue
            found.keys.setdefault(str(size.node._expr), []).append(key)
            found.example[str(size.node._expr)] = tensor.shape[dim]
            if size.node.expr.is_Integer:
                found.fixed[key] = forms.who_fixed(size)
                found.wrong.extend([key] if int(size.node.expr) != tensor.shape[dim] else [])
    return found


def dims_behind_ones(dims: Dims, decided: Iterable[Found]) -> list[list[Key]]:
    """The dims that were fixed by no weight, and those that a size of 1 is computed of: all dims of one size together."""
    names = {name for each in decided if isinstance(each, Decision) and _is_one(each) for name in each.condition.symbols()}
    names |= {name for name, keys in dims.keys.items() if any(dims.fixed.get(key) is not None for key in keys)}
    return [keys for name, keys in sorted(dims.keys.items()) if name in names and not any(dims.fixed.get(key, "") is None for key in keys)]


def has_ones(decided: Iterable[Found]) -> bool:
    """Whether a computed size is 0 or 1 in a program, or another number that is decided."""
    return any(isinstance(each, Decision) and _is_one(each) for each in decided)


def _is_one(decision: Decision) -> bool:
    """Whether it says that a size, which is no remainder, is 1 at most, or that one that is computed has a number that may be 1 plus what
    its expression adds: `h // 2 + 1 == 1` is kept as `h // 2 == 0`."""
    sole = decision.condition.sole
    if sole is None:
        return False
    if sole.sign == "==":
        apart = sole.left - sole.right
        has_number = apart.constant_term != 0 or sole.left.is_const or sole.right.is_const
        return 1 in (sole.left, sole.right) or (has_number and any(not isinstance(atom, Symbol | Mod) for atom in apart.atoms()))
    order = sole.at_least()
    return order is not None and order[0] == 1 and not order[1].is_const


def that_run(session: DrySession, widening: Widening, groups: Sequence[Sequence[Key]], times: int) -> set[Key]:
    """The dims that may be that many times as large: all, or those of the groups that may one after the other."""

    def runs(keys: set[Key]) -> bool:
        return session.run(widening.larger(keys, times).arguments()).error is None

    every = {key for group in groups for key in group}
    if not every or runs(every):
        return every
    taken: set[Key] = set()
    for group in groups:
        if len(groups) > 1 and runs(taken | set(group)):
            taken |= set(group)
    return taken


def enough_times(session: DrySession, widening: Widening, keys: Collection[Key], times: int, most: int) -> tuple[int, bool]:
    """How many times as large these dims have to be, `times` to `most`, for no size of 1 to be left that grows with them, and whether that
    is known: runs that data decide do not say. 0 where none grows: a model that pools to one value does so whatever the image.

    A run without data takes a part of the time of an export.
    """
    found, last = 0, session.run(widening.arguments())
    for tried in (times * MORE_TIMES**power for power in range(MOST_EXPORTS)):
        if tried > most:
            break
        run = session.run(widening.larger(keys, tried).arguments())
        if not (last.whole and run.whole) or not _are_of_the_same_calls(last, run):
            return found or times, False
        if _grow_from_one(last, run):
            found = tried
        last = run
    return found, True


def _are_of_the_same_calls(one: Run, other: Run) -> bool:
    return [len(shape) for shape in one.shapes] == [len(shape) for shape in other.shapes]


def _grow_from_one(one: Run, larger: Run) -> bool:
    pairs = zip(one.shapes, larger.shapes, strict=True)
    return any(size <= 1 and size < other for shape, others in pairs for size, other in zip(shape, others, strict=True))


def decided_of(dims: Dims, conditions: Iterable[Found]) -> set[Key]:
    """The dims that conditions of a program are about, where dims that are fixed are, but for those about strides alone."""
    known = {name: dims.example[name] for name, keys in dims.keys.items() if any(key in dims.fixed for key in keys)}
    decisions = [each.condition.replace(known) for each in conditions if isinstance(each, Decision) and not each.layout]
    names = {name for each in decisions if any(one.left != one.right for one in each.comparisons()) for name in each.symbols()}
    return {key for name in names for key in dims.keys.get(name, ())}


def is_the_model(dims: Dims, conditions: Iterable[Found]) -> bool:
    """Whether a program is the model for the user's example."""
    return not any(isinstance(each, Decision) and not each.layout and fails(each, dims.example) for each in conditions)
