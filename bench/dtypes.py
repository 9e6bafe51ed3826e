"""The types that may be computed in: one row per `--dtype`, read by peers, limits and checks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dtype:
    """disc: `Options.dtype`. openvino: its INFERENCE_PRECISION_HINT. weight_bytes: per element of a weight, at least. tolerance: an error
    (see `bench.checks.error_of`) beyond it is wrong, not rounded. torch: PyTorch's name of the type in which eager holds the model and
    autocast computes. file: what follows the kind of ONNX Runtime's model file, "-int8" where weights are in 8 bits. limit: the
    multiply-adds that the limit is measured with (`bench/fma.c`). extra_peers: take part in addition to those requested where eager
    does."""

    name: str
    disc: str
    openvino: str
    weight_bytes: int
    tolerance: float
    torch: str = "float32"
    file: str = ""
    limit: str = "fp32"
    extra_peers: tuple[str, ...] = ()


DTYPES = {
    each.name: each
    for each in (
        Dtype("fp32", "f32", "f32", 4, 1e-3),
        Dtype("bf16", "bf16", "bf16", 2, 0.02, torch="bfloat16", limit="bf16", extra_peers=("autocast", "disc-fp32")),
        Dtype("fp16", "f16", "f16", 2, 0.02, torch="float16", extra_peers=("autocast", "disc-fp32")),
        # disc multiplies by weights in 8 bits and computes the rest in bf16. OpenVINO has no dynamic quantization of its own without
        # another package: it computes in bf16.
        Dtype("int8", "int8", "bf16", 1, 0.05, file="-int8", limit="int8", extra_peers=("quantized", "disc-bf16")),
    )
}
