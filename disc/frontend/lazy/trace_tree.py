"""What a recorder has of the tree of its traces: where runs begin, which steps calls become, and what these give.

The tree itself is C++'s (`_ral.Follower`), which compares calls with it; here is what it is told of calls that PyTorch has run. Which calls
those are is in `recording.py`, and how a run ends in `run_ends.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from disc.frontend.lazy.calls import GRADIENT, POSITIONAL_VALUE, TENSORS, VARYING, Input, Scalar, Value, references
from disc.frontend.lazy.replay import user_place
from disc.frontend.lazy.tensors import LazyTensor, flat, real
from disc.frontend.lazy.traces import Context, Made, Result, Run, Step, root
from disc.ral._ral import Follower, LazyCall


class TraceTree:
    """follower: which has the tree, and the run that is being recorded. steps: calls of all traces, so far."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.steps = 0
        self._roots: dict[object, Step] = {}
        self._contexts: dict[tuple[bool, torch.dtype | None], Context] = {}
        self.begin()

    @property
    def run(self) -> Run:
        """That is being recorded."""
        return self.follower.run

    def begin(self) -> None:
        """A new run, at the root for the default dtype; the one before is not the follower's any more."""
        state = torch.get_default_dtype()
        begin = self._roots.get(state)
        if begin is None:
            begin = self._roots[state] = root(Context(True, None), self.follower.add_root())
        self.follower.begin(begin, begin.number, state)

    def follow_default_dtype(self) -> None:
        """Traces begin anew for another default dtype."""
        if self.run.here.before is None and self.run.here is not self._roots.get(torch.get_default_dtype()):
            self.begin()

    def clear(self) -> None:
        """Forgets all traces."""
        self.follower.forget_traces()
        self._roots.clear()

    def context(self) -> Context:
        """As calls are made now; one object for all that agree."""
        grad, autocast = torch.is_grad_enabled(), autocast_dtype()
        return self._contexts.setdefault((grad, autocast), Context(grad, autocast))

    def maker(self, value: LazyTensor) -> Step:
        """The call that has made a value."""
        return next(each for each in reversed(value._run.here.steps()) if each.first <= value._number and _makes(each))

    def end_behind(self, step: Step) -> None:
        """From now on traces end behind a call."""
        step.ends = True
        self.follower.set_ends(step.number)

    def is_apart(self, tensor: Any) -> bool:
        """Whether it is a value of the run, in memory of its own."""
        return type(tensor) is LazyTensor and tensor._run is self.run and type(tensor._facts.root) is not Input

    def owner(self, place: Result) -> Any:
        """The caller's object for a value or an input of the run."""
        run = self.run
        assert isinstance(place, Value | Input)
        return run.proxy(place.number) if type(place) is Value else run.given[place.number]

    def forget(self, call: LazyCall, run: Run) -> None:
        """A call that is no part of the run: what it alone takes is no input of the program, then."""
        if self.run is run:
            self.follower.forget(call)

    def grown(
        self, call: LazyCall, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], state: Context, results: tuple[Result, ...],
        form: pytree.TreeSpec | None,
    ) -> Step:  # fmt: skip
        """A new step behind where the run is."""
        run, count = self.run, [0]
        line, trace = user_place()
        template = tuple([self._argument_template(each, count) for each in args])
        named = {name: self._argument_template(each, count) for name, each in kwargs.items()}
        reals = any(type(each) is float for each in (*args, *kwargs.values()))
        floats = _varying_floats(func, args, kwargs) if reals else None
        step = Step(
            func, template, named, state, run.here, run.proxy_count, floats=floats, results=results, form=form, line=line, trace=trace
        )
        step.number = self.follower.add(call, step, floats is not None)
        self._tell_results(step)
        self.steps += 1
        run.here.branches[func] += 1
        return step

    def renewed(self, step: Step, results: tuple[Result, ...]) -> bool:
        """Whether a known call gives what it has given before. What is a view for some sizes and a copy for others is what it is now."""
        if results == step.results:
            return True
        pairs = list(zip(results, step.results, strict=False))
        if len(results) != len(step.results) or any(
            type(one) is not type(other) or (type(one) is not Made and one != other) for one, other in pairs
        ):
            return False
        step.results = results
        self._tell_results(step)
        return True

    def renew_roots(self, run: Run, values: Sequence[torch.Tensor]) -> None:
        """PyTorch has made the calls of a run: what they give are views or copies as they are now."""
        inputs, facts = run.inputs, list[Made]()
        for step in run.here.steps():
            given = [(facts[each.number].root or each, values[each.number]) if isinstance(each, Value) else (each, inputs[each.number])
                     for each in references((step.args, step.kwargs))]  # fmt: skip
            results, number = list(step.results), step.first
            for place, known in enumerate(results):
                if type(known) is Made:
                    root = _root_of(values[number], given, run)
                    if not any(root is each for each, _ in given) and root != known.root:
                        root = None  # an input that has come since
                    facts.append(replace(known, root=root))
                    results[place], number = facts[-1], number + 1
            self.renewed(step, tuple(results))
        for number in run.live():
            run.proxy(number)._facts = facts[number]

    def place(self, leaf: torch.Tensor | None, func: Callable[..., Any], args: Any, kwargs: Any, same: bool) -> Result:
        """What a result is: one of the arguments, or a new tensor, which may share the memory of one. same: whether an argument stays what
        it is when it is given back. A call that changes nothing (`contiguous`) may do so for some sizes alone: there it is
        another tensor."""
        if leaf is None:
            return None
        run = self.run
        number = run.number_of(leaf) if same else None
        if number is not None:
            return Input(number)
        number = run.value_of(leaf) if func == GRADIENT else None  # one object, whenever it is read
        if number is not None:
            return Value(number)
        given = list[tuple[Value | Input, torch.Tensor]]()
        for each in flat((args, tuple(kwargs.values()))):
            if type(each) is LazyTensor and each._run is run:
                if same and each._value is leaf:
                    return Value(each._number)
                given.append((each._facts.root or Value(each._number), real(each)))
            else:
                given.append((Input(self._input(real(each))), real(each)))
        return Made(leaf.dtype, leaf.device, leaf.requires_grad, leaf.is_leaf, _root_of(leaf, given, run))

    def _tell_results(self, step: Step) -> None:
        """The follower gives them from now on."""
        form = step.form
        shallow = form is not None and form.type in (tuple, list) and all(each.is_leaf() for each in form.children())
        codes = [_code(each) for each in step.results]
        self.follower.set_results(step.number, codes, list(step.results), None if form is None else form.type if shallow else form)

    def _argument_template(self, value: Any, count: list[int]) -> Any:
        if type(value) is float:
            count[0] += 1
            return Scalar(count[0] - 1)
        return self._template(value, count)

    def _template(self, value: Any, count: list[int]) -> Any:
        """An argument with places in it. count: numbers seen so far."""
        kind = type(value)
        if kind is LazyTensor:
            return Value(value._number) if value._run is self.run else Input(self._input(value._value))
        if kind in TENSORS:
            return Input(self._input(value))
        if kind is int:
            count[0] += 1
            return Scalar(count[0] - 1)
        if kind is tuple or kind is list or kind is torch.Size:
            return (list if kind is list else tuple)([self._template(each, count) for each in value])
        if kind is slice:
            return slice(*[self._template(each, count) for each in (value.start, value.stop, value.step)])
        if kind is dict:
            return {name: self._template(each, count) for name, each in value.items()}
        return value

    def _input(self, tensor: object) -> int:
        """The number of an input that the run has."""
        number = self.run.number_of(tensor)
        assert number is not None
        return number


def autocast_dtype() -> torch.dtype | None:
    """In which calls are computed on the CPU now; None where autocast is off."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def _varying_floats(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    """The dtype of what floats of the call are computed with; None where they have to stay what they are."""
    if func not in VARYING:
        return None
    dtypes = {(each._facts if type(each) is LazyTensor else each).dtype for each in flat((args, tuple(kwargs.values())))}
    scales = "alpha" in kwargs or "value" in kwargs or len(args) == POSITIONAL_VALUE
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64} or (scales and not flat(args[1:2])):
        return None
    return dtypes.pop()


def _code(result: Result) -> int:
    """As `_ral.Follower.set_results` takes it: -1: None, -2: a new one, 2 n: value n, 2 n + 1: input n."""
    if result is None:
        return -1
    return -2 if isinstance(result, Made) else 2 * result.number + isinstance(result, Input)


def _root_of(leaf: torch.Tensor, given: Iterable[tuple[Value | Input, torch.Tensor]], run: Run) -> Value | Input | None:
    """Whose memory a result has: an argument's, or that of what the run has seen before (a parameter's gradient). None for its own."""
    memory = leaf.untyped_storage()
    for above, tensor in given:
        if tensor.untyped_storage()._cdata == memory._cdata:
            return above
    first = run.first_in(memory.data_ptr(), memory.nbytes())
    return None if first is None else Input(first)


def _makes(step: Step) -> bool:
    """Whether a call makes a value."""
    return any(type(each) is Made for each in step.results)
