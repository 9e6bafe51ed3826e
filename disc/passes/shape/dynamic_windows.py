"""Windows whose numbers are sizes: `disc.dynamic_window`, as JAX delivers running sums and pools over dynamic dims.

window = size, padding = (size - 1, 0)      ─►      disc.cumulative
a constant window, padding of sizes         ─►      disc.pad, then stablehlo.reduce_window
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_mlir import ir

from disc.ir.interp.values import constant_attribute
from disc.ir.ops import Attribute, build, element_of, string_attr, strings
from disc.ir.reducers import identity
from disc.passes.shape.host_values import ONE, ZERO, known_int
from disc.shapes import Dim, Truth

if TYPE_CHECKING:
    from disc.passes.shape.named_form import NamedForm
    from disc.passes.shape.shape_rules import Shapes

CUMULATIVE = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}
NARROW = ("bf16", "f16")


@dataclass(frozen=True)
class Window:
    """Along each dim: strides, in elements; dilations, elements from one that is seen to the next; padding: (low, high)."""

    sizes: tuple[Dim, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[tuple[Dim, Dim], ...]

    def running(self, shapes: Shapes, dims: tuple[Dim, ...]) -> tuple[int, bool] | None:
        """The dim along which each element sees all up to itself, or with True all from itself on; None for another window."""
        env = shapes.env
        wide = [dim for dim, size in enumerate(self.sizes) if env.equal(size, ONE) is not Truth.YES]
        if len(wide) != 1 or any(each != 1 for each in (*self.strides, *self.dilations)):
            return None
        if any(env.equal(each, ZERO) is not Truth.YES for dim, pair in enumerate(self.padding) if dim != wide[0] for each in pair):
            return None
        along, (low, high) = wide[0], self.padding[wide[0]]
        if env.equal(self.sizes[along], dims[along]) is not Truth.YES:
            return None
        for reverse, (full, none) in ((False, (low, high)), (True, (high, low))):
            if env.equal(full + 1, dims[along]) is Truth.YES and env.equal(none, ZERO) is Truth.YES:
                return along, reverse
        return None


def window_of(shapes: Shapes, op: ir.Operation) -> Window | str:
    """Or why there is none."""
    rank = ir.RankedTensorType(op.operands[0].type).rank
    sizes, strides, dilations, holes, padding = (shapes.sizes(operand) for operand in list(op.operands)[1:])
    known = [[known_int(each) for each in numbers] for numbers in (strides, dilations, holes)]
    if any(None in numbers for numbers in known):
        return "the strides and dilations of a window must be constant"
    steps, base, inner = ([each for each in numbers if each is not None] for numbers in known)
    if any(each != 1 for each in base):
        return "its source is dilated, and its window dynamic"
    pairs = tuple((padding[2 * dim], padding[2 * dim + 1]) for dim in range(rank))
    return Window(sizes, tuple(steps), tuple(inner), pairs)


def rewrite_window(form: NamedForm, op: ir.Operation) -> None:
    window = window_of(form.shapes, op)
    assert isinstance(window, Window)
    dims = form.source_dims(op.operands[0])
    running = window.running(form.shapes, dims)
    if running is not None:
        form.substitute(op, _cumulative(form, op, *running))
    else:
        form.substitute(op, _reduced(form, op, window, dims))


def _cumulative(form: NamedForm, op: ir.Operation, along: int, reverse: bool) -> ir.Value:
    source, dims = op.operands[0], form.source_dims(op.operands[0])
    element = element_of(source)
    wide = ir.F32Type.get() if str(element) in NARROW else element

    def turned(value: ir.Value) -> ir.Value:
        return build("stablehlo.reverse", [value], [value.type], {"dimensions": [along]}, before=op).results[0] if reverse else value

    def converted(value: ir.Value, to: ir.Type) -> ir.Value:
        return value if element_of(value) == to else build("stablehlo.convert", [value], [form.typed(dims, to)], before=op).results[0]

    attributes: dict[str, Attribute] = {"dim": along, "kind": CUMULATIVE[string_attr(op, "kind")]}
    made = build("disc.cumulative", [turned(converted(source, wide))], [form.typed(dims, wide)], attributes, before=op).results[0]
    return converted(turned(made), element)


def _reduced(form: NamedForm, op: ir.Operation, window: Window, dims: tuple[Dim, ...]) -> ir.Value:
    source, kind = op.operands[0], string_attr(op, "kind")
    scalar = ir.RankedTensorType.get([], element_of(source))
    start = constant_attribute(identity(kind, str(element_of(source))), scalar)
    initial = build("stablehlo.constant", [], [scalar], {"value": start}, before=op).results[0]
    if any(each != ZERO for pair in window.padding for each in pair):
        padded = [form.env.simplify(dim + low + high) for dim, (low, high) in zip(dims, window.padding, strict=True)]
        lows = strings(*(form.env.simplify(low) for low, _ in window.padding))
        amounts: dict[str, Attribute] = {"low": lows, "interior": ir.DenseI64ArrayAttr.get([0] * len(dims))}
        source = build("disc.pad", [source, initial], [form.typed(padded, element_of(source))], amounts, before=op).results[0]
    attributes: dict[str, Attribute] = {
        "window_dimensions": [size.const for size in window.sizes],
        "window_strides": list(window.strides),
        "window_dilations": list(window.dilations),
    }
    made = build("stablehlo.reduce_window", [source, initial], [form.type_of(op.results[0])], attributes, 1, before=op)
    block = ir.Block.create_at_start(made.regions[0], [scalar] * 2, [op.location] * 2)
    with ir.InsertionPoint(block):
        both = build(f"stablehlo.{kind}", list(block.arguments), [scalar], location=op.location).results
        build("stablehlo.return", both, location=op.location)
    return made.results[0]
