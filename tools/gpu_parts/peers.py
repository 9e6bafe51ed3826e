"""Part `peers`, which runs where it is asked for (`--only peers`): models of full size beside eager PyTorch and Inductor.

Each peer runs twice: with weights in f32 under autocast (AMP, as in section 7.1 of BladeDISC), and with weights in bf16, which leaves out
the casts of each call: its best variant. Inductor compiles here, which takes minutes: names of peers, of models and of arithmetics can be
asked for.
"""

from __future__ import annotations

import copy
import json
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_parts.big import LISTING, restore
from gpu_parts.devices import Host
from gpu_parts.job import Job
from gpu_parts.report import BOUNDS, Report, Row, difference
from gpu_parts.weights import seed_module

AMP, BF16 = "AMP", "bf16"
MOST_KERNELS = 12  # of a profile


@dataclass(frozen=True)
class Peer:
    """options: of torch.compile; None: eager. graphs: whether calls of disc are compared as CUDA graphs, as the peer's are. static: whether
    it is compiled anew for each size."""

    name: str
    options: dict[str, Any] | None
    graphs: bool = False
    static: bool = False


PEERS = (
    Peer("eager", None),
    Peer("dynamic", {"dynamic": True}),
    Peer("autotune", {"dynamic": False, "mode": "max-autotune"}, graphs=True, static=True),
)


@dataclass(frozen=True)
class Loaded:
    """A model on the GPU. plain, graphs: the program of disc, which records none or all of its calls. modules: eager, by arithmetic."""

    name: str
    plain: Any
    graphs: Any
    modules: Mapping[str, Any]
    inputs: Sequence[tuple[Any, ...]]


def check(job: Job, report: Report) -> None:
    """A row for each model, size, peer and arithmetic: microseconds of a call, and of the peer's."""
    device = job.device()
    if not device.peers:
        report.row(Row("left out", note="PyTorch has no CUDA here"))
        return
    listing = {each["name"]: each for each in json.loads((job.folder / LISTING).read_text())}
    names, peers, arithmetics = (_wanted(job, each) for each in (listing, {each.name: each for each in PEERS}, {BF16: BF16, AMP: AMP}))
    with tempfile.TemporaryDirectory() as scratch:
        loaded = [_load(device, job, listing[name], Path(scratch)) for name in names]
        own = {name: times for model in loaded for name, times in _own(device, model, report)}
        for peer in (each for each in PEERS if each.name in peers):
            for arithmetic in arithmetics:
                for model in loaded:
                    if job.is_late(report, f"{peer.name}, {arithmetic}, {model.name} and what follows"):
                        return
                    try:
                        _compare(device, model, peer, arithmetic, own, report)
                    except Exception as error:  # a peer that fails is no fault of ours
                        traceback.print_exc()
                        report.row(Row(f"{model.name} {peer.name} {arithmetic}", note=f"failed: {type(error).__name__}: {error}"[:200]))


def _wanted(job: Job, names: Iterable[str]) -> list[str]:
    """Those that were asked for; all where none of them was."""
    every = list(names)
    return [each for each in every if each in job.only] or every


def _load(device: Host, job: Job, model: Mapping[str, Any], folder: Path) -> Loaded:
    import torch

    from tests import models

    begin, path = time.perf_counter(), folder / f"{model['name']}.disc"
    module = models.BUILDERS[model["factory"]](full=model["full"])[0]
    restore(job.folder, model, seed_module(module), path)
    programs = device.load(path), device.load(path)
    programs[1].graphs = len(model["sizes"])
    module = module.cuda().eval()
    inputs = [tuple(each.cuda() for each in getattr(models, model["inputs"])(*sizes)) for sizes in model["sizes"]]
    print(f"{model['name']}: loaded in {time.perf_counter() - begin:.0f} s", flush=True)
    return Loaded(model["name"], *programs, {AMP: module, BF16: copy.deepcopy(module).to(torch.bfloat16)}, inputs)


def _own(device: Host, model: Loaded, report: Report) -> Iterator[tuple[str, tuple[float, float]]]:
    """Of each size, microseconds of a call without and with graphs. A row says how far results are from eager's in f32: wrong are those
    that are farther than allowed, and than eager's under autocast."""
    import torch

    for inputs in model.inputs:
        name = _title(model, inputs)
        with torch.inference_mode():
            wanted = model.modules[AMP](*inputs).float().cpu().numpy()
            with torch.autocast("cuda", torch.bfloat16):
                mixed = model.modules[AMP](*inputs).float().cpu().numpy()
        found = [device.read(program.flat(*inputs)[0]) for program in (model.plain, model.graphs)]
        eager = difference(mixed, wanted, "f32") / BOUNDS["bf16"]
        row = Row(f"{name} values", len(found), worst=max(difference(each, wanted, "f32") / BOUNDS["bf16"] for each in found))
        row.wrong = int(not row.worst <= max(1, eager))
        times = (
            device.microseconds(lambda inputs=inputs: model.plain.flat(*inputs)),
            device.microseconds(lambda inputs=inputs: model.graphs.flat(*inputs)),
        )
        row.microseconds = times[0]
        row.note = f"eager under autocast is {eager:.2f} away; as a CUDA graph {times[1]:.1f} us"
        report.row(row)
        _print_kernels(name, model.plain.profile(*inputs))
        yield name, times


def _print_kernels(name: str, profile: Sequence[tuple[str, Any, float]]) -> None:
    """To the log: where the time goes."""
    total = dict[str, list[float]]()
    for kernel, _, seconds in profile:
        total.setdefault(kernel, []).append(seconds * 1e6)
    print(f"{name}: {len(profile)} launches, {sum(map(sum, total.values())):.0f} us")
    for kernel, times in sorted(total.items(), key=lambda each: -sum(each[1]))[:MOST_KERNELS]:
        print(f"  {sum(times):8.1f} us  {len(times):4} x {statistics.median(times):6.1f} us  {kernel}", flush=True)


def _title(model: Loaded, inputs: tuple[Any, ...]) -> str:
    return f"{model.name} {'x'.join(map(str, inputs[0].shape))}"


def _compare(device: Host, model: Loaded, peer: Peer, arithmetic: str, own: Mapping[str, tuple[float, float]], report: Report) -> None:
    import torch

    module = compiled = model.modules[arithmetic]
    for number, given in enumerate(model.inputs):
        inputs = [each.to(torch.bfloat16) if arithmetic == BF16 and each.is_floating_point() else each for each in given]
        if peer.options is not None and (peer.static or number == 0):
            torch._dynamo.reset()
            compiled = torch.compile(module, **peer.options)
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, enabled=arithmetic == AMP):
            seconds = _warm(compiled, inputs)
            theirs = device.microseconds(lambda compiled=compiled, inputs=inputs: compiled(*inputs))
        ours = own[_title(model, given)][peer.graphs]
        note = "" if peer.options is None else f"the first calls took {seconds:.0f} s"
        report.row(Row(f"{_title(model, given)} {peer.name} {arithmetic}", 1, microseconds=ours, peer=theirs, note=note))


def _warm(call: Callable[..., object], inputs: Sequence[Any]) -> float:
    """Three calls: Inductor compiles in the first, and records its graphs in the next."""
    begin = time.perf_counter()
    for _ in range(3):
        call(*inputs)
    return time.perf_counter() - begin
