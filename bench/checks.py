"""What a result must be, and what a call must do at least: computed once by eager in f32, outside every timed process."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.cases import Inputs, Instances, TrainedInstances
from bench.dtypes import Dtype
from bench.limits import Work

TRAINED = 3  # times the matrix products of a call has a step of training: two factors have gradients


def first_tensor(result: object) -> torch.Tensor:
    """What is compared of a result, which may be of several tensors."""
    first = next(iter(result.values())) if isinstance(result, Mapping) else result[0] if isinstance(result, list | tuple) else result
    return torch.as_tensor(first)


def error_of(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest absolute difference over the largest finite value expected, or over 1 where all are smaller.

    Infinite when the shapes differ, or only one of two values is NaN or infinite.
    """
    if result.shape != expected.shape:
        return float("inf")
    same = (result == expected) | (result.isnan() & expected.isnan())
    if bool(same.all()):
        return 0.0
    worst = (result.double() - expected.double()).abs().masked_fill(same, 0).nan_to_num(nan=float("inf"), posinf=float("inf")).max()
    scale = expected.double().abs().nan_to_num(nan=0.0, posinf=0.0).max().clamp(min=1.0)
    return float(worst / scale)


def work_of(model: nn.Module, inputs: Inputs, result: torch.Tensor, dtype: Dtype) -> Work:
    """Matrix products (attention's and convolutions' included), the bytes of weights and inputs, and those of the output."""
    read = weight_elements(model) * dtype.weight_bytes + sum(_bytes(tensor) for tensor in inputs)
    return Work(matrix_flops(model, inputs), read, _bytes(result))


def matrix_flops(model: nn.Module, inputs: Inputs) -> int:
    call = model.by_hand if isinstance(model, Instances) else model  # products of a matrix and a vector are not counted
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        call(*inputs)
    return counter.get_total_flops() * (TRAINED if isinstance(model, TrainedInstances) else 1)


def weight_elements(model: nn.Module) -> int:
    """Elements of all parameters; shared ones count once, tables of embeddings not at all: a call reads some rows of them."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    return sum(weight.numel() for weight in model.parameters() if id(weight) not in tables)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
