"""What code costs: the one model by which passes, speculation and plans weigh two ways of doing the same work.

Costs are seconds of one core. They come from `Rates`, rows of the device's table, so that another device weighs with its own. Sizes are
known in the call alone: both ways are therefore counted for the same unit, an element or a vector of a value that both make or read. What
is cheaper for the unit is cheaper for all sizes. A decision that also saves launches only does so on the side that is cheaper anyway.

Vector instructions (`op_cost`, `node_cost`) are counted for a vector of f32 as wide as the device's widest registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from disc.ir.graph import Node
from disc.ir.op_table import ONE, OPS
from disc.targets.thresholds import DeviceThresholds, Rates


def op_cost(node: Node) -> int:
    """Vector instructions of the op alone, for a vector of its result; rough."""
    return 0 if node.op == "input" else OPS[node.op].cost


def node_cost(node: Node, limit: int = 64) -> int:
    """Vector instructions with everything that is inlined above it, up to `limit`; rough."""
    total, pending, seen = 0, [node], {node}
    while pending and total < limit:
        current = pending.pop()
        total += op_cost(current)
        if current.op == "stablehlo.reduce":
            continue
        for operand in current.operands:
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)
    return total


def inputs_of(node: Node) -> set[Node]:
    """The inputs of which a vector along the last dim of `node` loads a vector; not what is reduced, or the same all along a row, nor the
    numbers of gathered rows."""
    found, pending, seen = set[Node](), [node], {node}
    while pending:
        current = pending.pop()
        if current.op == "input" and any(dim != ONE for dim in current.dims):
            found.add(current)
        if current.op == "stablehlo.reduce" or is_same_along_rows(current):
            continue
        read = current.operands[:1] if current.op == "disc.gather" else current.operands
        fresh = [operand for operand in read if operand not in seen]
        seen.update(fresh)
        pending += fresh
    return found


def is_same_along_rows(node: Node) -> bool:
    """True for a broadcast along its last dim."""
    if node.op != "disc.broadcast_in_dim" or not node.dims:
        return False
    axes = node.ints("dims")
    return len(node.dims) - 1 not in axes or node.operands[0].dims[axes.index(len(node.dims) - 1)] == ONE


@dataclass(frozen=True)
class Costs:
    """Seconds on a core of a device with these rates. lanes: elements of a vector."""

    rates: Rates
    lanes: int

    @staticmethod
    def of(device: DeviceThresholds) -> Costs:
        return Costs(device.rates, device.lanes)

    def seconds(self, cycles: float) -> float:
        return cycles / (self.rates.gigahertz * 1e9)

    def compute(self, instructions: int) -> float:
        """So many vector instructions."""
        return self.seconds(instructions / self.rates.instructions_per_cycle)

    def multiply(self, macs: int) -> float:
        """So many multiply-adds of f32 in a product or convolution."""
        return self.seconds(macs / (self.rates.instructions_per_cycle * self.lanes))

    def load_near(self) -> float:
        """A vector that the core's own cache holds: of a smaller value, whose elements are read again and again."""
        return self.seconds(self.rates.near_cycles)

    def load_shared(self) -> float:
        """A vector that another kernel made, and that lies in a cache that cores share."""
        return self.seconds(self.rates.shared_cycles)

    def pass_through_memory(self) -> float:
        """A vector of a result larger than the caches, with what a kernel reads to make it."""
        return self.seconds(self.rates.memory_cycles)

    def keep(self) -> float:
        """A vector that is stored in a row of scratch and loaded again."""
        return self.seconds(self.rates.kept_cycles)

    def reload(self, rows: int) -> float:
        """A vector of so many rows that a core's cache holds, loaded beside others."""
        return self.seconds(rows * self.rates.reload_cycles)

    def transpose(self, elements: int) -> float:
        """So many elements by a kernel of its own, which transposes blocks in registers; its loads and stores included."""
        return self.seconds(elements * self.rates.transpose_cycles)

    def scatter(self, elements: int) -> float:
        """So many elements, loaded or stored one by one at places that are not neighbors."""
        return self.seconds(elements * self.rates.scatter_cycles)
