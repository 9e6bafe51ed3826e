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

from disc.codegen.cuda.assemble import assemble
from disc.targets.cuda import read_target

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def spilled(code: bytes) -> int:
    """Bytes of a thread that lie in local memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        text = subprocess.run([TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return sum(int(size) for size in re.findall(r"(?:LOCAL|STACK):(\d+)", text))


if __name__ == "__main__":
    assert os.environ.get("TRITON_INTERPRET", "0") == "0"
    torch.manual_seed(0)
    program = Fused.of_model(Kinds().eval(), Kinds.example(), Kinds.dims())
    assert {kernel.kind for kernel in program.kernels} == {"loop", "stitch", "compute", "attention"}
    count = {"first": 1, "all": None}[sys.argv[1]]
    versions = {version.key: version for kernel in program.kernels for version in kernel.versions[:count]}
    done = 0
    for name in ("sm_80", "sm_90", "sm_100"):
        gpu = read_target(name).gpu
        assert gpu is not None
        for key, cubin in assemble(list(versions.values()), gpu).items():
            assert spilled(cubin.code) == cubin.stack == 0, f"{name} spills {cubin.stack} bytes\n{versions[key].text}"
            assert cubin.shared <= 99 << 10
            done += 1
    print(done, "compiled")
