"""What a request adds to a call in the process, over gRPC with a client in Python, at concurrency 1, for inputs of 64 KiB.

Two echoes of the same bytes are measured too, which do nothing but return what they got: by gRPC's own Python server, which is what a
handler in Python cannot get below, and by the same server with asyncio.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import numpy as np

import disc
from bench.served.process import COLUMNS, request, server, twice
from disc.serving.messages import INFERENCE

ROWS = 64
CALLS, WARM_UP = 3000, 300

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
ASYNCIO_ECHO = """
import asyncio, grpc
async def echo(data, context):
    return data
async def main():
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", {"Echo": method}),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()
asyncio.run(main())
"""


def overhead(folder: Path) -> dict[str, object]:
    """Milliseconds of each way to get y = 2 x, taken in turns."""
    path = twice(folder)
    executable = disc.load(path)
    x, data = np.ones((ROWS, COLUMNS), np.float32), request(ROWS)
    with ExitStack() as open_until_here:
        ports = [
            open_until_here.enter_context(server(path)).port,
            *(open_until_here.enter_context(_echo(code)) for code in (ECHO, ASYNCIO_ECHO)),
        ]
        channels = [open_until_here.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}")) for port in ports]
        infer, echo, asyncio_echo = (
            channel.unary_unary(name)
            for channel, name in zip(channels, (f"/{INFERENCE}/ModelInfer", "/bench.Echo/Echo", "/bench.Echo/Echo"), strict=True)
        )
        measured = _times_ms({
            "in process": lambda: executable(x), "served": lambda: infer(data), "echo": lambda: echo(data),
            "asyncio echo": lambda: asyncio_echo(data),
        })  # fmt: skip
    added = {share: measured["served"][share] - measured["in process"][share] for share in ("p50", "p99")}
    beyond = {share: measured["served"][share] - measured["echo"][share] for share in ("p50", "p99")}
    return {"ms": measured, "added to the call": added, "added to the echo": beyond}


@contextmanager
def _echo(code: str) -> Iterator[int]:
    """The port of a server in another process."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield int(running.stdout.readline())
        finally:
            running.kill()


def _times_ms(calls: dict[str, Callable[[], object]]) -> dict[str, dict[str, float]]:
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
