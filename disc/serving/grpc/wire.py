"""ModelInfer messages between their bytes and `Request` / `Answer`, without copying tensors.

protobuf copies a `bytes` field when it parses and again when it is read: 64 MiB twice. So the raw contents, which are top-level fields, are
found in the message by a walk over its fields (a tag and a length each) and seen in place; protobuf parses the small rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from disc.errors import RequestError, UnsupportedRequestError
from disc.serving.datatypes import CONTENTS
from disc.serving.grpc.wire_fields import INPUTS, LENGTH_DELIMITED, OUTPUTS, PARAMETERS, RAW_INPUTS, Budget, Field, check_tensors, fields_of
from disc.serving.messages import DecodeError, Message, message
from disc.serving.request import Answer, Parameter, Request
from disc.serving.settings import Limits
from disc.serving.shared_memory import Regions, SharedBytes
from disc.serving.tensors import MAX_RANK, Array, GivenTensor

_REQUEST = message("inference.ModelInferRequest")
_RESPONSE = message("inference.ModelInferResponse")
SMALL = 4096  # bytes: a message without its raw contents in which nothing need be counted
_RAW_OUTPUT_TAG = b"\x32"  # field 6, length-delimited
_INFER_RESPONSE_TAG = b"\x12"  # field 2 of ModelStreamInferResponse
_REGION, _REGION_BYTES, _REGION_OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"


def read_request(data: bytes, regions: Regions, limits: Limits, remaining_s: float | None = None) -> tuple[Request, Message]:
    """The request, and its message for what only the answer needs. Raises RequestError, before it is parsed for one that is too large."""
    given, raw = _split(data, limits)
    tensors = [_tensor(each, regions) for each in given.inputs]
    if raw:
        tensors = _with_raw(given.inputs, tensors, raw)
    outputs = [_requested(each) for each in given.outputs]
    request = Request(given.model_name, given.model_version, given.id, parameters_of(given.parameters), tensors, outputs, remaining_s)
    return request, given


def _split(data: bytes, limits: Limits) -> tuple[Message, list[memoryview]]:
    """The message without its raw contents, and these as views of `data`."""
    view, raw, rest = memoryview(data), list[memoryview](), list[memoryview]()
    kept = inputs = outputs = 0
    tensors: list[Field] = []
    budget = Budget(limits.fields)
    for field in fields_of(data, 0, len(data), budget):
        if field.kind != LENGTH_DELIMITED:
            continue
        if field.number == RAW_INPUTS:
            rest.append(view[kept : field.begin])
            raw.append(view[field.content : field.end])
            kept = field.end
        elif field.number in (PARAMETERS, INPUTS, OUTPUTS):
            inputs += field.number == INPUTS
            outputs += field.number == OUTPUTS
            tensors.append(field)
        if inputs > limits.inputs or outputs > limits.outputs or len(raw) > limits.inputs:
            raise RequestError(f"at most {limits.inputs} inputs and {limits.outputs} outputs are accepted")
    rest.append(view[kept:])
    if sum(map(len, rest)) > SMALL:
        check_tensors(data, tensors, limits, budget)
    try:
        return _REQUEST.FromString(b"".join(rest)), raw
    except DecodeError:
        raise RequestError("the message is no ModelInferRequest") from None


def parameters_of(fields: Message) -> dict[str, Parameter]:
    """A map of InferParameter."""
    found: dict[str, Parameter] = {}
    for name, value in fields.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise RequestError(f"parameter {name[:100]!r} has no value")
        found[name] = getattr(value, choice)
    return found


def _tensor(given: Message, regions: Regions) -> GivenTensor:
    """An input; without typed contents, its content is empty until the raw contents are known."""
    if len(given.shape) > MAX_RANK:
        raise RequestError(f"input {given.name[:100]!r} has {len(given.shape)} dims; at most {MAX_RANK} are accepted")
    shape = tuple(given.shape)
    parameters = parameters_of(given.parameters) if given.parameters else {}
    if _REGION in parameters:
        if given.HasField("contents"):
            raise RequestError(f"input {given.name[:100]!r} has contents and a shared memory region")
        return GivenTensor(given.name, given.datatype, shape, _region(parameters, regions))
    if not given.HasField("contents"):
        return GivenTensor(given.name, given.datatype, shape, ())
    return GivenTensor(given.name, given.datatype, shape, _typed(given))


def _region(parameters: dict[str, Parameter], regions: Regions) -> SharedBytes:
    name, size, offset = parameters[_REGION], parameters.get(_REGION_BYTES), parameters.get(_REGION_OFFSET, 0)
    if not isinstance(name, str) or type(size) is not int or type(offset) is not int:
        raise RequestError(f"a shared memory input needs '{_REGION}' as text and '{_REGION_BYTES}' as a whole number")
    return regions.part(name, offset, size)


def _typed(given: Message) -> Sequence[object]:
    """The elements of `contents`: of the field for this datatype, and of no other."""
    name = given.name[:100]
    if given.datatype not in CONTENTS:  # refused later, with what the model takes
        return ()
    contents = CONTENTS[given.datatype]
    if contents is None:
        raise RequestError(f"input {name!r}: {given.datatype} has no typed contents; send it as raw contents")
    filled = [field.name for field, _ in given.contents.ListFields()]
    if any(field != contents for field in filled):
        raise RequestError(f"input {name!r}: elements of {given.datatype} belong in {contents}, not in {', '.join(filled)}")
    return getattr(given.contents, contents)


def _with_raw(fields: Sequence[Message], tensors: Sequence[GivenTensor], raw: Sequence[memoryview]) -> list[GivenTensor]:
    """The inputs with their raw contents: one entry for each that is not in shared memory, in order."""
    pending = list(reversed(raw))
    filled: list[GivenTensor] = []
    for field, tensor in zip(fields, tensors, strict=True):
        if isinstance(tensor.content, SharedBytes):
            filled.append(tensor)
            continue
        if field.HasField("contents"):
            raise RequestError("raw_input_contents and contents must not be mixed in one request")
        if not pending:
            raise RequestError(f"raw_input_contents has {len(raw)} entries, fewer than there are inputs")
        filled.append(GivenTensor(tensor.name, tensor.datatype, tensor.shape, pending.pop()))
    if pending:
        raise RequestError(f"raw_input_contents has {len(raw)} entries, more than there are inputs")
    return filled


def _requested(output: Message) -> str:
    for name in output.parameters:
        if name in (_REGION, "classification"):
            raise UnsupportedRequestError(f"output {output.name[:100]!r}: parameter '{name}' is not supported")
    return output.name


def wants_typed(given: Message) -> bool:
    """Results come as the request did: typed only where its inputs were."""
    return any(each.HasField("contents") for each in given.inputs)


def write_answer(answer: Answer, typed: bool, parameters: dict[str, Parameter] | None = None) -> bytes:
    """The bytes of a ModelInferResponse."""
    response = _RESPONSE(model_name=answer.model, model_version=answer.version, id=answer.id)
    for name, value in (parameters or {}).items():
        response.parameters[name].bool_param = bool(value)
    typed = typed and all(CONTENTS[datatype] is not None for _, datatype, _ in answer.outputs)
    pieces: list[bytes | memoryview] = [b""]
    for name, datatype, array in answer.outputs:
        output = response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        contents = CONTENTS[datatype]
        if typed and contents is not None:
            getattr(output.contents, contents).extend(array.reshape(-1).tolist())
        else:
            raw = raw_bytes(array)
            pieces += [_RAW_OUTPUT_TAG, _encoded(len(raw)), raw]
    pieces[0] = response.SerializeToString()
    return b"".join(pieces)


def raw_bytes(array: Array) -> memoryview:
    """The bytes of an array, row-major and little-endian; of one of BYTES, each after its length in four."""
    if array.dtype == object:
        return memoryview(b"".join(len(each).to_bytes(4, "little") + each for each in array.reshape(-1).tolist()))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def stream_answer(response: bytes) -> bytes:
    """A ModelStreamInferResponse that holds this ModelInferResponse."""
    return b"".join((_INFER_RESPONSE_TAG, _encoded(len(response)), response))


def _encoded(value: int) -> bytes:
    """A varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
