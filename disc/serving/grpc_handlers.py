"""What every gRPC method of the server shares: parsing, access, and how errors become status codes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

import grpc

from disc.errors import OverloadedError, RequestError, ServingError
from disc.serving.access import Tokens
from disc.serving.codes import FAULT, code_of
from disc.serving.logs import log
from disc.serving.messages import DecodeError, Message, method_types

Unary = Callable[[bytes, grpc.ServicerContext], bytes]
MOST_STREAMS = 64  # of one service; each holds a thread as long as it is open


class Handlers:
    """Collects the methods of one service. Methods get and give bytes; `message_method` wraps one that works on messages."""

    def __init__(self, service: str, tokens: Tokens) -> None:
        self.service = service
        self._tokens = tokens
        self._methods: dict[str, grpc.RpcMethodHandler] = {}
        self._streams = threading.Semaphore(MOST_STREAMS)

    def unary(self, name: str, method: Unary, *, admin: bool = False) -> None:
        def handle(data: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                self.check(context, admin)
                return method(data, context)
            except Exception as error:
                failure = error
            abort(context, failure, name)

        self._methods[name] = grpc.unary_unary_rpc_method_handler(handle)

    def stream(self, name: str, method: Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]) -> None:
        def handle(data: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            try:
                self.check(context, False)
                with self._one_stream():
                    yield from method(data, context)
                return
            except Exception as error:
                failure = error
            abort(context, failure, name)

        self._methods[name] = grpc.stream_stream_rpc_method_handler(handle)

    @contextmanager
    def _one_stream(self) -> Iterator[None]:
        if not self._streams.acquire(blocking=False):
            raise OverloadedError(f"the server has {MOST_STREAMS} streams open")
        try:
            yield
        finally:
            self._streams.release()

    def answers(self, name: str, method: Callable[[bytes, grpc.ServicerContext], Iterator[bytes]]) -> None:
        """One request, a stream of answers; without a token (health)."""
        self._methods[name] = grpc.unary_stream_rpc_method_handler(method)

    def open_unary(self, name: str, method: Unary) -> None:
        """A method that needs no token (health)."""
        self._methods[name] = grpc.unary_unary_rpc_method_handler(method)

    def message_method(self, name: str, method: Callable[[Message], Mapping[str, object]], *, admin: bool = False) -> None:
        """`method` gets the request message and gives the fields of the response."""
        request_class, response_class = method_types(self.service, name)

        def call(data: bytes, context: grpc.ServicerContext) -> bytes:
            return response_class(**method(parsed(request_class, data))).SerializeToString()

        self.unary(name, call, admin=admin)

    def check(self, context: grpc.ServicerContext, admin: bool) -> None:
        if self._tokens.checked:
            given = next((str(value) for key, value in context.invocation_metadata() if key == "authorization"), None)
            self._tokens.check(given, admin=admin)

    def generic(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(self.service, self._methods)


def parsed(kind: Message, data: bytes) -> Message:
    """Raises RequestError for bytes that are no such message."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise RequestError(f"the message is no {kind.DESCRIPTOR.name}") from None


def abort(context: grpc.ServicerContext, error: Exception, method: str) -> NoReturn:
    """Ends the call with the status of this error."""
    if isinstance(error, ServingError):
        context.abort(grpc.StatusCode[code_of(error)[0]], str(error))
    if not context.is_active():
        raise error
    log("fault", method=method, error=f"{type(error).__name__}: {error}")
    context.abort(grpc.StatusCode.INTERNAL, FAULT)
    raise AssertionError("abort raises")
