"""Where complex tensors meet real ones: what a program is given and returns (`frontend/complex_numbers.py` has made all else real)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from disc.frontend.call import Call
from disc.frontend.op_builder import PARTS, OpBuilder, RuleError, Tensor
from disc.frontend.rules.overrides import Rule

aten = torch.ops.aten


def parts(e: OpBuilder, call: Call) -> Tensor:
    """One more dim, as it is there already."""
    x = call.tensor("self")
    return Tensor(x.value, (*x.shape, 2), PARTS[x.dtype])


def whole(e: OpBuilder, call: Call) -> Tensor:
    x = call.tensor("self")
    return Tensor(x.value, x.shape[:-1], call.dtype)


def resolved(e: OpBuilder, call: Call) -> Tensor:
    """What is given lies in memory as it is: the runtime copies a tensor with the conjugate bit."""
    return call.tensor("self")


RULES: Mapping[object, Rule] = {aten.view_as_real.default: parts, aten.view_as_complex.default: whole, aten.resolve_conj.default: resolved}


def refuse_complex(node: fx.Node) -> None:
    """Raises: RuleError for an op on complex tensors."""
    values = [each.meta.get("val") for each in (*node.all_input_nodes, node)]
    tensors = [part for value in values for part in (value if isinstance(value, list | tuple) else [value])]
    if any(isinstance(each, torch.Tensor) and each.is_complex() for each in tensors):
        raise RuleError("no lowering for this op on complex numbers")
