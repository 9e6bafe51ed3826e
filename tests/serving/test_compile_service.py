"""The compile service with a compiler that does harm on demand: limits, sharing, refusals; no job affects another."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from disc.errors import ArtifactError, RemoteCompileError
from disc.serving.compile_service.request import KIND, SERVICE, compiler_name
from disc.serving.compile_service.service import CompileServer
from disc.serving.compile_service.settings import CompileLimits, CompileSettings
from disc.serving.messages import message
from disc.serving.settings import Access

REQUEST, EVENT, ID, PIECE = (message(f"disc.v1.{name}") for name in ("CompileRequest", "CompileEvent", "JobId", "Piece"))
STATES = {value.number: value.name for value in EVENT.DESCRIPTOR.enum_types_by_name["State"].values}
FAKE = (sys.executable, "-I", "-S", str(Path(__file__).with_name("fake_compiler.py")))
# Time limits are far off: a job that does another harm must meet its own limit first, on the slowest machine too.
LIMITS = CompileLimits(
    queue=2, cpu_s=100, wall_s=200, memory_bytes=512 << 20, disk_bytes=4 << 20, upload_bytes=1 << 20, message_bytes=1 << 18
)
FAULT = "the compiler failed on this program; the server's log has the reason"


def sha(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


@dataclass
class Answer:
    """What came of one Compile: the states seen, the last event, and the status with its text."""

    states: list[str]
    last: Any
    code: str = "OK"
    text: str = ""
    kind: str = ""


class Client:
    def __init__(self, server: CompileServer, token: str | None = None) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{server.port}")
        self.metadata = () if token is None else (("authorization", f"Bearer {token}"),)

    def stream(self, requests: Iterator[bytes]) -> Any:
        return self.channel.stream_stream(f"/{SERVICE}/Compile")(requests, metadata=self.metadata, timeout=60)

    def answer(self, call: Any, on_event: Callable[[Any], None] = lambda _: None) -> Answer:
        answer = Answer([], None)
        try:
            for data in call:
                answer.last = EVENT.FromString(data)
                if not answer.states or answer.states[-1] != STATES[answer.last.state]:
                    answer.states.append(STATES[answer.last.state])
                on_event(answer.last)
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            answer.code, answer.text = error.code().name, error.details() or ""
            answer.kind = next((str(value) for name, value in error.trailing_metadata() or () if name == KIND), "")
        return answer

    def compile(self, program: bytes, **fields: object) -> Answer:
        return self.answer(self.stream(iter([*self.requests(program, **fields)])))

    def requests(self, program: bytes, **fields: object) -> Sequence[bytes]:
        job = {"format": 1, "program": {"size": len(program), "sha256": sha(program)}, "targets": ["x86-64-v3"], **fields}
        pieces = [program[start : start + 1000] for start in range(0, len(program), 1000)]
        return [REQUEST(job=job).SerializeToString(), *(REQUEST(piece={"data": piece}).SerializeToString() for piece in pieces)]

    def unary(self, method: str, job: str) -> Any:
        return EVENT.FromString(self.channel.unary_unary(f"/{SERVICE}/{method}")(ID(job=job).SerializeToString(), metadata=self.metadata))

    def fetch(self, job: str) -> bytes:
        call = self.channel.unary_stream(f"/{SERVICE}/Fetch")
        return b"".join(PIECE.FromString(data).data for data in call(ID(job=job).SerializeToString(), metadata=self.metadata))


@contextmanager
def running(folder: Path, **changes: Any) -> Iterator[CompileServer]:
    settings = CompileSettings(folder=folder / "service", port=0, limits=LIMITS, worker=FAKE, drain_timeout_s=0)
    server = CompileServer(replace(settings, **changes))
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompileServer]:
    with running(tmp_path_factory.mktemp("compile"), jobs=2) as server:
        yield server


@pytest.fixture
def client(server: CompileServer) -> Client:
    return Client(server)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


# ---- Compiling


def test_a_program_becomes_an_artifact(client: Client, server: CompileServer) -> None:
    answer = client.compile(b"good 1")
    assert (answer.states[0], answer.states[-1], answer.code) == ("UPLOAD", "DONE", "OK")
    content = client.fetch(answer.last.job)
    assert (len(content), sha(content)) == (answer.last.result.size, answer.last.result.sha256)
    assert content == Path(FAKE[-1]).parents[1].joinpath("golden/0.1.0/linear.disc").read_bytes()
    assert STATES[client.unary("Status", answer.last.job).state] == "DONE"
    assert not list((server.settings.folder / "jobs").iterdir())


def test_what_was_compiled_is_neither_uploaded_nor_compiled_again(client: Client, server: CompileServer) -> None:
    first = client.compile(b"good 2")
    compiles = server.jobs.compiles
    second = client.compile(b"good 2")
    assert second.states == ["DONE"] and second.last.cached and not first.last.cached
    assert second.last.job != first.last.job
    assert server.jobs.compiles == compiles
    assert client.compile(b"good 2", targets=["x86-64-v4"]).states[0] == "UPLOAD"
    assert client.compile(b"good 2", dtype="bf16").states[0] == "UPLOAD"
    assert client.compile(b"good 2", threads=3).states[0] == "UPLOAD"


@pytest.mark.filterwarnings("ignore:the compile cache held a damaged entry")
def test_a_damaged_result_is_compiled_again(client: Client, server: CompileServer) -> None:
    client.compile(b"good 3")
    newest = max((server.settings.folder / "results").glob("*.disc"), key=lambda path: path.stat().st_mtime_ns)
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    answer = client.compile(b"good 3")
    assert answer.states[0] == "UPLOAD" and answer.states[-1] == "DONE"
    assert sha(client.fetch(answer.last.job)) == answer.last.result.sha256


def test_one_compile_for_many_equal_requests(client: Client, server: CompileServer) -> None:
    compiles = server.jobs.compiles
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(client.compile(b"slow 1"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.states[-1] for answer in answers] == ["DONE"] * 4
    assert len({answer.last.job for answer in answers}) == 4
    assert server.jobs.compiles == compiles + 1


# ---- Jobs that do harm: each beside one that does well

HARM = {
    "eat": ("RESOURCE_EXHAUSTED", "the job needed more than 512 MiB of memory", "JobLimitError"),
    "disk": ("RESOURCE_EXHAUSTED", "the job needed more than 4 MiB of disk", "JobLimitError"),
    "file": ("RESOURCE_EXHAUSTED", "the job needed more than 4 MiB of disk", "JobLimitError"),
    "crash": ("INTERNAL", "the compiler crashed on this program (SIGSEGV)", "ModelFailedError"),
    "refuse": ("INVALID_ARGUMENT", "program: 1 op of this model cannot be compiled", "UnsupportedOpError"),
    "bug": ("INTERNAL", FAULT, "ModelFailedError"),
    "nothing": ("INTERNAL", FAULT, "ModelFailedError"),
    "half": ("INTERNAL", FAULT, "ModelFailedError"),
    "link": ("INTERNAL", FAULT, "ModelFailedError"),
    "pipe": ("INTERNAL", FAULT, "ModelFailedError"),
    "noise": ("INTERNAL", FAULT, "ModelFailedError"),
}


@pytest.mark.parametrize("word", HARM)
def test_harm_is_contained(client: Client, server: CompileServer, word: str) -> None:
    contained(client, server, word, HARM[word])


@pytest.mark.parametrize(("word", "limit", "text"), [("hang", "wall_s", "more than 3 s"), ("spin", "cpu_s", "more than 3 s of CPU time")])
def test_time_is_limited(tmp_path: Path, word: str, limit: str, text: str) -> None:
    with running(tmp_path, jobs=2, limits=replace(LIMITS, **{limit: 3})) as server:
        contained(Client(server), server, word, ("RESOURCE_EXHAUSTED", f"the job took {text}", "JobLimitError"))


def contained(client: Client, server: CompileServer, word: str, expected: tuple[str, str, str]) -> None:
    good: list[Answer] = []
    beside = threading.Thread(target=lambda: good.append(client.compile(f"good beside {word}".encode())))
    beside.start()
    answer = client.compile(word.encode())
    assert (answer.code, answer.text, answer.kind) == expected
    assert answer.states[-1] == "FAILED" and answer.last.error == expected[1]
    beside.join()
    assert good[0].states[-1] == "DONE"
    assert not list((server.settings.folder / "jobs").iterdir())
    with pytest.raises(grpc.RpcError, match="the job has no result"):
        client.fetch(answer.last.job)


def test_odd_words_and_children_of_a_worker(client: Client) -> None:
    assert client.compile(b"deep").states[-1] == "DONE"
    assert client.compile(b"child").states[-1] == "DONE"


def test_a_job_reaches_neither_network_nor_files(client: Client, server: CompileServer) -> None:
    from disc.serving.compile_service.process import what_is_closed

    closed = what_is_closed(server.settings.folder)
    answer = client.compile(f"reach {server.port}".encode())
    assert answer.kind == "Reached"
    if closed["network"] == "closed":
        assert "network: Network is unreachable" in answer.text
    if closed["files"] == "closed":
        assert "files: Permission denied" in answer.text
    assert not (server.settings.folder / "jobs" / "elsewhere").exists()


# ---- Queue, cancelling, leaving


def test_a_full_queue_refuses_and_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, jobs=1, limits=replace(LIMITS, wall_s=100)) as server:
        client = Client(server)
        programs = [(b"hang", "RUNNING"), (b"hang ", "QUEUED"), (b"hang  ", "QUEUED")]
        running_, *waiting = (
            client.answer(_until_state(client.stream(iter(client.requests(program, detached=True))), {state}))
            for program, state in programs
        )
        refused = client.compile(b"good")
        assert (refused.code, refused.text) == ("RESOURCE_EXHAUSTED", "the queue is full: 2 jobs wait")
        assert client.unary("Status", waiting[-1].last.job).ahead == 1
        for answer in (running_, *waiting):
            assert STATES[client.unary("Cancel", answer.last.job).state] == "CANCELLED"
        assert client.compile(b"good").states[-1] == "DONE"


def _until_state(call: Any, wanted: set[str]) -> Iterator[bytes]:
    for data in call:
        yield data
        if STATES[EVENT.FromString(data).state] in wanted:
            call.cancel()
            return


def test_cancelling_ends_a_job_only_when_nobody_else_waits(client: Client, server: CompileServer) -> None:
    first = client.answer(_until_state(client.stream(iter(client.requests(b"slow 2", detached=True))), {"RUNNING"}))
    second = client.answer(_until_state(client.stream(iter(client.requests(b"slow 2", detached=True))), {"RUNNING"}))
    assert STATES[client.unary("Cancel", first.last.job).state] == "CANCELLED"
    until(lambda: STATES[client.unary("Status", second.last.job).state] == "DONE")
    assert STATES[client.unary("Status", first.last.job).state] == "CANCELLED"


def test_a_client_that_leaves_takes_its_job_along(client: Client, server: CompileServer) -> None:
    left = client.answer(_until_state(client.stream(iter(client.requests(b"hang 3"))), {"RUNNING"}))
    until(lambda: STATES[client.unary("Status", left.last.job).state] == "CANCELLED")
    until(lambda: not list((server.settings.folder / "jobs").iterdir()))


# ---- Requests that are refused; the next good one is answered

GOOD = {"format": 1, "program": {"size": 4, "sha256": sha(b"good")}, "targets": ["x86-64-v3"]}
IMPORTED = {**GOOD, "format": 2, "weights": {"size": 8, "sha256": sha(b"x" * 8)}, "compiler": compiler_name()}
TARGETS = "targets: give one or more of x86-64-v3, x86-64-v4,"


def job(**fields: object) -> bytes:
    return REQUEST(job={**GOOD, **fields}).SerializeToString()


def piece(content: bytes) -> bytes:
    return REQUEST(piece={"data": content}).SerializeToString()


REFUSED: dict[str, tuple[list[bytes], str]] = {
    "nothing": ([], "the first message must describe the job"),
    "no protobuf": ([b"\xff\xff\xff"], "the message is no CompileRequest"),
    "an empty message": ([b""], "the first message must describe the job"),
    "a piece first": ([piece(b"good")], "the first message must describe the job"),
    "no format": ([job(format=0)], "format 0: the formats are STABLEHLO (1) and IMPORTED (2)"),
    "another format": ([job(format=7)], "format 7: the formats are STABLEHLO (1) and IMPORTED (2)"),
    "no program": ([job(program=None)], "program: its size is 0"),
    "a short hash": ([job(program={"size": 4, "sha256": b"x"})], "program: sha256 has 1 bytes, not 32"),
    "larger than allowed": ([job(program={"size": 1 << 21, "sha256": bytes(32)})], f"the program and its weights have {1 << 21} bytes; {1 << 20} are the limit"),
    "2^64-1 bytes": ([job(program={"size": 2**64 - 1, "sha256": bytes(32)})], f"the program and its weights have {2**64 - 1} bytes; {1 << 20} are the limit"),
    "sizes whose sum wraps": ([REQUEST(job={**IMPORTED, "program": {"size": 2**63, "sha256": bytes(32)}, "weights": {"size": 2**63, "sha256": bytes(32)}}).SerializeToString()], f"the program and its weights have {2**64} bytes; {1 << 20} are the limit"),
    "weights of StableHLO": ([job(weights={"size": 1, "sha256": bytes(32)})], "weights: a program of StableHLO has its weights inside"),
    "an imported program without weights": ([job(format=2, compiler=compiler_name())], "weights: an imported program needs a safetensors file"),
    "another compiler": ([REQUEST(job={**IMPORTED, "compiler": "disc 9"}).SerializeToString()], "the program was made by 'disc 9'; this service has"),
    "an imported program to embed": ([REQUEST(job={**IMPORTED, "embed_stablehlo": True}).SerializeToString()], "embed_stablehlo: only a program of StableHLO"),
    "no target": ([job(targets=[])], TARGETS),
    "native": ([job(targets=["native"])], TARGETS),
    "a target twice": ([job(targets=["x86-64-v3"] * 2)], TARGETS),
    "a target that is a path": ([job(targets=["../../etc/passwd"])], TARGETS),
    "unknown dtype": ([job(dtype="f8")], "dtype 'f8': the types are f32, bf16, f16, int8"),
    "too many threads": ([job(threads=2**32 - 1)], "threads: 1024 are the limit"),
    "no bytes": ([job()], "program: 4 bytes did not arrive"),
    "too few bytes": ([job(), piece(b"goo")], "program: 1 bytes did not arrive"),
    "too many bytes": ([job(), piece(b"good!")], "more bytes received than declared"),
    "other bytes": ([job(), piece(b"evil")], "program: the bytes received have another SHA-256 than declared"),
    "an empty piece": ([job(), piece(b"")], "program: expected a piece of it"),
    "two descriptions": ([job(), job()], "program: expected a piece of it"),
    "garbage in the middle": ([job(), b"\xff\xff\xff"], "the message is no CompileRequest"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(client: Client, server: CompileServer, name: str) -> None:
    requests, text = REFUSED[name]
    answer = client.answer(client.stream(iter(requests)))
    assert answer.code == "INVALID_ARGUMENT"
    assert answer.text.startswith(text)
    assert str(server.settings.folder) not in answer.text
    assert not list((server.settings.folder / "jobs").iterdir())
    assert client.compile(b"good after").states[-1] == "DONE"


def test_a_message_beyond_the_limit(client: Client) -> None:
    content = b"x" * (LIMITS.message_bytes + (1 << 17))
    answer = client.answer(client.stream(iter([job(program={"size": len(content), "sha256": sha(content)}), piece(content)])))
    assert answer.code == "RESOURCE_EXHAUSTED"


def test_jobs_that_are_not_there(client: Client) -> None:
    for name in ("", "0" * 32, "../../etc/passwd", "\0"):
        for method in ("Status", "Cancel"):
            with pytest.raises(grpc.RpcError, match="there is no such job") as caught:
                client.unary(method, name)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(grpc.RpcError, match="there is no such job"):
            client.fetch(name)


def test_an_upload_that_stalls_is_cut_off(tmp_path: Path) -> None:
    with running(tmp_path, limits=replace(LIMITS, upload_s=0.5, uploads=1)) as server:
        client, release = Client(server), threading.Event()

        def stalls() -> Iterator[bytes]:
            yield job()
            release.wait(20)

        call = client.stream(stalls())
        assert STATES[EVENT.FromString(next(call)).state] == "UPLOAD"
        busy = client.compile(b"good")
        assert (busy.code, busy.text) in (("RESOURCE_EXHAUSTED", "1 clients upload programs already"), ("OK", ""))
        assert client.answer(call).code in ("CANCELLED", "INVALID_ARGUMENT")
        release.set()
        again = client.compile(b"good")
        for _ in range(100):  # the call ends before its place among the uploads is free
            if again.code != "RESOURCE_EXHAUSTED":
                break
            time.sleep(0.05)
            again = client.compile(b"good")
        assert again.states[-1] == "DONE"


def test_stalled_uploads_give_their_places_back(tmp_path: Path) -> None:
    """Those who begin an upload and send nothing, or a byte now and then."""
    with running(tmp_path, limits=replace(LIMITS, arrival_s=0.5, upload_rate=1 << 20, uploads=2)) as server, ExitStack() as stack:
        release = threading.Event()
        stack.callback(release.set)

        def stalls() -> Iterator[bytes]:
            yield job(program={"size": 100, "sha256": bytes(32)})
            release.wait(20)

        def drips() -> Iterator[bytes]:
            yield job(program={"size": 100, "sha256": bytes(32)})
            while not release.wait(0.2):
                yield piece(b"x")

        calls = [Client(server).stream(each()) for each in (stalls, drips)]
        assert [STATES[EVENT.FromString(next(call)).state] for call in calls] == ["UPLOAD", "UPLOAD"]
        assert {Client(server).answer(call).code for call in calls} == {"CANCELLED", "DEADLINE_EXCEEDED"}
        assert Client(server).compile(b"good").states[-1] == "DONE"


def test_calls_that_say_nothing_are_ended(tmp_path: Path) -> None:
    with running(tmp_path, limits=replace(LIMITS, arrival_s=0.5)) as server, ExitStack() as stack:
        release = threading.Event()
        stack.callback(release.set)

        def nothing() -> Iterator[bytes]:
            release.wait(20)
            yield from ()

        calls = [Client(server).stream(nothing()) for _ in range(4)]
        assert {Client(server).answer(call).code for call in calls} == {"CANCELLED"}


def test_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs move into their folders, so it must be known from there, too."""
    monkeypatch.chdir(tmp_path)
    with running(Path(), jobs=1) as server:
        assert server.settings.folder == tmp_path / "service"
        assert Client(server).compile(b"good").states[-1] == "DONE"


def test_messages_do_not_tell_where_the_service_is_installed(client: Client) -> None:
    assert client.compile(b"refuse-here").text == "lib/some.py and model.py:3: 1 op cannot be compiled"


def test_a_program_that_crashes_the_parser_is_the_clients(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        answer = Client(server).compile(b"crash-import")
        assert (answer.code, answer.text) == ("INVALID_ARGUMENT", "the program cannot be read: it is malformed, or nested too deeply")
        assert Client(server).compile(b"crash").code == "INTERNAL"  # where it was read, the fault is ours


def test_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("secret\n")
    with running(tmp_path, access=Access(inference_tokens=str(tmp_path / "tokens"))) as server:
        for client in (Client(server), Client(server, "wrong")):
            assert client.compile(b"good").code == "UNAUTHENTICATED"
            with pytest.raises(grpc.RpcError, match="token"):
                client.fetch("0" * 32)
        client = Client(server, "secret")
        assert len(client.fetch(client.compile(b"good").last.job)) > 1000


def test_stopping_tells_those_who_wait(tmp_path: Path) -> None:
    with running(tmp_path, jobs=1, limits=replace(LIMITS, wall_s=100)) as server:
        client = Client(server)
        answers: list[Answer] = []
        threads = [threading.Thread(target=lambda i=index: answers.append(client.compile(b"hang" + b" " * i))) for index in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: len(server.jobs._active) == 2)
    for thread in threads:
        thread.join()
    assert all(answer.states[-1] in ("CANCELLED", "FAILED") for answer in answers)


# ---- The client


def test_the_client_checks_what_it_fetches(server: CompileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from disc.serving.compile_service.client import Service, compile_remote

    (tmp_path / "a.mlir").write_text("good")
    service = Service(f"127.0.0.1:{server.port}")
    compile_remote(tmp_path / "a.mlir", service, tmp_path / "a.disc", target=["x86-64-v3"])
    good = (tmp_path / "a.disc").read_bytes()
    opened = server.jobs.open_result
    for content, text in ((good[:-1] + b"\0", "another SHA-256"), (good + b"x", "sent more than"), (good[:-1], "another SHA-256")):
        (tmp_path / "other").write_bytes(content)
        monkeypatch.setattr(server.jobs, "open_result", lambda _: open(tmp_path / "other", "rb"))  # noqa: SIM115
        with pytest.raises(ArtifactError, match=text):
            compile_remote(tmp_path / "a.mlir", service, tmp_path / "b.disc", target=["x86-64-v3"])
        monkeypatch.setattr(server.jobs, "open_result", opened)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.disc", "a.mlir", "other"]


def test_the_client_tells_what_the_service_says(server: CompileServer, tmp_path: Path) -> None:
    from disc.serving.compile_service.client import Service, compile_remote

    (tmp_path / "a.mlir").write_text("refuse")
    with pytest.raises(RemoteCompileError, match="1 op of this model cannot be compiled") as caught:
        compile_remote(tmp_path / "a.mlir", Service(f"127.0.0.1:{server.port}"), tmp_path / "a.disc")
    assert caught.value.kind == "UnsupportedOpError"
    with pytest.raises(RemoteCompileError, match=r"127\.0\.0\.1:9: ") as caught:
        compile_remote(tmp_path / "a.mlir", Service("127.0.0.1:9"), tmp_path / "a.disc")
    assert caught.value.kind == "UNAVAILABLE"
