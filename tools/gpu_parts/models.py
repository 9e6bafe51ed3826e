"""Part `models`: small models as artifacts, loaded by the runtime; their results against eager PyTorch's, which the folder holds."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpu_parts.devices import Host
from gpu_parts.job import Job
from gpu_parts.report import Report, Row, judge

LISTING = "models.json"


def listed(job: Job) -> list[dict[str, Any]]:
    """The models of the folder that were asked for."""
    return [each for each in json.loads((job.folder / LISTING).read_text()) if job.wants(each["name"])]


def check(job: Job, report: Report) -> None:
    """Each model, every call twice; writes what `explain` says of the last call to explain.txt."""
    device = job.device()
    with (job.out / "explain.txt").open("w") as words:
        models = listed(job)
        for number, model in enumerate(models):
            if job.is_late(report, ", ".join(each["name"] for each in models[number:])):
                return
            row = Row(model["name"])
            try:
                words.write(f"{model['name']}\n{_check(device, job, model, row, report)}\n\n")
            except Exception as error:  # the other models may still run
                traceback.print_exc()
                row.wrong += 1
                report.wrong(f"{model['name']}: {type(error).__name__}: {error}")
            report.row(row)


def _check(device: Host, job: Job, model: Mapping[str, Any], row: Row, report: Report) -> object:
    """Returns the explanation of the last call."""
    program, arrays = device.load(job.folder / model["file"]), np.load(job.folder / model["arrays"])
    inputs: list[Any] = []
    for call in range(1 if job.fake else model["calls"]):
        inputs = [device.place(arrays[f"{call}.i{number}"], each.dtype) for number, each in enumerate(program.inputs)]
        if not job.fake:  # a call that finds what one before it left
            program.flat(*inputs)
        results = program.flat(*inputs)
        program.synchronize()
        for number, (found, about) in enumerate(zip(results, program.outputs, strict=True)):
            text = judge(row, device.read(found), arrays[f"{call}.o{number}"], about.dtype, model["bound"])
            if text:
                report.wrong(f"{model['name']}, call {call}, result {number}: {text}")
                row.wrong += 1
        row.count += 1
    return program.explain(*inputs)
