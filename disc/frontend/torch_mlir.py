"""Ops without a rule of ours: torch-mlir lowers the single call, and the ops it makes are cloned into our function."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import fx
from torch_mlir import ir
from torch_mlir.extras.fx_importer import FxImporter
from torch_mlir.passmanager import PassManager

from disc.frontend.emitter import Emitter, RuleError, Tensor, wrap_dim
from disc.frontend.symbols import Shape, Size, to_shape, to_size
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
NO_RULE = "no lowering for this op"


def lower_with_torch_mlir(emitter: Emitter, node: fx.Node, value_of: Callable[[fx.Node], object]) -> Tensor | tuple[Tensor, ...]:
    """Raises: RuleError when torch-mlir cannot lower the op either."""
    if not isinstance(node.target, torch._ops.OpOverload):
        raise RuleError(NO_RULE)
    _check_arguments(node)
    graph, inputs = _single_call(node)
    module = _lowered(graph)
    operands = [_operand(emitter, value_of(original)) for original in inputs]
    values = _cloned(module, operands)
    metas = _metas(node)
    tensors = tuple(Tensor(value, _shape(value, meta), meta.dtype) for value, meta in zip(values, metas, strict=True))
    return tensors if isinstance(node.meta["val"], list | tuple) else tensors[0]


def _check_arguments(node: fx.Node) -> None:
    """Without data, not every op of PyTorch refuses a dim that its first operand has not, and torch-mlir may not come to an end of it;
    nor may it do without a list's first tensor.

    Raises: RuleError.
    """
    op, first = node.target, node.args[0] if node.args else None
    value = first.meta.get("val") if isinstance(first, fx.Node) else None
    assert isinstance(op, torch._ops.OpOverload)
    for argument, given in zip(op._schema.arguments, node.args, strict=False):
        if argument.name == "dim" and isinstance(given, int) and isinstance(value, torch.Tensor):
            wrap_dim(given, value.dim())
        if isinstance(given, list | tuple) and not given and "Tensor" in str(argument.type):
            raise RuleError(f"'{argument.name}' is an empty list of tensors")  # torch-mlir reads its first


def _metas(node: fx.Node) -> list[torch.Tensor]:
    value = node.meta["val"]
    return list(value) if isinstance(value, list | tuple) else [value]


def _shape(value: ir.Value, meta: torch.Tensor) -> Shape:
    kind = ir.RankedTensorType(value.type)
    sizes: list[Size] = [want if kind.is_dynamic_dim(i) else kind.get_dim_size(i) for i, want in enumerate(to_shape(meta.shape))]
    return tuple(sizes)


def _single_call(node: fx.Node) -> tuple[fx.Graph, list[fx.Node]]:
    """The graph of this one call, and the nodes of the original graph that its placeholders stand for."""
    graph = fx.Graph()
    placeholders: dict[fx.Node, fx.Node] = {}

    def placeholder(original: fx.Node) -> fx.Node:
        if original not in placeholders:
            placeholders[original] = graph.placeholder(original.name)
            placeholders[original].meta = {"val": original.meta["val"]}
        return placeholders[original]

    for original in node.all_input_nodes:
        placeholder(original)
    copy = graph.node_copy(node, placeholder)
    outputs = [copy]
    if isinstance(node.meta["val"], list | tuple):
        outputs = [graph.call_function(operator.getitem, (copy, i)) for i in range(len(node.meta["val"]))]
        for output, meta in zip(outputs, node.meta["val"], strict=True):
            output.meta = {"val": meta}
    graph.output(tuple(outputs))
    return graph, list(placeholders)


def _lowered(graph: fx.Graph) -> ir.Module:
    """The call as a module of its own, in the current context."""
    importer = FxImporter(context=ir.Context.current)
    try:
        importer.import_stateless_graph(graph, func_name="call")
        PassManager.parse(PIPELINE).run(importer.module.operation)
    except (ir.MLIRError, NotImplementedError, TypeError, ValueError, KeyError, AssertionError, RuntimeError) as error:
        # Whatever torch-mlir stumbles over means the same to the user: this op has no lowering.
        raise RuleError(NO_RULE) from error
    return importer.module


def _operand(emitter: Emitter, value: object) -> ir.Value:
    if isinstance(value, Tensor):
        return value.value
    return emitter.integer(to_size(value))


def _cloned(module: ir.Module, operands: list[ir.Value]) -> list[ir.Value]:
    """The ops of the module's function, cloned to the insertion point.

    Raises: RuleError when one of them is none that the later stages compile, as stablehlo.sort is.
    """
    function = next(iter(module.body))
    block = function.regions[0].blocks[0]
    mapping = dict(zip(block.arguments, operands, strict=True))
    if any(argument.type != operand.type for argument, operand in mapping.items()):
        raise RuleError(NO_RULE)
    for op in block.operations:
        if op.operation.name == "func.return":
            return [mapping.get(operand, operand) for operand in op.operands]
        if op.operation.name not in ALLOWED and not op.operation.name.startswith("arith."):
            raise RuleError(NO_RULE)
        clone = op.operation.clone()
        for i, operand in enumerate(op.operands):
            clone.operands[i] = mapping[operand]
        mapping |= dict(zip(op.results, clone.results, strict=True))
    raise RuleError(NO_RULE)
