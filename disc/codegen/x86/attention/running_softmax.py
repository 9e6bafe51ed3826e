"""The softmax of a row whose scores come block by block: its maximum and sum so far, and what both do to earlier results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from disc.codegen.mlir.builder import Builder
from disc.codegen.x86.elementwise import to_register, to_storage
from disc.codegen.x86.emit import Emitter
from disc.codegen.x86.function import Frame
from disc.codegen.x86.math.exp_log import exponential_of_negative
from disc.codegen.x86.math.vector_math import VectorMath
from disc.codegen.x86.memory import Buffer
from disc.shapes import Dim


@dataclass(frozen=True)
class RowState:
    """Pointers to a row's scores, which become its exponentials, and to its f32 maximum, sum and scale (of what earlier blocks gave).

    most: scores in a block at most; element: the type to which exponentials are rounded; stored: the type in which they are stored.
    """

    scores: str
    maximum: str
    total: str
    scale: str
    most: int
    element: str
    stored: str

    def load_scale(self, b: Builder) -> str:
        """The factor of earlier results, in every lane."""
        return _load(b, self.scale)

    def inverse(self, b: Builder, safe: bool, length: str) -> str:
        """1 / sum, in every lane. A sum of 0 comes from a row of -inf alone (NaN, or 0 where `safe`) or from one without keys (0)."""
        m = VectorMath(b, "f32")
        total, one = _load(b, self.total), m.const(1.0)
        corrected = m.select(m.compare("oeq", total, m.const(0.0)), one, total)
        if not safe:
            empty = b.op(f"arith.cmpi eq, {length}, {b.index(0)} : i64")
            corrected = b.op(f"arith.select {empty}, {corrected}, {total} : {b.vec('f32')}")
        return m.div(one, corrected)


def emit_row(frame: Frame, row: RowState, count: str, first: str) -> None:
    """Takes in `count` scores (i64); `first` (i1): the row's first block, before which there is no state.

    A score of NaN or +inf makes NaN of the sum, so the maximum need not carry it.
    """
    b, e = frame.b, frame.emitter
    m, unrolled = VectorMath(b, "f32"), e.target.thresholds.attention.unrolled
    infinity, zero, vector = m.const(float("-inf")), m.const(0.0), b.vec("f32")
    scores = Buffer(row.scores, (), "f32")
    name = e.name("key")
    e.space.variable(name, Dim.of(row.most))

    def larger(names: list[str], carried: list[str]) -> list[str]:
        found = [_or_else(e, each, e.load(scores, Dim.symbol(each), None), infinity) for each in names]
        return [m.at_least(old, value) for value, old in zip(found, carried, strict=True)]

    tops = e.lane_loop(name, b.index(0), count, Dim.symbol(name), unrolled, [(infinity, vector)] * unrolled, larger)
    old = b.op(f"arith.select {first}, {infinity}, {_load(b, row.maximum)} : {vector}")
    newest = m.at_least(old, _across(m, m.at_least, _tree(m.at_least, tops)))
    shift = m.select(m.compare("oeq", newest, infinity), zero, newest)
    scale = exponential_of_negative(m, m.sub(old, shift))

    def total(names: list[str], carried: list[str]) -> list[str]:
        values = [exponential_of_negative(m, m.sub(e.load(scores, Dim.symbol(each), None), shift)) for each in names]
        for each, value in zip(names, values, strict=True):
            e.store(Buffer(row.scores, (), row.stored), Dim.symbol(each), _rounded(b, value, row))
        return [m.add(old, _or_else(e, each, value, zero)) for each, value, old in zip(names, values, carried, strict=True)]

    sums = e.lane_loop(name, b.index(0), count, Dim.symbol(name), unrolled, [(zero, vector)] * unrolled, total)
    before = b.op(f"arith.select {first}, {zero}, {_load(b, row.total)} : {vector}")
    _store(b, row.maximum, newest)
    _store(b, row.scale, scale)
    _store(b, row.total, m.fma(before, scale, _across(m, m.add, _tree(m.add, sums))))


def _rounded(b: Builder, value: str, row: RowState) -> str:
    """Rounded to `element` where it is stored wider."""
    if row.element in ("f32", row.stored):
        return value
    return to_register(b, to_storage(b, value, row.element), row.element)


def _or_else(e: Emitter, name: str, value: str, other: str) -> str:
    """`value`, and `other` in lanes that do not exist."""
    mask = e.b.variables[name].mask
    return value if mask is None else e.b.op(f"arith.select {mask}, {value}, {other} : {e.b.vec('i1')}, {e.b.vec('f32')}")


def _tree(combine: Callable[[str, str], str], values: list[str]) -> str:
    while len(values) > 1:
        values = [combine(values[number], values[number + 1]) for number in range(0, len(values), 2)]
    return values[0]


def _across(m: VectorMath, combine: Callable[[str, str], str], value: str) -> str:
    """The lanes combined by a butterfly, in every lane."""
    lanes = m.builder.lanes
    distance = lanes // 2
    while distance:
        order = ", ".join(str(lane ^ distance) for lane in range(lanes))
        value = combine(value, m.builder.op(f"vector.shuffle {value}, {value} [{order}] : {m.type}, {m.type}", m.type))
        distance //= 2
    return value


def _load(b: Builder, pointer: str) -> str:
    """An f32 in every lane."""
    scalar = b.op(f"llvm.load {pointer} : !llvm.ptr -> f32")
    return b.op(f"vector.broadcast {scalar} : f32 to {b.vec('f32')}")


def _store(b: Builder, pointer: str, value: str) -> None:
    """Stores lane 0."""
    scalar = b.op(f"vector.extract {value}[0] : f32 from {b.vec('f32')}")
    b.statement(f"llvm.store {scalar}, {pointer} : f32, !llvm.ptr")
