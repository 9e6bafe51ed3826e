"""The REST form of the protocol, metrics and the status page."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from oip_client import Client, serving, write_models, write_twice

from disc.serving.http.json_form import HEADER_LENGTH

X = np.arange(6, dtype=np.float32).reshape(2, 3)
GOOD = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": X.ravel().tolist()}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp("hidden_folder")
    write_models(root, 1, "twice", "add", "copy_f16", "copy_i8", "copy_i1", "copy_f32")
    with serving(root, limits={"message_bytes": 1 << 20}) as client:
        yield client


def ask(client: Client, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", client.server.http_port or 0, timeout=10)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read(), dict(response.getheaders())
    finally:
        connection.close()


def get(client: Client, path: str) -> object:
    code, content, _ = ask(client, "GET", path)
    assert code == 200, content
    return json.loads(content)


def infer(client: Client, request: object, model: str = "twice") -> tuple[int, dict]:
    code, content, _ = ask(client, "POST", f"/v2/models/{model}/infer", json.dumps(request).encode())
    return code, json.loads(content)


def test_inference_in_json(client: Client) -> None:
    code, answer = infer(client, {"id": "7", "inputs": [GOOD], "outputs": [{"name": "y"}]})
    assert code == 200 and (answer["id"], answer["model_name"], answer["model_version"]) == ("7", "twice", "1")
    assert answer["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [2, 3], "data": (2 * X).ravel().tolist()}]
    code, answer = infer(client, {"inputs": [{**GOOD, "data": X.tolist()}]})
    assert code == 200 and answer["outputs"][0]["data"] == (2 * X).ravel().tolist()
    code, _, _ = ask(client, "POST", "/v2/models/twice/versions/1/infer", json.dumps({"inputs": [GOOD]}).encode())
    assert code == 200


@pytest.mark.parametrize("where", ["request", "output"])
def test_inference_with_binary_tensors(client: Client, where: str) -> None:
    inputs = [{"name": name, "shape": [2, 4], "datatype": "FP32", "parameters": {"binary_data_size": 32}} for name in ("a", "b")]
    a, b = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones((2, 4), np.float32)
    request: dict[str, object] = {"inputs": inputs, "outputs": [{"name": "c", "parameters": {"binary_data": where == "output"}}]}
    request["parameters"] = {"binary_data_output": where == "request"}
    header = json.dumps(request).encode()
    code, content, headers = ask(
        client, "POST", "/v2/models/add/infer", header + a.tobytes() + b.tobytes(), **{HEADER_LENGTH: str(len(header))}
    )
    assert code == 200, content
    length = int(headers[HEADER_LENGTH])
    assert json.loads(content[:length])["outputs"][0]["parameters"] == {"binary_data_size": 32}
    np.testing.assert_array_equal(np.frombuffer(content[length:], np.float32).reshape(2, 4), a + b + 1.5)


def test_what_there_is(client: Client) -> None:
    assert get(client, "/v2/health/live") == {"live": True} and get(client, "/v2/health/ready") == {"ready": True}
    assert get(client, "/v2/models/add/ready") == {"name": "add", "ready": True}
    metadata = get(client, "/v2/models/add/versions/1")
    assert isinstance(metadata, dict) and metadata["inputs"][0] == {"name": "a", "datatype": "FP32", "shape": [-1, 4]}
    assert get(client, "/v2/models/add") == metadata
    server = get(client, "/v2")
    assert isinstance(server, dict) and server["name"] == "disc"
    config, stats = get(client, "/v2/models/twice/config"), get(client, "/v2/models/twice/stats")
    assert isinstance(config, dict) and config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, -1]}]
    assert config["instance_group"][0]["kind"] == "KIND_CPU"
    assert isinstance(stats, dict) and stats["model_stats"][0]["name"] == "twice"
    everything = get(client, "/v2/models/stats")
    assert isinstance(everything, dict) and len(everything["model_stats"]) == 6


def post(path: str, body: bytes, **headers: str) -> Callable[[Client], tuple[int, bytes, dict[str, str]]]:
    return lambda client: ask(client, "POST", path, body, **headers)


def request(model: str = "twice", **changes: object) -> Callable[[Client], tuple[int, bytes, dict[str, str]]]:
    return post(f"/v2/models/{model}/infer", json.dumps({"inputs": [{**GOOD, **changes}]}).encode())


def body(value: object) -> Callable[[Client], tuple[int, bytes, dict[str, str]]]:
    return post("/v2/models/twice/infer", value if isinstance(value, bytes) else json.dumps(value).encode())


WRONG: dict[str, tuple[Callable[[Client], tuple[int, bytes, dict[str, str]]], int]] = {
    "no JSON": (body(b"{"), 400),
    "nothing": (body(b""), 400),
    "a list": (body([]), 400),
    "no UTF-8": (body(b"\xff\xfe\xfd"), 400),
    "very deep": (body(b"[" * 100_000), 400),
    "very deep data": (body(b'{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": ' + b"[" * 900 + b"1" + b"]" * 900 + b"}]}"), 200),
    "a huge number": (body(b'{"inputs": [{"name": "x", "shape": [' + b"9" * 5000 + b', 1], "datatype": "FP32", "data": [1]}]}'), 400),
    "unknown field": (body({"inputs": [GOOD], "model": "x"}), 400),
    "inputs is text": (body({"inputs": "x"}), 400),
    "input is a number": (body({"inputs": [3]}), 400),
    "id is a number": (body({"id": 3, "inputs": [GOOD]}), 400),
    "no name": (body({"inputs": [{"shape": [1], "datatype": "FP32", "data": [1]}]}), 400),
    "no shape": (request(shape=None), 400),
    "shape of text": (request(shape=["2", "3"]), 400),
    "shape of flags": (request(shape=[True, 3]), 400),
    "shape of fractions": (request(shape=[2.0, 3]), 400),
    "negative shape": (request(shape=[-2, -3]), 400),
    "no data": (request(data=None), 400),
    "data too short": (request(data=[1.0]), 400),
    "data of text": (request(data=["1"] * 6), 400),
    "data of flags": (request(data=[True] * 6), 400),
    "data beyond FP32": (request(data=[1e300] * 6), 400),
    "fractions for INT8": (request("copy_i8", shape=[1], datatype="INT8", data=[1.5]), 400),
    "300 for INT8": (request("copy_i8", shape=[1], datatype="INT8", data=[300]), 400),
    "2 for BOOL": (request("copy_i1", shape=[1], datatype="BOOL", data=[2]), 400),
    "FP16 in JSON": (request("copy_f16", shape=[1], datatype="FP16", data=[1.0]), 400),
    "BYTES": (request(datatype="BYTES", data=["a"]), 400),
    "parameter is a list": (body({"inputs": [GOOD], "parameters": {"a": []}}), 400),
    "binary_data_output is text": (body({"inputs": [GOOD], "parameters": {"binary_data_output": "yes"}}), 400),
    "classification": (body({"inputs": [GOOD], "outputs": [{"name": "y", "parameters": {"classification": 1}}]}), 501),
    "shared memory": (request(data=[], parameters={"shared_memory_region": "r", "shared_memory_byte_size": 4}), 501),
    "binary size too large": (request(parameters={"binary_data_size": 24}), 400),
    "header length too large": (post("/v2/models/twice/infer", b"{}", **{HEADER_LENGTH: "99"}), 400),
    "header length is text": (post("/v2/models/twice/infer", b"{}", **{HEADER_LENGTH: "two"}), 400),
    "bytes left over": (post("/v2/models/twice/infer", json.dumps({"inputs": [GOOD]}).encode() + b"abcd",
                             **{HEADER_LENGTH: str(len(json.dumps({"inputs": [GOOD]})))}), 400),
    "unknown model": (post("/v2/models/nobody/infer", json.dumps({"inputs": [GOOD]}).encode()), 404),
    "a path as model": (post("/v2/models/..%2F..%2Fetc%2Fpasswd/infer", json.dumps({"inputs": [GOOD]}).encode()), 404),
    "unknown version": (post("/v2/models/twice/versions/8/infer", json.dumps({"inputs": [GOOD]}).encode()), 404),
    "too large": (body(b" " * (1 << 20) + b"{}"), 413),
    "unknown address": (post("/v3", b""), 404),
    "wrong method": (lambda client: ask(client, "DELETE", "/v2/models/twice/infer"), 405),
    "index without administration": (post("/v2/repository/index", b""), 501),
    "load without administration": (post("/v2/repository/models/twice/load", b""), 501),
    "what the model refuses": (request(shape=[1, 1], data=[-7.0]), 400),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_status_and_recovery(client: Client, case: str) -> None:
    call, expected = WRONG[case]
    code, content, _ = call(client)
    assert code == expected, content
    text = json.loads(content).get("error", "-")
    assert text and not re.search(r"hidden_folder|/home|/tmp|\.py|0x[0-9a-f]{6}|Traceback", text), text
    assert infer(client, {"inputs": [GOOD]})[0] == 200


def test_what_is_nested_too_deep_is_called_so(client: Client) -> None:
    _, content, _ = WRONG["very deep"][0](client)
    assert json.loads(content)["error"].startswith("the JSON is nested too deep")


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([], "the request lacks the input 'x'"),
        ([{name: value for name, value in GOOD.items() if name != "shape"}], "input 'x' has no 'shape'"),
        (
            [{name: value for name, value in GOOD.items() if name != "data"}],
            "input 'x' has neither 'data' nor the parameter 'binary_data_size'",
        ),
    ],
)
def test_what_an_input_lacks_is_named(client: Client, inputs: list[object], words: str) -> None:
    assert infer(client, {"inputs": inputs}) == (400, {"error": words})


def test_values_that_json_does_not_have_are_refused(client: Client) -> None:
    values = np.array([np.nan, 1], np.float32)
    given = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
    for binary, expected in ((False, 400), (True, 200)):
        header = json.dumps({"inputs": [given], "parameters": {"binary_data_output": binary}}).encode()
        code, content, _ = ask(client, "POST", "/v2/models/copy_f32/infer", header + values.tobytes(), **{HEADER_LENGTH: str(len(header))})
        assert code == expected, content


def test_metrics(client: Client) -> None:
    infer(client, {"inputs": [GOOD]})
    infer(client, {"inputs": []})
    code, content, headers = ask(client, "GET", "/metrics")
    text = content.decode()
    assert code == 200 and headers["Content-Type"].startswith("text/plain")
    for name in (
        "nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count", "nv_inference_queue_duration_us",
        "nv_inference_compute_infer_duration_us", "nv_inference_request_duration_us", "nv_inference_pending_request_count",
    ):  # fmt: skip
        assert re.search(rf'^{name}{{model="twice",version="1"}} \d', text, re.MULTILINE), name
    assert re.search(r'nv_inference_request_failure{model="twice",reason="OTHER",version="1"} [1-9]', text)
    assert re.search(r'disc_request_seconds_bucket{le="\+Inf",model="twice",version="1"} [1-9]', text)
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        assert re.search(rf"^{name} \d", text, re.MULTILINE), name
    assert "disc_request_shapes" not in text and "disc_kernel_versions" not in text, "labels that grow with what clients send"
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r"[a-z_]+({.*})? [0-9.e+-]+", line), line


def test_a_wrong_address_or_method_says_what_is_right(client: Client) -> None:
    for sent, code, words in (
        (ask(client, "GET", "/v1/models"), 404, "there is nothing at /v1/models; GET /openapi.json lists the paths"),
        (ask(client, "GET", "/v2/models/twise"), 404, "there is no model 'twise' (did you mean twice?)"),
        (ask(client, "GET", "/v2/models/twice/infer"), 405, "GET is not for /v2/models/twice/infer, which takes POST"),
        (ask(client, "GET", "/v2/repository/index"), 405, "GET is not for /v2/repository/index, which takes POST"),
    ):
        assert (sent[0], json.loads(sent[1])["error"]) == (code, words)


def test_status_page(client: Client) -> None:
    infer(client, {"inputs": [GOOD]})
    code, content, headers = ask(client, "GET", "/")
    assert (
        code == 200 and headers["Content-Type"].startswith("text/html") and "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    )
    assert b"status.json" in content
    answer = get(client, "/status.json")
    assert isinstance(answer, dict)
    twice = next(model for model in answer["models"] if model["name"] == "twice")
    assert twice["joined"] == "requests are joined along x.0"
    assert twice["batch_dim"] == "S0" and twice["requests"] > 0 and twice["shapes"] and twice["kernel_versions"]


def test_a_client_that_goes_away_is_not_computed_for(tmp_path: Path) -> None:
    write_twice(tmp_path / "twice.disc", ms=300)
    with serving(tmp_path / "twice.disc", defaults={"max_batch": 1}) as client:
        busy = threading.Thread(target=lambda: infer(client, {"inputs": [GOOD]}))
        busy.start()
        time.sleep(0.1)
        gone = http.client.HTTPConnection("127.0.0.1", client.server.http_port or 0)
        gone.request("POST", "/v2/models/twice/infer", json.dumps({"inputs": [GOOD]}).encode())
        time.sleep(0.1)
        gone.close()
        busy.join()
        time.sleep(0.4)
        assert client.call("ModelStatistics", name="twice").model_stats[0].execution_count == 1


def test_loading_over_http(tmp_path: Path) -> None:
    (tmp_path / "twice" / "1").mkdir(parents=True)
    write_twice(tmp_path / "twice" / "1" / "model.disc")
    with serving(tmp_path, admin=True) as client:
        code, content, _ = ask(client, "POST", "/v2/repository/index")
        assert code == 200 and json.loads(content) == [{"name": "twice", "version": "1", "state": "READY", "reason": ""}]
        assert ask(client, "POST", "/v2/repository/models/twice/unload")[0] == 200
        assert infer(client, {"inputs": [GOOD]})[0] == 503
        assert ask(client, "POST", "/v2/repository/models/twice/load")[0] == 200
        assert infer(client, {"inputs": [GOOD]})[0] == 200
        assert ask(client, "POST", "/v2/repository/models/nobody/load")[0] == 404
