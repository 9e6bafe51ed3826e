"""The compile cache: keys, hits, damage, eviction, many writers, writers that are killed."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import disc
from disc import api
from disc.artifact import file as artifact
from disc.artifact.cache import Cache, cache_key
from disc.artifact.file import file_view
from disc.codegen.compiles import process_compiles
from disc.config import read_environment
from disc.errors import ArtifactError, DiscError, DiscWarning
from disc.targets.x86 import host_isa

KEY = "0" * 64


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISC_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def linear(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(4, 3).eval()


def compiled(model: nn.Module, **options: Any) -> disc.Executable:
    return disc.compile(model, (torch.randn(2, 4),), options=disc.Options(**options))


def compiles(executable: disc.Executable) -> int:
    return cast("int", executable.stats()["compiles"])


def data(value: bytes) -> list[tuple[str, memoryview]]:
    return [("weight", memoryview(value))]


def test_tests_leave_the_users_cache_alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Neither they nor the processes they start."""
    code = "from disc.config import read_environment; print(read_environment().cache_dir)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert read_environment().cache_dir == Path(other)
    assert Path(other).is_relative_to(tmp_path_factory.getbasetemp())


# ---- Keys


def test_key_depends_on_every_fact_and_byte() -> None:
    key = cache_key({"graph": "a", "isas": "b"}, data(b"12"))
    assert key == cache_key({"isas": "b", "graph": "a"}, data(b"12"))
    others = [
        cache_key({"graph": "ab", "isas": ""}, data(b"12")), cache_key({"graph": "a", "isas": "b"}, data(b"13")),
        cache_key({"graph": "a", "isas": "b"}, [("other", memoryview(b"12"))]), cache_key({"graph": "a", "isas": "b"}, []),
    ]  # fmt: skip
    assert len({key, *others}) == 5


def test_key_of_data_of_several_chunks() -> None:
    content = np.zeros(9 << 20, np.uint8)
    before = cache_key({}, [("w", content.data)])
    content[-1] = 1
    assert cache_key({}, [("w", content.data)]) != before


def test_file_view(tmp_path: Path) -> None:
    (tmp_path / "full").write_bytes(b"content")
    (tmp_path / "empty").write_bytes(b"")
    assert bytes(file_view(tmp_path / "full")) == b"content"
    assert bytes(file_view(tmp_path / "empty")) == b""


# ---- Hits and misses of disc.compile


def test_second_compile_is_a_hit(folder: Path) -> None:
    first, second = compiled(linear()), compiled(linear())
    assert (compiles(first), compiles(second)) == (1, 0)
    x = torch.randn(5, 4)
    torch.testing.assert_close(second(x), linear()(x))
    assert folder.stat().st_mode & 0o777 == 0o700


def test_other_weights_options_targets_and_dims_miss(folder: Path) -> None:
    x = torch.randn(2, 4)
    compiled(linear())
    assert compiles(compiled(linear(seed=1))) == 1
    assert compiles(compiled(linear(), threads=1)) == 1
    assert compiles(disc.compile(linear(), (x,), target=["x86-64-v3"])) == 1 or host_isa() == "x86-64-v3"
    assert compiles(disc.compile(linear(), (x,), dynamic_shapes=({},))) == 1
    assert compiles(compiled(linear())) == 0


def test_exported_program_and_its_module_share_an_entry(folder: Path) -> None:
    from disc.frontend.exported import export_module

    compiled(linear())
    assert compiles(disc.compile(export_module(linear(), (torch.randn(3, 4),)))) == 0


def test_files_are_known_by_their_bytes(folder: Path, tmp_path: Path) -> None:
    text = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n  %y = stablehlo.add %x, %x : tensor<2xf32>\n  return %y : tensor<2xf32>\n}\n"
    (tmp_path / "a.mlir").write_text(text)
    (tmp_path / "b.mlir").write_text(text)
    (tmp_path / "c.mlir").write_text(text.replace("add", "multiply"))
    assert [compiles(disc.compile(tmp_path / name)) for name in ("a.mlir", "b.mlir", "c.mlir")] == [1, 0, 1]


def test_cache_can_be_turned_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [compiles(compiled(linear(), cache=False)) for _ in range(2)] == [1, 1]
    monkeypatch.setenv("DISC_CACHE", "0")
    assert compiles(compiled(linear())) == 1
    assert not folder.exists()


def test_compiles_are_counted_where_code_is_generated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from disc.frontend.exported import export_module

    before = process_compiles()
    programs = [export_module(nn.Linear(4, size).eval(), (torch.randn(2, 4),)) for size in (3, 5)]
    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(lambda program: disc.compile(program, options=disc.Options(cache=False)), programs))
    assert [compiles(each) for each in both] == [1, 1], "another thread's compile is not its own"
    assert process_compiles() - before == 2
    both[0](torch.randn(3, 4))
    assert process_compiles() - before == 2
    once = api.generate_parts
    monkeypatch.setattr(api, "generate_parts", lambda *arguments: [once(*arguments) for _ in range(2)][1])
    assert compiles(compiled(linear(), cache=False)) == 2, "a compile that generates code twice says so"


@pytest.mark.parametrize("place", ["header", "code", "weights", "truncated"])
def test_damaged_entry_is_compiled_anew(folder: Path, place: str) -> None:
    compiled(linear())
    (entry,) = folder.glob("*.disc")
    content = bytearray(entry.read_bytes())
    sections = {section.name.split("/")[0]: section.offset for section in artifact.read_sections(entry)}
    if place == "truncated":
        del content[len(content) // 2 :]
    else:
        content[{"header": 20, **sections}[place]] ^= 1
    entry.write_bytes(content)
    with pytest.warns(DiscWarning, match="damaged entry"):
        again = compiled(linear())
    assert compiles(again) == 1
    assert compiles(compiled(linear())) == 0


def test_unwritable_folder_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DISC_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(DiscWarning, match="cannot be used"):
        assert compiles(compiled(linear())) == 1


def test_folder_that_others_may_write_is_refused(folder: Path) -> None:
    compiled(linear())
    folder.chmod(0o777)
    with pytest.raises(ArtifactError, match="may be written by other users"):
        compiled(linear())


# ---- The folder


def write(content: bytes):
    return lambda path: artifact.write_bytes(path, content)


def test_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=250)
    keys = [str(number) * 64 for number in range(3)]
    for number, key in enumerate(keys[:2]):
        cache.store(key, write(bytes(100)))
        os.utime(tmp_path / f"{key}.disc", (number, number))
    assert cache.lookup(keys[0], lambda path: path.stat().st_size) == 100  # now the latest
    cache.store(keys[2], write(bytes(100)))
    assert [entry.key for entry in cache.entries()] == [keys[0], keys[2]]


def test_temporary_files_of_dead_writers_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / f".{KEY}.disc.old", tmp_path / f".{KEY}.disc.new"
    old.touch()
    new.touch()
    long_ago = time.time() - 7200
    os.utime(old, (long_ago, long_ago))
    Cache(tmp_path, 1000).store(KEY, write(b"x"))
    assert not old.exists() and new.exists()


def test_clear_leaves_other_files(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    cache = Cache(tmp_path, 1000)
    cache.store(KEY, write(b"x"))
    assert cache.clear() == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_sizes_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, size in (("123", 123), ("2k", 2048), ("500M", 500 << 20), ("8G", 8 << 30)):
        monkeypatch.setenv("DISC_CACHE_SIZE", text)
        assert read_environment().cache_size == size
    monkeypatch.setenv("DISC_CACHE_SIZE", "much")
    with pytest.raises(DiscError, match="DISC_CACHE_SIZE='much' is no size"):
        read_environment()


WRITER = """
import sys
from pathlib import Path
import numpy as np
from disc.artifact import file as artifact
from disc.artifact.cache import Cache
manifest = {"compiler": "test", "inputs": [], "outputs": [], "single": False, "symbols": [], "checks": [], "kernels": [], "counters": [], "options": {}}
weights = [("w", "f32", np.full(1 << 18, 3, np.float32))]
cache = Cache(Path(sys.argv[1]), 1 << 30)
print("ready", flush=True)
for _ in range(int(sys.argv[2])):
    cache.store("0" * 64, lambda path: artifact.write_artifact(path, manifest, {}, weights))
    cache.lookup("0" * 64, artifact.verify)
"""


def writer(folder: Path, rounds: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-W", "error", "-c", WRITER, str(folder), str(rounds)], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("writers", "rounds"), [(4, 15), pytest.param(16, 40, marks=pytest.mark.long)])
def test_many_writers_and_readers(tmp_path: Path, writers: int, rounds: int) -> None:
    processes = [writer(tmp_path, rounds) for _ in range(writers)]
    codes = [process.wait(timeout=300) for process in processes]
    assert codes == [0] * writers  # a damaged entry would be a warning, which is an error there
    assert [path.name for path in tmp_path.iterdir()] == [f"{KEY}.disc"]


def test_killed_writer_leaves_no_half_entry(tmp_path: Path) -> None:
    for delay in (0.0, 0.004, 0.011, 0.023):
        process = writer(tmp_path, 10_000)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for entry in Cache(tmp_path, 1 << 30).entries():
            artifact.verify(entry.path)
