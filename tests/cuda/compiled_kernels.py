"""Kernels as code for GPUs of three generations; prints how many were compiled. `first`, `all`: of the versions of kernels of every kind, `all` for every GPU;
`library`: of library ops; `schedules`: every schedule of products with a bias and GELU, with a line of each that says what it takes.
Further arguments: the GPUs, in place of those of three generations."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import triton
from fused_programs import ANY_SIZE, CONVOLUTION, Fused, Kinds, Layers, Rows, Sums, every_leaf
from library_models import GROUPS, Scans, Scatters, Sorts
from torch import nn

from disc.codegen.cuda.assemble import assemble
from disc.codegen.cuda.emission import emit_device
from disc.codegen.cuda.kernel import DeviceKernel, DeviceVersion
from disc.codegen.cuda.plans import product_plan
from disc.speculation.block_families import FAMILIES
from disc.speculation.block_trees import FAST, HALF, KINDS, SINGLE, BlockTree
from disc.speculation.guards import Aligned, parts_of
from disc.targets import cuda
from disc.targets.cuda import read_target
from disc.targets.thresholds import Gpu

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
NAMES = {"all": cuda.NAMES}  # of the others, three generations
THREE = ("sm_80", "sm_90", "sm_100")


def resources(code: bytes) -> tuple[int, int]:
    """Registers of a thread, and its bytes that lie in local memory, as NVIDIA's own tool says."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        text = subprocess.run([TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers = re.search(r"REG:(\d+)", text)
    assert registers is not None
    return int(registers[1]), sum(int(size) for size in re.findall(r"(?:LOCAL|STACK):(\d+)", text))


def versions(chosen: str, name: str, gpu: Gpu) -> Iterator[tuple[str, DeviceVersion]]:
    """Those of a target, each with a name."""
    if chosen == "schedules":
        yield from schedules(name, gpu.architecture)
        return
    kernels = library(name) if chosen == "library" else kinds(name, None if chosen == "all" else ANY_SIZE)
    for kernel in kernels:
        for version in kernel.versions[: 1 if chosen == "first" else None]:
            yield kernel.name, version


def kinds(name: str, tree: BlockTree | None) -> list[DeviceKernel]:
    """Of a block of a transformer; with the schedules that are chosen (tree: None), also of rows and columns of any length, and of a convolution."""
    program = Fused.of_model(Kinds().eval(), Kinds.example(), Kinds.dims(), tree=tree, target=name)
    assert {kernel.kind for kernel in program.kernels} == {"loop", "stitch", "compute", "attention"}
    if tree is not None:
        return program.kernels
    length, image = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}
    others = [
        Fused.of_model(Rows(), (torch.randn(3, 5),), (length,), tree=tree, target=name),
        Fused.of_model(Sums(), (torch.randn(3, 5), torch.randn(4, 6)), (length, length), tree=tree, target=name),
        Fused.of_model(nn.Conv2d(64, 64, 3, 1, 1).eval(), (torch.randn(2, 64, 9, 8),), (image,), tree=tree, target=name),
    ]
    with tempfile.TemporaryDirectory() as folder:
        others.append(Fused.of_text(CONVOLUTION.format(groups=1, channels=32), Path(folder), target=name))
    return [*program.kernels, *(kernel for each in others for kernel in each.kernels)]


def library(name: str) -> list[DeviceKernel]:
    """Of library ops."""
    scatters = Scatters(130)
    with tempfile.TemporaryDirectory() as folder:
        programs = [
            Fused.of_model(Scans(), Scans.example(), Scans.dims(), target=name),
            Fused.of_model(scatters, scatters.example(), scatters.dims(), target=name),
            Fused.of_model(Sorts(), Sorts.example(), Sorts.dims(), target=name),
            Fused.of_text(GROUPS.format(element="bf16"), Path(folder), target=name),
        ]
    return [kernel for program in programs for kernel in program.kernels if kernel.kind == "library"]


def schedules(name: str, architecture: int) -> Iterator[tuple[str, DeviceVersion]]:
    """Those of all products."""
    model = Layers(1024, 256).eval()
    program = Fused.of_model(model, model.example(), model.dims(), target=name)
    for kind in KINDS:
        family, element = FAMILIES[architecture][kind], "bf16" if kind == HALF else "f32"
        plan = product_plan(every_leaf(family), FAST if kind == FAST else SINGLE)
        (work,) = (each.work for each in program.places if each.work.kind == "compute" and each.work.body.yields[0].element == element)
        for version in emit_device(work, plan, program.target).versions:
            if version.schedule is not None:
                yield f"{kind} {family[version.schedule]}", version


if __name__ == "__main__":
    assert os.environ.get("TRITON_INTERPRET", "0") == "0"
    torch.manual_seed(0)
    done: set[tuple[str, str]] = set()
    for name in sys.argv[2:] or NAMES.get(sys.argv[1], THREE):
        gpu = read_target(name).gpu
        assert gpu is not None
        for what, version in versions(sys.argv[1], name, gpu):
            if (name, version.key) in done:
                continue
            done.add((name, version.key))
            (cubin,) = assemble([version], gpu).values()
            print(f"{name} {what}: {cubin.registers} registers, {cubin.shared} bytes shared, {cubin.stack} spilled", flush=True)
            assert (cubin.registers, cubin.stack) == resources(cubin.code) and cubin.stack == 0, version.text
            assert cubin.shared <= gpu.shared_block
            wide = Aligned(16) in parts_of(version.guard)
            assert not (wide and cubin.ptx) or "ld.global.v4" in cubin.ptx or "cp.async" in cubin.ptx, version.text
            if wide and what == "compute_convolution":  # over channels-last values: both factors go to shared memory 16 bytes at a time
                assert not cubin.ptx or set(re.findall(r"cp\.async\.c[ag]\.shared\.global [^;]*?, (0x\w+)", cubin.ptx)) == {"0x10"}
    print(len(done), "compiled")
