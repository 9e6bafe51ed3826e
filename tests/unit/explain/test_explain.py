"""`Executable.explain`: what it counts, its text, JSON and HTML."""

import dataclasses
import html
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import disc
from disc.cli.main import main
from disc.errors import InputRankError
from disc.explain.machine import MachineLimits, machine_limits
from disc.explain.report import check_text
from disc.explain.text import counted_names, limit_text, module_text, short_line
from disc.explain.timeline import timeline
from disc.ir.graph import location_module


class Weighted(nn.Module):
    """A product, and a softmax along a dynamic dim, which has a version for whole vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.relu(self.linear(x)).sum(-1), -1)


@pytest.fixture(scope="module")
def executable() -> disc.Executable:
    return disc.compile(Weighted().eval(), (torch.randn(2, 3, 8),))


def test_without_inputs_nothing_runs(executable: disc.Executable) -> None:
    calls = executable.stats()["calls"]
    report = executable.explain()
    assert executable.stats()["calls"] == calls
    assert report.seconds is None and report.limits is None
    assert all(kernel.measured is None for kernel in report.kernels)
    assert "of limit" not in str(report), "a table of dashes"


def test_with_inputs(executable: disc.Executable) -> None:
    report = executable.explain(torch.randn(4, 16, 8))
    assert report.sizes == {"S0": 4, "S1": 16}
    assert report.seconds is not None and report.limits is not None
    assert sum(kernel.measured.share for kernel in report.kernels if kernel.measured) == pytest.approx(1)
    for kernel in report.kernels:
        assert kernel.runs == len(kernel.launches) == sum(version.runs for version in kernel.versions)
    matmul = next(kernel for kernel in report.kernels if kernel.kind == "compute")
    assert matmul.measured is not None and matmul.measured.flops == 2 * 4 * 16 * 8 * 24
    assert any("test_explain.py" in line for line in matmul.lines)


def test_the_version_that_ran(executable: disc.Executable) -> None:
    kernels = executable.explain(torch.randn(1, 16, 8)).kernels
    guarded = next(kernel for kernel in kernels if any("divides" in version.guard for version in kernel.versions))
    small = ["divides" in version.guard and "beyond_cache" not in version.guard for version in guarded.versions]
    assert [version.runs > 0 for version in guarded.versions] == small and sum(small) == 1
    again = next(kernel for kernel in executable.explain(torch.randn(1, 17, 8)).kernels if kernel.name == guarded.name)
    assert [version.runs > 0 for version in again.versions] == [not version.guard for version in again.versions]


def test_operands_name_their_producers(executable: disc.Executable) -> None:
    launches = sorted((each for kernel in executable.explain().kernels for each in kernel.launches), key=lambda each: each.number)
    assert launches[0].operands == ("arg0", "linear.weight")
    assert any(operand.startswith("kernel") for launch in launches[1:] for operand in launch.operands)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_launches_name_their_modules(tmp_path: Path) -> None:
    """Equal blocks share a kernel, and each launch has a module of its own; files keep it."""
    disc.compile(Nested().eval(), (torch.randn(2, 3, 8),)).save(tmp_path / "nested.disc")
    report = disc.load(tmp_path / "nested.disc").explain()
    modules = {module for kernel in report.kernels for launch in kernel.launches for module in launch.modules}
    assert {"blocks.0.0", "blocks.0.1", "blocks.1.0", "blocks.1.1"} <= modules
    assert any(len({launch.modules for launch in kernel.launches}) == 2 for kernel in report.kernels)
    page = report.to_html()
    assert re.search(r">\d+ blocks\.1\.\d: ", page) and re.search(r"  module   blocks\.0", str(report))
    assert {kernel.kind for kernel in report.kernels} == set(re.findall(r'<span class="(\w+)"><i></i>', page)), "the legend has every kind"


class Scaled(nn.Module):
    """Equal numbers of several layers are one constant, and what all of them make of a mask is computed once."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * 0.5 * mask.to(x.dtype).unsqueeze(-1)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Scaled() for _ in range(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x


def test_each_launch_is_of_its_own_layer() -> None:
    report = disc.compile(Layers().eval(), (torch.randn(2, 3, 8), torch.ones(2, 3, dtype=torch.int64))).explain()
    compute = [launch for kernel in report.kernels if kernel.kind == "compute" for launch in kernel.launches]
    assert [module_text(launch.modules) for launch in sorted(compute, key=lambda launch: launch.number)] == [
        f"layers.{number}" for number in range(3)
    ]


def test_the_module_of_several() -> None:
    assert module_text(["a.b.c", "a.b.d", "a.b"]) == "a.b"
    assert module_text(["a.0", "a.1.b", "a.1"]) == "a.1" and module_text(["a.0", "a.0.b", "a.1.b", "a.1"]) == "a"
    assert module_text(["a.b"]) == "a.b" and module_text([]) == "" and module_text(["a", "b"]) == "" and module_text(["ab.c", "a.c"]) == ""


def test_the_module_of_a_location() -> None:
    assert location_module('loc("encoder.layer.3"("model.py":12:0))') == "encoder.layer.3"
    assert location_module('loc(fused["a.b"("x.py":1:2), "c"("x.py":3:4)])') == "a.b"
    assert location_module('loc("model.py":12:0)') == "" == location_module("loc(unknown)")


def test_a_kind_of_a_hostile_file_is_no_style(executable: disc.Executable) -> None:
    report = executable.explain()
    hostile = dataclasses.replace(report, kernels=(dataclasses.replace(report.kernels[0], kind="x} body{display:none"),))
    assert "x} body" not in hostile.to_html().partition("<body>")[0]


def test_wrong_inputs(executable: disc.Executable) -> None:
    with pytest.raises(InputRankError, match="unknown 'y'"):
        executable.explain(y=torch.randn(1, 2, 8))


class Wide(nn.Module):
    """Enough work for several threads, then a library function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sort(torch.tanh(x).exp().sin()).values


def test_timeline() -> None:
    """Every task of every launch is in it once, and what one thread does is one after the other."""
    executable = disc.compile(Wide(), (torch.randn(4, 8),), options=disc.Options(threads=2))
    x = torch.randn(512, 4096)
    expected: Any = executable(x)
    events = executable.trace(x)
    again: Any = executable(x)
    assert torch.equal(again, expected) and executable.context.take_trace() == [], "a call behind it is not traced"
    launches: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        launches.setdefault(event.kernel, []).append((event.first, event.end))
        assert event.start_ns <= event.end_ns
    for parts in launches.values():
        ordered = sorted(parts)
        assert ordered == [(-1, -1)] or (ordered[0][0] == 0 and all(one[1] == other[0] for one, other in pairwise(ordered)))
    for thread in {event.thread for event in events}:
        own = sorted((event.start_ns, event.end_ns) for event in events if event.thread == thread)
        assert all(one[1] <= other[0] for one, other in pairwise(own))
    rows = json.loads(timeline(events, executable.manifest))["traceEvents"]
    drawn = [row for row in rows if row["ph"] == "X"]
    assert len(drawn) == len(events) + len(launches) and min(row["ts"] for row in drawn) == 0
    assert {row["args"]["name"] for row in rows if row["ph"] == "M"} == {"launches", *(f"thread {event.thread}" for event in events)}


def test_a_timeline_without_a_call_is_refused(executable: disc.Executable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    executable.save(tmp_path / "model.disc")
    command = ["explain", str(tmp_path / "model.disc"), "--trace", str(tmp_path / "trace.json")]
    assert main(command) == 1 and "--trace is of one call" in capsys.readouterr().err
    assert main([*command, "--random", "x=4x3x8"]) == 0 and "trace.json" in capsys.readouterr().out
    assert {row["ph"] for row in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]} == {"M", "X"}


def test_text(executable: disc.Executable) -> None:
    text = str(executable.explain(torch.randn(4, 16, 8)))
    assert "symbol S1 = dim 1 of input 'x', 0 to any (here 16)" in text
    assert "of limit" in text and "GFLOP/s" in text
    assert "version  divides(16, S1): ran 1 times" in text


def test_json(executable: disc.Executable) -> None:
    value = json.loads(executable.explain(torch.randn(4, 16, 8)).to_json())
    assert value["sizes"] == {"S0": 4, "S1": 16}
    assert {"name", "kind", "ops", "lines", "versions", "launches", "measured", "notes", "plan", "scratch"} <= value["kernels"][0].keys()
    assert any(kernel["plan"].startswith("rows{regions = [") for kernel in value["kernels"])


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "golden" / "0.1.0").glob("*.disc")), ids=lambda path: path.stem)
def test_artifacts_of_compilers_that_said_no_plan(path: Path) -> None:
    assert {kernel.plan for kernel in disc.load(path).explain().kernels} == {""}


def test_page_is_whole_and_loads_nothing(executable: disc.Executable) -> None:
    report = executable.explain(torch.randn(4, 16, 8))
    page = report.to_html()
    assert "<!--GRAPH-->" not in page and "/*DATA*/" not in page
    assert not re.search(r"""(src|href)=|url\(|@import""", page)
    assert page.count('class="box ') == sum(len(kernel.launches) for kernel in report.kernels)
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)
    assert data is not None and json.loads(data.group(1)) == json.loads(report.to_json())
    assert html.escape(report.kernels[0].inputs[0]) in page


def test_loaded_artifact_explains_itself(executable: disc.Executable, tmp_path) -> None:
    executable.save(tmp_path / "model.disc")
    assert disc.load(tmp_path / "model.disc").explain().kernels[0].ops == executable.explain().kernels[0].ops


def test_small_parts() -> None:
    assert counted_names(["stablehlo.add", "stablehlo.constant", "disc.slice", "stablehlo.add"]) == "add x2, slice"
    assert short_line("/a/b/c/d.py:3") == "b/c/d.py:3"
    assert short_line("d.py:3") == "d.py:3"
    assert [limit_text(share, "memory") for share in (0.714, 1.0, 3.2)] == ["71% memory", "100% memory", "in cache"]
    assert check_text("dim 1 of input 'x' must be a multiple of 8: got {actual}") == "dim 1 of input 'x' must be a multiple of 8"
    assert check_text("dim 1 of input 'x' must equal 2") == "dim 1 of input 'x' must equal 2"
    assert MachineLimits(gflops=100, gbytes=10, source="").least_seconds(1000, 1000) == pytest.approx(1e-7)


def test_machine_limits() -> None:
    limits = machine_limits(1)
    assert limits is machine_limits(1)
    assert 1 < limits.gflops < 10_000 and 0.1 < limits.gbytes < 10_000
    assert "on 1 thread" in limits.source
