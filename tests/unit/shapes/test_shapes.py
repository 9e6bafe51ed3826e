"""`Dim` and `ShapeEnv`: canonical forms, the cases that models need, and random claims checked against evaluation."""

import copy
import itertools
import math
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disc.errors import ShapeConstraintError
from disc.shapes import Dim, FloorDiv, Max, Min, Mod, ShapeEnv, Symbol, Truth, ceildiv, dim_max, dim_min, parse_dim

A, B, C, D = (Dim.symbol(name) for name in "ABCD")


def make_env(**ranges: tuple[int | None, int | None, int]) -> ShapeEnv:
    env = ShapeEnv()
    for name, (lo, hi, divisor) in ranges.items():
        env.symbol(name, lo, hi, divisor)
    return env


def sizes(*names: str) -> ShapeEnv:
    return make_env(**{name: (0, None, 1) for name in names})


# Dim


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("2 + S0*S1", "S0 * S1 + 2"),
        ("S0 - 1 + 1", "S0"),
        ("(S0 + S1) * (S0 - S1)", "S0 * S0 - S1 * S1"),
        ("-(S10 * 2) + S2", "S2 - S10 * 2"),
        ("-S0 * 3 - 4", "-S0 * 3 - 4"),
        ("floordiv(S0 + 1, 2)", "floordiv(S0 + 1, 2)"),
        ("(S0 + 3) // 2", "floordiv(S0 + 1, 2) + 1"),
        ("(4 * S0 + 3) // 4", "S0"),
        ("(4 * S0) // -4", "-S0"),
        ("(2 * S0 + 3) // 4", "floordiv(S0 + 1, 2)"),
        ("(S0 // 2) // 3", "floordiv(S0, 6)"),
        ("-S0 // 2", "-floordiv(S0 + 1, 2)"),
        ("S0 // 1", "S0"),
        ("S0 % 1", "0"),
        ("S0 % 4", "mod(S0, 4)"),
        ("(6 * S0 + 5) % 4", "mod(S0, 2) * 2 + 1"),
        ("-7 // 2", "-4"),
        ("-7 % 4", "1"),
        ("7 % -4", "-1"),
        ("min(512, S0)", "min(S0, 512)"),
        ("max(S0 - 1, 0)", "max(S0 - 1, 0)"),
        ("min(S0 + 1, S0)", "S0"),
        ("max(max(S1, 3), max(5, S0))", "max(max(S0, S1), 5)"),
        ("ceildiv(S0, 8)", "floordiv(S0 + 7, 8)"),
        ("floordiv(S0, S1)", "floordiv(S0, S1)"),
        ("S0 // 0", "floordiv(S0, 0)"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    dim = parse_dim(text)
    assert str(dim) == canonical
    assert parse_dim(canonical) is dim


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "at character 0: expected a number, a name or '(', found 'the end'"),
        ("S0 +", "found 'the end'"),
        ("S0 S1", "at character 3: 'S1' after the end of the expression"),
        ("min(S0)", "expected ','"),
        ("(S0", "expected ')'"),
        ("S0 $ 2", "at character 2: unknown character '$'"),
        ("min", "expected '('"),
    ],
)
def test_parse_error(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match="cannot read the dim expression") as caught:
        parse_dim(text)
    assert fault in str(caught.value)


def test_identity_and_pickle() -> None:
    assert A + B is B + A
    assert 2 * A - A is A
    assert Dim.of(3) == 3 and hash(Dim.of(3)) == hash(3) and A != 3
    assert pickle.loads(pickle.dumps(A * B + 1)) is A * B + 1
    assert copy.deepcopy(A // 2) is A // 2


def test_no_accidental_truth() -> None:
    with pytest.raises(TypeError):
        bool(A)
    with pytest.raises(TypeError):
        bool(Truth.NO)
    with pytest.raises(TypeError):
        A < B  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]  # noqa: B015


def test_structure() -> None:
    dim = A * A * 3 + A // B - 7
    assert dim.monomials == ((3, ((Symbol("A"), 2),)), (1, ((FloorDiv(A, B), 1),)), (-7, ()))
    assert dim.coefficient(A * A) == 3 and dim.coefficient(B) == 0 and dim.constant_term == -7
    assert dim.symbols() == ("A", "B")
    assert (A % B).sole_atom == Mod(A, B)
    assert dim_min(A, B).sole_atom == Min(A, B)
    assert dim_max(A, B).sole_atom == Max(A, B)
    assert dim.replace({"A": B * 2, "B": 4}) == B * B * 12 + B // 2 - 7
    assert Dim.of(5).const == 5
    with pytest.raises(ValueError, match="not a constant"):
        _ = A.const
    with pytest.raises(ValueError, match="not a name"):
        Dim.symbol("floordiv")


def expressions(names: str = "ABC") -> st.SearchStrategy[Dim]:
    leaves = st.one_of(st.sampled_from([Dim.symbol(name) for name in names]), st.integers(-4, 8).map(Dim.of))

    def extend(inner: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
        pairs = st.tuples(inner, inner)
        constant = st.tuples(inner, st.sampled_from([-3, 1, 2, 3, 4, 6, 8]))
        return st.one_of(
            pairs.map(lambda pair: pair[0] + pair[1]),
            pairs.map(lambda pair: pair[0] - pair[1]),
            pairs.map(lambda pair: pair[0] * pair[1]),
            pairs.map(lambda pair: dim_min(pair[0], pair[1])),
            pairs.map(lambda pair: dim_max(pair[0], pair[1])),
            constant.map(lambda pair: pair[0] // pair[1]),
            constant.map(lambda pair: pair[0] % pair[1]),
            constant.map(lambda pair: pair[0] * pair[1]),
            constant.map(lambda pair: ceildiv(pair[0], abs(pair[1]))),
            pairs.map(lambda pair: pair[0] // pair[1]),
            pairs.map(lambda pair: pair[0] % pair[1]),
        )

    return st.recursive(leaves, extend, max_leaves=6)


_OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
}


@settings(max_examples=300, deadline=None)
@given(expressions(), expressions(), st.sampled_from(sorted(_OPERATIONS)), st.tuples(*[st.integers(-5, 12)] * 3))
def test_operators_agree_with_numbers(left: Dim, right: Dim, sign: str, numbers: tuple[int, ...]) -> None:
    values = dict(zip("ABC", numbers, strict=True))
    try:
        expected = _OPERATIONS[sign](left.evaluate(values), right.evaluate(values))
    except ZeroDivisionError:
        return
    dim = _OPERATIONS[sign](left, right)
    assert dim.evaluate(values) == expected
    assert parse_dim(str(dim)) is dim
    assert dim_min(left, right).evaluate(values) == min(left.evaluate(values), right.evaluate(values))
    assert dim_max(left, right).evaluate(values) == max(left.evaluate(values), right.evaluate(values))


# The cases that models need


def test_heads_split_and_merge() -> None:
    env = sizes("B", "S")
    b, s = env.parse("B"), env.parse("S")
    assert env.reshape_groups([b, s, 768], [b, s, 12, 64]) == [((0,), (0,)), ((1,), (1,)), ((2,), (2, 3))]
    assert env.reshape_groups([b, s, 12, 64], [b, s, 768]) == [((0,), (0,)), ((1,), (1,)), ((2, 3), (2,))]
    assert env.reshape_groups([b, s], [b * s]) == [((0, 1), (0,))]
    assert env.reshape_groups([b * s, 768], [b, s, 12, 64]) == [((0,), (0, 1)), ((1,), (2, 3))]


def test_reshape_groups_of_ones_scalars_and_unknowns() -> None:
    env = sizes("B", "S")
    b, s = env.parse("B"), env.parse("S")
    assert env.reshape_groups([b, 1, s], [1, b, s, 1]) == [((0, 1), (0, 1)), ((2,), (2, 3))]
    assert env.reshape_groups([1, 1], []) == [((0, 1), ())]
    assert env.reshape_groups([], []) == []
    assert env.reshape_groups([b], [s]) is None
    assert env.reshape_groups([b, s], [s, b]) == [((0, 1), (0, 1))]
    assert env.reshape_groups([b, 6, 4], [b, 3, 8]) == [((0,), (0,)), ((1, 2), (1, 2))]


def test_view_with_inferred_dim() -> None:
    env = sizes("B", "S")
    assert env.simplify(env.parse("floordiv(B * S * 768, S * 768)")) is env.parse("B")
    assert env.simplify(env.parse("floordiv(B * S * 768, B * 12 * 64)")) is env.parse("S")


@pytest.mark.parametrize(("padding", "kernel", "stride"), list(itertools.product((0, 1, 3), (1, 3, 7), (1, 2))))
def test_convolution_size(padding: int, kernel: int, stride: int) -> None:
    env = sizes("H", "W")
    out = (env.parse("H") + 2 * padding - kernel) // stride + 1
    other = (env.parse("W") + 2 * padding - kernel) // stride + 1
    assert env.equal(out, other) is Truth.UNKNOWN
    env.equate(env.parse("H"), env.parse("W"))
    assert env.equal(out, other) is Truth.YES
    assert env.simplify(out) is env.simplify(other)
    if 2 * padding == kernel - 1:
        assert env.equal(out, ceildiv(env.parse("H"), stride)) is Truth.YES


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("S - 1 + 1", "S"),
        ("min(S, 512)", "S"),
        ("max(S, 0)", "S"),
        ("max(min(5, S), 0)", "min(S, 5)"),
        ("S // 4 * 4 + S % 4", "S"),
        ("S - S % 4", "S // 4 * 4"),
        ("T // 12 * 12", "T"),
        ("T % 4", "0"),
        ("(T + 7) // 4", "T // 4 + 1"),
        ("12 * (T // 12)", "4 * (T // 4)"),
        ("ceildiv(T, 4)", "T // 4"),
        ("(S * T) // T", "S"),
        ("(S * P + S) // (P + 1)", "S"),
        ("(B * P + min(B, 0)) // P", "B"),
        ("mod(P * S, P)", "0"),
        ("mod(mod(S, 4), 8)", "mod(S, 4)"),
        ("mod(S, 4) // 4", "0"),
        ("min(S + 1, 6)", "min(S, 5) + 1"),
        ("max(S, B) + min(S, B)", "S + B"),
        ("-(-S // 8)", "ceildiv(S, 8)"),
    ],
)
def test_proved_equal(left: str, right: str) -> None:
    env = make_env(S=(0, 512, 1), B=(0, None, 1), P=(1, None, 1), T=(0, None, 12))
    assert env.equal(env.parse(left), env.parse(right)) is Truth.YES


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("S", "S + 1"),
        ("S - 1", "S"),
        ("S // 2", "S"),
        ("S // 2 * 2", "S"),
        ("S", "ceildiv(S, 4) * 4"),
        ("min(S, B)", "B"),
        ("B", "max(S, B)"),
        ("S % 4", "3"),
        ("S % 4", "S"),
        ("S", "S * P"),
        ("S * P", "S * P * P"),
        ("S", "512"),
        ("(S - 1) // 2", "S"),
        ("min(S, 100) * B", "B * S"),
        ("max(S - 3, 0)", "S"),
        ("S // P", "S"),
        ("mod(S, P)", "P - 1"),
        ("B - max(B - 5, 0)", "5"),
    ],
)
def test_proved_at_most(left: str, right: str) -> None:
    env = make_env(S=(0, 512, 1), B=(0, None, 1), P=(1, None, 1))
    assert env.le(env.parse(left), env.parse(right)) is Truth.YES
    assert env.lt(env.parse(left), env.parse(right) + 1) is Truth.YES
    assert env.lt(env.parse(right), env.parse(left)) is Truth.NO


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("B * (H // 16) * (W // 16) * 1920", "B * (H // 16) * (W // 16) * 2688"),
        ("B * (H // 16) * (W // 16) * 7680", "B * (H // 8) * (W // 8) * 1920"),
        ("B * (H // 32) * 16 * (W // 2)", "B * W * H // 4"),
        ("H % 16 + H // 16 * 16", "H"),
        ("H % 8", "H % 16"),
        ("B * ((H + 15) // 16) * ((W + 15) // 16)", "B * ((H + 7) // 8) * ((W + 7) // 8)"),
        ("B * ((H + 1) // 2)", "B * H"),
        ("B * (H // 2)", "B * ((H + 1) // 2)"),
        ("(H + 15) // 16 * 8 * P", "((H + 7) // 8 * 8 + 8) * P"),
    ],
)
def test_maps_that_shrink(left: str, right: str) -> None:
    """Sizes of maps behind convolutions with strides: products of quotients of the same symbols."""
    env = make_env(B=(0, None, 1), H=(0, None, 1), W=(0, None, 1), P=(1, None, 1))
    assert env.le(env.parse(left), env.parse(right)) is Truth.YES
    assert env.at_most(env.parse(left), env.parse(right))
    assert env.le(env.parse(right) + 1, env.parse(left)) is Truth.NO


@pytest.mark.parametrize(("left", "right"), [("S + 1", "S"), ("2 * S", "2 * B + 1"), ("T + 6", "T * 2"), ("S", "513"), ("S % 4", "4")])
def test_proved_different(left: str, right: str) -> None:
    env = make_env(S=(0, 512, 1), B=(0, None, 1), T=(0, None, 12))
    assert env.equal(env.parse(left), env.parse(right)) is Truth.NO


def test_no_cancelling_by_a_size_that_may_be_zero() -> None:
    env = sizes("A", "B", "C")
    env.equate(A * C, B * C)
    assert env.equal(A, B) is Truth.UNKNOWN
    assert env.equal(A * C * 2, B * C * 2) is Truth.YES


def test_product_equality() -> None:
    env = sizes("A", "B", "C", "D")
    env.equate(A * B, C * D)
    assert env.facts() == [(A * B, C * D)]
    assert env.equal(A * B * 768, C * D * 768) is Truth.YES
    assert env.reshape_groups([A, B, 768], [C, D, 12, 64]) == [((0, 1), (0, 1)), ((2,), (2, 3))]
    assert env.exact_div(A * B, C) is D
    assert env.exact_div(C * D, A) is B
    assert env.equal(A, C) is Truth.UNKNOWN


def test_product_equalities_combine() -> None:
    env = sizes(*"ABCDEF")
    e, f = Dim.symbol("E"), Dim.symbol("F")
    env.equate(A * B, C * D)
    env.equate(C * e, A * f)
    assert env.equal(A * B * e, A * D * f) is Truth.YES


def test_substitution_keeps_the_earlier_symbol_and_the_pinned() -> None:
    env = sizes("A", "B", "C")
    env.equate(B, A)
    assert env.simplify(B) is A and env.facts() == []
    env = sizes("A", "B", "C")
    env.pin(B)
    env.equate(A, B)
    assert env.simplify(A) is B
    env.pin("C")
    env.equate(C, B)
    assert env.facts() == [(C, B)]
    assert env.equal(A, C) is Truth.YES


def test_knowledge_flows_both_ways() -> None:
    env = make_env(A=(0, 512, 1), B=(3, None, 12))
    env.equate(A, B)
    assert env.range(A) == (12, 504) and env.divisor(A) == 12
    env = make_env(A=(0, None, 1), B=(1, 100, 1))
    env.equate(B, A * 12)
    assert env.range(A) == (1, 8) and env.divisor(B) == 12
    env = make_env(A=(0, None, 1), B=(0, None, 1))
    env.equate(A * 2, B * 3)
    assert env.divisor(A) == 3 and env.divisor(B) == 2
    env = make_env(A=(0, None, 1), B=(0, None, 1))
    env.equate(B, A - 1)
    assert env.range(A) == (1, None)


def test_divisor_and_divides() -> None:
    env = make_env(A=(0, None, 4), B=(0, None, 6), P=(1, None, 1))
    assert env.divisor(A * B) == 24 and env.divisor(A + B) == 2 and env.divisor(A * 0) == 1 and env.divisor(dim_min(A, B)) == 2
    assert env.divides(8, A * 2) is Truth.YES
    assert env.divides(8, A) is Truth.UNKNOWN
    assert env.divides(4, A + 2) is Truth.NO
    assert env.divides(B, A * B) is Truth.YES
    assert env.divides(0, A) is Truth.UNKNOWN and env.divides(0, 0) is Truth.YES and env.divides(0, 1) is Truth.NO
    assert env.divides(env.parse("P"), env.parse("P * 3 + A * P")) is Truth.YES


def test_divisor_of_an_expression_as_a_fact() -> None:
    env = sizes("A", "B")
    env.equate((A * B) % 8, 0)
    assert env.divides(8, A * B) is Truth.YES
    assert env.equal((A * B) // 8 * 8, A * B) is Truth.YES
    env.equate(A % 4, 0)
    assert env.divisor(A) == 4


def test_inequalities() -> None:
    env = make_env(A=(0, 512, 1), B=(0, None, 1), C=(0, None, 1))
    env.assume_ge(A, B)
    assert env.le(B, A) is Truth.YES and env.le(B * C, A * C) is Truth.YES and env.range(B) == (0, 512)
    assert env.simplify(dim_max(A, B)) is A
    assert env.inequalities() == [(A, B)]
    env.assume_ge(C, 3)
    assert env.range(C) == (3, None) and env.inequalities() == [(A, B)]
    env.assume_ge(B, A)
    assert env.equal(A, B) is Truth.YES


def test_facts_restore_the_knowledge() -> None:
    env = make_env(A=(0, 512, 1), B=(0, None, 1), C=(0, None, 4), D=(1, None, 1))
    env.assume_ge(A, B)
    env.equate(A * B, C * D)
    assert env.facts() == [(A * B, C * D), (dim_min(A, B), B)]
    other = make_env(A=(0, 512, 1), B=(0, None, 1), C=(0, None, 4), D=(1, None, 1))
    for left, right in env.facts():
        other.equate(parse_dim(str(left)), parse_dim(str(right)))
    assert other.facts() == env.facts()
    assert other.le(B, A) is Truth.YES and other.equal(A * B * 2, C * D * 2) is Truth.YES


def test_contradictions_name_both_sides_and_change_nothing() -> None:
    env = make_env(A=(0, 512, 1), B=(0, None, 4))
    env.equate(A, B)
    with pytest.raises(ShapeConstraintError, match=r"A == 513 contradicts what is known"):
        env.equate(A, 513)
    with pytest.raises(ShapeConstraintError, match=r"A \+ 1 == B contradicts"):
        env.equate(A + 1, B)
    with pytest.raises(ShapeConstraintError, match=r"A == 6 contradicts"):
        env.equate(A, 6)
    with pytest.raises(ShapeConstraintError, match=r"B >= 600 contradicts"):
        env.assume_ge(B, 600)
    with pytest.raises(ShapeConstraintError, match=r"declaration of A \(range 700"):
        env.symbol("A", 700)
    assert env.range(A) == (0, 512) and env.divisor(A) == 4


def test_declarations() -> None:
    env = ShapeEnv()
    assert [str(env.fresh()), str(env.symbol("S2")), str(env.fresh()), str(env.fresh()), str(env.fresh("T"))] == [
        "S0",
        "S2",
        "S1",
        "S3",
        "T0",
    ]
    assert env.names() == ("S0", "S2", "S1", "S3", "T0")
    assert env.range(env.symbol("v", None)) == (None, None)
    with pytest.raises(ValueError, match="S9 of S9 \\+ 1 is not declared"):
        env.parse("S9 + 1")
    with pytest.raises(ValueError, match="not declared"):
        env.simplify(A)
    with pytest.raises(ValueError, match="at least 1"):
        env.symbol("S0", divisor=0)
    other = env.copy()
    other.equate(other.parse("S0"), 3)
    assert other.simplify(other.parse("S0")) == 3
    assert env.range(env.parse("S0")) == (0, None)


# Random claims

_VALUES: tuple[int, ...] = (0, 1, 2, 3, 4, 6, 12)


@st.composite
def environments(draw: st.DrawFn) -> tuple[ShapeEnv, list[dict[str, int]]]:
    """An environment and all assignments of a small grid that satisfy it; facts that leave none, or are refused, are dropped."""
    env = ShapeEnv()
    kept = [dict(zip("ABC", values, strict=True)) for values in itertools.product(_VALUES, repeat=3)]
    for name in "ABC":
        lo, hi, divisor = (
            draw(st.sampled_from([0, 0, 1, 2])),
            draw(st.sampled_from([None, None, 4, 12])),
            draw(st.sampled_from([1, 1, 2, 3])),
        )
        env.symbol(name, lo, hi, divisor)
        kept = [v for v in kept if v[name] >= lo and (hi is None or v[name] <= hi) and v[name] % divisor == 0]
    if draw(st.booleans()):
        env.pin(draw(st.sampled_from("ABC")))
    for left, right, equal in draw(st.lists(st.tuples(expressions(), expressions(), st.booleans()), max_size=3)):
        satisfying = [v for v in kept if holds(left, right, equal, v)]
        if not satisfying:
            continue
        (env.equate if equal else env.assume_ge)(left, right)
        kept = satisfying
    return env, kept


def holds(left: Dim, right: Dim, equal: bool, values: dict[str, int]) -> bool:
    try:
        difference = left.evaluate(values) - right.evaluate(values)
    except ZeroDivisionError:
        return False
    return difference == 0 if equal else difference >= 0


def check_claim(claim: Truth, facts: list[bool]) -> None:
    if claim is Truth.YES:
        assert all(facts)
    if claim is Truth.NO:
        assert not any(facts)


@settings(max_examples=400, deadline=None)
@given(environments(), expressions(), expressions())
def test_claims_hold(knowledge: tuple[ShapeEnv, list[dict[str, int]]], left: Dim, right: Dim) -> None:
    env, assignments = knowledge
    pairs: list[tuple[int, int, dict[str, int]]] = []
    for values in assignments:
        try:
            pairs.append((left.evaluate(values), right.evaluate(values), values))
        except ZeroDivisionError:
            continue
    check_claim(env.equal(left, right), [a == b for a, b, _ in pairs])
    check_claim(env.le(left, right), [a <= b for a, b, _ in pairs])
    check_claim(env.lt(left, right), [a < b for a, b, _ in pairs])
    check_claim(env.divides(left, right), [b == 0 if a == 0 else b % a == 0 for a, b, _ in pairs])
    low, high = env.range(left)
    divisor, simple, quotient = env.divisor(left), env.simplify(left), env.exact_div(left, right)
    for a, b, values in pairs:
        assert (low is None or low <= a) and (high is None or a <= high)
        assert a % divisor == 0
        assert simple.evaluate(values) == a
        assert quotient is None or quotient.evaluate(values) * b == a


@st.composite
def maps(draw: st.DrawFn) -> Dim:
    """Sums of products of quotients and remainders of two symbols by constants that divide each other, or nearly so."""
    total = Dim.of(0)
    for _ in range(draw(st.integers(1, 4))):
        term = Dim.of(draw(st.sampled_from([-8, -3, -2, -1, 1, 2, 3, 8, 16])))
        for symbol in draw(st.lists(st.sampled_from([A, B]), min_size=1, max_size=2)):
            shifted, divisor = symbol + draw(st.integers(-9, 9)), draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
            term *= shifted % divisor if draw(st.booleans()) and draw(st.booleans()) else shifted // divisor
        total += term
    return total


@settings(max_examples=150, deadline=None)
@given(maps(), st.sampled_from([-3, 0, 1, 5]), st.sampled_from([None, 6, 11]))
def test_bounds_of_maps_hold(dim: Dim, least: int, largest: int | None) -> None:
    env = make_env(A=(least, largest, 1), B=(0, None, 1))
    low, high = env.range(dim)
    never_negative = env.at_most(0, dim)
    for a, b in itertools.product(range(least, 18 if largest is None else largest + 1), range(18)):
        value = dim.evaluate({"A": a, "B": b})
        assert (low is None or low <= value) and (high is None or value <= high)
        assert value >= 0 or not never_negative


def factors() -> st.SearchStrategy[Dim]:
    return st.sampled_from([A, B, C, A * B, A + 1, A // 2, Dim.of(1), Dim.of(2), Dim.of(6), Dim.of(0), B * 2])


@settings(max_examples=200, deadline=None)
@given(environments(), st.lists(factors(), max_size=4), st.lists(factors(), max_size=4), st.booleans())
def test_reshape_groups_hold(knowledge: tuple[ShapeEnv, list[dict[str, int]]], source: list[Dim], target: list[Dim], learn: bool) -> None:
    env, assignments = knowledge
    total, other = math.prod(source, start=Dim.of(1)), math.prod(target, start=Dim.of(1))
    satisfying = [values for values in assignments if total.evaluate(values) == other.evaluate(values)]
    if learn and satisfying:
        env.equate(total, other)
        assignments = satisfying
    groups = env.reshape_groups(source, target)
    if groups is None:
        assert env.equal(env.product(source), env.product(target)) is not Truth.YES
        return
    assert [i for group, _ in groups for i in group] == list(range(len(source)))
    assert [j for _, group in groups for j in group] == list(range(len(target)))
    for values in assignments:
        for left, right in groups:
            assert math.prod(source[i].evaluate(values) for i in left) == math.prod(target[j].evaluate(values) for j in right)


def test_sizes_of_windows() -> None:
    """A map padded to whole windows, of what a stem and a merge by twos leave, is a product, however `%` was computed: its square has one term."""
    env = sizes("A", "B")
    half = (A // 4 + (A // 4) % 2) // 2
    for size in (A, A // 4, half):
        gap = 3 - size % 3
        for padding in (gap % 3, gap - gap // 3 * 3):
            padded = env.simplify(size + padding)
            windows = (size + 2) // 3
            assert padded == windows * 3
            assert env.simplify(padded * padded) == windows * windows * 9
            assert env.equal(size + padding, windows * 3) is Truth.YES
            rows = size + padding
            assert env.simplify((B * windows * windows * 9) // (rows * rows)) == B
    assert half == (A // 4 + 1) // 2 == (A + 4) // 8
    assert env.simplify(A + A % 2) == (A + 1) // 2 * 2


def test_many_questions_are_quick() -> None:
    """A guard against a search that explodes, not a benchmark: 20,000 questions on a deep chain of dims."""
    env = sizes("B", "S")
    dims = [env.parse("S")]
    for _ in range(30):
        dims.append((dims[-1] + 1) // 2)
    questions = 0
    for left, right in itertools.product(dims, repeat=2):
        for _ in range(20):
            env.equal(left, right)
            questions += 1
    assert questions > 19_000


def test_a_relation_that_rules_do_not_apply_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewriting has a bound: what it does not reach is unknown, and a walk that meets it again must learn nothing."""
    monkeypatch.setattr("disc.shapes.facts._MAXIMUM_REWRITES", 0)
    env = ShapeEnv()
    for name in ("S0", "S1", "S2"):
        env.symbol(name)
    left, right = Dim.symbol("S0") * Dim.symbol("S1"), Dim.symbol("S2") * Dim.symbol("S2")
    env.equate(left, right)
    known = env.facts()
    assert env.equal(left, right) is Truth.UNKNOWN, "the bound is meant to hide it"
    env.equate(left, right)
    assert env.facts() == known == [(left, right)]
