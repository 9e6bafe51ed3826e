"""The vocabulary in which the vector math functions are written.

A value is an SSA name. `VectorMath` appends arith and math operations on vectors through a `VectorBuilder`; each method is one operation
that x86-64-v3 and x86-64-v4 execute as one instruction (or two), never a call into libm.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class VectorBuilder(Protocol):
    """The interface of the code generator: it names results, caches constants (`from_table`: a splat, or as many values as lanes) and knows
    the vector width. `where_any`: what `compute` gives where a lane of the mask is set, else the given values. `for_each`: a loop over f64
    numbers; `step` takes one, in all lanes, and `values`, pairs with their types, or what it gave before."""

    lanes: int

    def op(self, text: str, result_type: str) -> str: ...

    def const(self, value: float | int, element: str) -> str: ...

    def from_table(self, values: Sequence[float], element: str) -> str: ...

    def vec(self, element: str) -> str: ...

    def where_any(self, mask: str, values: Sequence[str], types: Sequence[str], compute: Callable[[], Sequence[str]]) -> list[str]: ...

    def for_each(
        self, table: Sequence[float], values: Sequence[tuple[str, str]], step: Callable[[str, Sequence[str]], Sequence[str]]
    ) -> Sequence[str]: ...


@dataclass(frozen=True)
class Format:
    """One binary floating-point format of IEEE 754."""

    element: str
    integer: str
    mantissa_bits: int
    exponent_bias: int  # what a stored exponent exceeds its value by

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.exponent_bias)

    @property
    def infinity_bits(self) -> int:
        return (2 * self.exponent_bias + 1) << self.mantissa_bits

    @property
    def not_a_number_bits(self) -> int:
        return self.infinity_bits | (1 << (self.mantissa_bits - 1))

    @property
    def round_magic(self) -> float:
        """1.5 * 2^mantissa_bits: adding it rounds to an integer, to nearest even, and leaves that integer in the low bits."""
        return 1.5 * 2.0**self.mantissa_bits

    def bits_of(self, value: float) -> int:
        """The bit pattern of a non-negative value."""
        codes = ("<f", "<i") if self.element == "f32" else ("<d", "<q")
        (bits,) = struct.unpack(codes[1], struct.pack(codes[0], value))
        return bits


FORMATS = {"f32": Format("f32", "i32", 23, 127), "f64": Format("f64", "i64", 52, 1023)}


class VectorMath:
    """Operations on vectors of one floating-point format and of the integers of the same width."""

    def __init__(self, builder: VectorBuilder, element: str) -> None:
        self.builder = builder
        self.format = FORMATS[element]
        self.element = element
        self.type = builder.vec(element)
        self.integer_type = builder.vec(self.format.integer)
        self.mask_type = builder.vec("i1")

    # Constants

    def const(self, value: float) -> str:
        return self.builder.from_table((value,), self.element) if value else self.builder.const(value, self.element)

    def int_const(self, value: int) -> str:
        return self.builder.const(value, self.format.integer)

    def infinity(self) -> str:
        return self.from_bits(self.int_const(self.format.infinity_bits))

    def not_a_number(self) -> str:
        return self.from_bits(self.int_const(self.format.not_a_number_bits))

    # Floating-point arithmetic, each correctly rounded

    def _float_op(self, name: str, *operands: str) -> str:
        return self.builder.op(f"{name} {', '.join(operands)} : {self.type}", self.type)

    def add(self, left: str, right: str) -> str:
        return self._float_op("arith.addf", left, right)

    def sub(self, left: str, right: str) -> str:
        return self._float_op("arith.subf", left, right)

    def mul(self, left: str, right: str) -> str:
        return self._float_op("arith.mulf", left, right)

    def div(self, left: str, right: str) -> str:
        return self._float_op("arith.divf", left, right)

    def fma(self, left: str, right: str, addend: str) -> str:
        """left * right + addend with one rounding."""
        return self._float_op("math.fma", left, right, addend)

    def neg(self, value: str) -> str:
        return self._float_op("arith.negf", value)

    def abs(self, value: str) -> str:
        return self._float_op("math.absf", value)

    def sqrt(self, value: str) -> str:
        return self._float_op("math.sqrt", value)

    def floor(self, value: str) -> str:
        return self._float_op("math.floor", value)

    def round_even(self, value: str) -> str:
        return self._float_op("math.roundeven", value)

    def copy_sign(self, magnitude: str, sign: str) -> str:
        return self._float_op("math.copysign", magnitude, sign)

    def scale(self, value: str, factor: float) -> str:
        return self.mul(value, self.const(factor))

    def offset(self, value: str, addend: float) -> str:
        return self.add(value, self.const(addend))

    def polynomial(self, variable: str, coefficients: tuple[float, ...]) -> str:
        """Horner's rule; coefficients from the constant term upwards."""
        result = self.const(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, variable, self.const(coefficient))
        return result

    # Operations of a whole AVX-512 register

    @property
    def fills_register(self) -> bool:
        """True for 16 f32 lanes, one AVX-512 register: only then are the operations below at hand, one instruction each."""
        return self.builder.lanes == 16 and self.element == "f32"

    def scale_by_power(self, value: str, exponent: str) -> str:
        """value * 2^floor(exponent) with one rounding, for an `exponent` of any size."""
        mask = self.builder.op("arith.constant -1 : i16", "i16")
        rounding = self.builder.op("arith.constant 4 : i32", "i32")  # as set in the control register
        return self.builder.op(
            f'llvm.call_intrinsic "llvm.x86.avx512.mask.scalef.ps.512"({value}, {exponent}, {value}, {mask}, {rounding}) : '
            f"({self.type}, {self.type}, {self.type}, i16, i32) -> {self.type}",
            self.type,
        )

    def fma_down(self, left: str, right: str, addend: str) -> str:
        """left * right + addend, rounded towards minus infinity."""
        rounding = self.builder.op("arith.constant 9 : i32", "i32")
        types = ", ".join([self.type] * 3)
        return self.builder.op(
            f'llvm.call_intrinsic "llvm.x86.avx512.vfmadd.ps.512"({left}, {right}, {addend}, {rounding}) : ({types}, i32) -> {self.type}',
            self.type,
        )

    def look_up(self, number: str, values: tuple[float, ...]) -> str:
        """Of 16 or 32 values the one whose number is in the low bits of the integer `number`."""
        tables = [self.builder.from_table(values[first : first + 16], self.element) for first in range(0, len(values), 16)]
        if len(tables) == 1:
            name, operands, types = "permvar.sf", (tables[0], number), (self.type, self.integer_type)
        else:
            name, operands, types = "vpermi2var.ps", (tables[0], number, tables[1]), (self.type, self.integer_type, self.type)
        text = f'llvm.call_intrinsic "llvm.x86.avx512.{name}.512"({", ".join(operands)}) : ({", ".join(types)}) -> {self.type}'
        return self.builder.op(text, self.type)

    # Comparison. NaN compares false except with "une" and "uno".

    def compare(self, predicate: str, left: str, right: str) -> str:
        return self.builder.op(f"arith.cmpf {predicate}, {left}, {right} : {self.type}", self.mask_type)

    def select(self, mask: str, chosen: str, other: str) -> str:
        return self.builder.op(f"arith.select {mask}, {chosen}, {other} : {self.mask_type}, {self.type}", self.type)

    def mask_and(self, left: str, right: str) -> str:
        return self.builder.op(f"arith.andi {left}, {right} : {self.mask_type}", self.mask_type)

    def mask_or(self, left: str, right: str) -> str:
        return self.builder.op(f"arith.ori {left}, {right} : {self.mask_type}", self.mask_type)

    def mask_xor(self, left: str, right: str) -> str:
        return self.builder.op(f"arith.xori {left}, {right} : {self.mask_type}", self.mask_type)

    def at_least(self, bound: str, value: str) -> str:
        """max, where a NaN `value` stays: this operand order is what vmaxps does in one instruction."""
        return self.select(self.compare("ogt", bound, value), bound, value)

    def at_most(self, bound: str, value: str) -> str:
        """min, where a NaN `value` stays."""
        return self.select(self.compare("olt", bound, value), bound, value)

    # Bit patterns

    def bits(self, value: str) -> str:
        return self.builder.op(f"arith.bitcast {value} : {self.type} to {self.integer_type}", self.integer_type)

    def from_bits(self, value: str) -> str:
        return self.builder.op(f"arith.bitcast {value} : {self.integer_type} to {self.type}", self.type)

    def _int_op(self, name: str, left: str, right: str) -> str:
        return self.builder.op(f"{name} {left}, {right} : {self.integer_type}", self.integer_type)

    def int_add(self, left: str, right: str) -> str:
        return self._int_op("arith.addi", left, right)

    def int_sub(self, left: str, right: str) -> str:
        return self._int_op("arith.subi", left, right)

    def int_and(self, left: str, right: str) -> str:
        return self._int_op("arith.andi", left, right)

    def int_or(self, left: str, right: str) -> str:
        return self._int_op("arith.ori", left, right)

    def shift_left(self, value: str, count: int) -> str:
        return self._int_op("arith.shli", value, self.int_const(count))

    def shift_right(self, value: str, count: int) -> str:
        """Zeros come in at the top."""
        return self._int_op("arith.shrui", value, self.int_const(count))

    def int_compare(self, predicate: str, left: str, right: str) -> str:
        return self.builder.op(f"arith.cmpi {predicate}, {left}, {right} : {self.integer_type}", self.mask_type)

    def int_select(self, mask: str, chosen: str, other: str) -> str:
        return self.builder.op(f"arith.select {mask}, {chosen}, {other} : {self.mask_type}, {self.integer_type}", self.integer_type)

    def power_of_two(self, biased_exponent: str) -> str:
        """2^(low bits of `biased_exponent` - bias)."""
        return self.from_bits(self.shift_left(biased_exponent, self.format.mantissa_bits))


def widen(builder: VectorBuilder, value: str) -> str:
    """f32 lanes to f64 lanes, exactly."""
    return builder.op(f"arith.extf {value} : {builder.vec('f32')} to {builder.vec('f64')}", builder.vec("f64"))


def narrow(builder: VectorBuilder, value: str) -> str:
    """f64 lanes to f32 lanes, rounded to nearest even."""
    return builder.op(f"arith.truncf {value} : {builder.vec('f64')} to {builder.vec('f32')}", builder.vec("f32"))
