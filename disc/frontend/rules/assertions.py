"""Assertions on values: what they look at becomes a number that must not be 0, so that calls are refused with the program's own message."""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch
from torch import fx
from torch.fx.node import has_side_effect

from disc.frontend.call import Call
from disc.frontend.op_builder import OpBuilder, RuleError, Tensor
from disc.frontend.rules.places import INDEX, as_mask, number
from disc.frontend.rules.places import checked as checked_index

aten = torch.ops.aten
has_side_effect(aten._assert_async.default)  # PyTorch knows it of the overload with a message alone, and drops this one


def assertion(e: OpBuilder, call: Call) -> None:
    x = call.tensor("self")
    if any(size != 1 for size in x.shape):
        raise RuleError("it looks at a tensor that may have other than one element")
    _require(e, e.reshape(as_mask(e, x), ()), call.text("assert_msg") or "")


def assertion_on_numbers(e: OpBuilder, call: Call) -> None:
    """One that looks at floats of tensors; those on sizes are conditions (`asserted` in decisions.py)."""
    value = call.node.args[0].meta.get("val") if isinstance(call.node.args[0], fx.Node) else None
    expression = value.node.expr if isinstance(value, torch.SymBool) else sympy.true
    if not expression.free_symbols.isdisjoint(e.reals):
        text = call.text("assert_msg") or ""
        _require(e, e.condition(expression), "" if text.startswith(PYTORCHS) else text)


PYTORCHS = "Runtime assertion failed"  # what PyTorch says of its symbols where it has lost the program's message


def _require(e: OpBuilder, truth: Tensor, text: str) -> None:
    message = f"the assertion{f' {text!r}' if text else ''} does not hold"
    if e.held is not None:
        e.held.append((truth, message))
        return
    value = e.bind(e.convert(truth, INDEX), None, "its value")
    e.require("!=", value, 0, "", message)


def with_held(e: OpBuilder, results: list[Tensor], held: list[tuple[Tensor, str]]) -> list[Tensor]:
    """What a graph of control flow returns, computed in calls in which all assertions hold that it meets: there is no size to check, since
    another call may not run the graph, or more than once."""
    for truth, message in held:
        wrong = checked_index(
            e,
            e.select(truth, number(e, 0), number(e, 1)),
            1,
            message.replace("{actual}", "actual").replace("{expected}", "expected") + ": it is false (got {actual})",
        )
        holds = e.compare("eq", wrong, number(e, 0))
        results = [e.select(e.broadcast(holds, each.shape), each, e.full(0, each.shape, each.dtype)) for each in results]
    return results


RULES: dict[object, Callable[[OpBuilder, Call], None]] = {
    aten._assert_async.default: assertion, aten._assert_async.msg: assertion, aten._functional_assert_async.msg: assertion,
    aten._assert_scalar.default: assertion_on_numbers,
}  # fmt: skip
