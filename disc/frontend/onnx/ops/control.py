"""Control flow and sequences. What is known when compiling is decided there: branches on constants and sizes, loops of a few turns."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import cast

import torch
from torch import Tensor

from disc.errors import DiscError
from disc.frontend.onnx.node import Node, Subgraph, Traced
from disc.frontend.onnx.ops.structure import axis_of
from disc.frontend.onnx.values import (
    Constant,
    Leaf,
    NodeError,
    Number,
    Result,
    Sequence,
    Sizes,
    Value,
    constant_of,
    distinct,
    numbers,
    sizes_of,
    sizes_value,
)

Rule = Callable[[Node], Result]
HIGHER = torch.ops.higher_order  # not the functions around them, which have Dynamo trace the bodies
MOST_TURNS = 32  # of a loop: each becomes nodes of its own


def _known_truth(value: Value) -> bool | None:
    """None for a value that is data."""
    known = sizes_of(value)
    if known is None and isinstance(value, Constant) and value.data.numel() == 1:
        return bool(numbers(value)[0])
    if known is None or len(known.numbers) != 1:
        return None
    return known.decided() if known.decided is not None else bool(known.numbers[0])


BRANCHES = ("then_branch", "else_branch")


class _OfSizes(RuntimeError):
    """Branches give sizes, which are to stay numbers."""


def _if(node: Node) -> Result:
    sizes = node.sizes(0)
    number = sizes.numbers[0] if sizes is not None and len(sizes.numbers) == 1 else None
    if isinstance(number, torch.SymInt):
        try:
            return _branches(node, cast(bool, number > 0))
        except _OfSizes:
            return _picked(node, number)
        except (RuntimeError, DiscError):  # results of other shapes, or a branch that cannot be traced with the example's sizes
            pass  # the example decides, and each call is checked
    known = _known_truth(node.value(0))
    if known is not None:
        return node.run(node.attr_graph(BRANCHES[not known]), ())
    return _branches(node, node.tensor(0).reshape([]))


def _branches(node: Node, condition: Tensor | bool) -> Result:
    """condition: data, or a comparison of sizes. Raises: RuntimeError where sizes choose between results of other shapes, _OfSizes."""
    found: dict[int, tuple[list[list[str]], list[Sizes | None]]] = {}
    branches = [node.traced(node.attr_graph(name)) for name in BRANCHES]
    operands, order = distinct([*branches[0].operands, *branches[1].operands])
    own = order[: len(branches[0].operands)], order[len(branches[0].operands) :]

    def taken(which: int) -> Callable[..., list[Tensor]]:
        def function(*given: Leaf) -> list[Tensor]:
            values = branches[which].call((), [given[place] for place in own[which]])
            results = [node.as_tensor(each, "a result of a branch on data").clone() for each in values]
            found[which] = [list(map(str, each.shape)) for each in results], list(map(sizes_of, values))
            (shapes, sizes), (others, other_sizes) = found[which], found.get(1 - which, found[which])
            if not isinstance(condition, Tensor) and shapes != others:
                raise RuntimeError("the branches' results differ in shape")
            if not isinstance(condition, Tensor) and len(found) == 2 and all((*sizes, *other_sizes)):
                raise _OfSizes
            return results

        return function

    return tuple(HIGHER.cond(condition, taken(0), taken(1), tuple(operands)))


def _picked(node: Node, first: Number) -> Result:
    """Of branches that give sizes. first: 1 where it is the first branch, else 0."""
    results = [list(map(sizes_of, node.run(node.attr_graph(name), ()))) for name in BRANCHES]
    return tuple(
        sizes_value(
            tuple(first * a + (1 - first) * b for a, b in zip(one.numbers, other.numbers, strict=True)), scalar=one.scalar, dtype=one.dtype
        )
        for one, other in zip(*results, strict=True)
        if one is not None and other is not None
    )


def _loop(node: Node) -> Result:
    turns = node.sizes(0) if node.has(0) else None
    count = turns.numbers[0] if turns is not None else None
    start = _known_truth(node.value(1)) if node.has(1) else True
    known = isinstance(count, int) or not node.has(0)
    unrolled = _unrolled(node, count, start) if known and start is not None else None
    return unrolled if unrolled is not None else _turning(node)


def _unrolled(node: Node, turns: int | None, going: bool) -> Result | None:
    """Each turn becomes nodes of its own; None where this cannot be, as whether it goes on depends on data, or for too many turns."""
    body, state = node.attr_graph("body"), tuple(node.inputs[2:])
    kept: list[tuple[Value, ...]] = []
    turn = 0
    while going and (turns is None or turn < turns):
        if turn == MOST_TURNS:
            return None
        number = constant_of(lambda turn=turn: torch.tensor(turn))
        condition, *results = node.run(body, (number, constant_of(lambda: torch.tensor(True)), *state))
        known = _known_truth(condition)
        if known is None:
            return None
        going, state = known, tuple(results[: len(state)])
        kept.append(tuple(results[len(state) :]))
        turn += 1
    if not kept:
        return (*state, *_no_rows(node, body, state)) if node.outputs > len(state) else state
    stacked = tuple(torch.stack([node.as_tensor(each) for each in column]) for column in zip(*kept, strict=True))
    return (*state, *stacked)


def _no_rows(node: Node, body: Subgraph, state: Items[Value]) -> list[Tensor]:
    """What a loop stacks that takes no turn: its body says of what shape."""
    number, going = constant_of(lambda: torch.tensor(0)), constant_of(lambda: torch.tensor(True))
    rows = node.run(body, (number, going, *state))[1 + len(state) :]
    return [row.new_empty([0, *row.shape]) for row in (node.as_tensor(each) for each in rows)]


def _turning(node: Node) -> Result:
    """A loop of the program, whose number of turns may depend on data. What it carries keeps its shape.

    Where it stacks results, such a loop finds the number of turns first, and a second one fills as many rows.
    """
    body = node.traced(node.attr_graph("body"))
    state = [node.as_tensor(each, "what a loop on data carries") for each in node.inputs[2:]]
    going = node.tensor(1).reshape([]) if node.has(1) else torch.ones([], dtype=torch.bool)
    limit = node.tensor(0).reshape([]) if node.has(0) else None
    if node.outputs > len(state) and node.attr_graph("body").draws:
        raise NodeError("its stacked results have as many rows as it takes turns, which random numbers may decide")
    turns, *last = _while(node, body, state, [], going, limit)
    if node.outputs <= len(state):
        return tuple(last)
    count = cast(Number, turns.item())
    torch._check(count >= 0)
    rows = body.call((torch.zeros([], dtype=torch.int64), torch.ones([], dtype=torch.bool), *state), body.operands)[1 + len(state) :]
    stacked = [torch.zeros([count, *row.shape], dtype=row.dtype) for row in (node.as_tensor(each) for each in rows)]
    return tuple(_while(node, body, state, stacked, going, limit)[1:])


def _while(
    node: Node, body: Traced, state: Items[Tensor], stacked: Items[Tensor], going: Tensor, limit: Tensor | None
) -> tuple[Tensor, ...]:
    """The number of turns, and what the loop carries after the last: its state, and what it stacks, in tensors with room for it."""
    carried_state = 2 + len(state)
    carried = (torch.zeros([], dtype=torch.int64), going, *state, *stacked)

    def goes_on(*given: Tensor) -> Tensor:
        turn, going = given[0], given[1]
        return going if limit is None else going & (turn < given[len(carried)])

    def once(*given: Tensor) -> tuple[Tensor, ...]:
        turn, outside = given[0], given[len(carried) + (limit is not None) :]
        condition, *results = (node.as_tensor(each) for each in body.call((turn, given[1], *given[2:carried_state]), outside))
        rows = zip(given[carried_state : len(carried)], results[len(state) :], strict=False)
        written = [buffer.index_copy(0, turn.reshape([1]), row.unsqueeze(0)) for buffer, row in rows]
        after = (condition.reshape([]), *results[: len(state)], *written)
        return (turn + 1, *(each.clone() for each in after))

    outside = (*(() if limit is None else (limit.clone(),)), *body.operands)
    found = HIGHER.while_loop(goes_on, once, tuple(each.clone() for each in carried), outside)
    return (found[0], *found[2:])


def _scan(node: Node) -> Result:
    body, count = node.attr_graph("body"), node.attr_int("num_scan_inputs")
    state, sources = [node.as_tensor(each) for each in node.inputs[:-count]], [node.as_tensor(each) for each in node.inputs[-count:]]
    outputs = len(body.outputs) - len(state)
    axes = [axis_of(axis, x.dim()) for axis, x in zip(node.attr_ints("scan_input_axes", [0] * count), sources, strict=True)]
    backward = node.attr_ints("scan_input_directions", [0] * count)
    rows = [x.movedim(axis, 0) for x, axis in zip(sources, axes, strict=True)]
    rows = [torch.flip(x, [0]) if back else x for x, back in zip(rows, backward, strict=True)]
    function = node.traced(body)

    def step(given: Items[Tensor], slices: Items[Tensor], outside: Items[Leaf]) -> list[Tensor]:
        return [node.as_tensor(each) for each in function.call((*given, *slices), outside)]

    last, stacked = scanned(step, state, rows, function.operands)
    result_axes, reversed_ = node.attr_ints("scan_output_axes", [0] * outputs), node.attr_ints("scan_output_directions", [0] * outputs)
    turned = [torch.flip(x, [0]) if back else x for x, back in zip(stacked, reversed_, strict=True)]
    return (*last, *(x.movedim(0, axis) for x, axis in zip(turned, result_axes, strict=True)))


def scanned(
    step: Callable[[Items[Tensor], Items[Tensor], Items[Leaf]], Items[Tensor]],
    first: Items[Tensor], rows: Items[Tensor], outside: Items[Leaf],
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """The last state and the stacked results of a loop over dim 0 of `rows`. step: of the state, a slice of each of the rows, and
    `outside`, which holds all else that it reads; gives the next state, then its results."""
    states, ends = len(first), len(first) + len(rows)
    operands, order = distinct(outside)

    def once(*given: Tensor) -> list[Tensor]:
        around = [given[ends + place] for place in order]
        return [each.clone() for each in step(given[:states], given[states:ends], around)]

    found = HIGHER.scan(once, [each.clone() for each in first], [each.clone() for each in rows], tuple(operands))
    return list(found[:states]), list(found[states:])


# --- sequences and optionals ------------------------------------------------------------------------------------------------------


def _at(node: Node) -> Value:
    items, place = node.sequence(0), node.integer(1, "position")
    if not isinstance(place, int) or not -len(items) <= place < len(items):
        raise NodeError(f"position {place} of a sequence of {len(items)}", unsupported=not isinstance(place, int))
    return items[place]


def _insert(node: Node) -> Value:
    items = list(node.sequence(0))
    items.insert(node.constants(2, "position")[0] if node.has(2) else len(items), node.value(1))
    return Sequence(tuple(items))


def _erase(node: Node) -> Value:
    items = list(node.sequence(0))
    del items[node.constants(1, "position")[0] if node.has(1) else -1]
    return Sequence(tuple(items))


def _length(node: Node) -> Result:
    return sizes_value((len(node.sequence(0)),), scalar=True)


def _concatenate(node: Node) -> Tensor:
    parts = [node.as_tensor(each) for each in node.sequence(0)]
    return torch.stack(parts, node.attr_int("axis")) if node.attr_int("new_axis") else torch.cat(parts, node.attr_int("axis"))


def _split(node: Node) -> Value:
    x = node.tensor(0)
    axis = axis_of(node.attr_int("axis"), x.dim())
    known = Sizes(tuple(node.integers(1, "sizes of its parts")), node.as_tensor(node.value(1)).dim() == 0) if node.has(1) else None
    size = x.shape[axis]
    if not isinstance(size, int) and (known is None or known.scalar):
        raise NodeError("the number of its parts depends on sizes")
    parts = torch.split(x, (known.numbers[0] if known.scalar else list(known.numbers)) if known is not None else 1, axis)
    if not node.has(1) and not node.attr_int("keepdims"):
        parts = tuple(part.select(axis, 0) for part in parts)
    return Sequence(tuple(parts))


def _has_element(node: Node) -> Result:
    return sizes_value((node.has(0),), scalar=True, dtype=torch.bool)


def _element(node: Node) -> Value:
    if not node.has(0):
        raise NodeError("the optional is empty", unsupported=False)
    return node.value(0)


RULES: dict[str, Rule] = {
    "If": _if, "Loop": _loop, "Scan": _scan, "SequenceConstruct": lambda node: Sequence(tuple(node.inputs)),
    "SequenceEmpty": lambda node: Sequence(), "SequenceAt": _at, "SequenceInsert": _insert, "SequenceErase": _erase,
    "SequenceLength": _length, "ConcatFromSequence": _concatenate, "SplitToSequence": _split,
    "Optional": lambda node: node.value(0), "OptionalHasElement": _has_element, "OptionalGetElement": _element,
}  # fmt: skip
