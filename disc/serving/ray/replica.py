"""What one replica of the Ray Serve deployment runs: the gRPC methods of the server, given bytes by Ray's proxy. Needs no Ray itself.

Ray's proxy calls the method of a deployment that has the name of the RPC, with what the service's deserializer made of the request and
with a copy of the call's context. Ours deserializes nothing, so requests travel as bytes and the messages stay in their private pool.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import grpc

from disc.errors import ConfigurationError, ModelNotFoundError, NotReadyError, RequestError, ServingError
from disc.serving.access import Tokens
from disc.serving.artifact_watch import ArtifactWatch
from disc.serving.codes import code_of
from disc.serving.core import Core
from disc.serving.datatypes import DATATYPES
from disc.serving.grpc.arrivals import Arrivals, Patience
from disc.serving.grpc.handlers import FAULT
from disc.serving.grpc.health import HEALTH, HealthService
from disc.serving.grpc.inference import InferenceService
from disc.serving.grpc.wire import raw_bytes
from disc.serving.holding import Holding
from disc.serving.http.json_form import HEADER_LENGTH, read_request, write_answer
from disc.serving.logs import log
from disc.serving.messages import INFERENCE, service
from disc.serving.model import LoadedModel
from disc.serving.repository import FILE_NAME, SUFFIX, Repository
from disc.serving.request import Request
from disc.serving.settings import ServerSettings
from disc.serving.shared_memory import Regions
from disc.serving.tensors import Array, GivenTensor

STREAM = "ModelStreamInfer"
UNARY = tuple(name for name in service(INFERENCE).methods_by_name if name != STREAM)
JSON = "application/json"
CHECK = "Check"  # of grpc.health.v1.Health, for probes; Watch is not offered through Ray

Result = TypeVar("Result")


class Reply(bytes):
    """A response message that is bytes already: Ray calls the serializer of every result of a gRPC method."""

    def SerializeToString(self) -> bytes:
        return bytes(self)


class RayContext(Protocol):
    """What of Ray's copy of the call's context is used."""

    def invocation_metadata(self) -> Sequence[tuple[str, str]]: ...
    def set_code(self, code: grpc.StatusCode) -> None: ...
    def set_details(self, details: str) -> None: ...


class Aborted(Exception):
    """A call ended by a status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(code, details)  # both, for Ray makes the exception anew from its `args` in the proxy
        self.code = code
        self.details = details

    def __str__(self) -> str:
        return f"{self.code.name}: {self.details}"


class CallContext:
    """The part of `grpc.ServicerContext` that the server's methods use, for a call that came through Ray's proxy.

    The proxy keeps the client's deadline to itself and cancels the call when it has passed: there is never any time remaining to see.
    """

    def __init__(self, metadata: Sequence[tuple[str, str]]) -> None:
        self._metadata = metadata
        self._change = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self._active = True

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        return self._metadata

    def time_remaining(self) -> float | None:
        return None

    def is_active(self) -> bool:
        return self._active

    def add_callback(self, callback: Callable[[], object]) -> bool:
        """False, and nothing is kept, when the call has ended."""
        with self._change:
            if self._active:
                self._callbacks.append(callback)
            return self._active

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Aborted(code, details)

    def cancel(self) -> None:
        """The client has gone."""
        with self._change:
            self._active = False
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class Rest(NamedTuple):
    """An answer over HTTP."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Called(NamedTuple):
    """What a generic handler looks a method up by (`grpc.HandlerCallDetails`)."""

    method: str
    invocation_metadata: Sequence[tuple[str, str]] = ()


class Replica:
    """Answers for an artifact, or for a folder of `name/version/model.disc`, whose path must be the same on every node."""

    def __init__(self, path: str, settings: ServerSettings, revision: str) -> None:
        """revision: names the contents of `path`; Ray replaces the replicas when it changes.

        Raises ConfigurationError, and NotReadyError when a model cannot be loaded: then Ray keeps the replicas of the revision before.
        """
        check_settings(settings)
        self.revision = revision
        self._core = Core(Repository(Path(path), settings), settings)
        self._regions = Regions(False, Holding(0))
        self._tokens = Tokens(settings.access)
        self._pool = ThreadPoolExecutor(settings.limits.requests, thread_name_prefix="disc-ray")
        repository = self._core.repository
        for name in repository.scan():
            repository.load(name)
        if not repository.models():
            raise NotReadyError("there is no model in the given folder")
        self._artifacts = ArtifactWatch(repository)
        self._artifacts.start()
        arrivals = Arrivals(Patience(0, 0, 0, 0))  # never started: Ray's proxy brings whole messages
        inference = InferenceService(self._core, self._regions, self._tokens, arrivals).generic
        health = HealthService(self._core, self._tokens, arrivals).generic
        self._handlers = {name: _method(inference, INFERENCE, name) for name in (*UNARY, STREAM)} | {CHECK: _method(health, HEALTH, CHECK)}
        self._core.open()

    # --- gRPC ---------------------------------------------------------------------------------------------------------------

    async def unary(self, name: str, data: bytes, grpc_context: RayContext) -> Reply:
        """Answers the RPC `name`. Raises Aborted, after its status is in `grpc_context`."""
        handler = cast("Callable[[Iterator[bytes], CallContext], bytes]", self._handlers[name].stream_unary)
        context = CallContext(grpc_context.invocation_metadata())
        try:
            return Reply(await self._in_thread(lambda: handler(iter([data]), context), context))
        except Aborted as error:
            grpc_context.set_code(error.code)
            grpc_context.set_details(error.details)
            raise

    async def ModelStreamInfer(self, requests: Any, grpc_context: RayContext) -> Any:
        """Answers in the order of the requests, an error by its text."""
        handler = cast("Callable[[Iterator[bytes], CallContext], Iterator[bytes]]", self._handlers[STREAM].stream_stream)
        async for data in requests:
            context = CallContext(grpc_context.invocation_metadata())  # of this request: it keeps what it is given
            try:
                answers = await self._in_thread(lambda data=data, context=context: list(handler(iter([data]), context)), context)
            except Aborted as error:
                grpc_context.set_code(error.code)
                grpc_context.set_details(error.details)
                raise
            for answer in answers:
                yield Reply(answer)

    async def _in_thread(self, work: Callable[[], Result], context: CallContext) -> Result:
        """`work`, withdrawn when the client goes."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        except asyncio.CancelledError:
            context.cancel()
            raise

    # --- HTTP and Python ----------------------------------------------------------------------------------------------------

    async def rest(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Rest:
        """Answers a request of the protocol's REST form: health, metadata, inference. headers: names in lower case."""
        try:
            if not path.startswith("/v2/health/"):
                self._tokens.check(headers.get("authorization"), admin=False)
            content, length = await self._routed(method, path, headers, body)
        except ServingError as error:
            return Rest(code_of(error)[1], {"content-type": JSON}, json.dumps({"error": str(error)}).encode())
        except Exception as error:
            log("fault", method=path, error=f"{type(error).__name__}: {error}")
            return Rest(500, {"content-type": JSON}, json.dumps({"error": FAULT}).encode())
        more = {"content-type": JSON} if length is None else {"content-type": "application/octet-stream", HEADER_LENGTH: str(length)}
        return Rest(200, more, content)

    async def _routed(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[bytes, int | None]:
        """The body of an answer, and how many bytes of it are JSON where tensors follow."""
        match [method, *path.strip("/").split("/")]:
            case ["GET", "v2", "health", "live" | "ready" as what]:
                return json.dumps({what: True}).encode(), None  # Ray sends nothing to a replica that is not ready
            case ["GET", "v2"]:
                return json.dumps(self._core.metadata()).encode(), None
            case ["GET", "v2", "models", model]:
                return json.dumps(self._core.model_metadata(model, "")).encode(), None
            case ["GET", "v2", "models", model, "ready"]:
                return json.dumps({"name": self._core.repository.find(model).name, "ready": True}).encode(), None
            case ["POST", "v2", "models", model, "infer"]:
                return await self._rest_infer(model, "", headers, body)
            case ["POST", "v2", "models", model, "versions", version, "infer"]:
                return await self._rest_infer(model, version, headers, body)
        raise ModelNotFoundError(f"there is no {method} {path[:100]}")

    async def _rest_infer(self, model: str, version: str, headers: Mapping[str, str], body: bytes) -> tuple[bytes, int | None]:
        if len(body) > self._core.settings.limits.message_bytes:
            raise RequestError(f"the body has more than {self._core.settings.limits.message_bytes} bytes")
        context = CallContext(())
        limits = self._core.settings.limits

        def run() -> tuple[bytes, int | None]:
            asked, wanted = read_request(model, version, body, headers.get(HEADER_LENGTH.lower()), self._regions, limits)
            return write_answer(self._core.infer(asked, context.add_callback), wanted)

        return await self._in_thread(run, context)

    async def infer(self, model: str, inputs: Mapping[str, Array], version: str = "") -> dict[str, Array]:
        """For handles within Ray: NumPy arrays by name in, the outputs by name out. Raises ServingError."""
        context = CallContext(())
        found = self._core.repository.find(model, version)
        tensors = [_tensor(found, name, array) for name, array in inputs.items()]
        request = Request(model, version, "", {}, tensors, [])
        answer = await self._in_thread(lambda: self._core.infer(request, context.add_callback), context)
        return {name: array for name, _, array in answer.outputs}

    @property
    def answered(self) -> int:
        """Requests answered so far, errors included."""
        return self._core.answered

    @property
    def models(self) -> list[str]:
        """ "name:version" of each loaded model."""
        return [f"{model.name}:{model.version}" for model in self._core.repository.models()]


def check_settings(settings: ServerSettings) -> None:
    """Raises ConfigurationError for what cannot work behind Ray's proxy."""
    if settings.tls is not None:
        raise ConfigurationError("[tls] is for disc serve: Ray's proxy takes the connections (put TLS before it, or set RAY_USE_TLS)")
    if settings.admin:
        raise ConfigurationError("admin is for disc serve: a client reaches one replica of many; deploy again to change the models")
    if settings.shared_memory:
        raise ConfigurationError("shared_memory is for disc serve: a replica may be on another machine than its client")


def revision_of(path: Path) -> str:
    """Names what is at `path`: another one when a file was added, replaced or written. Raises ConfigurationError when no model is there."""
    found = Repository(path, ServerSettings()).scan()
    models = sorted(each for versions in found.values() for each in versions.values())
    if not models:
        raise ConfigurationError(f"{path} is neither an artifact nor a folder of NAME{SUFFIX} or NAME/VERSION/{FILE_NAME}")
    stamps = [f"{each.relative_to(path.parent)}:{each.stat().st_size}:{each.stat().st_mtime_ns}" for each in models]
    return hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]


def _method(generic: grpc.GenericRpcHandler, service_name: str, name: str) -> grpc.RpcMethodHandler:
    found = generic.service(cast("grpc.HandlerCallDetails", _Called(f"/{service_name}/{name}")))
    assert found is not None, name
    return found


def _tensor(model: LoadedModel, name: str, array: Array) -> GivenTensor:
    """bf16 comes as its bits (uint16), so the model's own type goes first."""
    position = model.signature.positions.get(name)
    own = [] if position is None else [model.signature.inputs[position].datatype]
    datatype = next((each.name for each in (*own, *DATATYPES.values()) if each.storage == array.dtype), str(array.dtype))
    return GivenTensor(name, datatype, array.shape, raw_bytes(array))


def _rpc(name: str) -> Callable[[Replica, bytes, RayContext], Awaitable[Reply]]:
    async def call(self: Replica, request: bytes, grpc_context: RayContext) -> Reply:
        return await self.unary(name, request, grpc_context)

    call.__name__ = name
    return call


for _name in (*UNARY, CHECK):
    setattr(Replica, _name, _rpc(_name))
