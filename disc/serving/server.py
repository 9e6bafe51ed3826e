"""The server: gRPC and HTTP on one `Core`, started, drained and stopped."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from disc.errors import ConfigurationError
from disc.serving.access import Tokens
from disc.serving.core import Core
from disc.serving.grpc_handlers import MOST_STREAMS
from disc.serving.grpc_health import MOST_WATCHERS, HealthService, reflection
from disc.serving.grpc_inference import InferenceService
from disc.serving.http_server import HttpServer
from disc.serving.logs import log
from disc.serving.repository import Repository
from disc.serving.settings import ServerSettings
from disc.serving.shared_memory import Regions
from disc.serving.tls import credentials

SPARE_THREADS = MOST_WATCHERS + 3 * MOST_STREAMS + 16  # beside inference: what may stay open, and health checks
HEADROOM = 64 << 10  # bytes: names and shapes beside the tensors of a message
REFUSAL_S = 0.05  # after a drain: how long refusals may take to reach clients


class Server:
    """A server in this process. `start` returns when it answers; `stop` when nothing is under way."""

    def __init__(self, root: Path, settings: ServerSettings) -> None:
        """Loads the models. Raises ConfigurationError, DiscError."""
        self.settings = settings
        self._tokens = Tokens(settings.access)
        self.core = Core(Repository(root, settings), settings)
        self._regions = Regions(settings.shared_memory, 8 * settings.limits.elements)
        self._stopping = threading.Event()
        self.port = 0
        self.http = HttpServer(self.core, self._regions, self._tokens) if settings.http_port is not None else None
        self._grpc = self._make_grpc()

    def _make_grpc(self) -> grpc.Server:
        # A thread per call: measured against asyncio, 64 KB echoed in 0.47 ms (asyncio 0.64 with the hop to a thread that runs the model),
        # and the same throughput at 32 clients. No call waits for a thread: what is beyond them is refused at once.
        threads = self.settings.limits.requests + SPARE_THREADS
        size = self.settings.limits.message_bytes
        options = [
            ("grpc.max_receive_message_length", size + HEADROOM),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake
        ]
        pool = ThreadPoolExecutor(threads, thread_name_prefix="disc-grpc")
        server = grpc.server(pool, options=options, maximum_concurrent_rpcs=threads)
        services = [InferenceService(self.core, self._regions, self._tokens).generic, HealthService(self.core, self._tokens).generic]
        server.add_generic_rpc_handlers((*services, *reflection(self._tokens)))
        return server

    def start(self) -> None:
        """Loads the models, binds, and answers. Raises ConfigurationError when the port is taken or a certificate cannot be read."""
        self.core.repository.load_all()
        address = f"{self.settings.host}:{self.settings.port}"
        try:
            if self.settings.tls is None:
                self.port = self._grpc.add_insecure_port(address)
            else:
                self.port = self._grpc.add_secure_port(address, credentials(self.settings.tls))
        except RuntimeError as error:
            raise ConfigurationError(f"cannot listen on {address}: {error}") from error
        if self.http is not None and self.settings.http_port is not None:
            self.http.start(self.settings.host, self.settings.http_port, self.settings.tls)
        self._grpc.start()
        self.core.open()
        models = [f"{model.name}:{model.version}" for model in self.core.repository.models()]
        log("serving", host=self.settings.host, port=self.port, http_port=self.http_port, models=models)

    @property
    def http_port(self) -> int | None:
        return self.http.port if self.http is not None else None

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
        log("stopped", answered=self.core.answered, all_answered=idle)

    def run(self) -> None:
        """Serves until SIGTERM or SIGINT; then drains."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())
        self._stopping.wait()
        self.stop()
