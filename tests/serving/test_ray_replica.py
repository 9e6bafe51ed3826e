"""What a replica on Ray Serve does, without Ray: a copy of a call's context, messages as bytes. The cluster itself: test_ray_cluster.py."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import grpc
import numpy as np
import pytest
from oip_client import infer_fields, results, write_twice

from disc.errors import ConfigurationError, ModelNotFoundError, NotReadyError, RequestError
from disc.serving.messages import INFERENCE, message, service
from disc.serving.ray.replica import CHECK, Aborted, CallContext, Replica, Reply, Rest, check_settings, revision_of
from disc.serving.settings import ServerSettings, settings_of

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Context:
    """Ray's copy of a call's context."""

    def __init__(self, metadata: Mapping[str, str] | None = None) -> None:
        self.metadata = list((metadata or {}).items())
        self.code: grpc.StatusCode | None = None
        self.details = ""

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return self.metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    write_twice(tmp_path / "twice.disc")
    return Replica(str(tmp_path / "twice.disc"), ServerSettings(), "r1")


def request(name: str = "twice", **more: object) -> bytes:
    return message("inference.ModelInferRequest")(**infer_fields(name, {"x": X}, **more)).SerializeToString()


def call(replica: Replica, method: str, data: bytes, context: Context | None = None) -> bytes:
    """As Ray's proxy and replica do it, to the last step: the result serializes itself."""
    return asyncio.run(getattr(replica, method)(data, grpc_context=context or Context())).SerializeToString()


def test_every_method_of_the_protocol_can_be_called(replica: Replica) -> None:
    for name in service(INFERENCE).methods_by_name:
        assert callable(getattr(replica, name))
    answer = message("inference.ModelInferResponse").FromString(call(replica, "ModelInfer", request(id="7")))
    assert answer.id == "7" and np.array_equal(results(answer)["y"], 2 * X)
    ready = message("inference.ModelReadyResponse").FromString(
        call(replica, "ModelReady", message("inference.ModelReadyRequest")(name="twice").SerializeToString())
    )
    assert ready.ready
    assert message("grpc.health.v1.HealthCheckResponse").FromString(call(replica, CHECK, b"")).status == 1


@pytest.mark.parametrize(
    ("method", "data", "code"),
    [
        ("ModelInfer", request("nobody"), "NOT_FOUND"),
        ("ModelInfer", b"\xff\xff", "INVALID_ARGUMENT"),
        ("RepositoryModelUnload", b"", "UNIMPLEMENTED"),
        ("SystemSharedMemoryRegister", b"", "UNIMPLEMENTED"),
        (CHECK, message("grpc.health.v1.HealthCheckRequest")(service="nothing").SerializeToString(), "NOT_FOUND"),
    ],
)
def test_an_error_is_a_status_of_the_call(replica: Replica, method: str, data: bytes, code: str) -> None:
    context = Context()
    with pytest.raises(Aborted) as aborted:
        call(replica, method, data, context)
    assert context.code is not None and context.code.name == code and context.details
    moved = copy.copy(aborted.value)  # as between processes, where it is made anew
    assert str(moved) == f"{code}: {context.details}" == str(aborted.value)
    assert results(message("inference.ModelInferResponse").FromString(call(replica, "ModelInfer", request())))


def test_a_token_is_asked_for_where_there_are_tokens(tmp_path: Path) -> None:
    write_twice(tmp_path / "twice.disc")
    (tmp_path / "tokens").write_text("secret\n")
    settings = settings_of({"access": {"inference_tokens": str(tmp_path / "tokens")}})
    replica = Replica(str(tmp_path / "twice.disc"), settings, "r1")
    context = Context()
    with pytest.raises(Aborted):
        call(replica, "ModelInfer", request(), context)
    assert context.code is grpc.StatusCode.UNAUTHENTICATED
    assert call(replica, "ModelInfer", request(), Context({"authorization": "Bearer secret"}))
    assert rest(replica, "POST", "/v2/models/twice/infer", b"{}").status == 401


def test_a_stream_is_answered_in_order_and_survives_a_bad_request(replica: Replica) -> None:
    async def run() -> list[bytes]:
        async def requests() -> AsyncIterator[bytes]:
            for data in (request(id="a"), request("nobody"), request(id="c")):
                yield data

        return [each.SerializeToString() async for each in replica.ModelStreamInfer(requests(), grpc_context=Context())]

    answers = [message("inference.ModelStreamInferResponse").FromString(data) for data in asyncio.run(run())]
    assert [each.infer_response.id for each in answers] == ["a", "", "c"]
    assert "nobody" in answers[1].error_message


def test_a_client_that_goes_withdraws_its_request(tmp_path: Path) -> None:
    """The second call waits behind the first one, and is never run."""
    write_twice(tmp_path / "twice.disc", ms=300)
    replica = Replica(str(tmp_path / "twice.disc"), ServerSettings(), "r1")
    model = replica._core.repository.find("twice")

    async def run() -> None:
        first = asyncio.create_task(replica.unary("ModelInfer", request(), Context()))
        while not model.batcher._leaders or model.batcher.waiting:
            await asyncio.sleep(0.01)
        second = asyncio.create_task(replica.unary("ModelInfer", request(), Context()))
        while not model.batcher.waiting:
            await asyncio.sleep(0.01)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert isinstance(await first, Reply)

    asyncio.run(run())
    deadline = time.monotonic() + 30
    while model.statistics.read(lambda totals: totals.failures["CANCELED"].count) != 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert model.executable.stats()["counters"]["rows"] == 2


def test_a_context_that_has_ended_takes_no_callback() -> None:
    context, called = CallContext(()), threading.Event()
    assert context.add_callback(called.set)
    context.cancel()
    assert called.is_set() and not context.is_active() and not context.add_callback(called.set)


# --- HTTP and Python ------------------------------------------------------------------------------------------------------------


def rest(replica: Replica, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Rest:
    return asyncio.run(replica.rest(method, path, headers or {}, body))


def test_the_rest_form(replica: Replica) -> None:
    asked = {"id": "h", "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": X.reshape(-1).tolist()}]}
    answer = rest(replica, "POST", "/v2/models/twice/infer", json.dumps(asked).encode())
    assert answer.status == 200 and json.loads(answer.body)["outputs"][0]["data"] == (2 * X).reshape(-1).tolist()
    assert rest(replica, "GET", "/v2/health/ready").status == 200
    assert json.loads(rest(replica, "GET", "/v2/models/twice/ready").body)["ready"] is True
    for method, path, code in (
        ("GET", "/v2/models/nobody/ready", 404),
        ("GET", "/elsewhere", 404),
        ("POST", "/v2/models/twice/infer", 400),
    ):
        failed = rest(replica, method, path, b"{")
        assert failed.status == code and "error" in json.loads(failed.body)


def test_the_python_form(replica: Replica) -> None:
    assert np.array_equal(asyncio.run(replica.infer("twice", {"x": X}))["y"], 2 * X)
    with pytest.raises(RequestError, match="FP64"):
        asyncio.run(replica.infer("twice", {"x": X.astype(np.float64)}))
    with pytest.raises(RequestError, match="no input 'z'"):
        asyncio.run(replica.infer("twice", {"z": X}))
    with pytest.raises(ModelNotFoundError):
        asyncio.run(replica.infer("nobody", {"x": X}))


# --- what is deployed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [{"admin": True}, {"shared_memory": True}, {"tls": {"certificate": "c.pem", "key": "k.pem"}}])
def test_settings_that_cannot_work_behind_a_proxy_are_refused(table: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(table))):
        check_settings(settings_of(table))


def test_a_replica_whose_model_cannot_be_loaded_does_not_start(tmp_path: Path) -> None:
    write_twice(tmp_path / "twice.disc")
    data = bytearray((tmp_path / "twice.disc").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "twice.disc").write_bytes(data)
    with pytest.raises(NotReadyError, match="could not be loaded"):
        Replica(str(tmp_path / "twice.disc"), ServerSettings(), "r1")


def test_a_revision_changes_with_the_models(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="neither an artifact nor a folder"):
        revision_of(tmp_path)
    first = tmp_path / "twice" / "1" / "model.disc"
    first.parent.mkdir(parents=True)
    write_twice(first)
    before = revision_of(tmp_path)
    assert revision_of(tmp_path) == before
    (tmp_path / "twice" / "2").mkdir()
    write_twice(tmp_path / "twice" / "2" / "model.disc")
    assert revision_of(tmp_path) != before
    assert revision_of(first) not in (before, revision_of(tmp_path))
