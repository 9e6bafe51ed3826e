"""Tiny seeded models for the tests: `MODELS[name]()` → (model, example inputs, dynamic shapes); `shapes(name)` → many input tuples.

`full=True` builds the base-size variant of a model that has one (bert, gpt2, vit, albert, t5-encoder). `LARGE` has the models of
BladeDISC's Table 1, each of which is the tiny one of its kind without `full=True`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import transformers
from torch import nn
from torch.export import Dim
from transformers.models.clip.modeling_clip import CLIPTextModel, CLIPVisionModel

from bench.cases import ImageModel, TextModel

Inputs = tuple[torch.Tensor, ...]
DynamicShapes = tuple[dict[int, object] | None, ...] | None
Built = tuple[nn.Module, Inputs, DynamicShapes]
Config = TypeVar("Config")

VOCABULARY = 200
# (batch, length): size 1, primes, powers of two, their neighbors; all unseen by the export, which runs on (3, 17).
TEXT_SIZES = [(1, 1), (1, 2), (2, 1), (1, 7), (2, 13), (3, 16), (4, 17), (5, 31), (1, 64), (7, 33), (2, 63), (11, 3), (1, 97)]
IMAGE_SIZES = [(1, 96, 96), (2, 96, 128), (3, 64, 64), (1, 97, 65), (5, 64, 96), (1, 127, 64), (2, 65, 65), (7, 64, 64), (1, 224, 224),
               (2, 101, 103), (1, 64, 160), (4, 66, 70)]  # fmt: skip
BATCHES = [1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 31]


class EncoderDecoder(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, decoder_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, decoder_input_ids=decoder_ids)[0]


def text_inputs(batch: int = 3, length: int = 17) -> Inputs:
    """Ids, and a mask that is 0 for the last third of each row but the first."""
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    ids = torch.randint(3, VOCABULARY, (batch, length), generator=generator)
    mask = torch.ones(batch, length, dtype=torch.int64)
    if length > 2:
        mask[1:, length - length // 3 :] = 0
    return ids, mask


def decoder_inputs(batch: int = 3, length: int = 17) -> Inputs:
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    target = length // 2 + 1
    shape = (batch, length), (batch, target)
    return torch.randint(3, VOCABULARY, shape[0], generator=generator), torch.randint(3, VOCABULARY, shape[1], generator=generator)


def image_inputs(batch: int = 2, height: int = 96, width: int = 128) -> Inputs:
    return (torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(batch)),)


def square_inputs(batch: int = 2) -> Inputs:
    return image_inputs(batch, 32, 32)


def matrix_inputs(batch: int = 3, length: int = 5) -> Inputs:
    return (torch.randn(batch, length, 16, generator=torch.Generator().manual_seed(batch)),)


TEXT_DIMS: DynamicShapes = ({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.AUTO})
IMAGE_DIMS: DynamicShapes = ({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO},)
BATCH_DIMS: DynamicShapes = ({0: Dim.AUTO},)


def small(config: Callable[..., Config], full: bool, **options: object) -> Config:
    """The config with 2 layers of width 64, or as the library defines it."""
    base: dict[str, object] = {} if full else {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": VOCABULARY,
    }  # fmt: skip
    return config(**{**base, **options})


def text(build: Callable[[], nn.Module]) -> Built:
    torch.manual_seed(0)
    return TextModel(build()).eval(), text_inputs(), TEXT_DIMS


def bert(full: bool = False) -> Built:
    return text(lambda: transformers.BertModel(small(transformers.BertConfig, full), add_pooling_layer=False))


def albert(full: bool = False) -> Built:
    base = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072} if full else {"embedding_size": 32}
    return text(lambda: transformers.AlbertModel(small(transformers.AlbertConfig, full, **base), add_pooling_layer=False))


def distilbert() -> Built:
    config = transformers.DistilBertConfig(dim=64, n_layers=2, n_heads=4, hidden_dim=128, vocab_size=VOCABULARY)
    return text(lambda: transformers.DistilBertModel(config))


def roberta() -> Built:
    return text(lambda: transformers.RobertaModel(small(transformers.RobertaConfig, False), add_pooling_layer=False))


def deberta() -> Built:
    config = small(transformers.DebertaV2Config, False, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8)
    return text(lambda: transformers.DebertaV2Model(config))


def deberta_v1() -> Built:
    config = small(transformers.DebertaConfig, False, relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=20)
    return text(lambda: transformers.DebertaModel(config))


def openai_gpt(full: bool = False) -> Built:
    options: dict[str, Any] = {} if full else {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY}
    return text(lambda: transformers.OpenAIGPTModel(transformers.OpenAIGPTConfig(**options)))


def gpt2(full: bool = False) -> Built:
    options: dict[str, Any] = {} if full else {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY}
    return text(lambda: transformers.GPT2Model(transformers.GPT2Config(use_cache=False, **options)))


def llama() -> Built:
    return text(lambda: transformers.LlamaModel(small(transformers.LlamaConfig, False, num_key_value_heads=2, use_cache=False)))


def qwen3() -> Built:
    config = small(transformers.Qwen3Config, False, num_key_value_heads=2, head_dim=16, use_cache=False)
    return text(lambda: transformers.Qwen3Model(config))


def t5_config(full: bool) -> transformers.T5Config:
    options: dict[str, Any] = (
        {} if full else {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}
    )
    return transformers.T5Config(use_cache=False, **options)


def t5_encoder(full: bool = False) -> Built:
    return text(lambda: transformers.T5EncoderModel(t5_config(full)))


def t5() -> Built:
    torch.manual_seed(0)
    return EncoderDecoder(transformers.T5Model(t5_config(False))).eval(), decoder_inputs(), TEXT_DIMS


def vit(full: bool = False) -> Built:
    torch.manual_seed(0)
    if full:
        model = transformers.ViTModel(transformers.ViTConfig(), add_pooling_layer=False)
        return ImageModel(model).eval(), image_inputs(2, 224, 224), BATCH_DIMS
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8
    )
    return ImageModel(transformers.ViTModel(config, add_pooling_layer=False)).eval(), square_inputs(), BATCH_DIMS


def clip_vision() -> Built:
    torch.manual_seed(0)
    config = transformers.CLIPVisionConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8
    )
    return ImageModel(CLIPVisionModel(config)).eval(), square_inputs(), BATCH_DIMS


def clip_text() -> Built:
    config = small(transformers.CLIPTextConfig, False, max_position_embeddings=128, eos_token_id=2)
    return text(lambda: CLIPTextModel(config))


def resnet() -> Built:
    torch.manual_seed(0)
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1])
    return ImageModel(transformers.ResNetModel(config)).eval(), image_inputs(), IMAGE_DIMS


def convnext() -> Built:
    torch.manual_seed(0)
    config = transformers.ConvNextConfig(hidden_sizes=[16, 32, 64, 128], depths=[1, 1, 1, 1])
    return ImageModel(transformers.ConvNextModel(config)).eval(), image_inputs(), IMAGE_DIMS


def mlp() -> Built:
    torch.manual_seed(0)
    layers = nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8), nn.Softmax(-1)
    return nn.Sequential(*layers).eval(), matrix_inputs(), ({0: Dim.AUTO, 1: Dim.AUTO},)


MODELS: dict[str, Callable[..., Built]] = {
    "bert": bert, "albert": albert, "distilbert": distilbert, "roberta": roberta, "deberta": deberta, "deberta-v1": deberta_v1,
    "openai-gpt": openai_gpt, "gpt2": gpt2, "llama": llama, "qwen3": qwen3, "t5-encoder": t5_encoder, "t5": t5, "vit": vit, "clip-vision": clip_vision,
    "clip-text": clip_text, "resnet": resnet, "convnext": convnext, "mlp": mlp,
}  # fmt: skip
FULL = ("bert", "albert", "gpt2", "vit", "t5-encoder")


def bert_large(full: bool = False) -> Built:
    if not full:
        return bert()
    config = transformers.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    return text(lambda: transformers.BertModel(config, add_pooling_layer=False))


def albert_large(full: bool = False) -> Built:
    if not full:
        return albert()
    config = transformers.AlbertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    return text(lambda: transformers.AlbertModel(config, add_pooling_layer=False))


def t5_large(full: bool = False) -> Built:
    if not full:
        return t5()
    torch.manual_seed(0)
    config = transformers.T5Config(d_model=1024, d_kv=64, d_ff=4096, num_layers=24, num_heads=16, use_cache=False)
    return EncoderDecoder(transformers.T5Model(config)).eval(), decoder_inputs(), TEXT_DIMS


def clip_vision_large(full: bool = False) -> Built:
    if not full:
        return clip_vision()
    torch.manual_seed(0)
    config = transformers.CLIPVisionConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, patch_size=14
    )
    return ImageModel(CLIPVisionModel(config)).eval(), image_inputs(2, 224, 224), BATCH_DIMS


LARGE: dict[str, Callable[..., Built]] = {
    "bert-large": bert_large, "albert-large": albert_large, "openai-gpt": openai_gpt, "t5-large": t5_large,
    "clip-vit-large": clip_vision_large,
}  # fmt: skip
BUILDERS = MODELS | LARGE


def shapes(name: str, full: bool = False) -> list[Inputs]:
    """At least 12 input tuples: sizes 1, primes, and sizes that no example had."""
    if name in ("vit", "clip-vision"):
        size = 224 if full else 32
        return [image_inputs(batch, size, size) for batch in BATCHES]
    if name in ("resnet", "convnext"):
        return [image_inputs(*size) for size in IMAGE_SIZES]
    if name == "mlp":
        return [matrix_inputs(*size) for size in TEXT_SIZES]
    return [decoder_inputs(*size) if name == "t5" else text_inputs(*size) for size in TEXT_SIZES]
