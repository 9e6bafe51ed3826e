"""Weights that are tensor subclasses, as torchao's quantized ones: the tensors inside of them are compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

import disc
from disc.errors import ShapeConstraintError


class Int8(Tensor):
    """Rows of int8 with a scale each. Ops see the numbers that they stand for."""

    rows: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, rows: Tensor, scale: Tensor) -> Tensor:
        return Tensor._make_wrapper_subclass(cls, rows.shape, dtype=torch.float32, requires_grad=False)

    def __init__(self, rows: Tensor, scale: Tensor) -> None:
        self.rows, self.scale = rows, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["rows", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Mapping[str, Tensor], meta: None, size: object, stride: object) -> Tensor:
        return cls(inner["rows"], inner["scale"])

    @classmethod
    def __torch_dispatch__(
        cls, func: Callable[..., object], types: Sequence[type], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        if func is torch.ops.aten.detach.default:
            assert isinstance(args[0], Int8)
            return cls(args[0].rows, args[0].scale)
        args, kwargs = pytree.tree_map(lambda x: x.rows.float() * x.scale[:, None] if isinstance(x, Int8) else x, (args, kwargs or {}))
        return func(*args, **kwargs)


class ScaledLast(Int8):
    """Has a form of its own for a linear layer."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., object], types: Sequence[type], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        if func is nn.functional.linear:
            x, weight, bias = args
            assert isinstance(x, Tensor) and isinstance(weight, ScaledLast) and isinstance(bias, Tensor)
            return (x @ weight.rows.to(x.dtype).t()) * weight.scale + bias
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def quantized(kind: type[Int8]) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    for layer in (model[0], model[2]):
        weight = layer.weight.detach()
        scale = weight.abs().amax(1) / 127
        layer.weight = nn.Parameter(kind((weight / scale[:, None]).round().to(torch.int8), scale), requires_grad=False)
    return model


class Squeezed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.squeeze())


@pytest.mark.parametrize("kind", [Int8, ScaledLast])
@pytest.mark.parametrize("exported", [False, True])
def test_they_are_taken_apart(kind: type[Int8], exported: bool) -> None:
    model, x = Squeezed(quantized(kind)), torch.randn(3, 4)
    options = disc.Options(cache=False, threads=1)
    if exported:
        executable = disc.compile(torch.export.export(model, (x,), dynamic_shapes=({0: Dim.AUTO},)), options=options)
    else:
        executable = disc.compile(model, (x,), options=options)
    assert type(model.inner[0].weight) is kind
    for count in (2, 7):
        x = torch.randn(count, 4)
        torch.testing.assert_close(executable(x), model(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(ShapeConstraintError, match="squeeze at"):
        executable(torch.randn(1, 4))
