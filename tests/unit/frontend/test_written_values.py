"""Values and graphs of PyTorch's compiler as text: what is read is what was written, and nothing but functions of a list is called."""

from __future__ import annotations

import enum
import json
import math
import operator
import os
from collections import defaultdict
from dataclasses import dataclass

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from disc.frontend.written_values import UnwritableError, Writer, function_name, function_of


class Color(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Pair:
    left: object
    right: object


WRITER = Writer([Pair, Color])


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -(2**70), 0.1, -0.0, math.inf, "text", (1, (2.5, None)), [1, "a", (2,)], {"a": 1, 2: (3,)}, {1: int, 0: float}, {3, 1},
        frozenset([2]), slice(None, 3, 2), torch.Size([2, 3]), torch.float32, torch.channels_last, torch.strided, torch.device("cpu"),
        Color.RED, Pair(Pair(1, [2]), (Color.RED, {})), torch.Tensor,
    ],
)  # fmt: skip
def test_values_come_back(value: object) -> None:
    found = WRITER.value(WRITER.text(value))
    assert found == value and type(found) is type(value) and repr(found) == repr(value)


def test_nan_and_lists_of_groups_come_back() -> None:
    assert math.isnan(WRITER.value(WRITER.text(math.nan)))
    groups = WRITER.value(WRITER.text(defaultdict(list, {1: [2]})))
    assert groups == {1: [2]} and groups[5] == []


@pytest.mark.parametrize("value", [object(), len, os.path, torch.ones(2), Exception, 1j])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(UnwritableError):
        WRITER.text([value])


def _graph() -> fx.GraphModule:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        values, places = torch.sort(x.reshape(x.shape[0], -1), -1, descending=True)
        return values[:, ::2] * math.inf + torch.full((1,), 0.1), places.to(torch.float64) + y.sum(), None

    return make_fx(function, tracing_mode="symbolic")(torch.randn(3, 4, 2), torch.randn(5))


def test_graphs_come_back() -> None:
    graph = _graph()
    found = WRITER.value(WRITER.text(graph))
    assert [str(each) for each in found.graph.nodes] == [str(each) for each in graph.graph.nodes]
    x, y = torch.randn(4, 3, 2), torch.randn(7)
    for one, other in zip(found(x, y), graph(x, y), strict=True):
        assert one is other is None or torch.equal(one, other)


def test_graphs_within_graphs_come_back() -> None:
    from torch._higher_order_ops.scan import scan

    def cumulated(x: torch.Tensor) -> torch.Tensor:
        return scan(lambda carried, row: (carried + row, carried * 2.0), torch.zeros(3), x)[1]

    x = torch.randn(4, 3)
    graph = make_fx(cumulated)(x)
    found = WRITER.value(WRITER.text(graph))
    assert torch.equal(found(x), graph(x))


def test_what_holds_tensors_or_calls_others_is_refused() -> None:
    constant = torch.ones(2)
    with pytest.raises(UnwritableError, match="tensors of a graph"):
        WRITER.text(make_fx(lambda x: x + constant)(torch.ones(2)))
    for function in (os.getcwd, operator.attrgetter, torch.load, torch.nn.functional.relu):
        with pytest.raises(UnwritableError):
            function_name(function)


@pytest.mark.parametrize(
    "name", ["os.system", "torch.load", "operator.call", "ops.mylib.f.default", "ops.aten.no_such.default", "eval", ""]
)
def test_no_other_function_is_read(name: str) -> None:
    with pytest.raises((KeyError, ValueError, AttributeError)):
        function_of(name)


@pytest.mark.parametrize("form", [{"object": ["Other", {}]}, {"type": "os"}, {"torch": "load"}, {"eval": "1"}, {"node": "x"}])
def test_other_texts_are_refused(form: object) -> None:
    with pytest.raises((KeyError, ValueError)):
        WRITER.value(json.dumps(form))
