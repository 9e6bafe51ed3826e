"""Guards: one text, one meaning, one lowering, which answers as the values themselves do."""

from __future__ import annotations

import ast
import ctypes
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, reduce
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from disc.codegen.host.guards import lower_guard
from disc.codegen.mlir.builder import Builder, Variable
from disc.codegen.mlir.lower import compile_objects, link_shared
from disc.shapes import Dim, ShapeEnv, Truth, dim_max, dim_min
from disc.speculation.guards import (
    ALWAYS,
    Aligned,
    All,
    AtLeast,
    AtMost,
    BeyondCache,
    Divides,
    Equal,
    Guard,
    Single,
    all_of,
    parse,
    parts_of,
    parts_of_kind,
)
from disc.targets.x86 import host_isa, read_target

ROOT = Path(__file__).resolve().parents[3]
NAMES: tuple[str, ...] = ("S0", "S1", "S2")
SYMBOLS = [Dim.symbol(name) for name in NAMES]
# Of a size; beyond 2^20 elements of each of two dims 64 bits hold no product of three, so the largest one stands alone below.
SIZES = st.sampled_from([0, 1, 2, 3, 4, 15, 16, 17, 63, 64, 100, 131072, 1 << 20]) | st.integers(0, 1 << 20)
LARGEST = 1 << 40


def dims(largest: int = 3) -> SearchStrategy[Dim]:
    """Sizes as they occur: sums and products of symbols and small numbers, minima, maxima, quotients by numbers."""
    leaf = st.sampled_from(SYMBOLS) | st.integers(0, 200).map(Dim.of)
    made = st.one_of(
        leaf,
        st.tuples(leaf, leaf).map(lambda pair: pair[0] + pair[1]),
        st.tuples(leaf, leaf).map(lambda pair: pair[0] * pair[1]),
        st.tuples(leaf, leaf).map(lambda pair: dim_min(*pair)),
        st.tuples(leaf, leaf).map(lambda pair: dim_max(*pair)),
        st.tuples(leaf, st.integers(1, 20)).map(lambda pair: pair[0] // pair[1]),
        st.tuples(leaf, st.integers(1, 20)).map(lambda pair: pair[0] % pair[1]),
    )
    return st.lists(made, min_size=1, max_size=largest).map(lambda parts: reduce(lambda left, right: left + right, parts))


def singles() -> SearchStrategy[Single]:
    number = st.sampled_from([1, 2, 4, 7, 16, 64, 131072]) | st.integers(1, LARGEST)
    return st.one_of(
        st.builds(Divides, number, dims()), st.builds(AtMost, number, dims()), st.builds(AtLeast, number, dims()),
        st.builds(Equal, dims(), dims()), st.builds(BeyondCache, dims()), st.builds(Aligned, st.sampled_from([2, 16, 64])),
    )  # fmt: skip


def guards() -> SearchStrategy[Guard]:
    return st.lists(singles(), max_size=4).map(all_of)


@given(guards())
@settings(max_examples=100, deadline=None)
def test_text_is_read_back(guard: Guard) -> None:
    assert parse(str(guard)) == guard


@given(guards(), st.tuples(SIZES, SIZES, SIZES), SIZES, st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_guard_holds_where_all_its_parts_do(guard: Guard, sizes: tuple[int, int, int], cache_bytes: int, aligned: bool) -> None:
    values = dict(zip(NAMES, sizes, strict=True))
    assert guard.holds(values, cache_bytes, aligned) == all(each.holds(values, cache_bytes, aligned) for each in parts_of(guard))


@pytest.mark.parametrize(
    ("guard", "good", "bad"),
    [
        (Divides(16, Dim.symbol("S0")), [0, 16, LARGEST], [1, 15, LARGEST + 1]),
        (AtMost(4, Dim.symbol("S0")), [0, 4], [5, LARGEST]),
        (AtLeast(64, Dim.symbol("S0")), [64, LARGEST], [0, 63]),
        (Equal(Dim.symbol("S0"), Dim.of(1)), [1], [0, 2, LARGEST]),
        (BeyondCache(Dim.symbol("S0") * 4), [1025, LARGEST], [0, 1024]),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_each_means(guard: Guard, good: list[int], bad: list[int]) -> None:
    assert all(guard.holds({"S0": size}, 4096) for size in good)
    assert not any(guard.holds({"S0": size}, 4096) for size in bad)


def test_results_off_cache_lines_do_not_go_past_the_caches() -> None:
    assert not BeyondCache(Dim.symbol("S0")).holds({"S0": LARGEST}, 4096, aligned=False)


def test_alignment_is_asked_of_addresses() -> None:
    assert Aligned(16).holds({}, 0) and not Aligned(16).holds({}, 0, aligned=False)
    assert parse("aligned(16) and divides(8, S0)") == all_of((Aligned(16), Divides(8, Dim.symbol("S0"))))
    with pytest.raises(ValueError, match="powers of two"):
        Aligned(24)


# --- proofs ---------------------------------------------------------------------------------------------------------------


@given(guards(), st.tuples(SIZES, SIZES, SIZES), st.tuples(SIZES, SIZES, SIZES), SIZES)
@settings(max_examples=60, deadline=None)
def test_what_is_implied_holds(guard: Guard, low: tuple[int, ...], more: tuple[int, ...], cache_bytes: int) -> None:
    """In environments that know ranges and a divisor: YES and NO are right at both ends of the ranges."""
    env = ShapeEnv()
    for name, least, rest in zip(NAMES, low, more, strict=True):
        env.symbol(name, least * 16, (least + rest) * 16, divisor=16)
    truth = guard.implied_by(env)
    for values in ([least * 16 for least in low], [(least + rest) * 16 for least, rest in zip(low, more, strict=True)]):
        found = guard.holds(dict(zip(NAMES, values, strict=True)), max(cache_bytes, 1 << 20))
        assert truth is Truth.UNKNOWN or found is (truth is Truth.YES)


def test_what_symbols_say() -> None:
    env = ShapeEnv()
    size = env.symbol("S0", 64, 128, divisor=32)
    other = env.symbol("S1")
    expected = {
        Divides(16, size): Truth.YES, Divides(16, size + 1): Truth.NO, Divides(16, other): Truth.UNKNOWN, AtMost(128, size): Truth.YES,
        AtMost(63, size): Truth.NO, AtLeast(64, size): Truth.YES, AtLeast(129, size): Truth.NO, Equal(size, size): Truth.YES,
        Equal(size, other): Truth.UNKNOWN, Equal(size, Dim.of(1)): Truth.NO, BeyondCache(size * 4): Truth.NO,
        BeyondCache(other): Truth.UNKNOWN, Aligned(16): Truth.UNKNOWN, ALWAYS: Truth.YES,
        all_of((AtLeast(64, size), Divides(16, other))): Truth.UNKNOWN, all_of((AtMost(63, size), Divides(16, other))): Truth.NO,
        all_of((AtLeast(64, size), Divides(16, size))): Truth.YES,
    }  # fmt: skip
    assert {guard: guard.implied_by(env) for guard in expected} == expected


# --- texts that are none --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["divides", "divides(16)", "divides(S0, S1)", "divides(0, S0)", "divides(16, S0) or equal(S0, S1)", "odd(S0)", "equal(S0, S1, S2)",
     "at_most(4, S0) and ", "beyond_cache()", "beyond_cache(S0, S1)", " ", "divides(16, S0", "divides(16, S0) and odd(S1)",
     "aligned(S0)", "aligned(16, S0)", "aligned(24)"],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"guard|dim expression"):
        parse(text)


def test_symbols_are_looked_up() -> None:
    env = ShapeEnv()
    env.symbol("S0")
    assert parse("divides(16, S0)", env.parse) == Divides(16, Dim.symbol("S0"))
    with pytest.raises(ValueError, match="S7"):
        parse("divides(16, S7)", env.parse)


def test_a_guard_has_one_form() -> None:
    one, two = AtMost(4, Dim.symbol("S0")), AtLeast(2, Dim.symbol("S1"))
    assert all_of(()) == ALWAYS == parse("") and str(ALWAYS) == ""
    assert all_of((one,)) == one == all_of((ALWAYS, one, one))
    assert all_of((all_of((one, two)), two)) == All((one, two))
    assert parts_of_kind(All((one, two)), AtLeast) == (two,)
    with pytest.raises(ValueError, match="itself"):
        All((one,))


# --- the host -------------------------------------------------------------------------------------------------------------


def sample(seed: int) -> Iterator[Guard]:
    """Guards of all kinds, by themselves and joined."""
    pick = random.Random(seed)
    for _ in range(4):
        for kind in (Divides, AtMost, AtLeast):
            yield kind(pick.choice([1, 3, 4, 16, 64, 131072, LARGEST]), _size(pick))
        yield Equal(_size(pick), _size(pick))
        yield BeyondCache(_size(pick))
    yield Aligned(16)
    for _ in range(12):
        yield all_of(pick.sample(list(sample_singles(pick)), pick.randint(2, 4)))
    yield ALWAYS


def sample_singles(pick: random.Random) -> Iterator[Single]:
    yield Divides(pick.choice([2, 16]), _size(pick))
    yield AtMost(pick.choice([4, 1 << 20]), _size(pick))
    yield AtLeast(pick.choice([1, 64]), _size(pick))
    yield Equal(*pick.choices(SYMBOLS, k=2))
    yield BeyondCache(_size(pick))
    yield Aligned(pick.choice([2, 64]))


def _size(pick: random.Random) -> Dim:
    a, b = pick.choices(SYMBOLS, k=2)
    return pick.choice([a, a + b, a * 4, a * b, a + 3, dim_min(a, b), dim_max(a, 1), a // 7, a % 5, Dim.of(pick.choice([0, 1, 16]))])


GUARDS = tuple(sample(0))


@cache
def compiled() -> Callable[..., None]:
    """A native function of three sizes, the cache's bytes and whether results begin on cache lines, which writes an i64 per guard."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "guards.so"
        path.write_bytes(link_shared(compile_objects(source(), read_target(host_isa()), 1)))
        function = ctypes.CDLL(str(path)).disc_entry
    function.argtypes, function.restype = [*[ctypes.c_int64] * 5, ctypes.c_void_p], None
    return function


def source() -> str:
    b = Builder(1)
    for name in NAMES:
        b.variables[name] = Variable(name, f"%{name}", b.root)

    def streams(size: str) -> str:
        aligned = b.op(f"arith.cmpi ne, %aligned, {b.index(0)} : i64")
        return b.op(f"arith.andi {b.op(f'arith.cmpi sgt, {size}, %cache : i64')}, {aligned} : i1")

    def aligned(number: int) -> str:
        assert number in (2, 16, 64)
        return b.op(f"arith.cmpi ne, %aligned, {b.index(0)} : i64")

    for number, guard in enumerate(GUARDS):
        slot = b.op(f"llvm.getelementptr %answers[{number}] : (!llvm.ptr) -> !llvm.ptr, i64")
        holds = b.op(f"arith.extui {lower_guard(b, guard, streams, aligned)} : i1 to i64")
        b.statement(f"llvm.store {holds}, {slot} : i64, !llvm.ptr")
    arguments = ", ".join(f"%{name}: i64" for name in (*NAMES, "cache", "aligned"))
    head = f"func.func @disc_entry({arguments}, %answers: !llvm.ptr) {{"
    return "\n".join([head, *b.globals, *b.root.lines, "return", "}"]) + "\n"


def answers(sizes: tuple[int, int, int], cache_bytes: int, aligned: bool) -> list[bool]:
    """Of the host, for each of GUARDS."""
    found = (ctypes.c_int64 * len(GUARDS))()
    compiled()(*sizes, cache_bytes, int(aligned), ctypes.addressof(found))
    return [bool(each) for each in found]


@given(st.tuples(SIZES, SIZES, SIZES), SIZES, st.booleans())
@settings(max_examples=100, deadline=None)
def test_the_host_answers_as_guards_do(sizes: tuple[int, int, int], cache_bytes: int, aligned: bool) -> None:
    values = dict(zip(NAMES, sizes, strict=True))
    for guard, answer in zip(GUARDS, answers(sizes, cache_bytes, aligned), strict=True):
        assert answer == guard.holds(values, cache_bytes, aligned), guard


@pytest.mark.parametrize("sizes", [(0, 0, 0), (1, 1, 1), (LARGEST, 1, 0), (1, LARGEST, LARGEST + 1), (LARGEST, 16, LARGEST)])
def test_the_host_answers_at_the_ends(sizes: tuple[int, int, int]) -> None:
    """Also where a size is 2^40; of two such there is no product in 64 bits, and no memory."""
    values = dict(zip(NAMES, sizes, strict=True))
    for cache_bytes in (0, 1 << 25, LARGEST):
        for guard, answer in zip(GUARDS, answers(sizes, cache_bytes, True), strict=True):
            if fits(guard, values):
                assert answer == guard.holds(values, cache_bytes), guard


def fits(guard: Guard, values: dict[str, int]) -> bool:
    """Whether 64 bits hold all sizes of a guard."""
    sides = [each for part in parts_of(guard) for each in _sides(part)]
    return all(side.evaluate(values) < 1 << 63 for side in sides)


def _sides(part: Single) -> list[Dim]:
    if isinstance(part, Equal):
        return [part.left, part.right]
    if isinstance(part, BeyondCache):
        return [part.bytes]
    return [] if isinstance(part, Aligned) else [part.size]


# --- nothing else knows the text ------------------------------------------------------------------------------------------


def test_no_other_file_spells_guards() -> None:
    """In strings that are no docstrings: neither made, nor taken apart, nor looked for."""
    spelled = re.compile(r"\b(divides|equal|at_most|at_least|aligned)\(|beyond_cache")
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "disc").rglob("*.py"))
        if path.relative_to(ROOT) != Path("disc/speculation/guards.py") and spelled.search(path.read_text())
        for node in strings(ast.parse(path.read_text()))
        if spelled.search(str(node.value))
    ]
    assert not found


def strings(module: ast.Module) -> Iterator[ast.Constant]:
    """All but docstrings: strings that are statements of their own."""
    alone = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node
