"""A trace as one compiled program, for all sizes that its guards allow: the cached transformation of Dali (paper 004, section 2, Table 2).

The calls are made once with PyTorch's fake tensors, whose sizes are symbols, backward passes and optimizers among them. The graph of ATen
ops that comes of it goes the way of torch.compile's graphs. What PyTorch decided by sizes meanwhile are the guards.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence, Set
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
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.attention import SDPBackend, sdpa_kernel

from disc.frontend.backend_settings import Settings
from disc.frontend.decompositions import training_table
from disc.frontend.dynamo import formats_not_asked, with_autograd
from disc.frontend.effect_tokens import erase_tokens
from disc.frontend.fewer_collections import fewer_collections
from disc.frontend.graph_programs import compile_graph
from disc.frontend.lazy.calls import MAKING, Input, never_sizes
from disc.frontend.lazy.families import Family, Numbers, Output, formula
from disc.frontend.lazy.kin import Member
from disc.frontend.lazy.made_again import MadeAgain, Size, Values
from disc.frontend.lazy.outline import NotCompiledError, Outline
from disc.frontend.lazy.statistics import LazyStatistics
from disc.frontend.lazy.traces import FEWEST_GENERAL, History, Run, Step
from disc.frontend.lazy.unrolled import Every, Unrolled
from disc.frontend.lazy.variants import Guard, Program, Variant
from disc.frontend.lowering import is_random
from disc.frontend.random_ops import draws_in_eager
from disc.frontend.recurrent_tracing import forms as recurrent_forms
from disc.frontend.replaced import replaced
from disc.frontend.rolled_loops import roll_loops
from disc.frontend.tracing_lock import alone


@fewer_collections()
def compile_run(
    run: Run, history: History, settings: Settings, statistics: LazyStatistics, member: Member | None = None
) -> tuple[Family, Variant]:
    """The program of a run that has ended, and the variant of it that the run is. history: of the trace; member: of kin, if the program is
    for these, so that loops may have any number of steps. Raises NotCompiledError."""
    again = _Tracing(run, history.written, member=member, history=history if member is None else member.kin.history)
    began = perf_counter_ns()
    if again.differentiable:
        program = again.differentiable_program(settings)
        statistics.optimizing_ns += perf_counter_ns() - began
        return again.family(program)
    module = again.graph(settings)
    statistics.transforming_ns += perf_counter_ns() - began
    began = perf_counter_ns()
    with compile_lock, _told():
        roll_loops(module)
        if effect := erase_tokens(module):
            raise NotCompiledError(f"{effect} has an effect")
        program = compile_graph(module, settings, again.replaced())
    statistics.optimizing_ns += perf_counter_ns() - began
    return again.family(program)


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
class _Tracing(Outline):
    """A run, made again with symbols for its sizes. Raises NotCompiledError for one that cannot be."""

    history: History = field(kw_only=True)
    member: Member | None = field(kw_only=True)
    places: dict[Output, int] = field(default_factory=dict)  # of results that are values
    rewritten: dict[int, int] = field(default_factory=dict)  # inputs, and the results that they become
    writes: bool = False  # any input
    draws: bool = False  # random numbers, in a program with gradients

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.member is None:
            self.unrolled = Unrolled(self)
            self.unrolled.take_calls()
        else:
            self.unrolled = self.member.unrolled
        self.env = ShapeEnv(duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self.env)
        self.mode.cache_enabled = False  # to keep what an op gives of symbolic sizes, and to make that again, takes longer than the op
        self.fakes = [self._fake(number) for number in range(len(self.tensors))]
        self.inputs = [[self._name(size) for size in each.shape] for each in self.fakes]
        self.general: dict[str, torch.SymInt | torch.Tensor] = {}
        self.calls = MadeAgain(weakref.proxy(self), self.unrolled, self._numbers())

    # --- what goes in -----------------------------------------------------------------------------------------------------------------

    def _is_static(self, number: int) -> bool:
        """Weights, their gradients, and tensors that are there from trace to trace have one size; leaves and what is written, where these
        are made anew, may have others."""
        tensor, history = self.tensors[number], self.history
        always = number in history.kept or number in self.run.gradients.values()
        usual = number in self.written or (tensor.requires_grad and tensor.is_leaf)
        return always or (usual and all(varied != number for varied, _ in history.varied))

    def _fake(self, number: int) -> torch.Tensor:
        real = self.tensors[number]
        like = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=real.device)
        if real.dim() == 0:
            like.zero_()  # PyTorch looks at the number
        dynamic = DimDynamic.STATIC if self._is_static(number) else DimDynamic.DYNAMIC
        sizes = StatelessSymbolicContext(dynamic_sizes=[dynamic] * real.dim())
        return self.mode.from_tensor(like, source=ConstantSource(f"input{number}"), symbolic_context=sizes)

    def _name(self, size: object) -> Size:
        return str(size.node.expr) if isinstance(size, torch.SymInt) else cast("int", size)

    def _numbers(self) -> dict[tuple[int, int], list[float | str]]:
        """The numbers of every call. Those that are not always the same are symbols where they may be sizes, and so are integers that are
        a size of an input now, unless that has been another one while they were the same, and sizes of what is made of sizes alone; equal
        floats are one."""
        dynamic = {int(size) for number, (each, names) in enumerate(zip(self.tensors, self.inputs, strict=True))
                   for dim, (size, name) in enumerate(zip(each.shape, names, strict=True))
                   if isinstance(name, str) and (number, dim) not in self.history.varied}  # fmt: skip
        dynamic |= {int(size) for step, given in zip(self.steps, self.run.scalars, strict=True) if step.func in MAKING
                    for place, size in enumerate(given) if place not in never_sizes(step.func, step.args, step.kwargs)
                    and step.scalars[place] is not None}  # fmt: skip
        scalars, found = self.run.scalars, dict[tuple[int, int], list[float | str]]()
        for place, part in enumerate(self.unrolled.parts):
            for number in range(part.first, part.first + part.period):
                given, call = scalars[number], number - part.first
                fixed = part.kind == "rows" or self.unrolled.is_cut(place, call)
                others = frozenset[int]() if self.member is None else self.member.kin.varied((place, call))
                found[place, call] = list(given) if fixed else self._general(number, given, dynamic, others)
        return found

    def _general(self, number: int, given: Sequence[float], dynamic: Set[int], varied: Set[int]) -> list[float | str]:
        """Those of one call; varied: the places of such as have been others in other traces."""
        step, names = self.steps[number], list[float | str]()
        fixed = never_sizes(step.func, step.args, step.kwargs)
        for place, (mine, value) in enumerate(zip(step.scalars, given, strict=True)):
            other = mine is None or place in varied or step.func in MAKING
            if type(value) is float:
                names.append(self._float(value, step) if other and step.floats is not None else value)
            elif place not in fixed and value >= FEWEST_GENERAL and (other or value in dynamic):
                source = ConstantSource(f"scalar{number}_{place}")
                symbol = self.env.create_symbol(cast("int", value), source=source, dynamic_dim=DimDynamic.DYNAMIC)
                made = self.env.create_symintnode(symbol, hint=cast("int", value), source=source)
                self.general[str(symbol)] = cast("torch.SymInt", made)
                names.append(str(symbol))
            else:
                names.append(value)
        return names

    def _float(self, value: float, step: Step) -> str:
        """The name of a float: in the program it is a tensor without dims."""
        name = f"{value!r} {step.floats}"
        if name not in self.general:
            self.general[name] = self.mode.from_tensor(torch.tensor(value, dtype=step.floats))
        return name

    def _check_writes(self, inputs: Sequence[torch.Tensor]) -> None:
        """PyTorch's versions do not tell all that is written (statistics of a batch norm), so that only now it is known."""
        written = [number for number, each in enumerate(inputs) if isinstance(each, FunctionalTensor) and has_data_mutation(each)]
        self.writes = self.writes or bool(written)
        if any(
            list(cast("torch.Tensor", from_fun(inputs[number])).shape) != list(self.fakes[number].shape) for number in written
        ):  # or a guard that these are equal
            raise NotCompiledError("a tensor that was there before gets another size, as by out=")
        storages = [each.untyped_storage() for each in self.tensors]
        memory = [self.run.first_in(each.data_ptr(), each.nbytes()) for each in storages]
        if not {memory[number] for number in written}.isdisjoint(memory[number] for number in self.sharing):
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
        given = [
            _differentiable(each, mine) if mine.requires_grad and number not in self.apart else each
            for number, (each, mine) in enumerate(zip(self.fakes, self.tensors, strict=True))
        ]
        self.places = {output: place for place, output in enumerate(self._outputs())}
        with _told(), _tracing(self.mode), tracing(TracingContext(self.mode)):
            module = _Again(self)
            run = with_autograd(settings, self._note_draws)(module, [*given, *self.general.values()])  # pyright: ignore[reportArgumentType]
        del module.again  # which has the run's tensors: the program keeps the module
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
            results = self._results(inputs, self.calls.values(inputs, symbols))
        return [from_fun(each) for each in results]

    def _as_twins(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [inputs[self.twins[number]].detach() if number in self.twins else each for number, each in enumerate(inputs)]

    def _outputs(self) -> list[Output]:
        """What of the needed values the program returns: of a loop, the last value, or those of all steps."""
        finals, found = self.calls.finals, list[Output]()
        for name in map(self.unrolled.name, self.needed):
            loop = self.unrolled.parts[name.part].kind == "loop"
            found.append(name if not loop or (name.step is None and (name.part, name.number) in finals) else Every(name.part, name.number))
        return list(dict.fromkeys(found))

    def _results(self, inputs: Sequence[torch.Tensor], values: Values) -> list[torch.Tensor]:
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

        for output in self._outputs():
            self.places[output] = put(values.sequence(output))
        for number, each in enumerate(inputs):
            if number not in self.twins and has_data_mutation(each):
                self.rewritten[number] = put(each)
        for number, each in enumerate(inputs):
            if not self.tensors[number].requires_grad:
                continue
            held, before = each.grad, self.run.gradients.get(number)
            if held is not None and self.tensors[number].grad is None:
                raise NotCompiledError("a loop has a gradient of zeros where PyTorch has none")
            same = next((n for n, other in enumerate(inputs) if other is held), None) if held is not None else None
            if held is None and before is not None:
                self.gradients[number] = None
            elif held is not None and same is None:
                self.gradients[number] = put(held)
            elif same is not None and same != before:
                self.gradients[number] = Input(same)
        return found

    def replaced(self) -> dict[int, int]:
        """The results that are nothing but what inputs become → these."""
        others = [*self.places.values(), *(each for each in self.gradients.values() if isinstance(each, int))]
        return {place: number for number, place in self.rewritten.items() if place not in others}

    def family(self, program: Program) -> tuple[Family, Variant]:
        general = {name: each.dtype if isinstance(each, torch.Tensor) else None for name, each in self.general.items()}
        symbols = list(dict.fromkeys([*general, *(size for each in self.inputs for size in each if isinstance(size, str))]))
        known = set(symbols)
        shapes = {place: [formula(each) for each in sizes] for place, sizes in self.calls.shapes.items()
                  if all(isinstance(each, int) or {str(symbol) for symbol in cast("sympy.Expr", each).free_symbols} <= known
                         for each in sizes)}  # fmt: skip
        counts = {place: formula(each) for place, each in self.calls.counts.items()}
        numbers = Numbers(symbols, self.inputs, self.calls.numbers)
        written = {} if self.differentiable else self.rewritten
        repeatable = self.differentiable and not self.draws and not self.writes
        effects = (self.places, written, self.gradients)
        family = Family(numbers, general, self._guards(), shapes, counts, *effects, repeatable, program, self.apart)
        variant = family.variant(self, self.unrolled)
        if variant is None:
            raise NotCompiledError("gradients of a loop's values go to different inputs")
        return family, variant

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
            condition = formula(each)
            if not isinstance(condition, int):
                guards.append(Guard(frozenset(condition[1]), condition[0], condition[1]))
        return guards


class _Again(torch.nn.Module):
    """Makes the calls of a run again."""

    def __init__(self, again: _Tracing) -> None:
        super().__init__()
        self.again = again

    def __call__(self, *given: Any) -> list[torch.Tensor]:  # without hooks that somebody has for all modules
        count = len(self.again.fakes)
        inputs = self.again._as_twins(given[:count])
        values = self.again.calls.values(inputs, dict(zip(self.again.general, given[count:], strict=True)))
        self.again._check_writes(inputs)
        return [values.sequence(output) for output in self.again.places]


def _differentiable(fake: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A leaf, or what comes of one, as the tensor: AOTAutograd cuts the second off where no gradient reaches it, since a backward pass
    would go on into a graph that may have been freed."""
    with torch.enable_grad():
        leaf = fake.requires_grad_()
        return leaf if like.is_leaf else leaf.view_as(leaf) if like._is_view() else leaf.clone()


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
        torch.autograd.set_detect_anomaly(False),
    ):
        yield
