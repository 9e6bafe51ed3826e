"""Sizes that ops bind: where their symbols may stand, and what the interpreter makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from disc.errors import CompilerBug, ShapeConstraintError
from disc.ir.dialect import disc_context
from disc.ir.interp.oracle import interpret
from disc.ir.stages import check_stage, parse_module

SYMBOLS = """
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "kernel"} : () -> ()
"disc.relation"() {lhs = "min(S0, S1)", rhs = "S1"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S2", min = 0 : i64, divisor = 2 : i64, expr = "S1 * 2"} : () -> ()
"disc.condition"() {expr = "S1 != 3", why = "decided at model.py:12"} : () -> ()
"""
SUM = "%n = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<?xi64, [@S0]>, tensor<i64>) -> tensor<i64>"
BIND = '%k = "disc.size_of"(%n) {symbol = "S1"} : (tensor<i64>) -> tensor<i64>'
USE = '%y = "disc.iota"() {dim = 0 : i64} : () -> tensor<?xi64, [@S2]>'


def program(*lines: str) -> str:
    body = "\n".join(["%zero = stablehlo.constant dense<0> : tensor<i64>", *lines])
    return f"{SYMBOLS}\nfunc.func @main(%x: tensor<?xi64, [@S0]>) -> tensor<?xi64, [@S2]> {{\n{body}\nreturn %y : tensor<?xi64, [@S2]>\n}}"


def test_a_size_is_what_an_op_computes() -> None:
    with disc_context():
        module = parse_module(program(SUM, BIND, USE))
        check_stage(module, "named")
        for numbers in ([1, 0, 1], [], [0, 0], [2, 0]):
            np.testing.assert_array_equal(interpret(module, [np.array(numbers, np.int64)])[0], np.arange(2 * sum(numbers)))


@pytest.mark.parametrize(("numbers", "message"), [([2], "does not hold"), ([-1, 0], "below its minimum"), ([1, 1, 1], "does not hold")])
def test_what_is_stated_of_it_is_checked_once_it_is_known(numbers: list[int], message: str) -> None:
    with disc_context(), pytest.raises(ShapeConstraintError, match=message):
        interpret(parse_module(program(SUM, BIND, USE)), [np.array(numbers, np.int64)])


FAULTS = {
    "before": ((SUM, USE, BIND), "disc.iota at .* stands before S1, which its result has, is bound"),
    "twice": ((SUM, BIND, BIND.replace("%k", "%again"), USE), "binds S1, which is bound already"),
    "never": ((SUM, '%y = "disc.reshape"(%x) : (tensor<?xi64, [@S0]>) -> tensor<?xi64, [@S2]>'), "stands before S1"),
    "of an input": ((SUM, BIND, BIND.replace("%k", "%again").replace("S1", "S0"), USE), "binds S0, which is bound already, or no symbol"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_its_symbol_stands_behind_the_op(name: str) -> None:
    lines, message = FAULTS[name]
    with disc_context(), pytest.raises(CompilerBug, match=message):
        check_stage(parse_module(program(*lines)), "named")
