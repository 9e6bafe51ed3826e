"""Loops that Python has unrolled into a graph become `scan` again (open in Dali, paper 004, footnote 6).

for t in range(8): h = torch.tanh(h @ u + x[t])          eight times the same three nodes, one behind the other
→  %h, %all = scan(body, [%h0], [%x], [%u])               the body once, over the rows of %x
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import fx
from torch.fx.node import Argument
from torch.utils import _pytree as pytree

from disc.frontend.loop_rows import all_rows, call, join_rows, place_of
from disc.frontend.loop_sums import places_of, take_sums
from disc.frontend.loops_found import Carried, Local, Loop, Rows, Source, find_loop

aten = torch.ops.aten


def roll_loops(module: fx.GraphModule) -> int:
    """Changes the graph, whose nodes have fake results in `meta["val"]`. How many loops were found."""
    found = 0
    while (loop := find_loop(module.graph)) is not None:
        _Rewriting(module, loop, found).run()
        found += 1
    if found:
        join_rows(module.graph)
        module.graph.eliminate_dead_code()
        module.recompile()
    return found


class _Rewriting:
    """Puts a `scan` behind the nodes of a loop, and what it gives in their places."""

    def __init__(self, module: fx.GraphModule, loop: Loop, number: int) -> None:
        self.module, self.graph, self.loop = module, module.graph, loop
        self.name = f"rolled_{number}"
        self.sums = take_sums(loop)
        self.carried = cast("list[Carried]", loop.of_kind(Carried))
        self.rows = cast("list[Rows]", loop.of_kind(Rows)) or [self._zeros()]
        self.outer = cast("list[fx.Node]", loop.of_kind(fx.Node))
        final = {each.place for each in self.carried}
        summed = places_of(self.sums)
        self.stacked = [place for place, _ in loop.body if place in summed or loop.is_read_outside(place, before_last=place in final)]
        self._every: dict[Source, fx.Node] = {}  # what a source is in all iterations

    def _zeros(self) -> Rows:
        """For a loop over nothing: a scan has something to go over."""
        with self.graph.inserting_before(self.loop.iterations[0][0]):
            return Rows(self._call(aten.full.default, [len(self.loop.iterations)], 0.0), 0, 0, 1)

    def run(self) -> None:
        with self.graph.inserting_before(self.loop.iterations[-1][-1].next):
            results = self._scan()
            self._replace(results)
        for each in reversed(self.loop.iterations):
            for node in reversed(each):
                if not node.users:
                    self.graph.erase_node(node)

    def _scan(self) -> list[fx.Node]:
        """The nodes of its results: what is carried, then what is stacked."""
        setattr(self.module, self.name, fx.GraphModule(self.module, self._body()))
        body = self.graph.get_attr(self.name)
        starts, rows = [each.start for each in self.carried], [self._all(each) for each in self.rows]
        scan = self.graph.call_function(torch.ops.higher_order.scan, (body, starts, rows, tuple(self.outer)))
        steps, first = len(self.loop.iterations), self.loop.iterations[0]
        values = [first[each.place].meta["val"] for each in self.carried]
        values += [first[place].meta["val"].new_empty((steps, *first[place].meta["val"].shape)) for place in self.stacked]
        scan.meta = {**place_of(first[-1]), "val": values}
        results = [self._call(operator.getitem, scan, number) for number in range(len(values))]
        self._every |= {Local(place): node for place, node in zip(self.stacked, results[len(self.carried) :], strict=True)}
        return results

    def _body(self) -> fx.Graph:
        body, values = fx.Graph(), dict[Source, fx.Node]()
        kinds: list[tuple[Source, object]] = [(each, each.start.meta["val"]) for each in self.carried]
        kinds += [(each, each.source.meta["val"].select(each.dim, 0)) for each in self.rows]
        kinds += [(each, each.meta["val"]) for each in self.outer]
        for number, (source, value) in enumerate(kinds):
            values[source] = body.placeholder(f"arg{number}")
            values[source].meta["val"] = value
        for place, node in self.loop.body:
            copy = body.create_node("call_function", node.target, *self._operands(place, node, values), name=node.name)
            copy.meta = dict(node.meta)
            values[Local(place)] = copy
        returned = [values[Local(each.place)] for each in self.carried]
        for place in self.stacked:  # PyTorch forbids results of a body to share memory
            returned.append(body.call_function(aten.clone.default, (values[Local(place)],)))
            returned[-1].meta = dict(values[Local(place)].meta)
        body.output(tuple(returned))
        body.eliminate_dead_code()
        return body

    def _operands(self, place: int, node: fx.Node, values: Mapping[Source, fx.Node]) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        given = [values[self.loop.sources[place, number]] if isinstance(leaf, fx.Node) else leaf for number, leaf in enumerate(leaves)]
        return pytree.tree_unflatten(given, spec)

    def _all(self, source: Source) -> fx.Node:
        """What a source is in all iterations, along a first dim; of a local value, once the loop is there."""
        if source not in self._every:
            rows = isinstance(source, Rows)
            self._every[source] = all_rows(source, len(self.loop.iterations), self._call) if rows else self._all_before(source)
        return self._every[source]

    def _all_before(self, carried: Source) -> fx.Node:
        assert isinstance(carried, Carried)
        start = self._call(aten.unsqueeze.default, carried.start, 0)
        both = self._call(aten.cat.default, [start, self._all(Local(carried.place))])
        return self._call(aten.slice.Tensor, both, 0, 0, len(self.loop.iterations))

    def _replace(self, results: Sequence[fx.Node]) -> None:
        """What is used of the iterations' values outside comes from the scan."""
        last = {each.place: node for each, node in zip(self.carried, results, strict=False)}
        totals: dict[int, fx.Node] = {}
        last |= {each.place: each.total(totals, self._all, self._call) for each in self.sums}
        for place, nodes in enumerate(zip(*self.loop.iterations, strict=True)):
            for step, node in enumerate(nodes):
                readers = [] if place in self.loop.cut or node is self.loop.fixed.get(place) else self.loop.readers(node)
                if not readers:
                    continue
                final = last.get(place) if step == len(nodes) - 1 and place not in self.stacked else None
                value = self.loop.fixed.get(place) or final or self._call(aten.select.int, self._all(Local(place)), 0, step)
                for reader in readers:
                    reader.replace_input_with(node, value)

    def _call(self, target: object, *args: object) -> fx.Node:
        """A node, and what it gives for fake operands."""
        return call(self.graph, self.loop.iterations[0][-1], target, *args)
