"""The compile cache when processes are killed, disks are full, failing or read-only: never a wrong result, and the next compile works."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).parents[1] / "faults"
SCENARIOS = ("empty", "again", "full", "leavings")

# Fills a disk of 256 KiB with an entry of 240 kB that is wanted twice, then has the disk read-only. Run where it may mount.
SMALL_DISK = """
import subprocess, sys, warnings
from pathlib import Path
import numpy as np
from disc.artifact import file as artifact
from disc.artifact.cache import Cache

folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", folder], check=True)
manifest = dict(compiler="test", inputs=[], outputs=[], single=False, symbols=[], checks=[], kernels=[], counters=[], options={})
cache = Cache(folder, 1 << 30)

def write(path):
    artifact.write_artifact(path, manifest, {}, [("w", "f32", np.ones(50_000, np.float32))])

def said(key):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache.store(key, write)
    return [str(each.message) for each in caught]

def found(key):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return cache.lookup(key, lambda path: (artifact.verify(path), True)[1])

first, second, third = ("%d" % n * 64 for n in range(3))
assert said(first) == [] and found(first)
full = said(second)
assert len(full) == 1 and "cannot be used" in full[0] and "No space left on device" in full[0], full
assert found(second) is None and found(first)
assert [path.name for path in folder.iterdir()] == [first + ".disc"]
subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
assert found(first) and found(third) is None
only = said(third)
assert len(only) == 1 and "Read-only file system" in only[0], only
print("done")
"""


@pytest.fixture(scope="module")
def fault_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("fault") / "fault.so"
    options = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["gcc", *options, str(FAULTS / "fault.c"), "-o", str(target), "-ldl"], check=True)
    return target


def strike(library: Path, folder: Path, scenario: str, step: int) -> dict[str, int]:
    command = [sys.executable, str(FAULTS / "cache_faults.py"), str(folder / "cache"), scenario, str(step), "0"]
    done = subprocess.run(command, env={"LD_PRELOAD": str(library), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_faults_at_some_points(fault_library: Path, tmp_path: Path, scenario: str) -> None:
    counts = strike(fault_library, tmp_path, scenario, step=23)
    assert counts["points"] > 40
    assert counts["killed"] and counts["failed"]


@pytest.mark.long
def test_faults_at_every_point(fault_library: Path, tmp_path: Path) -> None:
    counts = [strike(fault_library, tmp_path, scenario, step=1) for scenario in SCENARIOS]
    assert sum(each["killed"] for each in counts) >= 500
    assert sum(each["failed"] for each in counts) >= 2000


def may_mount() -> bool:
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="this kernel lets no process mount a disk of its own")
def test_a_full_and_a_read_only_disk(tmp_path: Path) -> None:
    command = ["unshare", "-rm", sys.executable, "-c", SMALL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
