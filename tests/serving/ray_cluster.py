"""disc on a Ray cluster of two nodes on this machine, step by step: python ray_cluster.py MODELS SPARE update|death

MODELS: `twice/1/model.disc`; SPARE: `new` and `damaged`, its later versions. Run by test_ray_cluster.py, in an environment that has Ray and
in a network of its own, where the nodes have the addresses of `NODES`; prints what it saw as one line of JSON.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import ray
import tritonclient.grpc as triton
from ray import serve
from ray.cluster_utils import Cluster

from disc.errors import DiscError
from disc.serving.messages import message
from disc.serving.ray.deployment import deploy, start

HOST, OTHER = "10.77.0.1", "10.77.0.2"
X = np.arange(6, dtype=np.float32).reshape(2, 3)
NODE = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}
SCALE = {"cpus": 1.5, "autoscaling": {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 2.0, "upscale_delay_s": 1.0,
         "downscale_delay_s": 600.0, "metrics_interval_s": 0.5, "look_back_period_s": 2.0}}  # fmt: skip  # 1.5 of 2 CPUs: one replica per node


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return listener.getsockname()[1]


def wait_for(what: str, condition: Callable[[], bool], seconds: float) -> float:
    """How long it took."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.25)
    return round(time.monotonic() - begin, 1)


class Load:
    """Clients that ask without a pause, through tritonclient, and check every answer."""

    def __init__(self, port: int, clients: int = 6) -> None:
        self.versions: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._change = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(port, number)) for number in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, port: int, number: int) -> None:
        client = triton.InferenceServerClient(f"{HOST}:{port}")
        x = X + number
        while not self._stop.is_set():
            outcome, kind = ask(client, x)
            with self._change:
                (self.versions if kind else self.failures)[outcome] += 1
            if not kind:
                self._stop.wait(0.05)
        client.close()

    @property
    def answered(self) -> int:
        return sum(self.versions.values())


def ask(client: triton.InferenceServerClient, x: np.ndarray) -> tuple[str, bool]:
    """The version that answered, or the failure."""
    given = triton.InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x)
    try:
        answer = client.infer("twice", [given], client_timeout=60)
    except triton.InferenceServerException as error:
        return f"{error.status()}: {error.message()[:200]}", False
    assert np.array_equal(answer.as_numpy("y"), 2 * x), "a wrong answer"
    return answer.get_response().model_version, True


def replicas(handle: Any) -> dict[str, dict[str, Any]]:
    """By node: what its replica says, of those that a few calls reach."""
    found = [handle.served.remote() for _ in range(12)]
    return {each["node"]: each for each in (one.result(timeout_s=30) for one in found)}


def main(models: Path, spare: Path, part: str) -> None:
    seen: dict[str, object] = {}
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "node_ip_address": HOST})
    worker = cluster.add_node(**NODE, node_ip_address=OTHER)
    ray.init(cluster.address, log_to_driver=False)
    grpc_port, http_port = free_port(), free_port()
    try:
        start(grpc_port=grpc_port, http_port=http_port, host=HOST, proxies="HeadOnly")
        handle = deploy(models, name="twice", **SCALE)
        protocols(handle, grpc_port, http_port)
        seen["scaled up after s"] = scaled_up(handle, grpc_port)
        if part == "update":
            seen["update"] = rolling_update(models, spare, handle, grpc_port)
            seen["damaged update"] = refused_update(models, spare, grpc_port)
        else:
            seen["node death"] = node_death(cluster, worker, handle, grpc_port)
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()
    print(json.dumps(seen))


def protocols(handle: Any, grpc_port: int, http_port: int) -> None:
    """Every way to ask, on one replica."""
    client = triton.InferenceServerClient(f"{HOST}:{grpc_port}")
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("twice")
    assert client.get_model_metadata("twice").inputs[0].name == "x" and client.get_model_config("twice").config.name == "twice"
    assert ask(client, X) == ("1", True)
    given = triton.InferInput("x", [2, 3], "FP32")
    given.set_data_from_numpy(X)
    try:
        client.infer("nobody", [given])
    except triton.InferenceServerException as error:
        assert error.status() == "StatusCode.NOT_FOUND" and "nobody" in error.message(), error
    else:
        raise AssertionError("an unknown model answered")
    answers: list[Any] = []
    done = threading.Semaphore(0)
    client.start_stream(lambda result, error: (answers.append(error or result.as_numpy("y")), done.release()))
    client.async_stream_infer("twice", [given])
    assert done.acquire(timeout=30) and np.array_equal(answers[0], 2 * X), answers
    client.stop_stream()
    client.close()
    with grpc.insecure_channel(f"{HOST}:{grpc_port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert message("grpc.health.v1.HealthCheckResponse").FromString(check(b"", timeout=10)).status == 1
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 3], "data": X.reshape(-1).tolist()}]}
    asked = urllib.request.Request(f"http://{HOST}:{http_port}/v2/models/twice/infer", json.dumps(body).encode())
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert json.load(answer)["outputs"][0]["data"] == (2 * X).reshape(-1).tolist()
    assert np.array_equal(handle.infer.remote("twice", {"x": X}).result(timeout_s=30)["y"], 2 * X)


def scaled_up(handle: Any, port: int) -> float:
    """Seconds until a replica on the other node answers as well."""
    assert len(replicas(handle)) == 1
    with Load(port) as load:
        both = lambda: len(found := replicas(handle)) == 2 and all(each["answered"] > 0 for each in found.values())  # noqa: E731
        seconds = wait_for("answers from both nodes", both, 90)
    assert load.answered and not load.failures, load.failures
    return seconds


def rolling_update(models: Path, spare: Path, handle: Any, port: int) -> dict[str, object]:
    """Version 2 comes while requests run."""
    with Load(port) as load:
        wait_for("answers of version 1", lambda: load.versions["1"] > 20, 30)
        shutil.copytree(spare / "new", models / "twice" / "2")
        deploy(models, name="twice", **SCALE)
        wait_for("replicas of version 2 alone", lambda: all(each["models"] == ["twice:2"] for each in replicas(handle).values()), 120)
        before = load.versions["1"]
        wait_for("answers of version 2", lambda: load.versions["2"] > 20, 30)
        assert load.versions["1"] == before
    assert not load.failures, load.failures
    return {"answered": dict(load.versions), "failed": sum(load.failures.values())}


def refused_update(models: Path, spare: Path, port: int) -> dict[str, object]:
    """A version that is damaged: the one before goes on answering."""
    with Load(port) as load:
        shutil.copytree(spare / "damaged", models / "twice" / "3")
        try:
            deploy(models, name="twice", **SCALE)
        except DiscError as error:
            said = str(error)
        else:
            raise AssertionError("a damaged artifact was deployed")
        assert "could not be loaded" in said, said
        before = load.versions["2"]
        wait_for("answers of version 2", lambda: load.versions["2"] > before + 20, 30)
    assert not load.failures and set(load.versions) == {"2"}, (load.failures, load.versions)
    return {"answered": load.answered, "failed": sum(load.failures.values())}


def node_death(cluster: Cluster, worker: Any, handle: Any, port: int) -> dict[str, object]:
    """A node is killed under load: what it was answering fails, the rest is answered; a new node takes its place."""
    with Load(port) as load:
        wait_for("answers", lambda: load.answered > 20, 60)
        cluster.remove_node(worker, allow_graceful=False)
        begin, failed = time.monotonic(), -1
        while sum(load.failures.values()) != failed or time.monotonic() - begin < 10:  # until 5 s pass without a failure
            failed = sum(load.failures.values())
            time.sleep(5)
            assert time.monotonic() - begin < 120, load.failures
        before = load.answered
        wait_for("answers of the node that is left", lambda: load.answered > before + 20, 30)
        cluster.add_node(**NODE, node_ip_address=OTHER)
        again = wait_for("a replica on the new node", lambda: len(replicas(handle)) == 2, 120)
        assert sum(load.failures.values()) == failed
    return {"failed": dict(load.failures), "answered": load.answered, "second replica after s": again}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    print("conformant")
