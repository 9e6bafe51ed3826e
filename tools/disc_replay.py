"""Says which programs compile to something else at another git revision.

    python tools/disc_replay.py HEAD~1 HEAD

Checks both revisions out in a temporary folder (with the runtime that is built in this tree), compiles a fixed set of small models with
each, and compares the code and the manifests. Exit status: 0 where all are the same, 1 where some differ.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parent.parent
RUNTIME = ("_ral.cpython-*.so", "libral.so")
SECONDS_PER_REVISION = 600

# Runs at a revision, in a process of its own; the models are those of this file, not of the revision.
COMPILE = """
import hashlib, json, sys
sys.path[:0] = [sys.argv[1]]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__.lower()]
sys.path.append(sys.argv[2])
import torch
import disc
assert disc.__file__.startswith(sys.argv[1]), disc.__file__
from replay_models import models
found = {}
for name, (model, inputs) in models().items():
    try:
        compiled = disc.compile(model, inputs, target=["x86-64-v3", "x86-64-v4"], options=disc.Options(cache=False))
        code = {isa: hashlib.sha256(data).hexdigest() for isa, data in compiled._parts.code.items()}
        found[name] = {"code": code, "manifest": compiled.manifest}
    except Exception as error:
        found[name] = {"code": {}, "manifest": {"error": f"{type(error).__name__}: {error}"}}
json.dump(found, open(sys.argv[3], "w"), default=str)
"""

MODELS = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = nn.Linear(16, 48)

    def forward(self, x):
        query, key, value = self.projection(x).chunk(3, -1)
        return torch.softmax(query @ key.transpose(-1, -2) / 4.0, -1) @ value


class Shapes(nn.Module):
    def forward(self, x, y):
        joined = torch.cat([x, y], 0)
        return joined[1:].reshape(-1, 2, 4).transpose(1, 2), joined.argmax(-1), joined.cumsum(0)


def models():
    torch.manual_seed(0)
    made = {
        "elementwise": (nn.Sequential(nn.Tanh(), nn.GELU()), (torch.randn(3, 5),)),
        "layer-norm": (nn.LayerNorm(64), (torch.randn(2, 3, 64),)),
        "softmax": (nn.Softmax(-1), (torch.randn(3, 5),)),
        "perceptron": (nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), (torch.randn(3, 16),)),
        "attention": (Attention(), (torch.randn(2, 3, 16),)),
        "convolution": (nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()), (torch.randn(2, 3, 9, 11),)),
        "embedding": (nn.Embedding(20, 8), (torch.arange(6).reshape(2, 3),)),
        "shapes": (Shapes(), (torch.randn(3, 8), torch.randn(4, 8))),
    }
    return {name: (model.eval(), inputs) for name, (model, inputs) in made.items()}
"""


def compile_at(revision: str, folder: Path) -> dict[str, dict[str, object]]:
    """Name → code hashes and manifest of every model, compiled at a revision."""
    tree, result = folder / "tree", folder / "result.json"
    subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(tree), revision], cwd=ROOT, check=True)
    try:
        for pattern in RUNTIME:
            for library in (ROOT / "disc" / "ral").glob(pattern):
                shutil.copy2(library, tree / "disc" / "ral")
        (folder / "replay_models.py").write_text(MODELS)
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        subprocess.run(
            [sys.executable, "-c", COMPILE, str(tree), str(folder), str(result)],
            cwd=folder, check=True, env=environment, timeout=SECONDS_PER_REVISION,
        )  # fmt: skip
        return cast("dict[str, dict[str, object]]", json.loads(result.read_text()))
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """What differs between the two results of one model, in lines."""
    lines: list[str] = []
    old_code, new_code = (cast("dict[str, str]", each["code"]) for each in (old, new))
    lines += [f"code for {isa}" for isa in sorted(old_code | new_code) if old_code.get(isa) != new_code.get(isa)]
    before, after = (json.dumps(each["manifest"], indent=1, sort_keys=True).splitlines() for each in (old, new))
    changed = [line for line in difflib.unified_diff(before, after, lineterm="", n=0) if not line.startswith(("---", "+++", "@@"))]
    return lines + [f"manifest: {line}" for line in changed]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--lines", type=int, default=10, help="how many lines of a manifest's difference to show")
    options = parser.parse_args()
    results: list[dict[str, dict[str, object]]] = []
    with tempfile.TemporaryDirectory(prefix="disc-replay-") as folder:  # one for both: the models' lines are in the manifests
        for revision in (options.old, options.new):
            results.append(compile_at(revision, Path(folder)))
    status = 0
    for name in results[0]:
        found = differences(results[0][name], results[1][name])
        print(f"{name}: {'differs' if found else 'same'}")
        for line in found[: options.lines]:
            print(f"    {line}")
        status |= bool(found)
    return status


if __name__ == "__main__":
    sys.exit(main())
