"""Which products the GPU's own library can compute (`ral_gpu_product` of ral.h): factors, bias and result lie in memory, as matrices by
strides, and nothing but a bias follows."""

from __future__ import annotations

from dataclasses import dataclass

from disc.codegen.plan.contraction import Contraction, Operand, declare, forward_indices, trace_views
from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.index import ONE, ZERO, Index, IndexSpace, split_linear, view_index
from disc.ir.graph import Node
from disc.shapes import Dim, Truth

ELEMENTS = ("f32", "f16", "bf16")  # that it multiplies, with sums in f32
VIEWS = ("disc.reshape", "stablehlo.transpose")  # that `forward_indices` follows
BATCH, ROW, COLUMN, DEPTH = (Dim.symbol(name) for name in ("gb", "gm", "gn", "gk"))


@dataclass(frozen=True)
class Matrices:
    """Where the matrices of a factor or of the result are. place: of the parameter. element: as they lie there. apart: whether values of k
    lie apart, and rows, or columns of the right factor, next to each other. ahead: elements to the next of those that lie apart; step: to
    the next matrix of the batch."""

    place: int
    element: str
    apart: bool
    ahead: Dim
    step: Dim


@dataclass(frozen=True)
class LibraryProduct:
    """bias: the place of its parameter, -1 = none. tf32: whether factors of f32 may be rounded to it."""

    left: Matrices
    right: Matrices
    result: Matrices
    bias: int
    tf32: bool
    sizes: tuple[Dim, Dim, Dim, Dim]  # m, n, batch, k

    @property
    def numbers(self) -> tuple[Dim, ...]:
        """What the runtime gets behind m, n and batch."""
        sides = (self.left, self.right, self.result)
        return (self.sizes[3], *(each.ahead for each in sides), *(each.step for each in sides))


def library_product(fusion: Fusion, space: IndexSpace, c: Contraction, tf32: bool) -> LibraryProduct | None:
    """The product of a fusion, whose loops become declared; None where the library has none that is the same."""
    declare(space, c)
    body = fusion.body
    elements = {c.left.node.element, c.right.node.element}
    if len(elements) != 1 or not elements <= set(ELEMENTS) or len(body.yields) != 1:
        return None
    left, right = factors_in_memory(fusion, space, c)
    at = c.result(BATCH, ROW, COLUMN)
    indices = forward_indices(space, body, c.node, at)
    (root,) = body.yields
    bias = _bias(fusion, space, c, indices)
    if left is None or right is None or bias is None or root.element not in (left.element, "f32"):
        return None
    steps = _steps(space, space.linear(indices[root], root.dims), (BATCH, ROW, COLUMN))
    if steps is None or (c.n != ONE and steps[2] != ONE):
        return None
    result = _matrices(space, len(body.arguments), root.element, (steps[1], c.n, c.m), steps[0], False)
    return result and LibraryProduct(left, right, result, bias, tf32 and left.element == "f32", (c.m, c.n, c.batch, c.k))


def factors_in_memory(fusion: Fusion, space: IndexSpace, c: Contraction) -> tuple[Matrices | None, Matrices | None]:
    """Where the factors of a product are, whose loops are declared; None for one that does not lie in memory as matrices."""
    return _factor(fusion, space, c.left, ROW, (c.m, c.k)), _factor(fusion, space, c.right, COLUMN, (c.n, c.k))


def _factor(fusion: Fusion, space: IndexSpace, operand: Operand, free: Dim, sizes: tuple[Dim, Dim]) -> Matrices | None:
    """sizes: rows or columns, and values of k."""
    index, bounds = operand.locate(BATCH, free, DEPTH)
    found = trace_views(space, operand.node, index)
    if bounds or found is None or found[0].element != operand.node.element:
        return None
    steps = _steps(space, found[1], (BATCH, free, DEPTH))
    if steps is None:
        return None
    place = fusion.body.arguments.index(found[0])
    if steps[2] == ONE or sizes[1] == ONE:
        return _matrices(space, place, found[0].element, (steps[1], sizes[1], sizes[0]), steps[0], False)
    if steps[1] == ONE or sizes[0] == ONE:
        return _matrices(space, place, found[0].element, (steps[2], sizes[0], sizes[1]), steps[0], True)
    return None


def _matrices(space: IndexSpace, place: int, element: str, lines: tuple[Dim, Dim, Dim], step: Dim, apart: bool) -> Matrices | None:
    """lines: elements from one to the next, elements of a line, how many there are. None where they may overlap."""
    ahead, length, count = lines
    if count == ONE:
        ahead = length
    return Matrices(place, element, apart, ahead, step) if space.env.le(length, ahead) is Truth.YES else None


def _steps(space: IndexSpace, offset: Dim, loops: tuple[Dim, ...]) -> list[Dim] | None:
    """What an offset goes on by along each loop; None where it is no sum of these. 0 where a loop has one iteration."""
    steps: list[Dim] = []
    for loop in loops:
        form = split_linear(offset, loop.symbols()[0])
        if form is None:
            return None
        step, offset = form
        if any(name in space.extents for name in step.symbols()):
            return None
        steps.append(step)
    return steps if offset == ZERO else None


def _bias(fusion: Fusion, space: IndexSpace, c: Contraction, indices: dict[Node, Index]) -> int | None:
    """The place of what is added to every row, -1 where nothing is; None where something else is done to the product. The sum may be made
    in f32, of what is narrower before and behind it: the library rounds once where that rounds twice."""
    (node,), bias = fusion.body.yields, -1
    element = node.element
    while node is not c.node:
        if node not in indices:
            return None
        converted = ("f32", element) if bias < 0 else (element, "f32")
        if node.op in VIEWS or (node.op == "stablehlo.convert" and (node.operands[0].element, node.element) == converted):
            (node,) = node.operands
        elif node.op == "stablehlo.add" and bias < 0 and node.element in (element, "f32"):
            product, other = node.operands if node.operands[0] in indices else reversed(node.operands)
            found = None if other in indices else _stored(space, other, indices[node])
            if found is None or found[0].element != element or found[1] != COLUMN:
                return None
            node, bias = product, fusion.body.arguments.index(found[0])
        else:
            return None
    return bias if c.node.element in (element, "f32") else None


def _stored(space: IndexSpace, node: Node, index: Index) -> tuple[Node, Dim] | None:
    """(input, flat offset) of what is read through views, and made wider."""
    while node.op != "input":
        if node.op == "stablehlo.convert" and node.element == "f32" and node.operands[0].element in ELEMENTS:
            (node,) = node.operands
            continue
        viewed = view_index(space, node, index)
        if viewed is None:
            return None
        node, index = node.operands[0], viewed
    return node, space.linear(index, node.dims)
