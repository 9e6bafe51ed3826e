"""Models that decide by values behind the server: lists over gRPC, nested JSON over HTTP, requests that are joined, and what is refused."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from dynamic_models import DRNN, WORDS, Node, shapes
from oip_client import Client, failure, serving

import disc
from disc.artifact.skeletons import SkeletonRecord
from disc.config import Options
from disc.ral.flat_values import flat_instances, results_of
from tests.diff.test_saved_skeletons import eager, nested, numbers

NAMES = ("shape.root", "shape.parents.offsets", "shape.parents")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, DRNN, SkeletonRecord]]:
    torch.manual_seed(0)
    module = DRNN(8).eval()
    path = tmp_path_factory.mktemp("served") / "grown.disc"
    model: Any = disc.batched(module, options=Options(cache=False, threads=1))
    model.save(path, shapes(8))
    record: Any = disc.load(path).manifest["skeleton"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    with serving(path, defaults={"queue_delay_us": 200_000, "max_batch": 16}, limits={"elements": 4096}) as client:
        yield client, module, record


def named(record: SkeletonRecord, instances: list[Node]) -> dict[str, Any]:
    return dict(zip(NAMES, flat_instances(record, instances, 1 << 20), strict=True))


def same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert len(one) == len(other)
        for x, y in zip(one, other, strict=True):
            np.testing.assert_allclose(x, y.numpy(), rtol=1e-4, atol=1e-5)


def answered(record: SkeletonRecord, answer: Any, count: int) -> list[Any]:
    return results_of(record, [answer["output0.offsets"], answer["output0"]], count)


def test_requests_are_joined(served: tuple[Client, DRNN, SkeletonRecord]) -> None:
    """Instances of different requests run as one batch, and each request gets its own results, of any length."""
    client, module, record = served
    requests = [shapes(count, count) for count in (1, 3, 2, 4, 1, 0, 5)]
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda place=place: found.update({place: client.infer("grown", **named(record, requests[place]))}))
        for place in range(len(requests))
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for place, request in enumerate(requests):
        same(answered(record, found[place], len(request)), eager(module, request))
    statistics = client.call("ModelStatistics", name="grown").model_stats[0]
    assert statistics.execution_count < len(requests)
    assert statistics.inference_count == sum(map(len, requests))


GOOD = (numbers(0), numbers(0, 2, 2, 2), numbers(1, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: numbers(3)}, "shape.root[0]: 3 is no node; there are 3"),
        ({2: numbers(1, -2)}, "shape.parents[1]: -2 is no node"),
        ({1: numbers(0, 2, 1, 2)}, "offsets that do not ascend"),
        ({1: numbers(0, 2, 2, 3)}, "has 2 elements where others have 3"),
        ({0: numbers(-1)}, "None has no attribute 'parents'"),
        ({1: np.arange(601), 2: np.zeros(600, np.int64)}, "the structure has 600 nodes"),
    ],
)
def test_what_is_refused(served: tuple[Client, DRNN, SkeletonRecord], change: dict[int, np.ndarray], message: str) -> None:
    """Alone, and beside a request that gets its results."""
    client, module, record = served
    arrays: dict[str, Any] = {name: change.get(place, each) for place, (name, each) in enumerate(zip(NAMES, GOOD, strict=True))}
    good = shapes(2, 5)
    answers: list[Any] = []
    beside = threading.Thread(target=lambda: answers.append(client.infer("grown", **named(record, good))))
    beside.start()
    code, text = failure(lambda: client.infer("grown", **arrays))
    beside.join()
    assert code == "INVALID_ARGUMENT"
    assert message in text
    same(answered(record, answers[0], 2), eager(module, good))


def test_nested_json(served: tuple[Client, DRNN, SkeletonRecord]) -> None:
    client, module, record = served
    instances = shapes(3, 1)
    for given, status in ([nested(each) for each in instances], 200), ([{"parents": 3}], 400), ([WORDS], 400):
        connection = http.client.HTTPConnection("127.0.0.1", client.server.http_port, timeout=60)
        body = {"inputs": [{"name": "shape", "datatype": "JSON", "shape": [len(given)], "data": given}]}
        connection.request("POST", "/v2/models/grown/infer", json.dumps(body))
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == status, answer
        if status == 200:
            arrays = {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in answer["outputs"]}
            same(answered(record, arrays, 3), eager(module, instances))
        connection.close()
