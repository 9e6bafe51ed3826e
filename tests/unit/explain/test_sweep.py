"""The time of a call over the sizes of a symbol: what is measured, what is refused, the text, the picture, the command."""

import json
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn

import disc
from disc.cli.inputs import swept
from disc.cli.main import main
from disc.errors import InputTypeError, ShapeConstraintError
from disc.explain.chart import chart, sweep_html
from disc.explain.export import model_explorer_json
from disc.explain.sources import source_texts
from disc.explain.sweep import Sweep, SweepPoint, letters, time_text
from disc.explain.symbols import inputs_at


class Scored(nn.Module):
    """A softmax along a dynamic dim, which has a version for whole vectors, and a table of positions that ends."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 24)
        self.positions = nn.Embedding(64, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.positions(torch.arange(x.shape[1]))
        return torch.softmax(self.linear(x).sum(-1) * mask, -1)


@pytest.fixture(scope="module")
def executable() -> disc.Executable:
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=64)
    shapes = {"x": {0: batch, 1: length}, "mask": {0: batch, 1: length}}
    return disc.compile(Scored().eval(), inputs(), dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def path(executable: disc.Executable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("sweep") / "scored.disc"
    executable.save(found)
    return found


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 16, 8), torch.ones(4, 16)


def test_each_size_is_measured_with_its_versions(executable: disc.Executable) -> None:
    calls = executable.stats()["calls"]
    found = executable.sweep("S1", [17, 16, 32, 16], *inputs())
    assert [point.size for point in found.points] == [16, 17, 32] and found.others == {"S0": 4} and found.refused == ()
    assert all(0 < point.low <= point.seconds <= point.high for point in found.points)
    assert executable.stats()["calls"] - calls == sum(point.calls + 1 for point in found.points)  # type: ignore[operator]
    softmax = next(kernel for kernel, guards in found.versions[0].items() if "divides(16, S1)" in guards)
    assert [found.versions[point.versions][softmax] for point in found.points] == [
        ("divides(16, S1)",),
        ("any shape",),
        ("divides(16, S1)",),
    ]
    assert found.changes(0) == [] and f"{softmax}: any shape" in found.changes(1)


def test_a_dim_of_an_input_names_its_symbol(executable: disc.Executable) -> None:
    assert executable.sweep("mask.1", [3], *inputs()).symbol == "S1"


def test_several_symbols_of_one_size() -> None:
    """Without equal names, each input has a batch of its own, and one alone cannot change."""
    added = disc.compile(lambda a, b: a + b.flip(0)[: a.shape[0]], (torch.randn(3, 4), torch.randn(5, 4)))
    first, second = (record["name"] for record in added.manifest["symbols"] if record.get("source", "").endswith(".0"))
    found = added.sweep(f"{first},{second}", [1, 2], torch.randn(3, 4), torch.randn(5, 4))
    assert found.symbol == f"{first}, {second}" and len(found.points) == 2 and not {first, second} & found.others.keys()


def test_refused_sizes_are_named(executable: disc.Executable) -> None:
    found = executable.sweep("S1", [16, 65], *inputs())
    assert [point.size for point in found.points] == [16]
    ((size, reason),) = found.refused
    assert size == 65 and "at most 64" in reason and "got 65" in reason
    assert f"refused S1 = 65: {reason}" in str(found) and "S1 = 65 is refused: " in sweep_html(found)
    with pytest.raises(ShapeConstraintError, match=r"every size of S1 is refused: at 65: .*at most 64"):
        executable.sweep("S1", [65, 66], *inputs())


@pytest.mark.parametrize(
    ("symbol", "message"),
    [
        ("S11", r"there is no symbol 'S11' \(did you mean S1\?\); those of this model are: .*dim 1 of input 'x', 0 to 64"),
        ("x.2", "dim 2 of input 'x' is fixed to 8"),
        ("x.3", "input 'x' has 3 dims, counted from 0: there is no x.3"),
        ("y.1", "there is no symbol 'y.1'"),
    ],
)
def test_symbols_that_are_not_there(executable: disc.Executable, symbol: str, message: str) -> None:
    with pytest.raises(ShapeConstraintError, match=message):
        executable.sweep(symbol, [1], *inputs())


def test_sizes_that_are_none(executable: disc.Executable) -> None:
    for sizes in ([], [-1, 3]):
        with pytest.raises(ShapeConstraintError, match="sizes of S1 are numbers from 0 on"):
            executable.sweep("S1", sizes, *inputs())


class Shaped:
    """Neither an array nor a tensor."""

    shape = (2, 3, 8)


def test_inputs_are_repeated_and_cut(executable: disc.Executable) -> None:
    """Values stay within their range, of NumPy's arrays and of tensors."""
    x, mask = torch.arange(2 * 3 * 8.0).reshape(2, 3, 8), torch.ones(2, 3)
    for given in ((x, mask), (x.numpy(), mask.numpy())):
        for size in (2, 3, 7):
            longer, other = inputs_at(executable.manifest, given, ["S1"], size)
            assert np.array_equal(np.asarray(longer), np.asarray(given[0])[:, [place % 3 for place in range(size)]])
            assert np.asarray(longer).flags.c_contiguous and tuple(other.shape) == (2, size)  # type: ignore[attr-defined]
            assert type(longer) is type(given[0])
        empty = [each[:, :0] for each in given]
        assert not np.asarray(inputs_at(executable.manifest, empty, ["S1"], 3)[0]).any()
    with pytest.raises(InputTypeError, match="input 'x' is a Shaped"):
        inputs_at(executable.manifest, [Shaped(), mask.numpy()], ["S1"], 5)


def made(sizes: list[int], versions: list[int]) -> Sweep:
    points = [SweepPoint(size, 1e-6 * size, 0.9e-6 * size, 1.2e-6 * size, 9, number) for size, number in zip(sizes, versions, strict=True)]
    choices = ({"k<1>": ("at_least(8, S0)",), "same": ("x",)}, {"k<1>": ("any shape",), "same": ("x",)})
    return Sweep("S<0>", {"S1": 3}, tuple(points), (), choices)


def test_the_picture_marks_where_versions_change() -> None:
    """A line with its reason at the first size of each, points in rising order of both, names as text; well-formed XML."""
    svg = ElementTree.fromstring(chart(made([1, 2, 64, 512], [1, 1, 0, 0])))
    titles = ["".join(each.itertext()) for each in svg.findall(".//g[@class='change']/title")]
    assert titles == ["from S<0> = 1 on: versions B", "from S<0> = 64 on: versions A\nk<1>: at_least(8, S0)"]
    places = [(float(each.get("cx", "")), float(each.get("cy", ""))) for each in svg.findall("circle")]
    assert places == sorted(places) and [y for _, y in places] == sorted((y for _, y in places), reverse=True)
    marks = [float(each.get("x1", "")) for each in svg.findall(".//g[@class='change']/line")]
    assert marks == [places[0][0], places[2][0]]
    assert {"1", "512", "1 µs", "500 µs"} <= {"".join(each.itertext()) for each in svg.findall("text")}
    steps = [right - left for (left, _), (right, _) in pairwise(places)]
    assert steps[1] == pytest.approx(5 * steps[0], rel=0.01) and steps[2] == pytest.approx(3 * steps[0], rel=0.01), "by ratio"


@pytest.mark.parametrize("sizes", [[0], [5], [0, 1], [7, 8, 9], [0, 4096]])
def test_pictures_of_few_sizes(sizes: list[int]) -> None:
    svg = ElementTree.fromstring(chart(made(sizes, [0] * len(sizes))))
    assert len(svg.findall("circle")) == len(sizes) and "nan" not in chart(made(sizes, [0] * len(sizes)))


def test_small_parts() -> None:
    assert [letters(place) for place in (0, 25, 26, 52)] == ["A", "Z", "AA", "BA"]
    assert [time_text(seconds) for seconds in (1.234e-6, 0.01, 2.0)] == ["1.23 µs", "10 ms", "2 s"]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("S1=1:16", [1, 2, 3, 4, 5, 6, 8, 9, 12, 16]),
        ("S1=7,5", [7, 5]),
        ("x.1=10:31:10", [10, 20, 30]),
        ("S1=11:11", [11]),
    ],
)
def test_sizes_of_the_option(executable: disc.Executable, text: str, sizes: list[int]) -> None:
    assert swept(executable.manifest, text) == (text.partition("=")[0], sizes)


@pytest.mark.parametrize("text", ["S1", "S1=", "S1=a", "S1=4:2", "S1=1:9:0", "S1=0:100000:1", "=3", "other=3"])
def test_options_that_say_nothing(executable: disc.Executable, text: str) -> None:
    with pytest.raises(ShapeConstraintError):
        swept(executable.manifest, text)


def test_sizes_of_a_range_keep_to_the_divisor(executable: disc.Executable) -> None:
    manifest = json.loads(json.dumps(executable.manifest))
    next(record for record in manifest["symbols"] if record["name"] == "S1")["divisor"] = 8
    assert swept(manifest, "S1=1:70")[1] == [8, 16, 24, 32, 40, 48, 64]


def test_the_command(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", str(path), "--random", "x=2x16x8,mask=2x16", "--sweep", "S1=15:17"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "time over S1 at S0 = 2" in text
    marked = dict(re.findall(r"^ *(1[567]) +.* to .* ([A-Z])$", text, re.MULTILINE))
    assert marked.keys() == {"15", "16", "17"} and marked["15"] == "A" != marked["16"] != marked["17"]
    (about,) = re.findall(rf"^versions {marked['16']}\n((?:  .*\n)+)", text, re.MULTILINE)
    assert "divides(16, S1)" in about
    assert main([*command, "--json"]) == 0
    assert [point["size"] for point in json.loads(capsys.readouterr().out)["sweep"]["points"]] == [15, 16, 17]
    page = tmp_path / "page.html"
    assert main([*command, "--html", str(page)]) == 0
    assert 'class="chart"' in page.read_text() and 'name="viewport"' in page.read_text()
    capsys.readouterr()
    assert main(["explain", str(path), "--sweep", "S1=1:4"]) == 1 and "--sweep measures calls" in capsys.readouterr().err


def test_explain_measures_several_calls(executable: disc.Executable) -> None:
    report = executable.explain(*inputs())
    assert report.calls > 1 and f"the median of {report.calls} calls" in str(report)
    assert all(launch.runs == 1 for kernel in report.kernels for launch in kernel.launches), "counts are those of one call"


def test_a_model_that_calls_change_is_measured_once() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total.add_(x)  # type: ignore[operator]
            return self.total * 2  # type: ignore[operator]

    assert disc.compile(Sum().eval(), (torch.ones(4),)).explain(torch.ones(4)).calls == 1


def test_source_text_stands_beside_the_line(executable: disc.Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = executable.explain()
    text = "return torch.softmax(self.linear(x).sum(-1) * mask, -1)"
    assert text in report.sources.values() and text in str(report) and text in report.to_html()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("one\n  two\n")
    (tmp_path / "secret.txt").write_text("three\n")
    assert source_texts(
        ["model.py:2", "model.py:9", "secret.txt:1", "../model.py:1", f"{tmp_path}/model.py:1", "<stdin>:1", "model.py"]
    ) == {"model.py:2": "two"}


def test_the_graph_for_model_explorer(executable: disc.Executable, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(path), "--export", str(tmp_path / "graph.json")]) == 0 and "graph.json" in capsys.readouterr().out
    text = (tmp_path / "graph.json").read_text()
    assert text == model_explorer_json(executable.manifest, "scored.disc")
    collection = json.loads(text)
    (graph,) = collection["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert collection["label"] == "scored.disc" and len(nodes) == 2 + len(executable.manifest["kernels"])
    assert all(edge["sourceNodeId"] in nodes for node in nodes.values() for edge in node["incomingEdges"])
    assert any(edge["sourceNodeId"].startswith("kernel") for node in nodes.values() for edge in node["incomingEdges"])
    assert "linear" in {node["namespace"] for node in nodes.values()} and nodes["arg1"]["label"] == "mask"
