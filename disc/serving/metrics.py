"""Prometheus metrics, by the names that users of inference servers know, and disc's own. The text is prometheus_client's.

Triton's counters lack the ending `_total`, without which the format knows no counters: they are of unknown type here, which changes
nothing for `rate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import cast

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from disc.serving.core import Core
from disc.serving.model import LoadedModel
from disc.serving.statistics import BUCKETS_MS, Totals

Samples = Iterable[tuple[Mapping[str, str], float]]
Known = Sequence[tuple[LoadedModel, Totals]]
_COUNTERS: tuple[tuple[str, str, Callable[[Totals], float]], ...] = (
    ("nv_inference_request_success", "Requests answered", lambda total: total.success.count),
    ("nv_inference_count", "Rows computed", lambda total: total.rows),
    ("nv_inference_exec_count", "Calls of the model", lambda total: total.calls),
    ("nv_inference_request_duration_us", "Request time, from arrival to answer", lambda total: total.success.ns // 1000),
    ("nv_inference_queue_duration_us", "Time requests spent in the queue", lambda total: total.queue.ns // 1000),
    ("nv_inference_compute_input_duration_us", "Time spent joining inputs", lambda total: total.join.ns // 1000),
    ("nv_inference_compute_infer_duration_us", "Model execution time", lambda total: total.run.ns // 1000),
    ("nv_inference_compute_output_duration_us", "Time spent splitting outputs", lambda total: total.split.ns // 1000),
)


def metrics_text(core: Core, accept: str = "") -> tuple[bytes, str]:
    """The metrics, and the content type: OpenMetrics for a scraper that accepts it, else the text format."""
    registry = CollectorRegistry()
    registry.register(_Models(core))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Models(Collector):
    """What the models of a server have done, read when a scraper asks."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def collect(self) -> Iterable[Metric]:
        models = self._core.repository.models()
        known = [(model, model.statistics.read(deepcopy)) for model in models]
        yield from _plain(known)
        yield _histogram(known)
        if self._core.settings.metrics.detail:
            yield from _detail(known)


def _plain(known: Known) -> Iterable[Metric]:
    """Of few labels: the models, and what there are few of."""
    for name, words, value in _COUNTERS:
        yield _metric(name, words, "unknown", [(_labels(model), value(total)) for model, total in known])
    failures = [({**_labels(model), "reason": reason}, failed.count) for model, total in known for reason, failed in total.failures.items()]
    yield _metric("nv_inference_request_failure", "Requests that failed", "unknown", failures)
    waiting = [(_labels(model), float(model.batcher.waiting)) for model, _ in known]
    yield _metric("nv_inference_pending_request_count", "Requests in the queue", "gauge", waiting)
    yield _metric("disc_model_bytes", "Memory of the model", "gauge", [(_labels(model), model.bytes) for model, _ in known])
    packed = [
        (_labels(model), sum(jobs * count for jobs, count in total.jobs.items()))
        for model, total in known
        if model.signature.packed is not None
    ]
    yield _metric("disc_packed_requests", "Requests that ran in calls without padding", "counter", packed)


def _detail(known: Known) -> Iterable[Metric]:
    """Of labels that grow with what clients send, to some hundred series a model: only where the settings ask."""
    shapes = [({**_labels(model), "shape": shape}, count) for model, total in known for shape, count in sorted(total.shapes.items())]
    yield _metric("disc_request_shapes", "Requests per input shape", "counter", shapes)
    versions = [
        ({**_labels(model), "kernel_version": name}, count)
        for model, _ in known
        for name, count in cast("dict[str, int]", model.executable.stats()["counters"]).items()
    ]
    yield _metric("disc_kernel_versions", "How often each version of a kernel ran", "counter", versions)
    sizes = [({**_labels(model), "requests": str(jobs)}, count) for model, total in known for jobs, count in sorted(total.jobs.items())]
    yield _metric("disc_batch_requests", "Calls by the number of requests joined", "counter", sizes)


def _labels(model: LoadedModel) -> dict[str, str]:
    return {"model": model.name, "version": model.version}


def _metric(name: str, words: str, kind: str, samples: Samples) -> Metric:
    made = Metric(name, words, kind)
    for labels, value in samples:
        made.add_sample(f"{name}_total" if kind == "counter" else name, dict(labels), value)
    return made


def _histogram(known: Known) -> Metric:
    made = Metric("disc_request_seconds", "Time of requests that were answered", "histogram")
    for model, total in known:
        seen = 0
        for end, count in zip([*(str(each / 1000) for each in BUCKETS_MS), "+Inf"], total.buckets, strict=True):
            seen += count
            made.add_sample(f"{made.name}_bucket", {**_labels(model), "le": end}, seen)
        made.add_sample(f"{made.name}_sum", _labels(model), total.success.ns / 1e9)
        made.add_sample(f"{made.name}_count", _labels(model), total.success.count)
    return made
