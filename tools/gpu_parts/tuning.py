"""What part `tune` measures: the code of every schedule of a GPU's families of products, and its launches at many sizes."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from math import isinf, prod
from pathlib import Path
from typing import Any

import torch

import disc
from disc.codegen.cuda.maps import MAP_BYTES
from disc.speculation.block_families import FAMILIES
from disc.speculation.block_model import seconds
from disc.speculation.block_trees import ALONG_K, BASE, FAST, HALF, KINDS, every_leaf, packaged_trees
from disc.speculation.sizes import Point, measured_sizes
from disc.targets.cuda import read_target
from gpu_parts.job import ROOT
from gpu_parts.recorded import Texts, assembled
from gpu_parts.timed import Linear, Product
from gpu_parts.tune import LISTING

TINY, TINY_FAMILY = ((16, 32, 64),), 2
CACHE = 1 << 30  # bytes: what guards may ask of one


def prepare_tuning(folder: Path, architecture: int, tiny: bool, texts: Texts) -> Sequence[str]:
    """Writes the listing of launches and the schedules' code, all kinds of products, or one on the stand-in. Returns these kinds."""
    sizes = TINY if tiny else measured_sizes()
    versions, points = dict[str, Any](), list[dict[str, Any]]()
    most = {"a0": 0, "a1": 0, "r0": 0, "scratch": 64, "maps": 64}
    wanted = KINDS[:1] if tiny else tuple(FAMILIES[architecture])
    for kind in wanted:
        kernel = _kernel(kind, architecture, TINY_FAMILY if tiny else None)
        own = {each.key: each for each in kernel.versions if each.schedule is not None}
        versions |= own
        for m, n, k in sizes:
            points.append(_point(kernel, own, kind, architecture, (m, n, k), most))
    made = assembled(folder, versions, [architecture], texts)
    kernels = {
        key: {"code": code, "parameters": [[each.name, each.size] for each in versions[key].parameters]} for key, code in made.items()
    }
    (folder / LISTING).write_text(json.dumps({"bytes": most, "points": points, "kernels": kernels}))
    print(f"{len(kernels)} schedules at {len(sizes)} sizes")
    return wanted


def _kernel(kind: str, architecture: int, most: int | None) -> Any:
    """A product of two inputs by every schedule of a family, or the first so many of each."""
    sys.path[:0] = [str(ROOT / "tests" / "cuda")]
    fused_programs: Any = importlib.import_module("fused_programs")
    element, along = torch.bfloat16 if kind == HALF else torch.float32, kind in ALONG_K.values()
    dims = tuple({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC} for _ in range(2))
    program = fused_programs.Fused.of_model(
        Linear() if along else Product(),
        (torch.zeros(5, 16, dtype=element), torch.zeros((24, 16) if along else (16, 24), dtype=element)), dims,
        options=disc.Options(cache=False, tf32=BASE[kind] == FAST), tree=every_leaf(FAMILIES[architecture][kind][:most]),
        target=f"sm_{architecture}",
    )  # fmt: skip
    (kernel,) = program.kernels
    return kernel


def _point(
    kernel: Any, own: dict[str, Any], kind: str, architecture: int, size: tuple[int, int, int], most: dict[str, int]
) -> dict[str, Any]:
    """The launches of a size; `most`: bytes of the largest of each buffer so far."""
    m, n, k = size
    sizes = {feature.symbols()[0]: number for feature, number in zip(kernel.choice.features, size, strict=False)}
    bytes_ = 2 if kind == HALF else 4
    for name, count in (("a0", m * k), ("a1", k * n), ("r0", m * n)):
        most[name] = max(most[name], bytes_ * count)
    gpu = read_target(f"sm_{architecture}").gpu
    assert gpu is not None
    tree = packaged_trees(architecture).get(kind)  # none yet of a new kind
    chosen = "" if tree is None else str(tree.schedules[tree.choose((m, n, k, 1, gpu.sms))])
    point = Point(m, n, k, 1, gpu.sms, weights=True)
    able = {key: each for key, each in own.items() if not isinf(seconds(kernel.choice.tree.schedules[each.schedule], point, gpu, kind))}
    launches = list(_launches(kernel, able, sizes, most))
    return {"kind": kind, "m": m, "n": n, "k": k, "chosen": chosen, "launches": launches}


def _launches(kernel: Any, own: dict[str, Any], sizes: dict[str, int], most: dict[str, int]) -> Iterator[dict[str, Any]]:
    schedules: Sequence[Any] = kernel.choice.tree.schedules
    for key, version in own.items():
        if not version.guard.holds(sizes, CACHE):
            continue
        zeroed = 0
        if version.scratch is not None:
            most["scratch"] = max(most["scratch"], version.scratch.bytes.evaluate(sizes))
            zeroed = version.scratch.zeroed.evaluate(sizes)
        grid = [dim.evaluate(sizes) for dim in version.grid]
        most["maps"] = max(most["maps"], MAP_BYTES * version.maps * prod(grid))
        numbers = {f"n_{name}": number for name, number in sizes.items()}
        yield {
            "schedule": str(schedules[version.schedule]), "key": key, "grid": grid, "persistent": version.persistent, "sizes": numbers,
            "zeroed": zeroed,
        }  # fmt: skip
