"""What part `kernels` runs: launches of programs of tests/cuda and of small models, with what the interpreter of the IR got and gave."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np

from gpu_parts.arrays import LARGE, Stored
from gpu_parts.driver import Array
from gpu_parts.job import ROOT
from gpu_parts.stand_in import code_name

SMS = 3  # as persistent programs see it: so few that each has several blocks
Texts = dict[str, dict[str, object]]  # as `write_texts` takes them


@dataclass
class Recorded:
    """What one program's launches need. arrays: as they lie in memory (bf16 as its bits); versions: by key, as `DeviceVersion`."""

    arrays: Stored = field(default_factory=Stored)
    cases: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, Any] = field(default_factory=dict)


# --- in a process where Triton interprets, as the programs of tests/cuda expect --------------------------------------------


def record(kind: str, name: str, file: Path) -> None:
    """Writes the `Recorded` of a program, or of a model, as a pickle."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "cuda")]
    device_oracle, model_kernels, programs = map(importlib.import_module, ("device_oracle", "model_kernels", "kernel_programs"))
    made, run, inputs = Recorded(), device_oracle.Checked.run, count()
    device_oracle.Checked.run = lambda self, given: run(self, [_drawn(made.arrays, each, f"{name} {next(inputs)}") for each in given])
    device_oracle.Checked.launched = staticmethod(lambda place, kernel, seen, tolerance: _launches(made, name, place, kernel, seen))
    launches = model_kernels.check(name) if kind == "model" else sum(programs.PROGRAMS[name]())
    assert launches == len(made.cases)
    file.write_bytes(pickle.dumps((made.arrays.plain, made.arrays.about, made.cases, made.versions)))


def _drawn(arrays: Stored, values: Array, name: str) -> Array:
    """An input of a program: large ones come from seeds."""
    from disc.ir.bf16 import round_to_bf16

    large = values.dtype == np.float32 and values.nbytes > LARGE
    return arrays.draw(values, name, np.array_equal(round_to_bf16(values), values)) if large else values


def _launches(made: Recorded, program: str, place: Any, kernel: Any, seen: Any) -> int:
    """A case for every version whose guard holds."""
    body, before = place.work.body, len(made.cases)
    number = len({case["launch"] for case in made.cases})
    kinds = {f"a{at}": ("argument", node.element) for at, node in enumerate(body.arguments)}
    kinds |= {f"r{at}": ("result", node.element) for at, node in enumerate(body.yields)}
    arrays = {f"a{at}": x for at, x in enumerate(seen.operands)} | {f"r{at}": x for at, x in enumerate(seen.results)}
    names = dict[str, str]()
    for each, (what, element) in kinds.items():
        lies = stored(arrays[each], element)
        names[each] = made.arrays.argument(lies) if what == "argument" else made.arrays.result(lies, element)
    for version in kernel.versions:
        if not version.guard.holds(seen.sizes, 1 << 30):
            continue
        made.versions[version.key] = version
        parameters = [_parameter(version, each, kinds, names, seen.sizes) for each in version.parameters]
        grid = [dim.evaluate(seen.sizes) for dim in version.grid]
        if version.persistent:
            grid[0] = min(grid[0], SMS)
        made.versions |= {each.key: each for each in version.ahead}
        ahead = [{"key": each.key, "grid": [dim.evaluate(seen.sizes) for dim in each.grid]} for each in version.ahead]
        made.cases.append({
            "program": program, "launch": number, "kernel": place.work.name, "key": version.key, "grid": grid, "ahead": ahead,
            "parameters": parameters,
        })  # fmt: skip
    return len(made.cases) - before


def _parameter(version: Any, parameter: Any, kinds: dict[str, tuple[str, str]], names: dict[str, str], sizes: Any) -> dict[str, Any]:
    if parameter.name in kinds:
        kind, element = kinds[parameter.name]
        return {"kind": kind, "array": names[parameter.name], "element": element, "name": parameter.name}
    if parameter.name == "scratch":
        return {"kind": "scratch", "bytes": version.scratch.bytes.evaluate(sizes), "zeroed": version.scratch.zeroed.evaluate(sizes)}
    if parameter.name == "fault":
        return {"kind": "fault"}
    return {"kind": "size", "value": sizes[parameter.name.removeprefix("n_")], "bytes": parameter.size}


def stored(array: Array, element: str) -> Array:
    """As the array lies in memory."""
    from disc.ir.bf16 import bf16_bits

    plain = np.ascontiguousarray(array).reshape(np.shape(array))
    return bf16_bits(plain) if element == "bf16" else plain


# --- in one where it compiles ----------------------------------------------------------------------------------------------


def prepare_kernels(folder: Path, wanted: Mapping[str, Sequence[str]], architectures: Sequence[int], texts: Texts) -> int:
    """Writes the listing of launches, the arrays of each program and the code of all versions. wanted: names by "program" and "model".
    Returns how many launches there are."""
    cases, versions, about = list[dict[str, Any]](), dict[str, Any](), dict[str, Any]()
    named = [(kind, name) for kind, names in wanted.items() for name in names]
    with ThreadPool(os.cpu_count()) as processes:
        for (_, name), recorded in zip(named, processes.imap(lambda each: _recorded(folder, *each), named), strict=True):
            arrays, about[name], found, kernels = recorded
            np.savez_compressed(folder / f"{name}.npz", **arrays)
            cases += found
            versions |= kernels
            print(f"{name}: {len(found)} launches of {len(kernels)} versions", flush=True)
    kernels = assembled(folder, versions, architectures, texts)
    (folder / "cases.json").write_text(json.dumps({"cases": cases, "kernels": kernels, "arrays": about}))
    return len(cases)


def _recorded(folder: Path, kind: str, name: str) -> tuple[Any, Any, Any, Any]:
    """What `record` writes, by a process of its own."""
    file = folder / f"recorded-{kind}-{name}"
    command = [sys.executable, str(ROOT / "tools" / "gpu_prepare.py"), "--record", kind, name, str(file)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}", "DISC_CACHE": "0"})
    found = pickle.loads(file.read_bytes())  # that this process had written just now
    file.unlink()
    return found


def assembled(folder: Path, versions: Mapping[str, Any], architectures: Sequence[int], texts: Texts) -> dict[str, Any]:
    """Writes the code of versions by their keys, and enters their texts. Returns what a launch of each needs, by architecture."""
    from disc.codegen.cuda.assemble import assemble
    from disc.targets.cuda import read_target

    kernels: dict[str, Any] = {key: {} for key in versions}
    for architecture in architectures:
        gpu = read_target(f"sm_{architecture}").gpu
        assert gpu is not None
        for key, cubin in assemble(list(versions.values()), gpu, os.cpu_count() or 1).items():
            file = f"kernels/{key[:24]}.{architecture}"
            (folder / file).write_bytes(cubin.code)
            facts = {"threads": cubin.threads, "shared": cubin.shared, "cluster": cubin.cluster, "scratch": cubin.scratch}
            kernels[key][str(architecture)] = {"file": file, **facts}
            enter_text(texts, cubin.code, versions[key])
    return kernels


def enter_text(texts: Texts, code: bytes, version: Any) -> None:
    """What the stand-in executes for a cubin."""
    texts[code_name(code)] = {"text": version.text, "types": [each.type for each in version.parameters], "maps": version.maps}
