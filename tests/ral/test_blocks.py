"""Memory that generated code asks for in a call: as often as it likes, in loops, of sizes that kernels wrote."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from programs import ADD_THROUGH_BLOCKS, add_manifest, build, copy_manifest, manifest

from disc.errors import CancelledError, DeadlineError, OutOfMemoryError, ShapeConstraintError, WithdrawnError
from disc.ral.executable import Executable, stopping
from disc.serving.batcher import Batcher, Job
from disc.serving.joining import Alone, Inputs
from disc.serving.settings import ModelSettings

WEIGHT = ("weight", "i64", np.array(5))
SIZES = (0, 1, 2, 7, 31, 257)


@pytest.fixture(scope="module")
def loops() -> Executable:
    """loop_program.c on the CPU; device_test.cc runs it on a device too, under the sanitizers."""
    described = manifest(
        [{"name": "x", "dtype": "i64", "dims": ["S0"]}, {"name": "what", "dtype": "i64", "dims": [2]}],
        [{"name": "y", "dtype": "i64", "rank": 1}],
        checks=("stopped at step {actual}",),
        kernels=("halve", "any", "square", "count", "gather"),
        counters=("steps",),
    )
    source = Path(__file__).with_name("loop_program.c").read_text()
    return Executable.from_parts(described, {"x86-64": build(source)}, [WEIGHT], threads=2)


def run(loops: Executable, what: int, x: np.ndarray, stop: int = -1) -> np.ndarray:
    result = loops(x, np.array([what, stop]))
    assert isinstance(result, np.ndarray)
    return result


@pytest.mark.parametrize("size", SIZES)
def test_a_loop_whose_buffers_take_turns(loops: Executable, size: int) -> None:
    x = np.random.default_rng(size).integers(0, 1000, size)
    np.testing.assert_array_equal(run(loops, 0, x), [max(int(value).bit_length() - 1, 0) for value in x])


@pytest.mark.parametrize("size", SIZES)
def test_a_buffer_that_grows(loops: Executable, size: int) -> None:
    x = np.random.default_rng(size).integers(0, 5, size)
    np.testing.assert_array_equal(run(loops, 1, x), np.arange(x.sum()) ** 2 + 5)


@pytest.mark.parametrize("size", SIZES)
def test_a_result_whose_size_a_kernel_wrote(loops: Executable, size: int) -> None:
    x = np.random.default_rng(size).integers(0, 2, size)
    np.testing.assert_array_equal(run(loops, 2, x), np.flatnonzero(x) if x.any() else [-1])


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl+C raises KeyboardInterrupt also where the tests were started with SIGINT ignored, as shells start what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_a_loop_without_an_end_is_cancelled(loops: Executable) -> None:
    endless = np.full(3, 2)
    end = time.monotonic() + 0.05
    with stopping(lambda: time.monotonic() > end), pytest.raises(CancelledError, match="the call was cancelled"):
        run(loops, 3, endless)
    with stopping(lambda: 1 // 0), pytest.raises(ZeroDivisionError):
        run(loops, 3, endless)
    timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(loops, 3, endless)
    timer.join()
    np.testing.assert_array_equal(run(loops, 3, np.ones(3, np.int64)), [0, 0, 0])


def test_a_request_for_a_loop_without_an_end_is_given_up(loops: Executable) -> None:
    def answer(inputs: Inputs) -> list[np.ndarray]:
        return [run(loops, 3, inputs[0])]

    batcher = Batcher(answer, Alone(), ModelSettings(), None, lambda record: None)
    with pytest.raises(DeadlineError, match="over while it ran"):
        batcher.submit(Job([np.full(3, 2)], {}, deadline=time.monotonic() + 0.05))
    job = Job([np.full(3, 2)], {})
    timer = threading.Timer(0.05, batcher.withdraw, [job])
    timer.start()
    with pytest.raises(WithdrawnError):
        batcher.submit(job)
    assert batcher.submit(Job([np.ones(2, np.int64)], {}))[0].tolist() == [0, 0]


def test_a_check_that_fails_in_a_loop_leaves_nothing(loops: Executable) -> None:
    x = np.full(100_000, 1000)
    run(loops, 0, x)
    held = loops.stats()["arena_bytes"]
    for step in range(5):
        with pytest.raises(ShapeConstraintError, match=f"stopped at step {step}"):
            run(loops, 0, x, step)
    run(loops, 0, x)
    assert loops.stats()["arena_bytes"] == held


def test_blocks_go_from_one_request_to_the_next() -> None:
    adder = Executable.from_parts(add_manifest(), {"x86-64": build(ADD_THROUGH_BLOCKS)}, [("bias", "f32", np.array(0.5, np.float32))])
    x = np.ones((1000, 4), np.float32)
    np.testing.assert_array_equal(adder(x, x), x * 2.5)  # pyright: ignore[reportArgumentType]
    held = adder.stats()["arena_bytes"]
    assert isinstance(held, int) and 6 * x.nbytes < held < 10 * x.nbytes
    for _ in range(200):
        adder(x, x)
    assert adder.stats()["arena_bytes"] == held


def test_memory_that_there_is_not() -> None:
    head = (
        "int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters)"
    )
    source = f'#include "ral.h"\n{head} {{ return api->alloc(exec, 8) && !api->alloc(exec, 1LL << 60); }}'
    executable = Executable.from_parts(copy_manifest("f32", 1), {"x86-64": build(source)})
    with pytest.raises(OutOfMemoryError, match=f"cannot allocate {1 << 60} bytes"):
        executable(np.ones(3, np.float32))
