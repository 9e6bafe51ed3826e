"""The buffer plan: no two values that live at the same time meet, whatever the sizes, and no more memory than need be."""

from __future__ import annotations

import random

import pytest

from disc.codegen.host.buffers import LINE, Lifetime, Plan, buffer_bytes, plan_buffers
from disc.codegen.host.steps import Value
from disc.shapes import Dim, ShapeEnv

VALUES = (0, 1, 2, 7, 16, 63, 97, 1000)


def program(*values: tuple[Dim, int, int], element: str = "f32") -> list[Lifetime]:
    """One lifetime for each (elements, first, last)."""
    return [Lifetime(Value(str(number), element, (size,)), first, last) for number, (size, first, last) in enumerate(values)]


def live_bytes(env: ShapeEnv, lifetimes: list[Lifetime], values: dict[str, int]) -> int:
    """The most that lives at once: what no plan can do without."""
    sizes = {each.value: buffer_bytes(env, each.value).evaluate(values) for each in lifetimes}
    return max(sum(sizes[each.value] for each in lifetimes if each.first <= now <= each.last) for now in {each.first for each in lifetimes})


def check(env: ShapeEnv, lifetimes: list[Lifetime], plan: Plan, values: dict[str, int]) -> None:
    places = [(each, plan.offsets[each.value].evaluate(values), buffer_bytes(env, each.value).evaluate(values)) for each in lifetimes]
    for number, (one, start, size) in enumerate(places):
        assert start % LINE == 0 and start >= 0
        assert start + size <= plan.size.evaluate(values)
        for other, other_start, other_size in places[:number]:
            if one.first <= other.last and other.first <= one.last:
                assert start + size <= other_start or other_start + other_size <= start, (one, other, values)


@pytest.mark.parametrize("seed", range(30))
def test_values_that_live_at_the_same_time_never_meet(seed: int) -> None:
    generator = random.Random(seed)
    env = ShapeEnv()
    a, b = env.symbol("S0"), env.symbol("S1", lo=seed % 3)
    shapes = [Dim.of(5), a, b, a * 768, a * b * 64, a * 3072, (a + 1) // 2 * b, b * b, a + b, a * b * 192, Dim.of(0)]
    values = []
    for number in range(generator.randint(1, 20)):
        values.append((generator.choice(shapes), number, number + generator.choice((0, 1, 1, 2, 5))))
    lifetimes = program(*values, element=generator.choice(("f32", "i8", "i64")))
    plan = plan_buffers(env, lifetimes)
    assert set(plan.offsets) == {each.value for each in lifetimes}
    for first in VALUES:
        for second in VALUES[seed % 3 :]:
            check(env, lifetimes, plan, {"S0": first, "S1": second})


def test_a_layer_of_a_transformer_needs_what_lives_at_once() -> None:
    """Two narrow values end, a wide one takes the place of both and more: slots of whole values would need 60 % more."""
    env = ShapeEnv()
    rows = env.symbol("S0")
    narrow, middle, wide = rows * 768, rows * 2304, rows * 3072
    values: list[tuple[Dim, int, int]] = [(narrow, 0, 3)]
    for layer in range(1, 49, 4):
        values += [(middle, layer, layer + 1), (narrow, layer + 1, layer + 2), (narrow, layer + 2, layer + 5), (wide, layer + 3, layer + 4)]
    lifetimes = program(*values)
    plan = plan_buffers(env, lifetimes)
    for size in VALUES:
        check(env, lifetimes, plan, {"S0": size})
        assert plan.size.evaluate({"S0": size}) == live_bytes(env, lifetimes, {"S0": size})


@pytest.mark.parametrize("rounded_up", [False, True])
def test_maps_that_shrink_need_what_lives_at_once(rounded_up: bool) -> None:
    """Five stages of maps and the channels that they are scaled by, as in small convolutional networks: hundreds of comparisons of
    products of quotients, which interval arithmetic decides or a sample refutes. They were searched for, and took a minute."""
    env = ShapeEnv()
    batch, height, width = (env.symbol(f"S{number}") for number in range(3))
    values: list[tuple[Dim, int, int]] = []
    for stage, channels in enumerate((24, 40, 80, 112, 320), 1):
        scale = 2**stage
        above = scale - 1 if rounded_up else 0
        pixels = batch * ((height + above) // scale) * ((width + above) // scale)
        for now in range(len(values), len(values) + 25, 5):
            wide, narrow, scales = pixels * channels * 6, pixels * channels, batch * channels * 6
            values += [(wide, now, now + 1), (wide, now + 1, now + 4), (scales, now + 2, now + 3), (scales, now + 3, now + 4)]
            values += [(narrow, now + 4, now + 6)]
    lifetimes = program(*values)
    bounds = env._facts.bounds()
    plan = plan_buffers(env, lifetimes)
    assert bounds.steps_taken < 2_000
    for sizes in ((1, 1, 1), (0, 32, 32), (1, 224, 224), (3, 33, 190), (2, 8, 500)):
        named = dict(zip(("S0", "S1", "S2"), sizes, strict=True))
        check(env, lifetimes, plan, named)
    named: dict[str, int] = {"S0": 2, "S1": 224, "S2": 192}
    assert plan.size.evaluate(named) <= 1.001 * live_bytes(env, lifetimes, named)


def test_values_of_unrelated_sizes_take_turns_in_slots() -> None:
    """Two of them live at a time, so two slots of the largest do; places behind each other would need nine."""
    env = ShapeEnv()
    symbols = [env.symbol(f"S{number}") for number in range(3)]
    lifetimes = program(*((symbols[number % 3], number, number + 1) for number in range(9)))
    plan = plan_buffers(env, lifetimes)
    for values in ((1000, 16, 16), (16, 1000, 16), (16, 16, 1000)):
        named = {f"S{number}": value for number, value in enumerate(values)}
        check(env, lifetimes, plan, named)
        assert plan.size.evaluate(named) <= 2 * (4 * max(values) + LINE)


def test_places_of_which_little_is_provable_stay_short() -> None:
    """Each value lies behind the larger of two of unrelated sizes, which lie so themselves: an expression as long as the two together."""
    env = ShapeEnv()
    symbols = [env.symbol(f"S{number}") for number in range(7)]
    lifetimes = program(*((symbols[number % 7], number, number + 3) for number in range(60)))
    plan = plan_buffers(env, lifetimes)
    assert max(len(str(each)) for each in (plan.size, *plan.offsets.values())) < 1 << 16
    check(env, lifetimes, plan, {f"S{number}": 50 * number for number in range(7)})


def test_what_lies_below_the_next_value_needs_no_proof_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that are kept for what comes last, latest first, as of the steps of a loop for its gradients, and others that soon end: a proof
    for each pair of places, which are sums of roundings, would be 782."""
    proofs = 0
    ask = ShapeEnv.at_most

    def counted(env: ShapeEnv, left: Dim, right: Dim) -> bool:
        nonlocal proofs
        found = ask(env, left, right)
        proofs += found
        return found

    monkeypatch.setattr(ShapeEnv, "at_most", counted)
    env = ShapeEnv()
    rows = env.symbol("S0")
    lifetimes = program(*((rows * (5 + 2 * (n * 7 % 9)), n, 160 - n if n % 3 else n + 2) for n in range(80)))
    plan = plan_buffers(env, lifetimes)
    assert proofs < len(lifetimes)
    check(env, lifetimes, plan, {"S0": 37})


def test_no_values() -> None:
    assert plan_buffers(ShapeEnv(), []).size == Dim.of(0)
