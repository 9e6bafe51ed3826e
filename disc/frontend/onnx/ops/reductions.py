"""Reductions, products of matrices, and what is normalized along dims."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.ops.structure import axis_of
from disc.frontend.onnx.values import Number, Result

Rule = Callable[[Node], Result]
Reduction = Callable[[Tensor, list[int], bool], Tensor]


def _reduction(
    function: Reduction, before: Callable[[Tensor], Tensor] = lambda x: x, after: Callable[[Tensor], Tensor] = lambda x: x
) -> Rule:
    """Axes come as an input or, in older versions, as an attribute; none: all dims, or no dim where the node says so."""

    def rule(node: Node) -> Tensor:
        x = node.tensor(0)
        axes = node.constants(1, "axes") if node.has(1) else node.attr_ints("axes", ())
        if not axes and node.attr_int("noop_with_empty_axes", 0):
            return after(before(x)).to(x.dtype)
        dims = [axis_of(axis, x.dim()) for axis in axes] or list(range(x.dim()))
        y = function(before(x), dims, bool(node.attr_int("keepdims"))) if dims else before(x)
        return after(y).to(x.dtype)

    return rule


def _sum(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return x.sum(dims, keep)


def _mean(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    return x.mean(dims, keep) if x.is_floating_point() else torch.div(x.sum(dims, keep), _count(x, dims), rounding_mode="trunc")


def _count(x: Tensor, dims: list[int]) -> Number:
    count: Number = 1
    for dim in dims:
        count = count * x.shape[dim]
    return count


def _product(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    for dim in sorted(dims, reverse=True):
        x = x.prod(dim, keepdim=keep)
    return x


def _extreme(function: Callable[..., Tensor], either: bool) -> Reduction:
    """either: what the reduction of bools is: `any` for a maximum, `all` for a minimum."""

    def reduced(x: Tensor, dims: list[int], keep: bool) -> Tensor:
        if x.dtype == torch.bool:
            return torch.any(x, dims, keep) if either else torch.all(x, dims, keep)
        if any(isinstance(x.shape[dim], int) and x.shape[dim] == 0 for dim in dims):
            return _of_nothing(x, dims, keep, largest=not either)
        return function(x, dims, keep)

    return reduced


def _of_nothing(x: Tensor, dims: list[int], keep: bool, *, largest: bool) -> Tensor:
    """The extreme of no elements: the type's largest value (`largest`) or its smallest."""
    shape = [1 if i in dims else size for i, size in enumerate(x.shape) if keep or i not in dims]
    limits = torch.iinfo(x.dtype) if not x.is_floating_point() else None
    fill = (limits.max if largest else limits.min) if limits is not None else math.inf if largest else -math.inf
    return torch.full(shape, fill, dtype=x.dtype)


def _matmul(node: Node) -> Tensor:
    return torch.matmul(node.tensor(0), node.tensor(1))


def _gemm(node: Node) -> Tensor:
    a, b = node.tensor(0), node.tensor(1)
    a, b = (a.t() if node.attr_int("transA") else a), (b.t() if node.attr_int("transB") else b)
    alpha, beta, c = node.attr_float("alpha"), node.attr_float("beta"), node.optional(2)
    y = torch.matmul(a, b)
    y = y if alpha == 1 else (y * alpha).to(a.dtype)
    if c is None or beta == 0:
        return y
    return y + (c if beta == 1 else (c * beta).to(a.dtype))


def _einsum(node: Node) -> Tensor:
    return torch.einsum(node.attr_text("equation"), *node.tensors())


def _lp_norm(node: Node) -> Tensor:
    x, axis = node.tensor(0), node.attr_int("axis")
    size = x.abs().sum(axis, keepdim=True) if node.attr_int("p") == 1 else (x * x).sum(axis, keepdim=True).sqrt()
    return torch.where(size == 0, torch.zeros_like(x), x / size)


def _layer_norm(node: Node) -> Result:
    x, scale, bias, axis = node.tensor(0), node.tensor(1), node.optional(2), node.attr_int("axis")
    axis, epsilon = axis_of(axis, x.dim()), node.attr_float("epsilon")
    if node.outputs == 1 and scale.shape == x.shape[axis:] and (bias is None or bias.shape == x.shape[axis:]):
        return F.layer_norm(x, x.shape[axis:], scale, bias, epsilon)
    dims, wide = list(range(axis, x.dim())), x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    mean = wide.mean(dims, True)
    inverse = torch.rsqrt(((wide - mean) ** 2).mean(dims, True) + epsilon)
    y = ((wide - mean) * inverse).to(x.dtype) * scale
    return (y if bias is None else y + bias), mean, inverse


def _rms_norm(node: Node) -> Tensor:
    x, scale = node.tensor(0), node.tensor(1)
    dims = list(range(axis_of(node.attr_int("axis"), x.dim()), x.dim()))
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    inverse = torch.rsqrt((wide * wide).mean(dims, True) + node.attr_float("epsilon"))
    return (wide * inverse).to(x.dtype) * scale


RULES: dict[str, Rule] = {
    "ReduceSum": _reduction(_sum), "ReduceMean": _reduction(_mean), "ReduceProd": _reduction(_product),
    "ReduceMax": _reduction(_extreme(torch.amax, True)), "ReduceMin": _reduction(_extreme(torch.amin, False)),
    "ReduceL1": _reduction(_sum, torch.abs), "ReduceL2": _reduction(_sum, lambda x: x * x, torch.sqrt),
    "ReduceLogSum": _reduction(_sum, after=torch.log), "ReduceSumSquare": _reduction(_sum, lambda x: x * x),
    "ReduceLogSumExp": _reduction(lambda x, dims, keep: torch.logsumexp(x, dims, keep)),
    "MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum, "Det": lambda node: torch.det(node.tensor(0)),
    "Softmax": lambda node: torch.softmax(node.tensor(0), node.attr_int("axis")),
    "LogSoftmax": lambda node: torch.log_softmax(node.tensor(0), node.attr_int("axis")), "LpNormalization": _lp_norm,
    "LayerNormalization": _layer_norm, "RMSNormalization": _rms_norm,
}  # fmt: skip
