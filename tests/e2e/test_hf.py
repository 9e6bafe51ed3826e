"""disc.hf: folders of Hugging Face models, in `transformers.pipeline` and on the command line, against transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
    ResNetConfig,
    ResNetForImageClassification,
)
from transformers.modeling_outputs import SequenceClassifierOutput

import disc
from disc.cli.main import main
from disc.errors import DeviceError, InputTypeError, UnsupportedFormatError
from disc.hf import DiscModelForFeatureExtraction, DiscModelForImageClassification, DiscModelForSequenceClassification

WORDS = ["[PAD]", "[UNK]", "a", "good", "bad", "film", "not", "very"]
SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 8}
LABELED: dict[str, Any] = {**SMALL, "num_labels": 3}
TEXTS = ["a good film", "not very good", "bad", "a a a a a a film"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text classifier with its tokenizer, as save_pretrained writes them."""
    path = tmp_path_factory.mktemp("classifier")
    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig(**LABELED)).save_pretrained(path)
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    names = ["input_ids", "token_type_ids", "attention_mask"]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_input_names=names, model_max_length=64
    ).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def saved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compiled")
    DiscModelForSequenceClassification.from_pretrained(folder).save_pretrained(path)
    return path


def test_a_pipeline_cannot_tell(folder: Path, saved: Path) -> None:
    expected: Any = transformers.pipeline("text-classification", model=str(folder), top_k=None)(TEXTS, batch_size=2)
    model = DiscModelForSequenceClassification.from_pretrained(saved, compile=False)
    pipe = transformers.pipeline("text-classification", model=model, tokenizer=str(saved), top_k=None)  # pyright: ignore[reportArgumentType, reportCallIssue]
    for found, wanted in zip(pipe(TEXTS, batch_size=2), expected, strict=True):
        assert [each["label"] for each in found] == [each["label"] for each in wanted]
        assert [each["score"] for each in found] == pytest.approx([each["score"] for each in wanted], abs=1e-5)


def test_calls_are_those_of_the_model(folder: Path, saved: Path) -> None:
    eager = BertForSequenceClassification.from_pretrained(folder).eval()
    model = DiscModelForSequenceClassification.from_pretrained(saved)
    ids = torch.tensor([[2, 3, 5], [4, 0, 0]])
    mask = (ids != 0).long()
    with torch.no_grad():
        wanted, alone = eager(ids, mask).logits, eager(ids).logits
    result = model(input_ids=ids, attention_mask=mask.bool())
    assert type(result) is SequenceClassifierOutput
    torch.testing.assert_close(result.logits, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.forward(ids).logits, alone, atol=1e-5, rtol=1e-5)
    assert isinstance(model(ids, return_dict=False), tuple)
    assert model.to("cpu").eval() is model and model.config.num_labels == 3 and not model.can_generate()
    with pytest.raises(InputTypeError, match="output_attentions=True: the model was compiled without; its results are logits"):
        model(ids, output_attentions=True)
    with pytest.raises(DeviceError, match="cannot move to cuda"):
        model.to("cuda")


def test_feature_extraction(tmp_path: Path) -> None:
    eager = BertModel(BertConfig(**SMALL)).eval()
    eager.save_pretrained(tmp_path)
    model = DiscModelForFeatureExtraction.from_pretrained(tmp_path)  # without a tokenizer: ids and mask
    for sizes in ((1, 1), (3, 7)):
        ids = torch.randint(8, sizes)
        with torch.no_grad():
            wanted = eager(ids)
        result = model(ids)
        torch.testing.assert_close(result.last_hidden_state, wanted.last_hidden_state, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(result.pooler_output, wanted.pooler_output, atol=1e-5, rtol=1e-5)


def test_images(tmp_path: Path) -> None:
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    eager = ResNetForImageClassification(config).eval()
    eager.save_pretrained(tmp_path)
    model = DiscModelForImageClassification.from_pretrained(tmp_path)
    for sizes in ((1, 32, 32), (2, 40, 56)):
        pixels = torch.randn(sizes[0], 3, *sizes[1:])
        with torch.no_grad():
            wanted = eager(pixels).logits
        torch.testing.assert_close(model(pixel_values=pixels).logits, wanted, atol=1e-5, rtol=1e-5)


def test_the_command_line(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.disc"
    assert main(["compile", f"hf:{folder}", "--task", "text-classification", "-o", str(path)]) == 0
    assert [value.name for value in disc.load(path).outputs] == ["logits"]


def test_folders_that_do_not_do(folder: Path, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        UnsupportedFormatError, match=r"is for the task text-classification, not feature-extraction: give disc\.hf\.DiscModelForSeq"
    ):
        DiscModelForFeatureExtraction.from_pretrained(saved)
    with pytest.raises(UnsupportedFormatError, match=r"has no model\.disc: give compile=True"):
        DiscModelForSequenceClassification.from_pretrained(folder, compile=False)
    with pytest.raises(UnsupportedFormatError, match=r"has no config\.json"):
        DiscModelForSequenceClassification.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "nothing-known"}')
    with pytest.raises(UnsupportedFormatError, match="nothing-known"):
        DiscModelForSequenceClassification.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(BertConfig(**SMALL).to_json_string())
    torch.save({}, tmp_path / "pytorch_model.bin")  # pickled weights are not read
    with pytest.raises(UnsupportedFormatError, match="transformers cannot load it for text-classification"):
        DiscModelForSequenceClassification.from_pretrained(tmp_path)
    for arguments, message in (
        (["compile", f"hf:{folder}"], "--task is for hf:FOLDER"),
        (["compile", f"hf:{folder}", "--task", "poetry"], "there is no task 'poetry'"),
        (["compile", "tests.models:mlp", "--task", "fill-mask"], "--task is for hf:FOLDER"),
    ):
        assert main([*arguments, "-o", str(tmp_path / "x.disc")]) == 1
        assert message in capsys.readouterr().err


def test_code_in_a_folder_is_not_run(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForSequenceClassification": "evil.Model"}
    config["model_type"] = "evil"
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UnsupportedFormatError):
        DiscModelForSequenceClassification.from_pretrained(tmp_path)
    assert not (tmp_path / "ran").exists()
