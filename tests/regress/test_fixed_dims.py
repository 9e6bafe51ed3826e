"""Dims that torch.export took for constants: kept dynamic where a form of ours can, reported where not."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import disc
from disc.errors import DiscWarning, ShapeConstraintError
from disc.frontend.exported import export_module
from disc.frontend.locations import user_line

WEIGHT = torch.randn(6, 4)


class Calls(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x)


class Takes(nn.Module):
    def forward(self, x: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.take_along_dim(x, indices, 1), x.take_along_dim(indices.reshape(-1))


@pytest.mark.parametrize(
    "pool", [nn.MaxPool1d(2), nn.MaxPool1d(3, 2, padding=1), nn.MaxPool1d(3, 1, dilation=2), nn.MaxPool1d((2,), ceil_mode=True)]
)
def test_max_pool_1d_keeps_the_length_dynamic(pool: nn.Module) -> None:
    executable = disc.compile(pool, (torch.randn(2, 3, 8),), options=disc.Options(cache=False))
    for size in ((1, 1, 9), (2, 5, 16), (3, 7, 7)):
        x = torch.randn(size)
        torch.testing.assert_close(executable(x), pool(x))


def test_take_along_dim_keeps_the_sizes_dynamic() -> None:
    example = (torch.randn(3, 4), torch.randint(0, 4, (3, 2)))
    executable = disc.compile(Takes(), example, options=disc.Options(cache=False))
    for rows, columns, count in ((2, 5, 3), (7, 3, 1), (1, 6, 6)):
        x, indices = torch.randn(rows, columns), torch.randint(0, columns, (rows, count))
        torch.testing.assert_close(executable(x, indices), Takes()(x, indices))


class Spans(nn.Module):
    """Sizes in tensors as bounds, as DeBERTa has them."""

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, ...]:
        span = torch.tensor(min(x.shape[0], 6))
        rows = table[8 - span : span + 8, :]
        moved = torch.clamp(x + span, 0, span * 2 - 1)  # pyright: ignore[reportCallIssue, reportArgumentType]
        limited = x.clamp(span, max=9)  # pyright: ignore[reportCallIssue, reportArgumentType]
        return rows, moved, limited, x[: span.item()], x * span


def test_a_size_in_a_tensor_is_a_bound() -> None:
    table = torch.randn(16, 3)
    executable = disc.compile(Spans(), (torch.arange(5), table), ({0: Dim.AUTO}, None), options=disc.Options(cache=False))
    for length in (1, 2, 5, 6, 7, 20):
        x = torch.arange(length) - length // 2
        torch.testing.assert_close(executable(x, table), Spans()(x, table))


def test_roots_of_sizes_fix_none() -> None:
    """Python's own `math.sqrt` reads a size as the example's; the roots here are those of each call."""

    def function(x: torch.Tensor) -> tuple[object, ...]:
        rows, columns = x.shape
        side = int(math.sqrt(columns))
        return (
            x / math.sqrt(columns) + math.sqrt(rows * columns + 1),
            x * rows**0.5,
            math.sqrt(2) * x,
            x.sum() if side == 3 else x.sum() + 1,
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        executable = disc.compile(Calls(function), (torch.randn(4, 10),), options=disc.Options(cache=False))
    for shape in ((4, 10), (1, 9), (7, 15), (30, 12)):
        x = torch.randn(shape)
        torch.testing.assert_close(executable(x), function(x))
    with pytest.raises(ShapeConstraintError):
        executable(torch.randn(4, 16))  # whose root is 4
    assert math.sqrt.__module__ == "math"
    with pytest.warns(UserWarning, match="dim 1 of input 'x' is fixed to 10"):
        export_module(Calls(lambda x: x * math.ceil(math.log(x.shape[1]))), (torch.randn(4, 10),))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: x.unflatten(1, (3, 2)), "dim 1 of input 'x' is fixed to 6 by unflatten .*test_fixed_dims.py:"),
        (lambda x: x + 1 if x.shape[1] == 6 else x, "dim 1 of input 'x' is fixed to 6 by a condition in Python"),
        (lambda x: (x @ x.t()).unflatten(1, (2, 2)), "dim 0 of input 'x' is fixed to 4 by unflatten"),
        # Both dims have one size, and each is fixed by another op; a weight of that size fixes neither.
        (lambda x: (x @ WEIGHT).unflatten(0, (2, 2)), "dim 0 of input 'x' is fixed to 4 by unflatten"),
        (lambda x: F.relu(x.unflatten(1, (3, 2))) + x[:, 0].unflatten(0, (2, 2)).sum(), "dim 0 of input 'x' is fixed to 4 by unflatten"),
    ],
)
def test_a_fixed_dim_is_reported(function: Callable[..., object], text: str) -> None:
    with pytest.warns(UserWarning, match=text):
        export_module(Calls(function), (torch.randn(4, 6),))


def test_dims_of_one_size_are_told_apart() -> None:
    """Dim 0 is fixed by a condition, dim 1 by an op further on."""
    function = Calls(lambda x: (x + 1 if x.shape[0] == 6 else x).unflatten(1, (3, 2)))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        export_module(function, (torch.randn(6, 6),))
    texts = [str(each.message) for each in found if "is fixed to 6" in str(each.message)]
    assert len(texts) == 2
    assert texts[0].startswith("dim 0 of input 'x' is fixed to 6 by a condition") and texts[1].startswith(
        "dim 1 of input 'x' is fixed to 6 by unfl"
    )


def test_a_line_of_pytorchs_own_is_no_line_of_the_user() -> None:
    """PyTorch calls what it traces in a lambda whose file is "<string>"."""
    trace = 'File "model.py", line 7, in forward\n  File "<string>", line 1, in <lambda>\n'
    assert user_line(trace + f'  File "{torch.__file__}", line 3, in inner\n') == ("model.py", 7)
    assert user_line('File "<string>", line 3, in <module>\n') == ("<string>", 3)  # python -c


class Checked(nn.Module):
    """As the image models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.shape[1] != self.embed.in_channels:
            raise ValueError("the images have other channels than the model")
        return self.embed(images)


def test_what_a_weight_fixes_is_not() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export_module(nn.Conv2d(3, 4, 3), (torch.randn(2, 3, 6, 6),))
        for layer in (nn.LSTM, nn.GRU, nn.RNN):  # which check their inputs before they use them, as models do
            export_module(layer(5, 4, batch_first=True), (torch.randn(2, 7, 5),))
        export_module(Checked(), (torch.randn(2, 3, 6, 6),))
        export_module(nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4)), (torch.randn(2, 7, 5),))
        export_module(Calls(lambda x: F.max_pool2d(x, 2)), (torch.randn(2, 3, 6, 6),))
        export_module(Calls(lambda x: F.linear(x.flatten(1), torch.ones(5, 18))), (torch.randn(2, 3, 6),), ({0: Dim.AUTO, 2: Dim.AUTO},))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.from_numpy(np.zeros((len(x), 1), np.float32) + 1),
        lambda x: x + torch.tensor([0.5] * x.shape[0])[:, None],
        lambda x: x * torch.from_numpy(np.arange(len(x)))[:, None],
        lambda x: x * torch.from_numpy(np.arange(x.shape[0]).astype(np.float32))[:, None],
        lambda x: x * torch.tensor(list(range(x.shape[0])))[:, None],
        lambda x: x.sum(0) + sum(float(i) for i in range(x.size(0))),
        lambda x: x.sum(0) * float(np.arange(x.shape[0]).mean()),
        lambda x: x * torch.as_tensor(np.linspace(0, 1, x.shape[0], dtype=np.float32))[:, None],
        lambda x: x * torch.from_numpy(np.hanning(x.shape[0]).astype(np.float32))[:, None],
        lambda x: x * np.float32(x.shape[0]),
        lambda x: x + torch.FloatTensor([0.0] * x.shape[0])[:, None],
        lambda x: x.sum(0) + torch.tensor(np.array([x.shape[0]], dtype=np.float32)),
    ],
)
def test_a_size_that_python_or_numpy_takes_for_a_number_is_reported_and_checked(function: Callable[..., object]) -> None:
    place = rf"fixed (to 5 )?by code at test_fixed_dims.py:{function.__code__.co_firstlineno} that takes it for a plain number"
    with pytest.warns(DiscWarning, match=f"dim 0 of input 'x' is {place}") as found:
        executable = disc.compile(Calls(function), (torch.randn(5, 6),), options=disc.Options(cache=False))
    assert len(found) == 1
    for columns in (6, 9, 1):
        x = torch.randn(5, columns)
        torch.testing.assert_close(executable(x), function(x))
    assert "fixed  dim 0 of input 'x' is fixed to 5 by code at" in str(executable.explain())
    for rows in (7, 1):
        with pytest.raises(ShapeConstraintError, match=rf"dim 0 must be 5, got {rows} \({place}"):
            executable(torch.randn(rows, 6))


class Scaled(nn.Module):
    """A size that code takes for a number, and a weight has, too."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + sum(range(x.shape[1]))


def test_what_a_weight_fixes_is_not_reported() -> None:
    model = Scaled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        executable = disc.compile(model, (torch.randn(5, 6),), options=disc.Options(cache=False))
    x = torch.randn(3, 6)
    torch.testing.assert_close(executable(x), model(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x.t() / np.sqrt(x.size(-1)),
        lambda x: x * float(np.sqrt(x.shape[0])),
        lambda x: x * (1 / np.log(x.size(0) + 1)) + np.exp(-x.shape[1]),
        lambda x: x * np.prod(x.shape),
        lambda x: x + np.ceil(x.shape[0] / 3) + np.floor(np.sqrt(x.shape[1])),
    ],
)
def test_functions_of_numpy_keep_sizes_dynamic(function: Callable[..., torch.Tensor]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        executable = disc.compile(Calls(function), (torch.randn(5, 6),), options=disc.Options(cache=False))
    for shape in ((5, 6), (1, 6), (7, 1), (12, 13)):
        x = torch.randn(shape)
        torch.testing.assert_close(executable(x), function(x), check_dtype=False)
    assert not hasattr(torch.SymInt, "sqrt")
