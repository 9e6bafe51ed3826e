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
        "at_most_ms": {f"p{share}": _finite(total.quantile_ms(share / 100)) for share in (50, 90, 99)},
        "calls": total.calls,
        "rows": total.rows,
        "requests_per_call": {str(jobs): count for jobs, count in sorted(total.jobs.items())},
        "shapes": dict(total.shapes.most_common()),
        "kernel_versions": {name: count for name, count in cast("dict[str, int]", executable.stats()["counters"]).items() if count},
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or value == float("inf") else value
