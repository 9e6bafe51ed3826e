"""Windows of dynamic sizes over complex numbers: sums, and products, as running ones are."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir

from disc.frontend.hlo import complex_arithmetic as arithmetic
from disc.frontend.hlo.complex_arithmetic import Parts
from disc.frontend.hlo.emit import Emitter, FormError
from disc.frontend.hlo.slices import called_kind, spread
from disc.ir.ops import element_of
from disc.ir.reducers import is_identity


def dynamic_window(e: Emitter, op: ir.Operation, given: Sequence[ir.Value | Parts]) -> Sequence[Parts]:
    """A product is that of the magnitudes, and the sum of the angles, in f64, in which their errors add up to none of f32 (but
    to some of f64)."""
    x, start, *numbers = given
    sizes = [each for each in numbers if isinstance(each, ir.Value)]
    if not isinstance(x, Parts) or len(op.results) != 1:
        raise FormError("a dynamic window over several tensors")
    kind = called_kind(op)
    if kind not in ("add", "multiply"):
        raise FormError("a dynamic window with a body other than a sum or a product")
    if not isinstance(start, Parts) or not (is_identity(spread(start.re), kind) and is_identity(spread(start.im), "add")):
        raise FormError(f"a dynamic window that starts from another value than the identity of {kind}")
    shape = ir.RankedTensorType(op.results[0].type).shape

    def over(part: ir.Value, body: str) -> ir.Value:
        return e.one("disc.dynamic_window", [part, *sizes], ir.RankedTensorType.get(shape, element_of(part)), {"kind": body})

    if kind == "add":
        return [Parts(over(x.re, "add"), over(x.im, "add"))]
    if isinstance(element_of(x.re), ir.F64Type):
        raise FormError("a dynamic window of products of complex128")
    wide = Parts(*(e.convert(part, ir.F64Type.get()) for part in (x.re, x.im)))
    found = arithmetic.polar(e, over(arithmetic.magnitude(e, wide), "multiply"), over(arithmetic.angle(e, wide), "add"))
    return [Parts(*(e.convert(part, element_of(x.re)) for part in (found.re, found.im)))]
