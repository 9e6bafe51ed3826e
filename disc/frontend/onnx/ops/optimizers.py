"""Operators of `ai.onnx.preview.training`: one step of an optimizer on any number of tensors, as the standard writes it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.values import NodeError, Result

Rule = Callable[[Node], Result]
Step = Callable[[Node, Tensor, Tensor, list[Tensor]], tuple[Tensor, ...]]


def _stepped(kept: int, step: Step) -> Rule:
    """Inputs are the rate and the number of steps before, then all tensors, all gradients, and all of each thing that is kept (`kept` of
    them); results all tensors, then all of each thing that is kept."""

    def rule(node: Node) -> Result:
        rate, before, *given = node.tensors()
        count = len(given) // (2 + kept)
        if count * (2 + kept) != len(given) or not count:
            raise NodeError(f"{len(given)} tensors, where each has a gradient and {kept} more", unsupported=False)
        made: list[tuple[Tensor, ...]] = []
        for place in range(count):
            x, gradient, *own = given[place::count]
            gradient = node.attr_float("norm_coefficient", 0.0) * x + gradient
            made.append(step(node, rate.reshape([]), before.reshape([]), [x, gradient, *own]))
        return tuple(each for column in zip(*made, strict=True) for each in column)

    return rule


def _adagrad(node: Node, rate: Tensor, before: Tensor, given: list[Tensor]) -> tuple[Tensor, ...]:
    x, gradient, squares = given
    squares = squares + gradient * gradient
    now = rate / (1 + before * node.attr_float("decay_factor", 0.0))
    return (x - now * gradient / (torch.sqrt(squares) + node.attr_float("epsilon", 1e-6))).to(x.dtype), squares


def _adam(node: Node, rate: Tensor, before: Tensor, given: list[Tensor]) -> tuple[Tensor, ...]:
    x, gradient, mean, squares = given
    alpha, beta = node.attr_float("alpha", 0.9), node.attr_float("beta", 0.999)
    mean = alpha * mean + (1 - alpha) * gradient
    squares = beta * squares + (1 - beta) * gradient * gradient
    count = before.to(torch.float64)
    adjusted = rate * torch.sqrt(1 - beta**count) / (1 - alpha**count)
    now = torch.where(before > 0, adjusted, rate).to(x.dtype)
    x = x - now * mean / (torch.sqrt(squares) + node.attr_float("epsilon", 1e-6))
    return (1 - node.attr_float("norm_coefficient_post", 0.0)) * x, mean, squares


def _momentum(node: Node, rate: Tensor, before: Tensor, given: list[Tensor]) -> tuple[Tensor, ...]:
    x, gradient, speed = given
    alpha, mode = node.attr_float("alpha"), node.attr_text("mode")
    share = torch.where(before > 0, torch.full_like(rate, node.attr_float("beta")), torch.ones_like(rate))
    speed = (alpha * speed + share * gradient).to(x.dtype)
    if mode not in ("standard", "nesterov"):
        raise NodeError(f"mode '{mode}'", unsupported=False)
    return (x - rate * (speed if mode == "standard" else gradient + alpha * speed)).to(x.dtype), speed


RULES: dict[str, Rule] = {"Adagrad": _stepped(1, _adagrad), "Adam": _stepped(2, _adam), "Momentum": _stepped(1, _momentum)}
