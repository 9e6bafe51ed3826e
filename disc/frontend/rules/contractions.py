"""Matrix products with factors, and convolutions that torch-mlir does not take."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch_mlir import ir

from disc.frontend.call import Call
from disc.frontend.locations import line_text
from disc.frontend.op_builder import OpBuilder, RuleError, Tensor, integers
from disc.frontend.rules.elementwise import as_tensor, operand
from disc.frontend.rules.overrides import Fault, Override, overrides
from disc.frontend.rules.sorting import sized_library
from disc.frontend.rules.views import pad_edges
from disc.frontend.symbols import Size, same_shape, to_size

aten = torch.ops.aten


def dot(e: OpBuilder, a: Tensor, b: Tensor, contract: tuple[int, int], batch: int = 0) -> Tensor:
    """`dot_general` over one dim of each; the first `batch` dims of both are batch dims."""
    shape = tuple(a.shape[:batch]) + tuple(size for i, size in enumerate(a.shape) if i >= batch and i != contract[0])
    shape += tuple(size for i, size in enumerate(b.shape) if i >= batch and i != contract[1])
    dims = ", ".join(str(i) for i in range(batch))
    batching = f"lhs_batching_dimensions = [{dims}], rhs_batching_dimensions = [{dims}], " if batch else ""
    contracting = f"lhs_contracting_dimensions = [{contract[0]}], rhs_contracting_dimensions = [{contract[1]}]"
    attribute = ir.Attribute.parse(f"#stablehlo.dot<{batching}{contracting}>")
    return e.op("stablehlo.dot_general", [a.value, b.value], shape, a.dtype, dot_dimension_numbers=attribute)


def one_type(*operands: Tensor | None) -> None:
    """Raises RuleError for operands of several types, which eager refuses and PyTorch's shape rules do not."""
    types = sorted({str(x.dtype) for x in operands if x is not None})
    if len(types) > 1:
        raise RuleError(f"operands of different types ({', '.join(types)}); PyTorch refuses them too")


def add_product(e: OpBuilder, call: Call, a: Tensor, b: Tensor) -> Tensor:
    """beta * self + alpha * a b, of matrices or of batches of them."""
    one_type(call.tensor("self"), a, b)
    product = dot(e, a, b, (a.rank - 1, b.rank - 2), batch=a.rank - 2)
    addend = e.convert(call.tensor("self"), call.dtype)
    alpha, beta = operand(call, "alpha"), operand(call, "beta")
    if alpha != 1:
        product = e.binary("multiply", product, as_tensor(e, alpha, product.dtype))
    if beta == 0:
        return product
    if beta != 1:
        addend = e.binary("multiply", addend, as_tensor(e, beta, addend.dtype))
    return e.binary("add", product, addend)


def addmm(e: OpBuilder, call: Call) -> Tensor:
    return add_product(e, call, call.tensor("mat1"), call.tensor("mat2"))


def baddbmm(e: OpBuilder, call: Call) -> Tensor:
    return add_product(e, call, call.tensor("batch1"), call.tensor("batch2"))


def repeated(values: Sequence[int], count: int) -> list[int]:
    return list(values) * count if len(values) == 1 else list(values)


def convolve(
    e: OpBuilder, x: Tensor, weight: Tensor, shape: tuple[Size, ...], padding: Sequence[tuple[int, int]], *,
    stride: Sequence[int], lhs_dilation: Sequence[int], rhs_dilation: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """weight: [out, in / groups, *k]."""
    space = ", ".join(str(i) for i in range(x.rank - 2))
    i64 = ir.IntegerType.get_signless(64)
    edges = ir.DenseElementsAttr.get(np.array(padding, dtype=np.int64).reshape(len(padding), 2))
    return e.op(
        "stablehlo.convolution", [x.value, weight.value], shape, x.dtype,
        window_strides=integers(stride), padding=edges,
        lhs_dilation=integers(lhs_dilation), rhs_dilation=integers(rhs_dilation),
        dimension_numbers=ir.Attribute.parse(f"#stablehlo.conv<[b, f, {space}]x[o, i, {space}]->[b, f, {space}]>"),
        feature_group_count=ir.IntegerAttr.get(i64, groups), batch_group_count=ir.IntegerAttr.get(i64, 1),
    )  # fmt: skip


def transposed_weight(e: OpBuilder, weight: Tensor, groups: int, stride: Sequence[int]) -> Tensor:
    """[in, out / groups, *(a s)] of a transposed convolution → [out * s..., in / groups, *a], flipped in space: each remainder by the
    strides s is a channel of its own."""
    count = weight.rank - 2
    into, out = weight.shape[0], weight.shape[1]
    if not isinstance(into, int) or not isinstance(out, int):
        raise RuleError("a convolution whose weight has dynamic channels")
    taps = [size // step for size, step in zip(weight.shape[2:], stride, strict=True)]
    split = e.reshape(weight, (groups, into // groups, out, *(size for pair in zip(taps, stride, strict=True) for size in pair)))
    swapped = e.transpose(split, [0, 2, *(4 + 2 * i for i in range(count)), 1, *(3 + 2 * i for i in range(count))])
    flat = e.reshape(swapped, (groups * out * math.prod(stride), into // groups, *taps))
    return e.op("stablehlo.reverse", [flat.value], flat.shape, flat.dtype, dimensions=integers(range(2, weight.rank)))


def output_padding(e: OpBuilder, call: Call, stride: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """How much longer the result of a transposed convolution is. Where sizes decide that, the most that is legal: the rest is cut off."""
    given = call.sizes("output_padding")
    found: list[int] = []
    for size, s, d in zip(given * len(stride) if len(given) == 1 else given, stride, dilation, strict=True):
        if not isinstance(size, int):
            why = f"needed by the output padding of {call.node.target} at {line_text(call.node)}"
            e.require(">=", size, 0, why)
            e.require("<", size, max(s, d), why)
        found.append(size if isinstance(size, int) else max(s, d) - 1)
    return found


def by_phases(
    e: OpBuilder, x: Tensor, weight: Tensor, shape: tuple[Size, ...], *,
    stride: Sequence[int], padding: Sequence[int], extra: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """A transposed convolution by strides s, without zeros that are multiplied: element u = s * q + r of the result is made of elements
    q - a of x and s * a + r of the kernel, so that each r is a channel of one convolution without strides, as in sub-pixel convolution.
    extra: how much longer the result is."""
    count, channels = weight.rank - 2, weight.shape[1] * groups
    kernel = [int(size) for size in weight.shape[2:]]
    taps = [-(-size // step) for size, step in zip(kernel, stride, strict=True)]
    weight = _extended(e, weight, [tap * step - size for size, tap, step in zip(kernel, taps, stride, strict=True)])
    flat = transposed_weight(e, weight, groups, stride)
    ones, edges = [1] * count, [(tap - 1, tap - 1) for tap in taps]
    wide = [to_size(size + tap - 1) for size, tap in zip(x.shape[2:], taps, strict=True)]
    made = convolve(e, x, flat, (x.shape[0], flat.shape[0], *wide), edges, stride=ones, lhs_dilation=ones, rhs_dilation=ones, groups=groups)
    apart = e.reshape(made, (x.shape[0], channels, *stride, *wide))
    apart = e.transpose(apart, [0, 1, *(place for i in range(count) for place in (2 + count + i, 2 + i))])
    whole = e.reshape(apart, (x.shape[0], channels, *(to_size(size * step) for size, step in zip(wide, stride, strict=True))))
    behind = [size - pad + more - tap * step for size, pad, more, tap, step in zip(kernel, padding, extra, taps, stride, strict=True)]
    whole = _extended(e, whole, [max(each, 0) for each in behind])  # what no element reaches
    return e.slice(whole, [0, 0, *padding], shape, [1] * whole.rank)


def _extended(e: OpBuilder, x: Tensor, after: Sequence[int]) -> Tensor:
    """With that many zeros at the end of each dim behind the first two."""
    if not any(after):
        return x
    shape = (*x.shape[:2], *(to_size(size + more) for size, more in zip(x.shape[2:], after, strict=True)))
    return pad_edges(e, x, e.scalar(0, x.dtype), [0] * x.rank, [0, 0, *after], shape)


def convolution(e: OpBuilder, call: Call) -> Tensor:
    """A transposed one, or one by a weight of dynamic sizes."""
    x, weight, bias = call.tensor("input"), call.tensor("weight"), call.optional_tensor("bias")
    one_type(x, weight, bias)
    count = weight.rank - 2
    stride, padding = repeated(call.integers("stride"), count), repeated(call.integers("padding"), count)
    dilation, groups, ones = repeated(call.integers("dilation"), count), call.integer("groups"), [1] * count
    shape = call.shape
    if call.flag("transposed"):
        extra = output_padding(e, call, stride, dilation)
        kernel = [size for size in weight.shape[2:] if isinstance(size, int)]
        if len(kernel) != count:
            raise RuleError("a transposed convolution whose weight has a dynamic kernel size")
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        edges = [(r - p, r - p + o) for r, p, o in zip(reach, padding, extra, strict=True)]
        sizes = zip(x.shape[2:], stride, reach, padding, extra, strict=True)
        shape = (*shape[:2], *(to_size((size - 1) * s + 1 + r - 2 * p + o) for size, s, r, p, o in sizes))
        if any(step > 1 for step in stride) and all(step == 1 for step in dilation):
            result = by_phases(e, x, weight, shape, stride=stride, padding=padding, extra=extra, groups=groups)
            return biased(e, call, result, bias)
        weight, spread, stride = transposed_weight(e, weight, groups, ones), stride, ones
    else:
        edges, spread = [(pad, pad) for pad in padding], ones
    result = convolve(e, x, weight, shape, edges, stride=stride, lhs_dilation=spread, rhs_dilation=dilation, groups=groups)
    return biased(e, call, result, bias)


def biased(e: OpBuilder, call: Call, result: Tensor, bias: Tensor | None) -> Tensor:
    """The part that the call asks for, with its bias."""
    if not same_shape(result.shape, call.shape):
        result = e.slice(result, [0] * result.rank, call.shape, [1] * result.rank)
    return result if bias is None else e.binary("add", result, e.reshape(bias, (bias.shape[0], *[1] * (result.rank - 2))))


def kernel_gradient(e: OpBuilder, call: Call) -> Tensor:
    top, left = call.integers("padding")
    operands = [call.tensor("source"), call.tensor("gradient")]
    return sized_library(e, "disc.dynamic_kernel_gradient", operands, [(call.shape, call.dtype)], top=top, left=left)[0]


OVERRIDES: dict[object, Override] = {
    **overrides(Fault.WRONG, "what beta = 0 leaves out is multiplied", {aten.addmm.default: addmm, aten.baddbmm.default: baddbmm}),
    **overrides(Fault.REFUSED, "a weight of dynamic size", {aten.convolution.default: convolution}),
}  # fmt: skip
OF_PACKAGES: dict[str, Override] = {
    "disc.kernel_gradient.default": Override(kernel_gradient, Fault.REFUSED, "an op of this compiler (frontend/tiled_gradients.py)"),
}
