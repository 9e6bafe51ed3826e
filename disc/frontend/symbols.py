"""Symbols of a PyTorch program: sympy sizes → the text of `disc.dims`, and → index arithmetic in the IR."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from fractions import Fraction

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy import functions as torch_sympy
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy
from torch_mlir import ir

from disc.frontend.computed_numbers import FLOOR_DIVISION, MODULO, ROUNDING, is_whole, name_of
from disc.shapes.algebra import is_power_of_two

Size = int | sympy.Expr
Shape = tuple[Size, ...]

# sympy node → the name in the grammar of expressions, and the arith op of the binary step.
MINIMUM = (sympy.Min, torch_sympy.Min)
MAXIMUM = (sympy.Max, torch_sympy.Max)
_MOST_EXTREMES = 4  # in a size whose bound is looked for case by case
EXACT = 1 << 10  # a factor k / d with k, d up to this gives the same integer in exact arithmetic as in f64, for sizes below 2**42


class SymbolError(Exception):
    """An expression that the index arithmetic or the grammar of dims cannot say; the frontend reports it with the user's line."""


def to_size(value: object) -> Size:
    """An `int`, `torch.SymInt` or sympy expression as a plain int (when constant) or a sympy expression.

    Raises: TypeError for anything else.
    """
    if isinstance(value, torch.SymInt):
        value = value.node.expr
    if isinstance(value, sympy.Expr):
        return int(value) if value.is_Integer else value
    if isinstance(value, int):
        return int(value)
    raise TypeError(f"not a size: {value!r}")


def to_shape(values: Iterable[object]) -> Shape:
    return tuple(to_size(value) for value in values)


def product(sizes: Iterable[Size]) -> Size:
    result: sympy.Expr = sympy.Integer(1)
    for size in sizes:
        result = result * size
    return to_size(result)


def simplified(size: Size | sympy.Expr) -> Size:
    return to_size(sympy.expand(size)) if isinstance(size, sympy.Expr) else size


def same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are the same expression after expansion (never a guess)."""
    return a == b or (not (isinstance(a, int) and isinstance(b, int)) and simplified(sympy.sympify(a) - sympy.sympify(b)) == 0)


def same_shape(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(same_size(x, y) for x, y in zip(a, b, strict=True))


def to_text(size: Size) -> str:
    """`size` in the grammar of `disc/shapes/env.py`: "s0 * 2 + 1", "floordiv(a, b)", "mod(a, b)", "min(a, b)", "max(a, b)".

    Raises: SymbolError for what the grammar cannot say.
    """
    if isinstance(size, int) or size.is_Integer:
        return str(int(size))
    if isinstance(size, sympy.Symbol):
        return size.name
    if isinstance(size, sympy.Add):
        return _join_sum(_ordered(size))
    if isinstance(size, sympy.Mul):
        return " * ".join(_parenthesised(argument) for argument in _ordered(size))
    if isinstance(size, sympy.Pow) and size.exp.is_Integer and int(size.exp) > 0:
        return " * ".join([_parenthesised(size.base)] * int(size.exp))
    if isinstance(size, ROUNDING):
        exact = _integer_form(size)
        return exact if isinstance(exact, str) else to_text(exact)
    name = _function_name(size)
    first, *others = (to_text(_sympy(argument)) for argument in size.args)
    for other in others:  # sympy's minimum takes any number of operands, the grammar's takes two
        first = f"{name}({first}, {other})"
    return first


def _sympy(value: sympy.Basic) -> sympy.Expr:
    if isinstance(value, sympy.Expr):
        return value
    raise SymbolError(f"the size expression {value} is not arithmetic")


def _ordered(size: sympy.Expr) -> list[sympy.Expr]:
    """The terms of a sum or product: symbols first by text, constants last, so that the text is deterministic."""
    return sorted((_sympy(argument) for argument in size.args), key=lambda term: (bool(term.is_Number), str(term)))


def _join_sum(terms: list[sympy.Expr]) -> str:
    text = to_text(terms[0])
    for term in terms[1:]:
        negative = term.could_extract_minus_sign()
        text += f" - {_parenthesised(-term)}" if negative else f" + {to_text(term)}"
    return text


def _parenthesised(term: sympy.Expr) -> str:
    exact = _integer_form(term) if isinstance(term, ROUNDING) else term  # which may be a sum
    if isinstance(exact, str):
        return exact
    term, text = exact, to_text(exact)
    return f"({text})" if isinstance(term, sympy.Add) or text.startswith("-") else text


def _function_name(size: sympy.Expr) -> str:
    for kinds, name in ((FLOOR_DIVISION, "floordiv"), (MODULO, "mod"), (MINIMUM, "min"), (MAXIMUM, "max")):
        if isinstance(size, kinds):
            return name
    raise SymbolError(f"the size expression {size} has no integer form")


def _integer_form(size: sympy.Expr) -> sympy.Expr | str:
    """A whole part of a float as an integer division, or the name of the number that a call computes as Python does.

    Raises: SymbolError where there is neither.
    """
    try:
        return _exact_quotient(size)
    except SymbolError:
        name = name_of(size)
        if name is None:
            raise
        return name


def _exact_quotient(size: sympy.Expr) -> sympy.Expr:
    """`math.floor`, `math.ceil`, `int` or `round` of a fraction of sizes as an integer division.

    Raises: SymbolError where rounding of the float decides (a factor such as 0.7), and for `int` of what may be negative.
    """
    try:
        if isinstance(size, torch_sympy.RoundToInt):
            return _nearest(*_fraction(_sympy(size.args[0])))
        total, divisor = _rounded_product(size) or _fraction(_sympy(size.args[0]))
    except _Rounded:
        raise SymbolError(f"the size expression {size} has no integer form") from None
    if isinstance(size, torch_sympy.TruncToInt) and divisor != 1 and not total.is_nonnegative:
        raise SymbolError(f"the size expression {size} has no integer form")
    if isinstance(size, torch_sympy.CeilToInt):
        total = total + divisor - 1
    return _sympy(sympy.sympify(torch_sympy.FloorDiv(total, sympy.Integer(divisor))))


def _nearest(total: sympy.Expr, divisor: int) -> sympy.Expr:
    """total / divisor rounded to the nearest integer; of two that are as near, to the even one. As an f64, what lies halfway between two
    integers is as exact as an integer (`_fraction`)."""
    twice, whole = 2 * total + divisor, sympy.Integer(2 * divisor)
    nearest = _sympy(sympy.sympify(torch_sympy.FloorDiv(twice, whole)))
    if divisor % 2:
        return nearest
    is_between = _sympy(sympy.sympify(torch_sympy.Min(sympy.Integer(1), torch_sympy.PythonMod(twice, whole))))
    is_odd = _sympy(sympy.sympify(torch_sympy.PythonMod(nearest, sympy.Integer(2))))
    return nearest - (1 - is_between) * is_odd


def _rounded_product(size: sympy.Expr) -> tuple[sympy.Expr, int] | None:
    """Of `int(0.3 * n)`, the numerator and denominator of 3 n / 10, which has the same whole part as the f64; None for another form.

    The f64 next to p / q is a little more, or less. The product with a size is rounded to the nearest f64, and where p n / q is no integer,
    that is as far from the next one as 1 / q, which is more, for integers below 2**42. Where it is an integer m, an f64 below p / q may
    have a product that stays below m, so that a floor is m - 1; it has none where it is off by 2**-54 of its value or less: then m times
    that is at most half of the distance from m to the f64 below, and a product halfway between the two is rounded to m, whose last bit
    is 0 below 2**52. For a ceiling it must not stay above, likewise.

    Raises: SymbolError where it may.
    """
    factor, rest = _sympy(size.args[0]).as_coeff_Mul()
    if not isinstance(factor, sympy.Float) or not isinstance(rest, torch_sympy.ToFloat) or factor <= 0:
        return None
    exact = Fraction(float(factor))
    ratio = exact.limit_denominator(EXACT)
    if exact.denominator <= EXACT or float(ratio) != float(factor):
        return None
    missing = (ratio - exact) / ratio if not isinstance(size, torch_sympy.CeilToInt) else (exact - ratio) / ratio
    if missing > Fraction(1, 1 << 54) or ratio.numerator > EXACT * EXACT:
        exactly = f"size * {ratio.numerator} // {ratio.denominator}"
        raise SymbolError(f"how {float(factor)} * size is rounded depends on the size, and decides; {exactly} is exact")
    return _sympy(rest.args[0]) * ratio.numerator, ratio.denominator


class _Rounded(Exception):
    """How a float is rounded may decide about the result."""


def _fraction(value: sympy.Expr) -> tuple[sympy.Expr, int]:
    """A float as numerator / denominator, both integers, which rounds to the same integers as the f64.

    Sums and products of short binary fractions are exact in f64. A division by another number may be rounded, once: where the result is
    an integer, so is every step a short binary fraction, and otherwise it is further from an integer than the rounding.

    Raises: _Rounded.
    """
    if isinstance(value, sympy.Float | sympy.Rational):
        fraction = Fraction(float(value)) if isinstance(value, sympy.Float) else Fraction(int(value.p), int(value.q))
        return sympy.Integer(fraction.numerator), _short(fraction.denominator)
    if isinstance(value, torch_sympy.Identity):  # where no step is rounded, where they end is no matter
        return _fraction(_sympy(value.args[0]))
    if isinstance(value, torch_sympy.ToFloat) or is_whole(value):
        return _sympy(value.args[0]) if isinstance(value, torch_sympy.ToFloat) else value, 1
    if isinstance(value, torch_sympy.IntTrueDiv | torch_sympy.FloatTrueDiv):
        dividend, by = _fraction(_sympy(value.args[0])), _fraction(_sympy(value.args[1]))
        if not by[0].is_Integer or by[0] <= 0:
            raise _Rounded
        return _scaled(dividend, Fraction(by[1], _short(int(by[0]))))
    if isinstance(value, sympy.Mul):
        factor, rest = value.as_coeff_Mul()
        if factor != 1:
            ratio, denominator = _fraction(factor)
            return _scaled(_fraction(_sympy(rest)), Fraction(_short(int(ratio)), denominator))
    if isinstance(value, sympy.Add):
        parts = [_fraction(_sympy(part)) for part in value.args]
        if sum(not is_power_of_two(denominator) for _, denominator in parts) <= 1:
            common = _short(math.lcm(*(denominator for _, denominator in parts)))
            return sympy.Add(*(numerator * (common // denominator) for numerator, denominator in parts)), common
    raise _Rounded


def _scaled(value: tuple[sympy.Expr, int], ratio: Fraction) -> tuple[sympy.Expr, int]:
    numerator, denominator = value
    if not is_power_of_two(denominator) and not (is_power_of_two(abs(ratio.numerator)) and is_power_of_two(ratio.denominator)):
        raise _Rounded
    return numerator * ratio.numerator, _short(denominator * ratio.denominator)


def _short(number: int) -> int:
    if abs(number) > EXACT:
        raise _Rounded
    return number


class IndexArithmetic:
    """Emits sympy sizes as `arith` ops on `index`, once per expression: at the top of the function, or where all its symbols are bound.

    bases: symbol name → a function that emits the symbol's value (`tensor.dim` of an argument, a cast of a scalar argument); late: those
    that ops bind, in their order → what follows the op; compute: binds a number of `computed_numbers` at the insertion point.
    """

    compute: Callable[[str, sympy.Basic], None]

    def __init__(self, anchor: ir.Operation, bases: dict[str, Callable[[], ir.Value]]) -> None:
        self.anchor = anchor
        self.bases = bases
        self.late: dict[str, ir.Operation] = {}
        self.cache: dict[Size, ir.Value] = {}
        self.index = ir.IndexType.get()

    def bind(self, name: str, number: ir.Value) -> None:
        """A symbol gets its meaning at the insertion point: the value of a tensor of i64 without dims."""
        word = ir.IntegerType.get_signless(64)
        value = ir.Operation.create("tensor.extract", results=[word], operands=[number]).result
        size = ir.Operation.create("arith.index_cast", results=[self.index], operands=[value]).result
        self.bases[name] = lambda: size
        self.late[name] = ir.Operation.create(
            "arith.constant", results=[self.index], attributes={"value": ir.IntegerAttr.get(self.index, 0)}
        )

    def finish(self) -> None:
        """Erases the marks of the places for arithmetic."""
        for anchor in (self.anchor, *self.late.values()):
            anchor.erase()

    def place(self, size: sympy.Basic | int) -> ir.Operation:
        """What the arithmetic of a size stands before."""
        names = (
            {symbol.name for symbol in size.free_symbols if isinstance(symbol, sympy.Symbol)}
            if isinstance(size, sympy.Basic)
            else set[str]()
        )
        bound = [anchor for name, anchor in self.late.items() if name in names]
        return bound[-1] if bound else self.anchor

    def emit(self, size: Size) -> ir.Value:
        """The index value of `size`.

        Raises: SymbolError when a symbol depends on data or the expression is not integer arithmetic.
        """
        return self._emit(to_size(size))

    def _emit(self, size: Size) -> ir.Value:
        if size not in self.cache:
            with ir.InsertionPoint(self.place(size)), ir.Location.unknown():
                self.cache[size] = self._emit_uncached(size)
        return self.cache[size]

    def _emit_uncached(self, size: Size) -> ir.Value:
        if isinstance(size, int):
            return self.constant(size)
        if isinstance(size, sympy.Symbol):
            if size.name not in self.bases:
                raise SymbolError(f"the size {size} depends on data")
            return self.bases[size.name]()
        if isinstance(size, sympy.Add):
            return self._emit_sum(_ordered(size))
        if isinstance(size, sympy.Mul):
            return self._emit_product(_ordered(size))
        if isinstance(size, sympy.Pow) and size.exp.is_Integer and int(size.exp) > 0:
            return self._fold("arith.muli", [size.base] * int(size.exp))
        if isinstance(size, FLOOR_DIVISION + MODULO) and any(not s.is_nonnegative for s in size.args[1].free_symbols):
            raise SymbolError(f"it divides by {size.args[1]}, which is no size and may be zero or negative")
        if isinstance(size, MODULO) and not all(_sympy(each).is_nonnegative for each in size.args):  # `remsi` takes the dividend's sign
            dividend, divisor = map(_sympy, size.args)
            quotient = self._emit(to_size(torch_sympy.FloorDiv(dividend, divisor)))
            return self.binary("arith.subi", self._emit(dividend), self.binary("arith.muli", quotient, self._emit(to_size(divisor))))
        if isinstance(size, ROUNDING):
            exact = _integer_form(size)
            return self._emit_computed(exact, size) if isinstance(exact, str) else self._emit(exact)
        op = {"floordiv": "arith.floordivsi", "mod": "arith.remsi", "min": "arith.minsi", "max": "arith.maxsi"}[_function_name(size)]
        return self._fold(op, [_sympy(argument) for argument in size.args])

    def _emit_computed(self, name: str, number: sympy.Expr) -> ir.Value:
        if name not in self.bases:
            self.compute(name, number)
        return self.bases[name]()

    def _emit_sum(self, terms: list[sympy.Expr]) -> ir.Value:
        positive = [term for term in terms if not term.could_extract_minus_sign()]
        negative = [-term for term in terms if term.could_extract_minus_sign()]
        total = self._fold("arith.addi", positive) if positive else self.constant(0)
        for term in negative:
            total = self.binary("arith.subi", total, self._emit(to_size(term)))
        return total

    def _emit_product(self, terms: list[sympy.Expr]) -> ir.Value:
        if any(term.is_Rational and not term.is_Integer for term in terms):
            raise SymbolError(f"the size expression {sympy.Mul(*terms)} has no integer form")
        return self._fold("arith.muli", terms)

    def _fold(self, op: str, terms: list[sympy.Expr]) -> ir.Value:
        result = self._emit(to_size(terms[0]))
        for term in terms[1:]:
            result = self.binary(op, result, self._emit(to_size(term)))
        return result

    def constant(self, value: int) -> ir.Value:
        """Raises: SymbolError for a number that 64 bits do not hold."""
        if not -(2**63) <= value < 2**63:
            raise SymbolError(f"{value} is larger than any size")
        attribute = ir.IntegerAttr.get(self.index, value)
        return ir.Operation.create("arith.constant", results=[self.index], attributes={"value": attribute}).result

    def binary(self, op: str, a: ir.Value, b: ir.Value) -> ir.Value:
        return ir.Operation.create(op, results=[self.index], operands=[a, b]).result


def linear_form(size: sympy.Expr) -> tuple[int, int] | None:
    """(factor, offset) of a size of one symbol such as `s0` or `2*s1 + 3`, which determines the symbol; None for any other."""
    if len(size.free_symbols) != 1:
        return None
    (symbol,) = size.free_symbols
    factor, offset = sympy.expand(size).coeff(symbol, 1), sympy.expand(size).coeff(symbol, 0)
    linear = factor.is_Integer and offset.is_Integer and int(factor) > 0 and sympy.expand(factor * symbol + offset - size) == 0
    return (int(factor), int(offset)) if linear else None


def solve_base(
    size: sympy.Expr, value: Callable[[], ir.Value], arithmetic: Callable[[], IndexArithmetic]
) -> dict[str, Callable[[], ir.Value]]:
    """How to read the symbol out of a dim of size `size` whose runtime value is `value`: plain `s0`, or linear `2*s1 + 3`."""
    form = linear_form(size)
    if form is None:
        return {}
    factor, offset = form
    name = str(next(iter(size.free_symbols)))
    if form == (1, 0):
        return {name: value}

    def solve() -> ir.Value:
        maths = arithmetic()
        shifted = maths.binary("arith.subi", value(), maths.constant(offset)) if offset != 0 else value()
        return maths.binary("arith.floordivsi", shifted, maths.constant(factor))

    return {name: solve}


def relaxed_minimum(
    symbol: sympy.Symbol, ranges: dict[sympy.Symbol, ValueRanges], sizes: Iterable[sympy.Expr], always: bool = False
) -> tuple[sympy.Expr, sympy.Expr | None]:
    """The smallest size of `symbol` for which every size of the graph stays non-negative, and the size that would not.

    PyTorch specializes sizes 0 and 1 and therefore bounds every size from below by 2, not because the user's program needs 2; but it
    also simplifies with that bound (`x[1:]` has size `s0 - 1`, wrong for 0), so the bound is only lowered as far as no size becomes
    negative. A bound that makes no size exactly 2 has another reason, a branch or the user's own minimum, and stays, unless these are
    checked by themselves (always).
    """
    if ranges[symbol].lower <= 0:  # an integer that is no size may have no lower bound
        return ranges[symbol].lower, None
    lower = int(ranges[symbol].lower)
    using = [size for size in sizes if symbol in size.free_symbols]
    if not always and lower != 2 and not any(size.free_symbols == {symbol} and size.subs(symbol, lower) == 2 for size in using):
        return sympy.Integer(lower), None

    def negative(minimum: int) -> sympy.Expr | None:
        trial = {**ranges, symbol: ValueRanges(minimum, ranges[symbol].upper)}
        return next((size for size in using if _lower_bound(size, trial) < min(0, _lower_bound(size, ranges))), None)

    least = bisect.bisect_left(range(lower), True, key=lambda minimum: negative(minimum) is None)
    return sympy.Integer(least), negative(least - 1) if least else None


def shape_environment(values: Iterable[object]) -> ShapeEnv | None:
    """The environment that made the symbols of these tensors and sizes; None when nothing is dynamic."""
    for value in values:
        for size in value.shape if isinstance(value, torch.Tensor) else [value]:
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def _lower_bound(size: sympy.Expr, ranges: dict[sympy.Symbol, ValueRanges]) -> sympy.Expr:
    """Intervals forget that both sides of `n - max(n, 4) + 4` are the same n: a maximum is one of its operands, so the least bound over
    these is one too."""
    bound = bound_sympy(size, ranges).lower
    extremes = sorted(size.atoms(*MINIMUM, *MAXIMUM), key=str) if bound < 0 else []
    if not extremes or len(extremes) > _MOST_EXTREMES:
        return bound
    cases = [_lower_bound(sympy.expand(size.xreplace({extremes[0]: operand})), ranges) for operand in extremes[0].args]
    return max(bound, min(cases))


def lower_limit(value_range: ValueRanges) -> int | None:
    """The least value, or None when there is none (an integer that is no size)."""
    lower = value_range.lower
    return int(lower) if lower.is_Integer and int(lower) > -(2**62) else None


def upper_limit(value_range: ValueRanges) -> int | None:
    """The user's maximum, or None when there is none."""
    upper = value_range.upper
    if upper in (int_oo, sympy.oo) or not upper.is_Integer or int(upper) >= 2**62:
        return None
    return int(upper)


def provably_non_negative(size: Size, ranges: dict[sympy.Symbol, ValueRanges]) -> bool:
    if isinstance(size, int):
        return size >= 0
    return bool(_lower_bound(size, ranges) >= 0)
