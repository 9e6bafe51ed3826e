"""`disc bench`: the same model elsewhere, in turns, its results compared; callers; pictures; what is missing is said."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from disc.artifact.manifest import InputRecord
from disc.cli.bench import figures, peers
from disc.cli.bench.timing import CallTimes, time_callers
from disc.cli.main import main
from tests.e2e.commands import output_json

FACTORY = """
import torch

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.factor = 1.0

    def forward(self, x, unused, factor=2.0):
        return {"scores": torch.softmax(self.linear(x) * factor * self.factor, -1), "sum": x.sum(-1)}

def build():
    return Scaled().eval(), (torch.randn(2, 4), torch.randn(3), 2.0)

def other():
    model = Scaled().eval()
    model.factor = 1.5
    return model, (torch.randn(2, 4), torch.randn(3), 2.0)

def more():
    return torch.nn.Linear(4, 3).eval(), (torch.randn(2, 4),)
"""
SHAPES = ("--shape", "x=2x4,unused=3", "--shape", "x=7x4,unused=3", "--seconds", "0.02", "--threads", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    (folder / "bench_factory.py").write_text(FACTORY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["compile", "bench_factory:build", "-o", "scaled.disc"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) is not None for package in packages)


def test_against_others(capsys: pytest.CaptureFixture[str]) -> None:
    """A factory with random weights, two results in a dict, an input that changes nothing, a fixed argument."""
    names = ["eager", *(["ort", "openvino"] if installed("onnx", "onnxruntime", "openvino") else [])]
    found = output_json(capsys, "bench", "bench_factory:build", "--against", ",".join(names), "--plot", "picture.svg", *SHAPES)
    assert found["skipped"] == {}
    assert [(row["shape"], row["model"]) for row in found["shapes"]] == [
        (shape, name) for shape in SHAPES[1:4:2] for name in ["disc", *names]
    ]
    for row in found["shapes"]:
        assert row["p10"] <= row["median"] <= row["p90"] <= row["p95"] <= row["p99"] and row["calls"] >= 5
        assert row["difference"] < 1e-5 and (row["speed_up"] is None) == (row["model"] == "disc")
    assert Path("picture.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_ended_while_a_peer_loads(number: int, folder: Path, tmp_path: Path) -> None:
    """The peer prints no traceback of its own, and ends; the folder that peers share goes where the command can see to it."""
    command = [sys.executable, "-m", "disc.cli", "bench", "scaled.disc", "--source", "bench_factory:build", "--against", "eager", *SHAPES]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests that run in the background of a shell have it ignored
    with subprocess.Popen(command, cwd=folder, env=environment, preexec_fn=heard, **pipes) as running:
        while not list(tmp_path.glob("disc-bench-*")):
            assert running.poll() is None
            time.sleep(0.02)
        time.sleep(0.3)
        running.send_signal(number)
        said = running.communicate(timeout=60)[0]  # the peer holds the other end of the pipe, too, until it ends
    assert "Traceback" not in said and running.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert number == signal.SIGKILL or not list(tmp_path.glob("disc-bench-*"))


def test_callers_and_results_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    """The artifact is of one model, the peer of another: its times count for nothing."""
    arguments = (
        "bench",
        "scaled.disc",
        "--source",
        "bench_factory:other",
        "--against",
        "eager",
        "--callers",
        "3",
        *SHAPES[:2],
        *SHAPES[4:],
    )
    found = output_json(capsys, *arguments)
    assert found["callers"] == 3 and [row["model"] for row in found["shapes"]] == ["disc", "eager"]
    assert all(row["calls"] >= 15 and row["per_second"] > 0 and row["speed_up"] is None for row in found["shapes"])
    assert main([*arguments]) == 0
    text = capsys.readouterr().out
    assert "disc (x=2x4,unused=3): results differ by more than 0.05 of the largest value" in text and "calls/s" in text


def test_a_peer_that_cannot_take_part_is_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.PEERS, "ort", peers.Peer(peers.open_ort_file, ("no_such_package",), onnx=True))
    arguments = ("bench", "scaled.disc", "--source", "bench_factory:more", "--against", "ort,eager", *SHAPES[:2], *SHAPES[4:])
    assert main([*arguments]) == 0
    text = capsys.readouterr().out
    assert "ort was not timed: not installed: no_such_package; install with: pip install " in text
    assert "eager was not timed: x=2x4,unused=3: ConfigurationError: the model's example has 1 tensor, the artifact 2 inputs" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("scaled.disc", "--against", "eager"), "what do the others run? scaled.disc holds code of disc alone: add --source MODEL"),
        (("scaled.disc", "--against", "tensorrt"), "--against tensorrt: the peers are eager, inductor, ort, openvino"),
        (("scaled.disc", "--against", "eager", "--source", "x.mlir"), "the peers run PyTorch and ONNX models; x.mlir is neither"),
        (("scaled.disc", "--source", "bench_factory:build"), "--source is for a .disc file that is timed --against others"),
        (("scaled.disc", "--plot", "x.txt"), "--plot x.txt: pictures are .png, .svg, .pdf files"),
        (("hf:folder", "--against", "eager"), "there is no folder folder, and nothing is downloaded; from the hub: hf download folder"),
        (("bench_factory:build", "--device", "cpu"), "--device is for .disc files"),
        (("bench_factory:build", "--graphs", "2"), "--graphs is for .disc files"),
        (("scaled.disc",), "which sizes? give --shape once or more, such as --shape x=8x4,unused=8"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 1
    assert says in capsys.readouterr().err


def test_an_onnx_model_has_no_eager() -> None:
    assert peers.obstacle("eager", "x.onnx") == "it runs PyTorch models, and x.onnx is none"


@pytest.mark.parametrize(
    ("found", "expected", "differs"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.2),
        ([0.25], [0.5], 0.25),
        ([1.0], [1.0, 1.0], float("inf")),
        ([float("nan"), float("inf")], [float("nan"), float("inf")], 0.0),
        ([1.0, float("nan")], [1.0, 2.0], float("inf")),
        ([1.0, 3.0], [1.0, float("inf")], float("inf")),
        ([], [], 0.0),
    ],
)
def test_difference(found: list[float], expected: list[float], differs: float) -> None:
    assert figures.difference([np.array(found)], [np.array(expected)]) == differs
    assert figures.difference([np.array(found)], []) == float("inf")


def test_figures_of_turns() -> None:
    turns = [CallTimes(1.0, [0.1] * 9), CallTimes(1.0, [0.3])]
    found = figures.figures_of("x=1", "disc", turns, 2.0, 0.0)
    assert (found.calls, found.median, found.per_second, found.first) == (10, 0.1, 5.0, 2.0) and 0.1 < found.p99 <= 0.3
    slow = figures.figures_of("x=1", "eager", [CallTimes(2.0, [0.2] * 5)], 1.0, 0.0)
    assert slow.against(found, 1).speed_up == pytest.approx(2.0) and slow.against(found, 2).speed_up == pytest.approx(2.0)


def test_a_caller_that_fails_ends_them_all() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        time_callers([fail, lambda: None], 0.01)


def test_callers_call_at_least_once() -> None:
    found = time_callers([lambda: None, lambda: None], 0.0)
    assert len(found.calls) == 2 and found.wall > 0


def test_bits_of_bf16_are_numbers() -> None:
    record: InputRecord = {"name": "x", "dtype": "bf16", "dims": [1]}
    assert peers._tensor(np.array([0x3FC0], np.uint16), record["dtype"]).item() == 1.5
