"""Dims that torch.export took for constants: kept dynamic where a form of ours can, reported where not."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import disc
from disc.errors import ShapeConstraintError
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
