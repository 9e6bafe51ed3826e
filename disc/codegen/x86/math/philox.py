"""`disc.philox` on vectors of lanes: ten rounds of two products of 32 by 32 bits."""

from __future__ import annotations

from collections.abc import Sequence

from disc.codegen.mlir.builder import Builder
from disc.ir.graph import Node
from disc.ir.philox import KEY_STEPS, MULTIPLIERS, ROUNDS

_LOW_HALF = 0xFFFFFFFF
_HIGH_HALF = _LOW_HALF << 32


def emit_philox(b: Builder, node: Node, operands: Sequence[str]) -> str:
    """The random words of i64 positions under i64 seeds. As in `disc.ir.philox`, bit for bit."""
    position, seed = (_halves(b, operand) for operand in operands)
    stream, word = node.integer("stream"), node.integer("word")
    counter = [*position, _word(b, stream), _word(b, stream >> 32)]
    for number in range(ROUNDS):
        keys = [_binary(b, "addi", key, _word(b, number * step)) if number else key for key, step in zip(seed, KEY_STEPS, strict=True)]
        low, high, third, fourth = counter
        (even_low, even_high), (odd_low, odd_high) = _product(b, low, MULTIPLIERS[0]), _product(b, third, MULTIPLIERS[1])
        counter = [_xor(b, odd_high, high, keys[0]), odd_low, _xor(b, even_high, fourth, keys[1]), even_low]
    return counter[word]


def _product(b: Builder, value: str, factor: int) -> tuple[str, str]:
    """The low and the high word of each lane's product.

    Lanes are multiplied as they lie, the even ones and the odd ones of a vector: to widen them would take as many shuffles again.
    """
    if b.lanes % 2:
        wide = _wide_product(b, b.op(f"arith.extui {value} : {b.vec('i32')} to {b.vec('i64')}"), factor, b.vec("i64"))
        return _halves(b, wide)
    pairs, words = f"vector<{b.lanes // 2}xi64>", b.vec("i32")
    both = b.op(f"vector.bitcast {value} : {words} to {pairs}")
    thirty_two, low_half, high_half = (_splat(b, number, pairs) for number in (32, _LOW_HALF, _HIGH_HALF))
    even = _wide_product(b, b.op(f"arith.andi {both}, {low_half} : {pairs}"), factor, pairs)
    odd = _wide_product(b, b.op(f"arith.shrui {both}, {thirty_two} : {pairs}"), factor, pairs)
    low = (b.op(f"arith.andi {even}, {low_half} : {pairs}"), b.op(f"arith.shli {odd}, {thirty_two} : {pairs}"))
    high = (b.op(f"arith.shrui {even}, {thirty_two} : {pairs}"), b.op(f"arith.andi {odd}, {high_half} : {pairs}"))
    joined = [b.op(f"arith.ori {first}, {second} : {pairs}") for first, second in (low, high)]
    first, second = (b.op(f"vector.bitcast {each} : {pairs} to {words}") for each in joined)
    return first, second


def _wide_product(b: Builder, value: str, factor: int, kind: str) -> str:
    return b.op(f"arith.muli {value}, {_splat(b, factor, kind)} : {kind}")


def _halves(b: Builder, value: str) -> tuple[str, str]:
    """The low and the high word of i64 lanes."""
    wide, words = b.vec("i64"), b.vec("i32")
    above = b.op(f"arith.shrui {value}, {b.const(32, 'i64')} : {wide}")
    first, second = (b.op(f"arith.trunci {each} : {wide} to {words}") for each in (value, above))
    return first, second


def _xor(b: Builder, first: str, second: str, third: str) -> str:
    return _binary(b, "xori", _binary(b, "xori", first, second), third)


def _binary(b: Builder, name: str, first: str, second: str) -> str:
    return b.op(f"arith.{name} {first}, {second} : {b.vec('i32')}")


def _word(b: Builder, number: int) -> str:
    """The low 32 bits of a number in every lane."""
    bits = number & _LOW_HALF
    return b.const(bits - (bits >> 31 << 32), "i32")


def _splat(b: Builder, number: int, kind: str) -> str:
    """64 bits in every lane of the type `kind`."""
    return b.constant(f"arith.constant dense<{number - (number >> 63 << 64)}> : {kind}")
