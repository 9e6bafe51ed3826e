"""Compiled traces, and how they run: the cached transformation of Dali (paper 004, section 2, Table 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.autograd import profiler
from torch.utils import _pytree as pytree

from disc.errors import WrittenError
from disc.frontend.graph_calls import plain_executable
from disc.frontend.lazy.calls import GRADIENT, SET_GRADIENT, Input, filled
from disc.frontend.lazy.reached import leave_others, pass_again
from disc.frontend.lazy.replay import context, make_again
from disc.frontend.lazy.traces import Run, Step
from disc.frontend.lazy.twice import differentiate_twice
from disc.ral._ral import LazyBinding, LazyProgram, overlapping

MOST_KNOWN = 256  # values of a trace's symbols whose consequences are kept
Program = Callable[[list[object]], Sequence[object]]
Formula = int | tuple[Callable[..., Any], tuple[str, ...]]  # of these symbols


class ProgramFailedError(Exception):
    """A program has failed, and has written nothing."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


@dataclass(frozen=True)
class Guard:
    needs: frozenset[str]
    holds: Callable[..., bool]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Effects:
    """What of the results of a program is what.

    values: value → result; rows: value → result, and which row of it; written: input → result that it becomes; gradients: input → the
    result that its gradient is, or the input (Input), or None. views: calls that are made again, of what is there then: the value that each
    gives, which step, which of its results. freed: values whose backward pass has been. hidden: written inputs whose version does not tell
    so, as of a weight whose `data` is written; told: inputs whose version tells so, though another one in their memory stands for them.
    """

    values: Mapping[int, int]
    rows: Mapping[int, tuple[int, int]]
    written: Mapping[int, int]
    gradients: Mapping[int, int | Input | None]
    views: Sequence[tuple[int, int, int]]
    freed: frozenset[int] = frozenset()
    hidden: Set[int] = frozenset()
    told: Set[int] = frozenset()


class _Freed(torch.autograd.Function):
    """A value as it is after its backward pass: it requires gradients, and there is no second one."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> None:
        raise RuntimeError(
            "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). "
            "Specify retain_graph=True if you need to backward through the graph a second time"
        )


def _as_freed(value: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        base: Any = super(torch.autograd.Function, _Freed)  # Function's own apply would end the trace
        return base.apply(value, torch.zeros((), requires_grad=True))


@dataclass
class _Known:
    """What follows from values of the symbols. holds: those guards that need no others; sizes: of values of the trace."""

    holds: bool
    complete: bool
    sizes: dict[int, torch.Size | None] = field(default_factory=dict)


@dataclass(eq=False)
class Variant:
    """A compiled trace.

    binding: finds the values of `symbols` in a run, and knows which values the program computes; general: those that the program takes,
    floats with the dtype of the tensor that each is there. shapes: of the values. differentiable: whether gradients of the results can be
    asked for; then the program writes its inputs itself. repeatable: then, whether its calls made again give the same; saves: then, whether
    a backward pass can be had but once; ways: then, value → those that its gradients go through; reached: then, where gradients do not go
    to all inputs, result → those that its gradients go to; apart: inputs that none go to. known: by values of the symbols, of the last
    runs.
    native: the program where values are all that it makes; it runs without Python.
    """

    symbols: Sequence[str]
    binding: LazyBinding
    general: Mapping[str, torch.dtype | None]
    guards: Sequence[Guard]
    shapes: Mapping[int, Sequence[Formula]]
    effects: Effects
    program: Program
    steps: Sequence[Step]
    differentiable: bool
    repeatable: bool
    saves: bool
    ways: Mapping[int, frozenset[int]]
    reached: Mapping[int, frozenset[int]]
    apart: frozenset[int]
    label: str
    known: dict[tuple[float | None, ...], _Known] = field(default_factory=dict)
    native: LazyProgram | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        effects = self.effects
        self._numbers = [(self.symbols.index(name), dtype) for name, dtype in self.general.items()]
        self._writes: list[Callable[[Run, Sequence[torch.Tensor], dict[int, torch.Tensor]], None]] = [
            write
            for needed, write in (
                (effects.rows, self._take_rows),
                (self.differentiable, self._differentiate_twice),
                (self.reached, self._leave_others),
                (not self.saves, self._pass_again),
                (effects.written or effects.gradients, self._write),
                (effects.told, self._tell),
                (effects.views, self._make_views),
                (effects.freed, self._free),
            )
            if needed
        ]
        plain = None if self._writes or self.differentiable else plain_executable(self.program)
        if plain is not None:
            numbers = [(place, 0 if dtype is None else dtype.itemsize) for place, dtype in self._numbers]
            self.native = LazyProgram(self.binding, plain.context, numbers, list(effects.values.items()))

    def sizes(self, number: int, run: Run) -> torch.Size | None:
        """Of a value of a run that may come to be this trace; None where they are not known."""
        values = self.binding.values(run)
        known = None if values is None else self._known(values)
        if values is None or known is None or not known.holds:
            return None
        if number not in known.sizes:
            known.sizes[number] = self._sizes(number, dict(zip(self.symbols, values, strict=True)))
        return known.sizes[number]

    def goes_on(self, run: Run) -> bool:
        """Whether a run may come to be this trace."""
        values = self.binding.values(run)
        return values is not None and self._known(values).holds

    def fits(self, run: Run) -> tuple[float, ...] | None:
        """The values of the symbols, if the program computes what is needed and all guards hold."""
        values = self.binding.fitting(run)
        if values is None:
            return None
        known = self.known.get(values) or self._known(values)
        return cast("tuple[float, ...]", values) if known.holds and known.complete else None

    def _known(self, values: tuple[float | None, ...]) -> _Known:
        known = self.known.get(values)
        if known is None:
            if len(self.known) >= MOST_KNOWN:
                self.known.clear()
            symbols = {name: value for name, value in zip(self.symbols, values, strict=True) if value is not None}
            ready = [each for each in self.guards if each.needs <= symbols.keys()]
            holds = all(each.holds(*(symbols[name] for name in each.names)) for each in ready)
            known = self.known[values] = _Known(holds, len(ready) == len(self.guards) and None not in values)
        return known

    def _sizes(self, number: int, symbols: Mapping[str, float | None]) -> torch.Size | None:
        formulas = self.shapes.get(number)
        needed = [name for each in formulas or () if not isinstance(each, int) for name in each[1]]
        if formulas is None or any(symbols[name] is None for name in needed):  # a size of an input that has not come yet
            return None
        return torch.Size(each if isinstance(each, int) else int(each[0](*(symbols[name] for name in each[1]))) for each in formulas)

    def execute(self, run: Run, values: Sequence[float]) -> None:
        """Computes the values of a run that fits, and writes what it writes. Raises: ProgramFailedError, before it writes."""
        if profiler._is_profiler_enabled:  # pyright: ignore[reportPrivateUsage]
            with profiler.record_function(self.label):
                self._finish(run, self._results(run.inputs, values))
        else:
            self._finish(run, self._results(run.inputs, values))

    def _finish(self, run: Run, results: Sequence[torch.Tensor]) -> None:
        made = {number: results[place] for number, place in self.effects.values.items()}
        for write in self._writes:
            write(run, results, made)
        run.give(list(made), list(made.values()))

    def _take_rows(self, run: object, results: Sequence[torch.Tensor], made: dict[int, torch.Tensor]) -> None:
        with torch.set_grad_enabled(self.differentiable):
            made |= {number: results[place][row] for number, (place, row) in self.effects.rows.items()}

    def _results(self, inputs: list[torch.Tensor], values: Sequence[float]) -> Sequence[torch.Tensor]:
        """Of the program; each in memory of its own, unless it knows itself what shares memory, or it is what an input becomes, where that
        lies."""
        given = list[Any](inputs)
        for number in self.apart:  # a way back that begins in the program does not lead there
            given[number] = inputs[number].detach()
        for place, dtype in self._numbers:
            given.append(values[place] if dtype is None else torch.tensor(values[place], dtype=dtype))
        gradients = torch.is_grad_enabled()
        if gradients != self.differentiable:
            torch._C._set_grad_enabled(self.differentiable)
        try:
            results = cast("Sequence[torch.Tensor]", self.program(given))
        except WrittenError:
            raise
        except Exception as error:
            raise ProgramFailedError(error) from error
        finally:
            if gradients != self.differentiable:
                torch._C._set_grad_enabled(gradients)
        if self.differentiable:
            return results
        found = list(results)
        replaced = {place for number, place in self.effects.written.items() if results[place] is inputs[number]}
        others = [place for place in range(len(found)) if place not in replaced]
        for number in overlapping(inputs, [found[place] for place in others]):
            found[others[number]] = found[others[number]].clone()
        return found

    def _differentiate_twice(self, run: Run, results: Sequence[torch.Tensor], made: Mapping[int, torch.Tensor]) -> None:
        """Keeps what gradients of gradients are computed with."""
        needed = list(made)  # not the values: these have the function that keeps this
        ways = [{needed.index(each) for each in self.ways.get(number, (number,))} for number in needed]
        if not self.repeatable:
            return differentiate_twice(list(made.values()), (), None, ways)
        places = [place for place, step in enumerate(self.steps) if step.func not in (GRADIENT, SET_GRADIENT)]
        steps, inputs, scalars = [self.steps[place] for place in places], run.inputs, run.scalars
        numbers = [scalars[place] for place in places]

        def made_again() -> list[torch.Tensor]:
            values = list[torch.Tensor]()
            make_again(steps, numbers, inputs, values)
            return [values[number] for number in needed]

        return differentiate_twice(list(made.values()), inputs, made_again, ways)

    def _leave_others(self, run: Run, results: Sequence[torch.Tensor], made: object) -> None:
        leave_others(results, run.inputs, self.reached)

    def _pass_again(self, run: object, results: object, made: Mapping[int, torch.Tensor]) -> None:
        pass_again(made.values())

    def _write(self, run: Run, results: Sequence[torch.Tensor], made: object) -> None:
        """Inputs, and gradients of inputs."""
        inputs, effects = run.inputs, self.effects
        with torch.no_grad():
            for number, place in effects.written.items():
                mine, new, hidden = inputs[number], results[place], number in effects.hidden
                if new is not mine:
                    (mine.data if hidden else mine).copy_(new)
                elif not hidden:  # the program has written it
                    torch.autograd.graph.increment_version(mine)
            for leaf, what in effects.gradients.items():
                inputs[leaf].grad = None if what is None else inputs[what.number] if isinstance(what, Input) else results[what]

    def _tell(self, run: Run, results: object, made: object) -> None:
        inputs = run.inputs
        for number in self.effects.told:
            torch.autograd.graph.increment_version(inputs[number])

    def _make_views(self, run: Run, results: object, made: dict[int, torch.Tensor]) -> None:
        inputs, scalars = run.inputs, run.scalars
        for number, place, leaf in self.effects.views:
            step, given = self.steps[place], scalars[place]
            with context(step.context):
                view = step.func(*filled(step.args, made, inputs, given), **filled(step.kwargs, made, inputs, given))
            made[number] = view if step.form is None else pytree.tree_leaves(view)[leaf]

    def _free(self, run: object, results: object, made: dict[int, torch.Tensor]) -> None:
        for number in self.effects.freed:
            made[number] = _as_freed(made[number])
