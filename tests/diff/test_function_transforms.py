"""`torch.func` within torch.compile: one compile for all sizes, also of ops whose kernels in PyTorch ask for sizes there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from disc.frontend import dynamo

Function = Callable[[Tensor], Tensor]
F64 = torch.float64
WEIGHT, BIAS, SCALE = (
    torch.linspace(-1, 1, 48, dtype=F64).reshape(6, 8),
    torch.linspace(0, 1, 6, dtype=F64),
    torch.linspace(0.5, 1, 8, dtype=F64),
)
OPS: dict[str, Function] = {
    "linear": lambda x: F.linear(x, WEIGHT, BIAS),
    "linear without a bias": lambda x: F.linear(x, WEIGHT),
    "linear of 4-D": lambda x: F.linear(x.unsqueeze(0), WEIGHT, BIAS),
    "layer_norm": lambda x: F.layer_norm(x, (8,), SCALE, SCALE),
    "layer_norm without weights": lambda x: F.layer_norm(x, (8,)),
}
TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "grad": lambda op: grad(lambda x: op(x).square().sum()),
    "second grad": lambda op: grad(lambda x: grad(lambda y: op(y).pow(3).sum())(x).square().sum()),
    "vmap": lambda op: vmap(lambda x: op(x.unsqueeze(0))),
    "grad per sample": lambda op: vmap(grad(lambda x: op(x.unsqueeze(0)).square().sum())),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_is_compiled_once(transform: str, op: str) -> None:
    torch._dynamo.reset()
    dynamo.reset_statistics()
    function = TRANSFORMS[transform](OPS[op])
    compiled = torch.compile(lambda x: function(x), backend="disc", dynamic=True)
    for sizes in ((3, 5), (4, 7), (2, 19), (13, 2)):
        x = torch.randn(*sizes, 8, dtype=F64, generator=torch.Generator().manual_seed(sum(sizes)))
        torch.testing.assert_close(compiled(x), function(x))
    found = dynamo.statistics()
    assert found.graphs == 1 and not found.eager and not found.failed
