"""Random numbers: disc's own, which `seed=` of a call repeats. The seeds that nodes have as attributes are not those of another program's
generator, and are not used."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.values import NodeError, Result

Rule = Callable[[Node], Result]


def _shaped(function: Callable[[Node, Tensor], Tensor], like: bool) -> Rule:
    """function: of the node and zeros of the result's shape and type. like: these are those of the input, else of attributes."""

    def rule(node: Node) -> Tensor:
        shape = node.tensor(0).shape if like else node.attr_ints("shape")
        dtype = node.attr_dtype("dtype") if node.given("dtype") or not like else node.tensor(0).dtype
        if not dtype.is_floating_point:
            raise NodeError(f"random numbers of type {str(dtype).removeprefix('torch.')}")
        return function(node, torch.zeros(shape, dtype=dtype))

    return rule


def _uniform(node: Node, zeros: Tensor) -> Tensor:
    low, high = node.attr_float("low"), node.attr_float("high")
    return torch.rand_like(zeros) * (high - low) + low


def _normal(node: Node, zeros: Tensor) -> Tensor:
    return torch.randn_like(zeros) * node.attr_float("scale") + node.attr_float("mean")


def _bernoulli(node: Node) -> Tensor:
    x = node.tensor(0)
    dtype = node.attr_dtype("dtype") if node.given("dtype") else x.dtype
    return (torch.rand_like(x) < x).to(dtype)


def _multinomial(node: Node) -> Tensor:
    """The input holds logarithms of shares, row by row."""
    drawn = torch.multinomial(torch.softmax(node.tensor(0), -1), node.attr_int("sample_size"), replacement=True)
    return drawn.to(node.attr_dtype("dtype"))


RULES: dict[str, Rule] = {
    "RandomUniform": _shaped(_uniform, False), "RandomUniformLike": _shaped(_uniform, True), "RandomNormal": _shaped(_normal, False),
    "RandomNormalLike": _shaped(_normal, True), "Bernoulli": _bernoulli, "Multinomial": _multinomial,
}  # fmt: skip
