"""Models over structures behind the server: tensors over gRPC, nested JSON over HTTP, requests that are joined, and what is refused."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dynamic_models import WORDS, Tree, TreeGRU, trees
from oip_client import Client, failure, serving

import disc
from disc.artifact.structures import StructuresRecord
from disc.config import Options
from disc.errors import ConfigurationError, NodeIndexError
from disc.serving.http.status import status
from disc.serving.joining import JoinStructures
from disc.serving.model import load_model
from disc.serving.settings import Limits, ModelSettings
from tests.diff.test_saved_structures import COLUMNS, FIELDS, flat, nested, numbers

NAMES = ("tree.word", "tree.left", "tree.right", "tree.root")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, TreeGRU, Path]]:
    torch.manual_seed(0)
    module = TreeGRU(8).eval()
    path = tmp_path_factory.mktemp("served") / "tree.disc"
    model: Any = disc.batched(module, options=Options(cache=False, threads=1))
    model.save(path, trees(8))
    with serving(path, defaults={"queue_delay_us": 200_000, "max_batch": 16}, limits={"elements": 4096}) as client:
        yield client, module, path


def named(instances: list[Tree]) -> dict[str, Any]:
    return dict(zip(NAMES, flat(instances, COLUMNS, FIELDS), strict=True))


def expected(module: TreeGRU, instances: list[Tree]) -> np.ndarray:
    with torch.no_grad():
        return np.stack([module(each).numpy() for each in instances]) if instances else np.zeros((0, 8), np.float32)


def test_what_it_says_of_itself(served: tuple[Client, TreeGRU, Path]) -> None:
    (described,) = status(served[0].server.core)["models"]  # pyright: ignore[reportGeneralTypeIssues]
    assert described["joined"] == "requests are joined: all their structures together"
    found = served[0].call("ModelMetadata", name="tree")
    assert [(each.name, each.datatype, list(each.shape)) for each in found.inputs] == [(name, "INT64", [-1]) for name in NAMES]
    assert [(each.name, each.datatype, list(each.shape)) for each in found.outputs] == [("output0", "FP32", [-1, 8])]


def test_requests_are_joined(served: tuple[Client, TreeGRU, Path]) -> None:
    """Trees of different requests run as one batch, and each gets its own results."""
    client, module, _ = served
    requests = [trees(count, count, most=7) for count in (1, 3, 2, 4, 1, 0, 5)]
    found: dict[int, np.ndarray] = {}
    threads = [
        threading.Thread(target=lambda place=place: found.update({place: client.infer("tree", **named(requests[place]))["output0"]}))
        for place in range(len(requests))
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for place, request in enumerate(requests):
        np.testing.assert_allclose(found[place], expected(module, request), rtol=1e-4, atol=1e-5)
    statistics = client.call("ModelStatistics", name="tree").model_stats[0]
    assert statistics.execution_count < len(requests)
    assert statistics.inference_count == sum(map(len, requests))


def test_a_request_at_fault_leaves_the_others_theirs(served: tuple[Client, TreeGRU, Path]) -> None:
    client, module, _ = served
    good = trees(2, 5)
    bad = {**named(good), "tree.word": np.full(len(named(good)["tree.word"]), WORDS + 1)}
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(failure(lambda: client.infer("tree", **bad)))),
        threading.Thread(target=lambda: answers.append(client.infer("tree", **named(good))["output0"])),
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    (code, text), output = sorted(answers, key=lambda each: isinstance(each, np.ndarray))
    assert code == "INVALID_ARGUMENT" and f"index {WORDS + 1} is out of range" in text
    np.testing.assert_allclose(output, expected(module, good), rtol=1e-4, atol=1e-5)


GOOD = (numbers(-1, 1, 2), numbers(1, -1, -1), numbers(2, -1, -1), numbers(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: numbers(1, 0, -1), 2: numbers(2, 2, -1)}, "a cycle: nodes 0 -> 1 -> 0"),
        ({1: numbers(3, -1, -1)}, "tree.left[0]: 3 is no node; there are 3"),
        ({1: numbers(-2, -1, -1)}, "tree.left[0]: -2 is no node"),
        ({3: numbers(0, -1)}, "tree.root[1]: -1 is no node"),
        ({2: numbers(-1, -1, -1)}, "node 0, right: a node of this kind needs a child there"),
        ({0: numbers(-1, 1, -1)}, "node 2, word: a node of this kind needs a number there"),
        ({2: numbers(2, 2, -1)}, "node 1, right: a node of this kind has no child there"),
        ({0: numbers(-1, 1)}, "dim 0 of input 'tree.left' must be 2"),
        (dict.fromkeys(range(3), np.full(600, -1)), "the structure has 600 nodes; at most 512 are accepted"),
    ],
)
def test_what_is_refused(served: tuple[Client, TreeGRU, Path], change: dict[int, np.ndarray], message: str) -> None:
    client = served[0]
    arrays: dict[str, Any] = {name: change.get(place, each) for place, (name, each) in enumerate(zip(NAMES, GOOD, strict=True))}
    code, text = failure(lambda: client.infer("tree", **arrays))
    assert code == "INVALID_ARGUMENT"
    assert message in text


def ask(client: Client, request: object) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", client.server.http_port or 0, timeout=30)
    try:
        connection.request("POST", "/v2/models/tree/infer", json.dumps(request).encode())
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_nested_json(served: tuple[Client, TreeGRU, Path]) -> None:
    client, module, _ = served
    instances = trees(3, 4)
    data = [nested(each) for each in instances]
    given = {"name": "tree", "datatype": "JSON", "shape": [3], "data": data}
    code, answer = ask(client, {"inputs": [given]})
    assert code == 200, answer
    found = np.array(answer["outputs"][0]["data"], np.float32).reshape(answer["outputs"][0]["shape"])
    np.testing.assert_allclose(found, expected(module, instances), rtol=1e-4, atol=1e-5)
    for change, message in (
        ({"data": [{"word": 1}]}, "its shape their number"),
        ({"data": [1, 2, 3]}, "a list of JSON objects"),
        ({"name": "trees"}, "the one input 'tree'"),
        ({"data": [*data[:2], {"left": {"word": 1}, "right": {"wrd": 1}}]}, "tree[2].right: it has 'wrd'; nodes have left, right, word"),
        ({"data": [*data[:2], {"left": {"word": 1}}]}, "right: a node of this kind needs a child there"),
    ):
        code, answer = ask(client, {"inputs": [{**given, **change}]})
        assert code == 400
        assert message in answer["error"]


def test_numbers_never_lead_to_the_nodes_of_another_request() -> None:
    """One that is out of range in its own request would be a node of the joined ones."""
    record: StructuresRecord = {
        "name": "t",
        "fields": ["next"],
        "columns": ["word"],
        "tables": [],
        "results": [],
        "kinds": [],
        "objects": 0,
        "arrays": 0,
    }
    joining = JoinStructures(record, True, 100)

    class Member:
        def __init__(self, *inputs: np.ndarray) -> None:
            self.inputs, self.sizes = list(inputs), dict[str, int]()

    first, second = Member(numbers(7), numbers(-1), numbers(0)), Member(numbers(8, 9), numbers(-1, 0), numbers(1, 0))
    assert joining.key(first) == joining.key(second) is not None
    joined = joining.join([first, second])  # pyright: ignore[reportArgumentType]
    assert [each.tolist() for each in joined] == [[7, 8, 9], [-1, -1, 1], [0, 2, 1]]
    for wrong in (
        Member(numbers(7), numbers(1), numbers(0)),
        Member(numbers(7), numbers(-1), numbers(1)),
        Member(numbers(7), numbers(-2), numbers(0)),
    ):
        with pytest.raises(NodeIndexError):
            joining.key(wrong)  # pyright: ignore[reportArgumentType]
    assert JoinStructures(record, False, 100).key(first) is None  # pyright: ignore[reportArgumentType]


def test_settings_that_do_not_fit(served: tuple[Client, TreeGRU, Path]) -> None:
    for settings, message in ((ModelSettings(warm_up=("tree.word=3",)), "warm_up"),):
        with pytest.raises(ConfigurationError, match=message):
            load_model("tree", "1", served[2], settings, Limits())
