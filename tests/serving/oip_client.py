"""A small client of the Open Inference Protocol on the server's own messages, and artifacts that need no compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import programs

from disc.artifact.file import write_artifact
from disc.artifact.manifest import Manifest
from disc.serving.datatypes import DATATYPES
from disc.serving.messages import INFERENCE, Message, message, method_types
from disc.serving.server import Server
from disc.serving.settings import settings_of

# y = 2 x for f32 [S0, S1]; rows do not influence each other. Each call takes as many milliseconds as MS says and counts its rows.
TWICE = """
#define _POSIX_C_SOURCE 199309L
#include <time.h>
#include "ral.h"
int32_t disc_entry(ral_exec* exec, const ral_host_api* api, const ral_tensor* in, const void* const* weights, int64_t* counters) {
  struct timespec pause = {0, MS * 1000000};
  if (MS) nanosleep(&pause, 0);
  float* out = api->output(exec, 0, in[0].dims);
  if (!out) return 1;
  const float* x = in[0].data;
  int64_t size = in[0].dims[0] * in[0].dims[1];
  counters[0] += in[0].dims[0];
  for (int64_t i = 0; i < size; ++i) {
    if (x[i] == -7.0f) return api->fail(exec, 0, 7, 6);
    out[i] = 2 * x[i];
  }
  return 0;
}
"""


def write_twice(path: Path, ms: int = 0, most_rows: int | None = None, change: Callable[[Manifest], object] = lambda made: None) -> None:
    """`TWICE`, whose manifest says that S0 is a batch dim. change: of the manifest."""
    made = programs.manifest(
        [{"name": "x", "dtype": "f32", "dims": ["S0", "S1"]}],
        [{"name": "y", "dtype": "f32", "rank": 2, "dims": ["S0", "S1"]}],
        checks=("every value (line /home/somebody/model.py:3) must not be -7: got {actual}, expected {expected}",),
        counters=("rows",),
    )
    made["symbols"] = [{"name": name, "min": 0, "divisor": 1, "source": f"arg0.{axis}"} for axis, name in enumerate(("S0", "S1"))]
    if most_rows is not None:
        made["symbols"][0]["max"] = most_rows
    made["batch"] = {"symbol": "S0", "inputs": [0], "outputs": [0]}
    change(made)
    write_artifact(path, made, {"x86-64-v3": programs.build(TWICE, f"MS={ms}")})


def write_copy(path: Path, dtype: str, rank: int) -> None:
    """The identity for tensors of one dtype and rank."""
    storage = next(each.storage for each in DATATYPES.values() if each.dtype == dtype)
    write_artifact(path, programs.copy_manifest(dtype, rank), {"x86-64-v3": programs.build(programs.COPY, f"BYTES={storage.itemsize}")})


def write_add(path: Path) -> None:
    """c = a + b + 1.5 for f32 [S0, 4]."""
    made = programs.add_manifest()
    made["symbols"] = [{"name": f"S{number}", "min": 0, "divisor": 1, "source": f"arg{number}.0"} for number in (0, 1)]
    write_artifact(path, made, {"x86-64-v3": programs.build(programs.ADD)}, [("w", "f32", np.full((), 1.5, np.float32))])


def write_models(root: Path, rank: int, *names: str) -> None:
    """A repository of these models: twice, add, and copy_DTYPE of this rank."""
    for name in names:
        path = root / name / "1" / "model.disc"
        path.parent.mkdir(parents=True)
        if name.startswith("copy"):
            write_copy(path, name.removeprefix("copy_"), rank)
        else:
            {"twice": write_twice, "add": write_add}[name](path)


@contextmanager
def serving(root: Path, /, **tables: object) -> Iterator[Client]:
    """A running server and a client of it."""
    server = Server(root, settings_of({"port": 0, "http_port": 0, **tables}))
    server.start()
    client = Client(server)
    try:
        yield client
    finally:
        client.channel.close()
        server.stop()


class Client:
    """Calls by method name and fields."""

    def __init__(self, server: Server, channel: grpc.Channel | None = None, metadata: Sequence[tuple[str, str]] = ()) -> None:
        self.server = server
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.channel = channel or grpc.insecure_channel(f"127.0.0.1:{server.port}", options)
        self.metadata = metadata

    def raw(self, method: str, data: bytes, service: str = INFERENCE, timeout: float | None = None) -> bytes:
        return self.channel.unary_unary(f"/{service}/{method}")(data, timeout=timeout, metadata=self.metadata)

    def call(self, method: str, /, service: str = INFERENCE, timeout: float | None = None, **fields: object) -> Message:
        request, response = method_types(service, method)
        return response.FromString(self.raw(method, request(**fields).SerializeToString(), service, timeout))

    def infer(self, model: str, /, timeout: float | None = None, **arrays: np.ndarray) -> dict[str, np.ndarray]:
        """Raw contents; the datatype from that of the array."""
        return results(self.call("ModelInfer", timeout=timeout, **infer_fields(model, arrays)))


def infer_fields(model: str, arrays: Mapping[str, np.ndarray], **more: object) -> dict[str, object]:
    inputs = [{"name": name, "datatype": datatype_of(array), "shape": array.shape} for name, array in arrays.items()]
    return {"model_name": model, "inputs": inputs, "raw_input_contents": [array.tobytes() for array in arrays.values()], **more}


def datatype_of(array: np.ndarray) -> str:
    return next(each.name for each in DATATYPES.values() if each.storage == array.dtype)


def results(response: Message) -> dict[str, np.ndarray]:
    raw = list(response.raw_output_contents)
    found: dict[str, np.ndarray] = {}
    for number, output in enumerate(response.outputs):
        datatype = DATATYPES[output.datatype]
        if raw:
            flat = np.frombuffer(raw[number], datatype.storage)
        else:
            assert datatype.contents is not None
            flat = np.array(getattr(output.contents, datatype.contents), datatype.storage)
        found[output.name] = flat.reshape(tuple(output.shape))
    return found


def parameter(value: bool | int | str) -> Message:
    kind = "bool_param" if isinstance(value, bool) else "int64_param" if isinstance(value, int) else "string_param"
    return message("inference.InferParameter")(**{kind: value})


def failure(call: object) -> tuple[str, str]:
    """The status code and text with which a call fails."""
    try:
        call()  # pyright: ignore[reportCallIssue]
    except grpc.RpcError as error:
        return error.code().name, error.details() or ""  # pyright: ignore[reportAttributeAccessIssue]
    raise AssertionError("the call did not fail")
