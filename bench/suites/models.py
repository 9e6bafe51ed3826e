"""Latency of one model over its shapes, disc and the peers in turns, every result compared with eager's."""

from __future__ import annotations

import dataclasses
import sys

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.cases import CASES, Case, Inputs, Shape, build, parse_shapes, shape_name
from bench.job import Job, Result
from bench.machine import Limits, measure_limits
from bench.peers import Peer, as_tensor, build_peers
from bench.timing import Timing, interleave

TOLERANCE = 1e-3  # a result this far from eager's is wrong, not rounded


def run(job: Job) -> Result:
    """One row per shape."""
    case = CASES[job.model]
    shapes = parse_shapes(job.shapes, case)
    model = build(case)
    limits = measure_limits(job.threads)
    peers, skipped = build_peers(case, model, list(job.peers), job.threads)
    rows = [_row(case, shape, model, peers, limits, job.repeats) for shape in shapes]
    return {
        "model": case.name,
        "title": case.title,
        "threads": job.threads,
        "fma_flops": limits.flops,
        "copy_bytes": limits.copy,
        "limits": limits.how,
        "setup_s": {peer.name: peer.setup for peer in peers},
        "skipped": {peer.name: peer.reason for peer in skipped},
        "rows": rows,
    }


def _row(case: Case, shape: Shape, model: nn.Module, peers: list[Peer], limits: Limits, repeats: int) -> dict[str, object]:
    inputs = case.inputs(shape)
    expected = model(*inputs)
    calls = {peer.name: peer.bind(inputs) for peer in peers}
    errors = {name: max_error(as_tensor(call()), expected) for name, call in calls.items()}  # the warm-up, with every recompile
    wrong = [name for name, error in errors.items() if not error <= TOLERANCE]
    timings = interleave(calls, repeats)
    flops = matrix_flops(model, inputs)
    print(f"  {case.name} {shape_name(shape)}: {_line(timings)}", file=sys.stderr, flush=True)
    return {
        "shape": shape_name(shape),
        "flops": flops,
        "limit_ms": flops / limits.flops * 1e3,
        "ms": {name: dataclasses.asdict(timing) for name, timing in timings.items()},
        "error": errors,
        "wrong": wrong,
    }


def _line(timings: dict[str, Timing]) -> str:
    return ", ".join(f"{name} {timing.median:.2f} ms" for name, timing in timings.items())


def max_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest absolute difference; infinite when the shapes differ or only one of two values is NaN."""
    if result.shape != expected.shape:
        return float("inf")
    difference = (result.double() - expected.double()).abs()
    both_nan = result.isnan() & expected.isnan()
    worst = difference.masked_fill(both_nan, 0).nan_to_num(nan=float("inf"))
    return float(worst.max()) if worst.numel() else 0.0


def matrix_flops(model: nn.Module, inputs: Inputs) -> int:
    """Flops of the matrix products of one call, attention's included."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(*inputs)
    return counter.get_total_flops()
