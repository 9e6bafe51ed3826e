"""The types that may be computed in: one row per `--dtype`, read by peers, limits and checks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dtype:
    """disc: `Options.dtype`. openvino: its INFERENCE_PRECISION_HINT. weight_bytes: per element of a weight, at least. tolerance: an error
    (see `bench.checks.error_of`) beyond it is wrong, not rounded. extra_peers: take part beside those asked for where eager does."""

    name: str
    disc: str
    openvino: str
    weight_bytes: int
    tolerance: float
    extra_peers: tuple[str, ...] = ()


DTYPES = {
    each.name: each
    for each in (
        Dtype("fp32", "f32", "f32", 4, 1e-3),
        Dtype("bf16", "bf16", "bf16", 2, 0.1, ("autocast",)),
    )
}
