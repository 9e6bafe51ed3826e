"""What one sees of disc with PyTorch's and Python's own means: loggers, profiler ranges, TORCH_TRACE."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import disc


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


PLACE = f"{Path(__file__).name}:{double.__code__.co_firstlineno + 1}"
SCRIPT = """
import torch
torch.compile(lambda x: x * 3, backend="disc", dynamic=True)(torch.randn(4))
"""


def test_the_module_is_among_the_artifacts_of_torch_trace(tmp_path: Path) -> None:
    environment = {"TORCH_TRACE": str(tmp_path), "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-c", SCRIPT], env=environment, check=True, cwd=Path(__file__).parents[2])
    (log,) = tmp_path.iterdir()
    text = log.read_text()
    assert '"name": "disc_module"' in text and "func.func @main" in text.partition('"disc_module"')[2]
