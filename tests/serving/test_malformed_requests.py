"""Requests that are wrong, with the exact status of each. After every one of them a good request succeeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from oip_client import Client, failure, infer_fields, parameter, results, serving, write_models

from disc.serving.messages import INFERENCE, message
from disc.serving.model import for_clients

X = np.ones((2, 3), np.float32)
RAW = [X.tobytes()]
BAD, MISSING, OFF, FAULT = "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "INTERNAL"


def infer(**changes: object) -> Callable[[Client], object]:
    """A good request to `twice`, with fields replaced."""
    fields = {**infer_fields("twice", {"x": X}), **changes}
    return lambda client: client.call("ModelInfer", **fields)


def one(raw: list[bytes] | None = None, **changes: object) -> Callable[[Client], object]:
    """The same with its one input changed."""
    return infer(inputs=[{"name": "x", "datatype": "FP32", "shape": [2, 3], **changes}], raw_input_contents=RAW if raw is None else raw)


def typed(datatype: str, shape: list[int], **contents: object) -> Callable[[Client], object]:
    inputs = [{"name": "x", "datatype": datatype, "shape": shape, "contents": contents}]
    model = {"INT8": "copy_i8", "BOOL": "copy_i1", "FP16": "copy_f16", "UINT16": "copy_ui16"}.get(datatype, "twice")
    return lambda client: client.call("ModelInfer", model_name=model, inputs=inputs)


def message_bytes(data: bytes, method: str = "ModelInfer") -> Callable[[Client], object]:
    return lambda client: client.raw(method, data)


def call(method: str, **fields: object) -> Callable[[Client], object]:
    return lambda client: client.call(method, **fields)


def with_parameter(name: str, value: bool | int | str) -> Callable[[Client], object]:
    return infer(parameters={name: parameter(value)})


GOOD = message("inference.ModelInferRequest")(**infer_fields("twice", {"x": X})).SerializeToString()
INPUT = {"name": "x", "datatype": "FP32", "shape": [2, 3]}
TYPED = {**INPUT, "contents": {"fp32_contents": X.ravel().tolist()}}

CASES: dict[str, tuple[Callable[[Client], object], str]] = {
    "unknown model": (infer(model_name="nobody"), MISSING),
    "model name is a path": (infer(model_name="../../etc/passwd"), MISSING),
    "model name with NUL": (infer(model_name="a\0b"), MISSING),
    "no model name": (infer(model_name=""), MISSING),
    "unknown version": (infer(model_version="7"), MISSING),
    "version is no number": (infer(model_version="new"), MISSING),
    "no inputs": (infer(inputs=[], raw_input_contents=[]), BAD),
    "unknown input": (one(name="z"), BAD),
    "input without a name": (one(name=""), BAD),
    "input twice": (infer(inputs=[INPUT, INPUT], raw_input_contents=RAW * 2), BAD),
    "one input of two": (lambda client: client.infer("add", a=np.ones((2, 4), np.float32)), BAD),
    "unknown datatype": (one(datatype="FP31"), BAD),
    "datatype in lower case": (one(datatype="fp32"), BAD),
    "no datatype": (one(datatype=""), BAD),
    "BYTES for a model of numbers": (one(datatype="BYTES"), BAD),
    "typed BYTES": (typed("BYTES", [1], bytes_contents=[b"a"]), BAD),
    "another datatype": (one(datatype="INT32"), BAD),
    "another datatype of another size": (one(datatype="FP64", raw=[X.astype(np.float64).tobytes()]), BAD),
    "too few bytes": (one(raw=[X.tobytes()[:-1]]), BAD),
    "too many bytes": (one(raw=[X.tobytes() + b"\0"]), BAD),
    "no bytes": (one(raw=[b""]), BAD),
    "negative dim": (one(shape=[-2, -3]), BAD),
    "minus one": (one(shape=[-1, 3]), BAD),
    "too few dims": (one(shape=[6]), BAD),
    "too many dims": (one(shape=[1, 2, 3]), BAD),
    "a thousand dims": (one(shape=[1] * 1000), BAD),
    "shape that overflows 64 bits": (one(shape=[1 << 62, 1 << 62]), BAD),
    "shape that overflows to the right size": (one(shape=[(1 << 62) + 1, 4], raw=[bytes(16)]), BAD),
    "huge dim beside a zero": (one(shape=[0, 1 << 62], raw=[b""]), BAD),
    "wrong static dim": (lambda client: client.infer("add", a=np.ones((2, 5), np.float32), b=np.ones((2, 5), np.float32)), BAD),
    "sizes that must be equal": (lambda client: client.infer("add", a=np.ones((2, 4), np.float32), b=np.ones((3, 4), np.float32)), BAD),
    "fewer raw contents than inputs": (infer(raw_input_contents=[], inputs=[INPUT]), BAD),
    "more raw contents than inputs": (infer(raw_input_contents=RAW * 2), BAD),
    "raw and typed contents": (infer(inputs=[TYPED]), BAD),
    "typed contents too short": (typed("FP32", [2, 3], fp32_contents=[1.0]), BAD),
    "typed contents too long": (typed("FP32", [1, 1], fp32_contents=[1.0, 2.0]), BAD),
    "typed contents in the wrong field": (typed("FP32", [1, 1], fp64_contents=[1.0]), BAD),
    "typed contents in two fields": (typed("FP32", [1, 1], fp32_contents=[1.0], int_contents=[1]), BAD),
    "typed FP16": (typed("FP16", [1, 1], fp32_contents=[1.0]), BAD),
    "typed INT8 out of range": (typed("INT8", [1, 1], int_contents=[300]), BAD),
    "typed UINT16 out of range": (typed("UINT16", [1, 1], uint_contents=[70000]), BAD),
    "BOOL of 2": (lambda client: client.call("ModelInfer", model_name="copy_i1",
                  inputs=[{"name": "x", "datatype": "BOOL", "shape": [1, 1]}], raw_input_contents=[b"\2"]), BAD),
    "unknown output": (infer(outputs=[{"name": "z"}]), BAD),
    "output twice": (infer(outputs=[{"name": "y"}, {"name": "y"}]), BAD),
    "classification": (infer(outputs=[{"name": "y", "parameters": {"classification": parameter(3)}}]), OFF),
    "output into shared memory": (infer(outputs=[{"name": "y", "parameters": {"shared_memory_region": parameter("r")}}]), OFF),
    "input from shared memory": (one(raw=[], parameters={"shared_memory_region": parameter("r"), "shared_memory_byte_size": parameter(4)}), OFF),
    "300 inputs": (infer(inputs=[INPUT] * 300, raw_input_contents=RAW * 300), BAD),
    "300 outputs": (infer(outputs=[{"name": "y"}] * 300), BAD),
    "sequence": (with_parameter("sequence_id", 7), OFF),
    "priority 99": (with_parameter("priority", 99), BAD),
    "priority below zero": (with_parameter("priority", -1), BAD),
    "priority is no number": (with_parameter("priority", "first"), BAD),
    "timeout below zero": (with_parameter("timeout", -5), BAD),
    "timeout is a flag": (with_parameter("timeout", True), BAD),
    "reserved parameter": (with_parameter("triton_secret", 1), BAD),
    "parameter without a value": (infer(parameters={"a": message("inference.InferParameter")()}), BAD),
    "empty message": (message_bytes(b""), MISSING),
    "no protobuf": (message_bytes(b"\xff\xff\xff\xff"), BAD),
    "group wire type": (message_bytes(b"\x0b\x0c"), BAD),
    "cut off in the raw contents": (message_bytes(GOOD[:-3]), BAD),
    "raw contents longer than the message": (message_bytes(GOOD + b"\x3a\xff\xff\xff\xff\x0f"), BAD),
    "endless varint": (message_bytes(b"\x80" * 20), BAD),
    "name that is no UTF-8": (message_bytes(b"\x0a\x02\xff\xfe"), BAD),
    "HTTP text": (message_bytes(b"GET / HTTP/1.1\r\n\r\n"), BAD),
    "metadata of an unknown model": (call("ModelMetadata", name="nobody"), MISSING),
    "config of an unknown version": (call("ModelConfig", name="twice", version="9"), MISSING),
    "statistics of an unknown model": (call("ModelStatistics", name="nobody"), MISSING),
    "readiness of an unknown model": (call("ModelReady", name="nobody"), MISSING),
    "metadata request that is no protobuf": (message_bytes(b"\xff", "ModelMetadata"), BAD),
    "index without administration": (call("RepositoryIndex"), OFF),
    "load without administration": (call("RepositoryModelLoad", model_name="twice"), OFF),
    "unload without administration": (call("RepositoryModelUnload", model_name="twice"), OFF),
    "register without shared memory": (call("SystemSharedMemoryRegister", name="r", key="/r", byte_size=4), OFF),
    "unknown method": (message_bytes(b"", "CudaSharedMemoryStatus"), OFF),
    "a value that the model refuses": (lambda client: client.infer("twice", x=np.full((1, 1), -7, np.float32)), BAD),
}  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp("hidden_folder")
    write_models(root, 2, "twice", "add", "copy_i8", "copy_i1", "copy_f16", "copy_ui16")
    with serving(root) as client:
        yield client


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("case", CASES)
def test_status_and_recovery(client: Client, case: str) -> None:
    request, expected = CASES[case]
    code, text = failure(lambda: request(client))
    assert code == expected, text
    assert text and not re.search(r"hidden_folder|/home|/tmp|\.py|\.disc\b|0x[0-9a-f]{6}|Traceback", text), text
    np.testing.assert_array_equal(client.infer("twice", x=X)["y"], 2 * X)


def test_clients_learn_nothing_of_folders() -> None:
    text = "dim 0 must be even (line /home/a/m.py:3): checked at /srv/m.py:7, '/opt/x/y.py' and n//2 or a/b"
    assert for_clients(text) == "dim 0 must be even: checked, 'y.py' and n//2 or a/b"


def test_what_a_companion_does_wrong_is_its_own_fault(client: Client) -> None:
    """A request that makes a joined call fail is answered alone."""
    good = client.channel.unary_unary(f"/{INFERENCE}/ModelInfer")
    bad = message("inference.ModelInferRequest")(**infer_fields("twice", {"x": np.full((2, 3), -7, np.float32)})).SerializeToString()
    futures = [(data, good.future(data)) for data in (GOOD, bad) * 20]
    for data, future in futures:
        if data is bad:
            assert failure(future.result)[0] == BAD
        else:
            answer = message("inference.ModelInferResponse").FromString(future.result())
            np.testing.assert_array_equal(results(answer)["y"], 2 * X)
