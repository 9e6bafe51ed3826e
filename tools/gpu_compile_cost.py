"""What a GPU target adds to the compile of BERT-base: `python tools/gpu_compile_cost.py [--target sm_90]`. Needs no GPU.

Prints seconds of a compile for a CPU alone, for it and a GPU, of the same again from the cache, and what the artifacts differ by.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

CPU = "x86-64-v4"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="sm_90")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DISC_CACHE_DIR"] = str(Path(folder) / "cache")
        import torch

        import disc
        from disc.artifact.file import sections
        from tests import models

        module, example, dims = models.MODELS["bert"](full=True)
        program = torch.export.export(module, example, dynamic_shapes=dims)
        sizes = list[tuple[int, int]]()
        for what, targets in (("CPU", [CPU]), ("CPU and GPU", [CPU, chosen.target]), ("from the cache", [CPU, chosen.target])):
            begin = time.perf_counter()
            made = disc.compile(program, target=targets)
            print(f"{what}: {time.perf_counter() - begin:.2f} s", flush=True)
            path = Path(folder) / "model.disc"
            made.save(path)
            parts = sections(memoryview(path.read_bytes()))
            sizes.append((len(parts["weights"]), sum(len(part) for name, part in parts.items() if name != "weights")))
        (cpu_weights, cpu_rest), (weights, rest) = sizes[:2]
        print(f"{chosen.target} adds {(rest - cpu_rest) / 1e6:.2f} MB, and {(weights - cpu_weights) / 1e6:.0f} MB of weights")


if __name__ == "__main__":
    main()
