"""Which fusions share a kernel: what may differ between them, and what must not."""

from __future__ import annotations

import pytest

from disc.codegen.build import Built, Part, build
from disc.codegen.choose_kernels import ChooseKernels
from disc.codegen.host.entry import counter_names
from disc.codegen.kernel_keys import KernelKey, KernelKeys
from disc.codegen.plan.listing import Means
from disc.ir.dialect import disc_context
from disc.ir.graph import Snapshot
from disc.ir.ops import main_block
from disc.ir.passes import CompileState, run_passes
from disc.ir.stages import load_env, parse_module
from disc.ir.weights import WeightTable
from disc.speculation.schedules import FAMILY
from disc.speculation.tree import every_schedule
from disc.targets.x86 import read_target

SYMBOL = (
    '"disc.symbolic_dim"() {{sym_name = "{name}", min = {low} : i64, {high}divisor = {divisor} : i64, source = "{source}"}} : () -> ()\n'
)
ROWS = """
    %1 = stablehlo.multiply %a, %b : tensor<?x?xf32, [@{n}, @{m}]>
    %2 = stablehlo.subtract %1, %b : tensor<?x?xf32, [@{n}, @{m}]>
    "kernel.yield"(%2) : (tensor<?x?xf32, [@{n}, @{m}]>) -> ()
"""


def symbol(number: int, low: int = 0, high: int | None = None, divisor: int = 1) -> str:
    """Dim `number` % 2 of argument `number` // 2."""
    most = f"max = {high} : i64, " if high is not None else ""
    return SYMBOL.format(name=f"S{number}", low=low, high=most, divisor=divisor, source=f"arg{number // 2}.{number % 2}")


def fusion(result: str, operands: str, n: str, m: str, arguments: str = "%a, %b", versions: str = '""', body: str = ROWS) -> str:
    kind = f"tensor<?x?xf32, [@{n}, @{m}]>"
    block = ", ".join(f"{name}: {kind}" for name in arguments.split(", "))
    return (
        f'%{result} = "kernel.fusion"({operands}) ({{\n^bb0({block}):{body.format(n=n, m=m)}}}) '
        f'{{kind = "loop", name = "loop_{result}", versions = [{versions}]}} : ({kind}, {kind}) -> {kind}\n'
    )


def module(symbols: str, *fusions: str) -> str:
    """A program of four arguments: %x and %y over S0 and S1, %z and %w over S4 and S5 (and each has two symbols that equal these)."""
    kinds = [f"tensor<?x?xf32, [@{n}, @{m}]>" for n, m in (("S0", "S1"), ("S0", "S1"), ("S4", "S5"), ("S4", "S5"))]
    arguments = ", ".join(f"%{name}: {kind}" for name, kind in zip("xyzw", kinds, strict=True))
    names = ", ".join(each.partition(" ")[0] for each in fusions)
    types = ", ".join(each.rpartition("-> ")[2].strip() for each in fusions)
    return f"{symbols}func.func @main({arguments}) -> ({types}) {{\n{''.join(fusions)}return {names} : {types}\n}}"


PLAIN = "".join(symbol(number) for number in (0, 1, 4, 5))
FIRST, SECOND = fusion("p", "%x, %y", "S0", "S1"), fusion("q", "%z, %w", "S4", "S5")


def keys(text: str) -> list[KernelKey]:
    with disc_context():
        parsed = parse_module(text)
        env = load_env(parsed)
        body = Snapshot(env).block(main_block(parsed))
        made = KernelKeys(env)
        return [made.key(node) for node in body.nodes if node.op == "kernel.fusion" and node.result == 0]


def alike(text: str) -> bool:
    first, second = keys(text)
    return first.text == second.text


def built(text: str) -> Built:
    with disc_context():
        parsed, targets = parse_module(text), (read_target("x86-64-v3"),)
        run_passes(parsed, (ChooseKernels(every_schedule(FAMILY[:1])),), CompileState(targets=targets))
        return build([Part(parsed, tuple(targets))], WeightTable(), Means())


def test_other_symbols() -> None:
    first, second = keys(module(PLAIN, FIRST, SECOND))
    assert first.text == second.text
    assert (first.symbols, second.symbols) == (("S0", "S1"), ("S4", "S5"))


def test_symbols_exchanged() -> None:
    text = module(PLAIN, FIRST, fusion("q", "%z, %w", "S4", "S5")).replace("[@S4, @S5]", "[@S5, @S4]")
    assert [key.symbols for key in keys(text)] == [("S0", "S1"), ("S5", "S4")] and alike(text)


def test_one_symbol_for_two_is_another_kernel() -> None:
    square = fusion("q", "%z, %w", "S4", "S4")
    text = module(PLAIN, FIRST, square).replace("[@S4, @S5]", "[@S4, @S4]")
    assert not alike(text)


def test_operands_in_another_order() -> None:
    text = module(PLAIN, FIRST, fusion("q", "%z, %w", "S4", "S5", arguments="%b, %a"))
    first, second = keys(text)
    assert first.text == second.text
    launched = second.operands_of(first, first.arguments)
    assert [node.result for node in launched] == [3, 2], "%b is what is subtracted: the first operand of the second fusion"


def test_ops_in_another_order() -> None:
    one = "\n%1 = stablehlo.negate %a : {k}\n%2 = stablehlo.tanh %b : {k}\n%3 = stablehlo.add %1, %2 : {k}\n"
    two = "\n%1 = stablehlo.tanh %b : {k}\n%2 = stablehlo.negate %a : {k}\n%3 = stablehlo.add %2, %1 : {k}\n"
    ending = '"kernel.yield"(%3) : ({k}) -> ()\n'
    bodies = [(each + ending).replace("{k}", "tensor<?x?xf32, [@{n}, @{m}]>") for each in (one, two)]
    assert alike(module(PLAIN, fusion("p", "%x, %y", "S0", "S1", body=bodies[0]), fusion("q", "%z, %w", "S4", "S5", body=bodies[1])))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"divisor": 8}, {}),
        ({}, {"divisor": 8}),
        ({"divisor": 8}, {"divisor": 16}),
        ({"low": 2}, {}),
        ({"low": 2}, {"low": 3}),
        ({"high": 16}, {}),
        ({"high": 16}, {"high": 17}),
        ({"low": 1, "high": 64}, {"low": 1, "high": 65}),
    ],
)
@pytest.mark.parametrize("dim", [0, 1])
def test_facts_about_one_symbol(first: dict[str, int], second: dict[str, int], dim: int) -> None:
    def declared(one: dict[str, int], other: dict[str, int]) -> str:
        return "".join((symbol(0 + dim, **one), symbol(1 - dim), symbol(4 + dim, **other), symbol(5 - dim)))

    assert not alike(module(declared(first, second), FIRST, SECOND))
    assert alike(module(declared(first, first), FIRST, SECOND))
    assert alike(module(declared(second, second), FIRST, SECOND))


def relation(left: str, right: str) -> str:
    return f'"disc.relation"() {{lhs = "{left}", rhs = "{right}"}} : () -> ()\n'


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("min(S0, S1)", "S1"), ("min(S4, S5)", "S5")),  # S0 >= S1
        (("S0 * S1", "S0 + 40"), ("S4 * S5", "S4 + 40")),
        (("min(S0, 2 * S1)", "S0"), ("min(S4, 2 * S5)", "S4")),
    ],
)
def test_facts_about_two_symbols(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert alike(module(PLAIN + relation(*one) + relation(*other), FIRST, SECOND))
    assert not alike(module(PLAIN + relation(*one), FIRST, SECOND))
    assert not alike(module(PLAIN + relation(*other), FIRST, SECOND))


def test_the_same_fact_the_other_way_round() -> None:
    assert not alike(module(PLAIN + relation("min(S0, S1)", "S1") + relation("min(S4, S5)", "S4"), FIRST, SECOND))


def test_facts_through_symbols_of_other_fusions() -> None:
    """S0 <= S2 <= S1 says that S0 <= S1, though no fusion has S2."""
    chain = relation("min(S0, S2)", "S0") + relation("min(S2, S1)", "S2")
    again = relation("min(S4, S6)", "S4") + relation("min(S6, S5)", "S6")
    more = PLAIN + symbol(2) + symbol(6)
    assert not alike(module(more + chain, FIRST, SECOND))
    assert alike(module(more + chain + again, FIRST, SECOND))
    longer = module(more + chain + again, FIRST, SECOND)
    assert [key.symbols for key in keys(longer)] == [("S0", "S1", "S2"), ("S4", "S5", "S6")]
    assert not alike(module(PLAIN + symbol(2, high=40) + symbol(6) + chain + again, FIRST, SECOND))


def test_a_relation_between_both_keeps_them_apart() -> None:
    """S0 >= S4: the larger one is known to be large where the smaller one is, and not the other way round."""
    assert not alike(module(PLAIN + relation("min(S0, S4)", "S4"), FIRST, SECOND))


def test_facts_about_others_do_not_count() -> None:
    assert alike(module(PLAIN + symbol(2, low=2, high=9) + symbol(6, divisor=4) + relation("min(S2, S6)", "S6"), FIRST, SECOND))


def test_derived_symbols_count_by_what_they_are() -> None:
    derived = '"disc.symbolic_dim"() {{sym_name = "{}", min = 0 : i64, divisor = 1 : i64, expr = "{}"}} : () -> ()\n'.format
    sums = derived("S8", "S0 + S1") + derived("S9", "S5 + S4") + derived("S10", "S4 + 2 * S5")
    text = module(PLAIN + sums, FIRST, SECOND).replace("[@S0, @S1]", "[@S0, @S8]")
    assert alike(text.replace("[@S4, @S5]", "[@S4, @S9]"))
    assert not alike(text.replace("[@S4, @S5]", "[@S4, @S10]"))


def test_versions_in_terms_of_the_symbols() -> None:
    one = fusion("p", "%x, %y", "S0", "S1", versions='"divides(16, S1)", ""')
    assert alike(module(PLAIN, one, fusion("q", "%z, %w", "S4", "S5", versions='"divides(16, S5)", ""')))
    assert not alike(module(PLAIN, one, fusion("q", "%z, %w", "S4", "S5", versions='"divides(16, S4)", ""')))
    assert not alike(module(PLAIN, one, fusion("q", "%z, %w", "S4", "S5", versions='"divides(8, S5)", ""')))
    assert not alike(module(PLAIN, one, SECOND))


def test_constants_count_by_their_bits() -> None:
    scaled = (
        '\n%0 = stablehlo.constant dense<{c}> : tensor<f32>\n%1 = "disc.broadcast_in_dim"(%0) {{dims = array<i64>}} : '
        "(tensor<f32>) -> {kind}\n%2 = stablehlo.multiply %a, %1 : {kind}\n%3 = stablehlo.add %2, %b : {kind}\n"
        '"kernel.yield"(%3) : ({kind}) -> ()\n'
    ).replace("{kind}", "tensor<?x?xf32, [@{n}, @{m}]>")

    def text(first: str, second: str) -> str:
        bodies = [scaled.replace("{c}", each) for each in (first, second)]
        return module(PLAIN, fusion("p", "%x, %y", "S0", "S1", body=bodies[0]), fusion("q", "%z, %w", "S4", "S5", body=bodies[1]))

    assert alike(text("2.0", "2.0"))
    assert not alike(text("2.0", "2.5"))
    assert not alike(text("0.0", "-0.0"))


def test_launches_say_their_own_symbols() -> None:
    versions = '"divides(16, {m}) and beyond_cache({n} * {m} * 4)", "divides(16, {m})", ""'
    places = (("p", "%x, %y", "S0", "S1"), ("q", "%z, %w", "S4", "S5"))
    fusions = (fusion(*each, versions=versions.format(n=each[2], m=each[3])) for each in places)
    made = built(module(PLAIN, *fusions)).targets["x86-64-v3"]
    first, second = made.program.launches
    assert made.listing.text.count("func.func @loop_p_0_v") == 3 and "@loop_q" not in made.listing.text
    assert first.kernel.name == second.kernel.name and (first.name, second.name) == ("loop_p", "loop_q")
    assert (first.kernel.symbols, second.kernel.symbols) == (("S0", "S1"), ("S4", "S5"))
    assert [str(each.kernel.bytes) for each in (first, second)] == ["S0 * S1 * 12", "S4 * S5 * 12"]
    guards = ["divides(16, S5) and beyond_cache(S4 * S5 * 4)", "divides(16, S5)", ""]
    assert [version.describe() for version in second.kernel.versions] == guards
    assert first.counters == (0, 1, 2) and second.counters == (3, 4, 2), "what holds for any shape is counted together"
    names = counter_names(made.program.launches)
    assert [name.partition("[")[2] for name in names[2:]] == ["any shape]", *(f"{guard}]" for guard in guards[:2])]


def test_a_weight_is_another_operand() -> None:
    weight = '%{} = "disc.weight"() {{name = "{}"}} : () -> tensor<?x?xf32, [@S4, @S5]>\n'.format
    weights = weight("z", "one"), fusion("q", "%z, %w", "S4", "S5"), weight("v", "two"), fusion("r", "%v, %w", "S4", "S5")
    text = module(PLAIN, FIRST).replace("%z: ", "%unused: ").replace("return %p : ", f"{''.join(weights)}return %p : ")
    first, second, third = keys(text)
    assert first.text != second.text and second.text == third.text


def test_what_a_size_reads_counts() -> None:
    """The text of a slice's start, beside dims that are equal."""
    sliced = (
        '\n%0 = "disc.slice"(%a) {{starts = ["0", "{start}"], strides = array<i64: 1, 1>}} : (tensor<?x?xf32, [@{n}, @{m}]>) -> '
        'tensor<?x5xf32, [@{n}, 5]>\n%1 = "disc.slice"(%b) {{starts = ["0", "0"], strides = array<i64: 1, 1>}} : '
        "(tensor<?x?xf32, [@{n}, @{m}]>) -> tensor<?x5xf32, [@{n}, 5]>\n%2 = stablehlo.add %0, %1 : tensor<?x5xf32, [@{n}, 5]>\n"
        '"kernel.yield"(%2) : (tensor<?x5xf32, [@{n}, 5]>) -> ()\n'
    )

    def text(first: str, second: str) -> str:
        starts = [sliced.replace("{start}", each) for each in (first, second)]
        fusions = fusion("p", "%x, %y", "S0", "S1", body=starts[0]), fusion("q", "%z, %w", "S4", "S5", body=starts[1])
        results = [each.replace(f"-> tensor<?x?xf32, [@{n}, @{m}]>\n", f"-> tensor<?x5xf32, [@{n}, 5]>\n") for each, n, m in zip(fusions, ("S0", "S4"), ("S1", "S5"), strict=True)]  # fmt: skip
        return module(PLAIN, *results)

    assert alike(text("S1 - 5", "S5 - 5"))
    assert alike(text("S0 + S1 - 5", "S5 + S4 - 5"))
    assert not alike(text("S1 - 5", "S4 - 5"))
    assert not alike(text("S1 - 5", "S5 - 6"))
