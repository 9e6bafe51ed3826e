"""Makes what a machine with an NVIDIA GPU checks disc with (`gpu_check.py`): `python tools/gpu_prepare.py [--folder build/gpu]`.

Kernels of the programs of tests/cuda and of small models, every version that their sizes reach, with arguments and the results of the IR's
interpreter; artifacts of models and of programs that are timed; every schedule of products. Needs no GPU; the other machine needs neither
Triton nor torch-mlir.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT)]

from gpu_parts.runtime import BUILT, build_commands  # noqa: E402
from gpu_parts.stand_in import write_texts  # noqa: E402

MOST = 40 << 20  # bytes of the folder
PROGRAMS = (
    "layer rows long_rows shared_rows sums long_sums products convolutions attention few_queries schedules maps few_rows some_elementwise "
    "scans scatters sorts groups segments"
)
RECORDED = "mlp albert bert gpt2 llama t5-encoder vit resnet convnext"
MODELS = "mlp mlp:tf32 bert bert:bf16 gpt2 llama:bf16 t5-encoder deberta vit resnet convnext"


def main() -> int:
    """Makes the folder anew. Returns 1 where it is too large."""
    if sys.argv[1:2] == ["--record"]:
        from gpu_parts.recorded import record

        record(sys.argv[2], sys.argv[3], Path(sys.argv[4]))
        return 0
    from gpu_parts.artifacts import BIG, TABLE_1, prepare_big, prepare_library, prepare_models, prepare_timed
    from gpu_parts.recorded import Texts, prepare_kernels
    from gpu_parts.timed import TIMED
    from gpu_parts.tuning import prepare_tuning

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--programs", nargs="*", default=PROGRAMS.split(), help="of tests/cuda")
    parser.add_argument("--recorded", nargs="*", default=RECORDED.split(), help="models whose kernels are launched one by one")
    parser.add_argument("--models", nargs="*", default=MODELS.split(), help="models as artifacts, name or name:bf16 or name:tf32")
    parser.add_argument("--timed", nargs="*", default=list(TIMED), help="programs that are timed")
    parser.add_argument(
        "--big", nargs="*", default=list(BIG), help="models of full size, with weights of seeds; also: " + ", ".join(TABLE_1)
    )
    parser.add_argument("--tiny", action="store_true", help="small versions of those, and one schedule's size: for the stand-in")
    parser.add_argument("--architectures", nargs="+", type=int, default=[90])
    parser.add_argument("--python", nargs="*", default=[], help="Pythons to build the runtime for, in case that it does not build there")
    chosen = parser.parse_args()
    folder: Path = chosen.folder
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "kernels").mkdir(parents=True)
    gpus, texts = [f"sm_{each}" for each in chosen.architectures], Texts()
    prepare_kernels(folder, {"program": chosen.programs, "model": chosen.recorded}, chosen.architectures, texts)
    prepare_models(folder, chosen.models, gpus, texts)
    prepare_timed(folder, chosen.timed, gpus, texts)
    prepare_big(folder, chosen.big, not chosen.tiny, gpus, texts)
    prepare_library(folder, prepare_tuning(folder, chosen.architectures[0], chosen.tiny, texts), gpus[0], texts)
    write_texts(folder, texts)
    for python in chosen.python:
        _build(folder, python)
    return _judge_size(folder)


def _build(folder: Path, python: str) -> None:
    """The runtime for another Python, which needs its headers alone."""
    build = ROOT / "build" / "gpu-runtime"
    found = subprocess.run([sys.executable, "-m", "nanobind", "--cmake_dir"], capture_output=True, text=True, check=True).stdout.strip()
    shutil.rmtree(build, ignore_errors=True)
    for command in build_commands(python, str(build), ["cmake"], found):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (folder / BUILT).mkdir(exist_ok=True)
    for file in build.glob("*.so"):
        shutil.copy(file, folder / BUILT)


def _judge_size(folder: Path) -> int:
    """Prints what the folder holds. Returns 1 where that is too much to be taken along."""
    sizes: dict[str, int] = {}
    for file in (each for each in folder.rglob("*") if each.is_file()):
        kind = file.relative_to(folder).parts[0]
        sizes[kind] = sizes.get(kind, 0) + file.stat().st_size
    total = sum(sizes.values())
    print(json.dumps({name: round(size / 2**20, 1) for name, size in sorted(sizes.items(), key=lambda each: -each[1])}))
    print(f"{total / 2**20:.1f} MiB in {folder}")
    if total > MOST:
        print(f"the folder may have {MOST >> 20} MiB: leave something out", file=sys.stderr)
    return int(total > MOST)


if __name__ == "__main__":
    sys.exit(main())
