"""What an operator of a server has: metrics on a port of their own, an API description, a dashboard, the last minute, a request log."""

from __future__ import annotations

import json
import logging
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from oip_client import Client, serving, write_models

from disc.errors import ConfigurationError
from disc.serving.http import openapi
from disc.serving.recent import Recent, Usage, _quantile_ms
from disc.serving.settings import Metrics, ServerSettings

ROOT = Path(__file__).parents[2]
X = np.ones((2, 3), np.float32)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp("models")
    write_models(root, 1, "twice")
    with serving(root, metrics={"port": 0, "detail": True}, request_log=True) as client:
        yield client


def get(port: int | None, path: str, accept: str = "") -> tuple[str, str]:
    """Text and content type. Raises HTTPError."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def test_metrics_on_their_own_port(client: Client) -> None:
    client.infer("twice", x=X)
    text, kind = get(client.server.metrics_port, "/metrics")
    assert kind.startswith("text/plain") and 'nv_inference_request_success{model="twice",version="1"}' in text
    assert 'disc_request_shapes_total{model="twice",shape="S0=2,S1=3",version="1"}' in text
    assert 'disc_kernel_versions_total{kernel_version="rows",model="twice",version="1"}' in text
    text, kind = get(client.server.metrics_port, "/metrics", "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text") and text.endswith("# EOF\n")
    for port, path in ((client.server.http_port, "/metrics"), (client.server.metrics_port, "/v2")):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(port, path)


def test_numbers_have_all_their_digits(client: Client) -> None:
    """%g kept six: the rate of a counter beyond a million jumped."""
    (model,) = client.server.core.repository.models()
    model.statistics.success(123_456_789_012_345, "S0=1,S1=1")
    total = re.search(r"disc_request_seconds_sum{.*} (\S+)", get(client.server.metrics_port, "/metrics")[0])
    assert total is not None and 0 < float(total[1]) - 123456.789012345 < 100 and len(total[1]) > 14


def test_metrics_need_http() -> None:
    with pytest.raises(ConfigurationError, match=r"metrics\.port needs HTTP"):
        ServerSettings(http_port=None, metrics=Metrics(port=9000))


def test_every_route_is_described_and_no_other(client: Client) -> None:
    assert client.server.http is not None
    routes = [*client.server.http._routes(), *client.server.http._metrics_routes()]
    described = json.loads(get(client.server.http_port, "/openapi.json")[0])
    assert {(route.method.lower(), route.path) for route in routes} == {
        (method, path) for path, methods in described["paths"].items() for method in methods
    }
    references = set(re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(described)))
    assert references <= set(described["components"]["schemas"])
    for path, methods in described["paths"].items():
        for operation in methods.values():
            assert [each["name"] for each in operation.get("parameters", [])] == re.findall(r"{(\w+)}", path)


def test_answers_are_as_described(client: Client) -> None:
    described = json.loads(get(client.server.http_port, "/openapi.json")[0])
    schemas = described["components"]["schemas"]
    for path, methods in described["paths"].items():
        if "get" not in methods or path in openapi.PAGES:
            continue
        answer = json.loads(get(client.server.http_port, path.format(model="twice", version="1"))[0])
        check(answer, methods["get"]["responses"]["200"]["content"]["application/json"]["schema"], schemas, path)


def check(value: object, schema: dict, schemas: dict, place: str) -> None:
    """Types, required and unknown properties: what the description uses of JSON Schema."""
    schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    assert isinstance(value, kinds[schema["type"]]), f"{place}: {value!r}"
    if isinstance(value, dict) and "properties" in schema:
        assert set(schema.get("required", [])) <= set(value), place
        for name, own in schema["properties"].items():
            if name in value:
                check(value[name], own, schemas, f"{place}.{name}")
    if isinstance(value, list):
        for each in value:
            check(each, schema["items"], schemas, f"{place}[]")
    assert value in schema.get("enum", [value]), place


def test_every_metric_of_the_dashboard_exists(client: Client) -> None:
    dashboard = json.loads((ROOT / "deploy/grafana/disc.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [each["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    used = {name for query in queries for name in re.findall(r"\b(?:nv|disc|process)_\w+", query)}
    text = get(client.server.metrics_port, "/metrics")[0]
    there = set(re.findall(r"^([a-z_]+)[{ ]", text, re.M))
    assert len(used) > 10 and used <= there, used - there
    labels = set(re.findall(r"(\w+)=\"", text)) | {"job", "instance", "le"}  # the first two are Prometheus's own
    asked = {label for query in queries for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
    asked |= set(re.findall(r"(\w+)=~", " ".join(queries)))
    assert asked <= labels, asked - labels


def test_the_last_minute_and_the_last_errors(client: Client) -> None:
    client.infer("twice", x=X)
    with pytest.raises(grpc.RpcError):
        client.infer("twice", x=np.full((1, 1), -7, np.float32))
    status = json.loads(get(client.server.http_port, "/status.json")[0])
    (model,) = status["models"]
    assert model["recent"]["requests"] >= 1 and model["recent"]["per_second"] > 0 and model["recent"]["ms"]["p50"] > 0
    assert (
        model["errors"][0]["reason"] == "OTHER"
        and "must not be -7" in model["errors"][0]["text"]
        and ".py" not in model["errors"][0]["text"]
    )
    assert model["example"] == {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32"}]}
    assert status["usage"]["memory_bytes"] > 1 << 20 and status["usage"]["cores"] >= 0 and status["metrics_here"] is False


def test_an_error_that_goes_on_leaves_others_in_sight(client: Client) -> None:
    """Each stands once, the latest first."""
    with pytest.raises(grpc.RpcError):
        client.infer("twice", x=np.full((1, 1, 1), 1, np.float32))
    before = json.loads(get(client.server.http_port, "/status.json")[0])["models"][0]["errors"]
    for _ in range(30):
        with pytest.raises(grpc.RpcError):
            client.infer("twice", x=np.full((1, 1), -7, np.float32))
    after = json.loads(get(client.server.http_port, "/status.json")[0])["models"][0]["errors"]
    assert "must not be -7" in after[0]["text"] and after[1] == before[0] and "must have 2 dims" in before[0]["text"]
    known = {(each["reason"], each["text"]): each["count"] for each in before}
    assert after[0]["count"] == 30 + known.get((after[0]["reason"], after[0]["text"]), 0)


def test_request_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "disc.serving"):
        client.infer("twice", x=X)
        with pytest.raises(grpc.RpcError):
            client.infer("no_such", x=X)
    lines = [json.loads(record.getMessage()) for record in caplog.records if '"request"' in record.getMessage()]
    assert [(line["model"], line["shapes"], line["error"]) for line in lines] == [
        ("twice", {"x": [2, 3]}, None),
        ("no_such", {"x": [2, 3]}, "ModelNotFoundError"),
    ]
    assert all(line["ms"] > 0 for line in lines)


def test_percentiles_are_at_most_nine_percent_too_high() -> None:
    recent = Recent()
    for ms in range(1, 101):
        recent.add(ms * 1_000_000)
    found = recent.figures()
    assert found["requests"] == 100 and found["per_second"] == pytest.approx(100)
    for share, value in zip((50, 90, 99), found["ms"].values(), strict=True):  # pyright: ignore[reportAttributeAccessIssue]
        assert share <= value <= share * 1.1


def test_what_is_older_than_a_minute_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("disc.serving.recent.time.monotonic", lambda: now[0])
    recent = Recent()
    recent.add(1_000_000)
    now[0] += 59
    recent.add(2_000_000)
    assert recent.figures()["requests"] == 2
    now[0] += 30
    assert recent.figures()["requests"] == 1
    now[0] += 60
    found = recent.figures()
    assert found["requests"] == 0 and found["ms"] == {"p50": None, "p90": None, "p99": None}


def test_nothing_has_no_percentile() -> None:
    assert _quantile_ms(Counter(), 0.5) is None


def test_usage_counts_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    now, cpu = [0.0], [5.0]
    monkeypatch.setattr("disc.serving.recent.time.monotonic", lambda: now[0])
    monkeypatch.setattr("disc.serving.recent._cpu_seconds", lambda: cpu[0])
    usage = Usage()
    now[0], cpu[0] = 10.0, 20.0
    assert usage.figures()["cores"] == pytest.approx(1.5)
    now[0], cpu[0] = 100.0, 20.0
    assert usage.figures()["cores"] == pytest.approx(0.0)
