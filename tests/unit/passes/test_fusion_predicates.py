"""The legality predicates and costs of the fusion passes, alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from disc.ir.costs import Costs
from disc.ir.dialect import disc_context
from disc.ir.graph import Node
from disc.ir.stages import parse_module
from disc.passes.fusion.clone_producers import Recipe, should_clone
from disc.passes.fusion.clusters import Cluster, Clusters, is_row_reduction
from disc.passes.fusion.fuse_compute import may_be_epilogue, should_be_epilogue
from disc.passes.fusion.fuse_elementwise import may_fuse, should_fuse, should_transpose_apart
from disc.passes.fusion.stitch import may_hand_over, may_stitch
from disc.passes.fusion.tabulate_distances import should_tabulate
from disc.targets.x86_thresholds import CPU

S0 = '"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()'
ROWS = "tensor<?x8xf32, [@S0, 8]>"
COLUMN = "tensor<?xf32, [@S0]>"


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with disc_context():
        yield


def clusters_of(body: str, results: str, arguments: str = f"%x: {ROWS}, %y: {ROWS}") -> Clusters:
    """The groups of a function before any pass: every real op alone. results: "%a : type, %b : type"."""
    values, kinds = zip(*(part.split(" : ") for part in results.split("; ")), strict=True)
    text = f"{S0}\nfunc.func @main({arguments}) -> ({', '.join(kinds)}) {{\n{body}\nreturn {', '.join(values)} : {', '.join(kinds)}\n}}"
    return Clusters(parse_module(text), CPU)


def named(clusters: Clusters, name: str, number: int = 0) -> Node:
    return [node for node in clusters.body.nodes if node.name == name and node.result == 0][number]


def fusable(clusters: Clusters, producer: Node, consumer: Node) -> bool:
    return may_fuse(clusters, producer, clusters.of[producer], clusters.of[consumer])


def reduction(name: str, source: str, axis: int, kind: str, result: str) -> str:
    return (
        f"%{name}.zero = stablehlo.constant dense<0.0> : tensor<f32>\n"
        f"%{name} = stablehlo.reduce({source} init: %{name}.zero) applies stablehlo.add across dimensions = [{axis}]"
        f" : ({kind}, tensor<f32>) -> {result}"
    )


@pytest.mark.parametrize(
    ("dims", "axes", "rows"),
    [
        ("?x8xf32, [@S0, 8]", [1], True),
        ("?x8xf32, [@S0, 8]", [0], False),
        ("?x8xf32, [@S0, 8]", [0, 1], True),
        ("?x8x1xf32, [@S0, 8, 1]", [1], True),
        ("?x8x1xf32, [@S0, 8, 1]", [2], False),
        ("?x8x4xf32, [@S0, 8, 4]", [0, 2], False),
        ("?x8x4xf32, [@S0, 8, 4]", [1, 2], True),
        ("1x?xf32, [1, @S0]", [1], True),
    ],
)
def test_is_row_reduction(dims: str, axes: list[int], rows: bool) -> None:
    sizes = [part.strip() for part in dims.split("[")[1].strip("]").split(",")]
    kept = [size for axis, size in enumerate(sizes) if axis not in axes]
    shape = "x".join("?" if size.startswith("@") else size for size in kept)
    result = f"tensor<{shape}xf32, [{', '.join(kept)}]>" if kept else "tensor<f32>"
    body = f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
    %r = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = {axes} : (tensor<{dims}>, tensor<f32>) -> {result}"""
    source = S0 if sizes[0] == "@S0" else S0.replace("arg0.0", "arg0.1")
    text = f"{source}\nfunc.func @main(%x: tensor<{dims}>) -> {result} {{\n{body}\nreturn %r : {result}\n}}"
    assert is_row_reduction(named(Clusters(parse_module(text), CPU), "reduce")) is rows


def test_elementwise_fuses_into_its_consumer() -> None:
    clusters = clusters_of(f"%a = stablehlo.tanh %x : {ROWS}\n%b = stablehlo.add %a, %y : {ROWS}", f"%b : {ROWS}")
    assert fusable(clusters, named(clusters, "tanh"), named(clusters, "add"))
    assert should_fuse(clusters, named(clusters, "tanh"), clusters.of[named(clusters, "add")])


def test_a_value_read_elsewhere_is_a_second_result_only_in_the_same_space() -> None:
    body = f"%a = stablehlo.tanh %x : {ROWS}\n%b = stablehlo.add %a, %y : {ROWS}\n{reduction('c', '%a', 0, ROWS, 'tensor<8xf32, [8]>')}"
    clusters = clusters_of(body, f"%b : {ROWS}; %c : tensor<8xf32, [8]>")
    assert fusable(clusters, named(clusters, "tanh"), named(clusters, "add"))
    assert not fusable(clusters, named(clusters, "tanh"), named(clusters, "reduce"))


@pytest.mark.parametrize(("name", "profit"), [("tanh", False), ("negate", True)])
def test_only_a_cheap_value_is_computed_again(name: str, profit: bool) -> None:
    body = f"""%a = stablehlo.{name} %z : tensor<8xf32, [8]>
    %w = "disc.broadcast_in_dim"(%a) {{dims = array<i64: 1>, maybe = array<i64>}} : (tensor<8xf32, [8]>) -> {ROWS}
    %b = stablehlo.add %w, %x : {ROWS}"""
    clusters = clusters_of(body, f"%b : {ROWS}", f"%x: {ROWS}, %z: tensor<8xf32, [8]>")
    assert fusable(clusters, named(clusters, name), named(clusters, "add"))
    assert should_fuse(clusters, named(clusters, name), clusters.of[named(clusters, "add")]) is profit


def elementwise(name: str, count: int = 1) -> list[Node]:
    return [Node(number, f"stablehlo.{name}", (), (), "f32", {}) for number in range(count)]


@pytest.mark.parametrize(("count", "pays"), [(4, True), (5, False)])
def test_up_to_a_load_of_instructions_is_repeated(count: int, pays: bool) -> None:
    """A vector computed by 4 instructions takes as long as one that is loaded; elsewhere, where a load takes longer, so do 5."""
    narrow = "tensor<8xf32, [8]>"
    steps = "\n".join(f"%z{number + 1} = stablehlo.negate %z{number} : {narrow}" for number in range(count))
    body = f"""{steps}
    %w = "disc.broadcast_in_dim"(%z{count}) {{dims = array<i64: 1>, maybe = array<i64>}} : ({narrow}) -> {ROWS}
    %b = stablehlo.add %w, %x : {ROWS}"""
    clusters = clusters_of(body, f"%b : {ROWS}", f"%x: {ROWS}, %z0: {narrow}")
    last, target = named(clusters, "negate", count - 1), clusters.of[named(clusters, "add")]
    assert should_fuse(clusters, last, target) is pays
    clusters.costs = Costs.of(replace(CPU, rates=replace(CPU.rates, near_cycles=3)))
    assert should_fuse(clusters, last, target)


@pytest.mark.parametrize(("instructions", "again"), [(8, True), (9, False)])
def test_what_is_computed_again_and_what_is_loaded(instructions: int, again: bool) -> None:
    """Of what another kernel could make: a mask that every layer reads, a bias by distance."""
    costs = Costs.of(CPU)
    assert should_clone(Recipe(instructions=instructions), costs) is again
    assert should_tabulate(elementwise("negate", instructions), costs) is not again
    assert should_tabulate([*elementwise("negate"), Node(9, "disc.gather", (), (), "f32", {})], costs), "what is looked up"


def test_who_scatters_leaves_a_transpose_to_a_kernel_of_its_own() -> None:
    swapped = "tensor<8x?xf32, [8, @S0]>"
    body = f"{DOT}%t = stablehlo.transpose %d, dims = [1, 0] : ({ROWS}) -> {swapped}\n%r = stablehlo.tanh %t : {swapped}"
    clusters = clusters_of(body, f"%r : {swapped}", DOT_ARGUMENTS)
    view = named(clusters, "transpose")
    group = Cluster(0, "loop", [view])
    assert should_transpose_apart(view, clusters.costs) and not should_be_epilogue(group, clusters.costs)
    cheap = Costs.of(replace(CPU, rates=replace(CPU.rates, scatter_cycles=0.5)))
    assert not should_transpose_apart(view, cheap) and should_be_epilogue(group, cheap)
    assert not should_transpose_apart(named(clusters, "tanh"), clusters.costs), "no transpose"


def test_a_reduction_and_a_dot_end_a_group() -> None:
    body = f"{reduction('a', '%x', 1, ROWS, COLUMN)}\n%b = stablehlo.tanh %a : {COLUMN}"
    clusters = clusters_of(body, f"%b : {COLUMN}")
    assert not fusable(clusters, named(clusters, "reduce"), named(clusters, "tanh"))
    body = f"%a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({ROWS}, tensor<8x8xf32, [8, 8]>) -> {ROWS}\n%b = stablehlo.tanh %a : {ROWS}"
    clusters = clusters_of(body, f"%b : {ROWS}", f"%x: {ROWS}, %w: tensor<8x8xf32, [8, 8]>")
    assert not fusable(clusters, named(clusters, "dot_general"), named(clusters, "tanh"))


DOT = f"%d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({ROWS}, tensor<8x8xf32, [8, 8]>) -> {ROWS}\n"
DOT_ARGUMENTS = f"%x: {ROWS}, %w: tensor<8x8xf32, [8, 8]>"


@pytest.mark.parametrize(
    ("after", "result", "legal"),
    [
        (f"%r = stablehlo.add %d, %x : {ROWS}", ROWS, True),
        (f"%r = stablehlo.add %d, %d : {ROWS}", ROWS, True),
        (f"%t = stablehlo.reverse %d, dims = [1] : {ROWS}\n%r = stablehlo.add %d, %t : {ROWS}", ROWS, False),
        (
            f'%t = "disc.reshape"(%d) : ({ROWS}) -> tensor<?x2x4xf32, [@S0, 2, 4]>\n%r = stablehlo.tanh %t : tensor<?x2x4xf32, [@S0, 2, 4]>',
            "tensor<?x2x4xf32, [@S0, 2, 4]>",
            True,
        ),
        (
            f'%t = "disc.broadcast_in_dim"(%d) {{dims = array<i64: 1, 2>, maybe = array<i64>}} : ({ROWS}) -> tensor<3x?x8xf32, [3, @S0, 8]>\n'
            "%r = stablehlo.tanh %t : tensor<3x?x8xf32, [3, @S0, 8]>",
            "tensor<3x?x8xf32, [3, @S0, 8]>",
            False,
        ),
        (reduction("r", "%d", 0, ROWS, "tensor<8xf32, [8]>"), "tensor<8xf32, [8]>", False),
    ],
)
def test_an_epilogue_reads_each_element_where_it_is_computed(after: str, result: str, legal: bool) -> None:
    clusters = clusters_of(DOT + after, f"%r : {result}", DOT_ARGUMENTS)
    dot = named(clusters, "dot_general")
    (consumer,) = clusters.successors(clusters.of[dot])
    assert may_be_epilogue(clusters, dot, consumer) is legal


def test_a_returned_dot_has_no_epilogue() -> None:
    clusters = clusters_of(f"{DOT}%r = stablehlo.tanh %d : {ROWS}", f"%d : {ROWS}; %r : {ROWS}", DOT_ARGUMENTS)
    assert not may_be_epilogue(clusters, named(clusters, "dot_general"), clusters.of[named(clusters, "tanh")])


def stitched(body: str, result: str, producer: str, consumer: str, numbers: tuple[int, int] = (0, 0)) -> tuple[bool, bool]:
    """Whether the two groups form the same rows, and whether the first may hand its over."""
    clusters = clusters_of(body, result)
    first, second = clusters.of[named(clusters, producer, numbers[0])], clusters.of[named(clusters, consumer, numbers[1])]
    return may_stitch(clusters, first, second) is not None, may_hand_over(clusters, first, second)


CENTRED = f"""{reduction("a", "%x", 1, ROWS, COLUMN)}
%w = "disc.broadcast_in_dim"(%a) {{dims = array<i64: 0>, maybe = array<i64>}} : ({COLUMN}) -> {ROWS}
%b = stablehlo.subtract %x, %w : {ROWS}"""


def test_rows_are_stitched_with_what_reads_them() -> None:
    assert stitched(CENTRED, f"%b : {ROWS}", "reduce", "subtract") == (True, True)
    both = f"{CENTRED}\n{reduction('c', '%b', 1, ROWS, COLUMN)}"
    assert stitched(both, f"%c : {COLUMN}", "subtract", "reduce", (0, 1)) == (True, True)


def test_a_column_reduction_is_not_stitched() -> None:
    body = f"%a = stablehlo.tanh %x : {ROWS}\n{reduction('b', '%a', 0, ROWS, 'tensor<8xf32, [8]>')}"
    assert stitched(body, "%b : tensor<8xf32, [8]>", "tanh", "reduce")[0] is False


def test_different_rows_are_not_stitched() -> None:
    wide = "tensor<?x4x8xf32, [@S0, 4, 8]>"
    body = f"""{reduction("a", "%x", 2, wide, "tensor<?x4xf32, [@S0, 4]>")}
    {reduction("b", "%a", 1, "tensor<?x4xf32, [@S0, 4]>", COLUMN)}"""
    clusters = clusters_of(body, f"%b : {COLUMN}", f"%x: {wide}")
    assert may_stitch(clusters, clusters.of[named(clusters, "reduce")], clusters.of[named(clusters, "reduce", 1)]) is None


def test_rows_are_not_handed_over_through_a_transpose() -> None:
    square = "tensor<?x?xf32, [@S0, @S0]>"
    body = f"""{reduction("a", "%x", 1, square, COLUMN)}
    %w = "disc.broadcast_in_dim"(%a) {{dims = array<i64: 0>, maybe = array<i64>}} : ({COLUMN}) -> {square}
    %t = stablehlo.transpose %w, dims = [1, 0] : ({square}) -> {square}
    %b = stablehlo.subtract %x, %t : {square}"""
    clusters = clusters_of(body, f"%b : {square}", f"%x: {square}")
    assert not may_hand_over(clusters, clusters.of[named(clusters, "reduce")], clusters.of[named(clusters, "subtract")])


def test_a_group_between_two_others_would_close_a_circle() -> None:
    body = f"""%a = stablehlo.tanh %x : {ROWS}
    %d = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({ROWS}, tensor<8x8xf32, [8, 8]>) -> {ROWS}
    %b = stablehlo.add %a, %d : {ROWS}"""
    clusters = clusters_of(body, f"%b : {ROWS}", DOT_ARGUMENTS)
    producer, consumer = clusters.of[named(clusters, "tanh")], clusters.of[named(clusters, "add")]
    assert clusters.would_cycle(producer, consumer)
    assert not fusable(clusters, named(clusters, "tanh"), named(clusters, "add"))
    assert not clusters.would_cycle(producer, clusters.of[named(clusters, "dot_general")])


def test_views_belong_to_no_group_unless_returned() -> None:
    split = "tensor<?x2x4xf32, [@S0, 2, 4]>"
    body = f'%a = stablehlo.tanh %x : {ROWS}\n%v = "disc.reshape"(%a) : ({ROWS}) -> {split}'
    clusters = clusters_of(f"{body}\n%b = stablehlo.negate %v : {split}", f"%b : {split}")
    assert not clusters.is_real(named(clusters, "reshape"))
    assert [use.user.name for use in clusters.uses(named(clusters, "tanh"))] == ["negate"]
    returned = clusters_of(body, f"%v : {split}")
    assert returned.is_real(named(returned, "reshape"))
