"""The queue of one model: which requests run when, and together.

No thread of its own: the thread that brings a request while fewer than `concurrency` calls run becomes the *leader*. It takes batches
from the queue and runs them until its own request is done, then hands the lead to a thread whose request still waits. A request that
finds the model idle thus runs in the thread that decoded it, without a switch to another one (some 0.15 ms), and under load batches form
by themselves.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import Enum

from disc.errors import CancelledError, DeadlineError, OverloadedError, WithdrawnError
from disc.ral.executable import stopping
from disc.serving.joining import Inputs, Joining
from disc.serving.settings import ModelSettings
from disc.serving.tensors import Array

Run = Callable[[Inputs], list[Array]]


class State(Enum):
    WAITING = 1
    RUNNING = 2
    DONE = 3


@dataclass(frozen=True)
class BatchRecord:
    """One call that ran, for statistics: the number of requests (jobs) in it, their rows, and nanoseconds of each part."""

    jobs: int
    rows: int
    queue_ns: tuple[int, ...]
    join_ns: int
    run_ns: int
    split_ns: int


class Job:
    """One request in the queue. expires: until when it waits; deadline: until when anyone wants its result; both on the monotonic clock, in
    seconds, None = for ever."""

    def __init__(
        self, inputs: Inputs, sizes: Mapping[str, int], priority: int = 1, expires: float | None = None, deadline: float | None = None
    ) -> None:
        self.inputs = inputs
        self.sizes = sizes
        self.priority = priority
        self.expires = expires
        self.deadline = deadline
        self.withdrawn = False  # while it ran
        self.state = State.WAITING
        self.outputs: list[Array] = []
        self.error: Exception | None = None
        self.key: Hashable | None = None
        self.rows = 1
        self.order: tuple[int, int] = (priority, 0)
        self.entered_ns = 0  # when it was queued; 0 = not yet
        self.ran_ns: tuple[int, int] | None = None  # when the call that it was part of began and ended
        self.together = 0  # how many requests were part of that
        self.promoted = False  # its thread is to become a leader
        self.gate = threading.Lock()
        self.gate.acquire()

    def wake(self) -> None:
        """Lets its thread look again. Called under the batcher's lock."""
        if self.gate.locked():
            self.gate.release()

    def is_over(self) -> bool:
        """Whether nobody waits for its result any more."""
        return self.withdrawn or (self.deadline is not None and time.monotonic() >= self.deadline)

    def finish(self, outputs: list[Array] | None, error: Exception | None = None) -> None:
        self.outputs, self.error = outputs or [], error
        if self.entered_ns:  # else its thread may be looking at them
            self.inputs = []  # may be large, and the request's thread may live on
        self.state = State.DONE  # last: its thread reads the others without the lock
        self.wake()


class Batcher:
    """Runs jobs by `run`, joined by `joining`. `record` is called after every call."""

    def __init__(
        self, run: Run, joining: Joining, settings: ModelSettings, most_rows: int | None, record: Callable[[BatchRecord], None]
    ) -> None:
        self._run = run
        self._joining = joining
        self._settings = settings
        self._most_rows = settings.max_batch if most_rows is None else min(settings.max_batch, most_rows)
        self._record = record
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: list[Job] = []  # in the order in which they are to run
        self._leaders = 0
        self._gathering = 0  # leaders that wait for more requests
        self._entered = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, job: Job) -> list[Array]:
        """Runs a job, alone or with others; returns its outputs, or raises its error.

        Raises OverloadedError at once when the queue is full, DeadlineError and WithdrawnError for jobs that were not executed.
        """
        job.key, job.rows = self._joining.key(job), self._joining.rows(job)
        if self._enter(job):
            self._lead(job)
        self._wait(job)
        if job.error is not None:
            raise job.error
        return job.outputs

    def withdraw(self, job: Job) -> bool:
        """Withdraws a job; False if it is too late: one that runs ends early only in a loop whose end depends on data."""
        with self._lock:
            if job.state is not State.WAITING:
                job.withdrawn = True
                return False
            self._drop(job, WithdrawnError("the request was cancelled"))
            return True

    def _enter(self, job: Job) -> bool:
        """Puts the job into the queue; whether its thread leads. Raises OverloadedError, DeadlineError, WithdrawnError."""
        with self._lock:
            if job.state is State.DONE:
                return False  # withdrawn before it came here
            if job.expires is not None and time.monotonic() >= job.expires:
                raise DeadlineError("the request's time was over before it was queued")
            idle = self._leaders < self._settings.concurrency and not self._gathering
            if not idle and len(self._waiting) >= self._settings.max_queue:
                raise OverloadedError(f"the queue of this model is full: {self._settings.max_queue} requests wait")
            self._entered += 1
            job.order, job.entered_ns = (job.priority, self._entered), time.perf_counter_ns()
            bisect.insort(self._waiting, job, key=lambda each: each.order)
            self._changed.notify_all()
            self._leaders += idle
            return idle

    def _drop(self, job: Job, error: Exception) -> None:
        """Ends a waiting job without running it."""
        if job in self._waiting:
            self._waiting.remove(job)
        job.finish(None, error)

    def _wait(self, job: Job) -> None:
        """Until the job is done; leads in the meantime when given the lead."""
        while job.state is not State.DONE or job.promoted:
            limit = -1.0 if job.expires is None or job.state is State.RUNNING else max(job.expires - time.monotonic(), 0)
            job.gate.acquire(timeout=min(limit, threading.TIMEOUT_MAX))
            with self._lock:
                leads, job.promoted = job.promoted, False
                if not leads:
                    self._expire(job)
            if leads:
                self._lead(job)

    def _expire(self, job: Job) -> None:
        if job.state is State.WAITING and job.expires is not None and time.monotonic() >= job.expires:
            self._drop(job, DeadlineError("the request's time was over before it was executed"))

    def _lead(self, own: Job) -> None:
        try:
            while own.state is not State.DONE:
                batch = self._take()
                if not batch:
                    break
                self._execute(batch)
        finally:
            self._hand_over()

    def _hand_over(self) -> None:
        """Makes the thread of the next waiting job the leader, if there is one."""
        with self._lock:
            for job in self._waiting:
                if not job.promoted:
                    job.promoted = True
                    job.wake()
                    return
            self._leaders -= 1

    def _take(self) -> list[Job]:
        """The next batch; [] when nothing waits. With a queue delay, gathers until it is full or its first request has waited enough."""
        with self._lock:
            while True:
                for job in list(self._waiting):
                    self._expire(job)
                if not self._waiting:
                    return []
                batch = self._compatible()
                rest = self._delay_left(batch)
                if rest <= 0:
                    break
                self._gathering += 1
                self._changed.wait(rest)
                self._gathering -= 1
            taken = set(map(id, batch))
            self._waiting = [job for job in self._waiting if id(job) not in taken]
            for job in batch:
                job.state = State.RUNNING
            return batch

    def _compatible(self) -> list[Job]:
        """The first waiting job and those that may and should join it, in their order."""
        head = self._waiting[0]
        batch, rows = [head], head.rows
        if head.key is None:
            return batch
        for job in self._waiting[1:]:
            if rows >= self._most_rows:
                break
            if job.key == head.key and rows + job.rows <= self._most_rows and self._joining.admits(batch, job):
                batch.append(job)
                rows += job.rows
        return batch

    def _delay_left(self, batch: list[Job]) -> float:
        """Seconds for which this batch may still wait for more."""
        delay = self._settings.queue_delay_us
        if not delay or batch[0].key is None or sum(job.rows for job in batch) >= self._most_rows:
            return 0.0
        return delay / 1e6 - (time.perf_counter_ns() - min(job.entered_ns for job in batch)) / 1e9

    def _execute(self, batch: list[Job]) -> None:
        try:
            results: list[list[Array]] = self._call(batch)
        except CancelledError:
            for job in batch:
                what = (
                    WithdrawnError("the request was cancelled")
                    if job.withdrawn
                    else DeadlineError("the request's time was over while it ran")
                )
                self._finish(job, None, what)
            return
        except Exception as error:
            if len(batch) == 1:
                self._finish(batch[0], None, error)
                return
            for job in batch:  # one of them is at fault: each gets its own answer
                self._execute([job])
            return
        for job, outputs in zip(batch, results, strict=True):
            self._finish(job, outputs, None)

    def _finish(self, job: Job, outputs: list[Array] | None, error: Exception | None) -> None:
        with self._lock:
            job.finish(outputs, error)

    def _call(self, batch: list[Job]) -> list[list[Array]]:
        start = time.perf_counter_ns()
        queued = tuple(start - job.entered_ns for job in batch)
        inputs = self._joining.join(batch)
        joined = time.perf_counter_ns()
        with stopping(lambda: all(job.is_over() for job in batch)):
            outputs = self._run(inputs)
        ran = time.perf_counter_ns()
        for job in batch:
            job.ran_ns, job.together = (joined, ran), len(batch)
        results = self._joining.split(outputs, batch)
        split = time.perf_counter_ns()
        self._joining.learn(batch, (ran - joined) / 1e9)
        rows = sum(job.rows for job in batch)
        self._record(BatchRecord(len(batch), rows, queued, joined - start, ran - joined, split - ran))
        return results
