"""Single calls of ATen ops as graphs, without an export: lowered, interpreted at several sizes, and compared with eager."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch_mlir import ir

from disc.frontend.dialects import load_frontend_dialects
from disc.frontend.lowering import GraphInput, GraphSource
from disc.ir.dialect import make_context
from disc.ir.interp.oracle import interpret
from disc.ir.passes import CompileState, run_passes
from disc.ir.weights import WeightTable
from disc.passes.pipelines import FRONT

aten = torch.ops.aten
Values = Callable[[int, torch.dtype, torch.Generator], torch.Tensor]
SIZES = ({"a": 3, "b": 4}, {"a": 1, "b": 1}, {"a": 7, "b": 2}, {"a": 0, "b": 3})
TRIALS = ({"a": 11, "b": 13}, {"a": 17, "b": 19})
SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 0.5, -0.5, -1.5, 2.5, 1.0, -3.0, 0.25, 100.0)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def anything(count: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Numbers of both signs where there are such; a third of floats are special ones."""
    if not dtype.is_floating_point:
        low = 0 if dtype in (torch.uint8, torch.bool) else -9
        return torch.randint(low, 2 if dtype == torch.bool else 9, (count,), generator=generator).to(dtype)
    values = torch.randn(count, generator=generator, dtype=torch.float64) * 2
    special = torch.tensor(SPECIAL, dtype=torch.float64)[torch.randint(len(SPECIAL), (count,), generator=generator)]
    return torch.where(torch.rand(count, generator=generator) < 0.3, special, values).to(dtype)


def finite(count: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    values = anything(count, dtype, generator)
    return torch.nan_to_num(values, 0.0, 1.0, -1.0) if dtype.is_floating_point else values


def nonzero(count: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    values = anything(count, dtype, generator)
    return values if dtype.is_floating_point else torch.where(values == 0, torch.ones((), dtype=dtype), values)


def positive(count: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(1, 5, (count,), generator=generator).to(dtype)


def places(count: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Indices into a dim of 5."""
    return torch.randint(5, (count,), generator=generator).to(dtype)


def from_the_end(count: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(-5, 0, (count,), generator=generator).to(dtype)


def first(count: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    return torch.zeros(count, dtype=dtype)


@dataclass(frozen=True)
class In:
    """A tensor: its dims as "a b 4", letters for dynamic ones."""

    dims: str
    dtype: torch.dtype = torch.float32
    values: Values = anything

    def draw(self, sizes: Mapping[str, int], seed: int) -> torch.Tensor:
        shape = [sizes[dim] if dim.isalpha() else int(dim) for dim in self.dims.split()]
        return self.values(int(np.prod(shape, dtype=int)), self.dtype, torch.Generator().manual_seed(seed)).reshape(shape)


@dataclass(frozen=True)
class Size:
    """The size of a dynamic dim, as an argument."""

    name: str


@dataclass(frozen=True, eq=False)
class SingleCall:
    """args: tensors, sizes, constants, lists of those."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.op}{self.args}{self.kwargs or ''}"


def call(op: torch._ops.OpOverload, *args: object, **kwargs: object) -> SingleCall:
    return SingleCall(op, args, kwargs)


def _mapped(value: Any, change: Callable[[In | Size], object]) -> Any:
    if isinstance(value, In | Size):
        return change(value)
    if isinstance(value, list | tuple):
        return [_mapped(part, change) for part in value]
    return value


def _tensors(each: SingleCall) -> list[In]:
    found: list[In] = []

    def note(value: In | Size) -> None:
        if isinstance(value, In):
            found.append(value)

    _mapped([*each.args, *each.kwargs.values()], note)
    return found


def _dims(one: Sequence[int], other: Sequence[int]) -> str | None:
    """The dims of a result that has these sizes at TRIALS, as In has them; None where one is neither a constant nor a symbol."""
    names = {tuple(sizes[name] for sizes in TRIALS): name for name in "ab"}
    dims = [str(x) if x == y else names.get((x, y)) for x, y in zip(one, other, strict=True)]
    return None if None in dims else " ".join(map(str, dims))


@dataclass
class CallGraph:
    """All calls in one graph. nodes: of each call the one that calls, and those of its results; refused: what PyTorch itself refuses."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    inputs: list[tuple[fx.Node, In]] = field(default_factory=list)
    nodes: dict[SingleCall, tuple[fx.Node, list[fx.Node]]] = field(default_factory=dict)
    operands: dict[SingleCall, list[int]] = field(default_factory=dict)
    fakes: dict[tuple[str, torch.dtype], torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.environment = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.environment)
        dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
        base = self.mode.from_tensor(torch.empty(5, 6), symbolic_context=dynamic)
        self.sizes = {"a": base.shape[0], "b": base.shape[1]}
        self._input(In("a b"), base)
        self.size_nodes = {name: self.graph.call_function(aten.sym_size.int, (self.inputs[0][0], i)) for i, name in enumerate("ab")}
        for name, node in self.size_nodes.items():
            node.meta = {"val": self.sizes[name]}

    def _input(self, tensor: In, value: torch.Tensor) -> fx.Node:
        last = self.inputs[-1][0] if self.inputs else None
        with self.graph.inserting_after(last) if last else self.graph.inserting_before():
            node = self.graph.placeholder("x")
        node.meta = {"val": value}
        self.inputs.append((node, tensor))
        return node

    def add(self, each: SingleCall) -> bool:
        """False: PyTorch refuses the call."""
        before = len(self.inputs)

        def change(value: In | Size) -> fx.Node:
            if isinstance(value, Size):
                return self.size_nodes[value.name]
            return self._input(value, self._fake(value.dims, value.dtype))

        args = tuple(_mapped(each.args, change))
        kwargs = {name: _mapped(value, change) for name, value in each.kwargs.items()}
        node = self.graph.call_function(each.op, args, kwargs)
        value = self._result(each, node)
        if value is None:
            self.graph.erase_node(node)
            return False
        node.meta = {"val": value}
        parts = [node]
        if isinstance(value, list | tuple):
            parts = [self.graph.call_function(operator.getitem, (node, place)) for place in range(len(value))]
            for part, tensor in zip(parts, value, strict=True):
                part.meta = {"val": tensor}
        self.nodes[each] = node, parts
        self.operands[each] = list(range(before, len(self.inputs)))
        return True

    def _fake(self, dims: str, dtype: torch.dtype) -> torch.Tensor:
        if (dims, dtype) not in self.fakes:
            with self.mode:
                self.fakes[dims, dtype] = torch.empty([self.sizes[dim] if dim.isalpha() else int(dim) for dim in dims.split()], dtype=dtype)
        return self.fakes[dims, dtype]

    def _result(self, each: SingleCall, node: fx.Node) -> Any:
        """The result without data; None where PyTorch refuses the call. Symbolic only where eager at two sizes leaves a dim open: it is slow."""
        drawn = [eager(each, [tensor.draw(sizes, 0) for tensor in _tensors(each)], sizes) for sizes in TRIALS]
        one, other = drawn
        if one is not None and other is not None:
            found = [(_dims(a.shape, b.shape), a.dtype) for a, b in zip(one, other, strict=True)]
            if all(dims is not None for dims, _ in found):
                fakes = [self._fake(dims, dtype) for dims, dtype in found if dims is not None]
                several = len(each.op._schema.returns) > 1 or isinstance(each.op._schema.returns[0].type, torch.ListType)
                return fakes if several else fakes[0]
        given, named = fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
        try:
            with self.mode, enable_python_dispatcher():
                return each.op(*given, **named)
        except Exception:
            return None

    def remove(self, each: SingleCall) -> None:
        node, parts = self.nodes.pop(each)
        for one in dict.fromkeys([*parts, node]):
            self.graph.erase_node(one)

    def source(self) -> GraphSource:
        outputs = [(part.name, part) for _, parts in self.nodes.values() for part in parts]
        inputs = [GraphInput(node, node.name) for node, _ in self.inputs]
        return GraphSource(self.graph, inputs, {}, outputs, dict(self.environment.var_to_range))

    def draw(self, sizes: Mapping[str, int]) -> list[torch.Tensor]:
        return [tensor.draw(sizes, seed) for seed, (_, tensor) in enumerate(self.inputs)]


def eager(each: SingleCall, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> list[torch.Tensor] | None:
    """The results; None where eager refuses the call."""
    remaining = iter(tensors)

    def change(value: In | Size) -> object:
        return sizes[value.name] if isinstance(value, Size) else next(remaining).clone()

    try:
        results = each.op(*_mapped(each.args, change), **{name: _mapped(value, change) for name, value in each.kwargs.items()})
    except Exception:
        return None
    return list(results) if isinstance(results, list | tuple) else [results]


def front_context() -> ir.Context:
    context = make_context()
    load_frontend_dialects(context)
    return context


def named(module: ir.Module, weights: WeightTable) -> CompileState:
    state = CompileState(weights=weights)
    run_passes(module, FRONT, state)
    return state


def interpreted(module: ir.Module, weights: WeightTable, tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return [np.asarray(result) for result in interpret(module, [_array(each) for each in tensors], weights)]


def _array(tensor: torch.Tensor) -> np.ndarray:
    """The interpreter holds bf16 in f32."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def difference(ours: np.ndarray, theirs: torch.Tensor, zeros: bool = True) -> str:
    """What differs from eager's result, "" for nothing; tolerances are relative to the largest number. zeros: their signs count."""
    wanted = _array(theirs)
    if ours.shape != wanted.shape or ours.dtype != wanted.dtype:
        return f"{ours.dtype}{ours.shape} instead of {wanted.dtype}{wanted.shape}"
    if not theirs.dtype.is_floating_point:
        same = ours == wanted
    else:
        limit = TOLERANCE[theirs.dtype]
        scale = np.abs(np.where(np.isfinite(wanted), wanted, 0)).max(initial=1.0)
        with np.errstate(all="ignore"):
            same = np.isclose(ours, wanted, rtol=limit, atol=limit * scale, equal_nan=True)
        if zeros:
            same &= (wanted != 0) | (ours != 0) | (np.signbit(ours) == np.signbit(wanted))
    if same.all():
        return ""
    place = tuple(np.argwhere(~same)[0])
    return f"{ours[place]} instead of {wanted[place]}"
