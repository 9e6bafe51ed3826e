"""An SMT solver as the judge of `ShapeEnv`: every YES and NO must be a theorem, for all integers and not just a small grid."""

from typing import Any

import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from disc.shapes import Atom, Dim, FloorDiv, Min, Mod, ShapeEnv, Symbol, Truth, ceildiv, dim_max, dim_min

Term = Any
"""A formula or number of the solver, whose own type hints do not describe what its operators give."""

_TIMEOUT = 400
"""Milliseconds for one theorem; products of symbols are beyond what the solver always decides."""


def floor_quotient(left: Term, right: Term) -> Term:
    """The solver's `/` on integers leaves a remainder that is never negative; Python rounds down."""
    quotient = left / right
    return z3.If(z3.And(right < 0, left % right != 0), quotient - 1, quotient)


def translate_atom(atom: Atom, divisors: list[Term]) -> Term:
    if isinstance(atom, Symbol):
        return z3.Int(atom.name)
    left, right = translate(atom.left, divisors), translate(atom.right, divisors)
    if isinstance(atom, FloorDiv | Mod):
        divisors.append(right)
        quotient = floor_quotient(left, right)
        return quotient if isinstance(atom, FloorDiv) else left - right * quotient
    smaller = left if isinstance(atom, Min) else right
    larger = right if isinstance(atom, Min) else left
    return z3.If(left <= right, smaller, larger)


def translate(dim: Dim, divisors: list[Term]) -> Term:
    """The same expression for the solver; its divisors are collected, since only assignments without a zero among them count."""
    total: Term = z3.IntVal(0)
    for coefficient, product in dim.monomials:
        term: Term = z3.IntVal(coefficient)
        for atom, power in product:
            for _ in range(power):
                term = term * translate_atom(atom, divisors)
        total = total + term
    return total


class Judge:
    """Knows the declarations and facts, and refutes claims."""

    def __init__(self) -> None:
        self.premises: list[Term] = []
        self.divisors: list[Term] = []
        self.confirmed = 0

    def translate(self, dim: Dim) -> Term:
        return translate(dim, self.divisors)

    def check(self, claim: Term) -> None:
        """Fails on a counterexample; a theorem that the solver cannot decide in time proves nothing either way."""
        solver = z3.Solver()
        solver.set("timeout", _TIMEOUT)
        solver.add(*self.premises, *(divisor != 0 for divisor in self.divisors), z3.Not(claim))
        answer = solver.check()
        assert answer != z3.sat, f"{claim} is false for {solver.model()}"
        self.confirmed += answer == z3.unsat

    def check_truth(self, truth: Truth, claim: Term) -> None:
        if truth is Truth.YES:
            self.check(claim)
        if truth is Truth.NO:
            self.check(z3.Not(claim))


def declare(lo: int | None, hi: int | None, divisor: int, name: str, env: ShapeEnv, judge: Judge) -> Dim:
    symbol = env.symbol(name, lo, hi, divisor)
    number = z3.Int(name)
    if lo is not None:
        judge.premises.append(number >= lo)
    if hi is not None:
        judge.premises.append(number <= hi)
    judge.premises.append(number % divisor == 0)
    return symbol


def linear_expressions() -> st.SearchStrategy[Dim]:
    """Expressions in A, B, C without products of symbols, which the solver decides quickly."""
    leaves = st.one_of(st.sampled_from([Dim.symbol(name) for name in "ABC"]), st.integers(-4, 40).map(Dim.of))

    def extend(inner: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
        pairs = st.tuples(inner, inner)
        constant = st.tuples(inner, st.sampled_from([-2, 2, 3, 4, 8]))
        return st.one_of(
            pairs.map(lambda pair: pair[0] + pair[1]),
            pairs.map(lambda pair: pair[0] - pair[1]),
            pairs.map(lambda pair: dim_min(*pair)),
            pairs.map(lambda pair: dim_max(*pair)),
            constant.map(lambda pair: pair[0] * pair[1]),
            constant.map(lambda pair: pair[0] // pair[1]),
            constant.map(lambda pair: pair[0] % pair[1]),
            constant.map(lambda pair: ceildiv(pair[0], abs(pair[1]))),
        )

    return st.recursive(leaves, extend, max_leaves=5)


_DECLARATION = st.tuples(st.sampled_from([None, 0, 0, 1]), st.sampled_from([None, None, 30]), st.sampled_from([1, 1, 2, 6]))
_FACT = st.tuples(linear_expressions(), linear_expressions(), st.booleans())


@settings(max_examples=200, deadline=None)
@given(st.tuples(_DECLARATION, _DECLARATION, _DECLARATION), st.lists(_FACT, max_size=2), linear_expressions(), linear_expressions())
def test_claims_are_theorems(
    declarations: tuple[tuple[int | None, int | None, int], ...], facts: list[tuple[Dim, Dim, bool]], left: Dim, right: Dim
) -> None:
    env, judge = ShapeEnv(), Judge()
    for name, declaration in zip("ABC", declarations, strict=True):
        declare(*declaration, name, env, judge)
    for a, b, equal in facts:
        learn(env, judge, a, b, equal)
    a, b = judge.translate(left), judge.translate(right)
    judge.check_truth(env.equal(left, right), a == b)
    judge.check_truth(env.le(left, right), a <= b)
    judge.check_truth(env.lt(left, right), a < b)
    low, high = env.range(left)
    if low is not None:
        judge.check(a >= low)
    if high is not None:
        judge.check(a <= high)
    judge.check(a % env.divisor(left) == 0)
    judge.check(judge.translate(env.simplify(left)) == a)
    judge.check_truth(env.divides(4, left), a % 4 == 0)


def learn(env: ShapeEnv, judge: Judge, left: Dim, right: Dim, equal: bool) -> None:
    """Teaches a fact that the solver knows to be possible."""
    a, b = judge.translate(left), judge.translate(right)
    fact = a == b if equal else a >= b
    solver = z3.Solver()
    solver.set("timeout", _TIMEOUT)
    solver.add(*judge.premises, fact)
    if solver.check() != z3.sat:
        return
    (env.equate if equal else env.assume_ge)(left, right)
    judge.premises.append(fact)


def test_model_shapes_are_decided_and_right() -> None:
    """The questions of real models: all of them are decided, and the solver agrees."""
    env, judge = ShapeEnv(), Judge()
    batch = declare(0, None, 1, "B", env, judge)
    length = declare(0, 512, 1, "S", env, judge)
    height = declare(1, None, 32, "H", env, judge)
    kernels = declare(1, None, 1, "K", env, judge)
    questions = [
        (length - 1 + 1, length),
        (length + 1 - length, Dim.of(1)),
        (dim_min(length, 512), length),
        (dim_max(dim_min(length - 1, length), 0) - dim_max(length - 1, 0), Dim.of(0)),
        ((height + 2 * 3 - 7) // 2 + 1, ceildiv(height, 2)),
        ((height + 2 - 3) // 2 + 1, height // 2),
        (height // 2 // 2 // 2, height // 8),
        ((height // 32) * 32, height),
        (ceildiv(length, 16) * 16 - length, -length % 16),
        ((batch * length * 768) // (length * 768), batch),
        (length - length // 2, ceildiv(length, 2)),
        ((length + kernels - 1) // kernels, ceildiv(length, kernels)),
        ((batch * 12 + 11) // 12, batch),
    ]
    for left, right in questions:
        assert env.equal(left, right) is Truth.YES, f"{left} == {right}"
        judge.check(judge.translate(left) == judge.translate(right))
    orders = [
        (dim_max(length - 3, 0), length),
        (ceildiv(length, 16) * 16, Dim.of(512)),
        (length, length * kernels),
        (ceildiv(length, kernels), length),
        (length // 2 + length // 2, length),
        (Dim.of(16), height // 2),
    ]
    for left, right in orders:
        assert env.le(left, right) is Truth.YES, f"{left} <= {right}"
        judge.check(judge.translate(left) <= judge.translate(right))
    assert judge.confirmed >= len(questions) + len(orders) - 4
