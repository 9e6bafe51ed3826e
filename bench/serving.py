"""Measures `disc serve`: `python -m bench.serving [overhead] [reload] [overload]`. Prints one JSON value.

overhead: what a request adds to a call in the process, over gRPC with a client in Python, at concurrency 1. Beside it stands an echo of the
same bytes by gRPC's own Python server: what the transport alone takes. reload: memory of a process over a thousand loads and unloads.
overload: a queue that is always full: how fast requests are refused, what is done meanwhile, and how much memory that takes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import torch

import disc
from disc.config import Options
from disc.serving.messages import INFERENCE, message
from disc.serving.repository import Repository
from disc.serving.settings import settings_of

ROWS, COLUMNS = 64, 256  # 64 KiB of f32
CALLS, WARM_UP = 3000, 300
CYCLES, FIRST_CYCLES = 1000, 50
CLIENTS = 24


def artifact(folder: Path) -> Path:
    """y = 2 x: as little work as a model can have."""

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    path = folder / "twice.disc"
    disc.compile(Twice(), (torch.randn(2, COLUMNS),), options=Options(cache=False)).save(path)
    return path


def request(rows: int = ROWS) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, COLUMNS]}
    data = np.ones((rows, COLUMNS), np.float32).tobytes()
    return message("inference.ModelInferRequest")(model_name="twice", inputs=[tensor], raw_input_contents=[data]).SerializeToString()


@contextmanager
def server(path: Path, config: str = "") -> Iterator[tuple[int, int]]:
    """The port and the process id of a server in another process."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(config)
        file.flush()
        command = [sys.executable, "-m", "disc.cli", "serve", str(path), "--port", "0", "--http-port", "0", "--config", file.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
            assert running.stdout is not None
            try:
                yield int(running.stdout.readline().split(" (gRPC)")[0].rsplit(":", 1)[1]), running.pid
            finally:
                running.terminate()


ECHO = """
import grpc
from concurrent.futures import ThreadPoolExecutor
server = grpc.server(ThreadPoolExecutor(16))
method = grpc.unary_unary_rpc_method_handler(lambda data, context: data)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", {"Echo": method}),))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
"""


@contextmanager
def echo_server() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield int(running.stdout.readline())
        finally:
            running.kill()


def times_ms(calls: dict[str, Callable[[], object]]) -> dict[str, dict[str, float]]:
    """Median and 99th percentile of each, taken in turns."""
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(CALLS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            taken[name].append((time.perf_counter() - start) * 1e3)
    return {name: {"p50": float(np.quantile(each, 0.5)), "p99": float(np.quantile(each, 0.99))} for name, each in taken.items()}


def overhead(path: Path) -> dict[str, object]:
    executable = disc.load(path)
    x, data = np.ones((ROWS, COLUMNS), np.float32), request()
    with (
        server(path) as (port, _),
        echo_server() as echo_port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
        grpc.insecure_channel(f"127.0.0.1:{echo_port}") as echo_channel,
    ):
        infer, echo = channel.unary_unary(f"/{INFERENCE}/ModelInfer"), echo_channel.unary_unary("/bench.Echo/Echo")
        measured = times_ms({"in process": lambda: executable(x), "served": lambda: infer(data), "echo": lambda: echo(data)})
    added = {share: measured["served"][share] - measured["in process"][share] for share in ("p50", "p99")}
    beyond = {share: measured["served"][share] - measured["echo"][share] for share in ("p50", "p99")}
    return {"ms": measured, "added to the call": added, "added to the transport": beyond}


def resident(process: int | str = "self") -> int:
    """KiB in memory."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4


def reload(path: Path) -> dict[str, object]:
    repository, x = Repository(path, settings_of({})), np.ones((2, COLUMNS), np.float32)
    sizes: list[int] = []
    for _ in range(CYCLES):
        repository.load("twice")
        repository.find("twice").executable(x)
        repository.unload("twice")
        sizes.append(resident())
    return {"cycles": CYCLES, f"KiB after {FIRST_CYCLES}": sizes[FIRST_CYCLES - 1], "KiB at the end": sizes[-1],
            "growth": sizes[-1] / sizes[FIRST_CYCLES - 1] - 1}  # fmt: skip


def overload(path: Path, seconds: float = 6.0) -> dict[str, object]:
    """First as many clients as are served, then three times more than the queue holds."""
    data = request(512)
    with server(path, "[defaults]\nmax_queue = 8\nmax_batch = 512\n") as (port, process):
        steady = _load(port, data, 8, seconds)
        before = resident(process)
        overloaded = _load(port, data, CLIENTS, seconds)
        return {"steady": steady, "overloaded": overloaded, "memory": resident(process) / before,
                "goodput": overloaded["answers per second"] / steady["answers per second"]}  # fmt: skip


def _load(port: int, data: bytes, clients: int, seconds: float) -> dict[str, float]:
    end = time.perf_counter() + seconds
    answered, refused = [0] * clients, list[float]()
    lock = threading.Lock()

    def ask(number: int) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            infer = channel.unary_unary(f"/{INFERENCE}/ModelInfer")
            while time.perf_counter() < end:
                start = time.perf_counter()
                try:
                    infer(data)
                    answered[number] += 1
                except grpc.RpcError:
                    with lock:
                        refused.append((time.perf_counter() - start) * 1e3)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(ask, range(clients)))
    return {"answers per second": sum(answered) / seconds, "refusals": len(refused),
            "refusal p99 ms": float(np.quantile(refused, 0.99)) if refused else 0.0}  # fmt: skip


def main() -> None:
    suites = {"overhead": overhead, "reload": reload, "overload": overload}
    with tempfile.TemporaryDirectory() as folder:
        path = artifact(Path(folder))
        print(json.dumps({name: suites[name](path) for name in sys.argv[1:] or suites}, indent=1))


if __name__ == "__main__":
    main()
