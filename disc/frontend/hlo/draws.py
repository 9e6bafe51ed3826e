"""`stablehlo.rng`, whose numbers the specification leaves open: words of Philox, as those of PyTorch's draws (`rules/random.py`).

    %r = stablehlo.rng %low, %high, %shape, UNIFORM   ─►   "disc.philox"(%position, %seed), scaled

They depend on the seed of the call, the number of the draw in the program and the position of the element. The function gets the seed as
its last argument.
"""

from __future__ import annotations

import math

from torch_mlir import ir

from disc.frontend.hlo.emit import Emitter, FormError, Values, is_float, kind_of, like, signless, unsigned, width_of
from disc.ir.ops import Attribute, element_of, int_attr
from disc.ir.state import SEED, STATE, State

IN_A_LOOP = "random numbers are not drawn in a loop: draw those of all turns before it, or give it a state (rng_bit_generator)"
WORD, LONG = 32, 64
PRECISION = {"bf16": 8, "f16": 11, "f32": 24, "f64": 53}  # bits of the significand
AROUND = ("func.func", "stablehlo.if", "stablehlo.case")  # what a draw may stand in: each runs it once in a call


def rng(op: ir.Operation) -> Values:
    """Raises: FormError in a loop, whose turns would all draw the same numbers, and for a type that has no such distribution."""
    element = kind_of(op.results[0]).element_type
    first, second = op.operands[:2]
    if isinstance(element_of(op.operands[2]), ir.IndexType):
        raise FormError("a shape of type index: make it one of integers")
    draw = _Draw(op)
    if "NORMAL" in str(op.attributes["rng_distribution"]):
        if not is_float(element):
            raise FormError(f"a normal distribution of {element}")
        return [draw.scaled(draw.normal(), second, first)]
    e = draw.e
    if is_float(element):
        return [draw.scaled(draw.uniform(), e.binary("subtract", second, first), first)]
    return [draw.integers(first, second)]


class _Draw:
    """Words for every element of the result of `op`."""

    def __init__(self, op: ir.Operation) -> None:
        self.e, self.op = Emitter(op), op
        self.element = kind_of(op.results[0]).element_type
        self.seed = _seed(op)
        self.stream = len({int_attr(use.owner.operation, "stream") for use in self.seed.uses})  # all of them draws
        self.position = self._positions()

    def uniform(self) -> ir.Value:
        """[0, 1), in steps of the type's precision just below 1; f32 for types of 16 bits."""
        return self._fraction(0, PRECISION[str(self.element)], 0.0)

    def normal(self) -> ir.Value:
        """Mean 0, deviation 1. G. E. P. Box, M. E. Muller, "A Note on the Generation of Random Normal Deviates", 1958."""
        e, bits = self.e, PRECISION[str(self._wide())] - 1
        radius = e.unary("sqrt", e.number("multiply", e.unary("log", self._fraction(0, bits, 0.5)), -2.0))
        turn = e.number("multiply", self._fraction(2, bits, 0.5), 2 * math.pi)
        return e.binary("multiply", radius, e.unary("cosine", turn))

    def scaled(self, x: ir.Value, factor: ir.Value, offset: ir.Value) -> ir.Value:
        """x * factor + offset, in the type of the result."""
        e, wide = self.e, element_of(x)
        product = e.binary("multiply", x, e.convert(factor, wide))
        return e.convert(e.binary("add", product, e.convert(offset, wide)), self.element)

    def integers(self, low: ir.Value, high: ir.Value) -> ir.Value:
        """[low, high). Words of 64 bits: what a remainder prefers is too little to be seen."""
        e = self.e
        first, last = (e.convert(each, signless(LONG)) for each in (low, high))
        count = e.bitcast(e.binary("subtract", last, first), unsigned(LONG))
        count = e.number("maximum", count, 1)  # of an empty range the specification says nothing; a division by 0 would end the process
        drawn = e.bitcast(e.binary("remainder", self._long(0), count), signless(LONG))
        return e.convert(e.binary("add", drawn, first), self.element)

    def _wide(self) -> ir.Type:
        return self.element if width_of(self.element) == LONG else ir.F32Type.get()

    def _fraction(self, number: int, bits: int, added: float) -> ir.Value:
        """(k + added) / 2^bits, of the highest bits of a word. number: of the first word that it is made of."""
        e, wide = self.e, self._wide()
        width = width_of(wide)
        word = self._long(number) if width == LONG else self._word(number)
        high = e.convert(e.convert(e.number("shift_right_logical", word, width - bits), signless(width)), wide)
        return e.number("multiply", e.number("add", high, added) if added else high, 2.0**-bits)

    def _word(self, number: int) -> ir.Value:
        attributes: dict[str, Attribute] = {"stream": self.stream, "word": number}
        return self.e.one("disc.philox", [self.position, self.seed], like(self.position, unsigned(WORD)), attributes)

    def _long(self, number: int) -> ir.Value:
        low, high = (self.e.convert(self._word(each), unsigned(LONG)) for each in (number, number + 1))
        return self.e.binary("or", low, self.e.number("shift_left", high, WORD))

    def _positions(self) -> ir.Value:
        """Of each element, its number, row by row."""
        e, kind = self.e, kind_of(self.op.results[0])
        full = ir.RankedTensorType.get(kind.shape, signless(LONG))
        if not kind.shape:
            return e.constant(0, signless(LONG))
        total = None
        for dim in range(len(kind.shape)):
            along = self._along(full, dim)
            total = along if total is None else e.binary("add", e.binary("multiply", total, self._size(dim)), along)
        assert total is not None
        return total

    def _along(self, full: ir.RankedTensorType, dim: int) -> ir.Value:
        if full.has_static_shape:
            return self.e.one("stablehlo.iota", [], full, {"iota_dimension": dim})
        return self.e.one("stablehlo.dynamic_iota", [self.op.operands[2]], full, {"iota_dimension": dim})

    def _size(self, dim: int) -> ir.Value:
        """Of a dim of the result, as a number of the program."""
        e, shape = self.e, self.op.operands[2]
        static = kind_of(self.op.results[0]).shape[dim]
        if static >= 0:
            return e.constant(static, signless(LONG))
        box: dict[str, Attribute] = {"start_indices": [dim], "limit_indices": [dim + 1], "strides": [1]}
        one = e.one("stablehlo.slice", [shape], ir.RankedTensorType.get([1], element_of(shape)), box)
        return e.convert(e.one("stablehlo.reshape", [one], ir.RankedTensorType.get([], element_of(shape))), signless(LONG))


def _seed(op: ir.Operation) -> ir.Value:
    """The last argument of the function, which gets one where it has none yet."""
    around = op.parent.operation
    while around.name != "func.func":
        if around.name not in AROUND:
            raise FormError(IN_A_LOOP)
        around = around.parent.operation
    block, module = around.regions[0].blocks[0], around.parent.operation
    if STATE in module.attributes:
        return list(block.arguments)[-1]
    return _with_seed(module, around, block)


def _with_seed(module: ir.Operation, function: ir.Operation, block: ir.Block) -> ir.Value:
    own = list(ir.ArrayAttr(function.attributes["arg_attrs"])) if "arg_attrs" in function.attributes else []
    described = own or [ir.DictAttr.get({})] * len(block.arguments)
    seed = block.add_argument(ir.RankedTensorType.get([], signless(LONG)), ir.Location.unknown())
    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([*kind.inputs, seed.type], kind.results))
    named = ir.DictAttr.get({"disc.name": ir.StringAttr.get(SEED)})
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([*described, named])
    module.attributes[STATE] = State(seeded=True).attribute()
    return seed
