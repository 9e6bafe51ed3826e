"""Traces of torch.compile's graphs: kept beside the programs, found by the same graph alone, and never where a key cannot tell it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

from disc.artifact.cache import open_cache, open_traces
from disc.config import child_environment, read_environment
from disc.frontend import dynamo, graph_calls, graph_programs


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DISC_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    counters.clear()
    dynamo.reset_statistics()
    yield
    torch._dynamo.reset()


def _again(function: Callable[..., Any], *inputs: object, dynamic: bool | None = True, **options: bool) -> Any:
    """What the function gives, compiled by a Dynamo that has seen none."""
    torch._dynamo.reset()
    return torch.compile(function, backend="disc", dynamic=dynamic, options={"strict": True, **options})(*inputs)


def _found() -> int:
    return counters["aot_autograd"]["autograd_cache_hit"]


def _step(model: nn.Module, x: Tensor, dynamic: bool | None = True) -> list[Tensor]:
    """Loss and gradients."""
    model.zero_grad()
    loss = _again(model, x, dynamic=dynamic)
    loss.square().mean().backward()
    return [loss.detach(), *(each.grad.clone() for each in model.parameters() if each.grad is not None)]


def _eager_step(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss = model(x)
    loss.square().mean().backward()
    return [loss.detach(), *(each.grad.clone() for each in model.parameters() if each.grad is not None)]


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


@pytest.mark.parametrize("dynamic", [True, None])
def test_a_step_is_found(dynamic: bool | None) -> None:
    """Where all sizes are fixed, the backward pass is compiled when it first runs, and the trace kept then."""
    model, x = _model(), torch.randn(5, 6)
    expected = _eager_step(model, x)
    for times in range(2):
        torch.testing.assert_close(_step(model, x, dynamic), expected)
        assert _found() == times
    assert dynamo.statistics().graphs == 4
    assert dynamo.statistics().cached == 2


def test_what_is_found_takes_other_sizes_and_refuses_what_the_trace_refused() -> None:
    model = _model()
    _step(model, torch.randn(5, 6))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="disc", dynamic=True)
    for rows in (5, 9, 2, 1):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(compiled(x), model(x))
    assert _found() >= 1


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        ("nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))", "6"),
        ("nn.Sequential(nn.Conv2d(32, 64, 5, padding=2), nn.Tanh())", "32, 9, 9"),  # whose gradient is an op of ours
    ],
)
def test_another_process_does_not_trace(model: str, rows: str) -> None:
    code = f"""
import torch
from torch._dynamo.utils import counters
from torch._functorch import aot_autograd
def traced(*args, **kwargs): raise AssertionError("traced")
import sys
if sys.argv[1] == "found":
    aot_autograd.aot_stage1_graph_capture = traced
torch.manual_seed(0)
from torch import nn
model = {model}
compiled = torch.compile(model, backend="disc", dynamic=True, options={{"strict": True}})
compiled(torch.ones(4, {rows})).sum().backward()
compiled(torch.ones(7, {rows})).sum().backward()
print([each.grad.sum().item() for each in model.parameters()])
if sys.argv[1] == "found":  # what compiles is not loaded: it takes as long as Dynamo's trace
    loaded = [name for name in sys.modules if name.startswith(("disc.frontend.graph_programs", "disc.frontend.decompositions",
                                                              "disc.passes", "disc.codegen", "disc.api", "torch_mlir.dialects"))]
    assert not loaded, loaded
"""
    first, second = (
        subprocess.run([sys.executable, "-c", code, word], env=child_environment({}), capture_output=True, text=True, check=True).stdout
        for word in ("new", "found")
    )
    assert first == second != ""


def test_ops_of_ours_are_defined_where_one_is_read() -> None:
    code = """
import torch
import disc.frontend.own_ops
if sys.argv[1] == "all":
    import disc.frontend.dynamo, disc.frontend.decompositions, disc.frontend.lowering
print([each for each in torch._C._dispatch_get_all_op_names() if each.startswith("disc::")])
"""
    alone, everything = (
        subprocess.run(
            [sys.executable, "-c", f"import sys{code}", word], env=child_environment({}), capture_output=True, text=True, check=True
        ).stdout
        for word in ("alone", "all")
    )
    assert alone == everything != "[]\n"


def test_guards_of_the_trace_hold_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only AOTAutograd has asked of a size: a trace is not found for a size with another answer, and where it is found, a call with
    such a size brings another graph."""

    def roll(graph: fx.GraphModule) -> int:
        (x,) = (each.meta["val"] for each in graph.graph.find_nodes(op="placeholder") if isinstance(each.meta["val"], Tensor))
        return int(bool(x.shape[0] > 6)) * 0

    monkeypatch.setattr(graph_programs, "roll_loops", roll)
    for rows, found in ((4, 0), (9, 0), (5, 1), (8, 2)):
        assert _again(lambda x: x.sum(0), torch.ones(rows, 3)).tolist() == [rows] * 3
        assert _found() == found
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.sum(0), backend="disc", dynamic=True)
    for rows, found in ((4, 3), (9, 4), (5, 4)):
        assert compiled(torch.ones(rows, 3)).tolist() == [rows] * 3
        assert _found() == found


def test_a_guard_of_a_size_that_becomes_a_number_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch writes guards of the sizes that are left, and 2 * y > x is none, once y is 5."""

    def roll(graph: fx.GraphModule) -> int:
        x, y = (each.meta["val"] for each in graph.graph.find_nodes(op="placeholder") if isinstance(each.meta["val"], Tensor))
        return int(bool(2 * y.shape[0] > x.shape[0]) and bool(y.shape[0] == 5)) * 0

    monkeypatch.setattr(graph_programs, "roll_loops", roll)
    for rows, found in (((7, 5), 0), ((20, 5), 0), ((7, 5), 0)):
        x, y = (torch.ones(each, 3) for each in rows)
        assert _again(lambda x, y: x.sum(0) + y.sum(0), x, y).tolist() == [sum(rows)] * 3
        assert _found() == found


def test_sizes_that_become_one_are_found() -> None:
    for rows, found in ((7, 0), (9, 1)):
        x, y = torch.ones(rows, 3), torch.ones(rows, 3)
        assert _again(lambda x, y: (x + y).sum(0), x, y).tolist() == [2 * rows] * 3
        assert _found() == found


def test_functions_that_change_traces_are_no_part_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, 4, requires_grad=True)
    _again(lambda x: x * 2, x)
    with functorch_config.patch(joint_custom_pass=lambda graph, inputs: graph):
        _again(lambda x: x * 2, x)
    assert _found() == 0


class _Guarded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2.0

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient * 5.0


def test_functions_of_the_user_are_traced_each_time() -> None:
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        x.grad = None
        result = _again(lambda x: _Guarded.apply(x) + 1.0, x)
        result.sum().backward()
        torch.testing.assert_close(x.grad, torch.full((3,), 5.0))
    assert _found() == 0


def test_inputs_that_share_memory_are_traced_each_time() -> None:
    def write(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2.0)
        return y + 1.0

    for shared in (False, True, False, True):
        both = torch.ones(8)
        x, y = (both[:4], both[2:6]) if shared else (torch.ones(4), torch.ones(4))
        expected = torch.tensor([3.0, 3.0, 2.0, 2.0]) if shared else torch.full((4,), 2.0)
        torch._dynamo.reset()
        result = torch.compile(write, backend="disc", dynamic=True)(x, y)
        torch.testing.assert_close(result, expected)


def test_what_a_trace_depends_on_is_in_the_key() -> None:
    def product(x: Tensor, y: Tensor) -> Tensor:
        return torch.mm(x, y) + torch.ones(1)

    def inputs(dtype: torch.dtype, transposed: bool = False, needs: bool = False) -> list[Tensor]:
        x = torch.full((4, 4), 0.3, dtype=dtype)
        return [(x.t() if transposed else x).requires_grad_(needs), torch.full((4, 4), 0.7, dtype=dtype)]

    def check(*given: Tensor) -> None:
        result = _again(product, *given)
        expected = product(*given)
        torch.testing.assert_close(result, expected, rtol=1e-2, atol=1e-2)  # products within autocast are rounded
        assert (result.dtype, result.stride(), result.requires_grad) == (expected.dtype, expected.stride(), expected.requires_grad)

    f32 = torch.float32
    check(*inputs(f32))
    check(*inputs(f32, transposed=True))
    check(*inputs(f32, needs=True))
    check(*inputs(torch.float64))
    with torch.autocast("cpu", torch.bfloat16):
        check(*inputs(f32))
    with torch.no_grad():
        check(*inputs(f32, needs=True))
    torch.set_default_dtype(torch.float64)
    try:
        check(*inputs(f32))
    finally:
        torch.set_default_dtype(f32)
    assert _found() == 0
    check(*inputs(f32))
    assert _found() == 1


def test_constants_are_in_the_key() -> None:
    for number in (2.0, 3.0, 2.0):
        result = _again(lambda x, number=number: x * number + torch.tensor([number]), torch.ones(3))
        torch.testing.assert_close(result, torch.full((3,), 2 * number))


def test_without_its_program_a_trace_is_made_and_kept_again() -> None:
    model, x = _model(), torch.randn(5, 6)
    expected = _eager_step(model, x)
    _step(model, x)
    open_cache(read_environment()).clear()
    torch.testing.assert_close(_step(model, x), expected)
    assert _found() == 0
    torch.testing.assert_close(_step(model, x), expected)
    assert _found() == 1
    assert len(open_traces(read_environment()).entries()) == 1


def test_a_damaged_trace_is_made_again() -> None:
    model, x = _model(), torch.randn(5, 6)
    expected = _eager_step(model, x)
    _step(model, x)
    (entry,) = open_traces(read_environment()).entries()
    content = entry.path.read_bytes()
    entry.path.write_bytes(content[:-9] + b"\0" * 9)
    with pytest.warns(UserWarning, match="the compile cache held a damaged entry"):
        torch.testing.assert_close(_step(model, x), expected)
    assert _found() == 0


def test_nothing_is_kept_where_the_cache_is_off() -> None:
    for _ in range(2):
        _again(lambda x: x + 1.0, torch.ones(3), cache=False)
    assert _found() == 0
    assert open_traces(read_environment()).entries() == []


def test_pytorch_s_own_cache_is_as_before() -> None:
    before = dict(vars(AOTAutogradCache))
    _again(lambda x: x + 1.0, torch.ones(3))
    assert dict(vars(AOTAutogradCache)) == before


def test_a_call_that_a_found_program_refuses_runs_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(x: Tensor) -> Tensor:
        return torch.softmax(x, -1) * 2.0

    x = torch.randn(3, 4)
    _again(twice, x)
    called = graph_calls.called_by_position
    failing: list[bool] = [True]

    def refuse(*args: object) -> object:
        if failing[0]:
            raise ValueError("refused")
        return called(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(graph_calls, "called_by_position", refuse)
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="refused a call, which ran in PyTorch: ValueError"):
        result = torch.compile(twice, backend="disc", dynamic=True)(x)
    torch.testing.assert_close(result, twice(x))
    assert _found() == 1
