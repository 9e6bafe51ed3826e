"""Run by the interpreter of a client's own virtual environment: `python triton_conformance.py PORT`. Uses tritonclient alone."""

from __future__ import annotations

import queue
import sys
from importlib.metadata import version

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

SHAPES = {0: [()], 1: [(0,), (7,)], 2: [(2, 3), (0, 4)], 5: [(1, 2, 3, 2, 1)]}
TYPES = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "INT8": np.int8,
    "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip
DTYPES = {
    "BOOL": "i1", "UINT8": "ui8", "UINT16": "ui16", "UINT32": "ui32", "UINT64": "ui64", "INT8": "i8", "INT16": "i16", "INT32": "i32",
    "INT64": "i64", "FP16": "f16", "FP32": "f32", "FP64": "f64", "BF16": "bf16",
}  # fmt: skip


def bf16() -> type:
    """Newer clients take ml_dtypes' type, older ones float32."""
    if tuple(int(part) for part in version("tritonclient").split(".")[:2]) < (2, 70):
        return np.float32
    import ml_dtypes

    return ml_dtypes.bfloat16


def echo(client: triton.InferenceServerClient, datatype: str, kind: type, shape: tuple[int, ...]) -> None:
    x = np.asarray(np.arange(int(np.prod(shape))).reshape(shape) % 2).astype(kind)
    x = np.asarray(x, kind)  # of rank 0 too
    given = triton.InferInput("x", list(shape), datatype)
    given.set_data_from_numpy(x)
    answer = client.infer(f"copy_{DTYPES[datatype]}_{len(shape)}", [given], request_id="r1")
    assert answer.get_response().id == "r1"
    got = answer.as_numpy("y")
    assert got.shape == shape and np.array_equal(got.astype(np.float64), x.astype(np.float64)), (datatype, shape)


def refused(call: object, code: str) -> None:
    try:
        call()  # type: ignore[operator]
    except InferenceServerException as error:
        assert code in str(error.status()), error
    else:
        raise AssertionError(f"not refused with {code}")


def main() -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{sys.argv[1]}")
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("twice")
    assert client.get_server_metadata().name == "disc"
    metadata = client.get_model_metadata("twice", as_json=True)
    assert metadata["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": ["-1", "-1"]}, metadata
    assert client.get_model_config("twice").config.dynamic_batching.priority_levels == 10
    for datatype, kind in [*TYPES.items(), ("BF16", bf16())]:
        for shapes in SHAPES.values():
            for shape in shapes:
                echo(client, datatype, kind, shape)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    given = triton.InferInput("x", [2, 3], "FP32")
    given.set_data_from_numpy(x)
    answer = client.infer(
        "twice", [given], outputs=[triton.InferRequestedOutput("y")], priority=1, timeout=1_000_000, parameters={"mine": 3}
    )
    assert np.array_equal(answer.as_numpy("y"), 2 * x)
    answers: queue.Queue[object] = queue.Queue()
    client.async_infer("twice", [given], lambda result, error: answers.put(error or result))
    assert np.array_equal(answers.get(timeout=10).as_numpy("y"), 2 * x)  # type: ignore[attr-defined]
    client.start_stream(lambda result, error: answers.put(error or result))
    for final in (False, True):
        client.async_stream_infer("twice", [given], enable_empty_final_response=final)
        assert np.array_equal(answers.get(timeout=10).as_numpy("y"), 2 * x)  # type: ignore[attr-defined]
    client.stop_stream()
    text = triton.InferInput("x", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[b"a"]], np.object_))
    refused(lambda: client.infer("twice", [text]), "INVALID_ARGUMENT")
    refused(lambda: client.infer("nobody", [given]), "NOT_FOUND")
    refused(lambda: client.infer("twice", [given], sequence_id=3), "UNIMPLEMENTED")
    statistics = client.get_inference_statistics("twice").model_stats[0].inference_stats
    assert statistics.success.count >= 3
    client.unload_model("twice")
    assert not client.is_model_ready("twice")
    client.load_model("twice")
    assert [each.name for each in client.get_model_repository_index().models if each.state == "READY"].count("twice") == 1
    assert np.array_equal(client.infer("twice", [given]).as_numpy("y"), 2 * x)
    print("conformant")


if __name__ == "__main__":
    main()
