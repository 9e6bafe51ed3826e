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
from disc.serving.grpc.arrivals import Arrivals
from disc.serving.logs import log
from disc.serving.messages import DecodeError, Message, method_types

Unary = Callable[[bytes, grpc.ServicerContext], bytes]
MOST_STREAMS = 64  # of one service; each holds a thread as long as it is open


class Handlers:
    """Collects the methods of one service. Methods get and give bytes; `message_method` wraps one that works on messages.

    To gRPC, each takes a stream of requests: the handlers of a single request get to run when it has arrived, and a call whose request
    never does could not be ended. On the wire there is no difference.
    """

    def __init__(self, service: str, tokens: Tokens, arrivals: Arrivals) -> None:
        self.service = service
        self._tokens = tokens
        self._arrivals = arrivals
        self._methods: dict[str, grpc.RpcMethodHandler] = {}
        self._streams = threading.Semaphore(MOST_STREAMS)

    def unary(self, name: str, method: Unary, *, admin: bool = False, open_to_all: bool = False) -> None:
        """open_to_all: needs no token (health)."""

        def handle(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            try:
                if not open_to_all:
                    self.check(context, admin)
                return method(self._arrived(requests, context), context)
            except Exception as error:
                failure = error
            abort(context, failure, name)

        self._methods[name] = grpc.stream_unary_rpc_method_handler(handle)

    def stream(self, name: str, method: Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]) -> None:
        def handle(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            try:
                self.check(context, False)
                with self._one_stream():
                    yield from self._taken(method(self._arriving(requests, context), context), context)
                return
            except Exception as error:
                failure = error
            abort(context, failure, name)

        self._methods[name] = grpc.stream_stream_rpc_method_handler(handle)

    def _arrived(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """The one request. Raises RequestError where the client ends the call without it."""
        waiting = self._arrivals.begin(context)
        try:
            return next(requests)
        except StopIteration:
            raise RequestError("the call has no message") from None
        finally:
            self._arrivals.end(waiting)

    def _arriving(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        while True:
            waiting = self._arrivals.begin(context, stream=True)
            try:
                data = next(requests, None)
            finally:
                self._arrivals.end(waiting)
            if data is None:
                return
            yield data

    def _taken(self, answers: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """The answers, each of which the client must take in time: gRPC goes on when there is room for it on the way."""
        for answer in answers:
            waiting = self._arrivals.begin(context, stream=True)
            try:
                yield answer
            finally:
                self._arrivals.end(waiting)

    @contextmanager
    def _one_stream(self) -> Iterator[None]:
        if not self._streams.acquire(blocking=False):
            raise OverloadedError(f"the server has {MOST_STREAMS} streams open")
        try:
            yield
        finally:
            self._streams.release()

    def answers(self, name: str, method: Callable[[bytes, grpc.ServicerContext], Iterator[bytes]], *, open_to_all: bool = False) -> None:
        """One request, a stream of answers."""

        def handle(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            try:
                if not open_to_all:
                    self.check(context, False)
                yield from self._taken(method(self._arrived(requests, context), context), context)
                return
            except Exception as error:
                failure = error
            abort(context, failure, name)

        self._methods[name] = grpc.stream_stream_rpc_method_handler(handle)

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
