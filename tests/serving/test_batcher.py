"""The queue of a model: what is joined, in which order things run, and what never runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from oip_client import Client, failure, parameter, results, serving, write_twice

from disc.errors import ConfigurationError, DeadlineError, OverloadedError, RequestError, WithdrawnError
from disc.serving.batcher import Batcher, BatchRecord, Job
from disc.serving.cost import CallCost
from disc.serving.joining import Alone, Concatenate, Joining, PadToLongest, joining_of
from disc.serving.messages import INFERENCE
from disc.serving.settings import ModelSettings
from disc.serving.settings import Sequence as SequenceSettings
from disc.serving.signature import Batch, Signature
from disc.serving.tensors import Array

BATCH = Batch("S0", (0, 0), (0,), None)


class Machine:
    """A model of two inputs that can be stopped: sums each row of the first where the second, a mask, is not 0."""

    def __init__(self, joining: Joining | None = None, **settings: object) -> None:
        self.calls: list[tuple[int, ...]] = []
        self.records: list[BatchRecord] = []
        self.free = threading.Event()
        self.free.set()
        self.entered = threading.Semaphore(0)
        made = ModelSettings(**settings)  # pyright: ignore[reportArgumentType]
        self.batcher = Batcher(self.run, joining or Concatenate(BATCH), made, None, self.records.append)

    def run(self, inputs: list[Array]) -> list[Array]:
        x, mask = inputs
        self.calls.append(x.shape)
        self.entered.release()
        self.free.wait()
        if np.any(x == -7):
            raise RequestError("a value must not be -7")
        return [np.asarray((x * mask).sum(1))]

    def start(self, job: Job) -> Result:
        return Result(lambda: self.batcher.submit(job))

    def busy(self) -> Result:
        """Occupies the machine until `free` is set."""
        self.free.clear()
        result = self.start(job_of(np.ones((1, 99))))
        assert self.entered.acquire(timeout=5)
        return result

    def settle(self, waiting: int) -> None:
        """Until so many jobs wait."""
        end = time.monotonic() + 5
        while self.batcher.waiting != waiting:
            assert time.monotonic() < end, self.batcher.waiting
            time.sleep(0.001)


class Result:
    """What a call in a thread of its own gives."""

    def __init__(self, call: Callable[[], list[Array]]) -> None:
        self._outcome: list[Array] | Exception = []

        def run() -> None:
            try:
                self._outcome = call()
            except Exception as error:
                self._outcome = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def get(self) -> list[Array]:
        self._thread.join(10)
        assert not self._thread.is_alive()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


def job_of(x: Array, mask: Array | None = None, priority: int = 5, wait_s: float | None = None) -> Job:
    sizes = {"S0": x.shape[0], "S1": x.shape[1]}
    expires = None if wait_s is None else time.monotonic() + wait_s
    return Job([x, np.ones_like(x) if mask is None else mask], sizes, priority, expires)


def wait_all(results: Sequence[Result]) -> None:
    for each in results:
        each.get()


def answers_of(machine: Machine, given: list[np.ndarray]) -> None:
    """Queues these one by one at a busy machine, frees it, and checks that each gets its own sums."""
    results = []
    for number, x in enumerate(given):
        results.append(machine.start(job_of(x)))
        machine.settle(number + 1)
    machine.free.set()
    for x, result in zip(given, results, strict=True):
        np.testing.assert_allclose(result.get()[0], x.sum(1))


def test_what_waits_is_joined_and_each_gets_its_rows() -> None:
    machine = Machine()
    busy = machine.busy()
    given = [np.random.default_rng(n).standard_normal((n % 4, 5)) for n in range(9)]
    answers_of(machine, given)
    busy.get()
    assert machine.calls[1:] == [(sum(len(x) for x in given), 5)]
    assert machine.records[-1].jobs == 9 and machine.records[-1].rows == sum(len(x) for x in given)


def test_other_shapes_and_full_batches_run_apart() -> None:
    machine = Machine(max_batch=4)
    busy = machine.busy()
    results = []
    for number, shape in enumerate([(2, 5), (1, 6), (2, 5), (1, 5), (6, 5), (1, 6)]):
        results.append(machine.start(job_of(np.ones(shape))))
        machine.settle(number + 1)
    machine.free.set()
    wait_all([busy, *results])
    assert machine.calls[1:] == [(4, 5), (2, 6), (1, 5), (6, 5)]


def test_inputs_with_other_numbers_of_rows_run_alone() -> None:
    machine = Machine()
    busy = machine.busy()
    shared = job_of(np.ones((3, 5)), np.ones((1, 5)))
    results = [machine.start(shared)]
    machine.settle(1)
    results.append(machine.start(job_of(np.ones((3, 5)))))
    machine.settle(2)
    machine.free.set()
    wait_all([busy, *results])
    assert machine.calls[1:] == [(3, 5), (3, 5)]


def test_priorities_go_first_and_equal_ones_in_order() -> None:
    machine = Machine(max_batch=1)
    busy = machine.busy()
    results = []
    for number, (priority, width) in enumerate([(5, 1), (9, 2), (1, 3), (5, 4), (1, 5)]):
        results.append(machine.start(job_of(np.ones((1, width)), priority=priority)))
        machine.settle(number + 1)
    machine.free.set()
    wait_all([busy, *results])
    assert [shape[1] for shape in machine.calls[1:]] == [3, 5, 1, 4, 2]


def test_a_full_queue_refuses_at_once() -> None:
    machine = Machine(max_queue=3)
    busy = machine.busy()
    results = [machine.start(job_of(np.ones((1, 5)))) for _ in range(3)]
    machine.settle(3)
    start = time.perf_counter()
    with pytest.raises(OverloadedError, match="queue of this model is full: 3"):
        machine.batcher.submit(job_of(np.ones((1, 5))))
    assert time.perf_counter() - start < 0.1
    machine.free.set()
    wait_all([busy, *results])


def test_what_is_cancelled_or_late_never_runs() -> None:
    machine = Machine()
    busy = machine.busy()
    late, gone = job_of(np.ones((1, 3)), wait_s=0.05), job_of(np.ones((1, 4)))
    results = [machine.start(late), machine.start(gone)]
    machine.settle(2)
    assert machine.batcher.withdraw(gone)
    with pytest.raises(WithdrawnError):
        results[1].get()
    with pytest.raises(DeadlineError):
        results[0].get()  # while the machine is still busy
    with pytest.raises(DeadlineError):
        machine.batcher.submit(job_of(np.ones((1, 3)), wait_s=0.0))
    withdrawn = job_of(np.ones((1, 3)))
    assert machine.batcher.withdraw(withdrawn)
    with pytest.raises(WithdrawnError):
        machine.batcher.submit(withdrawn)
    machine.free.set()
    busy.get()
    assert machine.calls == [(1, 99)] and not machine.batcher.waiting
    finished = job_of(np.ones((1, 5)))
    machine.batcher.submit(finished)
    assert not machine.batcher.withdraw(finished)


def test_the_lead_goes_on_when_the_next_leader_is_cancelled() -> None:
    """Whoever is asked to lead must hand on, even if its own request is gone meanwhile."""
    for _ in range(30):
        machine = Machine(max_batch=1)
        busy = machine.busy()
        jobs = [job_of(np.ones((1, 5))) for _ in range(6)]
        results = []
        for number, job in enumerate(jobs):
            results.append(machine.start(job))
            machine.settle(number + 1)
        machine.free.set()
        for job in jobs[::2]:
            machine.batcher.withdraw(job)
        for result in results[1::2]:
            result.get()
        for result in results[::2]:
            with contextlib.suppress(WithdrawnError):
                result.get()
        busy.get()
        machine.start(job_of(np.ones((1, 5)))).get()


def test_a_failing_companion_fails_alone() -> None:
    machine = Machine()
    busy = machine.busy()
    values = [1.0, -7.0, 2.0]
    results = [machine.start(job_of(np.full((1, 2), value))) for value in values]
    machine.settle(3)
    machine.free.set()
    with pytest.raises(RequestError):
        results[1].get()
    assert [float(results[number].get()[0][0]) for number in (0, 2)] == [2.0, 4.0]
    busy.get()


def test_with_a_delay_the_first_waits_for_others() -> None:
    machine = Machine(queue_delay_us=300_000, max_batch=3)
    start = time.perf_counter()
    results = [machine.start(job_of(np.ones((1, 5)))) for _ in range(3)]
    wait_all(results)
    assert machine.calls == [(3, 5)] and time.perf_counter() - start < 0.25  # full: no reason to wait longer
    start = time.perf_counter()
    machine.start(job_of(np.ones((1, 5)))).get()
    assert time.perf_counter() - start >= 0.3


def test_concurrency_lets_calls_overlap() -> None:
    machine = Machine(Alone(), concurrency=2)
    machine.free.clear()
    results = [machine.start(job_of(np.ones((1, 5)))) for _ in range(3)]
    assert machine.entered.acquire(timeout=5) and machine.entered.acquire(timeout=5)
    assert not machine.entered.acquire(timeout=0.05)
    machine.free.set()
    wait_all(results)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_random_load_gives_everybody_the_right_answer(concurrency: int) -> None:
    machine = Machine(max_batch=8, max_queue=1000, concurrency=concurrency)
    wrong: list[object] = []

    def ask(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(40):
            x = random.standard_normal((int(random.integers(0, 4)), int(random.integers(1, 4))))
            job = job_of(x, priority=int(random.integers(1, 5)), wait_s=None if random.random() < 0.8 else 0.001)
            try:
                if not np.allclose(machine.batcher.submit(job)[0], x.sum(1)):
                    wrong.append(x)
            except DeadlineError:
                pass

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert not wrong and not machine.batcher.waiting


# --- padding ----------------------------------------------------------------------------------------------------------------


def signature() -> Signature:
    """x [S0, S1], mask [S0, S1] → [S0]."""
    from programs import manifest

    made = manifest(
        [{"name": name, "dtype": "f64", "dims": ["S0", "S1"]} for name in ("x", "mask")],
        [{"name": "y", "dtype": "f64", "rank": 1, "dims": ["S0"]}],
    )
    made["batch"] = {"symbol": "S0", "inputs": [0, 0], "outputs": [0]}
    return Signature(made)


def padding(pad: dict[str, float] | None = None) -> PadToLongest:
    joining = joining_of(signature(), ModelSettings(sequence=SequenceSettings("x.1", "mask", pad or {})))
    assert isinstance(joining, PadToLongest)
    return joining


def taught(joining: PadToLongest, fixed: float, per_token: float) -> PadToLongest:
    for rows, length in [(1, 4), (2, 8), (1, 16), (4, 4), (3, 9), (2, 2), (1, 8), (5, 7), (1, 12), (2, 16)] * 3:
        joining.cost.add(rows, length, fixed + per_token * rows * length)
    joining.cost.add = lambda rows, length, seconds: None  # the calls of the test take the time that its machine takes
    return joining


@pytest.mark.parametrize(("fixed", "joined"), [(1e-3, True), (1e-7, False)])
def test_lengths_are_padded_where_a_call_costs_more_than_the_padding(fixed: float, joined: bool) -> None:
    machine = Machine(taught(padding({"x": 3.0}), fixed, 1e-5))
    busy = machine.busy()
    given = [np.random.default_rng(n).standard_normal((1 + n % 2, length)) for n, length in enumerate([3, 9, 5])]
    answers_of(machine, given)
    busy.get()
    assert machine.calls[1:] == ([(4, 9)] if joined else [(1, 3), (2, 9), (1, 5)])


def test_without_knowledge_lengths_stay_apart_and_equal_ones_join() -> None:
    machine = Machine(padding())
    busy = machine.busy()
    results = []
    for number, length in enumerate([3, 4, 3]):
        results.append(machine.start(job_of(np.ones((1, length)))))
        machine.settle(number + 1)
    machine.free.set()
    wait_all([busy, *results])
    assert machine.calls[1:] == [(2, 3), (1, 4)]


@pytest.mark.parametrize(
    ("sequence", "words"),
    [
        (SequenceSettings("z.1", "mask"), "no input 'z'"),
        (SequenceSettings("x.7", "mask"), "no dynamic dim"),
        (SequenceSettings("x.1", "lengths"), "no input 'lengths'"),
        (SequenceSettings("x.1", "mask", {"ids": 0}), "no input 'ids'"),
    ],
)
def test_a_sequence_table_must_fit_the_model(sequence: SequenceSettings, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        joining_of(signature(), ModelSettings(sequence=sequence))


def test_the_cost_model_learns_times() -> None:
    cost = CallCost()
    assert cost.seconds(1, 8) is None
    for rows, length in [(1, 8), (2, 8), (1, 64), (4, 32), (8, 16), (2, 128), (1, 256), (3, 50), (6, 20), (1, 100)] * 4:
        cost.add(rows, length, 1e-4 + 2e-6 * rows * length + 1e-8 * rows * length**2)
    for rows, length in [(5, 40), (2, 200), (16, 16)]:
        expected = 1e-4 + 2e-6 * rows * length + 1e-8 * rows * length**2
        assert cost.seconds(rows, length) == pytest.approx(expected, rel=0.02)


# --- through the server -----------------------------------------------------------------------------------------------------


def requests_at_once(client: Client, count: int, **fields: object) -> list[tuple[str, float]]:
    """Status and seconds of requests that are sent together."""
    outcomes: list[tuple[str, float]] = []
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 4]}]

    def ask() -> None:
        start = time.perf_counter()
        try:
            client.call("ModelInfer", model_name="twice", inputs=inputs, raw_input_contents=[np.ones(4, np.float32).tobytes()], **fields)
            outcomes.append(("OK", time.perf_counter() - start))
        except Exception as error:
            outcomes.append((error.code().name, time.perf_counter() - start))  # pyright: ignore[reportAttributeAccessIssue]

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_overload_is_refused_and_counted(tmp_path: Path) -> None:
    write_twice(tmp_path / "twice.disc", ms=50)
    with serving(tmp_path / "twice.disc", defaults={"max_queue": 4, "max_batch": 1}) as client:
        outcomes = requests_at_once(client, 30)
        codes = [code for code, _ in outcomes]
        assert set(codes) == {"OK", "RESOURCE_EXHAUSTED"} and codes.count("OK") >= 5
        totals = client.call("ModelStatistics", name="twice").model_stats[0].inference_stats
        assert totals.fail.count == codes.count("RESOURCE_EXHAUSTED") and totals.success.count == codes.count("OK")


def test_timeouts_by_parameter_and_by_deadline(tmp_path: Path) -> None:
    write_twice(tmp_path / "twice.disc", ms=300)
    with serving(tmp_path / "twice.disc", defaults={"max_batch": 1}) as client:
        outcomes = requests_at_once(client, 4, parameters={"timeout": parameter(50_000)})
        assert sorted(code for code, _ in outcomes) == ["DEADLINE_EXCEEDED"] * 3 + ["OK"]
        assert all(seconds < 0.25 for code, seconds in outcomes if code != "OK")
        busy = threading.Thread(target=lambda: client.infer("twice", x=np.ones((1, 1), np.float32)))
        busy.start()
        time.sleep(0.05)
        before = client.call("ModelStatistics", name="twice").model_stats[0].execution_count
        assert failure(lambda: client.infer("twice", timeout=0.05, x=np.ones((1, 1), np.float32)))[0] == "DEADLINE_EXCEEDED"
        future = client.channel.unary_unary(f"/{INFERENCE}/ModelInfer").future(b"\x0a\x05twice" + ONE)
        time.sleep(0.05)
        future.cancel()
        busy.join()
        time.sleep(0.4)
        assert client.call("ModelStatistics", name="twice").model_stats[0].execution_count == before + 1  # only the busy one


ONE = b"\x2a\x0d\x0a\x01x\x12\x04FP32\x1a\x02\x01\x01\x3a\x04\x00\x00\x80\x3f"  # inputs: x FP32 [1, 1], raw 1.0


def test_the_hand_made_request_is_a_good_one(tmp_path: Path) -> None:
    write_twice(tmp_path / "twice.disc")
    with serving(tmp_path / "twice.disc") as client:
        from disc.serving.messages import message

        answer = message("inference.ModelInferResponse").FromString(client.raw("ModelInfer", b"\x0a\x05twice" + ONE))
        np.testing.assert_array_equal(results(answer)["y"], [[2.0]])


def test_rows_never_exceed_what_the_model_takes(tmp_path: Path) -> None:
    write_twice(tmp_path / "twice.disc", ms=30, most_rows=2)
    with serving(tmp_path / "twice.disc") as client:
        assert {code for code, _ in requests_at_once(client, 9)} == {"OK"}
        sizes = [each.batch_size for each in client.call("ModelStatistics", name="twice").model_stats[0].batch_stats]
        assert max(sizes) == 2
        assert failure(lambda: client.infer("twice", x=np.ones((3, 4), np.float32)))[0] == "INVALID_ARGUMENT"
