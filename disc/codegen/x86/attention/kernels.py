"""Attention kernels: a dot, what normalizes its rows, and a dot over the same rows, with no buffer of all scores.

A softmax runs over blocks of keys (`attention_blocks`). Any other function of rows needs them whole: the scores of a block of rows go to
scratch, are normalized in place and multiplied, bit for bit as by the three kernels one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from disc.codegen.plan.attention import read_attention, rows_between
from disc.codegen.plan.contraction import declare, read_contraction
from disc.codegen.plan.index import IndexSpace
from disc.codegen.plan.kernel import Kernel, Version
from disc.codegen.plan.rows import RowPlan, numbers_of, plan_rows
from disc.codegen.plan.softmax import read_causal, read_segments, read_softmax
from disc.codegen.plan.summary import kernel_ops, traffic
from disc.codegen.plan.symbols import body_symbols
from disc.codegen.x86.attention.blocks import Blocks, emit_blocks
from disc.codegen.x86.function import Frame, emit_function, product_cost, rounded_up
from disc.codegen.x86.gemm.dots import may_dot
from disc.codegen.x86.gemm.kernels import emit_columns
from disc.codegen.x86.gemm.plan import PANEL, ROWS, Gemm, micro_kernels, plan_gemm, product_plan
from disc.codegen.x86.memory import Buffer, address
from disc.codegen.x86.plans import AttentionBlocksPlan, AttentionRowsPlan, ProductPlan, check, keep_equal
from disc.codegen.x86.rows.kernels import emit_group
from disc.ir.graph import Body, Node
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim
from disc.targets.target import Target

MOST_ROWS = 960  # of a task: their scores lie in scratch
MOST_KEYS = 8192  # of a block

AttentionPlan = AttentionBlocksPlan | AttentionRowsPlan


class _Rows:
    """The parts of a fusion whose rows are kept whole: two contractions, the scores between the first and the rows, the rows' result."""

    def __init__(self, space: IndexSpace, body: Body, target: Target, plan: AttentionRowsPlan | None = None) -> None:
        first, second, self.scores, self.probability = read_attention(body)
        self.first = _plan(space, body, first, target, (self.scores,), frozenset(), plan and plan.first)
        rows = rows_between(body, self.scores, self.probability)
        self.rows: RowPlan = plan_rows(space, rows, frozenset({self.scores}), target.thresholds)
        self.second = _plan(space, body, second, target, body.yields, frozenset({self.probability}), plan and plan.second)
        self.length = self.first.contraction.n
        cached = numbers_of(body, self.rows.cached)
        self.plan = plan or AttentionRowsPlan(
            product_plan(self.first), product_plan(self.second), target.thresholds.attention.block, cached
        )
        self.rows = replace(self.rows, cached=tuple(body.nodes[number] for number in self.plan.cached))

    def row_bytes(self, space: IndexSpace) -> Dim:
        """Scratch of the row caches of the softmax."""
        del space
        return rounded_up(self.length, 16) * (8 * len(self.rows.cached)) + 64

    def offsets(self, space: IndexSpace) -> tuple[Dim, Dim, Dim, Dim]:
        """Byte offsets in scratch: second contraction, rows, scores, end."""
        second = rounded_up(self.first.scratch(), 64)
        rows = second + rounded_up(self.second.scratch(), 64)
        scores = rows + self.row_bytes(space)
        return second, rows, scores, scores + self.length * (self.plan.rows * 4) + 64


def choose_attention(space: IndexSpace, body: Body, target: Target) -> AttentionPlan:
    """The plan that the kernel of an attention fusion should have: rows are kept whole where there is no softmax."""
    blocks = _read_blocks(space, body, target)
    return blocks.plan if blocks is not None else _Rows(space, body, target).plan


def may_attend(space: IndexSpace, body: Body, target: Target, plan: AttentionPlan) -> None:
    """Raises IllegalPlan for a plan that the fusion cannot have."""
    check(0 < plan.rows <= MOST_ROWS and plan.rows % ROWS == 0, "rows", f"must be a multiple of {ROWS} up to {MOST_ROWS}")
    if isinstance(plan, AttentionRowsPlan):
        found = _Rows(space, body, target)
        check(set(plan.cached) <= set(found.plan.cached), "cached", f"may be some of {list(found.plan.cached)}")
        _Rows(space, body, target, plan)
        return
    derived = _read_blocks(space, body, target)
    check(derived is not None, "", "there is no softmax between the products")
    assert derived is not None
    check(0 < plan.keys <= MOST_KEYS and plan.keys % PANEL == 0, "keys", f"must be a multiple of {PANEL} up to {MOST_KEYS}")
    keep_equal(plan, derived.plan, "safe")
    for field in ("causal", "segments"):
        check(getattr(derived.plan, field) or not getattr(plan, field), field, "the scores have no such bounds")
    found = _read_blocks(space, body, target, plan)
    check(found is not None and (not plan.dots or may_dot(found.first)), "dots", "keys do not lie row by row in f32")


def emit_attention(name: str, body: Body, space: IndexSpace, target: Target, plan: AttentionPlan) -> Kernel:
    """The kernel of an attention fusion."""
    if isinstance(plan, AttentionBlocksPlan):
        parts = _read_blocks(space, body, target, plan)
        assert parts is not None
        functions = parts.functions()
        micro, scratch, tasks = parts.micro_kernels(), parts.places()["end"], parts.row_blocks()
        one, two = parts.first.contraction, parts.second.contraction
        keys = one.n if parts.causal is None else (one.n + 1) // 2  # of the keys, as many as rows as a rule, a row sees half
        known = parts.segments is None  # else the lengths of sequences decide
        emit = lambda frame: emit_blocks(frame, parts, body)  # noqa: E731
    else:
        parts, functions = _Rows(space, body, target, plan), ()
        micro = micro_kernels(parts.first) + micro_kernels(parts.second)
        scratch, tasks = parts.offsets(space)[3], _blocks(parts)
        one, two, keys, known = parts.first.contraction, parts.second.contraction, parts.length, True
        emit = lambda frame: _emit(frame, parts, body)  # noqa: E731
    first, second = parts.first.form.left, parts.second.form.left
    cost = product_cost(target, (first, one.k * keys * plan.rows), (second, two.n * keys * plan.rows))
    symbols = body_symbols(space, body, *one.extents, *two.extents)
    source = emit_function(f"{name}_v0", body, body.yields, symbols, space, target, emit)
    return Kernel(
        name, "attention", (Version(f"{name}_v0"),), symbols, one.batch * tasks, cost,
        scratch, source, body.lines(), kernel_ops(body),
        flops=one.batch * one.m * keys * (one.k + two.n) * 2 if known else None,
        bytes=traffic(space, body), micro_kernels=tuple(dict.fromkeys(micro)), functions=functions,
    )  # fmt: skip


def _read_blocks(space: IndexSpace, body: Body, target: Target, plan: AttentionBlocksPlan | None = None) -> Blocks | None:
    """The parts of a fusion around a softmax, None for another function of rows."""
    dot, second, scores, probability = read_attention(body)
    softmax = read_softmax(scores, probability)
    if softmax is None:
        return None
    first = _plan(space, body, dot, target, (scores,), frozenset(), plan and plan.first)
    causal = read_causal(space, body, first.contraction, scores) if plan is None or plan.causal else None
    segments = read_segments(space, first.contraction, scores) if plan is None or plan.segments else None
    last = _plan(space, body, second, target, body.yields, frozenset({probability}), plan and plan.second)
    bounds = (causal is not None, segments is not None)
    sizes = target.thresholds.attention.block, target.thresholds.attention.keys
    plan = plan or AttentionBlocksPlan(product_plan(first), product_plan(last), *sizes, *bounds, may_dot(first), softmax.safe)
    return Blocks(first, last, scores, probability, softmax, causal, segments, plan)


def _plan(
    space: IndexSpace,
    body: Body,
    node: Node,
    target: Target,
    roots: tuple[Node, ...],
    leaves: frozenset[Node],
    plan: ProductPlan | None,
) -> Gemm:
    contraction = read_contraction(space, node)
    declare(space, contraction)
    gemm, _ = plan_gemm(space, body, contraction, target, frozenset(), leaves, plan)
    gemm.roots = roots
    return gemm


def _blocks(parts: _Rows) -> Dim:
    return (parts.first.contraction.m + (parts.plan.rows - 1)) // parts.plan.rows


# --- emission -----------------------------------------------------------------------------------------------------------


def _emit(frame: Frame, parts: _Rows, body: Body) -> None:
    b, e = frame.b, frame.emitter
    c = parts.first.contraction
    blocks, height = _blocks(parts), b.index(parts.plan.rows)
    with b.loop(frame.begin, frame.end, b.index(1)) as task:
        position = e.space.variable("gtask", c.batch * blocks)
        with e.bind("gtask", task.index):
            batch = e.space.divide(position, blocks)
            number, block = b.scalar(batch), b.scalar(position - batch * blocks)
            low = b.op(f"arith.muli {block}, {height} : i64")
            high = b.op(f"arith.minsi {b.op(f'arith.addi {low}, {height} : i64')}, {b.scalar(c.m)} : i64")
            with e.bind("gb", number):
                _emit_block(frame, parts, body, number, (low, high))


def _emit_block(frame: Frame, parts: _Rows, body: Body, batch: str, rows: tuple[str, str]) -> None:
    b, e = frame.b, frame.emitter
    second, caches, scores, _ = parts.offsets(e.space)
    buffer = _row_buffer(frame, parts, batch, rows[0], scores, "f32")
    # A probability stored narrower than its score lies before every score that is still to be read: row r ends at or before row r + 1 of
    # the scores starts, and within row 0 an element is written only after it was read.
    narrow = _row_buffer(frame, parts, batch, rows[0], scores, parts.probability.element)
    always = b.constant("arith.constant true")

    declare(e.space, parts.first.contraction)
    emit_columns(replace(frame, roots=(parts.scores,), outputs=(buffer,)), parts.first, body, rows, always)

    e.leaves[parts.scores] = buffer
    moved = address(b, Buffer(frame.scratch, (), "i8"), b.scalar(caches))
    _emit_softmax(replace(frame, roots=(parts.probability,), outputs=(narrow,), scratch=moved), parts, batch, rows)
    del e.leaves[parts.scores]

    e.leaves[parts.probability] = narrow
    declare(e.space, parts.second.contraction)
    moved = address(b, Buffer(frame.scratch, (), "i8"), b.scalar(second))
    emit_columns(replace(frame, scratch=moved), parts.second, body, rows, always)
    del e.leaves[parts.probability]


def _row_buffer(frame: Frame, parts: _Rows, batch: str, low: str, place: Dim, element: str) -> Buffer:
    """The scratch rows of this block as if they were the whole tensor of scores: its base lies before scratch by the rows that precede."""
    b = frame.b
    c = parts.first.contraction
    before = b.op(f"arith.addi {b.op(f'arith.muli {batch}, {b.scalar(c.m)} : i64')}, {low} : i64")
    elements = b.op(f"arith.muli {before}, {b.scalar(parts.length)} : i64")
    back = b.op(f"arith.muli {elements}, {b.index(-ELEMENT_BYTES[element])} : i64")
    base = address(b, Buffer(frame.scratch, (), "i8"), b.scalar(place))
    return Buffer(address(b, Buffer(base, (), "i8"), back), parts.scores.dims, element)


def _emit_softmax(frame: Frame, parts: _Rows, batch: str, rows: Sequence[str]) -> None:
    b, e = frame.b, frame.emitter
    c = parts.first.contraction
    first = b.op(f"arith.muli {batch}, {b.scalar(c.m)} : i64")
    e.floor = b.scope  # this block's scratch is known from here on
    with b.loop(rows[0], rows[1], b.index(1)) as row:
        name = e.name("row")
        position = e.space.variable(name, c.batch * c.m)
        with e.bind(name, b.op(f"arith.addi {first}, {row.index} : i64")):
            emit_group(frame, parts.rows, position)
    e.floor = None
