"""What a call costs when there is nothing to compute: `x + 1` on four elements, from Python."""

from __future__ import annotations

import torch
from torch import nn

from bench.cases import Case
from bench.job import Job, Result
from bench.peers import as_tensor, build_peers
from bench.suites.models import max_error
from bench.timing import interleave


class AddOne(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


CASE = Case("add-one", "x + 1 on 4 elements", AddOne, lambda shape: (torch.zeros(shape),), ((4,),), (0,), (3,))


def run(job: Job) -> Result:
    """Microseconds per call."""
    inputs = CASE.inputs((4,))
    peers, skipped = build_peers(CASE, AddOne(), list(job.peers), job.threads)
    calls = {peer.name: peer.bind(inputs) for peer in peers}
    errors = {name: max_error(as_tensor(call()), inputs[0] + 1) for name, call in calls.items()}
    for call in calls.values():
        for _ in range(100):
            call()
    timings = interleave(calls, max(job.repeats, 11))
    return {
        "threads": job.threads,
        "us": {name: {"median": t.median * 1e3, "low": t.low * 1e3, "high": t.high * 1e3} for name, t in timings.items()},
        "error": errors,
        "skipped": {peer.name: peer.reason for peer in skipped},
    }
