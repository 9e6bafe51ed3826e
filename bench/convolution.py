"""Convolution and pooling layers alone: ours against eager, in turns, with the share of the machine's limit.

    python -m bench.convolution [--only name] [--repeats 15]

The limit of a layer is the larger of its operations over the multiply-add rate of a core and its bytes over the memory rate.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.export import Dim

import disc
from bench.timing import interleave
from disc.config import Options

FLOPS = 275e9  # per second and core of the machine the figures in the log come from: two 512-bit multiply-adds per cycle
BYTES = 16e9  # per second, one core


@dataclass(frozen=True)
class Layer:
    """One layer and the (channels, height, width) it runs on; flops: multiply-adds times two per output element."""

    name: str
    build: Callable[[], nn.Module]
    size: tuple[int, int, int]
    flops: int


def _convolution(name: str, source: int, target: int, kernel: int, stride: int, size: tuple[int, int], groups: int = 1) -> Layer:
    def build() -> nn.Module:
        padding = kernel // 2 if kernel != stride else 0
        return nn.Sequential(nn.Conv2d(source, target, kernel, stride, padding, groups=groups), nn.ReLU())

    return Layer(name, build, (source, *size), 2 * kernel * kernel * source // groups)


LAYERS = (
    _convolution("7x7 s2 3>64", 3, 64, 7, 2, (224, 224)),
    _convolution("1x1 64>256", 64, 256, 1, 1, (56, 56)),
    _convolution("3x3 64>64", 64, 64, 3, 1, (56, 56)),
    _convolution("3x3 s2 128>128", 128, 128, 3, 2, (56, 56)),
    _convolution("3x3 512>512", 512, 512, 3, 1, (7, 7)),
    _convolution("1x1 s2 256>512", 256, 512, 1, 2, (56, 56)),
    _convolution("1x1 1024>2048", 1024, 2048, 1, 1, (7, 7)),
    _convolution("16x16 s16 3>768", 3, 768, 16, 16, (224, 224)),
    _convolution("depthwise 7x7 96", 96, 96, 7, 1, (56, 56), 96),
    _convolution("depthwise 3x3 s2 96", 96, 96, 3, 2, (112, 112), 96),
    Layer("max pool 3x3 s2", lambda: nn.MaxPool2d(3, 2, 1), (64, 112, 112), 9),
    Layer("average pool 2x2 s2", lambda: nn.AvgPool2d(2), (64, 112, 112), 4),
    Layer("average pool 3x3 s1", lambda: nn.AvgPool2d(3, 1, 1), (64, 56, 56), 9),
)


def _limit(layer: Layer, source: torch.Tensor, result: torch.Tensor, model: nn.Module) -> float:
    """Milliseconds that the layer must take on one core."""
    weights = sum(weight.numel() for weight in model.parameters())
    moved = 4 * (source.numel() + result.numel() + weights)
    return 1e3 * max(layer.flops * result.numel() / FLOPS, moved / BYTES)


def measure(layer: Layer, batches: tuple[int, ...], repeats: int) -> None:
    """Prints one line per batch size."""
    torch.manual_seed(0)
    model = layer.build().eval()
    dims = ({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO},)
    channels, height, width = layer.size
    compiled = disc.compile(model, (torch.randn(2, channels, height - 1, width + 9),), dims, options=Options(threads=1, cache=False))
    for batch in batches:
        source = torch.randn(batch, channels, height, width)
        with torch.no_grad():
            result = model(source)
            torch.testing.assert_close(compiled(source), result, rtol=1e-3, atol=1e-3)
            calls = {"ours": lambda source=source: compiled(source), "eager": lambda source=source: model(source)}
            times = interleave(calls, repeats)
        ours, eager = times["ours"].low, times["eager"].low
        rate = layer.flops * result.numel() / ours / 1e6
        share = _limit(layer, source, result, model) / ours
        print(f"{layer.name:22} batch {batch}: {ours:8.3f} ms, eager {eager:8.3f} ms, x{eager / ours:5.2f}, {rate:6.1f} GF/s, {share:4.0%} of the limit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="layers whose name contains this")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for layer in LAYERS:
        if arguments.only in layer.name:
            measure(layer, tuple(arguments.batch), arguments.repeats)


if __name__ == "__main__":
    main()
