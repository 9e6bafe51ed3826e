"""How a call goes through torch-mlir: its operands in types that torch-mlir is known to handle correctly, its kind, its results.

Python's numbers become tensors without dims, and operands of several types get one, before torch-mlir sees the call: what is left to
prove of an op is one case per type.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass

import sympy
import torch
from torch_mlir import ir

from disc.frontend.call import Call
from disc.frontend.op_builder import REDUCED_PRECISION, OpBuilder, Tensor, is_integral
from disc.frontend.rules.elementwise import Operand, as_tensor, operand, promoted, rounded
from disc.frontend.symbols import Shape, to_shape, to_size
from disc.frontend.torch_mlir import Argument, Kind, Literal, Lowerings, SizeKind, TensorKind, literal


class Cast(enum.Enum):
    """The type that the operands are converted to."""

    NONE = "each its own"
    RESULT = "that of the result"
    PROMOTED = "the one that PyTorch compares them in"


FLOATS = frozenset({torch.float32, torch.float64})
SIGNED = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})
INTEGERS = SIGNED | {torch.uint8}
ALL_FLOATS = FLOATS | set(REDUCED_PRECISION)
ALL = ALL_FLOATS | INTEGERS | {torch.bool}
SWAPPED = {"self": "other", "other": "self"}
# torch-mlir has no such types: what only moves such numbers, or rounds them, is done in one that holds them all.
CARRIERS = {torch.uint16: torch.int32, torch.uint32: torch.int64}
# Parameters that say where values lie, or how gradients are made, not what the values are.
SILENT = ("memory_format", "layout", "device", "pin_memory", "padding_idx", "scale_grad_by_freq", "sparse")


@dataclass(frozen=True)
class Form:
    """A way to lower calls that is proved equal to eager.

    dtypes: what the first operand may be, once it is converted. op: the overload that torch-mlir gets in the place of the call's own (None:
    that one), with parameters of the same names. operands: the parameters that are converted, numbers among them. wide: 16-bit floats are
    computed in f32. accepts: what else a call must be. swapped: `self` of the call is `other` of `op`, and the other way around.
    moves: numbers of the result are among those of the operands.
    """

    dtypes: frozenset[torch.dtype] = ALL
    op: torch._ops.OpOverload | None = None
    cast: Cast = Cast.NONE
    operands: tuple[str, ...] = ()
    wide: bool = False
    accepts: Callable[[Call], bool] | None = None
    swapped: bool = False
    moves: bool = False


@dataclass(frozen=True)
class Plan:
    """operands: those of the kind, with the type to convert to; shapes: of the results."""

    kind: Kind
    operands: tuple[tuple[Operand, torch.dtype | None], ...]
    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class _Parameter:
    """A parameter of what torch-mlir gets, by its name in the call. fixed: what it is in every call; cast: whether it is converted."""

    name: str
    default: object
    fixed: Literal | None
    cast: bool


@functools.cache
def _parameters(op: torch._ops.OpOverload, form: Form) -> tuple[_Parameter, ...]:
    found: list[_Parameter] = []
    for each in op._schema.arguments:
        drops_type = form.cast is not Cast.NONE and each.name == "dtype"  # the operand has it already
        fixed = literal(None if drops_type else each.default_value) if drops_type or each.name in SILENT else None
        name = SWAPPED.get(each.name, each.name) if form.swapped else each.name
        found.append(_Parameter(name, each.default_value, fixed, each.name in form.operands))
    return tuple(found)


def plan(call: Call, form: Form) -> Plan | None:
    """How torch-mlir takes the call; None where the form is not proved for it."""
    if form.accepts is not None and not form.accepts(call):
        return None
    dtype = _common(call, form)
    taken: list[tuple[Operand, torch.dtype | None]] = []

    op = form.op or call.op
    if any(dtype is None or not each.cast for each in _parameters(op, form) if _is_real(call.arguments.get(each.name))):
        return None  # it would be taken for a size
    arguments = tuple([
        each.fixed or _described(call.arguments.get(each.name, each.default), dtype if each.cast else None, taken, form.moves)
        for each in _parameters(op, form)
    ])  # fmt: skip
    if taken and _type_of(*taken[0]) not in (None, *form.dtypes):
        return None
    shapes = tuple([to_shape(each.shape) for each in call.results])
    results = tuple([TensorKind(_widened(each.dtype, form), pattern(shape)) for each, shape in zip(call.results, shapes, strict=True)])
    return Plan(Kind(op, arguments, results, isinstance(call.node.meta["val"], list | tuple)), tuple(taken), shapes)


def _is_real(value: object) -> bool:
    """Whether it is a number computed from sizes that is no integer."""
    return isinstance(value, sympy.Expr) and not is_integral(value)


def _described(value: object, to: torch.dtype | None, taken: list[tuple[Operand, torch.dtype | None]], carried: bool) -> Argument:
    """The argument as a kind knows it; what becomes an operand is added to `taken`, with the type to convert to. carried: in place of a
    type that torch-mlir has not, in one of CARRIERS."""
    if isinstance(value, Tensor):
        to = CARRIERS.get(value.dtype) if carried and to is None else to
        taken.append((value, to))
        return TensorKind(value.dtype if to is None else to, pattern(value.shape))
    if isinstance(value, sympy.Expr) or (to is not None and isinstance(value, bool | int | float)):
        taken.append((value, to))
        return SizeKind() if to is None else TensorKind(to, ())
    if isinstance(value, list | tuple):
        return tuple([_described(part, to, taken, carried) for part in value])
    return literal(value)


def _type_of(value: Operand, to: torch.dtype | None) -> torch.dtype | None:
    return value.dtype if to is None and isinstance(value, Tensor) else to


def emit(e: OpBuilder, lowerings: Lowerings, call: Call, planned: Plan) -> Tensor | tuple[Tensor, ...]:
    """Raises: RuleError where torch-mlir has no lowering after all."""
    lowered = lowerings[planned.kind]
    result = call.results[0].dtype
    values = lowered.clone(
        [_operand(e, value if dtype in (None, result) else rounded(e, value, result), dtype) for value, dtype in planned.operands]
    )
    tensors: list[Tensor] = []
    for value, kind, sizes, shape, meta in zip(values, planned.kind.results, lowered.sizes, planned.shapes, call.results, strict=True):
        known = tuple([want if have is None else have for have, want in zip(sizes, shape, strict=True)])
        tensors.append(e.convert(Tensor(value, known, kind.dtype), meta.dtype))
    return tuple(tensors) if planned.kind.several else tensors[0]


def _common(call: Call, form: Form) -> torch.dtype | None:
    if form.cast is Cast.NONE:
        return None
    if form.cast is Cast.RESULT:
        return _widened(call.dtype, form)
    return promoted(*(operand(call, name) for name in form.operands))


def _widened(dtype: torch.dtype, form: Form) -> torch.dtype:
    if form.wide and dtype in REDUCED_PRECISION:
        return torch.float32
    return CARRIERS.get(dtype, dtype) if form.moves else dtype


def pattern(shape: Shape) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in shape)


def _operand(e: OpBuilder, value: Operand, dtype: torch.dtype | None) -> ir.Value:
    if dtype is not None:
        return as_tensor(e, value, dtype).value
    return value.value if isinstance(value, Tensor) else e.integer(to_size(value))
