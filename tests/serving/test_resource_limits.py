"""What clients may cost: fields, inputs, bodies, connections and silent calls are bounded before memory, time or threads go to them."""

from __future__ import annotations

import gc
import gzip
import json
import os
import queue
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from oip_client import Client, failure, infer_fields, parameter, serving, write_twice

from disc.errors import ConfigurationError, OverloadedError
from disc.serving.holding import Holding
from disc.serving.http.json_form import HEADER_LENGTH
from disc.serving.messages import INFERENCE, message
from disc.serving.settings import settings_of

X = np.ones((2, 3), np.float32)
REQUEST = message("inference.ModelInferRequest")
GOOD = REQUEST(**infer_fields("twice", {"x": X})).SerializeToString()
JSON = {"inputs": [{"name": "x", "shape": [2, 3], "datatype": "FP32", "data": X.ravel().tolist()}]}
MIB = 1 << 20


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    write_twice(tmp_path / "twice.disc")
    return tmp_path / "twice.disc"


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def cost(call: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    start = time.process_time()
    call()
    return time.process_time() - start


def delimited(tag: int, content: bytes) -> bytes:
    size, out = len(content), bytearray([tag])
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(out) + bytes([size]) + content


# --- fields of a message --------------------------------------------------------------------------------------------------------

NAME = b"\x0a\x05twice"
BODY = delimited(0x0A, b"x") + delimited(0x12, b"FP32")
FLOODS = {
    "empty inputs": NAME + b"\x2a\x00" * (MIB // 2),
    "empty outputs": NAME + b"\x32\x00" * (MIB // 2),
    "empty raw contents": NAME + b"\x3a\x00" * (MIB // 2),
    "parameters of a request": NAME + b"".join(delimited(0x22, delimited(0x0A, b"%x" % n)) for n in range(MIB // 16)),
    "names": NAME * (MIB // 8),
    "unknown fields": NAME + b"\xf8\x07\x01" * (MIB // 4),
    "dims of an input": NAME + delimited(0x2A, BODY + delimited(0x1A, b"\x01" * MIB)),
    "dims of an input, one by one": NAME + delimited(0x2A, BODY + b"\x18\x01" * (MIB // 2)),
    "parameters of an input": NAME
    + delimited(0x2A, BODY + b"".join(delimited(0x22, delimited(0x0A, b"%x" % n)) for n in range(MIB // 16))),
    "parameters of an output": NAME + delimited(0x32, b"".join(delimited(0x12, delimited(0x0A, b"%x" % n)) for n in range(MIB // 16))),
    "elements one by one": NAME + delimited(0x2A, BODY + delimited(0x2A, b"\x18\x01" * (MIB // 2))),
    "strings": NAME + delimited(0x2A, BODY + delimited(0x2A, b"\x42\x00" * (MIB // 2))),
    "contents": NAME + delimited(0x2A, BODY + b"\x2a\x00" * (MIB // 2)),
    "more elements than a tensor may have": NAME + delimited(0x2A, BODY + delimited(0x2A, delimited(0x12, b"\x01" * MIB))),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    path = tmp_path_factory.mktemp("served") / "twice.disc"
    write_twice(path)
    with serving(path, shared_memory=True, limits={"elements": 1 << 19, "input_bytes": 1 << 20, "json_bytes": 2 * MIB}) as client:
        yield client


@pytest.mark.parametrize("flood", FLOODS)
def test_a_message_of_many_fields_costs_next_to_nothing(client: Client, flood: str) -> None:
    """One MiB of empty inputs took 1.5 to 5.6 s and 80 MiB, as an object was made of each before they were counted."""
    data = FLOODS[flood]
    before = resident()
    codes: list[str] = []
    seconds = cost(lambda: codes.append(failure(lambda: client.raw("ModelInfer", data))[0]))
    assert codes == ["INVALID_ARGUMENT"] and seconds < 0.25, seconds
    assert resident() - before < 16 * MIB


def test_packed_elements_are_no_fields(client: Client) -> None:
    """A hundred thousand of them, in 8192 fields at most."""
    contents = {"fp32_contents": np.ones(100_000, np.float32)}
    inputs = [{"name": "x", "datatype": "FP32", "shape": [100, 1000], "contents": contents}]
    assert len(client.call("ModelInfer", model_name="twice", inputs=inputs).outputs[0].contents.fp32_contents) == 100_000


def ask(client: Client, body: bytes, **headers: str) -> tuple[int, str]:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", client.server.http_port or 0, timeout=20)
    try:
        connection.request("POST", "/v2/models/twice/infer", body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"inputs": [{}] * 100_000}, "objects"),
        ({"inputs": [1] * 100_000}, "at most 256 are accepted"),
        ({"inputs": [], "outputs": [1] * 100_000}, "at most 256 are accepted"),
        (b'{"inputs": [' + b" " * 3 * MIB + b"]}", "bytes; at most"),
        (b'{"inputs": [' + b"[]," * 600_000 + b"1]}", "at most 256 are accepted"),
    ],
)
def test_json_is_bounded_before_objects_are_made_of_it(client: Client, body: object, words: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answers: list[tuple[int, str]] = []
    seconds = cost(lambda: answers.append(ask(client, content)))
    assert answers[0][0] == 400 and words in answers[0][1], answers
    assert seconds < 5  # lists, of which tensors are made, are parsed: a second for 600,000


@pytest.mark.parametrize("name", ["timeout", "priority"])
def test_huge_numbers_are_the_clients_mistake(client: Client, name: str) -> None:
    for value in (10**400, 1 << 63, "9" * 30):
        assert ask(client, json.dumps({**JSON, "parameters": {name: value}}).encode())[0] == 400
    header = {HEADER_LENGTH: "0" * 20 + "9" * 5000}
    assert ask(client, json.dumps(JSON).encode(), **header)[0] == 400


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_bodies(client: Client, encoding: str) -> None:
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    good = pack(json.dumps(JSON).encode())
    assert ask(client, good, Content_Encoding=encoding)[0] == 200
    for wrong in (b"junk", good[:-5], good + b"more"):
        assert ask(client, wrong, Content_Encoding=encoding)[0] == 400
    assert ask(client, good, Content_Encoding="br")[0] == 400
    before = resident()
    bomb = pack(bytes(200 * MIB))
    assert ask(client, bomb, Content_Encoding=encoding)[0] == 413
    assert resident() - before < 80 * MIB  # of which 64 may be kept


# --- shared memory --------------------------------------------------------------------------------------------------------------


@contextmanager
def region(client: Client, size: int) -> Iterator[str]:
    """A sparse region, which costs its maker nothing."""
    path = Path(f"/dev/shm/disc-limits-{os.getpid()}")
    with open(path, "wb") as file:
        file.truncate(size)
    try:
        client.call("SystemSharedMemoryRegister", name="big", key=path.name, byte_size=size)
        yield "big"
        client.call("SystemSharedMemoryUnregister", name="big")
    finally:
        path.unlink()


def shared(name: str, size: int, shape: list[int], count: int = 1) -> list[dict[str, object]]:
    where = {"shared_memory_region": parameter(name), "shared_memory_byte_size": parameter(size)}
    return [{"name": "x", "datatype": "FP32", "shape": shape, "parameters": where}] * count


def test_shared_memory_is_read_when_all_sizes_are_right(client: Client) -> None:
    """Ten inputs of 512 MiB for an input of one element took 7.8 GB and 28 s, and were refused then."""
    with region(client, 512 * MIB) as name:
        before = resident()
        for shape, count in (([1, 1], 10), ([1, 1], 1), ([1 << 14, 1 << 13], 1), ([512, 1024], 1)):
            inputs = shared(name, 512 * MIB, shape, count)
            seconds = cost(lambda inputs=inputs: failure(lambda: client.call("ModelInfer", model_name="twice", inputs=inputs)))
            assert seconds < 0.25
        assert resident() - before < 16 * MIB
        inputs = shared(name, 2 * MIB, [512, 1024])
        code, text = failure(lambda: client.call("ModelInfer", model_name="twice", inputs=inputs))
        assert code == "INVALID_ARGUMENT" and "together; at most" in text


def test_what_requests_hold_together(artifact: Path) -> None:
    holding = Holding(10)
    holding.take(6)
    with pytest.raises(OverloadedError):
        holding.take(5)
    holding.give(6)
    holding.take(10)
    with serving(artifact, shared_memory=True, limits={"message_bytes": MIB, "held_bytes": MIB}) as client, region(client, 2 * MIB) as name:
        for _ in range(3):  # what was held is given back
            client.call("ModelInfer", model_name="twice", inputs=shared(name, MIB, [512, 512]))
            code, text = failure(lambda: client.call("ModelInfer", model_name="twice", inputs=shared(name, MIB + 2048, [513, 512])))
            assert code == "RESOURCE_EXHAUSTED" and "together" in text


# --- streams --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("requests", [64, pytest.param(1000, marks=pytest.mark.long)])
def test_a_stream_keeps_no_answers(artifact: Path, requests: int) -> None:
    """Requests and answers of 1 MiB on one stream: each stayed until the stream ended."""
    x = np.ones((256, 1024), np.float32)
    data = REQUEST(**infer_fields("twice", {"x": x})).SerializeToString()
    with process(artifact, 1024) as (server, port, _), ExitStack() as stack:
        options = [("grpc.max_receive_message_length", -1)]
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}", options))
        asked: queue.Queue[bytes | None] = queue.Queue()
        answers = channel.stream_stream(f"/{INFERENCE}/ModelStreamInfer")(iter(asked.get, None))

        def held() -> int:
            return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * resource.getpagesize()

        def send(count: int) -> None:
            for _ in range(count):
                asked.put(data)
                assert len(next(answers)) > MIB

        send(100)
        before = held()
        send(requests)
        grown = held() - before
        asked.put(None)
    print(f"{requests} requests of 1 MiB on one stream: {grown / MIB:+.1f} MiB")
    assert grown <= (2 if requests == 1000 else 8) * MIB


# --- silent clients -------------------------------------------------------------------------------------------------------------

IMPATIENT = {"arrival_s": 0.5, "idle_s": 1.0, "stream_idle_s": 1.0, "arrival_rate": 64 * MIB}


def connected(client: Client) -> socket.socket:
    return socket.create_connection(("127.0.0.1", client.server.http_port or 0), timeout=20)


def closed(connection: socket.socket) -> bool:
    """Whether the server ends the connection, whatever it says before."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("sent", [b"", b"POST /v2/models/twice/infer HTTP/1.1\r\nHost: a\r\nX-Slow:"])
def test_silent_http_connections_are_closed(artifact: Path, sent: bytes) -> None:
    with serving(artifact, limits=IMPATIENT) as client, connected(client) as connection:
        connection.sendall(sent)
        start = time.monotonic()
        assert closed(connection) and time.monotonic() - start < 5


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_that_stop_arriving_are_cut_off(artifact: Path, chunked: bool) -> None:
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 60000000"
    content = b"4\r\nabcd\r\n" if chunked else b"abcd"
    with serving(artifact, limits=IMPATIENT) as client, connected(client) as connection:
        connection.sendall(b"POST /v2/models/twice/infer HTTP/1.1\r\nHost: a\r\n" + length + b"\r\n\r\n" + content)
        start = time.monotonic()
        assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")
        assert closed(connection) and time.monotonic() - start < 5


def test_half_sent_bodies_hold_no_more_than_they_may(artifact: Path) -> None:
    limits = {**IMPATIENT, "arrival_s": 3.0, "message_bytes": 4 * MIB, "held_bytes": 8 * MIB}
    head = b"POST /v2/models/twice/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (4 * MIB)
    with serving(artifact, limits=limits) as client, ExitStack() as stack:
        before = resident()
        connections = [stack.enter_context(connected(client)) for _ in range(20)]
        for connection in connections:
            connection.settimeout(2)
            try:
                connection.sendall(head + bytes(3 * MIB))
            except OSError:
                continue  # refused already
        time.sleep(0.5)
        gc.collect()
        assert resident() - before < 40 * MIB  # of 60 that were sent
        np.testing.assert_array_equal(client.infer("twice", x=X)["y"], 2 * X)
        assert any(b"429" in answer(connection) for connection in connections)  # whichever came last
        assert within(10, lambda: ask(client, json.dumps(JSON).encode())[0] == 200)  # what they held is free again


def answer(connection: socket.socket) -> bytes:
    """What has been answered so far; nothing where the server still waits."""
    connection.settimeout(0.05)
    try:
        return connection.recv(4096)
    except OSError:
        return b""


def within(seconds: float, what: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.1)
    return what()


def test_a_new_client_takes_the_place_of_the_one_silent_for_longest(artifact: Path) -> None:
    with serving(artifact, limits={"connections": 8}) as client, ExitStack() as stack:
        idle = [stack.enter_context(connected(client)) for _ in range(30)]
        assert ask(client, json.dumps(JSON).encode())[0] == 200
        assert closed(idle[0])
        idle[-1].sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n")
        assert idle[-1].recv(4096).startswith(b"HTTP/1.1 200")


def half_sent(client: Client, stack: ExitStack) -> grpc.Call:
    """A call whose message never comes."""
    release = threading.Event()
    stack.callback(release.set)

    def nothing() -> Iterator[bytes]:
        release.wait(30)
        yield from ()

    return client.channel.stream_unary(f"/{INFERENCE}/ModelInfer").future(nothing())


def test_calls_without_a_message_are_cancelled(artifact: Path) -> None:
    limits = {**IMPATIENT, "requests": 4, "message_bytes": MIB, "arrival_rate": MIB}
    with serving(artifact, limits=limits) as client, ExitStack() as stack:
        calls = [half_sent(client, stack) for _ in range(40)]
        np.testing.assert_array_equal(client.infer("twice", x=X)["y"], 2 * X)
        for call in calls:
            assert failure(lambda call=call: call.result(timeout=20))[0] == "CANCELLED"  # pyright: ignore[reportAttributeAccessIssue]


def test_a_stream_that_asks_nothing_is_ended(artifact: Path) -> None:
    with serving(artifact, limits=IMPATIENT) as client:
        asked: queue.Queue[bytes | None] = queue.Queue()
        asked.put(GOOD)
        answers = client.channel.stream_stream(f"/{INFERENCE}/ModelStreamInfer")(iter(asked.get, None))
        assert next(answers)
        assert failure(lambda: next(answers))[0] == "CANCELLED"
        asked.put(None)


def test_a_stream_whose_answers_nobody_takes_is_ended(artifact: Path) -> None:
    """16 answers of 1 MiB, of which the client takes none: they do not fit on the way."""
    x = np.ones((256, 1024), np.float32)
    data = REQUEST(**infer_fields("twice", {"x": x})).SerializeToString()
    with serving(artifact, limits=IMPATIENT) as client:
        options = [("grpc.max_receive_message_length", -1), ("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0)]
        with grpc.insecure_channel(f"127.0.0.1:{client.server.port}", options) as channel:
            answers = channel.stream_stream(f"/{INFERENCE}/ModelStreamInfer")(iter([data] * 16))
            answered = client.server.core
            assert within(10, lambda: answered.answered > 0)
            time.sleep(3)
            assert failure(lambda: list(answers))[0] == "CANCELLED"


# --- a process with few files ---------------------------------------------------------------------------------------------------


@contextmanager
def process(artifact: Path, files: int, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    command = f"ulimit -n {files}; exec {sys.executable} -m disc.cli serve {artifact} --port 0 --http-port 0 {' '.join(arguments)}"
    with subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            port, http_port = re.findall(r":([0-9]+) \(", running.stdout.readline())
            yield running, int(port), int(http_port)
        finally:
            running.kill()


def test_idle_connections_lock_nobody_out(artifact: Path) -> None:
    """120 of them, in a process that may open 64 files, took the files of gRPC's clients and filled the log with tracebacks."""
    with process(artifact, 64) as (running, port, http_port), ExitStack() as stack:
        for _ in range(120):
            stack.enter_context(socket.create_connection(("127.0.0.1", http_port), timeout=10))
        time.sleep(0.5)
        for _ in range(3):
            with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
                assert channel.unary_unary(f"/{INFERENCE}/ModelInfer")(GOOD, timeout=10)
        with socket.create_connection(("127.0.0.1", http_port), timeout=10) as late:
            late.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
            assert late.recv(4096).startswith(b"HTTP/1.1 200")
        running.send_signal(signal.SIGTERM)
        _, log = running.communicate(timeout=30)
    assert running.returncode == 0
    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert len(events) < 20 and "fault" not in events, log[:3000]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"arrival_s": 0}, "limits.arrival_s must be more than 0, not 0"),
        ({"connections": 0}, "limits.connections must be at least 1, not 0"),
        ({"held_bytes": 1}, "limits.held_bytes must not be less than limits.message_bytes"),
        ({"arrival_rate": -1}, "limits.arrival_rate must be at least 1, not -1"),
    ],
)
def test_limits_that_make_no_sense(limits: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        settings_of({"limits": limits})
