"""Artifacts whose manifests were changed at random, with right hashes and mostly with the signature to match, through every reader.

hostile_manifests.py --artifacts N [--seed S] [--output FILE.json]: prints what became of them, or writes it with the machine it ran on.
Each must be accepted or refused by an ArtifactError, within 10 s and 1 GiB; anything else ends the run with the manifest that did it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import io
import json
import random
import resource
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from containers import Container, Part, taken_apart  # noqa: E402

from bench.store import finding  # noqa: E402
from disc.artifact import file as artifact  # noqa: E402
from disc.cli import main as cli  # noqa: E402
from disc.errors import ArtifactError  # noqa: E402
from disc.ral import executable  # noqa: E402

GOLDEN = sorted((ROOT / "tests" / "golden" / "0.1.0").glob("*.disc"))
SECONDS, MEMORY = 10, 1 << 30
NUMBERS = [0, 1, -1, 2, 63, 64, 65, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 300_000_000, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 10**400]
FLOATS = [0.0, -0.0, 1.5, 1e308, float("inf"), float("-inf"), float("nan")]
TEXTS = ["", "\0", "\x1b[2J\x1b]0;x\x07", "\u202e", "\ud800", "a" * 100_000, "S0", "arg0", "arg0.0", "arg9.9", "arg-1.0", "arg0.x", "f32", "{actual}",
         "S0 * 2", "9" * 5000, "(" * 5000, "tokens", "kernel0", "x86-64-v3", "code/", "../../x", "é" * 64]  # fmt: skip


def nested(depth: int, kind: type) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


def evil(generator: random.Random) -> object:
    kind = generator.randrange(8)
    if kind < 2:
        return generator.choice(NUMBERS)
    if kind == 2:
        return generator.choice(FLOATS)
    if kind == 3:
        return generator.choice(TEXTS)
    if kind == 4:
        return generator.choice([None, True, False, [], {}, [[]], [{}], {"": None}])
    if kind == 5:
        return nested(generator.choice([1, 5, 31, 40, 200, 900]), generator.choice([list, dict]))
    if kind == 6:
        return [generator.choice([0, "S0", -1, None])] * generator.choice([1, 2, 64, 65, 10_000])
    return {generator.choice(TEXTS): generator.choice(NUMBERS)}


def places(value: object, depth: int = 0) -> list[tuple[Any, Any]]:
    """(container, key) of everything within, ten levels deep."""
    found: list[tuple[Any, Any]] = []
    if depth == 10:
        return found
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        found += [(value, key), *places(value[key], depth + 1)]  # pyright: ignore[reportIndexIssue]
    return found


def change(manifest: dict[str, Any], generator: random.Random) -> None:
    container, key = generator.choice(places(manifest))
    way = generator.randrange(8)
    if way == 0:
        del container[key]
    elif way == 1 and isinstance(container, list):
        container.extend(copy.deepcopy(container[key]) for _ in range(generator.choice([1, 3, 300])))
    elif way == 2 and isinstance(container, dict):
        container[generator.choice(TEXTS)] = container.pop(key)
    elif way == 3:
        _, other = generator.choice([(None, value) for value in manifest.values()])
        container[key] = copy.deepcopy(other)
    elif way == 4 and isinstance(container[key], int) and not isinstance(container[key], bool):
        container[key] += generator.choice([-2, -1, 1, 2])
    else:
        container[key] = evil(generator)


def mutated(good: Container, generator: random.Random) -> Container:
    manifest = json.loads(good[b"manifest"])
    for _ in range(generator.choice([1, 1, 1, 2, 4])):
        with contextlib.suppress(IndexError, RecursionError):  # nothing left to change; too deep to copy
            change(manifest, generator)
    changed = good.changed(b"manifest", content=json.dumps(manifest).encode())
    if generator.random() < 0.8:
        with contextlib.suppress(
            LookupError, ValueError, TypeError, AttributeError, struct.error
        ):  # what no writer could store stays as it was
            changed = changed.changed(b"signature", content=artifact.signature_bytes(manifest))
    if generator.random() < 0.1:
        changed = replace(changed, parts=(Part(generator.choice(TEXTS[2:4]).encode(), b"x"), *changed.parts))
    return changed


def inspect(path: Path) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for as_json in (False, True):
            cli.inspect_command(path, as_json=as_json)
    if {"\x1b", "\x07", "\u202e", "\x9b"} & set(printed.getvalue()):
        raise AssertionError("a control character was printed")


def load(path: Path) -> None:
    loaded = executable.load(path, threads=1)
    repr(loaded)
    str(loaded.explain())


READERS: dict[str, Callable[[Path], None]] = {"verify": artifact.verify, "inspect": inspect, "load": load}


def run(count: int, seed: int) -> dict[str, object]:
    """Raises AssertionError, with the manifest, for whatever is neither success nor ArtifactError."""
    good = [taken_apart(path.read_bytes()) for path in GOLDEN]
    generator = random.Random(seed)
    endings: collections.Counter[str] = collections.Counter()
    start, slowest = time.monotonic(), 0.0
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.disc"
        for _ in range(count):
            container = mutated(generator.choice(good), generator)
            path.write_bytes(container.to_bytes())
            for name, reader in READERS.items():
                signal.setitimer(signal.ITIMER_REAL, SECONDS)  # its signal ends the process
                begin = time.process_time()
                try:
                    reader(path)
                    endings[f"{name}: accepted"] += 1
                except ArtifactError:
                    endings[f"{name}: ArtifactError"] += 1
                except BaseException as error:
                    raise AssertionError(
                        f"{name}: {type(error).__name__}: {error}; manifest: {container[b'manifest'][:20_000]!r}"
                    ) from error
                finally:
                    slowest = max(slowest, time.process_time() - begin)
                    signal.setitimer(signal.ITIMER_REAL, 0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {
        "artifacts": count, "seed": seed, "endings": dict(sorted(endings.items())), "other_endings": 0, "slowest_cpu_seconds": round(slowest, 3),
        "peak_mib": peak, "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifacts", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    found = run(arguments.artifacts, arguments.seed)
    finding("hostile artifacts", "python tests/fuzz/hostile_manifests.py", found, arguments.output)


if __name__ == "__main__":
    main()
