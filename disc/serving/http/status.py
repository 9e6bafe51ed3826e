"""What the status page shows."""

from __future__ import annotations

import time
from copy import deepcopy
from typing import cast

from disc.config import VERSION
from disc.serving.core import NAME, Core
from disc.serving.model import LoadedModel


def status(core: Core) -> dict[str, object]:
    """The server and its models, as JSON."""
    return {
        "server": f"{NAME} {VERSION}",
        "ready": core.ready,
        "seconds": round(time.time() - core.started),
        "answered": core.answered,
        "usage": core.usage.figures(),
        "metrics_here": core.settings.metrics.port is None,
        "models": [_model(model) for model in core.repository.models()],
    }


def _model(model: LoadedModel) -> dict[str, object]:
    total = model.statistics.read(deepcopy)
    requests = max(total.success.count, 1)
    batch = model.signature.batch
    executable = model.executable
    return {
        "name": model.name,
        "version": model.version,
        "batch_dim": batch.symbol if batch else None,
        "joined": _joined(model),
        "structures": (model.signature.structures or model.signature.skeleton) is not None,
        "packed": model.signature.packed is not None,
        "symbols": model.signature.places(),
        "isa": executable.isa,
        "threads": executable.threads,
        "bytes": model.bytes,
        "requests": total.success.count,
        "failures": {reason: each.count for reason, each in total.failures.items() if each.count},
        "waiting": model.batcher.waiting,
        "mean_ms": {
            "request": total.success.ns / requests / 1e6,
            "queue": total.queue.ns / max(total.queue.count, 1) / 1e6,
            "model": total.run.ns / max(total.run.count, 1) / 1e6,
        },
        "recent": model.statistics.recent(),
        "errors": [
            {"time": when, "count": count, "reason": reason, "text": text}
            for (reason, text), (when, count) in reversed(total.errors.items())
        ],
        "example": _example(model),
        "calls": total.calls,
        "rows": total.rows,
        "requests_per_call": {str(jobs): count for jobs, count in sorted(total.jobs.items())},
        "shapes": dict(total.shapes.most_common()),
        "kernel_versions": {name: count for name, count in cast("dict[str, int]", executable.stats()["counters"]).items() if count},
    }


def _joined(model: LoadedModel) -> str:
    """How requests that wait share a call."""
    signature = model.signature
    if not model.settings.batching:
        return "requests run alone: batching is off"
    if signature.structures is not None or signature.skeleton is not None:
        return "requests are joined: all their structures together"
    if signature.packed is not None:
        return "requests are joined without padding"
    if signature.batch is None:
        return "requests run alone: no batch dim is proved"
    return f"requests are joined along {signature.places()[signature.batch.symbol]}"


def _example(model: LoadedModel) -> dict[str, object]:
    """A request to start from: ones, every open dim 1."""
    inputs = [
        {"name": name, "shape": [max(dim, 1) if dim else 0 for dim in shape], "datatype": datatype}
        for name, datatype, shape in model.inputs
    ]
    return {"inputs": inputs}
