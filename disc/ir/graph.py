"""A read-only snapshot of one MLIR block as plain Python nodes.

Fusion and code generation make many queries about the same ops; this snapshot answers them without crossing into the
MLIR bindings each time. It is made from IR and never edited: decisions are written back into the IR.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.ir.ops import TERMINATORS, dense_to_array
from disc.ir.reducers import IN_ORDER
from disc.ir.source_lines import source_name
from disc.ir.weights import STORAGE
from disc.shapes import Dim, ShapeEnv

_NAMED = re.compile(r'"([\w.]+)"\(')  # a location with a name: "name"(where)
Attribute = int | str | bool | tuple["Attribute", ...] | npt.NDArray[np.generic] | dict[str, "Attribute"]


@dataclass(eq=False, slots=True)
class Node:
    """One SSA value.

    op: the full op name, or "input" for a block argument; operands: the values it reads; dims: canonical dims (rank 0: ());
    element: MLIR element type text ("f32", "ui8"); attrs: parsed attributes; result: which result of its op; body: the
    region of a reduction-like op; line: the user's line; module: the path of the nn.Module that it belongs to.
    """

    id: int  # its place among all nodes read
    op: str
    operands: tuple[Node, ...]
    dims: tuple[Dim, ...]
    element: str
    attrs: dict[str, Attribute]
    result: int = 0
    siblings: tuple[Node, ...] = ()
    body: Body | None = None
    line: str = ""
    module: str = ""
    uses: list[Node] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The op name without its dialect."""
        return self.op.split(".", 1)[-1]

    def ints(self, key: str) -> tuple[int, ...]:
        """The integer tuple stored under attribute `key`, () when absent."""
        value = self.attrs.get(key, ())
        assert isinstance(value, tuple)
        return value  # pyright: ignore[reportReturnType]

    def texts(self, key: str) -> tuple[str, ...]:
        """The tuple of strings stored under attribute `key`, () when absent."""
        value = self.attrs.get(key, ())
        assert isinstance(value, tuple)
        return value  # pyright: ignore[reportReturnType]

    def integer(self, key: str, default: int | None = None) -> int:
        """The integer stored under attribute `key`."""
        value = self.attrs.get(key, default)
        assert isinstance(value, int), f"{self.op} lacks {key}"
        return value


@dataclass(eq=False, slots=True)
class Body:
    """A region or function body: its arguments, its nodes in order (arguments first) and what it yields."""

    arguments: tuple[Node, ...]
    nodes: tuple[Node, ...]
    yields: tuple[Node, ...]

    def lines(self, weights: Set[Node] = frozenset()) -> tuple[str, ...]:
        """The user's source lines behind its ops, each once. weights: arguments that are.

        Equal constants of a program are one op, with the line of the first, and so is what is made of them alone: they count where nothing
        else has a line.
        """
        of_values = _each_once(node.line for node in self._varying(weights))
        return of_values or _each_once(node.line for node in self.nodes)

    def modules(self, weights: Set[Node] = frozenset()) -> tuple[str, ...]:
        """The paths of the modules that its ops belong to, each once; constants belong to all that share them, and say nothing, and weights
        little: they count where nothing else has a module."""
        of_values = _each_once(node.module for node in self._varying(weights))
        return of_values or _each_once(node.module for node in self._varying(frozenset()))

    def _varying(self, weights: Set[Node]) -> list[Node]:
        """The nodes that are not made of constants and of these alone."""
        fixed = set(weights)
        for node in self.nodes:
            if node.op != "input" and fixed.issuperset(node.operands):
                fixed.add(node)
        return [node for node in self.nodes if node not in fixed]


def _each_once(texts: Iterable[str]) -> tuple[str, ...]:
    """Without empty ones, in order."""
    return tuple(dict.fromkeys(text for text in texts if text))


class Snapshot:
    """Builds nodes from a block; `ops` maps a node's id to the op that made it."""

    def __init__(self, env: ShapeEnv) -> None:
        self.env = env
        self.ops: dict[int, ir.Operation] = {}
        self._symbols: dict[str, Dim] = {}
        self._types: dict[ir.Type, tuple[tuple[Dim, ...], str]] = {}
        self._next = 0

    def block(self, block: ir.Block) -> Body:
        """The nodes of `block`; its terminator's operands are the yields."""
        values: dict[ir.Value, Node] = {}
        arguments = tuple(self._node("input", (), argument, {}, position) for position, argument in enumerate(block.arguments))
        values.update(zip(block.arguments, arguments, strict=True))
        nodes: list[Node] = list(arguments)
        yields: tuple[Node, ...] = ()
        for view in block.operations:
            op = view.operation
            operands = tuple(values[operand] for operand in op.operands)
            if op.name in TERMINATORS:
                yields = operands
                continue
            results = self._op_nodes(op, operands)
            values.update(zip(op.results, results, strict=True))
            nodes.extend(results)
        return Body(arguments, tuple(nodes), yields)

    def _op_nodes(self, op: ir.Operation, operands: tuple[Node, ...]) -> tuple[Node, ...]:
        attrs = parse_attributes(op)
        body = self.block(op.regions[0].blocks[0]) if len(op.regions) == 1 and len(op.regions[0].blocks) else None
        place = str(op.location)
        line, module = location_line(place), location_module(place)
        results = tuple(self._node(op.name, operands, value, attrs, number) for number, value in enumerate(op.results))
        for node in results:
            node.body, node.line, node.module, node.siblings = body, line, module, results
            self.ops[node.id] = op
        for operand in operands:
            operand.uses.extend(results[:1])
        return results

    def _node(self, op: str, operands: tuple[Node, ...], value: ir.Value, attrs: dict[str, Attribute], result: int) -> Node:
        dims, element = self._type(value.type)
        self._next += 1
        return Node(self._next, op, operands, dims, element, attrs, result)

    def _type(self, type_: ir.Type) -> tuple[tuple[Dim, ...], str]:
        found = self._types.get(type_)
        if found is None:
            found = self._types[type_] = self._read_type(type_)
        return found

    def _read_type(self, type_: ir.Type) -> tuple[tuple[Dim, ...], str]:
        if not isinstance(type_, ir.RankedTensorType):
            return (), str(type_)
        tensor = ir.RankedTensorType(type_)
        element = str(tensor.element_type)
        if tensor.rank == 0:
            return (), element
        if tensor.encoding is None:
            return tuple(Dim.of(size) for size in tensor.shape), element
        return tuple(self._encoded(entry) for entry in ir.ArrayAttr(tensor.encoding)), element

    def _encoded(self, entry: ir.Attribute) -> Dim:
        if isinstance(entry, ir.IntegerAttr):
            return Dim.of(ir.IntegerAttr(entry).value)
        name = ir.FlatSymbolRefAttr(entry).value
        found = self._symbols.get(name)
        if found is None:
            found = self._symbols[name] = self.env.simplify(self.env.parse(name))
        return found


def is_row_reduction(node: Node) -> bool:
    """True when the reduced dims are the last ones, except for unit dims, and not all of size 1; where the order matters lanes cannot share
    the work."""
    if node.op != "stablehlo.reduce" or IN_ORDER in node.attrs:
        return False
    source = node.operands[0].dims
    reduced = set(node.ints("dimensions"))
    kept = [axis for axis in range(len(source)) if axis not in reduced and source[axis] != 1]
    taken = [axis for axis in sorted(reduced) if source[axis] != 1]
    return bool(taken) and (not kept or max(kept) < min(taken))


def row_space(nodes: Iterable[Node]) -> tuple[tuple[Dim, ...], int]:
    """(dims, number of group dims) of a stitch kernel of these nodes, in order: those of its first row reduction's operand, split at the
    first reduced dim that is not 1 (kept dims of size 1 may follow it)."""
    reduction = next(node for node in nodes if is_row_reduction(node))
    dims = reduction.operands[0].dims
    return dims, min(axis for axis in reduction.ints("dimensions") if dims[axis] != 1)


def location_module(text: str) -> str:
    """ "encoder.layer.3" of the text of a location, as `disc.frontend.locations` names it, or ""."""
    found = _NAMED.search(text)
    return found[1] if found else ""


def location_line(text: str) -> str:
    """ "file.py:12" of the innermost file of the text of a location, the file by `source_name`, or ""."""
    if '"' not in text or ":" not in text:
        return ""
    for piece in text.split('"')[1:]:
        if piece.startswith(":"):
            continue
        after = text.split(f'"{piece}"', 1)[1]
        if after.startswith(":"):
            return f"{source_name(piece)}:{after[1:].split(':')[0]}"
    return ""


def parse_attributes(op: ir.Operation) -> dict[str, Attribute]:
    """Every attribute of `op` as plain Python data."""
    attributes = {key: op.attributes[key] for key in op.attributes}
    return {key: _parse(key, attribute) for key, attribute in attributes.items()}


def _parse(key: str, attribute: ir.Attribute) -> Attribute:
    special = _SPECIAL.get(key)
    text = str(attribute)
    if special is not None and text.startswith("#stablehlo"):
        return special(attribute)
    if isinstance(attribute, ir.BoolAttr):
        return ir.BoolAttr(attribute).value
    if isinstance(attribute, ir.IntegerAttr):
        return ir.IntegerAttr(attribute).value
    if isinstance(attribute, ir.StringAttr):
        return ir.StringAttr(attribute).value
    if isinstance(attribute, ir.DenseI64ArrayAttr):
        return tuple(ir.DenseI64ArrayAttr(attribute))
    if isinstance(attribute, ir.DenseBoolArrayAttr):
        return tuple(ir.DenseBoolArrayAttr(attribute))
    if isinstance(attribute, ir.ArrayAttr):
        return tuple(_parse("", item) for item in ir.ArrayAttr(attribute))
    if isinstance(attribute, ir.DictAttr):
        return {item.name: _parse(item.name, item.attr) for item in ir.DictAttr(attribute)}
    if isinstance(attribute, ir.DenseElementsAttr):
        return dense_array(attribute)
    return text


def dense_array(attribute: ir.Attribute) -> npt.NDArray[np.generic]:
    """The values of a dense elements attribute; bf16 as its 16 bits (uint16), splats broadcast without a copy."""
    element = str(ir.ShapedType(attribute.type).element_type)  # pyright: ignore[reportAttributeAccessIssue]
    shape = tuple(ir.ShapedType(attribute.type).shape)  # pyright: ignore[reportAttributeAccessIssue]
    dense = ir.DenseElementsAttr(attribute)
    if element == "bf16":
        return dense_to_array(attribute)
    if element == "i1" and not dense.is_splat:
        return np.array([bool(value) for value in ir.DenseIntElementsAttr(attribute)], dtype=np.bool_).reshape(shape)
    if dense.is_splat:
        splat = dense.get_splat_value()
        dtype = STORAGE[element]
        return np.broadcast_to(np.array(splat.value, dtype=dtype), shape)  # pyright: ignore[reportAttributeAccessIssue]
    return np.array(dense).reshape(shape)


def _dot(attribute: ir.Attribute) -> Attribute:
    dot = _stablehlo.DotDimensionNumbers(attribute)
    return {
        "lhs_batch": tuple(dot.lhs_batching_dimensions), "rhs_batch": tuple(dot.rhs_batching_dimensions),
        "lhs_contract": tuple(dot.lhs_contracting_dimensions), "rhs_contract": tuple(dot.rhs_contracting_dimensions),
    }  # fmt: skip


def _convolution(attribute: ir.Attribute) -> Attribute:
    numbers = _stablehlo.ConvDimensionNumbers(attribute)
    return {
        "input_batch": numbers.input_batch_dimension, "input_feature": numbers.input_feature_dimension,
        "input_spatial": tuple(numbers.input_spatial_dimensions), "kernel_input": numbers.kernel_input_feature_dimension,
        "kernel_output": numbers.kernel_output_feature_dimension, "kernel_spatial": tuple(numbers.kernel_spatial_dimensions),
        "output_batch": numbers.output_batch_dimension, "output_feature": numbers.output_feature_dimension,
        "output_spatial": tuple(numbers.output_spatial_dimensions),
    }  # fmt: skip


def _gather(attribute: ir.Attribute) -> Attribute:
    numbers = _stablehlo.GatherDimensionNumbers(attribute)
    return {
        "offset_dims": tuple(numbers.offset_dims), "collapsed": tuple(numbers.collapsed_slice_dims),
        "operand_batch": tuple(numbers.operand_batching_dims), "indices_batch": tuple(numbers.start_indices_batching_dims),
        "start_map": tuple(numbers.start_index_map), "vector_dim": numbers.index_vector_dim,
    }  # fmt: skip


def _scatter(attribute: ir.Attribute) -> Attribute:
    numbers = _stablehlo.ScatterDimensionNumbers(attribute)
    return {
        "window_dims": tuple(numbers.update_window_dims), "inserted": tuple(numbers.inserted_window_dims),
        "operand_batch": tuple(numbers.input_batching_dims), "indices_batch": tuple(numbers.scatter_indices_batching_dims),
        "scatter_map": tuple(numbers.scattered_dims_to_operand_dims), "vector_dim": numbers.index_vector_dim,
    }  # fmt: skip


def _direction(attribute: ir.Attribute) -> Attribute:
    return str(_stablehlo.ComparisonDirectionAttr(attribute).value)


def _comparison(attribute: ir.Attribute) -> Attribute:
    return str(_stablehlo.ComparisonTypeAttr(attribute).value)


def _dimension_numbers(attribute: ir.Attribute) -> Attribute:
    text = str(attribute)
    if text.startswith("#stablehlo.gather"):
        return _gather(attribute)
    return _convolution(attribute)


_SPECIAL: dict[str, Callable[[ir.Attribute], Attribute]] = {
    "dot_dimension_numbers": _dot,
    "dimension_numbers": _dimension_numbers,
    "scatter_dimension_numbers": _scatter,
    "comparison_direction": _direction,
    "compare_type": _comparison,
}
