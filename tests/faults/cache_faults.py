"""One scenario of cache writes with a fault at every point of it. Run by tests/errors/test_cache_faults.py with fault.c preloaded:

cache_faults.py FOLDER SCENARIO STEP OFFSET: strikes at every STEPth point from OFFSET on; prints JSON.

Each point is tried in a forked child, after which this process checks what is left in the folder.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import signal
import sys
import warnings
from pathlib import Path

import numpy as np

from disc.artifact import file as artifact
from disc.artifact.cache import Cache

KEY, OTHER = "0" * 64, "1" * 64
MANIFEST: artifact.Manifest = {
    "compiler": "test", "inputs": [], "outputs": [], "single": False, "symbols": [], "checks": [], "kernels": [], "counters": [], "options": {},
}  # fmt: skip
WEIGHTS = [(f"w{index}", "f32", np.full(2500, index, np.float32)) for index in range(24)]
KILLS = {"before": 0, "middle": 1, "after": 2}
ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EROFS", "EMFILE")
ERROR_ONCE, ERROR_FROM_HERE = 3, 4
NEVER = 1 << 30
FAULT = ctypes.CDLL(os.environ["LD_PRELOAD"])


def write(path: Path) -> None:
    artifact.write_artifact(path, MANIFEST, {"x86-64": b"code"}, WEIGHTS)


def prepare(folder: Path, scenario: str) -> Cache:
    """empty: no folder yet; again: the entry is there; full: another entry must go; leavings: a dead writer's file is there."""
    shutil.rmtree(folder, ignore_errors=True)
    cache = Cache(folder, limit=1 << 30)
    if scenario in ("again", "leavings"):
        cache.store(KEY, write)
    if scenario == "full":
        cache.store(OTHER, write)
        os.utime(folder / f"{OTHER}.disc", (1, 1))
        cache = Cache(folder, limit=300_000)
    if scenario == "leavings":
        (folder / f".{KEY}.disc.dead").write_bytes(b"half")
        os.utime(folder / f".{KEY}.disc.dead", (1, 1))
    return cache


def use(cache: Cache) -> None:
    """What a compile does with the cache: look, and store what was not there. A lookup must not give a damaged entry in any state."""
    found = cache.lookup(KEY, loaded)
    assert found is None or found == GOOD, "a wrong entry"
    cache.store(KEY, write)


def loaded(path: Path) -> bytes:
    artifact.verify(path)
    return path.read_bytes()


def struck(cache: Cache, place: int, mode: int, number: int) -> int:
    """The exit status of a child that was struck there: 0 it ended well, -SIGKILL it was killed, 1 it raised."""
    child = os.fork()
    if child == 0:
        code = 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                FAULT.fault_arm(place, mode, number)
                use(cache)
                code = 0
            finally:
                FAULT.fault_arm(-1, 0, 0)
                os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def points(folder: Path, scenario: str) -> int:
    """How many calls there are to strike."""
    cache = prepare(folder, scenario)
    FAULT.fault_arm(NEVER, 0, 0)
    use(cache)
    total = FAULT.fault_count()
    FAULT.fault_arm(-1, 0, 0)
    return total


def check(cache: Cache, what: str, *, killed: bool, sticky: bool) -> None:
    """Whatever happened: entries are whole, what is half is named so that it will be removed, and the next compile works."""
    for entry in cache.entries():
        assert loaded(entry.path) == GOOD, f"{what}: wrong entry"
    left = [path.name for path in cache.folder.iterdir() if path.suffix != ".disc"] if cache.folder.exists() else []
    fresh = [name for name in left if not name.endswith(".dead")]
    assert all(name.startswith(f".{KEY}.disc.") for name in fresh), f"{what}: {fresh}"
    assert killed or sticky or not fresh, f"{what}: left {fresh}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use(cache)
        assert cache.lookup(KEY, loaded) == GOOD, what


def main() -> None:
    folder, scenario, step, offset = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    total = points(folder, scenario)
    faults = [(name, mode, 0) for name, mode in KILLS.items()]
    faults += [(name, mode, getattr(errno, name)) for name in ERRORS for mode in (ERROR_ONCE, ERROR_FROM_HERE)]
    tried = [(place, *fault) for place in range(total) for fault in faults]
    killed = failed = 0
    for place, name, mode, number in tried[offset::step]:
        cache = prepare(folder, scenario)
        status = struck(cache, place, mode, number)
        kill = mode < ERROR_ONCE
        what = f"{scenario}, {name} at {place}"
        assert status == (-signal.SIGKILL if kill else 0), f"{what}: status {status}"
        check(cache, what, killed=kill, sticky=mode == ERROR_FROM_HERE)
        killed, failed = killed + kill, failed + (not kill)
    print(json.dumps({"points": total, "killed": killed, "failed": failed}))


write(Path(sys.argv[1]).with_suffix(".good"))
GOOD = Path(sys.argv[1]).with_suffix(".good").read_bytes()

if __name__ == "__main__":
    main()
