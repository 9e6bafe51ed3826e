"""Families that the compiler was never tuned for. Small convolutional networks with depthwise layers, vision transformers of several
stages, windowed attention, segmentation: (batch, height, width); speech: (batch, samples)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from bench.cases.case import Case, Shape, random_tensor
from bench.cases.models import ImageModel

IMAGES: tuple[Shape, ...] = ((1, 224, 224), (1, 192, 256), (4, 224, 224))


def _calibrated(model: nn.Module) -> nn.Module:
    """With weights that keep the size of values, and the statistics of one batch: with transformers' own they fade to denormal numbers."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
            nn.init.ones_(module.weight)
    with torch.no_grad():
        model.train()(pixel_values=random_tensor(4, 3, 96, 96))
    return ImageModel(model)


def _mobilenet() -> nn.Module:
    import transformers

    return _calibrated(transformers.MobileNetV2Model(transformers.MobileNetV2Config(tf_padding=False), add_pooling_layer=False))


def _efficientnet() -> nn.Module:
    """EfficientNet-B0: depthwise convolutions, squeeze-and-excitation, swish."""
    import transformers

    config = transformers.EfficientNetConfig(width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280)
    return _calibrated(transformers.EfficientNetModel(config))


def _regnet() -> nn.Module:
    """RegNetY-400MF: grouped convolutions, squeeze-and-excitation."""
    import transformers

    config = transformers.RegNetConfig(depths=[1, 3, 6, 6], hidden_sizes=[48, 104, 208, 440], groups_width=8, layer_type="y")
    return _calibrated(transformers.RegNetModel(config))


def _pvt() -> nn.Module:
    """PVTv2-B0: attention over fewer keys at every stage, depthwise convolutions within the feed-forward layers."""
    import transformers

    return ImageModel(transformers.PvtV2Model(transformers.PvtV2Config()))


def _swin() -> nn.Module:
    import transformers

    return ImageModel(transformers.SwinModel(transformers.SwinConfig(), add_pooling_layer=False))


def _segformer() -> nn.Module:
    """SegFormer-B0 with its head: scores of classes at a quarter of the size."""
    import transformers

    return ImageModel(transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig()))


class AudioModel(nn.Module):
    """Samples in, the hidden states out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return self.model(input_values=samples)[0]


def _wav2vec2() -> nn.Module:
    import transformers

    return AudioModel(transformers.Wav2Vec2Model(transformers.Wav2Vec2Config()))


def _never(shape: Shape) -> bool:
    return False


def _model(
    name: str, title: str, build: Callable[[], nn.Module], dynamic: tuple[int, ...] = (0, 2, 3), images: tuple[Shape, ...] = IMAGES
) -> Case:
    example = (2, 160, 96) if len(dynamic) > 1 else (3, 224, 224)
    return Case(
        name, title, build, lambda shape: (random_tensor(shape[0], 3, *shape[1:]),), images, dynamic, example, network=True, tuned=_never
    )


FAMILY_CASES = (
    _model("mobilenet", "MobileNetV2", _mobilenet),
    _model("efficientnet", "EfficientNet-B0", _efficientnet),
    _model("regnet", "RegNetY-400MF", _regnet),
    _model("pvt", "PVTv2-B0", _pvt),
    _model("swin", "Swin-tiny", _swin, (0,), ((1, 224, 224), (2, 224, 224))),
    _model("segformer", "SegFormer-B0", _segformer),
    Case(
        "wav2vec2",
        "Wav2Vec2-base",
        _wav2vec2,
        lambda shape: (random_tensor(*shape),),
        ((1, 16000), (2, 12345), (1, 40000)),
        (0, 1),
        (2, 9001),
        network=True,
        tuned=_never,
    ),
)
