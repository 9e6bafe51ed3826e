"""OpenTelemetry traces: three spans for a request, as users of such servers know them (Triton's OpenTelemetry mode).

    request   from the first byte to the answer; its parent is what the client's W3C `traceparent` says
      model   in the model's queue and batch
        compute   the call that the request was part of, with how many others

The spans are made when the request is done, from times taken on the way: threads hand a request to each other, and this way nothing but a
few time stamps is in their path. Where tracing is off, there are none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from disc.config import read_environment
from disc.errors import ConfigurationError, ServingError, how_to_install
from disc.serving.codes import INTERNAL, code_of
from disc.serving.settings import Tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Context

    from disc.serving.batcher import Job

SERVICE = "disc"


@dataclass(frozen=True)
class _ModelPart:
    """What one model did for a request. start, end, job's own: nanoseconds of `time.perf_counter_ns`."""

    name: str
    version: str
    start: int
    end: int
    job: Job


class Trace:
    """One request under way."""

    def __init__(self) -> None:
        self.start = time.perf_counter_ns()
        self.epoch = time.time_ns() - self.start
        self.part: _ModelPart | None = None

    def model(self, name: str, version: str, start: int, job: Job) -> None:
        """The model is done with it. start: when it began."""
        self.part = _ModelPart(name, version, start, time.perf_counter_ns(), job)


class Spans:
    """Makes the spans of requests."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import propagate

        self._provider = provider
        self._tracer = provider.get_tracer("disc.serving")
        self._extract = propagate.extract

    @contextmanager
    def request(self, name: str, headers: Iterable[tuple[str, str | bytes]], attributes: dict[str, str]) -> Iterator[Trace]:
        """Traces the body. headers: of the call; attributes: of the request's span."""
        trace = Trace()
        failure = ""
        try:
            yield trace
        except ServingError as error:
            failure = code_of(error)[0]
            raise
        except Exception:
            failure = INTERNAL[0]
            raise
        finally:
            self._export(name, headers, attributes, trace, failure)

    def _export(
        self, name: str, headers: Iterable[tuple[str, str | bytes]], attributes: dict[str, str], trace: Trace, failure: str
    ) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        parent = self._extract({key.lower(): value for key, value in headers if isinstance(value, str)})
        end = time.perf_counter_ns()
        request = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes, start_time=trace.epoch + trace.start)
        if failure:
            request.set_status(Status(StatusCode.ERROR, failure))
            request.set_attribute("error.type", failure)
        if trace.part is not None and request.is_recording():
            self._export_model(trace.part, trace.epoch, set_span_in_context(request))
        request.end(trace.epoch + end)

    def _export_model(self, part: _ModelPart, epoch: int, parent: Context) -> None:
        from opentelemetry.trace import set_span_in_context

        attributes = {"disc.model.name": part.name, "disc.model.version": part.version}
        model = self._tracer.start_span("model", parent, attributes=attributes, start_time=epoch + part.start)
        if part.job.ran_ns is not None:
            began, ended = part.job.ran_ns
            batch = {"disc.batch.requests": part.job.together, "disc.batch.own_rows": part.job.rows}
            compute = self._tracer.start_span("compute", set_span_in_context(model), attributes=batch, start_time=epoch + began)
            compute.end(epoch + ended)
        model.end(epoch + part.end)

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()


def make_spans(settings: Tracing | None) -> Spans | None:
    """Spans that go to an OTLP collector (HTTP), or None where neither the settings nor the standard variables name one.

    Of the settings, `endpoint` goes before OTEL_EXPORTER_OTLP_ENDPOINT; everything else (headers, certificates, sampler, resource, batches)
    is read by OpenTelemetry itself from its OTEL_* variables. Raises ConfigurationError when OpenTelemetry is not installed.
    """
    if settings is None and not read_environment().traces:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"tracing needs {error.name}; install it with: {how_to_install('otel')}") from error
    endpoint = settings.endpoint if settings is not None else None
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None)
    service = settings.service if settings is not None and settings.service else SERVICE
    found = Resource.create()  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    if str(found.attributes[SERVICE_NAME]).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: service}))
    provider = TracerProvider(resource=found)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Spans(provider)
