"""The calls of a trace made once more, with what traces them in the place of tensors; its loops as `scan`, once for all their steps."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch._higher_order_ops.scan import scan_op
from torch.fx import traceback as fx_traceback
from torch.utils import _pytree as pytree

from disc.frontend.lazy.calls import GRADIENT, SET_GRADIENT, Input, filled, scaled
from disc.frontend.lazy.outline import NotCompiledError, Outline
from disc.frontend.lazy.reached import leave_others
from disc.frontend.lazy.replay import context
from disc.frontend.lazy.traces import Made, Step
from disc.frontend.lazy.unrolled import STACKING, Carried, Every, Local, Loop, Name, Part, Rows, Source, Tensor, Unrolled, Written

Place = tuple[int, int]  # of a value: its part, and its number in a step
Size = int | str  # a symbol by name


@dataclass
class MadeAgain:
    """numbers: of every call, by its part and its place there, as they are or by names of symbols. shapes: of the values, in symbols;
    counts: how many steps loops have, by their parts."""

    outline: Outline
    unrolled: Unrolled
    numbers: Mapping[Place, Sequence[float | str]]
    shapes: dict[Place, list[object]] = field(default_factory=dict)
    counts: dict[int, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.finals, self.stacked = _read(self.unrolled, self.outline.needed)

    def values(self, inputs: Sequence[torch.Tensor], symbols: Mapping[str, object]) -> Values:
        """Raises NotCompiledError where calls cannot be made with symbols."""
        values = Values(self.unrolled, inputs)
        for place, part in enumerate(self.unrolled.parts):
            step = self.unrolled.steps[part.first]
            if part.kind == "loop":
                self._scan(place, part, values, symbols)
            elif part.kind == "rows":
                self._note((place, 0), values.tensor(Name(place, 0)))
            elif not (self.outline.differentiable and step.func in (GRADIENT, SET_GRADIENT)):
                given = self._given((place, 0), symbols)
                for number, leaf in enumerate(self._results(step, given, values, values.inputs, values)):
                    values.made[place, number] = leaf
                    self._note((place, number), leaf)
        return values

    def _given(self, place: Place, symbols: Mapping[str, object]) -> list[Any]:
        return [symbols[each] if isinstance(each, str) else each for each in self.numbers[place]]

    def _note(self, place: Place, value: torch.Tensor) -> None:
        if place not in self.shapes:  # made again, it would know what later calls say of its symbols
            self.shapes[place] = [_expression(size) for size in value.shape]

    def _results(self, step: Step, numbers: Sequence[Any], values: Any, inputs: Any, outside: Values) -> list[torch.Tensor]:
        """What a call makes."""
        fx_traceback.get_current_meta()["stack_trace"] = step.trace
        call = scaled if any(isinstance(each, torch.Tensor) for each in numbers) else _plain
        try:
            with context(step.context):
                result = outside.joined(step, numbers) if self.unrolled.loops else None
                if result is None:
                    args, kwargs = (filled(each, values, inputs, numbers) for each in (step.args, step.kwargs))
                    result = call(step.func, args, kwargs)
        except Exception as error:
            raise NotCompiledError(f"{type(error).__name__} at {step.line}: {error}", step) from error
        leaves = [result] if step.form is None else pytree.tree_leaves(result)
        if len(leaves) != len(step.results) or any((a is None) != (b is None) for a, b in zip(leaves, step.results, strict=True)):
            raise NotCompiledError(f"the call at {step.line} gives something else where its sizes are not known", step)
        return [leaf for leaf, each in zip(leaves, step.results, strict=True) if type(each) is Made]

    # --- loops ---------------------------------------------------------------------------------------------------------------------------

    def _scan(self, place: int, part: Part, values: Values, symbols: Mapping[str, object]) -> None:
        body = self.unrolled.steps[part.first : part.first + part.period]
        wanted = {number for mine, number in (*self.finals, *self.stacked) if mine == place}
        firsts = [each.first - part.value for each in body]
        loop = self.unrolled.loops[place].needed_for(wanted, firsts)
        carried, written = loop.of_kind(Carried), loop.of_kind(Written)
        states, rows = [*carried, *written], list(dict.fromkeys([*loop.of_kind(Rows), *loop.cut.values()]))
        rows = rows or [each for each, _ in loop.put.values()]
        before = self._before(place, part, body, loop, wanted, values, symbols)
        outer: list[Any] = [*loop.of_kind(Name), *loop.of_kind(Input), *before]
        given = [before[each] if isinstance(each, _Before) else values.tensor(each) for each in outer]
        if not rows:
            raise NotCompiledError("no tensor says how many steps a loop has", body[0])
        if not wanted.isdisjoint(loop.views):
            raise NotCompiledError("a view of what a loop writes is read outside of it", body[0])
        values.over |= {(place, each): self._over(each, place, part, values) for each in rows}
        over = [values.over[place, each] for each in rows]
        for number in loop.cut:  # before the loop says which sizes are equal: those of its rows are known first
            self._note((place, number), values.tensor(Name(place, number)))
        if not loop.sources:  # it takes rows, for other loops
            return
        names = list(dict.fromkeys(name for n in loop.sources for name in self.numbers[place, n] if isinstance(name, str)))
        differentiable: set[int | Written] = {n for n in range(part.width) if self.unrolled.value_requires_gradients(part.value + n)}
        differentiable |= {each for each in written if self.unrolled.requires_gradients(each.start)}
        starts = [_in_order(values.tensor(each.start)) for each in states] or [torch.zeros((), device=over[0].device)]
        self._check_apart(written, [*over, *(values.tensor(each.start) for each in carried), *given], values)
        over, outside = list(map(_apart, over)), list(map(_apart, given))
        # PyTorch takes no gradients of a scan that stacks nothing
        stacked = sorted(number for mine, number in self.stacked if mine == place) or [_number(each) for each in states[:1]]

        def step(*operands: Any) -> list[torch.Tensor]:
            known = dict[Source, Any](zip((*states, *rows, *outer), (*operands[: len(states)], *operands[len(starts) :]), strict=False))
            known |= {each: known[each].clone() for each in written}
            known |= {each: each.taken(known[each]) for each in rows}
            named = dict(zip(names, operands[len(operands) - len(names) :], strict=True))
            results: dict[int | Written, torch.Tensor] = {number: known[each] for number, each in loop.cut.items()}
            results |= self._made_in_step(place, part, loop, body, known, {**symbols, **named}, differentiable, values)
            results |= {each: known[each] for each in written}
            state = [results[_number(each)] for each in states] or [operands[0]]
            return [*map(_in_order, state), *(results[number].clone() for number in stacked)]

        found = scan_op(step, starts, over, (*outside, *(_apart(symbols[name]) for name in names)))
        operands = dict(zip((*(states or [None]), *rows, *outer), (*starts, *over, *outside), strict=True))
        reached = dict[int, frozenset[int]]()
        for number, value in enumerate([*map(_number, states), *stacked], len(starts) - len(states)):
            if value in differentiable:
                given = loop.gradients_of(value, firsts, differentiable)
                reached[number] = frozenset(place for place, each in enumerate(operands) if each in given)
        leave_others(found, list(operands.values()), reached)
        results = [each if value in differentiable else each.detach()
                   for value, each in zip([*map(_number, states), *stacked], found[len(starts) - len(states) :], strict=True)]  # fmt: skip
        for each, final in zip(carried, results, strict=False):
            values.finals[place, each.number] = final
        for each, final in zip(written, results[len(carried) :], strict=False):
            with context(body[next(call for call, root in loop.writes.items() if root == each)].context):
                values.tensor(each.start).copy_(final)
        for number, every in zip(stacked, results[len(states) :], strict=True):
            if isinstance(number, int):
                values.stacked[place, number] = every
        for call, (each, number) in loop.put.items():
            with context(body[call].context):
                every, target = values.stacked[place, number], each.taken_of_all(self._span(each, place, part, values))
                if every.dim() > target.dim():
                    raise NotCompiledError(f"a row is written from more dims than it has at {body[call].line}", body[call])
                every = every.reshape(every.shape[0], *[1] * (target.dim() - every.dim()), *every.shape[1:])
                target.copy_(every.flip(0) if each.backwards else every)

    def _before(
        self, place: int, part: Part, body: Sequence[Step], loop: Loop, wanted: Container[int], values: Values,
        symbols: Mapping[str, object],
    ) -> dict[_Before, torch.Tensor]:  # fmt: skip
        """Takes the norms of weights out of a loop, whose steps all make the same: one before it."""
        carried = {each.number for each in loop.of_kind(Carried)}
        made = dict[_Before, torch.Tensor]()
        for call, found in list(loop.sources.items()):
            number = body[call].first - part.value
            outside = all(isinstance(each, Name | Input) for each in found)
            norms = body[call].func is torch._weight_norm  # pyright: ignore[reportPrivateImportUsage]
            if not norms or not outside or number in carried or number in wanted:
                continue
            operands = _InOrder(iter([values.tensor(each) for each in cast("list[Tensor]", found)]))
            (made[_Before(number)],) = self._results(body[call], self._given((place, call), symbols), operands, operands, values)
            self._note((place, number), made[_Before(number)])
            del loop.sources[call]
        names: dict[Source, Any] = {Local(each.number): each for each in made}
        loop.sources = {call: [names.get(each, each) for each in found] for call, found in loop.sources.items()}
        return made

    def _check_apart(self, written: Sequence[Written], others: Sequence[torch.Tensor], values: Values) -> None:
        """What is in memory of its own for some sizes may not be for others (`contiguous`): here all are meant that guards allow."""
        memory = [_memory(values.tensor(each.start)) for each in written]
        if len(set(memory)) < len(memory) or not {*map(_memory, others)}.isdisjoint(memory):
            raise NotCompiledError("a loop writes a tensor that shares memory with another one")

    def _made_in_step(
        self, place: int, part: Part, loop: Loop, body: Sequence[Step], known: Mapping[Source, Any], symbols: Mapping[str, object],
        differentiable: Container[int | Written], values: Values,
    ) -> dict[int, torch.Tensor]:  # fmt: skip
        """The values of a step by their numbers. Those that no gradients go through, and what is written to such, are let go of: the graph
        of a step does not know where gradients were off."""
        made = dict[int, torch.Tensor]()
        for number, call in enumerate(body):
            first = call.first - part.value
            if number not in loop.sources:
                continue
            given = [made[each.number] if isinstance(each, Local) else known[each] for each in loop.sources[number]]
            root = loop.writes.get(number)
            if root is not None and (root if isinstance(root, Written) else root.number) not in differentiable:
                given[1:] = [each.detach() for each in given[1:]]
            operands = _InOrder(iter(given))
            for n, leaf in enumerate(self._results(call, self._given((place, number), symbols), operands, operands, values)):
                own = leaf if self.outline.made[call.first + n].requires_grad else leaf.detach()
                made[first + n] = own.clone() if call.first + n in self.unrolled.turned else own
                self._note((place, first + n), leaf)
        return made

    def _over(self, rows: Rows, place: int, part: Part, values: Values) -> torch.Tensor:
        """The rows along a first dim, in the order of steps."""
        tensor = self._span(rows, place, part, values)
        return tensor.flip(0) if rows.backwards else tensor

    def _span(self, rows: Rows, place: int, part: Part, values: Values) -> torch.Tensor:
        """The rows along a first dim, as many as the loop has steps: a size of the first sequence, or that less some."""
        tensor = values.sequence(rows.of).movedim(rows.dim, 0)
        size = tensor.shape[0]
        known = int(size.node.hint) if isinstance(size, torch.SymInt) else size
        count: Any = values.counts.setdefault(place, size - (known - part.count))
        self.counts.setdefault(place, _expression(count))
        whole = rows.begin == 0 and known == part.count and bool(size == count)
        return tensor if whole else tensor.narrow(0, rows.begin, count)


class Values:
    """What the calls have made, by their numbers in the trace."""

    def __init__(self, unrolled: Unrolled, inputs: Sequence[torch.Tensor]) -> None:
        self.unrolled, self.inputs = unrolled, inputs
        self.made: dict[Place, torch.Tensor] = {}
        self.finals: dict[Place, torch.Tensor] = {}
        self.stacked: dict[Place, torch.Tensor] = {}  # of all steps of a loop
        self.over: dict[tuple[int, Rows], torch.Tensor] = {}  # of a loop
        self.counts: dict[int, int | torch.SymInt] = {}

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.tensor(self.unrolled.name(number))

    def tensor(self, tensor: Tensor) -> torch.Tensor:
        if isinstance(tensor, Input):
            return self.inputs[tensor.number]
        place, part = (tensor.part, tensor.number), self.unrolled.parts[tensor.part]
        step = -1 if tensor.step is None else tensor.step
        if part.kind == "call":
            return self.made[place]
        if part.kind == "rows":
            source, dim = self.unrolled.unbound(part)
            return self.sequence(source).select(dim, step)
        if step == -1 and place in self.finals:
            return self.finals[place]
        rows = self.unrolled.loops[tensor.part].cut.get(tensor.number)
        if rows is None:
            return self.stacked[place].select(0, step)
        return rows.taken(self.over[tensor.part, rows].select(0, step))

    def sequence(self, sequence: Tensor | Every) -> torch.Tensor:
        return self.stacked[sequence.part, sequence.number] if isinstance(sequence, Every) else self.tensor(sequence)

    def joined(self, step: Step, numbers: Sequence[Any]) -> torch.Tensor | None:
        """What a call gives that puts together what loops make in all steps; None if it is no such call."""
        given = [self.unrolled.joined(each) for each in (*step.args, *step.kwargs.values())]
        if not any(isinstance(each, tuple) for found in given for each in found):
            return None
        dims = [*numbers, 0][:1] if len(given[0]) == sum(map(len, given)) and len(numbers) <= 1 and "out" not in step.kwargs else []
        if step.func not in STACKING or not dims:
            raise NotCompiledError(f"the call at {step.line} takes what a loop makes in all its steps", step)
        dim, new = int(dims[0]), step.func is torch.stack
        parts = [self._part(each, dim, new=new) for each in given[0]]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

    def _part(self, given: Tensor | tuple[Every, bool], dim: int, *, new: bool) -> torch.Tensor:
        if not isinstance(given, tuple):
            value = self.tensor(given)
            return value.unsqueeze(dim) if new else value
        every, backwards = given
        value = self.sequence(every)
        value = value.flip(0) if backwards else value
        dim = dim % (value.dim() if new else value.dim() - 1)
        value = value.movedim(0, dim)
        return value if new else value.flatten(dim, dim + 1)


@dataclass(frozen=True)
class _Before:
    """A value that steps of a loop make, by its number there, made before it."""

    number: int


class _InOrder:
    """What stands for the tensors of a call, in the order of `references`."""

    def __init__(self, given: Iterator[torch.Tensor]) -> None:
        self.given = given

    def __getitem__(self, number: int) -> torch.Tensor:
        return next(self.given)


def _read(unrolled: Unrolled, needed: Sequence[int]) -> tuple[set[Place], set[Place]]:
    """Whose last values are read outside of their loops, and whose values of other steps, or of all, are."""
    read: list[Any] = [unrolled.name(number) for number in needed]
    for place, part in enumerate(unrolled.parts):
        if part.kind == "loop":
            loop = unrolled.loops[place]
            sources = [source for found in loop.sources.values() for source in found]
            read += [each.of if isinstance(each, Rows) else each.start if isinstance(each, Carried | Written) else each
                     for each in (*sources, *loop.cut.values())]  # fmt: skip
            read += [each for rows, number in loop.put.values() for each in (rows.of, Every(place, number))]
        elif part.kind == "rows":
            read.append(unrolled.unbound(part)[0])
        else:
            step = unrolled.steps[part.first]
            found = [found for each in (*step.args, *step.kwargs.values()) for found in unrolled.joined(each)]
            read += [each[0] if isinstance(each, tuple) else each for each in found]
    finals, stacked = set[Place](), set[Place]()
    for each in read:
        loop = unrolled.loops.get(each.part) if isinstance(each, Name | Every) else None
        if loop is None or each.number in loop.cut:
            continue
        last = isinstance(each, Name) and each.step is None and any(each.number == state.number for state in loop.of_kind(Carried))
        (finals if last else stacked).add((each.part, each.number))
    return finals, stacked


def _number(state: Carried | Written) -> int | Written:
    """Of a value of a step that goes on to the next one; what is written is none."""
    return state if isinstance(state, Written) else state.number


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _apart(value: Any) -> Any:
    """PyTorch forbids what `scan` reads to share memory."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def _in_order(state: torch.Tensor) -> torch.Tensor:
    """A copy that lies row by row: PyTorch wants what is carried to have one layout, of a dim of size 1, too."""
    return state.clone(memory_format=torch.contiguous_format)


def _expression(size: object) -> object:
    return size.node.expr if isinstance(size, torch.SymInt) else int(cast("int", size))


def _plain(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return func(*args, **kwargs)
