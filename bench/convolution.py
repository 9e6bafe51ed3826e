"""Convolution and pooling layers alone: ours against eager, in turns, with the share of the machine's limit.

    python -m bench.convolution [--only name] [--repeats 15] [--models]

The limit of a layer is the larger of its operations over the multiply-add rate of a core and its bytes over the memory rate.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from torch import nn
from torch.export import Dim

import disc
from bench.cases import ImageModel
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
        print(
            f"{layer.name:22} batch {batch}: {ours:8.3f} ms, eager {eager:8.3f} ms, x{eager / ours:5.2f}, "
            f"{rate:6.1f} GF/s, {share:4.0%} of the limit"
        )


IMAGES = ((1, 224, 224), (1, 161, 193), (4, 224, 224))
MODELS: dict[str, tuple[Callable[[], nn.Module], float]] = {  # with the multiply-adds of one image of 224 x 224
    "ResNet-50": (lambda: transformers.ResNetModel(transformers.ResNetConfig()), 4.09e9),
    "ConvNeXt-tiny": (lambda: transformers.ConvNextModel(transformers.ConvNextConfig()), 4.46e9),
}


def measure_model(name: str, repeats: int) -> None:
    """Prints one line per image size."""
    torch.manual_seed(0)
    build, products = MODELS[name]
    model = ImageModel(build()).eval()
    dims = ({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO},)
    compiled = disc.compile(model, (torch.randn(2, 3, 160, 97),), dims, options=Options(threads=1, cache=False))
    for size in IMAGES:
        source = torch.randn(size[0], 3, *size[1:])
        with torch.no_grad():
            difference = (compiled(source) - model(source)).abs().max()
            times = interleave({"ours": lambda source=source: compiled(source), "eager": lambda source=source: model(source)}, repeats)
        ours, eager = times["ours"].low, times["eager"].low
        rate = 2 * products * size[0] * size[1] * size[2] / 224**2 / ours / 1e6
        medians = times["eager"].median / times["ours"].median
        print(
            f"{name} {size}: {ours:.1f} ms, eager {eager:.1f} ms, x{eager / ours:.2f} (medians x{medians:.2f}), "
            f"{rate:.0f} GF/s, {rate * 1e9 / FLOPS:.0%} of the limit, difference {difference:.1e}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="layers whose name contains this")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--models", action="store_true", help="whole models instead of layers")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.models:
        for name in MODELS:
            if arguments.only in name:
                measure_model(name, arguments.repeats)
        return
    for layer in LAYERS:
        if arguments.only in layer.name:
            measure(layer, tuple(arguments.batch), arguments.repeats)


if __name__ == "__main__":
    main()
