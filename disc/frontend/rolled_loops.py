"""Loops that Python has unrolled into a graph become `scan` again (open in Dali, paper 004, footnote 6).

for t in range(8): h = torch.tanh(h @ u + x[t])          eight times the same three nodes, one behind the other
→  %h, %all = scan(body, [%h0], [%x], [%u])               the body once, over the rows of %x
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import fx
from torch.fx.node import Argument
from torch.utils import _pytree as pytree

from disc.frontend.loop_products import Moved, read_behind, take_products
from disc.frontend.loop_rows import all_rows, call, join_rows, place_of
from disc.frontend.loop_sums import places_of, take_sums
from disc.frontend.loops_found import Carried, Local, Loop, Rows, Source, find_loop
from disc.frontend.scan_loops import SCAN, Scan, scan_loop

aten = torch.ops.aten


def roll_loops(module: fx.GraphModule) -> int:
    """Changes the graph, whose nodes have fake results in `meta["val"]`. How many loops were found, or changed."""
    found = 0
    for scan in module.graph.find_nodes(op="call_function", target=SCAN):
        loop = scan_loop(module, scan)
        if loop is not None:
            _Rescanning(module, loop, found).run()
            found += 1
    while (loop := find_loop(module.graph)) is not None:
        _Rolling(module, loop, found).run()
        found += 1
    if found:
        join_rows(module.graph)
        module.graph.eliminate_dead_code()
        module.recompile()
    return found


class _Rewriting(ABC):
    """Puts a `scan` in the place of a loop, and what it gives in the places of that's results."""

    def __init__(self, module: fx.GraphModule, loop: Loop, number: int, otherwise: Callable[[], Rows]) -> None:
        """otherwise: what the loop goes over if it reads no rows."""
        self.module, self.graph, self.loop = module, module.graph, loop
        self.name = f"rolled_{number}"
        self.sums = take_sums(loop)
        summed = places_of(self.sums)
        self.before, self.behind = take_products(loop, summed)
        self.carried = loop.carried()
        made = [source for each in self.before if loop.uses(source := Local(each.place))]
        self.rows = [*cast("list[Rows]", loop.of_kind(Rows)), *made] or [otherwise()]
        self.outer = cast("list[fx.Node]", loop.of_kind(fx.Node))
        final, kept = {each.place for each in self.carried}, summed | read_behind(self.behind)
        self.stacked = [place for place, _ in loop.body if place in kept or loop.is_read_outside(place, before_last=place in final)]
        self._every: dict[Source, fx.Node] = {}  # what a source is in all iterations

    def _scan(self) -> list[fx.Node]:
        """The nodes of its results: what is carried, then what is stacked."""
        self._move(self.before)
        results = self._scanned() if self.carried or self.stacked else []
        self._every |= {Local(place): node for place, node in zip(self.stacked, results[len(self.carried) :], strict=True)}
        self._move(self.behind)
        return results

    def _move(self, products: Sequence[Moved]) -> None:
        for each in products:
            self._every[Local(each.place)] = each.in_all(self._all, partial(call, self.graph, each.node))

    def _scanned(self) -> list[fx.Node]:
        setattr(self.module, self.name, fx.GraphModule(self.module, self._body()))
        body = self.graph.get_attr(self.name)
        starts, rows = [each.start for each in self.carried], [self._all(each) for each in self.rows]
        scan = self.graph.call_function(SCAN, (body, starts, rows, tuple(self.outer)))
        steps, first = rows[0].meta["val"].shape[0], self.loop.iterations[0]
        values = [first[each.place].meta["val"] for each in self.carried]
        values += [first[place].meta["val"].new_empty((steps, *first[place].meta["val"].shape)) for place in self.stacked]
        scan.meta = {**place_of(first[-1]), "val": values}
        return [self._call(operator.getitem, scan, number) for number in range(len(values))]

    def _body(self) -> fx.Graph:
        body, values = fx.Graph(), dict[Source, fx.Node]()
        kinds: list[tuple[Source, object]] = [(each, each.start.meta["val"]) for each in self.carried]
        kinds += [(each, self._row(each)) for each in self.rows]
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

    def _row(self, source: Rows | Local) -> object:
        """What a row of the first iteration is."""
        if isinstance(source, Local):
            return self.loop.iterations[0][source.place].meta["val"]
        return source.source.meta["val"].select(source.dim, 0)

    def _operands(self, place: int, node: fx.Node, values: Mapping[Source, fx.Node]) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        given = [values[self.loop.sources[place, number]] if isinstance(leaf, fx.Node) else leaf for number, leaf in enumerate(leaves)]
        return pytree.tree_unflatten(given, spec)

    def _all(self, source: Source) -> fx.Node:
        """What a source is in all iterations, along a first dim; of a local value, once the loop is there."""
        if source not in self._every:
            self._every[source] = self._all_rows(source) if isinstance(source, Rows) else self._all_before(source)
        return self._every[source]

    @abstractmethod
    def _all_rows(self, rows: Rows) -> fx.Node: ...

    def _all_before(self, carried: Source) -> fx.Node:
        assert isinstance(carried, Carried)
        start = self._call(aten.unsqueeze.default, carried.start, 0)
        both = self._call(aten.cat.default, [start, self._all(Local(carried.place))])
        return self._call(aten.slice.Tensor, both, 0, 0, -1)

    def _finals(self, results: Sequence[fx.Node]) -> dict[int, fx.Node]:
        """What places have after the last iteration, as far as it is read."""
        last = {each.place: node for each, node in zip(self.carried, results, strict=False)}
        totals: dict[int, fx.Node] = {}
        return last | {each.place: each.total(totals, self._all, self._call) for each in self.sums}

    def _call(self, target: object, *args: object) -> fx.Node:
        """A node, and what it gives for fake operands."""
        return call(self.graph, self.loop.iterations[0][-1], target, *args)


class _Rolling(_Rewriting):
    """Of nodes that Python's loop has left in a graph."""

    def __init__(self, module: fx.GraphModule, loop: Loop, number: int) -> None:
        super().__init__(module, loop, number, self._zeros)

    def _zeros(self) -> Rows:
        with self.graph.inserting_before(self.loop.iterations[0][0]):
            return Rows(self._call(aten.full.default, [len(self.loop.iterations)], 0.0), 0, 0, 1)

    def _all_rows(self, rows: Rows) -> fx.Node:
        return all_rows(rows, len(self.loop.iterations), self._call)

    def run(self) -> None:
        with self.graph.inserting_before(self.loop.iterations[-1][-1].next):
            self._replace(self._finals(self._scan()))
        for each in reversed(self.loop.iterations):
            for node in reversed(each):
                if not node.users:
                    self.graph.erase_node(node)

    def _replace(self, last: Mapping[int, fx.Node]) -> None:
        """What is used of the iterations' values outside comes from the scan."""
        for place, nodes in enumerate(zip(*self.loop.iterations, strict=True)):
            for step, node in enumerate(nodes):
                readers = [] if place in self.loop.cut or node is self.loop.fixed.get(place) else self.loop.readers(node)
                if not readers:
                    continue
                final = last.get(place) if step == len(nodes) - 1 and place not in self.stacked else None
                value = self.loop.fixed.get(place) or final or self._call(aten.select.int, self._all(Local(place)), 0, step)
                for reader in readers:
                    reader.replace_input_with(node, value)


class _Rescanning(_Rewriting):
    """Of a `scan`, without what it only adds up, or nobody reads."""

    def __init__(self, module: fx.GraphModule, scan: Scan, number: int) -> None:
        super().__init__(module, scan, number, lambda: scan.first)
        self.scan = scan

    def _all_rows(self, rows: Rows) -> fx.Node:
        return rows.source

    def run(self) -> None:
        with self.graph.inserting_before(self.scan.call):
            last = self._finals(self._scan())
            found = [(readers, last[place]) for place, readers in self.scan.finals.items()]
            found += [(readers, self._all(Local(place))) for place, readers in self.scan.stacks.items()]
        for readers, value in found:
            for each in readers:
                each.replace_all_uses_with(value)
        for each in (*self.scan.call.users, self.scan.call):
            self.graph.erase_node(each)
