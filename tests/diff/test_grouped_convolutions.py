"""Convolutions in as many groups as a dynamic size says, and transposed ones by kernels of dynamic channels: values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled import module_program, randn
from torch import Tensor, nn

Function = Callable[[Tensor, Tensor], Tensor]
SIZES = ((2, 3, 7, 9), (4, 4, 4, 4), (1, 1, 8, 5), (3, 2, 6, 6), (5, 17, 5, 4))


def each_channel(k: Tensor, x: Tensor) -> Tensor:
    return k.expand(x.shape[1], 1, 3, 3)


def per_channel(k: Tensor, x: Tensor) -> Tensor:
    """[channels, channels, 3, 3]"""
    means = x.mean((0, 2, 3))
    return means[:, None, None, None] * k + means[None, :, None, None].sin()


def own_kernels(x: Tensor, k: Tensor) -> Tensor:
    """Each channel of each image is filtered by a kernel of its own."""
    kernels = k * x.mean((2, 3)).reshape(-1, 1, 1, 1)
    return F.conv2d(x.reshape(1, -1, *x.shape[2:]), kernels, padding=1, groups=kernels.shape[0]).reshape(x.shape)


def correlated(x: Tensor, k: Tensor) -> Tensor:
    """Each image with a kernel of its own, over all of its channels."""
    kernels = k * x.mean((2, 3))[:, :, None, None]
    return F.conv2d(x.reshape(1, -1, *x.shape[2:]), kernels, groups=x.shape[0])


FORMS: dict[str, Function] = {
    "blur": lambda x, k: F.conv2d(F.pad(x, (1, 1, 1, 1), "reflect"), each_channel(k, x), groups=x.shape[1]),
    "steps": lambda x, k: F.conv2d(x, each_channel(k, x), x.mean((0, 2, 3)), 2, 2, 2, x.shape[1]),
    "columns": lambda x, k: F.conv1d(x.flatten(2), each_channel(k, x)[..., 0, :], padding=1, groups=x.shape[1]),
    "two of each": lambda x, k: F.conv2d(x, torch.cat([each_channel(k, x), each_channel(k.t(), x)]), groups=x.shape[1]),
    "own kernels": own_kernels,
    "correlated": correlated,
    "spread": lambda x, k: F.conv_transpose2d(x, each_channel(k, x), None, 2, 1, 1, x.shape[1]),
    "spread widely": lambda x, k: F.conv_transpose2d(x, each_channel(k, x), x.mean((0, 2, 3)), 3, 0, 0, x.shape[1], 2),
    "transposed": lambda x, k: F.conv_transpose2d(x, per_channel(k, x)),
    "transposed by steps": lambda x, k: F.conv_transpose2d(x, per_channel(k, x), None, 2, 1, 1),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FORMS)
def test_values(name: str) -> None:
    kernel = randn(3, 3)
    program = module_program(FORMS[name], randn(*SIZES[0]), kernel, dynamic=((0, 1, 2, 3), ()))
    for sizes in SIZES:
        program.check(randn(*sizes, seed=1), kernel)


class Filter(nn.Module):
    """Its kernel is a weight, whose sizes PyTorch takes for constants."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function, self.kernel = function, nn.Parameter(randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.kernel)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FORMS)
def test_gradients(name: str) -> None:
    model = Filter(FORMS[name])
    compiled = torch.compile(model, backend="disc", dynamic=True, fullgraph=True, options={"strict": True})
    for sizes in SIZES:
        given = [randn(*sizes).requires_grad_() for _ in range(2)]
        found = [torch.autograd.grad(each(x).square().mean(), (x, model.kernel)) for each, x in zip((compiled, model), given, strict=True)]
        for ours, eager in zip(*found, strict=True):
            torch.testing.assert_close(ours, eager, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("name", ["blur", "two of each"])
def test_sums_are_rounded_once(name: str) -> None:
    x, kernel = randn(2, 3, 7, 9, dtype=torch.bfloat16), randn(3, 3, dtype=torch.bfloat16)
    module_program(FORMS[name], x, kernel, dynamic=((0, 1, 2, 3), ())).check(x, kernel)
