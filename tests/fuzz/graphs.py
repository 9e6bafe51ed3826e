"""Random modules of stage `named` for the end-to-end fuzzer: `random_module(seed)` gives the same text for the same seed.

Values are `exact` when every implementation must compute them bit for bit: integers, and floats that are small multiples of 1/8.
Ops that jump (compare, floor, argmax, conversion to integers) read exact values alone, so that a rounding error elsewhere stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from disc.shapes import Dim

Item = TypeVar("Item")
Dims = tuple[Dim, ...]

MANTISSA = {"f64": 52, "f32": 23, "f16": 10, "bf16": 7}
INTEGERS = ("i64", "i32", "i8", "ui8")
LARGEST_COUNT = 7  # bits: how many terms a sum is taken to have
MOST_BITS = 40  # a value that may need more is not used in products again
ONE = Dim.of(1)


@dataclass(frozen=True)
class Value:
    """A value of the graph. exact: known bit for bit; bits: those between its largest magnitude and its finest step, where exact."""

    name: str
    dims: Dims
    element: str
    exact: bool
    bits: int


@dataclass
class Graph:
    """A module in the making: its lines, its values so far, and the symbols that its types name."""

    random: np.random.Generator
    lines: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    derived: dict[str, str] = field(default_factory=dict)
    maybe: dict[str, str] = field(default_factory=dict)
    count: int = 0

    # --- choices ----------------------------------------------------------------------------------------------------------

    def choose(self, items: Sequence[Item]) -> Item:
        return items[int(self.random.integers(len(items)))]

    def chance(self, probability: float) -> bool:
        return float(self.random.random()) < probability

    def pick(self, wanted: Callable[[Value], bool] = lambda value: True) -> Value | None:
        """A value with the property; recent ones more often, so that chains grow deep."""
        fitting = [value for value in self.values if wanted(value)]
        return fitting[-min(int(self.random.geometric(0.3)), len(fitting))] if fitting else None

    # --- text -------------------------------------------------------------------------------------------------------------

    def symbol(self, dim: Dim) -> str:
        """What a type's encoding says for `dim`."""
        text = str(dim)
        if dim.is_const or (len(dim.symbols()) == 1 and text == dim.symbols()[0]):
            return text if dim.is_const else f"@{text}"
        return f"@{self.derived.setdefault(text, f'D{len(self.derived)}')}"

    def type(self, dims: Sequence[Dim], element: str) -> str:
        if not dims:
            return f"tensor<{element}>"
        sizes = "x".join(str(dim) if dim.is_const else "?" for dim in dims)
        return f"tensor<{sizes}x{element}, [{', '.join(self.symbol(dim) for dim in dims)}]>"

    def of(self, value: Value) -> str:
        return self.type(value.dims, value.element)

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def line(self, text: str) -> str:
        """Adds an op with one result that is no value of the graph."""
        name = self.fresh()
        self.lines.append(f"{name} = {text}")
        return name

    def emit(self, text: str, dims: Sequence[Dim], element: str, exact: bool, bits: int = 0) -> Value:
        """Adds an op whose result later ops may read."""
        exact = exact and (element not in MANTISSA or bits <= MANTISSA[element])
        value = Value(self.line(text), tuple(dims), element, exact, bits)
        self.values.append(value)
        return value

    def constant(self, value: str, element: str) -> str:
        return self.line(f"stablehlo.constant dense<{value}> : tensor<{element}>")

    def splat(self, value: str, dims: Sequence[Dim], element: str) -> str:
        scalar = self.constant(value, element)
        return self.broadcast_line(scalar, (), dims, element, ())

    def broadcast_line(
        self, name: str, source: Sequence[Dim], dims: Sequence[Dim], element: str, places: Sequence[int], maybe: Sequence[int] = ()
    ) -> str:
        attributes = f"{{dims = {array(places)}, maybe = {array(maybe)}}}"
        return self.line(f'"disc.broadcast_in_dim"({name}) {attributes} : ({self.type(source, element)}) -> {self.type(dims, element)}')

    def reduce_line(self, op: str, start: str, value: str, dims: Sequence[Dim], axes: Sequence[int], element: str) -> str:
        kept = [dim for axis, dim in enumerate(dims) if axis not in axes]
        scalar = self.constant(start, element)
        return self.line(
            f"stablehlo.reduce({value} init: {scalar}) applies stablehlo.{op} across dimensions = {list(axes)}"
            f" : ({self.type(dims, element)}, tensor<{element}>) -> {self.type(kept, element)}"
        )


def array(numbers: Sequence[int]) -> str:
    return f"array<i64: {', '.join(map(str, numbers))}>" if numbers else "array<i64>"


def texts(items: Sequence[object]) -> str:
    return "[" + ", ".join(f'"{item}"' for item in items) + "]"


def is_float(value: Value) -> bool:
    return value.element in MANTISSA


def is_number(value: Value) -> bool:
    return value.element != "i1"


# --- element-wise -------------------------------------------------------------------------------------------------------------


def unary(g: Graph) -> None:
    x = g.pick(is_number)
    if x is None:
        return
    exact = ["abs", "sign"] if x.element in INTEGERS else ["negate", "abs", "sign", "floor", "ceil"]
    if x.element == "ui8":
        exact = ["not"]
    names = exact if x.exact else ["negate", "abs"]
    g.emit(f"stablehlo.{g.choose(names)} {x.name} : {g.of(x)}", x.dims, x.element, x.exact, x.bits)


def transcendental(g: Graph) -> None:
    """Arguments are kept where the function is defined and small."""
    x = g.pick(is_float)
    if x is None:
        return
    name = g.choose(["tanh", "logistic", "sine", "cosine", "exponential", "log", "rsqrt", "sqrt", "erf", "cbrt", "exponential_minus_one"])
    argument, kind = x.name, g.of(x)
    if name in ("exponential", "exponential_minus_one"):
        argument = g.line(f"stablehlo.tanh {argument} : {kind}")
    if name in ("log", "rsqrt", "sqrt"):
        argument = g.line(f"stablehlo.abs {argument} : {kind}")
        argument = g.line(f"stablehlo.add {argument}, {g.splat('1.0', x.dims, x.element)} : {kind}")
    text = f"chlo.erf {argument} : {kind} -> {kind}" if name == "erf" else f"stablehlo.{name} {argument} : {kind}"
    g.emit(text, x.dims, x.element, False)


def partner(g: Graph, x: Value) -> tuple[str, Value | None]:
    """Another value brought to the sizes of `x`: one of equal sizes, a broadcast one, or a constant."""
    same = g.pick(lambda y: y.element == x.element and y.dims == x.dims)
    if same is not None and g.chance(0.4):
        return same.name, same
    small = g.pick(lambda y: y.element == x.element and spread(g, y.dims, x.dims) is not None)
    if small is not None and g.chance(0.7):
        places, maybe = spread(g, small.dims, x.dims) or ((), ())
        return g.broadcast_line(small.name, small.dims, x.dims, x.element, places, maybe), small
    whole = ["1", "2", "3"] if x.element in ("ui8", "i1") else ["-1", "2", "3"]
    values = ["1.0", "-2.0", "0.5", "0.125"] if is_float(x) else ["true", "false"] if x.element == "i1" else whole
    return g.splat(g.choose(values), x.dims, x.element), None


def spread(g: Graph, small: Dims, large: Dims) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Where the dims of `small` go in `large`, and which are decided at run time; None where they do not fit or are the same."""
    places: list[int] = []
    maybe: list[int] = []
    at = len(large)
    for axis in reversed(range(len(small))):
        at -= 1
        while at >= 0 and not (small[axis] == large[at] or small[axis] == ONE or g.maybe.get(str(small[axis])) == str(large[at])):
            at -= 1
        if at < 0:
            return None
        places.append(at)
        if small[axis] != large[at] and small[axis] != ONE:
            maybe.append(axis)
    return None if small == large else (tuple(reversed(places)), tuple(sorted(maybe)))


def binary(g: Graph) -> None:
    x = g.pick()
    if x is None:
        return
    name, y = partner(g, x)
    exact, bits, other = x.exact and (y is None or y.exact), x.bits, 5 if y is None else y.bits
    if x.element == "i1":
        g.emit(f"stablehlo.{g.choose(['and', 'or', 'xor'])} {x.name}, {name} : {g.of(x)}", x.dims, "i1", exact)
        return
    op = g.choose(["add", "subtract", "multiply", "maximum", "minimum"])
    if op == "multiply" and bits + other > MOST_BITS:
        op = "maximum"
    result = bits + other if op == "multiply" else max(bits, other) + (op in ("add", "subtract"))
    first, second = (x.name, name) if g.chance(0.5) else (name, x.name)
    g.emit(f"stablehlo.{op} {first}, {second} : {g.of(x)}", x.dims, x.element, exact, result)


def divide(g: Graph) -> None:
    """By something that is at least 1."""
    x = g.pick(is_float)
    if x is None:
        return
    name, _ = partner(g, x)
    kind = g.of(x)
    size = g.line(f"stablehlo.abs {name} : {kind}")
    size = g.line(f"stablehlo.add {size}, {g.splat('1.0', x.dims, x.element)} : {kind}")
    g.emit(f"stablehlo.divide {x.name}, {size} : {kind}", x.dims, x.element, False)


def select(g: Graph) -> None:
    x = g.pick()
    if x is None:
        return
    flags = g.type(x.dims, "i1")
    given = g.pick(lambda value: value.element == "i1" and value.dims == x.dims)
    y, other = partner(g, x)
    if given is not None:
        flag = given.name
    elif x.exact and x.element != "i1":
        flag = g.emit(compare_text(g, x.name, y, x.dims, x.element), x.dims, "i1", other is None or other.exact).name
        if other is not None and not other.exact:
            return
    else:
        position = (
            g.line(f'"disc.iota"() {{dim = {len(x.dims) - 1} : i64}} : () -> {g.type(x.dims, "i64")}')
            if x.dims
            else g.splat("1", (), "i64")
        )
        flag = g.line(compare_text(g, position, g.splat("2", x.dims, "i64"), x.dims, "i64"))
    exact = x.exact and (other is None or other.exact)
    bits = max(x.bits, 5 if other is None else other.bits)
    g.emit(f"stablehlo.select {flag}, {x.name}, {y} : {flags}, {g.of(x)}", x.dims, x.element, exact, bits)


def compare_text(g: Graph, x: str, y: str, dims: Dims, element: str) -> str:
    kind = g.type(dims, element)
    return f"stablehlo.compare {g.choose(['LT', 'LE', 'EQ', 'NE', 'GT', 'GE'])}, {x}, {y} : ({kind}, {kind}) -> {g.type(dims, 'i1')}"


def convert(g: Graph) -> None:
    x = g.pick(lambda value: value.exact or is_float(value))
    if x is None:
        return
    wide = ["f32", "f64", "f16", "bf16"] if not x.exact or x.bits > 7 else ["f32", "f64", "f16", "bf16", "i32", "i64"]
    target = g.choose([name for name in wide if name != x.element])
    bits = 1 if x.element == "i1" else 6 if x.element in INTEGERS else x.bits
    exact = x.exact and (x.element not in ("i32", "i64") or x.bits <= 7)
    g.emit(f"stablehlo.convert {x.name} : ({g.of(x)}) -> {g.type(x.dims, target)}", x.dims, target, exact, max(bits, x.bits))


def iota(g: Graph) -> None:
    x = g.pick(lambda value: len(value.dims) > 0)
    if x is None:
        return
    element = g.choose(["i64", "i32", "f32"])
    axis = int(g.random.integers(len(x.dims)))
    g.emit(f'"disc.iota"() {{dim = {axis} : i64}} : () -> {g.type(x.dims, element)}', x.dims, element, True, 8)


def dim_value(g: Graph) -> None:
    x = g.pick(lambda value: value.element in ("f32", "i64") and len(value.dims) > 0)
    if x is None:
        return
    size = g.line(f'"disc.dim_value"() {{expr = "{g.choose(x.dims)}"}} : () -> tensor<i64>')
    if x.element == "f32":
        size = g.line(f"stablehlo.convert {size} : (tensor<i64>) -> tensor<f32>")
    wide = g.broadcast_line(size, (), x.dims, x.element, ())
    g.emit(f"stablehlo.add {x.name}, {wide} : {g.of(x)}", x.dims, x.element, x.exact, max(x.bits, 10) + 1)


# --- views and moves ----------------------------------------------------------------------------------------------------------


def moved(g: Graph, x: Value, text: str, dims: Sequence[Dim]) -> None:
    g.emit(text, dims, x.element, x.exact, x.bits)


def transpose(g: Graph) -> None:
    x = g.pick(lambda value: len(value.dims) > 1)
    if x is None:
        return
    order = [int(axis) for axis in g.random.permutation(len(x.dims))]
    dims = [x.dims[axis] for axis in order]
    moved(g, x, f"stablehlo.transpose {x.name}, dims = {order} : ({g.of(x)}) -> {g.type(dims, x.element)}", dims)


def reshape(g: Graph) -> None:
    """Merges two neighbors, splits a constant or a product, or adds or removes a dim of size 1."""
    x = g.pick()
    if x is None:
        return
    dims, way = list(x.dims), g.choose(["merge", "merge", "split", "split", "one"])
    if way == "merge" and len(dims) > 1:
        at = int(g.random.integers(len(dims) - 1))
        dims[at : at + 2] = [dims[at] * dims[at + 1]]
    elif way == "split" and dims and len(dims) < 5:
        at = int(g.random.integers(len(dims)))
        parts = split_dim(dims[at])
        if parts is None:
            return
        dims[at : at + 1] = parts if g.chance(0.5) else parts[::-1]
    elif ONE in dims and g.chance(0.5):
        dims.remove(ONE)
    elif len(dims) < 5:
        dims.insert(int(g.random.integers(len(dims) + 1)), ONE)
    moved(g, x, f'"disc.reshape"({x.name}) : ({g.of(x)}) -> {g.type(dims, x.element)}', dims)


def split_dim(dim: Dim) -> list[Dim] | None:
    """Two factors of a dim: of a constant, or of one term."""
    if dim.is_const:
        factor = next((factor for factor in (2, 3, 5, 7) if dim.const % factor == 0 and dim.const > factor), None)
        return None if factor is None else [Dim.of(factor), Dim.of(dim.const // factor)]
    factors = str(dim).split(" * ")
    if len(factors) < 2 or any(not factor.isalnum() for factor in factors):
        return None
    parts = [Dim.of(int(factor)) if factor.isdecimal() else Dim.symbol(factor) for factor in factors]
    rest = parts[1]
    for part in parts[2:]:
        rest = rest * part
    return [parts[0], rest]


def broadcast(g: Graph) -> None:
    """A new dim, and every dim of size 1 perhaps wider."""
    x = g.pick(lambda value: len(value.dims) < 4)
    sizes = [dim for value in g.values[:6] for dim in value.dims]
    if x is None:
        return
    dims = [g.choose(sizes) if dim == ONE and g.chance(0.5) else dim for dim in x.dims]
    if sum(not dim.is_const for dim in dims) > 2:
        return
    place = int(g.random.integers(len(dims) + 1))
    dims.insert(place, g.choose([ONE, Dim.of(2), g.choose(sizes)]))
    places = [axis + (axis >= place) for axis in range(len(x.dims))]
    g.values.append(Value(g.broadcast_line(x.name, x.dims, dims, x.element, places), tuple(dims), x.element, x.exact, x.bits))


def slice_dim(g: Graph) -> None:
    """A part of one dim: a constant part, the tail after a constant, or every second element."""
    x = g.pick(lambda value: len(value.dims) > 0)
    if x is None:
        return
    axis = int(g.random.integers(len(x.dims)))
    size, starts, strides = x.dims[axis], [Dim.of(0)] * len(x.dims), [1] * len(x.dims)
    if size.is_const and size.const > 1:
        start = int(g.random.integers(size.const - 1))
        stride = g.choose([1, 1, 2])
        new, starts[axis], strides[axis] = Dim.of(-(-(size.const - start) // stride)), Dim.of(start), stride
    elif not size.is_const and size.constant_term > 0:
        taken = Dim.of(int(g.random.integers(1, size.constant_term + 1)))
        new, starts[axis] = size - taken, g.choose([Dim.of(0), taken])
    elif not size.is_const:
        new, strides[axis] = (size + 1) // 2, 2
    else:
        return
    dims = [new if each == axis else dim for each, dim in enumerate(x.dims)]
    moved(
        g,
        x,
        f'"disc.slice"({x.name}) {{starts = {texts(starts)}, strides = {array(strides)}}} : ({g.of(x)}) -> {g.type(dims, x.element)}',
        dims,
    )


def pad(g: Graph) -> None:
    x = g.pick(lambda value: len(value.dims) > 0 and value.element != "i1")
    if x is None:
        return
    axis = int(g.random.integers(len(x.dims)))
    low, high, interior = int(g.random.integers(-1, 3)), int(g.random.integers(1, 3)), 0
    new = x.dims[axis] + low + high
    dims = [new if each == axis else dim for each, dim in enumerate(x.dims)]
    value = g.constant("0.5" if is_float(x) else "1", x.element)
    lows = [low if each == axis else 0 for each in range(len(dims))]
    moved(
        g, x,
        f'"disc.pad"({x.name}, {value}) {{low = {texts(lows)}, interior = {array([interior] * len(dims))}}}'
        f" : ({g.of(x)}, tensor<{x.element}>) -> {g.type(dims, x.element)}",
        dims,
    )  # fmt: skip


def concatenate(g: Graph) -> None:
    x = g.pick(lambda value: len(value.dims) > 0)
    if x is None:
        return
    axis = int(g.random.integers(len(x.dims)))

    def fits(y: Value) -> bool:
        same = len(y.dims) == len(x.dims) and all(each == axis or y.dims[each] == dim for each, dim in enumerate(x.dims))
        return same and y.element == x.element

    y = g.pick(fits)
    assert y is not None
    if len(str(x.dims[axis] + y.dims[axis])) > 20:
        return
    dims = [dim + y.dims[axis] if each == axis else dim for each, dim in enumerate(x.dims)]
    text = f"stablehlo.concatenate {x.name}, {y.name}, dim = {axis} : ({g.of(x)}, {g.of(y)}) -> {g.type(dims, x.element)}"
    g.emit(text, dims, x.element, x.exact and y.exact, max(x.bits, y.bits))


def reverse(g: Graph) -> None:
    x = g.pick(lambda value: len(value.dims) > 0)
    if x is not None:
        moved(g, x, f"stablehlo.reverse {x.name}, dims = [{int(g.random.integers(len(x.dims)))}] : {g.of(x)}", x.dims)


def gather(g: Graph) -> None:
    """Rows of a weight or of a value, by indices that may lie outside (they are clamped)."""
    indices = g.pick(lambda value: value.element in ("i64", "i32") and value.exact and len(value.dims) < 3)
    if indices is None:
        return
    table = g.pick(lambda value: 0 < len(value.dims) < 3 and value.dims[0].is_const and value.dims[0].const > 0)
    if table is None or g.chance(0.5):
        dims = (Dim.of(11), Dim.of(6))
        name = g.line(f'"disc.weight"() {{name = "table{g.count}"}} : () -> {g.type(dims, "f32")}')
        table = Value(name, dims, "f32", True, 7)
    rest, rank = table.dims[1:], len(indices.dims)
    offsets = list(range(rank, rank + len(rest)))
    numbers = f"#stablehlo.gather<offset_dims = {offsets}, collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {rank}>"
    dims = (*indices.dims, *rest)
    g.emit(
        f'"disc.gather"({table.name}, {indices.name}) {{dimension_numbers = {numbers}, sizes = {texts([1, *rest])}}}'
        f" : ({g.of(table)}, {g.of(indices)}) -> {g.type(dims, table.element)}",
        dims, table.element, table.exact, table.bits,
    )  # fmt: skip


def dynamic_slice(g: Graph) -> None:
    """A constant part of every constant dim, from where another value says (clamped)."""
    x = g.pick(lambda value: 0 < len(value.dims) < 4 and all(dim.is_const and dim.const > 0 for dim in value.dims))
    start = g.pick(lambda value: value.element in ("i64", "i32") and value.exact and not value.dims)
    if x is None:
        return
    at = g.constant(str(int(g.random.integers(-1, 4))), "i64") if start is None else start.name
    element = "i64" if start is None else start.element
    sizes = [int(g.random.integers(1, dim.const + 1)) for dim in x.dims]
    dims = [Dim.of(size) for size in sizes]
    kinds = ", ".join([g.of(x), *[f"tensor<{element}>"] * len(dims)])
    text = f"stablehlo.dynamic_slice {', '.join([x.name, *[at] * len(dims)])}, sizes = {sizes} : ({kinds}) -> {g.type(dims, x.element)}"
    moved(g, x, text, dims)


def clamp(g: Graph) -> None:
    x = g.pick(is_number)
    if x is None:
        return
    low, high = ("-1.5", "2.0") if is_float(x) else ("1", "5")
    bounds = [g.constant(each, x.element) for each in (low, high)]
    if g.chance(0.5):
        bounds = [g.splat(each, x.dims, x.element) for each in (low, high)]
        kind = g.of(x)
        text = f"stablehlo.clamp {bounds[0]}, {x.name}, {bounds[1]} : {kind}"
    else:
        text = f"stablehlo.clamp {bounds[0]}, {x.name}, {bounds[1]} : (tensor<{x.element}>, {g.of(x)}, tensor<{x.element}>) -> {g.of(x)}"
    g.emit(text, x.dims, x.element, x.exact, x.bits)


# --- reductions and products --------------------------------------------------------------------------------------------------


def reduce(g: Graph) -> None:
    x = g.pick(lambda value: len(value.dims) > 0)
    if x is None:
        return
    rank = len(x.dims)
    axes = [rank - 1] if g.chance(0.5) else sorted({int(axis) for axis in g.random.integers(rank, size=2)})
    dims = [dim for axis, dim in enumerate(x.dims) if axis not in axes]
    low, high = EXTREMES[x.element]
    choices = {"maximum": low, "minimum": high, "add": "0.0" if is_float(x) else "0"}
    if x.element == "i1":
        choices = {"and": "true", "or": "false"}
    op = g.choose(list(choices))
    name = g.reduce_line(op, choices[op], x.name, x.dims, axes, x.element)
    bits = x.bits + LARGEST_COUNT * len(axes) if op == "add" else x.bits
    unknown = op in ("maximum", "minimum")  # of no elements: an infinity or the end of the integers
    if unknown and x.element in MANTISSA:
        limit = g.splat("32.0", dims, x.element)
        name = g.line(
            f"stablehlo.clamp {g.line(f'stablehlo.negate {limit} : {g.type(dims, x.element)}')}, {name}, {limit} : {g.type(dims, x.element)}"
        )
        bits = max(bits, 9)
    exact = x.exact and (x.element not in MANTISSA or bits <= MANTISSA[x.element])
    g.values.append(Value(name, tuple(dims), x.element, exact, 64 if unknown and x.element in INTEGERS else bits))


EXTREMES = {
    **dict.fromkeys(("f32",), ("0xFF800000", "0x7F800000")), "f64": ("0xFFF0000000000000", "0x7FF0000000000000"), "f16": ("0xFC00", "0x7C00"),
    "bf16": ("0xFF80", "0x7F80"), "i64": (str(-(2**63)), str(2**63 - 1)), "i32": (str(-(2**31)), str(2**31 - 1)), "i8": ("-128", "127"),
    "ui8": ("0", "255"), "i1": ("false", "true"),
}  # fmt: skip


def argmax(g: Graph) -> None:
    """The place of the largest element, the first of equal ones; NaN is the largest, so that the order does not matter."""
    x = g.pick(lambda value: value.element == "f32" and value.exact and len(value.dims) > 0)
    if x is None:
        return
    axis = int(g.random.integers(len(x.dims)))
    dims = [dim for each, dim in enumerate(x.dims) if each != axis]
    places = g.line(f'"disc.iota"() {{dim = {axis} : i64}} : () -> {g.type(x.dims, "i64")}')
    start, zero = g.constant("0xFF800000", "f32"), g.constant("0", "i64")
    kind, result = g.type(dims, "f32"), g.type(dims, "i64")
    name = g.fresh()
    g.lines.append(
        f"{name}:2 = stablehlo.reduce({x.name} init: {start}), ({places} init: {zero}) across dimensions = [{axis}]"
        f" : ({g.of(x)}, {g.type(x.dims, 'i64')}, tensor<f32>, tensor<i64>) -> ({kind}, {result})\n"
        "reducer(%a: tensor<f32>, %b: tensor<f32>) (%i: tensor<i64>, %j: tensor<i64>) {\n"
        "  %nan_a = stablehlo.compare NE, %a, %a : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
        "  %nan_b = stablehlo.compare NE, %b, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
        "  %gt = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
        "  %eq = stablehlo.compare EQ, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
        "  %lt = stablehlo.compare LT, %i, %j : (tensor<i64>, tensor<i64>) -> tensor<i1>\n"
        "  %number_b = stablehlo.not %nan_b : tensor<i1>\n"
        "  %only_a = stablehlo.and %nan_a, %number_b : tensor<i1>\n"
        "  %larger = stablehlo.or %gt, %only_a : tensor<i1>\n"
        "  %both = stablehlo.and %nan_a, %nan_b : tensor<i1>\n"
        "  %same = stablehlo.or %eq, %both : tensor<i1>\n"
        "  %first = stablehlo.and %same, %lt : tensor<i1>\n"
        "  %take = stablehlo.or %larger, %first : tensor<i1>\n"
        "  %value = stablehlo.select %take, %a, %b : tensor<i1>, tensor<f32>\n"
        "  %place = stablehlo.select %take, %i, %j : tensor<i1>, tensor<i64>\n"
        "  stablehlo.return %value, %place : tensor<f32>, tensor<i64>\n}"
    )
    g.values.append(Value(f"{name}#1", tuple(dims), "i64", True, 8))


def cumulative(g: Graph) -> None:
    x = g.pick(lambda value: len(value.dims) > 0 and value.element in ("f32", "f64", "i64", "i32"))
    if x is None:
        return
    kind = g.choose(["sum", "max", "min"])
    text = f'"disc.cumulative"({x.name}) {{dim = {int(g.random.integers(len(x.dims)))} : i64, kind = "{kind}"}} : ({g.of(x)}) -> {g.of(x)}'
    g.emit(text, x.dims, x.element, x.exact, x.bits + (LARGEST_COUNT if kind == "sum" else 0))


def linear(g: Graph) -> None:
    """A product with a weight over one constant dim."""
    x = g.pick(lambda value: value.element in ("f32", "f64", "f16", "bf16") and any(dim.is_const and dim.const > 1 for dim in value.dims))
    if x is None or x.bits > MOST_BITS:
        return
    axis = [axis for axis, dim in enumerate(x.dims) if dim.is_const and dim.const > 1][-1]
    width = Dim.of(int(g.choose([1, 3, 8, 17, 40])))
    shape = [x.dims[axis], width] if g.chance(0.5) else [width, x.dims[axis]]
    contracted = shape.index(x.dims[axis])
    weight = g.line(f'"disc.weight"() {{name = "w{g.count}"}} : () -> {g.type(shape, x.element)}')
    dims = [*(dim for each, dim in enumerate(x.dims) if each != axis), shape[1 - contracted]]
    g.emit(
        f"stablehlo.dot_general {x.name}, {weight}, contracting_dims = [{axis}] x [{contracted}]"
        f" : ({g.of(x)}, {g.type(shape, x.element)}) -> {g.type(dims, x.element)}",
        dims, x.element, x.exact, x.bits + 7 + LARGEST_COUNT,
    )  # fmt: skip


def product(g: Graph) -> None:
    """Two values contracted over their last or last but one dim, the dims before as batch."""
    x = g.pick(lambda value: value.element in ("f32", "f64") and 1 < len(value.dims) < 4)
    if x is None or x.bits > MOST_BITS // 2:
        return
    batch = len(x.dims) - 2
    y = g.pick(
        lambda value: value.element == x.element and len(value.dims) == len(x.dims) and value.dims[:batch] == x.dims[:batch]
        and x.dims[-1] in value.dims[batch:] and value.bits <= MOST_BITS // 2
    )  # fmt: skip
    assert y is not None
    contracted = batch + y.dims[batch:].index(x.dims[-1])
    free = 2 * batch + 1 - contracted
    dims = [*x.dims[:batch], x.dims[batch], y.dims[free]]
    batches = f"batching_dims = {list(range(batch))} x {list(range(batch))}, " if batch else ""
    g.emit(
        f"stablehlo.dot_general {x.name}, {y.name}, {batches}contracting_dims = [{len(x.dims) - 1}] x [{contracted}]"
        f" : ({g.of(x)}, {g.of(y)}) -> {g.type(dims, x.element)}",
        dims, x.element, x.exact and y.exact, x.bits + y.bits + LARGEST_COUNT,
    )  # fmt: skip


def softmax(g: Graph) -> None:
    x = g.pick(lambda value: value.element in ("f32", "f64", "bf16") and len(value.dims) > 0 and value.exact)
    if x is not None:
        softmax_of(g, x)


def softmax_of(g: Graph, x: Value) -> Value:
    """Along the last dim."""
    axis = len(x.dims) - 1
    places, kind = list(range(axis)), g.of(x)
    top = g.reduce_line("maximum", EXTREMES[x.element][0], x.name, x.dims, [axis], x.element)
    top = g.broadcast_line(top, x.dims[:-1], x.dims, x.element, places)
    raised = g.line(f"stablehlo.exponential {g.line(f'stablehlo.subtract {x.name}, {top} : {kind}')} : {kind}")
    total = g.reduce_line("add", "0.0", raised, x.dims, [axis], x.element)
    total = g.broadcast_line(total, x.dims[:-1], x.dims, x.element, places)
    return g.emit(f"stablehlo.divide {raised}, {total} : {kind}", x.dims, x.element, False)


def attention(g: Graph) -> None:
    """Scores of x with y, perhaps scaled or masked, softmax over them, and the sum of y weighted by it."""
    x = g.pick(lambda value: value.element == "f32" and value.exact and value.bits < 8 and 1 < len(value.dims) < 4)
    if x is None:
        return
    y = g.pick(lambda value: value.element == "f32" and value.exact and value.bits < 8 and value.dims[:-2] == x.dims[:-2]
               and len(value.dims) == len(x.dims) and value.dims[-1] == x.dims[-1])  # fmt: skip
    assert y is not None
    batch = len(x.dims) - 2
    batches = f"batching_dims = {list(range(batch))} x {list(range(batch))}, " if batch else ""
    dims = (*x.dims[:-1], y.dims[-2])
    kinds = f"({g.of(x)}, {g.of(y)}) -> {g.type(dims, 'f32')}"
    scores = g.line(f"stablehlo.dot_general {x.name}, {y.name}, {batches}contracting_dims = [{batch + 1}] x [{batch + 1}] : {kinds}")
    if g.chance(0.5):
        scores = g.line(f"stablehlo.multiply {scores}, {g.splat('0.125', dims, 'f32')} : {g.type(dims, 'f32')}")
    if g.chance(0.3):
        rows, columns = (g.line(f'"disc.iota"() {{dim = {axis} : i64}} : () -> {g.type(dims, "i64")}') for axis in (batch, batch + 1))
        flags = g.line(f"stablehlo.compare LE, {columns}, {rows} : ({g.type(dims, 'i64')}, {g.type(dims, 'i64')}) -> {g.type(dims, 'i1')}")
        low = g.splat("-30.0", dims, "f32")
        scores = g.line(f"stablehlo.select {flags}, {scores}, {low} : {g.type(dims, 'i1')}, {g.type(dims, 'f32')}")
    weights = softmax_of(g, Value(scores, dims, "f32", True, 20))
    kinds = f"({g.of(weights)}, {g.of(y)}) -> {g.of(x)}"
    g.emit(
        f"stablehlo.dot_general {weights.name}, {y.name}, {batches}contracting_dims = [{batch + 1}] x [{batch}] : {kinds}",
        x.dims,
        "f32",
        False,
    )


def layernorm(g: Graph) -> None:
    x = g.pick(lambda value: value.element in ("f32", "f64") and len(value.dims) > 0)
    if x is None:
        return
    axis, kind = len(x.dims) - 1, g.of(x)
    places, kept = list(range(axis)), x.dims[:-1]
    small = g.type(kept, x.element)
    count = g.line(f'"disc.dim_value"() {{expr = "{x.dims[-1]} + 1"}} : () -> tensor<i64>')
    count = g.line(f"stablehlo.convert {count} : (tensor<i64>) -> tensor<{x.element}>")
    count = g.broadcast_line(count, (), kept, x.element, ())

    def mean(value: str) -> str:
        total = g.reduce_line("add", "0.0", value, x.dims, [axis], x.element)
        return g.line(f"stablehlo.divide {total}, {count} : {small}")

    middle = g.broadcast_line(mean(x.name), kept, x.dims, x.element, places)
    centered = g.line(f"stablehlo.subtract {x.name}, {middle} : {kind}")
    spread_out = mean(g.line(f"stablehlo.multiply {centered}, {centered} : {kind}"))
    shifted = g.line(f"stablehlo.add {spread_out}, {g.splat('1.0', kept, x.element)} : {small}")
    scale = g.line(f"stablehlo.rsqrt {shifted} : {small}")
    g.emit(f"stablehlo.multiply {centered}, {g.broadcast_line(scale, kept, x.dims, x.element, places)} : {kind}", x.dims, x.element, False)


MAKERS: tuple[Callable[[Graph], None], ...] = (
    unary, unary, binary, binary, binary, binary, transcendental, transcendental, divide, select, select, convert, iota, dim_value,
    transpose, transpose, reshape, reshape, reshape, broadcast, broadcast, slice_dim, slice_dim, pad, concatenate, reverse, gather,
    reduce, reduce, reduce, argmax, cumulative, linear, linear, product, softmax, layernorm, attention, dynamic_slice, clamp,
)  # fmt: skip


def random_module(seed: int) -> str:
    """A module of stage `named` with 5 to 40 steps over 2 to 4 symbols."""
    g = Graph(np.random.default_rng(seed))
    symbols = [Dim.symbol(f"S{number}") for number in range(int(g.random.integers(2, 5)))]
    arguments = _arguments(g, symbols)
    for _ in range(int(g.random.integers(5, 41))):
        g.choose(MAKERS)(g)
    made = g.values[len(arguments) :] or g.values
    results = list(dict.fromkeys([made[-1], *(g.choose(made) for _ in range(int(g.random.integers(0, 5))))]))
    kinds = ", ".join(g.of(value) for value in results)
    header = ", ".join(f"{value.name}: {g.of(value)}" for value in arguments)
    body = "\n  ".join([*g.lines, f"return {', '.join(value.name for value in results)} : {kinds}"])
    return f"{_definitions(g, arguments)}\nfunc.func @main({header}) -> ({kinds}) {{\n  {body}\n}}\n"


def _arguments(g: Graph, symbols: Sequence[Dim]) -> list[Value]:
    """A float tensor over every symbol first, then others of several types; one perhaps with a dim that is 1 or another's size."""
    elements = ["f32", g.choose(["f32", "f32", "f64", "f16", "bf16"]), "f32", g.choose(["i64", "i32", "i8", "ui8", "i1"])]
    fixed = [Dim.of(size) for size in (1, 2, 3, 4, 6, 8, 16, 24)]
    for number, element in enumerate(elements):
        sizes = [symbols[number % len(symbols)]]
        for _ in range(int(g.random.integers(1, 3))):
            sizes.append(g.choose(symbols) if g.chance(0.35) and len(sizes) < 2 else g.choose(fixed))
        dims = tuple(sizes[each] for each in g.random.permutation(len(sizes)))
        g.values.append(Value(f"%x{number}", dims, element, True, 6))
    if g.chance(0.5):
        g.maybe["M0"] = str(symbols[0])
        g.values.append(Value("%x4", (Dim.symbol("M0"), *g.values[0].dims[g.values[0].dims.index(symbols[0]) + 1 :]), "f32", True, 6))
    return list(g.values)


def _definitions(g: Graph, arguments: Sequence[Value]) -> str:
    sources: dict[str, str] = {}
    for number, value in enumerate(arguments):
        for axis, dim in enumerate(value.dims):
            if not dim.is_const:
                sources.setdefault(str(dim), f"arg{number}.{axis}")
    lines = [definition(name, f'source = "{source}"') for name, source in sources.items()]
    return "\n".join([*lines, *(definition(name, f'expr = "{expression}"') for expression, name in g.derived.items())])


def definition(name: str, origin: str) -> str:
    return f'"disc.symbolic_dim"() {{sym_name = "{name}", min = 0 : i64, divisor = 1 : i64, {origin}}} : () -> ()'
