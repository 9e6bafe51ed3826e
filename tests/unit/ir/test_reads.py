"""What the records say about the elements that an op reads, against the interpreter."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from disc.ir.dialect import disc_context
from disc.ir.graph import Snapshot
from disc.ir.interp.oracle import interpret
from disc.ir.op_table import OPS, Kind
from disc.ir.ops import main_block
from disc.ir.reads import Map, at
from disc.ir.stages import load_env, parse_module

SOURCE = "tensor<3x4x8xi64, [3, 4, 8]>"
MOVING = {
    "stablehlo.transpose": ("stablehlo.transpose %x, dims = [1, 2, 0] : ({0}) -> {1}", (4, 8, 3)),
    "disc.broadcast_in_dim": ('"disc.broadcast_in_dim"(%x) {{dims = array<i64: 2, 0, 3>, maybe = array<i64>}} : ({0}) -> {1}', (4, 2, 3, 8)),
    "disc.slice": ('"disc.slice"(%x) {{starts = ["1", "0", "2"], strides = array<i64: 1, 3, 2>}} : ({0}) -> {1}', (2, 2, 3)),
    "disc.diagonals": ('"disc.diagonals"(%x) {{row = 1 : i64, column = 3 : i64}} : ({0}) -> {1}', (3, 5, 4, 3)),
    "disc.unfold": ('"disc.unfold"(%x) {{dim = 2 : i64, step = 2 : i64}} : ({0}) -> {1}', (3, 4, 3, 4)),
    "stablehlo.reverse": ("stablehlo.reverse %x, dims = [0, 2] : {0}", (3, 4, 8)),
    "disc.pad": (
        '"disc.pad"(%x, %fill) {{low = ["1", "-1", "0"], interior = array<i64: 0, 1, 2>}} : ({0}, tensor<i64>) -> {1}', (5, 6, 24)
    ),
    "stablehlo.concatenate": ("stablehlo.concatenate %x, %x, dim = 1 : ({0}, {0}) -> {1}", (3, 8, 8)),
}  # fmt: skip


def position(places: Map, index: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Where in an operand of `shape` the map says that the element at `index` reads; None for nowhere."""
    found: list[int] = []
    for place, size in zip(places, shape, strict=True):
        assert place is not None and not place.wide and not place.undecided
        whole, rest = divmod(place.offset.const + sum(step * index[dim] for dim, step in place.steps), place.divisor)
        if rest or not 0 <= whole < size:
            return None
        found.append(whole)
    return tuple(found)


def module_text(line: str, dims: tuple[int, ...]) -> str:
    result = f"tensor<{'x'.join(map(str, dims))}xi64, [{', '.join(map(str, dims))}]>"
    return f"""
    func.func @main(%x: {SOURCE}) -> {result} {{
      %fill = stablehlo.constant dense<-1> : tensor<i64>
      %y = {line.format(SOURCE, result)}
      return %y : {result}
    }}"""


@pytest.mark.parametrize("name", MOVING)
def test_elements_lie_where_the_map_says(name: str) -> None:
    line, dims = MOVING[name]
    values = np.arange(96).reshape(3, 4, 8)
    with disc_context():
        module = parse_module(module_text(line, dims))
        (result,) = interpret(module, [values])
        env = load_env(module)
        node = Snapshot(env).block(main_block(module)).yields[0]
        reads = OPS[name].reads
        assert node.op == name and reads is not None
        maps = reads(node, env)
    for index in itertools.product(*map(range, dims)):
        places = [position(places, index, values.shape) for places, operand in zip(maps, node.operands, strict=True) if operand.dims]
        found = [int(values[place]) for place in places if place is not None]
        assert (found or [-1]) == [result[index]]


def test_every_view_but_a_reshape_has_a_map() -> None:
    assert {op.name for op in OPS.values() if op.kind is Kind.VIEW and op.reads is None} == {"disc.reshape"}
    assert {op.name for op in OPS.values() if op.kind is Kind.VIEW} - {"disc.reshape"} <= MOVING.keys()


DOT = """
    func.func @main(%x: tensor<2x3x5xf32, [2, 3, 5]>, %y: tensor<7x2x5xf32, [7, 2, 5]>) -> tensor<2x3x7xf32, [2, 3, 7]> {
      %z = stablehlo.dot_general %x, %y, batching_dims = [0] x [1], contracting_dims = [2] x [2]
         : (tensor<2x3x5xf32, [2, 3, 5]>, tensor<7x2x5xf32, [7, 2, 5]>) -> tensor<2x3x7xf32, [2, 3, 7]>
      return %z : tensor<2x3x7xf32, [2, 3, 7]>
    }"""


def test_a_dot_reads_its_batch_and_free_dims_in_place() -> None:
    with disc_context():
        module = parse_module(DOT)
        env = load_env(module)
        node = Snapshot(env).block(main_block(module)).yields[0]
        reads = OPS["stablehlo.dot_general"].reads
        assert reads is not None and reads(node, env) == ((at(0), at(1), None), (at(2), at(0), None))
