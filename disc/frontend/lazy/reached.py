"""Which inputs gradients of values go to. A program with a backward pass has gradients of all inputs, zeros where PyTorch has none."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence, Set

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, get_gradient_edge

Edge = tuple[Node | None, int]


def by_edges(inputs: Sequence[torch.Tensor], written: Set[int] = frozenset()) -> dict[Edge, int]:
    """The numbers of inputs that require gradients, by where these go. Without those that a trace has written, if they are values: they are
    where gradients of what it has written to them go by now."""
    edges = {number: get_gradient_edge(each) for number, each in enumerate(inputs)
             if each.requires_grad and (each.is_leaf or number not in written)}  # fmt: skip
    return {(edge.node, edge.output_nr): number for number, edge in edges.items()}


def reached(value: torch.Tensor, inputs: Sequence[torch.Tensor], written: Set[int]) -> frozenset[int]:
    """The numbers of the inputs that gradients of a value that PyTorch has computed go to. Those that are written, unless they are
    leaves, may all be such."""
    known, seen, pending = by_edges(inputs, written), set[Node](), [value.grad_fn]
    found = {number for number in written if inputs[number].requires_grad and not inputs[number].is_leaf}
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for edge in node.next_functions:
            number = known.get(edge)
            if number is None:
                pending.append(edge[0])
            else:
                found.add(number)
    return frozenset(found)


def passed(values: Mapping[int, torch.Tensor]) -> set[int]:
    """The numbers of those values, which PyTorch has computed, that gradients of others of them go through."""
    by_node, found, seen = {value.grad_fn: number for number, value in values.items()}, set[int](), set[Node]()
    pending = [edge[0] for value in values.values() if value.grad_fn is not None for edge in value.grad_fn.next_functions]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in by_node:
            found.add(by_node[node])
        pending += [edge[0] for edge in node.next_functions]
    return found


def ways(values: Mapping[int, torch.Tensor]) -> dict[int, frozenset[int]]:
    """For each of those values, which PyTorch has computed, those of them that its gradients go through: itself too."""
    numbers: dict[Edge, int] = {(value.grad_fn, value.output_nr): number for number, value in values.items()}
    found = dict[int, frozenset[int]]()
    for number, value in values.items():
        mine, seen, pending = {number}, set[Node](), [value.grad_fn]
        while pending:
            node = pending.pop()
            if node is not None and node not in seen:
                seen.add(node)
                mine |= {numbers[edge] for edge in node.next_functions if edge in numbers}
                pending += [edge[0] for edge in node.next_functions]
        found[number] = frozenset(mine)
    return found


def saved_by(node: Node) -> bool | None:
    """Whether autograd has saved tensors for a node; None if a backward pass has freed them."""
    raw = [name for name in dir(node) if name.startswith("_raw_saved_")]
    names = (
        ["saved_tensors"] if "_raw_saved_tensors" in raw else [name.replace("_raw", "", 1) for name in raw]
    )  # in Python, or of PyTorch's own
    try:
        saved = [getattr(node, name) for name in names]
    except RuntimeError as error:
        return None if "second time" in str(error) else True  # or it has been written since
    return any(isinstance(each, torch.Tensor) or (isinstance(each, tuple) and len(each) > 0) for each in saved)


class Saved:
    """Which nodes PyTorch has saved tensors for, of those that gradients of values which it has computed go through until they come to
    inputs."""

    def __init__(self, inputs: Sequence[torch.Tensor], written: Set[int]) -> None:
        self._inputs, self._known = by_edges(inputs, written), dict[Node, bool]()

    def of(self, value: torch.Tensor) -> set[Node]:
        """What a pass through the value frees, and needs."""
        seen, pending = set[Node](), [value.grad_fn]
        while pending:
            node = pending.pop()
            if node is not None and node not in seen:
                seen.add(node)
                if node not in self._known:
                    self._known[node] = bool(saved_by(node))
                pending += [edge[0] for edge in node.next_functions if edge not in self._inputs]
        return {node for node in seen if self._known[node]}


def apart_from_each_other(values: Mapping[int, torch.Tensor], saved: Saved) -> tuple[int, int] | None:
    """The numbers of two of those values of which each can have a backward pass, one after the other: a pass through one frees nothing
    that one through the other needs, as where they have no part in common, or none that saves anything."""
    found = list[tuple[int, Node, set[Node]]]()
    for number, value in sorted(values.items()):
        if value.grad_fn is None:
            continue
        needed = saved.of(value)
        other = next((before for before, node, its in found if node is not value.grad_fn and not its & needed), None)
        if other is not None:
            return other, number
        found.append((number, value.grad_fn, needed))
    return None


def pass_again(results: Iterable[torch.Tensor]) -> None:
    """Has the node of a program that has saved nothing be passed again, as PyTorch's own nodes are that save nothing: those of Python
    refuse to tell that behind their first pass."""
    for node in {each.grad_fn for each in results}:
        if isinstance(node, BackwardCFunction) and not node.saved_tensors:
            type(node).saved_tensors = _NOTHING  # pyright: ignore[reportAttributeAccessIssue]


_NOTHING = property(lambda node: ())


def leave_others(results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], inputs_reached: Mapping[int, frozenset[int]]) -> None:
    """Has a program's backward pass give no gradients of inputs that none of the results is reached from whose gradients it takes.
    inputs_reached: by the numbers of the results. Results that are views of inputs have gradients of PyTorch's own."""
    known, by_output, nodes = by_edges(inputs), dict[int, frozenset[int]](), set[Node]()
    for number, found in inputs_reached.items():
        node, place = _made_by(results[number], known)
        if node is not None:
            nodes.add(node)
            by_output[place] = by_output.get(place, frozenset()) | found
    if len(nodes) != 1:
        return
    (node,) = nodes
    numbers = [known.get(edge) for edge in node.next_functions]

    def gradients(found: tuple[torch.Tensor | None, ...], given: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
        taken = {number for place, each in enumerate(given) if each is not None for number in by_output.get(place, numbers)}
        return tuple(each if number is None or number in taken else None for number, each in zip(numbers, found, strict=True))

    node.register_hook(gradients)  # pyright: ignore[reportArgumentType]


def _made_by(result: torch.Tensor, inputs: Container[Edge]) -> Edge:
    """The program that has made a result, or what the result is a view of, and as which of its outputs; no node where an input is that."""
    edge: Edge = (result.grad_fn, result.output_nr)
    while edge[0] is not None and edge not in inputs and not isinstance(edge[0], BackwardCFunction):
        edge = next(iter(edge[0].next_functions), (None, 0))
    return (None, 0) if edge in inputs else edge
