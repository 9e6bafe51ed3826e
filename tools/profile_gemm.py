#!/usr/bin/env python3
"""Measures GEMM schedules on this machine, fits the tree that disc brings along, and says how good it is.

Three passes: all schedules at a coarse grid of sizes, from which the best N are taken; those at the fine grid; those and what rules take
where they overrule the tree. The data is kept with the machine's description in tools/data.
Interrupted, or stopped by --seconds, it goes on where it stopped.

    tools/profile_gemm.py --threads 1,2              # measures, fits, writes disc/speculation/data/x86.json
    tools/profile_gemm.py --again 200                # measures sizes of the data again, those first whose best schedule is least certain
    tools/profile_gemm.py --rows 7-66 --threads 1    # measures sizes with so many rows in another session
    tools/profile_gemm.py --rules                    # measures what the rules take that overrule the tree, where they decide
    tools/profile_gemm.py --report                   # judges the data that is there
    tools/profile_gemm.py --model                    # the trees of GPUs, by a model that times correct: data/sm_*.json
    tools/profile_gemm.py --device cuda              # measures products on this machine's GPU, cuBLASLt among them, for --model
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.machine import describe
from disc.api import compile_with_blocks, compile_with_tree
from disc.speculation.bench import on_this_machine
from disc.speculation.block_bench import measure_products, missing_products, read_products, store_of
from disc.speculation.block_families import FAMILIES
from disc.speculation.block_fit import Measured, fit_attention, fit_to_model, read_times, write_times
from disc.speculation.block_schedules import CUBLASLT
from disc.speculation.block_trees import ATTENTION, tree_file
from disc.speculation.fit import LEAVES, fit, least_certain
from disc.speculation.gpus import find_device
from disc.speculation.policy import ruled_points
from disc.speculation.records import Record, read_record, read_records
from disc.speculation.schedules import Schedule
from disc.speculation.sizes import Point, coarse_points, fine_points, measured_sizes
from disc.speculation.tree import PACKAGED, Tree
from disc.speculation.tune import Round, measure_round, rules_round, tune
from disc.targets.cuda_thresholds import GPUS

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "tools" / "data" / "gemm-schedules.json.gz"
MEASURE = on_this_machine(compile_with_tree, library=True)
UNFINISHED = 3  # exit status where time ran out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2", help="counts of threads to measure (default: 1,2)")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "profile-gemm", help="folder of the unfinished measurements")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop measuring after this long")
    parser.add_argument("--leaves", type=int, default=LEAVES, help="leaves of the tree, at most")
    parser.add_argument("--again", type=int, default=0, help="measure so many sizes a second time, and the new ones of the grid")
    parser.add_argument("--rows", type=_range, help="LOW-HIGH: measure sizes with so many rows anew, and the new ones of the grid")
    parser.add_argument("--rules", action="store_true", help="measure the rules that overrule the tree anew, and nothing else")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or cuda:N")
    parser.add_argument("--report", action="store_true", help="measure nothing, write nothing")
    parser.add_argument(
        "--model",
        action="store_true",
        help="fit the trees of GPUs to a model that tools/data/gemm-times-* corrects; measure nothing",
    )
    arguments = parser.parse_args()
    if arguments.model:
        _fit_to_model()
        return 0
    if arguments.report:
        _report(_kept(), arguments.leaves)
        return 0
    until = time.monotonic() + arguments.seconds
    if arguments.device != "cpu":
        return _measure_gpu(arguments.device, arguments.work, until)
    threads = [int(each) for each in arguments.threads.split(",")]
    if arguments.again:
        return _again(arguments.again, threads, arguments.work, until, arguments.leaves)
    if arguments.rules:
        return _rules(threads, arguments.work, until, arguments.leaves)
    if arguments.rows:
        return _anew(arguments.rows, threads, arguments.work, until, arguments.leaves)
    sizes = coarse_points(threads[0]), fine_points(threads)
    points = ruled_points(threads)
    tuned = tune(arguments.work, *sizes, MEASURE, ruled=points, leaves=arguments.leaves, until=until, progress=_progress)
    if tuned is None:
        return UNFINISHED
    kept = Kept(list(tuned.schedules), tuned.records, tuned.ruled)
    return _store(replace(kept, records=_merged(kept)), arguments.leaves)


def _measure_gpu(name: str, work: Path, until: float) -> int:
    """Keeps the times of a GPU where `--model` finds them."""
    device, sizes = find_device(name), measured_sizes()
    store = store_of(work, device)
    for record in measure_products(compile_with_blocks, device, store, sizes):
        print({**record, "times": len(record["times"])}, file=sys.stderr)
        if time.monotonic() > until:
            break
    if missing_products(store, device.gpu.architecture, sizes):
        return UNFINISHED
    write_times(ROOT / "tools" / "data", device.product, device.gpu.architecture, read_products(store))
    return 0


def _fit_to_model() -> None:
    """Writes the trees of all kinds of GPUs, and prints how good their choices are by the model that they are fitted to."""
    for gpu in GPUS:
        times = read_times(ROOT / "tools" / "data", gpu.architecture)
        fitted = fit_to_model(gpu, measured=times)
        record: dict[str, object] = {kind: each.tree.to_record() for kind, each in fitted.items()}
        attention = {f"{kind} {head}": fit_attention(gpu, kind, head) for kind, head in ATTENTION}
        if times is not None:
            record["measured"] = times["gpu"]
        record["attention"] = {name: each.tree.to_record() for name, each in attention.items()}
        tree_file(gpu.architecture).write_text(json.dumps(record, separators=(",", ":")) + "\n")
        words = "by a model" if times is None else f"by a model and times of an {times['gpu']}"
        print(f"sm_{gpu.architecture}, {gpu.product}, {words}", *(each.describe() for each in fitted.values()), sep="\n")
        for kind, each in fitted.items():
            if times is None:
                break
            own = Measured(times, gpu, kind)
            print(f"{kind:8} by the times\n  fitted    {own.judge(each.tree, tuple(FAMILIES[gpu.architecture][kind]))}")
            print(f"  matrices held out, before a tree is fitted    {own.held_out()}")
            beside = own.beside_library(each.tree, tuple(FAMILIES[gpu.architecture][kind]))
            print(*([f"  with {CUBLASLT.describe()}    {beside}"] if beside is not None else []), sep="\n")
        print(*(each.describe() for each in attention.values()), sep="\n")


@dataclass(frozen=True)
class Kept:
    """The data: what was measured of these schedules, and separately where rules overrule the tree."""

    schedules: list[Schedule]
    records: list[Record]
    ruled: list[Record]


def _rules(threads: Sequence[int], work: Path, until: float, leaves: int) -> int:
    """What rules take at the sizes where they decide, anew, with the schedules that were kept."""
    kept = _kept()
    round_ = rules_round(ruled_points(threads), kept.schedules, work)
    if not measure_round(round_, MEASURE, until=until, progress=_progress):
        return UNFINISHED
    return _store(replace(kept, ruled=read_records(round_.store)), leaves)


def _again(count: int, threads: Sequence[int], work: Path, until: float, leaves: int) -> int:
    """A second pass with the schedules that were kept; what was measured when time runs out is merged."""
    kept = _kept()
    order, known = work / "order.json", {record.point for record in kept.records}
    if not order.exists():
        work.mkdir(parents=True, exist_ok=True)
        uncertain = [point for point in least_certain(kept.records, kept.schedules, leaves=leaves) if point.threads in threads][:count]
        fresh = [point for point in fine_points(threads) if point not in known]
        order.write_text(json.dumps([asdict(point) for point in (*fresh, *_grouped(uncertain))]))
    wanted = [Point(**each) for each in json.loads(order.read_text())]
    if not _measure(wanted, kept.schedules, work / "again.jsonl", until):
        return UNFINISHED
    return _store(replace(kept, records=_merged(replace(kept, records=read_records(work / "again.jsonl")))), leaves)


def _anew(rows: range, threads: Sequence[int], work: Path, until: float, leaves: int) -> int:
    """The sizes of `rows`, with the schedules that were kept. Of a size that was known the geometric mean of both sessions is kept: how
    fast memory is, and with it whether prefetching pays, differs between sessions on a shared machine, and a tree must suit both."""
    kept = _kept()
    known = {record.point: record for record in kept.records}
    wanted = [point for point in fine_points(threads) if point.m in rows or point not in known]
    if not _measure(wanted, kept.schedules, work / "anew.jsonl", until):
        return UNFINISHED
    for record in read_records(work / "anew.jsonl"):
        known[record.point] = _mean(known[record.point], record) if record.point in known else record
    return _store(replace(kept, records=list(known.values())), leaves)


def _mean(old: Record, new: Record) -> Record:
    seconds = {key: math.sqrt(value * old.seconds.get(key, value)) for key, value in new.seconds.items()}
    library = math.sqrt(old.library * new.library) if old.library and new.library else old.library or new.library
    return Record(new.point, seconds, library)


def _range(text: str) -> range:
    low, _, high = text.partition("-")
    return range(int(low), int(high or low) + 1)


def _grouped(points: Sequence[Point], size: int = 60) -> list[Point]:
    """In the same order but for groups, within which sizes that share a program stand next to each other."""
    groups = (points[start : start + size] for start in range(0, len(points), size))
    return [
        point
        for group in groups
        for point in sorted(group, key=lambda each: (each.weights, each.transposed, each.strided, each.n, each.k, each.m))
    ]


def _kept() -> Kept:
    kept = json.loads(gzip.decompress(KEPT.read_bytes()))
    records, ruled = ([read_record(json.dumps(each)) for each in kept[name]] for name in ("records", "ruled"))
    return Kept([Schedule(*each) for each in kept["schedules"]], records, ruled)


def _store(kept: Kept, leaves: int) -> int:
    KEPT.parent.mkdir(exist_ok=True)
    content = {
        "machine": describe(),
        "schedules": [astuple(schedule) for schedule in kept.schedules],
        "records": [json.loads(record.to_json()) for record in kept.records],
        "ruled": [json.loads(record.to_json()) for record in kept.ruled],
    }
    KEPT.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))
    PACKAGED.write_text(_report(kept, leaves).to_json() + "\n")
    return 0


def _merged(fresh: Kept) -> list[Record]:
    """With what was kept before of the same schedules: the least of both times, since noise only adds."""
    if not KEPT.exists():
        return fresh.records
    old = _kept()
    if old.schedules != fresh.schedules:
        return fresh.records
    merged: dict[Point, Record] = {}
    for record in (*old.records, *fresh.records):
        known = merged.setdefault(record.point, record)
        seconds = {key: min(value, known.seconds.get(key, value)) for key, value in record.seconds.items()}
        library = min((each for each in (record.library, known.library) if each is not None), default=None)
        merged[record.point] = Record(record.point, seconds, library)
    return list(merged.values())


def _measure(wanted: Sequence[Point], schedules: Sequence[Schedule], store: Path, until: float) -> bool:
    """With the schedules that were kept; False when time ran out."""
    return measure_round(Round("again", wanted, schedules, store), MEASURE, until=until, progress=_progress)


def _progress(round_: Round, done: int, record: Record) -> None:
    best = min(record.seconds.values())
    print(f"{round_.name}: {done}/{len(round_.points)} {record.point}: {best * 1e6:.1f} us", file=sys.stderr)


def _report(kept: Kept, leaves: int) -> Tree:
    """Prints how good the tree is that is fitted to these; returns it."""
    records = kept.records
    fitted = fit(records, kept.schedules, ruled=kept.ruled, leaves=leaves)
    print(f"{len(records)} sizes, {len(kept.schedules)} schedules, {len(fitted.tree.nodes)} nodes")
    print(fitted.describe())
    for name, some in (
        ("weights", [each for each in records if each.point.weights]),
        ("products", [each for each in records if not (each.point.weights or each.point.transposed or each.point.strided)]),
        ("products, B transposed", [each for each in records if each.point.transposed]),
        ("products, A transposed", [each for each in records if each.point.strided]),
    ):
        ratios = np.array([record.library / min(record.seconds.values()) for record in some if record.library])
        if len(ratios):
            print(f"{name}: {np.exp(np.log(ratios).mean()):.2f} times the library's speed on average; {_library_wins(ratios)}")
            few = [each for each in some if each.library and each.library < 0.95 * min(each.seconds.values())]
            print("".join(f"  {each.point}: {min(each.seconds.values()) * 1e6:.1f} us, library {(each.library or 0) * 1e6:.1f} us\n"
                          for each in few), end="")  # fmt: skip
    return fitted.tree


def _library_wins(ratios: npt.NDArray[np.float64]) -> str:
    """ratios: its time over ours, size by size."""
    shares = ", ".join(f"{percent} % at {(ratios < 1 / (1 + percent / 100)).mean():.1%}" for percent in (1, 3, 5))
    return f"of {len(ratios)} sizes it is faster by more than {shares}; its largest win {max(1 / ratios.min() - 1, 0):.1%}"


if __name__ == "__main__":
    raise SystemExit(main())
