"""Walks index expressions without emitting code, to choose loop variables: where they must split, which may merge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..ir.graph import Node
from ..shapes import Dim, FloorDiv, Mod
from .index import ONE, ZERO, Index, IndexSpace, view_index


@dataclass
class Probe:
    """What the loads of a value look like: the offsets into leaves (and into which), and positions used by structural ops."""

    space: IndexSpace
    leaves: frozenset[Node]
    offsets: list[Dim] = field(default_factory=list)
    reads: list[tuple[Node, Dim]] = field(default_factory=list)
    positions: list[Dim] = field(default_factory=list)
    _seen: set[tuple[int, Index]] = field(default_factory=set)
    _names: int = 0

    def visit(self, node: Node, index: Index) -> None:
        """Records the loads behind `node` at `index`."""
        if (node.id, index) in self._seen:
            return
        self._seen.add((node.id, index))
        if node.op == "input" or node in self.leaves:
            self.reads.append((node, self.space.linear(index, node.dims)))
            self.offsets.append(self.reads[-1][1])
            return
        viewed = view_index(self.space, node, index)
        if viewed is not None:
            self.visit(node.operands[0], viewed)
            return
        rule = _RULES.get(node.op)
        if rule is not None:
            rule(self, node, index)
            return
        for operand in node.operands:
            self.visit(operand, index if operand.dims else ())

    def variable(self, extent: Dim) -> Dim:
        """A loop variable for the probe alone."""
        self._names += 1
        return self.space.variable(f"probe_{self._names}", extent)


def _iota(probe: Probe, node: Node, index: Index) -> None:
    probe.positions.append(index[node.integer("dim")])


def _nothing(probe: Probe, node: Node, index: Index) -> None:
    del probe, node, index


def _pad(probe: Probe, node: Node, index: Index) -> None:
    moved = tuple(position - probe.space.env.parse(low) for position, low in zip(index, node.texts("low"), strict=True))
    for axis, size in enumerate(node.dims):
        if node.operands[0].dims[axis] != size:
            probe.positions.append(index[axis])
    probe.visit(node.operands[0], moved)


def _concatenate(probe: Probe, node: Node, index: Index) -> None:
    axis, start = node.integer("dimension"), ZERO
    probe.positions.append(index[axis])
    for operand in node.operands:
        probe.visit(operand, tuple(position - start if number == axis else position for number, position in enumerate(index)))
        start = start + operand.dims[axis]


def _gather(probe: Probe, node: Node, index: Index) -> None:
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
    probe.visit(indices, tuple(batch))
    window = [axis for axis in range(len(source.dims)) if axis not in collapsed and axis not in batch_dims]
    positions = [ZERO] * len(source.dims)
    for axis, result_axis in zip(window, offset_dims, strict=True):
        positions[axis] = index[result_axis]  # pyright: ignore[reportArgumentType, reportCallIssue]
    probe.visit(source, tuple(positions))


def _reduce(probe: Probe, node: Node, index: Index) -> None:
    count = len(node.operands) // 2
    reduced, kept = node.ints("dimensions"), iter(index)
    source_dims = node.operands[0].dims
    at = tuple((probe.variable(size) if size != ONE else ZERO) if axis in reduced else next(kept) for axis, size in enumerate(source_dims))
    for source in node.operands[:count]:
        probe.visit(source, at)


def _reduce_window(probe: Probe, node: Node, index: Index) -> None:
    windows = node.ints("window_dimensions")
    for axis, window in enumerate(windows):
        if window != 1:
            probe.positions.append(index[axis])
    strides = node.ints("window_strides") or (1,) * len(index)
    for source in node.operands[: len(node.operands) // 2]:
        probe.visit(source, tuple(position * stride for position, stride in zip(index, strides, strict=True)))


_RULES: dict[str, Callable[[Probe, Node, Index], None]] = {
    "disc.iota": _iota,
    "disc.dim_value": _nothing,
    "stablehlo.constant": _nothing,
    "disc.pad": _pad,
    "stablehlo.concatenate": _concatenate,
    "disc.gather": _gather,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
}


@dataclass(frozen=True)
class LoopVariable:
    """One loop of a nest: its symbol name and extent."""

    name: str
    extent: Dim


@dataclass(frozen=True)
class Nest:
    """Loop variables, outermost first, and the index in the iterated dims that they stand for."""

    variables: tuple[LoopVariable, ...]
    index: Index


Visit = Callable[[Probe, Index], None]


def choose_nest(space: IndexSpace, dims: Sequence[Dim], leaves: frozenset[Node], visit: Visit, prefix: str) -> Nest:
    """Loops over `dims` such that every load is affine where that is possible, and as few loops as that allows.

    A loop whose variable is divided by a number that divides its extent is split there (the two halves of a head split); then
    neighbours are merged as long as no load needs them apart.
    """
    nest = _initial(space, dims, prefix)
    for _ in range(4):
        split = _wanted_split(space, nest, leaves, visit)
        if split is None:
            break
        nest = split
    return _merge(space, dims, nest, leaves, visit)


def _initial(space: IndexSpace, dims: Sequence[Dim], prefix: str) -> Nest:
    variables: list[LoopVariable] = []
    index: list[Dim] = []
    for number, size in enumerate(dims):
        if size == ONE:
            index.append(ZERO)
            continue
        name = f"{prefix}{number}"
        index.append(space.variable(name, size))
        variables.append(LoopVariable(name, size))
    return Nest(tuple(variables), tuple(index))


def _run(space: IndexSpace, nest: Nest, leaves: frozenset[Node], visit: Visit) -> tuple[Probe, list[tuple[Dim, Dim]]]:
    saved, space.unresolved = space.unresolved, []
    probe = Probe(space, leaves)
    visit(probe, nest.index)
    found, space.unresolved = space.unresolved, saved
    return probe, found


def _wanted_split(space: IndexSpace, nest: Nest, leaves: frozenset[Node], visit: Visit) -> Nest | None:
    _, unresolved = _run(space, nest, leaves, visit)
    for value, divisor in unresolved:
        for variable in nest.variables:
            if variable.name not in value.symbols() or variable.extent == divisor:
                continue
            outer = space.env.exact_div(variable.extent, divisor)
            if outer is None or outer == ONE:
                continue
            return _split(space, nest, variable, outer, divisor)
    return None


def _split(space: IndexSpace, nest: Nest, variable: LoopVariable, outer: Dim, inner: Dim) -> Nest:
    names = (variable.name + "o", variable.name + "i")
    whole = space.variable(names[0], outer) * inner + space.variable(names[1], inner)
    index = tuple(position.replace({variable.name: whole}) for position in nest.index)
    variables: list[LoopVariable] = []
    for each in nest.variables:
        if each is variable:
            variables.extend((LoopVariable(names[0], outer), LoopVariable(names[1], inner)))
        else:
            variables.append(each)
    return Nest(tuple(variables), index)


def _merge(space: IndexSpace, dims: Sequence[Dim], nest: Nest, leaves: frozenset[Node], visit: Visit) -> Nest:
    position = len(nest.variables) - 2
    _, before = _run(space, nest, leaves, visit)
    while position >= 0:
        merged = _merged(space, nest, position)
        probe, after = _run(space, merged, leaves, visit)
        name = merged.variables[position].name
        if len(after) <= len(before) and not any(_divides(value, name) for value in (*probe.offsets, *probe.positions)):
            nest, before = merged, after
        position -= 1
    return nest


def _merged(space: IndexSpace, nest: Nest, position: int) -> Nest:
    first, second = nest.variables[position], nest.variables[position + 1]
    name = f"{first.name}{second.name}"
    whole = space.variable(name, first.extent * second.extent)
    outer = whole // second.extent
    inner = whole - outer * second.extent
    index = tuple(each.replace({first.name: outer, second.name: inner}) for each in nest.index)
    variables = (*nest.variables[:position], LoopVariable(name, first.extent * second.extent), *nest.variables[position + 2 :])
    return Nest(variables, index)


def _divides(value: Dim, name: str) -> bool:
    """True when `name` sits inside a division of `value`."""
    return any(isinstance(atom, FloorDiv | Mod) and name in operand.symbols() for atom in value.atoms() for operand in atom.operands())


def flattens(space: IndexSpace, leaves: frozenset[Node], extents: Sequence[Dim], visit: Visit) -> bool:
    """True when one flat loop over `extents` keeps every load affine."""
    name = "flat_probe"
    flat = space.variable(name, space.env.product(extents))
    probe = Probe(space, leaves)
    saved, space.unresolved = space.unresolved, []
    visit(probe, space.delinear(flat, extents))
    space.unresolved = saved
    return not any(_divides(value, name) for value in (*probe.offsets, *probe.positions))
