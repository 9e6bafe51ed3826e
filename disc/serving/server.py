"""The server: gRPC and HTTP on one `Core`, started, drained and stopped."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path

import grpc

from disc.serving.access import Tokens
from disc.serving.artifact_watch import ArtifactWatch
from disc.serving.core import Core
from disc.serving.grpc.arrivals import Arrivals, Patience
from disc.serving.grpc.handlers import MOST_STREAMS
from disc.serving.grpc.health import MOST_WATCHERS, HealthService, reflection
from disc.serving.grpc.inference import InferenceService
from disc.serving.grpc.server import Connections, bind, make_server
from disc.serving.holding import Holding
from disc.serving.http.server import HttpServer
from disc.serving.listening import check_addresses
from disc.serving.logs import log
from disc.serving.repository import Repository
from disc.serving.settings import Limits, ServerSettings
from disc.serving.shared_memory import Regions
from disc.serving.tracing import make_spans

SPARE_THREADS = MOST_WATCHERS + 3 * MOST_STREAMS + 16  # besides inference: what may stay open, and health checks
SPARE_FILES = 24  # open files besides connections: gRPC's own, models, regions
REFUSAL_S = 0.05  # after a drain: how long refusals may take to reach clients

_M_ARENA_MAX = -8  # malloc.h of glibc
ARENAS = 2


def few_arenas() -> None:
    """Lets the threads of this process share two arenas of the C library's allocator, where it can do so (glibc). Before they are started.

    Else many threads get one of their own, up to eight per core, and each keeps what a large request once took. Measured with 512 KiB in
    and out: 5 to 10 % less memory and 12 to 24 % more requests per second, as memory is reused while it is still in the cache.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS)


def most_files() -> None:
    """Lets this process open as many files as the system allows it: connections are files."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _patience(limits: Limits) -> Patience:
    """gRPC reports nothing of a message before it is complete, so each may take as long as the largest may; the slowest go first when half
    of the requests that the server answers at a time wait for their message."""
    longest = limits.arrival_s + limits.message_bytes / limits.arrival_rate
    return Patience(limits.arrival_s, longest, limits.stream_idle_s, max(limits.requests // 2, 1))


def connections_of_each(wanted: int) -> int:
    """How many connections gRPC and HTTP may each have, so that this process can open the other files that it needs."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return wanted
    free = most - len(os.listdir("/proc/self/fd")) - SPARE_FILES
    return min(wanted, max(free // 2, 1))


class Server:
    """A server in this process. `start` returns when it answers; `stop` when nothing is under way."""

    def __init__(self, root: Path | Sequence[Path], settings: ServerSettings) -> None:
        """Loads the models; root: as of a `Repository`. Raises ConfigurationError, DiscError."""
        check_addresses(settings)
        self.settings = settings
        self._tokens = Tokens(settings.access)
        self.core = Core(Repository(root, settings), settings)
        self.core.spans = make_spans(settings.tracing)
        self._artifacts = ArtifactWatch(self.core.repository)
        holding = Holding(settings.limits.held_bytes)
        self._regions = Regions(settings.shared_memory, holding)
        self._arrivals = Arrivals(_patience(settings.limits))
        self._most_connections = connections_of_each(settings.limits.connections)
        self.port = 0
        self.http: HttpServer | None = None
        if settings.http_port is not None:
            self.http = HttpServer(self.core, self._regions, self._tokens, holding, self._most_connections)
        self._grpc = self._make_grpc()

    def _make_grpc(self) -> grpc.Server:
        # A thread per call: measured against asyncio, 64 KB echoed in 0.47 ms (asyncio 0.64 with the hop to a thread that runs the model),
        # and the same throughput at 32 clients.
        limits = self.settings.limits
        inference = InferenceService(self.core, self._regions, self._tokens, self._arrivals).generic
        health = HealthService(self.core, self._tokens, self._arrivals).generic
        services = [inference, health, *reflection(self._tokens, self._arrivals)]
        connections = Connections(self._most_connections, limits.arrival_s, limits.idle_s)
        return make_server(services, limits.requests + SPARE_THREADS, limits.message_bytes, connections)

    def start(self) -> None:
        """Loads the models, binds, and answers.

        Raises ConfigurationError for models that are missing or cannot be loaded, a taken port, and certificates that cannot be read.
        """
        self.core.repository.load_all()
        self._artifacts.start()
        self._arrivals.start()
        self.port = bind(self._grpc, self.settings.host, self.settings.port, self.settings.tls)
        if self.http is not None and self.settings.http_port is not None:
            self.http.start(self.settings.host, self.settings.http_port, self.settings.tls)
        self._grpc.start()
        self.core.open()
        models = [f"{model.name}:{model.version}" for model in self.core.repository.models()]
        log("serving", host=self.settings.host, port=self.port, http_port=self.http_port, models=models)

    @property
    def http_port(self) -> int | None:
        return self.http.port if self.http is not None else None

    @property
    def metrics_port(self) -> int | None:
        """Where `/metrics` is; None: on the HTTP port."""
        return self.http.metrics_port if self.http is not None else None

    def stop(self) -> None:
        """Drains: health says NOT_SERVING at once, then new requests are refused, then what was accepted is answered."""
        self.core.start_drain()
        log("draining", delay_s=self.settings.drain_delay_s)
        time.sleep(self.settings.drain_delay_s)
        self.core.close()
        idle = self.core.wait_idle(self.settings.drain_timeout_s)
        time.sleep(REFUSAL_S)
        self._grpc.stop(1.0 if idle else 0.0).wait()
        if self.http is not None:
            self.http.stop()
        self._arrivals.stop()
        self._artifacts.stop()
        if self.core.spans is not None:
            self.core.spans.close()
        log("stopped", answered=self.core.answered, all_answered=idle)
