"""`disc compile-server` and `disc compile --remote`, as processes and with the real compiler."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import disc
from disc.cli import main as cli

FACTORY = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(6, 4)
    def forward(self, x):
        return torch.softmax(self.linear(x), -1), x.sum(0)
class Bad(torch.nn.Module):
    def forward(self, x):
        return torch.special.airy_ai(x)
def good():
    return Model().eval(), (torch.randn(3, 6),)
def bad():
    return Bad(), (torch.randn(3, 3),)
"""
TWICE = (
    "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n  %y = stablehlo.add %x, %x : tensor<2xf32>\n  return %y : tensor<2xf32>\n}\n"
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    command = [sys.executable, "-m", "disc.cli", "compile-server", "--port", "0", "--folder", str(folder / "state")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        yield running.stdout.readline().split()[2]
        maps = Path(f"/proc/{running.pid}/maps").read_text()
        running.send_signal(signal.SIGTERM)
        errors = running.stderr.read()
        assert running.wait(30) == 0
        assert "libtorch" not in maps and "TorchMLIR" not in maps  # the service itself compiles nothing
        assert '"event": "stopped"' in errors


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "remote_models.py").write_text(FACTORY)
    (tmp_path / "twice.mlir").write_text(TWICE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_module_is_exported_here_and_compiled_there(address: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for cached in (False, True):
        assert cli.main(["compile", "remote_models:good", "-o", "m.disc", "--remote", address, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["cached"] is cached
    remote = disc.load(work / "m.disc")
    assert cli.main(["compile", "remote_models:good", "-o", "here.disc"]) == 0
    here = disc.load(work / "here.disc")
    assert {**remote.manifest, "kernels": []} == {**here.manifest, "kernels": []}
    x = np.random.default_rng(1).standard_normal((7, 6)).astype(np.float32)
    for a, b in zip(remote(x), here(x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_stablehlo_goes_as_it_is(address: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", "twice.mlir", "-o", "t.disc", "--remote", address, "--embed-stablehlo"]) == 0
    assert disc.load(work / "t.disc")(np.ones(2, np.float32)).tolist() == [2, 2]


def test_mistakes(address: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", "remote_models:bad", "-o", "b.disc", "--remote", address]) == 1
    assert "cannot be compiled" in capsys.readouterr().err  # found here already
    (work / "wrong.mlir").write_text("func.func @main(")
    assert cli.main(["compile", "wrong.mlir", "-o", "w.disc", "--remote", address]) == 1
    assert f"{address}: program.mlirbc" in capsys.readouterr().err
    assert cli.main(["compile", "twice.mlir", "-o", "t2.disc", "--remote", "127.0.0.1:9"]) == 1
    assert "127.0.0.1:9: " in capsys.readouterr().err
    assert not list(work.glob("*.disc"))
