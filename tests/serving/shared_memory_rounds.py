"""Rounds of a shared memory region that is used, changed, unregistered and registered at once, beside the garbage collector.

`python shared_memory_rounds.py ROUNDS` has the server in this process. A round: a new region of 4 KiB is registered; 4 clients send 25
requests each whose input, with 3 parameters, lies in it; meanwhile a fifth shrinks and grows the object and registers it anew, and the
collector runs all the time. protobuf's classes of nested messages were destroyed and made again by that, and the process ended with SIGSEGV.
Prints JSON: rounds, requests by their outcome, collections.
"""

from __future__ import annotations

import collections
import faulthandler
import gc
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import grpc
from oip_client import Client, parameter, serving, write_twice

from disc.serving.messages import INFERENCE, message

CLIENTS, REQUESTS = 4, 25
KEY = f"disc-rounds-{os.getpid()}"
PLACE = Path("/dev/shm") / KEY
_REQUEST, _REGISTER, _UNREGISTER = (
    message(f"inference.{name}")
    for name in ("ModelInferRequest", "SystemSharedMemoryRegisterRequest", "SystemSharedMemoryUnregisterRequest")
)


def request(region: str) -> bytes:
    where = {"shared_memory_region": region, "shared_memory_byte_size": 4096, "shared_memory_offset": 0}
    given = {"name": "x", "datatype": "FP32", "shape": [32, 32], "parameters": {name: parameter(value) for name, value in where.items()}}
    return _REQUEST(model_name="twice", inputs=[given]).SerializeToString()


def one_round(client: Client, number: int, outcomes: collections.Counter[str]) -> None:
    name, done = f"r{number}", threading.Event()
    register = _REGISTER(name=name, key=KEY, byte_size=4096).SerializeToString()
    unregister = _UNREGISTER(name=name).SerializeToString()
    asked = request(name)
    infer = client.channel.unary_unary(f"/{INFERENCE}/ModelInfer")

    def admin(method: str, data: bytes) -> None:
        try:
            client.raw(f"SystemSharedMemory{method}", data)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error  # pyright: ignore[reportAttributeAccessIssue]

    def use() -> None:
        for _ in range(REQUESTS):
            try:
                infer(asked, timeout=30)
                outcomes["OK"] += 1
            except grpc.RpcError as error:
                outcomes[error.code().name] += 1  # pyright: ignore[reportAttributeAccessIssue]

    def shake() -> None:
        while not done.is_set():
            os.truncate(PLACE, 0)
            os.truncate(PLACE, 4096)
            admin("Unregister", unregister)
            admin("Register", register)

    admin("Register", register)
    users = [threading.Thread(target=use) for _ in range(CLIENTS)]
    shaker = threading.Thread(target=shake)
    for thread in (*users, shaker):
        thread.start()
    for thread in users:
        thread.join()
    done.set()
    shaker.join()
    admin("Unregister", unregister)


def main(rounds: int) -> None:
    faulthandler.enable()
    outcomes: collections.Counter[str] = collections.Counter()
    collections_run, stop = [0], threading.Event()

    def collect() -> None:
        while not stop.is_set():
            gc.collect()
            collections_run[0] += 1
            time.sleep(0.001)

    PLACE.write_bytes(bytes(4096))
    collector = threading.Thread(target=collect)
    with tempfile.TemporaryDirectory() as folder:
        write_twice(Path(folder) / "twice.disc")
        with serving(Path(folder) / "twice.disc", shared_memory=True) as client:
            gc.collect()
            gc.freeze()  # what is there stays: collections are then cheap, and there are more of them
            collector.start()
            try:
                for number in range(rounds):
                    one_round(client, number, outcomes)
            finally:
                stop.set()
                collector.join()
                PLACE.unlink()
    print(json.dumps({"rounds": rounds, "outcomes": outcomes, "collections": collections_run[0]}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
