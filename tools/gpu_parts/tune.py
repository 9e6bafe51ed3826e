"""Part `tune`: every schedule of the families of products, at many sizes, beside cuBLAS; the data that a tree can be fitted to."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from ctypes import c_uint32, c_uint64
from typing import Any

import numpy as np

from gpu_parts.devices import Host
from gpu_parts.driver import Buffer, Gpu
from gpu_parts.job import Job
from gpu_parts.report import Report, Row

LISTING, RESULTS = "tuning.json", "gemm_times.json"
WARM, MEASURED = 2, 5  # launches
LEAST = 0.1  # microseconds: events tell no less


def check(job: Job, report: Report) -> None:
    """Writes a file of results: microseconds of each schedule that may run at a size. The table has how the tree's choices compare."""
    device = job.device()
    listing = json.loads((job.folder / LISTING).read_text())
    gpu, points = device.gpu, list[dict[str, Any]]()
    memory = _Memory(gpu, listing["bytes"])
    for point in listing["points"][: 1 if job.fake else None]:
        if job.is_late(report, f"{len(listing['points']) - len(points)} of {len(listing['points'])} sizes"):
            break
        times = {each["schedule"]: _time(gpu, job, each, listing["kernels"], memory) for each in point["launches"]}
        library = _library(device, point) if device.peers else None
        points.append({**{name: point[name] for name in ("kind", "m", "n", "k", "chosen")}, "times": times, "library": library})
        (job.out / RESULTS).write_text(json.dumps({"gpu": gpu.name, "architecture": gpu.architecture, "points": points}))
    memory.free()
    for kind in dict.fromkeys(each["kind"] for each in points):
        report.row(_summary(kind, [each for each in points if each["kind"] == kind]))


class _Memory:
    """Buffers as large as the largest size needs, for all launches: random bf16 or f32 of the same bits, results, scratch, tensor maps."""

    def __init__(self, gpu: Gpu, sizes: Mapping[str, int]) -> None:
        # f32 with zeros in the lower half is bf16 in the upper one: both kinds of products get ordinary numbers.
        some = (np.random.default_rng(0).standard_normal(1 << 20, np.float32).view(np.uint32) & 0xFFFF0000) | 0x3F80
        content = np.resize(some, -(-max(sizes["a0"], sizes["a1"]) // 4))
        self.buffers = {
            name: Buffer(gpu, content if name[0] == "a" else None, sizes[name]) for name in ("a0", "a1", "r0", "scratch", "maps")
        }

    def __getitem__(self, name: str) -> Buffer:
        return self.buffers[name]

    def free(self) -> None:
        for each in self.buffers.values():
            each.free()


def _time(gpu: Gpu, job: Job, launch: Mapping[str, Any], kernels: Mapping[str, Any], memory: _Memory) -> float:
    """Microseconds of a launch, the mean of some."""
    kernel = kernels[launch["key"]]
    function, facts = gpu.load(launch["key"], kernel["code"], job.folder)
    values = [
        c_uint64(memory[name].address) if name in memory.buffers else (c_uint64 if size == 8 else c_uint32)(launch["sizes"][name])
        for name, size in kernel["parameters"]
    ]
    values += [c_uint64(memory["maps"].address if facts["scratch"] else 0), c_uint64(0)]
    first, *others = launch["grid"]
    grid = [min(first, gpu.sms) if launch["persistent"] else first, *others]
    zeroed = memory["scratch"].address, launch["zeroed"]
    if job.fake:
        return max(gpu.launch(function, facts, grid, values, 1, zeroed), LEAST)
    return max(gpu.launch(function, facts, grid, values, MEASURED, zeroed, WARM), LEAST)


def _library(device: Host, point: Mapping[str, Any]) -> float:
    """Microseconds of cuBLAS, by PyTorch, its launches as one graph: the host takes longer than small products."""
    import torch

    product, _, along = str(point["kind"]).partition(" ")
    element = torch.bfloat16 if product == "half" else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = product == "tf32"
    a = torch.randn(point["m"], point["k"], device="cuda", dtype=element)
    b = torch.randn(point["k"], point["n"], device="cuda", dtype=element)
    if along:
        b = b.mT.contiguous().mT
    out = torch.empty(point["m"], point["n"], device="cuda", dtype=element)
    torch.mm(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(MEASURED):
            torch.mm(a, b, out=out)
    device.round(graph.replay, WARM)
    time = device.round(graph.replay, 1) / MEASURED
    torch.backends.cuda.matmul.allow_tf32 = False
    return time


def _summary(kind: str, points: Sequence[Mapping[str, Any]]) -> Row:
    """Means over the sizes: of the tree's choice as a share of the best schedule's speed, and of cuBLAS's."""
    shares = defaultdict[str, list[float]](list)
    for point in points:
        times: Mapping[str, float] = point["times"]
        best, chosen = min(times.values()), times.get(point["chosen"])
        if chosen:
            shares["tree / best"].append(best / chosen)
        if point["library"]:
            shares["best / cuBLAS"].append(point["library"] / best)
            if chosen:
                shares["tree / cuBLAS"].append(point["library"] / chosen)
    words = [f"{name} {mean(each):.0%} (least {min(each):.0%})" for name, each in shares.items()]
    return Row(f"schedules of {kind}", sum(len(each["times"]) for each in points), note=", ".join(words))


def mean(values: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(sum(map(math.log, values)) / len(values))
