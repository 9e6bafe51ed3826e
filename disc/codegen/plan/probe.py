"""Walks index expressions without emitting code: what a value at an index reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from disc.codegen.plan.index import ONE, ZERO, Index, IndexSpace, part_at, part_index, view_index
from disc.ir.graph import Node
from disc.ir.op_table import rules_by_op
from disc.shapes import Dim, FloorDiv, Mod

Needed = list[tuple[Node, Index]]


@dataclass
class Probe:
    """What the loads of a value look like: the offsets into leaves (and into which), and positions used by structural ops.

    joints: concatenations of which several parts may be read, with the position along their dim. ops: those of which a value is used.
    """

    space: IndexSpace
    leaves: frozenset[Node]
    offsets: list[Dim] = field(default_factory=list)
    reads: list[tuple[Node, Dim]] = field(default_factory=list)
    positions: list[Dim] = field(default_factory=list)
    joints: list[tuple[Node, Dim]] = field(default_factory=list)
    ops: dict[Node, None] = field(default_factory=dict)
    _seen: set[tuple[int, Index]] = field(default_factory=set)
    _names: int = 0  # given so far

    def visit(self, node: Node, index: Index) -> None:
        """Records the loads behind `node` at `index`."""
        pending = [(node, index)]
        while pending:
            node, index = pending.pop()
            if (node.id, index) not in self._seen:
                self._seen.add((node.id, index))
                pending.extend(reversed(self._needed(node, index)))

    def _needed(self, node: Node, index: Index) -> Needed:
        """The values that the one of `node` at `index` is made of; records what it reads itself."""
        part = part_at(self.space, node, index)
        if part is not None:
            return [part]
        self.ops[node] = None
        if node.op == "input" or node in self.leaves:
            self.reads.append((node, self.space.linear(index, node.dims)))
            self.offsets.append(self.reads[-1][1])
            return []
        viewed = view_index(self.space, node, index)
        if viewed is not None:
            return [(node.operands[0], viewed)]
        rule = _RULES.get(node.op)
        if rule is not None:
            return rule(self, node, index)
        return [(operand, index if operand.dims else ()) for operand in node.operands]

    def variable(self, extent: Dim) -> Dim:
        """A loop variable for the probe alone."""
        self._names += 1
        return self.space.variable(f"probe_{self._names}", extent)


def _iota(probe: Probe, node: Node, index: Index) -> Needed:
    probe.positions.append(index[node.integer("dim")])
    return []


def _nothing(probe: Probe, node: Node, index: Index) -> Needed:
    del probe, node, index
    return []


def _pad(probe: Probe, node: Node, index: Index) -> Needed:
    moved = tuple(position - probe.space.env.parse(low) for position, low in zip(index, node.texts("low"), strict=True))
    for axis, size in enumerate(node.dims):
        if node.operands[0].dims[axis] != size:
            probe.positions.append(index[axis])
    return [(node.operands[0], moved)]


def _concatenate(probe: Probe, node: Node, index: Index) -> Needed:
    axis, start = node.integer("dimension"), ZERO
    probe.positions.append(index[axis])
    probe.joints.append((node, index[axis]))
    parts: Needed = []
    for operand in node.operands:
        parts.append((operand, part_index(index, axis, index[axis] - start, operand)))
        start = start + operand.dims[axis]
    return parts


def _gather(probe: Probe, node: Node, index: Index) -> Needed:
    source, indices = node.operands
    numbers = node.attrs["dimension_numbers"]
    assert isinstance(numbers, dict)
    offset_dims, collapsed, batch_dims = numbers["offset_dims"], numbers["collapsed"], numbers["operand_batch"]
    assert isinstance(offset_dims, tuple) and isinstance(collapsed, tuple) and isinstance(batch_dims, tuple)
    batch = [index[axis] for axis in range(len(index)) if axis not in offset_dims]
    vector_dim = numbers["vector_dim"]
    assert isinstance(vector_dim, int)
    if vector_dim < len(indices.dims):
        batch.insert(vector_dim, ZERO)
    window = [axis for axis in range(len(source.dims)) if axis not in collapsed and axis not in batch_dims]
    positions = [ZERO] * len(source.dims)
    for axis, result_axis in zip(window, offset_dims, strict=True):
        positions[axis] = index[result_axis]  # pyright: ignore[reportArgumentType, reportCallIssue]
    return [(indices, tuple(batch)), (source, tuple(positions))]


def _reduce(probe: Probe, node: Node, index: Index) -> Needed:
    count = len(node.operands) // 2
    reduced, kept = node.ints("dimensions"), iter(index)
    source_dims = node.operands[0].dims
    at = tuple((probe.variable(size) if size != ONE else ZERO) if axis in reduced else next(kept) for axis, size in enumerate(source_dims))
    return [(source, at) for source in node.operands[:count]]


def _reduce_window(probe: Probe, node: Node, index: Index) -> Needed:
    windows = node.ints("window_dimensions")
    for axis, window in enumerate(windows):
        if window != 1:
            probe.positions.append(index[axis])
    strides = node.ints("window_strides") or (1,) * len(index)
    at = tuple(position * stride for position, stride in zip(index, strides, strict=True))
    return [(source, at) for source in node.operands[: len(node.operands) // 2]]


_RULES: dict[str, Callable[[Probe, Node, Index], Needed]] = rules_by_op(
    "probe",
    {
        "disc.iota": _iota,
        "disc.dim_value": _nothing,
        "stablehlo.constant": _nothing,
        "disc.pad": _pad,
        "stablehlo.concatenate": _concatenate,
        "disc.gather": _gather,
        "stablehlo.reduce": _reduce,
        "stablehlo.reduce_window": _reduce_window,
    },
)


def is_divided(value: Dim, name: str) -> bool:
    """True when `name` sits inside a division of `value`."""
    return any(isinstance(atom, FloorDiv | Mod) and name in operand.symbols() for atom in value.atoms() for operand in atom.operands())


def flattens(space: IndexSpace, leaves: frozenset[Node], extents: Sequence[Dim], visit: Callable[[Probe, Index], None]) -> bool:
    """True when one flat loop over `extents` keeps every load affine."""
    name = "flat_probe"
    flat = space.variable(name, space.env.product(extents))
    probe = Probe(space, leaves)
    saved, space.unresolved = space.unresolved, []
    visit(probe, space.delinear(flat, extents))
    space.unresolved = saved
    return not any(is_divided(value, name) for value in (*probe.offsets, *probe.positions))
