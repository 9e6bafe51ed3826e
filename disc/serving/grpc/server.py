"""A gRPC server as both of ours are: a thread per call, bounded, on one port, until a signal."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from disc.serving.listening import address, cannot_listen
from disc.serving.settings import Tls
from disc.serving.tls import credentials

HEADROOM = 64 << 10  # bytes of a message besides its payload: names, shapes


@dataclass(frozen=True)
class Connections:
    """most: at a time; more are refused. hello_s: seconds within which a client must start HTTP/2. idle_s: without a call."""

    most: int
    hello_s: float
    idle_s: float


def make_server(services: Sequence[grpc.GenericRpcHandler], threads: int, message_bytes: int, connections: Connections) -> grpc.Server:
    """A server of these services. No call waits for a thread: what is beyond `threads` is refused at once with RESOURCE_EXHAUSTED."""
    options = [
        ("grpc.max_receive_message_length", message_bytes + HEADROOM),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake
        ("grpc.max_concurrent_streams", threads),  # of one connection
        ("grpc.max_allowed_incoming_connections", connections.most),
        ("grpc.server_handshake_timeout_ms", round(connections.hello_s * 1000)),
        ("grpc.max_connection_idle_ms", round(connections.idle_s * 1000)),
        ("grpc.keepalive_time_ms", round(connections.idle_s * 1000)),  # with a call: asks whether the client is still there
    ]
    pool = ThreadPoolExecutor(threads, thread_name_prefix="disc-grpc")
    server = grpc.server(pool, options=options, maximum_concurrent_rpcs=threads)
    server.add_generic_rpc_handlers(tuple(services))
    return server


def bind(server: grpc.Server, host: str, port: int, tls: Tls | None) -> int:
    """The port, which the system chooses for 0. Raises ConfigurationError when it is taken or a certificate cannot be read."""
    place = address(host, port)
    try:
        return server.add_insecure_port(place) if tls is None else server.add_secure_port(place, credentials(tls))
    except RuntimeError as error:
        raise cannot_listen(host, port, "port", error) from error


@contextmanager
def termination() -> Iterator[Callable[[], None]]:
    """Inside, SIGTERM and SIGINT end nothing; the function that it gives waits for one. In the main thread.

    Python runs a handler in the main thread, but the system may hand the signal to any thread (it does after SIGSTOP and SIGCONT), and then
    nothing wakes a main thread that waits for a lock. So it waits for the byte that the signal writes, whichever thread got it.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    with receiver, sender:
        before = signal.set_wakeup_fd(sender.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

        def wait() -> None:
            receiver.recv(1)

        try:
            yield wait
        finally:
            signal.set_wakeup_fd(before)
