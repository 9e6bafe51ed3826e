"""The server without a protocol: what gRPC and HTTP share."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from disc.config import VERSION
from disc.errors import NotReadyError, OverloadedError, ServingError, UnsupportedRequestError
from disc.serving.description import Fields, model_metadata
from disc.serving.logs import log
from disc.serving.model import Cancellation
from disc.serving.recent import Usage
from disc.serving.repository import Repository
from disc.serving.request import Answer, Request
from disc.serving.settings import ServerSettings
from disc.serving.tracing import Spans, Trace

NAME = "disc"
NAME_SHOWN, INPUTS_SHOWN = 100, 16  # of what clients send, in the log: characters of a name, inputs


class Core:
    """Counts requests under way, bounds them, and knows whether the server is ready."""

    def __init__(self, repository: Repository, settings: ServerSettings) -> None:
        self.repository = repository
        self.settings = settings
        self.spans: Spans | None = None
        self.started = time.time()
        self.usage = Usage()
        self._changed = threading.Condition()
        self._active = 0
        self._answered = 0
        self._open = False
        self._closed = False

    @property
    def answered(self) -> int:
        """How many accepted requests have got their answer, be it an error."""
        return self._answered

    @property
    def ready(self) -> bool:
        """Whether new requests should be sent here: it is open, and every model that it should answer for is loaded."""
        return self._open and self.repository.complete

    @property
    def in_service(self) -> bool:
        """Neither starting nor draining: models may be loaded and unloaded, and those that are loaded are ready."""
        return self._open

    def open(self) -> None:
        """Loading is over."""
        self._set(is_open=True, closed=False)

    def start_drain(self) -> None:
        """Not ready any more; requests are still answered."""
        self._set(is_open=False, closed=False)

    def close(self) -> None:
        """New requests are refused."""
        self._set(is_open=False, closed=True)

    def _set(self, *, is_open: bool, closed: bool) -> None:
        with self._changed:
            self._open, self._closed = is_open, closed
            self._changed.notify_all()

    def wait_change(self, ready: bool, timeout: float) -> bool:
        """Waits until readiness differs from `ready`; returns what it is."""
        with self._changed:
            self._changed.wait_for(lambda: self.ready != ready, timeout)
            return self.ready

    def wait_idle(self, timeout: float) -> bool:
        """Waits until no request is under way; False if that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._active == 0, timeout)

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        with self._changed:
            if self._closed:
                raise NotReadyError("the server is shutting down")
            if self._active >= self.settings.limits.requests:
                raise OverloadedError(f"the server answers {self.settings.limits.requests} requests at a time")
            self._active += 1
        try:
            yield
        finally:
            with self._changed:
                self._active -= 1
                self._answered += 1
                if not self._active:
                    self._changed.notify_all()

    def infer(self, request: Request, cancellation: Cancellation | None = None, trace: Trace | None = None) -> Answer:
        """Answers one request; `trace` gets the times of its parts. Raises ServingError."""
        start = time.perf_counter()
        try:
            with self._admitted():
                answer = self.repository.find(request.model, request.version).infer(request, cancellation, trace)
        except ServingError as error:
            self._log_request(request, start, type(error).__name__)
            raise
        self._log_request(request, start, None)
        return answer

    def _log_request(self, request: Request, start: float, error: str | None) -> None:
        """One line for each, where the settings ask: never its tensors."""
        if self.settings.request_log:
            shapes = {given.name[:NAME_SHOWN]: list(given.shape) for given in request.inputs[:INPUTS_SHOWN]}
            names = {"model": request.model[:NAME_SHOWN], "version": request.version[:NAME_SHOWN], "id": request.id[:NAME_SHOWN]}
            log("request", **names, shapes=shapes, ms=round((time.perf_counter() - start) * 1e3, 3), error=error)

    def check_admin(self) -> None:
        """Raises UnsupportedRequestError on a server that was not started for administration."""
        if not self.settings.admin:
            raise UnsupportedRequestError("administration is switched off on this server: start it with --admin")

    def metadata(self) -> Fields:
        """ServerMetadata."""
        return {"name": NAME, "version": VERSION, "extensions": self._extensions()}

    def model_metadata(self, name: str, version: str) -> Fields:
        """ModelMetadata of a loaded model. Raises ServingError."""
        return model_metadata(self.repository.find(name, version), self.repository.versions(name))

    def _extensions(self) -> list[str]:
        """The parts of the protocol beyond its core that this server has."""
        always = ["model_configuration", "statistics", "schedule_policy", "parameters", "binary_tensor_data"]
        admin = ["model_repository"] if self.settings.admin else []
        return always + admin + (["system_shared_memory"] if self.settings.shared_memory else [])
