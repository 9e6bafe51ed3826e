"""Models that disc compiled, served: joined requests against eager PyTorch, whatever their companions."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oip_client import Client, failure, serving
from transformers import BertConfig, BertModel

import disc
from disc.artifact.file import read_manifest
from disc.config import Options
from disc.errors import ConfigurationError
from disc.serving.batcher import Job
from disc.serving.http.status import status
from disc.serving.joining import joining_of
from disc.serving.metrics import metrics_text
from disc.serving.settings import ModelSettings, Sequence
from disc.serving.signature import Signature

CONFIG = BertConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=100, max_position_embeddings=64
)


@pytest.fixture(scope="module")
def model() -> BertModel:
    torch.manual_seed(0)
    return BertModel(CONFIG).eval()


@pytest.fixture(scope="module")
def artifact(model: BertModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compiled") / "bert.disc"
    ones = torch.ones(2, 7, dtype=torch.int64)
    disc.compile(model, {"input_ids": ones, "attention_mask": ones}).save(path)
    return path


SEQUENCE = {"length": "input_ids.1", "mask": "attention_mask"}


@pytest.fixture(scope="module")
def packed_artifact(model: BertModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "bert.disc"
    ones = torch.ones(2, 7, dtype=torch.int64)
    disc.compile(model, {"input_ids": ones, "attention_mask": ones}, options=Options(packed=True)).save(path)
    return path


@pytest.fixture(scope="module", params=["equal lengths", "padded", "packed"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    artifact: Path = request.getfixturevalue("packed_artifact" if request.param == "packed" else "artifact")
    table: dict[str, object] = {"queue_delay_us": 2000, "concurrency": 1, "max_queue": 1000}
    if request.param == "padded":
        table["sequence"] = SEQUENCE
    with serving(artifact, models={"bert": table}) as client:
        if request.param == "padded":  # a call costs a millisecond whatever its sizes: padding always pays
            joining = client.server.core.repository.find("bert").batcher._joining
            for number in range(8):
                joining.cost.add(1 + number % 2, 8 + number, 1e-3)  # pyright: ignore[reportAttributeAccessIssue]
            joining.cost.add = lambda *_: None  # pyright: ignore[reportAttributeAccessIssue]
        yield client


def test_the_batch_dim_is_in_the_artifact(artifact: Path) -> None:
    assert read_manifest(artifact).get("batch") == {"symbol": "S0", "inputs": [0, 0], "outputs": [0, 0]}


def test_joined_requests_agree_with_eager(client: Client, model: BertModel) -> None:
    """Each of eight clients sends random batches of random lengths; what they are joined with is up to chance."""
    wrong: list[object] = []

    def ask(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(12):
            rows, length = int(random.integers(1, 4)), int(random.integers(1, 20))
            ids = random.integers(0, 100, (rows, length))
            mask = (np.arange(length) < random.integers(1, length + 1, (rows, 1))).astype(np.int64)
            got = list(client.infer("bert", input_ids=ids, attention_mask=mask).values())
            with torch.no_grad():
                expected = model(torch.from_numpy(ids), torch.from_numpy(mask))
            try:
                np.testing.assert_allclose(got[0], expected.last_hidden_state.numpy(), atol=2e-5, rtol=1e-4)
                np.testing.assert_allclose(got[1], expected.pooler_output.numpy(), atol=2e-5, rtol=1e-4)
            except AssertionError as error:
                wrong.append(error)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    statistics = client.call("ModelStatistics", name="bert").model_stats[0]
    assert statistics.inference_stats.success.count == 96
    packed = client.server.core.repository.find("bert").signature.packed is not None
    (described,) = status(client.server.core)["models"]  # pyright: ignore[reportGeneralTypeIssues]
    assert described["joined"] == ("requests are joined without padding" if packed else "requests are joined along input_ids.0")
    text = metrics_text(client.server.core)[0].decode()
    assert ('disc_packed_requests_total{model="bert",version="1"} 96.0' in text) == packed
    if packed or client.server.settings.models["bert"].sequence is not None:
        assert statistics.execution_count < 90  # lengths were joined; how many is up to chance


def test_an_index_out_of_range_is_the_fault_of_its_request_and_names_no_file(client: Client) -> None:
    ids, mask = np.full((1, 3), 1000), np.ones((1, 3), np.int64)
    code, text = failure(lambda: client.infer("bert", input_ids=ids, attention_mask=mask))
    assert code == "INVALID_ARGUMENT" and "out of range" in text and ".py" not in text and "/" not in text


def test_packed_requests_that_do_not_fit(packed_artifact: Path) -> None:
    with serving(packed_artifact, models={"bert": {"warm_up": ["input_ids=1x4,attention_mask=1x4"]}}) as client:
        metadata = client.call("ModelMetadata", name="bert")
        assert [(each.name, list(each.shape)) for each in metadata.inputs] == [("input_ids", [-1, -1]), ("attention_mask", [-1, -1])]
        for rows, length, words in ((2, 5, "same rows and tokens"), (1, 0, "at least 1 tokens")):
            code, text = failure(
                lambda rows=rows, length=length: client.infer(
                    "bert", input_ids=np.ones((rows, length), np.int64), attention_mask=np.ones((1, length), np.int64)
                )
            )
            assert code == "INVALID_ARGUMENT" and words in text
        code, text = failure(lambda: client.infer("bert", input_ids=np.ones((1, 65), np.int64), attention_mask=np.ones((1, 65), np.int64)))
        assert code == "INVALID_ARGUMENT" and "at most 64" in text


class Sentences(torch.nn.Module):
    """The normalized mean over the tokens of the mask."""

    def __init__(self, model: BertModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        kept = attention_mask.unsqueeze(-1)
        total = (self.model(input_ids, attention_mask).last_hidden_state * kept).sum(1)
        return torch.nn.functional.normalize(total / kept.sum(1).clamp(min=1e-9))


def test_packed_sentence_embeddings(model: BertModel, tmp_path: Path) -> None:
    """Requests of all lengths at once, each with the embedding that it has alone."""
    sentences, ones = Sentences(model).eval(), torch.ones(2, 7, dtype=torch.int64)
    disc.compile(sentences, {"input_ids": ones, "attention_mask": ones}, options=Options(packed=True)).save(tmp_path / "sentences.disc")
    random = np.random.default_rng(0)
    requests = [random.integers(0, 100, (1 + number % 2, length)) for number, length in enumerate((1, 2, 3, 5, 7, 11, 31, 64))]
    found: dict[int, np.ndarray[Any, Any]] = {}
    with serving(tmp_path, models={"sentences": {"queue_delay_us": 200_000, "concurrency": 1}}) as client:

        def ask(number: int) -> None:
            ids = requests[number]
            mask = (np.arange(ids.shape[1]) <= 2 * ids.shape[1] // 3).astype(np.int64)[None].repeat(len(ids), 0)
            (found[number],) = client.infer("sentences", input_ids=ids, attention_mask=mask).values()

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(requests))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.call("ModelStatistics", name="sentences").model_stats[0].execution_count < len(requests)  # some were joined
    for number, ids in enumerate(requests):
        mask = (torch.arange(ids.shape[1]) <= 2 * ids.shape[1] // 3).long()[None].repeat(len(ids), 1)
        with torch.no_grad():
            np.testing.assert_allclose(found[number], sentences(torch.from_numpy(ids), mask).numpy(), atol=2e-5, rtol=1e-4)


def test_packed_requests_need_no_padding(packed_artifact: Path) -> None:
    settings = ModelSettings(sequence=Sequence(SEQUENCE["length"], SEQUENCE["mask"]))
    with pytest.raises(ConfigurationError, match="packed"):
        joining_of(Signature(read_manifest(packed_artifact)), settings)


def test_the_tokens_of_a_joined_call_are_bounded(packed_artifact: Path) -> None:
    joining = joining_of(Signature(read_manifest(packed_artifact)), ModelSettings(max_tokens=40))
    jobs = [Job([np.ones((rows, length), np.int64)] * 2, {}) for rows, length in ((2, 10), (1, 20), (1, 21))]
    assert joining.admits(jobs[:1], jobs[1]) and not joining.admits(jobs[:1], jobs[2])
    assert joining.key(jobs[0]) == joining.key(jobs[1]) is not None and joining.rows(jobs[0]) == 2


def test_a_mask_of_another_length_is_refused(client: Client) -> None:
    code, text = failure(lambda: client.infer("bert", input_ids=np.ones((1, 3), np.int64), attention_mask=np.ones((1, 4), np.int64)))
    assert code == "INVALID_ARGUMENT" and text == "dim 1 of input 'attention_mask' must be 3 (dim 1 of input 'input_ids'), got 4"


class Found(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = x[x > 0]
        torch._check(found.shape[0] <= 5)
        return torch.nonzero(x), found * 2


def test_results_whose_sizes_depend_on_data(tmp_path: Path) -> None:
    """gRPC and HTTP give what there is; requests are not joined; one that the program's own assertion refuses is its sender's fault."""
    model = Found()
    disc.compile(model, (torch.eye(3),)).save(tmp_path / "found.disc")
    with serving(tmp_path) as client, pytest.raises(urllib.error.HTTPError) as refused:
        url = f"http://127.0.0.1:{client.server.http_port}/v2/models/found"
        for x in (torch.eye(4), torch.zeros(2, 3), -torch.ones(0, 2)):
            wanted = [each.numpy() for each in model(x)]
            for given, expected in zip(client.infer("found", x=x.numpy()).values(), wanted, strict=True):
                np.testing.assert_array_equal(given, expected)
        with urllib.request.urlopen(url) as answer:
            described = json.load(answer)
        assert [each["shape"] for each in described["outputs"]] == [[-1, 2], [-1]]
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 0.0, 2.0]}
        with urllib.request.urlopen(f"{url}/infer", json.dumps({"inputs": [tensor]}).encode()) as answer:
            first, second = json.load(answer)["outputs"]
        assert (first["shape"], first["data"], second["shape"], second["data"]) == ([2, 2], [0, 0, 0, 2], [2], [2.0, 4.0])
        urllib.request.urlopen(f"{url}/infer", json.dumps({"inputs": [{**tensor, "shape": [2, 3], "data": [1.0] * 6}]}).encode())
    assert refused.value.code == 400 and "at most 5" in refused.value.read().decode()
    assert "depends on data" in str(read_manifest(tmp_path / "found.disc").get("batch_refusal"))


class Inverse(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x)


@torch.library.custom_op("disctest::at_most_one", mutates_args=())
def at_most_one(x: torch.Tensor) -> torch.Tensor:
    if x.max() > 1:
        raise ValueError("secret")
    return x.clone()


@at_most_one.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class AtMostOne(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return at_most_one(x)


def test_values_that_a_model_cannot_compute_with(tmp_path: Path) -> None:
    """A singular matrix is the client's mistake, a custom op that fails the server's; both live on."""
    disc.compile(Inverse(), (torch.eye(3),)).save(tmp_path / "inverse.disc")
    disc.compile(AtMostOne(), (torch.eye(3),)).save(tmp_path / "custom.disc")
    good, bad = np.eye(3, dtype=np.float32), np.full((3, 3), 2, np.float32)
    with serving(tmp_path) as client:
        for _ in range(2):
            code, text = failure(lambda: client.infer("inverse", x=bad))
            assert code == "INVALID_ARGUMENT" and "the matrix is singular" in text and ".py" not in text
            assert failure(lambda: client.infer("custom", x=bad)) == ("INTERNAL", "the model failed; the server's log has the reason")
            for name in ("inverse", "custom"):
                np.testing.assert_array_equal(*client.infer(name, x=good).values(), good)
        tensor = {"name": "x", "datatype": "FP32", "shape": [3, 3], "data": [2.0] * 9}
        for name, status in (("inverse", 400), ("custom", 500)):
            url = f"http://127.0.0.1:{client.server.http_port}/v2/models/{name}/infer"
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url, json.dumps({"inputs": [tensor]}).encode())
            assert refused.value.code == status
