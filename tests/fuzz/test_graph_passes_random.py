"""Random graphs, interpreted before and after each graph pass. A failure names its seed: `random_module(seed)` gives the IR again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from seeds import seeds
from torch_mlir import ir

from disc.config import Options
from disc.ir.dialect import disc_context
from disc.ir.interp.oracle import interpret
from disc.ir.ops import block_ops, main_block, string_attr
from disc.ir.passes import CompileState, Pass, run_passes
from disc.ir.stages import parse_module
from disc.ir.weights import Weight, WeightTable
from disc.passes.graph.fold_constants import FoldConstants
from disc.passes.graph.fold_transposes import FoldTransposes
from disc.passes.graph.merge_dots import MergeDots
from disc.passes.graph.merge_slices import MergeSlices
from disc.passes.graph.simplify import Simplify
from disc.passes.pipelines import GRAPH

Dim = int | str
SPLATS = ["0.0", "-0.0", "1.0", "2.0", "-1.0", "0.5", "3.0", "0x7F800000", "0xFF800000"]
SEEDS = 60


def tensor(dims: Sequence[Dim], element: str = "f32") -> str:
    if not dims:
        return f"tensor<{element}>"
    sizes = "x".join("?" if isinstance(dim, str) else str(dim) for dim in dims)
    return f"tensor<{sizes}x{element}, [{', '.join(f'@{dim}' if isinstance(dim, str) else str(dim) for dim in dims)}]>"


@dataclass
class Graph:
    """The lines of a module in the making, and the f32 values defined so far."""

    random: np.random.Generator
    lines: list[str] = field(default_factory=list)
    values: list[tuple[str, tuple[Dim, ...]]] = field(default_factory=list)
    count: int = 0

    def pick(self) -> tuple[str, tuple[Dim, ...]]:
        # Recent values more often, so that chains grow deep.
        back = min(int(self.random.geometric(0.35)), len(self.values))
        return self.values[-back]

    def choose(self, items: Sequence[Any]) -> Any:
        return items[int(self.random.integers(len(items)))]

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def emit(self, text: str, dims: Sequence[Dim]) -> str:
        name = self.fresh()
        self.lines.append(f"{name} = {text}")
        self.values.append((name, tuple(dims)))
        return name

    def helper(self, text: str) -> str:
        name = self.fresh()
        self.lines.append(f"{name} = {text}")
        return name

    def splat(self, dims: Sequence[Dim], value: str | None = None) -> str:
        scalar = self.helper(f"stablehlo.constant dense<{value or self.choose(SPLATS)}> : tensor<f32>")
        return self.helper(f'"disc.broadcast_in_dim"({scalar}) {{dims = array<i64>, maybe = array<i64>}} : (tensor<f32>) -> {tensor(dims)}')


def unary(g: Graph) -> None:
    x, dims = g.pick()
    g.emit(f"stablehlo.{g.choose(['negate', 'abs', 'tanh', 'floor', 'sign'])} {x} : {tensor(dims)}", dims)


def binary(g: Graph) -> None:
    x, dims = g.pick()
    same = [name for name, other in g.values if other == dims]
    y = g.splat(dims) if g.random.random() < 0.6 else g.choose(same)
    first, second = (x, y) if g.random.random() < 0.5 else (y, x)
    g.emit(
        f"stablehlo.{g.choose(['add', 'subtract', 'multiply', 'divide', 'maximum', 'minimum'])} {first}, {second} : {tensor(dims)}", dims
    )


def power(g: Graph) -> None:
    x, dims = g.pick()
    y = g.splat(dims, g.choose(["1.0", "2.0", "3.0", "-1.0", "0.5"]))
    g.emit(f"stablehlo.power {x}, {y} : {tensor(dims)}", dims)


def convert(g: Graph) -> None:
    x, dims = g.pick()
    middle = g.choose(["f64", "bf16", "f16"])
    y = g.helper(f"stablehlo.convert {x} : ({tensor(dims)}) -> {tensor(dims, middle)}")
    g.emit(f"stablehlo.convert {y} : ({tensor(dims, middle)}) -> {tensor(dims)}", dims)


def select(g: Graph) -> None:
    x, dims = g.pick()
    y, flags = g.splat(dims), tensor(dims, "i1")
    p = g.helper(f"stablehlo.compare {g.choose(['LT', 'EQ'])}, {x}, {y} : ({tensor(dims)}, {tensor(dims)}) -> {flags}")
    if g.random.random() < 0.5:
        p = g.helper(f"stablehlo.not {p} : {flags}")
    g.emit(f"stablehlo.select {p}, {x}, {y} : {flags}, {tensor(dims)}", dims)


def transpose(g: Graph) -> None:
    x, dims = g.pick()
    order = [int(i) for i in g.random.permutation(len(dims))]
    new = [dims[i] for i in order]
    g.emit(f"stablehlo.transpose {x}, dims = {order} : ({tensor(dims)}) -> {tensor(new)}", new)


def reshape(g: Graph) -> None:
    """Adds or removes a dim of size 1, or splits and joins 6 = 2 * 3."""
    x, dims = g.pick()
    new = list(dims)
    if 6 in new and g.random.random() < 0.5:
        place = new.index(6)
        new[place : place + 1] = [2, 3]
    elif 1 in new and g.random.random() < 0.5:
        new.remove(1)
    elif len(new) < 4:
        new.insert(int(g.random.integers(len(new) + 1)), 1)
    g.emit(f'"disc.reshape"({x}) : ({tensor(dims)}) -> {tensor(new)}', new)


def broadcast(g: Graph) -> None:
    x, dims = g.pick()
    if len(dims) > 3:
        return
    new = [g.choose([2, "S0"]) if dim == 1 else dim for dim in dims]
    place = int(g.random.integers(len(dims) + 1))
    new.insert(place, g.choose([1, 2, "S1"]))
    axes = [i if i < place else i + 1 for i in range(len(dims))]
    g.emit(
        f'"disc.broadcast_in_dim"({x}) {{dims = array<i64{": " if axes else ""}{", ".join(map(str, axes))}>, maybe = array<i64>}}'
        f" : ({tensor(dims)}) -> {tensor(new)}",
        new,
    )


def reduce(g: Graph) -> None:
    x, dims = g.pick()
    if not dims:
        return
    axis = int(g.random.integers(len(dims)))
    op, start = g.choose([("add", "0.0"), ("add", "-0.0"), ("maximum", "0xFF800000"), ("minimum", "0x7F800000")])
    zero = g.helper(f"stablehlo.constant dense<{start}> : tensor<f32>")
    new = [dim for i, dim in enumerate(dims) if i != axis]
    g.emit(
        f"stablehlo.reduce({x} init: {zero}) applies stablehlo.{op} across dimensions = [{axis}]"
        f" : ({tensor(dims)}, tensor<f32>) -> {tensor(new)}",
        new,
    )


def move(g: Graph) -> None:
    """A slice, a reversal, a scan, a concatenation or a padding."""
    x, dims = g.pick()
    if not dims:
        return
    axis = int(g.random.integers(len(dims)))
    size, rank, kind = dims[axis], len(dims), g.choose(["slice", "reverse", "scan", "concatenate", "pad"])
    if kind == "reverse":
        g.emit(f"stablehlo.reverse {x}, dims = [{axis}] : {tensor(dims)}", dims)
    elif kind == "scan":
        g.emit(f'"disc.cumulative"({x}) {{dim = {axis} : i64, kind = "max"}} : ({tensor(dims)}) -> {tensor(dims)}', dims)
    elif isinstance(size, int) and kind == "slice":
        taken = int(g.random.integers(1, size + 1))
        new = [taken if i == axis else dim for i, dim in enumerate(dims)]
        starts = ", ".join(f'"{size - taken if i == axis else 0}"' for i in range(rank))
        g.emit(
            f'"disc.slice"({x}) {{starts = [{starts}], strides = array<i64: {", ".join(["1"] * rank)}>}} : ({tensor(dims)}) -> {tensor(new)}',
            new,
        )
    elif isinstance(size, int) and kind == "pad":
        zero = g.helper("stablehlo.constant dense<0.0> : tensor<f32>")
        low = int(g.random.integers(0, 2))
        new = [size + low if i == axis else dim for i, dim in enumerate(dims)]
        lows = ", ".join(f'"{low if i == axis else 0}"' for i in range(rank))
        g.emit(
            f'"disc.pad"({x}, {zero}) {{low = [{lows}], interior = array<i64: {", ".join(["0"] * rank)}>}}'
            f" : ({tensor(dims)}, tensor<f32>) -> {tensor(new)}",
            new,
        )
    elif isinstance(size, int) and size < 5:
        new = [2 * size if i == axis else dim for i, dim in enumerate(dims)]
        g.emit(f"stablehlo.concatenate {x}, {x}, dim = {axis} : ({tensor(dims)}, {tensor(dims)}) -> {tensor(new)}", new)


def linear(g: Graph) -> None:
    """A product with a weight over one static dim, often of a value that has such products already."""
    x, dims = g.choose(g.values[:4]) if g.random.random() < 0.6 else g.pick()
    static = [i for i, dim in enumerate(dims) if isinstance(dim, int)]
    if not static:
        return
    axis, width = static[-1], int(g.choose([2, 3, 6]))
    shape = [width, dims[axis]] if g.random.random() < 0.7 else [dims[axis], width]
    contracted = shape.index(dims[axis]) if shape[0] != shape[1] else 1
    w = g.helper(f'"disc.weight"() {{name = "w{g.count}"}} : () -> {tensor(shape)}')
    if g.random.random() < 0.5:
        w = g.helper(f"stablehlo.transpose {w}, dims = [1, 0] : ({tensor(shape)}) -> {tensor(shape[::-1])}")
        shape, contracted = shape[::-1], 1 - contracted
    new = [*(dim for i, dim in enumerate(dims) if i != axis), shape[1 - contracted]]
    g.emit(
        f"stablehlo.dot_general {x}, {w}, contracting_dims = [{axis}] x [{contracted}] : ({tensor(dims)}, {tensor(shape)}) -> {tensor(new)}",
        new,
    )


def product(g: Graph) -> None:
    """x times itself, batched over the first dim."""
    x, dims = g.pick()
    if len(dims) < 2 or len(dims) > 3:
        return
    last = len(dims) - 1
    rest = list(dims[1:last])
    new = [dims[0], *rest, *rest]
    g.emit(
        f"stablehlo.dot_general {x}, {x}, batching_dims = [0] x [0], contracting_dims = [{last}] x [{last}]"
        f" : ({tensor(dims)}, {tensor(dims)}) -> {tensor(new)}",
        new,
    )


MAKERS: list[Callable[[Graph], None]] = [
    unary, binary, binary, power, convert, select, transpose, transpose, reshape, reshape, broadcast, reduce, move, linear, linear, product,
]  # fmt: skip


def random_module(seed: int) -> str:
    g = Graph(np.random.default_rng(seed))
    g.values = [("%x", ("S0", 6)), ("%y", ("S0", "S1", 2)), ("%z", (3, "S1"))]
    arguments = ", ".join(f"{name}: {tensor(dims)}" for name, dims in g.values)
    for _ in range(25):
        g.choose(MAKERS)(g)
    results = g.values[-6:]
    types = ", ".join(tensor(dims) for _, dims in results)
    body = "\n".join(g.lines)
    return f"""
    "disc.symbolic_dim"() {{sym_name = "S0", min = 0 : i64, divisor = 1 : i64, source = "arg0.0"}} : () -> ()
    "disc.symbolic_dim"() {{sym_name = "S1", min = 0 : i64, divisor = 1 : i64, source = "arg1.1"}} : () -> ()
    func.func @main({arguments}) -> ({types}) {{
      {body}
      return {", ".join(name for name, _ in results)} : {types}
    }}"""


def random_weights(module: ir.Module, random: np.random.Generator) -> WeightTable:
    table = WeightTable()
    for op in block_ops(main_block(module)):
        if op.name == "disc.weight":
            shape = ir.RankedTensorType(op.results[0].type).shape
            table.entries[string_attr(op, "name")] = Weight(random.standard_normal(shape).astype(np.float32), "f32")
    return table


PASSES: dict[str, Sequence[Pass]] = {
    "simplify": [Simplify()],
    "fold-transposes": [FoldTransposes()],
    "merge-dots": [MergeDots()],
    "merge-slices": [MergeDots(), MergeSlices()],
    "fold-constants": [FoldConstants()],
    "graph": GRAPH,
}


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with disc_context():
        yield


@pytest.mark.parametrize("seed", seeds(30, SEEDS))
def test_random_graph(seed: int) -> None:
    text, random = random_module(seed), np.random.default_rng(seed)
    before = parse_module(text)
    weights = random_weights(before, random)
    for passes in PASSES.values():
        after, state = parse_module(text), CompileState(WeightTable(dict(weights.entries)), Options(debug_checks=True))
        run_passes(after, passes, state)
        for rows, columns in ((0, 3), (1, 1), (3, 0), (5, 7)):
            shapes = ((rows, 6), (rows, columns, 2), (3, columns))
            inputs = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
            for expected, got in zip(interpret(before, inputs, weights), interpret(after, inputs, state.weights), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
