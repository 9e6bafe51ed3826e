"""Decomposing op by op: once per kind of call, with the user's lines; writes in place become values or go through PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import ExportedProgram

from disc.errors import UnsupportedOpError
from disc.frontend import decompose as decompose_module
from disc.frontend.decompose import decompose
from disc.frontend.decompositions import export_table, training_table
from disc.frontend.exported import export_module, import_exported
from disc.frontend.in_place import RetraceError
from disc.frontend.rules import OVERRIDES
from disc.ir.dialect import make_context
from disc.ir.interp.oracle import interpret
from disc.ir.passes import CompileState, run_passes
from disc.passes.shape.name_dims import NameDims
from disc.passes.shape.resolve_broadcasts import ResolveBroadcasts

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Pair(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.function(x, y)


class Layers(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm in self.norms:
            x = F.gelu(norm(x)) + F.scaled_dot_product_attention(x, x, x)
        return x


def inputs(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 4, generator=generator), torch.randn(rows, 4, generator=generator)


def assert_agrees(program: ExportedProgram, function: Function) -> None:
    """At sizes that the export has not seen; eager works on copies, since it writes."""
    imported = import_exported(program, make_context())
    run_passes(imported.module, [NameDims(), ResolveBroadcasts()], CompileState(weights=imported.weights))
    for rows in (1, 2, 7):
        x, y = inputs(rows)
        wanted = function(x.clone(), y.clone())
        (given,) = interpret(imported.module, [x.numpy(), y.numpy()], imported.weights)
        assert np.asarray(given).dtype == wanted.numpy().dtype
        np.testing.assert_allclose(given, wanted.numpy(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("count", [1, 5])
def test_equal_calls_are_traced_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[str] = []
    trace = decompose_module._traced

    def counted(node: torch.fx.Node, *rest: object) -> object:
        traced.append(str(node.target))
        return trace(node, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(decompose_module, "_traced", counted)
    decompose(export_module(Layers(count).eval(), (torch.randn(2, 3, 8),)).graph_module)
    for op in ("layer_norm", "gelu", "scaled_dot_product_attention"):
        assert traced.count(f"aten.{op}.default") == 1


def add_to_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    product = x * y
    product += y
    return product.mul_(2) - product


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu_(F.linear(x, torch.eye(4)).add_(1)).masked_fill_(y > 0, -1.0)


def read_before(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = x + y
    before = total * 3
    total.sub_(1)
    return before + total


def without_gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scaled = F.gelu(x)
    return scaled * y


def write_row(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = x + y
    total[0] = 5.0
    return total


def write_parts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = x.new_full((x.shape[0] + 2, 4), -1.0)
    total[1:-1] = x
    before = total * 2
    total[:, 1:3] += y[0, 0]
    total[0, ::2].mul_(y[0, 1])
    total[-1] = total[0] * 3
    return total + before


def dropout_of_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.dropout(x.reshape(-1, 4), 0.5, training=False, inplace=True) * y


def parts_of_a_split(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As PyTorch's cells do."""
    first, second = torch.unsafe_chunk(F.linear(x, y.mT @ y).add_(1), 2, 1)
    return first.add_(second.exp()).sigmoid_() * second.tanh_()


LOCAL = [parts_of_a_split, add_to_product, chain, read_before, without_gradient, write_row, write_parts, dropout_of_view]


@pytest.mark.parametrize("function", LOCAL)
def test_local_writes_need_no_retracing(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    program = export_module(Pair(function), inputs(3))

    def refused(*_: object, **__: object) -> object:
        raise AssertionError("the program was traced anew")

    monkeypatch.setattr(ExportedProgram, "run_decompositions", refused)
    assert_agrees(program, function)


def view_taken_before(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = x + y
    flat = total.view(-1)
    total.add_(1)
    return flat


def composite_op_returns_its_input(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = x + y
    same = total.type_as(y)
    total.add_(1)
    return same


def narrower_target(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * 1).half().add_(y).float()


def comparison(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * 1).lt_(y)


def part_taken_before(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = x + y
    first = total[:, 0]
    total[:, 1] = y[:, 2]
    total[:, :2] *= 2
    return first


def part_changed_again(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = x + y
    first = total[:, 0].add_(1)
    total.mul_(2)
    return total[:, 1] + first


def whole_read_behind_its_part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = x + y
    torch.chunk(total, 2, 1)[0].add_(1)
    return total


def part_named_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    first, second = (x + y).split(2, 1)
    also = first.view(-1, 2)
    first.add_(1)
    return also * second


def whole_changed_behind_its_parts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = x + y
    first, second = total.split(2, 1)
    total.mul_(2)
    return first * second


OTHERS = [
    part_taken_before, part_changed_again, view_taken_before, composite_op_returns_its_input, narrower_target, comparison,
    whole_read_behind_its_part, part_named_twice, whole_changed_behind_its_parts,
]  # fmt: skip


@pytest.mark.parametrize("function", OTHERS)
def test_other_writes_go_through_pytorch(function: Function) -> None:
    program = export_module(Pair(function), inputs(3))
    with pytest.raises(RetraceError):
        decompose(program.graph_module)
    assert_agrees(program, function)


def test_refusal_inside_a_decomposition_names_the_users_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(OVERRIDES, torch.ops.aten.bernoulli.p)

    class Dropping(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x, y, y, dropout_p=0.5)

    line = Dropping.forward.__code__.co_firstlineno + 1
    with pytest.raises(UnsupportedOpError, match=rf"test_decompose.py:{line}"):
        import_exported(export_module(Dropping(), inputs(3)), make_context())


def test_tables_of_pytorchs_know_what_was_defined_since() -> None:
    """They are collected once for the composite ops that there are."""
    before = training_table()
    library = torch.library.Library("disc_tables", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
    op = torch.ops.disc_tables.twice.default
    assert op not in before and op in training_table() and op in export_table()
