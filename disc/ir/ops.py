"""The one place that builds and reads generic operations, tensor types with named dims, and dense attributes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from torch_mlir import ir

from disc.errors import CompilerBug
from disc.ir.source_lines import source_name
from disc.ir.symbols import ModuleEnv
from disc.shapes import Dim

Attribute = ir.Attribute | str | int | bool | Sequence[int] | Sequence[str]

DYNAMIC = ir.ShapedType.get_dynamic_size()
TERMINATORS = frozenset({"func.return", "kernel.yield", "stablehlo.return"})  # of blocks: what they pass on is their operands
_LOCATION = re.compile(r'"([^"]+)":(\d+):\d+')
_HALF_BITS = re.compile(r"0x([0-9A-Fa-f]{4})\b")

# --- attributes -------------------------------------------------------------------------------------------------------


def to_attribute(value: Attribute) -> ir.Attribute:
    """str → string, bool → bool, int → i64, ints → array<i64>, strings → array of strings; attributes stay."""
    if isinstance(value, ir.Attribute):
        return value
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    if value and isinstance(value[0], str):
        return ir.ArrayAttr.get([ir.StringAttr.get(str(item)) for item in value])
    return ir.DenseI64ArrayAttr.get([int(item) for item in value])


def strings(*items: object) -> ir.ArrayAttr:
    """An array of strings, also when it is empty (an empty Python list would become `array<i64>`)."""
    return ir.ArrayAttr.get([ir.StringAttr.get(str(item)) for item in items])


def string_attr(op: ir.Operation, name: str) -> str:
    return ir.StringAttr(op.attributes[name]).value


def int_attr(op: ir.Operation, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value


def ints_attr(op: ir.Operation, name: str, default: Sequence[int] = ()) -> list[int]:
    """The values of an `array<i64>`; `default` when the op does not carry the attribute."""
    return list(ir.DenseI64ArrayAttr(op.attributes[name])) if name in op.attributes else list(default)


def strings_attr(op: ir.Operation, name: str) -> list[str]:
    return [ir.StringAttr(item).value for item in ir.ArrayAttr(op.attributes[name])]


def dense_to_array(attribute: ir.Attribute) -> npt.NDArray[np.generic]:
    """The values of a dense attribute; bf16 comes as its 16 bits in uint16, a splat of it without a copy."""
    shaped = ir.ShapedType(attribute.type)  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(shaped.element_type, ir.BF16Type):
        return np.array(attribute)
    with attribute.context, ir.Location.unknown():
        if ir.DenseElementsAttr(attribute).is_splat:
            return np.broadcast_to(_bf16_to_array(str(attribute), []), shaped.shape)
        return _bf16_to_array(str(attribute), list(shaped.shape))


def _bf16_to_array(text: str, shape: list[int]) -> npt.NDArray[np.uint16]:
    """The bindings cannot read bf16, so the text is read: as hex bytes, or as f32, rounded (a decimal is only near its bf16)."""
    if '"0x' in text:
        return np.frombuffer(bytes.fromhex(text.split('"0x')[1].split('"')[0]), np.uint16).reshape(shape)
    values = _HALF_BITS.sub(r"0x\g<1>0000", text.rsplit(" : ", 1)[0])
    wide = ir.Attribute.parse(f"{values} : {ir.RankedTensorType.get(shape, ir.F32Type.get())}")
    bits = np.array(wide).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def array_to_dense(array: npt.NDArray[np.generic], kind: ir.RankedTensorType) -> ir.DenseElementsAttr:
    """`array` as a dense attribute of type `kind` (bf16 given as its bits); one element stands for all."""
    return ir.DenseElementsAttr.get(np.ascontiguousarray(array), type=kind)


# --- operations -------------------------------------------------------------------------------------------------------


def build(
    name: str,
    operands: Sequence[ir.Value] = (),
    result_types: Sequence[ir.Type] = (),
    attributes: dict[str, Attribute] | None = None,
    regions: int = 0,
    location: ir.Location | None = None,
    before: ir.Operation | None = None,
) -> ir.Operation:
    """Creates the op `name`: before the op `before` (whose location it takes unless given), else where the insertion point is."""
    if before is not None and location is None:
        location = before.location
    return ir.Operation.create(
        name,
        results=list(result_types),
        operands=list(operands),
        attributes={key: to_attribute(value) for key, value in (attributes or {}).items()},
        regions=regions,
        loc=location,
        ip=ir.InsertionPoint(before) if before is not None else None,
    )


def replace_op(op: ir.Operation, values: Sequence[ir.Value]) -> None:
    """Gives every use of the results of `op` to `values`, and erases `op`."""
    for old, new in zip(op.results, values, strict=True):
        old.replace_all_uses_with(new)
    op.erase()


def is_unused(op: ir.Operation) -> bool:
    return all(next(iter(result.uses), None) is None for result in op.results)


def location_text(op: ir.Operation) -> str:
    """ "file.py:12" of the innermost Python line, its file by `source_name`; "line 12" of a text; or "unknown line"."""
    found = _LOCATION.search(str(op.location))
    if found is None:
        return "unknown line"
    return f"line {found[2]}" if found[1] == "-" else f"{source_name(found[1])}:{found[2]}"


def main_function(module: ir.Module) -> ir.Operation:
    """The `func.func @main`."""
    for op in module.body.operations:
        if op.operation.name == "func.func" and string_attr(op.operation, "sym_name") == "main":
            return op.operation
    raise CompilerBug("the module has no func.func @main")


def main_block(module: ir.Module) -> ir.Block:
    return main_function(module).regions[0].blocks[0]


def functions_of(module: ir.Module) -> list[ir.Operation]:
    """`@main`, then the functions that are bodies of its control flow (`disc/ir/control.py`), in the order of the text."""
    main = main_function(module)
    return [main, *(op.operation for op in module.body.operations if op.operation.name == "func.func" and op.operation != main)]


def function_blocks(module: ir.Module) -> list[ir.Block]:
    """The blocks of `functions_of`."""
    return [function.regions[0].blocks[0] for function in functions_of(module)]


def block_ops(block: ir.Block) -> list[ir.Operation]:
    """The operations of a block, in a list that survives their removal."""
    return [op.operation for op in block.operations]


def all_ops(block: ir.Block) -> Iterator[ir.Operation]:
    """The operations of a block, those of regions behind the op that has them."""
    for op in block_ops(block):
        yield op
        for region in op.regions:
            for inner in region.blocks:
                yield from all_ops(inner)


def terminator_of(block: ir.Block) -> ir.Operation:
    return block.operations[len(block.operations) - 1].operation


# --- tensor types -----------------------------------------------------------------------------------------------------


def shape_of(value: ir.Value) -> tuple[int | None, ...]:
    """The static sizes of the type; None for a dynamic dim."""
    return tuple(None if size == DYNAMIC else size for size in ir.RankedTensorType(value.type).shape)


def rank_of(value: ir.Value) -> int:
    return ir.RankedTensorType(value.type).rank


def element_of(value: ir.Value) -> ir.Type:
    return ir.RankedTensorType(value.type).element_type


def is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def dims_of(value: ir.Value, env: ModuleEnv) -> tuple[Dim, ...]:
    """The sizes of a tensor of stage `named`, as simplified expressions of base symbols."""
    encoding = ir.RankedTensorType(value.type).encoding
    return () if encoding is None else tuple(env.resolve(entry) for entry in ir.ArrayAttr(encoding))


def tensor_type(dims: Sequence[Dim], element: ir.Type, env: ModuleEnv) -> ir.RankedTensorType:
    """The tensor type with these dims named in its encoding; sizes that are new get a derived symbol."""
    if not dims:
        return ir.RankedTensorType.get([], element)
    word = ir.IntegerType.get_signless(64)
    sizes: list[int] = []
    entries: list[ir.Attribute] = []
    for dim in dims:
        known = env.simplify(dim)
        sizes.append(known.const if known.is_const else DYNAMIC)
        entries.append(ir.IntegerAttr.get(word, known.const) if known.is_const else ir.FlatSymbolRefAttr.get(env.symbol_name(known)))
    return ir.RankedTensorType.get(sizes, element, ir.ArrayAttr.get(entries))
