"""`disc debug`: a report of an internal error is enough to see it again, and to shrink it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from disc.cli.debug.reduce import command_check
from disc.cli.main import main
from disc.codegen.x86 import elementwise
from disc.errors import CompilerBug
from disc.ir.dialect import disc_context
from disc.ir.passes import CompileState, Pass, run_passes
from disc.ir.reports import Report, read_report, write_report
from disc.ir.stages import parse_module

ROOT = Path(__file__).parents[2]
MODULE = """
func.func @main(%a: tensor<3x4xf32, [3, 4]>, %b: tensor<3x4xf32, [3, 4]>) -> (tensor<3x4xf32, [3, 4]>, tensor<3x4xf32, [3, 4]>) {
  %0 = stablehlo.add %a, %b : tensor<3x4xf32, [3, 4]>
  %1 = stablehlo.multiply %0, %b : tensor<3x4xf32, [3, 4]>
  return %0, %1 : tensor<3x4xf32, [3, 4]>, tensor<3x4xf32, [3, 4]>
}
"""


class Failing(Pass):
    name = "failing"

    def apply(self, module: object, state: CompileState) -> None:
        raise IndexError("oops")


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a module that `disc debug opt` refuses: it is not of the stage that it is to have."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return write_report("stage", Report("stage fused", "--stage=fused", MODULE, CompilerBug("not fused")))


def test_what_an_internal_error_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with disc_context(), pytest.raises(CompilerBug, match="disc debug replay") as caught:
        run_passes(parse_module(MODULE), [Failing()], CompileState())
    (path,) = tmp_path.iterdir()
    assert str(path) in str(caught.value)
    with zipfile.ZipFile(path) as bundle:
        record, trace = json.loads(bundle.read("report.json")), bundle.read("traceback.txt").decode()
    assert {"disc", "python", "torch", "numpy"} <= set(record["versions"]) and record["machine"]["flags"]
    assert "IndexError: oops" in trace and "stablehlo.multiply" in read_report(path).module


def test_replay_says_whether_it_fails_still(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", "replay", str(report)]) == 1
    said = capsys.readouterr().out
    assert "it was: stage fused: CompilerBug: not fused" in said and "now: " in said and "fused" in said.partition("now: ")[2]
    mended = write_report("stage", Report("stage imported", "--stage=named", MODULE, CompilerBug("once")))
    assert main(["debug", "replay", str(mended)]) == 0
    assert capsys.readouterr().out.endswith("now: no error\n")


@pytest.mark.long
def test_reduce_needs_nothing_but_a_report(report: Path) -> None:
    command = [sys.executable, "-m", "disc.cli", "debug", "reduce", str(report), "--match", "at stage fused", "--seconds", "60"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "return" in done.stdout and done.stdout.count("stablehlo.") < 2


def test_what_a_check_leaves_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing command of ours writes a report, hundreds of times."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert command_check("mktemp; false #", "")("module {}") and list(tmp_path.iterdir()) == []


def test_opt_is_the_program_that_golden_tests_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "module.mlir"
    file.write_text(MODULE)
    assert main(["debug", "opt", str(file), "--passes=simplify"]) == 0
    assert "stablehlo.multiply" in capsys.readouterr().out
    assert main(["debug", "opt", str(file), "--passes=simplyfy"]) == 1
    assert "there is no pass 'simplyfy' (did you mean simplify?)" in capsys.readouterr().err
    assert main(["debug", "opt", str(file), "--pases=simplify"]) == 1
    assert "No such option: --pases" in capsys.readouterr().err
    file.write_text(f"{MODULE}// ----- another\n{MODULE}")
    assert main(["debug", "opt", str(file), "--stage=named"]) == 0
    assert capsys.readouterr().out.count("stablehlo.multiply") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "{}/none.zip"], "there is no such file"),
        (["replay", "{}/text.zip"], "is no report of disc"),
        (["reduce", "{}/text.zip"], "is no report of disc"),
        (["reduce", "{}/none.mlir", "--check", "false"], "cannot be read"),
        (["opt", "{}/none.mlir"], "none.mlir cannot be read: No such file or directory"),
        (["opt", "{}/none.mlir", "another.mlir"], "unexpected extra argument(s) (another.mlir); usage: disc debug opt [OPTIONS] {FILE}"),
        (["reduce", "{}/text.zip.mlir", "--check", "true"], "the command does not fail on it"),
        (["bisect", "tests.models:mlp", "--sizes", "2xa"], "'2xa' is no set of sizes such as 2x17"),
        (["bisect", "tests.models:nothing"], "has no function 'nothing'"),
    ],
)
def test_mistakes(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("text.zip", "text.zip.mlir"):
        (tmp_path / name).write_text("no zip")
    assert main(["debug", *(each.format(tmp_path) for each in arguments)]) == 1
    assert message in capsys.readouterr().err


FACTORY = """
import torch

class Steps(torch.nn.Module):
    def forward(self, x, scale):
        y = (x - x.mean(-1, keepdim=True)) * scale
        return torch.softmax(y @ y.T, -1)

def build():
    return Steps(), (torch.randn(3, 8), 2.0)
"""


@pytest.mark.parametrize("planted", [False, True])
def test_bisect_names_the_kernel_that_is_wrong(
    planted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bisected_factory.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISC_CACHE", "0")
    if planted:
        monkeypatch.setitem(elementwise.RULES, "stablehlo.subtract", elementwise.RULES["stablehlo.add"])
    assert main(["debug", "bisect", "bisected_factory:build", "--sizes", "5x7"]) == 0
    *kernels, verdict = capsys.readouterr().out.splitlines()
    assert len(kernels) >= 2 and all("[5, " in each for each in kernels)
    if planted:
        assert re.fullmatch(r"first wrong: \w+ result 0, of bisected_factory\.py:6.*; later ones .*", verdict) and kernels[0].endswith(
            "<<<<"
        )
    else:
        assert "<<<<" not in "".join(kernels) and verdict.startswith("no kernel computes other values")


def test_sizes_of_other_ranks_are_answered_with_those_of_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bisected_factory.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    assert main(["debug", "bisect", "bisected_factory:build", "--sizes", "2"]) == 1
    assert "of ranks 2, such as 3x8" in capsys.readouterr().err
