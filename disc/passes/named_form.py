"""The rewrite behind name-dims: typed results, no shape operands, sizes used as data as `disc.dim_value`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch_mlir import ir

from disc.errors import UnsupportedOp, UnsupportedOpError
from disc.ir.ops import (
    Attribute,
    array_to_dense,
    block_ops,
    build,
    dense_to_array,
    element_of,
    int_attr,
    ints_attr,
    is_tensor,
    location_text,
    main_block,
    main_function,
    rank_of,
    strings,
    tensor_type,
    terminator_of,
)
from disc.ir.symbols import ModuleEnv
from disc.passes.host_values import ONE, ZERO, HostValue, Ratio, elements, is_constant
from disc.passes.shape_rules import Shapes, conv_paddings, gather_sizes, pad_amounts, slice_bounds
from disc.shapes import Dim, Truth, dim_max, dim_min

# Operands that are data; the others hold sizes and are dropped. Ops that are not here read all their operands as data.
DATA_OPERANDS: dict[str, int] = {
    "stablehlo.dynamic_reshape": 1, "stablehlo.dynamic_broadcast_in_dim": 1, "stablehlo.dynamic_iota": 0, "stablehlo.real_dynamic_slice": 1,
    "stablehlo.dynamic_pad": 2, "stablehlo.dynamic_gather": 2, "stablehlo.dynamic_conv": 2, "tensor.cast": 1, "chlo.constant_like": 0,
    "stablehlo.get_dimension_size": 0,
}  # fmt: skip
CONSTANTS = ("stablehlo.constant", "arith.constant", "chlo.constant")


class NamedForm:
    """Rewrites @main, whose dims and values `shapes` holds; the symbols of `env` stand in the module already."""

    def __init__(self, module: ir.Module, shapes: Shapes, env: ModuleEnv) -> None:
        self.module = module
        self.shapes = shapes
        self.env = env
        # Erased at the end: the tables of `shapes` know values by address, and a new op may get the address of an erased one.
        self.replaced: dict[ir.Operation, None] = {}
        self.made: dict[ir.Value, ir.Value] = {}
        self.types: dict[tuple[tuple[Dim, ...], ir.Type], ir.RankedTensorType] = {}

    def rewrite(self) -> None:
        block = main_block(self.module)
        for argument in filter(is_tensor, block.arguments):
            argument.set_type(self.type_of(argument))
        ops = block_ops(block)
        live = self._live(ops)
        for op, is_live in zip(ops, live, strict=True):
            if is_live:
                self._rewrite_op(op)
        self._write_signature()
        for op, is_live in zip(reversed(ops), reversed(live), strict=True):
            if not is_live or op in self.replaced:
                op.erase()

    def type_of(self, value: ir.Value) -> ir.RankedTensorType:
        return self.typed(self.shapes.dims[value], element_of(value))

    def typed(self, dims: Sequence[Dim], element: ir.Type) -> ir.RankedTensorType:
        key = (tuple(dims), element)
        if key not in self.types:
            self.types[key] = tensor_type(dims, element, self.env)
        return self.types[key]

    def _live(self, ops: Sequence[ir.Operation]) -> list[bool]:
        """Which ops compute data that reaches the result."""
        needed: dict[ir.Value, None] = {}
        live: list[bool] = []
        for op in reversed(ops):
            is_live = op.name == "func.return" or any(result in needed for result in op.results)
            live.append(is_live)
            if is_live:
                needed.update(dict.fromkeys(operand for operand in _data_operands(op) if not self._is_size(operand)))
        return live[::-1]

    def _is_size(self, value: ir.Value) -> bool:
        """Whether data use of `value` reads a `disc.dim_value` or constant made for it, instead of the op that defines it."""
        host = self.shapes.values.get(value)
        if host is None or not isinstance(value, ir.OpResult):
            return host is not None
        name = value.owner.name
        if name in CONSTANTS:
            return False
        if not name.startswith(("stablehlo.", "chlo.")):
            return True
        return all(isinstance(item, Dim) and (not item.is_const or -(2**31) <= item.const < 2**31) for item in elements(host))

    def _rewrite_op(self, op: ir.Operation) -> None:
        for index, operand in enumerate(_data_operands(op)):
            if self._is_size(operand):
                op.operands[index] = self._materialise(operand, op)
        rule = REWRITES.get(op.name)
        if rule is not None:
            rule(self, op)
            return
        if op.name.startswith("chlo.broadcast_"):
            _rewrite_broadcast(self, op)
            return
        for result in op.results:
            result.set_type(self.type_of(result))

    def replace(self, op: ir.Operation, name: str, operands: Sequence[ir.Value], attributes: dict[str, Attribute]) -> None:
        """Puts the op `name` with the inferred result type in the place of `op`."""
        made = build(name, operands, [self.type_of(op.results[0])], attributes, before=op)
        self.substitute(op, made.results[0])

    def substitute(self, op: ir.Operation, value: ir.Value) -> None:
        """Gives the readers of `op` to `value`."""
        op.results[0].replace_all_uses_with(value)
        self.replaced[op] = None

    def broadcast(self, value: ir.Value, dims: Sequence[Dim], positions: Sequence[int], before: ir.Operation) -> ir.Value:
        """`value` expanded to `dims`; its dim i is dim positions[i] there."""
        kind = self.typed(dims, element_of(value))
        source = self.source_dims(value)
        maybe = [i for i, dim in enumerate(source) if dim != ONE and self.env.equal(dim, dims[positions[i]]) is not Truth.YES]
        attributes: dict[str, Attribute] = {"dims": list(positions), "maybe": maybe}
        return build("disc.broadcast_in_dim", [value], [kind], attributes, before=before).results[0]

    def source_dims(self, value: ir.Value) -> tuple[Dim, ...]:
        """The dims of an operand, also of one that this rewrite made."""
        encoding = ir.RankedTensorType(value.type).encoding
        return () if encoding is None else tuple(self.env.resolve(entry) for entry in ir.ArrayAttr(encoding))

    # Sizes as data

    def _materialise(self, value: ir.Value, before: ir.Operation) -> ir.Value:
        """A tensor with the sizes that `value` holds; made once, before its first reader."""
        if value not in self.made:
            self.made[value] = self._build_sizes(value, before)
        return self.made[value]

    def _build_sizes(self, value: ir.Value, before: ir.Operation) -> ir.Value:
        host = self.shapes.values.get(value)
        if host is None or not is_tensor(value):
            what = "a number whose form is not known" if host is None else "a scalar that is no tensor"
            raise UnsupportedOpError([UnsupportedOp(before.name, f"it reads {what}", location_text(before))])
        element = element_of(value)
        kind = self.typed(tuple(map(Dim.of, host.shape)), element)
        if is_constant(host):
            array = array_to_dense(_constant_array(host, element), kind)
            return build("stablehlo.constant", [], [kind], {"value": array}, before=before).results[0]
        parts = [self._size(_whole(item, before), before) for item in elements(host)]
        joined = parts[0]
        word = ir.IntegerType.get_signless(64)
        if host.ndim > 0:
            flat = self.typed((Dim.of(host.size),), word)
            single = self.typed((ONE,), word)
            rows = [build("disc.reshape", [part], [single], before=before).results[0] for part in parts]
            joined = rows[0] if len(rows) == 1 else build("stablehlo.concatenate", rows, [flat], {"dimension": 0}, before=before).results[0]
        if host.ndim > 1:
            joined = build("disc.reshape", [joined], [self.typed(tuple(map(Dim.of, host.shape)), word)], before=before).results[0]
        if element == word:
            return joined
        return build("stablehlo.convert", [joined], [kind], before=before).results[0]

    def _size(self, dim: Dim, before: ir.Operation) -> ir.Value:
        kind = ir.RankedTensorType.get([], ir.IntegerType.get_signless(64))
        return build("disc.dim_value", [], [kind], {"expr": str(self.env.simplify(dim))}, before=before).results[0]

    def _write_signature(self) -> None:
        block = main_block(self.module)
        results = [operand.type for operand in terminator_of(block).operands]
        kind = ir.FunctionType.get([argument.type for argument in block.arguments], results)
        main_function(self.module).attributes["function_type"] = ir.TypeAttr.get(kind)


def _data_operands(op: ir.Operation) -> list[ir.Value]:
    operands = list(op.operands)
    return operands[: DATA_OPERANDS.get(op.name, len(operands))]


def _whole(item: Dim | Ratio, reader: ir.Operation) -> Dim:
    if isinstance(item, Dim):
        return item
    if item.denominator == ONE:
        return item.numerator
    raise UnsupportedOpError([UnsupportedOp(reader.name, "it reads a quotient of sizes", location_text(reader))])


def _constant_array(host: HostValue, element: ir.Type) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    numbers = [item.const if isinstance(item, Dim) else item.numerator.const / item.denominator.const for item in elements(host)]
    dtype = {"i1": np.bool_, "i32": np.int32, "f64": np.float64}.get(str(element), np.int64)
    return np.array(numbers, dtype).reshape(host.shape)


# --- one function per kind of op --------------------------------------------------------------------------------------


def _rewrite_broadcast(form: NamedForm, op: ir.Operation) -> None:
    """chlo.broadcast_x → stablehlo.x on operands of one shape; operands align at their last dims."""
    dims = form.shapes.dims[op.results[0]]
    name = op.name.replace("chlo.broadcast_", "stablehlo.")
    operands: list[ir.Value] = []
    for index, operand in enumerate(op.operands):
        positions = list(range(len(dims) - rank_of(operand), len(dims)))
        is_rank0_condition = name == "stablehlo.select" and index == 0 and not positions
        same = operand.type == form.typed(dims, element_of(operand))
        operands.append(operand if same or is_rank0_condition else form.broadcast(operand, dims, positions, op))
    attributes: dict[str, Attribute] = {}
    if name == "stablehlo.compare":
        kept = [entry for entry in ("comparison_direction", "compare_type") if entry in op.attributes]
        attributes = {entry: _stablehlo_enum(op.attributes[entry]) for entry in kept}
    form.replace(op, name, operands, attributes)


def _stablehlo_enum(attribute: ir.Attribute) -> ir.Attribute:
    """#chlo<comparison_direction GE> → #stablehlo<comparison_direction GE>."""
    return ir.Attribute.parse(str(attribute).replace("#chlo<", "#stablehlo<"))


def _rewrite_reshape(form: NamedForm, op: ir.Operation) -> None:
    form.replace(op, "disc.reshape", [op.operands[0]], {})


def _rewrite_broadcast_in_dim(form: NamedForm, op: ir.Operation) -> None:
    dims = form.shapes.dims[op.results[0]]
    made = form.broadcast(op.operands[0], dims, ints_attr(op, "broadcast_dimensions"), op)
    form.substitute(op, made)


def _rewrite_iota(form: NamedForm, op: ir.Operation) -> None:
    form.replace(op, "disc.iota", [], {"dim": int_attr(op, "iota_dimension")})


def _rewrite_slice(form: NamedForm, op: ir.Operation) -> None:
    starts, _, strides = slice_bounds(form.shapes, op)
    simplified = strings(*(form.env.simplify(start) for start in starts))
    form.replace(op, "disc.slice", [op.operands[0]], {"starts": simplified, "strides": ir.DenseI64ArrayAttr.get(list(strides))})


def _rewrite_dynamic_slice(form: NamedForm, op: ir.Operation) -> None:
    """With starts that are sizes it is a disc.slice, the starts clamped; with computed starts it stays."""
    values = [form.shapes.values.get(operand) for operand in list(op.operands)[1:]]
    known = [value.item() for value in values if value is not None]
    if len(known) != len(values):
        op.results[0].set_type(form.type_of(op.results[0]))
        return
    starts: list[Dim] = []
    for start, dim, size in zip(known, form.source_dims(op.operands[0]), ints_attr(op, "slice_sizes"), strict=True):
        starts.append(form.env.simplify(dim_max(dim_min(start, dim - size), ZERO)))
    strides = ir.DenseI64ArrayAttr.get([1] * len(starts))
    form.replace(op, "disc.slice", [op.operands[0]], {"starts": strings(*starts), "strides": strides})


def _rewrite_pad(form: NamedForm, op: ir.Operation) -> None:
    low, _, interior = pad_amounts(form.shapes, op)
    simplified = strings(*(form.env.simplify(amount) for amount in low))
    form.replace(op, "disc.pad", list(op.operands)[:2], {"low": simplified, "interior": ir.DenseI64ArrayAttr.get(list(interior))})


def _rewrite_gather(form: NamedForm, op: ir.Operation) -> None:
    sizes = strings(*(form.env.simplify(size) for size in gather_sizes(form.shapes, op)))
    form.replace(op, "disc.gather", list(op.operands)[:2], {"dimension_numbers": op.attributes["dimension_numbers"], "sizes": sizes})


def _rewrite_dot(form: NamedForm, op: ir.Operation) -> None:
    last = rank_of(op.operands[0]) - 1
    numbers = ir.Attribute.parse(f"#stablehlo.dot<lhs_contracting_dimensions = [{last}], rhs_contracting_dimensions = [0]>")
    form.replace(op, "stablehlo.dot_general", list(op.operands), {"dot_dimension_numbers": numbers})


def _rewrite_dynamic_conv(form: NamedForm, op: ir.Operation) -> None:
    rank = rank_of(op.operands[0]) - 2
    kept: dict[str, Attribute] = {name: op.attributes[name] for name in op.attributes if name != "padding"}
    kind = ir.RankedTensorType.get([rank, 2], ir.IntegerType.get_signless(64))
    kept["padding"] = array_to_dense(np.array(conv_paddings(form.shapes, op, rank), np.int64).reshape(rank, 2), kind)
    form.replace(op, "stablehlo.convolution", list(op.operands)[:2], kept)


def _rewrite_constant(form: NamedForm, op: ir.Operation) -> None:
    """The value takes the type with named dims too, so that the two agree."""
    kind = form.type_of(op.results[0])
    value = op.attributes["value"]
    if isinstance(value, ir.DenseElementsAttr) and value.is_splat:
        value = ir.DenseElementsAttr.get_splat(kind, value.get_splat_value())
    elif kind.rank > 0:
        value = array_to_dense(dense_to_array(value), kind)
    made = build("stablehlo.constant", [], [kind], {"value": value}, before=op)
    form.substitute(op, made.results[0])


def _rewrite_constant_like(form: NamedForm, op: ir.Operation) -> None:
    dims = form.shapes.dims[op.results[0]]
    kind = form.typed((), element_of(op.results[0]))
    value = ir.DenseElementsAttr.get_splat(kind, op.attributes["value"])
    made = build("stablehlo.constant", [], [kind], {"value": value}, before=op).results[0]
    form.substitute(op, form.broadcast(made, dims, [], op) if dims else made)


def _rewrite_cast(form: NamedForm, op: ir.Operation) -> None:
    form.substitute(op, op.operands[0])


def _keep_return(form: NamedForm, op: ir.Operation) -> None:
    """It has no result to type."""


REWRITES: dict[str, Callable[[NamedForm, ir.Operation], None]] = {
    "stablehlo.reshape": _rewrite_reshape, "stablehlo.dynamic_reshape": _rewrite_reshape,
    "stablehlo.broadcast_in_dim": _rewrite_broadcast_in_dim, "stablehlo.dynamic_broadcast_in_dim": _rewrite_broadcast_in_dim,
    "stablehlo.iota": _rewrite_iota, "stablehlo.dynamic_iota": _rewrite_iota, "stablehlo.slice": _rewrite_slice,
    "stablehlo.real_dynamic_slice": _rewrite_slice, "stablehlo.dynamic_slice": _rewrite_dynamic_slice, "stablehlo.pad": _rewrite_pad,
    "stablehlo.dynamic_pad": _rewrite_pad, "stablehlo.gather": _rewrite_gather, "stablehlo.dynamic_gather": _rewrite_gather,
    "stablehlo.dot": _rewrite_dot, "stablehlo.dynamic_conv": _rewrite_dynamic_conv, "stablehlo.constant": _rewrite_constant,
    "arith.constant": _rewrite_constant, "chlo.constant": _rewrite_constant, "chlo.constant_like": _rewrite_constant_like,
    "tensor.cast": _rewrite_cast, "func.return": _keep_return,
}  # fmt: skip
