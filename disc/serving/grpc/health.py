"""`grpc.health.v1.Health` and server reflection, on the private descriptor pool.

Not grpcio-health-checking and grpcio-reflection: their methods register with gRPC themselves, so that calls whose request never arrives
could not be ended (`handlers.py`) and watchers not be counted; and reflection would describe the default pool.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Protocol

import grpc

from disc.errors import ModelNotFoundError, OverloadedError
from disc.serving.access import Tokens
from disc.serving.grpc.arrivals import Arrivals
from disc.serving.grpc.handlers import Handlers, parsed
from disc.serving.messages import INFERENCE, POOL, Message, file_of, message

HEALTH = "grpc.health.v1.Health"
REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
MOST_WATCHERS = 16  # each holds a thread
LOOK_S = 0.2  # how soon a watcher that has gone gives its thread back

_CHECK = message("grpc.health.v1.HealthCheckRequest")
_STATUS = message("grpc.health.v1.HealthCheckResponse")
_REFLECT = message("grpc.reflection.v1.ServerReflectionRequest")
_REFLECTED = message("grpc.reflection.v1.ServerReflectionResponse")


class Readiness(Protocol):
    """What health is about."""

    @property
    def ready(self) -> bool: ...

    def wait_change(self, ready: bool, timeout: float) -> bool:
        """Waits until readiness differs from `ready`; returns what it is."""
        ...


class Switch:
    """Readiness of a server that is ready or not."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ready = False

    @property
    def ready(self) -> bool:
        return self._ready

    def set(self, ready: bool) -> None:
        with self._changed:
            self._ready = ready
            self._changed.notify_all()

    def wait_change(self, ready: bool, timeout: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._ready != ready, timeout)
            return self._ready


class HealthService:
    """Whether requests should be sent here. Needs no token: probes have none."""

    def __init__(self, core: Readiness, tokens: Tokens, arrivals: Arrivals, service: str = INFERENCE) -> None:
        """service: the one whose health this is."""
        self._core = core
        self._names = ("", service, HEALTH)
        self._watchers = threading.Semaphore(MOST_WATCHERS)
        handlers = Handlers(HEALTH, tokens, arrivals)
        handlers.unary("Check", self._check, open_to_all=True)
        handlers.answers("Watch", self._watch, open_to_all=True)
        self.generic = handlers.generic()

    def _check(self, data: bytes, _: grpc.ServicerContext) -> bytes:
        if _service_name(data) not in self._names:
            raise ModelNotFoundError("there is no such service")
        return self._answer(self._core.ready)

    def _answer(self, ready: bool) -> bytes:
        return _STATUS(status=SERVING if ready else NOT_SERVING).SerializeToString()

    def _watch(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        name = _service_name(data)
        if not self._watchers.acquire(blocking=False):
            raise OverloadedError(f"at most {MOST_WATCHERS} clients watch")
        try:
            if name not in self._names:
                yield _STATUS(status=SERVICE_UNKNOWN).SerializeToString()
                while context.is_active():  # the protocol requires the call to stay open
                    self._core.wait_change(self._core.ready, LOOK_S)
                return
            ready = self._core.ready
            yield self._answer(ready)
            while context.is_active():
                now = self._core.wait_change(ready, LOOK_S)
                if now != ready:
                    ready = now
                    yield self._answer(ready)
        finally:
            self._watchers.release()


def _service_name(data: bytes) -> str:
    return parsed(_CHECK, data).service


def reflection(tokens: Tokens, arrivals: Arrivals, service: str = INFERENCE) -> list[grpc.GenericRpcHandler]:
    """Both versions of the reflection protocol, whose messages are the same, for a server of `service`."""
    made: list[grpc.GenericRpcHandler] = []
    for version in REFLECTION:
        handlers = Handlers(version, tokens, arrivals)
        handlers.stream("ServerReflectionInfo", lambda requests, _: _reflect(requests, service))
        made.append(handlers.generic())
    return made


def _reflect(requests: Iterator[bytes], service: str) -> Iterator[bytes]:
    for data in requests:
        request = parsed(_REFLECT, data)
        response = _REFLECTED(valid_host=request.host, original_request=request)
        _fill(response, request, service)
        yield response.SerializeToString()


def _fill(response: Message, request: Message, service: str) -> None:
    asked = request.WhichOneof("message_request")
    if asked == "list_services":
        for name in (service, HEALTH, *REFLECTION):
            response.list_services_response.service.add(name=name)
        return
    try:
        if asked == "file_containing_symbol":
            file = file_of(request.file_containing_symbol)
        elif asked == "file_by_filename":
            file = POOL.FindFileByName(request.file_by_filename)
        else:
            raise KeyError(asked)
    except KeyError:
        response.error_response.error_code = grpc.StatusCode.NOT_FOUND.value[0]
        response.error_response.error_message = "not found"
        return
    response.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)
