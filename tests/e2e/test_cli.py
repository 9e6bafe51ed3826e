"""Every command of the CLI, as people and as scripts use it."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import disc
from disc import errors
from disc.artifact import file as artifact
from disc.artifact.cache import open_kernels
from disc.cli import main as cli
from disc.cli.machine import EXTRAS
from disc.cli.main import main
from disc.config import Options, read_environment
from disc.speculation.inputs import find_limits
from disc.speculation.session import open_session
from disc.speculation.tree import read_tree
from tests.e2e.commands import output_json

FACTORY = """
import torch

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x, scale):
        return torch.softmax(self.linear(x) * scale, -1), x.sum(-1)

def build():
    torch.manual_seed(0)
    return Scaled().eval(), (torch.randn(2, 4), torch.randn(3))

def with_dims():
    return *build(), ({0: torch.export.Dim.AUTO}, {})

def wide():
    torch.manual_seed(0)
    return torch.nn.Linear(64, 32).eval(), (torch.randn(3, 64),)
"""

CHECKED = """
module attributes {disc.symbols = {s0 = {min = 0 : i64, divisor = 8 : i64}}} {
  func.func @main(%x: tensor<?xf32> {disc.name = "x", disc.dims = ["s0"]}) -> tensor<?xf32> {
    %y = stablehlo.add %x, %x : tensor<?xf32>
    return %y : tensor<?xf32>
  }
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a factory and its artifact."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "scaled_factory.py").write_text(FACTORY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["compile", "scaled_factory:with_dims", "-o", "scaled.disc"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def dims(record: dict) -> list[bool]:
    return [isinstance(dim, str) for dim in record["dims"]]


def test_compile_tells_of_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    first = output_json(capsys, "compile", "scaled_factory:with_dims", "-o", "again.disc", "--no-cache")
    second = output_json(capsys, "compile", "scaled_factory:with_dims", "-o", "again.disc")
    assert (first["cached"], second["cached"]) == (False, True)
    assert Path("again.disc").stat().st_size == second["bytes"]


def test_compile_dims(capsys: pytest.CaptureFixture[str]) -> None:
    every = output_json(capsys, "compile", "scaled_factory:build", "-o", "dims.disc")
    assert [dims(record) for record in every["inputs"]] == [[True, False], [True]] or [dims(record) for record in every["inputs"]] == [
        [True, False],
        [False],
    ]
    fixed = output_json(capsys, "compile", "scaled_factory:build", "-o", "dims.disc", "--static", "x=0", "--static", "scale")
    assert [dims(record) for record in fixed["inputs"]] == [[False, False], [False]]
    chosen = output_json(capsys, "compile", "scaled_factory:build", "-o", "dims.disc", "--dynamic", "x=0", "--static", "scale")
    assert [dims(record) for record in chosen["inputs"]] == [[True, False], [False]]


def test_compile_targets_and_dtype(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("compile", "scaled_factory:build", "-o", "f64.disc", "--target", "x86-64-v3", "--target", "x86-64-v4", "--dtype", "f64")
    result = output_json(capsys, *arguments)
    assert result["isas"] == ["x86-64-v3", "x86-64-v4"]
    assert {record["dtype"] for record in result["inputs"]} == {"f64"}


@pytest.mark.parametrize("amp", ["bf16", "f16", "int8"])
def test_compile_amp_is_the_option_dtype(amp: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = output_json(capsys, "compile", "scaled_factory:wide", "-o", "amp.disc", "--amp", amp)
    assert [record["dtype"] for record in (*result["inputs"], *result["outputs"])] == ["f32", "f32"]
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(64, 32).eval(), torch.randn(3, 64)
    exact, ours = layer(x), disc.load("amp.disc")(x)
    assert torch.equal(ours, disc.compile(layer, (x,), options=Options(dtype=amp))(x))
    assert not torch.allclose(ours, exact, rtol=1e-5, atol=1e-6), "computed in f32"
    torch.testing.assert_close(ours, exact, rtol=0.05, atol=0.05)


def test_compile_says_when_it_could_not_pack(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # the second time from the cache
        assert main(["compile", "scaled_factory:wide", "-o", "wide.disc", "--packed"]) == 0
        error = capsys.readouterr().err
        assert "not packed: " in error and error.count("packed") == 1, error


def test_compile_amp_of_a_file() -> None:
    """Operands of 1 + 2^-10 are 1 in bf16."""
    Path("square.mlir").write_text(
        "func.func @main(%x: tensor<?x64xf32>, %y: tensor<64x64xf32>) -> tensor<?x64xf32> {\n"
        "  %z = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : "
        "(tensor<?x64xf32>, tensor<64x64xf32>) -> tensor<?x64xf32>\n  return %z : tensor<?x64xf32>\n}\n"
    )
    assert main(["compile", "square.mlir", "--amp", "bf16"]) == 0
    near = [np.full((rows, 64), 1 + 2**-10, np.float32) for rows in (5, 64)]
    np.testing.assert_array_equal(disc.load("square.disc")(*near), np.full((5, 64), 64, np.float32))


def test_compile_stablehlo_to_the_default_name(capsys: pytest.CaptureFixture[str]) -> None:
    Path("double.mlir").write_text(
        "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {\n  %y = stablehlo.add %x, %x : tensor<?xf32>\n  return %y : tensor<?xf32>\n}\n"
    )
    assert main(["compile", "double.mlir"]) == 0
    assert "double.disc" in capsys.readouterr().out
    result = disc.load("double.disc")(np.ones(5, np.float32))
    assert isinstance(result, np.ndarray), "one result is no tuple"
    np.testing.assert_array_equal(result, np.full(5, 2, np.float32))


def test_embedded_stablehlo(capsys: pytest.CaptureFixture[str]) -> None:
    Path("checked.mlir").write_text(CHECKED)
    for options, says in (((), "embedded StableHLO: no"), (("--embed-stablehlo",), "embedded StableHLO: section stablehlo")):
        assert main(["compile", "checked.mlir", *options]) == 0
        assert main(["inspect", "checked.disc"]) == 0
        assert f"{says}\n" in capsys.readouterr().out
    Path("again.mlirbc").write_bytes(artifact.read_section("checked.disc", "stablehlo"))
    assert main(["compile", "again.mlirbc", "--embed-stablehlo"]) == 0
    assert artifact.read_section("again.disc", "stablehlo") == Path("again.mlirbc").read_bytes()
    again = disc.load("again.disc")
    assert again.manifest["inputs"] == disc.load("checked.disc").manifest["inputs"]
    np.testing.assert_array_equal(again(np.ones(8, np.float32)), np.full(8, 2, np.float32))


def test_compile_pt2_warns(capsys: pytest.CaptureFixture[str]) -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.randn(2, 3),))
    torch.export.save(program, "relu.pt2")
    assert main(["compile", "relu.pt2"]) == 0
    assert "may run code" in capsys.readouterr().err


def test_fixed_sizes_are_said_of_files_alone() -> None:
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.randn(2, 3),)), "fixed.pt2")
    with pytest.warns(errors.DiscWarning, match="every dim of this program is fixed"):
        assert main(["compile", "fixed.pt2"]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.DiscWarning)
        assert main(["compile", "scaled_factory:build", "-o", "chosen.disc", "--static", "x", "--static", "scale"]) == 0


def test_run_reads_and_writes_files(capsys: pytest.CaptureFixture[str]) -> None:
    x, scale = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32), np.ones(3, np.float32)
    np.save("x.npy", x)
    np.save("scale.npy", scale)
    assert (
        main(["run", "scaled.disc", "--input", "x.npy", "--input", "scale=scale.npy", "--output", "first.npy", "--output", "second.npy"])
        == 0
    )
    expected = disc.load("scaled.disc")(x, scale)
    np.testing.assert_array_equal(np.load("first.npy"), expected[0])
    np.testing.assert_array_equal(np.load("second.npy"), expected[1])
    assert "wrote first.npy, second.npy" in capsys.readouterr().out
    assert main(["run", "scaled.disc", "--input", "scale=scale.npy", "--input", "x=x.npy", "--output", "all.npz"]) == 0
    np.testing.assert_array_equal(np.load("all.npz")["output0"], expected[0])


def test_run_random(capsys: pytest.CaptureFixture[str]) -> None:
    result = output_json(capsys, "run", "scaled.disc", "--random", "x=7x4")
    assert [output["type"] for output in result["outputs"]] == ["f32[7, 3]", "f32[7]"]
    assert result["outputs"][0]["mean"] == pytest.approx(1 / 3)
    assert result["outputs"][0]["not_finite"] == 0


def test_run_random_input_by_input(capsys: pytest.CaptureFixture[str]) -> None:
    apart = output_json(capsys, "run", "scaled.disc", "--random", "x=7x4", "--random", "scale=3")
    assert apart["outputs"] == output_json(capsys, "run", "scaled.disc", "--random", "x=7x4,scale=3")["outputs"]


def test_run_prints_six_digits(capsys: pytest.CaptureFixture[str]) -> None:
    Path("third.mlir").write_text(
        "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {\n  %c = stablehlo.constant dense<3.0> : tensor<1xf32>\n"
        "  %y = chlo.broadcast_divide %x, %c : (tensor<?xf32>, tensor<1xf32>) -> tensor<?xf32>\n  return %y : tensor<?xf32>\n}\n"
    )
    np.save("one.npy", np.array([1, np.nan], np.float32))
    assert main(["compile", "third.mlir"]) == 0
    capsys.readouterr()
    assert main(["run", "third.disc", "--input", "one.npy"]) == 0
    header, row, time, *rest = capsys.readouterr().out.splitlines()
    assert header.split() == ["result", "type", "min", "mean", "max", "NaN/Inf"] and row.split()[2:] == ["0.333333"] * 3 + ["1"]
    assert time.startswith("first call: ") and not rest


def test_inspect_and_verify(capsys: pytest.CaptureFixture[str]) -> None:
    value = output_json(capsys, "inspect", "scaled.disc")
    assert [record["name"] for record in value["inputs"]] == ["x", "scale"]
    assert value["sections"][-1]["name"] == "weights"
    assert output_json(capsys, "verify", "scaled.disc")["ok"] is True
    assert main(["verify", "scaled.disc"]) == 0
    assert capsys.readouterr().out.endswith("all checksums match\n")
    assert main(["inspect", "scaled.disc"]) == 0
    text = capsys.readouterr().out
    assert "input  x: f32[S0, 4]" in text and "manifest" in text
    assert "options threads: default, isas: " in text and "{" not in text
    assert "symbol S0 = dim 0 of input 'x', 0 to any\n" in text and "a multiple of 1" not in text


def test_inspect_checks(capsys: pytest.CaptureFixture[str]) -> None:
    Path("checked.mlir").write_text(CHECKED)
    table = torch.nn.Embedding(10, 4)
    disc.compile(table, (torch.zeros(2, 3, dtype=torch.int64),)).save("table.disc")
    assert main(["compile", "checked.mlir"]) == 0
    assert main(["inspect", "checked.disc"]) == 0
    text = capsys.readouterr().out
    assert "check  dim 0 of input 'x' must be a multiple of 8\n" in text and "{" not in text.replace("options {", "")
    assert "index" not in text, "a check of indices where nothing is gathered"
    assert main(["inspect", "table.disc"]) == 0
    text = capsys.readouterr().out
    assert text.count("check  input 'input': every index must fit its dim at ") == 1 and "{actual}" not in text


def test_bench(capsys: pytest.CaptureFixture[str]) -> None:
    result = output_json(capsys, "bench", "scaled.disc", "--seconds", "0.02", "--shape", "x=1x4", "--shape", "x=64x4", "--threads", "1")
    assert [row["shape"] for row in result["shapes"]] == ["x=1x4", "x=64x4"]
    assert result["threads"] == 1
    assert all(row["p10"] <= row["median"] <= row["p90"] and row["calls"] >= 5 for row in result["shapes"])
    assert main(["bench", "scaled.disc", "--seconds", "0.02", "--shape", "x=1x4"]) == 0
    assert "median" in capsys.readouterr().out


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "scaled.disc"]) == 0
    assert "scaled_factory.py" in capsys.readouterr().out
    value = output_json(capsys, "explain", "scaled.disc", "--random", "x=6x4", "--html", "report.html")
    assert value["sizes"] == {"S0": 6}
    assert Path("report.html").read_text().startswith("<!DOCTYPE html>")


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    value = output_json(capsys, "doctor")
    assert {"ISA levels", "torch", "torch-mlir", "linker", "cache", "threads"} <= {finding["name"] for finding in value["findings"]}
    threads = next(finding["value"] for finding in value["findings"] if finding["name"] == "threads")
    assert f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs allowed" in threads and "CPU quota" in threads
    assert re.search(r"; [\d.]+ \w+ free on its disk$", next(each["value"] for each in value["findings"] if each["name"] == "cache"))
    there, _, others = next(each["value"] for each in value["findings"] if each["name"] == "extras").partition("; not installed: ")
    assert {*there.split(", "), *filter(None, others.split(", "))} - {"none"} == set(EXTRAS) and "serve" in there
    monkeypatch.setenv("PATH", "")
    assert main(["doctor"]) == 1
    assert "install binutils" in capsys.readouterr().out


def test_cache_commands(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISC_CACHE_DIR", str(tmp_path))
    assert main(["compile", "scaled_factory:build", "-o", "cached.disc"]) == 0
    (entry,) = output_json(capsys, "cache", "ls")["entries"]
    assert "x: f32" in entry["inputs"]
    assert output_json(capsys, "cache", "verify") == {"entries": 1, "damaged": {}}
    path = tmp_path / f"{entry['key']}.disc"
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["cache", "verify"]) == 1
    assert not path.exists()
    assert main(["compile", "scaled_factory:build", "-o", "cached.disc"]) == 0
    kernels = open_kernels(read_environment())
    kernels.store("0" * 64, lambda path: artifact.write_bytes(path, b"code for a GPU"))
    assert output_json(capsys, "cache", "clear")["removed"] == 2 and not kernels.entries()
    assert output_json(capsys, "cache", "ls")["entries"] == []


def test_key_is_the_same_in_another_process(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "disc.cli", "compile", "scaled_factory:with_dims", "-o", "other.disc", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["cached"] is True
    assert done.stderr == ""


def test_starts_fast_and_without_torch() -> None:
    code = "import sys, disc.cli.main; print('torch' in sys.modules, 'torch_mlir' in sys.modules)"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
    assert time.perf_counter() - start < 2


def test_the_help_is_in_groups_and_shells_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    places = [text.index(f" {heading} ") for heading in (cli.BUILD, cli.RUN, cli.LOOK, cli.SERVE, cli.MACHINE)]
    assert places == sorted(places) and text.count("Commands ") == 0
    asked = {**os.environ, "_DISC_COMPLETE": "complete_bash", "COMP_WORDS": "disc insp", "COMP_CWORD": "1"}
    found = subprocess.run([sys.executable, "-m", "disc.cli"], env=asked, capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == ["inspect"], found.stderr


def test_warnings_of_a_command_name_no_line_of_ours(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def warns() -> None:
        errors.warn("first\n  second \x1b[0m")
        warnings.warn("of others", UserWarning, stacklevel=1)

    monkeypatch.setattr(warnings, "showwarning", lambda *fields: print(warnings.formatwarning(*fields[:4]), end=""))
    before = warnings.formatwarning
    command = cli.app.registered_commands[0]
    monkeypatch.setattr(command, "callback", warns)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main([command.name or ""]) == 0
    text = capsys.readouterr().out
    assert text.startswith("disc: warning: first\n  second \\x1b[0m\n") and "UserWarning: of others" in text
    assert warnings.formatwarning is before


@pytest.mark.parametrize("command", ["compile", "run", "inspect", "verify", "bench", "explain", "doctor", "cache"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert "Usage: disc" in capsys.readouterr().out


def test_our_mistake_asks_for_a_report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr("disc.artifact.file.verify", broken)
    assert main(["verify", "scaled.disc"]) == cli.OURS
    message = capsys.readouterr().err
    assert "ZeroDivisionError: by design" in message and "disc doctor" in message and "Traceback" not in message
    assert main(["verify", "scaled.disc", "--debug"]) == cli.OURS
    assert "Traceback" in capsys.readouterr().err


def test_tune_measures_goes_on_and_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A small grid: stopped at once, then finished; the tree it writes decides for programs compiled afterwards."""
    from disc.speculation import input_bench, policy, sizes

    monkeypatch.setenv("DISC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(input_bench, "LIMITS", (4, 12))
    monkeypatch.setattr(input_bench, "SIZES", (2,))
    monkeypatch.setattr(input_bench, "PROGRAMS", [dataclasses.replace(each, count=6) for each in input_bench.PROGRAMS])
    monkeypatch.setattr(sizes, "LINEAR", ((64, 32),))
    monkeypatch.setattr(sizes, "TRANSPOSED", ())
    monkeypatch.setattr(sizes, "BATCHED", ())
    monkeypatch.setattr(sizes, "ROWS", tuple(range(1, 13)))
    monkeypatch.setattr(sizes, "COARSE_ROWS", (2, 40))
    monkeypatch.setattr(policy, "RULED", ((64, 1024),))
    monkeypatch.setattr(policy, "RULED_ROWS", (6, 16))
    monkeypatch.setattr(policy, "RULED_DEEP", ())
    monkeypatch.setattr(policy, "RULED_STRIDED", ())
    assert main(["tune", "--threads", "1", "--minutes", "0"]) == 1
    assert "it continues from here" in capsys.readouterr().err
    assert main(["tune", "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert "12 sizes" in printed and "rule split k: decides at 1 sizes\n  without  1 sizes" in printed
    assert "rule share tiles: cannot be judged, it decides at none of the measured sizes" in printed
    own = read_tree((tmp_path / "schedules.json").read_text())
    layer = torch.nn.Linear(32, 64).eval()
    compiled = disc.compile(layer, (torch.randn(3, 32),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    guards = {version.guard for version in compiled.explain().kernels[0].versions}
    # 64 columns are one block, so the kernel can also share its tiles among threads.
    assert guards == {schedule.describe() for schedule in (*own.prune({1: 64, 2: 32, 3: 1}).schedules, policy.SHARED)}
    torch.testing.assert_close(compiled(torch.ones(5, 32)), layer(torch.ones(5, 32)))
    assert "at most" in printed and str(tmp_path / "inputs.json") in printed
    limits = find_limits(tmp_path)
    assert limits is not None and open_session().targets[0].thresholds.device.fusion.most_inputs == limits
