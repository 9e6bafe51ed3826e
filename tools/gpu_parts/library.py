"""Part `library`: products by cuBLASLt through the runtime, values and times beside disc's own schedules. Times join those of `tune`."""

from __future__ import annotations

import ctypes
import json
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_parts.devices import Host
from gpu_parts.driver import Array
from gpu_parts.job import PACKED, Job
from gpu_parts.report import TF32, Report, Row, judge
from gpu_parts.tune import LEAST, LISTING, RESULTS, mean

NAME = "cublaslt"
OWN, LIBRARY = 0, 1  # numbers of the schedules of each program
WARM, MEASURED = 1, 4  # calls
# Beside the kinds of `tune`: shapes of the inputs of a layer with a bias, and of a batch; tiny: on the stand-in.
OTHERS: Mapping[str, tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]] = {
    "bias": (((512, 1024), (4096, 1024), (4096,)), ((5, 16), (24, 16), (24,))),
    "batch": (((96, 128, 64), (96, 64, 128)), ((2, 5, 16), (2, 16, 24))),
}


def check(job: Job, report: Report) -> None:
    """Nothing where there is no such library."""
    device, points = job.device(), _points(job)
    beside = Path(job.fake).with_name("libcublasLt.so.13")
    if job.fake and beside.exists():  # the stand-in for it is linked to that for the driver, which is loaded by now
        ctypes.CDLL(str(beside), ctypes.RTLD_GLOBAL)
    kinds = dict.fromkeys(each["kind"] for each in json.loads((job.folder / LISTING).read_text())["points"])
    for name in (*kinds, *OTHERS):
        if not job.wants(name):
            continue
        try:
            found = _check_program(device, job, name, points, report)
        except Exception as error:  # the other programs may still run
            traceback.print_exc()
            report.row(Row(name, wrong=1))
            report.wrong(f"{name}: {type(error).__name__}: {error}")
            continue
        if not found:
            return
        record = {"gpu": device.gpu.name, "architecture": device.gpu.architecture, "points": points}
        (job.out / RESULTS).write_text(json.dumps(record))


def _points(job: Job) -> list[dict[str, Any]]:
    """What `tune` has measured, or the sizes that it would."""
    if (job.out / RESULTS).exists():
        return list(json.loads((job.out / RESULTS).read_text())["points"])
    listed = json.loads((job.folder / LISTING).read_text())["points"]
    return [{**{name: each[name] for name in ("kind", "m", "n", "k", "chosen")}, "times": {}, "library": None} for each in listed]


def _check_program(device: Host, job: Job, name: str, points: Sequence[dict[str, Any]], report: Report) -> bool:
    """A row for all sizes of a program. False where there is no library."""
    from disc.errors import TargetError

    program: Any = device.load(job.folder / "library" / f"{name}.disc{PACKED}")
    row, shares = Row(f"cuBLASLt {name}"), list[float]()
    if not any(each["guard"].startswith("cuBLASLt") for kernel in program.manifest["kernels"] for each in kernel["versions"]):
        raise ValueError("the program has no product by the library")
    for point in [each for each in points if each["kind"] == name][: 1 if job.fake else None] or [None]:
        if job.is_late(report, f"{row.name} from size {row.count} on"):
            break
        shapes = OTHERS[name][bool(job.fake)] if point is None else _shapes(point)
        element = "f32" if "tf32" in name else "bf16"
        inputs = [device.place(_array(shape, element, number), element) for number, shape in enumerate(shapes)]
        try:
            found, time = _call(device, program, LIBRARY, inputs)
        except TargetError as error:
            report.row(Row("cuBLASLt", note=str(error)))
            return False
        wanted, own = _call(device, program, OWN, inputs)
        row.count += 1
        text = judge(row, found, wanted, element, TF32 if name.startswith("tf32 ") or name == "tf32" else None)
        if text:
            row.wrong += 1
            report.wrong(f"{row.name} {shapes}: {text}")
        if point is not None:
            point["times"][NAME] = time
            own = point["times"].get(point["chosen"], own)
        shares.append(time / own)
        row.microseconds, row.peer = own, time
    if shares:
        row.note = f"disc's own {mean(shares):.0%} of its speed (least {min(shares):.0%}, most {max(shares):.0%})"
    report.row(row)
    return True


def _shapes(point: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    m, n, k = point["m"], point["n"], point["k"]
    return (m, k), ((n, k) if "along" in point["kind"] else (k, n))


def _array(shape: tuple[int, ...], element: str, number: int) -> Array:
    """Normal numbers; large arrays repeat a block of them."""
    count = int(np.prod(shape))
    values = np.random.default_rng(number).standard_normal(min(count, 1 << 22), np.float32)
    values = np.resize(values, count).reshape(shape)
    return (values.view(np.uint32) >> 16).astype(np.uint16) if element == "bf16" else values


def _call(device: Host, program: Any, schedule: int, inputs: Sequence[Any]) -> tuple[Array, float]:
    """The result, and microseconds of the kernel, the least of some calls."""
    program.force_schedule(schedule)
    found = device.read(program.flat(*inputs)[0])
    times = [sum(seconds for _, _, seconds in program.profile(*inputs)) for _ in range(WARM + MEASURED)]
    program.force_schedule(None)
    return found, max(min(times[WARM:]) * 1e6, LEAST)
