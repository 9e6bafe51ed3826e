"""Three times as many requests as can be answered: how many are answered all the same, how soon the others are refused, and the memory.

`model`: a BERT of four layers whose calls take milliseconds, with the settings that a server has by default. The capacity is what the same
load generator gets with one full batch under way; then requests come at random moments at three times that rate.
`transport`: the worst case, a model that takes no time for 512 KiB, so that moving the bytes is all the work; clients that are refused ask
again at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.served.generator import Load, load
from bench.served.process import Running, bert, request, resident_kib, server, twice
from disc.serving.messages import message

SECONDS = 8.0
WARM_UP_S = 3.0
TIMES = 3.0
TOKENS = 128
IN_FLIGHT = 32  # one full batch, by default
QUEUE, CLIENTS = 8, 24
LAYERS, WIDTH = 4, 384
# One thread for the model: the other core is for the transport, and here for the load generator too.
MODEL_CONFIG = "[models.bert]\nthreads = 1\nwarm_up = ['input_ids=32x128,attention_mask=32x128']\n"
TRANSPORT_CONFIG = f"[defaults]\nmax_queue = {QUEUE}\nmax_batch = 512\n"


def overload(folder: Path) -> dict[str, object]:
    return {"model": _model(bert(folder, LAYERS, WIDTH)), "transport": _transport(twice(folder))}


def _model(path: Path) -> dict[str, object]:
    data = _tokens()
    with server(path, MODEL_CONFIG) as running:
        load(running.port, data, WARM_UP_S, in_flight=IN_FLIGHT)
        with _memory(running) as steady:
            capacity = load(running.port, data, SECONDS, in_flight=IN_FLIGHT)
        with _memory(running) as burdened:
            overloaded = load(running.port, data, SECONDS, rate=TIMES * capacity["answered"])
    return _outcome(capacity, overloaded, steady, burdened)


def _transport(path: Path) -> dict[str, object]:
    data = request(512)
    with server(path, TRANSPORT_CONFIG) as running:
        load(running.port, data, WARM_UP_S, in_flight=QUEUE)
        with _memory(running) as steady:
            capacity = load(running.port, data, SECONDS, in_flight=QUEUE)
        with _memory(running) as burdened:
            overloaded = load(running.port, data, SECONDS, in_flight=CLIENTS)
    return _outcome(capacity, overloaded, steady, burdened)


def _outcome(capacity: Load, overloaded: Load, steady: list[int], burdened: list[int]) -> dict[str, object]:
    return {"capacity": capacity, "overloaded": overloaded, "goodput": overloaded["answered"] / capacity["answered"],
            "memory": max(burdened) / max(steady), "steady MiB": max(steady) / 1024}  # fmt: skip


def _tokens() -> bytes:
    tensors = [{"name": name, "datatype": "INT64", "shape": [1, TOKENS]} for name in ("input_ids", "attention_mask")]
    raw = [np.ones((1, TOKENS), np.int64).tobytes()] * 2
    return message("inference.ModelInferRequest")(model_name="bert", inputs=tensors, raw_input_contents=raw).SerializeToString()


@contextmanager
def _memory(running: Running) -> Iterator[list[int]]:
    """KiB in memory, ten times per second, while the block runs."""
    sizes = [resident_kib(running.pid)]
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            sizes.append(resident_kib(running.pid))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield sizes
    finally:
        done.set()
        watcher.join()
