"""Which calls go through torch-mlir: those of kinds for which `tests/diff/test_torch_mlir.py` shows that its form is equal to eager.

A call of another kind takes an override (`rules/`), or is refused: what torch-mlir makes of it may be wrong, or end the process.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from disc.frontend.call import Call
from disc.frontend.op_builder import Tensor, is_static
from disc.frontend.rules import complex_views, data_sizes, override_of
from disc.frontend.rules.contractions import one_type
from disc.frontend.rules.elementwise import is_zero
from disc.frontend.torch_mlir_calls import ALL, ALL_FLOATS, CARRIERS, FLOATS, INTEGERS, SIGNED, Cast, Form

aten = torch.ops.aten
Op = torch._ops.OpOverload


def _overloads(names: str, *overloads: str) -> list[Op]:
    return [getattr(getattr(aten, name), overload) for name in names.split() for overload in overloads or ("default",)]


def _same(form: Form, *ops: Op) -> dict[Op, Form]:
    return dict.fromkeys(ops, form)


def _computed(dtypes: frozenset[torch.dtype], names: str, *operands: str) -> dict[Op, Form]:
    """Ops that compute in the type of their result, 16-bit floats in f32 as PyTorch's CPU kernels do."""
    return _same(Form(dtypes, cast=Cast.RESULT, operands=operands, wide=True), *_overloads(names))


def _arithmetic(
    name: str, dtypes: frozenset[torch.dtype], *overloads: str, op: Op | None = None, accepts: Callable[[Call], bool] | None = None
) -> dict[Op, Form]:
    """The same of two operands, the second of which may be a number."""
    packet = getattr(aten, name)
    form = Form(dtypes, op or packet.Tensor, Cast.RESULT, ("self", "other"), wide=True, accepts=accepts)
    return {getattr(packet, overload): form for overload in overloads}


def _adds_something(call: Call) -> bool:
    return not is_zero(call.raw("other"))


def _converts(call: Call) -> bool:
    """Whether it is a conversion to a type that torch-mlir has in which no number can be lost: not of floats to integers, nor to bools."""
    source, target = call.tensor("self" if "self" in call.arguments else "a").dtype, call.dtype
    if target in CARRIERS or target == torch.uint64:
        return False
    return source == target or target.is_floating_point or not (source.is_floating_point or target == torch.bool)


def _has_dims(call: Call) -> bool:
    return call.tensor("self").rank > 0


def _of_one_type(call: Call) -> bool:
    """Raises: RuleError for matrices of several types, which eager refuses."""
    one_type(*(value for value in call.arguments.values() if isinstance(value, Tensor)))
    return True


def _is_forward(call: Call) -> bool:
    return _of_one_type(call) and not call.flag("transposed") and is_static(call.tensor("weight").shape)


def _plain_sum(call: Call) -> bool:
    return _of_one_type(call) and call.raw("beta") == 1 and call.raw("alpha") == 1


_NUMBERS = ALL - {torch.bool}
_BITS = INTEGERS | {torch.bool}
_BOOL = frozenset({torch.bool})
FORMS: dict[object, Form] = {
    # arithmetic
    **_computed(FLOATS, "exp exp2 expm1 log log1p log2 log10 sqrt rsqrt sin cos tan tanh sigmoid erf reciprocal", "self"),
    **_computed(FLOATS, "sinh cosh asin acos atan asinh acosh atanh", "self"),
    **_same(Form(ALL, cast=Cast.RESULT, operands=("self",), wide=True, moves=True), *_overloads("floor ceil round")),
    **_computed(_NUMBERS, "neg", "self"),
    **_computed(FLOATS | SIGNED, "abs", "self"),
    **_same(Form(_NUMBERS), aten.relu.default),
    **_same(Form(), aten.sign.default),
    **_arithmetic("add", ALL, "Tensor", "Scalar", accepts=_adds_something),
    **_arithmetic("sub", _NUMBERS, "Tensor", "Scalar"),
    **_arithmetic("mul", ALL, "Tensor", "Scalar"),
    **_arithmetic("div", FLOATS, "Tensor", "Scalar"),
    **_arithmetic("true_divide", FLOATS, "Tensor", op=aten.div.Tensor),
    **_same(
        Form(_NUMBERS, aten.sub.Tensor, Cast.RESULT, ("self", "other"), wide=True, swapped=True), *_overloads("rsub", "Tensor", "Scalar")
    ),
    **_same(
        Form(FLOATS | INTEGERS, aten.pow.Tensor_Tensor, Cast.RESULT, ("self", "exponent"), wide=True),
        *_overloads("pow", "Tensor_Tensor", "Scalar"),
    ),
    **_computed(ALL, "maximum minimum", "self", "other"),
    **_computed(FLOATS, "atan2", "self", "other"),
    **_arithmetic("bitwise_and", _BITS, "Tensor", "Scalar"),
    **_arithmetic("bitwise_or", _BITS, "Tensor", "Scalar"),
    **_arithmetic("bitwise_xor", _BITS, "Tensor", "Scalar"),
    **_same(Form(_BITS), aten.bitwise_not.default),
    # comparisons, logic, selection
    **{
        overload: Form(ALL, packet.Tensor, Cast.PROMOTED, ("self", "other"))
        for packet in (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)
        for overload in (packet.Tensor, packet.Scalar)
    },
    **_same(Form(_BOOL, cast=Cast.RESULT, operands=("self", "other")), *_overloads("logical_and logical_or logical_xor")),
    **_same(Form(_BOOL, cast=Cast.RESULT, operands=("self",)), aten.logical_not.default),
    **_same(
        Form(ALL, aten.where.self, Cast.RESULT, ("self", "other"), moves=True),
        *_overloads("where", "self", "ScalarSelf", "ScalarOther", "Scalar"),
    ),
    **_same(Form(ALL, aten.masked_fill.Tensor, Cast.RESULT, ("self", "value")), *_overloads("masked_fill", "Tensor", "Scalar")),
    **_same(Form(), aten.isnan.default),
    # sums and products
    **_computed(FLOATS | INTEGERS, "sum", "self"),
    **_computed(FLOATS, "mean", "self"),
    aten.sum.dim_IntList: Form(FLOATS | INTEGERS, cast=Cast.RESULT, operands=("self",), wide=True, accepts=_has_dims),
    aten.mean.dim: Form(FLOATS, cast=Cast.RESULT, operands=("self",), wide=True, accepts=_has_dims),
    aten.prod.default: Form(ALL_FLOATS | INTEGERS, cast=Cast.RESULT, operands=("self",)),
    aten.prod.dim_int: Form(ALL_FLOATS | INTEGERS, cast=Cast.RESULT, operands=("self",), accepts=_has_dims),
    # conversions, views, copies
    **_same(Form(accepts=_converts), aten._to_copy.default, torch.ops.prims.convert_element_type.default),
    **_same(Form(moves=True), *_overloads("clone alias detach lift_fresh_copy contiguous unsqueeze permute t expand flip")),
    **_same(Form(accepts=_has_dims, moves=True), aten.transpose.int),
    **_same(Form(), *_overloads("zeros_like ones_like")),
    **_same(Form(ALL - {torch.uint8}), aten.full_like.default),
    **_same(Form(cast=Cast.RESULT, operands=("src",)), aten.copy.default),
    **_same(Form(cast=Cast.RESULT, operands=("tensors",), moves=True), aten.cat.default),
    # matrix products, tables
    **_same(Form(ALL_FLOATS | INTEGERS, accepts=_of_one_type), *_overloads("mm bmm mv dot matmul")),
    **_same(Form(ALL_FLOATS | INTEGERS, accepts=_of_one_type), aten.linear.default),
    **_same(Form(ALL_FLOATS, accepts=_plain_sum), *_overloads("addmm baddbmm")),
    **_same(Form(ALL_FLOATS, accepts=_is_forward), aten.convolution.default),
    **_same(Form(), aten.embedding.default),
}


def has_lowering(op: object) -> bool:
    """Whether calls of the op are lowered as they are: it is not decomposed."""
    return op in FORMS or override_of(op) is not None or op in data_sizes.RULES or op in complex_views.RULES
