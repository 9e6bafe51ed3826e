"""What a call gives and takes: kinds of outputs, layouts of inputs, threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import both_targets, module_program, randn
from torch import nn

SHAPES = [(0, 3), (3, 0), (1, 1), (2, 16), (7, 17), (33, 5)]


class Outputs(nn.Module):
    """The same value twice, inputs and weights as they are, scalars, constants, values made from other outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 3))
        self.register_buffer("table", torch.arange(5, dtype=torch.int32))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        z = x.exp()
        return [
            z, z, x, y, x, self.weight.clone(), self.table.clone(), x.sum(), z + 1, z.reshape(-1), x.t(), torch.tensor(3.0), torch.zeros(2, 3), torch.tensor([1, 2, 5]), x[:0], z.t(),
            x * 1, x.float(), torch.zeros(x.shape[1], 0), x > 0, x.shape[0] + y, (x > 0).all(),
        ]  # fmt: skip


def test_outputs() -> None:
    program = module_program(Outputs(), randn(3, 4), randn(5, dtype=torch.int64), dynamic=[(0, 1), (0,)])
    for shape in SHAPES:
        program.check(randn(*shape), randn(shape[0] + shape[1], dtype=torch.int64))


def test_results_are_fresh() -> None:
    """Writing into a result changes neither inputs, weights nor other results."""
    for executable in both_targets(
        Outputs().eval(),
        (randn(3, 4), randn(5, dtype=torch.int64)),
        ({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}, {0: torch.export.Dim.AUTO}),
    ):
        x, y = randn(3, 4), randn(5, dtype=torch.int64)
        results = executable(x, y)
        assert isinstance(results, tuple | list)
        expected = [each.clone() for each in results]
        for number, result in enumerate(results):
            result.zero_()
            for later in range(number + 1, len(results)):
                assert torch.equal(results[later], expected[later]), (number, later)
        again = executable(x, y)
        assert isinstance(again, tuple | list) and torch.equal(x, randn(3, 4))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(again, expected, strict=True))


def test_many_outputs() -> None:
    program = module_program(
        lambda x: [(x * number).sin() for number in range(25)] + [x.sum(0) + number for number in range(10)], randn(3, 4)
    )
    for shape in SHAPES[2:]:
        program.check(randn(*shape))


def mixed(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [x + y, x @ y.t(), x.sum(1), x.softmax(-1), y.t() + 1, torch.cat([x, y], 1)]


def test_layouts_of_inputs() -> None:
    """Strided, broadcast, sliced, transposed and unaligned inputs are read as what they mean."""
    program = module_program(mixed, randn(3, 4), randn(3, 4, seed=1))
    base = randn(40, 70)
    views = [
        (base[:5, :9], base[5:10, 9:18]), (base.t()[:9, :17], base[:9, :17]), (base[::3, ::2], base[:14, :35]), (base[:1].expand(7, 70), base[:7]), (base[:, :1].expand(40, 16), base[:, 3:19]),
        (torch.tensor(2.0).expand(8, 9), base[1:9, 1:10]), (base[:1, :17], base[:1, 1:18]), (base[2:2, :17], base[3:3, :17]), (base[:7, :1], base[:7, 1:2]),
    ]  # fmt: skip
    for x, y in views:
        program.check(x, y)


def test_arrays() -> None:
    """NumPy arrays in, NumPy arrays out; negative strides, Fortran order, read-only and non-native starts."""
    program = module_program(mixed, randn(3, 4), randn(3, 4, seed=1))
    base = randn(40, 70).numpy()
    frozen = base[:6, :11].copy()
    frozen.flags.writeable = False
    for x, y in [
        (base[::-1, :9], base[:, 9:18]),
        (np.asfortranarray(base), base[:, ::-1]),
        (frozen, base[6:12, :11]),
        (base[:5, ::-2], np.broadcast_to(base[:1, :35], (5, 35))),
    ]:
        wanted = mixed(torch.from_numpy(x.copy()), torch.from_numpy(y.copy()))
        for executable in program.executables:
            results = executable(x, y)
            assert isinstance(results, tuple | list)
            for ours, theirs in zip(results, wanted, strict=True):
                assert isinstance(ours, np.ndarray)
                np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-5, atol=2e-5)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second, self.norm = nn.Linear(32, 100), nn.Linear(100, 32), nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        y = self.norm(x + self.second(F.gelu(self.first(x))))
        return [
            y,
            y @ y.transpose(-1, -2),
            y.cumsum(1),
            y.sum((0, 1)),
            torch.zeros_like(y).scatter_add(1, (y.abs() * 1000).long() % y.shape[1], y),
        ]


@pytest.fixture(scope="module")
def layers() -> list[object]:
    return both_targets(Layers().eval(), (randn(2, 3, 32),), ({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},))  # pyright: ignore[reportReturnType]


def test_one_executable_in_many_threads(layers: list[object]) -> None:
    """Eight threads, each with its own shapes, get what one thread gets."""
    model = Layers().eval()
    for executable in layers:
        inputs = [randn(1 + number % 3, 5 + 7 * number, 32, seed=number) for number in range(8)]
        with torch.no_grad():
            wanted = [model(x)[0] for x in inputs]
        wrong: list[str] = []

        def work(
            number: int,
            executable: object = executable,
            inputs: list[torch.Tensor] = inputs,
            wanted: list[torch.Tensor] = wanted,
            wrong: list[str] = wrong,
        ) -> None:
            for _ in range(20):
                result = executable(inputs[number])[0]  # pyright: ignore[reportCallIssue]
                if not torch.allclose(result, wanted[number], rtol=1e-4, atol=1e-4):
                    wrong.append(f"thread {number}: {float((result - wanted[number]).abs().max())}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_neither_the_number_of_threads_nor_who_computes_what_changes_a_bit(layers: list[object]) -> None:
    for executable in layers:
        for batch, length in ((1, 1), (1, 17), (3, 33), (2, 257), (40, 64)):
            x = randn(batch, length, 32)
            results = []
            for count in (1, 2, 2, 2, 3, 3, 3):
                executable.threads = count  # pyright: ignore[reportAttributeAccessIssue]
                results.append(executable(x))  # pyright: ignore[reportCallIssue]
            for other in results[1:]:
                assert all(torch.equal(ours, theirs) for ours, theirs in zip(results[0], other, strict=True))
