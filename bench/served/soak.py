"""Half an hour of what a server meets: random lengths and batches over gRPC and HTTP, clients that come and go, give up, and make mistakes.

The memory of the server and its open files are read every few seconds; each must stay what it was. Some answers are compared with a call in
this process, all with the shape that they must have.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np

import disc
from bench.served.process import MOST_TOKENS, VOCABULARY, Running, bert, open_files, resident_kib, server, threads
from disc.serving.messages import INFERENCE, message

MINUTES = 30.0
SAMPLE_S = 5.0
SETTLED = 1 / 6  # of the time: buffers and tables grow until then
GRPC_CLIENTS, HTTP_CLIENTS = 4, 1
PAUSE_S = 0.03  # between two requests of a client, on average
CALLS_PER_CHANNEL = 200
CHECKED = 20  # one answer in so many is compared
CONFIG = """
[models.bert]
queue_delay_us = 500
sequence = { length = "input_ids.1", mask = "attention_mask" }
"""


class Client(threading.Thread):
    """Sends requests until stopped. counts: requests by kind and outcome; `unexpected` holds what should not have been."""

    def __init__(self, running: Running, executable: disc.Executable, number: int, stop: threading.Event) -> None:
        super().__init__(name=f"soak-{number}")
        self.counts: Counter[str] = Counter()
        self.unexpected: list[str] = []
        self._port = running.port
        self._http_port = running.http_port
        self._executable = executable
        self._random = random.Random(number)
        self._stop_asking = stop
        self._over_http = number >= GRPC_CLIENTS

    def run(self) -> None:
        ask = self._ask_http if self._over_http else self._ask_grpc
        while not self._stop_asking.is_set():
            try:
                ask()
            except Exception as error:
                self.unexpected.append(f"{type(error).__name__}: {error}"[:300])
                self._stop_asking.wait(1.0)

    def _inputs(self) -> dict[str, np.ndarray]:
        rows, tokens = self._random.randint(1, 4), self._random.randint(1, MOST_TOKENS)
        ids = np.array([[self._random.randrange(VOCABULARY) for _ in range(tokens)] for _ in range(rows)])
        mask = np.array([[1] * length + [0] * (tokens - length) for length in (self._random.randint(1, tokens) for _ in range(rows))])
        return {"input_ids": ids, "attention_mask": mask}

    def _pause(self) -> None:
        self._stop_asking.wait(self._random.expovariate(1 / PAUSE_S))

    def _check(self, inputs: dict[str, np.ndarray], states: np.ndarray) -> None:
        """states: the last hidden states that came back."""
        self.counts["answered"] += 1
        if states.shape[:2] != inputs["input_ids"].shape:
            raise AssertionError(f"inputs {inputs['input_ids'].shape}, states {states.shape}")
        if self._random.randrange(CHECKED) == 0:
            self.counts["compared"] += 1
            expected = cast("tuple[np.ndarray, ...]", self._executable(*inputs.values()))[0]
            np.testing.assert_allclose(states, expected, atol=2e-5, rtol=1e-4)

    # --- gRPC ---------------------------------------------------------------------------------------------------------------

    def _ask_grpc(self) -> None:
        """One channel's worth of requests: good ones, and now and then a mistake or one that is given up."""
        with grpc.insecure_channel(f"127.0.0.1:{self._port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            infer = channel.unary_unary(f"/{INFERENCE}/ModelInfer")
            self.counts["channels"] += 1
            for _ in range(CALLS_PER_CHANNEL):
                if self._stop_asking.is_set():
                    return
                inputs, chance = self._inputs(), self._random.random()
                if chance < 0.02:
                    self._mistake(infer, inputs)
                elif chance < 0.04:
                    self._give_up(infer, inputs)
                else:
                    answer = message("inference.ModelInferResponse").FromString(infer(_message(inputs)))
                    first = answer.outputs[0]
                    self._check(inputs, np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(tuple(first.shape)))
                self._pause()

    def _mistake(self, infer: grpc.UnaryUnaryMultiCallable, inputs: dict[str, np.ndarray]) -> None:
        inputs["input_ids"] = inputs["input_ids"] + VOCABULARY
        try:
            infer(_message(inputs))
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error  # pyright: ignore[reportAttributeAccessIssue]
            self.counts["mistakes refused"] += 1
        else:
            raise AssertionError("an index beyond the vocabulary was accepted")

    def _give_up(self, infer: grpc.UnaryUnaryMultiCallable, inputs: dict[str, np.ndarray]) -> None:
        call = infer.future(_message(inputs))
        time.sleep(self._random.random() * 0.003)
        call.cancel()
        self.counts["given up"] += 1

    # --- HTTP ---------------------------------------------------------------------------------------------------------------

    def _ask_http(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._http_port, timeout=300)
        self.counts["connections"] += 1
        try:
            for _ in range(CALLS_PER_CHANNEL):
                if self._stop_asking.is_set():
                    return
                self._one_http(connection)
                self._pause()
        finally:
            connection.close()

    def _one_http(self, connection: http.client.HTTPConnection) -> None:
        path = self._random.choice(["/metrics", "/status.json", "/v2/models/bert/stats"]) if self._random.random() < 0.02 else ""
        if path:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            self.counts["pages"] += 1
            return
        inputs = self._inputs()
        tensors = [{"name": name, "datatype": "INT64", "shape": each.shape, "data": each.tolist()} for name, each in inputs.items()]
        connection.request("POST", "/v2/models/bert/infer", json.dumps({"inputs": tensors}))
        answer = connection.getresponse()
        found = json.loads(answer.read())
        assert answer.status == 200, found
        self._check(inputs, np.array(found["outputs"][0]["data"], np.float32).reshape(found["outputs"][0]["shape"]))


def _message(inputs: dict[str, np.ndarray]) -> bytes:
    tensors = [{"name": name, "datatype": "INT64", "shape": each.shape} for name, each in inputs.items()]
    raw = [each.tobytes() for each in inputs.values()]
    return message("inference.ModelInferRequest")(model_name="bert", inputs=tensors, raw_input_contents=raw).SerializeToString()


def soak(folder: Path, minutes: float = MINUTES) -> dict[str, Any]:
    """Counts of requests, what was not as it should be, and how memory, open files and threads of the server went."""
    path = bert(folder)
    stop = threading.Event()
    with server(path, CONFIG) as running:
        clients = [Client(running, disc.load(path, threads=1), number, stop) for number in range(GRPC_CLIENTS + HTTP_CLIENTS)]
        for client in clients:
            client.start()
        start = time.monotonic()
        samples: list[tuple[float, int, int, int]] = []  # seconds, KiB, files, threads
        while time.monotonic() - start < minutes * 60:
            time.sleep(SAMPLE_S)
            samples.append((time.monotonic() - start, resident_kib(running.pid), open_files(running.pid), threads(running.pid)))
        stop.set()
        for client in clients:
            client.join()
    counts = sum((client.counts for client in clients), Counter[str]())
    unexpected = [text for client in clients for text in client.unexpected]
    return {"minutes": minutes, "requests": dict(counts), "errors": len(unexpected), "first errors": unexpected[:5], **trends(samples)}


def trends(samples: list[tuple[float, int, int, int]]) -> dict[str, object]:
    """What each figure did after the first part of the time; the slope of memory by least squares."""
    settled = np.array(samples[int(len(samples) * SETTLED) :], np.float64)
    seconds, memory, files, threads_seen = settled.T
    slope = np.polyfit(seconds, memory, 1)[0] * 3600 / 1024
    quarter = max(len(memory) // 4, 1)
    return {
        "memory MiB": {"settled": float(np.median(memory[:quarter])) / 1024, "end": float(np.median(memory[-quarter:])) / 1024},
        "memory slope MiB per hour": float(slope),
        "open files": {"settled": float(np.median(files[:quarter])), "end": float(np.median(files[-quarter:])), "most": float(files.max())},
        "threads": {"settled": float(np.median(threads_seen[:quarter])), "end": float(np.median(threads_seen[-quarter:]))},
        "samples": [list(sample) for sample in samples[:: max(len(samples) // 60, 1)]],
    }
