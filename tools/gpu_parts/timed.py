"""The programs that part `times` measures. Each is a module that eager PyTorch runs as the peer. Needs PyTorch alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Shapes = tuple[tuple[int, ...], ...]  # of the inputs of a call


class Product(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


class Linear(nn.Module):
    """The weight as PyTorch's layers keep it."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b.mT


class Softmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)


class AddOne(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Attention(nn.Module):
    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


class BiasedAttention(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 64, 3, 3, dtype=torch.bfloat16) / 24, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(x, self.weight, padding=1)


@dataclass(frozen=True)
class Timed:
    """build: makes the module. element: of all inputs. dims: which dims of each input vary. shapes: that are measured; tiny: for the
    stand-in. flops: of a call, where products count. tf32: whether products of f32 may round to tf32, on both sides."""

    build: Callable[[], nn.Module]
    element: str
    dims: tuple[tuple[int, ...], ...]
    shapes: Sequence[Shapes]
    tiny: Shapes
    flops: Callable[[Shapes], int] | None = None
    tf32: bool = False
    options: dict[str, Any] = field(default_factory=dict)


# M, N, K of linear layers at few and at many rows, of large squares, and of sizes that no vector divides.
SIZES = (
    (1, 4096, 4096), (1, 1024, 4096), (4, 4096, 4096), (16, 4096, 4096), (64, 1024, 1024), (64, 4096, 1024), (64, 1024, 4096),
    (128, 768, 768), (384, 3072, 768), (512, 1024, 1024), (512, 4096, 1024), (1024, 1024, 4096), (2048, 3072, 768), (4096, 4096, 4096),
    (8192, 8192, 8192), (333, 777, 555),
)  # fmt: skip
SINGLE_SIZES = tuple(each for each in SIZES if each[0] < 8192)


def _products(sizes: Sequence[tuple[int, int, int]]) -> tuple[Shapes, ...]:
    return tuple(((m, k), (k, n)) for m, n, k in sizes)


def _linears(sizes: Sequence[tuple[int, int, int]]) -> tuple[Shapes, ...]:
    return tuple(((m, k), (n, k)) for m, n, k in sizes)


def _product_flops(shapes: Shapes) -> int:
    (m, k), other = shapes[0], shapes[1]
    return 2 * m * other[0] * other[1] if k else 0


def _attention_flops(shapes: Shapes) -> int:
    batch, heads, queries, depth = shapes[0]
    return 4 * batch * heads * queries * shapes[1][2] * depth


def _attended(batch: int, length: int) -> Shapes:
    return ((batch, 16, length, 64),) * 3


def _biased(batch: int, length: int) -> Shapes:
    return (*_attended(batch, length), (1, 16, length, length))


_BOTH, _ROWS = ((0, 1), (0, 1)), ((0, 2),) * 3
_LENGTHS = ((1, 128), (16, 128), (4, 512), (4, 2048), (1, 8192))

TIMED: dict[str, Timed] = {
    "add-one": Timed(AddOne, "f32", ((0,),), (((1,),), ((1 << 26,),)), ((5,),)),
    "gemm-bf16": Timed(Product, "bf16", _BOTH, _products(SIZES), ((5, 16), (16, 24)), _product_flops),
    "linear-bf16": Timed(Linear, "bf16", _BOTH, _linears(SIZES), ((5, 16), (24, 16)), _product_flops),
    "linear-f32": Timed(Linear, "f32", _BOTH, _linears(SINGLE_SIZES), ((5, 16), (24, 16)), _product_flops),
    "linear-tf32": Timed(Linear, "f32", _BOTH, _linears(SINGLE_SIZES), ((5, 16), (24, 16)), _product_flops, tf32=True),
    "gemm-f32": Timed(Product, "f32", _BOTH, _products(SINGLE_SIZES), ((5, 16), (16, 24)), _product_flops),
    "gemm-tf32": Timed(Product, "f32", _BOTH, _products(SINGLE_SIZES), ((5, 16), (16, 24)), _product_flops, tf32=True),
    "norm-f32": Timed(lambda: nn.LayerNorm(1024), "f32", ((0,),), (((1024, 1024),), ((65536, 1024),)), ((3, 1024),)),
    "norm-bf16": Timed(lambda: nn.LayerNorm(1024).bfloat16(), "bf16", ((0,),), (((1024, 1024),), ((65536, 1024),)), ((3, 1024),)),
    "softmax-f32": Timed(Softmax, "f32", ((0, 1),), (((1024, 1024),), ((16384, 4096),), ((32, 50000),)), ((3, 40),)),
    "gelu-bf16": Timed(nn.GELU, "bf16", ((0,),), (((1 << 20,),), ((1 << 26,),)), ((70,),)),
    "attention-bf16": Timed(Attention, "bf16", _ROWS, [_attended(*each) for each in _LENGTHS], _attended(1, 5), _attention_flops),
    "causal-bf16": Timed(
        lambda: Attention(True), "bf16", _ROWS, [_attended(*each) for each in _LENGTHS], _attended(1, 5), _attention_flops
    ),
    "bias-bf16": Timed(
        BiasedAttention, "bf16", (*_ROWS, (2, 3)), [_biased(*each) for each in _LENGTHS[:4]], _biased(1, 5), _attention_flops
    ),
    "conv-bf16": Timed(
        Convolution, "bf16", ((0, 2, 3),), (((1, 64, 56, 56),), ((32, 64, 56, 56),)), ((1, 64, 3, 3),),
        lambda shapes: 2 * 64 * 9 * shapes[0][0] * 64 * shapes[0][2] * shapes[0][3],
    ),
}  # fmt: skip
