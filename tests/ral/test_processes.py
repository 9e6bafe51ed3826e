"""Processes: forked while threads call, and ended while threads call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from programs import ADD, add_manifest, build

from disc.ral import executable
from disc.ral.executable import Executable

FORKS = Path(__file__).parents[1] / "faults" / "forks.py"
MIB = 1 << 20


def fork_children(count: int) -> None:
    done = subprocess.run([sys.executable, str(FORKS), "--children", str(count)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["endings"] == {"exit 0": count}, done.stderr[-2000:]
    assert found["parent_right"]


def test_children_forked_while_threads_call() -> None:
    fork_children(60)


@pytest.mark.long
def test_many_children_forked_while_threads_call() -> None:
    fork_children(10_000)


def test_a_child_checks_the_weights_that_its_parent_had_not_finished(tmp_path: Path) -> None:
    """Forked right after loading: the parent's threads have taken chunks that the child must hash itself, and find the damage in."""
    path = tmp_path / "large.disc"
    weight = np.full(96 * MIB // 4, 0.5, np.float32)
    Executable.from_parts(add_manifest(), {"x86-64-v3": build(ADD)}, [("bias", "f32", weight)]).save(path)
    a = np.ones((1, 4), np.float32)
    for damaged in (False, True):
        if damaged:
            with path.open("r+b") as file:
                file.seek(-4, os.SEEK_END)
                file.write(b"damage"[:4])
        for _ in range(4):
            loaded = executable.load(path)
            pid = os.fork()
            if pid == 0:
                try:
                    right = np.array_equal(np.asarray(loaded(a, a)), 2 * a + 0.5)
                    os._exit(0 if right else 3)
                except executable.ArtifactError:
                    os._exit(1)
                finally:
                    os._exit(4)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (1 if damaged else 0)
            if not damaged:
                loaded(a, a)


POOL = """
import multiprocessing, sys, threading
sys.path.insert(0, sys.argv[1])
import numpy as np
from programs import ADD, add_manifest, build
from disc.ral.executable import Executable

exe = Executable.from_parts(add_manifest(), {"x86-64-v3": build(ADD)}, [("bias", "f32", np.array(0.5, np.float32))], threads=2)
a = np.ones((5000, 4), np.float32)

def call(rows):
    return bool(np.array_equal(exe(a[:rows], a[:rows]), 2 * a[:rows] + 0.5))

done = False
def background():
    while not done: exe(a, a)
threads = [threading.Thread(target=background) for _ in range(2)]
for thread in threads: thread.start()
with multiprocessing.get_context("fork").Pool(3) as pool:
    right = pool.map(call, range(1, 5000, 50))
done = True
for thread in threads: thread.join()
assert all(right), right
"""


def test_a_pool_of_processes_forked_while_threads_call() -> None:
    subprocess.run([sys.executable, "-c", POOL, str(Path(__file__).parent)], check=True, timeout=120)


# Ends while eight daemon threads do what stands in the place of CALL.
ENDS = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from programs import ADD, add_manifest, build
from disc.errors import DiscError
from disc.ral.executable import Executable

exe = Executable.from_parts(add_manifest(), {"x86-64-v3": build(ADD)}, [("bias", "f32", np.array(0.5, np.float32))], threads=2)
a = np.ones((2000, 4), np.float32)

class Exchanged:
    "Its methods are Python's: the thread asks for the GIL within them, too."
    def __dlpack_device__(self): return a.__dlpack_device__()
    def __dlpack__(self, **options): return a.__dlpack__(**options)

def fails():
    try: exe(a[:3], a)
    except DiscError: return

exchanged, ready = Exchanged(), threading.Barrier(9)
def run():
    CALL
    ready.wait()
    while True: CALL
for _ in range(8): threading.Thread(target=run, daemon=True).start()
ready.wait()
time.sleep(0.02)
"""


@pytest.mark.parametrize("call", ["exe(a, a)", "exe(exchanged, exchanged)", "fails()"])
def test_a_process_ends_while_daemon_threads_call(call: str) -> None:
    for _ in range(5):
        command = [sys.executable, "-c", ENDS.replace("CALL", call), str(Path(__file__).parent)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
