"""Dots and convolutions in one form: C[batch, m, n] = sum over k of A[batch, m, k] * B[batch, k, n], each a flat index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from disc.codegen.plan.index import ONE, ZERO, Index, IndexSpace, view_index
from disc.errors import CompilerBug
from disc.ir.graph import Body, Node
from disc.ir.op_table import DOTS, ELEMENTWISE
from disc.shapes import Dim

Bound = tuple[Dim, Dim, Dim]  # (position, low, high): low <= position < high or the element is zero
Locate = Callable[[Dim, Dim, Dim], tuple[Index, Sequence[Bound]]]
GROUP = ("gk", "gk1", "gk2", "gk3")  # the positions in k of a group's members while it is packed


@dataclass(frozen=True, eq=False)
class Operand:
    """One factor: its node, and where element (batch, row or column, k) is: an index, with bounds outside which it is zero."""

    node: Node
    locate: Locate


@dataclass(frozen=True)
class WindowAxis:
    """One spatial axis of a window: output position o reads input positions o * stride + w * dilation - low for w < window.

    size, out: the lengths of the axis in the source and in the result.
    """

    size: Dim
    out: Dim
    window: int
    stride: int
    dilation: int
    low: int


@dataclass(frozen=True, eq=False)
class Windows:
    """How a convolution reads its source: n runs over `axes`' output positions, k over (channel, window positions).

    at: the index in the source of (batch, channel of the group, input positions).
    """

    axes: tuple[WindowAxis, ...]
    channels: Dim
    at: Callable[[Dim, Dim, Sequence[Dim]], Index]


@dataclass(frozen=True, eq=False)
class Contraction:
    """A dot or convolution over flat batch, m, n and k of the given extents.

    result: the index in the node's result of element (batch, m, n). windows: for a convolution with static windows and no holes in
    its source. scales: of a `disc.scaled_dot`. turned: A and B have changed places.
    """

    node: Node
    batch: Dim
    m: Dim
    n: Dim
    k: Dim
    left: Operand
    right: Operand
    result: Callable[[Dim, Dim, Dim], Index]
    windows: Windows | None = None
    scales: Node | None = None
    turned: bool = False

    @property
    def extents(self) -> tuple[Dim, Dim, Dim, Dim]:
        return self.batch, self.m, self.n, self.k

    def place(self) -> Index:
        """The index of the element that the loops over the result are at, whose variables `declare` names."""
        return self.result(Dim.symbol("gb"), Dim.symbol("gm"), Dim.symbol("gn"))


def read_contraction(space: IndexSpace, node: Node, *, channels_inside: bool = False) -> Contraction:
    """The contraction form of a `stablehlo.dot_general`, `disc.scaled_dot` or `stablehlo.convolution`. channels_inside: k of a convolution
    over channels-last values runs over the channels of a window position before it goes on to the next, so that neighbors along k are
    neighbors in memory; else, and of others, over all positions of a channel."""
    if node.op in DOTS:
        return _read_dot(space, node)
    return _read_convolution(space, node, channels_inside)


def _read_dot(space: IndexSpace, node: Node) -> Contraction:
    numbers = node.attrs["dot_dimension_numbers"]
    assert isinstance(numbers, dict)
    axes = {key: value for key, value in numbers.items() if isinstance(value, tuple)}
    left, right = node.operands[:2]
    left_free = [axis for axis in range(len(left.dims)) if axis not in axes["lhs_batch"] and axis not in axes["lhs_contract"]]
    right_free = [axis for axis in range(len(right.dims)) if axis not in axes["rhs_batch"] and axis not in axes["rhs_contract"]]
    batch_dims = _pick(left.dims, axes["lhs_batch"])  # pyright: ignore[reportArgumentType]
    m_dims, n_dims = _pick(left.dims, left_free), _pick(right.dims, right_free)
    k_dims = _pick(left.dims, axes["lhs_contract"])  # pyright: ignore[reportArgumentType]

    def locate(count: int, batch: Sequence[int], free: Sequence[int], contract: Sequence[int], free_dims: Sequence[Dim]) -> Locate:
        def at(b: Dim, row: Dim, k: Dim) -> tuple[Index, Sequence[Bound]]:
            index = [ZERO] * count
            for targets, position, dims in ((batch, b, batch_dims), (free, row, free_dims), (contract, k, k_dims)):
                for axis, value in zip(targets, space.delinear(position, dims), strict=True):
                    index[axis] = value
            return tuple(index), ()

        return at

    def result(b: Dim, m: Dim, n: Dim) -> Index:
        return space.delinear(b, batch_dims) + space.delinear(m, m_dims) + space.delinear(n, n_dims)

    product = space.env.product
    return Contraction(
        node, product(batch_dims), product(m_dims), product(n_dims), product(k_dims),
        Operand(left, locate(len(left.dims), axes["lhs_batch"], left_free, axes["lhs_contract"], m_dims)),  # pyright: ignore[reportArgumentType]
        Operand(right, locate(len(right.dims), axes["rhs_batch"], right_free, axes["rhs_contract"], n_dims)),  # pyright: ignore[reportArgumentType]
        result, scales=node.operands[2] if len(node.operands) > 2 else None,
    )  # fmt: skip


def _pick(dims: Sequence[Dim], axes: Sequence[int]) -> tuple[Dim, ...]:
    return tuple(dims[axis] for axis in axes)


def _read_convolution(space: IndexSpace, node: Node, channels_inside: bool) -> Contraction:
    """Implicit GEMM: m = output channel of a group, n = output position, k = (input channel, kernel position)."""
    numbers = node.attrs["dimension_numbers"]
    assert isinstance(numbers, dict)
    source, kernel = node.operands
    if node.integer("batch_group_count", 1) != 1:
        raise CompilerBug(f"batch_group_count reached code generation (line {node.line})")
    groups = Dim.of(node.integer("feature_group_count", 1))
    input_spatial, kernel_spatial = _axes(numbers["input_spatial"]), _axes(numbers["kernel_spatial"])
    output_spatial = _axes(numbers["output_spatial"])
    kernel_output, kernel_input = _axis(numbers["kernel_output"]), _axis(numbers["kernel_input"])
    rank = len(input_spatial)
    strides = node.ints("window_strides") or (1,) * rank
    left_dilation, right_dilation = node.ints("lhs_dilation") or (1,) * rank, node.ints("rhs_dilation") or (1,) * rank
    padding = node.attrs.get("padding")
    low = [int(padding[axis][0]) if padding is not None else 0 for axis in range(rank)]  # pyright: ignore[reportIndexIssue, reportArgumentType]
    group_outputs = space.env.exact_div(kernel.dims[kernel_output], groups)
    assert group_outputs is not None
    image_count = source.dims[_axis(numbers["input_batch"])]
    window_dims = _pick(kernel.dims, kernel_spatial)
    inside = channels_inside and _axis(numbers["input_feature"]) == len(source.dims) - 1
    k_dims = (*window_dims, kernel.dims[kernel_input]) if inside else (kernel.dims[kernel_input], *window_dims)
    out_dims = _pick(node.dims, output_spatial)
    reversal = node.attrs.get("window_reversal")

    def position_at(b: Dim, channel: Dim, positions: Sequence[Dim]) -> Index:
        image = space.divide(b, groups)
        group = b - image * groups if groups != ONE else ZERO
        index = [ZERO] * len(source.dims)
        index[_axis(numbers["input_batch"])] = image
        index[_axis(numbers["input_feature"])] = group * kernel.dims[kernel_input] + channel
        for place, position in zip(input_spatial, positions, strict=True):
            index[place] = position
        return tuple(index)

    def taken(k: Dim) -> tuple[Dim, Sequence[Dim]]:
        """The channel and the window position."""
        places = space.delinear(k, k_dims)
        return (places[-1], places[:-1]) if inside else (places[0], places[1:])

    def kernel_at(b: Dim, m: Dim, k: Dim) -> tuple[Index, Sequence[Bound]]:
        channel, window = taken(k)
        index = [ZERO] * len(kernel.dims)
        group = b - space.divide(b, groups) * groups if groups != ONE else ZERO
        index[kernel_output], index[kernel_input] = group * group_outputs + m, channel
        for number, (axis, position) in enumerate(zip(kernel_spatial, window, strict=True)):
            flipped = isinstance(reversal, tuple) and bool(reversal[number])
            index[axis] = kernel.dims[axis] - 1 - position if flipped else position
        return tuple(index), ()

    def source_at(b: Dim, n: Dim, k: Dim) -> tuple[Index, Sequence[Bound]]:
        channel, window = taken(k)
        bounds: list[Bound] = []
        positions: list[Dim] = []
        for axis, (place, out, position) in enumerate(zip(input_spatial, space.delinear(n, out_dims), window, strict=True)):
            at = out * strides[axis] + position * right_dilation[axis] - low[axis]
            step = left_dilation[axis]
            bounds.append((at, ZERO, (source.dims[place] - 1) * step + 1))
            if step != 1:
                bounds.append(((at % step) * -1, ZERO, ONE))
            positions.append(at if step == 1 else at // step)
        return position_at(b, channel, positions), bounds

    def result(b: Dim, m: Dim, n: Dim) -> Index:
        image = space.divide(b, groups)
        group = b - image * groups if groups != ONE else ZERO
        index = [ZERO] * len(node.dims)
        index[_axis(numbers["output_batch"])] = image
        index[_axis(numbers["output_feature"])] = group * group_outputs + m
        for place, position in zip(output_spatial, space.delinear(n, out_dims), strict=True):
            index[place] = position
        return tuple(index)

    windows: Windows | None = None
    if all(window.is_const for window in window_dims) and all(step == 1 for step in left_dilation):
        axes = tuple(
            WindowAxis(source.dims[place], out, window.const, strides[axis], right_dilation[axis], low[axis])
            for axis, (place, out, window) in enumerate(zip(input_spatial, out_dims, window_dims, strict=True))
        )
        windows = Windows(axes, kernel.dims[kernel_input], position_at)
    product = space.env.product
    return Contraction(
        node, image_count * groups, group_outputs, product(out_dims), product(k_dims),
        Operand(kernel, kernel_at), Operand(source, source_at), result, windows,
    )  # fmt: skip


def _axes(value: object) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return value


def _axis(value: object) -> int:
    assert isinstance(value, int)
    return value


def declare(space: IndexSpace, contraction: Contraction) -> None:
    """Sets the extents of the loop variables gm, gn, gb and, for each k of a group, GROUP to those of `contraction`."""
    c = contraction
    for name, extent in (("gm", c.m), ("gn", c.n), ("gb", c.batch), *((name, c.k) for name in GROUP)):
        space.variable(name, extent)


def trace_views(space: IndexSpace, node: Node, index: Index, leaves: frozenset[Node] = frozenset()) -> tuple[Node, Dim] | None:
    """(input node, flat offset) when only views lie between an input, or one of `leaves`, and `node`."""
    while node.op != "input" and node not in leaves:
        viewed = view_index(space, node, index)
        if viewed is None:
            return None
        node, index = node.operands[0], viewed
    return node, space.linear(index, node.dims)


def forward_indices(space: IndexSpace, body: Body, start: Node, index: Index) -> dict[Node, Index]:
    """For every value computed from `start` without a reduction: the index at which it reads `start` at `index`."""
    found: dict[Node, Index] = {start: index}
    for node in body.nodes:
        if node in found:
            continue
        source = next((operand for operand in node.operands if operand in found), None)
        if source is None:
            continue
        moved = _forward(space, node, source, found[source])
        if moved is not None:
            found[node] = moved
    return found


def _forward(space: IndexSpace, node: Node, source: Node, index: Index) -> Index | None:
    if node.op == "disc.reshape":
        return space.reshape(index, source.dims, node.dims)
    if node.op == "stablehlo.transpose":
        return tuple(index[axis] for axis in node.ints("permutation"))
    return index if node.op in ELEMENTWISE and node.dims == source.dims else None
