"""The files of deploy/: they fit each other and the server, Kubernetes and KServe know their fields, the container's command runs as written."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from oip_client import write_twice

from disc.serving.settings import read_settings, settings_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
COMMAND: list[str] = json.loads(re.findall(r"^ENTRYPOINT (\[.*\])$", CONTAINERFILE, re.M)[0])


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def pods() -> Iterator[tuple[str, dict[str, Any], dict[str, Any], int]]:
    """(manifest, pod spec, its container, seconds that it gets to end)."""
    deployment = documents("kubernetes/disc-serve.yaml")[0]["spec"]["template"]["spec"]
    yield "kubernetes", deployment, deployment["containers"][0], deployment["terminationGracePeriodSeconds"]
    runtime = documents("kserve/serving-runtime.yaml")[0]["spec"]
    grace = documents("kserve/inference-service.yaml")[0]["spec"]["predictor"]["terminationGracePeriodSeconds"]
    yield "kserve", runtime, runtime["containers"][0], grace


@pytest.mark.parametrize(("name", "pod", "container", "grace"), list(pods()), ids=lambda each: each if isinstance(each, str) else "")
def test_a_pod_fits_the_command_of_the_container(name: str, pod: dict[str, Any], container: dict[str, Any], grace: int) -> None:
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert "command" not in container and "args" not in container  # what the image says is what runs
    assert ports["h2c" if name == "kserve" else "grpc"] == int(COMMAND[COMMAND.index("--port") + 1])
    assert container["readinessProbe"]["grpc"]["port"] == container["startupProbe"]["grpc"]["port"] == ports.get("grpc", 9000)
    live = container["livenessProbe"]["httpGet"]
    assert live["path"] == "/v2/health/live" and ports.get(live["port"], live["port"]) == int(COMMAND[COMMAND.index("--http-port") + 1])
    settings = read_settings(DEPLOY / "serve.toml")
    assert grace >= settings.drain_delay_s + settings.drain_timeout_s + 5
    # Longer than the probe needs to say so, so that nobody sends requests to a server that refuses them.
    assert settings.drain_delay_s > container["readinessProbe"]["periodSeconds"] * container["readinessProbe"]["failureThreshold"]
    assert container["securityContext"]["runAsUser"] == int(re.findall(r"^USER (\d+)$", CONTAINERFILE, re.M)[0])
    if name == "kubernetes":
        assert container["volumeMounts"][0]["mountPath"] == COMMAND[2] == "/mnt/models"


def test_the_parts_of_kserve_name_each_other() -> None:
    runtime, service = documents("kserve/serving-runtime.yaml")[0], documents("kserve/inference-service.yaml")[0]
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"] and model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    assert model["modelFormat"]["name"] == runtime["spec"]["supportedModelFormats"][0]["name"]


def test_the_service_finds_the_pods() -> None:
    deployment, service = documents("kubernetes/disc-serve.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels
    ports = {each["name"] for each in deployment["spec"]["template"]["spec"]["containers"][0]["ports"]}
    assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports


def test_the_settings_of_the_page_are_valid() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    written = [settings_of(tomllib.loads(block.split("```")[0])) for block in page.split("```toml\n")[1:]]
    assert "http://collector:4318" in [each.tracing.endpoint for each in written if each.tracing is not None]
    assert all(path in page for path in ("deploy/kubernetes/disc-serve.yaml", "deploy/Containerfile", "deploy/kserve/"))


# --- with what others made ------------------------------------------------------------------------------------------------------


def environment(folder: Path, *packages: str) -> Path:
    """The interpreter of a new virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True, timeout=900)
    return python


@pytest.fixture(scope="module")
def kserve(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("kserve") / "venv", "kserve==0.21.0")


@pytest.mark.long
def test_kubernetes_knows_every_field(tmp_path: Path) -> None:
    """Strictly: a field that the schema of Kubernetes 1.32 does not have is an error."""
    python = environment(tmp_path / "venv", "kubernetes-validate==1.37.0")
    command = [str(python), "-m", "kubernetes_validate", "--strict", "-k", "1.32", str(DEPLOY / "kubernetes" / "disc-serve.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_kserve_knows_every_field(kserve: Path) -> None:
    """Down to the pod's own fields, which are Kubernetes' (its client's models)."""
    done = subprocess.run([str(kserve), str(Path(__file__).parent / "kserve_fields.py"), str(DEPLOY / "kserve")],
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == 0 and "conformant" in done.stdout, done.stderr[-3000:]


@pytest.mark.long
def test_the_command_of_the_container_answers_kserves_client(kserve: Path, tmp_path: Path) -> None:
    """The wheel alone in an environment, the entry point as written, its paths in a file system and its ports in a network of their own."""
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path / "dist"), str(ROOT)],
                   check=True, timeout=900)  # fmt: skip
    (wheel,) = (tmp_path / "dist").glob("disc_compiler-*.whl")
    extras = re.findall(r"\.whl\)\[(.*?)\]", CONTAINERFILE)[0]
    python = environment(tmp_path / "server", f"{wheel}[{extras}]")
    assert subprocess.run([str(python), "-c", "import torch"], capture_output=True).returncode == 1
    (tmp_path / "models" / "twice" / "1").mkdir(parents=True)
    write_twice(tmp_path / "models" / "twice" / "1" / "model.disc")
    script = f"""
        set -e
        ip link set lo up
        mount -t tmpfs tmpfs /mnt && mkdir /mnt/models && mount --bind {tmp_path}/models /mnt/models
        mount -t tmpfs tmpfs /srv && mkdir /srv/disc && cp {DEPLOY}/serve.toml /srv/disc/
        cd /; PATH={python.parent}:$PATH {shlex.join(COMMAND)} & server=$!
        for _ in $(seq 300); do grep -q :2328 /proc/net/tcp && break; sleep 0.2; done  # 2328: port 9000
        {kserve} {Path(__file__).parent}/kserve_conformance.py 9000
        curl -fs http://127.0.0.1:8080/v2/health/live
        curl -fs http://127.0.0.1:8080/metrics | grep -q nv_inference_request_success
        kill -TERM $server; wait $server; echo "ended with $?"
    """
    command = ["unshare", "--map-root-user", "--mount", "--net", "bash", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0 and "conformant" in done.stdout and "ended with 0" in done.stdout, done.stdout + done.stderr[-4000:]
