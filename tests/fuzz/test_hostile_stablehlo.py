"""StableHLO programs that were changed at random: each is compiled or refused by a DiscError."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).parent / "hostile_stablehlo.py"


def change_programs(count: int, seed: int) -> None:
    command = [sys.executable, "-W", "ignore", str(FUZZER), "--programs", str(count), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    endings = json.loads(done.stdout)["endings"]
    assert sum(endings.values()) == count
    assert min(endings["compiled"], endings["UnsupportedFormatError"]) > count // 50


def test_some_changed_programs() -> None:
    change_programs(25, seed=7)


@pytest.mark.long
def test_many_changed_programs() -> None:
    change_programs(10_000, seed=1)
