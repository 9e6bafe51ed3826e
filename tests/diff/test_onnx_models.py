"""Models as PyTorch's exporter writes them to ONNX, at three sizes against ONNX Runtime."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import disc
from disc.config import Options

OPSET = 17


class First(nn.Module):
    """The first result of a model of Transformers."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], **fixed: object) -> None:
        super().__init__()
        self.model, self.names, self.fixed = model, names, fixed

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True)), **self.fixed, return_dict=False)[0]


TEXT = ("input_ids", "attention_mask")


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    return First(BertModel(BertConfig(vocab_size=100, max_position_embeddings=64, **sizes)), TEXT)


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2)
    return First(GPT2LMHeadModel(config), TEXT, use_cache=False)


def t5() -> nn.Module:
    from transformers import T5Config, T5EncoderModel

    return First(T5EncoderModel(T5Config(vocab_size=100, d_model=32, d_kv=8, num_layers=2, num_heads=4, d_ff=64)), TEXT)


def resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic")
    return First(_lively(ResNetModel(config)), ("pixel_values",))


def mobilenet() -> nn.Module:
    from transformers import MobileNetV1Config, MobileNetV1Model

    return First(_lively(MobileNetV1Model(MobileNetV1Config(depth_multiplier=0.25, min_depth=8))), ("pixel_values",))


def _lively(model: nn.Module) -> nn.Module:
    """Weights under which values neither vanish nor grow from layer to layer."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return model


def _inputs(names: tuple[str, ...], batch: int, size: int) -> tuple[torch.Tensor, ...]:
    if names == TEXT:
        return torch.randint(3, 90, (batch, size)), torch.ones(batch, size, dtype=torch.int64)
    return (torch.randn(batch, 3, 64 + size, 64 + 2 * size),)


@pytest.mark.long
@pytest.mark.parametrize("make", [bert, gpt2, t5, resnet, mobilenet], ids=lambda make: make.__name__)
def test_model(make: Callable[[], First], tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model, path = make().eval(), str(tmp_path / "model.onnx")
    axes = {name: {0: "batch", 1: "length"} if model.names == TEXT else {0: "batch", 2: "height", 3: "width"} for name in model.names}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        inputs = _inputs(model.names, 2, 8 if model.names == TEXT else 64)  # of odd sizes on the way MobileNet computes pads
        torch.onnx.export(model, inputs, path, dynamo=False, input_names=list(model.names), dynamic_axes=axes, opset_version=OPSET)
    compiled = disc.compile(path, options=Options(cache=False))
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch, size in ((1, 1), (3, 13), (2, 37)):
        given = _inputs(model.names, batch, size)
        (want,) = session.run(None, {name: value.numpy() for name, value in zip(model.names, given, strict=True)})
        got = compiled(*given)
        assert isinstance(got, torch.Tensor) and float(np.abs(want).max()) > 1e-3
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-3, atol=2e-5 * float(np.abs(want).max()))
