"""Fewer and larger contractions (BladeDISC, section 4.3).

Dots that share an operand become one dot on the concatenation of the others (Q, K and V: 3 → 1):

    %q = dot_general %x, %wq, ...                  %w = stablehlo.concatenate %wq, %wk, dim = 1
    %k = dot_general %x, %wk, ...           ─►     %y = dot_general %x, %w, ...
                                                   %q = "disc.slice"(%y) {starts = ["0", "0"], ...}
                                                   %k = "disc.slice"(%y) {starts = ["0", "768"], ...}

Dots of equal shapes with different operands become one batched dot on stacked operands; those of one weight become one dot with more
rows, which reads it once. `fold-constants` concatenates weights at compile time. Requires and keeps stage `named`. Dots are merged only
where none depends on another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch_mlir import ir

from disc.ir.interp.values import element_name, held_dtype
from disc.ir.op_table import BINDING
from disc.ir.ops import block_ops, build, replace_op
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.rewriting import (
    element_type,
    entries,
    erase_dead,
    make_reshape,
    named_type,
    producers_after,
    static_entry,
    static_size,
)
from disc.ir.stages import load_env
from disc.ir.symbols import ModuleEnv
from disc.passes.graph.constants import constant_values
from disc.passes.graph.dot_numbers import DotNumbers
from disc.shapes import Truth


@dataclass(frozen=True)
class MergeDots(FunctionPass):
    """Merges dots that share an operand, then dots of equal shapes: first those of one weight."""

    name: ClassVar[str] = "merge-dots"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        env = load_env(module)
        for side in (0, 1):
            for group in sharing_groups(block, env, side):
                _merge_sharing(group, side)
        batch_bytes = state.thresholds.graph.batch_bytes
        for group in batching_groups(block, env, batch_bytes, of_one_weight=True):
            _merge_rows(group)
        for group in batching_groups(block, env, batch_bytes):
            _merge_batched(group)
        erase_dead(block)


# --- which dots -------------------------------------------------------------------------------------------------------


def sharing_groups(block: ir.Block, env: ModuleEnv, side: int) -> list[list[ir.Operation]]:
    """The groups to merge whose operand on `side` is one value."""
    constants = constant_values(block)
    classes: dict[object, list[ir.Operation]] = {}
    for dot in _dots(block):
        if may_concatenate(dot, side, constants):
            key = (dot.operands[side], DotNumbers.of(dot), _other_attributes(dot), str(element_type(dot.results[0].type)))
            classes.setdefault(key, []).append(dot)
    found = [group for dots in classes.values() for group in _compatible(dots, lambda a, b: may_share(a, b, env, side))]
    reach = _Reach(block)
    return [group for members in found for group in _independent(members, reach)]


def batching_groups(block: ir.Block, env: ModuleEnv, batch_bytes: int, of_one_weight: bool = False) -> list[list[ir.Operation]]:
    """The groups of dots of equal shapes that are worth one dot. of_one_weight: those without batch dims that share the right operand."""
    constants = constant_values(block)
    classes: dict[object, list[ir.Operation]] = {}
    for dot in _dots(block):
        numbers = DotNumbers.of(dot)
        if should_batch(dot, constants, batch_bytes) and not (of_one_weight and numbers.batching[0]):
            elements = tuple(element_name(value.type) for value in (*dot.operands, *dot.results))
            key = (numbers, _other_attributes(dot), elements, dot.operands[1] if of_one_weight else None)
            classes.setdefault(key, []).append(dot)
    found = [group for dots in classes.values() for group in _compatible(dots, lambda a, b: may_batch(a, b, env))]
    reach = _Reach(block)
    return [group for members in found for group in _independent(members, reach)]


def may_share(first: ir.Operation, second: ir.Operation, env: ModuleEnv, side: int) -> bool:
    """Legal to merge? The operands that differ agree in all dims but one free dim, which is static in both.

    The caller knows that both read the same value on `side`, with the same dimension numbers.
    """
    left, right = (entries(dot.operands[1 - side].type) for dot in (first, second))
    if len(left) != len(right) or element_type(first.operands[1 - side].type) != element_type(second.operands[1 - side].type):
        return False
    free = DotNumbers.of(first).free(1 - side, len(left))
    if len(free) != 1 or static_size(left[free[0]]) is None or static_size(right[free[0]]) is None:
        return False
    rest = [dim for dim in range(len(left)) if dim != free[0]]
    return all(env.equal(env.resolve(left[dim]), env.resolve(right[dim])) is Truth.YES for dim in rest)


def may_concatenate(dot: ir.Operation, side: int, constants: dict[ir.Value, None]) -> bool:
    """Are the operands that differ constants? Then they are concatenated at compile time, the shared one is read once, and nothing is done
    in addition: cheaper at all sizes. Operands that are not constants would be copied in every call."""
    return dot.operands[1 - side] in constants and dot.operands[side] not in constants


def may_batch(first: ir.Operation, second: ir.Operation, env: ModuleEnv) -> bool:
    """Legal to stack? All dims of both operands are proved equal."""
    for one, other in zip(first.operands, second.operands, strict=True):
        left, right = entries(one.type), entries(other.type)
        if len(left) != len(right):
            return False
        if any(env.equal(env.resolve(a), env.resolve(b)) is not Truth.YES for a, b in zip(left, right, strict=True)):
            return False
    return True


def should_batch(dot: ir.Operation, constants: dict[ir.Value, None], batch_bytes: int) -> bool:
    """Profitable to stack? When the right operand is a weight of up to `batch_bytes`. A threshold: what it trades is not measured, threads
    that share one dot better than several small ones against a copy of the left operands, whose rows the call knows."""
    weight = ir.RankedTensorType(dot.operands[1].type)
    if dot.operands[0] in constants or dot.operands[1] not in constants or not weight.has_static_shape:
        return False
    width = 2 if element_name(weight) == "bf16" else held_dtype(element_name(weight)).itemsize
    return int(np.prod(weight.shape, dtype=np.int64)) * width <= batch_bytes


def _dots(block: ir.Block) -> list[ir.Operation]:
    return [op for op in block_ops(block) if op.name == "stablehlo.dot_general"]


def _other_attributes(dot: ir.Operation) -> str:
    """Precision and algorithm; dots that differ there stay apart."""
    return ", ".join(f"{name} = {dot.attributes[name]}" for name in sorted(dot.attributes) if name != "dot_dimension_numbers")


def _compatible(dots: Sequence[ir.Operation], may: Callable[[ir.Operation, ir.Operation], bool]) -> list[list[ir.Operation]]:
    """Splits the dots into groups whose members are all compatible with the first one."""
    groups: list[list[ir.Operation]] = []
    for dot in dots:
        home = next((group for group in groups if may(group[0], dot)), None)
        if home is not None:
            home.append(dot)
        else:
            groups.append([dot])
    return [group for group in groups if len(group) > 1]


class _Reach:
    """Which dots depend on which, also through the groups that are chosen already: their members will be one dot. Nor are those one between
    which a symbol is bound: what the later one reads may have sizes that there are not yet at the first."""

    def __init__(self, block: ir.Block) -> None:
        self._own: dict[ir.Operation, int] = {}  # one bit each
        self._needs: dict[ir.Operation, int] = {}  # the own bit and the bits of the dots that it depends on
        self._bound: dict[ir.Operation, int] = {}  # how many symbols are bound by then
        behind: dict[ir.Value, int] = {}
        bound = 0
        for op in block_ops(block):
            bound += op.name in BINDING
            mask = 0
            for operand in op.operands:
                mask |= behind.get(operand, 0)
            if op.name == "stablehlo.dot_general":
                self._own[op] = 1 << len(self._own)
                mask |= self._own[op]
                self._needs[op] = mask
                self._bound[op] = bound
            behind.update(dict.fromkeys(op.results, mask))

    def independent(self, first: ir.Operation, second: ir.Operation) -> bool:
        if self._bound[first] != self._bound[second]:
            return False
        return not (self._needs[first] & self._own[second] or self._needs[second] & self._own[first])

    def merge(self, dots: Sequence[ir.Operation]) -> None:
        """From now on whatever depends on one of the dots depends on all of them."""
        members = needs = 0
        for dot in dots:
            members |= self._own[dot]
            needs |= self._needs[dot]
        for dot, mask in self._needs.items():
            if mask & members:
                self._needs[dot] = mask | needs


def _independent(dots: Sequence[ir.Operation], reach: _Reach) -> list[list[ir.Operation]]:
    """Splits the dots (in block order) into groups without a path from one member to another; `reach` learns them."""
    groups: list[list[ir.Operation]] = []
    for dot in dots:
        home = next((group for group in groups if all(reach.independent(dot, member) for member in group)), None)
        if home is not None:
            home.append(dot)
        else:
            groups.append([dot])
    chosen: list[list[ir.Operation]] = []
    for group in groups:
        # A group that was chosen just now may have made members of this one depend on each other.
        rest = [dot for i, dot in enumerate(group) if all(reach.independent(dot, other) for other in group[:i])]
        if len(rest) > 1:
            reach.merge(rest)
            chosen.append(rest)
    return chosen


# --- the rewrite ------------------------------------------------------------------------------------------------------


def _gather_operands(dots: Sequence[ir.Operation]) -> ir.Operation:
    """Moves whatever the dots read to before the first of them, which is returned."""
    first = dots[0]
    for producer in producers_after([operand for dot in dots for operand in dot.operands], first):
        producer.move_before(first)
    return first


def _merge_sharing(dots: Sequence[ir.Operation], side: int) -> None:
    first = _gather_operands(dots)
    numbers = DotNumbers.of(first)
    others = [dot.operands[1 - side] for dot in dots]
    rank = len(entries(others[0].type))
    free = numbers.free(1 - side, rank)[0]
    widths = [ir.RankedTensorType(other.type).shape[free] for other in others]
    merged = _concatenate(others, free, sum(widths), first)
    operands = [first.operands[0], merged] if side == 0 else [merged, first.operands[1]]
    dims = entries(first.results[0].type)
    axis = len(dims) - 1 if side == 0 else len(numbers.batching[0])
    whole = named_type(element_type(first.results[0].type), [*dims[:axis], static_entry(sum(widths)), *dims[axis + 1 :]])
    product = numbers.build_dot(first, operands, whole).results[0]
    parts: list[ir.Value] = []
    start = 0
    for dot, width in zip(dots, widths, strict=True):
        parts.append(_slice(product, axis, start, dot.results[0].type, dot, first))
        start += width
    _replace_all(dots, parts)


def _merge_rows(dots: Sequence[ir.Operation]) -> None:
    """The left operands become rows of one: [x, y] · w, a free dim in front."""
    first = _gather_operands(dots)
    rank = len(entries(first.operands[0].type))
    operands = [_stacked(dots, 0, first), first.operands[1]]
    _build_stacked(dots, DotNumbers.of(first).with_dims_of(0, range(1, rank + 1)), operands, first)


def _merge_batched(dots: Sequence[ir.Operation]) -> None:
    first = _gather_operands(dots)
    numbers = DotNumbers.of(first)
    batched = DotNumbers(
        ((0, *(d + 1 for d in numbers.batching[0])), (0, *(d + 1 for d in numbers.batching[1]))),
        (tuple(d + 1 for d in numbers.contracting[0]), tuple(d + 1 for d in numbers.contracting[1])),
    )
    _build_stacked(dots, batched, [_stacked(dots, side, first) for side in (0, 1)], first)


def _stacked(dots: Sequence[ir.Operation], side: int, before: ir.Operation) -> ir.Value:
    """The operands of all dots on one side, along a new dim in front."""
    layers: list[ir.Value] = []
    for dot in dots:
        type_ = dot.operands[side].type
        layers.append(make_reshape(dot.operands[side], named_type(element_type(type_), [static_entry(1), *entries(type_)]), before))
    return _concatenate(layers, 0, len(dots), before)


def _build_stacked(dots: Sequence[ir.Operation], numbers: DotNumbers, operands: Sequence[ir.Value], first: ir.Operation) -> None:
    """One dot whose results are those of `dots`, along a new dim in front."""
    result = first.results[0].type
    product = numbers.build_dot(first, operands, named_type(element_type(result), [static_entry(len(dots)), *entries(result)])).results[0]
    parts: list[ir.Value] = []
    for place, dot in enumerate(dots):
        layer = named_type(element_type(result), [static_entry(1), *entries(dot.results[0].type)])
        parts.append(make_reshape(_slice(product, 0, place, layer, dot, first), dot.results[0].type, first))
    _replace_all(dots, parts)


def _replace_all(dots: Sequence[ir.Operation], parts: Sequence[ir.Value]) -> None:
    for dot, part in zip(dots, parts, strict=True):
        replace_op(dot, [part])


def _concatenate(values: Sequence[ir.Value], dim: int, size: int, before: ir.Operation) -> ir.Value:
    dims = entries(values[0].type)
    type_ = named_type(element_type(values[0].type), [*dims[:dim], static_entry(size), *dims[dim + 1 :]])
    return build("stablehlo.concatenate", values, [type_], {"dimension": dim}, before=before).results[0]


def _slice(product: ir.Value, axis: int, start: int, type_: ir.Type, dot: ir.Operation, before: ir.Operation) -> ir.Value:
    rank = len(entries(product.type))
    attributes = {"starts": [str(start if dim == axis else 0) for dim in range(rank)], "strides": [1] * rank}
    return build("disc.slice", [product], [type_], attributes, location=dot.location, before=before).results[0]
