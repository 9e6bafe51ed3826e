"""Part `times`: products, rows and attention beside eager PyTorch (cuBLAS, its own kernels, SDPA), by events, and floors of the machine."""

from __future__ import annotations

import traceback
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from gpu_parts.devices import Host
from gpu_parts.driver import Array
from gpu_parts.job import PACKED, Job
from gpu_parts.report import TF32, Report, Row, judge
from gpu_parts.timed import TIMED, Shapes, Timed

COPIED = 1 << 30  # bytes of the copy that is a floor


def check(job: Job, report: Report) -> None:
    """Every program at every size: values, then the time of a call."""
    device = job.device()
    if device.peers and not job.only:
        report.row(_copy_floor(device))
    for name, program in TIMED.items():
        if not job.wants(name) or not _file(job, name).exists():
            continue
        try:
            _check_program(device, job, name, program, report)
        except Exception as error:  # the other programs may still run
            traceback.print_exc()
            report.row(Row(name, wrong=1))
            report.wrong(f"{name}: {type(error).__name__}: {error}")


def _file(job: Job, name: str) -> Path:
    return job.folder / "timed" / f"{name}.disc{PACKED}"


def _copy_floor(device: Host) -> Row:
    import torch

    source = torch.empty(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    time = device.microseconds(lambda: target.copy_(source))
    return Row("copy of 1 GiB (floor)", 1, peer=time, note=f"{2 * COPIED / time * 1e-3:.0f} GB/s")


def _check_program(device: Host, job: Job, name: str, timed: Timed, report: Report) -> None:
    import torch

    compiled = device.load(_file(job, name))
    module = timed.build().eval()
    eager = module.cuda() if device.peers else module
    for shapes in timed.shapes if device.peers else [timed.tiny]:
        if job.is_late(report, f"{name} at {shapes} and what follows"):
            return
        row = Row(f"{name} {_shape_text(shapes)}", 1)
        arrays = [_array(shape, timed.element, f"{name}{number}") for number, shape in enumerate(shapes)]
        inputs: list[Any] = [device.place(each, timed.element) for each in arrays]
        peers = inputs if device.peers else [_tensor(each, timed.element) for each in arrays]
        with torch.inference_mode():
            (found,), wanted = compiled.flat(*inputs), eager(*peers)
            text = judge(row, device.read(found), _stored(wanted), timed.element, TF32 if timed.tf32 else None)
            if text:
                report.wrong(f"{row.name}: {text}")
                row.wrong += 1
            del found, wanted
            row.microseconds = device.microseconds(lambda inputs=inputs: compiled.flat(*inputs))
            if device.peers:
                torch.backends.cuda.matmul.allow_tf32 = timed.tf32
                row.peer = device.microseconds(lambda peers=peers: eager(*peers))
                torch.backends.cuda.matmul.allow_tf32 = False
        row.note = _note(timed, shapes, row.microseconds, compiled, inputs)
        report.row(row)


def _note(timed: Timed, shapes: Shapes, microseconds: float, compiled: Any, inputs: list[Any]) -> str:
    """How fast that is; by events around each kernel, how long kernels alone take."""
    kernels = sum(seconds for _, _, seconds in compiled.profile(*inputs)) * 1e6
    words = f"kernels {kernels:.1f} us"
    if timed.flops is not None:
        return f"{timed.flops(shapes) / microseconds * 1e-6:.1f} TFLOP/s, {words}"
    moved = 2 * sum(int(np.prod(shape)) for shape in shapes) * (2 if timed.element == "bf16" else 4)
    return f"{moved / microseconds * 1e-3:.0f} GB/s, {words}"


def _shape_text(shapes: Shapes) -> str:
    return " ".join("x".join(map(str, shape)) for shape in dict.fromkeys(shapes))


def _array(shape: tuple[int, ...], element: str, name: str) -> Array:
    """Normal numbers; large arrays repeat a block of them, as drawing so many takes long."""
    count = int(np.prod(shape))
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(min(count, 1 << 22), np.float32)
    values = np.resize(values, count).reshape(shape)
    return (values.view(np.uint32) >> 16).astype(np.uint16) if element == "bf16" else values


def _tensor(array: Array, element: str) -> Any:
    import torch

    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if element == "bf16" else tensor


def _stored(tensor: Any) -> Array:
    """The values of a tensor of PyTorch; of bf16, the bits."""
    import torch

    host = tensor.detach().cpu()
    return host.view(torch.int16).numpy().view(np.uint16) if host.dtype == torch.bfloat16 else host.numpy()
