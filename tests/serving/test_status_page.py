"""The status page in a real browser, while requests run. Installs its driver, so with --long only."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from oip_client import serving, write_add, write_twice
from test_foreign_clients import environment

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)")]
LONG_NAME = "a_model_with_a_rather_long_name_of_many_words"


@pytest.fixture(scope="module")
def http_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server with four models that is asked all the time; one request in twenty fails."""
    root = tmp_path_factory.mktemp("models")
    for name, write in (("twice/1", write_twice), ("twice/2", write_twice), ("add/1", write_add), (f"{LONG_NAME}/20261121", write_twice)):
        (root / name).mkdir(parents=True)
        write(root / name / "model.disc")
    stop = threading.Event()
    with serving(root, defaults={"versions": 2}) as client:

        def ask(seed: int) -> None:
            random = np.random.default_rng(seed)
            while not stop.wait(0.005):
                client.infer("add", a=np.ones((3, 4), np.float32), b=np.ones((3, 4), np.float32))
                value = -7 if random.random() < 0.05 else 1
                x = np.full((int(random.integers(1, 6)), int(random.integers(1, 30))), value, np.float32)
                try:
                    client.infer("twice", x=x)
                except grpc.RpcError:
                    assert value == -7

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        assert client.server.http_port is not None
        yield client.server.http_port
        stop.set()
        for thread in threads:
            thread.join()


@pytest.fixture(scope="module")
def seen(http_port: int, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the browser saw, by screen."""
    folder = tmp_path_factory.mktemp("page")
    python = environment(folder / "venv", "playwright==1.65.2")
    command = [str(python), str(Path(__file__).with_name("page_check.py")), str(CHROMIUM), str(http_port), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_page_shows_each_model_and_what_it_did(seen: dict[str, dict[str, Any]]) -> None:
    page = seen["light"]
    state = r"ready, up (\d+ min )?\d+ s, [\d,]+ requests answered, \d+\.\d cores busy, [\d.,]+ MiB of memory$"
    assert page["title"].startswith("disc ") and re.match(state, page["state"][1])
    sections = {text.splitlines()[0]: text for text in page["sections"]}
    assert list(sections) == [f"{LONG_NAME}, version 20261121", "add, version 1", "twice, version 1", "twice, version 2"]
    idle, add, twice = sections["twice, version 1"], sections["add, version 1"], sections["twice, version 2"]
    assert "Sizes seen" not in idle and re.search(r"p50\s+–", idle)
    assert "joined along x.0" in twice and "x86-64-v3" in twice
    assert re.search(r"requests per second\s+[\d.]+\s+p50\s+[\d.,]+ ms", twice) and re.search(r"mean, model\s+[\d.,]+ ms", twice)
    assert re.search(r"Requests in one call\s+1\s+[\d,]+", twice) and "rows" not in twice and "Kernel versions" in twice
    assert re.search(r"Sizes seen \(S0 = x\.0, S1 = x\.1\)\s+S0=\d+,S1=\d+\s+\d+", twice) and re.search(r"\d+ more\s+[\d,]+", twice)
    assert re.search(r"Failures\s+OTHER\s+\d+", twice) and re.search(
        r"Last errors\s+\d+:\d+:\d+\s+[\d,]+ ×\s+OTHER\s+every value must not be -7", twice
    )
    assert "no batch dim is proved" in add and "Failures" not in add and re.search(r"failed\s+0", add)


def test_a_request_by_the_form(seen: dict[str, dict[str, Any]]) -> None:
    """It stays as it is while figures change, and its answer is the model's."""
    for screen in ("light", "narrow"):
        asked, answer = seen[screen]["tried"]
        assert json.loads(asked) == {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [[1]]}]}
        time, _, text = answer.partition("\n")
        assert time.endswith(" ms") and json.loads(text)["outputs"][0]["data"] == [2.0]


def test_the_page_follows_the_server(seen: dict[str, dict[str, Any]]) -> None:
    answered = [int(re.findall(r"([\d,]+) requests", text)[0].replace(",", "")) for text in seen["light"]["state"]]
    assert answered[1] > answered[0] > 0


@pytest.mark.parametrize("screen", ["light", "dark", "narrow"])
def test_no_complaint_no_foreign_resource_readable_and_not_too_wide(seen: dict[str, dict[str, Any]], http_port: int, screen: str) -> None:
    page = seen[screen]
    assert page["said"] == []
    own = f"http://127.0.0.1:{http_port}/"
    assert {url for url in page["asked"] if not url.startswith("data:")} == {
        own,
        f"{own}status.json",
        f"{own}v2/models/twice/versions/2/infer",
    }
    assert page["widths"][0] <= page["widths"][1]
    assert page["contrast"] >= 4.5  # what WCAG 2 asks of text of this size


def test_dark_screens_get_a_dark_page(seen: dict[str, dict[str, Any]]) -> None:
    brightness = {name: sum(map(int, re.findall(r"\d+", seen[name]["background"])[:3])) for name in ("light", "dark")}
    assert brightness["dark"] < 100 < 600 < brightness["light"]
