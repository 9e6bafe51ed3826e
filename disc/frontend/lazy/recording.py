"""What becomes of a call that no compiled trace goes through: an answer, a call of PyTorch's, or a step of a trace.

Questions are answered by what is known of a tensor (`facts.py`). What needs the tensor itself ends the run that is being recorded
(`run_ends.py`), and is PyTorch's. All others are compared with the tree of traces, run by PyTorch at once, and noted (`trace_tree.py`).
Behind calls that make what gradients are asked for later, traces end from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._C import _EnableTorchFunction
from torch.utils import _pytree as pytree

from disc.frontend.backend_settings import Settings
from disc.frontend.dynamo import without_function_modes
from disc.frontend.lazy.calls import (
    BACKWARD,
    DELETE_GRADIENT,
    DRAWING,
    FACTS,
    FILLED_BY_CHANCE,
    GRADIENT,
    GRADIENT_FUNCTION,
    MAKING,
    OF_CONSTANTS,
    PASSES,
    READS,
    SET_GRADIENT,
    SIZED,
    TENSORS,
    WATCHED,
    Counted,
    Value,
    asked_for,
    is_plain,
    writes,
)
from disc.frontend.lazy.facts import OF_GRADIENTS, UNKNOWN, by_data, fact
from disc.frontend.lazy.replay import user_place
from disc.frontend.lazy.run_ends import RunEnds
from disc.frontend.lazy.statistics import LazyStatistics
from disc.frontend.lazy.tensors import LazyTensor, become_plain, flat, real
from disc.frontend.lazy.trace_tree import TraceTree
from disc.frontend.lazy.traces import Made, Run, Step
from disc.ral._ral import LazyCall

MOST_KNOWN = 1 << 16  # functions, constants of calls, and kinds of inputs: calls with others are PyTorch's
MOST_BRANCHES = 64  # calls of one function that traces go on with behind the same call: a number may differ in every step
RECORDED, FACT, READ, BACKWARD_PASS, DRAWN, PERHAPS_READ, MADE, ROLES = 0, 1, 2, 3, 4, 5, 6, 8  # what a function is to the follower


class WritesOutsideError(Exception):
    """A function that is differentiated writes what it has not made."""


class Recording:
    """occupied: how many hooks, and functions of others, are running now whose calls are not to be recorded."""

    def __init__(self, tree: TraceTree, ends: RunEnds, settings: Settings, statistics: LazyStatistics) -> None:
        self.occupied = 0
        self._tree, self._ends, self._statistics = tree, ends, statistics
        self._follower = tree.follower
        self._draws_in_order = settings.options.random == "eager"
        self._within: tuple[Run, int] | None = None  # a function that is differentiated: of which run, from which value on

    def taken(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the caller gets for a call. Raises: what the call raises, and as `_expect`."""
        if not self._follower.active or torch._C._are_functorch_transforms_active():
            return func(*real(args), **real(kwargs))
        if func == DELETE_GRADIENT:
            func, args = SET_GRADIENT, (args[0], None)
        role = self._role(func)
        if role == FACT:
            return self._fact(FACTS[func], func, args, kwargs)
        if func in DRAWING:
            self._draw()
        if func in SIZED and not self._follower.stopped:
            counted = self._counted(func, args, kwargs)
            role = READ if counted is None else self._role(counted)
            func = counted or func
        if role == PERHAPS_READ and func in OF_CONSTANTS and self._is_constant(args[0], func, args[1:], kwargs):
            return None if func == GRADIENT_FUNCTION else args[0]
        if role in (READ, PERHAPS_READ) or func in PASSES:
            asked = asked_for(func, args, kwargs)
            self._expect(each for each in asked if func not in PASSES or not self._is_of_the_run(each))
        if func in WATCHED and type(args[0]) is LazyTensor:
            self._ends.end()  # PyTorch looks at it from aside, or hands it out, from then on: it is the object that the program has
            become_plain(args[0], itself=True)
        if role in (READ, PERHAPS_READ) or self._follower.stopped:
            return self._outside(func, args, kwargs)
        return self._recorded(func, args, kwargs)

    def _role(self, func: Callable[..., Any]) -> int:
        """What the function is to a recorder; from now on the follower knows it."""
        known = self._follower.roles.get(func)
        if known is None and len(self._follower.roles) >= MOST_KNOWN:  # a program may make one in every step
            return FACT if func in FACTS else READ
        if known is None:
            role = FACT if func in FACTS else READ if func in READS else BACKWARD_PASS if func is BACKWARD else RECORDED
            role = DRAWN if func in FILLED_BY_CHANCE else PERHAPS_READ if func in SIZED or func in OF_CONSTANTS or func in WATCHED else role
            role = MADE if func in MAKING else PERHAPS_READ if self._draws_in_order and func in DRAWING else role
            known = self._follower.roles[func] = len(self._follower.roles) * ROLES + role
        return known % ROLES

    def _fact(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What is asked of a tensor that is there, or known of one that is not."""
        subject = args[0] if args else None
        if type(subject) is LazyTensor and subject._value is None and subject._run is self._tree.run:
            turned = self._tree.run.here.turned and name in OF_GRADIENTS
            found = UNKNOWN if turned else fact(name, subject, self._tree.run, args[1:], kwargs)
            if found is not UNKNOWN:
                return found
            self._statistics.settled[name] += 1
            if not turned and by_data(subject._number, self._tree.run):  # it will be asked again: a trace behind it may be compiled
                self._tree.end_behind(self._tree.maker(subject))
            self._ends.come_off()
        return func(*real(args), **real(dict(kwargs)))

    def _counted(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Counted | None:
        """With the number of its results, by the sizes of its argument, which are looked up, or computed if need be. None where that is not
        all it depends on. Raises: what PyTorch raises of these sizes."""
        subject, others = args[0] if args else None, [*args[1:], *kwargs.values()]
        if (type(subject) is not LazyTensor and type(subject) not in TENSORS) or flat(others):
            return None
        sizes = self._fact("shape", torch.Tensor.shape.__get__, (subject,), {})  # pyright: ignore[reportAttributeAccessIssue]
        with torch.no_grad():
            return Counted(func, len(func(torch.empty(sizes, device="meta"), *args[1:], **kwargs)))

    def _is_constant(self, tensor: Any, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a tensor requires no gradients and, by a function of `OF_CONSTANTS`, goes on to require none. What the run writes to one
        that was there before does not change that (`TraceTree.is_apart`)."""
        asked = func == GRADIENT_FUNCTION or bool(args or kwargs)
        if not asked or any((*args, *kwargs.values())) or (type(tensor) is not LazyTensor and type(tensor) not in TENSORS):
            return False
        if type(tensor) is LazyTensor and tensor._run is self._tree.run and self._tree.run.here.turned:
            return False
        return not self._fact("requires_grad", torch.Tensor.requires_grad.__get__, (tensor,), {})  # pyright: ignore[reportAttributeAccessIssue]

    def _outside(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call that is not recorded; what is recorded comes before it, if it might see that."""
        if self._tree.run.here.before is not None and self._follower.concerns([*args, *kwargs.values()]):
            self._ends.end()
        return self.call_now(func, args, kwargs)[1]

    def call_now(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """What the function gives, and the same with the caller's own objects where it gives one of its arguments."""
        given = dict[int, LazyTensor]()
        _lazy_ones(args, given)
        _lazy_ones(tuple(kwargs.values()), given)
        with self.aside() if func in PASSES else self._handed_over() if _has_others((args, tuple(kwargs.values()))) else nullcontext():
            result = func(*real(args), **real(dict(kwargs)))
        return result, given.get(id(result), result) if given else result

    @contextmanager
    def aside(self) -> Iterator[None]:
        """For what runs hooks: their calls are PyTorch's, at once, and lazy tensors that they hold give what they stand for."""
        active, self._follower.active = self._follower.active, False
        self.occupied += 1
        try:
            with without_function_modes():
                yield
        finally:
            self.occupied -= 1
            self._follower.active = active

    @contextmanager
    def _handed_over(self) -> Iterator[None]:
        """For calls with tensors of a class of somebody's own, which they are handed over to."""
        with self.aside(), _EnableTorchFunction():
            yield

    def _recorded(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._tree.run.here.ends:
            self._ends.end()
        run, follower = self._tree.run, self._follower
        written = flat((args[:1], kwargs.get("out"))) if self._within is not None and writes(func, kwargs) else []
        if not all(map(self._is_made_within, written)):
            raise WritesOutsideError
        tensors = flat((args, tuple(kwargs.values())))
        for each in tensors:
            if type(each) is LazyTensor and each._run is not run:
                real(each)
        if run.deferring:
            promised = follower.follow(func, args, kwargs)
            if promised is not NotImplemented:
                return promised
        call = follower.describe(func, args, kwargs)
        if call is None:
            return self._outside(func, args, kwargs)
        if not call.tensors and not (func in MAKING and is_plain(kwargs) and follower.makes_as_ever()):
            return func(*args, **kwargs)
        first = run.number_of(args[0]) if args and type(args[0]) in TENSORS else None
        if func in FILLED_BY_CHANCE and first is not None and first >= call.mark:
            follower.forget(call)
            self._draw()
            return self._outside(func, args, kwargs)
        if func is BACKWARD and (type(args[0]) is not LazyTensor or args[0]._run is not run):  # a program of its own
            follower.forget(call)
            self._ends.end()
            self._separate(args[0])
            return self.call_now(func, args, kwargs)[1]
        if run.pending:  # described anew: what is pending has values then, or belongs to a run that is over
            follower.forget(call)
            self._ends.come_off()
            return self._recorded(func, args, kwargs)
        step = follower.next(call)
        if (run.here.branches[func] >= MOST_BRANCHES) if step is None else step.alone:
            follower.forget(call)
            self._expect(asked_for(func, args, kwargs) if func in PASSES else ())
            self._ends.end()
            if func is BACKWARD:
                self._separate(args[0])
            self._statistics.alone[user_place()[0] if step is None else step.line] += 1
            return self.call_now(func, args, kwargs)[1]
        return self._noted(call, func, args, kwargs, step)

    def _noted(self, call: LazyCall, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], step: Step | None) -> Any:
        """Runs a call, and notes it."""
        run, state = self._tree.run, self._tree.context()
        run.deferring = False
        tensors = flat((args, tuple(kwargs.values())))
        given = [each if type(each) in TENSORS else real(each) for each in tensors]
        before, differentiable, here = [each._version for each in given], [each.requires_grad for each in given], run.here
        try:
            result, ours = self.call_now(func, args, kwargs)
            if self._tree.run is not run:  # what it called has read something
                return ours
            writes = before != [each._version for each in given]
            single = result is None or isinstance(result, torch.Tensor)
            leaves, form = ([result], None) if single else pytree.tree_flatten(result)
            if not leaves or not all(each is None or (type(each) in TENSORS and each.layout is torch.strided) for each in leaves):
                self._tree.forget(call, run)
                self._ends.end()
                return ours
            places = [self._tree.place(each, func, args, kwargs, writes or func == GRADIENT) for each in leaves]
            turned = [each for each, mine, was in zip(tensors, given, differentiable, strict=True) if mine.requires_grad != was]
            if step is None:
                step = self._tree.grown(call, func, args, kwargs, state, tuple(places), form)
                step.writes = writes
                step.turned = run.here.turned or bool(turned)
                step.alone = not all(map(self._tree.is_apart, turned))  # who asks a tensor that is there is told what it is
                step.turns = frozenset(each._number for each in turned if type(each) is LazyTensor)
            else:
                step.alone = not self._tree.renewed(step, tuple(places))
            if step.alone:  # no part of a trace, then
                self._tree.forget(call, run)
                self._ends.end()
                return ours
            made = [(place, leaf) for place, leaf in zip(places, leaves, strict=True) if type(place) is Made]
            handles = iter(self._follower.go_to(call, step, step.number, *(map(list, zip(*made, strict=True)) if made else ([], []))))
        except BaseException:  # an interrupt among them
            if run.here is here:
                self._tree.forget(call, run)
            raise
        found = [next(handles) if type(each) is Made else None if each is None else self._tree.owner(each) for each in places]
        self._statistics.noted += 1
        return found[0] if form is None else pytree.tree_unflatten(found, form)

    def _draw(self) -> None:
        """Numbers are drawn at once: where they are to be those of eager PyTorch, behind those that what is recorded draws."""
        if self._draws_in_order and self._tree.run.pending:
            self._ends.end()

    def _expect(self, values: Iterable[Any]) -> None:
        """Gradients of values are asked for, behind the calls that made them. From now on the traces end behind these.

        Raises: RuntimeError where one program has computed a value and what gradients go through it of: they are not to be had any more."""
        for value in values:
            if type(value) is not LazyTensor or value._facts.is_leaf or not value._facts.requires_grad:
                continue
            step = self._tree.maker(value)
            if step.ends:
                continue
            self._tree.end_behind(step)
            if value._value is None:
                self._ends.by_pytorch()
            elif step.passed and type(value._value.grad_fn).__name__ == "CompiledFunctionBackward":
                raise RuntimeError(
                    f"disc.lazy: gradients of a value made at {step.line} are asked for, for the first time, and a program has computed it "
                    "together with what they come from: call disc.lazy.flush() behind that line, or do it again"
                )

    def _is_of_the_run(self, value: object) -> bool:
        return type(value) is LazyTensor and value._run is self._tree.run

    def _separate(self, value: object) -> None:
        """There is a backward pass of a value that others of its program are computed of, which may have passes of their own behind that
        (`a`, `b` and `a + b`): from now on the trace ends behind it."""
        if type(value) is LazyTensor and value._facts.requires_grad and not value._facts.is_leaf:
            step = self._tree.maker(value)
            if step.passed and not step.ends:
                self._tree.end_behind(step)

    @contextmanager
    def writing_what_is_made_within(self) -> Iterator[None]:
        """Within, a call that writes something else ends with WritesOutsideError."""
        before, self._within = self._within, (self._tree.run, self._tree.run.proxy_count)
        try:
            yield
        finally:
            self._within = before

    def _is_made_within(self, value: Any) -> bool:
        if self._within is None or type(value) is not LazyTensor or value._run is not self._within[0]:
            return False
        above = value._facts.root or Value(value._number)
        return type(above) is Value and above.number >= self._within[1]


def _has_others(value: Any) -> bool:
    """Whether there are tensors of other classes among arguments."""
    if isinstance(value, list | tuple):
        return any(map(_has_others, value))
    if type(value) is dict:
        return any(map(_has_others, value.values()))
    return isinstance(value, torch.Tensor) and type(value) is not LazyTensor and type(value) not in TENSORS


def _lazy_ones(value: Any, found: dict[int, LazyTensor]) -> None:
    """Collects lazy tensors that have values, by the identity of these; the others get theirs."""
    for each in flat(value):
        if type(each) is LazyTensor:
            found[id(real(each))] = each
