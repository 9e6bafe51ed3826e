"""Prometheus metrics, by the names that users of inference servers know, and disc's own: shapes and kernel versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import cast

from disc.serving.core import Core
from disc.serving.model import LoadedModel
from disc.serving.statistics import BUCKETS_MS, Totals

Sample = tuple[dict[str, str], float]
_COUNTERS: tuple[tuple[str, str, Callable[[Totals], float]], ...] = (
    ("nv_inference_request_success", "Requests that were answered", lambda total: total.success.count),
    ("nv_inference_count", "Rows that were computed", lambda total: total.rows),
    ("nv_inference_exec_count", "Calls of the model", lambda total: total.calls),
    ("nv_inference_request_duration_us", "Time of requests from their arrival", lambda total: total.success.ns // 1000),
    ("nv_inference_queue_duration_us", "Time of requests in the queue", lambda total: total.queue.ns // 1000),
    ("nv_inference_compute_input_duration_us", "Time to join inputs", lambda total: total.join.ns // 1000),
    ("nv_inference_compute_infer_duration_us", "Time of the model", lambda total: total.run.ns // 1000),
    ("nv_inference_compute_output_duration_us", "Time to part outputs", lambda total: total.split.ns // 1000),
)


def metrics_text(core: Core) -> str:
    """The text exposition format."""
    models = core.repository.models()
    totals = [(model, model.statistics.read(deepcopy)) for model in models]
    lines: list[str] = []
    for name, words, value in _COUNTERS:
        lines += _family(name, words, "counter", [(_labels(model), value(total)) for model, total in totals])
    failures = [
        ({**_labels(model), "reason": reason}, failed.count) for model, total in totals for reason, failed in total.failures.items()
    ]
    lines += _family("nv_inference_request_failure", "Requests that failed", "counter", failures)
    pending = [(_labels(model), model.batcher.waiting) for model in models]
    lines += _family("nv_inference_pending_request_count", "Requests in the queue", "gauge", pending)
    lines += _family("disc_model_bytes", "Memory of the model", "gauge", [(_labels(model), model.bytes) for model in models])
    shapes = [({**_labels(model), "shape": shape}, count) for model, total in totals for shape, count in sorted(total.shapes.items())]
    lines += _family("disc_request_shapes", "Requests by the sizes of their symbols", "counter", shapes)
    versions = [
        ({**_labels(model), "kernel_version": name}, count)
        for model in models
        for name, count in cast("dict[str, int]", model.executable.stats()["counters"]).items()
    ]
    lines += _family("disc_kernel_versions", "How often each version of a kernel ran", "counter", versions)
    sizes = [({**_labels(model), "requests": str(jobs)}, count) for model, total in totals for jobs, count in sorted(total.jobs.items())]
    lines += _family("disc_batch_requests", "Calls by the number of requests joined", "counter", sizes)
    packed = [
        (_labels(model), sum(jobs * count for jobs, count in total.jobs.items()))
        for model, total in totals
        if model.signature.packed is not None
    ]
    lines += _family("disc_packed_requests", "Requests that ran in calls without padding", "counter", packed)
    lines += _histograms(totals)
    return "\n".join(lines) + "\n"


def _labels(model: LoadedModel) -> dict[str, str]:
    return {"model": model.name, "version": model.version}


def _family(name: str, words: str, kind: str, samples: Sequence[Sample]) -> list[str]:
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}", *(_sample(name, labels, value) for labels, value in samples)]


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    text = ",".join(f'{key}="{_escaped(each)}"' for key, each in labels.items())
    return f"{name}{{{text}}} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _histograms(totals: Sequence[tuple[LoadedModel, Totals]]) -> list[str]:
    name = "disc_request_seconds"
    lines = [f"# HELP {name} Time of requests that were answered", f"# TYPE {name} histogram"]
    for model, total in totals:
        seen = 0
        for end, count in zip([*(f"{each / 1000:g}" for each in BUCKETS_MS), "+Inf"], total.buckets, strict=True):
            seen += count
            lines.append(_sample(f"{name}_bucket", {**_labels(model), "le": end}, seen))
        lines.append(_sample(f"{name}_sum", _labels(model), total.success.ns / 1e9))
        lines.append(_sample(f"{name}_count", _labels(model), total.success.count))
    return lines
