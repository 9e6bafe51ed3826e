"""The REST form of inference: JSON, with the binary extension for tensors.

JSON is the standard library's: orjson is faster, but makes floats of integers beyond 64 bits, which here are refused. What is large goes as
binary data, which no parser touches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from disc.errors import RequestError, UnsupportedRequestError
from disc.serving.datatypes import BYTES, CONTENTS, DATATYPES, NESTED
from disc.serving.grpc.wire import raw_bytes
from disc.serving.request import Answer, Parameter, Request
from disc.serving.settings import Limits
from disc.serving.shared_memory import Regions
from disc.serving.tensors import Array, GivenTensor

HEADER_LENGTH = "Inference-Header-Content-Length"
_ELEMENTS: dict[str, tuple[type, ...]] = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float)}
MOST_LISTS = 1 << 20  # of nested data: each takes 64 bytes and more
_DIGITS = 19
_FIELDS = {"id", "parameters", "inputs", "outputs"}


@dataclass(frozen=True)
class Wanted:
    """Which outputs are to be sent as bytes: by name, and all others."""

    named: Mapping[str, bool]
    others: bool


def read_request(
    model: str, version: str, body: bytes | bytearray, header_length: str | None, regions: Regions, limits: Limits
) -> tuple[Request, Wanted]:
    """The request of a body. header_length: how many bytes of it are JSON, where tensors follow. Raises RequestError."""
    size = _json_size(body, header_length, limits)
    fields = _object(_parsed(body[:size]), "the request")
    if unknown := sorted(set(fields) - _FIELDS):
        raise RequestError(f"the request has the unknown field {unknown[0][:100]!r}")
    binary = memoryview(body)[size:]
    inputs: list[GivenTensor] = []
    for each in _at_most(limits.inputs, fields, "inputs"):
        tensor, taken = _input(_object(each, "an input"), binary, regions)
        binary = binary[taken:]
        inputs.append(tensor)
    if len(binary):
        raise RequestError(f"{len(binary)} bytes follow the last binary input")
    parameters = _parameters(fields)
    outputs = [_object(each, "an output") for each in _at_most(limits.outputs, fields, "outputs")]
    names = [_text(each, "name") for each in outputs]
    named = {name: _flag(_output_parameters(each), "binary_data") for name, each in zip(names, outputs, strict=True)}
    request = Request(model, version, _text(fields, "id", ""), parameters, inputs, names)
    return request, Wanted(named, _flag(parameters, "binary_data_output"))


def _json_size(body: bytes | bytearray, header_length: str | None, limits: Limits) -> int:
    """How much of the body is JSON, which is small enough to be parsed: the objects made of it take many times its bytes."""
    size = len(body)
    if header_length is not None:
        whole = header_length.isascii() and header_length.isdecimal() and len(header_length) < _DIGITS
        if not whole or int(header_length) > len(body):
            raise RequestError(f"the header {HEADER_LENGTH} must be the length of the JSON within the body")
        size = int(header_length)
    if size > limits.json_bytes:
        raise RequestError(f"the JSON has {size} bytes; at most {limits.json_bytes} are accepted: send tensors as binary data")
    if body.count(b"{", 0, size) > limits.fields or body.count(b"[", 0, size) > MOST_LISTS:
        raise RequestError(f"the JSON has more than {limits.fields} objects or {MOST_LISTS} lists: send tensors as binary data")
    return size


def _at_most(most: int, fields: Mapping[str, object], name: str) -> list[object]:
    found = _list(fields.get(name, []), name)
    if len(found) > most:
        raise RequestError(f"the request has {len(found)} {name}; at most {most} are accepted")
    return found


def _parsed(data: bytes | bytearray) -> object:
    try:
        return json.loads(data)
    except ValueError:
        raise RequestError("the request is not valid JSON") from None
    except RecursionError:
        raise RequestError("the JSON is nested too deep to be read; structures so deep can be sent as tensors") from None


def _object(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise RequestError(f"{what} must be a JSON object")
    return cast("dict[str, object]", value)


def _list(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        raise RequestError(f"'{what}' must be a list")
    return value


def _text(fields: Mapping[str, object], name: str, otherwise: str | None = None) -> str:
    value = fields.get(name, otherwise)
    if not isinstance(value, str):
        raise RequestError(f"'{name}' must be given as text")
    return value


def _parameters(fields: Mapping[str, object]) -> dict[str, Parameter]:
    found = _object(fields.get("parameters", {}), "'parameters'")
    for name, value in found.items():
        if not isinstance(value, bool | int | float | str):
            raise RequestError(f"parameter {name[:100]!r} must be a flag, a number or text")
    return cast("dict[str, Parameter]", found)


def _output_parameters(output: Mapping[str, object]) -> dict[str, Parameter]:
    parameters = _parameters(output)
    for name in ("shared_memory_region", "classification"):
        if name in parameters:
            raise UnsupportedRequestError(f"outputs: parameter '{name}' is not supported")
    return parameters


def _flag(parameters: Mapping[str, Parameter], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"parameter '{name}' must be true or false")
    return value


def _input(fields: Mapping[str, object], binary: memoryview, regions: Regions) -> tuple[GivenTensor, int]:
    """One input, and how many bytes of the binary part it has."""
    name, datatype = _text(fields, "name"), _text(fields, "datatype")
    if "shape" not in fields:
        raise RequestError(f"input {name[:100]!r} has no 'shape'")
    shape = _list(fields["shape"], "shape")
    if not all(type(size) is int and size < 1 << 63 for size in shape):
        raise RequestError(f"the shape of input {name[:100]!r} must be a list of whole numbers")
    sizes = tuple(cast("list[int]", shape))
    parameters = _parameters(fields)
    length = parameters.get("binary_data_size")
    if "shared_memory_region" in parameters:
        given = [parameters[key] for key in ("shared_memory_region", "shared_memory_byte_size")
                 if key in parameters] + [parameters.get("shared_memory_offset", 0)]  # fmt: skip
        if len(given) != 3 or not isinstance(given[0], str) or type(given[1]) is not int or type(given[2]) is not int:
            raise RequestError("a shared memory input needs 'shared_memory_region' and 'shared_memory_byte_size'")
        return GivenTensor(name, datatype, sizes, regions.part(given[0], given[2], given[1])), 0
    if length is None:
        if "data" not in fields:
            raise RequestError(f"input {name[:100]!r} has neither 'data' nor the parameter 'binary_data_size'")
        return GivenTensor(name, datatype, sizes, _elements(name, datatype, fields.get("data"))), 0
    if type(length) is not int or length < 0 or length > len(binary) or "data" in fields:
        raise RequestError(f"input {name[:100]!r}: 'binary_data_size' must be the bytes that follow the JSON, and 'data' must be absent")
    return GivenTensor(name, datatype, sizes, binary[:length]), length


def _elements(name: str, datatype: str, data: object) -> Sequence[object]:
    """The elements of flat or nested lists, all of the JSON type that this datatype has."""
    if datatype == NESTED:
        return _list(data, "data")
    if datatype not in CONTENTS:
        return ()  # refused later, with what the model takes
    if CONTENTS[datatype] is None:
        raise RequestError(f"input {name[:100]!r}: {datatype} has no JSON form; send it as binary data")
    flat = list(_flat(_list(data, "data")))
    allowed = (str,) if datatype == BYTES else _ELEMENTS[DATATYPES[datatype].storage.kind]
    if any(each not in allowed for each in set(map(type, flat))):
        form = ", which JSON has as strings" if datatype == BYTES else ""
        raise RequestError(f"input {name[:100]!r} has an element that is no {datatype}{form}")
    return flat


def _flat(data: list[object]) -> Iterator[object]:
    """Depth first, without recursion: the depth is the client's choice."""
    stack = [iter(data)]
    while stack:
        for each in stack[-1]:
            if isinstance(each, list):
                stack.append(iter(each))
                break
            yield each
        else:
            stack.pop()


def write_answer(answer: Answer, wanted: Wanted) -> tuple[bytes, int | None]:
    """The body, and the length of its JSON where tensors follow. Raises RequestError for values that JSON does not have."""
    outputs: list[dict[str, object]] = []
    pieces: list[bytes | memoryview] = [b""]
    for name, datatype, array in answer.outputs:
        output: dict[str, object] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        if wanted.named.get(name, False) or wanted.others:
            pieces.append(raw_bytes(array))
            output["parameters"] = {"binary_data_size": len(pieces[-1])}
        else:
            output["data"] = _data(name, datatype, array)
        outputs.append(output)
    header = {"model_name": answer.model, "model_version": answer.version, "id": answer.id, "outputs": outputs}
    pieces[0] = json.dumps(header, separators=(",", ":")).encode()
    return b"".join(pieces), len(pieces[0]) if len(pieces) > 1 else None


def _data(name: str, datatype: str, array: Array) -> list[object]:
    if datatype == BYTES:
        return [each.decode() for each in array.reshape(-1).tolist()]
    if CONTENTS[datatype] is None:
        raise RequestError(f"output '{name}' is of {datatype}, which has no JSON form; request binary data")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError(f"output '{name}' has values that are infinite or no number, which JSON does not have; request binary data")
    return array.reshape(-1).tolist()
