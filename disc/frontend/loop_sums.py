"""What a loop only adds up leaves it: the gradient of a weight, a product of every step, becomes one product over the rows of all steps.

    for t: total = total + g[t].T @ x[t]        →        total = total + g.flatten(0, 1).T @ x.flatten(0, 1)

The same where what is added is a linear function of such a product, the same one in every step: the gradients of a normed weight. A
product of bf16 that is added up in f32 is then rounded once, not in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch.utils import _pytree as pytree

from disc.frontend.loops_found import Carried, Local, Loop, Source
from disc.frontend.output_views import is_view

aten = torch.ops.aten
TURNED: Mapping[object, tuple[object, ...]] = {  # a matrix's columns as rows, with these arguments behind it
    aten.t.default: (), aten.permute.default: ([1, 0],), aten.transpose.int: (0, 1),
}  # fmt: skip
LINEAR = frozenset((aten.neg.default, aten.sum.dim_IntList, aten.sum.default, aten.mul.Scalar, aten.div.Scalar))  # in their first operand
Call = Callable[..., fx.Node]
Every = Callable[[Source], fx.Node]  # the values of a source in all iterations, stacked


@dataclass(frozen=True)
class Product:
    """left[k, m] x right[k, n], over k. turned: [m, k], [n, k] instead. sizes: m and n."""

    left: Source
    right: Source
    turned: tuple[bool, bool]
    sizes: tuple[int, int]

    @property
    def read(self) -> tuple[Source, ...]:
        return self.left, self.right

    def total(self, every: Every, call: Call) -> fx.Node:
        sides = [
            call(aten.reshape.default, call(aten.permute.default, every(each), [0, 2, 1]) if turned else every(each), [-1, size])
            for each, turned, size in zip(self.read, self.turned, self.sizes, strict=True)
        ]
        return call(aten.mm.default, call(aten.permute.default, sides[0], [1, 0]), sides[1])


@dataclass(frozen=True)
class Reduction:
    """The sum over `dims`. shape: of the result."""

    of: Source
    dims: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def read(self) -> tuple[Source, ...]:
        return (self.of,)

    def total(self, every: Every, call: Call) -> fx.Node:
        found = call(aten.sum.dim_IntList, every(self.of), [0, *(dim + 1 for dim in self.dims)])
        return call(aten.reshape.default, found, list(self.shape))


Term = Product | Reduction


@dataclass(frozen=True)
class Sum:
    """The value that `place` has after the last iteration: start + what `added` has in all of them.

    terms: by their places; linear: places of what is computed from them, up to `added`, in their order. nodes: of an iteration; sources: of
    their operands.
    """

    place: int
    start: fx.Node
    added: int
    terms: Mapping[int, Term]
    linear: Sequence[int]
    nodes: Sequence[fx.Node]
    sources: Mapping[tuple[int, int], Source]

    def total(self, known: dict[int, fx.Node], every: Every, call: Call) -> fx.Node:
        """known: sums over all iterations by their places, which grows."""
        for place, term in self.terms.items():
            if place not in known:
                known[place] = term.total(every, call)
        for place in self.linear:
            if place not in known:
                known[place] = self._computed(place, known, call)
        return call(aten.add.Tensor, self.start, known[self.added])

    def _computed(self, place: int, known: Mapping[int, fx.Node], call: Call) -> fx.Node:
        node = self.nodes[place]
        if _is_widening(node):
            source = self.sources[place, 0]
            assert isinstance(source, Local)
            return call(torch.ops.prims.convert_element_type.default, known[source.place], node.meta["val"].dtype)
        leaves, spec = pytree.tree_flatten(node.args)
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, fx.Node):
                source = self.sources[place, number]
                leaves[number] = known[source.place] if isinstance(source, Local) else source
        return call(node.target, *pytree.tree_unflatten(leaves, spec))


def take_sums(loop: Loop) -> list[Sum]:
    """The sums of a loop, which it then has no more."""
    found = [each for source in loop.carried() if (each := _sum(loop, source)) is not None]
    for each in found:
        loop.drop(each.place, places_of(found))
    return found


def places_of(sums: Sequence[Sum]) -> set[int]:
    """Whose values of all iterations the sums read."""
    read = [source for total in sums for term in total.terms.values() for source in term.read]
    return {each.place for each in read if isinstance(each, Local | Carried)}


def _sum(loop: Loop, source: Carried) -> Sum | None:
    node = loop.iterations[0][source.place]
    operands = [loop.sources.get((source.place, number)) for number in (0, 1)]
    others = [each for each in operands if each != source]
    alone = [each for each in loop.carried() if each.place == source.place] == [source]
    read = loop.uses(source) != 1 or loop.uses(Local(source.place)) or loop.is_read_outside(source.place, before_last=True)
    if not _is_plain_sum(node) or not alone or read or len(others) != 1 or not isinstance(others[0], Local):
        return None
    terms, linear = dict[int, Term](), list[int]()
    if not _linear_in_terms(loop, others[0].place, terms, linear):
        return None
    return Sum(source.place, source.start, others[0].place, terms, sorted(linear), loop.iterations[0], dict(loop.sources))


def _is_plain_sum(node: fx.Node) -> bool:
    """Whether it adds two tensors of the dtype and the shape of the result."""
    if node.target is not aten.add.Tensor or len(node.args) != 2 or node.kwargs or not all(isinstance(each, fx.Node) for each in node.args):
        return False
    values = [each.meta["val"] for each in (*node.all_input_nodes, node)]
    return len({(value.dtype, tuple(map(str, value.shape))) for value in values}) == 1


def _linear_in_terms(loop: Loop, place: int, terms: dict[int, Term], linear: list[int]) -> bool:
    """Whether a value is a linear function, the same in every iteration, of terms whose sum over all iterations is known. Collects both."""
    if place in terms or place in linear:
        return True
    product = _product(loop, place)
    if product is not None:
        terms[place] = product
        return True
    operands, found, computed = _linear_operands(loop, place), dict(terms), list(linear)
    if operands and all(_linear_in_terms(loop, each, found, computed) for each in operands):
        terms |= found
        linear[:] = [*computed, place]
        return True
    reduction = _reduction(loop, place)
    if reduction is not None:
        terms[place] = reduction
    return reduction is not None


def _linear_operands(loop: Loop, place: int) -> list[int]:
    """The places that a value is linear in, jointly; none where it is not."""
    node = loop.iterations[0][place]
    sources = [loop.sources[place, number] for number in range(len(pytree.tree_leaves(node.args))) if (place, number) in loop.sources]
    local = [each.place for each in sources if isinstance(each, Local)]
    if _is_widening(node):
        return local
    if node.kwargs:
        return []
    if (is_view(node) or node.target in LINEAR) and len(sources) == 1:
        return local
    if node.target in (aten.add.Tensor, aten.sub.Tensor) and len(node.args) == 2 and len(local) == 2:
        return local
    if node.target is aten.mul.Tensor and len(sources) == 2 and len(local) == 1 and any(isinstance(each, fx.Node) for each in sources):
        return local
    if node.target is aten.div.Tensor and isinstance(sources[0], Local) and (len(sources) == 1 or isinstance(sources[1], fx.Node)):
        return [sources[0].place]
    return []


def _is_widening(node: fx.Node) -> bool:
    """Whether it converts bf16 to f32, which has as large values. f16 has not: a sum of what it holds may be infinite in it."""
    if node.target is aten._to_copy.default:
        plain = set(node.kwargs) <= {"dtype", "layout", "device"} and node.kwargs.get("layout", torch.strided) == torch.strided
    else:
        plain = node.target is torch.ops.prims.convert_element_type.default
    if not plain:
        return False
    before, after = node.all_input_nodes[0].meta["val"], node.meta["val"]
    return before.device == after.device and (before.dtype, after.dtype) == (torch.bfloat16, torch.float32)


def _product(loop: Loop, place: int) -> Product | None:
    node = loop.iterations[0][place]
    if node.target is not aten.mm.default:
        return None
    m, n = node.meta["val"].shape
    (left, left_turned), (right, right_turned) = (_factor(loop, place, number) for number in (0, 1))
    if not isinstance(m, int) or not isinstance(n, int) or isinstance(left, fx.Node) or isinstance(right, fx.Node):
        return None
    return Product(left, right, (not left_turned, right_turned), (m, n))


def _factor(loop: Loop, place: int, number: int) -> tuple[Source, bool]:
    """An operand; where it is another matrix turned, that one."""
    source = loop.sources[place, number]
    if isinstance(source, Local):
        node = loop.iterations[0][source.place]
        if node.target in TURNED and tuple(node.args[1:]) == TURNED[node.target]:
            return loop.sources[source.place, 0], True
    return source, False


def _reduction(loop: Loop, place: int) -> Reduction | None:
    node = loop.iterations[0][place]
    source = loop.sources.get((place, 0))
    if node.target is not aten.sum.dim_IntList or source is None or isinstance(source, fx.Node):
        return None
    shape, dims, rank = tuple(node.meta["val"].shape), node.args[1], node.all_input_nodes[0].meta["val"].dim()
    if not all(isinstance(size, int) for size in shape) or not isinstance(dims, list | tuple) or not dims or node.kwargs:
        return None
    return Reduction(source, tuple(int(dim) % rank for dim in dims), shape)  # pyright: ignore[reportArgumentType]
