"""Random values of two positions, interpreted before and after `tabulate-distances`. A failure names its seed."""

from __future__ import annotations

import numpy as np
import pytest
from seeds import seeds
from torch_mlir import ir

from disc.config import Options
from disc.ir.dialect import disc_context
from disc.ir.interp.oracle import interpret
from disc.ir.ops import block_ops, int_attr, main_block
from disc.ir.passes import CompileState, run_passes
from disc.ir.stages import parse_module
from disc.ir.weights import WeightTable
from disc.passes.fusion.tabulate_distances import TabulateDistances

SEEDS = 80
SIZES = (0, 1, 2, 3, 7, 16)
BATCH, HEADS, TABLE = 2, 3, 40

Dims = tuple["int | str", ...]


def tensor(dims: Dims, element: str) -> str:
    if not dims:
        return f"tensor<{element}>"
    sizes = "".join("?x" if isinstance(dim, str) else f"{dim}x" for dim in dims)
    return f"tensor<{sizes}{element}, [{', '.join(f'@{dim}' if isinstance(dim, str) else str(dim) for dim in dims)}]>"


class Graph:
    """The lines of a module in the making; `integers` and `floats` hold the values defined so far, most of them of two positions."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.lines: list[str] = []
        self.integers: list[tuple[str, Dims]] = [("%ids", ("S0",))]
        self.floats: list[tuple[str, Dims]] = [("%x", (BATCH, HEADS, "S0", "S0"))]

    def op(self, text: str) -> str:
        self.lines.append(f"%v{len(self.lines)} = {text}")
        return f"%v{len(self.lines) - 1}"

    def choose(self, items: list[tuple[str, Dims]]) -> tuple[str, Dims]:
        return items[int(self.random.integers(len(items)))]

    def scalar(self, element: str) -> str:
        value = int(self.random.integers(-4, 9))
        return self.op(f"stablehlo.constant dense<{value if element == 'i64' else float(value)}> : tensor<{element}>")

    def broadcast(self, value: str, source: Dims, dims: Dims, at: list[int], element: str = "i64") -> str:
        kinds = f"({tensor(source, element)}) -> {tensor(dims, element)}"
        places = ", ".join(map(str, at))
        return self.op(f'"disc.broadcast_in_dim"({value}) {{dims = array<i64{": " if at else ""}{places}>, maybe = array<i64>}} : {kinds}')

    def positions(self) -> None:
        """A difference of the positions along two dims, or a sum, or one with something that no distance tells."""
        dims: Dims = [("S0", "S0"), (1, "S0", "S0"), ("S0", HEADS, "S0"), ("S0", "S0", HEADS)][int(self.random.integers(4))]
        first, second = (axis for axis, dim in enumerate(dims) if dim == "S0")
        line = self.op(f'"disc.iota"() {{dim = 0 : i64}} : () -> {tensor(("S0",), "i64")}')
        rows = self.broadcast("%ids" if self.random.random() < 0.15 else line, ("S0",), dims, [first])
        columns = self.op(f'"disc.iota"() {{dim = {second} : i64}} : () -> {tensor(dims, "i64")}')
        if self.random.random() < 0.5:
            columns = self.op(f"stablehlo.add {columns}, {self.broadcast(self.scalar('i64'), (), dims, [])} : {tensor(dims, 'i64')}")
        pair = [rows, columns] if self.random.random() < 0.5 else [columns, rows]
        kind = "add" if self.random.random() < 0.15 else "subtract"
        self.integers.append((self.op(f"stablehlo.{kind} {pair[0]}, {pair[1]} : {tensor(dims, 'i64')}"), dims))

    def elementwise(self) -> None:
        value, dims = self.choose(self.integers)
        kind = str(self.random.choice(["negate", "abs", "sign", "maximum", "minimum", "multiply", "clamp"]))
        own = tensor(dims, "i64")
        if kind in ("negate", "abs", "sign"):
            self.integers.append((self.op(f"stablehlo.{kind} {value} : {own}"), dims))
        elif kind == "clamp":
            low, high = self.scalar("i64"), self.scalar("i64")
            self.integers.append((self.op(f"stablehlo.clamp {low}, {value}, {high} : (tensor<i64>, {own}, tensor<i64>) -> {own}"), dims))
        else:
            alike = [each for each, sizes in self.integers if sizes == dims]
            other = alike[-1] if self.random.random() < 0.5 else self.broadcast(self.scalar("i64"), (), dims, [])
            self.integers.append((self.op(f"stablehlo.{kind} {value}, {other} : {own}"), dims))

    def view(self) -> None:
        floating = self.random.random() < 0.5
        values, element = (self.floats, "f32") if floating else (self.integers, "i64")
        value, dims = self.choose(values)
        if self.random.random() < 0.5:
            order = [int(axis) for axis in self.random.permutation(len(dims))]
            moved = tuple(dims[axis] for axis in order)
            kinds = f"({tensor(dims, element)}) -> {tensor(moved, element)}"
            values.append((self.op(f"stablehlo.transpose {value}, dims = {order} : {kinds}"), moved))
        elif 1 in dims or len(dims) < 4:
            at = int(self.random.integers(len(dims) + 1))
            moved = tuple(dim for dim in dims if dim != 1) if 1 in dims else (*dims[:at], 1, *dims[at:])
            values.append((self.op(f'"disc.reshape"({value}) : ({tensor(dims, element)}) -> {tensor(moved, element)}'), moved))

    def look_up(self) -> None:
        """A gather of rows of a table, at indices that are clamped by the interpreter where they leave it."""
        value, dims = self.choose(self.integers)
        at = int(self.random.integers(len(dims) + 1))
        found = (*dims[:at], HEADS, *dims[at:])
        numbers = f"offset_dims = [{at}], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {len(dims)}"
        kinds = f"({tensor((TABLE, HEADS), 'f32')}, {tensor(dims, 'i64')}) -> {tensor(found, 'f32')}"
        attributes = f'{{dimension_numbers = #stablehlo.gather<{numbers}>, sizes = ["1", "{HEADS}"]}}'
        self.floats.append((self.op(f'"disc.gather"(%table, {value}) {attributes} : {kinds}'), found))

    def look_up_terms(self) -> None:
        """A gather along the last dim of %x, as DeBERTa's terms: its indices are repeated for every head."""
        alike = [each for each, sizes in self.integers if sizes == ("S0", "S0")]
        if not alike:
            return
        dims: Dims = (BATCH, HEADS, "S0", "S0")
        indices = self.broadcast(alike[int(self.random.integers(len(alike)))], ("S0", "S0"), dims, [2, 3])
        numbers = (
            "collapsed_slice_dims = [3], operand_batching_dims = [0, 1, 2], start_indices_batching_dims = [0, 1, 2], "
            "start_index_map = [3], index_vector_dim = 4"
        )
        kinds = f"({tensor(dims, 'f32')}, {tensor(dims, 'i64')}) -> {tensor(dims, 'f32')}"
        attributes = f'{{dimension_numbers = #stablehlo.gather<{numbers}>, sizes = ["1", "1", "1", "1"]}}'
        self.floats.append((self.op(f'"disc.gather"(%x, {indices}) {attributes} : {kinds}'), dims))

    def to_float(self) -> None:
        value, dims = self.choose(self.integers)
        floats = self.op(f"stablehlo.convert {value} : ({tensor(dims, 'i64')}) -> {tensor(dims, 'f32')}")
        wide = self.op(f"stablehlo.cosine {floats} : {tensor(dims, 'f32')}")
        self.floats.append((wide, dims))


def random_module(seed: int) -> str:
    g = Graph(seed)
    g.positions()
    makers = [g.positions, g.elementwise, g.elementwise, g.view, g.look_up, g.look_up_terms, g.to_float]
    for _ in range(14):
        makers[int(g.random.integers(len(makers)))]()
    results = [(name, tensor(dims, element)) for values, element in ((g.integers, "i64"), (g.floats, "f32")) for name, dims in values[-5:]]
    arguments = f"%x: {tensor((BATCH, HEADS, 'S0', 'S0'), 'f32')}, %ids: {tensor(('S0',), 'i64')}, %table: {tensor((TABLE, HEADS), 'f32')}"
    lines = "\n".join(g.lines)
    return f"""
    "disc.symbolic_dim"() {{sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.2"}} : () -> ()
    func.func @main({arguments}) -> ({", ".join(kind for _, kind in results)}) {{
      {lines}
      return {", ".join(name for name, _ in results)} : {", ".join(kind for _, kind in results)}
    }}"""


def tabulated(text: str) -> tuple[ir.Module, ir.Module]:
    """The module before and after the pass."""
    after = parse_module(text)
    run_passes(after, [TabulateDistances()], CompileState(WeightTable(), Options(debug_checks=True)))
    return parse_module(text), after


@pytest.mark.parametrize("seed", seeds(40, SEEDS))
def test_random_values(seed: int) -> None:
    random = np.random.default_rng(seed)
    with disc_context():
        before, after = tabulated(random_module(seed))
        for size in SIZES:
            x = random.standard_normal((BATCH, HEADS, size, size)).astype(np.float32)
            inputs = [x, random.integers(-9, 30, size), random.standard_normal((TABLE, HEADS)).astype(np.float32)]
            for expected, got in zip(interpret(before, inputs, WeightTable()), interpret(after, inputs, WeightTable()), strict=True):
                np.testing.assert_array_equal(got, expected)


def test_graphs_have_tables() -> None:
    """Most graphs are rewritten, with rows before columns and behind other dims."""
    places: list[tuple[int, int]] = []
    with disc_context():
        for seed in range(SEEDS):
            found = [op for op in block_ops(main_block(tabulated(random_module(seed))[1])) if op.name == "disc.diagonals"]
            places += [(int_attr(op, "row"), int_attr(op, "column")) for op in found]
    assert len(places) > SEEDS and len(set(places)) > 4, places
