"""Ops of StableHLO and chlo that stage `imported` does not have, in forms that it has; what has no meaning here is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]
from torch_mlir.passmanager import PassManager

from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.frontend.hlo import bits, devices, draws, einsums, linear_algebra, norms, random_bits, slices, sorting
from disc.frontend.hlo.convolutions import convolution
from disc.frontend.hlo.custom_calls import call_form
from disc.frontend.hlo.emit import Emitter, FormError, Values, kind_of, named_form
from disc.frontend.hlo.legalized import LEGALIZED, legalized
from disc.ir.ops import block_ops, int_attr, is_unused, location_text, rank_of, replace_op, string_attr
from disc.ir.rewriting import defining

_stablehlo.register_stablehlo_passes()  # the wheel registers only those that its own pipelines use

Form = Callable[[ir.Operation], Values | None]  # what takes the place of the results; None: the op stays as it is

KEPT_COMPOSITES: Mapping[str, Form] = {"chlo.top_k": sorting.top_k_composite}
DEPRECATED = frozenset(f"stablehlo.{name}" for name in ("broadcast", "cross-replica-sum"))
QUANTIZED = frozenset({"stablehlo.uniform_quantize", "stablehlo.uniform_dequantize"})  # by StableHLO's passes, as all ops on such types
OUTSIDE = "it exchanges data with the host while the program runs: make it an input or a result"
REFUSED: Mapping[str, str] = {f"stablehlo.{name}": OUTSIDE for name in ("infeed", "outfeed", "recv", "send")}
COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "reduce_scatter")


def _passed_on(op: ir.Operation) -> Values:
    return list(op.operands)


def _element_of_tuple(op: ir.Operation) -> Values:
    made = defining(op.operands[0], "stablehlo.tuple")
    if made is None:
        raise FormError("tuples are not taken as arguments: give their elements")
    return [made.operands[int_attr(op, "index")]]


def _map(op: ir.Operation) -> Values:
    return Emitter(op).inlined(op.regions[0].blocks[0], list(op.operands))


def _resized(op: ir.Operation) -> Values:
    """The first elements along a dim."""
    e, (x, size) = Emitter(op), op.operands
    rank, dim = rank_of(x), int_attr(op, "dimension")
    position = e.one("arith.index_cast", [e.one("tensor.extract", [size], ir.IntegerType.get_signless(32))], ir.IndexType.get())
    limits = e.sizes([position if each == dim else e.size(x, each) for each in range(rank)])
    kind = ir.RankedTensorType.get(
        [ir.ShapedType.get_dynamic_size() if each == dim else full for each, full in enumerate(kind_of(x).shape)],
        kind_of(x).element_type,
    )
    return [e.one("stablehlo.real_dynamic_slice", [x, e.sizes([0] * rank), limits, e.sizes([1] * rank)], kind)]


def _composite(op: ir.Operation) -> Values | None:
    name = string_attr(op, "name")
    return named_form(name, KEPT_COMPOSITES[name], op)


FORMS: Mapping[str, Form] = {
    **{f"chlo.{name}": legalized for name in LEGALIZED}, **{f"stablehlo.{name}": devices.collective for name in COLLECTIVES},
    "chlo.top_k": sorting.top_k, "stablehlo.batch_norm_grad": norms.gradient, "stablehlo.batch_norm_inference": norms.inference,
    "stablehlo.batch_norm_training": norms.training, "stablehlo.bitcast_convert": bits.bitcast_convert,
    "stablehlo.cholesky": linear_algebra.cholesky, "stablehlo.composite": _composite, "stablehlo.convolution": convolution,
    "stablehlo.custom_call": call_form, "stablehlo.einsum": einsums.einsum, "stablehlo.torch_index_select": einsums.torch_index_select,
    "stablehlo.get_tuple_element": _element_of_tuple, "stablehlo.map": _map, "stablehlo.optimization_barrier": _passed_on,
    "stablehlo.async_done": devices.awaited, "stablehlo.collective_permute": devices.permute,
    "stablehlo.partition_id": devices.number_of_device, "stablehlo.real_dynamic_slice": slices.real_dynamic_slice,
    "stablehlo.reduce_precision": bits.reduce_precision, "stablehlo.replica_id": devices.number_of_device, "stablehlo.rng": draws.rng,
    "stablehlo.rng_bit_generator": random_bits.rng_bit_generator, "stablehlo.set_dimension_size": _resized, "stablehlo.sort": sorting.sort,
    "stablehlo.triangular_solve": linear_algebra.triangular_solve, "stablehlo.unary_einsum": einsums.unary_einsum,
}  # fmt: skip
# Where nothing reads them.
DROPPED = frozenset(f"stablehlo.{name}" for name in ("after_all", "async_start", "create_token", "tuple"))


def upstream_passes(module: ir.Module) -> str:
    """StableHLO's own passes that this program needs, before its functions are inlined."""
    names: set[str] = set()
    quantized = False

    def visit(op: ir.Operation) -> ir.WalkResult:
        nonlocal quantized
        names.add(op.name)
        quantized = quantized or op.name in QUANTIZED or any("!quant." in str(value.type) for value in (*op.operands, *op.results))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    passes: list[str] = []
    if "stablehlo.composite" in names:
        passes.append(f"func.func(stablehlo-legalize-composite-to-call{{except={','.join(KEPT_COMPOSITES)}}})")
    if names & DEPRECATED:
        passes.append("func.func(stablehlo-legalize-deprecated-ops{fail-on-unused=false})")
    if quantized:
        passes += ["func.func(stablehlo-legalize-quantized-op-to-qdq)", "func.func(stablehlo-legalize-quant-to-math)"]
    return "".join(f"{each}," for each in passes)


def rewrite_forms(module: ir.Module, function: ir.Operation) -> None:
    """Of a module whose calls are inlined.

    Raises: UnsupportedOpError naming every op that has no form.
    """
    refused: list[UnsupportedOp] = []
    _rewrite_block(function.regions[0].blocks[0], refused)
    if refused:
        raise UnsupportedOpError(refused)
    PassManager.parse("builtin.module(symbol-dce)").run(module.operation)  # functions that ops named


def _rewrite_block(block: ir.Block, refused: list[UnsupportedOp]) -> None:
    for op in block_ops(block):
        for region in op.regions:
            for inner in region.blocks:
                _rewrite_block(inner, refused)
        if op.name in REFUSED:
            refused.append(UnsupportedOp(op.name, REFUSED[op.name], location_text(op)))
        elif op.name in FORMS:
            _rewrite(op, refused)
    for op in reversed(block_ops(block)):
        if op.name in DROPPED and is_unused(op):
            op.erase()


def _rewrite(op: ir.Operation, refused: list[UnsupportedOp]) -> None:
    try:
        values = FORMS[op.name](op)
    except FormError as error:
        refused.append(UnsupportedOp(op.name, str(error), location_text(op)))
        return
    if values is not None:
        replace_op(op, [_as_declared(value, result) for value, result in zip(values, op.results, strict=True)])


def _as_declared(value: ir.Value, result: ir.OpResult) -> ir.Value:
    """With the static sizes of the type that the program states."""
    if value.type == result.type or not isinstance(value.type, ir.RankedTensorType):
        return value
    op = result.owner.operation  # pyright: ignore[reportAttributeAccessIssue]
    return Emitter(op).one("tensor.cast", [value], result.type)
