"""Every allocation of loading, checking and calling fails once: a status each time, no crash, nothing left behind."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from programs import ADD, ADD_THROUGH_BLOCKS, INCLUDE, add_manifest, build

import disc
from disc.artifact import file as artifact

RAL_FOLDER = Path(disc.__file__).parent / "ral"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("sweep") / "sweep"
    source = Path(__file__).with_name("allocation_sweep.cc")
    options = ["-O1", "-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}"]
    link = [f"-L{RAL_FOLDER}", "-lral", f"-Wl,-rpath,{RAL_FOLDER}"]
    subprocess.run(["g++", *options, str(source), "-o", str(program), *link], check=True)
    return program


@pytest.mark.parametrize("source", [ADD, ADD_THROUGH_BLOCKS], ids=["add", "through_blocks"])
def test_every_allocation_may_fail(sweep: Path, tmp_path: Path, source: str) -> None:
    path = tmp_path / "a.disc"
    artifact.write_artifact(path, add_manifest(), {"x86-64-v3": build(source)}, [("bias", "f32", np.array(0.5, np.float32))])
    done = subprocess.run([sweep, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    once, from_there = map(int, done.stdout.split())
    assert min(once, from_there) > 30
