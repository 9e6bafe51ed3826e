"""disc.hf.sentences: the encoder of a SentenceTransformer, compiled, against sentence-transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from disc.errors import ConfigurationError, DiscError, InputTypeError, UnsupportedFormatError
from disc.hf import DiscModelForFeatureExtraction
from disc.hf.sentences import DiscTransformer

WORDS = ["[PAD]", "[UNK]", "query", ":", "a", "good", "bad", "film", "not", "very"]
TEXTS = [
    "a good film",
    "not very good",
    "bad",
    "",
    *(" ".join(WORDS[2 + number % 8] for number in range(count)) for count in (5, 11, 13, 40)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentenceTransformer with mean and other pooling, normalized, that cuts texts at 12 tokens and knows a prompt."""
    path = tmp_path_factory.mktemp("sentences")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(**sizes, vocab_size=len(WORDS))).save_pretrained(path / "bert")
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    names = ["input_ids", "token_type_ids", "attention_mask"]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_input_names=names, model_max_length=64
    ).save_pretrained(path / "bert")
    encoder = Transformer(str(path / "bert"), max_seq_length=12)
    pooling = Pooling(encoder.get_embedding_dimension(), ("mean", "max", "cls"), include_prompt=False)
    made = SentenceTransformer(modules=[encoder, pooling, Normalize()], prompts={"query": "query : "}, device="cpu")
    made.save_pretrained(str(path / "whole"))
    return path


def embeddings(model: SentenceTransformer) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(model.encode(TEXTS, batch_size=3)), np.asarray(model.encode(TEXTS[:3] + TEXTS[4:], prompt_name="query"))]


def test_embeddings_are_those_of_eager(folder: Path, tmp_path: Path) -> None:
    """In the place of the first module, with prompts and cut texts; and loaded again, without compiling."""
    model = SentenceTransformer(str(folder / "whole"), device="cpu")
    wanted = embeddings(model)
    model[0] = DiscTransformer.load(folder / "whole", model_kwargs={"threads": 1})
    assert isinstance(model[0].model, DiscModelForFeatureExtraction) and model.max_seq_length == 12
    for one, other in zip(embeddings(model), wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5)
    model.save_pretrained(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    compiled = cast("DiscModelForFeatureExtraction", again[0].model)
    assert isinstance(again[0], DiscTransformer) and not list(tmp_path.glob("*.safetensors"))
    assert compiled.executable.stats()["compiles"] == 0
    for one, other in zip(embeddings(again), wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5)


def test_a_list_of_modules_of_a_folder_of_a_model(folder: Path) -> None:
    eager, compiled = (kind(str(folder / "bert")) for kind in (Transformer, DiscTransformer))
    found, wanted = (
        SentenceTransformer(modules=[each, Pooling(each.get_embedding_dimension())], device="cpu").encode(TEXTS)
        for each in (compiled, eager)
    )
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)


def test_what_does_not_fit(folder: Path) -> None:
    bert = str(folder / "bert")
    cases: tuple[tuple[dict[str, Any], type[DiscError], str], ...] = (
        ({"model_kwargs": {"thread": 2}}, ConfigurationError, r"no argument 'thread' \(did you mean threads\?\); there are compile, dtype"),
        ({"transformer_task": "fill-mask"}, UnsupportedFormatError, "token embeddings; it is not for the task fill-mask"),
        ({"backend": "onnx"}, UnsupportedFormatError, "leave out backend='onnx'"),
        ({"model_kwargs": {"compile": False}}, UnsupportedFormatError, r"has no model\.disc"),
    )
    for options, kind, words in cases:
        with pytest.raises(kind, match=words):
            DiscTransformer(bert, **options)
    for make in (DiscTransformer, DiscTransformer.load):
        with pytest.raises(UnsupportedFormatError, match="there is no folder nowhere: nothing is downloaded"):
            make("nowhere")
    with pytest.raises(InputTypeError, match="compiled for inference"):
        DiscTransformer(bert).train()
