"""Models of transformers, tiny and with random weights, through torch.compile(backend="disc"): tokens and hidden states as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, ViTConfig, ViTModel

from disc.frontend import dynamo

TOKENS = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 49}
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=64, **TOKENS))


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=1, max_position_embeddings=64, **TOKENS))


long = pytest.mark.long


@pytest.mark.parametrize(
    ("make", "dynamic"),
    [(gpt2, True), pytest.param(gpt2, None, marks=long), pytest.param(llama, True, marks=long), pytest.param(llama, None, marks=long)],
)
def test_generate(make: Callable[[], GPT2LMHeadModel], dynamic: bool | None) -> None:
    """With dynamic=True a part was given sizes that depend on data, and generation ended in a CompilerBug."""
    model = make().eval()
    eager, compiled = model.forward, torch.compile(model.forward, backend="disc", dynamic=dynamic)
    for size in ((1, 7), (2, 5)):
        ids = torch.randint(1, 49, size)
        tokens = []
        for forward in (eager, compiled):
            model.forward = forward
            tokens.append(model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False, pad_token_id=0))
        assert torch.equal(*tokens)
    assert not dynamo.statistics().eager and not dynamo.statistics().failed


@pytest.mark.long
def test_bert() -> None:
    model = BertModel(BertConfig(**SIZES, vocab_size=50)).eval()
    compiled = torch.compile(model, backend="disc")
    for size in ((2, 5), (3, 7), (1, 1)):
        ids = torch.randint(0, 50, size)
        with torch.no_grad():
            ours, eager = compiled(ids, attention_mask=torch.ones_like(ids)), model(ids, attention_mask=torch.ones_like(ids))
        torch.testing.assert_close(ours.last_hidden_state, eager.last_hidden_state, rtol=1e-4, atol=1e-5)
    assert not dynamo.statistics().failed


@pytest.mark.long
def test_vit() -> None:
    model = ViTModel(ViTConfig(**SIZES, image_size=16, patch_size=4)).eval()
    compiled = torch.compile(model, backend="disc")
    for batch in (2, 3, 1):
        x = torch.randn(batch, 3, 16, 16)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x).last_hidden_state, model(x).last_hidden_state, rtol=1e-4, atol=1e-5)
    assert not dynamo.statistics().failed
