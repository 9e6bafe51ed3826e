"""Programs as long as users write them compile under Python's own recursion limit, from deep inside the user's code too."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import nn

import disc
from disc.errors import ShapeConstraintError, StackError
from disc.shapes import Dim, ShapeEnv, dim_max, parse_dim
from disc.shapes.recursion import Recursive, run_recursive

T = TypeVar("T")
Tensor = torch.Tensor
ROOT = Path(__file__).parents[2]
OPTIONS = disc.Options(cache=False, threads=1)
FRAMES = 700  # of the user's, of Python's 1,000


class Program(nn.Module):
    def __init__(self, function: Callable[..., Tensor], *inner: nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, nn.ModuleList(inner)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*self.inner, *inputs)


def deep_inside(frames: int, function: Callable[[], T]) -> T:
    return function() if frames <= 0 else deep_inside(frames - 1, function)


def check(model: nn.Module, *calls: tuple[Tensor, ...]) -> None:
    """Compiles for the first call's inputs, and compares all with eager."""
    limit = sys.getrecursionlimit()
    executable = deep_inside(FRAMES, lambda: disc.compile(model.eval(), calls[0], options=OPTIONS))
    assert sys.getrecursionlimit() == limit
    for inputs in calls:
        with torch.no_grad():
            torch.testing.assert_close(executable(*inputs), model(*inputs))


def repeated(times: int, step: Callable[..., Tensor]) -> Program:
    def function(x: Tensor, *others: Tensor) -> Tensor:
        y = x
        for number in range(times):
            y = step(y, x, number, *others)
        return y

    return Program(function)


def test_nothing_sets_the_recursion_limit() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in [*(ROOT / "disc").rglob("*.py"), *(ROOT / "tests" / "fuzz").rglob("*.py")]
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr == "setrecursionlimit")
        or (isinstance(node, ast.alias) and node.name == "setrecursionlimit")
    ]
    assert not found


@pytest.mark.parametrize("kind", ["one kernel", "many kernels"])
def test_additions(kind: str, tmp_path: Path) -> None:
    """The largest kernel has 256 ops."""
    count = 250 if kind == "one kernel" else 800
    lines = [f"%{number + 1} = stablehlo.add %{number}, %x : tensor<?xf32>" for number in range(count)]
    text = "\n".join(["func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {", "%0 = stablehlo.abs %x : tensor<?xf32>", *lines,
                      f"return %{count} : tensor<?xf32>", "}"])  # fmt: skip
    path = tmp_path / "additions.mlir"
    path.write_text(text)
    executable = deep_inside(FRAMES, lambda: disc.compile(path, options=OPTIONS))
    x = np.arange(-5, 6, dtype=np.float32)
    np.testing.assert_array_equal(np.asarray(executable(x)), np.abs(x) + count * x)


def test_terms_of_a_sum() -> None:
    check(Program(lambda x: sum((x * float(number) for number in range(40)), x)), (torch.randn(3, 5),), (torch.randn(1, 2),))


def test_layers() -> None:
    torch.manual_seed(0)
    check(nn.Sequential(*(each for _ in range(30) for each in (nn.Linear(4, 4), nn.ReLU()))), (torch.randn(3, 4),))


def test_softmaxes() -> None:
    check(repeated(8, lambda y, x, number: torch.softmax(y, -1) * 2.0), (torch.randn(3, 5),), (torch.randn(2, 40),))


def test_recurrence() -> None:
    torch.manual_seed(0)

    def function(cell: nn.Module, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 4)
        for _ in range(20):
            state = cell(x, state)
        return state

    check(Program(function, nn.RNNCell(3, 4)), (torch.randn(2, 3),), (torch.randn(5, 3),))


def test_concatenations_and_padding() -> None:
    check(repeated(12, lambda y, x, number: torch.cat([y, x * 2.0])), (torch.randn(3, 2),), (torch.randn(4, 5),))
    check(repeated(30, lambda y, x, number: nn.functional.pad(y, (1, -1)) + x), (torch.randn(3, 5),))


def test_gathers() -> None:
    index = torch.tensor([1, 2, 3, 0])
    check(repeated(30, lambda y, x, number, index: y[index] + 1.0), (torch.randn(4, 3), index))


def test_conditions() -> None:
    """Of which PyTorch builds the masks of attention."""
    check(Program(lambda x: repeated(60, lambda y, x, number: y & (x < number))(x) & (x > 0)), (torch.arange(-3, 9).reshape(3, 4),))


@pytest.mark.parametrize("between", ["nothing", "an addition"])
def test_reshapes_across_rows(between: str) -> None:
    """Each divided what the one before had divided: behind 5 of them the numbers left 64 bits, and memory that is not ours was read."""

    def step(y: Tensor, x: Tensor, number: int) -> Tensor:
        moved = y.transpose(0, 1).reshape(x.shape[0], x.shape[1])
        return moved if between == "nothing" else moved + 1.0

    wide = torch.arange(2999 * 3000, dtype=torch.float32).reshape(2999, 3000)
    check(repeated(7, step), (torch.randn(4, 5),), (wide,))
    check(repeated(20, step), (torch.randn(4, 5),), (torch.randn(7, 12),), (torch.randn(99, 100),))


# --- sizes ------------------------------------------------------------------------------------------------------------------------


def nested(depth: int) -> tuple[Dim, int]:
    """An expression that nests, and its value for S0 = 10."""
    dim, value = Dim.symbol("S0"), 10
    for _ in range(depth):
        dim, value = (dim * 3 + 1) // 2, (value * 3 + 1) // 2
    return dim, value


def test_sizes_that_nest() -> None:
    def work() -> None:
        dim, value = nested(400)
        assert dim.symbols() == ("S0",)
        assert dim.evaluate({"S0": 10}) == value
        assert dim.replace({"S0": 10}) == value
        assert parse_dim(str(dim)) == dim
        assert dim.replace({"S0": Dim.symbol("S1")}).replace({"S1": Dim.symbol("S0")}) == dim
        assert parse_dim("(" * 400 + "S0" + ")" * 400) == Dim.symbol("S0")

    deep_inside(FRAMES, work)


def test_an_environment_with_sizes_that_nest() -> None:
    def work() -> None:
        env = ShapeEnv()
        env.symbol("S0", lo=1)
        dim, _ = nested(60)
        assert env.simplify(dim * 2 - dim) == dim
        assert env.range(dim)[0] is not None

    deep_inside(FRAMES, work)


def test_a_size_that_every_step_doubles_is_refused() -> None:
    """Its text filled the memory."""
    dim = Dim.symbol("S0")
    with pytest.raises(ShapeConstraintError, match="more than 1048576 characters"):
        for number in range(100):
            dim = (dim * 3 + 1) // 2 if number % 2 else (dim + 7) % 1000


def test_a_maximum_of_many() -> None:
    total = Dim.symbol("S0")
    for number in range(1, 60):
        total = dim_max(total, Dim.symbol(f"S{number}") * 2)
    assert deep_inside(FRAMES, lambda: total.evaluate({f"S{number}": number for number in range(60)})) == 118


# --- what is left -----------------------------------------------------------------------------------------------------------------


def test_too_little_stack_is_an_error_with_a_name() -> None:
    model, limit, compiled = repeated(3, lambda y, x, number: y + x), sys.getrecursionlimit(), disc.compile
    with pytest.raises(StackError, match=rf"Python's limit is {limit} frames, and disc was called with \d+ in use") as error:
        deep_inside(limit - 90, lambda: compiled(model, (torch.randn(3),), options=OPTIONS))
    used = re.search(r"with (\d+) in use", str(error.value))
    assert used is not None and limit - 90 <= int(used[1]) <= limit


def test_recursion_with_a_stack_of_its_own() -> None:
    def count(number: int) -> Recursive[int]:
        return 0 if number == 0 else 1 + (yield count(number - 1))

    def fails(number: int) -> Recursive[int]:
        if number == 0:
            raise ValueError("at the end")
        try:
            return (yield fails(number - 1))
        finally:
            left.append(number)

    assert run_recursive(count(5000)) == 5000
    left: list[int] = []
    with pytest.raises(ValueError, match="at the end"):
        run_recursive(fails(5000))
    assert left == list(range(1, 5001))
