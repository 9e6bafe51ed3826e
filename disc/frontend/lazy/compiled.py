"""A trace as one compiled program, for all sizes that its guards allow: the cached transformation of Dali (paper 004, section 2, Table 2).

The calls are made once with PyTorch's fake tensors, whose sizes are symbols, backward passes and optimizers among them. The graph of ATen
ops that comes of it goes the way of torch.compile's graphs. What PyTorch decided by sizes meanwhile are the guards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, cast

import sympy
import torch
from torch import fx
from torch._C import DispatchKey, DispatchKeySet, _ExcludeDispatchKeyGuard
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.source import ConstantSource
from torch._functorch._aot_autograd import graph_compile
from torch._functorch._aot_autograd.functional_utils import from_fun, has_data_mutation, to_fun
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP, DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from disc.frontend.decompositions import is_random as draws_in_eager
from disc.frontend.decompositions import training_table
from disc.frontend.dynamo import Settings, compile_graph, formats_not_asked, with_autograd
from disc.frontend.effect_tokens import erase_tokens
from disc.frontend.fewer_collections import fewer_collections
from disc.frontend.lazy.calls import (
    BACKWARD,
    DETACHING,
    GRADIENT,
    PASSES,
    SET_GRADIENT,
    Input,
    Value,
    filled,
    never_sizes,
    references,
    scaled,
)
from disc.frontend.lazy.replay import context
from disc.frontend.lazy.statistics import LazyStatistics
from disc.frontend.lazy.traces import FEWEST_GENERAL, Made, Run, Segment, Step
from disc.frontend.lazy.variants import Effects, Formula, Guard, Variant
from disc.frontend.lowering import is_random
from disc.frontend.recurrent_tracing import forms as recurrent_forms
from disc.frontend.replaced import replaced
from disc.frontend.rolled_loops import roll_loops
from disc.frontend.tracing_lock import alone
from disc.ral._ral import LazyBinding

Size = int | str  # a symbol by name


class NotCompiledError(Exception):
    """A trace that PyTorch goes on running. step: the call that is why, if one is."""

    def __init__(self, why: str, step: Step | None = None) -> None:
        super().__init__(why)
        self.step = step


@fewer_collections()
def compile_run(run: Run, segment: Segment, settings: Settings, statistics: LazyStatistics) -> Variant:
    """The program of a run that has ended. Raises NotCompiledError."""
    began = perf_counter_ns()
    again = _Tracing(run, segment)
    if again.differentiable:
        program = again.differentiable_program(settings)
        statistics.optimizing_ns += perf_counter_ns() - began
        return again.variant(program)
    module = again.graph(settings)
    statistics.transforming_ns += perf_counter_ns() - began
    began = perf_counter_ns()
    with compile_lock, _told():
        roll_loops(module)
        if effect := erase_tokens(module):
            raise NotCompiledError(f"{effect} has an effect")
        program = compile_graph(module, settings)
    statistics.optimizing_ns += perf_counter_ns() - began
    return again.variant(program)


@contextmanager
def _told() -> Iterator[None]:
    """What goes wrong is why a trace is not compiled."""
    try:
        yield
    except NotCompiledError:
        raise
    except Exception as error:
        cause = error.__cause__
        if isinstance(cause, NotCompiledError):
            raise cause from error
        raise NotCompiledError(f"{type(error).__name__}: {error}") from error


@dataclass
class _Tracing:
    """A run, made again with symbols for its sizes. Raises NotCompiledError for one that cannot be."""

    run: Run
    segment: Segment
    steps: list[Step] = field(init=False)
    tensors: list[torch.Tensor] = field(init=False)  # that go in
    needed: list[int] = field(init=False)  # numbers of the values that outlive the run
    views: list[tuple[int, int, int]] = field(default_factory=list)  # value, step, place among its results
    shapes: dict[int, list[object]] = field(default_factory=dict)
    values: dict[int, int] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)
    gradients: dict[int, int | Input | None] = field(default_factory=dict)
    twins: dict[int, int] = field(default_factory=dict)  # input → the one in the same memory that stands for it
    sharing: set[int] = field(default_factory=set)  # inputs that share memory, and are others to the program
    writes: bool = False  # any input
    draws: bool = False  # random numbers, in a program with gradients

    def __post_init__(self) -> None:
        self.steps, self.tensors = self.run.here.steps(), self.run.inputs
        self._check_inputs()
        self._choose_outputs()
        self._choose_twins()
        self.env = ShapeEnv(duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self.env)
        self.mode.cache_enabled = False  # to keep what an op gives of symbolic sizes, and to make that again, takes longer than the op
        self.fakes = [self._fake(number) for number in range(len(self.tensors))]
        self.inputs = [[self._name(size) for size in each.shape] for each in self.fakes]
        self._make_scalars()

    # --- what goes in -----------------------------------------------------------------------------------------------------------------

    def _check_inputs(self) -> None:
        taken = {each.number for step in self.steps if step.context.grad and step.func not in DETACHING
                 for each in references((step.args, step.kwargs)) if isinstance(each, Input)}  # fmt: skip
        goes_on = any(each.requires_grad and not each.is_leaf and number in taken for number, each in enumerate(self.tensors))
        passes = self._first_pass()
        if goes_on and passes is not None:
            raise NotCompiledError("gradients go on into what was computed before the trace", passes)
        if any(each.is_conj() or each.is_neg() for each in self.tensors):
            raise NotCompiledError("an input is a conjugate or a negative view")

    def _first_pass(self) -> Step | None:
        """Where gradients are first computed: the trace may end there, so that what comes before is a program with gradients."""
        return next((step for step in self.steps if step.func in PASSES), None)

    def _is_static(self, number: int) -> bool:
        """Weights, their gradients, and tensors that are there from trace to trace have one size; leaves and what is written, where these
        are made anew, may have others."""
        tensor, segment = self.tensors[number], self.segment
        always = number in segment.kept or number in self.run.gradients.values()
        usual = number in segment.written or (tensor.requires_grad and tensor.is_leaf)
        return always or (usual and all(varied != number for varied, _ in segment.varied))

    def _fake(self, number: int) -> torch.Tensor:
        real = self.tensors[number]
        like = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=real.device)
        dynamic = DimDynamic.STATIC if self._is_static(number) else DimDynamic.DYNAMIC
        sizes = StatelessSymbolicContext(dynamic_sizes=[dynamic] * real.dim())
        return self.mode.from_tensor(like, source=ConstantSource(f"input{number}"), symbolic_context=sizes)

    def _name(self, size: object) -> Size:
        return str(size.node.expr) if isinstance(size, torch.SymInt) else cast("int", size)

    def _make_scalars(self) -> None:
        """Numbers that are not always the same are symbols where they may be sizes, and so are integers that are a size of an input now,
        unless that has been another one while they were the same; equal floats are one."""
        dynamic = {int(size) for number, (each, names) in enumerate(zip(self.tensors, self.inputs, strict=True))
                   for dim, (size, name) in enumerate(zip(each.shape, names, strict=True))
                   if isinstance(name, str) and (number, dim) not in self.segment.varied}  # fmt: skip
        self.scalars, self.general = list[list[float | str]](), dict[str, torch.SymInt | torch.Tensor]()
        for number, (step, given) in enumerate(zip(self.steps, self.run.scalars, strict=True)):
            names, fixed = list[float | str](), never_sizes(step.func, step.args, step.kwargs)
            for place, (mine, value) in enumerate(zip(step.scalars, given, strict=True)):
                if type(value) is float:
                    names.append(self._float(value, step) if mine is None else value)
                elif place not in fixed and value >= FEWEST_GENERAL and (mine is None or value in dynamic):
                    source = ConstantSource(f"scalar{number}_{place}")
                    symbol = self.env.create_symbol(cast("int", value), source=source, dynamic_dim=DimDynamic.DYNAMIC)
                    made = self.env.create_symintnode(symbol, hint=cast("int", value), source=source)
                    self.general[str(symbol)] = cast("torch.SymInt", made)
                    names.append(str(symbol))
                else:
                    names.append(value)
            self.scalars.append(names)

    def _float(self, value: float, step: Step) -> str:
        """The name of a float: in the program it is a tensor without dims."""
        name = f"{value!r} {step.floats}"
        if name not in self.general:
            self.general[name] = self.mode.from_tensor(torch.tensor(value, dtype=step.floats))
        return name

    # --- what comes out ----------------------------------------------------------------------------------------------------------------

    def _choose_outputs(self) -> None:
        """The values that somebody still holds. Views of others are taken anew of these."""
        makers = {number: (place, step) for place, step in enumerate(self.steps) for number in _made_by(step)}
        facts = {step.first + n: each for step in self.steps for n, each in enumerate(e for e in step.results if type(e) is Made)}
        live = self.run.live()
        real = {number: cast("torch.Tensor", self.run.proxy(number)._value) for number in live}
        graphs = [number for number in live if real[number].requires_grad]
        self.freed = frozenset(number for number in graphs if self._first_pass() is not None and _is_freed(real[number]))
        kept = [number for number in graphs if number not in self.freed]
        self.differentiable = bool(kept)
        if any(real[number].is_leaf for number in kept):
            raise NotCompiledError("the trace ends within a function that is differentiated")
        if kept:
            if any(step.func is BACKWARD for step in self.steps):
                line = makers[kept[0]][1].line
                raise NotCompiledError(f"gradients of a value made at {line} may be asked for after backward()", self._first_pass())
            self.needed = live
            self._follow_gradients()
            return
        needed, views = dict[int, None](), dict[int, None]()

        def need(number: int) -> None:
            if facts[number].root is None:
                needed[number] = None
                return
            _, step = makers[number]
            for each in references((step.args, step.kwargs)):
                if isinstance(each, Value):
                    need(each.number)
            if step.writes or any(each is not None and (type(each) is not Made or each.root is None) for each in step.results):
                raise NotCompiledError(f"a view made at {step.line} is kept, and is not made by a call that only makes views")
            views[number] = None

        for number in live:
            need(number)
        self.needed = list(needed)
        for number in views:
            place, step = makers[number]
            leaf = [n for n, each in enumerate(step.results) if type(each) is Made][number - step.first]
            self.views.append((number, place, leaf))

    def _follow_gradients(self) -> None:
        """What becomes of `grad` of the inputs in a trace without a backward pass."""
        for step in self.steps:
            if step.func == SET_GRADIENT:
                leaf, given = step.args
                if not isinstance(leaf, Input) or isinstance(given, Value):
                    raise NotCompiledError(f"a gradient is set at {step.line} before a backward pass")
                self.gradients[leaf.number] = given
            elif step.func == GRADIENT and any(type(each) is Made for each in step.results):
                raise NotCompiledError(f"a gradient is read at {step.line} before a backward pass")

    def _choose_twins(self) -> None:
        """Which of several tensors in exactly the same memory stands for all of them: the one whose version tells that it is written, or
        that gradients go to, where these may be asked for later."""
        twins = self.run.twins
        self.sharing = {number for number, first in enumerate(twins) if first < 0}
        for first in {first for number, first in enumerate(twins) if 0 <= first != number}:
            group = [number for number, each in enumerate(twins) if each == first]
            preferred = [each for each in group if each in self.segment.written]
            if self.differentiable and any(self.tensors[each].requires_grad for each in group):
                preferred = [each for each in group if self.tensors[each].requires_grad]
                if len(preferred) > 1:
                    self.sharing |= set(group)
                    continue
            chosen = next(iter(preferred), first)
            self.twins |= {number: chosen for number in group if number != chosen}

    def _check_writes(self, inputs: Sequence[torch.Tensor]) -> None:
        """PyTorch's versions do not tell all that is written (statistics of a batch norm), so that only now it is known."""
        written = [number for number, each in enumerate(inputs) if isinstance(each, FunctionalTensor) and has_data_mutation(each)]
        self.writes = self.writes or bool(written)
        shared = {self.tensors[number].untyped_storage()._cdata for number in self.sharing}
        if any(self.tensors[number].untyped_storage()._cdata in shared for number in written):
            raise NotCompiledError("the trace writes a tensor that shares a part of its memory with another one")

    # --- the graph ---------------------------------------------------------------------------------------------------------------------

    @alone
    def graph(self, settings: Settings) -> fx.GraphModule:
        """The graph of ATen ops."""
        table = training_table(eager_random=settings.options.random == "eager")
        state = torch.get_rng_state()
        try:
            with _told(), _tracing(self.mode), enable_python_dispatcher(), FunctionalTensorMode(_allow_token_discovery=True):
                module = make_fx(self._traced, decomposition_table=cast("Any", table))(*self.fakes, *self.general.values())
        finally:
            torch.set_rng_state(state)
        for node in module.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
                raise NotCompiledError(f"{node.target} writes its arguments, which a decomposition must not")
        return module

    @alone
    def differentiable_program(self, settings: Settings) -> Callable[[list[object]], Sequence[object]]:
        """As torch.compile makes one of a function: what gradients need is kept, and backward is a program too."""
        given = [_differentiable(each, mine) if mine.requires_grad else each for each, mine in zip(self.fakes, self.tensors, strict=True)]
        self.values = {number: place for place, number in enumerate(self.needed)}
        with _told(), _tracing(self.mode), tracing(TracingContext(self.mode)):
            run = with_autograd(settings, self._note_draws)(_Again(self), [*given, *self.general.values()])  # pyright: ignore[reportArgumentType]
        return lambda inputs: cast("Sequence[object]", run(*inputs))

    def _note_draws(self, joint: fx.GraphModule) -> None:
        self.draws = any(is_random(node.target) or draws_in_eager(node.target) for node in joint.graph.nodes)

    def _traced(self, *given: Any) -> list[object]:
        count, run = len(self.fakes), self.run
        symbols = dict(zip(self.general, given[count:], strict=True))
        with _ExcludeDispatchKeyGuard(DispatchKeySet(DispatchKey.Functionalize)):
            symbols = {name: to_fun(each) if isinstance(each, torch.Tensor) else each for name, each in symbols.items()}
            inputs = self._as_twins([to_fun(each) for each in given[:count]])
            for mine, real in zip(inputs, self.tensors, strict=True):
                if real.requires_grad:
                    mine.requires_grad_()
            for leaf, number in run.gradients.items():
                inputs[leaf].grad = inputs[number]
            results = self._results(inputs, self.replayed(inputs, symbols))
        return [from_fun(each) for each in results]

    def _as_twins(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [inputs[self.twins[number]].detach() if number in self.twins else each for number, each in enumerate(inputs)]

    def replayed(self, inputs: Sequence[torch.Tensor], symbols: Mapping[str, object]) -> list[torch.Tensor]:
        values = list[torch.Tensor]()
        for step, names in zip(self.steps, self.scalars, strict=True):
            if self.differentiable and step.func in (GRADIENT, SET_GRADIENT):
                continue
            scalars = [symbols[each] if isinstance(each, str) else each for each in names]
            call = scaled if any(isinstance(each, torch.Tensor) for each in scalars) else _plain
            fx_traceback.get_current_meta()["stack_trace"] = step.trace
            try:
                with context(step.context):
                    result = call(step.func, filled(step.args, values, inputs, scalars), filled(step.kwargs, values, inputs, scalars))
            except Exception as error:
                raise NotCompiledError(f"{type(error).__name__} at {step.line}: {error}", step) from error
            leaves = [result] if step.form is None else pytree.tree_leaves(result)
            if len(leaves) != len(step.results) or any((a is None) != (b is None) for a, b in zip(leaves, step.results, strict=True)):
                raise NotCompiledError(f"the call at {step.line} gives something else where its sizes are not known", step)
            for leaf, each in zip(leaves, step.results, strict=True):
                if type(each) is Made:
                    if len(values) not in self.shapes:  # made again, it would know what later calls say of its symbols
                        self.shapes[len(values)] = [size.node.expr if isinstance(size, torch.SymInt) else int(size) for size in leaf.shape]
                    values.append(leaf)
        return values

    def _results(self, inputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What the graph returns; notes what is what."""
        found, places = list[torch.Tensor](), dict[int, int]()
        self._check_writes(inputs)

        def put(tensor: torch.Tensor) -> int:
            if tensor.layout is not torch.strided:
                raise NotCompiledError(f"the trace gives a tensor of layout {tensor.layout}")
            if id(tensor) not in places:
                places[id(tensor)] = len(found)
                found.append(tensor)
            return places[id(tensor)]

        for number in self.needed:
            self.values[number] = put(values[number])
        for number, each in enumerate(inputs):
            if number not in self.twins and has_data_mutation(each):
                self.written[number] = put(each)
        for number, each in enumerate(inputs):
            if not self.tensors[number].requires_grad:
                continue
            held, before = each.grad, self.run.gradients.get(number)
            same = next((n for n, other in enumerate(inputs) if other is held), None) if held is not None else None
            if held is None and before is not None:
                self.gradients[number] = None
            elif held is not None and same is None:
                self.gradients[number] = put(held)
            elif same is not None and same != before:
                self.gradients[number] = Input(same)
        return found

    def variant(self, program: Callable[[list[object]], Sequence[object]]) -> Variant:
        freed = frozenset[int]() if self.differentiable else self.freed
        general = {name: each.dtype if isinstance(each, torch.Tensor) else None for name, each in self.general.items()}
        written = {} if self.differentiable else self.written
        versions = frozenset(self.segment.written)
        effects = Effects(self.values, written, self.gradients, self.views, freed, written.keys() - versions, self.twins.keys() & versions)
        symbols = list(dict.fromkeys([*general, *(size for each in self.inputs for size in each if isinstance(size, str))]))
        places = {name: place for place, name in enumerate(symbols)}
        inputs, scalars = ([[(places[size], 0) if isinstance(size, str) else (-1, size) for size in each] for each in given]
                           for given in (self.inputs, self.scalars))  # fmt: skip
        binding = LazyBinding(inputs, scalars, len(symbols), [*self.values, *(number for number, _, _ in self.views)])
        shapes = {number: [each if isinstance(each, int) else _formula(each) for each in sizes] for number, sizes in self.shapes.items()
                  if all(isinstance(each, int) or {str(symbol) for symbol in cast("sympy.Expr", each).free_symbols} <= places.keys()
                         for each in sizes)}  # fmt: skip
        label = f"disc.lazy: {self.steps[-1].line}"
        repeatable = self.differentiable and not self.draws and not self.writes
        what = (self.steps, self.differentiable, repeatable, label)
        return Variant(symbols, binding, general, self._guards(), shapes, effects, program, *what)

    def _guards(self) -> list[Guard]:
        """What PyTorch decided of the symbols, and the ranges that it took for granted."""
        names = {*self.general, *(name for each in self.inputs for name in each if isinstance(name, str))}
        found = [cast("sympy.Expr", each.expr) for each in self.env.guards]
        for symbol, limits in self.env.var_to_range.items():
            if str(symbol) in names:
                found += [sympy.Ge(symbol, limits.lower)] if isinstance(limits.lower, sympy.Integer) else []
                found += [sympy.Le(symbol, limits.upper)] if isinstance(limits.upper, sympy.Integer) else []
        unknown = {str(symbol) for each in found for symbol in each.free_symbols} - names
        if unknown:
            raise NotCompiledError(f"sizes depend on values ({', '.join(sorted(unknown))})")
        guards = list[Guard]()
        for each in dict.fromkeys(found):
            formula = _formula(each)
            if not isinstance(formula, int):
                guards.append(Guard(frozenset(formula[1]), formula[0], formula[1]))
        return guards


class _Again(torch.nn.Module):
    """Makes the calls of a run again."""

    def __init__(self, again: _Tracing) -> None:
        super().__init__()
        self.again = again

    def forward(self, *given: Any) -> list[torch.Tensor]:
        count = len(self.again.fakes)
        inputs = self.again._as_twins(given[:count])
        values = self.again.replayed(inputs, dict(zip(self.again.general, given[count:], strict=True)))
        self.again._check_writes(inputs)
        return [values[number] for number in self.again.needed]


def _plain(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return func(*args, **kwargs)


def _differentiable(fake: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A leaf, or what comes of one, as the tensor: AOTAutograd cuts the second off where no gradient reaches it, since a backward pass
    would go on into a graph that may have been freed."""
    with torch.enable_grad():
        leaf = fake.requires_grad_()
        return leaf if like.is_leaf else leaf.view_as(leaf) if like._is_view() else leaf.clone()


def _made_by(step: Step) -> range:
    return range(step.first, step.first + sum(type(each) is Made for each in step.results))


def _is_freed(value: torch.Tensor) -> bool:
    """Whether a gradient of a value that PyTorch computed cannot be asked for any more: a backward pass has freed what it needs."""
    pending, seen = [value.grad_fn], set[object]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        saved = [name for name in dir(node) if name == "saved_tensors" or name.startswith("_raw_saved_")]
        try:
            for name in saved:
                getattr(node, name.replace("_raw", "", 1))
        except RuntimeError:
            return True
        pending += [each for each, _ in node.next_functions]
    return False


def _formula(expression: object) -> Formula:
    """As a function of its symbols."""
    expr = cast("sympy.Expr", expression)
    names = tuple(sorted(str(symbol) for symbol in expr.free_symbols))
    if not names and isinstance(expr, sympy.Integer):
        return int(expr)
    return eval(f"lambda {', '.join(names)}: {PythonPrinter().doprint(expr)}", dict(SYMPY_INTERP)), names


# Floats among the inputs are tensors already; those of sizes it would look for among the inputs, where Dynamo puts sizes.
_NOT_TENSORIFIED: dict[tuple[Any, str], object] = {(graph_compile, "_apply_tensorify_python_scalars"): lambda module: None}


@contextmanager
def _tracing(mode: FakeTensorMode) -> Iterator[None]:
    """As AOTAutograd traces. Each call knows whether gradients and autocast are on: what is on where the trace ends is of no account. The
    fused attention kernels cannot be looked into; the composite one is matmuls and a softmax."""
    with (
        compile_lock,
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        mode,
        fx_traceback.preserve_node_meta(),
        sdpa_kernel([SDPBackend.MATH]),
        recurrent_forms(),
        replaced(_NOT_TENSORIFIED),
        formats_not_asked(),
        torch.autograd.set_multithreading_enabled(False),
    ):
        yield
