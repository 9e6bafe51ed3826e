"""StableHLO files: MLIR text (`.mlir`) and portable bytecode (`.mlirbc`)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from torch_mlir import ir
from torch_mlir._mlir_libs import _stablehlo  # pyright: ignore[reportAttributeAccessIssue]
from torch_mlir.passmanager import PassManager

from disc.errors import UnsupportedFormatError, UnsupportedOp, UnsupportedOpError
from disc.frontend.dialects import load_frontend_dialects
from disc.frontend.hlo.complex_parts import split_complex
from disc.frontend.hlo.forms import rewrite_forms, upstream_passes
from disc.frontend.hlo.names import Names, names_of
from disc.frontend.imported import Imported, OutputSpec
from disc.frontend.program_bounds import check_nesting, check_numbers, check_sizes
from disc.ir.op_table import EXTERNAL
from disc.ir.ops import location_text
from disc.ir.stages import IMPORTED_DIALECTS
from disc.ir.state import SEED
from disc.ir.weights import STORAGE, Weight, WeightTable

# Larger dense constants become weights; smaller ones stay in the module.
MAX_CONSTANT_BYTES = 1024
BYTECODE_MAGIC = b"ML\xefR"


def load_stablehlo(path: str | Path, context: ir.Context) -> Imported:
    """Reads a StableHLO file.

    Raises: UnsupportedFormatError for another kind of file, text that does not parse (with its line), or a module without one
    function to compile.
    """
    path = Path(path)
    if path.suffix not in (".mlir", ".mlirbc"):
        raise UnsupportedFormatError(f"{path}: StableHLO files have the suffix .mlir or .mlirbc")
    return import_stablehlo(path.read_bytes(), context, str(path))


def portable_bytecode(path: Path) -> bytes:
    """The program of a StableHLO file as portable bytecode, which later versions of StableHLO can read.

    Raises: UnsupportedFormatError for another kind of file, and for a program with ops outside StableHLO.
    """
    if path.suffix not in (".mlir", ".mlirbc"):
        raise UnsupportedFormatError(f"{path}: only a model that comes as StableHLO (.mlir, .mlirbc) can be embedded as StableHLO")
    data = path.read_bytes()
    if data.startswith(BYTECODE_MAGIC) and b"vhlo" in data:
        return data
    try:
        return _stablehlo.serialize_portable_artifact_str(data, _stablehlo.get_current_version())
    except ValueError as error:
        first = next((line for line in str(error).splitlines() if "error:" in line), str(error)).partition("error: ")[2]
        raise UnsupportedFormatError(f"{path} cannot be embedded: it is not portable StableHLO: {first}") from error


def import_stablehlo(source: bytes | str, context: ir.Context, name: str = "module") -> Imported:
    """StableHLO text or portable bytecode → stage `imported`; `name` stands in messages.

    Raises: UnsupportedFormatError as `load_stablehlo`.
    """
    load_frontend_dialects(context)
    data = source.encode() if isinstance(source, str) else source
    with context, ir.Location.unknown():
        module = _parse(data, name)
        check_sizes(module, name)
        _refuse_foreign(module)  # before anything is cleaned up
        function = _only_function(module, name)
        names = names_of(module, function)
        try:
            PassManager.parse(f"builtin.module({upstream_passes(module)}inline,symbol-dce)").run(module.operation)
            _refuse_calls(module)
            function = _only_function(module, name)
            split_complex(module, function)
            rewrite_forms(module, function)
        except ir.MLIRError as error:  # an op whose operands contradict each other, which folding a constant or its form has shown
            raise UnsupportedFormatError(f"{name} is not valid StableHLO: {_with_line(str(error), name)}") from error
        function.attributes["sym_name"] = ir.StringAttr.get("main")
        weights = WeightTable()
        for block in function.regions[0].blocks:
            _extract_constants(block, weights)
        return _described(module, function, weights, names)


def _refuse_foreign(module: ir.Module) -> None:
    """Raises: UnsupportedOpError naming every op of a dialect that no program of StableHLO has."""
    found: list[UnsupportedOp] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        dialect = op.name.split(".")[0]
        if (dialect not in IMPORTED_DIALECTS or op.name == EXTERNAL) and op.name != "builtin.module":
            found.append(UnsupportedOp(op.name, f"the dialect {dialect!r} is no part of StableHLO", location_text(op)))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    if found:
        raise UnsupportedOpError(found)


def _refuse_calls(module: ir.Module) -> None:
    """Raises: UnsupportedOpError naming every call that is left where functions are inlined."""
    found: list[UnsupportedOp] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "func.call":
            found.append(UnsupportedOp(op.name, f"{op.attributes['callee']} has no body, or calls itself", location_text(op)))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    if found:
        raise UnsupportedOpError(found)


def _parse(data: bytes, name: str) -> ir.Module:
    try:
        if data.startswith(BYTECODE_MAGIC):
            return _deserialized(data, name)
        check_nesting(data, name)
        check_numbers(data, name)
        return ir.Module.parse(data.decode())
    except UnicodeDecodeError as error:
        raise UnsupportedFormatError(f"{name} is neither MLIR text nor bytecode") from error
    except ir.MLIRError as error:
        raise UnsupportedFormatError(f"{name} does not parse: {_with_line(str(error), name)}") from error


def _deserialized(data: bytes, name: str) -> ir.Module:
    """Portable artifacts are bytecode of a versioned dialect; other bytecode is read as it is."""
    if b"vhlo" not in data:
        return ir.Module.parse(data)
    try:
        return ir.Module.parse(_stablehlo.deserialize_portable_artifact_str(data))
    except ValueError as error:
        hint = "of JAX's exported functions, those with sharding rules are read as text: str(exported.mlir_module()) in a .mlir file"
        raise UnsupportedFormatError(f"{name} is no portable StableHLO that this version reads ({hint})") from error


def _with_line(message: str, name: str) -> str:
    """MLIR calls an unnamed buffer "-": put the file's name there, and keep the first error."""
    first = next((line for line in message.splitlines() if "error:" in line), message)
    return re.sub(r'^error: "-":(\d+):(\d+):', rf"{name}:\1:\2:", first.strip())


def _only_function(module: ir.Module, name: str) -> ir.Operation:
    """`main`, or the only public function."""
    functions = [op.operation for op in module.body if op.operation.name == "func.func" and op.operation.regions[0].blocks]
    named = [op for op in functions if ir.StringAttr(op.attributes["sym_name"]).value == "main"]
    public = named or [op for op in functions if "sym_visibility" not in op.attributes]
    if len(public) != 1:
        raise UnsupportedFormatError(f"{name} has {len(public)} public functions; name the one to compile @main")
    for op in functions:
        if op != public[0]:
            op.attributes["sym_visibility"] = ir.StringAttr.get("private")
    return public[0]


def _extract_constants(block: ir.Block, weights: WeightTable) -> None:
    pending = [op.operation for op in reversed(list(block.operations))]
    while pending:
        op = pending.pop()
        if op.name == "stablehlo.constant":
            _extract(op, weights)
            continue
        inner = [each.operation for region in op.regions for block in region.blocks for each in block.operations]
        pending += reversed(inner)


def _extract(op: ir.Operation, weights: WeightTable) -> None:
    kind = ir.RankedTensorType(op.result.type)
    value = op.attributes["value"]
    array = _large_array(value, kind)
    if array is None:
        return
    name = weights.add("constant", Weight(array, str(kind.element_type)))
    with ir.InsertionPoint(op), op.location:
        weight = ir.Operation.create("disc.weight", results=[kind], attributes={"name": ir.StringAttr.get(name)})
    op.result.replace_all_uses_with(weight.result)
    op.erase()


def _large_array(value: ir.Attribute, kind: ir.RankedTensorType) -> np.ndarray | None:
    """The data of a dense constant above the limit; None for splats and small ones.

    Raises: UnsupportedFormatError for constants in another form, such as resources, and large ones of a type that disc does not store.
    """
    element = str(kind.element_type)
    if not isinstance(value, ir.DenseElementsAttr):
        form = str(value).partition("<")[0]  # the bindings have no class for some of these
        raise UnsupportedFormatError(f"constants in {form} form are not supported: print them as dense<...>")
    if value.is_splat:
        return None
    if element not in STORAGE:
        raise UnsupportedFormatError(f"a constant of element type {element} is not supported")
    dtype = np.dtype(STORAGE[element])
    count = int(np.prod(kind.shape))
    if count * dtype.itemsize <= MAX_CONSTANT_BYTES:
        return None
    if element == "bf16":
        # The bindings cannot read bf16 elements; attributes of this size print as the hex of their bytes.
        digits = re.search(r'dense<"0x([0-9A-Fa-f]+)">', str(value))
        assert digits is not None
        return np.frombuffer(bytes.fromhex(digits.group(1)), dtype=np.uint16).reshape(kind.shape)
    return np.array(ir.DenseElementsAttr(value)).reshape(kind.shape).astype(dtype, copy=False)


def _described(module: ir.Module, function: ir.Operation, weights: WeightTable, found: Names) -> Imported:
    """Names for arguments and results, where the file has none."""
    block = function.regions[0].blocks[0]
    given = (
        list(ir.ArrayAttr(function.attributes["arg_attrs"]))
        if "arg_attrs" in function.attributes
        else [ir.DictAttr.get({})] * len(block.arguments)
    )
    names, described = [], []
    for attributes, name in zip(given, (*found.inputs, SEED), strict=False):  # the seed is the last argument of a program that draws
        entries = {entry.name: entry.attr for entry in ir.DictAttr(attributes)}
        entries.setdefault("disc.name", ir.StringAttr.get(name))
        names.append(ir.StringAttr(entries["disc.name"]).value)
        described.append(ir.DictAttr.get(entries))
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(described)
    module.operation.attributes["disc.result_names"] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in found.results])
    if "disc.symbols" not in module.operation.attributes:
        module.operation.attributes["disc.symbols"] = ir.DictAttr.get({})
    return Imported(module, weights, tuple(names[: len(found.inputs)]), OutputSpec(found.results))
