"""OpenTelemetry: the spans of a request, whose parent is the client's, and what a collector gets."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oip_client import Client, failure, infer_fields, serving, write_twice

from disc.config import read_environment
from disc.serving.messages import message

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

import itertools

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from disc.serving.tracing import Spans, make_spans

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
PARENT = f"00-{TRACE:032x}-{SPAN:016x}-01"
X = np.ones((2, 3), np.float32)


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[tuple[Client, InMemorySpanExporter]]:
    write_twice(tmp_path / "twice.disc", ms=20)
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with serving(tmp_path / "twice.disc") as client:
        client.server.core.spans = Spans(provider)
        yield client, exporter


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def check_chain(spans: dict[str, ReadableSpan], request: str) -> None:
    """request → model → compute, each within the one before, in the client's trace."""
    chain = [spans[name] for name in (request, "model", "compute")]
    assert chain[0].parent is not None and chain[0].parent.span_id == SPAN and chain[0].parent.is_remote
    for outer, inner in itertools.pairwise(chain):
        assert inner.parent is not None and outer.context is not None and inner.parent.span_id == outer.context.span_id
        assert outer.start_time <= inner.start_time < inner.end_time <= outer.end_time  # pyright: ignore[reportOperatorIssue]
    assert all(span.context is not None and span.context.trace_id == TRACE for span in chain)
    assert chain[2].end_time - chain[2].start_time >= 20_000_000  # pyright: ignore[reportOperatorIssue]  # what the model takes


def test_a_grpc_request_has_three_spans_in_the_clients_trace(traced: tuple[Client, InMemorySpanExporter]) -> None:
    client, exporter = traced
    client.metadata = [("traceparent", PARENT)]
    client.infer("twice", x=X)
    spans = by_name(exporter)
    check_chain(spans, "inference.GRPCInferenceService/ModelInfer")
    assert spans["model"].attributes == {"disc.model.name": "twice", "disc.model.version": "1"}
    assert spans["compute"].attributes == {"disc.batch.requests": 1, "disc.batch.own_rows": 2}


def test_an_http_request_has_them_too(traced: tuple[Client, InMemorySpanExporter]) -> None:
    client, exporter = traced
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}).encode()
    url = f"http://127.0.0.1:{client.server.http_port}/v2/models/twice/infer"
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Traceparent": PARENT})) as answer:
        assert answer.status == 200
    check_chain(by_name(exporter), "POST /v2/models/{model}/infer")


def test_each_request_of_a_stream_has_its_own(traced: tuple[Client, InMemorySpanExporter]) -> None:
    client, exporter = traced
    requests = [message("inference.ModelInferRequest")(**infer_fields(name, {"x": X})) for name in ("twice", "nobody")]
    stream = client.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    assert len(list(stream(iter([each.SerializeToString() for each in requests])))) == 2
    found = [span for span in exporter.get_finished_spans() if span.name.endswith("ModelStreamInfer")]
    assert [span.status.description for span in found] == [None, "NOT_FOUND"]


def test_a_failure_is_in_the_span(traced: tuple[Client, InMemorySpanExporter]) -> None:
    client, exporter = traced
    assert failure(lambda: client.infer("nobody", x=X))[0] == "NOT_FOUND"
    (span,) = exporter.get_finished_spans()
    assert not span.status.is_ok and span.attributes is not None and span.attributes["error.type"] == "NOT_FOUND"


def test_requests_that_run_together_say_so(traced: tuple[Client, InMemorySpanExporter]) -> None:
    """The first runs alone; those that came meanwhile run together."""
    client, exporter = traced
    threads = [threading.Thread(target=client.infer, args=("twice",), kwargs={"x": X}) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = [
        span.attributes["disc.batch.requests"] for span in exporter.get_finished_spans() if span.name == "compute" and span.attributes
    ]
    assert len(together) == 6 and max(together) > 1  # pyright: ignore[reportArgumentType]


class Collector(BaseHTTPRequestHandler):
    """What an OTLP collector does with what it gets over HTTP."""

    got: list[tuple[str, Any]]

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        self.got.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Its address and what it got."""
    Collector.got = []
    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", Collector.got
    server.shutdown()
    thread.join()


@pytest.mark.parametrize("by", ["settings", "variable"])
def test_a_collector_gets_the_spans(tmp_path: Path, collector: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    write_twice(tmp_path / "twice.disc")
    address, got = collector
    tables: dict[str, object] = {"tracing": {"endpoint": address, "service": "scores"}} if by == "settings" else {}
    if by == "variable":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "scores")
    with serving(tmp_path / "twice.disc", **tables) as client:
        client.metadata = [("traceparent", PARENT)]
        client.infer("twice", x=X)
    # The server has stopped, and with it everything is sent.
    assert {path for path, _ in got} == {"/v1/traces"}
    resources = [resource for _, request in got for resource in request.resource_spans]
    service = {each.value.string_value for resource in resources for each in resource.resource.attributes if each.key == "service.name"}
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    assert service == {"scores"} and {span.trace_id for span in spans} == {TRACE.to_bytes(16, "big")}
    assert {span.name for span in spans} == {"inference.GRPCInferenceService/ModelInfer", "model", "compute"}


def test_a_collector_that_is_away_costs_no_request(tmp_path: Path) -> None:
    write_twice(tmp_path / "twice.disc")
    with serving(tmp_path / "twice.disc", tracing={"endpoint": "http://127.0.0.1:9"}) as client:
        assert np.array_equal(client.infer("twice", x=X)["y"], 2 * X)


@pytest.mark.parametrize(
    ("variables", "traces"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_off_unless_something_says_where_to(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], traces: bool) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert read_environment().traces is traces
    if not traces:
        assert make_spans(None) is None
