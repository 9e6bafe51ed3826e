"""The program of a trace, for all traces that differ from it by the numbers of steps of their loops (`kin.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP
from torch.utils._sympy.printers import PythonPrinter

from disc.frontend.lazy.calls import Input
from disc.frontend.lazy.made_again import Place, Size
from disc.frontend.lazy.outline import Outline
from disc.frontend.lazy.unrolled import Every, Name, Unrolled
from disc.frontend.lazy.variants import Effects, Formula, Guard, Program, Variant
from disc.ral._ral import LazyBinding

Output = Name | Every


@dataclass(frozen=True)
class Numbers:
    """Sizes of inputs and numbers of calls, as they are or by names of symbols."""

    symbols: Sequence[str]
    inputs: Sequence[Sequence[Size]]
    calls: Mapping[Place, Sequence[float | str]]

    def binding(self, unrolled: Unrolled, made: Sequence[int]) -> LazyBinding:
        """Finds the symbols' values in a run of a trace. made: the values that the program computes."""
        places = {name: place for place, name in enumerate(self.symbols)}
        given = list[Sequence[float | str]]()
        for place, part in enumerate(unrolled.parts):
            for number in range(part.first, part.first + part.period * (part.count if part.kind == "loop" else 1)):
                own = (number - part.first) % part.period
                given.append(unrolled.scalars[number] if unrolled.is_cut(place, own) else self.calls[place, own])
        inputs, calls = ([[(places[each], 0) if isinstance(each, str) else (-1, each) for each in row] for row in rows]
                         for rows in (self.inputs, given))  # fmt: skip
        return LazyBinding(inputs, calls, len(self.symbols), list(made))


@dataclass(eq=False)
class Family:
    """A program of kin, and the traces that it serves. general: symbols that it takes, floats with the dtype of the tensor that each is
    there. shapes: of values; counts: how many steps loops have, by their parts. outputs: which results are values; written, gradients,
    repeatable: as of `Effects` and `Variant`; apart: as of `Outline`."""

    numbers: Numbers
    general: Mapping[str, torch.dtype | None]
    guards: Sequence[Guard]
    shapes: Mapping[Place, Sequence[Formula]]
    counts: Mapping[int, Formula]
    outputs: Mapping[Output, int]
    written: Mapping[int, int]
    gradients: Mapping[int, int | Input | None]
    repeatable: bool
    program: Program
    apart: frozenset[int]

    def has_gradients(self, outline: Outline) -> bool:
        """Whether the inputs that a run of PyTorch has left with gradients are those to which the program gives some."""
        before = outline.run.gradients
        given = [
            (each, self.gradients.get(number, before.get(number))) for number, each in enumerate(outline.tensors) if each.requires_grad
        ]
        return outline.differentiable or all((each.grad is None) == (found is None) for each, found in given)

    def variant(self, outline: Outline, unrolled: Unrolled) -> Variant | None:
        """Of a trace of the family, unless another value of it is needed, or gradients do not go the same way."""
        if outline.apart != self.apart:
            return None
        values, rows = dict[int, int](), dict[int, tuple[int, int]]()
        for number in outline.needed:
            name = unrolled.name(number)
            if name in self.outputs:
                values[number] = self.outputs[name]
            elif Every(name.part, name.number) in self.outputs:
                rows[number] = self.outputs[Every(name.part, name.number)], unrolled.where[number][2]
            else:
                return None
        reached = dict[int, frozenset[int]]()
        for number, found in outline.reached.items():
            place = values[number] if number in values else rows[number][0]
            if reached.setdefault(place, found) != found:
                return None
        differentiable = {number for number, each in enumerate(outline.tensors) if each.requires_grad} - outline.apart
        everywhere = all(each == differentiable for each in reached.values())
        versions = outline.written
        effects = Effects(
            values, rows, self.written, self.gradients, outline.views, frozenset() if outline.differentiable else outline.freed,
            self.written.keys() - versions, outline.twins.keys() & versions,
        )  # fmt: skip
        guards = [*self.guards, *(_guard(count, unrolled.parts[place].count) for place, count in self.counts.items())]
        shapes = {number: self.shapes[place[:2]] for number, place in enumerate(unrolled.where) if place[:2] in self.shapes}
        made = [*values, *rows, *(number for number, _, _ in outline.views)]
        return Variant(
            self.numbers.symbols, self.numbers.binding(unrolled, made), self.general, guards, shapes, effects, self.program, outline.steps,
            outline.differentiable, self.repeatable, outline.saves, outline.ways, {} if everywhere else reached, outline.apart,
            f"disc.lazy: {outline.steps[-1].line}",
        )  # fmt: skip


def _guard(count: Formula, steps: int) -> Guard:
    if isinstance(count, int):
        return Guard(frozenset(), lambda: count == steps, ())
    function, names = count
    return Guard(frozenset(names), lambda *values: function(*values) == steps, names)


def formula(expression: object) -> Formula:
    """As a function of its symbols."""
    if isinstance(expression, int):
        return expression
    expr = cast("sympy.Expr", expression)
    names = tuple(sorted(str(symbol) for symbol in expr.free_symbols))
    if not names and isinstance(expr, sympy.Integer):
        return int(expr)
    return eval(f"lambda {', '.join(names)}: {PythonPrinter().doprint(expr)}", dict(SYMPY_INTERP)), names
