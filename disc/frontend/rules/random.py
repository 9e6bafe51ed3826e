"""Random numbers: words of a counter-based generator (`disc.philox`) at every position, and what each distribution makes of them.

A draw is an op of the program. Its words depend on the seed of the call, the number of the draw in the program and the position of the
element, and on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import sympy
import torch

from disc.frontend.call import Call
from disc.frontend.op_builder import OpBuilder, RuleError, Tensor
from disc.frontend.rules.elementwise import as_tensor
from disc.frontend.rules.overrides import Fault, Override, Rule, overrides
from disc.frontend.rules.places import between
from disc.frontend.rules.sorting import library
from disc.frontend.symbols import Shape, Size, to_size

aten = torch.ops.aten
WORD_BITS = 32


class Draw:
    """One draw: up to four words of 32 bits for every element of `shape`."""

    def __init__(self, e: OpBuilder, shape: Shape) -> None:
        """Raises: RuleError where the program has no seed."""
        self.e = e
        self.shape = shape
        self.seed = e.seed_of_call()
        self.stream = e.next_stream()
        count = to_size(sympy.prod(sympy.sympify(size) for size in shape))
        self.position = e.reshape(e.iota((count,), 0, torch.int64), shape)

    def word(self, number: int) -> Tensor:
        """ui32."""
        return self.e.philox(self.position, self.seed, self.stream, number)

    def long_word(self, number: int) -> Tensor:
        """ui64, of the words `number` and `number` + 1."""
        low, high = (self.e.convert(self.word(each), torch.uint64) for each in (number, number + 1))
        return self.e.binary("or", low, self._shifted("shift_left", high, WORD_BITS))

    def uniform(self, dtype: torch.dtype) -> Tensor:
        """[0, 1), in steps of the type's precision just below 1."""
        bits, step = _precision(dtype)
        return self._scaled(self._high_bits(0, bits, dtype), step, dtype)

    def inner(self, dtype: torch.dtype, number: int = 0) -> Tensor:
        """(0, 1) in f32 or f64: the middle of each of 2^23, or 2^52, steps. number: of the first word that it is made of."""
        bits, _ = _precision(dtype)
        raised = self.e.convert(self._high_bits(number, bits - 1, dtype), dtype)
        middle = self.e.binary("add", raised, self._splat(0.5, dtype))
        return self.e.binary("multiply", middle, self._splat(2.0 ** (1 - bits), dtype))

    def normal(self, dtype: torch.dtype) -> Tensor:
        """Mean 0, deviation 1, in f32 or f64. G. E. P. Box, M. E. Muller, "A Note on the Generation of Random Normal Deviates", 1958."""
        e = self.e
        second = 2 if dtype == torch.float64 else 1
        radius = e.unary("sqrt", e.binary("multiply", e.unary("log", self.inner(dtype)), self._splat(-2.0, dtype)))
        turn = e.binary("subtract", self.inner(dtype, second), self._splat(0.5, dtype))
        return e.binary("multiply", radius, self._sine_of(e.binary("subtract", self._splat(0.25, dtype), e.unary("abs", turn))))

    def _sine_of(self, turn: Tensor) -> Tensor:
        """sin(2 pi turn) for a quarter of a turn at most: Taylor's series, as far as the type sees it."""
        square = self.e.binary("multiply", turn, turn)
        terms = 11 if turn.dtype == torch.float64 else 6
        coefficients = [(-1) ** k * (2 * math.pi) ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(terms)]
        total = self._splat(coefficients[-1], turn.dtype)
        for coefficient in reversed(coefficients[:-1]):
            total = self.e.binary("add", self.e.binary("multiply", total, square), self._splat(coefficient, turn.dtype))
        return self.e.binary("multiply", total, turn)

    def _high_bits(self, number: int, bits: int, dtype: torch.dtype) -> Tensor:
        """Signed integers below 2^bits, whose conversion is the fastest."""
        wide = dtype == torch.float64
        words = self.long_word(number) if wide else self.word(number)
        shifted = self._shifted("shift_right_logical", words, (2 * WORD_BITS if wide else WORD_BITS) - bits)
        return self.e.convert(shifted, torch.int64 if wide else torch.int32)

    def _shifted(self, kind: str, words: Tensor, amount: int) -> Tensor:
        return self.e.binary(kind, words, self._splat(amount, words.dtype))

    def _scaled(self, integers: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return self.e.convert(self.e.binary("multiply", self.e.convert(integers, wide), self._splat(factor, wide)), dtype)

    def _splat(self, value: float, dtype: torch.dtype) -> Tensor:
        return self.e.full(value, self.shape, dtype)


def _precision(dtype: torch.dtype) -> tuple[int, float]:
    """Bits of the significand, and the distance of numbers just below 1."""
    step = torch.finfo(dtype).eps / 2
    return round(-math.log2(step)), step


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _drawn(body: Callable[[OpBuilder, Call, Draw], Tensor]) -> Rule:
    """A rule that draws once, of the shape of its result, and converts to the type of that."""

    def rule(e: OpBuilder, call: Call) -> Tensor:
        return e.convert(body(e, call, Draw(e, call.shape)), call.dtype)

    return rule


def _linear(e: OpBuilder, call: Call, x: Tensor, factor: str | float | Tensor, offset: str | float) -> Tensor:
    """x * factor + offset; names of arguments, which may be tensors, or numbers."""
    values = [as_tensor(e, call.raw(each) if isinstance(each, str) else each, x.dtype) for each in (factor, offset)]  # pyright: ignore[reportArgumentType]
    return e.binary("add", e.binary("multiply", x, values[0]), values[1])


def rand(e: OpBuilder, call: Call, draw: Draw) -> Tensor:
    return draw.uniform(_float(call.dtype))


def _float(dtype: torch.dtype) -> torch.dtype:
    if not dtype.is_floating_point:
        raise RuleError(f"a distribution of floats has no {dtype}")
    return dtype


def uniform(e: OpBuilder, call: Call, draw: Draw) -> Tensor:
    low, high = (float(call.scalar(name)) for name in ("from", "to"))
    if not low <= high:
        raise RuleError(f"there are no numbers from {low} to {high}")
    return _linear(e, call, draw.uniform(_wide(_float(call.dtype))), high - low, low)


def randn(e: OpBuilder, call: Call, draw: Draw) -> Tensor:
    return draw.normal(_wide(_float(call.dtype)))


def normal(e: OpBuilder, call: Call, draw: Draw) -> Tensor:
    deviation = call.raw("std")
    if isinstance(deviation, Tensor):
        deviation = between(e, deviation, math.inf, "normal: all elements of std must be at least 0")
    return _linear(e, call, randn(e, call, draw), deviation, "mean")  # pyright: ignore[reportArgumentType]


def bernoulli(e: OpBuilder, call: Call, draw: Draw) -> Tensor:
    """1 with the probability of `p`, else that of each element."""
    chance = call.raw("p") if call.has("p") else call.tensor("self")
    if isinstance(chance, int | float) and not 0 <= chance <= 1:
        raise RuleError(f"{chance} is no probability")
    if isinstance(chance, Tensor):
        chance = between(e, chance, 1.0, "bernoulli: all probabilities must be between 0 and 1")
    dtype = _wide(chance.dtype) if isinstance(chance, Tensor) else torch.float32
    return e.compare("lt", draw.uniform(dtype), as_tensor(e, chance, dtype))  # pyright: ignore[reportArgumentType]


def exponential(e: OpBuilder, call: Call, draw: Draw) -> Tensor:
    dtype = _wide(_float(call.dtype))
    return e.binary("multiply", e.unary("log", draw.inner(dtype)), e.full(-1 / _positive(call, "lambd"), call.shape, dtype))


def geometric(e: OpBuilder, call: Call, draw: Draw) -> Tensor:
    """The number of the first success."""
    chance = float(call.scalar("p"))
    if not 0 < chance < 1:
        raise RuleError(f"geometric_ expects a probability between 0 and 1, got {chance}")
    dtype = torch.float64  # counts are large where the probability is small
    return e.unary("ceil", e.binary("divide", e.unary("log", draw.inner(dtype)), e.full(math.log1p(-chance), call.shape, dtype)))


def cauchy(e: OpBuilder, call: Call, draw: Draw) -> Tensor:
    dtype = _wide(_float(call.dtype))
    centered = e.binary("subtract", draw.inner(dtype), e.full(0.5, call.shape, dtype))
    angle = e.binary("multiply", centered, e.full(math.pi, call.shape, dtype))
    return _linear(e, call, e.unary("chlo.tan", angle), "sigma", "median")


def log_normal(e: OpBuilder, call: Call, draw: Draw) -> Tensor:
    return e.unary("exponential", _linear(e, call, draw.normal(_wide(_float(call.dtype))), "std", "mean"))


def _positive(call: Call, name: str) -> float:
    value = float(call.scalar(name))
    if not value > 0:
        raise RuleError(f"{name}={value}: it must be above 0")
    return value


def integers(e: OpBuilder, call: Call, draw: Draw) -> Tensor:
    """[low, high), or all that the type holds exactly."""
    low, high = _limits(call)
    count = to_size(sympy.sympify(high) - sympy.sympify(low))
    if isinstance(count, int) and count < 1:
        raise RuleError(f"there are no integers from {low} to below {high}")
    if isinstance(count, int) and count <= 1 << WORD_BITS:  # the high word of a product: no division
        wide = e.binary("multiply", e.convert(draw.word(0), torch.uint64), e.full(count, call.shape, torch.uint64))
        drawn = e.binary("shift_right_logical", wide, e.full(WORD_BITS, call.shape, torch.uint64))
    else:
        if not isinstance(count, int):
            e.require(">=", count, 1, "there are integers to draw from")
        divisor = e.convert(e.size_scalar(count, torch.int64), torch.uint64)
        drawn = e.binary("remainder", draw.long_word(0), e.broadcast(divisor, call.shape))
    start = e.broadcast(e.size_scalar(low, torch.int64), call.shape)
    return e.binary("add", e.convert(drawn, torch.int64), start)


def _limits(call: Call) -> tuple[Size, Size]:
    """The first and one past the last, by whichever names the overload has."""
    low: Size = 0
    for name in ("low", "from"):
        low = call.size(name) if call.has(name) else low
    for name in ("high", "to"):
        if call.has(name):
            return low, call.size(name)
    if call.dtype.is_floating_point:
        return low, (1 << _precision(call.dtype)[0]) + 1
    return low, 2 if call.dtype == torch.bool else min(torch.iinfo(call.dtype).max, (1 << 63) - 2) + 1


_RULES: Mapping[object, Rule] = {
    **dict.fromkeys((aten.rand.default, aten.rand_like.default), _drawn(rand)),
    **dict.fromkeys((aten.randn.default, aten.randn_like.default), _drawn(randn)),
    aten.uniform.default: _drawn(uniform),
    **dict.fromkeys((aten.normal_functional.default, aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor,
                     aten.normal.float_float), _drawn(normal)),
    **dict.fromkeys((aten.bernoulli.default, aten.bernoulli.p, aten.bernoulli.Tensor), _drawn(bernoulli)),
    aten.exponential.default: _drawn(exponential), aten.geometric.default: _drawn(geometric), aten.cauchy.default: _drawn(cauchy),
    aten.log_normal.default: _drawn(log_normal),
    **dict.fromkeys((aten.randint.default, aten.randint.low, aten.randint_like.default, aten.randint_like.low_dtype, aten.random.default,
                     aten.random.to, getattr(aten.random, "from")), _drawn(integers)),
}  # fmt: skip
RANDOM = frozenset(_RULES)
OVERRIDES: dict[object, Override] = overrides(Fault.REFUSED, "random numbers", _RULES)


def check_weights(e: OpBuilder, call: Call) -> Tensor:
    x = call.tensor("weights")
    return library("disc.check_weights", [x], [(x.shape, x.dtype)])[0]


OF_PACKAGES: dict[str, Override] = {
    "disc.check_weights.default": Override(check_weights, Fault.REFUSED, "an op of this compiler (frontend/multinomials.py)"),
}
