"""The compile service over gRPC (`disc.v1.CompileService`, protocol/compile.proto), and the process that runs it.

The server itself loads neither torch nor MLIR, never reads a program, and unpickles nothing: programs go, as files, to confined processes.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator

import grpc

from disc.errors import ConfigurationError, JobRefusedError, RequestError
from disc.serving.access import Tokens
from disc.serving.compile_service.jobs import Jobs, JobSnapshot, State
from disc.serving.compile_service.process import what_is_closed
from disc.serving.compile_service.request import KIND, SERVICE, check_job, job_key, receive
from disc.serving.compile_service.settings import CompileSettings
from disc.serving.grpc.arrivals import Arrivals, Patience
from disc.serving.grpc.handlers import Handlers, parsed
from disc.serving.grpc.health import MOST_WATCHERS, HealthService, Switch, reflection
from disc.serving.grpc.server import Connections, bind, make_server
from disc.serving.logs import log
from disc.serving.messages import message

PIECE = 1 << 20  # bytes of one message of Fetch
LOOK_S = 1.0  # how often a waiting client is informed that the job is still running
SPARE_THREADS = MOST_WATCHERS + 32  # for Status, Cancel, Fetch, health and reflection when all others wait

_REQUEST, _EVENT, _ID, _PIECE = (message(f"disc.v1.{name}") for name in ("CompileRequest", "CompileEvent", "JobId", "Piece"))
_STATES = _EVENT.DESCRIPTOR.enum_types_by_name["State"].values_by_name


class CompileService:
    """The four methods."""

    def __init__(self, settings: CompileSettings, jobs: Jobs, tokens: Tokens, arrivals: Arrivals) -> None:
        self._limits = settings.limits
        self._jobs = jobs
        handlers = Handlers(SERVICE, tokens, arrivals)
        handlers.stream("Compile", self._compile)
        handlers.unary("Status", lambda data, _: _event(_ticket(data), self._jobs.snapshot(_ticket(data))))
        handlers.unary("Cancel", lambda data, _: _event(_ticket(data), self._jobs.withdraw(_ticket(data))))
        handlers.answers("Fetch", self._fetch)
        self.generic = handlers.generic()

    def _compile(self, data: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        requests = (parsed(_REQUEST, each) for each in data)
        first = next(requests, None)
        if first is None or first.WhichOneof("part") != "job":
            raise RequestError("the first message must describe the job")
        job = first.job
        check_job(job, self._limits)
        key = job_key(job)
        ticket = self._jobs.find(key)
        if ticket is None:
            folder = self._jobs.begin_upload()
            complete = False
            late = threading.Timer(self._limits.upload_s, context.cancel)
            late.start()
            try:
                yield _EVENT(state=_STATES["UPLOAD"].number).SerializeToString()
                receive(requests, job, folder, self._limits)
                complete = True
            finally:
                late.cancel()
                ticket = self._jobs.end_upload(folder, key if complete else None)
        assert ticket is not None
        if not job.detached and not context.add_callback(lambda: self._leave(ticket)):
            self._leave(ticket)
        yield from self._events(ticket, context)

    def _leave(self, ticket: str) -> None:
        self._jobs.withdraw(ticket)

    def _events(self, ticket: str, context: grpc.ServicerContext) -> Iterator[bytes]:
        seen = self._jobs.snapshot(ticket)
        while True:
            yield _event(ticket, seen)
            if seen.state is State.FAILED and seen.error is not None:
                kind = seen.error.kind if isinstance(seen.error, JobRefusedError) else type(seen.error).__name__
                context.set_trailing_metadata(((KIND, kind.encode("ascii", "replace").decode()),))
                raise seen.error
            if seen.state.final or not context.is_active():
                return
            seen = self._jobs.wait(ticket, seen, LOOK_S)

    def _fetch(self, data: bytes, _: grpc.ServicerContext) -> Iterator[bytes]:
        with self._jobs.open_result(_ticket(data)) as file:
            while piece := file.read(PIECE):
                yield _PIECE(data=piece).SerializeToString()


def _ticket(data: bytes) -> str:
    return parsed(_ID, data).job


def _event(ticket: str, seen: JobSnapshot) -> bytes:
    event = _EVENT(
        job=ticket, state=_STATES[seen.state.name].number, stage=seen.stage, percent=seen.percent, ahead=seen.ahead, seconds=seen.seconds
    )
    if seen.result is not None and seen.state is State.DONE:
        event.result.size, event.result.sha256 = seen.result.size, seen.result.digest
        event.cached = seen.cached
    if seen.error is not None:
        event.error = str(seen.error)
    return event.SerializeToString()


class CompileServer:
    """A compile service in this process. `start` returns when it answers; `stop` when nothing is under way."""

    def __init__(self, settings: CompileSettings) -> None:
        """Raises ConfigurationError, or ArtifactError for a folder that others may write to."""
        self.settings = settings
        self.jobs = Jobs(settings)
        self.port = 0
        tokens = Tokens(settings.access)
        self._health = Switch()
        limits = settings.limits
        self._arrivals = Arrivals(Patience(limits.arrival_s, limits.arrival_s, limits.arrival_s, limits.requests))
        health = HealthService(self._health, tokens, self._arrivals, SERVICE).generic
        compiling = CompileService(settings, self.jobs, tokens, self._arrivals).generic
        connections = Connections(limits.connections, limits.arrival_s, limits.idle_s)
        services = [compiling, health, *reflection(tokens, self._arrivals, SERVICE)]
        self._grpc = make_server(services, limits.requests + SPARE_THREADS, limits.message_bytes, connections)

    def start(self) -> None:
        """Raises ConfigurationError when the port is taken or a certificate cannot be read."""
        settings = self.settings
        try:
            self.port = bind(self._grpc, settings.host, settings.port, settings.tls)
        except ConfigurationError:
            self.jobs.close(0)
            raise
        self._arrivals.start()
        self._grpc.start()
        self._health.set(True)
        closed = what_is_closed(settings.folder)
        for what, state in closed.items():
            if state != "closed":
                warnings.warn(
                    f"jobs are not cut off from the {what} of this machine: {state.removeprefix('open: ')}", RuntimeWarning, stacklevel=2
                )
        log("serving", service=SERVICE, host=settings.host, port=self.port, jobs=settings.jobs, **closed)

    def stop(self) -> None:
        """Refuses new jobs, lets those that run end within the time of the settings, then ends them."""
        self._health.set(False)
        log("draining", timeout_s=self.settings.drain_timeout_s)
        in_time = self.jobs.close(self.settings.drain_timeout_s)
        self._grpc.stop(1.0).wait()
        self._arrivals.stop()
        log("stopped", compiles=self.jobs.compiles, all_answered=in_time)
