"""Conditions on sizes: their text, their one form, what they teach."""

from __future__ import annotations

import random

import pytest

from disc.shapes import Comparison, Condition, Dim, ShapeEnv, Truth, all_of, any_of, dim_max, dim_min, parse_condition

SIGNS = ("==", "!=", "<", "<=", ">", ">=")


def expression(rng: random.Random, depth: int = 0) -> Dim:
    if depth > 2 or rng.random() < 0.3:
        return Dim.symbol(rng.choice("ab")) if rng.random() < 0.7 else Dim.of(rng.randint(-5, 5))
    left, right, number = expression(rng, depth + 1), expression(rng, depth + 1), rng.randint(1, 5)
    return rng.choice([left + right, left - right, left * right, left // number, left % number, dim_min(left, right), dim_max(left, right)])


@pytest.mark.parametrize("seed", range(20))
def test_the_one_form_says_the_same(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        given = Comparison(rng.choice(SIGNS), expression(rng), expression(rng))
        formed = given.normalized()
        assert formed.normalized() == formed
        assert parse_condition(str(formed)).sole == formed
        for _ in range(4):
            values = {"a": rng.randint(0, 12), "b": rng.randint(0, 12)}
            assert given.evaluate(values) == formed.evaluate(values) == (not given.negated().evaluate(values))


@pytest.mark.parametrize(
    ("text", "form"),
    [("a + 2 > b + 5", "a >= b + 4"), ("3 * a < 10", "3 >= a"), ("4 * mod(a, 2) == 0", "mod(a, 2) == 0"), ("5 == a", "a == 5"), ("0 - a != b - 7", "a + b != 7"),
     ("min(a, 4) == a", "4 >= a"), ("a == max(b, a)", "a >= b"), ("min(a, b) != b", "b >= a + 1")],
)  # fmt: skip
def test_the_one_form(text: str, form: str) -> None:
    sole = parse_condition(text).sole
    assert sole is not None and str(sole.normalized()) == form


def test_joined_conditions() -> None:
    first, second = parse_condition("a == 1 or b == 2"), parse_condition("a >= 3 and b != 4")
    for a in range(6):
        for b in range(6):
            values = {"a": a, "b": b}
            assert all_of((first, second)).evaluate(values) == (first.evaluate(values) and second.evaluate(values))
            assert any_of((first, second)).evaluate(values) == (first.evaluate(values) or second.evaluate(values))
            assert first.negated().evaluate(values) != first.evaluate(values)


@pytest.mark.parametrize(
    "text", ["", "a", "a == b == c", "a = b", "a == 1 and", "a == 1 or or b == 2", "(a == 1)", " or ".join(["a == 1"] * 65)]
)
def test_a_text_that_is_no_condition(text: str) -> None:
    with pytest.raises(ValueError, match=r"cannot read|more than 64"):
        parse_condition(text)


def test_what_is_known_decides() -> None:
    env = ShapeEnv()
    a, b = env.symbol("a", 0, 10), env.symbol("b", 12)
    assert env.holds(Condition.of("<", a, b)) is Truth.YES
    assert env.holds(parse_condition("a == b or a >= 11")) is Truth.NO
    assert env.holds(parse_condition("a == b or a >= 5")) is Truth.UNKNOWN
    fact = parse_condition("mod(a, 4) == 0")
    assert fact.is_fact() and not parse_condition("a != 3").is_fact() and not parse_condition("a * b >= 3").is_fact()
    env.learn(fact)
    assert env.holds(fact) is Truth.YES and env.divisor(a) == 4


@pytest.mark.parametrize("text", [
    "floordiv(S0, 4) * floordiv(S0, 4) == 49", "S0 * S0 * S0 == 27", "S0 * S0 * 3 == 48", "S0 * S0 == 48", "S0 * S0 == 0", "floordiv(S0, 4) == 7", "S0 * S0 >= 49",
    "floordiv(S0 + 1, 4) == 7", "S0 * 2 == 7", "S0 * S0 + 49 == 0", "mod(S0, 4) * mod(S0, 4) == 4",
])  # fmt: skip
def test_roots_hold_where_the_power_does(text: str) -> None:
    """What is concluded holds for just the sizes for which the power has its value; nothing is concluded where none may be."""
    condition = parse_condition(text)
    facts = condition.root()
    assert all(fact.is_fact() for fact in facts)
    for size in range(200):
        if facts:
            assert condition.evaluate({"S0": size}) == all(fact.evaluate({"S0": size}) for fact in facts), size


def test_roots_of_squares_of_sizes() -> None:
    assert [str(each) for each in parse_condition("floordiv(S0, 4) * floordiv(S0, 4) == 49").root()] == ["S0 >= 28", "S0 <= 31"]
    assert [str(each) for each in parse_condition("49 == S0 * S0").root()] == ["S0 >= 7", "S0 <= 7"]
    assert parse_condition("S0 * S1 == 49").root() == []
