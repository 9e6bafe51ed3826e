"""The torch.compile backend: one graph for all sizes, training, and ops that stay with PyTorch."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.symbolic_convert import TensorifyState
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_mlir import ir

from disc.errors import DiscError, TargetError
from disc.frontend import dynamo, graph_programs
from disc.frontend import torch_mlir as long_tail
from disc.frontend.backend_settings import targets_of
from disc.frontend.fewer_collections import ALLOCATIONS, fewer_collections
from disc.frontend.graph_parts import Executable
from disc.frontend.imported import Imported
from disc.ir.interp.oracle import interpret
from disc.ir.passes import CompileState, run_passes
from disc.passes.shape import shape_rules
from disc.passes.shape.name_dims import NameDims
from disc.passes.shape.resolve_broadcasts import ResolveBroadcasts


def interpreted(imported: Imported) -> Executable:
    """A compiler for tests: the interpreter on the named module, with scalar arguments as tensors, which it needs."""
    assert imported.module.operation.verify()
    run_passes(imported.module, [NameDims(), ResolveBroadcasts()], CompileState(weights=imported.weights))
    text = re.sub(r"(%arg\d+): i64", r"\1: tensor<i64>", str(imported.module))
    module = ir.Module.parse(text, imported.module.context)

    def run(inputs: Sequence[object]) -> list[object]:
        arrays = [x.detach().numpy() if isinstance(x, torch.Tensor) else np.asarray(x, dtype=np.int64) for x in inputs]
        return [torch.from_numpy(np.array(result, order="C")) for result in interpret(module, arrays, imported.weights)]

    return run


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    dynamo.reset_statistics()
    dynamo.set_compiler(interpreted)
    yield
    dynamo.set_compiler(None)


def gradients_of(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.grad.clone() for tensor in tensors if tensor.grad is not None]


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))


@pytest.mark.parametrize("first", [3, 1, 0])
def test_one_graph_serves_every_batch_from_two_on(first: int) -> None:
    """Sizes 0 and 1 have graphs of their own: Python code may branch on them, and PyTorch decides broadcasts by them."""
    model = perceptron()
    compiled = torch.compile(model, backend=dynamo.backend, dynamic=True)
    with torch.no_grad():
        for batch in (first, 5, 1, 0, 2, 3, 7):
            x = torch.randn(batch, 7, 16)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert dynamo.statistics().graphs == 3


def test_training_gives_the_gradients_of_pytorch() -> None:
    model = perceptron()
    compiled = torch.compile(model, backend=dynamo.backend, dynamic=True)
    for batch in (3, 5, 1, 2):
        x = torch.randn(batch, 7, 16, requires_grad=True)
        gradients = []
        for function in (compiled, model):
            model.zero_grad()
            x.grad = None
            function(x).square().sum().backward()
            gradients.append(gradients_of(*model.parameters(), x))
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-3)
    assert dynamo.statistics().graphs == 4  # forward and backward, for batch 1 apart
    assert not dynamo.statistics().eager


def test_training_attention_and_embedding() -> None:
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(20, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.layer(self.embedding(ids))

    model = Model()
    compiled = torch.compile(model, backend=dynamo.backend, dynamic=True)
    for batch, length in ((3, 5), (2, 7)):
        ids = torch.randint(0, 20, (batch, length))
        gradients = []
        for function in (compiled, model):
            model.zero_grad()
            function(ids).square().sum().backward()
            gradients.append(gradients_of(*model.parameters()))
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-3)


def test_fixed_floats_are_no_reason_to_trace_anew() -> None:
    """PyTorch takes floats for inputs, traces all, and then begins anew without those that are attributes of ops, or not used."""
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.norm, self.scale, self.limit = nn.Embedding(20, 8), nn.LayerNorm(8), 2.0, 5.0

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.norm(self.embedding(ids)) * self.scale
            return x if self.scale < self.limit else -x

    model = Model()
    compiled = torch.compile(model, backend=dynamo.backend, dynamic=True)
    counters["aot_autograd"].clear()
    ids = torch.randint(0, 20, (3, 5))
    with torch.no_grad():
        for scale, limit, eps, graphs in ((2.0, 5.0, 1e-5, 1), (3.0, 4.0, 1e-5, 1), (3.0, 4.0, 0.5, 2), (3.0, 2.0, 0.5, 3)):
            model.scale, model.limit, model.norm.eps = scale, limit, eps
            torch.testing.assert_close(compiled(ids), model(ids))
            assert counters["aot_autograd"]["total"] == dynamo.statistics().graphs == graphs, (scale, limit, eps)
    assert TensorifyState.empty()


def test_the_collector_is_as_it_was_after_a_compile() -> None:
    """A program may have switched it off, or sets its own thresholds meanwhile; compiles may overlap."""
    before = gc.get_threshold()
    try:
        for own, within in (((700, 10, 10), (ALLOCATIONS, 10, 10)), ((0, 10, 10), (0, 10, 10)), ((50_000, 5, 5), (50_000, 5, 5))):
            gc.set_threshold(*own)
            first, second = fewer_collections(), fewer_collections()
            with first:
                second.__enter__()
                assert gc.get_threshold() == within
            assert gc.get_threshold() == within
            second.__exit__(None, None, None)
            assert gc.get_threshold() == own
        with fewer_collections():
            gc.set_threshold(900, 10, 10)
        assert gc.get_threshold() == (900, 10, 10)
    finally:
        gc.set_threshold(*before)


def test_unsupported_op_runs_in_pytorch() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        values = torch.special.airy_ai(x.relu() + 1)
        return values.exp() * x.shape[0]

    compiled = torch.compile(function, backend=dynamo.backend, dynamic=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in (3, 5, 2):
            x = torch.randn(batch, 7)
            torch.testing.assert_close(compiled(x), function(x))
    messages = [str(warning.message) for warning in caught if "disc leaves" in str(warning.message)]
    assert len(messages) == 1
    assert "aten.special_airy_ai.default" in messages[0] and "test_frontend_dynamo.py:" in messages[0]
    assert dynamo.statistics().eager == {"aten.special_airy_ai.default": 1}
    assert dynamo.statistics().compiled == 2


@pytest.mark.parametrize("op", [lambda x: torch.topk(x, 2)[0], lambda x: torch.sort(x, stable=True)[0]], ids=["topk", "sort"])
def test_static_sizes_compile_sorts_too(op: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """torch-mlir has a form for them, to ops that the stages after the import have not: ours is taken."""
    dynamo.set_compiler(None)

    def function(x: torch.Tensor) -> torch.Tensor:
        return op(x.relu() + 1).exp()

    compiled = torch.compile(function, backend=dynamo.backend, dynamic=False)
    x = torch.randn(3, 7)
    torch.testing.assert_close(compiled(x), function(x))
    assert not dynamo.statistics().eager and dynamo.statistics().compiled == 1


def test_the_long_tail_gives_only_ops_with_a_shape_rule() -> None:
    without_result = {"func.return", "tensor.dim", "tensor.extract"}
    of_ours = {op for op in long_tail.ALLOWED if op.startswith(("disc.", "control."))}
    assert long_tail.ALLOWED - without_result - of_ours <= set(shape_rules.RULES)
    assert {op for op in shape_rules.RULES if op.startswith("chlo.broadcast_")} <= long_tail.ALLOWED


@pytest.mark.parametrize("count", [1, 2])
def test_native_results(count: int) -> None:
    """A graph with one result gives that one, not the rows of it."""
    dynamo.set_compiler(None)
    compiled = torch.compile(lambda x: tuple(x + i for i in range(count)), backend=dynamo.backend, dynamic=True)
    for batch in (3, 1, 5):
        x = torch.randn(batch, 2)
        torch.testing.assert_close(compiled(x), tuple(x + i for i in range(count)))


def test_size_results_are_integers() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x + 1, x.shape[0] * 2

    compiled = torch.compile(function, backend=dynamo.backend, dynamic=True)
    result, size = compiled(torch.ones(5, 2))
    assert size == 10 and isinstance(size, int)
    assert result.shape == (5, 2)


def test_options_that_are_not_there_are_refused() -> None:
    with pytest.raises(DiscError, match="no option speed; there are threads, dtype, cache, random, tf32, graphs, target, strict"):
        dynamo.backend(torch.fx.symbolic_trace(nn.Linear(2, 2)), [torch.ones(1, 2)], options={"speed": 3})


# --- the compile cache ----------------------------------------------------------------------------------------------------------


Function = Callable[[torch.Tensor], torch.Tensor]


def cached_counts(function: Function, x: torch.Tensor) -> tuple[int, int]:
    """(modules compiled, those out of the cache) of a fresh torch.compile and one call, checked against eager."""
    torch._dynamo.reset()
    dynamo.reset_statistics()
    dynamo.set_compiler(None)
    torch.testing.assert_close(torch.compile(function, backend=dynamo.backend, dynamic=True)(x), function(x))
    return dynamo.statistics().compiled, dynamo.statistics().cached


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2 + x.shape[0]


def test_a_graph_compiled_before_comes_out_of_the_cache(own_cache: Path) -> None:
    assert cached_counts(doubled, torch.randn(3, 2)) == (1, 0)
    assert cached_counts(doubled, torch.randn(3, 2)) == (1, 1)
    assert cached_counts(doubled, torch.randn(7, 2)) == (1, 1)  # the sizes of the first call do not matter
    assert len(list(own_cache.glob("*.disc"))) == 1


OTHERS: dict[str, tuple[Function, torch.Tensor]] = {
    "constant": (lambda x: torch.relu(x) * 3 + x.shape[0], torch.ones(3, 2)),
    "size": (lambda x: torch.relu(x) * 2 + x.shape[1], torch.ones(3, 2)),
    "relation": (lambda x: torch.relu(x) * 2 + x.shape[0] if x.shape[0] % 3 == 0 else x, torch.ones(3, 2)),
    "op": (lambda x: torch.tanh(x) * 2 + x.shape[0], torch.ones(3, 2)),
    "dtype": (doubled, torch.ones(3, 2, dtype=torch.float64)),
    "rank": (doubled, torch.ones(3, 4, 2)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_graph_misses(name: str, own_cache: Path) -> None:
    assert cached_counts(doubled, torch.ones(3, 2)) == (1, 0)
    assert cached_counts(*OTHERS[name]) == (1, 0)


def test_without_the_cache_nothing_is_kept(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISC_CACHE", "0")
    assert [cached_counts(doubled, torch.ones(3, 2)) for _ in range(2)] == [(1, 0), (1, 0)]
    assert not own_cache.exists()


CACHE_USER = """
import torch
from disc.frontend import dynamo
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
x = torch.randn(5, 8)
compiled = torch.compile(model, backend="disc", dynamic=True)
compiled(x).sum().backward()
print(dynamo.statistics().compiled, dynamo.statistics().cached)
"""


def test_a_second_process_finds_the_graphs_of_the_first(own_cache: Path) -> None:
    """Inference and training graphs alike: the names of symbols are the same in every process."""
    found = [subprocess.run([sys.executable, "-c", CACHE_USER], capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert found == ["2 0\n", "2 2\n"]


@pytest.mark.parametrize(("function", "times"), [(lambda x: x * 2 + 1, 1), (lambda x: torch.special.airy_ai(x * 2) + 1, 3)])
def test_a_graph_is_lowered_once(monkeypatch: pytest.MonkeyPatch, function: Callable[..., object], times: int) -> None:
    """The lowering that finds nothing to refuse is the one that is compiled; around an op of PyTorch's, each part has one of its own."""
    seen: list[object] = []
    for name in ("lower_graph", "lower_or_refuse"):
        original = getattr(graph_programs, name)
        monkeypatch.setattr(graph_programs, name, lambda *given, original=original: seen.append(given) or original(*given))
    x = torch.randn(5)
    torch.testing.assert_close(torch.compile(function, backend=dynamo.backend)(x), function(x))
    assert len(seen) == times


class Recurrent(nn.Module):
    """A projection and a state that is given; deep: layers, directions, dropout between layers that keeps all or nothing."""

    def __init__(self, deep: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True, dropout=1.0) if deep else nn.Linear(3, 8)
        self.deep = deep
        self.projected = nn.LSTM(8, 5, proj_size=2, batch_first=True, bias=False)
        self.gated = nn.GRU(2, 4)
        self.plain = nn.RNN(4, 3, nonlinearity="relu") if deep else nn.Tanh()

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x: [batch, length, 3]; state: [1, batch, 4], of the GRU."""
        first = self.first(x)[0] if self.deep else self.first(x)
        projected, (short, long) = self.projected(first)
        gated, last = self.gated(projected.transpose(0, 1), state)
        return short, long, last, self.plain(gated)[0]


def results_and_gradients(model: nn.Module, run: Callable[..., tuple[torch.Tensor, ...]], *inputs: torch.Tensor) -> list[torch.Tensor]:
    """The results, and the gradients of the inputs and of the parameters."""
    given = [each.clone().requires_grad_() for each in inputs]
    results = run(*given)
    leaves = (*given, *model.parameters())
    return [*results, *torch.autograd.grad(sum((each * each).sum() for each in results), leaves)]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("deep", [False, pytest.param(True, marks=pytest.mark.long)])
def test_training_recurrent_layers_takes_one_forward_and_one_backward_graph(deep: bool) -> None:
    if deep:
        dynamo.set_compiler(None)
    model = Recurrent(deep)
    compiled = torch.compile(model, backend="disc", dynamic=True, options={"strict": True})
    for batch, length in ((6, 7), (2, 11), (13, 2)):
        inputs = (torch.randn(batch, length, 3), torch.randn(1, batch, 4))
        wanted, got = results_and_gradients(model, model, *inputs), results_and_gradients(model, compiled, *inputs)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert dynamo.statistics().graphs == dynamo.statistics().compiled == 2


def test_other_backends_are_traced_as_before() -> None:
    seen: list[str] = []

    def keep(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    model = nn.GRU(3, 4)
    torch.compile(model, backend="disc", dynamic=True)(torch.randn(5, 2, 3))
    torch._dynamo.reset()
    torch.compile(model, backend=keep)(torch.randn(2, 3, 3))  # pyright: ignore[reportArgumentType]
    assert not any("gru" in name for name in seen)


def test_targets_are_those_of_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: ((9, 0), (8, 7), (7, 5))[device.index])
    with FakeTensorMode():
        first, second, old = (torch.empty(2, device=f"cuda:{gpu}") for gpu in range(3))
    assert targets_of([first, 3, second, torch.ones(2)]) == ("sm_86", "sm_90")
    assert targets_of([torch.ones(2), None]) == ("native",)
    with pytest.raises(TargetError, match=r"compute capability 7\.5"):
        targets_of([old])
