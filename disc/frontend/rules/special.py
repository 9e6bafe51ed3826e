"""Functions that take iterations for each element, as ops that functions of the runtime compute (`Kind.LIBRARY`): in f32 and f64."""

from __future__ import annotations

import torch

from disc.frontend.call import Call
from disc.frontend.op_builder import OpBuilder, Tensor, wrap_dim
from disc.frontend.rules.elementwise import computed
from disc.frontend.rules.overrides import Fault, Override, Rule, overrides
from disc.frontend.rules.sorting import library

aten = torch.ops.aten


def of_two(name: str) -> Rule:
    """Of tensors or numbers, element by element."""

    def rule(e: OpBuilder, call: Call) -> Tensor:
        def body(left: Tensor, right: Tensor) -> Tensor:
            shape = e.broadcast_shape(left.shape, right.shape)
            return library(name, [e.broadcast(left, shape), e.broadcast(right, shape)], [(shape, left.dtype)])[0]

        return computed(e, call, body)

    return rule


def logcumsumexp(e: OpBuilder, call: Call) -> Tensor:
    x = call.tensor("self")
    if not x.rank:
        return x
    dim = wrap_dim(call.integer("dim"), x.rank)
    return e.math(x, lambda wide: library("disc.logcumsumexp", [wide], [(wide.shape, wide.dtype)], dim=dim)[0])


ZETA = (aten.special_zeta.default, aten.special_zeta.self_scalar, aten.special_zeta.other_scalar)
OVERRIDES: dict[object, Override] = overrides(Fault.REFUSED, "no lowering to ops that disc has", {
    **dict.fromkeys(ZETA, of_two("disc.zeta")), aten.igamma.default: of_two("disc.igamma"), aten.igammac.default: of_two("disc.igammac"),
    aten.logcumsumexp.default: logcumsumexp,
})  # fmt: skip
