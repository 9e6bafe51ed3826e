"""Says which models compile to something else at another git revision, or than what is recorded.

    python tools/disc_replay.py HEAD~1 HEAD                       the objects, weights and manifests of two revisions
    python tools/disc_replay.py HEAD~1 HEAD --models bert mlp
    python tools/disc_replay.py --check                           the objects and manifests of this tree with tests/golden/replay.json
    python tools/disc_replay.py --record                          writes that file: after a change that is meant to change code

The models are those of tests/models.py and a few smaller ones, compiled for AVX2 and for AVX-512 on any CPU. Revisions are checked out in
a temporary folder, with the runtime that is built in this tree; the models come from this tree. Source lines and the version of disc do
not count. Exit status: 0 where all are the same, 1 where some differ.
"""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from replay_digests import RECORDED, ROOT, Digests, digests_of, recorded_digests

RUNTIME = ("_ral.cpython-*.so", "libral.so")
SECONDS_PER_REVISION = 3600

Descriptions = dict[str, dict[str, Any]]


def compile_with(source: Path, names: Sequence[str], folder: Path) -> Descriptions:
    """Name → description of every model, compiled by the `disc` in the folder `source`, in a process of its own."""
    result = folder / "result.json"
    command = [sys.executable, str(ROOT / "tools" / "replay_digests.py"), str(source), str(result), *names]
    subprocess.run(command, cwd=folder, check=True, timeout=SECONDS_PER_REVISION)
    return cast("Descriptions", json.loads(result.read_text()))


def compile_at(revision: str, names: Sequence[str], folder: Path) -> Descriptions:
    """`compile_with` the `disc` of a revision."""
    tree, source = folder / "tree", folder / "source"
    subprocess.run(["git", "worktree", "add", "--detach", "--quiet", str(tree), revision], cwd=ROOT, check=True)
    try:
        for pattern in RUNTIME:
            for library in (ROOT / "disc" / "ral").glob(pattern):
                shutil.copy2(library, tree / "disc" / "ral")
        source.mkdir(exist_ok=True)
        (source / "disc").unlink(missing_ok=True)
        (source / "disc").symlink_to(tree / "disc")  # alone: all else is imported from this tree
        return compile_with(source, names, folder)
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two descriptions of one model, in lines."""
    if "error" in old or "error" in new:
        both = [f"error: {each['error']}" for each in (old, new) if "error" in each]
        return both if old != new else []
    before, after = old["objects"], new["objects"]
    lines = [f"objects for {isa}" for isa in sorted(before | after) if before.get(isa) != after.get(isa)]
    lines += ["weights"] if old["weights"] != new["weights"] else []
    left, right = (json.dumps(each["manifest"], indent=1, sort_keys=True).splitlines() for each in (old, new))
    changed = [line for line in difflib.unified_diff(left, right, lineterm="", n=0) if not line.startswith(("---", "+++", "@@"))]
    return lines + [f"manifest: {line}" for line in changed]


def recorded_differences(recorded: Digests | None, new: Mapping[str, Any]) -> list[str]:
    """What differs between a model and what is recorded of it, in lines."""
    if "error" in new:
        return [f"error: {new['error']}"]
    if recorded is None:
        return ["not recorded"]
    found = digests_of(new)
    changed = [part for part in sorted(recorded | found) if recorded.get(part) != found.get(part)]
    return [part if part == "manifest" else f"objects for {part}" for part in changed]


def report(found: Mapping[str, list[str]], limit: int) -> int:
    """Prints a line per model and what differs; returns the exit status."""
    for name, lines in found.items():
        print(f"{name}: {'differs' if lines else 'same'}")
        for line in lines[:limit]:
            print(f"    {line}")
    return int(any(found.values()))


def compare(old: str, new: str, names: Sequence[str], limit: int) -> int:
    """Two revisions."""
    with tempfile.TemporaryDirectory(prefix="disc-replay-") as folder:
        before, after = (compile_at(revision, names, Path(folder)) for revision in (old, new))
    return report({name: differences(before[name], after[name]) for name in before}, limit)


def compare_recorded(names: Sequence[str], record: bool, limit: int) -> int:
    """This tree with the recorded digests, which are written first where `record` says so."""
    with tempfile.TemporaryDirectory(prefix="disc-replay-") as folder:
        found = compile_with(ROOT, names, Path(folder))
    recorded = recorded_digests()
    failed = {name: each["error"] for name, each in found.items() if "error" in each}
    if record and not failed:
        kept = {name: digests for name, digests in recorded.items() if names and name not in found}
        recorded = kept | {name: digests_of(each) for name, each in found.items()}
        RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
    lines = {name: recorded_differences(recorded.get(name), each) for name, each in found.items()}
    gone = {name: ["recorded, but there is no such model"] for name in recorded if not names and name not in found}
    return report(lines | gone, limit)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revisions", nargs="*", metavar="OLD NEW", help="two git revisions")
    parser.add_argument("--check", action="store_true", help="compare this tree with what is recorded")
    parser.add_argument("--record", action="store_true", help="record what this tree compiles")
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME", help="these alone; default: all")
    parser.add_argument("--lines", type=int, default=10, help="how many lines of a manifest's difference to show")
    options = parser.parse_args()
    if len(options.revisions) != (0 if options.check or options.record else 2):
        parser.error("give two revisions, or --check, or --record")
    if options.revisions:
        old, new = options.revisions
        return compare(old, new, options.models, options.lines)
    return compare_recorded(options.models, options.record, options.lines)


if __name__ == "__main__":
    sys.exit(main())
