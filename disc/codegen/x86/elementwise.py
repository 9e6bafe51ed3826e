"""Element-wise StableHLO ops on vectors of lanes, one rule per op, with IEEE semantics and no trap on any integer input."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from disc.codegen.mlir.builder import Builder, register_element
from disc.codegen.x86.math import functions as math
from disc.codegen.x86.math.philox import emit_philox
from disc.ir.graph import Node
from disc.ir.op_table import rules_by_op

UNSIGNED = ("ui8", "ui16", "ui32", "ui64")


def is_float(element: str) -> bool:
    """True for f64, f32, f16 and bf16."""
    return element in ("f64", "f32", "f16", "bf16")


def emit_elementwise(b: Builder, node: Node, operands: Sequence[str]) -> str:
    """The vector of `node`'s values given its operands' vectors."""
    rule = RULES.get(node.op)
    if rule is not None:
        return rule(b, node, operands)
    element = register_element(node.operands[0].element)
    if node.op == "stablehlo.power" and not is_float(node.element):
        return _integer_power(b, node, operands)
    if len(operands) == 1:
        return math.emit_unary(b, node.name, operands[0], element)
    return math.emit_binary(b, node.name, operands[0], operands[1], element)


def _typed(float_op: str, signed_op: str, unsigned_op: str, bool_op: str) -> Callable[[Builder, Node, Sequence[str]], str]:
    def rule(b: Builder, node: Node, operands: Sequence[str]) -> str:
        element = node.operands[0].element
        name = float_op if is_float(element) else bool_op if element == "i1" else unsigned_op if element in UNSIGNED else signed_op
        return b.op(f"{name} {', '.join(operands)} : {b.vec(register_element(element))}")

    return rule


def _divide(b: Builder, node: Node, operands: Sequence[str]) -> str:
    element = node.element
    if is_float(element):
        return b.op(f"arith.divf {operands[0]}, {operands[1]} : {b.vec(register_element(element))}")
    return _integer_division(b, node, operands, "div")


def _remainder(b: Builder, node: Node, operands: Sequence[str]) -> str:
    if is_float(node.element):
        return math.emit_binary(b, "remainder", operands[0], operands[1], register_element(node.element))
    return _integer_division(b, node, operands, "rem")


def _integer_division(b: Builder, node: Node, operands: Sequence[str], kind: str) -> str:
    """x / 0 is -1 and x % 0 is x, INT_MIN / -1 is INT_MIN: the hardware would trap on both."""
    element = register_element(node.element)
    vector, unsigned = b.vec(element), node.element in UNSIGNED
    x, y = operands
    zero, one, minus = b.const(0, element), b.const(1, element), b.const(-1, element)
    by_zero = b.op(f"arith.cmpi eq, {y}, {zero} : {vector}")
    safe = b.op(f"arith.select {by_zero}, {one}, {y} : {b.vec('i1')}, {vector}")
    if not unsigned:
        lowest = b.const(-(1 << (int(element[1:]) - 1)), element)
        is_lowest, is_minus = b.op(f"arith.cmpi eq, {x}, {lowest} : {vector}"), b.op(f"arith.cmpi eq, {y}, {minus} : {vector}")
        overflow = b.op(f"arith.andi {is_lowest}, {is_minus} : {b.vec('i1')}")
        safe = b.op(f"arith.select {overflow}, {one}, {safe} : {b.vec('i1')}, {vector}")
    result = b.op(f"arith.{kind}{'u' if unsigned else 's'}i {x}, {safe} : {vector}")
    if kind == "div":
        return b.op(f"arith.select {by_zero}, {minus}, {result} : {b.vec('i1')}, {vector}")
    return b.op(f"arith.select {by_zero}, {x}, {result} : {b.vec('i1')}, {vector}")


def _negate(b: Builder, node: Node, operands: Sequence[str]) -> str:
    element = register_element(node.element)
    if is_float(node.element):
        return b.op(f"arith.negf {operands[0]} : {b.vec(element)}")
    return b.op(f"arith.subi {b.const(0, element)}, {operands[0]} : {b.vec(element)}")


def _abs(b: Builder, node: Node, operands: Sequence[str]) -> str:
    element = register_element(node.element)
    if is_float(node.element):
        return b.op(f"math.absf {operands[0]} : {b.vec(element)}")
    negative = b.op(f"arith.subi {b.const(0, element)}, {operands[0]} : {b.vec(element)}")
    return b.op(f"arith.maxsi {operands[0]}, {negative} : {b.vec(element)}")


def _sign(b: Builder, node: Node, operands: Sequence[str]) -> str:
    element = register_element(node.element)
    vector, mask, x = b.vec(element), b.vec("i1"), operands[0]
    zero, one, minus = b.const(0, element), b.const(1, element), b.const(-1, element)
    compare = "arith.cmpf" if is_float(node.element) else "arith.cmpi"
    greater, less = ("ogt", "olt") if is_float(node.element) else ("sgt", "slt")
    positive = b.op(f"arith.select {b.op(f'{compare} {greater}, {x}, {zero} : {vector}')}, {one}, {x} : {mask}, {vector}")
    return b.op(f"arith.select {b.op(f'{compare} {less}, {x}, {zero} : {vector}')}, {minus}, {positive} : {mask}, {vector}")


def _not(b: Builder, node: Node, operands: Sequence[str]) -> str:
    element = register_element(node.element)
    ones = b.const(1 if element == "i1" else -1, element)
    return b.op(f"arith.xori {operands[0]}, {ones} : {b.vec(element)}")


_ORDERED = {"EQ": "oeq", "NE": "une", "LT": "olt", "LE": "ole", "GT": "ogt", "GE": "oge"}
_SIGNED = {"EQ": "eq", "NE": "ne", "LT": "slt", "LE": "sle", "GT": "sgt", "GE": "sge"}
_UNSIGNED = {"EQ": "eq", "NE": "ne", "LT": "ult", "LE": "ule", "GT": "ugt", "GE": "uge"}


def _compare(b: Builder, node: Node, operands: Sequence[str]) -> str:
    source = node.operands[0].element
    element = register_element(source)
    direction = str(node.attrs["comparison_direction"])
    if not is_float(source):
        table = _UNSIGNED if source in UNSIGNED or source == "i1" else _SIGNED
        return b.op(f"arith.cmpi {table[direction]}, {operands[0]}, {operands[1]} : {b.vec(element)}")
    if node.attrs.get("compare_type") == "TOTALORDER":
        left, right = (_total_order_key(b, operand, element) for operand in operands)
        integer = b.vec("i32" if element == "f32" else "i64")
        return b.op(f"arith.cmpi {_SIGNED[direction]}, {left}, {right} : {integer}")
    return b.op(f"arith.cmpf {_ORDERED[direction]}, {operands[0]}, {operands[1]} : {b.vec(element)}")


def _total_order_key(b: Builder, value: str, element: str) -> str:
    """Floats as integers that order like IEEE totalOrder: negative patterns are reflected."""
    integer = "i32" if element == "f32" else "i64"
    vector, bits = b.vec(integer), 31 if integer == "i32" else 63
    raw = b.op(f"arith.bitcast {value} : {b.vec(element)} to {vector}")
    sign = b.op(f"arith.shrsi {raw}, {b.const(bits, integer)} : {vector}")
    reflect = b.op(f"arith.shrui {sign}, {b.const(1, integer)} : {vector}")
    return b.op(f"arith.xori {raw}, {reflect} : {vector}")


def _select(b: Builder, node: Node, operands: Sequence[str]) -> str:
    vector = b.vec(register_element(node.element))
    return b.op(f"arith.select {operands[0]}, {operands[1]}, {operands[2]} : {b.vec('i1')}, {vector}")


def _clamp(b: Builder, node: Node, operands: Sequence[str]) -> str:
    low, x, high = operands
    names = ("arith.maximumf", "arith.minimumf") if is_float(node.element) else ("arith.maxsi", "arith.minsi")
    if node.element in UNSIGNED:
        names = ("arith.maxui", "arith.minui")
    vector = b.vec(register_element(node.element))
    return b.op(f"{names[1]} {b.op(f'{names[0]} {x}, {low} : {vector}')}, {high} : {vector}")


def _math(name: str) -> Callable[[Builder, Node, Sequence[str]], str]:
    def rule(b: Builder, node: Node, operands: Sequence[str]) -> str:
        return b.op(f"math.{name} {operands[0]} : {b.vec(register_element(node.element))}")

    return rule


def _round_away(b: Builder, node: Node, operands: Sequence[str]) -> str:
    """Halves away from zero: trunc(x) + copysign(|x - trunc(x)| >= 0.5, x), exact because the difference is."""
    element = register_element(node.element)
    vector, mask = b.vec(element), b.vec("i1")
    whole = b.op(f"math.trunc {operands[0]} : {vector}")
    rest = b.op(f"math.absf {b.op(f'arith.subf {operands[0]}, {whole} : {vector}')} : {vector}")
    half = b.op(f"arith.cmpf oge, {rest}, {b.const(0.5, element)} : {vector}")
    step = b.op(f"arith.select {half}, {b.const(1.0, element)}, {b.const(0.0, element)} : {mask}, {vector}")
    moved = b.op(f"arith.addf {whole}, {b.op(f'math.copysign {step}, {operands[0]} : {vector}')} : {vector}")
    return b.op(f"math.copysign {moved}, {operands[0]} : {vector}")


def _shift(name: str) -> Callable[[Builder, Node, Sequence[str]], str]:
    """Shifts by the width or more give what an infinite shift gives: 0, or the sign."""

    def rule(b: Builder, node: Node, operands: Sequence[str]) -> str:
        element = register_element(node.element)
        width, vector, mask = int(element[1:]), b.vec(element), b.vec("i1")
        limit = b.const(width - 1, element)
        inside = b.op(f"arith.cmpi ule, {operands[1]}, {limit} : {vector}")
        amount = b.op(f"arith.select {inside}, {operands[1]}, {limit} : {mask}, {vector}")
        shifted = b.op(f"arith.{name} {operands[0]}, {amount} : {vector}")
        if name == "shrsi":
            return shifted
        return b.op(f"arith.select {inside}, {shifted}, {b.const(0, element)} : {mask}, {vector}")

    return rule


def _is_finite(b: Builder, node: Node, operands: Sequence[str]) -> str:
    element = register_element(node.operands[0].element)
    vector = b.vec(element)
    magnitude = b.op(f"math.absf {operands[0]} : {vector}")
    return b.op(f"arith.cmpf olt, {magnitude}, {b.const(float('inf'), element)} : {vector}")


def _square(b: Builder, node: Node, operands: Sequence[str]) -> str:
    op = "arith.mulf" if is_float(node.element) else "arith.muli"
    return b.op(f"{op} {operands[0]}, {operands[0]} : {b.vec(register_element(node.element))}")


def _is_infinite(b: Builder, node: Node, operands: Sequence[str]) -> str:
    element = register_element(node.operands[0].element)
    magnitude = b.op(f"math.absf {operands[0]} : {b.vec(element)}")
    return b.op(f"arith.cmpf oeq, {magnitude}, {b.const(float('inf'), element)} : {b.vec(element)}")


def _is_signed_infinite(sign: float) -> Callable[[Builder, Node, Sequence[str]], str]:
    def rule(b: Builder, node: Node, operands: Sequence[str]) -> str:
        element = register_element(node.operands[0].element)
        return b.op(f"arith.cmpf oeq, {operands[0]}, {b.const(sign * float('inf'), element)} : {b.vec(element)}")

    return rule


def _bitcast(b: Builder, node: Node, operands: Sequence[str]) -> str:
    """Through the memory form, which differs from the register form for bf16 and f16."""
    source, target = storage_element(node.operands[0].element), storage_element(node.element)
    stored = to_storage(b, operands[0], node.operands[0].element)
    if source != target:
        stored = b.op(f"arith.bitcast {stored} : {b.vec(source)} to {b.vec(target)}")
    return to_register(b, stored, node.element)


def _integer_power(b: Builder, node: Node, operands: Sequence[str]) -> str:
    """Square and multiply, wrapping; a negative exponent gives the truncated reciprocal: 0 but for 1 and -1."""
    element = register_element(node.element)
    vector, mask = b.vec(element), b.vec("i1")
    x, y = operands
    zero, one = b.const(0, element), b.const(1, element)
    carried = [(each, vector) for each in (one, x, y)]
    with b.loop(b.index(0), b.index(int(element[1:])), b.index(1), carried) as loop:
        result, base, rest = loop.carried
        odd = b.op(f"arith.trunci {rest} : {vector} to {mask}")
        multiplied = b.op(f"arith.muli {result}, {base} : {vector}")
        result = b.op(f"arith.select {odd}, {multiplied}, {result} : {mask}, {vector}")
        loop.yields = [result, b.op(f"arith.muli {base}, {base} : {vector}"), b.op(f"arith.shrui {rest}, {one} : {vector}")]
    if node.element in UNSIGNED:
        return loop.results[0]
    # (-1)^y = (-1)^-y, and the loop has used y modulo 2^width, so 1 and -1 are right for a negative y too.
    is_one, is_minus = (b.op(f"arith.cmpi eq, {x}, {unit} : {vector}") for unit in (one, b.const(-1, element)))
    kept = b.op(f"arith.cmpi sge, {y}, {zero} : {vector}")
    for condition in (is_one, is_minus):
        kept = b.op(f"arith.ori {kept}, {condition} : {mask}")
    return b.op(f"arith.select {kept}, {loop.results[0]}, {zero} : {mask}, {vector}")


def _convert(b: Builder, node: Node, operands: Sequence[str]) -> str:
    return convert(b, operands[0], node.operands[0].element, node.element)


def convert(b: Builder, value: str, source: str, target: str) -> str:
    """Converts as eager does: float to integer saturates (NaN gives 0), to i1 is `!= 0`, to bf16/f16 rounds to nearest even."""
    if source == target:
        return value
    start, end = register_element(source), register_element(target)
    if target == "i1":
        zero = b.const(0, start)
        compare = "arith.cmpf une" if is_float(source) else "arith.cmpi ne"
        return b.op(f"{compare}, {value}, {zero} : {b.vec(start)}")
    if is_float(source) and is_float(target):
        return _convert_float(b, value, start, end, target)
    if is_float(target):
        unsigned = source in UNSIGNED or source == "i1"
        wide = b.op(f"arith.{'u' if unsigned else 's'}itofp {value} : {b.vec(start)} to {b.vec(end)}")
        return round_to_storage(b, wide, target)
    if is_float(source):
        return _float_to_integer(b, value, start, target)
    if int(start[1:]) == int(end[1:]):
        return value
    if int(start[1:]) > int(end[1:]):
        return b.op(f"arith.trunci {value} : {b.vec(start)} to {b.vec(end)}")
    extend = "extui" if source in UNSIGNED or source == "i1" else "extsi"
    return b.op(f"arith.{extend} {value} : {b.vec(start)} to {b.vec(end)}")


def _convert_float(b: Builder, value: str, start: str, end: str, target: str) -> str:
    if start == "f64" and end == "f32":
        value = b.op(f"arith.truncf {value} : {b.vec('f64')} to {b.vec('f32')}")
    if start == "f32" and end == "f64":
        value = b.op(f"arith.extf {value} : {b.vec('f32')} to {b.vec('f64')}")
    return round_to_storage(b, value, target)


def _float_to_integer(b: Builder, value: str, start: str, target: str) -> str:
    """Saturates, NaN gives 0, as LLVM's `.sat` conversions, which are done lane by lane."""
    if int(register_element(target)[1:]) < 32:
        return _float_to_short(b, value, start, target)
    return _float_to_word(b, value, start, target)


def _float_to_word(b: Builder, value: str, start: str, target: str) -> str:
    end, unsigned = register_element(target), target in UNSIGNED
    bits = int(end[1:])
    low, beyond = (0.0, 2.0**bits) if unsigned else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1))
    largest = -1 if unsigned else (1 << (bits - 1)) - 1
    vector, mask = b.vec(start), b.vec("i1")
    inside = b.op(f"arith.cmpf olt, {value}, {b.const(beyond, start)} : {vector}")
    floored = b.op(f"arith.maxnumf {value}, {b.const(low, start)} : {vector}")
    safe = b.op(f"arith.select {inside}, {floored}, {b.const(0.0, start)} : {mask}, {vector}")
    whole = b.op(f"arith.fpto{'u' if unsigned else 's'}i {safe} : {vector} to {b.vec(end)}")
    above = b.op(f"arith.cmpf oge, {value}, {b.const(beyond, start)} : {vector}")
    return b.op(f"arith.select {above}, {b.const(largest, end)}, {whole} : {mask}, {b.vec(end)}")


def _float_to_short(b: Builder, value: str, start: str, target: str) -> str:
    vector, bits, unsigned = b.vec(start), int(register_element(target)[1:]), target in UNSIGNED
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    if not unsigned:  # maxnumf below turns a NaN into the lower end
        ordered = b.op(f"arith.cmpf ord, {value}, {value} : {vector}")
        value = b.op(f"arith.select {ordered}, {value}, {b.const(0.0, start)} : {b.vec('i1')}, {vector}")
    for op, limit in (("maxnumf", low), ("minnumf", high)):
        value = b.op(f"arith.{op} {value}, {b.const(float(limit), start)} : {vector}")
    whole = b.op(f"arith.fptosi {value} : {vector} to {b.vec('i32')}")
    return b.op(f"arith.trunci {whole} : {b.vec('i32')} to {b.vec(register_element(target))}")


def round_to_storage(b: Builder, value: str, target: str) -> str:
    """Rounds f32 register values to what a bf16 or f16 holds (kept in f32); other targets are unchanged."""
    if target == "f16":
        half = b.op(f"arith.truncf {value} : {b.vec('f32')} to {b.vec('f16')}")
        return b.op(f"arith.extf {half} : {b.vec('f16')} to {b.vec('f32')}")
    if target == "bf16":
        bits = b.op(f"arith.shli {bfloat16_bits(b, value)}, {b.const(16, 'i32')} : {b.vec('i32')}")
        return b.op(f"arith.bitcast {bits} : {b.vec('i32')} to {b.vec('f32')}")
    return value


def bfloat16_bits(b: Builder, value: str) -> str:
    """The 16 bits of each f32 rounded to nearest even, in i32 lanes; a NaN stays a (quiet) NaN."""
    vector, mask = b.vec("i32"), b.vec("i1")
    bits = b.op(f"arith.bitcast {value} : {b.vec('f32')} to {vector}")
    sixteen = b.const(16, "i32")
    high = b.op(f"arith.shrui {bits}, {sixteen} : {vector}")
    odd = b.op(f"arith.andi {high}, {b.const(1, 'i32')} : {vector}")
    bias = b.op(f"arith.addi {odd}, {b.const(0x7FFF, 'i32')} : {vector}")
    rounded = b.op(f"arith.shrui {b.op(f'arith.addi {bits}, {bias} : {vector}')}, {sixteen} : {vector}")
    quiet = b.op(f"arith.ori {high}, {b.const(0x40, 'i32')} : {vector}")
    is_nan = b.op(f"arith.cmpf uno, {value}, {value} : {b.vec('f32')}")
    return b.op(f"arith.select {is_nan}, {quiet}, {rounded} : {mask}, {vector}")


def pack_bf16_pair(b: Builder, low: str, high: str) -> str:
    """i32 lanes with two bf16 each, from f32 registers that hold bf16 values exactly."""
    vector = b.vec("i32")
    lower, upper = (b.op(f"arith.bitcast {value} : {b.vec('f32')} to {vector}") for value in (low, high))
    shifted = b.op(f"arith.shrui {lower}, {b.const(16, 'i32')} : {vector}")
    kept = b.op(f"arith.andi {upper}, {b.const(-65536, 'i32')} : {vector}")
    return b.op(f"arith.ori {shifted}, {kept} : {vector}")


def pack_bytes(b: Builder, values: Sequence[str]) -> str:
    """i32 lanes with four bytes each, the first lowest, from four vectors of i8."""
    vector = b.vec("i32")
    result: str | None = None
    for number, value in enumerate(values):
        wide = b.op(f"arith.extui {value} : {b.vec('i8')} to {vector}")
        moved = b.op(f"arith.shli {wide}, {b.const(8 * number, 'i32')} : {vector}") if number else wide
        result = moved if result is None else b.op(f"arith.ori {result}, {moved} : {vector}")
    assert result is not None
    return result


# --- storage and register forms -------------------------------------------------------------------------------------------


def storage_element(element: str) -> str:
    """The LLVM element type in memory: i1 is a byte, bf16 its 16 bits."""
    if element == "i1":
        return "i8"
    if element == "bf16":
        return "i16"
    return element if element.startswith("f") else "i" + element.lstrip("ui")


def to_register(b: Builder, value: str, element: str) -> str:
    """Storage lanes → register lanes."""
    if element == "i1":
        return b.op(f"arith.cmpi ne, {value}, {b.const(0, 'i8')} : {b.vec('i8')}")
    if element == "f16":
        return b.op(f"arith.extf {value} : {b.vec('f16')} to {b.vec('f32')}")
    if element == "bf16":
        wide = b.op(f"arith.extui {value} : {b.vec('i16')} to {b.vec('i32')}")
        shifted = b.op(f"arith.shli {wide}, {b.const(16, 'i32')} : {b.vec('i32')}")
        return b.op(f"arith.bitcast {shifted} : {b.vec('i32')} to {b.vec('f32')}")
    return value


def to_storage(b: Builder, value: str, element: str) -> str:
    """Register lanes → storage lanes."""
    if element == "i1":
        return b.op(f"arith.extui {value} : {b.vec('i1')} to {b.vec('i8')}")
    if element == "f16":
        return b.op(f"arith.truncf {value} : {b.vec('f32')} to {b.vec('f16')}")
    if element == "bf16":
        return b.op(f"arith.trunci {bfloat16_bits(b, value)} : {b.vec('i32')} to {b.vec('i16')}")
    return value


def constant_splat(b: Builder, node: Node) -> str:
    """The splat vector of a constant with one distinct value."""
    array = node.attrs["value"]
    assert isinstance(array, np.ndarray)
    if array.size == 0:
        return b.const(0, register_element(node.element))
    scalar = array.reshape(-1)[0]
    if node.element == "bf16":
        scalar = (np.uint32(scalar) << np.uint32(16)).view(np.float32)
    element = register_element(node.element)
    if element.startswith("i") and element != "i1":
        bits = int(element[1:])
        signed = int(scalar) - (1 << bits) if int(scalar) >= 1 << (bits - 1) else int(scalar)
        return b.const(signed, element)
    return b.const(bool(scalar) if element == "i1" else float(scalar), element)


Rule = Callable[[Builder, Node, Sequence[str]], str]
# The others are functions of vector math.
RULES: dict[str, Rule] = rules_by_op(
    "x86 elementwise",
    {
        "stablehlo.add": _typed("arith.addf", "arith.addi", "arith.addi", "arith.ori"),
        "stablehlo.subtract": _typed("arith.subf", "arith.subi", "arith.subi", "arith.xori"),
        "stablehlo.multiply": _typed("arith.mulf", "arith.muli", "arith.muli", "arith.andi"),
        "stablehlo.maximum": _typed("arith.maximumf", "arith.maxsi", "arith.maxui", "arith.ori"),
        "stablehlo.minimum": _typed("arith.minimumf", "arith.minsi", "arith.minui", "arith.andi"),
        "stablehlo.divide": _divide,
        "stablehlo.remainder": _remainder,
        "stablehlo.negate": _negate,
        "stablehlo.abs": _abs,
        "stablehlo.sign": _sign,
        "stablehlo.and": _typed("", "arith.andi", "arith.andi", "arith.andi"),
        "stablehlo.or": _typed("", "arith.ori", "arith.ori", "arith.ori"),
        "stablehlo.xor": _typed("", "arith.xori", "arith.xori", "arith.xori"),
        "stablehlo.not": _not,
        "stablehlo.compare": _compare,
        "stablehlo.select": _select,
        "stablehlo.clamp": _clamp,
        "stablehlo.floor": _math("floor"),
        "stablehlo.ceil": _math("ceil"),
        "stablehlo.round_nearest_even": _math("roundeven"),
        "stablehlo.round_nearest_afz": _round_away,
        "stablehlo.shift_left": _shift("shli"),
        "stablehlo.shift_right_arithmetic": _shift("shrsi"),
        "stablehlo.shift_right_logical": _shift("shrui"),
        "stablehlo.is_finite": _is_finite,
        "stablehlo.popcnt": _math("ctpop"),
        "stablehlo.count_leading_zeros": _math("ctlz"),
        "stablehlo.convert": _convert,
        "stablehlo.bitcast_convert": _bitcast,
        "chlo.square": _square,
        "disc.philox": emit_philox,
        "chlo.is_inf": _is_infinite,
        "chlo.is_pos_inf": _is_signed_infinite(1.0),
        "chlo.is_neg_inf": _is_signed_infinite(-1.0),
    },
)
