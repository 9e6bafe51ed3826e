"""Compiling and measuring on many machines, with machines that are functions; on a real cluster: tests/serving/test_ray_cluster.py."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from disc.errors import ConfigurationError, DiscError
from disc.serving.ray.cluster import Compiled, LostError, Machine, Machines, MeasureOn, compile_many, slug, spread_over, tune_kinds
from disc.speculation.records import Record, read_records
from disc.speculation.schedules import FAMILY, Schedule
from disc.speculation.sizes import Point, effective
from disc.speculation.tune import Round, measure_round

A, B, C = (Machine(f"node-{name}", 2.0, kind, threads) for name, kind, threads in (("a", "EPYC, 2 threads", 2), ("b", "EPYC, 2 threads", 2), ("c", "Xeon", 8)))  # fmt: skip


def points(count: int = 6) -> list[Point]:
    """Two of each program."""
    return [Point(m, 16 * (n + 1), 16, 1, 1, True) for n in range(count // 2) for m in (64, 512)]


def record(point: Point, schedules: Sequence[Schedule], best: Schedule) -> str:
    """One line, by which `best` is the fastest."""
    return Record(
        point, {effective(each, point): 1e-3 if effective(each, point) == effective(best, point) else 2e-3 for each in schedules}
    ).to_json()


def measured_by(counter: Counter[str], best: Callable[[Machine], Schedule] = lambda machine: FAMILY[0]) -> Any:
    lock = threading.Lock()

    def measure(machine: Machine, wanted: Sequence[Point], schedules: Sequence[Schedule]) -> list[str]:
        with lock:
            counter[machine.node] += len(wanted)
        return [record(point, schedules, best(machine)) for point in wanted]

    return measure


def collect(machines: Sequence[Machine], measure_on: MeasureOn, wanted: Sequence[Point], store: Path) -> None:
    assert measure_round(Round("all", wanted, FAMILY, store), spread_over(machines, measure_on))


def test_each_size_is_measured_once_and_never_again(tmp_path: Path) -> None:
    store, counted = tmp_path / "deep" / "fine.jsonl", Counter[str]()
    collect([A, B], measured_by(counted), points(), store)
    assert sorted(each.point.n for each in read_records(store)) == sorted(each.n for each in points()) and counted.total() == 6
    collect([A, B], measured_by(counted), points(), store)
    assert counted.total() == 6
    store.write_text(store.read_text()[:-9])  # cut off in its last line
    collect([A, B], measured_by(counted), points(), store)
    assert counted.total() == 7 and {each.point for each in read_records(store)} == set(points())


def test_what_a_lost_machine_had_taken_is_done_by_another(tmp_path: Path) -> None:
    counted = Counter[str]()
    honest, taken = measured_by(counted), threading.Event()

    def measure(machine: Machine, wanted: Sequence[Point], schedules: Sequence[Schedule]) -> list[str]:
        if machine is A:
            taken.set()
            raise LostError("gone")
        assert taken.wait(10)  # B begins when A has taken something
        return honest(machine, wanted, schedules)

    collect([A, B], measure, points(), tmp_path / "fine.jsonl")
    assert {each.point for each in read_records(tmp_path / "fine.jsonl")} == set(points()) and set(counted) == {B.node}


def test_without_a_machine_left_it_fails_and_keeps_what_it_has(tmp_path: Path) -> None:
    counted = Counter[str]()
    honest = measured_by(counted)

    def measure(machine: Machine, wanted: Sequence[Point], schedules: Sequence[Schedule]) -> list[str]:
        if counted.total() >= 2:
            raise LostError("gone")
        return honest(machine, wanted, schedules)

    with pytest.raises(DiscError, match=r"no machine of the kind 'EPYC, 2 threads' is left: gone; run it again"):
        collect([A], measure, points(), tmp_path / "fine.jsonl")
    assert len(read_records(tmp_path / "fine.jsonl")) == 2


def test_every_kind_of_machine_gets_a_tree_of_its_own(tmp_path: Path) -> None:
    """What is fast on one kind is not on the other; no machine measures for another kind."""
    fast = {A.kind: FAMILY[0], C.kind: FAMILY[-1]}
    counted = Counter[str]()
    sizes = lambda machine: points(24)  # noqa: E731
    fitted = tune_kinds([A, C, B], measured_by(counted, lambda machine: fast[machine.kind]), tmp_path, sizes, sizes, top=2)
    assert set(fitted) == {A.kind, C.kind} and set(counted) >= {C.node} and counted[C.node] == 48 == counted[A.node] + counted[B.node]
    for kind, best in fast.items():
        tree = fitted[kind].tree
        assert all(effective(tree.schedules[tree.choose(point.features)], point) == effective(best, point) for point in points(24))
        assert json.loads((tmp_path / slug(kind) / "schedules.json").read_text()) == json.loads(tree.to_json())


# --- compiling ------------------------------------------------------------------------------------------------------------------


class Fake:
    """Machines that "compile" by a function."""

    def __init__(self, compile_one: Callable[..., Compiled]) -> None:
        self.compile_one = compile_one
        self.given: list[tuple[object, ...]] = []

    def spread(self, cpus: float, function: object, arguments: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Compiled]]:
        self.given = list(arguments)
        for number in reversed(range(len(arguments))):  # they end in another order than they began
            yield number, self.compile_one(*arguments[number])


def test_artifacts_are_written_as_they_are_done_and_errors_reported(tmp_path: Path) -> None:
    (tmp_path / "one.mlir").write_text("program")
    fake = Fake(
        lambda name, content, options: Compiled(
            "n", 1.0, "no such op" if name == "mine:bad" else None, b"" if name == "mine:bad" else name.encode()
        )
    )
    models = [str(tmp_path / "one.mlir"), "mine:bad", "mine:good"]
    results = list(compile_many(cast("Machines", fake), models, tmp_path / "out", ["--target=x86-64-v3"], 1.0))
    assert [(path.name, result.error) for path, result in results] == [("good.disc", None), ("bad.disc", "no such op"), ("one.disc", None)]
    assert [content for _, content, _ in fake.given] == [b"program", None, None]
    assert {each.name: each.read_bytes() for each in (tmp_path / "out").iterdir()} == {
        "good.disc": b"mine:good",
        "one.disc": models[0].encode(),
    }


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (["a:model", "b:model"], "two models would be written to model.disc"),
        (["nowhere.mlir"], "nowhere.mlir cannot be read: No such file"),
    ],
)
def test_mistakes_are_found_before_anything_is_sent(tmp_path: Path, models: list[str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        list(compile_many(cast("Machines", Fake(lambda *_: pytest.fail("sent"))), models, tmp_path / "out", [], 1.0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compile", "m:f", "-o", "out", "--amp", "f8"], "--amp f8: the types are bf16, f16, int8"),
        (["serve", "models", "--config", "nowhere.toml"], "nowhere.toml cannot be read"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "disc.cli", "ray", *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 1 and words in done.stderr, done.stderr
