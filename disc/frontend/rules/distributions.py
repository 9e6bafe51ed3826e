"""Distributions drawn by rejection or by search: gamma, Dirichlet, Poisson, binomial.

Each is a loop over the whole tensor that goes on while an element has no value. An element keeps the first proposal that it accepts, so
the numbers depend on the seed, the draw and the position alone. A round accepts nine of ten proposals and more: of a million elements some
eight rounds are left with none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from disc.frontend.call import Call
from disc.frontend.control_flow import drawing_loop, loop
from disc.frontend.op_builder import OpBuilder, Tensor
from disc.frontend.rules.overrides import Fault, Override, Rule, overrides
from disc.frontend.rules.random import Draw
from disc.frontend.rules.sorting import library

aten = torch.ops.aten
DOUBLE = torch.float64
MOST_SEARCHED = 128  # of which there is a chance below 1e-90 where the mean is below `SEARCHED`
SEARCHED = 10.0  # means below are searched for in the running sum of the probabilities


@dataclass(frozen=True, eq=False)
class Real:
    """A tensor of floats with arithmetic."""

    e: OpBuilder
    tensor: Tensor

    def _of(self, other: Real | float) -> Tensor:
        return other.tensor if isinstance(other, Real) else self.e.full(other, self.tensor.shape, self.tensor.dtype)

    def _binary(self, kind: str, other: Real | float, turned: bool = False) -> Real:
        pair = (self._of(other), self.tensor) if turned else (self.tensor, self._of(other))
        return Real(self.e, self.e.binary(kind, *pair))

    def __add__(self, other: Real | float) -> Real:
        return self._binary("add", other)

    def __sub__(self, other: Real | float) -> Real:
        return self._binary("subtract", other)

    def __mul__(self, other: Real | float) -> Real:
        return self._binary("multiply", other)

    def __truediv__(self, other: Real | float) -> Real:
        return self._binary("divide", other)

    def __rsub__(self, other: float) -> Real:
        return self._binary("subtract", other, True)

    def __rtruediv__(self, other: float) -> Real:
        return self._binary("divide", other, True)

    __radd__, __rmul__ = __add__, __mul__

    def apply(self, kind: str) -> Real:
        return Real(self.e, self.e.unary(kind, self.tensor))

    def is_(self, direction: str, other: Real | float) -> Tensor:
        return self.e.compare(direction, self.tensor, self._of(other))

    def where(self, condition: Tensor, other: Real | float) -> Real:
        """Itself where the condition holds."""
        return Real(self.e, self.e.select(condition, self.tensor, self._of(other)))

    def most(self, other: Real | float) -> Real:
        return self._binary("maximum", other)

    def least(self, other: Real | float) -> Real:
        return self._binary("minimum", other)


def _any(e: OpBuilder, x: Tensor) -> Tensor:
    return e.reduce(x, "or", False, range(x.rank))


def _rejected(e: OpBuilder, first: Real, settled: Tensor, propose: Callable[[Draw], tuple[Real, Tensor]]) -> Real:
    """Of every element the first proposal that is accepted, where it is not settled before. propose: (values, which are accepted)."""
    shape = first.tensor.shape

    def condition(values: list[Tensor]) -> list[Tensor]:
        return [_any(e, e.unary("not", values[0]))]

    def body(values: list[Tensor]) -> list[Tensor]:
        value, accepted = propose(Draw(e, shape))
        return [e.binary("or", values[0], accepted), e.select(values[0], values[1], value.tensor)]

    return Real(e, drawing_loop(e, [settled, first.tensor], condition, body)[1])  # pyright: ignore[reportArgumentType]


def _searched(e: OpBuilder, first: Real, ratio: Callable[[Real], Real], uniform: Real, wanted: Tensor) -> Real:
    """The least k whose cumulative probability reaches `uniform`. first: the probability of 0; ratio: from that of k - 1 to that of k."""

    def open_at(k: Real, total: Real) -> Tensor:
        return e.binary("and", wanted, e.binary("and", total.is_("lt", uniform), k.is_("lt", float(MOST_SEARCHED))))

    def condition(values: list[Tensor]) -> list[Tensor]:
        return [_any(e, open_at(Real(e, values[0]), Real(e, values[2])))]

    def body(values: list[Tensor]) -> list[Tensor]:
        k, chance, total = (Real(e, each) for each in values)
        following, is_open = k + 1.0, open_at(k, total)
        later = chance * ratio(following)
        found = (following.where(is_open, k), later.where(is_open, chance), (total + later).where(is_open, total))
        return [each.tensor for each in found]

    start = [first * 0.0, first, first]
    return Real(e, loop(e, [each.tensor for each in start], condition, body)[0])  # pyright: ignore[reportArgumentType]


def _both(e: OpBuilder, *conditions: Tensor) -> Tensor:
    found = conditions[0]
    for each in conditions[1:]:
        found = e.binary("and", found, each)
    return found


def _gammas(e: OpBuilder, alpha: Real) -> Real:
    """G. Marsaglia, W. W. Tsang, "A Simple Method for Generating Gamma Variables", 2000. NaN for a negative alpha, 0 for 0."""
    dtype = alpha.tensor.dtype
    is_small = alpha.is_("lt", 1.0)
    d = (alpha + 1.0).where(is_small, alpha) - 1.0 / 3.0
    c = 1.0 / (d * 9.0).apply("sqrt")

    def propose(draw: Draw) -> tuple[Real, Tensor]:
        x, uniform = Real(e, draw.normal(dtype)), Real(e, Draw(e, draw.shape).inner(dtype))
        base = c * x + 1.0
        v, square = base * base * base, x * x
        limit = square * 0.5 + d * (1.0 - v + v.apply("log"))
        return d * v, _both(e, base.is_("gt", 0.0), uniform.apply("log").is_("lt", limit))

    settled = e.unary("not", alpha.is_("gt", 0.0))
    found = _rejected(e, Real(e, e.full(float("nan"), alpha.tensor.shape, dtype)), settled, propose)
    power = Real(e, Draw(e, alpha.tensor.shape).inner(dtype)).apply("log") / alpha
    return (found * power.apply("exponential")).where(is_small, found).where(alpha.is_("ne", 0.0), 0.0)


def _doubles(e: OpBuilder, x: Tensor) -> Real:
    return Real(e, e.convert(x, DOUBLE))


def standard_gamma(e: OpBuilder, call: Call) -> Tensor:
    """Of a type of 16 bits, and of f32, in f32. No number is below the least normal one, as in eager."""
    x = call.tensor("self")
    found = _gammas(e, Real(e, e.convert(x, DOUBLE if x.dtype == DOUBLE else torch.float32)))
    return _not_below(e, e.convert(found.tensor, x.dtype), torch.finfo(x.dtype).tiny).tensor


def _not_below(e: OpBuilder, x: Tensor, least: float) -> Real:
    """NaN stays NaN."""
    return Real(e, x).most(least)


def dirichlet(e: OpBuilder, call: Call) -> Tensor:
    x = call.tensor("alpha")
    found = _gammas(e, _doubles(e, x))
    total = e.reduce(found.tensor, "add", 0.0, [x.rank - 1])
    parts = found / Real(e, e.broadcast(e.unsqueeze(total, x.rank - 1), x.shape))
    limits = torch.finfo(x.dtype)
    return _not_below(e, e.convert(parts.tensor, x.dtype), limits.tiny).least(1.0 - limits.eps / 2).tensor


def poisson(e: OpBuilder, call: Call) -> Tensor:
    """Small rates by search, others by W. Hörmann, "The transformed rejection method for generating Poisson random variables", 1993: PTRS.

    Raises: InputValueError in the call for a rate that is negative or not finite.
    """
    x = call.tensor("self")
    rate = _doubles(e, x)
    rate = Real(e, library("disc.check_rates", [rate.tensor], [(x.shape, DOUBLE)])[0])
    is_small = rate.is_("lt", SEARCHED)
    uniform = Real(e, Draw(e, x.shape).inner(DOUBLE))
    found = _searched(e, (0.0 - rate).apply("exponential"), lambda k: rate / k, uniform, is_small)
    logarithm = rate.apply("log")
    b = rate.apply("sqrt") * 2.53 + 0.931
    a = b * 0.02483 - 0.059
    inverse_alpha = 1.1328 / (b - 3.4) + 1.1239
    ready = 0.9277 - 3.6224 / (b - 2.0)

    def propose(draw: Draw) -> tuple[Real, Tensor]:
        u, v = Real(e, draw.inner(DOUBLE)) - 0.5, Real(e, draw.inner(DOUBLE, 2))
        us = 0.5 - u.apply("abs")
        k = ((2.0 * a / us + b) * u + rate + 0.43).apply("floor")
        left = (v * inverse_alpha / (a / (us * us) + b)).apply("log")
        right = k * logarithm - rate - (k + 1.0).apply("chlo.lgamma")
        at_once = _both(e, us.is_("ge", 0.07), v.is_("le", ready))
        tried = _both(e, k.is_("ge", 0.0), e.unary("not", _both(e, us.is_("lt", 0.013), v.is_("gt", us))), left.is_("le", right))
        return k, e.binary("or", at_once, tried)

    return e.convert(_rejected(e, found, is_small, propose).tensor, call.dtype)


def _stirling_error(k: Real) -> Real:
    """log(k!) - log(sqrt(2 pi (k + 1)) ((k + 1) / e)^(k + 1)), plus log(k + 1): what Stirling's formula of z = k + 1 leaves."""
    z = k + 1.0
    square = 1.0 / (z * z)
    series = (1.0 / 12 - square * (1.0 / 360 - square * (1.0 / 1260 - square / 1680.0))) / z
    exact = z.apply("chlo.lgamma") - ((z - 0.5) * z.apply("log") - z + 0.9189385332046727)
    return exact.where(z.is_("lt", 15.0), series)


def binomial(e: OpBuilder, call: Call) -> Tensor:
    """Small means by search, others by W. Hörmann, "The generation of binomial random variates", 1993: BTRS. A count is rounded down; of no
    trials, or with a chance of 0 or below, there is no success, with a chance of 1 or above nothing else."""
    count, chance = (_doubles(e, e.broadcast(call.tensor(name), call.shape)) for name in ("count", "prob"))
    n = count.apply("floor")
    is_turned = chance.is_("gt", 0.5)
    p = (1.0 - chance).where(is_turned, chance)
    is_trial = _both(e, n.is_("gt", 0.0), p.is_("gt", 0.0))
    mean = n * p
    is_small = _both(e, is_trial, mean.is_("lt", SEARCHED))
    r = p / (1.0 - p)
    none = (n * (0.0 - p).apply("log_plus_one")).apply("exponential")
    uniform = Real(e, Draw(e, call.shape).inner(DOUBLE))
    found = _searched(e, none, lambda k: (n - k + 1.0).most(0.0) / k * r, uniform, is_small)
    settled = e.unary("not", _both(e, is_trial, mean.is_("ge", SEARCHED)))
    found = _rejected(e, found.least(n), settled, _binomial_proposal(e, n, p, r))
    found = (n - found).where(is_turned, found).where(is_trial, n.where(is_turned, 0.0))
    found = found.where(n.is_("gt", 0.0), 0.0)
    is_number = _both(e, count.is_("eq", count), chance.is_("eq", chance))
    return e.convert(found.where(is_number, float("nan")).tensor, call.dtype)


def _binomial_proposal(e: OpBuilder, n: Real, p: Real, r: Real) -> Callable[[Draw], tuple[Real, Tensor]]:
    deviation = (n * p * (1.0 - p)).apply("sqrt")
    b = deviation * 2.53 + 1.15
    a = b * 0.0248 + p * 0.01 - 0.0873
    c, ready = n * p + 0.5, 0.92 - 4.2 / b
    alpha, m = (5.1 / b + 2.83) * deviation, ((n + 1.0) * p).apply("floor")
    rest = n - m + 1.0

    def propose(draw: Draw) -> tuple[Real, Tensor]:
        u, v = Real(e, draw.inner(DOUBLE)) - 0.5, Real(e, draw.inner(DOUBLE, 2))
        us = 0.5 - u.apply("abs")
        k = ((2.0 * a / us + b) * u + c).apply("floor")
        inside = _both(e, k.is_("ge", 0.0), k.is_("le", n))
        left = (v * alpha / (a / (us * us) + b)).apply("log")
        other = n - k + 1.0
        right = (m + 0.5) * ((m + 1.0) / (r * rest)).apply("log") + (n + 1.0) * (rest / other).apply("log")
        right = right + (k + 0.5) * (r * other / (k + 1.0)).apply("log") + _stirling_error(m) + _stirling_error(n - m)
        right = right - _stirling_error(k) - _stirling_error(n - k)
        at_once = _both(e, us.is_("ge", 0.07), v.is_("le", ready))
        return k, e.binary("or", at_once, _both(e, inside, left.is_("le", right)))

    return propose


_RULES: Mapping[object, Rule] = {
    aten._standard_gamma.default: standard_gamma, aten.poisson.default: poisson,
}  # fmt: skip
OVERRIDES: dict[object, Override] = overrides(Fault.REFUSED, "random numbers", _RULES)
_OF_THIS_COMPILER: Mapping[str, Rule] = {"disc.dirichlet.default": dirichlet, "disc.binomial.default": binomial}
OF_PACKAGES: dict[str, Override] = {
    name: Override(rule, Fault.REFUSED, "an op of this compiler (frontend/distribution_forms.py)")
    for name, rule in _OF_THIS_COMPILER.items()
}


def is_drawn(op: object) -> bool:
    """Whether an op takes its numbers from the seed of the call, by the rules of this file."""
    return op in _RULES or str(op) in OF_PACKAGES
