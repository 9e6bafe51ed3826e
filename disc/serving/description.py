"""ModelMetadata, ModelConfig and ModelStatistics of a loaded model, as the fields of their messages.

The HTTP form sends the same fields. It is not protobuf's `json_format` of the messages, which writes 64-bit integers (dims, counts) as
strings: Triton's JSON has numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from disc.serving.datatypes import BYTES
from disc.serving.model import PLATFORM, LoadedModel
from disc.serving.statistics import Duration, Totals

Fields = Mapping[str, object]
CPU = "KIND_CPU"  # of ModelInstanceGroup.Kind


def model_metadata(model: LoadedModel, versions: Sequence[str]) -> Fields:
    """ModelMetadata: -1 is a dim that may change."""
    tensors = {
        kind: [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in described]
        for kind, described in (("inputs", model.inputs), ("outputs", model.outputs))
    }
    return {"name": model.name, "versions": versions, "platform": PLATFORM, **tensors}


def model_config(model: LoadedModel) -> Fields:
    """As clients know it from Triton, enums by name. max_batch_size is 0: shapes hold the batch dim, as those of the metadata do."""
    settings, signature = model.settings, model.signature
    config: dict[str, object] = {
        "name": model.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": settings.versions}},
        "max_batch_size": 0,
        "input": [{"name": name, "data_type": _kind(datatype), "dims": shape} for name, datatype, shape in model.inputs],
        "output": [{"name": name, "data_type": _kind(datatype), "dims": shape} for name, datatype, shape in model.outputs],
        "instance_group": [{"name": model.name, "count": settings.concurrency, "kind": CPU}],
    }
    if settings.batching and (signature.batch or signature.packed or signature.structures or signature.skeleton):
        policy = {
            "default_timeout_microseconds": settings.default_timeout_us,
            "allow_timeout_override": True,
            "max_queue_size": settings.max_queue,
        }
        config["dynamic_batching"] = {
            "max_queue_delay_microseconds": settings.queue_delay_us,
            "priority_levels": settings.priority_levels,
            "default_queue_policy": policy,
        }
    return config


def _kind(datatype: str) -> str:
    """Triton's name of it."""
    return "TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}"


def model_statistics(model: LoadedModel) -> Fields:
    return model.statistics.read(lambda totals: _statistics(model, totals))


def _statistics(model: LoadedModel, totals: Totals) -> Fields:
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": totals.last_ms,
        "inference_count": totals.rows,
        "execution_count": totals.calls,
        "inference_stats": {
            "success": duration(totals.success),
            "fail": duration(totals.fail),
            "queue": duration(totals.queue),
            "compute_input": duration(totals.join),
            "compute_infer": duration(totals.run),
            "compute_output": duration(totals.split),
        },
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": duration(each.join),
                "compute_infer": duration(each.run),
                "compute_output": duration(each.split),
            }
            for rows, each in sorted(totals.batches.items())
        ],
        "memory_usage": [{"type": "CPU", "id": 0, "byte_size": model.bytes}],
    }


def duration(total: Duration) -> Fields:
    return {"count": total.count, "ns": total.ns}
