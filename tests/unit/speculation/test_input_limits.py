"""How many values a fusion reads: chosen from measurements that are made up, kept in a file, and what a broken file gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from disc.errors import DiscWarning
from disc.speculation import input_bench
from disc.speculation.inputs import FILE, KINDS, STORE, InputRecord, find_limits, fit_inputs, relative_times, write_limits
from disc.targets.thresholds import InputLimits
from disc.targets.x86 import read_target

LIMITS = InputLimits(loop=12, stitch=8, compute=6, attention=24)


def made_up(kind: str, seconds: dict[int, float]) -> list[InputRecord]:
    return [InputRecord(kind, kind, rows, {limit: each * rows for limit, each in seconds.items()}) for rows in (1, 100)]


def test_of_the_best_the_nearest_to_the_usual_is_chosen() -> None:
    usual = InputLimits(12, 12, 12, 12)
    records = [each for kind in KINDS for each in made_up(kind, {6: 1.015, 12: 1.3, 24: 1.0, 48: 1.01})]
    assert fit_inputs(records, usual) == InputLimits(24, 24, 24, 24)  # of 6 and 24, which are as far, the larger
    assert fit_inputs(records, InputLimits(7, 12, 40, 12)) == InputLimits(6, 24, 48, 24)
    assert relative_times(records, "loop")[12] == pytest.approx(1.3)
    others = [each for each in records if each.kind != "stitch"] + made_up("stitch", {6: 1.0, 12: 1.03, 24: 2.0, 48: 1.1})
    assert fit_inputs(others, usual) == InputLimits(loop=24, stitch=6, compute=24, attention=24)


def test_limits_are_kept(tmp_path: Path) -> None:
    assert find_limits(tmp_path) is None
    assert find_limits(write_limits(tmp_path / "new", LIMITS).parent) == LIMITS
    assert read_target("x86-64-v4").reading(LIMITS).thresholds.device.fusion.most_inputs == LIMITS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"loop": 12}',
        '{"loop": 1, "stitch": 12, "compute": 12, "attention": 12}',
        '{"loop": "a", "stitch": 2, "compute": 2, "attention": 2}',
    ],
)
def test_a_broken_file_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.warns(DiscWarning, match="limits of inputs"):
        assert find_limits(tmp_path) is None


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of a line that was being written is gone; a program that is whole is not measured again."""

    class Program:
        threads = 0

        def __call__(self, *inputs: object, out: object = None) -> object:
            return inputs

    counted: list[nn.Module] = []

    def compiled(model: nn.Module, *_: object) -> Any:
        counted.append(model)
        return Program()

    store, programs = tmp_path / "tune" / STORE, input_bench.PROGRAMS[:2]
    monkeypatch.setattr(input_bench, "PROGRAMS", programs[:1])
    monkeypatch.setattr(input_bench, "SIZES", (1,))
    monkeypatch.setattr(input_bench, "time_call", lambda call: 1.0)
    assert [record.program for record in input_bench.measure_inputs(compiled, store)] == [programs[0].name]
    whole = store.read_text()
    store.write_text(whole + whole[:20])
    monkeypatch.setattr(input_bench, "PROGRAMS", programs)
    assert input_bench.missing_programs(store) == [programs[1]]
    assert [record.program for record in input_bench.measure_inputs(compiled, store)] == [programs[1].name]
    assert [record.program for record in input_bench.measured_inputs(store)] == [program.name for program in programs]
    assert len(counted) == 2 * len(input_bench.LIMITS)
