"""Convolution networks whose batch, height and width are dynamic, and the kinds of layers they are made of: (batch, height, width)."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from bench.cases.case import Case, Shape, random_tensor
from bench.cases.models import ImageModel

IMAGES: tuple[Shape, ...] = ((1, 224, 224), (1, 161, 193), (4, 224, 224))
DYNAMIC = (0, 2, 3)


def _resnet() -> nn.Module:
    import transformers

    return ImageModel(transformers.ResNetModel(transformers.ResNetConfig()))


def _convnext() -> nn.Module:
    import transformers

    return ImageModel(transformers.ConvNextModel(transformers.ConvNextConfig()))


def _size_is(height: int, width: int) -> Callable[[Shape], bool]:
    """The thresholds of the convolution kernels were measured on ResNet-50's layers at images of 224 x 224."""
    return lambda shape: shape[1:] == (height, width)


def _model(name: str, title: str, build: Callable[[], nn.Module]) -> Case:
    return Case(
        name, title, build, lambda shape: (random_tensor(shape[0], 3, *shape[1:]),), IMAGES, DYNAMIC, (2, 160, 97), network=True,
        tuned=_size_is(224, 224),
    )  # fmt: skip


def _layer(name: str, build: Callable[[], nn.Module], channels: int, height: int, width: int) -> Case:
    """Alone and eight at a time, on (height, width) and on sizes that no tile divides."""
    shapes = ((1, height, width), (8, height, width), (1, height - 3, width + 5))
    example = (2, height - 1, width + 9)
    return Case(
        name, name, build, lambda shape: (random_tensor(shape[0], channels, *shape[1:]),), shapes, DYNAMIC, example,
        tuned=_size_is(height, width),
    )  # fmt: skip


def _convolution(name: str, source: int, target: int, kernel: int, stride: int, size: int, groups: int = 1) -> Case:
    def build() -> nn.Module:
        padding = kernel // 2 if kernel != stride else 0
        return nn.Sequential(nn.Conv2d(source, target, kernel, stride, padding, groups=groups), nn.ReLU())

    return _layer(name, build, source, size, size)


CONV_CASES = (
    _model("resnet", "ResNet-50", _resnet),
    _model("convnext", "ConvNeXt-tiny", _convnext),
    _convolution("conv7x7s2-3-64", 3, 64, 7, 2, 224),
    _convolution("conv1x1-64-256", 64, 256, 1, 1, 56),
    _convolution("conv3x3-64-64", 64, 64, 3, 1, 56),
    _convolution("conv3x3s2-128-128", 128, 128, 3, 2, 56),
    _convolution("conv3x3-512-512", 512, 512, 3, 1, 7),
    _convolution("conv1x1s2-256-512", 256, 512, 1, 2, 56),
    _convolution("conv1x1-1024-2048", 1024, 2048, 1, 1, 7),
    _convolution("conv16x16s16-3-768", 3, 768, 16, 16, 224),
    _convolution("depthwise7x7-96", 96, 96, 7, 1, 56, 96),
    _convolution("depthwise3x3s2-96", 96, 96, 3, 2, 112, 96),
    _layer("max-pool3x3s2", lambda: nn.MaxPool2d(3, 2, 1), 64, 112, 112),
    _layer("average-pool2x2s2", lambda: nn.AvgPool2d(2), 64, 112, 112),
    _layer("average-pool3x3s1", lambda: nn.AvgPool2d(3, 1, 1), 64, 56, 56),
)
