"""Inputs in POSIX shared memory: used, and kept within bounds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import pytest
from oip_client import Client, failure, parameter, results, serving, write_twice


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    write_twice(tmp_path / "twice.disc")
    with serving(tmp_path / "twice.disc", shared_memory=True) as client:
        yield client


@pytest.fixture
def region() -> Iterator[shared_memory.SharedMemory]:
    made = shared_memory.SharedMemory(create=True, size=64)
    yield made
    made.close()
    made.unlink()


def infer(client: Client, name: str, size: int, offset: int = 0) -> np.ndarray:
    parameters = {
        "shared_memory_region": parameter(name),
        "shared_memory_byte_size": parameter(size),
        "shared_memory_offset": parameter(offset),
    }
    inputs = [{"name": "x", "datatype": "FP32", "shape": [2, 3], "parameters": parameters}]
    return results(client.call("ModelInfer", model_name="twice", inputs=inputs))["y"]


def test_an_input_comes_from_a_region(client: Client, region: shared_memory.SharedMemory) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert region.buf is not None
    region.buf[16:40] = x.tobytes()
    client.call("SystemSharedMemoryRegister", name="in", key=f"/{region.name}", offset=8, byte_size=40)
    status = client.call("SystemSharedMemoryStatus").regions["in"]
    assert (status.offset, status.byte_size) == (8, 40)
    np.testing.assert_array_equal(infer(client, "in", 24, 8), 2 * x)
    for size, offset in ((24, 17), (41, 0), (24, -1), (1 << 62, 1 << 62)):
        assert failure(lambda size=size, offset=offset: infer(client, "in", size, offset))[0] == "INVALID_ARGUMENT"
    assert failure(lambda: infer(client, "in", 20))[0] == "INVALID_ARGUMENT"
    assert failure(lambda: infer(client, "nobody", 24))[0] == "INVALID_ARGUMENT"
    again = {"name": "in", "key": region.name, "byte_size": 8}
    assert failure(lambda: client.call("SystemSharedMemoryRegister", **again))[0] == "INVALID_ARGUMENT"
    client.call("SystemSharedMemoryUnregister", name="in")
    assert failure(lambda: client.call("SystemSharedMemoryStatus", name="in"))[0] == "INVALID_ARGUMENT"
    assert failure(lambda: client.call("SystemSharedMemoryUnregister", name="in"))[0] == "INVALID_ARGUMENT"
    client.call("SystemSharedMemoryUnregister")


def test_a_region_that_shrinks_ends_a_request_and_not_the_server(client: Client, region: shared_memory.SharedMemory) -> None:
    client.call("SystemSharedMemoryRegister", name="in", key=region.name, byte_size=64)
    infer(client, "in", 24)
    os.truncate(f"/dev/shm/{region.name}", 8)
    assert failure(lambda: infer(client, "in", 24))[0] == "INVALID_ARGUMENT"
    assert client.call("ServerLive").live


@pytest.mark.parametrize("key", ["", "/", "../etc/passwd", "/../../etc/passwd", "a/b", "..", "nobody-made-this", "/x" * 300, "a\0b"])
def test_keys_cannot_leave_the_folder(client: Client, key: str) -> None:
    code, text = failure(lambda: client.call("SystemSharedMemoryRegister", name="r", key=key, byte_size=4))
    assert code == "INVALID_ARGUMENT" and "/dev/shm" not in text


def test_only_regular_files_that_are_large_enough(client: Client, region: shared_memory.SharedMemory) -> None:
    link, pipe = (Path("/dev/shm") / f"{region.name}-{kind}" for kind in ("link", "pipe"))
    link.symlink_to("/etc/passwd")
    os.mkfifo(pipe)
    try:
        for key, size in ((link.name, 4), (pipe.name, 4), (region.name, 1 << 40), (region.name, 0)):
            request = {"name": "r", "key": key, "byte_size": size}
            assert failure(lambda request=request: client.call("SystemSharedMemoryRegister", **request))[0] == "INVALID_ARGUMENT"
        wrapped = {"name": "r", "key": region.name, "offset": (1 << 64) - 4, "byte_size": 8}
        assert failure(lambda: client.call("SystemSharedMemoryRegister", **wrapped))[0] == "INVALID_ARGUMENT"
    finally:
        link.unlink()
        pipe.unlink()
