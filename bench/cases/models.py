"""Whole models of base size, from their configurations. transformers takes seconds to import, so each builder does it when it is called."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from bench.cases.case import Case, Inputs, Shape
from bench.cases.tuned import rows_are_tuned

TEXT_SHAPES: tuple[Shape, ...] = ((1, 16), (1, 64), (1, 37), (4, 50), (8, 64), (1, 256), (16, 23), (1, 45), (2, 71))
IMAGE_SHAPES: tuple[Shape, ...] = ((1, 224), (2, 224))
PATCHES = (224 // 16) ** 2 + 1  # of an image, with the class token
TOKENS = 20_000  # every vocabulary measured here is larger


class TextModel(nn.Module):
    """Token ids and attention mask in, the hidden states out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=mask)[0]


class ImageModel(nn.Module):
    """Pixels in, the hidden states out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.model(pixel_values=pixels)[0]


class AddOne(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def text_inputs(shape: Shape) -> Inputs:
    """Random ids; the mask is 0 for the last third of every row but the first, as in a padded batch."""
    batch, length = shape
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[1:, length - length // 3 :] = 0
    return torch.randint(3, TOKENS, (batch, length), generator=generator), mask


def image_inputs(shape: Shape) -> Inputs:
    """Square images: (batch, size)."""
    batch, size = shape
    return (torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(batch)),)


def _patches(shape: Shape) -> int:
    return shape[0] * PATCHES


def _text(name: str, title: str, build: Callable[[], nn.Module]) -> Case:
    return Case(
        name, title, lambda: TextModel(build()), text_inputs, TEXT_SHAPES, (0, 1), (3, 17), network=True, tuned=rows_are_tuned(math.prod)
    )


def _bert() -> nn.Module:
    import transformers

    return transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False)


def _albert() -> nn.Module:
    import transformers

    config = transformers.AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072)
    return transformers.AlbertModel(config, add_pooling_layer=False)


def _gpt2() -> nn.Module:
    import transformers

    return transformers.GPT2Model(transformers.GPT2Config(use_cache=False))


def _t5_encoder() -> nn.Module:
    import transformers

    config = transformers.T5Config(d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, use_cache=False)
    return transformers.T5EncoderModel(config)


def _vit() -> nn.Module:
    import transformers

    return ImageModel(transformers.ViTModel(transformers.ViTConfig(), add_pooling_layer=False))


def _small_bert() -> nn.Module:
    import transformers

    config = transformers.BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    return transformers.BertModel(config, add_pooling_layer=False)


MODEL_CASES = (
    _text("bert", "BERT-base", _bert),
    _text("albert", "ALBERT-base", _albert),
    _text("gpt2", "GPT-2", _gpt2),
    Case("vit", "ViT-base", _vit, image_inputs, IMAGE_SHAPES, (0,), (3, 224), network=True, tuned=rows_are_tuned(_patches)),
    _text("t5-encoder", "T5-small encoder", _t5_encoder),
)
SMALL_BERT = _text("bert-small", "BERT, 4 layers of width 256", _small_bert)
ADD_ONE = Case("add-one", "x + 1 on 4 elements", AddOne, lambda shape: (torch.zeros(shape),), ((4,),), (0,), (3,))
