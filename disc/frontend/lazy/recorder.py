"""Records the calls of PyTorch functions of one thread, and computes them when a value is read (Dali, paper 004, section 2).

A call that no compiled trace goes through is run at once, by PyTorch, and noted; nothing is different from a program without a recorder but
that its trace is known afterwards. A trace that has come a second time is compiled. From then on a program that begins as that trace does
gets objects without values, and its calls are only compared with the trace: no shape rule runs. When a value is read, what has been
compiled runs if the trace ends there and its guards hold of the sizes; if not, the calls are made by PyTorch, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from time import perf_counter_ns
from types import MethodType
from typing import Any

import torch
from torch._C import DisableTorchFunction, _EnableTorchFunction
from torch.autograd import profiler
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext

from disc.errors import warn
from disc.frontend.dynamo import Settings, without_function_modes
from disc.frontend.lazy.accumulated import has_hooks
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
    PLAIN,
    POSITIONAL_VALUE,
    READS,
    SET_GRADIENT,
    SIZED,
    TENSORS,
    VARYING,
    WATCHED,
    Counted,
    Input,
    Scalar,
    Value,
    asked_for,
    is_plain,
    references,
    writes,
)
from disc.frontend.lazy.compiled import compile_run
from disc.frontend.lazy.facts import OF_GRADIENTS, UNKNOWN, fact
from disc.frontend.lazy.kin import WORTH_COMPILING, AllKin, Member
from disc.frontend.lazy.outline import NotCompiledError, Outline, is_freed
from disc.frontend.lazy.replay import run_again, user_place
from disc.frontend.lazy.statistics import LazyStatistics
from disc.frontend.lazy.tensors import LazyTensor, become_plain, new_handle, real
from disc.frontend.lazy.traces import Context, Made, Result, Run, Step, root
from disc.frontend.lazy.variants import ProgramFailedError, Variant
from disc.ral._ral import Follower, LazyCall, LazyTurns

MOST_PENDING = 50_000  # calls
MOST_VARIANTS = 8  # of a trace, for sizes that its guards tell apart
MOST_PROGRAMS = 64  # of a recorder
MOST_BRANCHES = 64  # calls of one function that traces go on with behind the same call: a number may differ in every step
MOST_STEPS = 500_000  # calls of all traces that are kept
RECORDED, FACT, READ, BACKWARD_PASS, DRAWN, PERHAPS_READ, MADE, ROLES = 0, 1, 2, 3, 4, 5, 6, 8  # what a function is to the follower
FRUITLESS = 500  # traces that never came again, until recording stops


def _framework(turns: LazyTurns) -> dict[str, object]:
    """What `_ral.Follower` has to know of PyTorch, and the lock of a recorder."""
    return {
        "handle": LazyTensor, "make": new_handle, "without": DisableTorchFunction, "grad_enabled": torch.is_grad_enabled,
        "autocast": torch._C._is_any_autocast_enabled, "autocast_dtype": _autocast, "unflatten": pytree.tree_unflatten,
        "transforms": torch._C._are_functorch_transforms_active, "storage": torch.Tensor.untyped_storage, "size": torch.Size,
        "is_neg": torch.Tensor.is_neg, "is_conj": torch.Tensor.is_conj, "default_dtype": torch.get_default_dtype,
        "profiler": vars(profiler), "modes": torch._C._len_torch_function_stack, "turns": turns, "hooked": has_hooks,
        "tensors": TENSORS, "constants": PLAIN,
    }  # fmt: skip


def _modes() -> list[object]:
    """Of functions that are on, the last of which is asked first."""
    return [torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack())]


def _autocast() -> torch.dtype | None:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


class WritesOutsideError(Exception):
    """A function that is differentiated writes what it has not made."""


class Recorder(TorchFunctionMode):
    """settings: as of torch.compile. Calls of other threads that use its values take turns with its own.

    Calls that a compiled trace goes through never come here: `_ral.Follower` gives what stands for their results, and has a program that
    only computes values run where one of these is read.
    """

    def __init__(self, settings: Settings, statistics: LazyStatistics) -> None:
        super().__init__()
        self.settings, self.statistics = settings, statistics
        self._draws_in_order = settings.options.random == "eager"
        self._lock = LazyTurns()
        self.follower = Follower(_framework(self._lock), self._called, self._end_for_read)
        self.follower.recorder = self
        vars(self)["__torch_function__"] = MethodType(self.follower.mode_function, self)  # what PyTorch calls
        self._roots: dict[object, Step] = {}
        self._contexts: dict[tuple[bool, torch.dtype | None], Context] = {}
        self._new_run()
        self._fruitless = 0
        self._steps = 0
        self._programs = 0
        self._kin = AllKin()
        self.entered = False  # it is among the modes of PyTorch
        self._within: tuple[Run, int] | None = None  # a function that is differentiated: of which run, from which value on
        self._settling = 0  # runs that get their values: what is called for that, as the function of a program with gradients, ends no run
        self._occupied = 0  # what is running that is not to be recorded: compiling, hooks, what others trace
        self.paused = False  # others trace: their functions are called as without a recorder

    @property
    def _run(self) -> Run:
        """That is being recorded."""
        return self.follower.run

    def _called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], inside: bool) -> Any:
        """A call that no compiled trace goes through. inside: PyTorch's modes are on, as a method of a handle was called."""
        if inside:
            with DisableTorchFunction():
                result = self._called(func, args, kwargs, False)
            if self.follower.stopped:
                self.step_aside()
            return result
        return self._alone(self._taken, func, args, kwargs)

    def _end_for_read(self, ended: Run | None) -> None:
        """What is recorded comes before a read that the follower makes. ended: a run that is over, as its program has refused it. PyTorch's
        modes are off."""
        if ended is None:
            self._alone(self._end)
        else:
            self._alone(self._compute, ended)

    def _alone(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function of ours: other threads wait for it. Native code that reads numbers (`torch.Tensor([a, b])`) has autograd off,
        which what is computed for it is not to be without."""
        if (
            torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)
            and not torch.is_inference_mode_enabled()
        ):
            with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), torch._C.DispatchKeySet.from_raw_repr(0)):
                return self._alone(function, *args)
        with self._lock:
            self.follower.enter()
            try:
                return function(*args)
            finally:
                self.follower.leave()

    def look_around(self) -> None:
        """Nothing is recorded where calls are watched as they are made: by hooks for what autograd keeps, modes of dispatch (what traces or
        counts operations), modes of functions that began before this one and so come behind it, or a search for tangents or for gradients
        that are no numbers. Traces begin anew for another default dtype."""
        watched = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None  # pyright: ignore[reportAttributeAccessIssue]
        traced = torch._C._len_torch_dispatch_stack() > 0 or torch.is_anomaly_enabled()
        modes = _modes()
        behind = modes[: modes.index(self)] if self in modes else []
        watched = watched or not all(isinstance(each, DeviceContext) for each in behind)
        self.follower.active = not watched and not traced and torch.autograd.forward_ad._current_level < 0
        if self._run.here.before is None and self._run.here is not self._roots.get(torch.get_default_dtype()):
            self._new_run()

    def join(self) -> None:
        """Is the last of the modes of PyTorch, which is asked first."""
        self.__enter__()
        self.entered, self.follower.modes = True, torch._C._len_torch_function_stack()

    def leave(self) -> None:
        """Leaves the modes of PyTorch, also where others have come since. One that began before and has ended meanwhile has taken this one
        away in its place, as the last one, and goes now."""
        others = _modes()
        behind = others[others.index(self) + 1 :] if self in others else []
        for _ in behind:
            torch._C._pop_torch_function_stack()
        self.entered, self.follower.modes = False, 0
        self.__exit__(None, None, None)
        for each in behind:
            torch._C._push_on_torch_function_stack(each)

    def step_aside(self) -> None:
        """Leaves the modes of PyTorch, if it is the last one: what is never recorded costs nothing then."""
        count = torch._C._len_torch_function_stack()
        if self.entered and count and torch._C._get_function_stack_at(count - 1) is self:
            self.entered, self.follower.modes = False, 0
            self.__exit__(None, None, None)

    def _taken(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.follower.active or torch._C._are_functorch_transforms_active():
            return func(*real(args), **real(kwargs))
        if func == DELETE_GRADIENT:
            func, args = SET_GRADIENT, (args[0], None)
        role = self._role(func)
        if role == FACT:
            return self._fact(FACTS[func], func, args, kwargs)
        if func in DRAWING:
            self._draw()
        if func in SIZED and not self.follower.stopped:
            counted = self._counted(func, args, kwargs)
            role = READ if counted is None else self._role(counted)
            func = counted or func
        if role == PERHAPS_READ and func in OF_CONSTANTS and self._is_constant(args[0], func, args[1:], kwargs):
            return None if func == GRADIENT_FUNCTION else args[0]
        if role in (READ, PERHAPS_READ) or func in PASSES:
            asked = asked_for(func, args, kwargs)
            self._expect(each for each in asked if func not in PASSES or not self._is_of_the_run(each))
        if func in WATCHED and type(args[0]) is LazyTensor:
            self._end()  # PyTorch looks at it from aside, or hands it out, from then on: it is the object that the program has
            become_plain(args[0], itself=True)
        if role in (READ, PERHAPS_READ) or self.follower.stopped:
            return self._outside(func, args, kwargs)
        return self._recorded(func, args, kwargs)

    def _is_of_the_run(self, value: object) -> bool:
        return type(value) is LazyTensor and value._run is self._run

    def _expect(self, values: Iterable[Any]) -> None:
        """Gradients of values are asked for, behind the calls that made them. From now on the traces end behind these.

        Raises: RuntimeError where one program has computed a value and what gradients go through it of: they are not to be had any more."""
        for value in values:
            if type(value) is not LazyTensor or value._facts.is_leaf or not value._facts.requires_grad:
                continue
            step = self._maker(value)
            if step.ends:
                continue
            self._end_behind(step)
            if value._value is None:
                self._by_pytorch()
            elif step.passed and type(value._value.grad_fn).__name__ == "CompiledFunctionBackward":
                raise RuntimeError(
                    f"disc.lazy: gradients of a value made at {step.line} are asked for, for the first time, and a program has computed it "
                    "together with what they come from: call disc.lazy.flush() behind that line, or do it again"
                )

    def _draw(self) -> None:
        """Numbers are drawn at once: where they are to be those of eager PyTorch, behind those that what is recorded draws."""
        if self._draws_in_order and self._run.pending:
            self._end()

    def _separate(self, value: object) -> None:
        """There is a backward pass of a value that others of its program are computed of, which may have passes of their own behind that
        (`a`, `b` and `a + b`): from now on the trace ends behind it."""
        if type(value) is LazyTensor and value._facts.requires_grad and not value._facts.is_leaf:
            step = self._maker(value)
            if step.passed and not step.ends:
                self._end_behind(step)

    def _maker(self, value: LazyTensor) -> Step:
        """The call that has made a value."""
        return next(each for each in reversed(value._run.here.steps()) if each.first <= value._number and _makes(each))

    def _end_behind(self, step: Step) -> None:
        """From now on traces end behind a call."""
        step.ends = True
        self.follower.set_ends(step.number)

    def _is_constant(self, tensor: Any, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a tensor requires no gradients and, by a function of `OF_CONSTANTS`, goes on to require none. What the run writes to one
        that was there before does not change that (`_is_apart`)."""
        asked = func == GRADIENT_FUNCTION or bool(args or kwargs)
        if not asked or any((*args, *kwargs.values())) or (type(tensor) is not LazyTensor and type(tensor) not in TENSORS):
            return False
        if type(tensor) is LazyTensor and tensor._run is self._run and self._run.here.turned:
            return False
        return not self._fact("requires_grad", torch.Tensor.requires_grad.__get__, (tensor,), {})  # pyright: ignore[reportAttributeAccessIssue]

    def _role(self, func: Callable[..., Any]) -> int:
        """What the function is to a recorder; from now on the follower knows it."""
        known = self.follower.roles.get(func)
        if known is None:
            role = FACT if func in FACTS else READ if func in READS else BACKWARD_PASS if func is BACKWARD else RECORDED
            role = DRAWN if func in FILLED_BY_CHANCE else PERHAPS_READ if func in SIZED or func in OF_CONSTANTS or func in WATCHED else role
            role = MADE if func in MAKING else PERHAPS_READ if self._draws_in_order and func in DRAWING else role
            known = self.follower.roles[func] = len(self.follower.roles) * ROLES + role
        return known % ROLES

    def records(self) -> bool:
        """Whether a call that is made now would be recorded."""
        follower = self.follower
        return follower.active and not follower.stopped and not follower.busy and not torch._C._are_functorch_transforms_active()

    def called(self, func: Callable[..., Any], *args: Any) -> Any:
        """A call of a function that PyTorch does not hand over, as one of those that it does."""
        return self._called(func, args, {}, True)

    @contextmanager
    def writing_what_is_made_within(self) -> Iterator[None]:
        """Within, a call that writes something else ends with WritesOutsideError."""
        before, self._within = self._within, (self._run, self._run.proxy_count)
        try:
            yield
        finally:
            self._within = before

    def _is_made_within(self, value: Any) -> bool:
        if self._within is None or type(value) is not LazyTensor or value._run is not self._within[0]:
            return False
        above = value._facts.root or Value(value._number)
        return type(above) is Value and above.number >= self._within[1]

    def run_now(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A function that PyTorch does not hand over, which may read anything."""
        with self._lock:
            with DisableTorchFunction():
                if not self._settling:
                    self._end()
            with self._aside():  # it may hold lazy tensors, which its arguments do not show
                return self._call_now(func, args, kwargs)[1]

    def settle(self) -> None:
        """Computes what has been recorded."""
        if not self._settling and self.follower.settle():
            return
        with self._lock, DisableTorchFunction():
            if not self._settling:
                self._end()

    @property
    def at_work(self) -> bool:
        """Whether what is called now is called by the recorder, or for what it runs."""
        return self.follower.busy or self._settling > 0 or self._occupied > 0

    def pause_for(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls what looks at tensors by itself, wherever they are: in a module, say. There are no lazy ones meanwhile."""
        if self.at_work or self.follower.stopped:
            return function(*real(args), **real(kwargs))
        self.settle()
        for each in self.follower.outliving():
            become_plain(each)
        with self._aside():
            self.paused = True
            try:
                return function(*real(args), **real(kwargs))
            finally:
                self.paused = False

    def end_of_step(self) -> None:
        """An optimizer has made a step. From now on the trace ends here, unless a backward pass through one of its values may follow, as
        where a second optimizer has its turn: what nobody reads would hold all batches, and be one program for many steps."""
        run = self._run
        if run.pending or run.here.before is None or run.here.ends or self.at_work or not self.records():
            return
        with DisableTorchFunction():  # a node of autograd is locked while it is asked what it has saved: a call of ours would wait for it
            values = [run.proxy(number)._value for number in run.live()]
            ends = all(each is not None and (not each.requires_grad or is_freed(each)) for each in values)
        if ends:
            self._end_behind(run.here)

    def settle_before(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls what may change what has been recorded, though the recorder is not told. A call of ours that calls it is recorded."""
        if self.follower.busy:
            return function(*real(args), **real(kwargs))
        self.settle()
        with self._aside():
            return function(*real(args), **real(kwargs))

    # --- one call --------------------------------------------------------------------------------------------------------------------

    def _fact(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What is asked of a tensor that is there, or known of one that is not."""
        subject = args[0] if args else None
        if type(subject) is LazyTensor and subject._value is None and subject._run is self._run:
            turned = self._run.here.turned and name in OF_GRADIENTS
            found = UNKNOWN if turned else fact(name, subject, self._run, args[1:], kwargs)
            if found is not UNKNOWN:
                return found
            self.statistics.settled[name] += 1
            self._come_off()
        return func(*real(args), **real(dict(kwargs)))

    def _counted(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Counted | None:
        """With the number of its results, by the sizes of its argument, which are looked up, or computed if need be. None where that is not
        all it depends on. Raises: what PyTorch raises of these sizes."""
        subject, others = args[0] if args else None, [*args[1:], *kwargs.values()]
        if (type(subject) is not LazyTensor and type(subject) not in TENSORS) or _flat(others):
            return None
        sizes = self._fact("shape", torch.Tensor.shape.__get__, (subject,), {})  # pyright: ignore[reportAttributeAccessIssue]
        with torch.no_grad():
            return Counted(func, len(func(torch.empty(sizes, device="meta"), *args[1:], **kwargs)))

    def _outside(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call that is not recorded; what is recorded comes before it, if it might see that."""
        if self._run.here.before is not None and self.follower.concerns([*args, *kwargs.values()]):
            self._end()
        return self._call_now(func, args, kwargs)[1]

    def _call_now(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """What the function gives, and the same with the caller's own objects where it gives one of its arguments."""
        given = dict[int, LazyTensor]()
        _lazy_ones(args, given)
        _lazy_ones(tuple(kwargs.values()), given)
        with self._aside() if func in PASSES else self._handed_over() if _has_others((args, tuple(kwargs.values()))) else nullcontext():
            result = func(*real(args), **real(dict(kwargs)))
        return result, given.get(id(result), result) if given else result

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """For what runs hooks: their calls are PyTorch's, at once, and lazy tensors that they hold give what they stand for."""
        active, self.follower.active = self.follower.active, False
        self._occupied += 1
        try:
            with without_function_modes():
                yield
        finally:
            self._occupied -= 1
            self.follower.active = active

    @contextmanager
    def _handed_over(self) -> Iterator[None]:
        """For calls with tensors of a class of somebody's own, which they are handed over to."""
        with self._aside(), _EnableTorchFunction():
            yield

    def _recorded(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._run.here.ends:
            self._end()
        run, follower = self._run, self.follower
        written = _flat((args[:1], kwargs.get("out"))) if self._within is not None and writes(func, kwargs) else []
        if not all(map(self._is_made_within, written)):
            raise WritesOutsideError
        tensors = _flat((args, tuple(kwargs.values())))
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
            self._end()
            self._separate(args[0])
            return self._call_now(func, args, kwargs)[1]
        if run.pending:  # described anew: what is pending has values then, or belongs to a run that is over
            follower.forget(call)
            self._come_off()
            return self._recorded(func, args, kwargs)
        step = follower.next(call)
        if (run.here.branches[func] >= MOST_BRANCHES) if step is None else step.alone:
            follower.forget(call)
            self._expect(asked_for(func, args, kwargs) if func in PASSES else ())
            self._end()
            if func is BACKWARD:
                self._separate(args[0])
            self.statistics.alone[user_place()[0] if step is None else step.line] += 1
            return self._call_now(func, args, kwargs)[1]
        return self._noted(call, func, args, kwargs, step)

    def _context(self) -> Context:
        grad, autocast = torch.is_grad_enabled(), _autocast()
        return self._contexts.setdefault((grad, autocast), Context(grad, autocast))

    def _noted(self, call: LazyCall, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], step: Step | None) -> Any:
        """Runs a call, and notes it."""
        run, state = self._run, self._context()
        run.deferring = False
        tensors = _flat((args, tuple(kwargs.values())))
        given = [each if type(each) in TENSORS else real(each) for each in tensors]
        before, differentiable, here = [each._version for each in given], [each.requires_grad for each in given], run.here
        try:
            result, ours = self._call_now(func, args, kwargs)
            if self._run is not run:  # what it called has read something
                return ours
            writes = before != [each._version for each in given]
            single = result is None or isinstance(result, torch.Tensor)
            leaves, form = ([result], None) if single else pytree.tree_flatten(result)
            if not leaves or not all(each is None or (type(each) in TENSORS and each.layout is torch.strided) for each in leaves):
                self._forget(call, run)
                self._end()
                return ours
            places = [self._place(each, func, args, kwargs, writes or func == GRADIENT) for each in leaves]
            turned = [each for each, mine, was in zip(tensors, given, differentiable, strict=True) if mine.requires_grad != was]
            if step is None:
                step = self._grown(call, func, args, kwargs, state, tuple(places), form)
                step.writes = writes
                step.turned = run.here.turned or bool(turned)
                step.alone = not all(map(self._is_apart, turned))  # who asks a tensor that is there is told what it is
                step.turns = frozenset(each._number for each in turned if type(each) is LazyTensor)
            else:
                step.alone = not self._renewed(step, tuple(places))
            if step.alone:  # no part of a trace, then
                self._forget(call, run)
                self._end()
                return ours
            made = [(place, leaf) for place, leaf in zip(places, leaves, strict=True) if type(place) is Made]
            handles = iter(self.follower.go_to(call, step, step.number, *(map(list, zip(*made, strict=True)) if made else ([], []))))
        except BaseException:  # an interrupt among them
            if run.here is here:
                self._forget(call, run)
            raise
        found = [next(handles) if type(each) is Made else None if each is None else self._owner(each) for each in places]
        self.statistics.noted += 1
        return found[0] if form is None else pytree.tree_unflatten(found, form)

    def _renewed(self, step: Step, results: tuple[Result, ...]) -> bool:
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

    def _tell_results(self, step: Step) -> None:
        """The follower gives them from now on."""
        form = step.form
        flat = form is not None and form.type in (tuple, list) and all(each.is_leaf() for each in form.children())
        codes = [_code(each) for each in step.results]
        self.follower.set_results(step.number, codes, list(step.results), None if form is None else form.type if flat else form)

    def _renew_roots(self, run: Run, values: Sequence[torch.Tensor]) -> None:
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
            self._renewed(step, tuple(results))
        for number in run.live():
            run.proxy(number)._facts = facts[number]

    def _is_apart(self, tensor: Any) -> bool:
        """Whether it is a value of the run, in memory of its own."""
        return type(tensor) is LazyTensor and tensor._run is self._run and type(tensor._facts.root) is not Input

    def _forget(self, call: LazyCall, run: Run) -> None:
        """A call that is no part of the run: what it alone takes is no input of the program, then."""
        if self._run is run:
            self.follower.forget(call)

    def _owner(self, place: Result) -> Any:
        run = self._run
        assert isinstance(place, Value | Input)
        return run.proxy(place.number) if type(place) is Value else run.given[place.number]

    def _place(self, leaf: torch.Tensor | None, func: Callable[..., Any], args: Any, kwargs: Any, same: bool) -> Result:
        """What a result is: one of the arguments, or a new tensor, which may share the memory of one. same: whether an argument stays what
        it is when it is given back. A call that changes nothing (`contiguous`) may do so for some sizes alone: there it is
        another tensor."""
        if leaf is None:
            return None
        run = self._run
        number = run.number_of(leaf) if same else None
        if number is not None:
            return Input(number)
        number = run.value_of(leaf) if func == GRADIENT else None  # one object, whenever it is read
        if number is not None:
            return Value(number)
        given = list[tuple[Value | Input, torch.Tensor]]()
        for each in _flat((args, tuple(kwargs.values()))):
            if type(each) is LazyTensor and each._run is run:
                if same and each._value is leaf:
                    return Value(each._number)
                given.append((each._facts.root or Value(each._number), real(each)))
            else:
                given.append((Input(self._input(real(each))), real(each)))
        return Made(leaf.dtype, leaf.device, leaf.requires_grad, leaf.is_leaf, _root_of(leaf, given, run))

    def _grown(
        self, call: LazyCall, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], state: Context, results: tuple[Result, ...],
        form: pytree.TreeSpec | None,
    ) -> Step:  # fmt: skip
        """A new step behind where the run is."""
        run, count = self._run, [0]
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
        self._steps += 1
        run.here.branches[func] += 1
        return step

    # --- arguments -------------------------------------------------------------------------------------------------------------------

    def _argument_template(self, value: Any, count: list[int]) -> Any:
        if type(value) is float:
            count[0] += 1
            return Scalar(count[0] - 1)
        return self._template(value, count)

    def _template(self, value: Any, count: list[int]) -> Any:
        """An argument with places in it. count: numbers seen so far."""
        kind = type(value)
        if kind is LazyTensor:
            return Value(value._number) if value._run is self._run else Input(self._input(value._value))
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
        number = self._run.number_of(tensor)
        assert number is not None
        return number

    # --- the end of a trace ------------------------------------------------------------------------------------------------------------

    def _new_run(self) -> None:
        state = torch.get_default_dtype()
        begin = self._roots.get(state)
        if begin is None:
            begin = self._roots[state] = root(Context(True, None), self.follower.add_root())
        self.follower.begin(begin, begin.number, state)

    def _come_off(self) -> None:
        """The program does not go on as any compiled trace: what is pending gets values, and the rest of the run is run as it comes."""
        run = self._run
        if self._run_compiled(run):
            self._new_run()
            self.follower.finish(run)
        else:
            self._by_pytorch()

    def _by_pytorch(self) -> None:
        """PyTorch makes the calls that are pending, and runs the rest of the run as it comes."""
        run = self._run
        run.deferring, run.pending = False, 0
        try:
            self._run_again(run)
        except BaseException:  # no more than what came before the failing call has values: nothing goes on from there
            self._new_run()
            self.follower.finish(run)
            raise
        self.follower.loosen()

    def _end(self) -> None:
        """The trace ends here."""
        run = self._run
        self._new_run()
        self._compute(run)

    def _compute(self, run: Run) -> None:
        """Computes a run that is over."""
        try:
            if run.here.before is not None:
                self._end_of(run)
        finally:
            self.follower.finish(run)

    def _end_of(self, run: Run) -> None:
        segment = run.here.segment
        if run.pending and self._run_compiled(run):
            return
        if self._steps > MOST_STEPS:
            self._stop(f"{self._steps} different calls", run)
        if run.pending:
            self._run_again(run)
        self.statistics.uncompiled += 1
        segment.history.note(run)
        if self._serve(run) or segment.history.runs >= WORTH_COMPILING:
            self._fruitless = segment.history.runs = 0
        else:
            self._fruitless += 1
            if self._fruitless >= FRUITLESS and not self.statistics.hits:
                self._stop(f"{FRUITLESS} traces, none of which came twice", run)

    def _serve(self, run: Run) -> bool:
        """Has the trace, which PyTorch has run, served by a program from now on: one that its kin have, or one that is made now, as it has
        come often enough."""
        segment, began = run.here.segment, perf_counter_ns()
        if any(each.fits(run) is not None for each in segment.variants):  # the program came off it on the way, as by an error
            return False
        if segment.refused or len(segment.variants) >= MOST_VARIANTS:
            return False
        try:
            outline = Outline(run, segment.history.written)
        except NotCompiledError as error:
            if segment.history.runs >= WORTH_COMPILING:
                self._refuse(run, error)
            return False
        member = self._kin.of(outline)
        variant = None if member is None else member.variant()
        self.statistics.replaying_ns += perf_counter_ns() - began
        if member is not None and variant is not None:
            member.kin.history.runs -= 1
            self._add(run, variant)
            self.statistics.shared += 1
            return True
        member = None if member is None or member.kin.refused else member
        came = segment.history.runs >= WORTH_COMPILING or (member is not None and member.kin.came_often())
        return came and self._programs < MOST_PROGRAMS and self._compile(run, member)

    def _stop(self, why: str, run: Run) -> None:
        self.follower.stopped = True
        self.follower.forget_traces()
        self._roots.clear()
        self._kin.clear()
        self._new_run()
        warn(f"disc.lazy: {why}; nothing is recorded any more (at {run.here.line})")

    def _run_compiled(self, run: Run) -> bool:
        """Whether there was a compiled program for the run as it is, which has been run, and has not failed."""
        began = perf_counter_ns()
        segment = run.here.segment
        for place, variant in enumerate(segment.variants):
            symbols = variant.fits(run)
            if symbols is None:
                continue
            if place:
                segment.variants.insert(0, segment.variants.pop(place))
            chosen, statistics = perf_counter_ns(), self.statistics
            statistics.replaying_ns += chosen - began
            self._settling += 1
            try:
                variant.execute(run, symbols)
            except ProgramFailedError as error:
                if self.settings.strict or isinstance(error.why, Warning):
                    raise error.why from None
                return False  # PyTorch says why, in its words
            finally:
                self._settling -= 1
            statistics.computing_ns += perf_counter_ns() - chosen
            statistics.hits += 1
            if variant.native is not None:
                variant.native.admit(run)
            self.follower.set_programs(run.here.number, [each.native for each in segment.variants if each.native is not None])
            return True
        return False

    def _run_again(self, run: Run) -> None:
        self._settling += 1
        try:
            values = run_again(run)
        finally:
            self._settling -= 1
        self._renew_roots(run, values)

    def _compile(self, run: Run, member: Member | None) -> bool:
        """Makes a program for the trace: one for all its kin, if it has any and that can be, or for the trace alone."""
        segment = run.here.segment
        for each in run.here.steps():
            each.scalars = self.follower.numbers(each.number)
        self._occupied += 1
        try:
            with without_function_modes():
                family, variant = compile_run(run, segment.history, self.settings, self.statistics, member)
        except NotCompiledError as error:
            if member is not None:
                member.kin.refused = str(error)
                return segment.history.runs >= WORTH_COMPILING and self._compile(run, None)
            self._refuse(run, error)
            return False
        finally:
            self._occupied -= 1
        if member is not None:
            member.kin.add(family)
        self._add(run, variant)
        self.statistics.compiles += 1
        self._programs += 1
        if self._programs == MOST_PROGRAMS:
            warn(f"disc.lazy: {MOST_PROGRAMS} programs have been compiled, no further ones are; do Python numbers change in every step?")
        return True

    def _refuse(self, run: Run, error: NotCompiledError) -> None:
        run.here.segment.refused = str(error)
        self.statistics.refused[str(error)] += 1
        if error.step is not None and error.behind:
            self._end_behind(error.step)
        elif error.step is not None:
            next(each for each in run.here.steps() if each.number == error.step.number).alone = True
        elif self.settings.strict and error.__cause__ is not None:
            raise error.__cause__ from error

    def _add(self, run: Run, variant: Variant) -> None:
        step = run.here
        step.segment.variants.insert(0, variant)
        while step.before is not None:
            step.ahead.insert(0, variant)
            self.follower.set_ahead(step.number)
            step = step.before


def _varying_floats(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    """The dtype of what floats of the call are computed with; None where they have to stay what they are."""
    if func not in VARYING:
        return None
    dtypes = {(each._facts if type(each) is LazyTensor else each).dtype for each in _flat((args, tuple(kwargs.values())))}
    scales = "alpha" in kwargs or "value" in kwargs or len(args) == POSITIONAL_VALUE
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64} or (scales and not _flat(args[1:2])):
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


def _flat(value: Any) -> list[Any]:
    """The tensors and lazy tensors of arguments."""
    if isinstance(value, list | tuple):
        return [found for each in value for found in _flat(each)]
    if type(value) is dict:
        return [found for each in value.values() for found in _flat(each)]
    return [value] if type(value) is LazyTensor or type(value) in TENSORS else []


def _makes(step: Step) -> bool:
    """Whether a call makes a value."""
    return any(type(each) is Made for each in step.results)


def _has_others(value: Any) -> bool:
    """Whether there are tensors of other classes among arguments."""
    if isinstance(value, list | tuple):
        return any(map(_has_others, value))
    if type(value) is dict:
        return any(map(_has_others, value.values()))
    return isinstance(value, torch.Tensor) and type(value) is not LazyTensor and type(value) not in TENSORS


def _lazy_ones(value: Any, found: dict[int, LazyTensor]) -> None:
    """Collects lazy tensors that have values, by the identity of these; the others get theirs."""
    for each in _flat(value):
        if type(each) is LazyTensor:
            found[id(real(each))] = each
