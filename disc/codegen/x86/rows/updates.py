"""A slice written into the memory of the value that it updates: the rest of that stays as it is.

    %r = stablehlo.dynamic_update_slice %a, %u, %i, %j        %a[clamp(i) + k, clamp(j) + l] = %u[k, l], and %r lies where %a lay

Nothing else may read %a from then on (`Fusion.spare`). The slice is written in runs of elements that follow each other in memory.
"""

from __future__ import annotations

from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.index import ZERO, IndexSpace
from disc.codegen.plan.kernel import Kernel, Version
from disc.codegen.plan.summary import kernel_ops
from disc.codegen.plan.symbols import body_symbols
from disc.codegen.plan.updates import updated_argument
from disc.codegen.x86.function import Frame, emit_function
from disc.ir.costs import node_cost
from disc.ir.graph import Node
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim, dim_min
from disc.shapes.recursion import run_recursive
from disc.targets.target import Target


def may_update(fusion: Fusion) -> bool:
    """Whether a fusion is a slice, or a scatter, over one of its arguments, and may take the memory of that."""
    return updated_argument(fusion.body) in fusion.spare


def emit_update(name: str, fusion: Fusion, target: Target) -> Kernel:
    """The kernel of a slice that `may_update`. A task is up to a chunk of a run."""
    body, space = fusion.body, fusion.space()
    (node,) = body.yields
    source, update, *_ = node.operands
    first, run = _run(space, source, update)
    chunk = target.thresholds.rows.chunk
    rows, parts = space.env.product(update.dims[:first]), (run + (chunk - 1)) // chunk
    symbols = body_symbols(space, body, run)

    def emit(frame: Frame) -> None:
        b, e = frame.b, frame.emitter
        with b.loop(frame.begin, frame.end, b.index(1)) as task:
            number, lane = e.name("task"), e.name("v")
            position = e.space.variable(number, rows * parts)
            place = e.space.variable(lane, run)
            with e.bind(number, task.index):
                row, part = e.space.delinear(position, (rows, parts))
                index = (*e.space.delinear(row, update.dims[:first]), *e.space.delinear(place, update.dims[first:]))
                low = b.scalar(part * chunk)
                high = b.op(f"arith.minsi {b.op(f'arith.addi {low}, {b.index(chunk)} : i64')}, {b.scalar(run)} : i64")

                def lanes(names: list[str], carried: list[str]) -> list[str]:
                    del names, carried
                    e.store(frame.outputs[0], e.space.linear(_places(frame, node, index), node.dims), e.value(update, index))
                    return []

                e.lane_loop(lane, low, high, run if run.is_const and run.const <= chunk else place, 1, [], lanes)

    text = emit_function(f"{name}_v0", body, body.yields, symbols, space, target, emit)
    elements, work = space.env.product(update.dims), node_cost(update) + 2
    cost = dim_min(run, Dim.of(chunk)) * work // target.macs_per_cycle("f32") + target.thresholds.rows.task_cycles
    read = [space.env.product(each.dims) * ELEMENT_BYTES[each.element] for each in body.arguments if each is not source]
    return Kernel(
        name, fusion.kind, (Version(f"{name}_v0"),), symbols, rows * parts, cost, ZERO, text, body.lines(), kernel_ops(body),
        flops=elements * work, bytes=sum(read, elements * ELEMENT_BYTES[node.element]), updates=body.arguments.index(source),
    )  # fmt: skip


def _run(space: IndexSpace, source: Node, update: Node) -> tuple[int, Dim]:
    """(its first dim, its length): the last dims of the update, all of which but the first are whole in what it updates."""
    first = max(len(update.dims) - 1, 0)
    while first > 0 and update.dims[first] == source.dims[first]:
        first -= 1
    return first, space.env.product(update.dims[first:])


def _places(frame: Frame, node: Node, index: tuple[Dim, ...]) -> list[Dim]:
    """Where the element at an index of the update goes: the start of the slice is clamped so that this lies within."""
    e = frame.emitter
    source, update, *starts = node.operands
    return [
        position if size == taken else position + run_recursive(e.data_variable(start, (), None, size - taken))
        for position, start, size, taken in zip(index, starts, source.dims, update.dims, strict=True)
    ]
