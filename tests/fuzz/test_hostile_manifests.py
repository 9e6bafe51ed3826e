"""Artifacts with right hashes whose manifests were changed at random: every reader accepts them or raises ArtifactError."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).parent / "hostile_manifests.py"


def change_manifests(count: int, seed: int) -> None:
    done = subprocess.run(
        [sys.executable, str(FUZZER), "--artifacts", str(count), "--seed", str(seed)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    endings = json.loads(done.stdout)["endings"]
    assert sum(endings.values()) == 3 * count
    assert all(
        endings[f"{reader}: {ending}"] > count // 50 for reader in ("verify", "inspect", "load") for ending in ("accepted", "ArtifactError")
    )


def test_some_changed_manifests() -> None:
    change_manifests(400, seed=3)


@pytest.mark.long
def test_many_changed_manifests() -> None:
    change_manifests(20_000, seed=1)
