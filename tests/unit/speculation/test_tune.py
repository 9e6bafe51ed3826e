"""Tuning: records, the loop over them, trees fitted to measurements that are made up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from disc.speculation.fit import best_schedules, fit
from disc.speculation.policy import ruled_schedules
from disc.speculation.quality import losses, quality
from disc.speculation.records import Record, read_record, read_records
from disc.speculation.schedules import FAMILY, Schedule
from disc.speculation.sizes import Point, effective
from disc.speculation.tree import LEAF, Tree
from disc.speculation.tune import Measure, Round, forget, measure_round, tune

SMALL, LARGE = Schedule(120, 4096, 0, 0), Schedule(240, 256, 1, 0)


def made_up(m: int, n: int) -> Record:
    """Up to 40 rows SMALL is twice as fast, above it LARGE."""
    point = Point(m, n, 512, 1, 1, True)
    times = {schedule: 3.0 for schedule in FAMILY}
    times[SMALL], times[LARGE] = (1.0, 2.0) if m <= 40 else (2.0, 1.0)
    kept: dict[Schedule, float] = {}
    for schedule, seconds in times.items():
        key = effective(schedule, point)
        kept[key] = min(seconds, kept.get(key, seconds))
    return Record(point, kept)


RECORDS = [made_up(m, n) for m in range(1, 400, 3) for n in (64, 768)]


def test_the_best_few_schedules_are_found() -> None:
    assert losses(RECORDS, best_schedules(RECORDS, 2)).min(axis=1).max() == 0
    assert losses(RECORDS, best_schedules(RECORDS, 1)).min(axis=1).max() > 0.5


def test_the_tree_that_is_fitted_takes_the_best() -> None:
    fitted = fit(RECORDS, (SMALL, LARGE, FAMILY[0]))
    assert fitted.held_out.sizes == len(RECORDS)
    assert fitted.held_out.near > 0.95
    assert fitted.tree.schedules[fitted.tree.choose((1, 64, 512, 1, 1))] == SMALL
    assert fitted.tree.schedules[fitted.tree.choose((300, 64, 512, 1, 1))] == LARGE


def test_a_bad_tree_is_judged_as_bad() -> None:
    judged = quality(Tree((LARGE,), ((LEAF, 0, 0, 0),)), RECORDS[:20])
    assert judged.accuracy == 0
    assert judged.mean == pytest.approx(0.5)


def measured(counted: list[Point]) -> Measure:
    def measure(round_: Round, points: Sequence[Point]) -> Iterator[Record]:
        for point in points:
            counted.append(point)
            yield made_up(point.m, point.n)

    return measure


def test_measuring_goes_on_where_it_stopped(tmp_path: Path) -> None:
    store, counted = tmp_path / "deep" / "records.jsonl", list[Point]()
    round_ = Round("all", [record.point for record in RECORDS[:6]], FAMILY, store)
    assert not measure_round(round_, measured(counted), until=0.0)
    assert len(read_records(store)) == 1
    store.write_text(store.read_text() + '{"m": 1, "cut')  # the machine went down while writing
    done: list[int] = []
    assert measure_round(round_, measured(counted), progress=lambda _, count, record: done.append(count))
    assert done == [2, 3, 4, 5, 6] and counted == list(round_.points)
    assert measure_round(round_, measured(counted)) and len(counted) == 6
    assert read_records(store)[0].point == RECORDS[0].point
    assert read_record(RECORDS[0].to_json()) == RECORDS[0]


def test_time_that_runs_out_at_the_last_size_ran_out_for_none(tmp_path: Path) -> None:
    round_ = Round("all", [RECORDS[0].point], FAMILY, tmp_path / "records.jsonl")
    assert measure_round(round_, measured([]), until=0.0)


def test_tuning_measures_all_then_the_best(tmp_path: Path) -> None:
    """Stopped in each of its rounds, it goes on; the second measures the best schedules alone."""
    coarse, fine = ([record.point for record in some] for some in (RECORDS[::20], RECORDS[::2]))
    ruled = [Point(1200, 256, 64, 1, 1, True), Point(64, 64, 4096, 1, 2, True)]
    counted, rounds = list[Point](), dict[str, Sequence[Schedule]]()

    def note(round_: Round, done: int, record: Record) -> None:
        rounds[round_.name] = round_.schedules

    assert tune(tmp_path, coarse, fine, measured(counted), top=2, until=0.0) is None
    assert tune(tmp_path, coarse, coarse, measured(counted), top=2, progress=note) is not None
    assert tune(tmp_path, coarse, fine, measured(counted), top=2, until=0.0) is None
    tuned = tune(tmp_path, coarse, fine, measured(counted), ruled=ruled, top=2, progress=note)
    assert tuned is not None
    rules = (*tuned.schedules, *ruled_schedules(ruled))
    assert rounds == {"all schedules": FAMILY, "the best 2": tuned.schedules, "the rules": rules}
    assert len(counted) == len(coarse) + len(fine) + len(ruled) and tuned.fitted.held_out.sizes == len(fine) == len(tuned.records)
    assert set(tuned.fitted.tree.schedules) <= set(tuned.schedules)
    forget(tmp_path)
    assert not list(tmp_path.iterdir())


def test_sizes_that_come_to_the_same_are_measured_once() -> None:
    """Except where k is split, which is another way of adding."""
    point = Point(10, 64, 100, 1, 1, False)
    assert effective(Schedule(240, 512, 1, 1), point) == Schedule(12, 100, 0, 0)
    assert effective(Schedule(240, 512, 1, 1, 4), point) == Schedule(12, 100, 0, 0, 4)


@pytest.mark.parametrize("path", ["disc/cli/tune.py", "disc/serving/ray/cluster.py", "tools/profile_gemm.py"])
def test_there_is_one_loop(path: str) -> None:
    """Who tunes calls it, and neither chooses schedules nor fits between two rounds of its own."""
    text = (Path(__file__).resolve().parents[3] / path).read_text()
    assert "import " in text and " tune(" in text and "best_schedules" not in text
