"""What a server says of itself: ready when every model that it should serve is, and not started where that cannot be."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from oip_client import Client, failure, serving, write_add, write_twice

from disc.errors import ConfigurationError
from disc.serving.grpc.health import HEALTH

X = np.ones((2, 3), np.float32)


def place(root: Path, name: str, content: bytes | None = None) -> Path:
    path = root / name / "1" / "model.disc"
    path.parent.mkdir(parents=True)
    if content is None:
        write_twice(path)
    else:
        path.write_bytes(content)
    return path


def http(client: Client, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{client.server.http_port}{path}", timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def readiness(client: Client) -> set[bool]:
    """What the four ways of asking answer; live it is in any case."""
    assert client.call("ServerLive").live and http(client, "/v2/health/live") == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{client.server.http_port}/status.json", timeout=10) as answer:
        page = json.load(answer)["ready"]
    health = client.call("Check", service=HEALTH).status == 1
    return {client.call("ServerReady").ready, health, http(client, "/v2/health/ready") == 200, page}


def model_ready(client: Client, name: str) -> bool:
    ready = client.call("ModelReady", name=name).ready
    assert (http(client, f"/v2/models/{name}/ready") == 200) == ready
    return ready


def test_with_administration_a_server_without_models_starts_and_is_not_ready(tmp_path: Path) -> None:
    with serving(tmp_path, admin=True) as client:
        assert readiness(client) == {False}
        place(tmp_path, "twice")
        client.call("RepositoryModelLoad", model_name="twice")
        assert readiness(client) == {True}
        client.call("RepositoryModelUnload", model_name="twice")
        assert readiness(client) == {False}


def test_a_model_that_failed_is_missing_until_it_is_loaded(tmp_path: Path) -> None:
    place(tmp_path, "twice")
    broken = place(tmp_path, "broken", b"nothing")
    with serving(tmp_path, admin=True) as client:
        assert readiness(client) == {False}
        assert model_ready(client, "twice") and not model_ready(client, "broken")
        np.testing.assert_array_equal(client.infer("twice", x=X)["y"], 2 * X)
        broken.unlink()
        write_twice(broken)
        client.call("RepositoryModelLoad", model_name="broken")
        assert readiness(client) == {True} and model_ready(client, "broken")
        client.call("RepositoryModelUnload", model_name="broken")
        assert readiness(client) == {True}  # as asked for


def test_a_failed_load_of_another_model_changes_nothing(tmp_path: Path) -> None:
    place(tmp_path, "twice")
    with serving(tmp_path, admin=True) as client:
        place(tmp_path, "broken", b"nothing")
        assert failure(lambda: client.call("RepositoryModelLoad", model_name="broken"))[0] == "UNAVAILABLE"
        assert readiness(client) == {True}


def test_failed_models_may_be_left_out(tmp_path: Path) -> None:
    place(tmp_path, "twice")
    place(tmp_path, "broken", b"nothing")
    refusal = r"model 'broken' cannot be served: .*header.*--allow-failed-models serves the others"
    with pytest.raises(ConfigurationError, match=refusal), serving(tmp_path):
        pass
    with serving(tmp_path, allow_failed_models=True) as client:
        assert readiness(client) == {True} and not model_ready(client, "broken")
        np.testing.assert_array_equal(client.infer("twice", x=X)["y"], 2 * X)
    shutil.rmtree(tmp_path / "twice")
    with pytest.raises(ConfigurationError, match="model 'broken' cannot be served"), serving(tmp_path, allow_failed_models=True):
        pass


def test_a_folder_of_artifacts(tmp_path: Path) -> None:
    write_twice(tmp_path / "twice.disc")
    write_add(tmp_path / "add.disc")
    place(tmp_path, "both")
    with serving(tmp_path) as client:
        assert readiness(client) == {True}
        assert client.call("ModelMetadata", name="add").versions == ["1"]
        np.testing.assert_array_equal(client.infer("twice", x=X)["y"], 2 * X)
        np.testing.assert_array_equal(client.infer("both", x=X)["y"], 2 * X)


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "disc.cli", "serve", *arguments, "--port", "0", "--http-port", "0"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_what_cannot_be_served_is_said_and_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = serve(str(tmp_path / "empty"))
    assert done.returncode == 1 and "has no model: expected NAME.disc or NAME/VERSION/model.disc" in done.stderr
    (tmp_path / "flat" / "bert").mkdir(parents=True)
    write_twice(tmp_path / "flat" / "bert" / "model.disc")
    (tmp_path / "flat" / "notes.txt").write_text("")
    done = serve(str(tmp_path / "flat"))
    assert done.returncode == 1 and "bert: it is neither a .disc file nor a folder of VERSION/model.disc" in done.stderr
    place(tmp_path / "around", "bert")
    done = serve(str(tmp_path / "around" / "bert"))
    assert done.returncode == 1 and done.stderr.endswith("bert is a model's own folder: give the one around it\n"), done.stderr
    (tmp_path / "hugging").mkdir()
    (tmp_path / "hugging" / "config.json").write_text("{}")
    done = serve(str(tmp_path / "hugging"))
    assert "hugging is a folder of Hugging Face: compile it first, disc compile hf:" in done.stderr
    for given in ("hf:bert", "encoder:block"):
        assert re.search(rf"{given}: there is no such file or folder; disc compile {given} .*makes an artifact of it", serve(given).stderr)
    (tmp_path / "model.onnx").write_bytes(bytes(64))
    assert re.search(
        r"model\.onnx is no artifact; disc compile \S+model\.onnx makes an artifact of it", serve(str(tmp_path / "model.onnx")).stderr
    )
    place(tmp_path / "models", "broken", b"nothing")
    done = serve(str(tmp_path / "models"))
    assert done.returncode == 1 and "model 'broken' cannot be served" in done.stderr and "Traceback" not in done.stderr
    write_twice(tmp_path / "twice.disc")
    (tmp_path / "serve.toml").write_text("[models.other]\nmax_batch = 4\n")
    done = serve(str(tmp_path / "twice.disc"), "--config", str(tmp_path / "serve.toml"))
    assert done.returncode == 1 and "[models.other]: there is no such model; there are twice" in done.stderr


def test_a_folder_that_goes_away_is_no_fault_of_the_client(tmp_path: Path) -> None:
    place(tmp_path / "models", "twice")
    with serving(tmp_path / "models", admin=True) as client:
        (tmp_path / "models").rename(tmp_path / "elsewhere")
        for method, fields in (("RepositoryIndex", {}), ("RepositoryModelLoad", {"model_name": "twice"})):
            code, text = failure(lambda method=method, fields=fields: client.call(method, **fields))
            assert code == "UNAVAILABLE" and str(tmp_path) not in text
        np.testing.assert_array_equal(client.infer("twice", x=X)["y"], 2 * X)
