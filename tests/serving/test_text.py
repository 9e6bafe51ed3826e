"""Text in, vectors and labels out: a model of token ids behind the tokenizer in its folder."""

from __future__ import annotations

import json
import struct
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import programs
import pytest
from oip_client import Client, serving
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from disc.artifact.file import write_artifact
from disc.errors import ConfigurationError
from disc.serving.settings import settings_of

# logits [S0, 3]: how often each id % 3 is under the mask. states [S0, S1, 2]: the id, and 1. Ids from 8 on are out of range; it takes
# one token at least, as models do that pool by the first.
COUNTS = """
#include <string.h>
#include "ral.h"
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  int64_t rows = in[0].dims[0], length = in[0].dims[1];
  if (!length) return api->fail(exec, 0, 0, 0);
  float* logits = api->output(exec, 0, (int64_t[]){rows, 3});
  float* states = api->output(exec, 1, (int64_t[]){rows, length, 2});
  if (!logits || !states) return 1;
  memset(logits, 0, rows * 12);
  for (int64_t i = 0; i < rows * length; ++i) {
    int64_t id = ((const int64_t*)in[0].data)[i];
    if (id < 0 || id > 7) return api->fail(exec, 0, id, 8);
    if (MASKED ? ((const int64_t*)in[1].data)[i] : 1) logits[i / length * 3 + id % 3] += 1;
    states[2 * i] = id, states[2 * i + 1] = 1;
  }
  return 0;
}
"""
VOCABULARY = {"[PAD]": 7, "[UNK]": 1, "good": 2, "bad": 3, "film": 4, "very": 5}
LABELS = {"id2label": {"0": "negative", "1": "neutral", "2": "positive"}}
TEXTS = ["very good film good", "bad"]  # ids 5 2 4 2, 3
Call = Callable[..., dict[str, Any]]


def write_counts(folder: Path, masked: bool = True) -> None:
    """The model with its tokenizer and its config."""
    folder.mkdir(parents=True)
    names = ["input_ids", "attention_mask"] if masked else ["input_ids"]
    made = programs.manifest(
        [{"name": name, "dtype": "i64", "dims": ["S0", "S1"]} for name in names],
        [
            {"name": "logits", "dtype": "f32", "rank": 2, "dims": ["S0", 3]},
            {"name": "states", "dtype": "f32", "rank": 3, "dims": ["S0", "S1", 2]},
        ],
        checks=("input 'input_ids' (line /home/somebody/model.py:3): {actual} is out of range for a dim of size {expected}",),
    )
    made["symbols"] = [{"name": f"S{axis}", "min": 0, "divisor": 1, "source": f"arg0.{axis}"} for axis in (0, 1)]
    made["symbols"][1]["max"] = 6
    made["single"] = False
    made["batch"] = {"symbol": "S0", "inputs": [0] * len(names), "outputs": [0, 0]}
    write_artifact(folder / "model.disc", made, {"x86-64-v3": programs.build(COUNTS, f"MASKED={int(masked)}")})
    write_tokenizer(folder / "tokenizer.json", VOCABULARY)
    (folder / "config.json").write_text(json.dumps(LABELS))


def write_tokenizer(path: Path, vocabulary: dict[str, int]) -> None:
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(str(path))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp("hidden_folder")
    for name in ("counts", "cut", "plain"):
        write_counts(root / name / "1", masked=name != "plain")
    models = {
        "counts": {"text": {"labels": "logits", "pooling": "mean"}},
        "cut": {"text": {"max_tokens": 2, "truncate": True, "pooling": "first"}},
        "plain": {"text": {"max_bytes": 40, "max_texts": 3}},
    }
    with serving(root, models=models) as client:
        yield client


def by_http(client: Client, model: str, texts: list[Any], **more: Any) -> dict[str, Any]:
    """The outputs by name. Raises HTTPError."""
    given = {"inputs": [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts, **more}]}
    url = f"http://127.0.0.1:{client.server.http_port}/v2/models/{model}/infer"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(given).encode()), timeout=10) as answer:
        return {each["name"]: each["data"] for each in json.load(answer)["outputs"]}


def by_grpc(client: Client, model: str, texts: list[bytes], typed: bool, outputs: tuple[str, ...] = ()) -> dict[str, Any]:
    tensor: dict[str, Any] = {"name": "text", "datatype": "BYTES", "shape": [len(texts)]}
    if typed:
        tensor["contents"] = {"bytes_contents": texts}
    raw = {} if typed else {"raw_input_contents": [b"".join(struct.pack("<I", len(each)) + each for each in texts)]}
    answer = client.call("ModelInfer", model_name=model, inputs=[tensor], outputs=[{"name": name} for name in outputs], **raw)
    if typed:
        return {each.name: list(each.contents.bytes_contents or each.contents.fp32_contents) for each in answer.outputs}
    return {each.name: bytes(raw) for each, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)}


def refused(client: Client, texts: list[Any], model: str = "counts", **more: Any) -> str:
    with pytest.raises(urllib.error.HTTPError) as caught:
        by_http(client, model, texts, **more)
    assert caught.value.code == 400
    return json.load(caught.value)["error"]


def test_labels_and_vectors(client: Client) -> None:
    """Padding counts neither for the model nor for the mean."""
    found = by_http(client, "counts", TEXTS)
    assert found["label"] == ["positive", "negative"] and found["logits"] == [0, 1, 3, 1, 0, 0]
    e = np.e
    np.testing.assert_allclose(found["score"], [e**3 / (e**3 + e + 1), e / (e + 2)], rtol=1e-6)
    np.testing.assert_allclose(found["embedding"], [(5 + 2 + 4 + 2) / 4, 1, 3, 1])
    assert np.reshape(found["states"], (2, 4, 2))[1, :, 0].tolist() == [3, 7, 7, 7]


def test_over_grpc(client: Client) -> None:
    texts = [each.encode() for each in TEXTS]
    assert by_grpc(client, "counts", texts, typed=True)["label"] == [b"positive", b"negative"]
    found = by_grpc(client, "counts", texts, typed=False, outputs=("label", "embedding"))
    assert found["label"] == b"\x08\x00\x00\x00positive\x08\x00\x00\x00negative"
    assert np.frombuffer(found["embedding"], np.float32).tolist() == [3.25, 1, 3, 1]


def test_token_ids_are_still_taken(client: Client) -> None:
    found = client.infer("counts", input_ids=np.array([[2, 3]]), attention_mask=np.array([[1, 1]]))
    assert found["logits"].tolist() == [[1, 0, 1]] and set(found) == {"logits", "states"}


def test_metadata_has_the_text(client: Client) -> None:
    answer = client.call("ModelMetadata", name="counts")
    assert [(each.name, each.datatype, list(each.shape)) for each in answer.inputs] == [("text", "BYTES", [-1])]
    assert [(each.name, each.datatype, list(each.shape)) for each in answer.outputs] == [
        ("logits", "FP32", [-1, 3]), ("states", "FP32", [-1, -1, 2]), ("label", "BYTES", [-1]), ("score", "FP32", [-1]),
        ("embedding", "FP32", [-1, 2]),
    ]  # fmt: skip
    config = client.call("ModelConfig", name="counts").config
    assert config.input[0].data_type == 13, "TYPE_STRING"


def test_longer_texts_are_cut_where_the_settings_say_so(client: Client) -> None:
    assert by_http(client, "cut", TEXTS)["embedding"] == [5, 1, 3, 1]
    assert np.reshape(by_http(client, "cut", TEXTS)["states"], (2, 2, 2))[0, :, 0].tolist() == [5, 2]


def test_no_text_at_all(client: Client) -> None:
    assert by_http(client, "counts", [])["label"] == []


@pytest.mark.parametrize(
    ("texts", "more", "says"),
    [
        (["good " * 7], {}, "text 0 has 7 tokens; the model takes at most 6"),
        (["good", ""], {}, "text 1 has no tokens"),
        (["good", 1], {}, "input 'text' has an element that is no BYTES, which JSON has as strings"),
        (["good"], {"shape": [2]}, "input 'text' has 1 text, its shape [2] needs 2"),
        (["good"], {"shape": [1, 1]}, "input 'text' must be of BYTES with one dim, a text for each row, not BYTES [1, 1]"),
        (
            ["good"],
            {"name": "sentence"},
            "the model takes one input of BYTES, 'text', with a text for each row; the request has 'sentence'",
        ),
        (["\ud800"], {}, "text 0 is not UTF-8: byte 0"),
        (["good"] * 257, {}, "the request has 257 texts; at most 256 are accepted"),
    ],
)
def test_texts_that_are_refused(client: Client, texts: list[Any], more: dict[str, Any], says: str) -> None:
    assert refused(client, texts, **more) == says


def test_texts_that_another_model_refuses(client: Client) -> None:
    """One without a mask, and limits of its own."""
    assert (
        refused(client, ["good film", "bad"], "plain")
        == "without 'attention_mask' in the model all texts of a request must have as many tokens: 2, 1"
    )
    assert refused(client, ["a" * 41], "plain") == "text 0 has 41 bytes; at most 40 are accepted"
    assert refused(client, ["a"] * 4, "plain") == "the request has 4 texts; at most 3 are accepted"
    assert by_http(client, "plain", ["good film", "very bad"])["logits"] == [0, 1, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x01\x00", "input 'text': its bytes end within the length of text 0"),
        (b"\x01\x00\x00\x00a\x02\x00\x00\x00b", "input 'text': its bytes end within text 1"),
        (b"\xff\xff\xff\xffab", "input 'text': its bytes end within text 0"),
        (b"\x01\x00\x00\x00\xff", "text 0 is not UTF-8: byte 0"),
    ],
)
def test_bytes_that_are_no_texts(client: Client, data: bytes, says: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1]}
        client.call("ModelInfer", model_name="counts", inputs=[tensor], raw_input_contents=[data])
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT and caught.value.details() == says  # pyright: ignore[reportAttributeAccessIssue]


def failed_start(root: Path, **text: object) -> str:
    with pytest.raises(ConfigurationError) as caught, serving(root, models={"counts": {"text": text}}):
        pass
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ({"labels": "scores"}, "text.labels: the model has no output 'scores'; its outputs are logits, states"),
        ({"tokenizer": "other.json"}, "put the tokenizer's file (tokenizer.json) beside the model's"),
        ({"tokenizer": "config.json"}, "config.json is no file of the tokenizers library"),
        (
            {"tokenizer": "large.json"},
            "the tokenizer is not the model's: it has tokens up to number 8 (input 'input_ids': 8 is out of range",
        ),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, text: dict[str, object], says: str) -> None:
    write_counts(tmp_path / "counts" / "1")
    write_tokenizer(tmp_path / "counts" / "1" / "large.json", {**VOCABULARY, "more": 8})
    assert says in failed_start(tmp_path, **text)


def test_a_config_without_labels(tmp_path: Path) -> None:
    write_counts(tmp_path / "counts" / "1")
    (tmp_path / "counts" / "1" / "config.json").write_text("{}")
    assert "config.json has no id2label that names classes 0, 1, ..." in failed_start(tmp_path, labels="logits")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ({"pooling": "max"}, "models.counts.text.pooling must be one of '', 'mean' or 'first', not 'max'"),
        (
            {"tokenizer": "../tokenizer.json"},
            "models.counts.text.tokenizer must be the name of a file in the model's folder, not '../tokenizer.json'",
        ),
        ({"tokeniser": "x"}, "models.counts.text.tokeniser is no setting (did you mean tokenizer?); there are tokenizer, "),
    ],
)
def test_settings_that_are_wrong(text: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings_of({"models": {"counts": {"text": text}}})
    assert says in str(caught.value)
