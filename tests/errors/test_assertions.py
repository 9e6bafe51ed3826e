"""Assertions on values are checked in every call: with the program's message and line, and under torch.compile as eager raises them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import config as dynamo_config
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import disc
from disc.errors import DiscWarning, ShapeConstraintError
from disc.frontend import dynamo

GOOD, BAD = torch.rand(3, 4) + 0.1, -torch.rand(3, 4) - 1


def a_tensor(x: Tensor) -> Tensor:
    torch._assert_async((x > 0).all())  # pyright: ignore[reportPrivateImportUsage]
    return x * 2


def a_message(x: Tensor) -> Tensor:
    torch._assert_async((x > 0).all(), "x must be {positive}")  # pyright: ignore[reportPrivateImportUsage]
    return x[x > 5]


def a_float(x: Tensor) -> Tensor:
    total: Any = x.sum().item()
    torch._check(total > 0)
    return x * total


def several(x: Tensor) -> Tensor:
    least: Any = x.min().item()
    torch._check(least > -1e9)
    torch._check_value(least >= -0.5)
    torch._check(least < 7, lambda: "below 7")
    return x + 1


CASES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "a tensor": (a_tensor, "the assertion does not hold"),
    "a message": (a_message, r"the assertion 'x must be \{positive\}' does not hold"),
    "a float": (a_float, "the assertion does not hold"),
    "several": (several, "the assertion does not hold"),
}


def _inputs(name: str) -> tuple[list[Tensor], list[Tensor]]:
    """That are taken, and that are refused: a NaN is above and below nothing."""
    bad = [BAD, BAD[:1]] if name != "several" else [3 * BAD, GOOD + 9]
    return [GOOD, torch.rand(1, 4) + 0.1, torch.rand(7, 4) + 0.1], [*bad, torch.full((2, 4), torch.nan)]


@pytest.mark.parametrize("name", CASES)
def test_a_program_refuses_the_call(name: str) -> None:
    function, message = CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", DiscWarning)
        executable = disc.compile(function, (torch.rand(5, 4) + 0.1,), options=disc.Options(cache=False))
    good, bad = _inputs(name)
    for x in good:
        torch.testing.assert_close(executable(x), function(x))
    for x in bad:
        with pytest.raises((RuntimeError, ValueError)):
            function(x)
        with pytest.raises(ShapeConstraintError, match=message + r": its value at test_assertions\.py:\d+ is 0"):
            executable(x)
    torch.testing.assert_close(executable(good[0]), function(good[0]))


@pytest.mark.parametrize("name", CASES)
def test_under_torch_compile_the_error_is_eagers(name: str) -> None:
    function = CASES[name][0]
    torch._dynamo.reset()
    dynamo.reset_statistics()
    with dynamo_config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", DiscWarning)
        compiled = torch.compile(function, backend="disc", dynamic=True, fullgraph=True)
        good, bad = _inputs(name)
        for x in good:
            torch.testing.assert_close(compiled(x), function(x))
        assert not dynamo.statistics().refused_calls and not dynamo.statistics().eager
        for x in bad:
            with pytest.raises((RuntimeError, ValueError)):
                compiled(x)


def _in_a_branch(x: Tensor) -> Tensor:
    def above(y: Tensor) -> Tensor:
        torch._assert_async((y > -5).all(), "above {-5}")  # pyright: ignore[reportPrivateImportUsage]
        return y * 2

    def below(y: Tensor) -> Tensor:
        torch._assert_async((y < 5).all(), "below 5")  # pyright: ignore[reportPrivateImportUsage]
        return y - 1

    return torch.cond(x.sum() > 0, above, below, (x,))


def _in_a_loop(x: Tensor) -> Tensor:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        torch._assert_async(y.max() < 100, "small")  # pyright: ignore[reportPrivateImportUsage]
        return i + 1, y * 2

    return while_loop(lambda i, y: i < 5, body, (torch.zeros((), dtype=torch.int64), x))[1]


def _in_a_scan(x: Tensor) -> Tensor:
    def step(carried: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        torch._assert_async((carried >= 0).all(), "no debt")  # pyright: ignore[reportPrivateImportUsage]
        return carried + row, carried * 2

    return scan(step, x[0] * 0, x)[1]


WITHIN: dict[str, tuple[Callable[[Tensor], Tensor], list[Tensor], dict[str, Tensor]]] = {
    "a branch": (
        _in_a_branch,
        [torch.rand(3, 4), -torch.rand(5, 4), torch.full((1, 4), 7.0), torch.full((1, 4), -7.0)],
        {"'above {-5}'": torch.tensor([[9.0, -6, 1, 1]]), "'below 5'": torch.tensor([[-9.0, 6, -9, -9]])},
    ),
    "a loop": (_in_a_loop, [torch.ones(3, 4), torch.ones(1, 4) * 6], {"'small'": torch.full((2, 4), 7.0)}),
    "a scan": (_in_a_scan, [torch.rand(6, 4), torch.rand(1, 4), -torch.rand(1, 4)], {"'no debt'": -torch.rand(2, 4)}),
}


@pytest.mark.parametrize("name", WITHIN)
def test_of_what_control_flow_runs(name: str) -> None:
    """Where a branch is taken, in the iteration that meets a value."""
    function, good, bad = WITHIN[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", DiscWarning)
        executable = disc.compile(function, (torch.rand(6, 4) + 0.1,), options=disc.Options(cache=False))
    for x in good:
        torch.testing.assert_close(executable(x), function(x))
    for words, x in bad.items():
        with pytest.raises(RuntimeError):
            function(x)
        with pytest.raises(ShapeConstraintError, match=re.escape(words) + r" does not hold.* at test_assertions\.py:\d+"):
            executable(x)
    torch.testing.assert_close(executable(good[0]), function(good[0]))


def test_a_value_beside_a_size_is_named() -> None:
    """An export of PyTorch keeps no such assertion."""

    def function(x: Tensor) -> Tensor:
        least: Any = x.min().item()
        torch._check(least >= -0.5 * x.shape[0])
        return x + 1

    with pytest.warns(DiscWarning, match=r"an assertion that .* \(0 <= zuf0 \+ .* is dropped"):
        disc.compile(function, (torch.rand(5, 4),), options=disc.Options(cache=False))
