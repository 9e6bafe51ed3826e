"""Every op that stage `named` allows has code: none is left to end in a bug."""

from __future__ import annotations

from disc.codegen.x86.elementwise import ELEMENTWISE
from disc.codegen.x86.structural import STRUCTURAL
from disc.ir.stages import NAMED_OPS
from disc.passes.shape.shape_rules import RULES

VIEWS = {
    "disc.reshape",
    "disc.broadcast_in_dim",
    "disc.slice",
    "disc.diagonals",
    "stablehlo.transpose",
    "stablehlo.reverse",
}  # index arithmetic
KERNELS = {
    "stablehlo.dot_general",
    "disc.scaled_dot",
    "stablehlo.convolution",
    "stablehlo.scatter",
    "disc.cumulative",
}  # kernels of their own
HOST = {"disc.weight", "func.return"}


def test_every_legal_op_has_code() -> None:
    known = ELEMENTWISE | STRUCTURAL.keys() | VIEWS | KERNELS | HOST
    assert sorted(NAMED_OPS - known) == []


def test_every_elementwise_op_that_a_front_end_may_send_is_legal() -> None:
    elementwise = {name for name in RULES if name in ELEMENTWISE}
    assert sorted(elementwise - NAMED_OPS) == []
