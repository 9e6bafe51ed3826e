"""Products of groups of rows on a GPU, each group with a matrix of its own (a mixture of experts).

A program has a block of rows and of columns. It goes through the groups and multiplies with the matrices of those that have rows in its
block, so only blocks on a border are multiplied more than once.
"""

from __future__ import annotations

from disc.codegen.cuda.emit import Buffer, Emitter
from disc.codegen.cuda.factors import TENSOR, bind_lanes, common_element, factor
from disc.codegen.cuda.kernel import DeviceVersion, emit_version
from disc.codegen.cuda.rows import body_versions
from disc.codegen.cuda.text import Variable
from disc.codegen.plan.contraction import Operand
from disc.codegen.plan.fusion import Fusion
from disc.errors import TargetError
from disc.ir.graph import Node
from disc.shapes import Dim
from disc.speculation.guards import Guard
from disc.targets.cuda_thresholds import KERNELS

GROUPED = "disc.grouped_dot"
ROWS, COLUMNS, DEPTH, WARPS = KERNELS.grouped


def grouped_extents(node: Node) -> tuple[Dim, ...]:
    """(rows, columns, values of k, groups)."""
    rows, matrices, ends = node.operands
    return rows.dims[0], matrices.dims[2], matrices.dims[1], ends.dims[0]


def grouped_versions(fusion: Fusion, node: Node, symbols: tuple[str, ...], precision: str) -> tuple[DeviceVersion, ...]:
    """The versions of a fusion around one `disc.grouped_dot`. Raises TargetError for elements that tensor cores do not multiply."""
    if any(each.element not in TENSOR for each in node.operands[:2]):
        raise TargetError(f"no CUDA kernel for grouped products of {node.operands[0].element} (line {node.line})")
    return tuple(_version(fusion, node, symbols, precision, guard, wide) for guard, wide in body_versions(fusion.space(), fusion.body))


def _version(fusion: Fusion, node: Node, symbols: tuple[str, ...], precision: str, guard: Guard, wide: bool) -> DeviceVersion:
    space = fusion.space()
    rows, columns, depth, groups = grouped_extents(node)
    for name, extent in (("gb", groups), ("gm", rows), ("gn", columns), ("gk", depth), ("gk1", depth)):
        space.variable(name, extent)
    left = Operand(node.operands[0], lambda group, row, k: ((row, k), ()))
    right = Operand(node.operands[1], lambda group, column, k: ((group, k, column), ()))
    narrow = common_element(left, right)

    def lanes(e: Emitter, name: str, text: str, axis: int, extent: Dim, size: int) -> None:
        bind_lanes(e, space, name, text, axis, extent, size, e.w.scope)

    def emit(e: Emitter, results: tuple[Buffer, ...]) -> None:
        w = e.w
        program = w.let("tl.program_id(0).to(tl.int64)" if wide else "tl.program_id(0)", "i")
        across = w.let(f"tl.cdiv({w.number(columns)}, {COLUMNS})", "i")
        first = w.let(f"{program} // {across} * {ROWS}", "i")
        lanes(e, "gm", f"{first} + tl.arange(0, {ROWS})[:, None]", 0, rows, ROWS)
        lanes(e, "gn", f"{program} % {across} * {COLUMNS} + tl.arange(0, {COLUMNS})[None, :]", 1, columns, COLUMNS)
        w.statement(f"found = tl.zeros([{ROWS}, {COLUMNS}], tl.float32)")
        w.statement("begin = tl.zeros([], tl.int64)")
        with w.block(f"for group in range(0, {w.number(groups)}):") as scope:
            w.bind("gb", Variable(w.let("tl.zeros([], tl.int64) + group", "i") if wide else "group", scope))
            end = w.let(f"{e.value(node.operands[2], (Dim.symbol('gb'),))}.to(tl.int64)")
            size = w.number(rows)
            e.report(w.let(f"({end} < begin) | ({end} > {size})", "m"), end, size)
            with w.block(f"if (begin < {first} + {ROWS}) & ({end} > {first}):"):
                w.statement(f"sums = tl.zeros([{ROWS}, {COLUMNS}], tl.float32)")
                with w.block(f"for step in range(0, {w.number(depth)}, {DEPTH}):"):
                    lanes(e, "gk", f"step + tl.arange(0, {DEPTH})[None, :]", 1, depth, DEPTH)
                    lanes(e, "gk1", f"step + tl.arange(0, {DEPTH})[:, None]", 0, depth, DEPTH)
                    a = factor(e, left, "gm", "gk", narrow, (ROWS, DEPTH))
                    b = factor(e, right, "gn", "gk1", narrow, (DEPTH, COLUMNS))
                    exact = precision if narrow == "tl.float32" else "ieee"
                    w.statement(f'sums = tl.dot({a}, {b}, sums, input_precision="{exact}")')
                place = w.variables["gm"].name
                w.statement(f"found = tl.where(({place} >= begin) & ({place} < {end}), sums, found)")
            w.statement(f"begin = {end}")
        e.store(results[0], space.linear((Dim.symbol("gm"), Dim.symbol("gn")), node.dims), "found")

    grid = (((rows + (ROWS - 1)) // ROWS) * ((columns + (COLUMNS - 1)) // COLUMNS),)
    return emit_version(
        fusion.body, space, symbols, f"[{ROWS}, {COLUMNS}]", emit, grid, WARPS, guard=guard, wide=wide, faults=True
    )  # fmt: skip
