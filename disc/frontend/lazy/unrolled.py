"""Loops that Python has unrolled into a trace: its calls in parts, one of which may be a loop of any number of steps.

Calls are a loop where step by step every operand is one of: a value of the same step; what the step before has in the same place (it is
carried); the same tensor in every step; the next row of a sequence, which is a tensor, or what an earlier loop made in its steps. A step
may write what it has made, and a tensor from outside (`loss += x`), which goes from step to step as what is carried does. Values of traces
that differ by the numbers of steps alone have the same names by parts, and such traces have one key: the expression hash of Dali
(paper 004, section 2.1) for loops.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from disc.frontend.lazy.calls import GRADIENT, PASSES, SET_GRADIENT, Counted, Input, Scalar, Value, references, writes
from disc.frontend.lazy.outline import Outline
from disc.frontend.lazy.traces import Made, Step
from disc.frontend.loops_found import MOST_TRIED, Run, runs

UNBINDING = (torch.Tensor.unbind, torch.unbind)
SELECTING = (torch.Tensor.select, torch.select)
_INDEXING: Any = torch.Tensor.__getitem__
_PUTTING: Any = torch.Tensor.__setitem__
STACKING = (torch.stack, torch.cat, torch.concat, torch.concatenate)
WHOLE = slice(None)
_NAMES = {"add": "add", "sub": "sub", "mul": "mul", "matmul": "matmul", "truediv": "div", "mod": "remainder"}
_OPERATORS: dict[Any, Any] = {getattr(torch.Tensor, f"__{name}__"): getattr(torch.Tensor, plain) for name, plain in _NAMES.items()}
_OPERATORS |= {torch.Tensor.__radd__: torch.Tensor.add, torch.Tensor.__rmul__: torch.Tensor.mul}  # of a number
_REFLECTED: dict[Any, Any] = {getattr(torch.Tensor, f"__r{name}__"): getattr(torch.Tensor, plain) for name, plain in _NAMES.items()}
Codes = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class Part:
    """Calls that stand one behind the other. `call`: one; `rows`: one that gives the rows of a tensor, `count` of them; `loop`: `period`
    of them, `count` times. first: the number of the first one; value: of the first value; width: values of a step."""

    kind: Literal["call", "rows", "loop"]
    first: int
    value: int
    width: int
    period: int = 1
    count: int = 1


@dataclass(frozen=True)
class Name:
    """A value by the part that makes it, its number in a step there, and the step: None of the last one, or where there is one alone."""

    part: int
    number: int
    step: int | None = None


@dataclass(frozen=True)
class Every:
    """What a loop makes in all steps, in order: a value by the part that is the loop, and its number in a step."""

    part: int
    number: int


Tensor = Name | Input  # by what it is in traces of any number of steps


@dataclass(frozen=True)
class Rows:
    """Rows begin, begin + 1, ... of a sequence along `dim`; backwards: the last one of them first. kept: each keeps the dim. index: what of
    each is taken, a slice as its three numbers."""

    of: Tensor | Every
    dim: int
    begin: int
    backwards: bool
    kept: bool = False
    index: tuple[Any, ...] = ()

    def taken(self, row: torch.Tensor) -> torch.Tensor:
        """What a step has of its row."""
        row = row.unsqueeze(self.dim) if self.kept else row
        return row[self._index()] if self.index else row

    def taken_of_all(self, rows: torch.Tensor) -> torch.Tensor:
        """The same of all rows, which lie along the first dim; none keeps the dim."""
        return rows[(WHOLE, *self._index())]

    def _index(self) -> tuple[Any, ...]:
        return tuple(slice(*each) if isinstance(each, tuple) else each for each in self.index)


@dataclass(frozen=True)
class Carried:
    """A value of the step before, by its number in a step; before the first step, `start`."""

    number: int
    start: Tensor


@dataclass(frozen=True)
class Local:
    """A value of the same step, by its number there."""

    number: int


@dataclass(frozen=True)
class Written:
    """A tensor from outside that steps write: what the step before has left in it."""

    start: Tensor


Source = Rows | Carried | Local | Written | Tensor


@dataclass
class Loop:
    """sources: of every operand of a call of a step, by its place there, in the order of `references`. cut: calls that take rows, and their
    values. put: calls that write a value of a step to the next row of a tensor, which nothing reads in the loop: the rows, and the value's
    number. writes: other calls that write, and whose memory: that of a tensor, or of a value of the step. views: values in the memory of
    tensors that are written."""

    sources: dict[int, list[Source]] = field(default_factory=dict)
    cut: dict[int, Rows] = field(default_factory=dict)
    put: dict[int, tuple[Rows, int]] = field(default_factory=dict)
    writes: dict[int, Written | Local] = field(default_factory=dict)
    views: set[int] = field(default_factory=set)

    def of_kind(self, kind: type) -> list[Any]:
        """The different sources of a kind, in the order of their first use."""
        return list(dict.fromkeys(each for found in self.sources.values() for each in found if isinstance(each, kind)))

    def needed_for(self, wanted: Iterable[int], firsts: Sequence[int]) -> Loop:
        """The loop without the calls that these values do not need. firsts: the first value of each call."""
        needed, pending = set[int](), [*self.writes, *(bisect_right(firsts, number) - 1 for number in wanted)]
        while pending:
            call = pending.pop()
            if call not in needed:
                needed.add(call)
                numbers = [each.number for each in self.sources.get(call, ()) if isinstance(each, Local | Carried)]
                pending += [bisect_right(firsts, number) - 1 for number in numbers]
        return Loop({call: found for call, found in self.sources.items() if call in needed}, self.cut, self.put, self.writes, self.views)

    def gradients_of(self, wanted: int | Written, firsts: Sequence[int], differentiable: Container[int | Written]) -> set[Source]:
        """The operands from outside that gradients of a value, or of what is written, go to. differentiable: what requires gradients."""
        found, seen, pending = set[Source](), set[int | Written](), [wanted]
        while pending:
            value = pending.pop()
            if value in seen or value not in differentiable:
                continue
            seen.add(value)
            own = value if isinstance(value, Written) else Local(value)
            given = [each for call, root in self.writes.items() if root == own for each in self.sources[call]]
            if isinstance(value, Written):
                given.append(value)
            else:
                given += [self.cut[value]] if value in self.cut else self.sources[bisect_right(firsts, value) - 1]
            found |= {each for each in given if not isinstance(each, Local)}
            pending += [each if isinstance(each, Written) else each.number for each in given if isinstance(each, Local | Carried | Written)]
        return found


@dataclass(frozen=True)
class Pattern:
    """What traces have in common that differ by numbers of steps: signatures of the calls of their parts, and a key."""

    parts: Sequence[tuple[str, tuple[Hashable, ...]]]
    key: Hashable


class Unrolled:
    """The parts of a trace. loops: by their places among these; where: for each value its part, its number in a step, and the step."""

    def __init__(self, outline: Outline) -> None:
        self.steps, self.scalars = list(map(_as_others, outline.steps)), outline.run.scalars
        self.outline: Outline = weakref.proxy(outline)  # which may have this: nothing is to keep the run's tensors
        self.parts, self.loops = list[Part](), dict[int, Loop]()
        self.where: list[tuple[int, int, int]] = []
        self.turned = frozenset(number for step in self.steps for number in step.turns)  # to requiring gradients

    # --- names -------------------------------------------------------------------------------------------------------------------------

    def append(self, part: Part) -> None:
        self.parts.append(part)
        self.where += [(len(self.parts) - 1, number, step) for step in range(part.count) for number in range(part.width)]

    def name(self, number: int) -> Name:
        place, own, step = self.where[number]
        return Name(place, own, None if step == self.parts[place].count - 1 else step)

    def tensor(self, reference: Value | Input) -> Tensor:
        return self.name(reference.number) if isinstance(reference, Value) else reference

    def row(self, number: int) -> tuple[Tensor | Every, int, int] | None:
        """The sequence that a value is a row of, along which dim, and which row: one that a call gives all rows of, or a loop takes rows
        of; or a step's value."""
        place, own, step = self.where[number]
        part = self.parts[place]
        if part.kind == "loop":
            rows = self.loops[place].cut.get(own)
            if rows is None:
                return Every(place, own), 0, step
            if rows.kept or rows.index:
                return None
            return rows.of, rows.dim, rows.begin + (part.count - 1 - step if rows.backwards else step)
        return None if part.kind == "call" else (*self.unbound(part), step)

    def unbound(self, part: Part) -> tuple[Tensor, int]:
        """The tensor that a call gives all rows of, and along which dim."""
        unbind = self.steps[part.first]
        (source, *others), named = unbind.args, unbind.kwargs
        dim = others[0] if others else named.get("dim", 0)
        return self.tensor(source), int(self.scalars[part.first][dim.place]) if isinstance(dim, Scalar) else dim

    def is_cut(self, part: int, call: int) -> bool:
        """Whether a call of a part takes a row of a sequence, so that its numbers say which step it is."""
        return part in self.loops and call not in self.loops[part].sources

    def key(self) -> Hashable:
        """The same for traces that differ by numbers of steps, sizes and other numbers alone."""
        return tuple(self._key(place, part) for place, part in enumerate(self.parts))

    def _key(self, place: int, part: Part) -> Hashable:
        step = self.steps[part.first]
        if part.kind == "call":
            return signature(step), self.given(step), tuple(self._result(each) for each in step.results)
        if part.kind == "rows":
            return signature(step), self.given(step)
        body = self.steps[part.first : part.first + part.period]
        loop = self.loops[place]
        given = tuple((signature(each), tuple(loop.sources.get(number, ()))) for number, each in enumerate(body))
        return given, tuple(loop.cut.items()), tuple(loop.put.items())

    def _result(self, result: object) -> object:
        if isinstance(result, Made):
            return result.dtype, result.requires_grad, None if result.root is None else self.tensor(result.root)
        return self.tensor(result) if isinstance(result, Value | Input) else None

    def given(self, step: Step) -> Hashable:
        """The tensors among a call's arguments."""
        found = [self.joined(each) for each in (*step.args, *step.kwargs.values())]
        return tuple(tuple(each) for each in found)

    def joined(self, argument: Any) -> list[Tensor | tuple[Every, bool]]:
        """The tensors of an argument. Values of all steps of a loop, one behind the other, are one: forwards, or (True) backwards."""
        given, found = references(argument), list[Tensor | tuple[Every, bool]]()
        while given:
            count, every = self._all_steps(given)
            found.append(every if every is not None else self.tensor(given[0]))
            del given[: count or 1]
        return found

    def _all_steps(self, given: Sequence[Value | Input]) -> tuple[int, tuple[Every, bool] | None]:
        first = given[0]
        if not isinstance(first, Value):
            return 0, None
        place, own, step = self.where[first.number]
        part = self.parts[place]
        if part.kind != "loop" or step not in (0, part.count - 1):
            return 0, None
        width = part.width if step == 0 else -part.width
        if list(given[: part.count]) != [Value(first.number + n * width) for n in range(part.count)]:
            return 0, None
        return part.count, (Every(place, own), step > 0)

    # --- taking a trace apart ----------------------------------------------------------------------------------------------------------

    def find(self, fewest: int) -> None:
        """Looks for loops of so many steps and more. Where there are none, all parts are calls."""
        codes = self._codes()
        candidates = sorted(runs(codes, fewest), key=lambda run: (-run.size, run.period))[:MOST_TRIED]
        place = 0
        while place < len(self.steps):
            place = self._append_loop(place, candidates, codes, fewest) or self._append_call(place)
        if not self.loops or not self._is_apart():
            self.take_calls()

    def take_calls(self) -> None:
        """Every call is a part."""
        self.parts, self.loops, self.where = [], {}, []
        for place, step in enumerate(self.steps):
            self.append(Part("call", place, step.first, _made(step)))

    def pattern(self) -> Pattern:
        bodies = [(part.kind, tuple(map(signature, self.steps[part.first : part.first + part.period]))) for part in self.parts]
        return Pattern(bodies, self.key())

    def follow(self, pattern: Pattern) -> bool:
        """Takes the trace apart as another one. Whether that can be, and it has the same key."""
        place = 0
        for kind, calls in pattern.parts:
            count = self._repeated(place, calls, most=None if kind == "loop" else 1)
            if kind != "loop" and count:
                place = self._append_call(place)
                continue
            count, loop = self._largest(place, len(calls), count, 2)
            if loop is None:
                return False
            place = self._append(place, len(calls), count, loop)
        return place == len(self.steps) and self.key() == pattern.key and self._is_apart()

    def _is_apart(self) -> bool:
        """Whether nothing is written that shares memory with what loops make: a scan's results have memory of their own. Rows that are read
        outside of their loop share that of their sequence."""
        kept = {self._root(rows.of) for loop in self.loops.values() for rows in loop.cut.values()}
        for place, part in enumerate(self.parts):
            roots = {self._root(each) for each in self._written(place, part)}
            if any(isinstance(each, Name) and self.parts[each.part].kind == "loop" for each in roots) or not roots.isdisjoint(kept):
                return False
        return self._is_alike()

    def _is_alike(self) -> bool:
        """Whether all values in memory that is written in loops, or comes to require gradients, require them, or none does: of a view that
        was made before, PyTorch makes the graph anew, and a step does not."""
        loops = [(part, self.loops[place]) for place, part in enumerate(self.parts) if part.kind == "loop"]
        calls = [
            part.first + call + step * part.period
            for part, loop in loops
            for call in (*loop.writes, *loop.put)
            for step in range(part.count)
        ]
        written = {references(self.steps[call].args[0])[0] for call in calls}
        memory = {self._memory(each) for each in (*written, *map(Value, self.turned))}
        kinds = {each: self.requires_gradients(self.tensor(each)) for each in memory}
        values = ((each, self._memory(each)) for each in map(Value, self.outline.made))
        return all(self.requires_gradients(self.tensor(each)) == kinds[root] for each, root in values if root in kinds)

    def _written(self, place: int, part: Part) -> list[Tensor]:
        """The tensors that a part may write, but for what is its own."""
        if part.kind == "loop":
            loop = self.loops[place]
            return [
                *(each.start for each in loop.of_kind(Written)),
                *(rows.of for rows, _ in loop.put.values() if not isinstance(rows.of, Every)),
            ]
        step = self.steps[part.first]
        if not step.writes:
            return []
        everything = not writes(step.func, step.kwargs)  # by its name, it may write any
        written = references((step.args if everything else step.args[:1], step.kwargs if everything else step.kwargs.get("out")))
        return [self.tensor(each) for each in written]

    def _memory(self, tensor: Value | Input) -> Value | Input:
        """Whose memory it has."""
        return (self.outline.made[tensor.number].root or tensor) if isinstance(tensor, Value) else tensor

    def _root(self, tensor: Tensor | Every) -> Tensor | Every:
        """Whose memory it has."""
        if isinstance(tensor, Input):
            return Input(self.outline.twins.get(tensor.number, tensor.number))
        above = None if isinstance(tensor, Every) else self._facts(tensor).root
        return tensor if above is None else self._root(self.tensor(above))

    def _facts(self, name: Name) -> Made:
        part = self.parts[name.part]
        step = part.count - 1 if name.step is None else name.step
        return self.outline.made[part.value + step * part.width + name.number]

    def requires_gradients(self, tensor: Tensor) -> bool:
        """Behind all that is written to it."""
        if isinstance(tensor, Input):
            return self.outline.tensors[tensor.number].requires_grad
        part = self.parts[tensor.part]
        step = part.count - 1 if tensor.step is None else tensor.step
        return self.value_requires_gradients(part.value + step * part.width + tensor.number)

    def value_requires_gradients(self, number: int) -> bool:
        return number in self.turned or self.outline.made[number].requires_grad

    def _repeated(self, place: int, calls: tuple[Hashable, ...], most: int | None) -> int:
        """How often the calls from a place on are these."""
        count = 0
        while count != most and tuple(map(signature, self.steps[place : place + len(calls)])) == calls:
            count, place = count + 1, place + len(calls)
        return count

    def _append_call(self, place: int) -> int:
        step = self.steps[place]
        made = _made(step)
        if _unbinds(step.func) and made:
            self.append(Part("rows", place, step.first, 1, count=made))
        else:
            self.append(Part("call", place, step.first, made))
        return place + 1

    def _append_loop(self, place: int, candidates: Sequence[Run], codes: Codes, fewest: int) -> int | None:
        """A loop whose last step is whole, if there is one: what stands in front of a loop has the same numbers for any number of steps."""
        for run in candidates:
            end = run.first + run.size
            while end < len(codes) and codes[end] == codes[end - run.period]:
                end += 1
            count, ahead = divmod(end - place, run.period)
            if not run.first <= place < run.first + run.size or count < fewest:
                continue
            before = len(self.parts), len(self.where)
            for shift in dict.fromkeys((ahead, 0)):
                for number in range(shift):
                    self._append_call(place + number)
                found, loop = self._largest(place + shift, run.period, count, fewest)
                if loop is not None and (found == count or not shift):
                    return self._append(place + shift, run.period, found, loop)
                del self.parts[before[0] :], self.where[before[1] :]
        return None

    def _largest(self, place: int, period: int, count: int, fewest: int) -> tuple[int, Loop | None]:
        """The loop of most steps, `count` at most, and how many it has: two loops may stand one behind the other."""
        least, most, found = fewest - 1, count + 1, None
        while least + 1 < most:
            loop = self._match(place, period, count)
            least, most, found = (count, most, loop) if loop is not None else (least, count, found)
            count = (least + most) // 2
        return least, found

    def _append(self, place: int, period: int, count: int, loop: Loop) -> int:
        steps = self.steps[place : place + period]
        made = sum(map(_made, steps))
        self.loops[len(self.parts)] = loop
        self.append(Part("loop", place, steps[0].first, made, period, count))
        return place + period * count

    def _codes(self) -> Codes:
        """Equal ones for calls that are alike, but for the tensors that they take, and which row."""
        known: dict[Hashable, int] = {}
        keys = ((signature(step), self._numbers(place)) for place, step in enumerate(self.steps))
        return np.array([known.setdefault(key, len(known)) for key in keys], np.int64)

    def _numbers(self, place: int) -> tuple[str | None, ...]:
        """Those of a call as Python writes them, but for which row it takes: zeros have a sign."""
        skipped = {number for taken in _rows_taken(self.steps[place], self.scalars[place]) for number in taken.places}
        return tuple(None if number in skipped else repr(each) for number, each in enumerate(self.scalars[place]))

    def _match(self, first: int, period: int, count: int) -> Loop | None:
        """The loop that calls are, or None."""
        steps = [self.steps[first + number * period :][:period] for number in range(count)]
        if not all(map(_may_repeat, steps[0])):
            return None
        start = steps[0][0].first
        width = sum(map(_made, steps[0]))
        loop, numbers = Loop(), list(range(first, first + period * count, period))
        for place in range(period):
            calls = [each[place] for each in steps]
            of_calls = [references((each.args, each.kwargs)) for each in calls]
            if len(set(map(len, of_calls))) > 1:  # lists of tensors: calls are alike for any number of these
                return None
            operands = list(zip(*of_calls, strict=True))
            found = [source for given in operands if (source := self._source(given, start, width, loop)) is not None]
            if len(found) < len(operands):
                return None
            given = [self.scalars[number + place] for number in numbers]
            rows = self._rows_cut(found[0], calls[0], given) if found else None
            if rows is not None:
                if calls[0].func == _INDEXING or calls[0].func in SELECTING:
                    loop.cut[calls[0].first - start] = rows
                    continue
                if not rows.kept and len(found) == len(("tensor", "value")) and isinstance(value := found[1], Local):
                    loop.put[place] = rows, value.number
                    continue
            if len(set(map(repr, given))) > 1:
                return None
            loop.sources[place] = found
        ours = [self._roots(number, start, width, count, loop) for number in range(width)]
        return loop if self._keeps_kinds(loop, steps[0], start) and self._find_writes(loop, steps[0], start, ours) else None

    def _source(self, given: Sequence[Value | Input], start: int, width: int, loop: Loop) -> Source | None:
        """What one operand is in all steps; start: the first value of the first step, width: how many values one makes."""
        first = given[0]
        outside = isinstance(first, Input) or first.number < start
        if all(each == first for each in given):
            return self.tensor(first) if outside else None
        if isinstance(given[-1], Input):
            return None
        if outside:
            before = {each.number - start - step * width if isinstance(each, Value) else -1 for step, each in enumerate(given[1:])}
            number = before.pop()
            return Carried(number, self.tensor(first)) if not before and 0 <= number < width else self._rows(given, start)
        own = {each.number - start - step * width if isinstance(each, Value) else -1 for step, each in enumerate(given)}
        return self._local(own.pop(), width, loop) if len(own) == 1 else None

    def _local(self, number: int, width: int, loop: Loop) -> Source | None:
        return loop.cut.get(number) or Local(number) if 0 <= number < width else None

    def _rows(self, given: Sequence[Value | Input], start: int) -> Rows | None:
        """The rows of one sequence that values are, one after the other."""
        if any(isinstance(each, Input) or each.number >= start for each in given):
            return None
        found = [self.row(each.number) for each in given if isinstance(each, Value)]
        if any(each is None for each in found):
            return None
        (source, dim, _), numbers = found[0], [each[2] for each in found if each is not None]  # pyright: ignore[reportGeneralTypeIssues]
        if any(each is None or each[:2] != (source, dim) for each in found):
            return None
        return _one_after_the_other(Rows(source, dim, 0, backwards=False), numbers)

    def _rows_cut(self, source: Source, call: Step, given: Sequence[Sequence[float]]) -> Rows | None:
        """The rows that calls of one form with these numbers take one after the other."""
        if not isinstance(source, Name | Input):
            return None
        found = (taken.rows(source, given) for taken in _rows_taken(call, given[0]))
        return next((rows for rows in found if rows is not None), None)

    def _roots(self, number: int, start: int, width: int, count: int, loop: Loop) -> Source | None:
        """Whose memory a value has in all steps; None where that is no one's."""
        roots = [self._memory(Value(start + number + step * width)) for step in range(count)]
        return self._source(roots, start, width, loop)

    def _find_writes(self, loop: Loop, body: Sequence[Step], start: int, roots: Sequence[Source | None]) -> bool:
        """Finds what the calls of a step write; whether that is what they have made, or tensors from outside that nothing else in the loop
        shares memory with. roots: of the values of a step."""
        for place, step in enumerate(body):
            if not _writes(step) or place in loop.put:
                continue
            target = loop.sources[place][0]
            root = roots[target.number] if isinstance(target, Local) else target
            if isinstance(root, Name | Input) and self._root(root) == root and root not in self._shared():
                root = Written(root)
            if not isinstance(root, Written | Local):
                return False
            loop.writes[place] = root
        for root in set(loop.writes.values()):  # the graph of a step knows of none that gradients are off in
            gradients = {body[place].context.grad for place, each in loop.writes.items() if each == root}
            if isinstance(root, Written):
                differentiable = self.requires_gradients(root.start)
            else:
                differentiable = self.value_requires_gradients(start + root.number)
            if len(gradients) > 1 or (gradients == {False} and differentiable):
                return False
        written = dict[Source | None, Written]((each.start, each) for each in loop.writes.values() if isinstance(each, Written))
        return self._puts_apart(loop, body, [*roots, *written]) and (not written or self._writes_apart(loop, written, roots))

    def _puts_apart(self, loop: Loop, body: Sequence[Step], roots: Sequence[Source | None]) -> bool:
        """Whether the tensors whose rows are written are in memory that nothing else in the loop reads, or writes but at the same row.
        roots: of the values of a step, and of what it writes otherwise."""
        spans = dict[Tensor | Every, tuple[int, int, bool, bool]]()
        for place, (rows, _) in loop.put.items():
            root, grad = rows.of, body[place].context.grad
            if (
                isinstance(root, Every)
                or self._root(root) != root
                or root in self._shared()
                or (not grad and self.requires_gradients(root))
            ):
                return False
            span = rows.dim, rows.begin, rows.backwards, grad
            if spans.setdefault(root, span) != span:
                return False
        return spans.keys().isdisjoint(map(self._root, self._read(loop))) and spans.keys().isdisjoint(roots)

    def _read(self, loop: Loop) -> list[Tensor | Every]:
        """What is from outside, but for what is written."""
        rows = [each.of for each in (*loop.of_kind(Rows), *loop.cut.values())]
        return [*loop.of_kind(Name), *loop.of_kind(Input), *rows, *(each.start for each in loop.of_kind(Carried))]

    def _writes_apart(self, loop: Loop, written: Mapping[Source | None, Written], roots: Sequence[Source | None]) -> bool:
        """Gives what is written its name; whether nothing else in the loop shares memory with it."""
        loop.views = {number for number, root in enumerate(roots) if root in written}
        loop.sources = {place: [written.get(each, each) for each in found] for place, found in loop.sources.items()}
        back = {each.number for each in loop.of_kind(Carried)}
        return back.isdisjoint(loop.views) and all(self._root(each) not in written for each in self._read(loop))

    def _shared(self) -> set[Tensor]:
        """Inputs that share a part of their memory with others."""
        return {Input(number) for number in self.outline.sharing}

    def _keeps_kinds(self, loop: Loop, body: Sequence[Step], start: int) -> bool:
        """Whether what is carried has one dtype, before the first step too."""
        made = {step.first - start + n: each for step in body for n, each in enumerate(e for e in step.results if type(e) is Made)}
        return all(self._dtype(each.start) == made[each.number].dtype for each in loop.of_kind(Carried))

    def _dtype(self, tensor: Tensor) -> torch.dtype:
        return self.outline.tensors[tensor.number].dtype if isinstance(tensor, Input) else self._facts(tensor).dtype


@dataclass(frozen=True)
class _Taken:
    """What a call that takes one row of its first argument along `dim` does. places: of the numbers that say which row; index: what of
    it is taken."""

    dim: int
    places: tuple[int, ...]
    kept: bool = False
    index: tuple[Any, ...] = ()

    def rows(self, source: Tensor, numbers: Sequence[Sequence[float]]) -> Rows | None:
        """The rows that such calls with these numbers take one after the other."""
        found = [int(each[self.places[0]]) for each in numbers]
        if self.kept and any(each[self.places[1]] != number + 1 for number, each in zip(found, numbers, strict=True)):
            return None
        others = [n for n in range(len(numbers[0])) if n not in self.places]
        if any(each[n] != numbers[0][n] for each in numbers for n in others):
            return None
        return _one_after_the_other(Rows(source, self.dim, 0, False, self.kept, self.index), found)


def _one_after_the_other(rows: Rows, numbers: Sequence[int]) -> Rows | None:
    """The rows with these numbers of the sequence of `rows`."""
    step = numbers[1] - numbers[0]
    if step not in (1, -1) or list(numbers) != list(range(numbers[0], numbers[0] + step * len(numbers), step)) or min(numbers) < 0:
        return None
    return replace(rows, begin=min(numbers), backwards=step < 0)


def _rows_taken(step: Step, numbers: Sequence[float]) -> list[_Taken]:
    """What the call may do if it takes a row, or writes one: by an index of several numbers, each may be the row's. numbers: of its
    arguments."""
    if step.kwargs:
        return []
    if step.func in SELECTING and len(step.args) == len(("tensor", "dim", "index")):
        return [_Taken(int(numbers[0]), (1,))] if all(isinstance(each, Scalar) for each in step.args[1:]) else []
    if step.func not in (_INDEXING, _PUTTING):
        return []
    index = step.args[1] if isinstance(step.args[1], tuple) else (step.args[1],)
    if not all(each is None or each is Ellipsis or isinstance(each, Scalar | slice) for each in index):
        return []
    found, plain = list[_Taken](), [each for each in index if each != WHOLE and each is not Ellipsis]
    for place, each in enumerate(index):
        dim = _dim(index, place)
        if isinstance(each, Scalar):
            others = (*index[:place], *index[place + 1 :])
            taken = tuple(_entry(other, numbers) for other in others) if len(plain) > 1 else ()
            found.append(_Taken(dim, (each.place,), index=taken))
        elif (
            len(plain) == 1
            and isinstance(each, slice)
            and each.step is None
            and isinstance(each.start, Scalar)
            and isinstance(each.stop, Scalar)
        ):
            found.append(_Taken(dim, (each.start.place, each.stop.place), kept=True))
    return found


def _dim(index: Sequence[Any], place: int) -> int:
    """Which dim of a tensor an entry of its index is for; from the last one where that many dims may be in front."""
    before, behind = (sum(each is not None for each in part) for part in (index[:place], index[place + 1 :]))
    return -1 - behind if Ellipsis in index[:place] else before


def _entry(entry: Any, numbers: Sequence[float]) -> Any:
    """Of an index, with its numbers."""
    if isinstance(entry, slice):
        return tuple(_entry(each, numbers) for each in (entry.start, entry.stop, entry.step))
    return int(numbers[entry.place]) if isinstance(entry, Scalar) else entry


def _may_repeat(step: Step) -> bool:
    """Whether it only makes tensors of tensors, or writes its first argument."""
    if step.alone or step.func in (GRADIENT, SET_GRADIENT, *PASSES):
        return False
    if not _writes(step):
        return bool(step.results) and all(type(each) is Made for each in step.results)
    (target, *_), given = step.args or (None,), step.results
    named = writes(step.func, step.kwargs) and "out" not in step.kwargs
    return isinstance(target, Value | Input) and (given == (target,) or (named and given == (None,)))


def _writes(step: Step) -> bool:
    return step.writes or writes(step.func, step.kwargs)


def _as_others(step: Step) -> Step:
    """The call under the name that PyTorch has for it in all steps: operators of tensors that were there before the first step have other
    names than those of what steps make, and an operator whose right operand alone was made is the reflected one."""
    if step.func in _REFLECTED and not (step.kwargs or isinstance(step.args[1], Scalar)):
        return replace(step, func=_REFLECTED[step.func], args=(step.args[1], step.args[0]))
    return replace(step, func=_OPERATORS[step.func]) if step.func in _OPERATORS else step


def signature(step: Step) -> Hashable:
    """Of a call without the tensors and numbers that it takes."""
    made = tuple((each.dtype, each.requires_grad, each.root is None) if type(each) is Made else type(each) for each in step.results)
    what = (step.func.function, made[:1]) if isinstance(step.func, Counted) and _unbinds(step.func) else (step.func, made)
    return what, _structure(step.args), _structure(step.kwargs), step.context


def _unbinds(func: object) -> bool:
    return isinstance(func, Counted) and func.function in UNBINDING


def _made(step: Step) -> int:
    """How many values it makes."""
    return sum(type(each) is Made for each in step.results)


def _structure(template: Any) -> Hashable:
    kind = type(template)
    if kind in (Value, Input):
        return Value
    if kind is Scalar:
        return Scalar
    if kind is dict:
        return dict, tuple((name, _structure(each)) for name, each in template.items())
    if kind is slice:
        return slice, tuple(_structure(each) for each in (template.start, template.stop, template.step))
    if kind in (list, tuple):
        tensors = bool(template) and all(type(each) in (Value, Input) for each in template)
        return kind, Value if tensors else tuple(_structure(each) for each in template)
    return kind, repr(template) if kind in (float, complex) else template  # zeros have a sign
