"""disc on a Ray cluster of two nodes, both on this machine, in a virtual environment of its own: with --long only."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from oip_client import write_twice

pytestmark = pytest.mark.long
HERE = Path(__file__).parent
PACKAGES = ("ray[serve-grpc]==2.60.0", "grpcio==1.85.1", "aiohttp==3.14.5", "protobuf>=6.31,<8", "tritonclient[grpc]==2.73.0", "ml_dtypes")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has Ray, and behind it what this one has (PyTorch, to compile)."""
    folder = tmp_path_factory.mktemp("ray") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True, timeout=900)
    mine = "; ".join(f"site.addsitedir({each!r})" for each in site.getsitepackages())
    (folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "behind.pth").write_text(f"import site; {mine}\n")
    return python


# Ray's ports run what they are sent, and its proxy listens on every interface: here there is none but this one.
NETWORK = "ip link set lo up && ip address add 10.77.0.1/24 dev lo && ip address add 10.77.0.2/24 dev lo"
ISOLATED = ("unshare", "--map-root-user", "--net", "sh", "-c", f'{NETWORK} && exec "$@"', "sh")


def run(python: Path, folder: Path, script: str, *arguments: str) -> dict[str, object]:
    """What the script printed. It runs in `folder`, with few threads.

    The one proxy is on the head node, and would send nothing elsewhere as long as the replica there has room.
    """
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)]), "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0", "RAY_health_check_timeout_ms": "60000", "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0",
    }  # fmt: skip
    command = [*ISOLATED, str(python), str(HERE / script), *arguments]
    with tempfile.TemporaryDirectory(prefix="ray") as short:  # the names of Ray's sockets may have 107 characters in all
        environment["RAY_TMPDIR"] = short
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, cwd=folder)
    assert done.returncode == 0 and "conformant" in done.stdout, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{")))


@pytest.mark.parametrize("part", ["update", "death"])
def test_serve(python: Path, tmp_path: Path, part: str) -> None:
    """Every way to ask; scaling under load to both nodes; then rolling updates, good and bad, or the death of a node."""
    models, spare = tmp_path / "models", tmp_path / "spare"
    for folder in (models / "twice" / "1", spare / "new", spare / "damaged"):
        folder.mkdir(parents=True)
        write_twice(folder / "model.disc", ms=20)
    damaged = bytearray((spare / "damaged" / "model.disc").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (spare / "damaged" / "model.disc").write_bytes(damaged)
    seen = run(python, tmp_path, "ray_cluster.py", str(models), str(spare), part)
    print(seen)
    assert {"update", "damaged update"} <= set(seen) if part == "update" else "node death" in seen


def test_compile_and_tune(python: Path, tmp_path: Path) -> None:
    seen = run(python, tmp_path, "ray_tasks.py")
    print(seen)
    assert len({each["machine"] for each in seen["compiled"]}) == 2  # pyright: ignore[reportIndexIssue, reportGeneralTypeIssues]
