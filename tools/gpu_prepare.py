"""Makes what a machine with an NVIDIA GPU checks kernels with (`gpu_check.py`): `python tools/gpu_prepare.py [--folder build/gpu]`.

The kernels of the programs of tests/cuda and of small models, every version that their sizes reach: code for each architecture, arguments,
and the results that the interpreter of the IR gives. Needs no GPU; the other machine needs neither Triton nor torch-mlir.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = "layer rows long_rows products attention few_queries schedules some_elementwise scans scatters sorts groups"
MODELS = "mlp albert bert gpt2 llama t5-encoder vit resnet convnext"


@dataclass
class Recorded:
    """What one program's launches need. arrays: by name, as they lie in memory (bf16 as its bits); versions: by key, as `DeviceVersion`."""

    arrays: dict[str, Any] = field(default_factory=dict)
    cases: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, Any] = field(default_factory=dict)


# --- in a process where Triton interprets, as the programs of tests/cuda expect --------------------------------------------


def record(kind: str, name: str, file: Path) -> None:
    """Writes the `Recorded` of a program, or of a model, as a pickle."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "cuda")]
    device_oracle, model_kernels, programs = map(importlib.import_module, ("device_oracle", "model_kernels", "programs"))
    made = Recorded()
    device_oracle.Checked.launched = staticmethod(lambda place, kernel, seen, tolerance: _launches(made, name, place, kernel, seen))
    count = model_kernels.check(name) if kind == "model" else sum(programs.PROGRAMS[name]())
    assert count == len(made.cases)
    file.write_bytes(pickle.dumps((made.arrays, made.cases, made.versions)))


def _launches(made: Recorded, program: str, place: Any, kernel: Any, seen: Any) -> int:
    """A case for every version whose guard holds."""
    body, before = place.work.body, len(made.cases)
    number = len({case["launch"] for case in made.cases})
    kinds = {f"a{at}": ("argument", node.element) for at, node in enumerate(body.arguments)}
    kinds |= {f"r{at}": ("result", node.element) for at, node in enumerate(body.yields)}
    arrays = {f"a{at}": x for at, x in enumerate(seen.operands)} | {f"r{at}": x for at, x in enumerate(seen.results)}
    for version in kernel.versions:
        if not version.guard.holds(seen.sizes, 1 << 30):
            continue
        made.versions[version.key] = version
        parameters = [_parameter(version, each, kinds, f"{number}.", seen.sizes) for each in version.parameters]
        grid = [dim.evaluate(seen.sizes) for dim in version.grid]
        made.cases.append(
            {"program": program, "launch": number, "kernel": place.work.name, "key": version.key, "grid": grid, "parameters": parameters}
        )
    for each, (_, element) in kinds.items():
        made.arrays[f"{number}.{each}"] = _stored(arrays[each], element)
    return len(made.cases) - before


def _parameter(version: Any, parameter: Any, kinds: dict[str, tuple[str, str]], prefix: str, sizes: Any) -> dict[str, Any]:
    if parameter.name in kinds:
        kind, element = kinds[parameter.name]
        return {"kind": kind, "array": prefix + parameter.name, "element": element}
    if parameter.name == "scratch":
        return {"kind": "scratch", "bytes": version.scratch.bytes.evaluate(sizes), "zeroed": version.scratch.zeroed.evaluate(sizes)}
    if parameter.name == "fault":
        return {"kind": "fault"}
    return {"kind": "size", "value": sizes[parameter.name.removeprefix("n_")], "bytes": parameter.size}


def _stored(array: Any, element: str) -> Any:
    import numpy as np

    from disc.ir.interp.values import bf16_bits

    plain = np.ascontiguousarray(array).reshape(np.shape(array))
    return bf16_bits(plain) if element == "bf16" else plain


# --- in one where it compiles ----------------------------------------------------------------------------------------------


def prepare(folder: Path, wanted: dict[str, list[str]], architectures: list[int]) -> None:
    """Makes the folder anew."""
    import numpy as np

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "kernels").mkdir(parents=True)
    cases, versions = list[dict[str, Any]](), dict[str, Any]()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DISC_CACHE": "0"}
    for kind, names in wanted.items():
        for name in names:
            file = folder / "recorded"
            subprocess.run([sys.executable, __file__, "--record", kind, name, str(file)], check=True, env=environment)
            arrays, found, kernels = pickle.loads(file.read_bytes())  # that this file wrote just now
            file.unlink()
            np.savez_compressed(folder / f"{name}.npz", **arrays)
            cases += found
            versions |= kernels
            print(f"{name}: {len(found)} launches of {len(kernels)} versions", flush=True)
    kernels = _assembled(folder, versions, architectures)
    (folder / "cases.json").write_text(json.dumps({"cases": cases, "kernels": kernels}))
    size = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    print(f"{len(cases)} launches, {len(kernels)} versions, {size / 2**20:.1f} MiB in {folder}")


def _assembled(folder: Path, versions: dict[str, Any], architectures: list[int]) -> dict[str, Any]:
    """Writes the code of all versions; what a launch of each needs, by key."""
    sys.path.insert(0, str(ROOT))
    from disc.codegen.cuda.assemble import assemble
    from disc.targets.cuda import read_target

    kernels: dict[str, Any] = {
        key: {"text": each.text, "types": [parameter.type for parameter in each.parameters], "code": {}} for key, each in versions.items()
    }
    for architecture in architectures:
        gpu = read_target(f"sm_{architecture}").gpu
        assert gpu is not None
        for key, cubin in assemble(list(versions.values()), gpu, os.cpu_count() or 1).items():
            file = f"kernels/{key[:24]}.{architecture}"
            (folder / file).write_bytes(cubin.code)
            facts = {"threads": cubin.threads, "shared": cubin.shared, "cluster": cubin.cluster, "scratch": cubin.scratch}
            kernels[key]["code"][str(architecture)] = {"file": file, **facts}
    return kernels


def main() -> None:
    """Takes the programs, models and architectures."""
    if sys.argv[1:2] == ["--record"]:
        record(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--programs", nargs="*", default=PROGRAMS.split())
    parser.add_argument("--models", nargs="*", default=MODELS.split())
    parser.add_argument("--architectures", nargs="+", type=int, default=[90])
    chosen = parser.parse_args()
    prepare(chosen.folder, {"program": chosen.programs, "model": chosen.models}, chosen.architectures)


if __name__ == "__main__":
    main()
