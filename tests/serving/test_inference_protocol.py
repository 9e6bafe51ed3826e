"""The gRPC methods of the Open Inference Protocol: what is answered, for all datatypes, shapes and forms of contents."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from oip_client import Client, failure, infer_fields, parameter, results, serving, write_add, write_copy, write_twice

from disc.serving.datatypes import DATATYPES
from disc.serving.grpc.handlers import MOST_STREAMS
from disc.serving.grpc.health import HEALTH, REFLECTION
from disc.serving.messages import INFERENCE, message

RANKS = (0, 1, 2, 5)
SHAPES = {0: [()], 1: [(0,), (1,), (7,)], 2: [(2, 3), (0, 4), (3, 0)], 5: [(1, 2, 3, 2, 1), (2, 0, 1, 1, 3)]}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp("models")
    for datatype in DATATYPES.values():
        for rank in RANKS:
            folder = root / f"copy_{datatype.dtype}_{rank}" / "1"
            folder.mkdir(parents=True)
            write_copy(folder / "model.disc", datatype.dtype, rank)
    for name, write in (("add", write_add), ("twice", write_twice)):
        folder = root / name / "1"
        folder.mkdir(parents=True)
        write(folder / "model.disc")
    with serving(root) as client:
        yield client


def values(datatype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values that use every byte of the type."""
    storage = DATATYPES[datatype].storage
    bits = np.random.default_rng(1).integers(0, 256, (*shape, storage.itemsize), np.uint8)
    return bits[..., 0] > 127 if datatype == "BOOL" else np.ascontiguousarray(bits).view(storage).reshape(shape)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("datatype", DATATYPES)
def test_raw_contents_of_every_type_and_shape(client: Client, datatype: str, rank: int) -> None:
    for shape in SHAPES[rank]:
        given = values(datatype, shape)
        inputs = [{"name": "x", "datatype": datatype, "shape": shape}]
        name = f"copy_{DATATYPES[datatype].dtype}_{rank}"
        answer = client.call("ModelInfer", model_name=name, id="a1", inputs=inputs, raw_input_contents=[given.tobytes()])
        assert (answer.id, answer.model_name, answer.model_version) == ("a1", name, "1")
        assert answer.outputs[0].datatype == datatype and tuple(answer.outputs[0].shape) == shape
        assert answer.raw_output_contents[0] == given.tobytes()


@pytest.mark.parametrize("datatype", [name for name, each in DATATYPES.items() if each.contents])
def test_typed_contents_come_back_typed(client: Client, datatype: str) -> None:
    kind = DATATYPES[datatype]
    assert kind.contents is not None
    if kind.storage.kind == "f":
        given = np.array([[0.5, -2.0, np.inf]], kind.storage)
    elif kind.storage.kind == "b":
        given = np.array([[True, False, True]])
    else:
        bounds = np.iinfo(kind.storage.type)
        given = np.array([[bounds.min, 1, bounds.max]], kind.storage)
    inputs = [{"name": "x", "datatype": datatype, "shape": [1, 3], "contents": {kind.contents: given.ravel().tolist()}}]
    answer = client.call("ModelInfer", model_name=f"copy_{kind.dtype}_2", inputs=inputs)
    assert not answer.raw_output_contents
    np.testing.assert_array_equal(results(answer)["y"], given)


def test_inputs_in_another_order_and_chosen_outputs(client: Client) -> None:
    a, b = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones((2, 4), np.float32)
    fields = infer_fields("add", {"b": b, "a": a}, outputs=[{"name": "c"}], model_version="1")
    np.testing.assert_array_equal(results(client.call("ModelInfer", **fields))["c"], a + b + 1.5)


def test_unaligned_raw_contents_are_read_right(client: Client) -> None:
    for length in range(1, 9):  # the length of the id moves the tensor in the message
        x = np.arange(6, dtype=np.float64).reshape(2, 3)
        answer = client.call("ModelInfer", **infer_fields("copy_f64_2", {"x": x}, id="i" * length))
        np.testing.assert_array_equal(results(answer)["y"], x)


def test_metadata_has_minus_one_for_dynamic_dims(client: Client) -> None:
    answer = client.call("ModelMetadata", name="add")
    assert (answer.platform, list(answer.versions)) == ("disc", ["1"])
    assert [(each.name, each.datatype, list(each.shape)) for each in answer.inputs] == [("a", "FP32", [-1, 4]), ("b", "FP32", [-1, 4])]
    assert [(each.name, each.datatype, list(each.shape)) for each in answer.outputs] == [("c", "FP32", [-1, -1])]


def test_live_ready_and_server_metadata(client: Client) -> None:
    assert client.call("ServerLive").live and client.call("ServerReady").ready
    assert client.call("ModelReady", name="add").ready and client.call("ModelReady", name="add", version="1").ready
    answer = client.call("ServerMetadata")
    assert answer.name == "disc" and "statistics" in answer.extensions and "model_repository" not in answer.extensions


def test_config_and_statistics(client: Client) -> None:
    before = client.call("ModelStatistics", name="twice").model_stats[0]
    for _ in range(3):
        client.infer("twice", x=np.ones((2, 5), np.float32))
    config = client.call("ModelConfig", name="twice").config
    assert config.name == "twice" and config.HasField("dynamic_batching") and config.input[0].data_type == 11
    assert not client.call("ModelConfig", name="add").config.HasField("dynamic_batching")
    after = client.call("ModelStatistics", name="twice").model_stats[0]
    assert after.inference_count - before.inference_count == 6 and after.execution_count - before.execution_count == 3
    stats = after.inference_stats
    counts = {name: getattr(stats, name).count for name in ("success", "queue", "compute_input", "compute_infer", "compute_output")}
    assert len(set(counts.values())) == 1, counts
    assert [each.batch_size for each in after.batch_stats] == [2]


def test_a_parameter_about_streams_means_nothing_to_a_single_request(client: Client) -> None:
    """perf_analyzer sends it with every request."""
    fields = infer_fields("twice", {"x": np.ones((1, 2), np.float32)})
    request = message("inference.ModelInferRequest")(**fields)
    request.parameters["triton_enable_empty_final_response"].CopyFrom(parameter(True))
    answer = message("inference.ModelInferResponse").FromString(client.raw("ModelInfer", request.SerializeToString()))
    assert not answer.parameters and np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [2, 2]


def test_stream_answers_in_order_and_goes_on_after_an_error(client: Client) -> None:
    kind = message("inference.ModelInferRequest")
    good = [kind(**infer_fields("twice", {"x": np.full((1, 2), n, np.float32)}, id=str(n))) for n in range(4)]
    bad = kind(model_name="nobody", id="bad")
    good[3].parameters["triton_enable_empty_final_response"].CopyFrom(parameter(True))
    requests = [each.SerializeToString() for each in (good[0], good[1], bad, good[3])]
    answers = list(client.channel.stream_stream(f"/{INFERENCE}/ModelStreamInfer")(iter(requests)))
    read = [message("inference.ModelStreamInferResponse").FromString(each) for each in answers]
    assert [each.infer_response.id for each in read] == ["0", "1", "bad", "3"]
    assert [bool(each.error_message) for each in read] == [False, False, True, False]
    assert read[3].infer_response.parameters["triton_final_response"].bool_param
    np.testing.assert_array_equal(results(read[1].infer_response)["y"], np.full((1, 2), 2, np.float32))


def test_open_streams_are_bounded_and_give_their_place_back(client: Client) -> None:
    method = client.channel.stream_stream(f"/{INFERENCE}/ModelStreamInfer")
    request = message("inference.ModelInferRequest")(model_name="nobody").SerializeToString()
    done = threading.Event()

    def one_then_wait() -> Iterator[bytes]:
        yield request
        done.wait(20)

    streams = [method(one_then_wait()) for _ in range(MOST_STREAMS)]
    for stream in streams:
        next(stream)
    assert failure(lambda: next(method(iter([request]))))[0] == "RESOURCE_EXHAUSTED"
    assert client.call("ServerLive").live
    done.set()
    for stream in streams:
        assert list(stream) == []
    assert next(method(iter([request])))


def test_health_check_and_watch(client: Client) -> None:
    assert client.call("Check", service=HEALTH).status == 1
    request = message("grpc.health.v1.HealthCheckRequest")
    answered = client.raw("Check", request(service=INFERENCE).SerializeToString(), HEALTH)
    assert message("grpc.health.v1.HealthCheckResponse").FromString(answered).status == 1
    assert failure(lambda: client.raw("Check", request(service="other").SerializeToString(), HEALTH))[0] == "NOT_FOUND"
    for service, status in (("", 1), ("other", 3)):
        watch = client.channel.unary_stream(f"/{HEALTH}/Watch")(request(service=service).SerializeToString())
        assert message("grpc.health.v1.HealthCheckResponse").FromString(next(watch)).status == status
        watch.cancel()


@pytest.mark.parametrize("service", REFLECTION)
def test_reflection(client: Client, service: str) -> None:
    kind = message("grpc.reflection.v1.ServerReflectionRequest")
    asked = [
        kind(list_services=""),
        kind(file_containing_symbol=INFERENCE),
        kind(file_containing_symbol="no.Such"),
        kind(file_by_filename="health.proto"),
    ]
    answers = client.channel.stream_stream(f"/{service}/ServerReflectionInfo")(iter([each.SerializeToString() for each in asked]))
    services, file, missing, named = (message("grpc.reflection.v1.ServerReflectionResponse").FromString(each) for each in answers)
    assert INFERENCE in [each.name for each in services.list_services_response.service]
    assert b"ModelInferRequest" in file.file_descriptor_response.file_descriptor_proto[0]
    assert missing.error_response.error_code == 5
    assert b"HealthCheckRequest" in named.file_descriptor_response.file_descriptor_proto[0]


def test_many_clients_at_once_get_their_own_answers(client: Client) -> None:
    wrong: list[int] = []

    def ask(seed: int) -> None:
        generator = np.random.default_rng(seed)
        for _ in range(20):
            x = generator.standard_normal((int(generator.integers(0, 4)), 5)).astype(np.float32)
            if not np.array_equal(client.infer("twice", x=x)["y"], 2 * x):
                wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_default_descriptor_pool_stays_free() -> None:
    """A client library registers the same names there."""
    code = (
        "import disc.serving.server, sys\n"
        "from google.protobuf import descriptor_pool\n"
        "try: descriptor_pool.Default().FindMessageTypeByName('inference.ModelInferRequest')\n"
        "except KeyError: pass\n"
        "else: sys.exit('registered')\n"
        "assert not {'torch', 'torch_mlir'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_large_tensor_and_the_message_limit(tmp_path: Path) -> None:
    write_copy(tmp_path / "copy.disc", "ui8", 1)
    with serving(tmp_path / "copy.disc", limits={"message_bytes": 1 << 20}) as client:
        x = np.arange(1 << 20, dtype=np.uint8)
        np.testing.assert_array_equal(client.infer("copy", x=x)["y"], x)
        code, _ = failure(lambda: client.infer("copy", x=np.zeros((1 << 20) + (1 << 17), np.uint8)))
        assert code == "RESOURCE_EXHAUSTED"
        np.testing.assert_array_equal(client.infer("copy", x=x)["y"], x)
