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
    results = b.in_turns([lambda: chain(b, "%x", 2), lambda: chain(b, "%y", 3)])
    assert b.scope.lines == ["%v1 = f %x", "%v3 = f %y", "%v2 = f %v1", "%v4 = f %v3", "%v5 = f %v4"]
    assert results == ["%v2", "%v5"]


def test_no_op_comes_before_its_operands() -> None:
    """The second computation needs what the first one defines last."""
    b = Builder(16)
    shared: list[str] = []

    def first() -> str:
        shared.append(chain(b, "%x", 3))
        return shared[0]

    b.in_turns([first, lambda: chain(b, shared[0], 1), lambda: b.statement("g %z")])
    assert b.scope.lines == ["%v1 = f %x", "g %z", "%v2 = f %v1", "%v3 = f %v2", "%v4 = f %v3"]


def test_regions_stay_whole() -> None:
    b = Builder(16)

    def region() -> None:
        with b.when("%condition"):
            b.statement("g %x")

    b.in_turns([region, lambda: b.statement("g %y")])
    assert b.scope.lines == ["scf.if %condition {", "g %x", "}", "g %y"]
