"""speculate-versions: each memory-bound fusion gets its versions and the guard of each (paper §5.2.1).

    "kernel.fusion"(%a) ({...}) {kind = "stitch"}
    →  "kernel.fusion"(%a) ({...}) {kind = "stitch", versions = ["divides(16, S1)", ""]}

Four questions are left to the call: whether the row length is a multiple of the vector length (no tail code), whether every
broadcast that may expand is in fact none (no index arithmetic for it), whether the results are larger than the caches (stores that
bypass them: a line that is written whole need not be read first; of a row that ends within a line that is all but the ends), and whether
rows are few and long (each is then cut into parts).
A version exists only where the symbols leave the question open, or, for rows, do not say no; the last one has no guard.
Requires and keeps stage `fused`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.costs import op_cost
from disc.ir.graph import Body, Node, Snapshot, is_row_reduction
from disc.ir.ops import main_block
from disc.ir.passes import CompileState, Pass
from disc.ir.stages import load_env
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim, ShapeEnv, Truth

VECTOR = 16  # lanes of the widest ISA level; the narrower ones divide it
MEMORY_BOUND = 32  # cost per element: with more, a core takes longer over a line than memory does
FEW_ROWS = 4
LONG_ROW = 131072  # elements: a core reads them in 2 us at best, and sums of parts in the caches of two cores are joined in less
LEAST_LINES = 64  # elements of a row that ends within a line: with fewer, too many lines are written by halves and have to be read first
SMALLEST_CACHE = 1 << 20  # bytes: no machine's last-level cache is smaller, so that smaller results need no version of their own


@dataclass(frozen=True)
class SpeculateVersions(Pass):
    """Writes the attribute `versions` on loop and stitch fusions."""

    name: ClassVar[str] = "speculate-versions"

    def apply(self, module: ir.Module, state: CompileState) -> None:
        env = load_env(module)
        snapshot = Snapshot(env)
        body = snapshot.block(main_block(module))
        for node in body.nodes:
            if node.op != "kernel.fusion" or node.result or node.body is None or node.attrs["kind"] not in ("loop", "stitch"):
                continue
            guards = [ir.StringAttr.get(guard) for guard in choose_versions(env, node.body, str(node.attrs["kind"]))]
            snapshot.ops[node.id].attributes["versions"] = ir.ArrayAttr.get(guards)


def choose_versions(env: ShapeEnv, body: Body, kind: str) -> list[str]:
    """The guards, best version first, "" last."""
    equal = broadcast_guard(body)
    row = row_length(env, body, kind)
    divides = f"divides({VECTOR}, {row})" if row is not None and leaves_tail_open(env, row) else ""
    best = " and ".join(part for part in (equal, divides) if part)
    guards = [best, equal, divides if not equal else "", ""]
    size = streamed_bytes(env, body)
    if size is not None:
        streams = [(best, f"beyond_cache({size})")]
        if row is not None and env.divides(VECTOR, row) is not Truth.YES:
            long = env.le(LEAST_LINES, row)
            at_least = "" if long is Truth.YES else f"at_least({LEAST_LINES}, {row})"
            streams = streams if divides else []
            streams += [(equal, at_least, f"beyond_cache({size})")] if long is not Truth.NO else []
        guards = [*(" and ".join(part for part in parts if part) for parts in streams), *guards]
    few = few_rows_guard(env, body) if kind == "stitch" else ""
    if few:
        guards.insert(0, " and ".join(part for part in (equal, few) if part))
    return [*dict.fromkeys(guard for guard in guards if guard), ""]


def few_rows_guard(env: ShapeEnv, body: Body) -> str:
    """The condition that there are too few rows to be the tasks of several threads, and that they are long; "" where it cannot hold."""
    reductions = [node for node in body.nodes if is_row_reduction(node)]
    if not reductions:
        return ""
    dims, reduced = reductions[0].operands[0].dims, reductions[0].ints("dimensions")
    rows, length = (env.product([dims[axis] for axis in range(len(dims)) if (axis in reduced) is inner]) for inner in (False, True))
    if env.le(rows, FEW_ROWS) is Truth.NO or env.le(LONG_ROW, length) is Truth.NO:
        return ""
    return f"at_most({FEW_ROWS}, {rows}) and at_least({LONG_ROW}, {length})"


def broadcast_guard(body: Body) -> str:
    """The condition that no run-time broadcast of the fusion expands: "equal(S0, S2)", several joined by " and "."""
    conditions: dict[str, None] = {}
    for node in body.nodes:
        if node.op != "disc.broadcast_in_dim":
            continue
        for axis in node.ints("maybe"):
            conditions[f"equal({node.operands[0].dims[axis]}, {node.dims[node.ints('dims')[axis]]})"] = None
    return " and ".join(conditions)


def streamed_bytes(env: ShapeEnv, body: Body) -> Dim | None:
    """The bytes of all results when they may be many and memory is what the fusion waits for; else None."""
    largest = max(body.yields, key=lambda node: len(node.dims))
    reduced = [node.operands[0].dims for node in body.nodes if node.op == "stablehlo.reduce"]
    if any(env.equal(env.product(dims), env.product(largest.dims)) is not Truth.YES for dims in reduced):
        return None
    if sum(op_cost(node) for node in body.nodes if node.dims == largest.dims) > MEMORY_BOUND:
        return None
    size = Dim.of(0)
    for root in body.yields:
        size = size + env.product(root.dims) * ELEMENT_BYTES[root.element]
    _, most = env.range(size)
    return size if most is None or most > SMALLEST_CACHE else None


def row_length(env: ShapeEnv, body: Body, kind: str) -> Dim | None:
    """The length of the rows that lanes run over; None when all results are one flat loop, whose only tail is at its end."""
    if kind == "stitch":
        reduction = next((node for node in body.nodes if node.op == "stablehlo.reduce"), None)
        if reduction is None:
            return None
        source = reduction.operands[0].dims
        return env.product([source[axis] for axis in reduction.ints("dimensions")])
    root = max(body.yields, key=lambda node: len(node.dims))
    if not root.dims or _flat(env, body, root):
        return None
    return next((size for size in reversed(root.dims) if size != 1), None)


def _flat(env: ShapeEnv, body: Body, root: Node) -> bool:
    """True when every input is as large as the result and no op moves elements."""
    moving = ("stablehlo.transpose", "disc.slice", "disc.pad", "disc.gather", "stablehlo.concatenate", "stablehlo.reduce", "disc.iota")
    if any(node.op in moving for node in body.nodes):
        return False
    count = env.product(root.dims)
    return all(not node.dims or env.equal(env.product(node.dims), count) is Truth.YES for node in body.arguments)


def leaves_tail_open(env: ShapeEnv, row: Dim) -> bool:
    """True when it is not known whether the row length divides by the vector length."""
    return not row.is_const and env.divides(VECTOR, row) is Truth.UNKNOWN
