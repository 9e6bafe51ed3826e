"""The fuzzers of untrusted files and messages: a short run of each with a fixed seed; long ones behind --long."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FUZZ = Path(__file__).parent
TARGETS = ("artifact", "manifest", "request", "archive")


@pytest.fixture(scope="module")
def loader_fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    common = ["-DOWN_DRIVER", "-O1", "-g", "-std=c++20", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    include = [f"-I{ROOT}/disc/ral/include", f"-I{ROOT}/disc/ral/src"]
    sources = [(FUZZ / "fuzz_loader.cc", [])]
    sources += [
        (ROOT / "disc/ral/src" / f"{name}.cc", ["-fsanitize-coverage=trace-pc"]) for name in ("core/file", "core/signature", "core/sha256")
    ]
    sources += [(ROOT / "disc/ral/src/cpu/cpu.cc", [])]
    objects = [folder / f"{source.stem}.o" for source, _ in sources]
    builds = [
        subprocess.Popen(["g++", *common, *options, *include, "-c", str(source), "-o", str(target)])
        for (source, options), target in zip(sources, objects, strict=True)
    ]
    assert [build.wait() for build in builds] == [0] * len(builds)
    subprocess.run(["g++", *common, *map(str, objects), "-o", str(folder / "fuzz_loader")], check=True)
    return folder / "fuzz_loader"


def run_loader(program: Path, runs: int, seed: int) -> None:
    done = subprocess.run([program, str(runs), str(seed), str(FUZZ / "corpus" / "loader")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-4000:]}"
    seeds, corpus, edges = map(int, done.stdout.split())
    assert corpus > seeds  # it finds its way in
    assert edges > 500


def run_python(target: str, runs: int, folder: Path) -> None:
    corpus = FUZZ / "corpus" / ("loader" if target == "artifact" else target)
    command = [
        sys.executable,
        str(FUZZ / "fuzz_python.py"),
        target,
        f"-runs={runs}",
        "-seed=1",
        "-max_len=8192",
        f"-artifact_prefix={folder}/",
    ]
    done = subprocess.run([*command, str(folder), *([str(corpus)] if corpus.is_dir() else [])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    sizes = re.findall(r"corp: (\d+)/", done.stderr)
    seeds = len(list(corpus.iterdir())) if corpus.is_dir() else 1
    assert int(sizes[-1]) > seeds, "the fuzzer sees no coverage: it found no input worth keeping"


def test_the_loader(loader_fuzzer: Path) -> None:
    run_loader(loader_fuzzer, 10_000, seed=1)


@pytest.mark.parametrize("target", TARGETS)
def test_the_python_readers(target: str, tmp_path: Path) -> None:
    run_python(target, 2000, tmp_path)


@pytest.mark.long
def test_the_loader_for_long(loader_fuzzer: Path) -> None:
    for seed in range(2, 6):
        run_loader(loader_fuzzer, 500_000, seed)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
def test_the_python_readers_for_long(target: str, tmp_path: Path) -> None:
    run_python(target, 300_000, tmp_path)
