"""Small models and functional idioms for sweeps through torch.compile: name → (function, inputs of a size n)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

F = nn.functional
Inputs = Callable[[int], tuple[torch.Tensor, ...]]
Case = tuple[Callable[..., object], Inputs]


def rows(*rest: int) -> Inputs:
    return lambda n: (torch.randn(n, *rest),)


def pairs(*rest: int) -> Inputs:
    return lambda n: (torch.randn(n, *rest), torch.randn(n, *rest))


def ids(*rest: int) -> Inputs:
    return lambda n: (torch.randint(0, 12, (n, *rest)),)


IMAGE, TEXT, VECTOR = rows(4, 9, 8), rows(5, 8), rows(8)

MODULES: dict[str, tuple[nn.Module, Inputs]] = {
    "linear": (nn.Linear(8, 3), VECTOR), "bilinear": (nn.Bilinear(8, 8, 3), pairs(8)), "embedding": (nn.Embedding(12, 4), ids(5)),
    "embedding bag": (nn.EmbeddingBag(12, 4), ids(5)), "conv1d": (nn.Conv1d(5, 3, 3, padding=1), TEXT),
    "conv2d": (nn.Conv2d(4, 6, 3, stride=2), IMAGE), "depthwise": (nn.Conv2d(4, 8, 3, groups=4, dilation=2), IMAGE),
    "conv3d": (nn.Conv3d(2, 3, 2), rows(2, 4, 5, 6)), "transposed conv": (nn.ConvTranspose2d(4, 3, 3, stride=2, output_padding=1), IMAGE),
    "max pool": (nn.MaxPool2d(3, 2, 1), IMAGE), "max pool with indices": (nn.MaxPool2d(2, return_indices=True), IMAGE),
    "average pool": (nn.AvgPool2d(2, ceil_mode=True), IMAGE), "adaptive average": (nn.AdaptiveAvgPool2d((3, 2)), IMAGE),
    "adaptive max": (nn.AdaptiveMaxPool2d(2), IMAGE), "lp pool": (nn.LPPool2d(2, 2), IMAGE), "batch norm": (nn.BatchNorm2d(4), IMAGE),
    "layer norm": (nn.LayerNorm(8), TEXT), "group norm": (nn.GroupNorm(2, 4), IMAGE), "instance norm": (nn.InstanceNorm2d(4), IMAGE),
    "rms norm": (nn.RMSNorm(8), TEXT), "response norm": (nn.LocalResponseNorm(2), IMAGE), "gelu": (nn.GELU("tanh"), TEXT), "glu": (nn.GLU(), TEXT),
    "prelu": (nn.PReLU(), TEXT), "log sigmoid": (nn.LogSigmoid(), TEXT), "softplus": (nn.Softplus(), TEXT), "mish": (nn.Mish(), TEXT),
    "softmin": (nn.Softmin(-1), TEXT), "log softmax": (nn.LogSoftmax(1), TEXT), "hard": (nn.Sequential(nn.Hardswish(), nn.Hardsigmoid()), TEXT),
    "shrink": (nn.Sequential(nn.Softshrink(), nn.Hardshrink(), nn.Tanhshrink()), TEXT), "upsample": (nn.Upsample(scale_factor=2), IMAGE),
    "bilinear upsample": (nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE), "pixel shuffle": (nn.PixelShuffle(2), IMAGE),
    "reflection": (nn.ReflectionPad2d(1), IMAGE), "circular": (nn.CircularPad2d(1), IMAGE), "unfold": (nn.Unfold(3), IMAGE),
    "fold": (nn.Fold((4, 4), 2), rows(8, 9)), "cosine": (nn.CosineSimilarity(), pairs(8)), "distance": (nn.PairwiseDistance(), pairs(8)),
    "lstm": (nn.LSTM(8, 4, batch_first=True), TEXT), "gru": (nn.GRU(8, 4, batch_first=True), TEXT), "rnn cell": (nn.RNNCell(8, 4), VECTOR),
    "lstm cell": (nn.LSTMCell(8, 4), VECTOR), "encoder": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), TEXT),
    "decoder": (nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), pairs(5, 8)), "flatten": (nn.Flatten(), IMAGE),
    "unflatten": (nn.Unflatten(-1, (2, 4)), TEXT), "channel shuffle": (nn.ChannelShuffle(2), IMAGE),
}  # fmt: skip


def attention(x: torch.Tensor) -> torch.Tensor:
    heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads, is_causal=x.shape[1] > 1).transpose(1, 2).flatten(2)


def normalized(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(0)) / (x.std(0) + 1e-3) if x.shape[0] > 1 else torch.zeros_like(x)


def packed(x: torch.Tensor) -> dict[str, object]:
    return {"sum": x.sum(0), "sizes": (x.shape[0], x.numel() == 0), "halves": list(x.chunk(2, 1))}


def written(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[:, ::2] = x[:, ::2]
    y[x > 1] = -1
    return y.masked_fill(x < -1, 5)


FUNCTIONS: dict[str, Case] = {
    "attention": (attention, TEXT), "normalized": (normalized, VECTOR), "packed": (packed, VECTOR), "written": (written, VECTOR),
    "einsum": (lambda a, b: torch.einsum("nd,md->nm", a, b), pairs(8)), "outer": (lambda x: x[:, None] - x[None], VECTOR),
    "cdist": (lambda a, b: torch.cdist(a, b), pairs(8)), "cumulative": (lambda x: (x.cumsum(0), x.cumprod(1), x.logcumsumexp(0)), VECTOR),
    "sorted": (lambda x: (x.sort(1).values + 1, x.argsort(1), x.topk(3, 1).values * 2), VECTOR), "top": (lambda x: x.median(1), VECTOR),
    "any": (lambda x: ((x > 0).any(0), (x > 0).all(1), (x > 9).sum()), VECTOR), "norms": (lambda x: (x.norm(), x.norm(dim=1), x.abs().sum()), VECTOR),
    "stack": (lambda a, b: (torch.stack([a, b]), torch.cat([a, b, a]), torch.hstack([a, b])), pairs(8)),
    "index": (lambda x: (x[torch.arange(x.shape[0])], x[:, [1, 0, 3]], x.flip(0).roll(1, 1)), VECTOR), "gather": (lambda x: x.gather(1, x.argmax(1, keepdim=True)), VECTOR),
    "scatter": (lambda x: torch.zeros(x.shape[0], 8).scatter_add(1, (x.abs() * 2).long().clamp(0, 7), x), VECTOR),
    "one hot": (lambda i: F.one_hot(i, 12).float().mean(0), ids(5)), "nonzero": (lambda x: (x > 0).nonzero().float().sum(), VECTOR),
    "selected": (lambda x: x[x.sum(1) > 0] * 2, VECTOR), "triangle": (lambda x: (x @ x.t()).tril() + torch.eye(x.shape[0]), VECTOR),
    "repeat": (lambda x: (x.repeat(2, 1), x.repeat_interleave(3, 0), x.tile(2)), VECTOR), "pad": (lambda x: F.pad(x, (1, 2, 0, 3), value=2.0), VECTOR),
    "where": (lambda x: torch.where(x > 0, x, -x).clamp(0.1, 0.9), VECTOR), "types": (lambda x: (x.half() + 1, x.double() * 2, x.long() // 2, x.bool() | True), VECTOR),
    "linspace": (lambda x: x + torch.linspace(0, 1, 8) * torch.arange(x.shape[0])[:, None], VECTOR), "complex": (lambda x: torch.complex(x, x * 2).conj().angle() + 1, VECTOR),
    "sizes": (lambda x: x.new_full((x.shape[0] * 2, 3), 0.5) * x.shape[0] / (x.shape[1] + 1), VECTOR), "squeeze": (lambda x: (x.squeeze(), x[:, :1].squeeze(-1) + 1), VECTOR),
    "losses": (lambda a, b: (F.mse_loss(a, b), F.l1_loss(a, b, reduction="none"), F.smooth_l1_loss(a, b), F.huber_loss(a, b)), pairs(8)),
    "entropy": (lambda a, b: (F.cross_entropy(a, b.softmax(1)), F.kl_div(a.log_softmax(1), b.softmax(1), reduction="sum")), pairs(8)),
    "loop": (lambda x: sum((row * i for i, row in enumerate(x.unbind(1))), torch.zeros(x.shape[0])), VECTOR), "in place": (lambda x: x.clone().add_(1).mul_(x).relu_(), VECTOR),
    "linalg": (lambda x: torch.linalg.inv(x.t() @ x + torch.eye(8)) @ x.t(), VECTOR), "bool result": (lambda x: (x.shape[0] > 2, x + 1), VECTOR),
}  # fmt: skip

CASES: dict[str, Case] = {**{name: (module.eval(), inputs) for name, (module, inputs) in MODULES.items()}, **FUNCTIONS}
ALWAYS = ("linear", "embedding", "conv2d", "max pool with indices", "attention", "sorted", "selected", "packed", "complex", "scatter")
