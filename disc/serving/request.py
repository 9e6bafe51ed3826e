"""Inference requests and answers, independent of the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from disc.artifact.structures import StructuresRecord
from disc.errors import RequestError, StructureError, UnsupportedRequestError
from disc.ral.flat_values import flat_instances
from disc.ral.nested import flat_arrays
from disc.serving.datatypes import NESTED
from disc.serving.settings import Limits, ModelSettings
from disc.serving.shared_memory import SharedBytes
from disc.serving.signature import Signature
from disc.serving.tensors import Array, GivenTensor, array_of, bytes_of

Parameter = bool | int | float | str
SEQUENCE_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end")
_DIGITS = 20  # a number of 63 bits has fewer
EMPTY_FINAL = "triton_enable_empty_final_response"  # concerns streams; clients such as perf_analyzer send it with every request


@dataclass(frozen=True, slots=True)
class Request:
    """One request. version: "" = the server chooses. outputs: names; none = all. remaining_s: until the client's deadline."""

    model: str
    version: str
    id: str
    parameters: Mapping[str, Parameter]
    inputs: list[GivenTensor]
    outputs: list[str]
    remaining_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The results of one request. outputs: (name, datatype, array) in the order requested."""

    model: str
    version: str
    id: str
    outputs: list[tuple[str, str, Array]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a request should run. priority: 1 is first; wait_s: seconds that it may wait."""

    priority: int
    wait_s: float | None


def arrays_of(request: Request, signature: Signature, limits: Limits) -> list[Array]:
    """The inputs in the order of the model; all sizes are checked before any is made. Raises RequestError, OverloadedError."""
    if len(request.inputs) > limits.inputs:
        raise RequestError(f"the request has {len(request.inputs)} inputs; at most {limits.inputs} are accepted")
    if any(each.datatype == NESTED for each in request.inputs):
        return _nested(request.inputs, signature, limits)
    found: dict[int, GivenTensor] = {}
    size = 0
    for given in request.inputs:
        position = signature.positions.get(given.name)
        if position is None:
            names = ", ".join(f"'{spec.name}'" for spec in signature.inputs)
            raise RequestError(f"the model has no input {given.name[:100]!r}; its inputs are {names}")
        if position in found:
            raise RequestError(f"input '{given.name}' is given twice")
        found[position] = given
        size += bytes_of(given, signature.inputs[position], limits)
    if size > limits.input_bytes:
        raise RequestError(f"the inputs have {size} bytes together; at most {limits.input_bytes} are accepted")
    missing = [f"'{spec.name}'" for position, spec in enumerate(signature.inputs) if position not in found]
    if missing:
        raise RequestError(f"the request lacks the input{'' if len(missing) == 1 else 's'} {', '.join(missing)}")
    return [array_of(found[position], spec) for position, spec in enumerate(signature.inputs)]


def _nested(inputs: list[GivenTensor], signature: Signature, limits: Limits) -> list[Array]:
    """The arrays of structures that are given as JSON. Raises RequestError."""
    record = signature.structures or signature.skeleton
    if record is None:
        raise RequestError(f"datatype {NESTED} is for models over structures; this one takes tensors")
    (given, *others), name = inputs, record["name"]
    instances = given.content
    if others or given.name != name or isinstance(instances, memoryview | SharedBytes):
        raise RequestError(f"structures as {NESTED} are the one input '{name}'")
    objects = signature.skeleton is not None or all(isinstance(each, dict) for each in instances)
    if given.shape != (len(instances),) or not objects:
        raise RequestError(f"input '{name}' must be a list of JSON objects, and its shape their number")
    try:
        if signature.skeleton is not None:
            return list(flat_instances(signature.skeleton, instances, limits.elements))
        return list(flat_arrays(cast("StructuresRecord", record), cast("list[Mapping[str, object]]", instances), limits.elements))
    except StructureError as error:
        raise RequestError(str(error)) from error


def output_positions(request: Request, names: Sequence[str], limits: Limits) -> list[int]:
    """Which outputs are requested, of those with these names. Raises RequestError."""
    if len(request.outputs) > limits.outputs:
        raise RequestError(f"the request names {len(request.outputs)} outputs; at most {limits.outputs} are accepted")
    if not request.outputs:
        return list(range(len(names)))
    places = {name: position for position, name in enumerate(names)}
    positions: list[int] = []
    for name in request.outputs:
        position = places.get(name)
        if position is None:
            raise RequestError(f"the model has no output {name[:100]!r}; its outputs are {', '.join(map(repr, names))}")
        if position in positions:
            raise RequestError(f"output '{name}' is requested twice")
        positions.append(position)
    return positions


def schedule_of(request: Request, settings: ModelSettings) -> Schedule:
    """What the reserved parameters and the deadline say. Raises RequestError, UnsupportedRequestError."""
    for name in SEQUENCE_PARAMETERS:
        if request.parameters.get(name):
            raise UnsupportedRequestError(f"parameter '{name}': models of this server keep no state between requests")
    for name in request.parameters:
        if name.startswith("triton_") and name != EMPTY_FINAL:
            raise RequestError(f"parameter {name[:100]!r} is reserved and has no meaning here")
    priority = _whole(request, "priority") or settings.default_priority
    if priority > settings.priority_levels:
        raise RequestError(f"parameter 'priority' must be from 1 to {settings.priority_levels}, got {priority}")
    timeout = _whole(request, "timeout") or settings.default_timeout_us
    waits = [each for each in (timeout / 1e6 if timeout else None, request.remaining_s) if each is not None]
    return Schedule(priority, min(waits, default=None))


def _whole(request: Request, name: str) -> int:
    """A whole number ≥ 0; clients send it as an integer or as text."""
    value = request.parameters.get(name, 0)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < _DIGITS:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise RequestError(f"parameter '{name}' must be a whole number from 0 to 2^63 - 1")
    return value
