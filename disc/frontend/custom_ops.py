"""Custom ops (`torch.library`): one launch each, of a function that the program names.

    mylib::scale(x, 2.0, n)   ─►   "external.call"(%x) {function = "mylib::scale", target = "op:mylib::scale@1f..:scale", ...}

The function is a C function that was bound to the op by `disc.register_op`, else the op itself, run by PyTorch (`ral/torch_functions.py`
reads what `_torch_target` writes). What an op writes are further results, before those that it returns.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sympy
import torch
from torch import fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch_mlir import ir

from disc.errors import warn
from disc.frontend.locations import line_text
from disc.frontend.op_builder import OpBuilder, RuleError, Tensor, tensor_type
from disc.frontend.symbols import Size, to_shape
from disc.ral import custom_functions

FUNCTIONALIZED = (auto_functionalized, auto_functionalized_v2)  # what PyTorch makes of an op that writes its arguments
Arguments = Mapping[str, object]  # by schema name: Tensor, size, literal, list of those, or None


def is_custom(op: object) -> bool:
    """Whether it is an op of somebody else than PyTorch."""
    return isinstance(op, torch._ops.OpOverload) and op.namespace not in custom_functions.PYTORCHS


def op_name(op: torch._ops.OpOverload) -> str:
    """ "mylib::scale"; with its overload, "mylib::scale.int", where that is not the default one."""
    return op._schema.name + (f".{op._overloadname}" if op._overloadname != "default" else "")


def warn_of_effects(graph: fx.Graph) -> None:
    """Warns of every op that neither returns nor writes anything: compiled programs do not run it, as PyTorch's own passes do not."""
    for node in graph.nodes:
        op = node.target
        if is_custom(op) and not op._schema.returns and not op._schema.is_mutable:
            reason = "returns nothing and does not say what it writes (mutates_args)"
            warn(f"{op_name(op)} at {line_text(node)} {reason}: the compiled program does not run it")


def custom_call(e: OpBuilder, node: fx.Node, arguments: Arguments) -> tuple[Tensor, ...]:
    """The results of a call of a custom op that writes nothing."""
    op = node.target
    assert isinstance(op, torch._ops.OpOverload)
    if op._schema.is_mutable:
        raise RuleError("it writes its arguments, and PyTorch did not make new values of them")
    value = node.meta["val"]
    return _launched(e, op, arguments, (), value if isinstance(value, list | tuple) else [value])


def functionalized_call(e: OpBuilder, node: fx.Node, arguments: Arguments) -> tuple[Tensor | None, ...]:
    """Of PyTorch's call of an op that writes its arguments: what the op returns, then the new values of what it writes.

    arguments: of the node, by keyword.
    """
    op = node.args[0]
    if not isinstance(op, torch._ops.OpOverload):
        raise RuleError(f"{op} writes its arguments")
    written = [each.name for each in op._schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    given, bases, value = dict(arguments), list[str](), node.meta["val"]
    if node.target is auto_functionalized_v2:
        everything = given["_all_bases"]
        assert isinstance(everything, list)
        for name in written:
            given[name] = _base(given, name, everything)
        own = {each.name for each in op._schema.arguments}
        bases = [next(name for name in written if given[name] is base) for base in everything]
        given = {name: each for name, each in given.items() if name in own}
    kept = bases or [name for name in written if given[name] is not None]
    if len({id(given[name]) for name in kept}) != len([name for name in written if given[name] is not None]):
        raise RuleError("it writes one tensor by two arguments")
    returned = list(value[: len(value) - len(kept)])
    found = _launched(e, op, given, kept, [each for each in returned if each is not None])
    results = iter(found[len(kept) :])
    return (*(None if each is None else next(results) for each in returned), *found[: len(kept)])


def _base(given: Arguments, name: str, bases: Sequence[object]) -> object:
    """The tensor that an argument is. Raises RuleError where it is a part of one."""
    index = given.get(f"_{name}_base_index", -1)
    if index is None:
        return None
    parts = [each for each in given if each.startswith((f"_{name}_size", f"_{name}_stride", f"_{name}_slice", f"_{name}_length"))]
    if parts or not isinstance(index, int) or index < 0:
        raise RuleError(f"it writes argument {name}, which is a part of a tensor or a list")
    return bases[index]


def _launched(
    e: OpBuilder, op: torch._ops.OpOverload, arguments: Arguments, written: Sequence[str], returned: Sequence[object]
) -> tuple[Tensor, ...]:
    """The new values of the arguments that are written, then what the op returns. Raises RuleError."""
    bound = custom_functions.bound_function(op_name(op))
    call = _Numbers() if bound is not None else _Template(list(written))
    taken = [(each, arguments.get(each.name, each.default_value if each.has_default_value() else None)) for each in op._schema.arguments]
    encoded = {each.name: call.take(each.name, value) for each, value in taken}
    target = bound if bound is not None else _torch_target(op, encoded)
    places = [next(i for i, each in enumerate(call.tensors) if each is arguments[name]) for name in written]
    kinds = [(call.tensors[place].shape, call.tensors[place].dtype) for place in places]
    for each in returned:
        if not isinstance(each, torch.Tensor):
            raise RuleError("it returns something else than tensors")
        kinds.append((to_shape(each.shape), each.dtype))
    if not kinds:
        raise RuleError("it returns nothing")
    numbers = [len(places), *places, *call.numbers]
    sizes = [each for each in numbers if not isinstance(each, int)]
    operands = [*(each.value for each in call.tensors), *(e.shape_operand(shape) for shape, _ in kinds)]
    attributes = {
        "function": ir.StringAttr.get(op_name(op)),
        "target": ir.StringAttr.get(target),
        "numbers": ir.ArrayAttr.get([ir.StringAttr.get(str(each) if isinstance(each, int) else "?") for each in numbers]),
        "tensors": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), len(call.tensors)),
    }
    types = [tensor_type(shape, dtype) for shape, dtype in kinds]
    made = ir.Operation.create(
        "external.call", results=types, operands=[*operands, *([e.shape_operand(sizes)] if sizes else [])], attributes=attributes
    ).results
    return tuple(Tensor(value, shape, dtype) for value, (shape, dtype) in zip(made, kinds, strict=True))


@dataclass
class _Taken:
    """tensors: the operands, each once per argument; numbers: integers, and sizes that each call knows."""

    tensors: list[Tensor] = field(default_factory=list)
    numbers: list[Size] = field(default_factory=list)

    def take(self, name: str, value: object) -> object:
        raise NotImplementedError

    def operand(self, value: Tensor) -> int:
        self.tensors.append(value)
        return len(self.tensors) - 1

    def size(self, name: str, value: object) -> Size:
        """Raises RuleError for what is no integer."""
        if isinstance(value, int):
            return int(value)
        if isinstance(value, sympy.Expr) and value.is_integer:
            return value
        raise RuleError(f"its argument {name} is computed from sizes and no integer")


class _Numbers(_Taken):
    """Arguments of a C function, as `ral_function_call` has them."""

    def take(self, name: str, value: object) -> object:
        """Raises RuleError for what a C function cannot be told."""
        if isinstance(value, Tensor):
            return self.operand(value)
        if isinstance(value, float):
            self.numbers.append(struct.unpack("<q", struct.pack("<d", value))[0])
        elif isinstance(value, int | sympy.Expr):
            self.numbers.append(self.size(name, value))
        elif isinstance(value, list) and all(isinstance(each, int | sympy.Expr) for each in value):
            self.numbers += [len(value), *(self.size(name, each) for each in value)]
        else:
            what = "None" if value is None else f"of type {type(value).__name__}"
            raise RuleError(f"its argument {name} is {what}, which the C function of disc.register_op cannot be told")
        return None


@dataclass
class _Template(_Taken):
    """Arguments of a call by PyTorch: the text that `ral/torch_functions.py` reads them from."""

    written: list[str] = field(default_factory=list)

    def __init__(self, written: list[str]) -> None:
        super().__init__()
        self.written = written

    def take(self, name: str, value: object) -> object:
        """Raises RuleError for what has no text."""
        if isinstance(value, Tensor):
            place = self.operand(value)
            return {"result": self.written.index(name)} if name in self.written else {"tensor": place}
        if isinstance(value, list | tuple):
            return {"list": [self.take(name, each) for each in value]}
        if isinstance(value, bool | int | float | str) or value is None:
            return {"value": value}
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return {"torch": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, sympy.Expr):
            self.numbers.append(self.size(name, value))
            return {"number": len(self.numbers) - 1}
        raise RuleError(f"its argument {name} of type {type(value).__name__} is not supported")


def _torch_target(op: torch._ops.OpOverload, arguments: Mapping[str, object]) -> str:
    """ "torch:{...}": the op, its schema, and its arguments by name."""
    name = f"{op._schema.name}.{op._overloadname}"
    return "torch:" + json.dumps({"op": name, "schema": str(op._schema), "arguments": arguments}, separators=(",", ":"))
