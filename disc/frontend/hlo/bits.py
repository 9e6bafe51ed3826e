"""Reinterpreted bits, and floats rounded to fewer of them."""

from __future__ import annotations

import numpy as np
from torch_mlir import ir

from disc.frontend.hlo.emit import Emitter, Values, kind_of, like, unsigned, width_of
from disc.ir.ops import element_of, int_attr, rank_of

SIGNIFICANDS = {"f64": 52, "f32": 23, "f16": 10, "bf16": 7}


def bitcast_convert(op: ir.Operation) -> Values | None:
    """Between elements of different widths: the last dim holds the parts of the wider one, the lowest bits first."""
    e, x, wanted = Emitter(op), op.operands[0], element_of(op.results[0])
    narrow, wide = sorted((width_of(element_of(x)), width_of(wanted)))
    if narrow == wide:
        return None
    number, part = unsigned(wide), unsigned(narrow)
    count = wide // narrow
    if width_of(element_of(x)) == wide:
        rank = rank_of(x)
        parts = ir.RankedTensorType.get([*kind_of(x).shape, count], number)
        sizes = e.sizes([*(e.size(x, dim) for dim in range(rank)), count])
        spread = e.one(
            "stablehlo.dynamic_broadcast_in_dim", [e.bitcast(x, number), sizes], parts, {"broadcast_dimensions": list(range(rank))}
        )
        shifted = e.binary("shift_right_logical", spread, _distances(e, spread, narrow, count, number))
        return [e.bitcast(e.convert(shifted, part), wanted)]
    raised = e.convert(e.bitcast(x, part), number)
    moved = e.binary("shift_left", raised, _distances(e, raised, narrow, count, number))
    return [e.bitcast(e.reduce("or", moved, [rank_of(x) - 1]), wanted)]


def _distances(e: Emitter, full: ir.Value, bits: int, count: int, element: ir.Type) -> ir.Value:
    """By how many bits part i is shifted, in the shape of `full`."""
    line = e.array((np.arange(count) * bits).astype(f"u{width_of(element) // 8}"), ir.RankedTensorType.get([count], element))
    return e.expand(line, full, [rank_of(full) - 1])


def reduce_precision(op: ir.Operation) -> Values:
    """Rounds to the nearest float of so many bits, ties to even. What is too large for the exponent is infinite, what is too small is 0."""
    e, x = Emitter(op), op.operands[0]
    exponent, mantissa = int_attr(op, "exponent_bits"), int_attr(op, "mantissa_bits")
    element = element_of(x)
    width, significand = width_of(element), SIGNIFICANDS[str(element)]
    word = unsigned(width)
    bits = e.bitcast(x, word)
    if mantissa < significand:
        drop = significand - mantissa
        last = e.number("and", e.number("shift_right_logical", bits, drop), 1)
        bits = e.binary("add", bits, e.number("add", last, 2 ** (drop - 1) - 1))
        bits = e.number("and", bits, 2**width - 2**drop)
    sign = e.number("and", e.bitcast(x, word), 2 ** (width - 1))
    own = width - 1 - significand
    if exponent < own:
        bias, reduced = 2 ** (own - 1) - 1, 2 ** (exponent - 1) - 1
        magnitude = e.number("and", bits, (2**own - 1) << significand)
        over = e.compare("GT", magnitude, e.constant((bias + reduced) << significand, word))
        under = e.compare("LE", magnitude, e.constant((bias - reduced) << significand, word))
        infinite = e.number("or", sign, (2**own - 1) << significand)
        bits = e.select(over, infinite, e.select(under, sign, bits))
    rounded = e.bitcast(bits, element)
    unordered = e.compare("NE", x, x)
    if mantissa == 0:  # no bit is left that tells NaN from infinity
        return [e.select(unordered, e.constant(np.inf, element), rounded)]
    assert like(x) == rounded.type
    return [e.select(unordered, x, rounded)]
