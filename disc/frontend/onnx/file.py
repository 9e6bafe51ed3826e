"""Reading an ONNX file: nothing in it is run, no size in it is believed before it was compared with what is there.

bytes ─► ModelProto ─► initializers out, as `StoredTensor`s ─► names, operators ─► checker of the standard ─► functions inlined
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import checker, defs, version_converter

from disc.errors import UnsupportedFormatError, printable
from disc.frontend.onnx.functions import DEFAULT_DOMAINS, check_functions, every_node, first_line, inlined, node_name, refuse_unknown
from disc.frontend.onnx.slopes import broadcast_slopes
from disc.frontend.onnx.tensors import StoredTensor, external_path, is_external, stored_tensor

OLDEST = 13  # of the default operator set; models of older ones are converted where an operator changed since (Softmax, Squeeze)
BATCHED_SCANS, ALIGNED_SLOPES = 9, 7  # before these sets Scan had a dim of a batch, and slopes of PRelu lay along the channels
NEWEST = 28  # that the operators were written and tested for
INITIALIZERS_ALONE = 4  # since this version of the format, initializers need not be inputs
MAX_BYTES = 2**31 - 1  # of a protobuf message; larger models have their weights in files beside it


@dataclass(frozen=True)
class ModelFile:
    """A model that was checked: no functions of its own, names defined before they are read.

    name: of the file, for messages. folder: where its other files lie. opset: version of the default operator set. weights: by name,
    the initializers of the main graph.
    """

    name: str
    folder: Path
    graph: onnx.GraphProto
    opset: int
    weights: dict[str, StoredTensor]


def read_model(path: Path, has_rule: Callable[[str, str], bool]) -> ModelFile:
    """has_rule: whether an operator, by domain and name, can be compiled as it is; one that the standard defines by others is inlined.

    Raises: UnsupportedFormatError for what is no valid model, of an operator set that is too old or too new, or has its data elsewhere
    than in its folder; the message names the file, and the node where one is at fault. UnsupportedOpError naming every operator without
    a rule.
    """
    model, name = _parsed(path), printable(path.name)
    opset = _default_opset(model, name)
    if model.graph.sparse_initializer:
        raise UnsupportedFormatError(f"{name}: sparse initializers are not supported")
    _check_names(model.graph, name, frozenset())
    weights = _weights(model, path.parent, name)
    if old := _changed_since(model, opset):
        model, opset = _converted(model, name, opset, old), OLDEST
        weights = _weights(model, path.parent, name)
    _outline(model.graph)
    defined = refuse_unknown(model, name, opset, has_rule)
    check_functions(model, name)
    try:
        checker.check_model(model)
    except (checker.ValidationError, ValueError) as error:
        raise UnsupportedFormatError(f"{name} is not a valid ONNX model: {first_line(error)}") from error
    return ModelFile(name, path.parent, inlined(model, name, opset, defined, has_rule).graph, opset, weights)


def data_files(path: Path) -> list[Path]:
    """The files beside the model that hold its weights, each once. Raises as `read_model`."""
    model = _parsed(path)
    found = {external_path(each, path.parent, path.name) for each in model.graph.initializer if is_external(each)}
    return sorted(found)


def _parsed(path: Path) -> onnx.ModelProto:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise UnsupportedFormatError(f"{path}: an ONNX model is a regular file of at most 2 GiB; larger weights lie in files beside it")
        content = file.read(MAX_BYTES + 1)
    try:
        model = onnx.ModelProto.FromString(content)
    except (DecodeError, RecursionError) as error:
        raise UnsupportedFormatError(f"{path} is not a whole ONNX model: {first_line(error)}") from error
    _check_text(model, path)
    if not model.HasField("graph") or not model.opset_import:
        raise UnsupportedFormatError(f"{path} is not an ONNX model: it has no {'graph' if model.opset_import else 'operator set'}")
    return model


def _check_text(model: onnx.ModelProto, path: Path) -> None:
    """Raises: UnsupportedFormatError where text is no UTF-8: protobuf then gives bytes in its place."""
    pending: list[Message] = [model]
    while pending:
        for field, value in pending.pop().ListFields():
            values = value if field.is_repeated else (value,)
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                pending += values
            elif field.type == FieldDescriptor.TYPE_STRING and any(isinstance(each, bytes) for each in values):
                raise UnsupportedFormatError(f"{path} is not an ONNX model: its field '{field.name}' holds bytes that are no text")


def _default_opset(model: onnx.ModelProto, name: str) -> int:
    versions = [each.version for each in model.opset_import if each.domain in DEFAULT_DOMAINS]
    newest = min(NEWEST, defs.onnx_opset_version())
    if not versions:
        return newest  # a model of other domains alone
    opset = max(versions)
    if opset > newest:
        raise UnsupportedFormatError(f"{name}: operator set {opset} is not supported; disc reads 1 to {newest}")
    if opset < 1:
        raise UnsupportedFormatError(f"{name}: operator set {opset} is not supported; disc reads 1 to {newest}")
    return opset


def _changed_since(model: onnx.ModelProto, opset: int) -> list[str]:
    """The operators of an old model that are others in the oldest set that has rules."""
    if opset >= OLDEST:
        return []
    return sorted({node.op_type for _, node in every_node(model.graph.node) if _has_changed(node, opset)})


def _converted(model: onnx.ModelProto, name: str, opset: int, old: Sequence[str]) -> onnx.ModelProto:
    """The model in operator set OLDEST, by the standard's own converter.

    Raises: UnsupportedFormatError where it has no way, as for weights that lie in files of their own and for functions.
    """
    changed = f"{name}: of operator set {opset}, whose {', '.join(map(printable, old))} changed since"
    if model.functions or any(is_external(each) for each in model.graph.initializer):
        raise UnsupportedFormatError(f"{changed}, with weights in other files or functions, cannot be converted; export it anew")
    if any(node.op_type == "Scan" for node in model.graph.node) and opset < BATCHED_SCANS:
        raise UnsupportedFormatError(f"{changed}, cannot be converted; export it anew")
    if opset < ALIGNED_SLOPES and not broadcast_slopes(model):
        raise UnsupportedFormatError(f"{changed}, with slopes along a dim that is not known, cannot be converted; export it anew")
    try:
        checker.check_model(model)
        converted = version_converter.convert_version(model, OLDEST)
    except (checker.ValidationError, RuntimeError, ValueError) as error:
        raise UnsupportedFormatError(f"{changed}, cannot be converted to set {OLDEST}: {first_line(error)}") from error
    converted.ir_version = max(converted.ir_version, INITIALIZERS_ALONE)  # the converter adds initializers that are no inputs
    return converted


def _weights(model: onnx.ModelProto, folder: Path, name: str) -> dict[str, StoredTensor]:
    weights = {each.name: stored_tensor(each, folder, name) for each in model.graph.initializer}
    if len(weights) != len(model.graph.initializer):
        raise UnsupportedFormatError(f"{name}: two initializers have one name")
    return weights


def _has_changed(node: onnx.NodeProto, opset: int) -> bool:
    """Whether an operator of this older set is another one in the oldest that is read."""
    if node.domain not in DEFAULT_DOMAINS or not defs.has(node.op_type, opset):
        return False
    later = defs.get_schema(node.op_type, OLDEST).since_version if defs.has(node.op_type, OLDEST) else 0
    return defs.get_schema(node.op_type, opset).since_version != later


def _outline(graph: onnx.GraphProto) -> None:
    """The initializers become inputs: the checker and the inliner copy the model, and need no data of weights. Results of unknown rank, as
    files made by hand have them, are no fault: nothing reads what is said of them, but the checker wants a shape."""
    for each in graph.output:
        if each.type.HasField("tensor_type") and not each.type.tensor_type.HasField("shape"):
            each.type.tensor_type.shape.SetInParent()
    known = {each.name for each in graph.input}
    for each in graph.initializer:
        if each.name not in known:
            graph.input.append(onnx.helper.make_tensor_value_info(each.name, each.data_type, list(each.dims)))
    del graph.initializer[:]


def _check_names(graph: onnx.GraphProto, name: str, outer: frozenset[str]) -> None:
    """Raises UnsupportedFormatError for a value that no node makes, or that a node reads which it depends on itself."""
    known = set(outer) | {each.name for each in graph.input} | {each.name for each in graph.initializer}
    made = {output: node for node in graph.node for output in node.output}
    for number, node in enumerate(graph.node):
        for value in node.input:
            if value and value not in known:
                place = f"{name}: node {node_name(node, number)} ({printable(node.op_type)}) reads '{printable(value)}'"
                if value in made:
                    raise UnsupportedFormatError(f"{place}, which a later node makes: the graph has a cycle, or is not in order")
                raise UnsupportedFormatError(f"{place}, which nothing makes")
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") or attribute.graphs else ():
                _check_names(inner, name, frozenset(known))
        known.update(node.output)
    for output in graph.output:
        if output.name not in known:
            raise UnsupportedFormatError(f"{name}: its output '{printable(output.name)}' is what nothing makes")
