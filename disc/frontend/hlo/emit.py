"""Puts ops of StableHLO before another one: what the forms of ops are built with. Shapes may be dynamic everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch_mlir import ir

from disc.ir.interp.values import constant_attribute, held_dtype
from disc.ir.ops import Attribute, block_ops, build, element_of, rank_of
from disc.ir.reducers import identity

Values = Sequence[ir.Value]


class FormError(Exception):
    """An op has no form here; the message is the reason that the user reads."""


def named_form(name: str, form: Callable[[ir.Operation], Values | None], op: ir.Operation) -> Values | None:
    """Of an op that anything may call by name: no verifier has seen its operands and attributes.

    Raises: FormError where they are not those of the name.
    """
    try:
        values = form(op)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise FormError(f"its operands or attributes are not those of {name!r}") from error
    if values is not None and [_form_of(each) for each in values] != [_form_of(each) for each in op.results]:
        raise FormError(f"its results are not those of {name!r}")
    return values


def _form_of(value: ir.Value) -> tuple[int, str]:
    return rank_of(value), str(element_of(value))


def kind_of(value: ir.Value) -> ir.RankedTensorType:
    return ir.RankedTensorType(value.type)


def like(value: ir.Value, element: ir.Type | None = None) -> ir.RankedTensorType:
    """The type of a tensor with the shape of `value`."""
    return ir.RankedTensorType.get(kind_of(value).shape, element or element_of(value))


def permuted(value: ir.Value, order: Sequence[int]) -> ir.RankedTensorType:
    return ir.RankedTensorType.get([kind_of(value).shape[dim] for dim in order], element_of(value))


def width_of(element: ir.Type) -> int:
    """Bits of one element."""
    name = str(element)
    return 16 if name == "bf16" else 1 if name == "i1" else int(name.lstrip("uif"))


def is_float(element: ir.Type) -> bool:
    return isinstance(element, ir.FloatType)


def unsigned(bits: int) -> ir.Type:
    return ir.IntegerType.get_unsigned(bits)


def signless(bits: int) -> ir.Type:
    return ir.IntegerType.get_signless(bits)


class Emitter:
    """Ops before `op`, at its line."""

    def __init__(self, op: ir.Operation) -> None:
        self.before = op

    def make(self, name: str, operands: Values, kinds: Sequence[ir.Type], attributes: dict[str, Attribute] | None = None) -> Values:
        return list(build(name, operands, kinds, attributes, before=self.before).results)

    def one(self, name: str, operands: Values, kind: ir.Type, attributes: dict[str, Attribute] | None = None) -> ir.Value:
        return self.make(name, operands, [kind], attributes)[0]

    def constant(self, number: float, element: ir.Type) -> ir.Value:
        """Without dims."""
        kind = ir.RankedTensorType.get([], element)
        return self.array(np.array(number, held_dtype(str(element))), kind)

    def array(self, values: np.ndarray[tuple[int, ...], np.dtype[np.generic]], kind: ir.RankedTensorType) -> ir.Value:
        return self.one("stablehlo.constant", [], kind, {"value": constant_attribute(values, kind)})

    def unary(self, name: str, x: ir.Value) -> ir.Value:
        return self.one(f"stablehlo.{name}", [x], like(x))

    def convert(self, x: ir.Value, element: ir.Type) -> ir.Value:
        return x if element_of(x) == element else self.one("stablehlo.convert", [x], like(x, element))

    def bitcast(self, x: ir.Value, element: ir.Type) -> ir.Value:
        return x if element_of(x) == element else self.one("stablehlo.bitcast_convert", [x], like(x, element))

    def binary(self, name: str, x: ir.Value, y: ir.Value) -> ir.Value:
        """Of one shape, or one of them without dims, which then stands for all elements."""
        full = x if rank_of(x) >= rank_of(y) else y
        return self.one(f"{_dialect(x, y)}{name}", [x, y], like(full))

    def number(self, name: str, x: ir.Value, number: float) -> ir.Value:
        return self.binary(name, x, self.constant(number, element_of(x)))

    def compare(self, direction: str, x: ir.Value, y: ir.Value, total: bool = False) -> ir.Value:
        full, dialect = x if rank_of(x) >= rank_of(y) else y, _dialect(x, y)
        owner = dialect.partition(".")[0]
        attributes: dict[str, Attribute] = {"comparison_direction": ir.Attribute.parse(f"#{owner}<comparison_direction {direction}>")}
        if total:
            attributes["compare_type"] = ir.Attribute.parse(f"#{owner}<comparison_type TOTALORDER>")
        return self.one(f"{dialect}compare", [x, y], like(full, signless(1)), attributes)

    def select(self, condition: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        full = max((condition, x, y), key=rank_of)
        return self.one(f"{_dialect(condition, x, y)}select", [condition, x, y], like(full, element_of(x)))

    def transpose(self, x: ir.Value, order: Sequence[int]) -> ir.Value:
        return self.one("stablehlo.transpose", [x], permuted(x, order), {"permutation": list(order)})

    def turned(self, matrix: ir.Value) -> ir.Value:
        """Rows become columns, in the last two dims."""
        rank = rank_of(matrix)
        return self.transpose(matrix, [*range(rank - 2), rank - 1, rank - 2])

    def expand(self, x: ir.Value, full: ir.Value, dims: Sequence[int]) -> ir.Value:
        """`x`, whose dim i is dim dims[i] of the result, in the shape of `full`."""
        sizes = self.one("shape.shape_of", [full], ir.RankedTensorType.get([rank_of(full)], ir.IndexType.get()))
        attributes: dict[str, Attribute] = {"broadcast_dimensions": list(dims)}
        return self.one("stablehlo.dynamic_broadcast_in_dim", [x, sizes], like(full, element_of(x)), attributes)

    def size(self, x: ir.Value, dim: int) -> ir.Value:
        """Of a dim, as an index."""
        position = self.one("arith.constant", [], ir.IndexType.get(), {"value": ir.IntegerAttr.get(ir.IndexType.get(), dim)})
        return self.one("tensor.dim", [x, position], ir.IndexType.get())

    def index(self, part: ir.Value | int) -> ir.Value:
        """A number as an index; an index as it is."""
        index = ir.IndexType.get()
        return self.one("arith.constant", [], index, {"value": ir.IntegerAttr.get(index, part)}) if isinstance(part, int) else part

    def sizes(self, parts: Sequence[ir.Value | int]) -> ir.Value:
        """A shape operand; each part is an index or a number."""
        index = ir.IndexType.get()
        values = [self.index(each) for each in parts]
        return self.one("tensor.from_elements", values, ir.RankedTensorType.get([len(values)], index))

    def iota(self, full: ir.Value, dim: int, element: ir.Type) -> ir.Value:
        sizes = self.one("shape.shape_of", [full], ir.RankedTensorType.get([rank_of(full)], ir.IndexType.get()))
        return self.one("stablehlo.dynamic_iota", [sizes], like(full, element), {"iota_dimension": dim})

    def reduce(self, kind: str, x: ir.Value, dims: Sequence[int]) -> ir.Value:
        """By one of `reducers.KINDS`."""
        element = element_of(x)
        scalar = ir.RankedTensorType.get([], element)
        start = self.array(identity(kind, str(element)), scalar)
        kept = [size for dim, size in enumerate(kind_of(x).shape) if dim not in dims]
        made = build(
            "stablehlo.reduce", [x, start], [ir.RankedTensorType.get(kept, element)], {"dimensions": list(dims)}, 1, before=self.before
        )
        block = ir.Block.create_at_start(made.regions[0], [scalar] * 2, [self.before.location] * 2)
        with ir.InsertionPoint(block):
            both = build(f"stablehlo.{kind}", list(block.arguments), [scalar], location=self.before.location).results
            build("stablehlo.return", both, location=self.before.location)
        return made.results[0]

    def inlined(self, block: ir.Block, arguments: Values) -> Values:
        """What `block`, which computes with numbers, yields for every element of `arguments`, tensors of one shape."""
        known: dict[ir.Value, ir.Value] = dict(zip(block.arguments, arguments, strict=True))
        *inside, last = block_ops(block)
        for op in inside:
            operands = [known.get(operand, operand) for operand in op.operands]
            known.update(zip(op.results, self.lifted(op, operands), strict=True))
        return [known.get(value, value) for value in last.operands]

    def lifted(self, op: ir.Operation, operands: Values) -> Values:
        """An op on numbers for every element of tensors, of which some may be single numbers."""
        full = max(operands, key=rank_of, default=None)
        if full is None or rank_of(full) == 0:
            copy = op.clone(ip=ir.InsertionPoint(self.before)).operation
            for number, operand in enumerate(operands):
                copy.operands[number] = operand
            return list(copy.results)
        if op.regions or len(op.results) != 1:
            raise FormError(f"its body holds {op.name}")
        attributes: dict[str, Attribute] = {name: op.attributes[name] for name in op.attributes}
        kind = like(full, element_of(op.results[0]))
        mixed = any(rank_of(operand) == 0 for operand in operands) and len(operands) > 1 and op.name != "stablehlo.clamp"
        if not mixed:
            return self.make(op.name, operands, [kind], attributes)
        if op.name == "stablehlo.compare":
            attributes = {name: ir.Attribute.parse(str(each).replace("#stablehlo<", "#chlo<")) for name, each in attributes.items()}  # pyright: ignore
        return self.make(op.name.replace("stablehlo.", "chlo.broadcast_"), operands, [kind], attributes)


def _dialect(*values: ir.Value) -> str:
    """Of an op on these: chlo's broadcasts numbers."""
    ranks = {rank_of(value) for value in values}
    return "stablehlo." if len(ranks) == 1 else "chlo.broadcast_"
