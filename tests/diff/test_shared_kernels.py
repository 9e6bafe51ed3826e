"""Kernels that several regions share over other symbols and with operands in another order, against eager, with sizes that all differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_expansion import FUSED, Bottleneck
from torch import nn
from torch.export import Dim

import disc
from disc.errors import ShapeConstraintError

AUTO = {0: Dim.AUTO, 1: Dim.AUTO}
SEEDS = 5


class Calls(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.function(*inputs)


def compiled(function: Callable[..., object] | nn.Module, inputs: Sequence[torch.Tensor], dims: object) -> disc.Executable:
    model = function if isinstance(function, nn.Module) else Calls(function)
    shapes = dims if isinstance(function, nn.Module) else (dims,)
    return disc.compile(model.eval(), tuple(inputs), shapes, options=disc.Options(cache=False))  # pyright: ignore[reportArgumentType]


def kernels(executable: disc.Executable) -> int:
    return len({record["kernel"] for record in executable.manifest["kernels"]})


def counters(executable: disc.Executable) -> dict[str, int]:
    found = executable.stats()["counters"]
    assert isinstance(found, dict)
    return found


def tensors(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def agrees(executable: disc.Executable, function: Callable[..., Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]) -> None:
    expected, found = function(*inputs), executable(*inputs)
    assert isinstance(found, tuple)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=5e-5, atol=5e-5, equal_nan=True)


def softmax_of_both(x: torch.Tensor, v: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.softmax(x * 2 - v, -1), torch.softmax(y * 2 - w, -1)


@pytest.fixture(scope="module")
def both() -> disc.Executable:
    return compiled(softmax_of_both, tensors(0, (3, 5), (3, 5), (4, 7), (4, 7)), (AUTO,) * 4)


SIZES = [(1, 1, 1, 1), (2, 16, 3, 7), (3, 7, 2, 16), (5, 64, 1, 31), (4, 17, 33, 48), (0, 5, 2, 3), (2, 3, 4, 0), (13, 128, 2, 5)]


def test_sizes_of_each_launch(both: disc.Executable) -> None:
    assert len(both.manifest["kernels"]) == 2 and kernels(both) == 1
    for n, m, k, j in SIZES:
        agrees(both, softmax_of_both, tensors(n, (n, m), (n, m), (k, j), (k, j)))


def test_versions_are_chosen_and_counted_by_the_sizes_of_the_launch(both: disc.Executable) -> None:
    whole, tail = tensors(1, (3, 32), (3, 32)), tensors(2, (2, 7), (2, 7))
    for inputs, expected in (([*whole, *tail], "S1"), ([*tail, *whole], "S3")):
        before = counters(both)
        both(*inputs)
        after = counters(both)
        ran = sorted(name.partition("[")[2] for name in after if after[name] != before[name])
        assert ran == ["any shape]", f"divides(16, {expected})]"]


def test_each_launch_is_explained_by_its_own_sizes(both: disc.Executable) -> None:
    report = both.explain(*tensors(1, (3, 32), (3, 32), (2, 7), (2, 7)))
    (kernel,) = report.kernels
    assert kernel.runs == 2 and {version.guard: version.runs for version in kernel.versions if version.runs} == {
        "divides(16, S1)": 1,
        "": 1,
    }
    assert kernel.measured is not None and kernel.measured.bytes == 3 * 4 * (3 * 32 + 2 * 7)
    assert [launch.results for launch in kernel.launches] == [("f32[S0, S1]",), ("f32[S2, S3]",)]
    assert "also     f32[S2, S3], f32[S2, S3] -> f32[S2, S3]" in str(report)


class Lookups(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 16)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = torch.tanh(self.table(x))
        second = torch.tanh(self.table(y))
        return first, second


@pytest.fixture(scope="module")
def lookups() -> disc.Executable:
    ids = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5, 6, 7]])
    return compiled(Lookups(), ids, (AUTO, AUTO))


LINES = [Lookups.forward.__code__.co_firstlineno + number for number in (1, 2)]


def test_lines_of_all_launches(lookups: disc.Executable) -> None:
    (kernel,) = lookups.explain().kernels
    assert [line.rpartition(":")[2] for line in kernel.lines] == list(map(str, LINES))
    assert [[line.rpartition(":")[2] for line in launch.lines] for launch in kernel.launches] == [[str(line)] for line in LINES]


def test_an_index_out_of_range_names_its_own_line_and_input(lookups: disc.Executable) -> None:
    good, bad = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 10, 5, 6]])
    for inputs, name, line in (((good, bad), "y", LINES[1]), ((bad, good), "x", LINES[0])):
        where = rf"input '{name}': index 10 is out of range for a dim of size 10 at .*test_shared_kernels.py:{line}\b"
        with pytest.raises(ShapeConstraintError, match=where):
            lookups(*inputs)
    lookups(good, good)


def test_operands_in_another_order() -> None:
    def function(x: torch.Tensor, v: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x - v).exp() * v, w * (y - w).exp()

    executable = compiled(function, tensors(0, (3, 5), (3, 5), (4, 7), (4, 7)), (AUTO,) * 4)
    for n, m, k, j in SIZES:
        agrees(executable, function, tensors(n, (n, m), (n, m), (k, j), (k, j)))


EIGHTS, FEW, MANY, ANY = (8, 16, 64), (2, 9, 16), (2, 16, 63), (1, 5, 13, 67, 200)


@pytest.mark.parametrize(
    ("first", "second", "sizes"),
    [
        (8 * Dim("_a"), Dim.AUTO, (EIGHTS, ANY)),
        (Dim.AUTO, 8 * Dim("_b"), (ANY, EIGHTS)),
        (Dim("_c", min=2, max=16), Dim.AUTO, (FEW, ANY)),
        (Dim.AUTO, Dim("_d", min=2, max=16), (ANY, FEW)),
        (Dim("_e", min=2, max=16), Dim("_f", min=2, max=64), (FEW, MANY)),
    ],
)
def test_facts_of_one_launch_do_not_hold_for_the_other(first: object, second: object, sizes: tuple[tuple[int, ...], ...]) -> None:
    """Were the kernel of the side of which more is known taken for the other one too, its last elements would be missing."""
    dims = tuple({0: Dim.AUTO, 1: each} for each in (first, first, second, second))
    examples = [each[-1] if len(each) == 3 else 7 for each in sizes]
    executable = compiled(softmax_of_both, tensors(0, *((3 + n // 2, examples[n // 2]) for n in range(4))), dims)
    assert kernels(executable) == 2
    for n, (m, j) in enumerate((m, j) for m in sizes[0] for j in sizes[1]):
        agrees(executable, softmax_of_both, tensors(n, (n, m), (n, m), (n + 2, j), (n + 2, j)))


class Block(nn.Module):
    """A layer whose weights are its own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.norm, self.up, self.down = nn.LayerNorm(24), nn.Linear(24, 40), nn.Linear(40, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class TwoSides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Block(1), Block(2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, y = self.left(x), self.right(y)
        return x, y, torch.softmax(x @ y.transpose(1, 2), -1) @ y, torch.softmax(y @ x.transpose(1, 2), -1) @ x


def test_layers_of_products() -> None:
    """GEMMs with weights of their own, normalization, and attention both ways."""
    model = TwoSides().eval()
    third = {**AUTO, 1: Dim.AUTO}
    executable = compiled(model, tensors(0, (2, 5, 24), (2, 9, 24)), (third, third))
    assert len(executable.manifest["kernels"]) == 2 * kernels(executable)
    for b, n, m in [(1, 1, 1), (2, 16, 3), (1, 3, 70), (3, 33, 16), (1, 0, 4), (2, 65, 7)]:
        inputs = tensors(n, (b, n, 24), (b, m, 24))
        with torch.no_grad():
            agrees(executable, model, inputs)


class Expansions(nn.Module):
    """Products joined with the depthwise convolutions that read them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = (Bottleneck(64, (3, 1, 1), nn.ReLU()) for _ in range(2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.first(x), self.second(y)


def test_two_fusions_in_one_kernel() -> None:
    model, dims = Expansions().eval(), {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}
    executable = compiled(model, tensors(0, (2, 9, 10, 12), (3, 9, 14, 11)), (dims, dims))
    (joined,) = (kernel for kernel in executable.explain().kernels if any(FUSED in note for note in kernel.notes))
    assert len(joined.launches) == 2 and len(executable.manifest["kernels"]) == 2 * kernels(executable)
    for a, b, c, d, e, f in [(1, 8, 8, 2, 30, 7), (2, 31, 17, 1, 8, 8), (1, 5, 9, 3, 14, 33)]:
        with torch.no_grad():
            agrees(executable, model, tensors(a, (a, 9, b, c), (d, 9, e, f)))


def region(random: np.random.Generator) -> Callable[..., torch.Tensor]:
    """A random function of two matrices of one shape and a vector along their rows."""
    unary = [torch.tanh, torch.exp, torch.relu, torch.neg, torch.sigmoid, torch.abs, lambda v: v * 0.5, lambda v: v.clamp(-1, 1)]
    binary = [torch.add, torch.sub, torch.mul, torch.maximum, lambda a, b: torch.where(a > b, a, b * 2)]
    wide = [
        lambda v: torch.softmax(v, -1),
        lambda v: v - v.mean(-1, keepdim=True),
        lambda v: v / (1 + v.square().sum(-1, keepdim=True)),
        lambda v: v.transpose(0, 1).contiguous().transpose(0, 1),
        lambda v: torch.cat([v, v * 2], -1)[:, : v.shape[1]],
        lambda v: v.flip(1),
        lambda v: v + v.sum(0),
    ]
    steps = [(int(random.integers(3)), int(random.integers(100)), int(random.integers(100))) for _ in range(int(random.integers(3, 6)))]

    def apply(a: torch.Tensor, b: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        values = [a, b, a + row]
        for kind, which, operand in steps:
            last, other = values[-1], values[operand % len(values)]
            made = (unary[which % len(unary)](last), binary[which % len(binary)](last, other), wide[which % len(wide)](last))[kind]
            values.append(made.clamp(-8, 8) if which % 3 == 0 else made)
        return values[-1].clamp(-50, 50)

    return apply


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_regions(seed: int) -> None:
    """One random region over two pairs of symbols: with the same facts it shares its kernels, with others it need not; never a wrong value."""
    random = np.random.default_rng(seed)
    apply, turned = region(random), bool(random.integers(2))

    def function(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b, row, c, d, other = inputs
        return apply(a, b, row), apply(*((d, c) if turned else (c, d)), other)

    matrix: list[dict[int, object]] = [dict(AUTO), dict(AUTO)]
    limits = int(random.integers(3))
    if limits:
        matrix[limits - 1] = {0: Dim.AUTO, 1: [8 * Dim("_m"), Dim("_m", min=2, max=48)][int(random.integers(2))]}
    dims = [each for side in matrix for each in (side, side, {0: side[1]})]
    executable = compiled(function, tensors(0, (3, 16), (3, 16), (16,), (4, 24), (4, 24), (24,)), tuple(dims))
    if not limits:
        assert 2 * kernels(executable) == len(executable.manifest["kernels"]), "equal facts on both sides"
    for n, m, k, j in [(2, 16, 3, 40), (5, 48, 1, 8), (7, 8, 4, 48)] + ([] if limits else [(1, 1, 3, 17), (3, 70, 2, 1), (0, 4, 1, 67)]):
        inputs = tensors(n, (n, m), (n, m), (m,), (k, j), (k, j), (j,))
        agrees(executable, function, inputs)
