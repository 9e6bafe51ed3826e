"""Products whose k is split over tasks: the same bits from any number of threads, by sizes on both sides of every limit."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from compiled import both_targets, randn
from torch import nn

import disc
from disc.ral.executable import Executable
from disc.targets.x86_thresholds import CPU

pytestmark = pytest.mark.sampled(2)

AUTO = torch.export.Dim.AUTO
LEAST_DEPTH, MOST_PARTS = CPU.rules.split_depth, CPU.rules.split_parts
MOST = dict(CPU.rules.split_rows)[1]
ROWS = (0, 1, 2, 5, 6, 7, 12, 13, 17, 18, 19, 61, 64, 65, MOST - 1, MOST, MOST + 1, 2 * MOST)


class Head(nn.Module):
    """A product with the epilogues of a layer: bias, activation, residual."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.linear = nn.Linear(k, n)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.linear(x)) + residual


def compiled(k: int, n: int) -> tuple[nn.Module, list[Executable]]:
    model = Head(k, n).eval()
    example, shapes = (randn(3, k), randn(3, n)), ({0: AUTO}, {0: AUTO})
    return model, both_targets(model, example, shapes, options=disc.Options(threads=2))


def splits(executable: Executable) -> dict[str, int]:
    """How often each schedule that splits k ran."""
    found = [version for kernel in executable.explain().kernels for version in kernel.versions if "k split into" in version.guard]
    return {version.guard.rpartition(", ")[2]: sum(each.runs for each in found) for version in found}


def check(model: nn.Module, executable: Executable, rows: int, tolerance: float = 2e-5) -> None:
    """As eager within `tolerance`, and the same bits from 1, 2, 3 and 9 threads, which are more than there are tasks."""
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    x, residual = randn(rows, linears[0].in_features), randn(rows, linears[-1].out_features, seed=1)
    results: list[torch.Tensor] = []
    for executable.threads in (1, 2, 2, 2, 3, 9):
        result = executable(x, residual)
        assert isinstance(result, torch.Tensor)
        results.append(result)
    assert all(torch.equal(results[0], each) for each in results), f"{rows} rows"
    with torch.no_grad():
        torch.testing.assert_close(results[0], model(x, residual), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("k", "n", "parts"),
    [
        (LEAST_DEPTH - 1, 64, 0), (LEAST_DEPTH, 64, 2), (LEAST_DEPTH + 1, 1, 0), (2 * LEAST_DEPTH - 1, 61, 2), (4 * LEAST_DEPTH + 3, 17, 4),
        (2 * LEAST_DEPTH - 1, 129, 0), (2 * LEAST_DEPTH, 192, 2), (2 * LEAST_DEPTH, 128, 0), (4099, 257, 4), (4096, 448, 0), (4096, 16, 0),
        (16 * LEAST_DEPTH, 33, MOST_PARTS),
    ],
)  # fmt: skip
def test_sizes_around_every_limit(k: int, n: int, parts: int) -> None:
    """`parts`: into how many k is split, 0 for none; one column is a product of its own, with a matrix that nobody packed."""
    model, executables = compiled(k, n)
    for executable in executables:
        for rows in ROWS:
            check(model, executable, rows, 1e-4)
        ran = splits(executable)
        assert list(ran) == ([f"k split into {parts} parts"] if parts else [])
        assert all(ran.values())


def test_few_rows_and_many_are_not_split() -> None:
    """So little work that one thread does it, and so much that there are tasks enough."""
    _, executables = compiled(LEAST_DEPTH, 64)
    for rows, runs in ((1, 0), (12, 0), (13, 1), (MOST, 2), (MOST + 1, 2)):
        executables[-1](randn(rows, LEAST_DEPTH), randn(rows, 64))
        assert sum(splits(executables[-1]).values()) == runs


class Block(nn.Module):
    """The lower layer reads what the upper one stored in its narrow type."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.up, self.down = nn.Linear(16, k), nn.Linear(k, n)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x))) + residual


@pytest.mark.parametrize(("dtype", "tolerance"), [("bf16", 0.03), ("f16", 0.03), ("int8", 0.06)])
def test_reduced_precision(dtype: str, tolerance: float) -> None:
    """The limits count rows of a panel, which hold two values of k in bf16 and four in int8."""
    model = Block(8 * LEAST_DEPTH + 70, 50).eval()  # half of it, in whole vectors, ends within a block of int8
    example, shapes = (randn(3, 16), randn(3, 50)), ({0: AUTO}, {0: AUTO})
    for executable in both_targets(model, example, shapes, options=disc.Options(threads=2, dtype=dtype)):
        for rows in ROWS:
            check(model, executable, rows, tolerance)
        assert any(splits(executable).values())


def test_a_fixed_number_of_rows() -> None:
    model = Head(4096, 64).eval()
    for rows in (1, 30):
        executable = disc.compile(model, (randn(rows, 4096), randn(rows, 64)), options=disc.Options(threads=2))
        check(model, executable, rows)
        assert splits(executable) == {"k split into 4 parts": 6}


class Adapters(nn.Module):
    """Splits one behind the other, which hand on their parts in the same memory, with values that live on beside it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.downs = nn.ModuleList(nn.Linear(2048, 16 * (2 + number)) for number in range(3))
        self.ups = nn.ModuleList(nn.Linear(16 * (2 + number), 2048) for number in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for down, up in zip(self.downs, self.ups, strict=True):
            x = torch.tanh(x + up(F.silu(down(x))))
        return x


def test_calls_at_the_same_time() -> None:
    """Each call has memory of its own: what runs beside it changes no bit."""
    model = Adapters().eval()
    executable = disc.compile(model, (randn(3, 2048),), ({0: AUTO},), options=disc.Options(threads=3))
    inputs = [randn(rows, 2048) for rows in (13, 7, 64, 30, 17, 100)]
    wanted = [executable(x) for x in inputs]
    with torch.no_grad():
        for x, result in zip(inputs, wanted, strict=True):
            torch.testing.assert_close(result, model(x), atol=1e-4, rtol=1e-4)
    assert splits(executable)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            if not torch.equal(executable(inputs[number]), wanted[number]):  # pyright: ignore[reportArgumentType]
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forced_schedule_with_more_rows_than_there_is_memory_for() -> None:
    """The sums of the parts were written behind the memory of the call."""
    model = nn.Linear(4096, 64).eval()
    executable = disc.compile(model, (torch.randn(4, 4096),), dynamic_shapes=({0: AUTO},))
    for rows in (128, 129, 700):
        x = torch.randn(rows, 4096)
        for number in range(12):  # a larger number than there are stands for the last one
            executable.force_schedule(number)
            torch.testing.assert_close(executable(x), model(x), atol=2e-5, rtol=2e-5)
