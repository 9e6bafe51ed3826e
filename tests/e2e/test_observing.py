"""What one sees of disc with PyTorch's and Python's own means: loggers, profiler ranges, TORCH_TRACE."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import disc
from disc.errors import DiscError
from disc.ral import _ral


def double(x: Tensor) -> Tensor:
    return x + x


def test_loggers(caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISC_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("DISC_CACHE", raising=False)
    with caplog.at_level(logging.DEBUG, "disc"):
        for _ in range(2):
            disc.compile(double, torch.randn(3))
    passes = [record.getMessage() for record in caplog.records if record.name == "disc.passes"]
    cache = [record.getMessage() for record in caplog.records if record.name == "disc.cache"]
    assert any(text.startswith("pass simplify: ") for text in passes)
    assert [text.split()[0] for text in cache] == ["compiled", "found"] and all(str(tmp_path) in text for text in cache)


def test_a_graph_is_a_range_of_the_profiler(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(double, backend="disc", dynamic=True)
    with caplog.at_level(logging.INFO, "disc"):
        compiled(torch.randn(4))
    assert [record.getMessage() for record in caplog.records if record.name == "disc.torch_compile"] == [f"graph {PLACE}: one program"]
    with torch.profiler.profile() as profile:
        compiled(torch.randn(5))
    assert f"disc: {PLACE}" in [event.name for event in profile.events() or ()]


class Layers(nn.Module):
    """Two kernels and a library function."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sort(torch.softmax(self.linear(x), -1)).values


def kernel_ranges(profile: torch.profiler.profile) -> list[str]:
    """Those within the only call, one after the other."""
    events = sorted(profile.events() or (), key=lambda event: event.time_range.start)
    (call,) = (event for event in events if event.name == "disc.Executable")
    found = [event for event in events if event.cpu_parent is call]
    assert all(one.time_range.end <= other.time_range.start for one, other in pairwise(found))
    return [event.name for event in found]


def test_kernels_are_ranges_within_their_call() -> None:
    """By the names that `explain` gives, while a profiler is active and only then; results are the same."""
    executable = disc.compile(Layers().eval(), torch.randn(3, 8))
    x = torch.randn(5, 8)
    expected = executable(x)
    with torch.profiler.profile() as profile:
        assert torch.equal(executable(x), expected)  # type: ignore[arg-type]
    kernels = {launch.number: kernel.name for kernel in executable.explain().kernels for launch in kernel.launches}
    assert kernel_ranges(profile) == [kernels[number] for number in sorted(kernels)] and len(kernels) > 1
    assert _ral.set_observer(None) is None, "nobody is told of calls any more"
    with torch.profiler.profile() as after:
        pass
    assert not after.events()


def test_kernels_are_ranges_within_a_graph_of_torch_compile() -> None:
    compiled = torch.compile(double, backend="disc", dynamic=True)
    compiled(torch.randn(4))
    with torch.profiler.profile() as profile:
        compiled(torch.randn(5))
    assert len(kernel_ranges(profile)) == 1
    call = next(event for event in profile.events() or () if event.name == "disc.Executable")
    assert call.cpu_parent.name == f"disc: {PLACE}"


def test_recorded_calls_are_a_range() -> None:
    """With the program and its kernels inside, as those of torch.compile."""
    x = torch.randn(5)
    with disc.lazy():
        for _ in range(4):
            double(x).sum().item()
        with torch.profiler.profile() as profile:
            double(x).sum().item()
    events = profile.events() or ()
    call = next(event for event in events if event.name == "disc.Executable")
    assert call.cpu_parent.cpu_parent.name.startswith("disc.lazy: test_observing.py:")
    assert kernel_ranges(profile)


LATE = """
import sys
import disc
executable = disc.load(sys.argv[1])
assert "torch" not in sys.modules
import torch
with torch.profiler.profile() as profile:
    executable(torch.randn(3))
print([event.name for event in profile.events()])
"""


def test_pytorch_may_come_after_the_model(tmp_path: Path) -> None:
    disc.compile(double, torch.randn(3)).save(tmp_path / "double.disc")
    command = [sys.executable, "-c", LATE, str(tmp_path / "double.disc")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert "'disc.Executable', 'loop_add" in done.stdout


def test_an_observer_that_fails_ends_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    executable = disc.compile(double, torch.randn(3))
    told: list[tuple[str | None, int]] = []
    failed: list[object] = []

    def observe(name: str | None, number: int) -> None:
        told.append((name, number))
        raise ValueError("by design")

    monkeypatch.setattr(sys, "unraisablehook", lambda error: failed.append(error.exc_value))
    assert _ral.set_observer(observe) is None
    try:
        assert torch.equal(executable(torch.ones(3)), torch.full((3,), 2.0))  # type: ignore[arg-type]
    finally:
        assert _ral.set_observer(None) is observe
    assert told == [(executable.manifest["kernels"][0]["name"], 0), (None, 0)]
    assert [type(error) for error in failed] == [ValueError, ValueError]
    executable(torch.ones(3))
    assert len(told) == 2


def test_an_observer_is_told_of_the_end_of_a_launch_that_fails() -> None:
    executable = disc.compile(lambda x: torch.linalg.inv(x), torch.eye(3))
    told: list[str | None] = []
    _ral.set_observer(lambda name, _: told.append(name))
    try:
        with pytest.raises(DiscError, match="singular"):
            executable(torch.zeros(3, 3))
    finally:
        _ral.set_observer(None)
    assert told and all((name is None) == (place % 2 == 1) for place, name in enumerate(told)) and len(told) % 2 == 0


def test_a_signal_while_ranges_are_told_ends_up_behind_the_call() -> None:
    """Ctrl+C is not lost in the observer, where Python may handle it."""
    executable = disc.compile(double, torch.randn(3))

    def observe(name: str | None, number: int) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background may have been started without
    _ral.set_observer(observe)
    try:
        with pytest.raises(KeyboardInterrupt):
            executable(torch.ones(3))
            for _ in range(1000):
                pass
    finally:
        _ral.set_observer(None)
        signal.signal(signal.SIGINT, before)


PLACE = f"{Path(__file__).name}:{double.__code__.co_firstlineno + 1}"
SCRIPT = """
import torch
torch.compile(lambda x: x * 3, backend="disc", dynamic=True)(torch.randn(4))
"""


def test_the_module_and_the_report_are_among_the_artifacts_of_torch_trace(tmp_path: Path) -> None:
    environment = {"TORCH_TRACE": str(tmp_path), "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-c", SCRIPT], env=environment, check=True, cwd=Path(__file__).parents[2])
    (log,) = tmp_path.iterdir()
    text = log.read_text()
    assert '"name": "disc_module"' in text and "func.func @main" in text.partition('"disc_module"')[2]
    assert "1 kernel, 1 launch" in text.partition('"disc_report"')[2]
