"""Library kernels: one op of kind LIBRARY, computed by a function of the runtime that has its name.

    disc.sort(%x) {dim = 1, descending = false}   ─►   sort(x, values, indices; 1, 0)

The function gets the tensors of the op whole, results that nothing reads without memory, and the numbers in the order in which the record
of the op lists its attributes: integers, bools, and sizes, whose values it gets. It divides its work over threads itself. Operands may be
reshapes of what lies in memory. Neutral of the device: what runs on the CPU now is found by name on any device that has such functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from disc.codegen.plan.kernel import Kernel, LibraryCall, LibraryTensor, Version
from disc.codegen.plan.text import IllegalPlan, Plan
from disc.errors import CompilerBug
from disc.ir.graph import Body, Node
from disc.ir.op_table import EXTERNAL, LIBRARY, OPS
from disc.ir.weights import ELEMENT_BYTES
from disc.shapes import Dim, ShapeEnv

ZERO = Dim.of(0)


@dataclass(frozen=True)
class LibraryPlan(Plan):
    """A call of the runtime's function of this name."""

    name: ClassVar[str] = "library"
    function: str


def is_library(body: Body) -> bool:
    """Whether a fusion is one library op."""
    return any(node.op in LIBRARY for node in body.nodes)


def choose_library(body: Body) -> LibraryPlan:
    """The plan of a fusion around a library op, whose function has its name."""
    node = _node(body)
    return LibraryPlan(str(node.attrs["function"]) if node.op == EXTERNAL else node.name)


def may_be_library(body: Body, plan: LibraryPlan) -> None:
    """Raises IllegalPlan for another function than that of the fusion's op."""
    if not is_library(body):
        raise IllegalPlan("", "needs an op that a function of the runtime computes")
    wanted = choose_library(body).function
    if plan.function != wanted:
        raise IllegalPlan("function", f"follows from the fusion and must be {wanted}")


def _node(body: Body) -> Node:
    found = {node.siblings[0] if node.siblings else node: None for node in body.nodes if node.op in LIBRARY}
    if len(found) != 1:
        raise CompilerBug("a library fusion must have one library op")
    return next(iter(found))


def emit_library(name: str, body: Body, env: ShapeEnv, plan: LibraryPlan) -> Kernel:
    """The kernel: no code of its own, but what the host needs for the call. Raises CompilerBug for operands that do not lie in memory."""
    node = _node(body)
    pointers = {each: place for place, each in enumerate((*body.arguments, *body.yields))}
    operands = tuple(_tensor(pointers[_source(each)], each) for each in node.operands)
    results = tuple(_tensor(pointers.get(each), each) for each in node.siblings or (node,))
    call = (
        _custom_call(env, node, plan, operands, results)
        if node.op == EXTERNAL
        else LibraryCall(plan.function, plan.function, operands, results, tuple(_number(env, node, key) for key in OPS[node.op].needs))
    )
    elements = sum((env.product(each.dims) for each in node.operands), ZERO)
    moved = sum((env.product(each.dims) * ELEMENT_BYTES[each.element] for each in (*node.operands, *(node.siblings or (node,)))), ZERO)
    return Kernel(
        name, "library", (Version(plan.function),), (), Dim.of(1), elements * OPS[node.op].cost, ZERO, "", body.lines(),
        tuple(each.op for each in body.nodes if each.op != "input"), bytes=moved, library=call,
    )  # fmt: skip


def _custom_call(
    env: ShapeEnv, node: Node, plan: LibraryPlan, operands: tuple[LibraryTensor, ...], results: tuple[LibraryTensor, ...]
) -> LibraryCall:
    numbers = tuple(env.simplify(env.parse(text)) for text in node.texts("numbers"))
    return LibraryCall(str(node.attrs["target"]), plan.function, operands, results, numbers)


def _tensor(place: int | None, node: Node) -> LibraryTensor:
    return LibraryTensor(place, node.element, node.dims)


def _source(node: Node) -> Node:
    """The argument in whose memory an operand lies."""
    while node.op == "disc.reshape":
        node = node.operands[0]
    if node.op != "input":
        raise CompilerBug(f"{node.op} (line {node.line}) is read by a library op and does not lie in memory")
    return node


def _number(env: ShapeEnv, node: Node, key: str) -> Dim:
    value = node.attrs[key]
    if isinstance(value, str):
        return env.simplify(env.parse(value))
    if not isinstance(value, int):
        raise CompilerBug(f"{node.op} has the attribute {key}, which is no number")
    return Dim.of(int(value))
