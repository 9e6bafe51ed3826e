"""Kernels as code for GPUs of three generations: none spills, all stay within the shared memory of a block, and take the parameters that
launches give. Prints how many there are.

`first`: the first version of a kernel of every kind. `whole`: all versions of kernels of every kind, of library ops, and by every schedule of
products with a bias and GELU. `recorded`: the same, not compiled, but looked up in tests/golden/gpu_code.json, where `record` writes what
their code takes; a text that is another one than was compiled then is found. Further arguments: the GPUs, in place of those of three
generations."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from fused_programs import ANY_SIZE, CONVOLUTION, Fused, Kinds, Layers, Masked, Rows, Sums
from library_models import GROUPS, Pools, Scans, Scatters, Sorts
from torch import nn

import disc
from disc.codegen.cuda.assemble import assemble, tool_facts
from disc.codegen.cuda.emission import emit_device
from disc.codegen.cuda.kernel import DeviceKernel, DeviceVersion
from disc.codegen.cuda.maps import FIRST_ARCHITECTURE
from disc.codegen.cuda.plans import product_plan
from disc.speculation.block_families import FAMILIES
from disc.speculation.block_schedules import BlockSchedule
from disc.speculation.block_trees import FAST, HALF, HEADS, KINDS, SINGLE, BlockTree, every_leaf
from disc.speculation.guards import Aligned, parts_of
from disc.targets.cuda import read_target
from disc.targets.thresholds import Gpu

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
RECORD = Path(__file__).parents[1] / "golden" / "gpu_code.json"
ONE_ROW = "g1 < 1\n"  # so short that a lane holds a number or two
KEY = 24  # characters of the key of a version
THREE = ("sm_80", "sm_90", "sm_100")


class Code(NamedTuple):
    """What the code of a version takes. threads: of a block; registers, and bytes that are spilled, of a thread; shared, of a block; size of
    the code: bytes."""

    what: str
    threads: int
    registers: int
    shared: int
    spilled: int
    size: int


def resources(code: bytes) -> tuple[int, int]:
    """Registers of a thread, and its bytes that lie in local memory, as NVIDIA's own tool says."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        text = subprocess.run([TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers = re.search(r"REG:(\d+)", text)
    assert registers is not None
    return int(registers[1]), sum(int(size) for size in re.findall(r"(?:LOCAL|STACK):(\d+)", text))


def disassembled(code: bytes) -> str:
    """The instructions."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        return subprocess.run([TOOLS / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True).stdout


def versions(chosen: str, name: str, gpu: Gpu) -> Iterator[tuple[str, DeviceVersion]]:
    """Those of a target, each with a name."""
    if chosen == "schedules":
        yield from schedules(name, gpu.architecture)
        return
    if chosen == "first":
        yield from mapped(name)
        if gpu.architecture == FIRST_ARCHITECTURE:  # whose schedules are of most forms
            yield from ones(name)
    kernels = library(name) if chosen == "library" else kinds(name, None if chosen == "all" else ANY_SIZE)
    for kernel in kernels:
        for version in kernel.versions[: 1 if chosen == "first" else None]:
            yield from ((kernel.name, each) for each in (*version.ahead, version))


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
            Fused.of_model(Pools(), Pools.example(), Pools.dims(), target=name, options=disc.Options(packed=True, cache=False)),
            Fused.of_text(GROUPS.format(element="bf16"), Path(folder), target=name),
        ]
    return [kernel for program in programs for kernel in program.kernels if kernel.kind == "library"]


def schedules(name: str, architecture: int) -> Iterator[tuple[str, DeviceVersion]]:
    """Those of all products, and all versions of attention with heads of several lengths."""
    model = Layers(1024, 256).eval()
    program = Fused.of_model(model, model.example(), model.dims(), target=name)
    for kind in KINDS:
        family, element = FAMILIES[architecture][kind], "bf16" if kind == HALF else "f32"
        plan = product_plan(every_leaf(family), FAST if kind == FAST else SINGLE)
        (work,) = (each.work for each in program.places if each.work.kind == "compute" and each.work.body.yields[0].element == element)
        for version in emit_device(work, plan, program.target).versions:
            if version.schedule is not None:
                yield f"{kind} {family[version.schedule]}", version
    for kind, head in product((HALF, SINGLE), HEADS):
        example = Masked.example(head, torch.bfloat16 if kind == HALF else torch.float32)
        program = Fused.of_model(Masked(), example, Masked.dims(), target=name, tree=None)
        (attention,) = (each for each in program.kernels if each.kind == "attention")
        for version in attention.versions:
            words = "" if version.schedule is None or attention.choice is None else f" {attention.choice.tree.schedules[version.schedule]}"
            yield f"attention of heads of {head}, {kind}{words}", version


def mapped(name: str) -> Iterator[tuple[str, DeviceVersion]]:
    """A schedule of bf16 that loads by tensor maps."""
    model, tree = Layers(1024, 256).eval(), every_leaf((BlockSchedule(64, 64, 64, 4, 4, mapped=True),))
    for kernel in Fused.of_model(model, model.example(), model.dims(), target=name, tree=tree).kernels:
        yield from (("tensor maps", each) for each in kernel.versions if each.maps and each.parameters[0].type == "*bf16")


class One(nn.Module):
    """Products of one column, of one row, and of one value of k."""

    def forward(self, *factors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(left @ right for left, right in zip(factors[::2], factors[1::2], strict=True))


def ones(name: str) -> Iterator[tuple[str, DeviceVersion]]:
    """Products with a size of 1, by the schedules that are chosen for them on this GPU."""
    shapes = ((5, 16), (16, 1), (8, 1, 11), (8, 11, 16), (5, 1), (1, 7))
    example = tuple(torch.randn(shape, dtype=torch.bfloat16) for shape in shapes)
    dims = (tuple({axis: torch.export.Dim.DYNAMIC for axis, size in enumerate(shape) if size in (5, 7, 11)} for shape in shapes),)
    for kernel in Fused.of_model(One(), example, dims, tree=None, target=name).kernels:
        yield from (("one column, row or value of k", each) for each in kernel.versions if each.schedule is not None)


def whole(name: str, gpu: Gpu) -> Iterator[tuple[str, DeviceVersion]]:
    """All of a target, each once."""
    done: set[str] = set()
    for chosen in ("all", "library", "schedules"):
        for what, version in versions(chosen, name, gpu):
            if version.key not in done:
                yield what, version
            done.add(version.key)


def compiled(name: str, gpu: Gpu, what: str, version: DeviceVersion) -> Code:
    """Compiles a version, looks at its code, and prints a line of it."""
    (cubin,) = assemble([version], gpu).values()
    print(f"{name} {what}: {cubin.registers} registers, {cubin.shared} bytes shared, {cubin.stack} spilled", flush=True)
    assert (cubin.registers, cubin.stack) == resources(cubin.code) and cubin.stack == 0, version.text
    assert cubin.shared <= gpu.shared_block
    wide = Aligned(16) in parts_of(version.guard) and any(each.name == "a0" for each in version.parameters) and ONE_ROW not in version.text
    assert not (wide and cubin.ptx) or "ld.global.v4" in cubin.ptx or "cp.async" in cubin.ptx, version.text
    if wide and what == "compute_convolution":  # over channels-last values: both factors go to shared memory 16 bytes at a time
        assert not cubin.ptx or set(re.findall(r"cp\.async\.c[ag]\.shared\.global [^;]*?, (0x\w+)", cubin.ptx)) == {"0x10"}
    if version.maps and gpu.architecture >= FIRST_ARCHITECTURE:  # both factors are loaded so, and nothing else to shared memory
        text = disassembled(cubin.code)
        assert "UTMALDG" in text and "LDGSTS" not in text, version.text
    return Code(what, cubin.threads, cubin.registers, cubin.shared, cubin.stack, len(cubin.code))


def read_record() -> tuple[dict[str, str], dict[str, dict[str, Code]]]:
    """What made the code that was recorded, and that code, by target and key."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"tools": {}, "targets": {}}
    return record["tools"], {name: {key: Code(*each) for key, each in codes.items()} for name, codes in record["targets"].items()}


def write_record(found: Mapping[str, Mapping[str, Code]]) -> None:
    """A line for each version."""
    lines = [
        f"  {json.dumps(name)}: {{\n" + ",\n".join(f"   {json.dumps(key)}: {json.dumps(each)}" for key, each in codes.items()) + "\n  }"
        for name, codes in found.items()
    ]
    RECORD.write_text(f'{{"tools": {json.dumps(own_tools())},\n "targets": {{\n' + ",\n".join(lines) + "\n}}\n")


def own_tools() -> dict[str, str]:
    """Triton and its ptxas."""
    return {name: tool_facts()[name] for name in ("triton", "ptxas")}


def look_up(name: str, gpu: Gpu, known: Mapping[str, Code]) -> int:
    """Every version of a target was compiled; how many there are."""
    found = [(what, known.get(version.key[:KEY])) for what, version in whole(name, gpu)]
    stale = [what for what, code in found if code is None]
    assert not stale, f"for {name} others than those that were compiled: {stale}; run {Path(__file__).name} record"
    assert all(code is None or (code.spilled == 0 and code.shared <= gpu.shared_block) for _, code in found)
    return len(found)


def compile_whole(name: str, gpu: Gpu, known: Mapping[str, Code]) -> tuple[dict[str, Code], list[str]]:
    """Compiles every version of a target that is not known. Returns their code, and what is not as it should be."""
    found, wrong = dict[str, Code](), list[str]()
    for what, version in whole(name, gpu):
        key = version.key[:KEY]
        try:
            found[key] = known[key] if key in known else compiled(name, gpu, what, version)
        except AssertionError as error:
            wrong.append(f"{name} {what} {version.guard}: {error}")
    return found, wrong


def main(chosen: str, names: Sequence[str]) -> int:
    """Returns how many versions were looked at."""
    tools, known = read_record()
    count, alike = 0, tools == own_tools()
    for name in names or THREE:
        gpu = read_target(name).gpu
        assert gpu is not None
        old = known.get(name, {})
        if chosen == "first":
            count += len([compiled(name, gpu, what, version) for what, version in versions(chosen, name, gpu)])
        elif chosen == "recorded":
            count += look_up(name, gpu, old)
        else:
            found, wrong = compile_whole(name, gpu, old if chosen == "record" and alike else {})
            count += len(found)
            if chosen == "record":
                known[name] = found
                write_record(known)
            assert not wrong, "\n".join(wrong)
            if chosen == "whole":
                assert not alike or found == old, f"{name}: its code takes something else than was recorded"
    return count


if __name__ == "__main__":
    assert os.environ.get("TRITON_INTERPRET", "0") == "0"
    torch.manual_seed(0)
    print(main(sys.argv[1], sys.argv[2:]), "compiled")
