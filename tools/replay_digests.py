"""What a `disc` compiles each of replay's models to, in digests that do not depend on the machine or on where files lie.

`tools/disc_replay.py` runs this file with the `disc` of another revision; tests compare artifacts that they have anyway.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "tests" / "golden" / "replay.json"
TARGETS = ("x86-64-v3", "x86-64-v4")

_HEADER = struct.Struct("<8sIIQQ")  # as docs/artifact.md has it: magic, version, section count, file size, reserved
_ENTRY = struct.Struct("<64sQQ32s")  # name, offset, size, SHA-256
_PLACES = re.compile(r",? [\w./-]+\.py:\d+")  # source lines in messages; they move with every edit of a model
_UNSTABLE = ("lines", "modules", "compiler")  # of kernels: source lines and paths of modules; the version of disc

# Notes for every file that is linked: its digest, and that of its objects. (Linkers arrange the same objects in different ways.)
_LINKER = """#!/bin/sh
for word; do
  [ "$previous" = -o ] && output=$word
  previous=$word
done
"{ld}" "$@" || exit
file=$(sha256sum < "$output")
objects=$("{python}" -IS "{digest}" "$@")
echo "$file $objects" >> "{log}"
"""

Digests = dict[str, str]  # ISA, or "manifest" → SHA-256
Example = tuple[nn.Module, tuple[torch.Tensor, ...], Any]  # a model, its inputs, its dynamic shapes


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.projection(x).chunk(3, -1)
        return torch.softmax(query @ key.transpose(-1, -2) / 4.0, -1) @ value


class Shapes(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        joined = torch.cat([x, y], 0)
        return joined[1:].reshape(-1, 2, 4).transpose(1, 2), joined.argmax(-1), joined.cumsum(0)


def small_models() -> dict[str, Example]:
    """Models of one or a few ops."""
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
    return {name: (model.eval(), inputs, None) for name, (model, inputs) in made.items()}


class Links:
    """What was linked while `noted_links` was in force."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def objects(self, file: str) -> str:
        """The digest of the objects of a linked file, given by its own digest."""
        for line in self._log.read_text().splitlines() if self._log.is_file() else ():
            words = line.split()
            if words[0] == file:
                return words[2]
        raise LookupError("code in an artifact that no `ld` on PATH has linked")


@contextmanager
def noted_links() -> Iterator[Links]:
    """Puts a linker on PATH that notes the objects it is given. Raises FileNotFoundError without `ld`."""
    ld, path = shutil.which("ld"), os.environ.get("PATH", "")
    if ld is None:
        raise FileNotFoundError("replay needs ld on PATH: install binutils")
    with tempfile.TemporaryDirectory(prefix="disc-replay-") as folder:
        log, wrapper = Path(folder) / "log", Path(folder) / "ld"
        wrapper.write_text(_LINKER.format(ld=ld, log=log, python=sys.executable, digest=Path(__file__).with_name("object_digest.py")))
        wrapper.chmod(0o755)
        os.environ["PATH"] = f"{folder}{os.pathsep}{path}"
        try:
            yield Links(log)
        finally:
            os.environ["PATH"] = path


def read_sections(artifact: Path) -> tuple[dict[str, str], dict[str, object]]:
    """The digest of every section of a saved artifact, as the file has it, and the manifest without what is not stable."""
    content = artifact.read_bytes()
    count = _HEADER.unpack_from(content)[2]
    digests: dict[str, str] = {}
    manifest = b""
    for number in range(count):
        padded, offset, size, digest = _ENTRY.unpack_from(content, _HEADER.size + number * _ENTRY.size)
        name = padded.rstrip(b"\0").decode()
        digests[name] = digest.hex()
        if name == "manifest":
            manifest = content[offset : offset + size]
    return digests, stable(json.loads(manifest))


def stable(value: Any) -> Any:
    """A manifest, or a part of it, without what moves though the program is the same."""
    if isinstance(value, dict):
        return {name: stable(each) for name, each in value.items() if name not in _UNSTABLE}
    if isinstance(value, list):
        return [stable(each) for each in value]
    return _PLACES.sub("", value) if isinstance(value, str) else value


def describe(artifact: Path, links: Links) -> dict[str, Any]:
    """Of a saved artifact: "objects" (ISA → digest), "weights" (the digest of its section), "manifest" (its stable part)."""
    sections, manifest = read_sections(artifact)
    code = {name.removeprefix("code/"): digest for name, digest in sections.items() if name.startswith("code/")}
    return {"objects": {isa: links.objects(file) for isa, file in code.items()}, "weights": sections["weights"], "manifest": manifest}


def digests_of(description: Mapping[str, Any]) -> Digests:
    """What is recorded of a model. Not its weights: what is computed when compiling differs in last bits from CPU to CPU."""
    manifest = json.dumps(description["manifest"], sort_keys=True).encode()
    return {**description["objects"], "manifest": hashlib.sha256(manifest).hexdigest()}


def recorded_digests() -> dict[str, Digests]:
    """Name → digests, as `tools/disc_replay.py --record` wrote them."""
    return json.loads(RECORDED.read_text()) if RECORDED.is_file() else {}


def compile_models(names: Sequence[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Name → description of every model, or {"error": text}; names: none = all. What is saved meanwhile lies in `folder`."""
    import disc
    from tests.models import MODELS

    makers = {**{name: lambda made=made: made for name, made in small_models().items()}, **MODELS}
    unknown = [name for name in names if name not in makers]
    if unknown:
        raise SystemExit(f"there is no model {unknown[0]!r}; the models are {', '.join(makers)}")
    found: dict[str, dict[str, Any]] = {}
    with noted_links() as links:
        for name in names or makers:
            model, inputs, dims = makers[name]()
            artifact = folder / "model.disc"
            try:
                disc.compile(model.eval(), inputs, dims, target=TARGETS, options=disc.Options(cache=False)).save(artifact)
                found[name] = describe(artifact, links)
            except Exception as error:
                found[name] = {"error": f"{type(error).__name__}: {error}"}
    return found


def main() -> None:
    """Arguments: the folder that holds the package `disc`, the file to write, the names of models, which are those of this tree."""
    source, result, *names = sys.argv[1:]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__.lower()]
    sys.path[:0] = [source, str(ROOT)]
    import disc

    assert disc.__file__.startswith(f"{source}/"), disc.__file__
    with tempfile.TemporaryDirectory(prefix="disc-replay-") as folder:
        os.environ["DISC_CACHE_DIR"] = folder  # not the user's: a tree of schedules that was tuned for this machine would be there
        Path(result).write_text(json.dumps(compile_models(names, Path(folder))))


if __name__ == "__main__":
    main()
