"""What each technique of `disc.batched` gains: `python tools/batched_ablation.py [--cases birnn-256,dagrnn-256] [--batch 10]`.

Runs cases of the suite dynamic with all techniques and without each, in turns, and prints the median time of a batch as a ratio to that
with all, and the launches of a batch. Measure on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.cases import SUITE_CASES, Instances, build
from disc.api import compile_block
from disc.config import Options
from disc.frontend.batched.public import Batched, LiftedBlock
from disc.frontend.batched.techniques import AGENDA, ALL, DEPTH, MOST, Techniques

_IN_PYTHON = Techniques(native_walk=False, native_skeleton=False)
_OPTIONS = Options(threads=1)
WITHOUT = {
    "all": ALL,
    "without folded tables": ALL,
    "without the walk": Techniques(native_walk=False),
    "without the interpreter": _IN_PYTHON,
    "without the recorder in C++": replace(_IN_PYTHON, native_recorder=False),
    "without native schedules": replace(_IN_PYTHON, native_schedule=False),
    "by depth": replace(_IN_PYTHON, order=DEPTH),
    "by mean depth": replace(_IN_PYTHON, order=AGENDA),
    "most rows first": replace(_IN_PYTHON, order=MOST),
}
WARM_UP = 3  # batches, in which blocks are found and compiled


def batched(model: Instances, techniques: Techniques, options: Options) -> Batched:
    def lift(block):
        return LiftedBlock(block, lambda module, example, tables: compile_block(module, example, tables, options))

    return Batched(model.model, lift, techniques)


def measure(name: str, batch: int, turns: int) -> list[tuple[str, float, int]]:
    """(technique, milliseconds, launches) of a batch."""
    case = next(each for each in SUITE_CASES["dynamic"] if each.name == name)
    model = build(case)
    assert isinstance(model, Instances)
    instances = model.chosen(*case.inputs((batch,)))
    unfolded = replace(_OPTIONS, fold_tables=0)
    made = {text: batched(model, techniques, unfolded if "folded" in text else _OPTIONS) for text, techniques in WITHOUT.items()}
    for each in made.values():
        for _ in range(WARM_UP):
            each.batch(instances)
    launches = {text: each.stats()["launches"] for text, each in made.items()}
    times: dict[str, list[float]] = {text: [] for text in made}
    for _ in range(turns):
        for text, each in made.items():
            start = time.perf_counter()
            each.batch(instances)
            times[text].append(1e3 * (time.perf_counter() - start))
    counted = {text: (each.stats()["launches"] - launches[text]) // turns for text, each in made.items()}
    return [(text, statistics.median(times[text]), counted[text]) for text in made]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="treelstm-256,dagrnn-256,birnn-256")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--turns", type=int, default=20)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for name in given.cases.split(","):
        rows = measure(name, given.batch, given.turns)
        print(f"{name}, batch {given.batch}: {rows[0][1]:.2f} ms with all")
        for text, milliseconds, launches in rows:
            print(f"  {text:30} {milliseconds / rows[0][1]:6.2f}  {launches:5} launches")


if __name__ == "__main__":
    main(sys.argv[1:])
