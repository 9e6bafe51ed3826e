"""What torch-mlir makes of a call keeps the user's line: on every op, in refusals, in checks of a call, and in what is said of kernels."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from torch import nn
from torch_mlir import ir

import disc
from disc.errors import ShapeConstraintError, UnsupportedOpError
from disc.frontend import torch_mlir
from disc.frontend.allow_list import FORMS
from disc.frontend.lowering import lower_graph
from disc.ir.graph import location_line
from disc.ir.ops import block_ops, main_block
from tests.diff.single_calls import CallGraph, front_context, named
from tests.diff.test_torch_mlir import calls_of, goes_through

OPTIONS = disc.Options(cache=False, threads=1)
OF_NO_CALL = ("tensor.dim", "func.return", "disc.symbolic_dim")  # of the sizes and results of the program


def line_of(place: int) -> str:
    return f"model.py:{place + 1}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint16], ids=str)
def test_every_op_has_the_line_of_its_call(dtype: torch.dtype) -> None:
    """Each form of the allow-list, each call on a line of its own."""
    graph = CallGraph()
    for op in FORMS:
        for each in calls_of(op, dtype):  # pyright: ignore[reportArgumentType]
            if graph.add(each) and not goes_through(graph, each):
                graph.remove(each)
    wanted: list[str] = []
    for place, (node, parts) in enumerate(graph.nodes.values()):
        node.meta["stack_trace"] = f'  File "model.py", line {place + 1}, in forward\n    y = f(x)\n'
        wanted += [line_of(place)] * len(parts)
    program = lower_graph(graph.source(), front_context())
    assert_lines(program.module, wanted)
    named(program.module, program.weights)
    assert_lines(program.module, wanted)


def assert_lines(module: ir.Module, wanted: list[str]) -> None:
    """Every op has a line; one that makes a result has that of its call. A call that changes nothing returns what it is given."""

    def visit(op: ir.Operation) -> ir.WalkResult:
        assert op.name in OF_NO_CALL or location_line(str(op.location)) in known, op
        return ir.WalkResult.ADVANCE

    known, ops = set(wanted), block_ops(main_block(module))
    for op in ops:
        op.walk(visit)
    made = [(value.owner, line) for value, line in zip(ops[-1].operands, wanted, strict=True) if not isinstance(value.owner, ir.Block)]
    assert [location_line(str(op.location)) for op, _ in made] == [line for _, line in made]
    assert len(made) > 0.9 * len(wanted)


class Lines(nn.Module):
    """One call through torch-mlir a line."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.linear = nn.Linear(8, 8)
        self.convolution = nn.Conv1d(8, 8, 3)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.table(ids)
        y = found + x
        y = torch.exp(y)
        wide = self.linear(y)
        total = wide.sum(-1, keepdim=True)
        square = torch.matmul(y, y.transpose(1, 2))
        both = torch.cat([square, total], -1)
        chosen = torch.where(both > 0, both, total)
        moved = self.convolution(y.transpose(1, 2))
        mean = moved.mean((1, 2))
        return chosen.flip([0]), mean


def place_of(text: str, model: type[nn.Module] = Lines) -> str:
    """The line of the model's forward that has the text, without folders."""
    lines, first = inspect.getsourcelines(model)
    (found,) = [number for number, line in enumerate(lines, first) if text in line]
    return f"test_source_lines.py:{found}"


@pytest.fixture(scope="module")
def executable() -> disc.Executable:
    torch.manual_seed(0)
    rows = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    example = torch.randn(2, 5, 8), torch.randint(0, 10, (2, 5))
    return disc.compile(Lines().eval(), example, dynamic_shapes=(rows, rows), options=OPTIONS)


def test_kernels_have_the_lines_of_their_calls(executable: disc.Executable) -> None:
    kernels = executable.explain().kernels

    def lines(part: str) -> set[str]:
        """Of the kernels whose name has the part."""
        return {re.sub(r"^.*/", "", line) for kernel in kernels if part in kernel.name for line in kernel.lines}

    assert all(kernel.lines for kernel in kernels)
    assert {place_of("self.table(ids)"), place_of("found + x"), place_of("torch.exp")} == lines("gather")
    assert {place_of("self.linear(y)"), place_of("torch.matmul(")} == lines("compute_dot_general")
    assert {place_of("self.convolution(")} == lines("compute_convolution")
    assert {place_of("torch.cat("), place_of("torch.where("), place_of(".flip(")} <= lines("concatenate")
    assert {place_of("wide.sum("), place_of("moved.mean(")} <= lines("reduce")
    (last,) = [kernel for kernel in kernels if "convert_divide" in kernel.name]
    assert {re.sub(r"^.*/", "", line) for line in last.lines} == {place_of("self.convolution("), place_of("moved.mean(")}, (
        "not that of the sum before, which has the same constant"
    )
    text = str(executable.explain())
    assert all(line in text for kernel in kernels for line in {re.sub(r"^.*/", "", line) for line in kernel.lines})


def test_checks_of_a_call_have_the_lines_of_theirs(executable: disc.Executable) -> None:
    x, ids = torch.randn(2, 5, 8), torch.randint(0, 10, (2, 5))
    with pytest.raises(ShapeConstraintError, match=f"index 1[0-9] is out of range for a dim of size 10 at .*{place_of('self.table(ids)')}"):
        executable(x, ids + 10)
    with pytest.raises(ShapeConstraintError, match=f"at least 3 .decided at .*{place_of('self.convolution(')}"):
        executable(x[:, :2], ids[:, :2])


class Refused(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + x).floor()


def test_refusals_have_the_line_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a kind that the allow-list leaves out, and of one that a torch-mlir has no lowering for after all."""
    place = place_of(".floor()", Refused)
    with pytest.raises(UnsupportedOpError, match=f"aten.add.Tensor at .*{place}: no lowering"):
        disc.compile(Refused(), (torch.ones(3, 4, dtype=torch.uint16),), options=OPTIONS)
    monkeypatch.setattr(torch_mlir, "_texts", {})
    monkeypatch.setattr(torch_mlir, "_lowered_together", lambda kinds: dict.fromkeys(kinds))
    with pytest.raises(UnsupportedOpError, match=f"(?s)aten.add.Tensor at .*{place}: no lowering.*aten.floor.default at .*{place}: no low"):
        disc.compile(Refused(), (torch.ones(3, 4),), options=OPTIONS)
