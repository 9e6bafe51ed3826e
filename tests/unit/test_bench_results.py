"""What the benchmark's results say of peers and sizes, where they are kept, and what is made of them."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from bench import figures, freezer, goals, machine, report, run, store, summary
from bench.cases import CASES, SUITE_CASES
from bench.cases.gemm import ROWS
from tests.unit.bench_records import record, row, timing

# --- variants, and sizes that nothing was tuned for -----------------------------------------------------------------------------


def test_the_fastest_variant_that_is_right_is_the_peer() -> None:
    (result,) = cast("list[dict[str, Any]]", record(4.0, 10.0)["results"])
    (each,) = result["rows"]
    each["ms"] |= {"openvino/pytorch": timing(6.0), "openvino/onnx": timing(5.0)}
    assert figures.variant_names(result) == ["eager", "openvino/pytorch", "openvino/onnx"]
    assert figures.peer_names(result) == ["eager", "openvino"]
    assert (figures.best(each, "openvino"), figures.ratio(each, "openvino")) == ("openvino/onnx", 1.25)
    text = report.markdown({**record(4.0, 10.0), "results": [result]})
    assert "| openvino/pytorch |   6.00 |" in text and "| openvino/onnx    | 5.00 * |" in text
    each["wrong"] = ["openvino/onnx"]
    assert (figures.best(each, "openvino"), figures.ratio(each, "openvino")) == ("openvino/pytorch", 1.5)
    each["wrong"].append("openvino/pytorch")
    assert figures.best(each, "openvino") is None and math.isnan(figures.ratio(each, "openvino"))


def test_sizes_in_no_tuning_table_are_reported_apart() -> None:
    (result,) = cast("list[dict[str, Any]]", record(4.0, 12.0)["results"])
    result["rows"] = [row(4.0, 12.0, held_out=False), row(4.0, 8.0, held_out=True), row(4.0, 8.0, held_out=True)]
    peers_of, rows = report.mean_rows([result])
    assert peers_of == ["eager"]
    assert [(name, ratios) for name, ratios, _ in rows] == [("tuned", ["3.00"]), ("held out", ["2.00"]), ("", ["2.29"])]
    result["rows"] = result["rows"][1:]
    assert [name for name, _, _ in report.mean_rows([result])[1]] == ["held out"]
    assert "| 1x16 † |" in report.markdown({**record(4.0, 12.0), "results": [result]})


def test_which_sizes_are_tuned() -> None:
    def tuned(name: str) -> set[tuple[int, ...]]:
        case = CASES[name]
        assert case.tuned is not None
        return {shape for shape in case.shapes if case.tuned(shape)}

    assert tuned("linear-768x768") == {(rows,) for rows in ROWS if rows not in (33, 4096)}
    assert not tuned("linear-2304x768")
    assert {math.prod(shape) for shape in set(CASES["bert"].shapes) - tuned("bert")} == {368, 45, 142}
    assert tuned("resnet") == {(1, 224, 224), (4, 224, 224)}
    families = [case.name for case in SUITE_CASES["families"]]
    assert len(families) >= 7 and not any(map(tuned, families))
    assert CASES["layer-norm"].tuned is None


# --- where results are kept -----------------------------------------------------------------------------------------------------


def test_a_result_replaces_the_one_before_and_smoke_is_never_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(store, "SMOKE", tmp_path / "smoke")
    fine: dict[str, Any] = record(4.0, 10.0)
    for text in ("first", "second"):
        path = store.keep(fine, text, store.stem_of("models", "fp32", 2), store.RESULTS)
    assert path == tmp_path / "results" / "cpu-family-1-model-2-2-cores" / "models-fp32-t2.json"
    assert path.with_suffix(".md").read_text() == "second" and len(list(path.parent.iterdir())) == 2
    smoke = store.keep({**fine, "smoke": store.busy(0.31)}, "third", "models-fp32-t2", store.RESULTS)
    assert smoke.is_relative_to(tmp_path / "smoke") and path.with_suffix(".md").read_text() == "second"
    assert "is not kept in bench/results: the machine was not idle (load 0.31)" in capsys.readouterr().err
    assert store.keep({**fine, "smoke": ["--cases"]}, "", "other", tmp_path / "mine").is_relative_to(tmp_path / "mine")
    assert store.busy(0.3) == []


@pytest.mark.parametrize(
    ("others", "options", "reasons"),
    [
        (0.0, [], []),
        (1.5, [], ["the machine was not idle (load 1.50)"]),
        (0.0, ["--cases", "softmax"], ["--cases leaves it incomplete"]),
        (0.0, ["--peers", "eager", "--shapes", "8x1024"], ["--shapes leaves it incomplete", "--peers leaves it incomplete"]),
    ],
)
def test_a_busy_machine_and_half_a_suite_are_smoke(
    others: float, options: list[str], reasons: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "run_job", lambda job: record(4.0, 10.0)["results"])
    monkeypatch.setattr(run, "wait_until_idle", lambda: None)
    monkeypatch.setattr(run, "others_running", lambda: others)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert run.main(["--suite", "memory", *options, "--output", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*/memory-fp32-t1.json")
    kept = json.loads(path.read_text())
    assert kept["smoke"] == reasons and kept["machine"]["load"] == others
    assert kept["command"] == " ".join(["python -m bench.run --suite memory", *options])
    assert set(kept["peers"]) == ({"disc", "eager"} if "--peers" in options else {"disc", "eager", "inductor/plain", "inductor/frozen"})


def test_a_row_that_others_ran_beside_makes_smoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(job: object) -> Any:
        results = cast("Any", record(4.0, 10.0)["results"])
        results[0]["rows"][0]["load"] = 0.5
        return results

    monkeypatch.setattr(run, "run_job", loaded)
    monkeypatch.setattr(run, "wait_until_idle", lambda: None)
    monkeypatch.setattr(run, "others_running", lambda: 0.0)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert run.main(["--suite", "memory", "--output", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*/memory-fp32-t1.json")
    assert json.loads(path.read_text())["smoke"] == ["the machine was not idle (load 0.50)"]


@pytest.fixture(params=["freezer.state", "cgroup.freeze"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the files of a control group of version 1 or 2; it stands still at once."""
    tmp_path.joinpath(request.param).write_text("")
    tmp_path.joinpath("cgroup.events").write_text("populated 1\nfrozen 1\n")
    return tmp_path / request.param


def test_other_work_is_frozen_while_something_is_timed(group: Path) -> None:
    with pytest.raises(KeyError), freezer.frozen(str(group.parent)):
        assert group.read_text() in ("FROZEN", "1")
        raise KeyError
    assert group.read_text() in ("THAWED", "0")
    with freezer.frozen(None):
        assert group.read_text() in ("THAWED", "0")


def test_a_group_that_cannot_be_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(freezer.CannotFreeze, match=r"neither freezer\.state nor cgroup\.freeze"), freezer.frozen(str(tmp_path)):
        pass
    tmp_path.joinpath("cgroup.freeze").write_text("")
    tmp_path.joinpath("cgroup.events").write_text("populated 1\nfrozen 0\n")
    monkeypatch.setattr(freezer, "SECONDS", 0.01)
    with pytest.raises(freezer.CannotFreeze, match="does not stand still"), freezer.frozen(str(tmp_path)):
        pass
    assert tmp_path.joinpath("cgroup.freeze").read_text() == "0"


def test_a_run_with_frozen_work_says_so_and_does_not_mind_the_load_before(
    group: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "run_job", lambda job: record(4.0, 10.0)["results"])
    monkeypatch.setattr(run, "others_running", lambda: 0.0)
    monkeypatch.setattr("os.getloadavg", lambda: (7.0, 7.0, 7.0))
    assert run.main(["--suite", "memory", "--freeze", str(group.parent), "--output", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*/memory-fp32-t1.json")
    assert json.loads(path.read_text())["smoke"] == [] and "stood still" in path.with_suffix(".md").read_text()


def test_a_run_that_failed_in_part_is_smoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_job", lambda job: "it ended")
    monkeypatch.setattr(run, "wait_until_idle", lambda: None)
    assert run.main(["--suite", "memory", "--output", str(tmp_path)]) == 1
    (path,) = tmp_path.glob("*/memory-fp32-t1.json")
    assert "a part of it failed" in json.loads(path.read_text())["smoke"]


def test_cases_take_the_place_of_those_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RESULTS", tmp_path)
    other = {**cast("Any", record(5.0, 10.0))["results"][0], "case": "gpt2", "title": "GPT-2"}
    both = {**record(4.0, 10.0), "results": [*cast("Any", record(4.0, 10.0)["results"]), other]}
    store.keep(both, "", "models-fp32-t1", tmp_path)
    later = {**record(2.0, 10.0), "date": "later", "command": "again"}
    made = store.updated(later, "models-fp32-t1", tmp_path)
    assert [each["rows"][0]["ms"]["disc"]["median"] for each in made["results"]] == [2.0, 5.0]
    assert made["date"] == "today" and made["results"][0]["run"]["date"] == "later" and "run" not in made["results"][1]
    assert "Of a later run: later, commit abc, load 0.0, `again`." in report.markdown(made)
    with pytest.raises(FileNotFoundError):
        store.updated(later, "models-fp32-t2", tmp_path)


def test_commands_name_no_folder_of_this_machine() -> None:
    given = ["--suite", "gemm", "--output", "/home/me/results", "--output=/tmp", "/home/me/models"]
    assert store.command_line("python -m bench.run", given) == "python -m bench.run --suite gemm models"


def test_nothing_kept_names_a_folder_of_a_machine_or_is_a_picture() -> None:
    files = [path for path in store.RESULTS.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".md"}
    absolute = re.compile(r"(?<![\w./-])/(?:home|root|tmp|work|usr|opt|Users|mnt)/")
    assert [path.name for path in files if absolute.search(path.read_text())] == []


def test_the_summary_is_that_of_the_files() -> None:
    """`python -m bench.summary` writes it."""
    assert (store.RESULTS / "README.md").read_text() == summary.readme(store.RESULTS)


def test_threads_of_others_are_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        seen = machine.others_running(0.3)
        other.kill()
    assert seen >= 0.3


# --- the goals ------------------------------------------------------------------------------------------------------------------


def test_the_goals_have_the_figures_of_the_files() -> None:
    """`python -m bench.goals` writes them."""
    text = goals.GOALS.read_text()
    assert len(goals.MARK.findall(text)) > 30
    assert goals.filled(text, store.RESULTS) == text


def test_figures_of_goals(tmp_path: Path) -> None:
    made = cast("dict[str, Any]", record(4.0, 10.0))
    (result,) = made["results"]
    result["rows"] = [row(4.0, 12.0, held_out=False), {**row(4.0, 3.0, held_out=True), "shape": "1x64"}]
    store.write_json(tmp_path / "one" / "models-fp32-t1.json", {**made, "date": "2026-11-21"})
    store.write_json(tmp_path / "two" / "models-fp32-t1.json", {**made, "date": "2026-11-20", "results": []})

    def figure(mark: str) -> str:
        return goals.filled(f"| <!--{mark}-->old<!--/--> |", tmp_path).removeprefix(f"| <!--{mark}-->").removesuffix("<!--/--> |")

    assert figure("means models-fp32-t1") == figure("case-means models-fp32-t1 bert") == "eager 1.50"
    assert (figure("means models-fp32-t1 tuned"), figure("means models-fp32-t1 held-out")) == ("eager 3.00", "eager 0.75")
    assert figure("least models-fp32-t1") == "0.75 (BERT-base 1x64, eager)"
    assert figure("below models-fp32-t1 1.0") == "1 of 2 (BERT-base 1x64 0.75)"
    assert figure("below models-fp32-t1 1.0 layers") == "0 of 0"
    assert figure("best-peers models-fp32-t1") == "BERT-base 1.50"
    assert figure("multiply-adds models-fp32-t1 64") == "50.0%, from 50% (BERT-base 1x64) to 50% (BERT-base 1x64)"
    assert figure("bandwidth models-fp32-t1 1x64") == "BERT-base 25%"
    assert figure("memory models-fp32-t1") == "0.66-0.66"
    with pytest.raises(FileNotFoundError, match="no result models-bf16-t1"):
        figure("means models-bf16-t1")
