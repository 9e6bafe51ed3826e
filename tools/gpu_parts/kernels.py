"""Part `kernels`: every launch of the recorded programs, with memory that is poisoned before and guarded on both sides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from ctypes import c_uint32, c_uint64
from typing import Any

import numpy as np

from gpu_parts.arrays import Arrays
from gpu_parts.driver import POISON, Array, Buffer, DriverError, Gpu
from gpu_parts.job import Job
from gpu_parts.report import Report, Row


def check(job: Job, report: Report) -> None:
    """Runs the cases, program by program. Nothing runs after the GPU has refused to go on."""
    gpu = Gpu(job.driver())
    listing = json.loads((job.folder / "cases.json").read_text())
    names = dict.fromkeys(each["program"] for each in listing["cases"])
    wanted = [name for name in names if job.wants(name)]
    for number, program in enumerate(wanted):
        if job.is_late(report, ", ".join(wanted[number:])):
            return
        least = job.left * (1 - 1 / (len(wanted) - number)) if job.fake else float("-inf")  # on the stand-in all programs have a turn
        row, arrays = Row(program), Arrays(job.folder / f"{program}.npz", listing["arrays"][program])
        cases = [each for each in listing["cases"] if each["program"] == program]
        for case in cases:
            if row.count and job.left < least:
                row.note = f"of {len(cases)} launches"
                break
            name = f"{program} {case['launch']} {case['kernel']} {case['key'][:24]}"
            try:
                wrong = _run(gpu, job, case, listing["kernels"], arrays, row)
            except DriverError as error:
                row.wrong += 1
                report.row(row)
                report.wrong(f"{name}: {error}; the cases behind it were not run ({len(wanted) - number - 1} programs)")
                return
            for each in wrong:
                report.wrong(f"{name}: {each}")
        report.row(row)


def _run(gpu: Gpu, job: Job, case: Mapping[str, Any], kernels: Mapping[str, Any], arrays: Arrays, row: Row) -> list[str]:
    """Launches a case once, behind what goes ahead of it. Returns what is wrong with it."""
    _, facts = gpu.load(case["key"], kernels[case["key"]], job.folder)
    values, results, buffers = list[Any](), list[tuple[Mapping[str, Any], Buffer]](), list[Buffer]()
    fault: Buffer | None = None
    counters: tuple[Buffer, int] | None = None

    def place(content: Array | None, size: int) -> Buffer:
        buffers.append(Buffer(gpu, content, size))
        values.append(c_uint64(buffers[-1].address))
        return buffers[-1]

    for each in case["parameters"]:
        if each["kind"] == "argument":
            place(arrays.argument(each["array"]), arrays.argument(each["array"]).nbytes)
        elif each["kind"] == "result":
            shape, dtype = arrays.layout(each["array"])
            results.append((each, place(None, int(np.prod(shape)) * dtype.itemsize)))
        elif each["kind"] == "fault":
            fault = place(np.zeros(3, np.int64), 24)
        elif each["kind"] == "scratch":
            content = np.full(each["bytes"], POISON, np.uint8)
            content[: each["zeroed"]] = 0
            counters = place(content, each["bytes"]), each["zeroed"]
        else:
            values.append((c_uint64 if each["bytes"] == 8 else c_uint32)(each["value"] % (1 << 8 * each["bytes"])))
    if facts["scratch"]:
        place(None, facts["scratch"] * int(np.prod(case["grid"])))
        values.append(c_uint64(0))
    else:
        values += [c_uint64(0), c_uint64(0)]
    for each in (*case["ahead"], case):
        if all(each["grid"]):
            own = gpu.load(each["key"], kernels[each["key"]], job.folder)
            row.microseconds = (row.microseconds or 0.0) + gpu.launch(*own, each["grid"], values)
    wrong = [f"{each['name']}: {text}" for each, buffer in results if (text := _compared(each, buffer, arrays, row))]
    if fault is not None and any(fault.read()[0]):
        wrong.append(f"reports a fault {np.frombuffer(fault.read()[0], np.int64)}")
    if counters is not None and any(counters[0].read()[0][: counters[1]]):
        wrong.append("counters are left as they were counted")
    wrong += ["a buffer was left" for buffer in buffers if not buffer.read()[1]]
    for buffer in buffers:
        buffer.free()
    row.count += 1
    row.wrong += bool(wrong)
    return wrong


def _compared(parameter: Mapping[str, Any], buffer: Buffer, arrays: Arrays, row: Row) -> str:
    shape, dtype = arrays.layout(parameter["array"])
    found = np.frombuffer(buffer.read()[0], dtype).reshape(shape)
    return arrays.judge(row, found, parameter["array"], parameter["element"])
