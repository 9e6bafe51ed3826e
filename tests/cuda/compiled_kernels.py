"""Kernels of every kind as code for GPUs of three generations; prints how many were compiled: of the versions of each kernel, the first or all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from fused_programs import Fused, Kinds
from library_models import GROUPS, Scans, Scatters, Sorts

from disc.codegen.cuda.assemble import assemble
from disc.codegen.cuda.kernel import DeviceKernel
from disc.targets.cuda import read_target

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def resources(code: bytes) -> tuple[int, int]:
    """Registers of a thread, and its bytes that lie in local memory, as NVIDIA's own tool says."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        text = subprocess.run([TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers = re.search(r"REG:(\d+)", text)
    assert registers is not None
    return int(registers[1]), sum(int(size) for size in re.findall(r"(?:LOCAL|STACK):(\d+)", text))


def kernels(what: str) -> list[DeviceKernel]:
    """Of a block of a transformer, or of library ops."""
    if what != "library":
        program = Fused.of_model(Kinds().eval(), Kinds.example(), Kinds.dims())
        assert {kernel.kind for kernel in program.kernels} == {"loop", "stitch", "compute", "attention"}
        return program.kernels
    scatters = Scatters(130)
    with tempfile.TemporaryDirectory() as folder:
        programs = [
            Fused.of_model(Scans(), Scans.example(), Scans.dims()),
            Fused.of_model(scatters, scatters.example(), scatters.dims()),
            Fused.of_model(Sorts(), Sorts.example(), Sorts.dims()),
            Fused.of_text(GROUPS.format(element="bf16"), Path(folder)),
        ]
    return [kernel for program in programs for kernel in program.kernels if kernel.kind == "library"]


if __name__ == "__main__":
    assert os.environ.get("TRITON_INTERPRET", "0") == "0"
    torch.manual_seed(0)
    count = {"first": 1, "all": None, "library": None}[sys.argv[1]]
    versions = {version.key: version for kernel in kernels(sys.argv[1]) for version in kernel.versions[:count]}
    done = 0
    for name in ("sm_80", "sm_90", "sm_100"):
        gpu = read_target(name).gpu
        assert gpu is not None
        for key, cubin in assemble(list(versions.values()), gpu).items():
            assert (cubin.registers, cubin.stack) == resources(cubin.code) and cubin.stack == 0, (
                f"{name} spills {cubin.stack} bytes\n{versions[key].text}"
            )
            assert cubin.shared <= 99 << 10
            done += 1
    print(done, "compiled")
