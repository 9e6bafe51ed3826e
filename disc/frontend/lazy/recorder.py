"""Records the calls of PyTorch functions of one thread, and computes them when a value is read (Dali, paper 004, section 2).

A call that no compiled trace goes through is run at once, by PyTorch, and noted; nothing is different from a program without a recorder but
that its trace is known afterwards. A trace that has come a second time is compiled. From then on a program that begins as that trace does
gets objects without values, and its calls are only compared with the trace: no shape rule runs. When a value is read, what has been
compiled runs if the trace ends there and its guards hold of the sizes; if not, the calls are made by PyTorch, one after the other.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import copysign
from time import perf_counter_ns
from typing import Any

import torch
from torch._C import DisableTorchFunction
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from disc.errors import warn
from disc.frontend.dynamo import Settings, without_function_modes
from disc.frontend.lazy.calls import (
    BACKWARD,
    FACTS,
    FILLED_BY_CHANCE,
    GRADIENT,
    PLAIN,
    POSITIONAL_VALUE,
    READS,
    TENSORS,
    VARYING,
    Input,
    Scalar,
    Value,
)
from disc.frontend.lazy.compiled import NotCompiledError, Variant, compile_run
from disc.frontend.lazy.facts import UNKNOWN, fact
from disc.frontend.lazy.replay import run_again, user_place
from disc.frontend.lazy.statistics import LazyStatistics
from disc.frontend.lazy.tensors import LazyTensor, lazy_tensor, real
from disc.frontend.lazy.traces import Context, Made, Result, Run, Step, root

WORTH_COMPILING = 2  # runs of a trace
MOST_PENDING = 50_000  # calls
MOST_VARIANTS = 8  # of a trace, for sizes that its guards tell apart
MOST_PROGRAMS = 64  # of a recorder
MOST_STEPS = 500_000  # calls of all traces that are kept
FRUITLESS = 500  # traces that never came again, until recording stops


class _NotRecordedError(Exception):
    """The call is made at once."""


class Recorder(TorchFunctionMode):
    """settings: as of torch.compile. active: whether anything is recorded. Calls of other threads that use its values take turns with its
    own."""

    def __init__(self, settings: Settings, statistics: LazyStatistics) -> None:
        super().__init__()
        self.settings, self.statistics = settings, statistics
        self._lock = threading.RLock()
        self._roots: dict[object, Step] = {}
        self._contexts: dict[tuple[bool, torch.dtype | None], Context] = {}
        self._run = self._new_run()
        self._tensors = 0  # of the call that is being described
        self._fruitless = 0
        self._steps = 0
        self._programs = 0
        self._stopped = False
        self.active = False

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the function gives, or what stands for it. PyTorch's own modes are off meanwhile."""
        with self._lock:
            if not self.active or torch._C._are_functorch_transforms_active():
                return func(*real(args), **real(dict(kwargs)))
            name = FACTS.get(func)
            if name is not None:
                return self._fact(name, func, args, kwargs)
            if func in READS or self._stopped:
                return self._outside(func, args, kwargs)
            return self._recorded(func, args, kwargs)

    def run_now(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A function that PyTorch does not hand over, which may read anything."""
        with self._lock, DisableTorchFunction():
            self._end()
            return self._call_now(func, args, kwargs)[1]

    def settle(self) -> None:
        """Computes what has been recorded."""
        with self._lock, DisableTorchFunction():
            self._end()

    # --- one call --------------------------------------------------------------------------------------------------------------------

    def _fact(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What is asked of a tensor that is there, or known of one that is not."""
        subject = args[0] if args else None
        if type(subject) is LazyTensor and subject._value is None and subject._run is self._run:
            found = fact(name, subject, self._run, args[1:], kwargs)
            if found is not UNKNOWN:
                return found
            self.statistics.settled[name] += 1
            self._come_off()
        return func(*real(args), **real(dict(kwargs)))

    def _outside(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call that is not recorded; what is recorded comes before it, if it might see that."""
        everything = [*args, *kwargs.values()]
        if self._run.here.before is not None and any(self._concerns(each) for each in everything):
            self._end()
        return self._call_now(func, args, kwargs)[1]

    def _concerns(self, value: Any) -> bool:
        """Whether what is recorded computes or writes it, as far as its memory tells."""
        kind = type(value)
        if kind is LazyTensor:
            return value._run is self._run or self._concerns(value._value)
        if kind is list or kind is tuple:
            return any(map(self._concerns, value))
        if isinstance(value, torch.Tensor):
            return value.layout is not torch.strided or value.untyped_storage()._cdata in self._run.storages
        return False

    def _call_now(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """What the function gives, and the same with the caller's own objects where it gives one of its arguments."""
        given = dict[int, LazyTensor]()
        _lazy_ones(args, given)
        _lazy_ones(tuple(kwargs.values()), given)
        result = func(*real(args), **real(dict(kwargs)))
        return result, given.get(id(result), result) if given else result

    def _recorded(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        began = perf_counter_ns()
        run, scalars = self._run, list[float]()
        mark, self._tensors = len(run.inputs), 0
        grad = torch.is_grad_enabled()
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        try:
            described = tuple([self._argument(each, scalars) for each in args])
            named = tuple([(name, self._argument(each, scalars)) for name, each in kwargs.items()]) if kwargs else ()
        except _NotRecordedError:
            _forget(run, mark)
            return self._outside(func, args, kwargs)
        if not self._tensors:
            return func(*args, **kwargs)
        drawn = func in FILLED_BY_CHANCE and args and type(args[0]) in TENSORS and run.numbers[id(args[0])] >= mark
        if drawn:
            _forget(run, mark)
            return self._outside(func, args, kwargs)
        if func is BACKWARD and (type(args[0]) is not LazyTensor or args[0]._run is not run):  # a program of its own
            _forget(run, mark)
            self._end()
            return self._call_now(func, args, kwargs)[1]
        key = (func, described, named, grad, autocast)
        step = run.here.follow(key, scalars)
        if step is not None and step.ahead and run.deferring and run.pending < MOST_PENDING:
            run.here = step
            run.scalars.append(tuple(scalars))
            run.pending += 1
            promised = self._promised(step)
            self.statistics.recorded += 1
            self.statistics.recording_ns += perf_counter_ns() - began
            return promised
        if run.pending:  # described anew: what is pending has values then, or belongs to a run that is over
            _forget(run, mark)
            self._come_off()
            return self._recorded(func, args, kwargs)
        if step is not None and step.alone:
            _forget(run, mark)
            self._end()
            self.statistics.alone[step.line] += 1
            return self._call_now(func, args, kwargs)[1]
        return self._noted(key, func, args, kwargs, scalars, self._context(grad, autocast), step)

    def _context(self, grad: bool, autocast: torch.dtype | None) -> Context:
        return self._contexts.setdefault((grad, autocast), Context(grad, autocast))

    def _promised(self, step: Step) -> Any:
        """What stands for the results of a step that is pending."""
        run, leaves = self._run, list[Any]()
        for each in step.results:
            kind = type(each)
            if kind is Made:
                proxy = lazy_tensor(self, run, len(run.proxies), each)  # pyright: ignore[reportArgumentType]
                run.proxies.append(weakref.ref(proxy))
                leaves.append(proxy)
            elif kind is Value:
                leaves.append(run.proxies[each.number]())  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
            else:
                leaves.append(None if each is None else run.given[each.number])  # pyright: ignore[reportAttributeAccessIssue]
        return leaves[0] if step.form is None else pytree.tree_unflatten(leaves, step.form)

    def _noted(
        self,
        key: Hashable,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        scalars: list[float],
        state: Context,
        step: Step | None,
    ) -> Any:
        """Runs a call, and notes it."""
        run = self._run
        run.deferring = False
        given = [each if type(each) in TENSORS else real(each) for each in _flat((args, tuple(kwargs.values())))]
        before = [each._version for each in given]
        result, ours = self._call_now(func, args, kwargs)
        writes = before != [each._version for each in given]
        single = result is None or isinstance(result, torch.Tensor)
        leaves, form = ([result], None) if single else pytree.tree_flatten(result)
        if not leaves or not all(each is None or type(each) in TENSORS for each in leaves):
            self._end()
            return ours
        places = [self._place(each, args, kwargs, writes or func == GRADIENT) for each in leaves]
        if step is None:
            step = self._grown(key, func, args, kwargs, scalars, state)
            step.results, step.form, step.writes = tuple(places), form, writes
        elif [type(each) for each in places] != [type(each) for each in step.results]:  # no part of a trace, then
            step.alone = True
            self._end()
            return ours
        run.here = step
        run.scalars.append(tuple(scalars))
        found = list[Any]()
        for leaf, place in zip(leaves, places, strict=True):
            if type(place) is Made:
                proxy = lazy_tensor(self, run, len(run.proxies), place, leaf)
                run.proxies.append(weakref.ref(proxy))
                found.append(proxy)
            else:
                found.append(leaf if place is None else ours if single else self._owner(place))
        self.statistics.noted += 1
        return found[0] if form is None else pytree.tree_unflatten(found, form)

    def _owner(self, place: Result) -> Any:
        run = self._run
        return run.proxies[place.number]() if type(place) is Value else run.given[place.number]  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]

    def _place(self, leaf: torch.Tensor | None, args: Any, kwargs: Any, same: bool) -> Result:
        """What a result is: one of the arguments, or a new tensor, which may share the memory of one. same: whether an argument stays what
        it is when it is given back. A call that changes nothing (`contiguous`) may do so for some sizes alone: there it is
        another tensor."""
        if leaf is None:
            return None
        run = self._run
        number = run.numbers.get(id(leaf)) if same else None
        if number is not None:
            return Input(number)
        above: Value | Input | None = None
        memory = leaf.untyped_storage()._cdata
        for each in _flat((args, tuple(kwargs.values()))):
            if type(each) is LazyTensor and each._run is run:
                if same and each._value is leaf:
                    return Value(each._number)
                if each._value is not None and each._value.untyped_storage()._cdata == memory:
                    above = above or each._facts.root or Value(each._number)
            else:
                tensor = each._value if type(each) is LazyTensor else each
                if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata == memory:
                    above = above or Input(run.numbers[id(tensor)])
        if above is None and memory in run.storages:  # the gradient of a parameter, a part of something seen before
            above = Input(run.storages[memory])
        return Made(leaf.dtype, leaf.device, leaf.requires_grad, leaf.is_leaf, above)

    def _grown(
        self, key: Hashable, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], scalars: Sequence[float], state: Context
    ) -> Step:
        """A new step behind where the run is."""
        run, count = self._run, [0]
        line, trace = user_place()
        template = tuple([self._argument_template(each, count) for each in args])
        named = {name: self._argument_template(each, count) for name, each in kwargs.items()}
        floats = _varying_floats(func, args, kwargs) if any(type(each) is float for each in scalars) else None
        step = Step(func, template, named, state, list(scalars), run.here, len(run.proxies), floats, line=line, trace=trace)
        run.here.children.setdefault(key, []).append(step)
        self._steps += 1
        return step

    # --- arguments -------------------------------------------------------------------------------------------------------------------

    def _argument(self, value: Any, scalars: list[float]) -> Hashable:
        """As `_described`; a float that is an argument of its own is put into `scalars` as well."""
        if type(value) is float:
            scalars.append(value)
            return float if value else (float, copysign(1, value))  # 0.0 == -0.0
        return self._described(value, scalars)

    def _described(self, value: Any, scalars: list[float]) -> Hashable:
        """What of an argument belongs to the trace: numbers of values, negative ones of inputs, what new inputs are like, constants. The
        integers are put into `scalars`."""
        kind = type(value)
        if kind is LazyTensor:
            self._tensors += 1
            if value._run is self._run:
                return value._number
            return self._input(real(value), value)
        if kind in TENSORS:
            self._tensors += 1
            return self._input(value, value)
        if kind is int:
            scalars.append(value)
            return Scalar
        if value is None or kind is str:
            return value
        if kind is tuple or kind is list or kind is torch.Size:
            return (kind, *[self._described(each, scalars) for each in value])
        if kind in PLAIN:
            return kind, value
        if kind is slice:
            return slice, *[self._described(each, scalars) for each in (value.start, value.stop, value.step)]
        if kind is dict:
            return dict, *[(name, self._described(each, scalars)) for name, each in value.items()]
        raise _NotRecordedError

    def _argument_template(self, value: Any, count: list[int]) -> Any:
        if type(value) is float:
            count[0] += 1
            return Scalar(count[0] - 1)
        return self._template(value, count)

    def _template(self, value: Any, count: list[int]) -> Any:
        """An argument with places in it. count: numbers seen so far."""
        kind = type(value)
        if kind is LazyTensor:
            return Value(value._number) if value._run is self._run else Input(self._run.numbers[id(value._value)])
        if kind in TENSORS:
            return Input(self._run.numbers[id(value)])
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

    def _input(self, tensor: torch.Tensor, given: Any) -> Hashable:
        run = self._run
        number = run.numbers.get(id(tensor))
        if number is not None:
            return ~number
        leaf = tensor.is_leaf
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_inference() or type(tensor) not in TENSORS:
            raise _NotRecordedError
        number = run.numbers[id(tensor)] = len(run.inputs)
        run.inputs.append(tensor)
        run.given.append(given)
        run.versions.append(tensor._version)
        shared = run.storages.setdefault(tensor.untyped_storage()._cdata, number)
        strides = None if tensor.is_contiguous() else tensor.stride()
        grad = None
        if leaf and tensor.requires_grad:
            if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:  # pyright: ignore[reportAttributeAccessIssue]
                raise _NotRecordedError
            held = tensor.grad
            if held is not None:
                grad = self._input(held, held)
                run.gradients[number] = run.numbers[id(held)]
        return tensor.dtype, tensor.dim(), tensor.requires_grad, leaf, strides, shared, grad, tensor.is_conj(), tensor.is_neg()

    # --- the end of a trace ------------------------------------------------------------------------------------------------------------

    def _new_run(self) -> Run:
        state = torch.get_default_dtype()
        begin = self._roots.get(state)
        if begin is None:
            begin = self._roots[state] = root(Context(True, None))
        return Run(begin)

    def _come_off(self) -> None:
        """The program does not go on as any compiled trace: what is pending gets values, and the rest of the run is run as it comes."""
        run = self._run
        if self._run_compiled(run):
            self._run = self._new_run()
            return
        run.deferring, run.pending = False, 0
        run_again(run)

    def _end(self) -> None:
        """The trace ends here."""
        run, self._run = self._run, self._new_run()
        if run.here.before is None:
            return
        segment = run.here.segment
        if run.pending and self._run_compiled(run):
            return
        if self._steps > MOST_STEPS:
            self._stop(f"{self._steps} different calls", run)
        if run.pending:
            run_again(run)
        self.statistics.uncompiled += 1
        segment.note(run)
        if segment.runs >= WORTH_COMPILING:
            self._fruitless = segment.runs = 0
            if not segment.refused and len(segment.variants) < MOST_VARIANTS and self._programs < MOST_PROGRAMS:
                self._compile(run)
        else:
            self._fruitless += 1
            if self._fruitless >= FRUITLESS and not self.statistics.hits:
                self._stop(f"{FRUITLESS} traces, none of which came twice", run)

    def _stop(self, why: str, run: Run) -> None:
        self._stopped = True
        self._roots.clear()
        self._run = self._new_run()
        warn(f"disc.lazy: {why}; nothing is recorded any more (at {run.here.line})")

    def _run_compiled(self, run: Run) -> bool:
        """Whether there was a compiled program for the run as it is, which has been run."""
        began = perf_counter_ns()
        segment, live = run.here.segment, run.live()
        for place, variant in enumerate(segment.variants):
            symbols = variant.fits(run, live)
            if symbols is None:
                continue
            if place:
                segment.variants.insert(0, segment.variants.pop(place))
            self.statistics.replaying_ns += perf_counter_ns() - began
            began = perf_counter_ns()
            variant.execute(run, symbols)
            self.statistics.computing_ns += perf_counter_ns() - began
            self.statistics.hits += 1
            return True
        return False

    def _compile(self, run: Run) -> None:
        segment, step = run.here.segment, run.here
        try:
            with without_function_modes():
                variant: Variant = compile_run(run, segment, self.settings, self.statistics)
        except NotCompiledError as error:
            segment.refused = str(error)
            self.statistics.refused[str(error)] += 1
            if error.step is not None:
                error.step.alone = True
            elif self.settings.strict and error.__cause__ is not None:
                raise error.__cause__ from error
            return
        segment.variants.insert(0, variant)
        self.statistics.compiles += 1
        self._programs += 1
        if self._programs == MOST_PROGRAMS:
            warn(f"disc.lazy: {MOST_PROGRAMS} programs have been compiled, no further ones are; do Python numbers change in every step?")
        while step.before is not None:
            step.ahead.insert(0, variant)
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


def _forget(run: Run, mark: int) -> None:
    """Takes the inputs from number `mark` on out of the run."""
    for tensor in run.inputs[mark:]:
        del run.numbers[id(tensor)]
    del run.inputs[mark:], run.given[mark:], run.versions[mark:]
    for table in (run.storages, run.gradients):
        for each in [each for each, number in table.items() if number >= mark]:
            del table[each]


def _flat(value: Any) -> list[Any]:
    """The tensors and lazy tensors of arguments."""
    if isinstance(value, list | tuple):
        return [found for each in value for found in _flat(each)]
    if type(value) is dict:
        return [found for each in value.values() for found in _flat(each)]
    return [value] if type(value) is LazyTensor or type(value) in TENSORS else []


def _lazy_ones(value: Any, found: dict[int, LazyTensor]) -> None:
    """Collects lazy tensors that have values, by the identity of these; the others get theirs."""
    for each in _flat(value):
        if type(each) is LazyTensor:
            found[id(real(each))] = each
