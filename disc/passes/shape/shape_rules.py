"""Op name → the dims of its results: the three methods of shape inference.

Input-output inference gives the result dims from the operand dims; sibling constraints equate dims that the op requires to be
equal (`Shapes.same`); shape-value extraction takes dims from operands that hold sizes (`Shapes.sizes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.errors import ShapeConstraintError, UnsupportedFormatError, UnsupportedOp
from disc.ir.control import REGION_OPS
from disc.ir.op_table import EXTERNAL, IMPORTED, Sizes, rules_by_op
from disc.ir.ops import block_ops, dense_to_array, element_of, int_attr, ints_attr, is_tensor, location_text, shape_of, string_attr
from disc.ir.stages import NAMED_OPS
from disc.ir.symbols import ModuleEnv, Requirement
from disc.ir.weights import STORAGE
from disc.passes.shape.control_shapes import branch_dims, while_dims
from disc.passes.shape.dynamic_windows import window_of
from disc.passes.shape.floor_forms import floored
from disc.passes.shape.host_rules import HOST_RULES
from disc.passes.shape.host_values import (
    ONE,
    ZERO,
    HostArithmetic,
    HostValue,
    Ratio,
    broadcast_sizes,
    host_constant,
    is_host_element,
    known_int,
    scalar,
    vector,
)
from disc.shapes import ALWAYS, NEVER, Condition, Dim, Truth, dim_max

Dims = tuple[Dim, ...]
Rule = Callable[["Shapes", ir.Operation], Sequence[Dims]]


ELEMENTS = frozenset((*STORAGE, "index"))
BODY_OPS = NAMED_OPS | {"stablehlo.return", "stablehlo.broadcast_in_dim"}


class DataDependentSizeError(Exception):
    """A size that is computed from tensor data, or another reason for which the op cannot be compiled."""


class Shapes:
    """What is known about the values of one function: dims of tensors, values of shape arithmetic, facts in `env`."""

    def __init__(self, env: ModuleEnv, conditions: Sequence[Condition] = ()) -> None:
        """conditions: that every call is checked for."""
        self.env = env
        self.conditions = conditions
        self.when: dict[ir.Block, Condition] = {}  # branch that sizes choose → when it runs
        self.arithmetic = HostArithmetic(env)
        self.dims: dict[ir.Value, Dims] = {}
        self.values: dict[ir.Value, HostValue] = {}
        self.made: dict[ir.Value, HostValue] = {}  # results of ops that bind symbols
        self.unsupported: list[UnsupportedOp] = []

    def visit(self, op: ir.Operation) -> None:
        """Records the facts of `op`: the values it computes, the dims of its results, the facts it requires."""
        value = self._host_value(op)
        if value is not None:
            self.values[op.results[0]] = value
        if not any(is_tensor(result) for result in op.results):
            self._visit_effect(op)
            return
        foreign = [kind for kind in map(_element, filter(is_tensor, (*op.operands, *op.results))) if kind not in ELEMENTS]
        inner = _foreign_inside(op)
        rule = RULES.get(op.name)
        if rule is None or foreign or inner:
            missing = f"there is no rule for {inner} in its body" if inner else "there is no rule for this op"
            self.refuse(op, f"tensors of {foreign[0]} are not supported" if foreign else missing)
            return
        try:
            inferred = rule(self, op)
        except DataDependentSizeError as error:
            self.refuse(op, str(error))
            return
        except ShapeConstraintError as error:
            raise ShapeConstraintError(f"{op.name} at {location_text(op)}: {error}") from error
        for result, dims in zip(op.results, inferred, strict=True):
            self.dims[result] = self.meet(dims, result)

    def _visit_effect(self, op: ir.Operation) -> None:
        """An op without a tensor as its result: arithmetic on sizes, an assertion of JAX's about them, or something that is refused."""
        if op.name == "stablehlo.custom_call" and string_attr(op, "call_target_name") == "shape_assertion":
            self._assert(op)
        elif op.name not in HOST_RULES and op.name not in _SOURCES and op.name != "func.return":
            self.refuse(op, "there is no rule for this op" if op.results else "it has no result: what it does would be lost")

    def _assert(self, op: ir.Operation) -> None:
        """`@shape_assertion(%ok, sizes...) {error_message}`, as JAX writes it: the message has a numbered place for each size."""
        found = [self.values.get(operand) for operand in op.operands]
        items = [value.item() for value in found if value is not None and value.ndim == 0]
        dims = [item for item in items if isinstance(item, Dim)]
        if not dims or len(dims) != len(found):
            self.refuse(op, "it asserts something that is no condition on sizes")
            return
        message = string_attr(op, "error_message") if "error_message" in op.attributes else "an assertion of the program about its sizes"
        condition = self.arithmetic.condition(dims[0])
        if condition == NEVER:
            raise ShapeConstraintError(f"{op.name} at {location_text(op)} never holds: {message}")
        for part in condition.parts() if condition != ALWAYS else ():
            self.env.require(Requirement(part, f"asserted at {location_text(op)}", message, tuple(dims[1:])))

    def refuse(self, op: ir.Operation, reason: str) -> None:
        """Reports `op` and goes on with sizes of their own, so that one run reports every such op."""
        self.unsupported.append(UnsupportedOp(op.name, reason, location_text(op)))
        for result in filter(is_tensor, op.results):
            self.dims[result] = tuple(self.env.fresh("unknown") if size is None else Dim.of(size) for size in shape_of(result))

    def meet(self, dims: Dims, result: ir.Value) -> Dims:
        """`dims` with the sizes that the declared type of `result` fixes: these are facts."""
        declared = shape_of(result)
        return tuple(dim if size is None else self.same(Dim.of(size), dim) for dim, size in zip(dims, declared, strict=True))

    def same(self, *dims: Dim) -> Dim:
        """Dims that the op requires to be equal; returns the plainest of them."""
        best = dims[0]
        for dim in dims[1:]:
            if self.env.equal(best, dim) is not Truth.YES:
                self.env.equate(best, dim)
            if dim.is_const or (not best.is_const and len(str(dim)) < len(str(best))):
                best = dim
        return best

    def sizes(self, value: ir.Value) -> Dims:
        """The sizes that a shape operand holds."""
        found = self.values.get(value)
        if found is None or any(isinstance(item, Ratio) for item in found.reshape(-1)):
            raise DataDependentSizeError("the size of the result depends on tensor data, not on input sizes")
        return tuple(found.reshape(-1))

    def _host_value(self, op: ir.Operation) -> HostValue | None:
        if not op.results or not _is_host_type(op.results[0].type):
            return None
        special = _SOURCES.get(op.name)
        if special is not None:
            return special(self, op)
        rule = HOST_RULES.get(op.name)
        if rule is None:
            return None
        whole = floored(self.arithmetic, self.values, op) if op.name == "stablehlo.select" else None
        if whole is not None:
            return whole
        operands = [self.values.get(operand) for operand in op.operands]
        known = [operand for operand in operands if operand is not None]
        return rule(self.arithmetic, op, known) if len(known) == len(operands) else None


def _foreign_inside(op: ir.Operation) -> str | None:
    """An op in the regions of `op` (the body of a reduction) that must not be there."""
    pending = [op] if op.name not in REGION_OPS else []  # what a region of control flow holds is visited for itself
    while pending:
        inner = [each for region in pending.pop().regions for block in region.blocks for each in block_ops(block)]
        foreign = next((each.name for each in inner if each.name not in BODY_OPS), None)
        if foreign is not None:
            return foreign
        pending += inner
    return None


def _is_host_type(kind: ir.Type) -> bool:
    if isinstance(kind, ir.RankedTensorType):
        return kind.rank <= 2 and is_host_element(kind.element_type)
    return is_host_element(kind) or str(kind) in ("!shape.shape", "!shape.size")


# --- where host values begin ------------------------------------------------------------------------------------------


def _constant_value(shapes: Shapes, op: ir.Operation) -> HostValue | None:
    return host_constant(op.attributes["value"])


def _dim_of(shapes: Shapes, op: ir.Operation) -> HostValue | None:
    index = shapes.values.get(op.operands[1])
    position = None if index is None else known_int(index.item())
    dims = shapes.dims.get(op.operands[0])
    if position is None or dims is None:
        return None
    if not 0 <= position < len(dims):
        raise UnsupportedFormatError(f"{op.name} of dim {position} of a tensor of rank {len(dims)} ({location_text(op)})")
    return scalar(dims[position])


def _dimension_size(shapes: Shapes, op: ir.Operation) -> HostValue | None:
    dims = shapes.dims.get(op.operands[0])
    return None if dims is None else scalar(dims[int_attr(op, "dimension")])


def _shape_of(shapes: Shapes, op: ir.Operation) -> HostValue | None:
    dims = shapes.dims.get(op.operands[0])
    return None if dims is None else vector(dims)


def _made_size(shapes: Shapes, op: ir.Operation) -> HostValue | None:
    return shapes.made.get(op.results[0])


_SOURCES: dict[str, Callable[[Shapes, ir.Operation], HostValue | None]] = {
    "disc.size_of": _made_size,
    "arith.constant": _constant_value, "stablehlo.constant": _constant_value, "chlo.constant": _constant_value,
    "tensor.dim": _dim_of, "stablehlo.get_dimension_size": _dimension_size, "shape.shape_of": _shape_of,
}  # fmt: skip

# --- rules ------------------------------------------------------------------------------------------------------------


def _declared(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    """The type has all sizes (constants, weights, ops with static results)."""
    found: list[Dims] = []
    for result in op.results:
        sizes = shape_of(result)
        if None in sizes:
            raise DataDependentSizeError("the size of the result is not given by the sizes of the operands")
        found.append(tuple(Dim.of(size) for size in sizes if size is not None))
    return found


def _elementwise(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    """All operands have the shape of the result; a rank-0 operand (select, clamp) applies to every element."""
    operands = [shapes.dims[operand] for operand in op.operands]
    full = [dims for dims in operands if dims]
    result = tuple(shapes.same(*column) for column in zip(*full, strict=True)) if full else ()
    return [result] * len(op.results)


def _first_operand(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    return [shapes.dims[op.operands[0]]] * len(op.results)


def _given(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    """The sizes of result i are in operand i behind those that are data."""
    data = len(op.operands) - len(op.results)
    return [shapes.sizes(op.operands[data + number]) for number in range(len(op.results))]


def _unfold(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    """Windows lie within the source: proved, or a condition of every call."""
    (dims,), dim, source = _given(shapes, op), int_attr(op, "dim"), shapes.dims[op.operands[0]]
    if int_attr(op, "step") < 1 or len(dims) != len(source) + 1:
        raise UnsupportedFormatError(f"{op.name} at {location_text(op)} needs steps of 1 or more, and a result with one dim more")
    along = (dims[dim] - 1) * int_attr(op, "step") + dims[-1]
    shapes.env.require(Requirement(Condition.of("<=", along, source[dim]), f"needed by windows at {location_text(op)}"))
    kept = (size if place == dim else shapes.same(size, own) for place, (size, own) in enumerate(zip(dims, source, strict=False)))
    return [(*kept, dims[-1])]


def _external(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    """As `_given`; a vector of numbers may follow."""
    data = int_attr(op, "tensors")
    return [shapes.sizes(op.operands[data + number]) for number in range(len(op.results))]


def _each_operand(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    """Result i has the shape of operand i (scatter)."""
    return [shapes.dims[op.operands[index]] for index in range(len(op.results))]


def _broadcast_elementwise(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    return [broadcast_sizes(shapes.env, [shapes.dims[operand] for operand in op.operands])]


def _reshape(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    source = shapes.dims[op.operands[0]]
    dims = shapes.sizes(op.operands[1]) if op.name == "stablehlo.dynamic_reshape" else _declared(shapes, op)[0]
    dims = shapes.meet(dims, op.results[0])
    shapes.same(_product(dims), _product(source))
    return [dims]


def _product(dims: Dims) -> Dim:
    product = ONE
    for dim in dims:
        product = product * dim
    return product


def _from_shape_operand(position: int) -> Rule:
    def rule(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
        return [shapes.sizes(op.operands[position])]

    return rule


def _broadcast_in_dim(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    """An operand dim that is surely not 1 is the dim it goes to."""
    dynamic = op.name == "stablehlo.dynamic_broadcast_in_dim"
    result = shapes.sizes(op.operands[1]) if dynamic else _declared(shapes, op)[0]
    dims = list(shapes.meet(result, op.results[0]))
    for dim, position in zip(shapes.dims[op.operands[0]], ints_attr(op, "broadcast_dimensions"), strict=True):
        if shapes.env.lt(ONE, dim) is Truth.YES:
            dims[position] = shapes.same(dims[position], dim)
    return [tuple(dims)]


def _transpose(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    dims = shapes.dims[op.operands[0]]
    return [tuple(dims[position] for position in ints_attr(op, "permutation"))]


def _reduce(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    inputs = [shapes.dims[op.operands[index]] for index in range(len(op.results))]
    gone = ints_attr(op, "dimensions")
    kept = tuple(shapes.same(*column) for position, column in enumerate(zip(*inputs, strict=True)) if position not in gone)
    return [kept] * len(op.results)


def _concatenate(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    axis = int_attr(op, "dimension")
    columns = list(zip(*(shapes.dims[operand] for operand in op.operands), strict=True))
    total = ZERO
    for dim in columns[axis]:
        total = total + dim
    return [tuple(total if position == axis else shapes.same(*column) for position, column in enumerate(columns))]


def _check_numbers(op: ir.Operation) -> None:
    if "i1" in map(_element, op.operands):
        raise DataDependentSizeError("products of bools are not supported: convert them first")


def _dot(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    _check_numbers(op)
    left, right = shapes.dims[op.operands[0]], shapes.dims[op.operands[1]]
    shapes.same(left[-1], right[0])
    return [left[:-1] + right[1:]]


def _dot_general(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    _check_numbers(op)
    left, right = shapes.dims[op.operands[0]], shapes.dims[op.operands[1]]
    numbers = _stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left_batch, right_batch = list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)
    left_contract, right_contract = list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)
    for i, j in zip(left_contract, right_contract, strict=True):
        shapes.same(left[i], right[j])
    batch = [shapes.same(left[i], right[j]) for i, j in zip(left_batch, right_batch, strict=True)]
    left_free = [dim for i, dim in enumerate(left) if i not in left_batch + left_contract]
    right_free = [dim for j, dim in enumerate(right) if j not in right_batch + right_contract]
    return [tuple(batch + left_free + right_free)]


def window_size(
    shapes: Shapes, size: Dim, window: Dim, low: Dim | int, high: Dim | int, stride: int, dilation: int, base_dilation: int
) -> Dim:
    """How many positions a window takes along one dim; 0 where it does not fit."""
    dilated = size if base_dilation == 1 else size + dim_max(size - 1, ZERO) * (base_dilation - 1)
    room = dilated + low + high - ((window - 1) * dilation + 1)
    positions = shapes.env.simplify(room // stride + 1)
    return positions if shapes.env.le(ZERO, positions) is Truth.YES else dim_max(positions, ZERO)


def _paddings(op: ir.Operation, rank: int) -> list[tuple[int, int]]:
    if "padding" not in op.attributes:
        return [(0, 0)] * rank
    return [(int(low), int(high)) for low, high in dense_to_array(op.attributes["padding"])]


def _convolution(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    _check_numbers(op)
    if int_attr(op, "batch_group_count") != 1:
        raise DataDependentSizeError("a batch_group_count other than 1 is not supported")
    numbers = _stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, kernel = shapes.dims[op.operands[0]], shapes.dims[op.operands[1]]
    spatial = list(numbers.input_spatial_dimensions)
    rank = len(spatial)
    group_features = kernel[numbers.kernel_input_feature_dimension]
    shapes.same(image[numbers.input_feature_dimension], group_features * int_attr(op, "feature_group_count"))
    result: list[Dim] = [ZERO] * (rank + 2)
    result[numbers.output_batch_dimension] = image[numbers.input_batch_dimension] // int_attr(op, "batch_group_count")
    result[numbers.output_feature_dimension] = kernel[numbers.kernel_output_feature_dimension]
    strides, dilations = ints_attr(op, "window_strides", [1] * rank), ints_attr(op, "rhs_dilation", [1] * rank)
    base = ints_attr(op, "lhs_dilation", [1] * rank)
    paddings = conv_paddings(shapes, op, rank)
    for i, position in enumerate(spatial):
        window = kernel[list(numbers.kernel_spatial_dimensions)[i]]
        size = window_size(shapes, image[position], window, *paddings[i], strides[i], dilations[i], base[i])
        result[list(numbers.output_spatial_dimensions)[i]] = size
    return [tuple(result)]


def conv_paddings(shapes: Shapes, op: ir.Operation, rank: int) -> list[tuple[Dim, Dim]]:
    """The padding of a convolution, from the attribute or, for dynamic_conv, from the third operand."""
    if op.name != "stablehlo.dynamic_conv":
        return [(Dim.of(low), Dim.of(high)) for low, high in _paddings(op, rank)]
    flat = shapes.sizes(op.operands[2])
    if not all(dim.is_const for dim in flat) and any(step != 1 for step in ints_attr(op, "lhs_dilation")):
        raise DataDependentSizeError("the padding of a convolution over a dilated source must be constant")
    return [(flat[2 * i], flat[2 * i + 1]) for i in range(rank)]


def _reduce_window(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    dims = shapes.dims[op.operands[0]]
    rank = len(dims)
    windows, ones = ints_attr(op, "window_dimensions"), [1] * rank
    strides, dilations = ints_attr(op, "window_strides", ones), ints_attr(op, "window_dilations", ones)
    base, paddings = ints_attr(op, "base_dilations", ones), _paddings(op, rank)
    result = tuple(window_size(shapes, dims[i], Dim.of(windows[i]), *paddings[i], strides[i], dilations[i], base[i]) for i in range(rank))
    return [result] * len(op.results)


def _dynamic_window(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    window, dims = window_of(shapes, op), shapes.dims[op.operands[0]]
    if isinstance(window, str):
        raise DataDependentSizeError(window)
    if window.running(shapes, dims) is not None:
        return [dims]
    if not all(size.is_const for size in window.sizes):
        raise DataDependentSizeError("the size of its window depends on sizes")
    each = zip(dims, window.sizes, window.padding, window.strides, window.dilations, strict=True)
    return [tuple(window_size(shapes, dim, size, *pair, stride, dilation, 1) for dim, size, pair, stride, dilation in each)]


def _select_and_scatter(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    """The result has the shape of the operand, and the source one element per window."""
    dims = shapes.dims[op.operands[0]]
    ones = [1] * len(dims)
    windows, strides = ints_attr(op, "window_dimensions", ones), ints_attr(op, "window_strides", ones)
    for i, (low, high) in enumerate(_paddings(op, len(dims))):
        shapes.same(shapes.dims[op.operands[1]][i], window_size(shapes, dims[i], Dim.of(windows[i]), low, high, strides[i], 1, 1))
    return [dims]


def gather_sizes(shapes: Shapes, op: ir.Operation) -> Dims:
    """The slice sizes of a gather, from the attribute or, for dynamic_gather, from the third operand."""
    if op.name == "stablehlo.dynamic_gather":
        return shapes.sizes(op.operands[2])
    return tuple(Dim.of(size) for size in ints_attr(op, "slice_sizes"))


def _gather(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    numbers = _stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    dropped = list(numbers.collapsed_slice_dims) + list(numbers.operand_batching_dims)
    window = [size for position, size in enumerate(gather_sizes(shapes, op)) if position not in dropped]
    batch = [dim for position, dim in enumerate(shapes.dims[op.operands[1]]) if position != numbers.index_vector_dim]
    offsets = list(numbers.offset_dims)
    for operand_dim, index_dim in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        shapes.same(shapes.dims[op.operands[0]][operand_dim], shapes.dims[op.operands[1]][index_dim])
    rest, taken = iter(batch), iter(window)
    return [tuple(next(taken) if position in offsets else next(rest) for position in range(len(batch) + len(window)))]


def slice_bounds(shapes: Shapes, op: ir.Operation) -> tuple[Dims, Dims, tuple[int, ...]]:
    """Starts, limits and strides of slice and real_dynamic_slice."""
    if op.name == "stablehlo.slice":
        starts, limits, strides = (ints_attr(op, name) for name in ("start_indices", "limit_indices", "strides"))
        return tuple(map(Dim.of, starts)), tuple(map(Dim.of, limits)), tuple(strides)
    starts, limits, steps = (shapes.sizes(operand) for operand in list(op.operands)[1:])
    strides = [known_int(step) for step in steps]
    if None in strides:
        raise DataDependentSizeError("the stride of a slice must be constant")
    return starts, limits, tuple(stride for stride in strides if stride is not None)


def _slice(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    """StableHLO keeps 0 <= start <= limit <= size, so sizes are never negative where the program is valid."""
    sizes: list[Dim] = []
    for start, limit, stride in zip(*slice_bounds(shapes, op), strict=True):
        size = shapes.env.simplify((limit - start + (stride - 1)) // stride)
        sizes.append(size if shapes.env.le(ZERO, size) is Truth.YES else dim_max(size, ZERO))
    return [tuple(sizes)]


def _dynamic_slice(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    return [tuple(Dim.of(size) for size in ints_attr(op, "slice_sizes"))]


def pad_amounts(shapes: Shapes, op: ir.Operation) -> tuple[Dims, Dims, tuple[int, ...]]:
    """Low, high and interior padding of pad and dynamic_pad."""
    if op.name == "stablehlo.pad":
        low, high, interior = (ints_attr(op, f"{name}") for name in ("edge_padding_low", "edge_padding_high", "interior_padding"))
        return tuple(map(Dim.of, low)), tuple(map(Dim.of, high)), tuple(interior)
    low, high, between = (shapes.sizes(operand) for operand in list(op.operands)[2:])
    interior = [known_int(item) for item in between]
    if None in interior:
        raise DataDependentSizeError("the interior padding must be constant")
    return low, high, tuple(item for item in interior if item is not None)


def _pad(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    sizes: list[Dim] = []
    for dim, low, high, interior in zip(shapes.dims[op.operands[0]], *pad_amounts(shapes, op), strict=True):
        between = dim_max(dim - 1, ZERO) * interior if interior else ZERO
        size = shapes.env.simplify(dim + between + low + high)
        sizes.append(size if shapes.env.le(ZERO, size) is Truth.YES else dim_max(size, ZERO))
    return [tuple(sizes)]


def _cast(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    return [shapes.dims[op.operands[0]]]


def _element(value: ir.Value) -> str:
    return str(element_of(value))


def _bitcast(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    source, result = (ir.RankedTensorType(value.type).rank for value in (op.operands[0], op.results[0]))
    if source != result:
        raise DataDependentSizeError("bitcast_convert between element types of different widths is not supported")
    return [shapes.dims[op.operands[0]]]


def _host_tensor(shapes: Shapes, op: ir.Operation) -> Sequence[Dims]:
    """Tensors of sizes themselves: their own shape is static."""
    return [tuple(Dim.of(size) for size in ir.RankedTensorType(op.results[0].type).shape)]


def _derived() -> dict[str, Rule]:
    """The rules that follow from the records of ops."""
    rules: dict[Sizes, Rule] = {Sizes.OPERANDS: _elementwise, Sizes.FIRST: _first_operand, Sizes.TYPE: _declared, Sizes.GIVEN: _given}
    known = {name: rules[op.sizes] for name, op in IMPORTED.items() if op.sizes in rules}
    return {name: _broadcast_elementwise if name.startswith("chlo.broadcast_") else rule for name, rule in known.items()}


_OWN: dict[str, Rule] = {
    EXTERNAL: _external, "stablehlo.while": while_dims, "stablehlo.if": branch_dims, "stablehlo.case": branch_dims,
    "stablehlo.bitcast_convert": _bitcast, "chlo.constant_like": _first_operand,
    "stablehlo.iota": _declared, "stablehlo.dynamic_iota": _from_shape_operand(0), "stablehlo.get_dimension_size": _declared,
    "stablehlo.reshape": _reshape, "stablehlo.dynamic_reshape": _reshape,
    "stablehlo.broadcast_in_dim": _broadcast_in_dim, "stablehlo.dynamic_broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.transpose": _transpose, "stablehlo.reduce": _reduce,
    "stablehlo.concatenate": _concatenate, "stablehlo.dot": _dot, "stablehlo.dot_general": _dot_general,
    "stablehlo.convolution": _convolution, "stablehlo.dynamic_conv": _convolution, "stablehlo.reduce_window": _reduce_window,
    "disc.dynamic_window": _dynamic_window, "disc.dynamic_unfold": _unfold,
    "stablehlo.select_and_scatter": _select_and_scatter, "stablehlo.scatter": _each_operand,
    "stablehlo.gather": _gather, "stablehlo.dynamic_gather": _gather,
    "stablehlo.slice": _slice, "stablehlo.real_dynamic_slice": _slice, "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.pad": _pad, "stablehlo.dynamic_pad": _pad,
}  # fmt: skip
_OF_SIZES: dict[str, Rule] = {
    "tensor.cast": _cast, "tensor.from_elements": _host_tensor, "shape.shape_of": _host_tensor, "shape.broadcast": _host_tensor,
    "shape.to_extent_tensor": _host_tensor,
}  # fmt: skip
RULES: dict[str, Rule] = {**_derived(), **rules_by_op("name-dims", _OWN), **_OF_SIZES}
