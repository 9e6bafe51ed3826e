"""split-batch: dims that are merged into one batch dim for a product, and split again behind it, stay apart.

    %a = "disc.reshape"(%q) : [S0, 4, S1, 16] to [S2, S1, 16]
    %b = "disc.reshape"(%k) : [S0, 4, S1, 16] to [S2, S1, 16]
    %s = dot_general %a, %b, batching [0] x [0]                  ─►   %r = dot_general %q, %k, batching [0, 1] x [0, 1]
    %r = "disc.reshape"(%s) : [S2, S1, S1] to [S0, 4, S1, S1]

Element-wise ops, transposes, broadcasts, reductions and gathers on the way split with it. What made S2 one dim was the user's batched
product alone; a reshape between a dot and a softmax keeps the two from being one kernel. Requires and keeps stage `named`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]

from disc.ir.op_table import Kind, rules_by_op
from disc.ir.ops import block_ops, build, dims_of, ints_attr, rank_of, strings, strings_attr, to_attribute
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.rewriting import defining, element_type, entries, erase_dead, is_one, make_reshape, make_splat, named_type, splat_value
from disc.ir.stages import load_env
from disc.passes.graph.dot_numbers import DotNumbers

Parts = tuple[ir.Attribute, ...]


@dataclass(frozen=True)
class Merged:
    """Dim `dim` of a value is the product of `parts`. multiplied: the value comes from a product over it as a batch dim."""

    dim: int
    parts: Parts
    multiplied: bool = False


@dataclass(frozen=True)
class SplitBatch(FunctionPass):
    """Finds the values between merging and splitting reshapes around a batched product, then rebuilds what makes them."""

    name: ClassVar[str] = "split-batch"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        found = _Search(module)
        splits = found.run(block)
        if splits:
            _Rewrite(found).run(block, splits)
            erase_dead(block)


# --- which values ---------------------------------------------------------------------------------------------------------------


class _Search:
    """merged: what is known of values by what they are computed from; wanted: those that also lead to a splitting reshape."""

    def __init__(self, module: ir.Module) -> None:
        self.env = load_env(module)
        self.merged: dict[ir.Value, Merged] = {}
        self.wanted: set[ir.Value] = set()

    def run(self, block: ir.Block) -> list[ir.Operation]:
        """The splitting reshapes."""
        splits: list[ir.Operation] = []
        for op in block_ops(block):
            known = self._splits(op)
            if known:
                splits.append(op)
            found = None if known or len(op.results) != 1 else self._result(op)
            if found is not None:
                self.merged[op.results[0]] = found
        for op in splits:
            self._want(op.operands[0])
        return splits

    def _result(self, op: ir.Operation) -> Merged | None:
        """What is known of the result of `op`."""
        if op.name == "disc.reshape":
            return self._merges(op)
        carried = [
            (place, self.merged[operand])
            for number, operand in enumerate(op.operands)
            if operand in self.merged and (place := carried_to(op, number, self.merged[operand].dim)) is not None
        ]
        if not carried:
            return None
        place, first = carried[0]
        alike = [one for where, one in carried if where == place and one.parts == first.parts]
        return Merged(place, first.parts, op.name == "stablehlo.dot_general" or any(one.multiplied for one in alike))

    def _groups(self, reshape: ir.Operation) -> list[tuple[list[int], list[int]]]:
        """The dims that become the same dims, those of size 1 left out."""
        source, result = reshape.operands[0], reshape.results[0]
        groups = self.env.reshape_groups(dims_of(source, self.env), dims_of(result, self.env)) or []
        sizes = entries(source.type), entries(result.type)
        return [([i for i in inner if not is_one(sizes[0][i])], [i for i in outer if not is_one(sizes[1][i])]) for inner, outer in groups]

    def _merges(self, reshape: ir.Operation) -> Merged | None:
        source = entries(reshape.operands[0].type)
        for inner, outer in self._groups(reshape):
            if len(inner) > 1 and len(outer) == 1:
                return Merged(outer[0], tuple(source[dim] for dim in inner))
        return None

    def _splits(self, op: ir.Operation) -> bool:
        """True for a reshape that undoes what is known of its operand."""
        known = self.merged.get(op.operands[0]) if op.name == "disc.reshape" else None
        if known is None or not known.multiplied:
            return False
        result = entries(op.results[0].type)
        return any(inner == [known.dim] and tuple(result[dim] for dim in outer) == known.parts for inner, outer in self._groups(op))

    def _want(self, value: ir.Value) -> None:
        """Marks `value` and what it is computed from, back to the merging reshapes."""
        pending = [value]
        while pending:
            current = pending.pop()
            if current in self.wanted or defining(current, "disc.reshape") is not None:
                continue
            self.wanted.add(current)
            op, known = current.owner.operation, self.merged[current]  # pyright: ignore[reportAttributeAccessIssue]
            for operand, dim in zip(op.operands, sources_of(op, known.dim) or (), strict=True):
                below = self.merged.get(operand)
                if below is not None and (below.dim, below.parts) == (dim, known.parts):
                    pending.append(operand)


def carried_to(op: ir.Operation, number: int, dim: int) -> int | None:
    """The dim of the result of `op` that runs along `dim` of its operand `number` and along nothing else."""
    if op.name not in _SOURCES:
        return None
    for place in range(rank_of(op.results[0])):
        found = sources_of(op, place)
        if found is not None and found[number] == dim:
            return place
    return None


Sources = list[int | None]


def sources_of(op: ir.Operation, place: int) -> Sources | None:
    """For each operand of `op` the dim that runs along dim `place` of the result, None where none does; None where that cannot be split."""
    rule = _SOURCES.get(op.name)
    return None if rule is None else rule(op, place)


def _of_elementwise(op: ir.Operation, place: int) -> Sources | None:
    rank = rank_of(op.results[0])
    return [place if rank_of(operand) == rank else None for operand in op.operands]


def _of_transpose(op: ir.Operation, place: int) -> Sources | None:
    return [ints_attr(op, "permutation")[place]]


def _of_broadcast(op: ir.Operation, place: int) -> Sources | None:
    dims = ints_attr(op, "dims")
    if place not in dims:
        return [None]
    number = dims.index(place)
    if is_one(entries(op.operands[0].type)[number]):
        return [None]
    return None if number in ints_attr(op, "maybe") else [number]


def _of_reduce(op: ir.Operation, place: int) -> Sources | None:
    reduced = ints_attr(op, "dimensions")
    kept = [dim for dim in range(rank_of(op.operands[0])) if dim not in reduced]
    return [kept[place], None] if len(op.operands) == 2 else None


def _of_dot(op: ir.Operation, place: int) -> Sources | None:
    left, right = DotNumbers.of(op).batching
    return [left[place], right[place]] if place < len(left) else None


def _of_gather(op: ir.Operation, place: int) -> Sources | None:
    numbers = _stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    if place in numbers.offset_dims:
        return None
    kept = [dim for dim in range(rank_of(op.results[0])) if dim not in numbers.offset_dims]
    number = kept.index(place)
    number += number >= numbers.index_vector_dim
    batch = list(numbers.start_indices_batching_dims)
    return [numbers.operand_batching_dims[batch.index(number)] if number in batch else None, number]


_SOURCES = rules_by_op(
    "split-batch",
    {"stablehlo.transpose": _of_transpose, "disc.broadcast_in_dim": _of_broadcast, "stablehlo.reduce": _of_reduce,
     "stablehlo.dot_general": _of_dot, "disc.gather": _of_gather},
    {Kind.ELEMENTWISE: _of_elementwise},
)  # fmt: skip


# --- the rewrite ----------------------------------------------------------------------------------------------------------------


class _Rewrite:
    """Builds what makes the wanted values once more, with the parts apart. The old ops stay as they are until the end."""

    def __init__(self, found: _Search) -> None:
        self.found = found
        self.apart: dict[tuple[ir.Value, int, Parts], ir.Value] = {}

    def run(self, block: ir.Block, splits: Sequence[ir.Operation]) -> None:
        """Replaces the wanted values and the results of `splits`."""
        replaced: list[tuple[ir.Value, ir.Value, ir.Operation]] = []
        for op in block_ops(block):
            if len(op.results) == 1 and op.results[0] in self.found.wanted:
                replaced.append((op.results[0], self._rebuild(op), op))
            elif op in splits:
                known = self.found.merged[op.operands[0]]
                replaced.append((op.results[0], self._apart(op.operands[0], known.dim, known.parts, op), op))
        for old, new, op in replaced:
            old.replace_all_uses_with(make_reshape(new, old.type, op))

    def _rebuild(self, op: ir.Operation) -> ir.Value:
        """The result of `op` with the parts apart."""
        known = self.found.merged[op.results[0]]
        sources = sources_of(op, known.dim)
        assert sources is not None
        pairs = zip(op.operands, sources, strict=True)
        operands = [operand if dim is None else self._apart(operand, dim, known.parts, op) for operand, dim in pairs]
        copy = op.clone(ip=ir.InsertionPoint(op)).operation
        for number, operand in enumerate(operands):
            copy.operands[number] = operand
        copy.results[0].set_type(_type_apart(op.results[0].type, known.dim, known.parts))
        for name, value in _ATTRIBUTES.get(op.name, _no_attributes)(op, known.dim, sources, len(known.parts)).items():
            copy.attributes[name] = to_attribute(value)
        self.apart[op.results[0], known.dim, known.parts] = copy.results[0]
        return copy.results[0]

    def _apart(self, value: ir.Value, dim: int, parts: Parts, before: ir.Operation) -> ir.Value:
        """`value` with its dim `dim` as `parts`."""
        key = (value, dim, parts)
        if key not in self.apart:
            self.apart[key] = _read_apart(value, dim, parts, before)
        return self.apart[key]


def _read_apart(value: ir.Value, dim: int, parts: Parts, before: ir.Operation) -> ir.Value:
    """A view of `value`, or of what it views."""
    type_ = _type_apart(value.type, dim, parts)
    element = splat_value(value)
    if element is not None:
        return make_splat(element, type_, before)
    reshape = defining(value, "disc.reshape")
    if reshape is not None:
        return make_reshape(reshape.operands[0], type_, before)
    broadcast = defining(value, "disc.broadcast_in_dim")
    if broadcast is not None and sources_of(broadcast, dim) == [None]:
        dims = [place + (len(parts) - 1) * (place > dim) for place in ints_attr(broadcast, "dims")]
        attributes = {"dims": _ints(dims), "maybe": broadcast.attributes["maybe"]}
        return build("disc.broadcast_in_dim", [broadcast.operands[0]], [type_], attributes, before=before).results[0]
    return make_reshape(value, type_, before)


def _type_apart(type_: ir.Type, dim: int, parts: Parts) -> ir.RankedTensorType:
    dims = entries(type_)
    return named_type(element_type(type_), [*dims[:dim], *parts, *dims[dim + 1 :]])


def _spread(dims: Sequence[int], at: int | None, count: int) -> list[int]:
    """The numbers of `dims` after dim `at` has become `count` dims; `at` itself becomes all of them."""
    if at is None:
        return list(dims)
    return [new for dim in dims for new in (range(at, at + count) if dim == at else [dim + (count - 1) * (dim > at)])]


def _ints(values: Sequence[int]) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(list(values))


def _no_attributes(op: ir.Operation, place: int, sources: Sources, count: int) -> dict[str, ir.Attribute]:
    return {}


def _transpose(op: ir.Operation, place: int, sources: Sources, count: int) -> dict[str, ir.Attribute]:
    return {"permutation": _ints(_spread(ints_attr(op, "permutation"), sources[0], count))}


def _broadcast(op: ir.Operation, place: int, sources: Sources, count: int) -> dict[str, ir.Attribute]:
    """`place` comes from the operand: what it does not come from is read apart, and never wanted."""
    maybe = _spread(ints_attr(op, "maybe"), sources[0], count)
    return {"dims": _ints(_spread(ints_attr(op, "dims"), place, count)), "maybe": _ints(maybe)}


def _reduce(op: ir.Operation, place: int, sources: Sources, count: int) -> dict[str, ir.Attribute]:
    return {"dimensions": _ints(_spread(ints_attr(op, "dimensions"), sources[0], count))}


def _dot(op: ir.Operation, place: int, sources: Sources, count: int) -> dict[str, ir.Attribute]:
    numbers = DotNumbers.of(op)
    left, right = (
        (_spread(numbers.batching[side], sources[side], count), _spread(numbers.contracting[side], sources[side], count)) for side in (0, 1)
    )
    apart = DotNumbers((tuple(left[0]), tuple(right[0])), (tuple(left[1]), tuple(right[1])))
    return {"dot_dimension_numbers": apart.attribute()}


def _gather(op: ir.Operation, place: int, sources: Sources, count: int) -> dict[str, ir.Attribute]:
    numbers = _stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    table, indices = sources
    apart = _stablehlo.GatherDimensionNumbers.get(
        offset_dims=_spread(numbers.offset_dims, place, count),
        collapsed_slice_dims=_spread(numbers.collapsed_slice_dims, table, count),
        operand_batching_dims=_spread(numbers.operand_batching_dims, table, count),
        start_indices_batching_dims=_spread(numbers.start_indices_batching_dims, indices, count),
        start_index_map=_spread(numbers.start_index_map, table, count),
        index_vector_dim=_spread([numbers.index_vector_dim], indices, count)[0],
    )
    sizes = strings_attr(op, "sizes")
    if table is not None:
        sizes[table : table + 1] = ["1"] * count
    return {"dimension_numbers": apart, "sizes": strings(*sizes)}


_ATTRIBUTES = {
    "stablehlo.transpose": _transpose, "disc.broadcast_in_dim": _broadcast, "stablehlo.reduce": _reduce,
    "stablehlo.dot_general": _dot, "disc.gather": _gather,
}  # fmt: skip
