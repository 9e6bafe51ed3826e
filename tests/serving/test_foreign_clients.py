"""Clients that nobody here wrote, each in a virtual environment of its own: they install packages, so these run with --long only."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dynamic_models import TreeGRU, trees
from oip_client import Client, serving, write_copy, write_twice

import disc
from disc.config import Options
from disc.serving.datatypes import DATATYPES
from tests.diff.test_saved_structures import COLUMNS, FIELDS, flat

pytestmark = pytest.mark.long
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp("models")
    for datatype in DATATYPES.values():
        for rank in (0, 1, 2, 5):
            folder = root / f"copy_{datatype.dtype}_{rank}" / "1"
            folder.mkdir(parents=True)
            write_copy(folder / "model.disc", datatype.dtype, rank)
    (root / "twice" / "1").mkdir(parents=True)
    write_twice(root / "twice" / "1" / "model.disc")
    with serving(root, admin=True) as client:
        yield client


def environment(folder: Path, *packages: str) -> Path:
    """The interpreter of a new virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True, timeout=600)
    return python


def run(python: Path, script: str, client: Client) -> None:
    done = subprocess.run([str(python), str(HERE / script), str(client.server.port)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "conformant" in done.stdout, done.stderr[-3000:]


@pytest.mark.parametrize("version", ["2.73.0", "2.48.0"])
def test_tritonclient(client: Client, tmp_path: Path, version: str) -> None:
    pins = ["numpy<2", "protobuf<6"] if version == "2.48.0" else ["ml_dtypes"]
    run(environment(tmp_path / "venv", f"tritonclient[grpc]=={version}", *pins), "triton_conformance.py", client)


def test_tritonclient_asks_for_trees(tmp_path: Path) -> None:
    """A model over trees, saved and served, and asked by the lines of docs/batched.md."""
    torch.manual_seed(0)
    module, instances = TreeGRU(8).eval(), trees(4, 9)
    model: Any = disc.batched(module, options=Options(cache=False, threads=1))
    model.save(tmp_path / "tree.disc", trees(8))
    for name, array in zip(("word", "left", "right", "root"), flat(instances, COLUMNS, FIELDS), strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    block = re.search(r"^import tritonclient.*?(?=^```)", (HERE.parents[1] / "docs" / "batched.md").read_text(), re.M | re.S)
    assert block is not None and "127.0.0.1:8001" in block[0]
    with serving(tmp_path / "tree.disc") as client:
        script = (
            "import numpy\n"
            "from types import SimpleNamespace\n"
            "def read(name): return SimpleNamespace(numpy=lambda: numpy.load(f'{name}.npy'))\n"
            "word, left, right, root = map(read, ('word', 'left', 'right', 'root'))\n"
            "print = lambda array: numpy.save('found.npy', array)\n"
        ) + block[0].replace("127.0.0.1:8001", f"127.0.0.1:{client.server.port}")
        python = environment(tmp_path / "venv", "tritonclient[grpc]==2.73.0", "ml_dtypes")
        done = subprocess.run([str(python), "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    with torch.no_grad():
        expected = np.stack([module(each).numpy() for each in instances])
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), expected, rtol=1e-4, atol=1e-5)


def test_kserve(client: Client, tmp_path: Path) -> None:
    run(environment(tmp_path / "venv", "kserve==0.21.0"), "kserve_conformance.py", client)


def test_client_and_server_in_one_process(tmp_path: Path) -> None:
    """The server's messages are in a pool of their own, so a client library can register the same names."""
    python = environment(tmp_path / "venv", "tritonclient[grpc]==2.73.0", "grpcio==1.85.1", "aiohttp==3.14.5")
    code = (
        f"import sys; sys.path[:0] = [{str(HERE.parents[1])!r}]\n"
        "import tritonclient.grpc as triton\n"
        "from disc.serving.server import Server\n"
        "from tritonclient.grpc import service_pb2\n"
        "from disc.serving.messages import message\n"
        "assert message('inference.ModelInferRequest') is not service_pb2.ModelInferRequest\n"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("npx") is None, reason="buf comes through npm")
def test_buf_curl_by_reflection(client: Client, tmp_path: Path) -> None:
    subprocess.run(["npm", "install", "--silent", "--prefix", str(tmp_path), "@bufbuild/buf@1.75.0"], check=True, timeout=600)
    buf = tmp_path / "node_modules" / ".bin" / "buf"
    base = f"http://127.0.0.1:{client.server.port}/inference.GRPCInferenceService"
    command = [str(buf), "curl", "--protocol", "grpc", "--http2-prior-knowledge"]
    request = {"model_name": "twice", "id": "b1",
               "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "contents": {"fp32_contents": [1, 2.5]}}]}  # fmt: skip
    done = subprocess.run([*command, "-d", json.dumps(request), f"{base}/ModelInfer"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outputs"][0]["contents"]["fp32Contents"] == [2, 5]


@pytest.fixture(scope="module")
def perf_analyzer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The load generator of Triton's users and its environment: the last client wheel that holds it, and the libraries that it lacks."""
    if shutil.which("apt-get") is None:
        pytest.skip("perf_analyzer needs libb64, a package of Debian and Ubuntu; there is no apt-get")
    folder = tmp_path_factory.mktemp("perf_analyzer")
    pins = ["numpy<2", "protobuf<6", "nvidia-cuda-runtime-cu12"]
    python = environment(folder / "venv", "tritonclient[grpc]==2.48.0", *pins)
    subprocess.run(["apt-get", "download", "-q", "libb64-0d"], cwd=folder, check=True, timeout=120)
    subprocess.run(["dpkg", "-x", *map(str, folder.glob("libb64-0d*.deb")), "libb64"], cwd=folder, check=True)
    libraries = [next(folder.rglob("libb64.so.0d")).parent, next(folder.rglob("libcudart.so.12")).parent]
    return python.with_name("perf_analyzer"), {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries))}


@pytest.mark.parametrize(
    "options", [["-i", "grpc"], ["-i", "grpc", "--streaming", "--async"], ["-i", "http"]], ids=["grpc", "stream", "http"]
)
def test_perf_analyzer(client: Client, perf_analyzer: tuple[Path, dict[str, str]], tmp_path: Path, options: list[str]) -> None:
    """A fixed number of requests: on a machine that others share, it would never find its figures stable."""
    program, variables = perf_analyzer
    port = client.server.http_port if "http" in options else client.server.port
    load = ["--shape", "x:2,16", "--concurrency-range", "2", "--request-count", "400", "--verbose-csv", "-f", str(tmp_path / "report.csv")]
    command = [str(program), "-m", "twice", "-u", f"127.0.0.1:{port}", *options, *load]
    before = client.call("ModelStatistics", name="twice").model_stats[0].inference_stats.success.count
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (row,) = csv.DictReader((tmp_path / "report.csv").open())
    assert float(row["Inferences/Second"]) > 0 and float(row["Server Compute Infer"]) > 0, row
    assert client.call("ModelStatistics", name="twice").model_stats[0].inference_stats.success.count >= before + 400
