"""Requests of mixed lengths: `python -m bench.served.mixed FOLDER [--seconds 12] [--clients 8]`. Keeps serving-mixed (`bench.store`).

BERT-base behind the server's batcher, in one process, with clients that each send one sequence after the other (closed loop): joined
without padding (packed), only with requests of the same length, padded to the longest (always, and where the learned cost says that it
pays), and ONNX Runtime padded to the longest and with requests of the same length. All see the same lengths in the same order. FOLDER
keeps the compiled models: what is there is not made again, so that measuring can be a run of its own (`--prepare` makes them alone).
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers import BertConfig, BertModel

import disc
from bench.machine import wait_until_idle
from bench.report import head, table
from bench.store import RESULTS, busy, command_line, keep, new_record
from disc.cli.bench.runtimes import open_ort
from disc.config import Options
from disc.ral.executable import load
from disc.serving.batcher import Batcher, BatchRecord, Job
from disc.serving.joining import Joining, PadToLongest, joining_of
from disc.serving.settings import ModelSettings
from disc.serving.settings import Sequence as SequenceSettings
from disc.serving.signature import Signature
from disc.serving.tensors import Array

VOCABULARY = 30_000
RANGES = {"8-512": (8, 512), "8-64": (8, 64)}
PADDED = SequenceSettings("ids.1", "mask")
Run = Callable[[list[Array]], list[Array]]


class Text(nn.Module):
    """Hidden states of ids and mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = BertModel(BertConfig(), add_pooling_layer=False).eval()

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=mask)[0]


def prepare(folder: Path) -> None:
    """Makes the two artifacts and the ONNX file that are not there yet."""
    example = (torch.ones(2, 7, dtype=torch.int64), torch.ones(2, 7, dtype=torch.int64))
    for name, packed in (("packed", True), ("plain", False)):
        path = folder / f"{name}.disc"
        if not path.exists():
            disc.compile(Text(), example, options=Options(packed=packed, cache=False)).save(path)
    path = folder / "bert.onnx"
    if not path.exists():
        axes = {"ids": {0: "rows", 1: "length"}, "mask": {0: "rows", 1: "length"}, "hidden": {0: "rows", 1: "length"}}
        torch.onnx.export(Text(), example, str(path), dynamo=False, input_names=["ids", "mask"], output_names=["hidden"],
                          dynamic_axes=axes, opset_version=18)  # fmt: skip


class PadAlways(PadToLongest):
    """Whatever waits is padded to the longest."""

    def admits(self, members: Sequence[Any], candidate: Any) -> bool:
        return True


@dataclass(frozen=True)
class Way:
    """How requests are run and joined."""

    run: Run
    joining: Joining


def ways(folder: Path, threads: int) -> dict[str, Way]:
    """Every way to serve the model, by name."""
    plain, packed = (load(folder / f"{name}.disc", threads=threads) for name in ("plain", "packed"))
    bind = open_ort(folder / "bert.onnx", threads, "f32")
    signature = Signature(plain.manifest)
    same, costs = joining_of(signature, ModelSettings()), cast("PadToLongest", joining_of(signature, ModelSettings(sequence=PADDED)))

    def always() -> Joining:
        return PadAlways(costs.batch, costs._lengths)  # pyright: ignore[reportPrivateUsage]

    def ours(executable: Any) -> Run:
        return lambda inputs: [cast("Array", executable(*inputs))]

    def peer(inputs: list[Array]) -> list[Array]:
        return cast("list[Array]", bind(inputs)())

    return {
        "packed": Way(ours(packed), joining_of(Signature(packed.manifest), ModelSettings())),
        "same length": Way(ours(plain), same),
        "padded": Way(ours(plain), always()),
        "padded where it pays": Way(ours(plain), costs),
        "ORT padded": Way(peer, always()),
        "ORT same length": Way(peer, same),
    }


def serve(way: Way, lengths: Sequence[int], clients: int, seconds: float) -> dict[str, float]:
    """Sequences and tokens per second, and percentiles of the time of a request in ms."""
    records: list[BatchRecord] = []
    batcher = Batcher(way.run, way.joining, ModelSettings(), None, records.append)
    taken: list[tuple[float, int]] = []
    next_one, lock = iter(range(10**9)), threading.Lock()
    start = time.perf_counter()

    def client() -> None:
        while time.perf_counter() - start < seconds:
            with lock:
                length = lengths[next(next_one) % len(lengths)]
            ids = np.full((1, length), 7, np.int64)
            began = time.perf_counter()
            batcher.submit(Job([ids, np.ones_like(ids)], {"S0": 1, "S1": length}))
            with lock:
                taken.append((time.perf_counter() - began, length))

    workers = [threading.Thread(target=client) for _ in range(clients)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    whole = time.perf_counter() - start
    times = np.array([each for each, _ in taken]) * 1e3
    return {
        "sequences/s": len(taken) / whole,
        "tokens/s": sum(length for _, length in taken) / whole,
        "p50 ms": float(np.quantile(times, 0.5)),
        "p99 ms": float(np.quantile(times, 0.99)),
        "sequences per call": len(taken) / max(len(records), 1),
    }


def check(found: dict[str, Way]) -> float:
    """The largest difference between the packed results of three sequences and each alone."""
    generator = np.random.default_rng(0)
    jobs = [Job([generator.integers(0, VOCABULARY, (1, length)), np.ones((1, length), np.int64)], {}) for length in (8, 301, 97)]
    way, alone = found["packed"], found["same length"]
    together = way.joining.split(way.run(way.joining.join(jobs)), jobs)
    return max(float(np.abs(np.subtract(one[0], alone.run(job.inputs)[0])).max()) for one, job in zip(together, jobs, strict=True))


def measure(folder: Path, spans: Sequence[str], only: Sequence[str], options: argparse.Namespace) -> dict[str, object]:
    found = {name: way for name, way in ways(folder, options.threads).items() if not only or name in only}
    result: dict[str, object] = {"clients": options.clients, "threads": options.threads}
    if "packed" in found and "same length" in found:
        result["packed against alone"] = check(found)
    for span in spans:
        generator = np.random.default_rng(1)
        lengths = [int(each) for each in generator.integers(RANGES[span][0], RANGES[span][1] + 1, 4096)]
        for way in found.values():  # first calls, and what the learned cost needs to know
            serve(way, lengths, options.clients, options.warm_up)
        result[span] = {name: serve(way, lengths, options.clients, options.seconds) for name, way in found.items()}
    return result


def report(results: dict[str, Any]) -> str:
    """One table per range of lengths, one row per way."""
    parts = [
        f"{results['clients']} clients, {results['threads']} threads. Packed against alone: {results.get('packed against alone', 0):.1e}."
    ]
    for span in (name for name in RANGES if name in results):
        names = list(next(iter(results[span].values())))
        rows = [[way, *(f"{figures[name]:.1f}" for name in names)] for way, figures in results[span].items()]
        parts += [f"## Lengths {span}", table(["", *names], rows)]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--lengths", nargs="*", default=list(RANGES), choices=list(RANGES))
    parser.add_argument("--ways", nargs="*", default=[])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--warm-up", type=float, default=2.0)
    parser.add_argument("--smoke", action="store_true", help="on a busy machine: do not wait, keep nothing in bench/results")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the result")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    prepare(options.folder)
    if options.prepare:
        return
    if not options.smoke:
        wait_until_idle()
    record = new_record("serving-mixed", command_line("python -m bench.served.mixed", sys.argv[1:]), {})
    record["smoke"] = [*busy(record["machine"]["load"]), *(f"--{name} was given" for name in ("smoke", "ways") if getattr(options, name))]
    record["results"] = measure(options.folder, options.lengths, options.ways, options)
    text = f"{head(record)}\n\n{report(record['results'])}\n"
    print(text)
    keep(record, text, "serving-mixed", options.output)


if __name__ == "__main__":
    main()
