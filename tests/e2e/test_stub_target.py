"""A target that is no CPU goes through import, passes, speculation, plan, artifact file and runtime without a module of x86's kernels."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "stub_target.py"


def test_a_target_that_is_no_cpu() -> None:
    """In a process of its own, since this one may have loaded anything. The device's memory is protected: a host entry that loads from it
    or stores to it, and a runtime that does, end the process."""
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["x86"] == []
    assert told["isa"] == "stub:x86-64"
    assert told["largest"] < 1e-5
    assert told["launched"] == 4 * 2 + 4 * 3  # kernels of both models
    assert told["left"] == 0
    assert told["refusal"] == "input 'x' (argument 0): is on cpu:0, the loaded code is for stub:0"
    assert told["check"].startswith("dim 0 of input 'x' must be at least the value of input 'rows'")
