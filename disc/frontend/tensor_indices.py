"""Tensors of no dims as indices, `x[i]` and `x[:, i] = y`: they are data, so rows are gathered and scattered. And parts that are written.

PyTorch reads such an index as a number, which a trace has not: where it is written by, and in what Dynamo traces, it gives up.

    x[a, i, b]          →    x[:, i.reshape(1)][a, 0, b]                  (where `a` takes one dim)
    x[a, i, b] = y      →    rows = x[:, i.reshape(1)]; rows[a, 0, b] = y; x[:, i.reshape(1)] = rows
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import BuiltinVariable, TensorVariable, UserFunctionVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lists import BaseListVariable

from disc.frontend.replaced import replaced
from disc.frontend.slices import item


def is_number(entry: object) -> bool:
    return isinstance(entry, Tensor) and entry.dim() == 0 and entry.dtype in NUMBERS


def place_of_number(x: Tensor, index: tuple[Any, ...]) -> tuple[int, int] | None:
    """The first such tensor: its place in `index`, and the dim of x that it chooses from. None: there is none,
    or entries of which PyTorch says what they mean."""
    place = next((place for place, entry in enumerate(index) if is_number(entry)), None)
    if place is None or not all(isinstance(each, int) for entry in index if isinstance(entry, list) for each in entry):
        return None
    before, behind = dims_taken(index[:place]), dims_taken(index[place:])
    dim = x.dim() - behind if any(entry is Ellipsis for entry in index[:place]) else before
    return (place, dim) if before + behind <= x.dim() and dim >= 0 else None


def dims_taken(index: tuple[Any, ...]) -> int:
    taken = 0
    for entry in index:
        if isinstance(entry, Tensor) and entry.dtype in (torch.bool, torch.uint8):
            taken += entry.dim()
        elif entry is not None and entry is not Ellipsis and not isinstance(entry, bool):
            taken += 1
    return taken


def _entries(index: object) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def take(x: Tensor, index: object) -> Tensor:
    """`x[index]`."""
    entries = _entries(index)
    found = place_of_number(x, entries)
    while found is not None:
        place, dim = found
        x = x[(slice(None),) * dim + (entries[place].reshape(1),)]
        entries: tuple[Any, ...] = (*entries[:place], 0, *entries[place + 1 :])
        found = place_of_number(x, entries)
    return x[entries]


def put(x: Tensor, index: object, value: object) -> None:
    """`x[index] = value`."""
    entries = _entries(index)
    found = place_of_number(x, entries)
    if found is None:
        x[entries] = value  # pyright: ignore[reportArgumentType]
        return
    place, dim = found
    at = (slice(None),) * dim + (entries[place].reshape(1),)
    rows = x[at]
    put(rows, (*entries[:place], 0, *entries[place + 1 :]), value)
    x[at] = rows


def set_item(x: Tensor, index: object, value: object) -> None:
    """`torch.Tensor.__setitem__`. Where PyTorch's own writes a part, it compares the part's sizes with 1, which excludes sizes of x."""
    entries = _entries(index)
    if place_of_number(x, entries) is not None:
        put(x, index, value)
        return
    if any(isinstance(size, torch.SymInt) for size in x.shape) and all(map(_is_basic, entries)):
        part = _part(x, entries)
        if isinstance(value, int | float):
            part.fill_(value)
            return
        if isinstance(value, Tensor) and value.dim() <= part.dim():
            part.copy_(value)
            return
    torch.Tensor.__setitem__(x, index, value)  # pyright: ignore[reportArgumentType]


def _part(x: Tensor, entries: tuple[Any, ...]) -> Tensor:
    """`x[entries]`, a view. A size as an index is a place to PyTorch's `select`; its index would take it for the example's number."""
    computed = [isinstance(each, torch.SymInt) for each in entries]
    part = item(x, tuple(slice(None) if each else entry for each, entry in zip(computed, entries, strict=True)))
    kept = [entry is None or isinstance(entry, slice) or each for each, entry in zip(computed, entries, strict=True)]
    whole = part.dim() - sum(kept)  # of the ellipsis
    for place in reversed([place for place, each in enumerate(computed) if each]):
        dim = sum(whole if entry is Ellipsis else each for each, entry in zip(kept[:place], entries, strict=False))
        part = torch.select(part, dim, entries[place])
    return part


def _is_basic(entry: object) -> bool:
    """Whether an index of such entries is a view."""
    if isinstance(entry, slice):
        return not any(isinstance(each, Tensor) for each in (entry.start, entry.stop, entry.step))
    return entry is None or entry is Ellipsis or (isinstance(entry, int | torch.SymInt) and not isinstance(entry, bool))


# --- what Dynamo traces ---------------------------------------------------------------------------------------------------------


def _method(original: Callable[..., VariableTracker], form: Callable[..., object]) -> Callable[..., VariableTracker]:
    """Dynamo's handler of an index, with the form traced in the place of an index by such a tensor."""

    @functools.wraps(original)
    def handler(self: TensorVariable, tx: InstructionTranslatorBase, key: VariableTracker, *rest: VariableTracker) -> VariableTracker:
        return _traced(form, tx, [self, key, *rest]) if _has_number(key) else original(self, tx, key, *rest)

    return handler


def _operator(original: Callable[..., VariableTracker | None]) -> Callable[..., VariableTracker | None]:
    """Dynamo's handler of functions of `operator` that go into its graph."""

    @functools.wraps(original)
    def handler(
        self: BuiltinVariable, tx: InstructionTranslatorBase, args: Sequence[VariableTracker], kwargs: dict[str, VariableTracker]
    ) -> VariableTracker | None:
        if self.fn is operator.getitem and isinstance(args[0], TensorVariable) and _has_number(args[1]):
            return _traced(take, tx, list(args))
        return original(self, tx, args, kwargs)

    return handler


def _traced(form: Callable[..., object], tx: InstructionTranslatorBase, args: list[VariableTracker]) -> VariableTracker:
    return tx.inline_user_function_return(UserFunctionVariable(form), args, {})  # pyright: ignore[reportArgumentType]


def _has_number(key: VariableTracker) -> bool:
    return any(map(_is_number_traced, key.items if isinstance(key, BaseListVariable) else [key]))


def _is_number_traced(value: VariableTracker) -> bool:
    value = value.realize()
    return isinstance(value, TensorVariable) and value.ndim == 0 and value.dtype in NUMBERS


_HANDLERS = dict[Any, Any]()  # Dynamo keeps those that it has found: of these forms apart from its own


def traced_indices() -> AbstractContextManager[None]:
    """Within, Dynamo traces the forms."""
    return replaced({
        (TensorVariable, "method___getitem__"): _method(TensorVariable.method___getitem__, take),
        (TensorVariable, "method___setitem__"): _method(TensorVariable.method___setitem__, put),
        (BuiltinVariable, "_handle_insert_op_in_graph"): _operator(BuiltinVariable._handle_insert_op_in_graph),
        (BuiltinVariable, "call_function_handler_cache"): _HANDLERS,
    })  # fmt: skip


NUMBERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})
FORMS: dict[Callable[..., object], Callable[..., object]] = {torch.Tensor.__setitem__: set_item}
