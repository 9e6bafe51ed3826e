"""An imported program as bytes and back: MLIR bytecode and safetensors. What `disc compile --remote` sends; nothing in it is code."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TypedDict

import numpy as np
from safetensors import SafetensorError, TensorSpec, deserialize, serialize_file
from torch.utils import _pytree as pytree
from torch_mlir import ir

from disc.artifact.bounds import unbounded
from disc.artifact.records import mismatch
from disc.artifact.structure import malformed
from disc.errors import UnsupportedFormatError
from disc.frontend.dialects import load_frontend_dialects
from disc.frontend.imported import Imported, OutputSpec
from disc.ir.op_table import EXTERNAL
from disc.ir.state import State, read_state
from disc.ir.weights import STORAGE, Weight, WeightTable

# MLIR element type → safetensors' names, when it writes and when it reads.
DTYPES = {
    "f64": ("float64", "F64"), "f32": ("float32", "F32"), "f16": ("float16", "F16"), "bf16": ("bfloat16", "BF16"), "i1": ("bool", "BOOL"),
    "i8": ("int8", "I8"), "i16": ("int16", "I16"), "i32": ("int32", "I32"), "i64": ("int64", "I64"),
    "ui8": ("uint8", "U8"), "ui16": ("uint16", "U16"), "ui32": ("uint32", "U32"), "ui64": ("uint64", "U64"),
}  # fmt: skip
ELEMENTS = {read: element for element, (_, read) in DTYPES.items()}
_RESULTS = "disc.results"  # attribute of the module: a `_Results` as JSON
_SAME_AS = "same as "  # metadata: name → this and the name of the weight whose storage it shares


class _Results(TypedDict):
    """structure: as `disc.artifact.structure` has it; names: by number."""

    structure: object
    names: dict[str, str]


def write_portable(imported: Imported, weights: Path) -> bytes:
    """The program as MLIR bytecode, source lines with it; writes its weights to the file `weights`, shared ones once."""
    first: dict[tuple[object, ...], str] = {}
    tensors: dict[str, TensorSpec] = {}
    held: list[np.ndarray] = []  # what safetensors has the addresses of
    shared: dict[str, str] = {}
    for name in imported.weights:
        weight = imported.weights[name]
        key = (weight.array.__array_interface__["data"][0], weight.array.shape, weight.array.strides, weight.dtype)
        if weight.array.size and key in first:
            shared[name] = _SAME_AS + first[key]
            continue
        first[key] = name
        data = np.ascontiguousarray(weight.array).reshape(weight.array.shape)
        held.append(data)
        address = data.__array_interface__["data"][0]
        tensors[name] = TensorSpec(dtype=DTYPES[weight.dtype][0], shape=list(data.shape), data_ptr=address, data_len=data.nbytes)
    serialize_file(tensors, str(weights), shared or None)
    del held
    outputs = imported.outputs
    text = json.dumps({"structure": outputs.structure, "names": {str(number): name for number, name in outputs.shown.items()}})
    imported.module.operation.attributes[_RESULTS] = ir.StringAttr.get(text, imported.module.context)
    bytecode = io.BytesIO()
    imported.module.operation.write_bytecode(bytecode)
    return bytecode.getvalue()


def read_portable(program: bytes, weights: bytes, *, single: bool, context: ir.Context) -> Imported:
    """The program of untrusted bytes.

    single: as `OutputSpec.is_single` said. Raises UnsupportedFormatError for bytes that are not what `write_portable` makes.
    """
    load_frontend_dialects(context)
    table = _weight_table(weights)
    with context, ir.Location.unknown():
        try:
            module = ir.Module.parse(program)
        except (ir.MLIRError, UnicodeDecodeError) as error:
            raise UnsupportedFormatError(f"the program does not parse: {str(error).splitlines()[0]}") from error
        names, results = _names(module)
        _check_weights(module.operation, table)
        state = read_state(module) or State()
    results = results[: len(results) - len(state.buffers) - len(state.written)]
    tree = None if single and len(results) == 1 else pytree.tree_structure(tuple(results))
    structure, shown = _shown(module.operation, len(results))
    return Imported(module, table, names, OutputSpec(results, {}, tree, structure, shown))


def _shown(op: ir.Operation, results: int) -> tuple[object, dict[int, str]]:
    """How so many results stand in the user's value, and their names. Raises UnsupportedFormatError."""
    if _RESULTS not in op.attributes:
        return None, {}
    try:
        found = json.loads(ir.StringAttr(op.attributes[_RESULTS]).value)
    except ValueError as error:
        raise UnsupportedFormatError(f"the program's {_RESULTS} is no JSON") from error
    del op.attributes[_RESULTS]
    problem = unbounded(found) or mismatch(found, _Results, _RESULTS)
    if problem is None and found["structure"] is not None:
        problem = malformed(found["structure"], results)
    if problem is not None:
        raise UnsupportedFormatError(f"the program's {_RESULTS}: {problem}")
    return found["structure"], {int(number): name for number, name in found["names"].items() if number.isdecimal()}


def _weight_table(content: bytes) -> WeightTable:
    try:
        tensors = dict(deserialize(content))
    except SafetensorError as error:
        raise UnsupportedFormatError(f"the weights are no safetensors file: {error}") from error
    table = WeightTable()
    for name, tensor in tensors.items():
        element = ELEMENTS.get(str(tensor["dtype"]))
        if element is None:
            raise UnsupportedFormatError(f"weight '{name}' has the element type {tensor['dtype']}, which is not supported")
        array = np.frombuffer(tensor["data"], dtype=np.dtype(STORAGE[element])).reshape(tensor["shape"])  # pyright: ignore[reportArgumentType, reportCallIssue]
        if element == "i1" and array.size and array.view(np.uint8).max() > 1:
            raise UnsupportedFormatError(f"weight '{name}' holds a bool that is neither 0 nor 1")
        table.entries[name] = Weight(array, element)
    for name, same in _metadata(content).items():
        if same.startswith(_SAME_AS):
            original = same.removeprefix(_SAME_AS)
            if original not in tensors or name in tensors:
                raise UnsupportedFormatError(f"weight '{name}' shares the storage of '{original}', which is not there")
            table.entries[name] = table.entries[original]
    return table


def _metadata(content: bytes) -> dict[str, str]:
    """Of a file that safetensors has accepted."""
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]).get("__metadata__") or {}


def _names(module: ir.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of inputs and results. Raises UnsupportedFormatError for a module that is not at stage `imported`."""
    functions = [op.operation for op in module.body if op.operation.name == "func.func"]
    if [ir.StringAttr(op.attributes["sym_name"]).value for op in functions] != ["main"] or not functions[0].regions[0].blocks:
        raise UnsupportedFormatError("the program does not have one function, @main")
    attributes = module.operation.attributes
    if "disc.result_names" not in attributes or "disc.symbols" not in attributes:
        raise UnsupportedFormatError("the program is not at stage 'imported': disc.result_names or disc.symbols is missing")
    kind = ir.FunctionType(ir.TypeAttr(functions[0].attributes["function_type"]).value)
    given = list(ir.ArrayAttr(functions[0].attributes["arg_attrs"])) if "arg_attrs" in functions[0].attributes else []
    try:
        inputs = tuple(ir.StringAttr(ir.DictAttr(each)["disc.name"]).value for each in given)
        results = tuple(ir.StringAttr(each).value for each in ir.ArrayAttr(attributes["disc.result_names"]))
    except (KeyError, ValueError) as error:
        raise UnsupportedFormatError("the program is not at stage 'imported': an input or result has no name") from error
    if (len(inputs), len(results)) != (len(kind.inputs), len(kind.results)):
        raise UnsupportedFormatError("the program is not at stage 'imported': not every input and result has a name")
    return inputs, results


def _check_weights(op: ir.Operation, table: WeightTable) -> None:
    """Raises UnsupportedFormatError for a `disc.weight` that the table does not have in this type, and for a custom op."""
    pending = [op]
    while pending:
        current = pending.pop()
        if current.name == "disc.weight":
            _check_weight(current, table)
        if current.name == EXTERNAL:
            raise UnsupportedFormatError("the program calls a custom op, which is compiled by the process that has it alone")
        pending += [each.operation for region in current.regions for block in region.blocks for each in block.operations]


def _check_weight(op: ir.Operation, table: WeightTable) -> None:
    name = ir.StringAttr(op.attributes["name"]).value
    kind = ir.RankedTensorType(op.result.type)
    if name not in table:
        raise UnsupportedFormatError(f"the program reads the weight '{name}', which is not among the weights")
    weight = table[name]
    if (str(kind.element_type), tuple(kind.shape)) != (weight.dtype, weight.array.shape):
        raise UnsupportedFormatError(
            f"the program reads the weight '{name}' as {kind}, but it is {weight.dtype} {list(weight.array.shape)}"
        )
