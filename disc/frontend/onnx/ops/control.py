"""Control flow and sequences whose course is known when compiling: branches on constants and sizes, loops of a known number of turns."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.ops.structure import axis_of
from disc.frontend.onnx.values import Constant, NodeError, Result, Sequence, Value, constant_of, numbers, sizes_of, sizes_value

Rule = Callable[[Node], Result]
MOST_TURNS = 256  # of a loop: each becomes nodes of its own


def _truth(value: Value, what: str) -> bool:
    """Raises NodeError for a value that is data."""
    known = sizes_of(value)
    if known is None and isinstance(value, Constant) and value.data.numel() == 1:
        return bool(numbers(value)[0])
    if known is None or len(known.numbers) != 1:
        raise NodeError(f"{what} depends on data")
    return bool(known.numbers[0])


def _if(node: Node) -> Result:
    branch = node.attr_graph("then_branch" if _truth(node.value(0), "its condition") else "else_branch")
    return node.run(branch, ())


def _loop(node: Node) -> Result:
    body, turns = node.attr_graph("body"), node.integer(0, "number of turns") if node.has(0) else None
    going = _truth(node.value(1), "its condition") if node.has(1) else True
    if turns is not None and not isinstance(turns, int):
        raise NodeError("its number of turns depends on the sizes of inputs")
    state = tuple(node.inputs[2:])
    kept: list[tuple[Value, ...]] = []
    turn = 0
    while going and (turns is None or turn < turns):
        if turn == MOST_TURNS:
            raise NodeError(f"it takes more than {MOST_TURNS} turns")
        number = constant_of(lambda turn=turn: torch.tensor(turn))
        condition, *results = node.run(body, (number, constant_of(lambda: torch.tensor(True)), *state))
        going = _truth(condition, "whether it goes on")
        state = tuple(results[: len(state)])
        kept.append(tuple(results[len(state) :]))
        turn += 1
    if not kept and node.outputs > len(state):
        raise NodeError("it takes no turn, and so its stacked results have no shape")
    stacked = tuple(torch.stack([node.as_tensor(each) for each in column]) for column in zip(*kept, strict=True))
    return (*state, *stacked)


def _scan(node: Node) -> Result:
    body, count = node.attr_graph("body"), node.attr_int("num_scan_inputs")
    state, sources = tuple(node.inputs[:-count]), [node.as_tensor(each) for each in node.inputs[-count:]]
    outputs = len(body.outputs) - len(state)
    axes = [axis_of(axis, x.dim()) for axis, x in zip(node.attr_ints("scan_input_axes", [0] * count), sources, strict=True)]
    backward = node.attr_ints("scan_input_directions", [0] * count)
    length = sources[0].shape[axes[0]]
    if not isinstance(length, int) or length > MOST_TURNS or not length:
        raise NodeError(f"it scans a dim of size {length}; sizes from 1 to {MOST_TURNS} that are no symbols can be compiled")
    kept: list[tuple[Value, ...]] = []
    for turn in range(length):
        places = [length - 1 - turn if back else turn for back in backward]
        slices = [x.select(axis, place) for x, axis, place in zip(sources, axes, places, strict=True)]
        results = node.run(body, (*state, *slices))
        state = results[: len(state)]
        kept.append(results[len(state) :])
    result_axes, reversed_ = node.attr_ints("scan_output_axes", [0] * outputs), node.attr_ints("scan_output_directions", [0] * outputs)
    stacked: list[Tensor] = []
    for column, axis, back in zip(zip(*kept, strict=True), result_axes, reversed_, strict=True):
        parts = [node.as_tensor(each) for each in column]
        stacked.append(torch.stack(parts[::-1] if back else parts, axis))
    return (*state, *stacked)


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
    known = node.sizes(1) if node.has(1) else None
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
