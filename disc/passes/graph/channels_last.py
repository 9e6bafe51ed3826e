"""Chains of convolutions compute on channels-last values; transposes stay at the ends of a chain alone.

    %1 = stablehlo.convolution(%0, %w) [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]
    %2 = stablehlo.maximum %1, %zero

    ─►  %t = stablehlo.transpose %0, dims = [0, 2, 3, 1]
        %v = stablehlo.transpose %w, dims = [2, 3, 1, 0]              (folded into the weight table)
        %1 = stablehlo.convolution(%t, %v) [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]
        %2 = stablehlo.maximum %1, %zero
        %3 = stablehlo.transpose %2, dims = [0, 3, 1, 2]              (meets the transpose of the next op, and both go)

Then a 1x1 convolution is a dot, and so is one whose windows tile its source (the patches of a vision transformer); the positions of all
images are the rows of one matrix, and a weight is packed once, ahead of time.
Requires and keeps stage `named`; `simplify` removes the pairs of transposes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from torch_mlir import ir

from disc.ir.costs import Costs
from disc.ir.interp.values import element_name
from disc.ir.op_table import ELEMENTWISE
from disc.ir.ops import block_ops
from disc.ir.passes import CompileState, FunctionPass
from disc.ir.rewriting import defining, entries, erase_dead, producer, splat_value, static_size
from disc.ir.stages import load_env
from disc.passes.graph.channels_last_ops import (
    ELEMENTS,
    Convolution,
    Rewriter,
    is_flattening,
    is_pool,
    read_convolution,
    to_last,
    turned,
)
from disc.passes.graph.constants import constant_values
from disc.targets.thresholds import DeviceThresholds, GraphThresholds


@dataclass(frozen=True)
class ChannelsLast(FunctionPass):
    """Turns every group of connected ops that gains more than the transposes it needs."""

    name: ClassVar[str] = "channels-last"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        graph = _Graph(block, state.thresholds)
        rewriter = Rewriter(load_env(module), state.thresholds.graph.image_channels)
        # Decided before the first rewrite: the hash of an op is that of its operands, too.
        chosen = [op for op in block_ops(block) if op in graph.group_of and should_turn(graph.group_of[op])]
        for op, convolution in [(op, graph.convolutions.get(op)) for op in chosen]:
            rewriter.turn(op, convolution)
        erase_dead(block)


@dataclass(eq=False)
class Group:
    """Connected ops that can all be converted. gain: of its convolutions over all channels, in transposes; inserted, removed: values to be
    transposed because of the group, and transposes that go with it."""

    members: list[ir.Operation] = field(default_factory=list)
    gain: int = 0
    inserted: int = 0
    removed: int = 0


def should_turn(group: Group) -> bool:
    """Profit: more is gained than the transposes cost, all in transposes. Their sizes are those of images, which the call knows; those at
    the two ends of a chain are taken as equal."""
    return group.gain + group.removed > group.inserted


def gain(convolution: Convolution, share: float, costs: Costs) -> int:
    """What a convolution gains, in transposes: one as a rule, more than its own two as a product of matrices, or where `share` of its
    multiply-adds' time is more than these two take. Both are counted for a position of the result: the number of positions cancels out."""
    if convolution.is_depthwise:
        return 0
    if convolution.is_patches or convolution.groups != 1:  # channels first, groups of few channels compute at a fifth of the speed
        return 3
    taps, positions = math.prod(convolution.window), math.prod(convolution.strides)
    work = convolution.inputs * taps * convolution.outputs
    own = costs.transpose(convolution.inputs * positions + convolution.outputs)
    return 3 if share * costs.multiply(work) >= own else 1


def may_turn(convolution: Convolution, kernel_is_constant: bool, limits: GraphThresholds) -> bool:
    """Legality and least size: dense, depthwise or in groups of whole vectors, of an element type that the channels-last kernels compute,
    channels known."""
    least = limits.last_channels
    groups = convolution.groups == 1 or convolution.is_depthwise or convolution.outputs // convolution.groups % least == 0
    plain = convolution.plain and convolution.element in ELEMENTS
    return kernel_is_constant and groups and plain and convolution.outputs >= least


class _Graph:
    """The ops that can be converted, in groups."""

    def __init__(self, block: ir.Block, device: DeviceThresholds) -> None:
        self.limits, self.costs = device.graph, Costs.of(device)
        self.constants = constant_values(block)
        self.convolutions: dict[ir.Operation, Convolution] = {}
        self.group_of: dict[ir.Operation, Group] = {}
        for op in block_ops(block):
            sources = self._sources(op)
            if sources is not None:
                self._join(op, sources)
        for group in {id(each): each for each in self.group_of.values()}.values():
            self._count(group)

    def _sources(self, op: ir.Operation) -> list[ir.Value] | None:
        """The operands that the converted op would read converted; None when it cannot be converted."""
        if op.name == "stablehlo.convolution":
            convolution = read_convolution(op)
            if convolution is None or not may_turn(convolution, op.operands[1] in self.constants, self.limits):
                return None
            if convolution.is_depthwise and not self._is_turned(op.operands[0]):
                return None
            self.convolutions[op] = convolution
            return [op.operands[0]]
        if op.name in ELEMENTWISE:
            return self._elementwise_sources(op)
        if is_pool(op) or is_flattening(op) or op.name == "stablehlo.reduce":
            movable = op.name != "stablehlo.reduce" or (len(op.results) == 1 and _keeps_order(op))
            return [op.operands[0]] if movable and self._is_turned(op.operands[0]) else None
        if op.name == "stablehlo.concatenate":
            return list(op.operands) if all(self._is_turned(operand) for operand in op.operands) else None
        return None

    def _elementwise_sources(self, op: ir.Operation) -> list[ir.Value] | None:
        rank = len(entries(op.results[0].type))
        found = [operand for operand in op.operands if self._is_turned(operand)]
        if rank < 3 or not found:
            return None
        for operand in op.operands:
            free = splat_value(operand) is not None or operand in self.constants or not entries(operand.type)
            if not (operand in found or free or defining(operand, "disc.broadcast_in_dim") is not None):
                return None
        return found

    def _is_turned(self, value: ir.Value) -> bool:
        """Would `value` be there channels last?"""
        return turned(value) is not None or producer(value) in self.group_of

    def _join(self, op: ir.Operation, sources: Iterable[ir.Value]) -> None:
        group = Group([op])
        self.group_of[op] = group
        for source in sources:
            other = self.group_of.get(producer(source))  # pyright: ignore[reportArgumentType]
            if other is None or other is group:
                continue
            small, large = sorted((group, other), key=lambda each: len(each.members))
            large.members += small.members
            self.group_of.update(dict.fromkeys(small.members, large))
            group = large

    def _count(self, group: Group) -> None:
        outer: dict[ir.Value, None] = {}
        for op in group.members:
            convolution = self.convolutions.get(op)
            group.gain += gain(convolution, self.limits.last_gain, self.costs) if convolution is not None else 0
            outer.update(dict.fromkeys(operand for operand in op.operands if self.group_of.get(producer(operand)) is not group))  # pyright: ignore[reportArgumentType]
            if op.name != "stablehlo.reduce":
                self._count_readers(group, op.results[0])
        for value in outer:
            if turned(value) is not None:
                group.removed += 1
            elif any(_operation(use.owner) in self.convolutions for use in value.uses) and value not in self.constants:
                size = static_size(entries(value.type)[1])
                group.inserted += size is None or size > self.limits.image_channels

    def _count_readers(self, group: Group, value: ir.Value) -> None:
        outside = [use.owner for use in value.uses if self.group_of.get(_operation(use.owner)) is not group]
        if not outside:
            return
        if all(_undoes(_operation(reader)) for reader in outside):
            group.removed += 1
        else:
            group.inserted += 1


def _operation(owner: ir.Operation | ir.OpView) -> ir.Operation:
    return owner.operation


def _undoes(reader: ir.Operation) -> bool:
    return reader.name == "stablehlo.transpose" and to_last(reader)


def _keeps_order(reduce: ir.Operation) -> bool:
    """Does a reduction of a channels-last value keep its other dims in the order that they have channels first?"""
    rank = len(entries(reduce.operands[0].type))
    reduced = set(ir.DenseI64ArrayAttr(reduce.attributes["dimensions"]))
    kept = [dim for dim in (0, *range(2, rank), 1) if dim not in reduced]
    return rank >= 3 and kept == sorted(kept) and element_name(reduce.results[0].type) == element_name(reduce.operands[0].type)
