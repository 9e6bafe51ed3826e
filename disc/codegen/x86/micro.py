"""GEMM micro-kernels: a tile of `rows` × `vectors` accumulators over all of K, shared by every GEMM of an artifact.

`void micro(rows: const T**, k_step: bytes, b: T*, b_step: bytes, k: i64, tile: T*, tile_step: elements)` writes the tile of products; the
caller's epilogue reads it from L1. The cost of that detour is rows × vectors stores and loads per K steps of as many FMAs.
"""

from __future__ import annotations

BYTES = {"f32": 4, "f64": 8, "i32": 4, "i64": 8, "i16": 2, "i8": 1}


def micro_name(element: str, rows: int, vectors: int, lanes: int) -> str:
    """The function's name."""
    return f"disc_micro_{element}_{rows}x{vectors}x{lanes}"


def micro_source(element: str, rows: int, vectors: int, lanes: int) -> str:
    """MLIR text of one micro-kernel. Products are accumulated by fused multiply-add in order of k."""
    vector, size = f"vector<{lanes}x{element}>", BYTES[element]
    zero = "0.0" if element.startswith("f") else "0"
    out: list[str] = []
    w = out.append
    w(
        f"func.func @{micro_name(element, rows, vectors, lanes)}(%rows: !llvm.ptr, %k_step: i64, %b: !llvm.ptr, %b_step: i64, "
        "%k: i64, %tile: !llvm.ptr, %tile_step: i64) {"
    )
    w("%c0 = arith.constant 0 : i64\n%c1 = arith.constant 1 : i64")
    w(f"%zero = arith.constant dense<{zero}> : {vector}")
    for row in range(rows):
        w(f"%rp{row} = llvm.getelementptr %rows[{row}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr")
        w(f"%r{row} = llvm.load %rp{row} : !llvm.ptr -> !llvm.ptr")
    names = [f"%acc{row}_{j}" for row in range(rows) for j in range(vectors)]
    types = ", ".join([vector] * len(names))
    w(
        f"%s:{len(names)} = scf.for %i = %c0 to %k step %c1 "
        f"iter_args({', '.join(name + ' = %zero' for name in names)}) -> ({types}) : i64 {{"
    )
    w("%bo = arith.muli %i, %b_step : i64\n%ao = arith.muli %i, %k_step : i64")
    w("%bp = llvm.getelementptr %b[%bo] : (!llvm.ptr, i64) -> !llvm.ptr, i8")
    for j in range(vectors):
        w(f"%bp{j} = llvm.getelementptr %bp[{j * lanes * size}] : (!llvm.ptr) -> !llvm.ptr, i8")
        w(f"%b{j} = llvm.load %bp{j} {{alignment = {size} : i64}} : !llvm.ptr -> {vector}")
    for row in range(rows):
        w(f"%ap{row} = llvm.getelementptr %r{row}[%ao] : (!llvm.ptr, i64) -> !llvm.ptr, i8")
        w(f"%as{row} = llvm.load %ap{row} : !llvm.ptr -> {element}")
        w(f"%a{row} = vector.broadcast %as{row} : {element} to {vector}")
        for j in range(vectors):
            if element.startswith("f"):
                w(f"%n{row}_{j} = vector.fma %a{row}, %b{j}, %acc{row}_{j} : {vector}")
            else:
                w(f"%p{row}_{j} = arith.muli %a{row}, %b{j} : {vector}")
                w(f"%n{row}_{j} = arith.addi %p{row}_{j}, %acc{row}_{j} : {vector}")
    w(f"scf.yield {', '.join(f'%n{row}_{j}' for row in range(rows) for j in range(vectors))} : {types}\n}}")
    for row in range(rows):
        w(f"%tr{row} = arith.constant {row} : i64\n%to{row} = arith.muli %tr{row}, %tile_step : i64")
        for j in range(vectors):
            w(f"%tj{row}_{j} = arith.constant {j * lanes} : i64\n%tx{row}_{j} = arith.addi %to{row}, %tj{row}_{j} : i64")
            w(f"%tp{row}_{j} = llvm.getelementptr %tile[%tx{row}_{j}] : (!llvm.ptr, i64) -> !llvm.ptr, {element}")
            w(f"llvm.store %s#{row * vectors + j}, %tp{row}_{j} {{alignment = {size} : i64}} : {vector}, !llvm.ptr")
    w("return\n}\n")
    return "\n".join(out)
