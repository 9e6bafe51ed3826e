"""Micro-kernels of channels-last convolutions: a tile of `rows` output positions x `vectors` of output channels, summed over taps.

`void taps(table: const T*[taps][ROWS], taps: i64, inner: i64, b: T*, b_step: bytes, tile: T*, tile_step: elements, fresh: i1)`: each tap
reads `inner` consecutive elements for every row, from where the table says, against `inner` rows of the packed panel b. The rows of the
left operand are thus never copied ("The Indirect Convolution Algorithm", Dukhan 2019). fresh: the tile starts at zero; otherwise at what
it holds.
"""

from __future__ import annotations

from ...ir.weights import ELEMENT_BYTES

TABLE_ROWS = 6  # rows of a tile, and of an entry of the table: 6 x 4 accumulators of 16 lanes, as for dots


def taps_name(element: str, rows: int, vectors: int, lanes: int) -> str:
    """The function's name."""
    return f"disc_taps_{element}_{rows}x{vectors}x{lanes}"


def taps_source(element: str, rows: int, vectors: int, lanes: int) -> str:
    """MLIR text of one micro-kernel. Products are accumulated in order of (tap, channel) by fused multiply-add."""
    size, vector = ELEMENT_BYTES[element], f"vector<{lanes}x{element}>"
    places = [(row, column) for row in range(rows) for column in range(vectors)]
    types = ", ".join([vector] * len(places))

    def carried(prefix: str) -> list[str]:
        return [f"%{prefix}_{row}_{column}" for row, column in places]

    def passed(names: list[str], values: list[str]) -> str:
        return ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))

    lines = [
        f"func.func @{taps_name(element, rows, vectors, lanes)}(%table: !llvm.ptr, %taps: i64, %inner: i64, %b: !llvm.ptr, "
        "%b_step: i64, %tile: !llvm.ptr, %tile_step: i64, %fresh: i1) {",
        "%c0 = arith.constant 0 : i64",
        "%c1 = arith.constant 1 : i64",
        f"%entry = arith.constant {TABLE_ROWS} : i64",
        f"%size = arith.constant {size} : i64",
        f"%zero = arith.constant dense<0.0> : {vector}",
        "%run = arith.muli %inner, %b_step : i64",
    ]
    for row, column in places:
        lines += [
            f"%row{row}_{column} = arith.constant {row} : i64",
            f"%begin{row}_{column} = arith.muli %row{row}_{column}, %tile_step : i64",
            f"%lane{row}_{column} = arith.constant {column * lanes} : i64",
            f"%at{row}_{column} = arith.addi %begin{row}_{column}, %lane{row}_{column} : i64",
            f"%place{row}_{column} = llvm.getelementptr %tile[%at{row}_{column}] : (!llvm.ptr, i64) -> !llvm.ptr, {element}",
        ]
    lines += [
        f"%start:{len(places)} = scf.if %fresh -> ({types}) {{",
        f"scf.yield {', '.join(['%zero'] * len(places))} : {types}",
        "} else {",
    ]
    lines += [
        f"%old{row}_{column} = llvm.load %place{row}_{column} {{alignment = {size} : i64}} : !llvm.ptr -> {vector}"
        for row, column in places
    ]
    lines += [f"scf.yield {', '.join(f'%old{row}_{column}' for row, column in places)} : {types}", "}"]

    outer, inner = carried("t"), carried("s")
    starts = [f"%start#{number}" for number in range(len(places))]
    lines += [
        f"%sums:{len(places)} = scf.for %tap = %c0 to %taps step %c1 iter_args({passed(outer, starts)}) -> ({types}) : i64 {{",
        "%first = arith.muli %tap, %entry : i64",
        "%panel = arith.muli %tap, %run : i64",
        "%bt = llvm.getelementptr %b[%panel] : (!llvm.ptr, i64) -> !llvm.ptr, i8",
        "%entries = llvm.getelementptr %table[%first] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr",
    ]
    for row in range(rows):
        lines += [
            f"%slot{row} = llvm.getelementptr %entries[{row}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr",
            f"%r{row} = llvm.load %slot{row} : !llvm.ptr -> !llvm.ptr",
        ]
    lines += [
        f"%partial:{len(places)} = scf.for %k = %c0 to %inner step %c1 iter_args({passed(inner, outer)}) -> ({types}) : i64 {{",
        "%offset = arith.muli %k, %b_step : i64",
        "%line = llvm.getelementptr %bt[%offset] : (!llvm.ptr, i64) -> !llvm.ptr, i8",
    ]
    for column in range(vectors):
        lines += [
            f"%w{column} = llvm.getelementptr %line[{column * lanes}] : (!llvm.ptr) -> !llvm.ptr, {element}",
            f"%v{column} = llvm.load %w{column} {{alignment = {size} : i64}} : !llvm.ptr -> {vector}",
        ]
    for row in range(rows):
        lines += [
            f"%e{row} = llvm.getelementptr %r{row}[%k] : (!llvm.ptr, i64) -> !llvm.ptr, {element}",
            f"%x{row} = llvm.load %e{row} {{alignment = {size} : i64}} : !llvm.ptr -> {element}",
            f"%y{row} = vector.broadcast %x{row} : {element} to {vector}",
        ]
        lines += [f"%f{row}_{column} = vector.fma %y{row}, %v{column}, %s_{row}_{column} : {vector}" for column in range(vectors)]
    lines += [f"scf.yield {', '.join(f'%f{row}_{column}' for row, column in places)} : {types}", "}"]
    lines += [f"scf.yield {', '.join(f'%partial#{number}' for number in range(len(places)))} : {types}", "}"]
    lines += [
        f"llvm.store %sums#{number}, %place{row}_{column} {{alignment = {size} : i64}} : {vector}, !llvm.ptr"
        for number, (row, column) in enumerate(places)
    ]
    return "\n".join([*lines, "return", "}"]) + "\n"
