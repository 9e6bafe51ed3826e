"""speculate-versions: each memory-bound fusion gets its versions and the guard of each (paper §5.2.1).

    "kernel.fusion"(%a) ({...}) {kind = "stitch"}
    →  "kernel.fusion"(%a) ({...}) {kind = "stitch", versions = ["divides(16, S1)", ""]}

Four questions are left to the call: whether the row length is a multiple of the vector length (no tail code), whether every
broadcast that may expand is in fact none (no index arithmetic for it), whether the results are larger than the caches (stores that
bypass them: a line that is written whole need not be read first; of a row that ends within a line that is all but the ends), and whether
rows are few and long (each is then cut into parts).
A version exists only where the symbols leave the question open, or, for rows, do not say no; the last one always holds.
Requires and keeps stage `fused`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.costs import Costs, op_cost
from disc.ir.graph import Body, Node, Snapshot, is_row_reduction
from disc.ir.op_table import MOVING
from disc.ir.ops import function_blocks
from disc.ir.passes import CompileState, Pass
from disc.ir.stages import load_env
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim, ShapeEnv, Truth
from disc.speculation.guards import ALWAYS, AtLeast, AtMost, BeyondCache, Divides, Equal, Guard, all_of
from disc.targets.thresholds import DeviceThresholds, VersionThresholds


@dataclass(frozen=True)
class SpeculateVersions(Pass):
    """Writes the attribute `versions` on loop and stitch fusions."""

    name: ClassVar[str] = "speculate-versions"

    def apply(self, module: ir.Module, state: CompileState) -> None:
        env = load_env(module)
        snapshot = Snapshot(env)
        for node in [node for block in function_blocks(module) for node in snapshot.block(block).nodes]:
            if node.op != "kernel.fusion" or node.result or node.body is None or node.attrs["kind"] not in ("loop", "stitch"):
                continue
            guards = [ir.StringAttr.get(str(guard)) for guard in choose_versions(env, node.body, str(node.attrs["kind"]), state.thresholds)]
            snapshot.ops[node.id].attributes["versions"] = ir.ArrayAttr.get(guards)


def choose_versions(env: ShapeEnv, body: Body, kind: str, limits: DeviceThresholds) -> list[Guard]:
    """The guards, best version first, the one that always holds last."""
    equal = broadcast_guard(body)
    row = row_length(env, body, kind)
    divides = Divides(limits.lanes, row) if row is not None else ALWAYS
    if divides.implied_by(env) is not Truth.UNKNOWN:
        divides = ALWAYS
    best = all_of((equal, divides))
    guards = [best, equal, *([divides] if equal == ALWAYS else [])]
    size = streamed_bytes(env, body, Costs.of(limits))
    if size is not None:
        streams = [all_of((best, BeyondCache(size)))]
        if row is not None and env.divides(limits.lanes, row) is not Truth.YES:
            long = AtLeast(limits.versions.least_line, row)
            truth = long.implied_by(env)
            streams = streams if divides != ALWAYS else []
            known = ALWAYS if truth is Truth.YES else long
            streams += [all_of((equal, known, BeyondCache(size)))] if truth is not Truth.NO else []
        guards = [*streams, *guards]
    few = few_rows_guard(env, body, limits.versions) if kind == "stitch" else ALWAYS
    if few != ALWAYS:
        guards.insert(0, all_of((equal, few)))
    return [*dict.fromkeys(guard for guard in guards if guard != ALWAYS), ALWAYS]


def few_rows_guard(env: ShapeEnv, body: Body, limits: VersionThresholds) -> Guard:
    """The condition that there are too few rows to be the tasks of several threads, and that they are long; ALWAYS, which makes no
    version, where it cannot hold."""
    reductions = [node for node in body.nodes if is_row_reduction(node)]
    if not reductions:
        return ALWAYS
    dims, reduced = reductions[0].operands[0].dims, reductions[0].ints("dimensions")
    rows, length = (env.product([dims[axis] for axis in range(len(dims)) if (axis in reduced) is inner]) for inner in (False, True))
    few = all_of((AtMost(limits.few_rows, rows), AtLeast(limits.long_row, length)))
    return ALWAYS if few.implied_by(env) is Truth.NO else few


def broadcast_guard(body: Body) -> Guard:
    """The condition that no run-time broadcast of the fusion expands; ALWAYS where there is none."""
    return all_of(
        Equal(node.operands[0].dims[axis], node.dims[node.ints("dims")[axis]])
        for node in body.nodes
        if node.op == "disc.broadcast_in_dim"
        for axis in node.ints("maybe")
    )


def streamed_bytes(env: ShapeEnv, body: Body, costs: Costs) -> Dim | None:
    """The bytes of all results when they may be many and a core computes a vector of them no longer than memory takes for it; else None."""
    largest = max(body.yields, key=lambda node: len(node.dims))
    reduced = [node.operands[0].dims for node in body.nodes if node.op == "stablehlo.reduce"]
    if any(env.equal(env.product(dims), env.product(largest.dims)) is not Truth.YES for dims in reduced):
        return None
    instructions = sum(op_cost(node) for node in body.nodes if node.dims == largest.dims)
    if costs.compute(instructions) > costs.pass_through_memory():
        return None
    size = Dim.of(0)
    for root in body.yields:
        size = size + env.product(root.dims) * ELEMENT_BYTES[root.element]
    return None if BeyondCache(size).implied_by(env) is Truth.NO else size


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
    if any(node.op in MOVING for node in body.nodes):
        return False
    count = env.product(root.dims)
    return all(not node.dims or env.equal(env.product(node.dims), count) is Truth.YES for node in body.arguments)
