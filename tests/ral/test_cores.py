"""How many cores the runtime takes to be its own: the affinity mask, and the CPU quotas of control groups below made-up root folders."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from programs import ADD, add_manifest, build

from disc.config import read_environment
from disc.errors import DiscError
from disc.ral import _ral
from disc.ral.executable import Executable

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct"
MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


def machine(root: Path, mounts: str, groups: str, files: dict[str, str]) -> _ral.Cores:
    """What is found when /proc/self says this and the files below /sys/fs/cgroup hold that."""
    contents = {"proc/self/mountinfo": mounts, "proc/self/cgroup": groups}
    contents |= {f"sys/fs/cgroup/{path}": text for path, text in files.items()}
    for path, text in contents.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n")
    return _ral.find_cores(str(root))


@pytest.mark.parametrize(
    ("mounts", "groups", "files", "quota"),
    [
        (V2, "0::/", {"cpu.max": "150000 100000"}, 1.5),
        (V2, "0::/", {"cpu.max": "max 100000"}, 0),
        (V2, "0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        (V2, "0::/a/b", {"cpu.max": "50000 50000", "a/cpu.max": "300000 100000", "a/b/cpu.max": "200000 100000"}, 1),
        (V2, "0::/a", {"b/cpu.max": "100000 100000"}, 0),
        (V2.replace(" / ", " /host/pod "), "0::/host/pod/main", {"cpu.max": "400000 100000", "main/cpu.max": "25000 100000"}, 0.25),
        (V2.replace(" / ", " /host/pod "), "0::/", {"cpu.max": "100000 100000"}, 1),
        (V1, "4:cpu,cpuacct:/", {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 0),
        (V1, "4:cpu,cpuacct:/x", {"cpu,cpuacct/x/cpu.cfs_quota_us": "250000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"}, 2.5),
        (
            f"{V1}\n{MEMORY}\n{V2.replace('cgroup rw', 'cgroup/unified rw')}",
            "4:cpu,cpuacct:/x\n3:memory:/y\n0::/z",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "100000", "cpu,cpuacct/x/cpu.cfs_period_us": "50000", "unified/z/cpu.max": "max 100000"},
            2,
        ),
        (MEMORY, "3:memory:/", {"memory/cpu.max": "100000 100000"}, 0),
        (V2, "0::/", {"cpu.max": "nonsense"}, 0),
        (V2, "0::/", {"cpu.max": "100000 0"}, 0),
        ("nonsense - -\n-", "::\n:", {}, 0),
    ],
)
def test_quotas_of_control_groups(tmp_path: Path, mounts: str, groups: str, files: dict[str, str], quota: float) -> None:
    found = machine(tmp_path, mounts, groups, files)
    allowed = len(os.sched_getaffinity(0))
    assert found == {"online": os.cpu_count(), "allowed": allowed, "quota": quota, "threads": found["threads"]}
    assert found["threads"] == (max(1, min(allowed, int(quota))) if quota else allowed)


def test_a_machine_without_proc_has_no_quota(tmp_path: Path) -> None:
    assert _ral.find_cores(str(tmp_path))["quota"] == 0


def test_the_affinity_mask_is_the_calling_threads() -> None:
    found: list[_ral.Cores] = []
    threads: list[int] = []

    def pinned() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        found.append(_ral.find_cores(""))
        threads.append(adder(None).threads)

    worker = threading.Thread(target=pinned)
    worker.start()
    worker.join()
    assert (found[0]["allowed"], found[0]["threads"], threads) == (1, 1, [1])


def test_the_default_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISC_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    executable = adder(None)
    assert executable.threads == _ral.find_cores("")["threads"]
    executable.threads = 7
    executable.threads = None  # back to the default
    assert executable.threads == _ral.find_cores("")["threads"]
    for omp, own, expected in (("5", "", 5), ("5,2", "", 5), ("5", "3", 3), ("0", "", None), ("many", "", None)):
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
        monkeypatch.setenv("DISC_THREADS", own)
        assert read_environment().threads == expected
        assert adder(None).threads == (expected or _ral.find_cores("")["threads"])
        assert adder(4).threads == 4
    for own in ("0", "-1", "two"):
        monkeypatch.setenv("DISC_THREADS", own)
        with pytest.raises(DiscError, match="give a number of threads, from 1 to 1024"):
            read_environment()


def adder(threads: int | None) -> Executable:
    bias = [("bias", "f32", np.zeros((), np.float32))]
    return Executable.from_parts(add_manifest(), {"x86-64-v3": build(ADD)}, bias, threads=threads)
