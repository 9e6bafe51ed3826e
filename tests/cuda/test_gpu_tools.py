"""What is made for a machine with a GPU, checked on the stand-in driver, which runs the kernels in Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_check
import numpy as np
import pytest
from gpu_parts.job import Job

TOOLS = Path(__file__).parents[2] / "tools"
SMALL = ("--programs", "groups", "--recorded", "--models", "--timed", "add-one", "--big", "--tiny")
SOME_OF_ALL = (
    *("--programs", "schedules", "--recorded", "mlp", "--models", "mlp", "mlp:tf32", "bert:bf16"),
    *("--timed", "gemm-tf32", "softmax-f32", "causal-bf16", "bias-bf16", "--big", "gpt2-bf16", "--tiny"),
)


def _run(tool: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DISC_CACHE": "0", "PYTHONPATH": str(TOOLS.parent)}
    environment.pop("OUT", None)
    return subprocess.run(
        [sys.executable, str(TOOLS / tool), *map(str, arguments)], capture_output=True, text=True, check=False, env=environment
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for the driver, with that for cuBLASLt beside it."""
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    options = ["-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-pthread"]
    subprocess.run(["gcc", *options, str(Path(__file__).parent / "fake_driver.c"), "-o", str(library)], check=True)
    beside = library.with_name("libcublasLt.so.13")
    options[3] = f"-Wl,-soname,{beside.name}"
    subprocess.run(["gcc", *options, str(Path(__file__).parent / "fake_products.c"), str(library), "-o", str(beside)], check=True)
    return library


def test_a_wrong_result_is_found(library: Path, tmp_path: Path) -> None:
    """All is right at first. Then an expected result is another one, and one part fails alone."""
    folder, out = tmp_path / "gpu", tmp_path / "out"
    out.mkdir()
    made = _run("gpu_prepare.py", "--folder", folder, *SMALL)
    assert made.returncode == 0 and "12 launches of 4 versions" in made.stdout, made.stderr
    check, parts = ("--fake", library, "--folder", folder, "--out", out, "--only"), ("kernels", "times", "tune")
    right = _run("gpu_check.py", *check, "build", *parts, "library")
    assert right.returncode == 0 and right.stdout == (out / "gpu_check.txt").read_text(), right.stdout + (out / "gpu_check.log").read_text()
    rows = [line.split() for line in right.stdout.splitlines()[2:]]
    parts_of = [["build", "runtime"], ["kernels", "groups"], ["times", "add-one"], ["tune", "schedules"], *[["library", "cuBLASLt"]] * 3]
    assert [row[:2] for row in rows] == parts_of and [row[2:5] for row in rows[4:]] == [
        [name, "1", "0"] for name in ("half", "bias", "batch")
    ]
    assert rows[1][2:4] == ["12", "0"]
    (point,) = json.loads((out / "gemm_times.json").read_text())["points"]
    assert len(point["times"]) == 3 and min(point["times"].values()) > 0 and "cublaslt" in point["times"]
    arrays = dict(np.load(folder / "groups.npz"))
    cases = json.loads((folder / "cases.json").read_text())["cases"]
    results = {each["array"] for case in cases for each in case["parameters"] if each["kind"] == "result"}
    changed = max(name for name in results if arrays[name].size)
    arrays[changed] = arrays[changed] * 2 + 1
    np.savez(folder / "groups.npz", **arrays)
    (folder / "tuning.json").write_text("{")
    wrong = _run("gpu_check.py", *check, *parts)
    assert wrong.returncode == 1 and "r0: differs by" in wrong.stdout and "tune: JSONDecodeError" in wrong.stdout, wrong.stdout
    assert ["times", "add-one", "5"] in [line.split()[:3] for line in wrong.stdout.splitlines()]


@pytest.mark.long
def test_all_parts(library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "gpu"
    made = _run("gpu_prepare.py", "--folder", folder, *SOME_OF_ALL)
    assert made.returncode == 0, made.stderr
    found = _run("gpu_check.py", "--fake", library, "--folder", folder, "--out", tmp_path, "--minutes", 60)
    assert found.returncode == 0, found.stdout + (tmp_path / "gpu_check.log").read_text()
    assert {line.split()[0] for line in found.stdout.splitlines()[2:]} >= {"kernels", "models", "times", "big", "shapes", "tune", "library"}
    assert "on an SM at a time" in (tmp_path / "explain.txt").read_text()
    files = [each for each in tmp_path.iterdir() if each.is_file()]
    assert len(files) <= 8, files


def test_a_part_is_ended_when_its_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of what it does: wrong on a GPU; on the stand-in, which is slow, left out."""
    monkeypatch.setattr(gpu_check, "SPARE", 0)
    for fake, rest in (("", 0), ("libcuda.so.1", 1)):
        rows, wrong = gpu_check.start_part("kernels", Job(tmp_path, tmp_path, fake, (), 0.01), tmp_path / "log")
        assert [each.name for each in rows] == ["left out"] * rest
        assert wrong == ["kernels: was stopped after 0 s"] * (1 - rest)


def test_nothing_to_check_with(tmp_path: Path) -> None:
    found = _run("gpu_check.py", "--folder", tmp_path)
    assert found.returncode == 2 and "run gpu_prepare.py" in found.stderr
