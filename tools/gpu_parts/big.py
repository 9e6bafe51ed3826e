"""Part `big`: models of full size, whose weights come from seeds, against eager PyTorch on the same GPU; without transformers, against
a sketch of eager's results that the folder holds."""

from __future__ import annotations

import importlib
import json
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpu_parts.arrays import Arrays
from gpu_parts.devices import Host
from gpu_parts.job import Job, read_packed
from gpu_parts.report import BOUNDS, TF32, Report, Row, difference
from gpu_parts.weights import follow_recipe, seed_module, seeded

LISTING = "big.json"
LONGER = 3  # times as long as all before, which the stand-in may take for the next model
BOUND = {"f32": BOUNDS["f32"], "bf16": BOUNDS["bf16"], "tf32": TF32}


def check(job: Job, report: Report) -> None:
    """Each model: values, and times beside eager PyTorch with the same arithmetic (bf16: autocast)."""
    device = job.device()
    models = [each for each in json.loads((job.folder / LISTING).read_text()) if job.wants(each["name"])]
    if job.fake:  # the small ones, while there is time for one more that takes some times as long
        models.sort(key=lambda each: each["size"])
    for number, model in enumerate(models):
        if number and job.fake and job.left < LONGER * (job.seconds - job.left):
            report.row(Row("left out", note=", ".join(each["name"] for each in models[number:])))
            return
        try:
            _check(device, job, model, report)
        except Exception as error:  # the other models may still run
            traceback.print_exc()
            report.row(Row(model["name"], wrong=1))
            report.wrong(f"{model['name']}: {type(error).__name__}: {error}")


def restore(folder: Path, model: Mapping[str, Any], parameters: Mapping[str, Any], target: Path) -> None:
    """Writes the artifact with its weights, byte by byte what it was: loading it checks its hashes."""
    head, stored = read_packed(folder / model["head"]), np.load(folder / model["arrays"])
    with target.open("wb") as file:
        file.truncate(model["size"])
        file.write(head)
        for number, each in enumerate(model["weights"]):
            file.seek(each["offset"])
            file.write(stored[f"w{number}"].tobytes() if each["recipe"] is None else follow_recipe(each["recipe"], parameters).tobytes())


def _check(device: Host, job: Job, model: Mapping[str, Any], report: Report) -> None:
    import torch

    try:
        models: Any = importlib.import_module("tests.models")
    except ModuleNotFoundError:  # transformers
        _check_recorded(device, job, model, report)
        return
    module = models.BUILDERS[model["factory"]](full=model["full"])[0]
    parameters = seed_module(module)
    eager = module.cuda().eval() if device.peers else module.eval()
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        path = Path(folder) / "model.disc"
        restore(job.folder, model, parameters, path)
        program = device.load(path)
        for sizes in model["sizes"][: 1 if job.fake else None]:
            if job.is_late(report, f"{model['name']} at {sizes} and what follows"):
                return
            report.row(_row(device, model, eager, program, getattr(models, model["inputs"])(*sizes), report))


def _check_recorded(device: Host, job: Job, model: Mapping[str, Any], report: Report) -> None:
    """Inputs and results are the folder's; there is no peer."""
    parameters = {name: seeded(name, shape) for name, shape in model["parameters"].items()}
    stored = Arrays(job.folder / model["arrays"], model["about"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.disc"
        restore(job.folder, model, parameters, path)
        program = device.load(path)
        for reference in model["references"][: 1 if job.fake else None]:
            arrays = [stored.argument(name) for name in reference["inputs"]]
            given = [device.place(each, "") for each in arrays]
            row = Row(f"{model['name']} {'x'.join(map(str, arrays[0].shape))}", 1, note="no transformers: no peer")
            found = device.read(program.flat(*given)[0])
            text = stored.judge(row, found, reference["result"], "f32", BOUND[model["arithmetic"]])
            row.wrong = int(text != "")
            if text:
                report.wrong(f"{row.name}: {text}")
            if not job.fake:
                row.microseconds = device.microseconds(lambda given=given: program.flat(*given))
            report.row(row)


def _row(device: Host, model: Mapping[str, Any], eager: Any, program: Any, inputs: tuple[Any, ...], report: Report) -> Row:
    """One size."""
    import torch

    row = Row(f"{model['name']} {'x'.join(map(str, inputs[0].shape))}", 1)
    placed = [each.cuda() for each in inputs] if device.peers else list(inputs)
    given = placed if device.peers else [each.numpy() for each in inputs]
    wanted = eager(*placed)
    found = program.flat(*given)[0]
    share = difference(device.read(found), wanted.float().cpu().numpy(), "f32") / BOUND[model["arithmetic"]]
    row.worst, row.wrong = share, int(not share <= 1)
    if row.wrong:
        report.wrong(f"{row.name}: differs by {share:.3g} of what is allowed")
    row.microseconds = device.microseconds(lambda: program.flat(*given))
    if device.peers:
        torch.backends.cuda.matmul.allow_tf32 = model["arithmetic"] == "tf32"
        with torch.autocast("cuda", torch.bfloat16, enabled=model["arithmetic"] == "bf16"):
            row.peer = device.microseconds(lambda: eager(*placed))
        torch.backends.cuda.matmul.allow_tf32 = False
    kernels = sum(seconds for _, _, seconds in program.profile(*given)) * 1e6
    row.note = f"kernels {kernels:.0f} us"
    return row
