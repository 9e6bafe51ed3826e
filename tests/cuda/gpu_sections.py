"""One artifact for CPUs and GPUs: what its sections hold, and what their host code launches. Prints how many launches were checked.

Arguments: names of models of tests/models.py; without any: a program of all kinds of kernels, one that checks indices, products of
groups, and products by tensor maps.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fused_programs import Kinds
from library_models import GROUPS
from section_calls import SMS, Section, Seen
from torch import nn
from torch.utils._pytree import tree_leaves

import disc
from disc.artifact.file import read_manifest, read_section, verify
from disc.codegen.cuda.cubin import parameters
from disc.codegen.cuda.joins import COUNTERS
from disc.codegen.cuda.maps import MAP_BYTES
from disc.errors import TargetError
from disc.ral.executable import describe
from disc.speculation.block_schedules import BlockSchedule
from disc.speculation.block_trees import ALONG_K, BASE, SINGLE, BlockTree, attention_trees, packaged_trees, write_trees
from disc.speculation.tree import LEAF

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.models import MODELS, shapes

DYNAMIC = torch.export.Dim.DYNAMIC
GPUS = {80: "cuda:x86-64-v3+sm_80", 90: "cuda:x86-64-v3+sm_90"}


class Table(nn.Module):
    """Looks up rows by indices, which are checked, and writes a size that varies twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids) * 2


def check(section: Section, manifest: Mapping[str, Any], shapes: Sequence[Sequence[int]], ranks: Sequence[int], architecture: int) -> Seen:
    """One call: every kernel is launched once, with code for this GPU, as the manifest says."""
    status, seen = section.call(shapes, ranks, len(manifest["weights"]))
    assert status == 0 and not seen.failed
    assert [each.kernel for each in seen.launches] == list(range(len(manifest["kernels"])))
    for launch in seen.launches:
        assert launch.descriptor.abi == 2 and launch.descriptor.function == b"kernel"
        (first, text, code), *others = launch.images
        assert (first, text) == (architecture, 0)
        assert [size for _, size in parameters(code)] == [*launch.sizes, 8, 8]
        assert [(each[0], each[1]) for each in others] == ([(80, 1)] if architecture == 80 else [])
        assert all(each[2].endswith(b"\0") and b".version 8.0" in each[2] for each in others)
        x, y, z = launch.grid
        assert launch.tasks == x * y * z
        facts = [each for each in manifest["kernels"][launch.kernel]["versions"] if each["threads"] == launch.descriptor.threads]
        assert any(each["shared"] == launch.descriptor.shared and each["bytes"] == len(code) for each in facts)
    return seen


def kinds(path: Path) -> int:
    """The program of all kinds of kernels; how many launches there were."""
    torch.manual_seed(0)
    dims = {0: torch.export.Dim("rows", max=64), 1: torch.export.Dim("length", max=512)}  # so that positions need 32 bits: fewer versions
    disc.compile(Kinds().eval(), Kinds.example(), (dims,), ["x86-64-v3", "sm_90"]).save(path)
    manifest: Any = read_manifest(path, GPUS[90])
    section, checked = Section(read_section(path, f"code/{GPUS[90]}")), 0
    said = [each["guard"] for kernel in manifest["kernels"] if kernel["kind"] == "compute" for each in kernel["versions"]]
    words = "blocks of 64 x 32, 64 of k, 4 warps, 3 stages, by a model and times of an NVIDIA H200"
    assert any(each.startswith(words) for each in said), said
    trees = {columns: packaged_trees(90)[ALONG_K[SINGLE]].prune({1: columns, 2: 64, 3: 1}) for columns in (192, 64)}
    heads = attention_trees(90)[SINGLE, 64].prune({2: 16})
    assert manifest["tools"]["abi"] == 7, "drivers of CUDA 12 read it"
    plain: Any = read_manifest(path)
    assert plain["kernels"][0]["versions"][0].get("grid") is None, "the file's own manifest is that of a CPU"
    for rows, length in ((2, 5), (1, 1), (3, 70), (0, 5), (1, 512)):
        seen = check(section, manifest, [(rows, length, 64)], [3, 3], 90)
        assert set(seen.outputs.values()) == {(rows, length, 64)} and all((launch.tasks > 0) == (rows > 0) for launch in seen.launches)
        # The features of a product, of which the tree chooses a schedule: rows, columns, values of k, batches, SMs. Attention has queries,
        # keys, elements of a head, and heads of all sequences.
        first, second = (rows * length, 192, 64, 1, SMS), (rows * length, 64, 64, 1, SMS)
        attended = (length, length, 16, 4 * rows, SMS)
        asked = [(first, trees[192]), (attended, heads), (second, trees[64])]
        several = [(each, tree) for each, tree in asked if len(tree.schedules) > 1]  # of one alone nothing is asked
        assert seen.chosen == [(each, tree.choose(each), len(tree.schedules)) for each, tree in several] and len(several) > 1
        shares = sum(tree.schedules[tree.choose(each)].parts > 1 for each, tree in asked)
        # Where rows are few, blocks share the keys or the values of k: through memory that is cleared once a call, whose address they have.
        ((cleared, count),) = seen.filled
        assert count == COUNTERS and cleared % 64 == 0
        assert [launch.arguments[-1] for launch in seen.launches].count(cleared) == (shares if rows > 0 else 0)
        checked += len(seen.launches)
    return checked


def table(path: Path) -> int:
    """For two GPUs. A launch that checks indices is watched; the slot for the place of faults is left to the device."""
    targets, example = ["x86-64-v3", "sm_80", "sm_90"], (torch.zeros(5, dtype=torch.int64),)
    disc.compile(Table().eval(), example, ({0: torch.export.Dim.DYNAMIC},), targets).save(path)
    launches = 0
    for architecture, isa in GPUS.items():
        manifest = read_manifest(path, isa)
        seen = check(Section(read_section(path, f"code/{isa}")), manifest, [(5,)], [2], architecture)
        assert len(seen.watched) == 1 and not seen.filled
        assert "is out of range" in manifest["checks"][seen.watched[0]]["message"]
        (launch,) = (each for each in seen.launches if each.descriptor.fault >= 0)
        assert launch.arguments[launch.descriptor.fault] == 0 and launch.sizes[launch.descriptor.fault] == 8
        launches = len(seen.launches)
    alone(path)
    return launches


def groups(path: Path) -> int:
    """A kernel around an op that is computed alone. Groups that are none are reported in words of its own."""
    text = path.with_suffix(".mlir")
    text.write_text(GROUPS.format(element="bf16"))
    disc.compile(text, target=["x86-64-v3", "sm_90"]).save(path)
    manifest = read_manifest(path, GPUS[90])
    seen = check(Section(read_section(path, f"code/{GPUS[90]}")), manifest, [(5, 20), (3, 20, 70), (3,)], [2], 90)
    assert [manifest["checks"][each]["message"].split(",")[0] for each in seen.watched] == ["groups end at {actual}"]
    assert set(seen.outputs.values()) == {(5, 70)}
    return len(seen.launches)


class Products(nn.Module):
    """A layer with GELU behind it, and a product of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(128, 256, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return nn.functional.gelu(self.layer(x)), y @ z


def maps(path: Path) -> int:
    """Products whose factors are loaded by tensor maps, by a schedule of each form: their code says how much scratch it needs, and `explain`
    what it is."""
    folder = path.parent / "maps"
    schedule = BlockSchedule(64, 64, 64, 4, 4, mapped=True)
    forms = (replace(schedule, parts=2), schedule, replace(schedule, halves=2), replace(schedule, persistent=True))
    nodes = ((0, 16, 1, 2), (LEAF, 0, 0, 0), (0, 64, 3, 4), (LEAF, 1, 0, 0), (0, 128, 5, 6), (LEAF, 2, 0, 0), (LEAF, 3, 0, 0))
    write_trees(folder, 90, dict.fromkeys(BASE, BlockTree(forms, nodes)), "NVIDIA H200")
    before, os.environ["DISC_CACHE_DIR"] = os.environ.get("DISC_CACHE_DIR"), str(folder)
    example = tuple(torch.zeros(shape, dtype=torch.bfloat16) for shape in ((5, 128), (3, 6, 128), (3, 128, 256)))
    dims = ({0: DYNAMIC}, {0: DYNAMIC, 1: DYNAMIC}, {0: DYNAMIC})
    disc.compile(Products().eval(), example, dims, ["x86-64-v3", "sm_90"], disc.Options(cache=False)).save(path)
    if before is None:
        del os.environ["DISC_CACHE_DIR"]
    else:
        os.environ["DISC_CACHE_DIR"] = before
    section, manifest, checked = Section(read_section(path, f"code/{GPUS[90]}")), read_manifest(path, GPUS[90]), 0
    # Blocks of rows, by four of columns, and parts of k. Persistent programs of a batch would make maps for every block: what stands in for
    # them has none.
    for rows, programs, of_batch in ((10, 4 * 2, 16), (40, 4, 8), (100, 2 * 4, 16), (2500, SMS, 2 * 40 * 4)):
        seen = check(section, manifest, [(rows, 128), (2, rows, 128), (2, 128, 256)], [2, 3], 90)
        found = [(each.descriptor.scratch, each.grid[0]) for each in seen.launches]
        assert found == [(2 * MAP_BYTES, programs), (2 * MAP_BYTES * (rows <= 128), of_batch)], (rows, found)
        checked += len(found)
    text = " ".join(str(describe(path, GPUS[90]).explain()).split())
    assert "256 bytes of global memory for each block" in text, text
    for words in ("", ", k split into 2 parts", ", stored in halves", ", persistent"):
        assert f"by TMA{words}, by a model and times of an NVIDIA H200" in text, (words, text)
    return checked


def alone(path: Path) -> None:
    """A program for a GPU that this machine lacks, once compiled and once from the cache: it is read, explained and saved; a call says why not.
    So is the GPU's code of a file that has a CPU's, too."""
    os.environ.update(DISC_CACHE="1", DISC_CACHE_DIR=str(path.parent / "cache"))
    assert "registers" in str(describe(path, GPUS[80]).explain())
    module = Table().eval()
    for number in range(2):
        executable = disc.compile(module, (torch.zeros(5, dtype=torch.int64),), ({0: torch.export.Dim.DYNAMIC},), "sm_90")
        assert executable.stats()["compiles"] == 1 - number
        executable.save(path)
        verify(path)
        assert executable.isa == GPUS[90] and [each.name for each in executable.inputs] == ["ids"]
        try:
            executable(torch.zeros(3, dtype=torch.int64))
        except TargetError as error:
            assert "needs a GPU" in str(error)
        else:
            raise AssertionError("it ran")


def model(name: str, path: Path) -> int:
    """A model of tests/models.py; how many launches calls of three shapes made."""
    module, example, dims = MODELS[name]()
    disc.compile(module.eval(), example, dims, ["x86-64-v4", "sm_90"]).save(path)
    manifest: Any = read_manifest(path, GPUS[90])
    section, checked = Section(read_section(path, f"code/{GPUS[90]}")), 0
    ranks = [len(each["dims"]) for each in manifest["outputs"]]
    for inputs in shapes(name)[:3]:
        seen = check(section, manifest, [tuple(each.shape) for each in inputs], ranks, 90)
        assert all(launch.tasks > 0 for launch in seen.launches)
        with torch.no_grad():
            results = [each for each in tree_leaves(module(*inputs)) if isinstance(each, torch.Tensor)]
        assert [seen.outputs[number] for number in range(len(ranks))] == [tuple(each.shape) for each in results]
        checked += len(seen.launches)
    return checked


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.disc"
        print(
            sum(model(name, path) for name in sys.argv[1:]) if sys.argv[1:] else kinds(path) + table(path) + groups(path) + maps(path),
            "launches",
        )
