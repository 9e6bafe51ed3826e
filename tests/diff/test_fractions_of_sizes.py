"""Sizes times fractions: `int(0.3 * n)`, `F.interpolate(x, scale_factor=1.7)`; `int(...)` and `float(...)` of dynamic sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._sympy import functions as torch_sympy

import disc
from disc.errors import DiscError, ShapeConstraintError, UnsupportedOpError
from disc.frontend.computed_numbers import expression_of
from disc.frontend.symbols import to_size, to_text
from disc.shapes import parse_dim

SHAPES = [(1, 3, 7, 11), (2, 3, 5, 4), (0, 3, 9, 9), (2, 3, 13, 17), (1, 3, 10, 30), (1, 3, 20, 57)]


def _third(n: int) -> int:
    return int(n / 3)


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "nearest": lambda x: F.interpolate(x, scale_factor=1.7),
    "bilinear": lambda x: F.interpolate(x, scale_factor=(0.6, 1.1), mode="bilinear"),
    "recomputed": lambda x: F.interpolate(x, scale_factor=1.1, mode="bilinear", recompute_scale_factor=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=(2.5, 1.5), mode="bicubic", align_corners=True),
    "area": lambda x: F.interpolate(x, scale_factor=0.6, mode="area"),
    "one dim": lambda x: F.interpolate(x[:, :, 0], scale_factor=1.9),
    "sizes": lambda x: F.interpolate(x, size=(int(x.shape[2] * 0.3) + 1, int(x.shape[3] * 1.7))),
    "slices": lambda x: x[..., int(0.1 * x.shape[-1]) : int(0.9 * x.shape[-1])],
    "floor": lambda x: x[..., math.floor(x.shape[-1] * 0.6) :],
    "ceiling": lambda x: x[..., math.ceil(x.shape[-1] * 0.7) :],
    "quotients": lambda x: x[..., : int(x.shape[-1] // 1.5)] + int(x.shape[-1] / 3 * 2),
    "another function": lambda x: x[..., : _third(x.shape[-1])],
    "in a comprehension": lambda x: torch.stack([x * int(n * 0.2) for n in x.shape]),
    "made": lambda x: torch.zeros(int(x.shape[-1] * 0.37)) + torch.arange(int(x.shape[-1] * 0.37)) + x.sum(),
    "the most": lambda x: torch.topk(x, max(1, int(x.shape[-1] * 0.25)))[0],
    "integers": lambda x: x.reshape(int(x.shape[0]) * int(x.shape[1]), int(x.shape[2]) * int(x.shape[3])) + int(x.shape[3]),
    "floats": lambda x: x * float(x.shape[-1]) / float(x.numel() + 1) + float(x.shape[0] / 3),
    "other numbers": lambda x: x * int("3") + float("0.5") + int("11", base=2),
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_sizes(name: str) -> None:
    function = CASES[name]
    before = function.__code__
    executable = disc.compile(function, (torch.randn(2, 3, 10, 12),))
    assert function.__code__ is before
    for shape in SHAPES:
        x = torch.randn(shape)
        torch.testing.assert_close(executable(x), function(x), atol=1e-5, rtol=1e-5)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear"])
@pytest.mark.parametrize("through", ["compile", "torch.compile"])
def test_factors_that_leave_or_double_a_size(mode: str, through: str) -> None:
    """Eager's kernels of some modes then read by the sizes: 4 columns by 1.1 are 4, 5 by 2.1 are 10."""
    dims = {"linear": 1, "trilinear": 3}.get(mode, 2)

    def resize(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=(1.5, 2.1, 1.1)[-dims:] if dims != 2 else (2.1, 1.1), mode=mode)

    sizes = [(5, 4), (7, 4), (5, 12), (10, 2), (3, 30)]
    example = torch.randn(2, 3, *[9] * (dims - 2), *(7, 12)[-dims:])
    compiled = disc.compile(resize, (example,)) if through == "compile" else torch.compile(resize, backend="disc", dynamic=True)
    for size in sizes:
        x = torch.randn(2, 3, *[5] * (dims - 2), *size[-dims:])
        torch.testing.assert_close(compiled(x), resize(x), atol=1e-5, rtol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("scales", [(1.5, 1.5), (2.5, 1.0), (1.0, 3.0)])
def test_corners_of_single_elements(mode: str, scales: tuple[float, float]) -> None:
    def resize(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=scales, mode=mode, align_corners=True)

    executable = disc.compile(resize, (torch.randn(2, 3, 10, 12),))
    for shape in [(1, 3, 1, 1), (2, 3, 1, 7), (1, 3, 5, 1), (2, 3, 13, 17)]:
        x = torch.randn(shape)
        torch.testing.assert_close(executable(x), resize(x), atol=1e-5, rtol=1e-5)


def test_whole_parts_are_those_of_f64() -> None:
    """Of all hundredths, every product: an integer division, where that is the same for all sizes, and a computed number elsewhere."""
    n = sympy.Symbol("n", integer=True, positive=True)
    computed = 0
    for hundredths in range(1, 400):
        factor = hundredths / 100
        for kind, rounded in ((torch_sympy.FloorToInt, math.floor), (torch_sympy.TruncToInt, int), (torch_sympy.CeilToInt, math.ceil)):
            if not hundredths % 100:
                continue
            whole = sympy.sympify(kind(sympy.Float(factor) * torch_sympy.ToFloat(n)))
            dim = parse_dim(to_text(to_size(whole)))
            if expression_of(str(dim)) is not None:
                assert expression_of(str(dim)) == whole
                computed += 1
                continue
            expected = [rounded(factor * size) for size in range(1, 1100)]
            assert [dim.evaluate({"n": size}) for size in range(1, 1100)] == expected, (factor, kind)
    assert 0 < computed < 150


COMPUTED: dict[str, Callable[[Tensor], Tensor]] = {
    "a factor": lambda x: x[: int(0.7 * x.shape[0])] * 2,
    "two factors": lambda x: x[: int(0.7 * (x.shape[0] * 0.9))] * 2,
    "terms": lambda x: x[: math.ceil(x.shape[0] * 0.1 + x.shape[0] * 0.2)] * 2,
    "a divisor": lambda x: x[: int(x.shape[0] / 1.3)] * 2,
    "both": lambda x: x.new_zeros(math.floor(x.shape[0] / 49 * 49) + 1) + x.sum(),
    "nearest": lambda x: F.interpolate(x[None, None], scale_factor=0.7) if x.shape[0] > 1 else x,
    "bilinear": lambda x: F.interpolate(x[None], scale_factor=0.35, mode="linear") if x.shape[0] else x,
    "rounded": lambda x: x[: round(0.35 * x.shape[0])] * 2,
    "a root": lambda x: x[: int(math.sqrt(x.shape[0]))] * 2,
    "in a number": lambda x: x * int(0.7 * x.shape[0]) + math.ceil(x.shape[0] / 1.3),
    "twice": lambda x: x[int(0.1 * x.shape[0]) : int(0.7 * x.shape[0])].sum(0) + int(0.7 * x.shape[0]),
    "in a sum": lambda x: torch.cat([x[: int(0.7 * x.shape[0])], x[: int(0.29 * x.shape[0])]]) * 2,
    "of another": lambda x: x[: int(0.7 * int(0.7 * x.shape[0]))] * 2,
    "joined": lambda x: x[: int(0.7 * x.shape[0])] @ x[: int(0.7 * x.shape[0])].T,
}  # fmt: skip
SIZES = [*range(12), 13, 29, 89, 90, 91, 97, 100, 180, 200, 211]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", COMPUTED)
def test_sizes_computed_in_f64(name: str) -> None:
    """Every size, also those where the product falls below an integer: 0.7 * 90 is less than 63."""
    function = COMPUTED[name]
    _agrees(function, disc.compile(function, (torch.randn(20, 40),)), at_least=len(SIZES) - 4)


def _agrees(function: Callable[[Tensor], Tensor], executable: disc.Executable, at_least: int) -> None:
    """On all sizes that eager takes, but for a few that are refused; on `at_least` of them."""
    taken = 0
    for size in SIZES:
        x = torch.randn(size, 40)
        try:
            expected = function(x)
        except (RuntimeError, ZeroDivisionError, ValueError):
            with pytest.raises(DiscError):
                executable(x)
            continue
        try:
            found = executable(x)
        except ShapeConstraintError:
            continue
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        taken += 1
    assert taken >= at_least


Tree = float | tuple[str, "Tree", "Tree"] | None  # a number, an operation, or the size


def _random_tree(random: np.random.Generator, depth: int) -> Tree:
    if not depth:
        return None if random.integers(2) else int(random.integers(1, 300)) / 100
    sign = str(random.choice(["+", "-", "*", "/"]))
    return sign, _random_tree(random, depth - 1), int(random.integers(1, 300)) / 100 if sign == "/" else _random_tree(random, depth - 1)


def _value(tree: Tree, size: float) -> float:
    if not isinstance(tree, tuple):
        return size if tree is None else tree
    left, right = _value(tree[1], size), _value(tree[2], size)
    return {"+": lambda: left + right, "-": lambda: left - right, "*": lambda: left * right, "/": lambda: left / right}[tree[0]]()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(6))
def test_random_floats_of_sizes(seed: int) -> None:
    """Whole parts of sums, products and quotients in any order are Python's, all of them."""
    random = np.random.default_rng(seed)
    trees = [_random_tree(random, 3) for _ in range(8)]

    def wholes(x: Tensor) -> Tensor:
        floats = [_value(tree, x.shape[0]) for tree in trees]
        numbers = [int(each) for each in floats] + [math.floor(each) for each in floats]
        numbers += [math.ceil(each) for each in floats] + [round(each) for each in floats]
        return torch.stack([x.sum() * 0 + each for each in numbers])

    executable = disc.compile(wholes, (torch.randn(20, 3, dtype=torch.float64),))
    taken = 0
    for size in SIZES:
        x = torch.randn(size, 3, dtype=torch.float64)
        try:
            assert cast("Tensor", executable(x)).tolist() == wholes(x).tolist(), (trees, size)
            taken += 1
        except ShapeConstraintError:
            assert size < 2  # where one of the numbers is negative
    assert taken >= len(SIZES) - 2


DIVISORS = (0.1, 1.1, 0.3, 0.25, 1.5)
# A size, the float of a size, a divisor → a number. A size that is a divisor is not 0, so that Python computes it for every size.
DIVISIONS: dict[str, Callable[[int, float, float], float]] = {
    "//": lambda n, a, d: a // d,
    "%": lambda n, a, d: a % d,
    "quotient of divmod": lambda n, a, d: divmod(a, d)[0],
    "rest of divmod": lambda n, a, d: divmod(a, d)[1],
    "of the size": lambda n, a, d: n // d + n % d + divmod(n, d)[0],
    "by the size": lambda n, a, d: d // (n + 1) + d % (n + 1) + divmod(d, n + 1)[1],
    "by a float": lambda n, a, d: d // (n * 1.0 + 1) + n // (n * 0.5 + 1) + 7 % (n * 1.0 + 1),
    "of two floats": lambda n, a, d: a // (n * d + 1) + a % (n * d + 1),
    "negative": lambda n, a, d: (1 - a) // d + (1 - a) % d + a // -d + a % -d,
    "floor": lambda n, a, d: math.floor(a / d),
    "is_integer": lambda n, a, d: 3 if (a / d).is_integer() else 4,
    "of a quotient": lambda n, a, d: (n / 4) // d + (n / 3) % d,
}  # fmt: skip
USES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "data": lambda x, number: x * number,
    "size": lambda x, number: x.new_zeros(abs(int(number * 100))) + x.sum(),
    "branch": lambda x, number: x * 2 if number >= 1 else x * 3,
    "equality": lambda x, number: x * 2 if number == 0 else x * 3,
}  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", DIVISIONS)
def test_divisions_of_floats(name: str, seed: int) -> None:
    """Python's, also at multiples of the divisor, where the quotient is rounded up to the next integer (1.0 // 0.1 == 9.0), or refused with
    the line."""
    random = np.random.default_rng(seed)
    division, use = DIVISIONS[name], USES[list(USES)[seed]]
    for divisor in DIVISORS:
        factor = float(random.choice([1.0, 0.5, 0.3, divisor]))
        _agrees_or_is_refused(lambda x, d=divisor, f=factor: use(x, division(x.shape[0], x.shape[0] * f, d)), (name, factor, divisor))


def _agrees_or_is_refused(function: Callable[[Tensor], Tensor], what: object) -> None:
    try:
        executable = disc.compile(function, (torch.ones(20, dtype=torch.float64),))
    except UnsupportedOpError as error:
        assert all("test_fractions_of_sizes.py:" in each.location for each in error.ops), str(error)
        return
    for size in (2, 3, 4, 9, 10, 11, 12, 20, 22, 33, 100, 110):
        x = torch.ones(size, dtype=torch.float64)
        try:
            found = cast("Tensor", executable(x))
        except ShapeConstraintError:  # of the other branch
            continue
        torch.testing.assert_close(found, function(x), atol=0, rtol=0, msg=lambda text, size=size: f"{what} of {size}: {text}")


EXACT_DIVISIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "//": lambda x: x.new_zeros(int((x.shape[0] * 0.5) // 0.25)) + x.sum(),
    "of a size": lambda x: x.new_zeros(int(x.shape[0] // 1.5)) + x.shape[0] % 1.5,
    "of a quotient": lambda x: x * ((x.shape[0] / 2) // 0.75),
    "%": lambda x: x * ((x.shape[0] * 0.25) % 1.0) + (7.5 - x.shape[0]) % 1.25 + (7.5 - x.shape[0]) % -2,
    "divmod": lambda x: x * divmod(x.shape[0], 2.5)[0] + divmod(100.5, x.shape[0] + 1)[1] + divmod(x.shape[0], 3)[1],
    "a branch": lambda x: x * 2 if (x.shape[0] * 0.25) % 1.0 < 2 else x * 3,
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT_DIVISIONS)
def test_divisions_that_no_step_rounds(name: str) -> None:
    function = EXACT_DIVISIONS[name]
    _agrees(function, disc.compile(function, (torch.randn(20, 40),)), at_least=len(SIZES) - 2)


@pytest.mark.parametrize("sign", ["//", "%"])
def test_rounded_divisions_are_refused(sign: str) -> None:
    def divide(x: Tensor) -> Tensor:
        n = x.shape[0] * 1.0
        return x * (n // 0.1 if sign == "//" else n % 0.1)

    with pytest.raises(UnsupportedOpError, match=rf"{sign} of floats of sizes at test_fractions_of_sizes.py:\d+: "):
        disc.compile(divide, (torch.ones(12),))


@pytest.mark.filterwarnings("ignore:disc leaves a graph")
@pytest.mark.parametrize("name", ["//", "%", "of the size", "by a float"])
@pytest.mark.parametrize("use", ["data", "size"])
def test_divisions_through_torch_compile(name: str, use: str) -> None:
    for divisor in (0.1, 0.25):

        def divide(x: Tensor, divisor: float = divisor) -> Tensor:
            return USES[use](x, DIVISIONS[name](x.shape[0], x.shape[0] * 1.0, divisor))

        torch.compiler.reset()
        compiled = torch.compile(divide, backend="disc", dynamic=True)
        for size in (10, 11, 12):
            x = torch.ones(size, dtype=torch.float64)
            torch.testing.assert_close(compiled(x), divide(x), atol=0, rtol=0)


class _Rest(torch.nn.Module):
    def __init__(self, use: str) -> None:
        super().__init__()
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        if self.use == "is_integer":
            return x * 2 if (x.shape[0] * 0.1).is_integer() else x * 3
        return USES[self.use](x, (x.shape[0] * 0.25) % 1.5)


@pytest.mark.parametrize("use", [*USES, "is_integer"])
def test_rests_of_floats_in_exported_programs(use: str) -> None:
    """PyTorch's own trace, which says that the rest is an integer."""
    model = _Rest(use)
    program = torch.export.export(
        model,
        (torch.ones(13),),
        dynamic_shapes={"x": {0: torch.export.Dim("n", min=2, max=4000)}},
        prefer_deferred_runtime_asserts_over_guards=True,
    )
    try:
        executable = disc.compile(program)
    except UnsupportedOpError:
        return
    for size in (13, 14, 19):
        x = torch.ones(size)
        try:
            found = cast("Tensor", executable(x))
        except ShapeConstraintError:
            continue
        torch.testing.assert_close(found, model(x))


def test_branches_on_floats_are_checked() -> None:
    def branch(x: Tensor) -> Tensor:
        return x + 1 if 0.7 * (x.shape[0] * 0.9) >= 63 else x - 1

    executable = disc.compile(branch, (torch.randn(20, 3),))
    for size in (2, 3, 99, 100):
        x = torch.randn(size, 3)
        torch.testing.assert_close(executable(x), x - 1)
    with pytest.raises(ShapeConstraintError, match=r"dim 0 of input 'x'.* must be at most 0 \(decided at test_fractions_of_sizes.py:\d+"):
        executable(torch.randn(101, 3))


def test_a_quotient_that_is_multiplied_is_rounded_twice() -> None:
    """49 * (1 / 49) is less than 1."""

    def branch(x: Tensor) -> Tensor:
        return x + 1 if x.shape[0] / 49 * 49 == x.shape[0] else x - 1

    executable, taken = disc.compile(branch, (torch.randn(20, 3),)), 0
    for size in range(2, 60):
        x = torch.randn(size, 3)
        try:
            torch.testing.assert_close(executable(x), branch(x))
            taken += 1
        except ShapeConstraintError:
            assert (size / 49 * 49 == size) != (20 / 49 * 49 == 20)
    assert taken > 20


def test_a_whole_part_that_no_call_has_is_refused() -> None:
    executable = disc.compile(lambda x: x * int(7.7 / (x.shape[0] - 3)), (torch.randn(20, 3),))
    torch.testing.assert_close(executable(torch.ones(6, 3)), torch.full((6, 3), 2.0))
    with pytest.raises(ShapeConstraintError):
        executable(torch.ones(3, 3))


class _ToldApart(torch.nn.Module):
    """Looks at what `int` gives as Python does at plain numbers."""

    def forward(self, x: Tensor) -> Tensor:
        rows = int(x.shape[0])
        if isinstance(rows, int) and isinstance(x.shape[1], int):
            x = x + 1
        if type(rows) is int and type(float(x.shape[1])) is float:
            x = x * 2
        return x * rows


class _AsText(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if f"{int(x.shape[0])}" == "4" else x


class _AsKey(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * {int(x.shape[0]): 3}[4] + int(x.shape[0]).bit_length()


def _in_a_branch(x: Tensor) -> Tensor:
    def many(a: Tensor) -> Tensor:
        return a * int(a.shape[0]) + float(a.shape[1]) if isinstance(a, Tensor) else a

    return torch.cond(x.sum() > 0, many, lambda a: a - int(a.shape[1] * 0.5), (x,))


@pytest.mark.parametrize("model", [_ToldApart(), _in_a_branch])
def test_numbers_that_stay_dynamic(model: Callable[[Tensor], Tensor]) -> None:
    executable = disc.compile(model, (torch.randn(4, 6),))
    for shape in [(4, 6), (3, 5), (1, 1), (9, 2)]:
        for x in (torch.randn(shape).abs(), -torch.randn(shape).abs()):
            torch.testing.assert_close(executable(x), model(x))


@pytest.mark.parametrize("model", [_AsText(), _AsKey()])
def test_numbers_that_must_be_plain_fix_the_dim(model: torch.nn.Module) -> None:
    executable, x = disc.compile(model, (torch.randn(4, 6),)), torch.randn(4, 5)
    torch.testing.assert_close(executable(x), model(x))
    with pytest.raises(ShapeConstraintError, match="dim 0 must be 4, got 3"):
        executable(torch.randn(3, 5))
