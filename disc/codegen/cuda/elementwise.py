"""Element-wise ops as Triton expressions, with the results that they have on a CPU: IEEE arithmetic, NaN carried, integers that wrap."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from disc.codegen.cuda.text import Writer
from disc.codegen.cuda.types import FLOATS, bits_of, in_memory, in_register, literal, rounded
from disc.errors import TargetError
from disc.ir.graph import Node
from disc.ir.op_table import rules_by_op

Rule = Callable[[Writer, Node, Sequence[str]], str]
_COMPARE = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}


def emit_elementwise(w: Writer, node: Node, operands: Sequence[str], *, exact: bool = False) -> str:
    """The name of `node`'s value, given its operands'. exact: not rounded to its element."""
    rule = RULES.get(node.op)
    if rule is None:
        raise TargetError(f"no CUDA rule for {node.op} (line {node.line or 'unknown'})")
    value = rule(w, node, operands)
    return w.let(f"({value})" if exact else rounded(f"({value})", node.element))


def combined(kind: str, element: str, left: str, right: str) -> str:
    """What a reduction of one of `disc.ir.reducers.KINDS` makes of two values."""
    symbols = {"add": "+", "multiply": "*", "and": "&", "or": "|", "xor": "^"}
    if kind in ("maximum", "minimum"):
        if element == "i1":
            return f"{left} {'|' if kind == 'maximum' else '&'} {right}"
        return _extreme(kind, element, left, right)
    if element == "i1" and kind in ("add", "multiply"):
        return f"{left} {'|' if kind == 'add' else '&'} {right}"
    return f"{left} {symbols[kind]} {right}"


def _extreme(kind: str, element: str, left: str, right: str) -> str:
    """NaN wins, as in IEEE's maximum. Triton's leaves open which zero is the larger."""
    if element not in FLOATS:
        return f"tl.{kind}({left}, {right})"
    return f"tl.{kind}({left}, {right}, propagate_nan=tl.PropagateNan.ALL)"


def _kind(kind: str) -> Rule:
    return lambda w, node, operands: combined(kind, node.element, *operands)


def _subtract(w: Writer, node: Node, operands: Sequence[str]) -> str:
    x, y = operands
    return f"{x} ^ {y}" if node.element == "i1" else f"{x} - {y}"


def _divide(w: Writer, node: Node, operands: Sequence[str]) -> str:
    x, y = operands
    if node.element == "f64":
        return f"{x} / {y}"
    if node.element in FLOATS:
        return f"tl.div_rn({x}, {y})"
    quotient, by_zero, _ = _integer_division(w, node, x, y)
    ones = 2 ** bits_of(node.element) - 1 if node.element.startswith("u") else -1
    return f"tl.where({by_zero}, {literal(ones, node.element)}, {quotient})"


def _remainder(w: Writer, node: Node, operands: Sequence[str]) -> str:
    x, y = operands
    if node.element in FLOATS:
        return f"libdevice.fmod({x}, {y})"
    quotient, by_zero, safe = _integer_division(w, node, x, y)
    return f"tl.where({by_zero}, {x}, {x} - {quotient} * {safe})"


def _integer_division(w: Writer, node: Node, x: str, y: str) -> tuple[str, str, str]:
    """(quotient towards zero, whether y is 0, what was divided by). The least number by -1 is itself; neither traps."""
    one, by_zero = literal(1, node.element), w.let(f"{y} == 0")
    safe = w.let(f"tl.where({by_zero}, {one}, {y})")
    if node.element.startswith("u"):
        return w.let(f"{x} // {safe}"), by_zero, safe
    by_minus = w.let(f"{safe} == -1")
    divisor = w.let(f"tl.where({by_minus}, {one}, {safe})")
    return w.let(f"tl.where({by_minus}, 0 - {x}, {x} // {divisor})"), by_zero, safe


def _negate(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return f"-{operands[0]}" if node.element in FLOATS else f"0 - {operands[0]}"


def _sign(w: Writer, node: Node, operands: Sequence[str]) -> str:
    (x,) = operands
    one, minus = literal(1, node.element), literal(-1, node.element) if not node.element.startswith("u") else "0"
    below = x if node.element.startswith("u") else f"tl.where({x} < 0, {minus}, {x})"
    return f"tl.where({x} > 0, {one}, {below})"


def _not(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return f"{operands[0]} ^ {literal(1, 'i1')}" if node.element == "i1" else f"~{operands[0]}"


def _compare(w: Writer, node: Node, operands: Sequence[str]) -> str:
    x, y = operands
    element, sign = node.operands[0].element, _COMPARE[str(node.attrs["comparison_direction"])]
    if element in FLOATS and node.attrs.get("compare_type") == "TOTALORDER":
        x, y = (_total_order(w, each, element) for each in operands)
    elif element == "i1":
        x, y = (w.let(f"{each}.to(tl.int32)") for each in operands)
    return f"{x} {sign} {y}"


def _total_order(w: Writer, value: str, element: str) -> str:
    """Floats as integers that order like IEEE's totalOrder: negative patterns are reflected."""
    integer, most = ("tl.int64", 2**63 - 1) if element == "f64" else ("tl.int32", 2**31 - 1)
    raw = w.let(f"{value}.to({integer}, bitcast=True)")
    return w.let(f"tl.where({raw} < 0, {raw} ^ tl.full([], {most}, {integer}), {raw})")


def _select(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return f"tl.where({', '.join(operands)})"


def _clamp(w: Writer, node: Node, operands: Sequence[str]) -> str:
    low, x, high = operands
    raised = w.let(_extreme("maximum", node.element, x, low))
    return _extreme("minimum", node.element, raised, high)


def _call(function: str) -> Rule:
    return lambda w, node, operands: f"{function}({', '.join(operands)})"


def _device(function: str) -> Rule:
    """A function of libdevice, which has one for f32 and one for f64."""
    return _call(f"libdevice.{function}")


def _square_root(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return f"tl.sqrt({operands[0]})" if node.element == "f64" else f"tl.sqrt_rn({operands[0]})"


def _reciprocal_root(w: Writer, node: Node, operands: Sequence[str]) -> str:
    root = w.let(_square_root(w, node, operands))
    return f"1.0 / {root}" if node.element == "f64" else f"tl.div_rn({literal(1.0, 'f32')}, {root})"


def _logistic(w: Writer, node: Node, operands: Sequence[str]) -> str:
    below = w.let(f"1.0 + {_accurate('exp')(w, node, [w.let(f'-{operands[0]}')])}")
    return f"1.0 / {below}" if node.element == "f64" else f"tl.div_rn({literal(1.0, 'f32')}, {below})"


def _accurate(function: str) -> Rule:
    """Triton's own exp is an approximation whose error grows with the argument; libdevice's is not."""
    return _device(function)


def _shift(kind: str) -> Rule:
    """By the width or more: 0, or the sign."""

    def rule(w: Writer, node: Node, operands: Sequence[str]) -> str:
        x, by = operands
        bits, element = bits_of(node.element), node.element
        unsigned = f"tl.uint{bits}"
        inside = w.let(f"{by}.to({unsigned}) < {bits}")
        amount = w.let(f"tl.where({inside}, {by}, {literal(bits - 1, element)})")
        if kind == "left":
            return f"tl.where({inside}, {x} << {amount}, {literal(0, element)})"
        if kind == "logical":
            shifted = w.let(
                f"({x}.to({unsigned}, bitcast=True) >> {amount}.to({unsigned}, bitcast=True)).to({in_register(element)}, bitcast=True)"
            )
            return f"tl.where({inside}, {shifted}, {literal(0, element)})"
        return f"({x}.to(tl.int{bits}, bitcast=True) >> {amount}.to(tl.int{bits}, bitcast=True)).to({in_register(element)}, bitcast=True)"

    return rule


def _finite(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return f"tl.abs({operands[0]}) < float('inf')"


def _infinite(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return f"tl.abs({operands[0]}) == float('inf')"


def _round_away(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return f"libdevice.round({operands[0]})"


def _square(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return f"{operands[0]} * {operands[0]}"


def _population(w: Writer, node: Node, operands: Sequence[str]) -> str:
    """Bits that are set, by sums of neighbors: two, four, eight bits wide, then all bytes."""
    bits = bits_of(node.element)
    unsigned = f"tl.uint{bits}"
    x = w.let(f"{operands[0]}.to({unsigned}, bitcast=True)")
    for by, pattern in ((1, 0x55), (2, 0x33), (4, 0x0F)):
        mask = f"tl.full([], {int.from_bytes(bytes([pattern]) * (bits // 8), 'little')}, {unsigned})"
        x = w.let(f"({x} & {mask}) + (({x} >> {by}) & {mask})")
    by = 8
    while by < bits:
        x = w.let(f"{x} + ({x} >> {by})")
        by *= 2
    return f"({x} & 127).to({in_register(node.element)})"


def _leading_zeros(w: Writer, node: Node, operands: Sequence[str]) -> str:
    """The bits of a number smeared to the right, inverted, are its leading zeros."""
    bits = bits_of(node.element)
    x = w.let(f"{operands[0]}.to(tl.uint{bits}, bitcast=True)")
    by = 1
    while by < bits:
        x = w.let(f"{x} | ({x} >> {by})")
        by *= 2
    return _population(w, node, [w.let(f"~{x}")])


def _bitcast(w: Writer, node: Node, operands: Sequence[str]) -> str:
    source, (value,) = node.operands[0].element, operands
    stored = w.let(f"{value}.to({in_memory(source)})") if source in ("f16", "bf16") else value
    return f"{stored}.to({in_memory(node.element)}, bitcast=True).to({in_register(node.element)})"


def _convert(w: Writer, node: Node, operands: Sequence[str]) -> str:
    return convert(w, operands[0], node.operands[0].element, node.element)


def convert(w: Writer, value: str, source: str, target: str) -> str:
    """As eager does: float to integer saturates (NaN gives 0), to i1 is `!= 0`, to bf16 and f16 rounds to nearest even. An expression,
    which `rounded` is yet to be applied to."""
    if target == "i1":
        return value if source == "i1" else f"{value} != 0"
    if source in FLOATS and target not in FLOATS:
        return _saturated(w, value, source, target)
    if target == "bf16" and source == "f64":
        return f"{value}.to(tl.float32)"
    return f"{value}.to({in_register(target)})"


def _saturated(w: Writer, value: str, source: str, target: str) -> str:
    unsigned, bits = target.startswith("u"), bits_of(target)
    low, past = (0.0, 2.0**bits) if unsigned else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1))
    most = (1 << bits) - 1 if unsigned else (1 << (bits - 1)) - 1
    inside = w.let(f"({value} >= {low!r}) & ({value} < {past!r})")
    taken = w.let(f"tl.where({inside}, {value}, {literal(0.0, source)}).to({in_register(target)})")
    least = literal(0 if unsigned else -(1 << (bits - 1)), target)
    above = w.let(f"tl.where({value} >= {past!r}, {literal(most, target)}, {taken})")
    return f"tl.where({value} < {low!r}, {least}, {above})"


def _philox(w: Writer, node: Node, operands: Sequence[str]) -> str:
    """Philox4x32-10 with the counter (position, number of the draw) and the key of the call."""
    position, seed = operands
    draw, word = node.integer("stream"), node.integer("word")
    low, high = (w.let(f"({position} >> {by}).to(tl.uint32)") for by in (0, 32))
    keys = [w.let(f"({seed} >> {by}).to(tl.uint32)") for by in (0, 32)]
    zero = w.let(f"{low} ^ {low}")
    draws = [w.let(f"{zero} + tl.full([], {(draw >> by) & 0xFFFFFFFF}, tl.uint32)") for by in (0, 32)]
    counter = [low, high, *draws]
    for turn in range(10):
        round_keys = [
            w.let(f"{key} + tl.full([], {step * turn & 0xFFFFFFFF}, tl.uint32)")
            for key, step in zip(keys, (0x9E3779B9, 0xBB67AE85), strict=True)
        ]
        products = [
            (w.let(f"tl.umulhi({counter[at]}, {_word(by)})"), w.let(f"{counter[at]} * {_word(by)}"))
            for at, by in ((0, 0xD2511F53), (2, 0xCD9E8D57))
        ]
        (high0, low0), (high1, low1) = products
        counter = [w.let(f"{high1} ^ {counter[1]} ^ {round_keys[0]}"), low1, w.let(f"{high0} ^ {counter[3]} ^ {round_keys[1]}"), low0]
    return counter[word]


def _power(w: Writer, node: Node, operands: Sequence[str]) -> str:
    """Of integers: square and multiply, wrapping; a negative exponent gives the truncated reciprocal, 0 but for 1 and -1."""
    if node.element in FLOATS:
        return f"libdevice.pow({', '.join(operands)})"
    bits, element = bits_of(node.element), node.element
    function = w.helper(f"power_{element}", lambda: _INTEGER_POWER.format(one=literal(1, element), bits=bits, unsigned=f"tl.uint{bits}"))
    found = w.let(f"{function}({', '.join(operands)}).to({in_register(element)}, bitcast=True)")
    if element.startswith("u"):
        return found
    x, y = operands
    # (-1)^y = (-1)^-y, and the loop has used y modulo 2^width, so 1 and -1 are right for a negative y too.
    return f"tl.where(({y} >= 0) | ({x} == 1) | ({x} == -1), {found}, {literal(0, element)})"


_INTEGER_POWER = """(x, y):
    x, y = x.to({unsigned}, bitcast=True), y.to({unsigned}, bitcast=True)
    result = x * 0 + {one}.to({unsigned}, bitcast=True)
    for _ in tl.static_range({bits}):
        result = tl.where((y & 1) == 1, result * x, result)
        x = x * x
        y = y >> 1
    return result
"""


def _digamma(w: Writer, node: Node, operands: Sequence[str]) -> str:
    """In f64, as on a CPU: the series from 8 on, recurrence below, reflection for negative arguments."""
    function = w.helper("digamma", lambda: _DIGAMMA)
    return f"{function}({operands[0]}.to(tl.float64)).to({in_register(node.element)})"


_DIGAMMA = """(x):
    a = tl.abs(x)
    recurs = a < 8.0
    numerator = tl.zeros([], tl.float64)
    denominator = tl.zeros([], tl.float64) + 1.0
    for step in tl.static_range(8):
        numerator = numerator * (tl.where(recurs, a, 8.0) + step) + denominator
        denominator = denominator * (tl.where(recurs, a, 8.0) + step)
    above = tl.where(recurs, a + 8.0, a)
    inverse = 1.0 / above
    square = inverse * inverse
    series = 0.0 * square + 43867.0 / 14364.0
    series = series * square - 3617.0 / 8160.0
    series = series * square + 1.0 / 12.0
    series = series * square - 691.0 / 32760.0
    series = series * square + 1.0 / 132.0
    series = series * square - 1.0 / 240.0
    series = series * square + 1.0 / 252.0
    series = series * square - 1.0 / 120.0
    series = series * square + 1.0 / 12.0
    value = libdevice.log(above) - (square * series + 0.5 * inverse)
    value = tl.where(recurs, value - numerator / denominator, value)
    turn = 3.141592653589793 * (a - tl.floor(a))
    reflected = value + 1.0 / a + 3.141592653589793 / libdevice.tan(turn)
    reflected = tl.where(tl.floor(x) == x, float("nan"), reflected)
    found = tl.where(x < 0.0, reflected, value)
    zero = tl.where(1.0 / x > 0.0, float("-inf"), float("inf"))
    return tl.where(x == 0.0, zero, found)
"""


def _word(value: int) -> str:
    return f"tl.full([], {value}, tl.uint32)"


RULES: dict[str, Rule] = rules_by_op(
    "CUDA elementwise",
    {
        **{f"stablehlo.{kind}": _kind(kind) for kind in ("add", "multiply", "maximum", "minimum", "and", "or", "xor")},
        "stablehlo.subtract": _subtract,
        "stablehlo.divide": _divide,
        "stablehlo.remainder": _remainder,
        "stablehlo.negate": _negate,
        "stablehlo.abs": _call("tl.abs"),
        "stablehlo.sign": _sign,
        "stablehlo.not": _not,
        "stablehlo.compare": _compare,
        "stablehlo.select": _select,
        "stablehlo.clamp": _clamp,
        "stablehlo.floor": _call("tl.floor"),
        "stablehlo.ceil": _call("tl.ceil"),
        "stablehlo.round_nearest_even": _device("rint"),
        "stablehlo.round_nearest_afz": _round_away,
        "stablehlo.shift_left": _shift("left"),
        "stablehlo.shift_right_arithmetic": _shift("arithmetic"),
        "stablehlo.shift_right_logical": _shift("logical"),
        "stablehlo.is_finite": _finite,
        "stablehlo.popcnt": _population,
        "stablehlo.count_leading_zeros": _leading_zeros,
        "stablehlo.convert": _convert,
        "stablehlo.bitcast_convert": _bitcast,
        "stablehlo.sqrt": _square_root,
        "stablehlo.rsqrt": _reciprocal_root,
        "stablehlo.logistic": _logistic,
        "stablehlo.exponential": _accurate("exp"),
        "stablehlo.log": _accurate("log"),
        "stablehlo.exponential_minus_one": _device("expm1"),
        "stablehlo.log_plus_one": _device("log1p"),
        "stablehlo.sine": _device("sin"),
        "stablehlo.cosine": _device("cos"),
        "stablehlo.tan": _device("tan"),
        "stablehlo.tanh": _device("tanh"),
        "stablehlo.cbrt": _device("cbrt"),
        "stablehlo.power": _power,
        "stablehlo.atan2": _device("atan2"),
        "chlo.square": _square,
        "chlo.is_inf": _infinite,
        "chlo.is_pos_inf": lambda w, node, operands: f"{operands[0]} == float('inf')",
        "chlo.is_neg_inf": lambda w, node, operands: f"{operands[0]} == float('-inf')",
        "chlo.erf": _device("erf"),
        "chlo.erfc": _device("erfc"),
        "chlo.erf_inv": _device("erfinv"),
        "chlo.lgamma": _device("lgamma"),
        "chlo.digamma": _digamma,
        **{f"chlo.{name}": _device(name) for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan")},
        "disc.philox": _philox,
    },
)  # fmt: skip
