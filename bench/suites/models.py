"""Latency of one model over its shapes, disc and the peers in turns, every result compared with eager's."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.cases import CASES, Case, Inputs, Shape, build, parse_shapes, shape_name
from bench.job import Job, Result
from bench.machine import higher, measure_limits
from bench.peers import Call, Peer, as_tensor, build_peers
from bench.timing import Timing, interleave

TOLERANCE = 1e-3  # a result this far from eager's is wrong, not rounded


def run(job: Job) -> Result:
    """One row per shape."""
    case = CASES[job.model]
    shapes = parse_shapes(job.shapes, case)
    model = build(case)
    peers, skipped = build_peers(case, model, list(job.peers), job.threads)
    limits = measure_limits(job.threads)
    rows: list[dict[str, object]] = []
    for shape in shapes:
        rows.append(_row(case, shape, model, peers, job.repeats))
        limits = higher(limits, measure_limits(job.threads))
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


def _row(case: Case, shape: Shape, model: nn.Module, peers: list[Peer], repeats: int) -> dict[str, object]:
    inputs = case.inputs(shape)
    expected = model(*inputs)
    calls = {peer.name: peer.bind(inputs) for peer in peers}
    firsts, errors = _warm_up(calls, expected)
    wrong = [name for name, error in errors.items() if not error <= TOLERANCE]
    timings = interleave(calls, repeats)
    print(f"  {case.name} {shape_name(shape)}: {_line(timings)}", file=sys.stderr, flush=True)
    return {
        "shape": shape_name(shape),
        "flops": matrix_flops(model, inputs),
        "first_s": firsts,
        "ms": {name: dataclasses.asdict(timing) for name, timing in timings.items()},
        "error": errors,
        "wrong": wrong,
    }


def _warm_up(calls: Mapping[str, Call], expected: torch.Tensor) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of everybody's first call with this shape, with every recompile, and the error of its result."""
    firsts: dict[str, float] = {}
    errors: dict[str, float] = {}
    for name, call in calls.items():
        start = time.perf_counter()
        result = call()
        firsts[name] = time.perf_counter() - start
        errors[name] = max_error(as_tensor(result), expected)
    return firsts, errors


def _line(timings: dict[str, Timing]) -> str:
    return ", ".join(f"{name} {timing.median:.2f} ms" for name, timing in timings.items())


def max_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest absolute difference; infinite when the shapes differ or only one of two values is NaN."""
    if result.shape != expected.shape:
        return float("inf")
    same = (result == expected) | (result.isnan() & expected.isnan())
    worst = (result.double() - expected.double()).abs().masked_fill(same, 0).nan_to_num(nan=float("inf"))
    return float(worst.max()) if worst.numel() else 0.0


def matrix_flops(model: nn.Module, inputs: Inputs) -> int:
    """Flops of the matrix products of one call, attention's included."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(*inputs)
    return counter.get_total_flops()
