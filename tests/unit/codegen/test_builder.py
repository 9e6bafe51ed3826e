"""Ops of independent computations in turns."""

from __future__ import annotations

from disc.codegen.mlir.builder import Builder


def chain(b: Builder, start: str, length: int) -> str:
    value = start
    for _ in range(length):
        value = b.op(f"f {value}")
    return value


def test_ops_take_turns() -> None:
    b = Builder(16)
    with b.in_turns() as begin:
        begin()
        assert chain(b, "%x", 2) == "%v2"
        begin()
        assert chain(b, "%y", 3) == "%v5"
    assert b.scope.lines == ["%v1 = f %x", "%v3 = f %y", "%v2 = f %v1", "%v4 = f %v3", "%v5 = f %v4"]


def test_no_op_comes_before_its_operands() -> None:
    """The second computation needs what the first one defines last."""
    b = Builder(16)
    with b.in_turns() as begin:
        begin()
        shared = chain(b, "%x", 3)
        begin()
        chain(b, shared, 1)
        begin()
        b.statement("g %z")
    assert b.scope.lines == ["%v1 = f %x", "g %z", "%v2 = f %v1", "%v3 = f %v2", "%v4 = f %v3"]


def test_regions_stay_whole() -> None:
    b = Builder(16)
    with b.in_turns() as begin:
        begin()
        with b.when("%condition"):
            b.statement("g %x")
        begin()
        b.statement("g %y")
    assert b.scope.lines == ["scf.if %condition {", "g %x", "}", "g %y"]
