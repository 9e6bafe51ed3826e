"""The jobs of a compile service: a bounded queue, one compile for equal programs, results by the hash of all that decides them."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from disc.artifact import file as artifact
from disc.artifact.cache import Cache
from disc.artifact.output import writing
from disc.errors import JobNotFoundError, NotReadyError, OverloadedError, ServingError
from disc.serving.compile_service.process import run_job
from disc.serving.compile_service.settings import CompileSettings
from disc.serving.logs import log

KEPT_TICKETS = 4096


class State(Enum):
    """The names are those of `CompileEvent.State`."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (State.DONE, State.FAILED, State.CANCELLED)


@dataclass(frozen=True)
class Result:
    """An artifact. size: bytes; digest: SHA-256 of the file."""

    size: int
    digest: bytes


@dataclass
class Job:
    """One compile. interested: the tickets that wait for it; without any it ends."""

    key: str
    folder: Path
    state: State = State.QUEUED
    stage: str = ""
    percent: int = 0
    started: float = 0.0  # seconds, of `time.monotonic`
    ended: float = 0.0  # seconds, of `time.monotonic`
    error: ServingError | None = None
    result: Result | None = None
    interested: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class JobSnapshot:
    """What one client sees of its job. ahead: jobs that come first; seconds: since it began to run."""

    state: State
    stage: str = ""
    percent: int = 0
    ahead: int = 0
    seconds: float = 0.0
    error: ServingError | None = None
    result: Result | None = None
    cached: bool = False


@dataclass
class _Ticket:
    """One client's claim on a job. cached: the job was there, or done, before this client came."""

    job: Job
    cached: bool
    withdrawn: bool = False


class Jobs:
    """All jobs of a service. Every method may be called from any thread."""

    def __init__(self, settings: CompileSettings) -> None:
        """Makes the folders, and empties what an earlier service left of its jobs. Raises OutputError."""
        self._settings = settings
        self._results = Cache(settings.folder / "results", settings.limits.results_bytes)
        self._work = settings.folder / "jobs"
        shutil.rmtree(self._work, ignore_errors=True)
        for folder in (settings.folder, self._results.folder, self._work):
            with writing(folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._changed = threading.Condition()  # guards all below
        self._active: dict[str, Job] = {}
        self._queue: deque[Job] = deque()
        self._tickets: OrderedDict[str, _Ticket] = OrderedDict()
        self._uploads = 0
        self._closed = False
        self.compiles = 0
        self._threads = [threading.Thread(target=self._work_on, name=f"disc-job-{index}", daemon=True) for index in range(settings.jobs)]
        for thread in self._threads:
            thread.start()

    # ---- What clients do

    def find(self, key: str) -> str | None:
        """A ticket for the job of this key that is under way or done; None: its program is needed."""
        with self._changed:
            self._refuse_when_closed()
            if key in self._active:
                return self._ticket(self._active[key], cached=False)
        result = self._results.lookup(key, _described)
        if result is None:
            return None
        with self._changed:
            return self._ticket(Job(key, self._work / key, state=State.DONE, result=result), cached=True)

    def begin_upload(self) -> Path:
        """A new folder for the program of a job. Raises OverloadedError when the queue is full or too many clients upload."""
        with self._changed:
            self._refuse_when_closed()
            self._refuse_when_full()
            if self._uploads >= self._settings.limits.uploads:
                raise OverloadedError(f"{self._uploads} clients upload programs already")
            self._uploads += 1
        folder = self._work / secrets.token_hex(16)
        folder.mkdir(mode=0o700)
        return folder

    def end_upload(self, folder: Path, key: str | None) -> str | None:
        """Makes a job of an uploaded program, or of key None throws it away; the ticket. Raises OverloadedError."""
        with self._changed:
            self._uploads -= 1
            try:
                if key is None:
                    return None
                self._refuse_when_closed()
                if key in self._active:
                    return self._ticket(self._active[key], cached=False)
                self._refuse_when_full()
                job = self._active[key] = Job(key, folder)
                self._queue.append(job)
                self._changed.notify_all()
                return self._ticket(job, cached=False)
            finally:
                if key is None or key not in self._active or self._active[key].folder != folder:
                    shutil.rmtree(folder, ignore_errors=True)

    def snapshot(self, ticket: str) -> JobSnapshot:
        """Raises JobNotFoundError."""
        with self._changed:
            return self._snapshot(self._known(ticket))

    def wait(self, ticket: str, seen: JobSnapshot, timeout: float) -> JobSnapshot:
        """What there is to see, as soon as it differs from `seen`, or after `timeout` seconds. Raises JobNotFoundError."""
        end = time.monotonic() + timeout
        with self._changed:
            while True:
                now = self._snapshot(self._known(ticket))
                rest = end - time.monotonic()
                if rest <= 0 or (now.state, now.stage, now.percent, now.ahead) != (seen.state, seen.stage, seen.percent, seen.ahead):
                    return now
                self._changed.wait(rest)

    def withdraw(self, ticket: str) -> JobSnapshot:
        """Ends this client's interest; a job without clients ends. Raises JobNotFoundError."""
        with self._changed:
            known = self._known(ticket)
            if not known.job.state.final:
                known.withdrawn = True
                known.job.interested.discard(ticket)
                if not known.job.interested:
                    # From now on the key is free: who comes next gets a job of its own, not one that is about to end.
                    self._active.pop(known.job.key, None)
                    if known.job in self._queue:
                        self._queue.remove(known.job)
                        self._finish(known.job, State.CANCELLED)
                        shutil.rmtree(known.job.folder, ignore_errors=True)
                self._changed.notify_all()
            return self._snapshot(known)

    def open_result(self, ticket: str) -> BinaryIO:
        """The artifact. Raises JobNotFoundError, NotReadyError."""
        with self._changed:
            known = self._known(ticket)
            if known.job.state is not State.DONE or known.withdrawn:
                raise NotReadyError("the job has no result")
        found = self._results.lookup(known.job.key, lambda path: open(path, "rb"))  # noqa: SIM115 - the caller closes it
        if found is None:
            raise JobNotFoundError("the result is no longer kept: compile again")
        return found

    def close(self, timeout: float) -> bool:
        """Takes no more jobs; lets those that run end within `timeout` seconds; True if all did."""
        end = time.monotonic() + timeout
        with self._changed:
            self._closed = True
            for job in self._queue:
                self._active.pop(job.key, None)
                self._finish(job, State.FAILED, NotReadyError("the service is stopping"))
            self._queue.clear()
            while self._active and time.monotonic() < end:
                self._changed.wait(end - time.monotonic())
            in_time = not self._active
            for job in self._active.values():
                job.interested.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        return in_time

    # ---- What is inside; the lock is held wherever it matters

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise NotReadyError("the service is stopping")

    def _refuse_when_full(self) -> None:
        if len(self._queue) >= self._settings.limits.queue:
            raise OverloadedError(f"the queue is full: {len(self._queue)} jobs wait")

    def _ticket(self, job: Job, *, cached: bool) -> str:
        name = secrets.token_hex(16)
        self._tickets[name] = _Ticket(job, cached)
        job.interested.add(name)
        while len(self._tickets) > KEPT_TICKETS:
            oldest = next((each for each, ticket in self._tickets.items() if ticket.job.state.final), None)
            if oldest is None:
                break
            del self._tickets[oldest]
        return name

    def _known(self, ticket: str) -> _Ticket:
        if ticket not in self._tickets:
            raise JobNotFoundError("there is no such job")
        return self._tickets[ticket]

    def _snapshot(self, ticket: _Ticket) -> JobSnapshot:
        job = ticket.job
        if ticket.withdrawn:
            return JobSnapshot(State.CANCELLED)
        ahead = self._queue.index(job) if job.state is State.QUEUED and job in self._queue else 0
        seconds = (job.ended or time.monotonic()) - job.started if job.started else 0.0
        return JobSnapshot(job.state, job.stage, job.percent, ahead, seconds, job.error, job.result, ticket.cached)

    def _finish(self, job: Job, state: State, error: ServingError | None = None) -> None:
        job.state, job.error, job.ended = state, error, time.monotonic()

    def _work_on(self) -> None:
        """One thread: job after job."""
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if not self._queue:
                    return
                job = self._queue.popleft()
                job.state, job.started = State.RUNNING, time.monotonic()
                self.compiles += 1
                self._changed.notify_all()
            state, error = self._run(job)
            shutil.rmtree(job.folder, ignore_errors=True)
            with self._changed:
                self._finish(job, state, error)
                if self._active.get(job.key) is job:
                    del self._active[job.key]
                self._changed.notify_all()
            log("job", key=job.key, state=state.value, seconds=round(job.ended - job.started, 3), error=str(error) if error else None)

    def _run(self, job: Job) -> tuple[State, ServingError | None]:
        def on_stage(stage: str, percent: int) -> None:
            with self._changed:
                job.stage, job.percent = stage, percent
                self._changed.notify_all()

        try:
            path = run_job(job.folder, self._settings, on_stage, lambda: not job.interested)
            job.result = _described(path)
            self._results.store(job.key, lambda target: os.rename(path, target))
            if path.exists():
                raise OSError("the result could not be kept")
            return State.DONE, None
        except ServingError as error:
            return (State.FAILED, error) if job.interested else (State.CANCELLED, None)
        except Exception as error:  # a fault of ours, or of the machine (no more processes): this job's, not the thread's
            log("fault", error=f"{type(error).__name__}: {error}")
            return State.FAILED, ServingError("the server failed; its log has the reason")


def _described(path: Path) -> Result:
    """Size and hash of a whole artifact. Raises ArtifactError for a damaged one."""
    artifact.verify(path)
    with open(path, "rb") as file:
        return Result(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").digest())
