"""torch.compile(backend="disc"): a model that eager runs, runs. What disc cannot do goes to PyTorch, counted, and named once."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from disc.errors import CompilerBug, DiscWarning
from disc.frontend import dynamo, graph_programs
from disc.frontend.graph_parts import Executable
from disc.frontend.imported import Imported

F = nn.functional
Calls = Sequence[tuple[object, ...]]


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def check(function: Callable[..., object], calls: Calls) -> None:
    compiled = torch.compile(function, backend="disc")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for inputs in calls:
            torch.testing.assert_close(compiled(*inputs), function(*inputs), rtol=1e-5, atol=1e-5, equal_nan=True)


def rows(*sizes: tuple[int, ...]) -> Calls:
    return [(torch.randn(size),) for size in sizes]


# --- sizes 0 and 1, and settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "last"),
    [
        (lambda x: x * 100 if x.shape[0] == 1 else x, 1),
        (lambda x: x.sum() + 7 if x.shape[0] == 0 else x.sum(), 0),
        (lambda x: x.flip(0) * 2 if x.shape[0] > 1 else x + 1000, 1),
        (lambda x: torch.zeros(()) if x.numel() == 0 else x.max(), 0),
        (lambda x: x.squeeze(0) if x.shape[0] == 1 else x.mean(0), 1),
    ],
)
def test_branches_on_sizes(function: Callable[..., object], last: int) -> None:
    """They were decided as if every size were 2 or more."""
    check(function, rows((2, 2), (3, 2), (last, 2)))


def settings() -> dict[str, object]:
    from torch._dynamo import config as dynamo_config
    from torch._functorch import config as functorch_config
    from torch.fx.experimental import _config as symbolic_config

    configs = {config.__name__: config.get_config_copy() for config in (dynamo_config, functorch_config, symbolic_config)}
    sdp = torch.backends.cuda
    kernels = (sdp.flash_sdp_enabled(), sdp.mem_efficient_sdp_enabled(), sdp.math_sdp_enabled(), sdp.cudnn_sdp_enabled())
    return {**configs, "kernels": kernels, "recursion": sys.getrecursionlimit(), "filters": list(warnings.filters)}


def test_no_setting_outlives_a_compile() -> None:
    """`backed_size_oblivious`, set for the process, made other backends wrong; the recursion limit stayed at 20,000."""
    before = settings()
    check(lambda q: F.scaled_dot_product_attention(q, q, q), rows((1, 2, 3, 4), (1, 2, 5, 4)))
    assert settings() == before


# --- what could not be compiled ---------------------------------------------------------------------------------------------------


def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, k, is_causal=q.shape[2] > 1)


def rotary(x: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones(4), torch.arange(4.0))).flatten(-2)


FAILED: dict[str, tuple[Callable[..., object], Calls]] = {
    "causal by a size": (attend, [(torch.randn(1, 2, n, 4), torch.randn(1, 2, m, 4)) for n, m in ((5, 5), (6, 6), (1, 7))]),
    "softmax of nothing": (lambda x: torch.softmax(x, -1), rows((0, 0), (3, 0))),
    "log_softmax of nothing": (lambda x: torch.log_softmax(x, -1), rows((2, 3), (3, 4), (3, 0))),
    "complex product": (lambda x: (x * x.conj()).real, [(torch.randn(4, dtype=torch.complex64),)]),
    "fft": (lambda x: torch.fft.fft(x).abs(), rows((4,))),
    "complex": (lambda x: torch.complex(x, x).abs() + 1, rows((4,), (5,))),
    "rotary by complex": (rotary, rows((2, 8))),
    "negative bit": (lambda v: v * 2, [(torch.randn(2, 2, dtype=torch.complex64).conj().imag,)]),
    "sparse": (lambda x: torch.sparse.mm(x, torch.ones(3, 2)) + 1, [(torch.eye(3).to_sparse(),)]),
    "part with a product of sizes": (lambda x: torch.sort(x.reshape(-1))[0].reshape(x.shape) + x, rows((2, 3), (3, 4), (5, 6))),
}


@pytest.mark.parametrize("name", FAILED)
def test_what_raised(name: str) -> None:
    check(*FAILED[name])


def test_channels_last_pooling_is_compiled() -> None:
    """Pooling to 1 x 1 writes other strides for dims of size 1: `aten.as_strided`."""
    pool = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    with torch.no_grad():
        check(pool, [(x.to(memory_format=torch.channels_last),) for (x,) in rows((2, 3, 6, 7), (3, 3, 8, 9))])
    assert not dynamo.statistics().eager


# --- what Dynamo does not hand over, and sizes that become numbers ------------------------------------------------------------------


class Experts(nn.Module):
    """branching: skips experts without rows, by data."""

    def __init__(self, branching: bool) -> None:
        super().__init__()
        self.branching = branching
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best, chosen = self.gate(x).softmax(-1).max(-1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == number)
            if not self.branching or rows.numel():
                result.index_add_(0, rows, expert(x[rows]) * best[rows, None])
        return result


def step(model: Callable[[torch.Tensor], torch.Tensor], parameters: Sequence[torch.Tensor], rows: int) -> tuple[torch.Tensor, ...]:
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))
    found = torch.autograd.grad(model(x).square().sum(), parameters, allow_unused=True)
    return tuple(torch.zeros_like(own) if each is None else each for own, each in zip(parameters, found, strict=True))


def test_a_loop_over_experts_is_one_graph() -> None:
    """Dynamo gave none of a loop that it cannot leave in the middle, where data decide sizes."""
    model = Experts(branching=False)
    compiled, parameters = torch.compile(model, backend="disc", dynamic=True, options={"strict": True}), list(model.parameters())
    for rows in (6, 2, 9):
        torch.testing.assert_close(step(compiled, parameters, rows), step(model, parameters, rows))
    assert dynamo.statistics().graphs == 2


def test_a_function_without_a_graph_is_named() -> None:
    """Dynamo said nothing."""
    model = Experts(branching=True)
    parameters = list(model.parameters())
    compiled = torch.compile(model, backend="disc", dynamic=True)
    with pytest.warns(DiscWarning, match=r"no graph .*Experts\.forward .*test_torch_compile_fallback\.py:\d+.*(nonzero|branching)"):
        torch.testing.assert_close(step(compiled, parameters, 6), step(model, parameters, 6))
    assert sum(dynamo.statistics().untraced.values()) == 1


def test_sizes_that_a_trace_fixes_are_named() -> None:
    """Each other size is compiled anew, until PyTorch compiles no more."""

    def added(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(5, 4).index_put((torch.arange(x.shape[0]) % 5,), x, accumulate=True)

    compiled = torch.compile(added, backend="disc", dynamic=True)
    with pytest.warns(DiscWarning, match=r"one size alone.*test_torch_compile_fallback\.py:\d+.* 4\b"):
        compiled(torch.randn(3, 4, requires_grad=True))
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", DiscWarning)
        torch.compile(lambda x, factor: x.cumsum(1) * factor, backend="disc", dynamic=True)(torch.randn(3, 4, requires_grad=True), 2.5)


# --- errors of ours, errors of the model ------------------------------------------------------------------------------------------


def test_a_failing_compile_runs_in_pytorch_and_says_so_once() -> None:
    def fail(imported: Imported) -> Executable:
        raise CompilerBug("compiler bug in pass fuse: no; the IR before it is saved as x.mlir")

    dynamo.set_compiler(fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            torch._dynamo.reset()
            compiled = torch.compile(lambda x: x.exp() + 1, backend="disc")
            torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).exp() + 1)
    ours = [str(warning.message) for warning in caught if issubclass(warning.category, DiscWarning)]
    assert len(ours) == 1 and "x.mlir" in ours[0] and "test_torch_compile_fallback.py:" in ours[0]
    assert dynamo.statistics().failed == {"CompilerBug": 2}
    torch._dynamo.reset()
    with pytest.raises(Exception, match="compiler bug in pass fuse"):
        torch.compile(lambda x: x.exp() + 1, backend="disc", options={"strict": True})(torch.ones(3))


def test_a_graph_of_checks_whose_lowering_fails_runs_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTAutograd strings the check of `inv` on a token, which the graph was called with though PyTorch had one without."""

    def fail(*given: object) -> None:
        raise CompilerBug("compiler bug in pass lower: no")

    monkeypatch.setattr(graph_programs, "lower_or_refuse", fail)
    x = torch.eye(3) * 2 + 0.1
    with pytest.warns(DiscWarning, match="compiler bug in pass lower"):
        result = torch.compile(lambda x: torch.linalg.inv(x) * 2, backend="disc")(x)
    torch.testing.assert_close(result, torch.linalg.inv(x) * 2)


def test_a_refused_call_runs_in_pytorch() -> None:
    def refuse(imported: Imported) -> Executable:
        def run(inputs: list[object]) -> Sequence[object]:
            raise ValueError("a check of ours")

        return run

    dynamo.set_compiler(refuse)
    with pytest.warns(DiscWarning, match="refused a call.*a check of ours"):
        result = torch.compile(lambda x: x.exp() + 1, backend="disc")(torch.ones(3))
    torch.testing.assert_close(result, torch.ones(3).exp() + 1)
    assert dynamo.statistics().refused_calls == {"ValueError": 1}


def test_an_error_of_the_model_is_pytorchs_own() -> None:
    table = torch.randn(4, 3)
    compiled = torch.compile(lambda i: table[i] * 2, backend="disc")
    torch.testing.assert_close(compiled(torch.tensor([1, 3])), table[[1, 3]] * 2)
    with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
        compiled(torch.tensor([1, 9]))
    assert not dynamo.statistics().refused_calls


def test_options_and_mode() -> None:
    with pytest.warns(DiscWarning, match="no modes"):
        compiled = torch.compile(lambda x: x @ x, backend="disc", mode="max-autotune")
        compiled(torch.ones(3, 3))
    torch._dynamo.reset()
    x, rounded = torch.randn(64, 64), torch.compile(lambda x: x @ x, backend="disc", options={"dtype": "bf16", "threads": 1})
    difference = (rounded(x) - x @ x).abs().max()
    assert 1e-4 < difference < 1
    torch._dynamo.reset()
    with pytest.raises(Exception, match="disc has no option fast; there are threads, dtype, cache, random, tf32, graphs, target, strict"):
        torch.compile(lambda x: x + 1, backend="disc", options={"fast": True})(x)
    with pytest.raises(Exception, match=r"disc has no option dtyp \(did you mean dtype\?\); there are"):
        torch.compile(lambda x: x + 1, backend="disc", options={"dtyp": "bf16"})(x)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="dtype='f8'"):
        torch.compile(lambda x: x + 1, backend="disc", options={"dtype": "f8"})(x)


def test_targets_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []
    known = graph_programs.graph_compiler()
    monkeypatch.setattr(graph_programs, "graph_compiler", lambda: lambda *rest: (asked.append(rest[2]), known(*rest))[1])
    torch._dynamo.reset()
    x = torch.ones(3)
    for target in ("x86-64-v3", ["x86-64-v3"], None):
        torch._dynamo.reset()
        options = {} if target is None else {"target": target}
        assert torch.equal(torch.compile(lambda x: x + 1, backend="disc", options=options)(x), x + 1)
    assert asked == [("x86-64-v3",), ("x86-64-v3",), ("native",)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"target": "sm_90"}, "the tensors lie on the cpu, target sm_90 is none of its"),
        ({"target": "x86-64-v9"}, "there is no target 'x86-64-v9'"),
        ({"packed": True}, "packed is for artifacts"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], says: str) -> None:
    torch._dynamo.reset()
    with pytest.raises(Exception, match=says):
        torch.compile(lambda x: x + 1, backend="disc", options=options)(torch.ones(3))
