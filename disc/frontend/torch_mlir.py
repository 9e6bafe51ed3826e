"""torch-mlir lowers calls of ATen ops: once per kind of call, to ops that are cloned wherever such a call stands.

%2 = add.Tensor(%0 : [s0, 768] f32, %1 : [768] f32)  ──►  kind add.Tensor([?, 768] f32, [768] f32)  ──►  chlo.broadcast_add

A kind says which dims are static, not which symbols the others have: sizes come as operands, or are read off the operands.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.shape_prop import TensorMetadata
from torch_mlir import ir
from torch_mlir.extras.fx_importer import FxImporter
from torch_mlir.passmanager import PassManager

from disc.frontend.op_builder import NO_RULE, RuleError
from disc.ir.stages import NAMED_OPS

# torch dialect → StableHLO that keeps chlo.broadcast_*, so that a broadcast goes exactly when its dims are proved equal.
PIPELINE = (
    "builtin.module(func.func(torch-match-quantized-custom-ops),torchdynamo-export-to-torch-backend-pipeline{extra-library=},"
    "func.func(convert-torch-to-stablehlo,convert-torch-to-arith),torch-func-backend-type-conversion-for-stablehlo,"
    "func.func(canonicalize,torch-finalizing-backend-type-conversion-for-stablehlo),canonicalize,cse)"
)
# What torch-mlir makes for dynamic sizes, and its plain forms of ops that `disc` has its own of: name-dims turns them into stage `named`.
_NAMED_LATER = (
    "broadcast_in_dim dynamic_broadcast_in_dim dot dynamic_conv gather dynamic_gather get_dimension_size iota dynamic_iota pad dynamic_pad "
    "reshape dynamic_reshape slice real_dynamic_slice"
)
_BROADCASTING = (
    "add and atan2 compare divide maximum minimum multiply or power remainder select shift_left shift_right_arithmetic shift_right_logical "
    "subtract xor"
)
ALLOWED: frozenset[str] = frozenset([
    *NAMED_OPS,
    *(f"stablehlo.{name}" for name in _NAMED_LATER.split()),
    *(f"chlo.broadcast_{name}" for name in _BROADCASTING.split()),
    "chlo.constant", "chlo.constant_like", "tensor.cast", "tensor.dim", "tensor.extract", "tensor.from_elements",
])  # fmt: skip
# Whatever torch-mlir stumbles over means the same to the user: this op has no lowering.
FAILURES = (ir.MLIRError, NotImplementedError, TypeError, ValueError, KeyError, AssertionError, RuntimeError)


# --- kinds ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorKind:
    """sizes: None for a dynamic dim."""

    dtype: torch.dtype
    sizes: tuple[int | None, ...]


@dataclass(frozen=True)
class SizeKind:
    """An integer that the caller computes."""


@dataclass(frozen=True)
class Literal:
    """A constant; `text` distinguishes 1 from True and 1.0, and -0.0 from 0.0."""

    text: str
    value: object = field(compare=False)


Argument = TensorKind | SizeKind | Literal | tuple["Argument", ...]


@dataclass(frozen=True)
class Kind:
    """All that torch-mlir's lowering of a call depends on.

    arguments: by position, as in the schema of `op`, all of them. several: `op` returns more than one tensor, or a list.
    """

    op: torch._ops.OpOverload
    arguments: tuple[Argument, ...]
    results: tuple[TensorKind, ...]
    several: bool


def literal(value: object) -> Literal:
    return Literal(f"{type(value).__name__} {value!r}", value)


# --- what a kind is lowered to ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """operands: places among the arguments of the call and all results before."""

    op: ir.Operation
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Lowered:
    """The ops that a kind is lowered to. results: places; sizes: of the results, as far as known; module: what keeps the ops alive."""

    steps: tuple[_Step, ...]
    results: tuple[int, ...]
    sizes: tuple[tuple[int | None, ...], ...]
    module: ir.Module

    def clone(self, operands: Sequence[ir.Value]) -> list[ir.Value]:
        """The results of the ops, which are cloned to the insertion point, under the current location."""
        values, location = list(operands), ir.Location.current
        for step in self.steps:
            op = step.op.clone()
            for place, source in enumerate(step.operands):
                op.operands[place] = values[source]
            op.location = location
            if len(op.regions):
                _locate(op, location)
            values.extend(op.results)
        return [values[place] for place in self.results]


def _locate(op: ir.Operation, location: ir.Location) -> None:
    def visit(inner: ir.Operation) -> ir.WalkResult:
        inner.location = location
        return ir.WalkResult.ADVANCE

    op.walk(visit)


_texts: dict[Kind, str | None] = {}  # of this process: the function that a kind becomes, None where torch-mlir has no lowering


class Lowerings:
    """What kinds are lowered to, as ops of the current context.

    expected: the kinds that are likely to be needed. torch-mlir lowers them together with the first one that is new: its passes
    take more time to begin than for a call.
    """

    def __init__(self, expected: Callable[[], Iterable[Kind]]) -> None:
        self._expected = expected
        self._lowered: dict[Kind, Lowered] = {}

    def __getitem__(self, kind: Kind) -> Lowered:
        """Raises: RuleError where torch-mlir cannot lower the kind, or makes ops that the later stages do not compile."""
        if kind not in self._lowered:
            self._lowered[kind] = _read(ir.Module.parse(self._text(kind)))
        return self._lowered[kind]

    def _text(self, kind: Kind) -> str:
        if kind not in _texts:
            expected, self._expected = self._expected(), tuple
            _texts.update(_lowered_together([each for each in dict.fromkeys([kind, *expected]) if each not in _texts]))
        text = _texts[kind]
        if text is None:
            raise RuleError(NO_RULE)
        return text


def _read(module: ir.Module) -> Lowered:
    block = next(iter(module.body)).regions[0].blocks[0]
    places: dict[ir.Value, int] = {value: place for place, value in enumerate(block.arguments)}
    steps: list[_Step] = []
    for op in block.operations:
        operands = tuple(places[operand] for operand in op.operands)
        if op.operation.name == "func.return":
            return Lowered(tuple(steps), operands, tuple(_known_sizes(operand) for operand in op.operands), module)
        if op.operation.name not in ALLOWED and not op.operation.name.startswith("arith."):
            break
        _drop_compare_type(op.operation)
        steps.append(_Step(op.operation, operands))
        places |= {value: len(places) + place for place, value in enumerate(op.results)}
    raise RuleError(NO_RULE)


def _drop_compare_type(op: ir.Operation) -> None:
    """Takes away what the type of the elements says as well, so that equal comparisons are equal ops."""
    if "compare_type" in op.attributes and "TOTALORDER" not in str(op.attributes["compare_type"]):
        del op.attributes["compare_type"]


def _known_sizes(value: ir.Value) -> tuple[int | None, ...]:
    kind = ir.RankedTensorType(value.type)
    return tuple(None if kind.is_dynamic_dim(dim) else kind.get_dim_size(dim) for dim in range(kind.rank))


def _lowered_together(kinds: Sequence[Kind]) -> dict[Kind, str | None]:
    """The kinds in one module; where that fails, each in one of its own."""
    importer = FxImporter(context=ir.Context.current)
    try:
        for place, kind in enumerate(kinds):
            importer.import_stateless_graph(_graph(kind), func_name=f"kind{place}")
        PassManager.parse(PIPELINE).run(importer.module.operation)
    except FAILURES:
        if len(kinds) == 1:
            return {kinds[0]: None}
        return {kind: text for each in kinds for kind, text in _lowered_together([each]).items()}
    return {kind: function.get_asm(use_local_scope=True) for kind, function in zip(kinds, importer.module.body, strict=True)}


# --- a kind as a graph --------------------------------------------------------------------------------------------------------


@functools.cache
def _unknown_size() -> torch.SymInt:
    return ShapeEnv().create_unbacked_symint()


def _graph(kind: Kind) -> fx.Graph:
    """A function of the kind's tensors and sizes, in the order of its arguments."""
    graph = fx.Graph()
    parameters = kind.op._schema.arguments
    given = {parameter.name: _argument(graph, value) for parameter, value in zip(parameters, kind.arguments, strict=True)}
    named = {parameter.name for parameter in parameters if parameter.kwarg_only}
    call = graph.call_function(
        kind.op, tuple(value for name, value in given.items() if name not in named), {name: given[name] for name in given if name in named}
    )
    if not kind.several:
        call.meta = {"tensor_meta": _metadata(kind.results[0])}
        graph.output((call,))
        return graph
    call.meta = {"val": [_fake(result) for result in kind.results]}
    parts = [graph.call_function(operator.getitem, (call, place)) for place in range(len(kind.results))]
    for part, result in zip(parts, kind.results, strict=True):
        part.meta = {"tensor_meta": _metadata(result)}
    graph.output(tuple(parts))
    return graph


def _argument(graph: fx.Graph, value: Argument) -> Any:
    if isinstance(value, tuple):
        return [_argument(graph, part) for part in value]
    if isinstance(value, Literal):
        return value.value
    node = graph.placeholder("operand")
    node.meta = {"tensor_meta": _metadata(value)} if isinstance(value, TensorKind) else {"val": _unknown_size()}
    return node


def _sizes(kind: TensorKind) -> torch.Size:
    return tuple(_unknown_size() if size is None else size for size in kind.sizes)  # pyright: ignore[reportReturnType]


def _metadata(kind: TensorKind) -> TensorMetadata:
    return TensorMetadata(_sizes(kind), kind.dtype, False, (), None, False, {})


def _fake(kind: TensorKind) -> torch.Tensor:
    """The form in which torch-mlir expects one of several results."""
    size = _unknown_size()
    with FakeTensorMode(shape_env=size.node.shape_env):
        return torch.empty_strided(_sizes(kind), [1] * len(kind.sizes), dtype=kind.dtype)
