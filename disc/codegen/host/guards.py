"""Guards in the host entry: the one place where they become code. `Guard.holds` is the reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import assert_never

from disc.codegen.mlir.builder import Builder
from disc.speculation.guards import ALWAYS, Aligned, AtLeast, AtMost, BeyondCache, Divides, Equal, Guard, Single, parts_of


def lower_guard(b: Builder, guard: Guard, streams: Callable[[str], str], aligned: Callable[[int], str]) -> str:
    """The i1 of a guard over the sizes that are variables of `b`. Right where 64 bits hold all of its sizes, none of which is negative.

    streams: of results of so many bytes, an i64, the i1 that is true where they are beyond the caches and begin on cache lines.
    aligned: the i1 that is true where arguments and results begin at multiples of so many bytes.
    """
    if guard == ALWAYS:
        return b.constant("arith.constant true")
    parts = [_single(b, each, streams, aligned) for each in parts_of(guard)]
    return reduce(lambda left, right: b.op(f"arith.andi {left}, {right} : i1"), parts)


def _single(b: Builder, guard: Single, streams: Callable[[str], str], aligned: Callable[[int], str]) -> str:
    match guard:
        case Divides(number, size):
            divisor = b.index(number)
            rest = b.op(f"arith.remui {b.scalar(size)}, {divisor} : i64")
            return b.op(f"arith.cmpi eq, {rest}, {b.index(0)} : i64")
        case Equal(left, right):
            return _compare(b, "eq", b.scalar(left), b.scalar(right))
        case AtMost(number, size):
            return _compare(b, "sge", b.index(number), b.scalar(size))
        case AtLeast(number, size):
            return _compare(b, "sle", b.index(number), b.scalar(size))
        case BeyondCache(size):
            return streams(b.scalar(size))
        case Aligned(number):
            return aligned(number)
        case _:
            assert_never(guard)


def _compare(b: Builder, how: str, left: str, right: str) -> str:
    return b.op(f"arith.cmpi {how}, {left}, {right} : i64")
