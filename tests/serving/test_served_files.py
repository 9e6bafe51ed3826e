"""The file of a model that is served: overwritten, truncated, appended to, replaced, deleted. No answer changes, and no process ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import programs
import pytest
from oip_client import Client, failure, serving

from disc.artifact.file import write_artifact
from disc.errors import ConfigurationError
from disc.serving.model import LoadedModel
from disc.serving.repository import Repository
from disc.serving.settings import settings_of

# y = the sum of the weights, read anew in every call.
SUM = """
#include "ral.h"
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  int64_t dims[1] = {1};
  double* out = api->output(exec, 0, dims);
  if (!out) return 1;
  const float* w = weights[0];
  double sum = 0;
  for (int64_t i = 0; i < COUNT; ++i) sum += w[i];
  out[0] = sum + in[0].dims[0];
  return 0;
}
"""
COUNT = 1 << 18  # 1 MiB of weights
X = np.ones(3, np.float32)


def write_sum(path: Path, value: float) -> None:
    made = programs.manifest([{"name": "x", "dtype": "f32", "dims": ["S0"]}], [{"name": "y", "dtype": "f64", "rank": 1, "dims": [1]}])
    made["symbols"] = [{"name": "S0", "min": 0, "divisor": 1, "source": "arg0.0"}]
    weights = [("w", "f32", np.full(COUNT, value, np.float32))]
    write_artifact(path, made, {"x86-64-v3": programs.build(SUM, f"COUNT={COUNT}")}, weights)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "sum" / "1" / "model.disc"
    path.parent.mkdir(parents=True)
    write_sum(path, 1.0)
    write_sum(tmp_path / "other.disc", 2.0)
    return path


@pytest.fixture(params=["when_needed", "always"])
def client(place: Path, request: pytest.FixtureRequest) -> Iterator[Client]:
    with serving(place.parents[2], admin=True, defaults={"copy": request.param}) as client:
        yield client


def by_shell(command: str) -> Callable[[Path, Path], None]:
    """In another process, as an operator does it."""
    return lambda place, other: subprocess.run(["sh", "-c", command, "sh", place, other], check=True, timeout=20) and None


def rewrite(place: Path, other: Path) -> None:
    """In this process, byte for byte, with the time of before."""
    before = os.stat(place)
    with open(place, "r+b") as file:
        file.write(other.read_bytes())
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))


RETRY = "for n in 1 2 3 4 5 6 7 8 9; do {} && exit; sleep 0.1; done"  # coreutils' truncate does not wait for a lease
CHANGES: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "cp": (by_shell('cp "$2" "$1"'), "overwritten"),
    "rewritten": (rewrite, ""),
    "truncated": (by_shell(RETRY.format('truncate -s 0 "$1"')), "overwritten"),
    "truncated to the half": (by_shell(RETRY.format('truncate -s 600000 "$1"')), "overwritten"),
    "appended to": (by_shell('echo more >> "$1"'), "overwritten"),
    "touched": (by_shell('touch "$1"'), "overwritten"),
    "replaced by rename": (by_shell('cp "$2" "$1.new" && mv "$1.new" "$1"'), "another file is in its place"),
    "deleted": (by_shell('rm "$1"'), "its file is gone"),
}


def answer(client: Client) -> float:
    return float(client.infer("sum", x=X)["y"][0])


def reason(client: Client) -> str:
    (entry,) = client.call("RepositoryIndex").models
    return f"{entry.state}: {entry.reason}"


def within(seconds: float, what: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.05)
    return what()


@pytest.mark.parametrize("change", CHANGES)
def test_answers_come_from_the_bytes_that_were_loaded(client: Client, place: Path, tmp_path: Path, change: str) -> None:
    make, note = CHANGES[change]
    assert answer(client) == COUNT + 3
    make(place, tmp_path / "other.disc")
    assert answer(client) == COUNT + 3
    assert within(5, lambda: note in reason(client)) and reason(client).startswith("READY"), reason(client)
    assert answer(client) == COUNT + 3


def test_the_model_can_be_loaded_again_from_what_lies_there(client: Client, place: Path, tmp_path: Path) -> None:
    assert answer(client) == COUNT + 3
    shutil.copy(tmp_path / "other.disc", place)
    client.call("RepositoryModelLoad", model_name="sum")
    assert answer(client) == 2 * COUNT + 3 and reason(client) == "READY: "
    os.truncate(place, 1000)
    assert failure(lambda: client.call("RepositoryModelLoad", model_name="sum"))[0] == "UNAVAILABLE"
    assert answer(client) == 2 * COUNT + 3 and client.call("ServerReady").ready


def test_calls_that_run_while_it_is_overwritten(client: Client, place: Path, tmp_path: Path) -> None:
    """A cold page, then a changed one, under one call after another."""
    writer = subprocess.Popen(["sh", "-c", f"sleep 0.2; for i in 1 2 3; do cp {tmp_path}/other.disc {place}; : > {place}; done"])
    found: set[float] = set()
    while writer.poll() is None:
        found.add(answer(client))
    assert writer.wait() == 0 and found == {COUNT + 3}


def loaded(place: Path, copy: str = "when_needed") -> LoadedModel:
    repository = Repository(place.parents[2], settings_of({"defaults": {"copy": copy}}))
    repository.load_all()
    return repository.find("sum")


def mapped(place: Path) -> bool:
    return str(place) in Path("/proc/self/maps").read_text()


def test_the_file_itself_is_mapped_so_that_processes_share_it(place: Path) -> None:
    model = loaded(place)
    assert model.source.leased and not model.source.copied and mapped(place)
    del model
    assert not mapped(place)
    assert loaded(place, "always").source.copied and not mapped(place)


def test_a_file_that_somebody_writes_is_copied(place: Path) -> None:
    """The kernel gives no lease of it: as for the file of another user, or a file system without leases."""
    with open(place, "r+b"):
        model = loaded(place)
        assert model.source.copied and not model.source.leased and model.source.no_lease and not mapped(place)


def test_writers_do_not_wait_for_a_model_that_is_gone(place: Path) -> None:
    model = loaded(place)
    del model
    start = time.monotonic()
    place.write_bytes(b"new")
    assert time.monotonic() - start < 5


def test_without_protection_the_model_is_taken_out(place: Path) -> None:
    """copy = "never": the operator's word that files are replaced by rename alone."""
    with serving(place.parents[2], admin=True, defaults={"copy": "never"}) as client:
        assert answer(client) == COUNT + 3 and client.call("ServerReady").ready
        os.utime(place)  # as if it had been written to
        assert within(5, lambda: reason(client) == "UNAVAILABLE: its file was overwritten while it was served; load it again")
        assert failure(lambda: answer(client))[0] == "UNAVAILABLE"
        assert not client.call("ServerReady").ready and not client.call("ModelReady", name="sum").ready
        client.call("RepositoryModelLoad", model_name="sum")
        assert answer(client) == COUNT + 3 and client.call("ServerReady").ready


def test_what_copy_may_be() -> None:
    with pytest.raises(ConfigurationError, match=r"models\.sum\.copy must be one of 'when_needed', 'always' or 'never', not 'sometimes'"):
        settings_of({"models": {"sum": {"copy": "sometimes"}}})


def test_a_served_process_survives(place: Path, tmp_path: Path) -> None:
    """As a process of its own: SIGBUS would end the tests, too, but here it is the server's end that is looked at."""
    script = (
        "import sys, numpy as np\nfrom pathlib import Path\nfrom oip_client import serving\n"
        "with serving(Path(sys.argv[1])) as client:\n"
        "    for _ in sys.stdin:\n        print(client.infer('sum', x=np.ones(3, np.float32))['y'][0], flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", script, str(place.parents[2])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None

        def ask() -> float:
            print(file=process.stdin, flush=True)
            assert process.stdout is not None
            return float(process.stdout.readline())

        assert ask() == COUNT + 3
        os.truncate(place, 0)
        assert ask() == COUNT + 3
        place.write_bytes((tmp_path / "other.disc").read_bytes())
        assert ask() == COUNT + 3
        process.stdin.close()
        assert process.wait(20) == 0
