"""Values of shape arithmetic: what an op computes when its operands are sizes, as expressions of the dim symbols.

A host value is a NumPy object array (rank 0 for scalars) of `Dim` for integers and booleans, of `Ratio` for f64. Every rule
returns None when the result is not an expression of sizes; the op is then data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from torch_mlir import ir

from disc.ir.ops import dense_to_array
from disc.shapes import ALWAYS, NEVER, Comparison, Condition, Dim, Mod, ShapeEnv, Truth, all_of, any_of, ceildiv, dim_max, dim_min
from disc.shapes.algebra import is_power_of_two

HostValue = npt.NDArray[np.object_]

# A host value describes shapes, so it is small; longer tensors are data.
MAX_ELEMENTS = 64
# Quotients of sizes are exact in f64 as long as constants stay short: see `Ratio`.
MAX_DENOMINATOR = 1024

ONE = Dim.of(1)
ZERO = Dim.of(0)


@dataclass(frozen=True)
class Ratio:
    """An f64 that PyTorch computes on the way from sizes to a size: `numerator / denominator`, the denominator positive.

    Floor and ceil of the rounded f64 quotient equal those of the exact one while both sides are integers below 2^53 and
    the rounding happens once; other constants than short binary fractions are therefore refused, and what is computed of a
    rounded quotient but its products with powers of two.
    """

    numerator: Dim
    denominator: Dim = ONE

    @property
    def is_rounded(self) -> bool:
        return not (self.denominator.is_const and is_power_of_two(self.denominator.const))

    @property
    def is_scale(self) -> bool:
        """Whether products with it are exact."""
        return self.numerator.is_const and is_power_of_two(abs(self.numerator.const)) and not self.is_rounded

    def __add__(self, other: Ratio) -> Ratio:
        return Ratio(self.numerator * other.denominator + other.numerator * self.denominator, self.denominator * other.denominator)

    def __mul__(self, other: Ratio) -> Ratio:
        return Ratio(self.numerator * other.numerator, self.denominator * other.denominator)

    def __neg__(self) -> Ratio:
        return Ratio(-self.numerator, self.denominator)


def ratio_of(value: float) -> Ratio | None:
    """A constant as a ratio; None for one that is not a short binary fraction, or that i64 does not hold."""
    if not abs(value) < 2.0**63:
        return None
    fraction = Fraction(value)
    if fraction.denominator > MAX_DENOMINATOR:
        return None
    return Ratio(Dim.of(fraction.numerator), Dim.of(fraction.denominator))


def scalar(value: Dim | Ratio) -> HostValue:
    """A host value of rank 0."""
    array = np.empty((), object)
    array[()] = value
    return array


def vector(values: Sequence[Dim | Ratio]) -> HostValue:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def elements(value: HostValue) -> list[Dim | Ratio]:
    return list(value.reshape(-1))


def is_constant(value: HostValue) -> bool:
    """Whether no symbol occurs in `value`."""
    parts = [(item,) if isinstance(item, Dim) else (item.numerator, item.denominator) for item in elements(value)]
    return all(part.is_const for pair in parts for part in pair)


def known_int(item: Dim | Ratio) -> int | None:
    """The integer that `item` is, None if it depends on a symbol or is an f64."""
    return item.const if isinstance(item, Dim) and item.is_const else None


def host_constant(attribute: ir.Attribute) -> HostValue | None:
    """The host value of a constant op's `value` attribute; None for data."""
    if isinstance(attribute, ir.IntegerAttr | ir.BoolAttr):
        return scalar(Dim.of(int(attribute.value)))
    if isinstance(attribute, ir.FloatAttr):
        return _host_array(np.array(attribute.value)) if isinstance(attribute.type, ir.F64Type) else None
    if not isinstance(attribute, ir.DenseIntElementsAttr | ir.DenseFPElementsAttr):
        return None
    shaped = ir.ShapedType(attribute.type)
    if int(np.prod(shaped.shape)) > MAX_ELEMENTS or not is_host_element(shaped.element_type):
        return None
    return _host_array(dense_to_array(attribute))


def is_host_element(element: ir.Type) -> bool:
    """Types in which sizes are computed. Narrow and unsigned integers wrap around, so they are data."""
    if isinstance(element, ir.IntegerType):
        return element.is_signless and element.width in (1, 32, 64)
    return isinstance(element, ir.IndexType | ir.F64Type)


def _host_array(array: npt.NDArray[np.generic]) -> HostValue | None:
    result = np.empty(array.shape, object)
    for index in np.ndindex(*array.shape):
        item = ratio_of(float(array[index])) if array.dtype.kind == "f" else Dim.of(int(array[index]))
        if item is None:
            return None
        result[index] = item
    return result


# --- broadcasting -----------------------------------------------------------------------------------------------------


def broadcast_size(env: ShapeEnv, a: Dim, b: Dim) -> Dim:
    """The size of two dims broadcast together: the other one where one is 1, their common size otherwise."""
    if b == ONE or env.equal(a, b) is Truth.YES:
        return a
    if a == ONE or env.lt(ONE, b) is Truth.YES:
        return b
    if env.lt(ONE, a) is Truth.YES:
        return a
    # Undecided. The larger one, except that a 0 against a 1 gives 0.
    return env.simplify(dim_max(a, b) * dim_min(dim_min(a, b), ONE))


def broadcast_sizes(env: ShapeEnv, operands: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """The common shape of operands that are aligned at their last dims."""
    rank = max(len(dims) for dims in operands)
    result = [ONE] * rank
    for dims in operands:
        for position, dim in enumerate(dims, rank - len(dims)):
            result[position] = broadcast_size(env, result[position], dim)
    return tuple(result)


# --- the arithmetic on scalars ----------------------------------------------------------------------------------------


class HostArithmetic:
    """Scalar operations on `Dim` and `Ratio`, decided by the facts of `env` where that is possible."""

    def __init__(self, env: ShapeEnv) -> None:
        self.env = env
        self.conditions: dict[Dim, Condition] = {}  # the meaning of a 0 or 1 that was computed from comparisons

    def condition(self, truth: Dim) -> Condition:
        """The condition that a 0 or 1 represents."""
        if truth.is_const:
            return ALWAYS if truth.const else NEVER
        return self.conditions.get(truth) or Condition.of("!=", truth, ZERO)

    def all_hold(self, a: Dim, b: Dim) -> Dim:
        return self._joined(a * b, all_of, a, b)

    def any_holds(self, a: Dim, b: Dim) -> Dim:
        return self._joined(a + b - a * b, any_of, a, b)

    def _joined(self, result: Dim, join: Callable[[Sequence[Condition]], Condition], a: Dim, b: Dim) -> Dim:
        if result not in self.conditions and not result.is_const:
            with suppress(ValueError):  # too long to be written: the number means the same
                self.conditions[result] = join((self.condition(a), self.condition(b)))
        return result

    def less(self, a: Dim, b: Dim) -> Dim:
        """1 if a < b else 0. What depends on a size fits 64 bits: programs that compute another are refused."""
        word = np.iinfo(np.int64)
        if b.is_const and not word.min < b.const <= word.max and not a.is_const:
            return ONE if b.const > 0 else ZERO
        truth = self.env.lt(a, b)
        if truth is not Truth.UNKNOWN:
            return ONE if truth is Truth.YES else ZERO
        return dim_min(dim_max(b - a, ZERO), ONE)

    def differ(self, a: Dim, b: Dim) -> Dim:
        truth = self.env.equal(a, b)
        if truth is not Truth.UNKNOWN:
            return ZERO if truth is Truth.YES else ONE
        return dim_min(dim_max(a - b, b - a), ONE)

    def compare(self, direction: str, a: Dim | Ratio, b: Dim | Ratio) -> Dim:
        if isinstance(a, Ratio) and isinstance(b, Ratio):
            a, b = a.numerator * b.denominator, b.numerator * a.denominator
        assert isinstance(a, Dim) and isinstance(b, Dim), "operands of one compare have one type"
        result = {
            "LT": lambda: self.less(a, b),
            "LE": lambda: ONE - self.less(b, a),
            "GT": lambda: self.less(b, a),
            "GE": lambda: ONE - self.less(a, b),
            "EQ": lambda: ONE - self.differ(a, b),
            "NE": lambda: self.differ(a, b),
        }[direction]()
        if not result.is_const:
            sign = {"LT": "<", "LE": "<=", "GT": ">", "GE": ">=", "EQ": "==", "NE": "!="}[direction]
            self.conditions[result] = Condition(((Comparison(sign, a, b).normalized(),),))
        return result

    def select(self, condition: Dim, a: Dim | Ratio, b: Dim | Ratio) -> Dim | Ratio | None:
        if condition.is_const:
            return a if condition.const else b
        if isinstance(a, Ratio) or isinstance(b, Ratio):
            return None
        if condition in (self.less(a, b), ONE - self.less(b, a)):
            return self.minimum(a, b)
        if condition in (self.less(b, a), ONE - self.less(a, b)):
            return self.maximum(a, b)
        return condition * a + (ONE - condition) * b

    def maximum(self, a: Dim | Ratio, b: Dim | Ratio) -> Dim | Ratio | None:
        if isinstance(a, Ratio) or isinstance(b, Ratio):
            return self.select(self.compare("GE", a, b), a, b)
        return self.env.simplify(dim_max(a, b))

    def minimum(self, a: Dim | Ratio, b: Dim | Ratio) -> Dim | Ratio | None:
        if isinstance(a, Ratio) or isinstance(b, Ratio):
            return self.select(self.compare("LE", a, b), a, b)
        return self.env.simplify(dim_min(a, b))

    def floor_divide(self, a: Dim, b: Dim) -> Dim | None:
        if self.env.equal(b, ZERO) is Truth.YES:
            return None
        exact = self.env.exact_div(a, b)
        return exact if exact is not None else self.env.simplify(a // b)

    def ceil_divide(self, a: Dim, b: Dim) -> Dim | None:
        exact = self.floor_divide(a, b)
        if exact is None or self.env.exact_div(a, b) is not None:
            return exact
        return self.env.simplify(ceildiv(a, b))

    def add(self, a: Dim | Ratio, b: Dim | Ratio) -> Dim | Ratio | None:
        """A sum; None where an f64 would be rounded again, also in the next two."""
        if isinstance(a, Ratio) and isinstance(b, Ratio):
            return None if a.is_rounded or b.is_rounded else a + b
        assert isinstance(a, Dim) and isinstance(b, Dim), "operands of one sum have one type"
        total = a + b
        return self.env.simplify(total) if any(isinstance(atom, Mod) for atom in total.atoms()) else total

    def subtract(self, a: Dim | Ratio, b: Dim | Ratio) -> Dim | Ratio | None:
        return self.add(a, -b)

    def multiply(self, a: Dim | Ratio, b: Dim | Ratio) -> Dim | Ratio | None:
        if isinstance(a, Ratio) and isinstance(b, Ratio):
            return None if (a.is_rounded and not b.is_scale) or (b.is_rounded and not a.is_scale) else a * b
        assert isinstance(a, Dim) and isinstance(b, Dim), "operands of one product have one type"
        return a * b

    def divide(self, a: Dim | Ratio, b: Dim | Ratio) -> Dim | Ratio | None:
        """Division of the op's type: exact for f64, towards zero for integers (known only where the signs are)."""
        if isinstance(a, Ratio) and isinstance(b, Ratio):
            if self.env.lt(b.numerator, ZERO) is not Truth.NO or b.numerator == ZERO:
                return None
            if b.is_rounded or (a.is_rounded and not b.is_scale):
                return None  # rounded again
            return Ratio(a.numerator * b.denominator, a.denominator * b.numerator)
        assert isinstance(a, Dim) and isinstance(b, Dim), "operands of one division have one type"
        if self.env.le(ZERO, a) is Truth.YES and self.env.le(ZERO, b) is Truth.YES:
            return self.floor_divide(a, b)
        return self.env.exact_div(a, b)

    def remainder(self, a: Dim | Ratio, b: Dim | Ratio) -> Dim | None:
        if isinstance(a, Ratio) or isinstance(b, Ratio) or b == ZERO:
            return None
        signs_known = self.env.le(ZERO, a) is Truth.YES and self.env.le(ZERO, b) is Truth.YES
        return self.env.simplify(a % b) if signs_known else None

    def floor(self, a: Dim | Ratio) -> Ratio | None:
        if isinstance(a, Dim):
            return None
        whole = self.floor_divide(a.numerator, a.denominator)
        return None if whole is None else Ratio(whole)

    def ceil(self, a: Dim | Ratio) -> Ratio | None:
        if isinstance(a, Dim):
            return None
        whole = self.ceil_divide(a.numerator, a.denominator)
        return None if whole is None else Ratio(whole)

    def to_integer(self, a: Dim | Ratio) -> Dim | None:
        """The conversion f64 → integer, towards zero."""
        if isinstance(a, Dim):
            return a
        if a.denominator == ONE:
            return a.numerator
        return self.floor_divide(a.numerator, a.denominator) if self.env.le(ZERO, a.numerator) is Truth.YES else None

    def to_float(self, a: Dim | Ratio) -> Ratio:
        return Ratio(a) if isinstance(a, Dim) else a
