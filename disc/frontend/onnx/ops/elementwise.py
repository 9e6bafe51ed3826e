"""Operators on single elements. Arithmetic on sizes stays arithmetic of Python."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from disc.frontend.onnx.narrow import encoded
from disc.frontend.onnx.node import Node
from disc.frontend.onnx.tensors import DTYPES, NARROW
from disc.frontend.onnx.values import INTEGERS, Narrow, NodeError, Number, Result, Sizes, any_of, dtype_of, larger, sizes_value, smaller

Rule = Callable[[Node], Result]
KINDS = {dtype: kind for kind, dtype in DTYPES.items()}


def unary(function: Callable[[Tensor], Tensor]) -> Rule:
    return lambda node: function(node.tensor(0))


def _binary(
    function: Callable[[Tensor, Tensor], Tensor],
    on_sizes: Callable[[Number, Number], Number] | None = None, dtype: torch.dtype | None = None,
) -> Rule:  # fmt: skip
    """on_sizes: the same on numbers of Python. dtype: of the results, where it is not that of the operands."""

    def rule(node: Node) -> Result:
        known = [node.sizes(0), node.sizes(1)]
        if on_sizes is not None and all(known):
            left, right = (each for each in known if each is not None)
            if len(left.numbers) == len(right.numbers) or 1 in (len(left.numbers), len(right.numbers)):
                return _on_sizes(on_sizes, left, right, dtype)
        return function(node.tensor(0), node.tensor(1))

    return rule


def _on_sizes(function: Callable[[Number, Number], Number], left: Sizes, right: Sizes, dtype: torch.dtype | None) -> Result:
    count = 0 if 0 in (len(left.numbers), len(right.numbers)) else max(len(left.numbers), len(right.numbers))
    pairs = zip(_repeated(left, count), _repeated(right, count), strict=True)
    results = tuple(function(a, b) for a, b in pairs)
    return sizes_value(results, scalar=left.scalar and right.scalar, dtype=dtype or left.dtype)


def _repeated(sizes: Sizes, count: int) -> Sequence[Number]:
    return sizes.numbers if len(sizes.numbers) == count else sizes.numbers * count


def _quotient(a: Number, b: Number) -> Number:
    """Rounded toward zero, as ONNX divides."""
    if b == 0:
        raise NodeError("a size is divided by zero", unsupported=False)
    return a // b if bool(a >= 0) == bool(b > 0) else -(-a // b)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _power(node: Node) -> Result:
    base, exponent = node.tensor(0), node.known(1)
    if exponent is not None and exponent.data.numel() == 1 and exponent.data.dim() <= base.dim() and base.is_floating_point():
        return torch.pow(base, node.number(1, "exponent"))
    power = node.tensor(1)
    if base.is_floating_point() or not power.is_floating_point():
        return torch.pow(base, power).to(base.dtype)
    return torch.pow(base.to(power.dtype), power).to(base.dtype)


def _modulo(node: Node) -> Result:
    if node.attr_int("fmod"):
        return torch.fmod(node.tensor(0), node.tensor(1))
    return _binary(torch.remainder, lambda a, b: a % b)(node)


def _extreme(function: Callable[[Tensor, Tensor], Tensor], on_sizes: Callable[[Number, Number], Number]) -> Rule:
    def rule(node: Node) -> Result:
        if len(node.inputs) == 2:
            return _binary(function, on_sizes)(node)
        return reduce(function, node.tensors())

    return rule


def _sum(node: Node) -> Tensor:
    return reduce(torch.add, node.tensors())


def _shift(node: Node) -> Tensor:
    shift = torch.bitwise_left_shift if node.attr_text("direction") == "LEFT" else torch.bitwise_right_shift
    return shift(node.tensor(0), node.tensor(1))


def _clip(node: Node) -> Tensor:
    x = node.tensor(0)
    if all(not node.has(place) or node.known(place) is not None for place in (1, 2)):
        low, high = (node.number(place, "bound") if node.has(place) else None for place in (1, 2))
        return torch.clamp(x, low, high) if low is not None or high is not None else x
    low, high = node.optional(1), node.optional(2)
    x = torch.maximum(x, low) if low is not None else x
    return torch.minimum(x, high) if high is not None else x


def _cast(node: Node) -> Result:
    return cast(node, node.attr_kind("to"))


def _cast_like(node: Node) -> Result:
    like = node.value(1)
    return cast(node, like.kind if isinstance(like, Narrow) else KINDS[node.tensor(1).dtype])


def cast(node: Node, kind: int) -> Result:
    """kind: the type's number in the standard."""
    if kind in NARROW:
        saturate, rounding = bool(node.attr_int("saturate", 1)), node.attr_text("round_mode", "up")
        return Narrow(encoded(node.tensor(0), kind, saturate=saturate, rounding=rounding), kind)
    known, dtype = node.sizes(0), DTYPES[kind]
    if known is not None and dtype in INTEGERS:
        return sizes_value(known.numbers, scalar=known.scalar, dtype=dtype)
    return node.tensor(0).to(dtype)


def _where(node: Node) -> Result:
    known = [node.sizes(place) for place in range(3)]
    if all(known):
        chosen, one, other = (each for each in known if each is not None)
        lengths = {len(each.numbers) for each in (chosen, one, other)}
        if len(lengths - {1}) <= 1 and 0 not in lengths:
            rows = zip(*(_repeated(each, max(lengths)) for each in (chosen, one, other)), strict=True)
            picked = tuple(take * a + (1 - take) * b if isinstance(take, torch.SymInt) else a if take else b for take, a, b in rows)
            return sizes_value(picked, scalar=chosen.scalar and one.scalar and other.scalar, dtype=one.dtype)
    return torch.where(node.tensor(0), node.tensor(1), node.tensor(2))


def _negate(node: Node) -> Result:
    known = node.sizes(0)
    if known is not None and known.dtype in INTEGERS:
        return sizes_value(tuple(-each for each in known.numbers), scalar=known.scalar, dtype=known.dtype)
    return torch.neg(node.tensor(0))


def _not(node: Node) -> Result:
    known = node.sizes(0)
    if known is not None:
        return sizes_value(tuple(1 - each for each in known.numbers), scalar=known.scalar, dtype=known.dtype)
    return torch.logical_not(node.tensor(0))


def _is_infinite(node: Node) -> Tensor:
    x, low, high = node.tensor(0), node.attr_int("detect_negative"), node.attr_int("detect_positive")
    if low and high:
        return torch.isinf(x)
    return x == -math.inf if low else x == math.inf if high else torch.zeros_like(x, dtype=torch.bool)


def _selu(node: Node) -> Tensor:
    x = node.tensor(0)
    return node.attr_float("gamma") * torch.where(x > 0, x, node.attr_float("alpha") * torch.expm1(torch.clamp(x, max=0)))


def _celu(node: Node) -> Tensor:
    return F.celu(node.tensor(0), node.attr_float("alpha"))


def _hard_sigmoid(node: Node) -> Tensor:
    return torch.clamp(node.tensor(0) * node.attr_float("alpha") + node.attr_float("beta"), 0, 1)


def _leaky(node: Node) -> Tensor:
    return F.leaky_relu(node.tensor(0), node.attr_float("alpha"))


def _parametric(node: Node) -> Tensor:
    x = node.tensor(0)
    return torch.where(x < 0, x * node.tensor(1), x)


def _thresholded(node: Node) -> Tensor:
    x = node.tensor(0)
    return torch.where(x > node.attr_float("alpha"), x, torch.zeros_like(x))


def _shrink(node: Node) -> Tensor:
    x, bias, bound = node.tensor(0), node.attr_float("bias"), node.attr_float("lambd")
    wide = x if x.is_floating_point() else x.float()
    kept = torch.where(wide < -bound, wide + bias, torch.where(wide > bound, wide - bias, torch.zeros_like(wide)))
    return kept.to(x.dtype)


def _swish(node: Node) -> Tensor:
    x = node.tensor(0)
    return x * torch.sigmoid(node.attr_float("alpha") * x)


def _dropout(node: Node) -> Result:
    x, ratio = node.tensor(0), float(node.number(1, "ratio")) if node.has(1) else 0.5
    if not node.has(2) or not node.number(2, "training mode") or not ratio:
        return (x, torch.ones_like(x, dtype=torch.bool)) if node.outputs > 1 else x
    kept = torch.rand_like(x) >= ratio
    y = torch.where(kept, x * (1 / (1 - ratio) if ratio < 1 else 0.0), torch.zeros_like(x))
    return (y, kept) if node.outputs > 1 else y


def _bit_cast(node: Node) -> Tensor:
    x, dtype = node.tensor(0), node.attr_dtype("to")
    if x.dtype.itemsize != dtype.itemsize:
        raise NodeError("its types are of different sizes", unsupported=False)
    return x.to(dtype) if x.dtype == torch.bool else x.view(dtype)  # true is stored as 1


def _compare(
    function: Callable[[Tensor, Tensor], Tensor], on_sizes: Callable[[Number, Number], Number], asked: Callable[[Number, Number], bool]
) -> Rule:
    """on_sizes: 1 where it holds, else 0. asked: as Python compares, so that messages say what was asked."""
    compared = _binary(function, on_sizes, torch.bool)

    def rule(node: Node) -> Result:
        result = compared(node)
        if not isinstance(result, Sizes) or len(result.numbers) != 1:
            return result
        (left,), (right,) = node.integers(0, "operands"), node.integers(1, "operands")
        return replace(result, decided=lambda: bool(asked(left, right)))

    return rule


def _above(a: Number, b: Number) -> Number:
    """1 where a > b, else 0: of sizes a number again, as what follows may compute with it, and a branch depend on it."""
    if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt):
        return any_of(larger(a, b) - b)
    return int(a > b)


def _same(a: Number, b: Number) -> Number:
    return 1 - any_of(larger(a, b) - smaller(a, b))


UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


LOWEST = -(2**63)  # the bit that tells u64 from i64


def _wide(op: str, rule: Rule, wraps: bool) -> Rule:
    """For types without arithmetic in PyTorch: u16 and u32 are computed in i64. wraps: so is u64, whose bits come out the same."""

    def widened(node: Node) -> Result:
        narrow = next((dtype for each in node.inputs if (dtype := dtype_of(each)) in UNSIGNED), None)
        if narrow is None:
            return rule(node)
        inputs = [node.as_tensor(each).to(torch.int64) if dtype_of(each) == narrow else each for each in node.inputs]
        if narrow == torch.uint64 and not wraps:
            return _on_u64(op, rule, node, [each for each in inputs if isinstance(each, Tensor)])
        result = rule(replace(node, inputs=inputs))
        if not isinstance(result, Tensor) or result.dtype != torch.int64:
            return result
        return result.to(narrow) if narrow == torch.uint64 else (result & torch.iinfo(narrow).max).to(narrow)

    return widened


def _on_u64(op: str, rule: Rule, node: Node, bits: list[Tensor]) -> Result:
    """What orders elements sees them with the highest bit turned, which orders i64 as u64 is ordered."""
    if op in ("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Max", "Min", "Clip") and len(bits) == len(node.inputs):
        result = rule(replace(node, inputs=[each ^ LOWEST for each in bits]))
        return (result ^ LOWEST).to(torch.uint64) if isinstance(result, Tensor) and result.dtype == torch.int64 else result
    if op == "Abs":
        return node.tensor(0)
    if op == "Sign":
        return (bits[0] != 0).to(torch.uint64)
    if op == "BitShift" and node.attr_text("direction") == "LEFT":
        return torch.bitwise_left_shift(*bits).to(torch.uint64)
    if op == "BitShift":
        x, shift = bits
        return torch.where(shift == 0, x, torch.bitwise_right_shift(_half(x), shift - 1)).to(torch.uint64)
    if op == "Pow" and node.tensor(0).is_floating_point():
        return torch.pow(node.tensor(0), node.tensor(1).to(node.tensor(0).dtype))
    if op in ("Div", "Mod") and not node.attr_int("fmod", 0):
        quotient = _u64_quotient(*bits)
        return (quotient if op == "Div" else bits[0] - quotient * bits[1]).to(torch.uint64)
    raise NodeError("arithmetic on uint64")


def _half(x: Tensor) -> Tensor:
    """x // 2 of the bits of u64: not negative."""
    return torch.bitwise_right_shift(x, 1) & (2**63 - 1)


def _u64_quotient(a: Tensor, b: Tensor) -> Tensor:
    """Of the bits of u64: twice the quotient of a half, which is too small by 1 at most; divisors from 2^63 on go in at most once."""
    quotient = 2 * torch.div(_half(a), torch.where(b > 0, b, 1), rounding_mode="trunc")
    more = (((a - quotient * b) ^ LOWEST) >= (b ^ LOWEST)).to(torch.int64)
    return torch.where(b > 0, quotient + more, ((a ^ LOWEST) >= (b ^ LOWEST)).to(torch.int64))


RULES: dict[str, Rule] = {
    "Abs": unary(torch.abs), "Acos": unary(torch.acos), "Acosh": unary(torch.acosh), "Asin": unary(torch.asin),
    "Asinh": unary(torch.asinh), "Atan": unary(torch.atan), "Atanh": unary(torch.atanh), "Ceil": unary(torch.ceil),
    "Cos": unary(torch.cos), "Cosh": unary(torch.cosh), "Erf": unary(torch.erf), "Exp": unary(torch.exp), "Floor": unary(torch.floor),
    "HardSwish": unary(F.hardswish), "IsNaN": unary(torch.isnan), "Log": unary(torch.log), "Mish": unary(F.mish), "Neg": _negate,
    "Not": _not, "Reciprocal": unary(torch.reciprocal), "Relu": unary(torch.relu), "Round": unary(torch.round),
    "Sigmoid": unary(torch.sigmoid), "Sign": unary(torch.sign), "Sin": unary(torch.sin), "Sinh": unary(torch.sinh),
    "Softplus": unary(F.softplus), "Softsign": unary(F.softsign), "Sqrt": unary(torch.sqrt), "Tan": unary(torch.tan),
    "Tanh": unary(torch.tanh), "BitwiseNot": unary(torch.bitwise_not), "Identity": lambda node: node.value(0),
    "Add": _binary(torch.add, operator.add), "Sub": _binary(torch.sub, operator.sub), "Mul": _binary(torch.mul, operator.mul),
    "Div": _binary(_divide, _quotient), "Mod": _modulo, "Pow": _power, "BitShift": _shift,
    "BitwiseAnd": _binary(torch.bitwise_and), "BitwiseOr": _binary(torch.bitwise_or), "BitwiseXor": _binary(torch.bitwise_xor),
    "And": _binary(torch.logical_and, smaller), "Or": _binary(torch.logical_or, larger), "Xor": _binary(torch.logical_xor),
    "Equal": _compare(torch.eq, _same, operator.eq), "Greater": _compare(torch.gt, _above, operator.gt),
    "Less": _compare(torch.lt, lambda a, b: _above(b, a), operator.lt),
    "GreaterOrEqual": _compare(torch.ge, lambda a, b: 1 - _above(b, a), operator.ge),
    "LessOrEqual": _compare(torch.le, lambda a, b: 1 - _above(a, b), operator.le),
    "Max": _extreme(torch.maximum, larger), "Min": _extreme(torch.minimum, smaller),
    "Sum": _sum, "Mean": lambda node: _sum(node) / len(node.inputs),
    "Cast": _cast, "CastLike": _cast_like, "BitCast": _bit_cast, "Where": _where, "Clip": _clip,
    "IsInf": _is_infinite, "Selu": _selu, "Celu": _celu, "Elu": lambda node: F.elu(node.tensor(0), node.attr_float("alpha")),
    "HardSigmoid": _hard_sigmoid, "LeakyRelu": _leaky, "PRelu": _parametric, "ThresholdedRelu": _thresholded, "Shrink": _shrink,
    "Gelu": lambda node: F.gelu(node.tensor(0), approximate=node.attr_text("approximate")), "Swish": _swish, "Dropout": _dropout,
}  # fmt: skip
WRAPPING = ("Add", "Sub", "Mul", "Sum", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Equal", "Where")
ORDERED = ("Div", "Mod", "Pow", "BitShift", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Max", "Min", "Clip", "Sign", "Abs")
RULES |= {op: _wide(op, RULES[op], wraps=op in WRAPPING) for op in (*WRAPPING, *ORDERED)}
