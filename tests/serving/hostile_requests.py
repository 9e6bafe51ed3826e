"""Random hostile requests against one server: `python hostile_requests.py REQUESTS [--seed N] [--output RESULT.json]`.

The server is a process of its own (`disc serve`, shared memory on). Four clients send, over gRPC and HTTP: bytes without sense, good requests
that were damaged, protobuf and JSON drawn at random, wrong sizes and types, shared memory that shrinks under its users, calls that are
cancelled, connections that break off. Every 25th request is a good one, whose answer must be right.

Prints JSON: requests by kind and outcome, and `failures`: outcomes that no request may have (a fault of the server, no answer within 30 s),
wrong answers, lines of the log that are no JSON or tell of a fault, and the end of the process. Exit code 1 where there is one.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
from oip_client import infer_fields, parameter, results, write_add, write_twice

from bench.store import finding
from disc.serving.grpc.health import HEALTH, REFLECTION
from disc.serving.messages import INFERENCE, message, method_types, service

CLIENTS, PATIENCE_S, GOOD_EVERY = 4, 30.0, 25
X = np.arange(6, dtype=np.float32).reshape(2, 3)
REQUEST, RESPONSE = message("inference.ModelInferRequest"), message("inference.ModelInferResponse")
GOOD = REQUEST(**infer_fields("twice", {"x": X})).SerializeToString()
TYPED = REQUEST(
    model_name="twice",
    inputs=[{"name": "x", "datatype": "FP32", "shape": [2, 3], "contents": {"fp32_contents": X.ravel().tolist()}}],
).SerializeToString()
JSON = {"id": "1", "inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32", "data": X.ravel().tolist()}], "outputs": [{"name": "y"}]}
METHODS = [f"/{INFERENCE}/{name}" for name in service(INFERENCE).methods_by_name if name != "ModelStreamInfer"] + [f"/{HEALTH}/Check"]
REGION = f"disc-hostile-{os.getpid()}"
LIMITS = {"arrival_s": 0.5, "idle_s": 5.0, "message_bytes": 1 << 20, "held_bytes": 4 << 20, "elements": 1 << 20, "input_bytes": 4 << 20}
# What a server may say to such a request: never INTERNAL, UNKNOWN, DATA_LOSS, nor UNAVAILABLE (a connection that it dropped).
CODES = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "CANCELLED"}
STATUSES = {"200", "400", "404", "405", "408", "411", "413", "414", "417", "429", "431", "501", "closed"}
Outcome = str


class Attacker:
    """One client with its own randomness."""

    def __init__(self, seed: int, port: int, http_port: int) -> None:
        self.random = random.Random(seed)
        self.http_port = http_port
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options)
        self.kinds: list[Callable[[], Outcome]] = [
            self.bytes_without_sense, self.damaged_message, self.random_message, self.wrong_request, self.wrong_request, self.shared_memory,
            self.administration, self.impatient, self.stream, self.raw_http, self.damaged_json, self.random_json, self.wrong_http,
            self.broken_off, self.random_path,
        ]  # fmt: skip

    # --- gRPC ---------------------------------------------------------------------------------------------------------------

    def call(self, method: str, data: bytes, timeout: float = PATIENCE_S) -> Outcome:
        try:
            self.channel.unary_unary(method)(data, timeout=timeout)
            return "OK"
        except grpc.RpcError as error:
            code = error.code().name  # pyright: ignore[reportAttributeAccessIssue]
            return "no answer" if code == "DEADLINE_EXCEEDED" and timeout == PATIENCE_S else code

    def bytes_without_sense(self) -> Outcome:
        method = self.random.choice([*METHODS, f"/{INFERENCE}/Nothing", "/no.Service/At", "/", f"/{REFLECTION[0]}/ServerReflectionInfo"])
        return self.call(method, self.random.randbytes(self.random.choice((0, 1, 7, 100, 5000))))

    def damaged(self, data: bytes) -> bytes:
        out = bytearray(data)
        for _ in range(self.random.choice((1, 1, 2, 8))):
            place = self.random.randrange(len(out) + 1)
            match self.random.randrange(5):
                case 0 if out:
                    out[place % len(out)] ^= 1 << self.random.randrange(8)
                case 1:
                    del out[place:]
                case 2:
                    out[place:place] = out[: self.random.randrange(len(out) + 1)] * self.random.choice((1, 3))
                case 3:
                    out[place : place + self.random.randrange(9)] = self.random.randbytes(self.random.randrange(9))
                case _:
                    out[place:place] = self.random.choice((b"\xff" * 10, b"\x00" * 9, b"\x2a\x00" * 400, b"\x3a\x00", b"\x80" * 11))
        return bytes(out)

    def damaged_message(self) -> Outcome:
        return self.call(f"/{INFERENCE}/ModelInfer", self.damaged(self.random.choice((GOOD, TYPED))))

    def fields(self, depth: int = 0) -> bytes:
        """A message of random fields, well formed on the wire."""
        out = b""
        for _ in range(self.random.randrange(1, 7)):
            number, kind = self.random.choice((1, 2, 3, 4, 5, 6, 7, 8, 99)), self.random.choice((0, 1, 2, 2, 2, 5))
            tag = bytes([number << 3 | kind]) if number < 16 else bytes([0x80 | (number << 3 | kind) & 0x7F, (number << 3 | kind) >> 7])
            if kind == 2:
                words = (b"x", b"twice", b"FP32", b"", bytes(24), b"\xff")
                content = self.fields(depth + 1) if depth < 3 and self.random.random() < 0.5 else self.random.choice(words)
                content = content[:16000]
                size = bytes([len(content)]) if len(content) < 128 else bytes([0x80 | len(content) & 0x7F, len(content) >> 7])
                out += tag + size + content
            else:
                out += tag + {0: self.random.choice((b"\x00", b"\x7f", b"\xff" * 9 + b"\x01")), 1: bytes(8), 5: b"\xff" * 4}[kind]
        return out

    def random_message(self) -> Outcome:
        return self.call(self.random.choice((f"/{INFERENCE}/ModelInfer", *METHODS)), self.fields())

    def number(self) -> int:
        return self.random.choice((0, 1, 2, 3, 6, 7, -1, 24, 255, 1 << 20, 1 << 31, (1 << 62) + 1, -(1 << 63), (1 << 63) - 1))

    def wrong_request(self) -> Outcome:
        pick = self.random.choice
        shape = [self.number() for _ in range(pick((0, 1, 2, 2, 3, 40)))] if self.random.random() < 0.7 else [2, 3]
        given: dict[str, object] = {
            "name": pick(("x", "x", "a", "", "y\0")),
            "datatype": pick(("FP32", "FP32", "INT8", "BYTES", "BOOL", "no")),
        }
        given["shape"] = shape
        fields: dict[str, object] = {
            "model_name": pick(("twice", "twice", "add", "", "../x")),
            "model_version": pick(("", "", "1", "-1", "9" * 40)),
        }
        if self.random.random() < 0.3:
            given["contents"] = {pick(("fp32_contents", "int_contents", "bool_contents", "uint64_contents")): [1] * pick((0, 1, 6, 7))}
        else:
            fields["raw_input_contents"] = [bytes(pick((0, 1, 23, 24, 25, 4096))) for _ in range(pick((0, 1, 1, 2)))]
        if self.random.random() < 0.5:
            names = ("timeout", "priority", "sequence_id", "triton_x", "é", "")
            fields["parameters"] = {pick(names): parameter(pick((True, self.number(), "9" * 50, ""))) for _ in range(2)}
        fields["inputs"] = [given] * pick((1, 1, 1, 0, 2, 300))
        fields["outputs"] = [{"name": pick(("y", "y", "z", ""))}] * pick((0, 1, 2, 300))
        return self.call(f"/{INFERENCE}/ModelInfer", REQUEST(**fields).SerializeToString())

    def shared_memory(self) -> Outcome:
        pick = self.random.choice
        name = f"r{pick((1, 2, 3))}"
        match self.random.randrange(6):
            case 0:
                os.truncate(f"/dev/shm/{REGION}", pick((0, 24, 4096, 1 << 30)))
                return "OK"
            case 1:
                key = pick((REGION, REGION, f"/{REGION}", "../etc/passwd", "", "a" * 300, "x\0"))
                fields: dict[str, object] = {
                    "name": name,
                    "key": key,
                    "offset": pick((0, 8, 1 << 63)),
                    "byte_size": pick((24, 4096, 0, 1 << 40)),
                }
                return self.call(f"/{INFERENCE}/SystemSharedMemoryRegister", made("SystemSharedMemoryRegister", fields))
            case 2:
                return self.call(
                    f"/{INFERENCE}/SystemSharedMemoryUnregister", made("SystemSharedMemoryUnregister", {"name": pick((name, ""))})
                )
        where = {"shared_memory_region": name, "shared_memory_byte_size": self.number(), "shared_memory_offset": self.number()}
        if self.random.random() < 0.5:
            where = {**where, "shared_memory_byte_size": 24, "shared_memory_offset": 0}
        values = {key: parameter(value) for key, value in where.items() if self.random.random() < 0.95}
        given = {"name": "x", "datatype": "FP32", "shape": [2, 3], "parameters": values}
        return self.call(f"/{INFERENCE}/ModelInfer", REQUEST(model_name="twice", inputs=[given] * pick((1, 1, 10))).SerializeToString())

    def administration(self) -> Outcome:
        name = self.random.choice(("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"))
        fields = {} if name == "RepositoryIndex" else {"model_name": self.random.choice(("twice", "", "../..", "x" * 1000))}
        return self.call(f"/{INFERENCE}/{name}", made(name, fields))

    def impatient(self) -> Outcome:
        """A client that gives up, before or after it is served."""
        call = self.channel.unary_unary(f"/{INFERENCE}/ModelInfer").future(
            self.random.choice((GOOD, TYPED, self.fields())), timeout=PATIENCE_S
        )
        if self.random.random() < 0.5:
            return self.call(f"/{INFERENCE}/ModelInfer", GOOD, self.random.choice((1e-6, 1e-3, 0.005)))
        time.sleep(self.random.choice((0, 0.001)))
        call.cancel()
        return "CANCELLED"

    def stream(self) -> Outcome:
        """Whatever comes on it, a stream answers each request, and goes on."""
        asked = [self.random.choice((GOOD, self.damaged(GOOD), self.fields())) for _ in range(self.random.randrange(1, 4))]
        try:
            answers = list(self.channel.stream_stream(f"/{INFERENCE}/ModelStreamInfer")(iter(asked), timeout=PATIENCE_S))
        except grpc.RpcError as error:
            return error.code().name  # pyright: ignore[reportAttributeAccessIssue]
        return "OK" if len(answers) == len(asked) else "answers are missing"

    # --- HTTP ---------------------------------------------------------------------------------------------------------------

    def send(self, data: bytes, *, wait: bool = True) -> Outcome:
        with socket.create_connection(("127.0.0.1", self.http_port), timeout=PATIENCE_S) as connection:
            try:
                connection.sendall(data)
                if not wait:
                    return "closed"
                head = connection.recv(4096)
                if head.startswith(b"HTTP/1.1 100 "):
                    head = connection.recv(4096)
            except (ConnectionResetError, BrokenPipeError):
                head = b""
            except TimeoutError:
                return "no answer"
        found = re.match(rb"HTTP/1\.[01] ([0-9]{3}) ", head)
        return found[1].decode() if found else "closed"

    def post(self, body: bytes, path: str = "/v2/models/twice/infer", more: bytes = b"", length: int | None = None) -> Outcome:
        size = len(body) if length is None else length
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {size}\r\n".encode()
        return self.send(head + more + b"\r\n" + body)

    def raw_http(self) -> Outcome:
        good = b"POST /v2/models/twice/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
        return self.send(self.random.choice((self.random.randbytes(self.random.randrange(300)), self.damaged(good))))

    def damaged_json(self) -> Outcome:
        return self.post(self.damaged(json.dumps(JSON).encode()))

    def value(self, depth: int = 0) -> object:
        pick = self.random.choice
        if depth < 4 and self.random.random() < 0.4:
            values = [self.value(depth + 1) for _ in range(self.random.randrange(5))]
            keys = ("inputs", "outputs", "parameters", "name", "shape", "datatype", "data", "id", "binary_data_size", "x")
            return values if self.random.random() < 0.5 else {pick(keys): each for each in values}
        return pick((None, True, 0, -1, 1.5, 1e400, 10**30, "x", "", "FP32", "\ud800", "twice", self.number()))

    def random_json(self) -> Outcome:
        changed = {**JSON, self.random.choice(list(JSON)): self.value()} if self.random.random() < 0.5 else self.value()
        if self.random.random() < 0.4:
            changed = {
                **JSON,
                "inputs": [{**JSON["inputs"][0], self.random.choice(("name", "shape", "datatype", "data", "parameters")): self.value()}],
            }
        return self.post(json.dumps(changed).encode())

    def wrong_http(self) -> Outcome:
        pick = self.random.choice
        body = json.dumps(JSON).encode()
        header = pick(
            (
                b"Inference-Header-Content-Length: " + pick((b"-1", b"0", b"9" * 5000, b"\xd9\xa3", b"2", b"1e3")), b"Content-Encoding: gzip",
                b"Content-Encoding: " + pick((b"br", b"deflate", b"\xff")), b"Transfer-Encoding: chunked", b"Content-Length: 7", b"Expect: 100-continue",
                b"Authorization: Bearer " + b"x" * 9000, b"X: \x00", b"Content-Type: " + self.random.randbytes(20).replace(b"\n", b""),
            )
        )  # fmt: skip
        return self.post(body, more=header + b"\r\n", length=pick((None, None, 0, 5, len(body) + 100, 1 << 40, -1)))

    def broken_off(self) -> Outcome:
        """A connection that ends within the head, the body or the answer."""
        body = json.dumps(JSON).encode()
        whole = b"POST /v2/models/twice/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        return self.send(whole[: self.random.randrange(len(whole) + 1)], wait=False)

    def random_path(self) -> Outcome:
        pick = self.random.choice
        parts = [pick(("v2", "models", "twice", "versions", "1", "infer", "stats", "config", "ready", "..", "%2e%2e", "%00", "é", "health", "repository", "x" * 500)) for _ in range(self.random.randrange(7))]  # fmt: skip
        method = pick(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "BREW", "get"))
        return self.send(f"{method} /{'/'.join(parts)} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())

    # --- what must go on working ---------------------------------------------------------------------------------------------

    def good(self) -> Outcome:
        answer = RESPONSE.FromString(self.channel.unary_unary(f"/{INFERENCE}/ModelInfer")(GOOD, timeout=PATIENCE_S))
        if not np.array_equal(results(answer)["y"], 2 * X):
            return "wrong answer"
        return "OK" if self.post(json.dumps(JSON).encode()) == "200" else "no 200"


def made(method: str, fields: dict[str, object]) -> bytes:
    return method_types(INFERENCE, method)[0](**fields).SerializeToString()


def attack(attacker: Attacker, requests: int, outcomes: collections.Counter[tuple[str, str]]) -> None:
    for number in range(requests):
        kind = attacker.good if number % GOOD_EVERY == 0 else attacker.random.choice(attacker.kinds)
        try:
            outcome = kind()
        except Exception as error:  # of this client: to be seen, not to end the run
            outcome = f"client: {type(error).__name__}: {error}"[:300]
        outcomes[kind.__name__, outcome] += 1


def faults_of(log: str) -> list[str]:
    """Lines that no request may cause."""
    found: list[str] = []
    for line in log.splitlines():
        try:
            event = json.loads(line)["event"]
        except (ValueError, KeyError, TypeError):
            found.append(line[:300])
            continue
        if event in ("fault", "library", "http", "model_failed"):
            found.append(line[:300])
    return found


def run(requests: int, seed: int) -> dict[str, object]:
    outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
    region = Path("/dev/shm") / REGION
    region.write_bytes(bytes(4096))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_twice(folder / "twice.disc")
        write_add(folder / "add.disc")
        limits = ", ".join(f"{key} = {value}" for key, value in LIMITS.items())
        (folder / "serve.toml").write_text(f"shared_memory = true\nlimits = {{ {limits} }}\n")
        command = [
            sys.executable,
            "-m",
            "disc.cli",
            "serve",
            name,
            "--port",
            "0",
            "--http-port",
            "0",
            "--config",
            str(folder / "serve.toml"),
        ]
        with open(folder / "log", "w") as log:
            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout is not None
            port, http_port = map(int, re.findall(r":([0-9]+) \(", server.stdout.readline()))
            attackers = [Attacker(seed + number, port, http_port) for number in range(CLIENTS)]
            counts = [requests // CLIENTS + (number < requests % CLIENTS) for number in range(CLIENTS)]
            threads = [threading.Thread(target=attack, args=(each, count, outcomes)) for each, count in zip(attackers, counts, strict=True)]
            start = time.monotonic()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = time.monotonic() - start
            for each in attackers:
                each.channel.close()
            peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{server.pid}/status").read_text()) if server.poll() is None else None
            server.send_signal(signal.SIGTERM)
            code = server.wait(60)
        finally:
            server.kill()
            region.unlink()
        faults = faults_of((folder / "log").read_text())
    allowed = {"good": {"OK"}}
    wrong = [f"{kind}: {outcome} ({count} times)" for (kind, outcome), count in sorted(outcomes.items())
             if outcome not in allowed.get(kind, CODES | STATUSES)]  # fmt: skip
    ended = [] if code == 0 and peak is not None else [f"the server ended with {code}"]
    by_kind: dict[str, dict[str, int]] = {}
    for (kind, outcome), count in sorted(outcomes.items()):
        by_kind.setdefault(kind, {})[outcome] = count
    return {
        "requests": sum(outcomes.values()), "seed": seed, "seconds": round(seconds, 1), "peak_memory_mib": int(peak[1]) >> 10 if peak else None,
        "outcomes": by_kind, "failures": wrong + faults + ended,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("requests", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    found = run(given.requests, given.seed)
    finding("hostile requests", "python tests/serving/hostile_requests.py", found, given.output)
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
