"""MLIR text of shared functions on f32 vectors in registers: loops, loads that widen, shuffles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from disc.ir.weights import ELEMENT_BYTES


@dataclass(eq=False)
class CodeLoop:
    """An open loop: its i64 index, the vectors carried, those to carry on (to be filled), and the last ones, valid once it is closed."""

    index: str
    carried: list[str]
    yields: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)


class Code:
    """A function under construction. lanes: f32 in a vector."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.vector = self.vector_of("f32")
        self.out: list[str] = []
        self._count = 0

    def vector_of(self, element: str) -> str:
        """The type of a vector of `element`."""
        return f"vector<{self.lanes}x{element}>"

    def line(self, text: str) -> None:
        """A statement."""
        self.out.append(text)

    def op(self, text: str) -> str:
        """A value."""
        self._count += 1
        self.out.append(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def number(self, value: int) -> str:
        """An i64."""
        return self.op(f"arith.constant {value} : i64")

    @contextmanager
    def loop(self, low: str, high: str, step: int, carried: Sequence[str]) -> Iterator[CodeLoop]:
        """An scf.for over i64 that carries f32 vectors."""
        each = self.number(step)
        self._count += 1
        name = f"%s{self._count}"
        loop = CodeLoop(f"{name}_i", [f"{name}_{number}" for number in range(len(carried))])
        head = f"scf.for {loop.index} = {low} to {high} step {each}"
        types = ", ".join([self.vector] * len(carried))
        if carried:
            pairs = ", ".join(f"{new} = {old}" for new, old in zip(loop.carried, carried, strict=True))
            head = f"{name}:{len(carried)} = {head} iter_args({pairs}) -> ({types})"
        self.line(f"{head} : i64 {{")
        yield loop
        if carried:
            self.line(f"scf.yield {', '.join(loop.yields)} : {types}")
            loop.results = [f"{name}#{number}" for number in range(len(carried))]
        self.line("}")

    def moved(self, pointer: str, offset: str, element: str) -> str:
        """The pointer `offset` (i64) elements further."""
        return self.op(f"llvm.getelementptr {pointer}[{offset}] : (!llvm.ptr, i64) -> !llvm.ptr, {element}")

    def mask(self, count: str) -> str:
        """The first `count` lanes (all, where that is more)."""
        limit = self.op(f"arith.minsi {count}, {self.number(self.lanes)} : i64")
        return self.op(f"vector.create_mask {self.op(f'arith.index_cast {limit} : i64 to index')} : {self.vector_of('i1')}")

    def load(self, pointer: str, start: int, element: str, mask: str | None = None) -> str:
        """lanes values from element `start` on as f32; what `mask` hides is not read and zero."""
        stored = "i16" if element == "bf16" else element
        return self._widened(self._loaded(pointer, start, stored, self.lanes, mask), element, self.vector_of(stored))

    def bits(self, pointer: str, start: int, count: int, mask: str | None = None) -> str:
        """`count` elements of 16 bits from element `start` on, as they are; what `mask` hides is not read and zero."""
        return self._loaded(pointer, start, "i16", count, mask)

    def _loaded(self, pointer: str, start: int, stored: str, count: int, mask: str | None) -> str:
        vector, align = f"vector<{count}x{stored}>", ELEMENT_BYTES[stored]
        place = self.op(f"llvm.getelementptr {pointer}[{start}] : (!llvm.ptr) -> !llvm.ptr, {stored}")
        if mask is None:
            return self.op(f"llvm.load {place} {{alignment = {align} : i64}} : !llvm.ptr -> {vector}")
        zero = self.op(f"arith.constant dense<{'0' if stored == 'i16' else '0.0'}> : {vector}")
        types = f"(!llvm.ptr, vector<{count}xi1>, {vector}) -> {vector}"
        return self.op(f"llvm.intr.masked.load {place}, {mask}, {zero} {{alignment = {align} : i32}} : {types}")

    def splat(self, pointer: str, element: str) -> str:
        """One value in all lanes, as f32."""
        stored = "i16" if element == "bf16" else element
        scalar = self.op(f"llvm.load {pointer} {{alignment = {ELEMENT_BYTES[element]} : i64}} : !llvm.ptr -> {stored}")
        vector = self.vector_of(stored)
        return self._widened(self.op(f"vector.broadcast {scalar} : {stored} to {vector}"), element, vector)

    def _widened(self, value: str, element: str, vector: str) -> str:
        if element == "f16":
            return self.op(f"arith.extf {value} : {vector} to {self.vector}")
        if element == "f32":
            return value
        bits = self.vector_of("i32")
        wide = self.op(f"arith.extui {value} : {vector} to {bits}")
        shifted = self.op(f"arith.shli {wide}, {self.op(f'arith.constant dense<16> : {bits}')} : {bits}")
        return self.op(f"arith.bitcast {shifted} : {bits} to {self.vector}")

    def prefetch(self, pointer: str, offset: int, level: int = 1) -> None:
        """The line `offset` bytes from `pointer` into the cache of a level, 1 or 2."""
        line = self.op(f"llvm.getelementptr {pointer}[{offset}] : (!llvm.ptr) -> !llvm.ptr, i8")
        hint = f"rw = 0 : i32, hint = {4 - level} : i32, cache = 1 : i32"
        self.line(f'"llvm.intr.prefetch"({line}) <{{{hint}}}> : (!llvm.ptr) -> ()')

    def shuffle(self, first: str, second: str, order: list[int]) -> str:
        """Lanes of both."""
        return self.op(f"vector.shuffle {first}, {second} {order} : {self.vector}, {self.vector}")

    def add(self, first: str, second: str) -> str:
        """Lane by lane."""
        return self.op(f"arith.addf {first}, {second} : {self.vector}")
