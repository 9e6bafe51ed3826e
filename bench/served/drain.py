"""SIGTERM under load, again and again: what was accepted is answered, health says NOT_SERVING at once, and the process ends."""

from __future__ import annotations

import http.client
import json
import random
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

import grpc
import numpy as np

from bench.served.process import COLUMNS, Running, request, server, twice
from disc.serving.grpc.health import HEALTH, NOT_SERVING
from disc.serving.messages import INFERENCE, message

TIMES = 100
GRPC_CLIENTS, HTTP_CLIENTS = 6, 1
MOST_S = 60.0  # until the process is taken to hang
ROWS = 16
# Statuses of a request that was not accepted. CANCELLED: by gRPC itself, for a call that no handler has seen.
NOT_ACCEPTED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class Outcomes:
    """What all clients of one server got."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.answered = 0
        self.not_accepted = 0
        self.unexpected: list[str] = []

    def add(self, *, answered: int = 0, not_accepted: int = 0, unexpected: str | None = None) -> None:
        with self._lock:
            self.answered += answered
            self.not_accepted += not_accepted
            self.unexpected += [] if unexpected is None else [unexpected]


def drain(folder: Path, times: int = TIMES) -> dict[str, Any]:
    """`lost`: accepted requests whose answer no client got, of all runs together."""
    path = twice(folder)
    runs = [_once(path, random.Random(number)) for number in range(times)]
    not_serving = [float(run["not serving ms"]) for run in runs]
    exits = [float(run["exit s"]) for run in runs]
    return {
        "times": times,
        "answered": sum(int(run["answered"]) for run in runs),
        "lost": sum(int(run["lost"]) for run in runs),
        "not accepted": sum(int(run["not accepted"]) for run in runs),
        "unexpected": [text for run in runs for text in run["unexpected"]][:5],
        "not serving ms": {"p50": float(np.median(not_serving)), "p90": float(np.quantile(not_serving, 0.9)), "most": max(not_serving)},
        "exit s": {"p50": float(np.median(exits)), "most": max(exits)},
        "exit codes": sorted({run["exit code"] for run in runs}),
    }


def _once(path: Path, chance: random.Random) -> dict[str, Any]:
    outcomes, stop = Outcomes(), threading.Event()
    with tempfile.TemporaryFile("w+") as log, server(path, log=log) as running:
        clients = [threading.Thread(target=_ask_grpc, args=(running, outcomes, stop)) for _ in range(GRPC_CLIENTS)]
        clients += [threading.Thread(target=_ask_http, args=(running, outcomes, stop)) for _ in range(HTTP_CLIENTS)]
        with grpc.insecure_channel(f"127.0.0.1:{running.port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            health = channel.unary_stream(f"/{HEALTH}/Watch")(b"")
            next(health)
            for client in clients:
                client.start()
            time.sleep(chance.uniform(0.1, 0.4))
            start = time.perf_counter()
            running.process.send_signal(signal.SIGTERM)
            status = message("grpc.health.v1.HealthCheckResponse").FromString(next(health)).status
            not_serving_ms = (time.perf_counter() - start) * 1e3
            assert status == NOT_SERVING
            code = running.process.wait(MOST_S)
            exit_s = time.perf_counter() - start
            stop.set()
            for client in clients:
                client.join()
        said = _stopped(log)
    lost = int(str(said["answered"])) - outcomes.answered
    unexpected = outcomes.unexpected + ([] if said["all_answered"] is True else ["the server gave up waiting for requests under way"])
    return {"answered": outcomes.answered, "lost": lost, "not accepted": outcomes.not_accepted, "unexpected": unexpected,
            "not serving ms": not_serving_ms, "exit s": exit_s, "exit code": code}  # fmt: skip


def _stopped(log: IO[str]) -> dict[str, object]:
    """The last line of the server's log."""
    log.seek(0)
    return next(each for each in map(json.loads, log) if each["event"] == "stopped")


def _ask_grpc(running: Running, outcomes: Outcomes, stop: threading.Event) -> None:
    data = request(ROWS)
    with grpc.insecure_channel(f"127.0.0.1:{running.port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        infer = channel.unary_unary(f"/{INFERENCE}/ModelInfer")
        while not stop.is_set():
            try:
                infer(data)
                outcomes.add(answered=1)
            except grpc.RpcError as error:
                code = error.code()  # pyright: ignore[reportAttributeAccessIssue]
                if code in NOT_ACCEPTED:
                    outcomes.add(not_accepted=1)
                else:
                    outcomes.add(unexpected=f"{code.name}: {error.details()}")  # pyright: ignore[reportAttributeAccessIssue]
                stop.wait(0.005)


def _ask_http(running: Running, outcomes: Outcomes, stop: threading.Event) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, COLUMNS], "data": [1.0] * COLUMNS}
    body = json.dumps({"inputs": [tensor]})
    connection = http.client.HTTPConnection("127.0.0.1", running.http_port, timeout=MOST_S)
    while not stop.is_set():
        try:
            connection.request("POST", "/v2/models/twice/infer", body)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):  # the port is closed
            connection.close()
            outcomes.add(not_accepted=1)
            stop.wait(0.005)
            continue
        if answer.status == 200:
            outcomes.add(answered=1)
        elif answer.status == 503:
            outcomes.add(not_accepted=1)
            stop.wait(0.005)
        else:
            outcomes.add(unexpected=f"HTTP {answer.status}")
