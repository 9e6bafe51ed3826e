"""F_max: a kernel reads no more inputs than the device's limit (paper 004 §2.2), whatever pass made it, and results are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import disc
from disc.api import compile_imported
from disc.frontend.models import import_model
from disc.ir.dialect import make_context
from disc.speculation.session import open_session
from disc.targets.thresholds import InputLimits

SIZES = (0, 1, 2, 7, 64)
WIDTH = 24


class OfMany(nn.Module):
    """`function` of all inputs."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def total(*inputs: Tensor) -> Tensor:
    return sum(inputs[1:], inputs[0])


def normalized(*inputs: Tensor) -> Tensor:
    return F.softmax(F.layer_norm(total(*inputs[:-1]), (WIDTH,)) * inputs[-1], -1)


def product(a: Tensor, b: Tensor, *others: Tensor) -> Tensor:
    return total(a @ b.T, *(each @ each.T for each in others[:1]), *(each[:, :1] for each in others))


def attention(*inputs: Tensor) -> Tensor:
    q, k, v, *biases = (each.reshape(-1, 2, WIDTH // 2).transpose(0, 1) for each in inputs)
    scores = q @ k.transpose(1, 2) * 0.3 + total(*(bias[..., :1] for bias in biases))
    return F.softmax(scores, -1) @ v


# function, inputs, and for each limit the kinds of the kernels
PROGRAMS: dict[str, tuple[Callable[..., Tensor], int, dict[int, str]]] = {
    "sum": (total, 9, {2: "loop " * 8, 3: "loop " * 4, 4: "loop " * 3, 12: "loop "}),
    "rows": (normalized, 6, {3: "loop stitch stitch ", 12: "stitch "}),
    "epilogue": (product, 5, {3: "compute compute loop ", 12: "compute compute "}),
    "attention": (attention, 6, {4: "compute stitch compute ", 12: "attention "}),
}


def compiled(function: Callable[..., Tensor], example: tuple[Tensor, ...], most: int) -> disc.Executable:
    """With another limit than the target's."""
    session = open_session("native", disc.Options(cache=False, threads=1))
    session = replace(session, targets=tuple(target.reading(InputLimits(most, most, most, most)) for target in session.targets))
    shapes = {"inputs": tuple({0: torch.export.Dim.AUTO} for _ in example)}
    return compile_imported(import_model(OfMany(function), example, shapes, make_context()), session)


@pytest.mark.parametrize(("name", "most"), [(name, most) for name, (_, _, kinds) in PROGRAMS.items() for most in kinds])
def test_no_kernel_reads_more(name: str, most: int) -> None:
    function, count, kinds = PROGRAMS[name]
    exe = compiled(function, tuple(torch.randn(5, WIDTH) for _ in range(count)), most)
    kernels = exe.manifest["kernels"]
    assert "".join(f"{kernel['kind']} " for kernel in kernels) == kinds[most]
    for kernel in kernels:
        inputs = {operand for operand, kind in zip(kernel["operands"], kernel["inputs"], strict=True) if "[" in kind}  # pyright: ignore[reportArgumentType]
        assert len(inputs) <= most, kernel
    for size in SIZES:
        inputs = tuple(torch.randn(size, WIDTH) for _ in range(count))
        torch.testing.assert_close(exe(*inputs), function(*inputs), rtol=1e-4, atol=1e-5)
