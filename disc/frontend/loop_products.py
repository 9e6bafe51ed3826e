"""Products that no step waits for leave a loop: each is one product over the rows of all steps.

    for t: h = tanh(x[t] @ w + h @ u)        →        y = x @ w; for t: h = tanh(y[t] + h @ u)
    for t: h = tanh(h @ u); z[t] = h @ w     →        for t: h = tanh(h @ u), all of which are kept; z = all @ w

Before the loop goes what reads rows and what is the same in every step alone, behind it what nothing in the loop reads: products of
inputs, and gradients of rows. With a product goes what it needs, or what is made of it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from disc.frontend.loops_found import Carried, Local, Loop, Source
from disc.frontend.output_views import is_view

aten = torch.ops.aten
PRODUCTS: Mapping[object, int] = {aten.mm.default: 0, aten.addmm.default: 1, aten.convolution.default: 0}  # the operand with rows
RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
ANY_LAYOUT = (None, torch.preserve_format, torch.contiguous_format)
WIDEST = 4  # so many times its result is kept of all steps at most for a product behind a loop, that would not be kept otherwise
Call = Callable[..., fx.Node]
Every = Callable[[Source], fx.Node]  # the values of a source in all iterations, stacked
Form = Callable[[list[Any], dict[str, Any], Call], fx.Node]  # of arguments, where what changes from step to step is stacked


@dataclass(frozen=True)
class Moved:
    """A place that has left a loop. sources: of its operands by their numbers."""

    place: int
    node: fx.Node
    sources: Mapping[int, Source]
    form: Form

    def in_all(self, every: Every, call: Call) -> fx.Node:
        leaves, spec = pytree.tree_flatten((self.node.args, self.node.kwargs))
        for number, source in self.sources.items():
            leaves[number] = source if isinstance(source, fx.Node) else every(source)
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        found = self.form(list(args), kwargs, call)
        value, one = found.meta["val"], self.node.meta["val"]
        assert value.dim() == one.dim() + 1 and value.dtype == one.dtype
        return found


def take_products(loop: Loop, kept: Set[int]) -> tuple[list[Moved], list[Moved]]:
    """What then leaves the loop, to be computed before it and behind it, in that order. kept: places whose values of all iterations are
    read in any case."""
    carried = {each.place for each in loop.carried()}
    forms = {place: form for place, _ in loop.body if place not in carried and (form := _form(loop, place)) is not None}
    before = _before(loop, forms.keys(), kept)
    behind = _behind(loop, forms.keys() - before, kept)
    found = [
        [Moved(place, loop.iterations[0][place], _sources(loop, place), forms[place]) for place in sorted(places)]
        for places in (before, behind)
    ]
    loop.leave_out(before | behind)
    return found[0], found[1]


def read_behind(behind: Sequence[Moved]) -> set[int]:
    """Places whose values of all iterations are read by what is computed behind a loop."""
    return {source.place for each in behind for source in each.sources.values() if isinstance(source, Local | Carried)}


def _sources(loop: Loop, place: int) -> dict[int, Source]:
    return {number: source for (mine, number), source in loop.sources.items() if mine == place}


def _locals(loop: Loop, place: int) -> set[int]:
    return {source.place for source in _sources(loop, place).values() if isinstance(source, Local)}


def _is_product(loop: Loop, place: int) -> bool:
    return loop.iterations[0][place].target in PRODUCTS


def _before(loop: Loop, able: Set[int], kept: Set[int]) -> set[int]:
    """Products of what no iteration has made, what they need, and what is made of one alone."""
    free, found = set[int](), set[int]()
    for place in sorted(able):
        if _locals(loop, place) <= free and not any(isinstance(each, Carried) for each in _sources(loop, place).values()):
            free.add(place)
    pending = [place for place in free if _is_product(loop, place)]
    while pending:
        place = pending.pop()
        found.add(place)
        pending += _locals(loop, place)
    for place in sorted(free - found):
        mine = _locals(loop, place)
        alone = (each for each in mine if loop.uses(Local(each)) == 1 and each not in kept and not loop.is_read_outside(each))
        if mine <= found and any(_shape(loop, each) == _shape(loop, place) for each in alone):
            found.add(place)
    return found


def _behind(loop: Loop, able: Set[int], kept: Set[int]) -> set[int]:
    """Products that no iteration reads, what is made of them, and views of which they are made."""
    readers: dict[int, set[int]] = {}
    for (place, _), source in loop.sources.items():
        if isinstance(source, Local):
            readers.setdefault(source.place, set()).add(place)
    last, found = set[int](), set[int]()
    for place in sorted(able, reverse=True):
        if readers.get(place, set()) <= last:
            last.add(place)
    for place in sorted(last):
        if not found.isdisjoint(_locals(loop, place)) or (_is_product(loop, place) and _may_keep(loop, place, kept)):
            found.add(place)
    for place in sorted(last - found, reverse=True):
        if is_view(loop.iterations[0][place]) and readers.get(place, set()) <= found and not loop.is_read_outside(place):
            found.add(place)
    return found


def _may_keep(loop: Loop, place: int, kept: Set[int]) -> bool:
    """Whether the values of all iterations of which a product is made are there, or do not take much more memory than it."""
    node = loop.iterations[0][place]
    number = PRODUCTS[node.target]
    source = loop.sources[place, number]
    if isinstance(source, Local | Carried) and (source.place in kept or loop.is_read_outside(source.place)):
        return True
    sizes = [each.meta["val"].shape[1:] for each in (cast("fx.Node", node.args[number]), node)]
    if not all(isinstance(size, int) for shape in sizes for size in shape):
        return False
    return math.prod(sizes[0]) <= WIDEST * math.prod(sizes[1])


def _shape(loop: Loop, place: int) -> tuple[str, ...]:
    return tuple(map(str, loop.iterations[0][place].meta["val"].shape))


# --- forms -----------------------------------------------------------------------------------------------------------------------


def _form(loop: Loop, place: int) -> Form | None:
    """How a value is computed for all iterations at once; None where it is not known."""
    node, sources = loop.iterations[0][place], _sources(loop, place)
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    stepped = {number for number, source in sources.items() if not isinstance(source, fx.Node)}
    values = [node.meta["val"], *(leaves[number].meta["val"] for number in stepped)]
    if not stepped or not all(isinstance(each, Tensor) for each in values):
        return None
    if node.target in PRODUCTS:
        return _of_product(node, stepped)
    if node.target is aten.embedding.default:
        return partial(_plain, node) if stepped == {1} else None
    if node.target is aten.cat.default:
        operands = [each for each in leaves if isinstance(each, fx.Node)]
        alike = len(stepped) == len(operands) and {each.meta["val"].dim() for each in operands} == {values[0].dim()}
        return partial(_concatenation, node) if alike else None
    if node.target in (*VIEWS, *RESHAPES, aten.expand.default):
        plain = stepped == {0} and not node.kwargs and (node.target not in RESHAPES or -1 not in cast("list[object]", node.args[1]))
        return partial(_view, node) if plain else None
    return partial(_elementwise, node, frozenset(stepped)) if _is_elementwise(node, stepped) else None


def _plain(node: fx.Node, args: list[Any], kwargs: dict[str, Any], call: Call) -> fx.Node:
    return call(node.target, *args, **kwargs)


def _of_product(node: fx.Node, stepped: Set[int]) -> Form | None:
    ranks = [each.meta["val"].dim() for each in node.args if isinstance(each, fx.Node)]
    if stepped != {PRODUCTS[node.target]} or node.kwargs:
        return None
    if node.target is aten.addmm.default and ranks[0] != 1:
        return None
    return partial(_product, node)


def _product(node: fx.Node, args: list[Any], kwargs: dict[str, Any], call: Call) -> fx.Node:
    """With the rows of all iterations one behind the other."""
    number = PRODUCTS[node.target]
    steps, rows, *inner = _sizes(args[number], call)
    both = steps * rows if isinstance(steps, int) and isinstance(rows, int) else call(operator.mul, steps, rows)
    args[number] = call(aten.reshape.default, args[number], [both, *inner])
    found = call(node.target, *args)
    return call(aten.reshape.default, found, [steps, rows, *_sizes(found, call)[1:]])


def _sizes(value: fx.Node, call: Call) -> list[int | fx.Node]:
    shape = value.meta["val"].shape
    return [size if isinstance(size, int) else call(aten.sym_size.int, value, dim) for dim, size in enumerate(shape)]


def _concatenation(node: fx.Node, args: list[Any], kwargs: dict[str, Any], call: Call) -> fx.Node:
    dim = cast("int", node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0))
    return call(aten.cat.default, args[0], dim % node.meta["val"].dim() + 1)


# What a view's arguments are behind its operand, of so many dims, where that has one more in front.
VIEWS: Mapping[object, Callable[..., tuple[object, ...]]] = {
    aten.alias.default: lambda rank: (),
    aten.detach.default: lambda rank: (),
    aten.permute.default: lambda rank, dims: ([0, *(dim % rank + 1 for dim in dims)],),
    aten.transpose.int: lambda rank, one, other: (one % rank + 1, other % rank + 1),
    aten.unsqueeze.default: lambda rank, dim: (dim % (rank + 1) + 1,),
    aten.squeeze.dim: lambda rank, dim: (dim % rank + 1,),
    aten.squeeze.dims: lambda rank, dims: ([dim % rank + 1 for dim in dims],),
    aten.select.int: lambda rank, dim, number: (dim % rank + 1, number),
    aten.slice.Tensor: lambda rank, dim=0, *more: (dim % rank + 1, *more),
}


def _view(node: fx.Node, args: list[Any], kwargs: dict[str, Any], call: Call) -> fx.Node:
    value, *further = args
    if node.target in RESHAPES:
        return call(aten.reshape.default, value, [_sizes(value, call)[0], *further[0]])
    rank = value.meta["val"].dim() - 1
    if rank == node.meta["val"].dim() == 0:  # a number, of which a view may name dim 0, and which has no dims
        return value
    if node.target is aten.expand.default:
        return call(aten.expand.default, _aligned(value, len(further[0]), call), [-1, *further[0]])
    return call(node.target, value, *VIEWS[node.target](rank, *further))


def _aligned(value: fx.Node, rank: int, call: Call) -> fx.Node:
    """With as many dims behind the first one."""
    while value.meta["val"].dim() <= rank:
        value = call(aten.unsqueeze.default, value, 1)
    return value


def _is_elementwise(node: fx.Node, stepped: Set[int]) -> bool:
    op = cast("torch._ops.OpOverload", node.target)
    if not isinstance(op, torch._ops.OpOverload) or not (torch.Tag.pointwise in op.tags or op is aten._to_copy.default):
        return False
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    operands = [value for each in leaves if isinstance(each, fx.Node) and isinstance(value := each.meta["val"], Tensor)]
    # a number's dtype counts for less than a tensor's: numbers of all steps are a tensor
    ranked = all(leaves[number].meta["val"].dim() for number in stepped) or len({each.dtype for each in operands}) == 1
    return ranked and node.kwargs.get("memory_format") in ANY_LAYOUT


def _elementwise(node: fx.Node, stepped: Set[int], args: list[Any], kwargs: dict[str, Any], call: Call) -> fx.Node:
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs))
    for number in stepped:
        leaves[number] = _aligned(leaves[number], node.meta["val"].dim(), call)
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return call(node.target, *args, **kwargs)
