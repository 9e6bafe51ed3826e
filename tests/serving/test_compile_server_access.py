"""The compile server's door: TLS, client certificates, tokens, health and reflection; and the progress of a job, pass by pass."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from oip_client import failure
from test_access import certificate
from test_compile_service import FAKE, LIMITS

import disc
from disc.errors import RemoteCompileError
from disc.serving.compile_service.client import Service, compile_remote
from disc.serving.compile_service.request import SERVICE
from disc.serving.compile_service.service import CompileServer
from disc.serving.compile_service.settings import CompileSettings
from disc.serving.grpc.health import HEALTH, REFLECTION
from disc.serving.messages import message
from disc.serving.settings import Access, Tls

TWICE = (
    "func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {\n  %y = stablehlo.add %x, %x : tensor<?xf32>\n  return %y : tensor<?xf32>\n}\n"
)
CHECK, STATUS = message("grpc.health.v1.HealthCheckRequest"), message("grpc.health.v1.HealthCheckResponse")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("access")
    for name, authority in (("root", None), ("server", "root"), ("client", "root"), ("stranger", None)):
        certificate(folder, name, authority)
    (folder / "users.txt").write_text("compile-token\n")
    (folder / "good.mlir").write_text("good tls")  # what the compiler of these tests takes for a program
    return folder


@contextmanager
def running(folder: Path, state: Path, *, clients: bool = False, tokens: bool = False, tls: bool = True) -> Iterator[CompileServer]:
    files = Tls(str(folder / "server.pem"), str(folder / "server.key"), str(folder / "root.pem") if clients else None)
    access = Access(inference_tokens=str(folder / "users.txt")) if tokens else Access()
    server = CompileServer(
        CompileSettings(folder=state, port=0, limits=LIMITS, worker=FAKE, drain_timeout_s=0, tls=files if tls else None, access=access)
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


def service(server: CompileServer, folder: Path, **more: Any) -> Service:
    return Service(f"localhost:{server.port}", ca=folder / "root.pem", **more)


def refusal(work: Callable[[], object]) -> str:
    with pytest.raises(RemoteCompileError) as caught:
        work()
    return caught.value.kind


def test_tls_and_tokens(folder: Path, tmp_path: Path) -> None:
    """The client of `disc compile --remote` against a server that wants TLS and a token."""
    program, output = folder / "good.mlir", tmp_path / "model.disc"
    with running(folder, tmp_path / "state", tokens=True) as server:
        compile_remote(program, service(server, folder, token="compile-token"), output, target="x86-64-v3")
        assert output.read_bytes() == Path(FAKE[-1]).parents[1].joinpath("golden/0.1.0/linear.disc").read_bytes()
        output.unlink()
        for token in (None, "guess"):
            assert refusal(lambda token=token: compile_remote(program, service(server, folder, token=token), output)) == "UNAUTHENTICATED"
        distrusting = Service(f"localhost:{server.port}", ca=folder / "stranger.pem", token="compile-token")
        plain = Service(f"localhost:{server.port}", token="compile-token")
        assert refusal(lambda: compile_remote(program, distrusting, output)) == "UNAVAILABLE"
        assert refusal(lambda: compile_remote(program, plain, output)) == "UNAVAILABLE"
    assert not output.exists()


def test_client_certificates(folder: Path, tmp_path: Path) -> None:
    program, output = folder / "good.mlir", tmp_path / "model.disc"
    with running(folder, tmp_path / "state", clients=True) as server:
        own = {name: {"certificate": folder / f"{name}.pem", "key": folder / f"{name}.key"} for name in ("client", "stranger")}
        compile_remote(program, service(server, folder, **own["client"]), output, target="x86-64-v3")
        assert output.exists()
        assert refusal(lambda: compile_remote(program, service(server, folder, **own["stranger"]), output)) == "UNAVAILABLE"
        assert refusal(lambda: compile_remote(program, service(server, folder), output)) == "UNAVAILABLE"


def test_the_command_takes_the_certificate_and_the_token(folder: Path, tmp_path: Path) -> None:
    """`disc compile --remote --remote-ca --remote-token`, as a process."""
    (tmp_path / "good.mlir").write_text("good command")
    with running(folder, tmp_path / "state", tokens=True) as server:
        command = [sys.executable, "-m", "disc.cli", "compile", "good.mlir", "-o", "out.disc", "--target", "x86-64-v3",
                   "--remote", f"localhost:{server.port}", "--remote-ca", str(folder / "root.pem")]  # fmt: skip
        refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 1 and "token" in refused.stderr
        done = subprocess.run(
            [*command, "--remote-token", str(folder / "users.txt")], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0 and (tmp_path / "out.disc").exists(), done.stderr


# ---- Health and reflection


def test_health_needs_no_token_and_says_when_the_server_goes(folder: Path, tmp_path: Path) -> None:
    with (
        running(folder, tmp_path / "state", tokens=True, tls=False) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        check = channel.unary_unary(f"/{HEALTH}/Check")
        for name in ("", SERVICE, HEALTH):
            assert STATUS.FromString(check(CHECK(service=name).SerializeToString())).status == 1
        other = CHECK(service="inference.GRPCInferenceService").SerializeToString()
        assert failure(lambda: check(other))[0] == "NOT_FOUND"
        watched = channel.unary_stream(f"/{HEALTH}/Watch")(CHECK(service=SERVICE).SerializeToString(), timeout=20)
        assert STATUS.FromString(next(watched)).status == 1
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert STATUS.FromString(next(watched)).status == 2
        stopping.join()


def test_reflection_describes_the_service(folder: Path, tmp_path: Path) -> None:
    request, response = (message(f"grpc.reflection.v1.ServerReflection{kind}") for kind in ("Request", "Response"))
    with (
        running(folder, tmp_path / "state", tokens=True, tls=False) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        asked = [request(list_services="*"), request(file_containing_symbol=SERVICE)]
        for version in REFLECTION:
            call = channel.stream_stream(f"/{version}/ServerReflectionInfo")
            send = [each.SerializeToString() for each in asked]
            answers = call(iter(send), metadata=(("authorization", "Bearer compile-token"),), timeout=20)
            services, file = map(response.FromString, answers)
            assert {each.name for each in services.list_services_response.service} == {SERVICE, HEALTH, *REFLECTION}
            assert b"CompileEvent" in file.file_descriptor_response.file_descriptor_proto[0]
            assert failure(lambda call=call, send=send: list(call(iter(send), timeout=20)))[0] == "UNAUTHENTICATED"


# ---- Progress


def test_a_job_tells_its_passes(tmp_path: Path) -> None:
    """With the real compiler, and a program that its passes take a while for: the passes in their order, by share of the steps."""
    lines = [f"%{number + 1} = stablehlo.add %{number}, %x : tensor<?xf32>" for number in range(400)]
    body = "\n".join(["%0 = stablehlo.negate %x : tensor<?xf32>", *lines, "return %400 : tensor<?xf32>"])
    (tmp_path / "sum.mlir").write_text(f"func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {{\n{body}\n}}\n")
    server = CompileServer(CompileSettings(folder=tmp_path / "state", port=0))
    server.start()
    said: list[str] = []
    try:
        compile_remote(tmp_path / "sum.mlir", Service(f"127.0.0.1:{server.port}"), tmp_path / "sum.disc", on_progress=said.append)
    finally:
        server.stop()
    x = np.arange(3, dtype=np.float32)
    assert np.array_equal(disc.load(tmp_path / "sum.disc")(x), 399 * x)
    # A client sees where the job is whenever something has changed and it has been told before: not every one of the fast passes.
    steps = [(stage, int(percent)) for stage, _, percent in (text.rstrip(" %)").rpartition(" (") for text in said if text.endswith("%)"))]
    assert [percent for _, percent in steps] == sorted(percent for _, percent in steps)
    assert steps[0] == ("starting", 0) and ("generate-code", 50) in steps
    from disc.passes.pipelines import FRONT, FUSION, graph_passes

    passes = {each.name for each in (*FRONT, *graph_passes("f32"), *FUSION)}
    assert passes & {stage for stage, _ in steps}, steps
