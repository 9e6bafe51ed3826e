"""Loading, threads, statistics, profiles, the C interface."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from programs import ADD, COPY, INCLUDE, add_manifest, build, copy_manifest, manifest

from disc.artifact import file as artifact
from disc.errors import ArtifactError, CompilerBug, TargetError
from disc.ral import executable
from disc.ral.executable import Executable

RAL_FOLDER = INCLUDE.parent
BIAS = [("bias", "f32", np.array(0.5, np.float32))]


def check_rows(exe: Executable, rows: int) -> None:
    a = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    assert np.array_equal(exe(a, a), 2 * a + 0.5)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_launches_split_over_threads(threads: int) -> None:
    exe = Executable.from_parts(add_manifest(), {"x86-64-v3": build(ADD)}, BIAS, threads=threads)
    for rows in (0, 1, 2, 3, 10, 97, 1000, 10007):
        check_rows(exe, rows)
    assert exe.threads == threads


def test_many_threads_call_one_executable(adder: Executable) -> None:
    adder.threads = 3
    failures: list[BaseException] = []

    def calls(seed: int) -> None:
        try:
            for rows in np.random.default_rng(seed).integers(0, 500, 100):
                check_rows(adder, int(rows))
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=calls, args=(seed,)) for seed in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    stats = adder.stats()
    assert stats["calls"] == 800
    assert stats["kernels"] == {"add_rows": 800}
    assert sum(stats["counters"].values()) == 800


def forked_call(exe: Executable, status: object) -> None:
    check_rows(exe, 1000)
    status.value = 1  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_may_call(adder: Executable) -> None:
    adder.threads = 2
    check_rows(adder, 1000)
    context = multiprocessing.get_context("fork")
    status = context.Value("i", 0)
    child = context.Process(target=forked_call, args=(adder, status))
    child.start()
    child.join(30)
    if child.exitcode is None:
        child.kill()
    assert status.value == 1


def test_contexts_of_the_same_code_share_no_state() -> None:
    counting = """
    #include "ral.h"
    static int64_t calls;
    int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
      int64_t* out = api->output(exec, 0, 0);
      if (!out) return 1;
      *out = ++calls;
      return 0;
    }
    """
    described = manifest([], [{"name": "calls", "dtype": "i64", "rank": 0}])
    first, second = (Executable.from_parts(described, {"x86-64-v3": build(counting)}) for _ in range(2))
    assert [int(exe()) for exe in (first, first, second, first)] == [1, 2, 1, 3]
    del second
    gc.collect()
    third = Executable.from_parts(described, {"x86-64-v3": build(counting)})
    assert int(third()) == 1


def test_loading_leaves_nothing_behind(tmp_path: Path) -> None:
    artifact.write_artifact(tmp_path / "a.disc", add_manifest(), {"x86-64-v3": build(ADD)}, BIAS)
    check_rows(executable.load(tmp_path / "a.disc"), 5)
    gc.collect()
    before = len(os.listdir("/proc/self/fd")), len(Path("/proc/self/maps").read_text().splitlines())
    for _ in range(50):
        check_rows(executable.load(tmp_path / "a.disc", threads=1), 5)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before[0]
    assert len(Path("/proc/self/maps").read_text().splitlines()) <= before[1] + 10
    assert os.listdir(tmp_path) == ["a.disc"]


def test_profile(adder: Executable) -> None:
    a = np.ones((5, 4), np.float32)
    (name, launches, seconds), *rest = adder.profile(a, a)
    assert (name, launches, rest) == ("add_rows", 1, [])
    assert 0 < seconds < 1
    adder(a, a)
    assert adder.profile(a, b=a)[0][1] == 1


def test_the_best_code_that_runs_is_loaded() -> None:
    code = {"x86-64-v3": build(ADD), "x86-64-v3+avx512-imaginary": build(ADD), "x86-64": build(ADD)}
    exe = Executable.from_parts(add_manifest(), code, BIAS)
    assert exe.isa == "x86-64-v3"
    assert Executable.from_parts(add_manifest(), code, BIAS, isa="x86-64").isa == "x86-64"


def test_missing_features_are_named(tmp_path: Path) -> None:
    code = {"x86-64-v3+avx512-imaginary": build(ADD), "x86-64-v9": build(ADD)}
    artifact.write_artifact(tmp_path / "a.disc", add_manifest(), code, BIAS)
    with pytest.raises(TargetError, match=r"a.disc': .* needs the CPU feature 'x86-64-v9'; .* needs the CPU feature 'avx512-imaginary'"):
        executable.load(tmp_path / "a.disc")
    with pytest.raises(TargetError, match="no code for x86-64-v4"):
        Executable.from_parts(add_manifest(), code, BIAS, isa="x86-64-v4")
    with pytest.raises(TargetError, match="has no code"):
        Executable.from_parts(add_manifest(), {}, BIAS)


def test_code_that_cannot_be_loaded() -> None:
    with pytest.raises(ArtifactError, match="section 'code/x86-64': cannot be loaded"):
        Executable.from_parts(add_manifest(), {"x86-64": b"not an ELF file"}, BIAS)
    with pytest.raises(ArtifactError, match="section 'code/x86-64': has no symbol disc_entry"):
        Executable.from_parts(add_manifest(), {"x86-64": build("int nothing;")}, BIAS)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1;", "failed without a reason"),
        ("return 0;", "did not make output 0"),
        ("api->output(exec, 1, in[0].dims); return 1;", "output: index 1 is out of range"),
        ("api->alloc(exec, -1); return 1;", "alloc: -1 bytes"),
        ("return api->free(exec, in[0].data);", "free: not a block of this call"),
        (
            "void* a = api->alloc(exec, 8); api->free(exec, a); return api->free(exec, a);",
            "free: not a block of this call, or freed before",
        ),
        ("return api->copy(exec, api->alloc(exec, 8), in[0].data, -1);", "copy: -1 bytes"),
        ("return api->copy(exec, in[0].data, (char*)in[0].data + 4, 8);", "copy: 8 bytes, to or from nothing or what overlaps"),
        ("return api->copy(exec, 0, in[0].data, 8);", "copy: 8 bytes, to or from nothing"),
        ("return api->fill(exec, in[0].data, -1, 0);", "fill: -1 bytes of 0"),
        ("return api->fill(exec, in[0].data, 4, 256);", "fill: 4 bytes of 256"),
        ("int64_t value = 0; return api->read(exec, 0, &value);", "read: from nothing"),
        ("return api->launch(exec, 5, 0, 0, 1, 1, 0);", "launch: kernel 5"),
        ("return api->fail(exec, 9, 0, 0);", "fail: check 9"),
    ],
)
def test_misbehaving_code_is_a_compiler_bug(body: str, message: str) -> None:
    head = (
        "int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters)"
    )
    source = f'#include "ral.h"\n{head} {{ {body} }}'
    exe = Executable.from_parts(copy_manifest("f32", 1), {"x86-64": build(source)})
    with pytest.raises(CompilerBug, match=message):
        exe(np.ones(3, np.float32))


def test_save_and_load_and_save_again(adder: Executable, tmp_path: Path) -> None:
    adder.save(tmp_path / "a.disc")
    loaded = executable.load(tmp_path / "a.disc")
    check_rows(loaded, 3)
    assert loaded.manifest == adder.manifest == artifact.read_manifest(tmp_path / "a.disc")
    loaded.save(tmp_path / "b.disc")
    assert (tmp_path / "a.disc").read_bytes() == (tmp_path / "b.disc").read_bytes()
    assert loaded.stats()["compiles"] == 0
    assert adder.stats()["compiles"] == 0  # its code was made by hand


@pytest.fixture(scope="session")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("c") / "run"
    source = Path(__file__).with_name("run.c")
    warnings = ["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    link = [f"-L{RAL_FOLDER}", "-lral", f"-Wl,-rpath,{RAL_FOLDER}"]
    subprocess.run(["gcc", *warnings, f"-I{INCLUDE}", str(source), "-o", str(target), *link], check=True)
    return target


def test_a_c_program_runs_an_artifact(adder: Executable, c_program: Path, tmp_path: Path) -> None:
    adder.save(tmp_path / "a.disc")
    done = subprocess.run([c_program, tmp_path / "a.disc", "3"], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["dims"] == [3, 4]
    assert result["values"] == [2 * i + 0.5 for i in range(12)]
    assert result["nanoseconds_per_call"] < 100_000
    damaged = subprocess.run([c_program, __file__, "3"], capture_output=True, text=True, check=False)
    assert damaged.returncode == 7  # RAL_ERROR_ARTIFACT
    assert "not a disc artifact" in damaged.stderr


def test_load_time_of_large_weights(tmp_path: Path) -> None:
    weight = np.zeros(100 << 20, np.uint8)
    described = copy_manifest("f32", 1)
    artifact.write_artifact(tmp_path / "a.disc", described, {"x86-64-v3": build(COPY, "BYTES=4")}, [("w", "ui8", weight)])
    times = []
    for _ in range(3):
        start = time.perf_counter()
        exe = executable.load(tmp_path / "a.disc")
        times.append(time.perf_counter() - start)
        exe(np.ones(2, np.float32))
    assert min(times) < 0.05
