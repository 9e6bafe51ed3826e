"""What `pack-sequences` makes of random programs, against the interpreter: sequences computed together and alone give the same values.

A program takes ids and features of tokens, and returns every value of tokens or of sequences that it computes: by steps that are legal
(token-wise work, positions, tables, attention of many kinds, chosen tokens) and, now and then, by one that mixes tokens.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, cast

import numpy as np
import pytest
from seeds import seeds
from torch_mlir import ir

from disc.artifact.manifest import PackedRecord
from disc.codegen.packed import packed_entry, packed_refusal, plain_tables
from disc.ir.dialect import disc_context
from disc.ir.interp.oracle import interpret
from disc.ir.passes import CompileState, run_passes
from disc.ir.stages import parse_module
from disc.ir.weights import Weight, WeightTable
from disc.passes.graph.pack_sequences import PackSequences
from disc.serving.packing import PackedLayout

SEEDS = 150
WIDTH, HEADS, TABLE = 8, 2, 12
HEADER = """
"disc.symbolic_dim"() {sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S1", min = 0 : i64, max = 12 : i64, divisor = 1 : i64, source = "arg0.1"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S2", min = 0 : i64, divisor = 1 : i64, source = "arg1.0"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S3", min = 0 : i64, divisor = 1 : i64, expr = "S0 * S1"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S4", min = 0 : i64, divisor = 1 : i64, expr = "S1 - 1"} : () -> ()
"disc.symbolic_dim"() {sym_name = "S5", min = 0 : i64, divisor = 1 : i64, expr = "S0 * 2"} : () -> ()
"""
FEATURES, PAIRS, ROWS = ("S0", "S1", WIDTH), ("S0", "S1", "S1"), ("S0", WIDTH)


def kind(dims: tuple[object, ...], element: str = "f32") -> str:
    if not dims:
        return f"tensor<{element}>"
    sizes = "x".join("?" if isinstance(dim, str) else str(dim) for dim in dims)
    return f"tensor<{sizes}x{element}, [{', '.join(f'@{dim}' if isinstance(dim, str) else str(dim) for dim in dims)}]>"


class Program:
    """Writes the ops of one random program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.tokens = ["%x"]
        self.rows: list[str] = []
        self.weights: dict[str, Weight] = {}
        self.mixed = ""
        self.data = np.random.default_rng(seed)

    def op(self, text: str, dims: tuple[object, ...], element: str = "f32") -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {text} -> {kind(dims, element)}")
        return name

    def same(self, name: str, operands: list[str], dims: tuple[object, ...]) -> str:
        types = ", ".join([kind(dims)] * len(operands))
        return self.op(f'"stablehlo.{name}"({", ".join(operands)}) : ({types})', dims)

    def view(self, op: str, value: str, dims: tuple[object, ...], wanted: tuple[object, ...], attrs: str = "", element: str = "f32") -> str:
        return self.op(f'"disc.{op}"({value}) {attrs} : ({kind(dims, element)})', wanted, element)

    def spread(self, value: str, dims: tuple[object, ...], wanted: tuple[object, ...], axes: list[int], element: str = "f32") -> str:
        attrs = f"{{dims = array<i64{': ' if axes else ''}{', '.join(map(str, axes))}>, maybe = array<i64>}}"
        return self.view("broadcast_in_dim", value, dims, wanted, attrs, element)

    def constant(self, value: str, element: str = "f32") -> str:
        return self.op(f'"stablehlo.constant"() {{value = dense<{value}> : tensor<{element}>}} : ()', (), element)

    def weight(self, *dims: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = Weight(self.data.standard_normal(dims).astype(np.float32) / 2, "f32")
        return self.op(f'"disc.weight"() {{name = "{name}"}} : ()', dims)

    def reduce(self, value: str, dims: tuple[object, ...], axis: int, name: str = "add") -> str:
        start = self.constant({"add": "0.0", "maximum": "0xFF800000"}[name])
        rest = (*dims[:axis], *dims[axis + 1 :])
        region = f'({{ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %c = stablehlo.{name} %a, %b : tensor<f32> "stablehlo.return"(%c) : (tensor<f32>) -> () }})'
        return self.op(
            f'"stablehlo.reduce"({value}, {start}) {region} {{dimensions = array<i64: {axis}>}} : ({kind(dims)}, tensor<f32>)', rest
        )

    def dot(self, left: str, right: str, types: list[tuple[object, ...]], wanted: tuple[object, ...], numbers: str) -> str:
        attrs = f"{{dot_dimension_numbers = #stablehlo.dot<{numbers}>}}"
        return self.op(f'"stablehlo.dot_general"({left}, {right}) {attrs} : ({kind(types[0])}, {kind(types[1])})', wanted)

    def iota(self, axis: int, dims: tuple[object, ...], element: str = "i64") -> str:
        return self.op(f'"disc.iota"() {{dim = {axis} : i64}} : ()', dims, element)

    # --- legal steps ----------------------------------------------------------------------------------------------------------

    def unary(self) -> None:
        self.tokens.append(self.same(self.random.choice(["tanh", "negate", "logistic"]), [self.pick()], FEATURES))

    def binary(self) -> None:
        self.tokens.append(self.same(self.random.choice(["add", "multiply", "maximum"]), [self.pick(), self.pick()], FEATURES))

    def linear(self) -> None:
        value, weight = self.pick(), self.weight(WIDTH, WIDTH)
        if self.random.random() < 0.5:
            merged = self.view("reshape", value, FEATURES, ("S3", WIDTH))
            merged = self.dot(
                merged,
                weight,
                [("S3", WIDTH), (WIDTH, WIDTH)],
                ("S3", WIDTH),
                "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]",
            )
            made = self.view("reshape", merged, ("S3", WIDTH), FEATURES)
        else:
            made = self.dot(
                value, weight, [FEATURES, (WIDTH, WIDTH)], FEATURES, "lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]"
            )
        self.tokens.append(self.same("tanh", [made], FEATURES))

    def norm(self) -> None:
        value = self.pick()
        mean = self.spread(self.reduce(value, FEATURES, 2), FEATURES[:2], FEATURES, [0, 1])
        self.tokens.append(self.same("subtract", [value, mean], FEATURES))

    def embed(self) -> None:
        ids = self.random.choice(["%ids", None])
        table = self.weight(TABLE, WIDTH)
        if ids is None:
            rows = self.view("slice", table, (TABLE, WIDTH), ("S1", WIDTH), '{starts = ["0", "0"], strides = array<i64: 1, 1>}')
            self.tokens.append(self.spread(rows, ("S1", WIDTH), FEATURES, [1, 2]))
            return
        attrs = (f'{{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], '
                 f'index_vector_dim = 2>, sizes = ["1", "{WIDTH}"]}}')  # fmt: skip
        found = self.op(
            f'"disc.gather"({table}, %ids) {attrs} : ({kind((TABLE, WIDTH))}, {kind(("S2", "S1"), "i64")})', ("S2", "S1", WIDTH)
        )
        self.tokens.append(
            self.view("broadcast_in_dim", found, ("S2", "S1", WIDTH), FEATURES, "{dims = array<i64: 0, 1, 2>, maybe = array<i64: 0>}")
        )

    def positions(self) -> None:
        places = self.iota(0, ("S1",), "f32")
        self.tokens.append(self.same("tanh", [self.spread(places, ("S1",), FEATURES, [1])], FEATURES))

    def compared(self) -> str:
        """i1 [B, L, L]: places of a pair, compared."""
        one, other = (self.spread(self.iota(0, ("S1",)), ("S1",), PAIRS, [axis], "i64") for axis in self.random.sample([1, 2], 2))
        word = self.random.choice(["LE", "LT", "NE"])
        types = f"({kind(PAIRS, 'i64')}, {kind(PAIRS, 'i64')})"
        return self.op(
            f'"stablehlo.compare"({one}, {other}) {{comparison_direction = #stablehlo<comparison_direction {word}>}} : {types}', PAIRS, "i1"
        )

    def scores(self) -> str:
        left, right = self.pick(), self.pick()
        numbers = "lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [2]"
        found = self.dot(left, right, [FEATURES, FEATURES], PAIRS, numbers)
        if self.random.random() < 0.4:
            bias = self.reduce(self.pick(), FEATURES, 2)
            found = self.same("add", [found, self.spread(bias, FEATURES[:2], PAIRS, [0, self.random.choice([1, 2])])], PAIRS)
        if self.random.random() < 0.4:
            one, other = (self.spread(self.iota(0, ("S1",)), ("S1",), PAIRS, [axis], "i64") for axis in (1, 2))
            apart = self.op(f'"stablehlo.subtract"({one}, {other}) : ({kind(PAIRS, "i64")}, {kind(PAIRS, "i64")})', PAIRS, "i64")
            found = self.same("add", [found, self.op(f'"stablehlo.convert"({apart}) : ({kind(PAIRS, "i64")})', PAIRS)], PAIRS)
        if self.random.random() < 0.5:
            low = self.spread(self.constant(self.random.choice(["0xFF800000", "-1.0e4"])), (), PAIRS, [])
            found = self.op(
                f'"stablehlo.select"({self.compared()}, {found}, {low}) : ({kind(PAIRS, "i1")}, {kind(PAIRS)}, {kind(PAIRS)})', PAIRS
            )
        return found

    def attention(self) -> None:
        found = self.same("tanh", [self.scores()], PAIRS) if self.random.random() < 0.3 else self.scores()
        axis = self.random.choice([2, 2, 2, 1])
        kept = [0, 3 - axis]
        form = self.random.choice(["softmax", "softmax", "plain sum", "none"])
        if form == "softmax":
            top = self.spread(self.reduce(found, PAIRS, axis, "maximum"), FEATURES[:2], PAIRS, kept)
            found = self.same("subtract", [found, top], PAIRS)
        if form != "none":
            found = self.same("exponential", [found], PAIRS)
            total = self.spread(self.reduce(found, PAIRS, axis), FEATURES[:2], PAIRS, kept)
            found = self.same("divide", [found, total], PAIRS)
        numbers = f"lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [{axis}], rhs_contracting_dimensions = [1]"
        made = self.dot(found, self.pick(), [PAIRS, FEATURES], FEATURES, numbers)
        self.tokens.append(self.same("tanh", [made], FEATURES))

    def chosen(self) -> None:
        start = self.random.choice(["0", "1", "S1 - 1"])
        attrs = f'{{starts = ["0", "{start}", "0"], strides = array<i64: 1, 1, 1>}}'
        one = self.view("slice", self.pick(), FEATURES, ("S0", 1, WIDTH), attrs)
        self.rows.append(self.view("reshape", one, ("S0", 1, WIDTH), ROWS))

    def pooled(self) -> None:
        """A sum or maximum over all tokens, of features or of heads; of a sum the mean."""
        value, name = self.pick(), self.random.choice(["add", "add", "maximum"])
        if self.random.random() < 0.5:
            found = self.reduce(value, FEATURES, 1, name)
        else:
            half = WIDTH // 2
            split = self.view("reshape", value, FEATURES, ("S0", "S1", 2, half))
            dims = ("S0", 2, half, "S1")
            turned = self.op(
                f'"stablehlo.transpose"({split}) {{permutation = array<i64: 0, 2, 3, 1>}} : ({kind(("S0", "S1", 2, half))})', dims
            )
            flat = self.view("reshape", turned, dims, ("S5", half, "S1"))
            found = self.view("reshape", self.reduce(flat, ("S5", half, "S1"), 2, name), ("S5", half), ROWS)
        if name == "add":
            size = self.op('"disc.dim_value"() {expr = "S1"} : ()', (), "i64")
            length = self.op(f'"stablehlo.convert"({size}) : (tensor<i64>)', ())
            found = self.same("divide", [found, self.spread(self.same("add", [length, self.constant("1.0")], ()), (), ROWS, [])], ROWS)
        self.rows.append(found)

    def of_rows(self) -> None:
        if not self.rows:
            return self.chosen()
        numbers = "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]"
        made = self.dot(self.random.choice(self.rows), self.weight(WIDTH, WIDTH), [ROWS, (WIDTH, WIDTH)], ROWS, numbers)
        flat = self.view("reshape", made, ROWS, ("S5", WIDTH // 2))
        self.rows.append(self.view("reshape", self.same("tanh", [flat], ("S5", WIDTH // 2)), ("S5", WIDTH // 2), ROWS))

    # --- steps that mix -------------------------------------------------------------------------------------------------------

    def mix(self) -> None:
        value = self.pick()
        forms = ["rows", "scan", "flip", "shift", "length", "product", "spread", "merge", "columns"]
        self.mixed = self.random.choice(forms)
        if self.mixed == "rows":
            total = self.spread(self.reduce(value, FEATURES, 0), FEATURES[1:], FEATURES, [1, 2])
            self.tokens.append(self.same("add", [value, total], FEATURES))
        elif self.mixed == "scan":
            self.tokens.append(self.view("cumulative", value, FEATURES, FEATURES, '{dim = 1 : i64, kind = "sum"}'))
        elif self.mixed == "flip":
            self.tokens.append(self.op(f'"stablehlo.reverse"({value}) {{dimensions = array<i64: 1>}} : ({kind(FEATURES)})', FEATURES))
        elif self.mixed == "shift":
            part = self.view("slice", value, FEATURES, ("S0", "S4", WIDTH), '{starts = ["0", "1", "0"], strides = array<i64: 1, 1, 1>}')
            zero = self.constant("0.0")
            attrs = '{low = ["0", "1", "0"], interior = array<i64: 0, 0, 0>}'
            self.tokens.append(self.op(f'"disc.pad"({part}, {zero}) {attrs} : ({kind(("S0", "S4", WIDTH))}, tensor<f32>)', FEATURES))
        elif self.mixed == "length":
            size = self.op('"disc.dim_value"() {expr = "S1"} : ()', (), "i64")
            number = self.op(f'"stablehlo.convert"({size}) : (tensor<i64>)', ())
            self.tokens.append(self.same("add", [value, self.spread(number, (), FEATURES, [])], FEATURES))
        elif self.mixed == "product":
            numbers = "lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1]"
            square = self.dot(value, self.pick(), [FEATURES, FEATURES], ("S0", WIDTH, WIDTH), numbers)
            self.rows.append(self.reduce(square, ("S0", WIDTH, WIDTH), 1))
        elif self.mixed == "spread":
            self.chosen()
            self.tokens.append(self.spread(self.rows[-1], ROWS, FEATURES, [0, 2]))
        elif self.mixed == "merge":
            moved = self.op(
                f'"stablehlo.transpose"({value}) {{permutation = array<i64: 1, 0, 2>}} : ({kind(FEATURES)})', ("S1", "S0", WIDTH)
            )
            merged = self.view("reshape", moved, ("S1", "S0", WIDTH), ("S3", WIDTH))
            self.tokens.append(self.view("reshape", merged, ("S3", WIDTH), FEATURES))
        else:
            top = self.reduce(self.scores(), PAIRS, 1, "maximum")
            self.mixed = ""  # a maximum over the tokens that see a token is legal
            self.tokens.append(self.same("tanh", [self.spread(top, FEATURES[:2], FEATURES, [0, 1])], FEATURES))

    def pick(self) -> str:
        return self.random.choice(self.tokens[-4:])

    def text(self) -> str:
        steps = [
            self.unary,
            self.binary,
            self.linear,
            self.norm,
            self.embed,
            self.positions,
            self.attention,
            self.attention,
            self.chosen,
            self.pooled,
            self.of_rows,
        ]
        for _ in range(self.random.randint(2, 9)):
            self.random.choice(steps)()
        if self.random.random() < 0.3:
            self.mix()
        values = [*self.tokens[1:], *self.rows]
        types = [kind(FEATURES)] * (len(self.tokens) - 1) + [kind(ROWS)] * len(self.rows)
        signature = f"%x: {kind(FEATURES)}, %ids: {kind(('S2', 'S1'), 'i64')}"
        body = "\n".join([*self.lines, f"  return {', '.join(values)} : {', '.join(types)}"])
        return f"{HEADER}func.func @main({signature}) -> ({', '.join(types)}) {{\n{body}\n}}\n"


def check(seed: int) -> str:
    """How the program of this seed fared, after its values have been compared."""
    program = Program(seed)
    text = program.text()
    state = CompileState(weights=WeightTable(dict(program.weights)))
    with disc_context(), np.errstate(all="ignore"):
        plain, packed = parse_module(text), parse_module(text)
        with plain.context, ir.Location.unknown():
            tables = plain_tables(plain)
        run_passes(packed, [PackSequences()], state)
        if program.mixed:
            assert packed_refusal(packed) is not None, f"{program.mixed} was packed"
            return f"refused {program.mixed}"
        if packed_refusal(packed) is not None:
            return f"refused: {packed_refusal(packed)}"
        layout = PackedLayout(cast("PackedRecord", {**packed_entry(packed), **tables}))
        requests = [_request(program.data, *shape) for shape in ((1, 5), (2, 3), (1, layout.least or 1), (3, 2), (1, 12))]
        together = interpret(packed, layout.join(requests), state.weights)
        alone = [interpret(plain, request, state.weights) for request in requests]
        if not all(np.isfinite(value).all() for values in alone for value in values):
            return "not finite"  # zero times NaN is NaN to the interpreter; that kernels keep it apart is tested in tests/diff
        shapes = [layout.shape(request) for request in requests]
        for ours, theirs in zip(layout.split(together, shapes), alone, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    return "packed"


def _request(data: np.random.Generator, rows: int, length: int) -> list[np.ndarray[Any, Any]]:
    return [data.standard_normal((rows, length, WIDTH)).astype(np.float32), data.integers(0, TABLE, (rows, length))]


@pytest.mark.parametrize("seed", seeds(75, SEEDS))
def test_together_and_alone(seed: int) -> None:
    check(seed)


def test_most_programs_are_packed() -> None:
    total = Counter(check(seed).split(":")[0] for seed in range(60))
    assert total["packed"] >= 35 and sum(count for word, count in total.items() if word.startswith("refused ")) >= 8, total
