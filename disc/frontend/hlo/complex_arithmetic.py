"""Arithmetic of complex numbers in real ops of StableHLO: a number is its real and its imaginary part."""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir

from disc.frontend.hlo.emit import Emitter, kind_of
from disc.ir.ops import Attribute, element_of, rank_of


@dataclass(frozen=True)
class Parts:
    """Two tensors of one shape and type."""

    re: ir.Value
    im: ir.Value


def joined(e: Emitter, parts: Parts) -> ir.Value:
    """As complex numbers lie in memory."""
    rank, shape = rank_of(parts.re), list(kind_of(parts.re).shape)
    kind = ir.RankedTensorType.get([*shape, 1], element_of(parts.re))
    sizes = [size if size >= 0 else e.size(parts.re, dim) for dim, size in enumerate(shape)]
    columns = [
        e.one("stablehlo.reshape", [each], kind)
        if kind.has_static_shape
        else e.one("stablehlo.dynamic_reshape", [each, e.sizes([*sizes, 1])], kind)
        for each in (parts.re, parts.im)
    ]
    return e.one("stablehlo.concatenate", columns, ir.RankedTensorType.get([*shape, 2], element_of(parts.re)), {"dimension": rank})


def parted(e: Emitter, x: ir.Value) -> Parts:
    return Parts(_part(e, x, 0), _part(e, x, 1))


def _part(e: Emitter, x: ir.Value, place: int) -> ir.Value:
    rank, shape = rank_of(x) - 1, list(kind_of(x).shape)[:-1]
    column, flat = (ir.RankedTensorType.get(each, element_of(x)) for each in ([*shape, 1], shape))
    if flat.has_static_shape:
        box: dict[str, Attribute] = {
            "start_indices": [0] * rank + [place],
            "limit_indices": [*shape, place + 1],
            "strides": [1] * (rank + 1),
        }
        return e.one("stablehlo.reshape", [e.one("stablehlo.slice", [x], column, box)], flat)
    sizes = [size if size >= 0 else e.size(x, dim) for dim, size in enumerate(shape)]
    bounds = [e.sizes([0] * rank + [place]), e.sizes([*sizes, place + 1]), e.sizes([1] * (rank + 1))]
    return e.one("stablehlo.dynamic_reshape", [e.one("stablehlo.real_dynamic_slice", [x, *bounds], column), e.sizes(sizes)], flat)


def negate(e: Emitter, x: Parts) -> Parts:
    return Parts(e.unary("negate", x.re), e.unary("negate", x.im))


def add(e: Emitter, x: Parts, y: Parts) -> Parts:
    return Parts(e.binary("add", x.re, y.re), e.binary("add", x.im, y.im))


def subtract(e: Emitter, x: Parts, y: Parts) -> Parts:
    return Parts(e.binary("subtract", x.re, y.re), e.binary("subtract", x.im, y.im))


def multiply(e: Emitter, x: Parts, y: Parts) -> Parts:
    def product(a: ir.Value, b: ir.Value) -> ir.Value:
        return e.binary("multiply", a, b)

    re = e.binary("subtract", product(x.re, y.re), product(x.im, y.im))
    return Parts(re, e.binary("add", product(x.re, y.im), product(x.im, y.re)))


def divide(e: Emitter, x: Parts, y: Parts) -> Parts:
    """Both by the larger part of the divisor first, so that no square overflows (R. L. Smith, "Algorithm 116", 1962)."""
    size = e.binary("maximum", e.unary("abs", y.re), e.unary("abs", y.im))
    c, d = e.binary("divide", y.re, size), e.binary("divide", y.im, size)
    divisor = e.binary("add", e.binary("multiply", y.re, c), e.binary("multiply", y.im, d))
    found = multiply(e, x, Parts(c, e.unary("negate", d)))
    return Parts(e.binary("divide", found.re, divisor), e.binary("divide", found.im, divisor))


def magnitude(e: Emitter, x: Parts) -> ir.Value:
    """Without squares of the larger part; infinite where either part is."""
    re, im = e.unary("abs", x.re), e.unary("abs", x.im)
    large, small = e.binary("maximum", re, im), e.binary("minimum", re, im)
    ratio = e.binary("divide", small, large)
    length = e.binary("multiply", large, e.unary("sqrt", e.number("add", e.binary("multiply", ratio, ratio), 1)))
    same = e.binary("or", e.compare("EQ", large, small), e.compare("EQ", large, e.constant(0, element_of(large))))
    straight = e.number("multiply", large, 2**0.5)
    infinite = e.compare("EQ", large, e.constant(float("inf"), element_of(large)))
    return e.select(infinite, large, e.select(same, straight, length))


def angle(e: Emitter, x: Parts) -> ir.Value:
    return e.binary("atan2", x.im, x.re)


def polar(e: Emitter, size: ir.Value, turn: ir.Value) -> Parts:
    """A number on the real axis stays there, whatever its size."""
    zero = e.constant(0, element_of(turn))
    im = e.binary("multiply", size, e.unary("sine", turn))
    return Parts(e.binary("multiply", size, e.unary("cosine", turn)), e.select(e.compare("EQ", turn, zero), turn, im))


def exponential(e: Emitter, x: Parts) -> Parts:
    return polar(e, e.unary("exponential", x.re), x.im)


def logarithm(e: Emitter, x: Parts) -> Parts:
    return Parts(e.unary("log", magnitude(e, x)), angle(e, x))


def exponential_minus_one(e: Emitter, x: Parts) -> Parts:
    """exp(a) cos(b) - 1 = expm1(a) cos(b) - 2 sin(b / 2)²: nothing cancels near 0."""
    half = e.unary("sine", e.number("multiply", x.im, 0.5))
    rest = e.number("multiply", e.binary("multiply", half, half), 2)
    grown = e.binary("multiply", e.unary("exponential_minus_one", x.re), e.unary("cosine", x.im))
    return Parts(e.binary("subtract", grown, rest), exponential(e, x).im)


def log_plus_one(e: Emitter, x: Parts) -> Parts:
    """|1 + z|² - 1 = a (2 + a) + b², of which no digit is lost to the 1. The two terms cancel where a is about -b² / 2:
    there the real part, close to 0, is exact relative to b² alone."""
    above = Parts(e.number("add", x.re, 1), x.im)
    squares = e.binary("multiply", x.re, e.number("add", x.re, 2)), e.binary("multiply", x.im, x.im)
    small = e.number("multiply", e.unary("log_plus_one", e.binary("add", *squares)), 0.5)
    near = e.compare("LT", e.binary("add", e.unary("abs", x.re), e.unary("abs", x.im)), e.constant(0.5, element_of(x.re)))
    return Parts(e.select(near, small, e.unary("log", magnitude(e, above))), angle(e, above))


def cube_root(e: Emitter, x: Parts) -> Parts:
    """The one with a third of the angle."""
    return polar(e, e.unary("cbrt", magnitude(e, x)), e.number("multiply", angle(e, x), 1 / 3))


def square_root(e: Emitter, x: Parts) -> Parts:
    """The root with a real part that is not negative: sqrt((|x| + |re|) / 2), and from it the other part, without a difference."""
    zero = e.constant(0, element_of(x.re))
    half = e.number("multiply", e.binary("add", magnitude(e, x), e.unary("abs", x.re)), 0.5)
    root = e.unary("sqrt", half)
    other = e.number("multiply", e.binary("divide", e.unary("abs", x.im), root), 0.5)
    nothing = e.compare("EQ", root, zero)
    other = e.select(nothing, root, other)
    right = e.compare("GE", x.re, zero)
    re, size = e.select(right, root, other), e.select(right, other, root)
    return Parts(re, e.select(e.compare("LT", x.im, zero), e.unary("negate", size), size))


def one_over_root(e: Emitter, x: Parts) -> Parts:
    root = square_root(e, x)
    ones = e.number("add", e.binary("multiply", root.re, e.constant(0, element_of(root.re))), 1)
    return divide(e, Parts(ones, e.number("multiply", ones, 0)), root)


def power(e: Emitter, x: Parts, y: Parts) -> Parts:
    """exp(y log x); 0 to any power but 0 is 0."""
    found = exponential(e, multiply(e, y, logarithm(e, x)))
    zero = e.constant(0, element_of(x.re))

    def is_zero(z: Parts) -> ir.Value:
        return e.binary("and", e.compare("EQ", z.re, zero), e.compare("EQ", z.im, zero))

    none, first = is_zero(x), is_zero(y)
    one = e.select(first, e.constant(1, element_of(x.re)), zero)
    nothing = e.binary("or", none, first)
    return Parts(e.select(nothing, one, found.re), e.select(nothing, zero, found.im))


def hyperbolic(e: Emitter, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(sinh, cosh)."""
    return e.one("chlo.sinh", [x], x.type), e.one("chlo.cosh", [x], x.type)


def sine(e: Emitter, x: Parts) -> Parts:
    sinh, cosh = hyperbolic(e, x.im)
    return Parts(e.binary("multiply", e.unary("sine", x.re), cosh), e.binary("multiply", e.unary("cosine", x.re), sinh))


def cosine(e: Emitter, x: Parts) -> Parts:
    sinh, cosh = hyperbolic(e, x.im)
    return Parts(e.binary("multiply", e.unary("cosine", x.re), cosh), e.unary("negate", e.binary("multiply", e.unary("sine", x.re), sinh)))


def tangent(e: Emitter, x: Parts, turned: bool) -> Parts:
    """tan, or with `turned` tanh (tanh z = -i tan iz), in which nothing overflows.

    With t = tan of the part that turns, h = tanh of the other: (h (1 + t²), t (1 - h²)) / (1 + (h t)²)."""
    straight, turn = (x.re, x.im) if turned else (x.im, x.re)
    t, h = e.one("chlo.tan", [turn], turn.type), e.unary("tanh", straight)
    squares = [e.binary("multiply", each, each) for each in (t, h)]
    divisor = e.number("add", e.binary("multiply", *squares), 1)
    along = e.binary("divide", e.binary("multiply", h, e.number("add", squares[0], 1)), divisor)
    rest = e.binary("multiply", e.number("add", h, 1), e.number("subtract", h, 1))
    across = e.binary("divide", e.unary("negate", e.binary("multiply", t, rest)), divisor)
    return Parts(along, across) if turned else Parts(across, along)


def logistic(e: Emitter, x: Parts) -> Parts:
    """(1 + tanh(x / 2)) / 2."""
    half = tangent(e, Parts(e.number("multiply", x.re, 0.5), e.number("multiply", x.im, 0.5)), turned=True)
    return Parts(e.number("add", e.number("multiply", half.re, 0.5), 0.5), e.number("multiply", half.im, 0.5))


def sign(e: Emitter, x: Parts) -> Parts:
    size, zero = magnitude(e, x), e.constant(0, element_of(x.re))
    nothing = e.compare("EQ", size, zero)
    return Parts(*(e.select(nothing, zero, e.binary("divide", each, size)) for each in (x.re, x.im)))
