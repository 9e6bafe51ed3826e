"""stablehlo.rng_bit_generator: the counter-based generators of the specification, bit for bit as XLA computes them.

ThreeFry2x32 and Philox4x32-10: J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch_mlir import ir

from disc.frontend.hlo.emit import Emitter, FormError, Values, is_float, kind_of, unsigned, width_of
from disc.ir.ops import Attribute, element_of

W32, W64 = 32, 64
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
MULTIPLIERS, WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


class _Words:
    """The state as numbers of 64 bits, and arithmetic of unsigned words."""

    def __init__(self, op: ir.Operation) -> None:
        self.e = Emitter(op)
        state = op.operands[0]
        if kind_of(state).element_type != unsigned(W64) or kind_of(state).shape not in ([2], [3]):
            raise FormError(f"a state of {state.type}: it is two or three numbers of ui64")
        self.state = [self.number(state, place) for place in range(kind_of(state).shape[0])]

    def number(self, line: ir.Value, place: int) -> ir.Value:
        bounds: dict[str, Attribute] = {"start_indices": [place], "limit_indices": [place + 1], "strides": [1]}
        part = self.e.one("stablehlo.slice", [line], ir.RankedTensorType.get([1], element_of(line)), bounds)
        return self.e.one("stablehlo.reshape", [part], ir.RankedTensorType.get([], element_of(line)))

    def halves(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """(low, high)."""
        e = self.e
        return e.convert(x, unsigned(W32)), e.convert(e.number("shift_right_logical", x, W32), unsigned(W32))

    def whole(self, low: ir.Value, high: ir.Value) -> ir.Value:
        e = self.e
        return e.binary("or", e.convert(low, unsigned(W64)), e.number("shift_left", e.convert(high, unsigned(W64)), W32))

    def counted(self, count: int) -> ir.Value:
        kind = ir.RankedTensorType.get([count], unsigned(W64))
        return self.e.one("stablehlo.iota", [], kind, {"iota_dimension": 0})

    def line(self, parts: Sequence[ir.Value]) -> ir.Value:
        """Numbers side by side."""
        e, element = self.e, element_of(parts[0])
        single = ir.RankedTensorType.get([1], element)
        rows = [e.one("stablehlo.reshape", [part], single) for part in parts]
        return e.one("stablehlo.concatenate", rows, ir.RankedTensorType.get([len(rows)], element), {"dimension": 0})


def rng_bit_generator(op: ir.Operation) -> Values:
    result = kind_of(op.results[1])
    if not result.has_static_shape:
        raise FormError("random bits of a dynamic number: draw with JAX's threefry, the default")
    words = _Words(op)
    algorithm = str(op.attributes["rng_algorithm"])
    bits = width_of(result.element_type)
    if bits not in (W32, W64) or is_float(result.element_type):
        raise FormError(f"random bits of {result.element_type}")
    draw = _threefry if "THREE_FRY" in algorithm else _philox
    numbers, state = draw(words, list(result.shape), bits)
    drawn = words.e.one("stablehlo.reshape", [numbers], ir.RankedTensorType.get(result.shape, unsigned(bits)))
    return [words.line(state), words.e.bitcast(drawn, result.element_type)]


def _threefry_rounds(words: _Words, counter: tuple[ir.Value, ir.Value], key: tuple[ir.Value, ir.Value]) -> tuple[ir.Value, ir.Value]:
    """Twenty rounds, with a piece of the key after each four."""
    e, (x, y) = words.e, counter
    keys = [*key, e.number("xor", e.binary("xor", *key), PARITY)]
    x, y = e.binary("add", x, keys[0]), e.binary("add", y, keys[1])
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            x = e.binary("add", x, y)
            turned = e.binary("or", e.number("shift_left", y, distance), e.number("shift_right_logical", y, W32 - distance))
            y = e.binary("xor", x, turned)
        x = e.binary("add", x, keys[(group + 1) % 3])
        y = e.number("add", e.binary("add", y, keys[(group + 2) % 3]), group + 1)
    return x, y


def _threefry(words: _Words, shape: Sequence[int], bits: int) -> tuple[ir.Value, list[ir.Value]]:
    """State: key, counter. Each counter gives two words; numbers of 32 bits have them one after the other along a dim, the first even one,
    or the longest."""
    e, (key, counter) = words.e, words.state[:2]
    split = next((dim for dim, size in enumerate(shape) if size % 2 == 0), max(range(len(shape)), key=lambda dim: shape[dim], default=-1))
    half = list(shape)
    if bits == W32:
        half = [-(-size // 2) if dim == split else size for dim, size in enumerate(shape)] or [1]
    draws = math.prod(half)
    places = e.binary("add", words.counted(draws), counter)
    x, y = _threefry_rounds(words, words.halves(places), words.halves(key))
    after = [key, e.number("add", counter, draws)]
    if bits == W64:
        return words.whole(x, y), after
    split = max(split, 0)
    column = ir.RankedTensorType.get([*half[: split + 1], 1, *half[split + 1 :]], unsigned(W32))
    pairs = ir.RankedTensorType.get([*half[: split + 1], 2, *half[split + 1 :]], unsigned(W32))
    parts = [e.one("stablehlo.reshape", [each], column) for each in (x, y)]
    both = e.one("stablehlo.concatenate", parts, pairs, {"dimension": split + 1})
    merged = [2 * size if dim == split else size for dim, size in enumerate(half)]
    numbers = e.one("stablehlo.reshape", [both], ir.RankedTensorType.get(merged, unsigned(W32)))
    return _first(e, numbers, split, shape[split] if shape else 1), after


def _philox(words: _Words, shape: Sequence[int], bits: int) -> tuple[ir.Value, list[ir.Value]]:
    """State: key, then a counter of 128 bits, the low half first; the key is its high half where there is none. Each counter gives four
    words, side by side."""
    count = math.prod(shape)
    e, (key, low, *more) = words.e, words.state
    high = more[0] if more else key
    draws = -(-count * (bits // W32) // 4)
    place = e.binary("add", words.counted(draws), low)
    carry = e.convert(e.compare("LT", place, low), unsigned(W64))
    counter = [*words.halves(place), *words.halves(e.binary("add", carry, high))]
    found = _philox_rounds(words, counter, words.halves(key))
    after = e.number("add", low, draws)
    raised = e.binary("add", high, e.convert(e.compare("LT", after, low), unsigned(W64)))
    numbers = found if bits == W32 else [words.whole(found[0], found[1]), words.whole(found[2], found[3])]
    column = ir.RankedTensorType.get([draws, 1], unsigned(bits))
    columns = [e.one("stablehlo.reshape", [each], column) for each in numbers]
    table = e.one("stablehlo.concatenate", columns, ir.RankedTensorType.get([draws, len(columns)], unsigned(bits)), {"dimension": 1})
    flat = e.one("stablehlo.reshape", [table], ir.RankedTensorType.get([draws * len(columns)], unsigned(bits)))
    return _first(e, flat, 0, count), [key, after, *([raised] if more else [])]


def _philox_rounds(words: _Words, counter: Sequence[ir.Value], key: tuple[ir.Value, ir.Value]) -> list[ir.Value]:
    e, state, keys = words.e, list(counter), list(key)
    for _ in range(ROUNDS):
        products = [e.number("multiply", e.convert(state[2 * each], unsigned(W64)), MULTIPLIERS[each]) for each in range(2)]
        (low0, high0), (low1, high1) = map(words.halves, products)
        first, second = (e.binary("xor", high, state[place]) for high, place in ((high1, 1), (high0, 3)))
        state = [e.binary("xor", first, keys[0]), low1, e.binary("xor", second, keys[1]), low0]
        keys = [e.number("add", each, step) for each, step in zip(keys, WEYL, strict=True)]
    return state


def _first(e: Emitter, x: ir.Value, dim: int, count: int) -> ir.Value:
    """The first elements along a dim."""
    sizes = [count if each == dim else size for each, size in enumerate(kind_of(x).shape)]
    bounds: dict[str, Attribute] = {"start_indices": [0] * len(sizes), "limit_indices": sizes, "strides": [1] * len(sizes)}
    return e.one("stablehlo.slice", [x], ir.RankedTensorType.get(sizes, element_of(x)), bounds)
