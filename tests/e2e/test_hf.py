"""disc.hf: folders of Hugging Face models, in `transformers.pipeline` and on the command line, against transformers itself."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    BloomConfig,
    BloomForCausalLM,
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedTokenizerFast,
    ResNetConfig,
    ResNetForImageClassification,
)
from transformers.modeling_outputs import SequenceClassifierOutput

import disc
import disc.hf
from disc.cli.main import main
from disc.errors import DeviceError, InputTypeError, InputValueError, ShapeConstraintError, UnsupportedFormatError
from disc.hf import (
    DiscModelForCausalLM,
    DiscModelForFeatureExtraction,
    DiscModelForImageClassification,
    DiscModelForSequenceClassification,
)

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


def test_a_pipeline_cannot_tell(folder: Path, saved: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: Any = transformers.pipeline("text-classification", model=str(folder), top_k=None)(TEXTS, batch_size=2)
    model = DiscModelForSequenceClassification.from_pretrained(saved, compile=False)
    with caplog.at_level("ERROR", "transformers"):
        monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
        pipe = transformers.pipeline("text-classification", model=model, tokenizer=str(saved), top_k=None)  # pyright: ignore[reportArgumentType, reportCallIssue]
        assert "is not supported for" not in caplog.text
        caplog.clear()
        transformers.pipeline("token-classification", model=model, tokenizer=str(saved))  # pyright: ignore[reportArgumentType, reportCallIssue]
        assert "is not supported for" in caplog.text, "of another task it is told"
    eager: Any = transformers.pipeline("text-classification", model=str(folder))
    assert repr(pipe) == repr(eager).replace("Bert", "DiscModel")
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
    with pytest.raises(
        UnsupportedFormatError,
        match=r"cannot load it for text-classification: .*; pytorch_model\.bin is pickled, and reading it could run code",
    ):
        DiscModelForSequenceClassification.from_pretrained(tmp_path)
    for arguments, message in (
        (["compile", f"hf:{saved}", "--task", "text-classification"], "; it holds a compiled model, model.disc, which from_pretrained of"),
        (["compile", f"hf:{folder}"], "needs --task, such as"),
        (["compile", f"hf:{folder}-gone"], "there is no folder"),  # before a task is asked for
        (["compile", f"hf:{tmp_path.parent}"], "has no config.json"),
        (["compile", f"hf:{folder}", "--task", "poetry"], "there is no task 'poetry'"),
        (["compile", "tests.models:mlp", "--task", "fill-mask"], "--task is for hf:FOLDER"),
    ):
        assert main([*arguments, "-o", str(tmp_path / "x.disc")]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.safetensors", lambda whole: whole[:1000], "transformers cannot load it for text-classification: Error while deserializing"),
        ("model.safetensors", lambda whole: b"", "transformers cannot load it for text-classification: "),
        (
            "config.json",
            lambda whole: whole.replace(b'"hidden_size": 32', b'"hidden_size": 64'),
            "cannot load it for text-classification: ",
        ),
        ("config.json", lambda whole: whole.replace(b'"hidden_size": 32', b'"hidden_size": "x"'), r"config\.json: "),
        ("config.json", lambda whole: whole[:50], r"config\.json: .*is not a valid JSON file"),
        ("config.json", lambda whole: b"[]", r"config\.json: "),
    ],
)
def test_damaged_files_of_a_folder(folder: Path, tmp_path: Path, name: str, content: Callable[[bytes], bytes], words: str) -> None:
    shutil.copytree(folder, tmp_path / "damaged")
    (tmp_path / "damaged" / name).write_bytes(content((folder / name).read_bytes()))
    with pytest.raises(UnsupportedFormatError, match=words):
        DiscModelForSequenceClassification.from_pretrained(tmp_path / "damaged")


def test_code_in_a_folder_is_not_run(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForSequenceClassification": "evil.Model"}
    config["model_type"] = "evil"
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UnsupportedFormatError):
        DiscModelForSequenceClassification.from_pretrained(tmp_path)
    assert not (tmp_path / "ran").exists()


# --- generation -----------------------------------------------------------------------------------------------------------------

TOKENS: dict[str, Any] = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA: dict[str, Any] = {
    **TOKENS,
    **{k: SMALL[k] for k in ("hidden_size", "num_attention_heads", "intermediate_size")},
    "num_hidden_layers": 2,
}
MAKERS: dict[str, Any] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, num_key_value_heads=1, max_position_embeddings=64)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**TOKENS, n_embd=32, n_head=2, n_layer=2, n_positions=64)),
    "bloom": lambda: BloomForCausalLM(BloomConfig(**TOKENS, hidden_size=32, n_head=2, n_layer=1)),  # takes no positions
}
PADDED = torch.tensor([[0, 0, 5, 9], [4, 9, 7, 20]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])


def pair(name: str, folder: Path) -> tuple[Any, DiscModelForCausalLM]:
    """The model in eager, and compiled, saved and loaded."""
    torch.manual_seed(0)
    eager = MAKERS[name]().eval()
    eager.generation_config.repetition_penalty = 1.2
    eager.save_pretrained(folder / name)
    DiscModelForCausalLM.from_pretrained(folder / name).save_pretrained(folder / f"{name}-compiled")
    return eager, DiscModelForCausalLM.from_pretrained(folder / f"{name}-compiled", compile=False)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, DiscModelForCausalLM]:
    return pair("llama", tmp_path_factory.mktemp("llama"))


def check_generation(eager: Any, model: Any) -> None:
    assert model.can_generate() and model.generation_config.repetition_penalty == 1.2
    for ids, mask in (PADDED, (torch.tensor([[3, 4, 5, 9, 11]]), None), (torch.tensor([[7]]), None)):
        for options in (
            {},
            {"do_sample": True, "top_k": 9, "temperature": 1.5},
            {"num_beams": 3, "max_new_tokens": 5},
            {"use_cache": False},
        ):
            found = []
            for each in (eager, model):
                torch.manual_seed(1)
                found.append(each.generate(ids, attention_mask=mask, **{"max_new_tokens": 12, **options}))
            assert torch.equal(*found), options


def test_generation_is_that_of_the_model(llama: tuple[Any, DiscModelForCausalLM]) -> None:
    check_generation(*llama)


@pytest.mark.parametrize("name", ["gpt2", "bloom"])
def test_generation_of_others(name: str, tmp_path: Path) -> None:
    check_generation(*pair(name, tmp_path))


def test_steps_behind_a_cache(llama: tuple[Any, DiscModelForCausalLM]) -> None:
    eager, model = llama
    theirs, ours = DynamicCache(config=eager.config), DynamicCache(config=eager.config)
    ids, mask = PADDED
    for tokens, rows in ((ids, mask), (ids[:, :1], torch.cat([mask, torch.ones(2, 1, dtype=torch.int64)], 1))):
        with torch.no_grad():
            wanted = eager(tokens, attention_mask=rows, past_key_values=theirs)
        found = model(tokens, attention_mask=rows.bool(), past_key_values=ours)
        assert found.past_key_values is ours and ours.get_seq_length() == rows.shape[1]
        torch.testing.assert_close(found.logits, wanted.logits, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        whole = eager(ids).logits
    for keep, kept in ((0, whole), (1, whole[:, -1:]), (9, whole), (torch.tensor([2, 0]), whole[:, [2, 0]])):
        torch.testing.assert_close(model(ids, logits_to_keep=keep).logits, kept, atol=1e-5, rtol=1e-5)
    assert model(ids, use_cache=False).past_key_values is None and isinstance(model(ids, return_dict=False), tuple)
    going_on = DynamicCache()
    first = model.generate(ids[1:], max_new_tokens=4, past_key_values=going_on)
    longer = torch.cat([first, torch.tensor([[8, 9]])], 1)
    assert torch.equal(model.generate(longer, max_new_tokens=4, past_key_values=going_on), eager.generate(longer, max_new_tokens=4))


def test_a_pipeline_generates(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**{**LLAMA, "vocab_size": 8}, max_position_embeddings=64)).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    DiscModelForCausalLM.from_pretrained(tmp_path).save_pretrained(tmp_path / "compiled")
    model: Any = DiscModelForCausalLM.from_pretrained(tmp_path / "compiled", compile=False)
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "batch_size": 2}
    wanted = transformers.pipeline("text-generation", model=str(tmp_path))(TEXTS, **options)
    pipe = transformers.pipeline("text-generation", model=model, tokenizer=str(tmp_path / "compiled"))
    assert pipe(TEXTS, **options) == wanted and "'output_modalities': ('text',)" in repr(pipe)


def test_generation_on_the_command_line(
    llama: tuple[Any, DiscModelForCausalLM], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eager, _ = llama
    eager.save_pretrained(tmp_path / "llama")
    source, path = [f"hf:{tmp_path / 'llama'}", "--task", "text-generation"], tmp_path / "out.disc"
    assert main(["compile", *source, "-o", str(path)]) == 0
    executable = disc.load(path)
    layers = [f"past_key_values.{layer}.{part}" for layer in range(2) for part in ("key", "value")]
    assert [each.name for each in executable.inputs] == ["input_ids", "attention_mask", "position_ids", *layers, "logits_to_keep"]
    assert [each.name for each in executable.outputs] == ["logits", *layers]
    shape = ",".join(
        ["input_ids=2x3", "attention_mask=2x8", "position_ids=2x3", *(f"{name}=2x1x5x16" for name in layers), "logits_to_keep=1"]
    )
    assert main(["run", str(path), "--random", shape]) == 0
    assert "past_key_values.1.value" in capsys.readouterr().out
    assert main(["bench", *source, "--against", "eager", "--shape", shape, "--seconds", "0.1"]) == 0
    assert "eager was not timed" not in capsys.readouterr().out


def test_generation_that_does_not_go(llama: tuple[Any, DiscModelForCausalLM], folder: Path, tmp_path: Path) -> None:
    _, model = llama
    with pytest.raises(InputValueError, match=r"65 tokens \(64 of them in the cache\), and the model has positions for 64"):
        model.generate(torch.ones(1, 60, dtype=torch.int64), max_new_tokens=9, eos_token_id=None)
    with pytest.raises(InputTypeError, match="past_key_values is of StaticCache"):
        model.generate(PADDED[0], max_new_tokens=2, cache_implementation="static")
    with pytest.raises(ShapeConstraintError, match=r"attention_mask is \[1, 4\]; expected \[2, 4\], for 0 tokens in the cache and 4 more"):
        model(PADDED[0], attention_mask=PADDED[1][:1])
    with pytest.raises(InputTypeError, match="output_hidden_states=True: the model was compiled without"):
        model(PADDED[0], output_hidden_states=True)
    with pytest.raises(UnsupportedFormatError, match=r"has no weights for text-generation: cls.predictions.bias, .* would be random"):
        DiscModelForCausalLM.from_pretrained(folder)
    BertForMaskedLM(BertConfig(**SMALL)).save_pretrained(tmp_path / "masked")
    with pytest.raises(UnsupportedFormatError, match=r"BertLMHeadModel .*; text-generation needs a model with a cache of keys and values"):
        DiscModelForCausalLM.from_pretrained(tmp_path / "masked")
    MambaForCausalLM(MambaConfig(vocab_size=8, hidden_size=16, num_hidden_layers=1)).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedFormatError, match="MambaForCausalLM takes no past_key_values"):
        DiscModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(AttributeError, match="no attribute 'DiscModelForPoetry'"):
        _ = disc.hf.DiscModelForPoetry  # pyright: ignore[reportAttributeAccessIssue]


def test_a_transformers_whose_caches_have_another_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As from 5.24 on."""
    small = LlamaConfig(vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    LlamaForCausalLM(small).save_pretrained(tmp_path)

    def forward(self: LlamaForCausalLM, input_ids: torch.Tensor | None = None, cache: object = None) -> None: ...

    monkeypatch.setattr(LlamaForCausalLM, "forward", forward)
    with pytest.raises(
        UnsupportedFormatError, match=r"takes no past_key_values, which transformers [\d.]+ calls cache \(disc.hf generates"
    ):
        DiscModelForCausalLM.from_pretrained(tmp_path)
