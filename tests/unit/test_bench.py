"""The benchmark's own arithmetic and reports; nothing is timed here but calls that do nothing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from bench import peers, report, run
from bench.cases import CASES, MEASURED, Case, parse_shapes
from bench.compare import comparison, figures
from bench.suites.models import matrix_flops, max_error
from bench.suites.stream import stream_shapes
from bench.timing import interleave, summarize


def timing(median: float) -> dict[str, float]:
    return {"median": median, "low": median, "high": median, "spread": 0.01, "turns": 3}


def record(disc_ms: float, peer_ms: float, *, wrong: tuple[str, ...] = ()) -> dict[str, object]:
    row = {
        "shape": "1x16", "flops": 2_000_000, "ms": {"disc": timing(disc_ms), "eager": timing(peer_ms)},
        "first_s": {"disc": 0.1, "eager": 2.0}, "error": {"disc": 1e-6, "eager": 0.0}, "wrong": list(wrong),
    }  # fmt: skip
    result = {
        "model": "bert", "title": "BERT-base", "threads": 1, "fma_flops": 1e9, "copy_bytes": 1e10, "limits": "how",
        "setup_s": {"disc": 3.0, "eager": 0.0}, "skipped": {"ort": "not installed"}, "rows": [row],
    }  # fmt: skip
    machine = {
        "cpu": "CPU", "family": "1", "model": "2", "cores": 2, "memory_gib": 4.0, "flags": ["avx2"], "kernel": "6", "python": "3.11",
        "versions": {"torch": "2"}, "commit": "abc", "load": 0.0,
    }  # fmt: skip
    return {"suite": "models", "date": "today", "machine": machine, "results": [result], "failed": []}


def test_summary_of_turns() -> None:
    found = summarize([4.0, 1.0, 2.0, 3.0, 5.0])
    assert (found.median, found.low, found.high, found.turns) == (3.0, 1.0, 5.0, 5)
    assert found.spread == pytest.approx(2 / 3)
    assert summarize([2.0]).spread == 0.0


def test_everybody_has_as_many_turns() -> None:
    order: list[str] = []
    found = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert {name: result.turns for name, result in found.items()} == {"a": 3, "b": 3}
    firsts = [name for number, name in enumerate(order) if number == 0 or order[number - 1] != name]
    assert firsts == ["a", "b", "a", "b", "a", "b"][: len(firsts)]


def test_error_of_results() -> None:
    one = torch.tensor([1.0, float("nan"), float("inf")])
    assert max_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])) == 0.5
    assert max_error(torch.ones(2), torch.ones(3)) == math.inf
    assert max_error(torch.tensor([1.0, 2.0, 3.0]), one) == math.inf
    assert max_error(one, one) == 0.0
    assert max_error(torch.ones(0), torch.ones(0)) == 0.0


def test_flops_of_a_linear_layer() -> None:
    with torch.no_grad():
        assert matrix_flops(nn.Linear(8, 4), (torch.ones(3, 8),)) == 2 * 3 * 8 * 4


def test_shapes_on_the_command_line() -> None:
    case = CASES["bert"]
    assert parse_shapes("1x16,4x50", case) == ((1, 16), (4, 50))
    assert parse_shapes(None, case) == case.shapes
    for wrong in ("1x2x3", "0x4", "x", "7"):
        with pytest.raises(ValueError):
            parse_shapes(wrong, case)


def test_examples_are_not_among_the_measured_shapes() -> None:
    assert set(MEASURED) <= set(CASES)
    assert all(case.example not in case.shapes for case in CASES.values())


def test_stream_shapes_differ_and_repeat() -> None:
    shapes = stream_shapes(1000)
    assert len(set(shapes)) == 1000
    assert shapes == stream_shapes(1000)


def test_report_has_ratios_and_the_share_of_the_limit() -> None:
    text = report.markdown(record(4.0, 10.0))
    assert "2.50" in text
    assert "50%" in text  # 2 Mflop at 1 GF/s are 2 ms
    assert "ort was skipped: not installed" in text
    assert "First calls of all shapes together, recompiles included: eager 2.0 s" in text
    assert "smoke test" not in text


def test_wrong_results_have_no_ratio() -> None:
    wrong = record(4.0, 10.0, wrong=("disc",))
    assert "WRONG: disc" in report.markdown(wrong)
    results = wrong["results"]
    assert isinstance(results, list)
    assert report.ratios(results[0], "eager") == []


def test_comparison_marks_ratios_only() -> None:
    text = comparison(record(4.0, 10.0), record(5.0, 10.0))
    marked = [line for line in text.splitlines() if "WORSE" in line]
    assert len(marked) == 1 and "eager ÷ disc" in marked[0]
    assert figures(record(4.0, 10.0))["bert t1 1x16 disc ms"] == 4.0


def test_missing_and_failing_peers_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(bench: peers.Workbench) -> peers.Peer:
        raise RuntimeError("no")

    monkeypatch.setattr(peers, "BUILDERS", {**peers.BUILDERS, "disc": fail, "ort": fail})
    monkeypatch.setattr(peers, "NEEDS", {"ort": ("no_such_package",)})
    case = Case("tiny", "tiny", nn.Identity, lambda shape: (torch.ones(shape),), ((2,),), (0,), (3,))
    built, skipped = peers.build_peers(case, nn.Identity(), ["eager", "ort"], 1)
    assert [peer.name for peer in built] == ["eager"]
    assert {peer.name: peer.reason.split(":")[0] for peer in skipped} == {"disc": "RuntimeError", "ort": "not installed"}


def test_results_never_overwrite_each_other(tmp_path: Path) -> None:
    first = run.free_path(tmp_path, "day-models")
    first.touch()
    assert (first.name, run.free_path(tmp_path, "day-models").name) == ("day-models.json", "day-models-2.json")


def test_command_line_refuses_unknown_peers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["--peers", "nobody"])
    assert "unknown peers: nobody" in capsys.readouterr().err
