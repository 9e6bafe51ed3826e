"""The models that are measured: base-size, from their configurations with seeded weights, nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from torch import nn
from torch.export import Dim

Inputs = tuple[torch.Tensor, ...]
Shape = tuple[int, ...]

TEXT_SHAPES: tuple[Shape, ...] = ((1, 16), (1, 64), (1, 37), (4, 50), (8, 64), (1, 256), (16, 23))
IMAGE_SHAPES: tuple[Shape, ...] = ((1, 224), (2, 224))
TOKENS = 20_000  # every vocabulary measured here is larger


@dataclass(frozen=True)
class Case:
    """One model. `dynamic`: the dims of every input that may change. `example`: the shape to compile with, not among `shapes`."""

    name: str
    title: str
    build: Callable[[], nn.Module]
    inputs: Callable[[Shape], Inputs]
    shapes: tuple[Shape, ...]
    dynamic: tuple[int, ...]
    example: Shape

    @property
    def dynamic_shapes(self) -> tuple[dict[int, object], ...]:
        """As `torch.export` and `disc.compile` take them."""
        return tuple({dim: Dim.AUTO for dim in self.dynamic} for _ in self.inputs(self.example))


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


def text_inputs(shape: Shape) -> Inputs:
    """Random ids; the mask is 0 for the last third of every row but the first, as in a padded batch."""
    batch, length = shape
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[1:, length - length // 3 :] = 0
    return torch.randint(3, TOKENS, (batch, length), generator=generator), mask


def image_inputs(shape: Shape) -> Inputs:
    batch, size = shape
    return (torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(batch)),)


def _text(name: str, title: str, build: Callable[[], nn.Module]) -> Case:
    return Case(name, title, lambda: TextModel(build()), text_inputs, TEXT_SHAPES, (0, 1), (3, 17))


def _bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False)


def _albert() -> nn.Module:
    config = transformers.AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072)
    return transformers.AlbertModel(config, add_pooling_layer=False)


def _gpt2() -> nn.Module:
    return transformers.GPT2Model(transformers.GPT2Config(use_cache=False))


def _t5_encoder() -> nn.Module:
    config = transformers.T5Config(d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, use_cache=False)
    return transformers.T5EncoderModel(config)


def _vit() -> nn.Module:
    return ImageModel(transformers.ViTModel(transformers.ViTConfig(), add_pooling_layer=False))


def _small_bert() -> nn.Module:
    config = transformers.BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    return transformers.BertModel(config, add_pooling_layer=False)


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        _text("bert", "BERT-base", _bert),
        _text("albert", "ALBERT-base", _albert),
        _text("gpt2", "GPT-2", _gpt2),
        Case("vit", "ViT-base", _vit, image_inputs, IMAGE_SHAPES, (0,), (3, 224)),
        _text("t5-encoder", "T5-small encoder", _t5_encoder),
        _text("bert-small", "BERT, 4 layers of width 256", _small_bert),
    )
}
MEASURED = ("bert", "albert", "gpt2", "vit", "t5-encoder")


def build(case: Case) -> nn.Module:
    """The model with its seeded weights, in evaluation mode."""
    torch.manual_seed(0)
    return case.build().eval()


def parse_shapes(text: str | None, case: Case) -> tuple[Shape, ...]:
    """ "1x16,4x50" → ((1, 16), (4, 50)); None = the shapes of the case. Raises ValueError for anything else."""
    if not text:
        return case.shapes
    shapes = tuple(tuple(int(size) for size in part.split("x")) for part in text.split(","))
    if any(len(shape) != 2 or min(shape) < 1 for shape in shapes):
        raise ValueError(f"shapes are written BATCHxSIZE,BATCHxSIZE,..., not {text!r}")
    return shapes


def shape_name(shape: Shape) -> str:
    return "x".join(map(str, shape))
