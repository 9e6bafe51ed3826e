"""Builds StableHLO: tensors that know their symbolic shape and torch dtype, and the few ops every rule is made of.

Shape operands are made from the sizes of the function's arguments alone, so two dims that PyTorch knows to be equal are one value.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import sympy
import torch
from sympy.logic.boolalg import BooleanAtom
from torch import fx
from torch.utils._sympy import functions as torch_sympy
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy
from torch_mlir import ir

from disc.frontend import computed_numbers
from disc.frontend.branch_demands import Premise, only_in, within
from disc.frontend.conditions import relation
from disc.frontend.decisions import Decision, Found
from disc.frontend.symbol_names import legible
from disc.frontend.symbols import (
    IndexArithmetic,
    Shape,
    Size,
    SymbolError,
    provably_non_negative,
    same_shape,
    same_size,
    shape_environment,
    to_size,
    to_text,
)
from disc.ir.weights import Weight, WeightTable

MLIR_TYPES: dict[torch.dtype, str] = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.bool: "i1", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.uint8: "ui8", torch.uint16: "ui16", torch.uint32: "ui32", torch.uint64: "ui64",
}  # fmt: skip

# A complex tensor is a real one with one more dim of size 2, as it lies in memory.
PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
COMPARISONS = {"eq": "EQ", "ne": "NE", "lt": "LT", "le": "LE", "gt": "GT", "ge": "GE"}
REDUCED_PRECISION = (torch.float16, torch.bfloat16)
# Integers for which the conversion of a float out of range has one result in eager mode.
WRAPPING = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16)


REAL_FUNCTIONS = (
    ((torch_sympy.IntTrueDiv, torch_sympy.FloatTrueDiv), "divide"), (sympy.Mul, "multiply"), (sympy.Add, "add"),
    ((sympy.Pow, torch_sympy.FloatPow, torch_sympy.PowByNatural), "power"), (torch_sympy.Max, "maximum"), (torch_sympy.Min, "minimum"),
)  # fmt: skip


RELATIONS: Mapping[type[sympy.Basic], str] = {
    sympy.StrictGreaterThan: "gt", sympy.GreaterThan: "ge", sympy.StrictLessThan: "lt", sympy.LessThan: "le", sympy.Equality: "eq",
    sympy.Unequality: "ne",
}  # fmt: skip
ROUNDED = {
    torch_sympy.TruncToInt: None, torch_sympy.FloorToInt: "floor", torch_sympy.CeilToInt: "ceil",
    torch_sympy.RoundToInt: "round_nearest_even",
}  # fmt: skip
LEAST = -(2**63) + 1  # of whole parts: what i64 does not hold becomes the number below


def is_integral(number: sympy.Expr) -> bool:
    """Whether it is computed in integers, or is a float's whole part that integers compute as exactly."""
    if not computed_numbers.is_whole(number):
        return False
    if not number.has(torch_sympy.IntTrueDiv, torch_sympy.FloatTrueDiv, torch_sympy.ToFloat, sympy.Float):
        return True
    try:
        to_text(number)
    except SymbolError:
        return False
    return True


NO_RULE = "no lowering for this op"


class RuleError(Exception):
    """A rule cannot lower this use of its op; the message is the reason that the user reads."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """An SSA value with its symbolic shape and torch dtype."""

    value: ir.Value
    shape: Shape
    dtype: torch.dtype

    @property
    def rank(self) -> int:
        return len(self.shape)


def element_type(dtype: torch.dtype) -> ir.Type:
    """Raises: RuleError for a dtype that disc has no type for (quantized, float8), and for complex ones."""
    if dtype not in MLIR_TYPES:
        raise RuleError(f"tensors of {dtype} are not supported")
    return ir.Type.parse(MLIR_TYPES[dtype])


def check_kind(tensor: torch.Tensor) -> None:
    """Raises: RuleError for a tensor of PyTorch that the IR cannot have."""
    element_type(PARTS.get(tensor.dtype, tensor.dtype))
    if tensor.layout != torch.strided:
        raise RuleError(f"tensors of layout {tensor.layout} are not supported")
    if tensor.device.type != "cpu":
        raise RuleError(f"tensors on device {tensor.device} are not supported")


def tensor_type(shape: Shape, dtype: torch.dtype) -> ir.RankedTensorType:
    if dtype in PARTS:
        return tensor_type((*shape, 2), PARTS[dtype])
    dynamic = ir.ShapedType.get_dynamic_size()
    return ir.RankedTensorType.get([size if isinstance(size, int) else dynamic for size in shape], element_type(dtype))


def is_static(shape: Shape) -> bool:
    return all(isinstance(size, int) for size in shape)


def slice_limit(start: Size, size: Size, stride: int) -> Size:
    """One past the last element of a slice; a static empty slice ends where it starts."""
    limit = to_size(sympy.sympify(start) + (sympy.sympify(size) - 1) * stride + 1)
    return max(limit, start) if isinstance(limit, int) and isinstance(start, int) else limit


def wrap_dim(dim: int, rank: int) -> int:
    """Raises: RuleError for a dim that the tensor has not; without data, not every op of PyTorch checks it."""
    wrapped = dim + max(rank, 1) if dim < 0 else dim
    if not 0 <= wrapped < max(rank, 1):
        raise RuleError(f"dim {dim} of a tensor with {rank} dims")
    return wrapped


def integers(values: Sequence[int]) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(list(values))


class OpBuilder:
    """Emits ops at the current insertion point and location."""

    def __init__(self, sizes: IndexArithmetic, weights: WeightTable, ranges: dict[sympy.Symbol, ValueRanges]) -> None:
        self.sizes = sizes
        self.weights = weights
        self.ranges = ranges
        self.decisions: list[Found] = []
        self.seed: Tensor | None = None  # of the call's random numbers: i64
        self._streams = 0
        self.reals: dict[sympy.Symbol, Tensor] = {}  # symbols of floats that the program reads out of tensors: f64, without dims
        self.least: dict[str, int] = {}  # of symbols that the program binds, where there is a least value
        self.kept: frozenset[fx.Node] = frozenset()  # buffers whose next values the program returns
        self.held: list[tuple[Tensor, str]] | None = None  # in a graph of control flow: assertions, and what calls say where one is false
        self.premise: Premise = None  # of the calls that run the graph which is lowered
        self.places: Mapping[str, str] = {}  # symbol → "dim 1 of input 'x'", for messages
        sizes.compute = self.compute

    def is_unknown(self, size: Size) -> bool:
        """Whether a size is a symbol that neither an input nor an op has bound."""
        return isinstance(size, sympy.Symbol) and size.name not in self.sizes.bases

    def solve(self, tensor: torch.Tensor, symbol: Size, value: sympy.Expr | int) -> None:
        """Tells PyTorch's environment, which made an unknown symbol for a size of `tensor`, what it is: wherever it occurs, it is that."""
        environment = shape_environment([tensor])
        assert environment is not None and isinstance(symbol, sympy.Symbol)
        environment.replacements[symbol] = sympy.sympify(value)
        environment._replacements_version_counter += 1
        environment._update_version_counter()

    def bind(self, number: Tensor, size: Size | None, what: str, *, most: Size | None = None, least: int | None = None) -> Size:
        """The size that a number is, i64 without dims, that the program computes.

        size: what PyTorch calls it: a symbol gets its meaning here, what is known already is checked in every call; None: it has no name.
        what: it, in words of messages; most, least: what it is never above or below, which is checked as well.
        """
        new = size is not None and self.is_unknown(size)
        symbol = size if new else sympy.Symbol(f"made{len(self.sizes.late)}", integer=True)
        assert isinstance(symbol, sympy.Symbol)
        attributes: dict[str, ir.Attribute] = {"symbol": ir.StringAttr.get(symbol.name), "what": ir.StringAttr.get(what)}
        if most is not None:
            attributes["most"] = ir.StringAttr.get(to_text(most))
        if least is not None or most is not None:
            self.least[symbol.name] = least or 0
        made = self.op("disc.size_of", [number.value], (), torch.int64, **attributes)
        self.sizes.bind(symbol.name, made.value)
        if new or size is None:
            return symbol
        self.require("==", symbol, size, what)
        return size

    def compute(self, name: str, number: sympy.Basic) -> None:
        """Binds a number of `computed_numbers`, of that name, at the insertion point."""
        symbol = sympy.Symbol(name, integer=True)
        operands = [self._real_scalar(part) for part in number.args if isinstance(part, sympy.Expr)]
        words = legible(computed_numbers.words(number), self.places)
        if not number.args:  # of sizes that something else has fixed
            value = int(bool(number)) if isinstance(number, BooleanAtom) else int(number)  # pyright: ignore[reportArgumentType]
            self.bind(self.scalar(value, torch.int64), symbol, words, least=value, most=sympy.Integer(value))
            return
        sign = computed_numbers.COMPARISONS.get(type(number))
        if sign is not None:
            self.bind(self._truth(sign, *operands), symbol, f"the truth (0 or 1) of {words}", least=0, most=1)
            return
        (value,) = operands
        rounding = ROUNDED[type(number)]
        whole = self.convert(value if rounding is None else self.unary(rounding, value), torch.int64)
        lower = bound_sympy(number, self.ranges).lower if isinstance(number, sympy.Expr) else sympy.Integer(LEAST)
        least = max(int(lower), LEAST) if lower.is_Integer else LEAST
        self.bind(whole, symbol, words, least=least)

    def _truth(self, sign: str, left: Tensor, right: Tensor) -> Tensor:
        """Whether a comparison holds, 0 or 1; -1, where one of the two is not finite: Python has refused to compute it."""
        most = self.scalar(torch.finfo(torch.float64).max, torch.float64)
        finite = [self.compare("le", self.unary("abs", each), most) for each in (left, right)]
        holds = self.convert(self.compare(sign, left, right), torch.int64)
        return self.select(self.binary("and", *finite), holds, self.scalar(-1, torch.int64))

    def seed_of_call(self) -> Tensor:
        """Of the draws at the insertion point, i64 without dims.

        Raises: RuleError where the program has none.
        """
        if self.seed is None:
            raise RuleError("random numbers are not drawn here")
        return self.seed

    @contextmanager
    def seeded_by(self, number: Tensor) -> Iterator[None]:
        """Within, draws have a seed of their own for each value of `number`, i64 without dims: words of Philox at that position. Of two
        such contexts no seeds are equal but by a chance of 2^-64."""
        outer, stream = self.seed_of_call(), self.next_stream()
        low, high = (self.convert(self.philox(number, outer, stream, word), torch.int64) for word in (0, 1))
        self.seed = self.binary("or", low, self.binary("shift_left", high, self.scalar(32, torch.int64)))
        try:
            yield
        finally:
            self.seed = outer

    @contextmanager
    def only_when(self, premise: Premise) -> Iterator[None]:
        """Within, rules demand what they require of the calls alone that run a graph."""
        around, self.premise = self.premise, within(self.premise, premise)
        try:
            yield
        finally:
            self.premise = around

    @contextmanager
    def holding(self) -> Iterator[list[tuple[Tensor, str]]]:
        """Within, assertions are gathered, for what a graph of control flow returns to depend on them."""
        around, self.held = self.held, list[tuple[Tensor, str]]()
        try:
            yield self.held
        finally:
            self.held = around

    def philox(self, position: Tensor, seed: Tensor, stream: int, word: int) -> Tensor:
        """A random word, ui32, of each position (i64)."""
        number = ir.IntegerType.get_signless(64)
        attributes = {"stream": ir.IntegerAttr.get(number, stream), "word": ir.IntegerAttr.get(number, word)}
        return self.op("disc.philox", [position.value, seed.value], position.shape, torch.uint32, **attributes)

    def next_stream(self) -> int:
        """A number for each draw of the program."""
        self._streams += 1
        return self._streams - 1

    def require(self, sign: str, left: Size, right: Size, why: str, message: str = "") -> None:
        """The rule holds only where `left sign right`, a comparison of `disc.shapes`: it is proved, or checked in every call. message: what
        the error then says, in place of the comparison in words."""
        self.decisions.append(only_in(self.premise, Decision(relation(sign, left, right), why, message=message)))

    # --- raw ops ------------------------------------------------------------------------------------------------------------

    def op(self, kind: str, operands: Sequence[ir.Value], shape: Shape, dtype: torch.dtype, /, **attributes: ir.Attribute) -> Tensor:
        result = ir.Operation.create(kind, results=[tensor_type(shape, dtype)], operands=list(operands), attributes=attributes).result
        return Tensor(result, shape, dtype)

    def shape_operand(self, sizes: Sequence[Size]) -> ir.Value:
        kind = ir.RankedTensorType.get([len(sizes)], ir.IndexType.get())
        elements = [self.sizes.emit(size) for size in sizes]
        return ir.Operation.create("tensor.from_elements", results=[kind], operands=elements).result

    def integer_operand(self, sizes: Sequence[Size]) -> ir.Value:
        """As `shape_operand`, for the ops whose verifier refuses `index`."""
        kind = ir.RankedTensorType.get([len(sizes)], ir.IntegerType.get_signless(64))
        return ir.Operation.create("tensor.from_elements", results=[kind], operands=[self.integer(size) for size in sizes]).result

    def non_negative(self, size: Size) -> bool:
        return provably_non_negative(size, self.ranges)

    # --- constants ----------------------------------------------------------------------------------------------------------

    def scalar(self, value: bool | int | float, dtype: torch.dtype) -> Tensor:
        kind = element_type(dtype)
        attribute = (
            ir.FloatAttr.get(kind, float(value)) if dtype.is_floating_point else ir.IntegerAttr.get(kind, self._wrapped(value, dtype))
        )
        splat = ir.DenseElementsAttr.get_splat(tensor_type((), dtype), attribute)
        return self.op("stablehlo.constant", [], (), dtype, value=splat)

    def _wrapped(self, value: bool | int | float, dtype: torch.dtype) -> int:
        if dtype == torch.bool:
            return int(bool(value))
        if not math.isfinite(value):
            raise RuleError(f"{value} is no number of {dtype}")
        return int(value)

    def full(self, value: bool | int | float, shape: Shape, dtype: torch.dtype) -> Tensor:
        return self.broadcast(self.scalar(value, dtype), shape)

    def size_scalar(self, size: Size, dtype: torch.dtype) -> Tensor:
        """A size used as data."""
        if isinstance(size, int):
            return self.scalar(size, dtype)
        if not is_integral(size):
            return self.convert(self._real_scalar(size), dtype)
        data = self.op("tensor.from_elements", [self.integer(size)], (), torch.int64)
        return self.convert(data, dtype)

    def integer(self, size: Size) -> ir.Value:
        """A size as an i64 scalar."""
        i64 = ir.IntegerType.get_signless(64)
        return ir.Operation.create("arith.index_cast", results=[i64], operands=[self.sizes.emit(size)]).result

    def _real_scalar(self, number: sympy.Expr) -> Tensor:
        """A Python float computed from sizes, in f64 as Python computes it.

        Raises: SymbolError for functions that are not listed here.
        """
        double = torch.float64
        if number.is_number:
            return self.scalar(float(number), double)
        if isinstance(number, sympy.Symbol) and number in self.reals:
            return self.reals[number]
        if is_integral(number):
            return self.size_scalar(to_size(number), double)
        if isinstance(number, torch_sympy.ToFloat) and not isinstance(number.args[0], sympy.Expr):
            return self.convert(self.condition(number.args[0]), double)
        parts = [self._real_scalar(part) for part in number.args if isinstance(part, sympy.Expr)]
        if isinstance(number, torch_sympy.ToFloat | torch_sympy.Identity):
            return parts[0]
        if isinstance(number, sympy.Pow) and number.exp == 2:
            return self.binary("multiply", parts[0], parts[0])
        if isinstance(number, torch_sympy.OpaqueUnaryFn_sqrt):
            return self.unary("sqrt", parts[0])
        for kinds, op in REAL_FUNCTIONS:
            if isinstance(number, kinds):
                return functools.reduce(lambda a, b, op=op: self.binary(op, a, b), parts)
        raise SymbolError(f"the number {number} computed from sizes has no lowering")

    def condition(self, expression: sympy.Basic) -> Tensor:
        """A condition on sizes, or on floats that the program computes, as a value; where sizes alone are read, the compiler knows it."""
        if expression in (sympy.true, sympy.false):
            return self.scalar(expression == sympy.true, torch.bool)
        sign = RELATIONS.get(type(expression))
        if sign is not None:  # floats of sizes are compared in f64, as Python has them
            kind = torch.int64 if all(side.is_integer for side in expression.args) else torch.float64
            return self.compare(sign, *(self.size_scalar(to_size(side), kind) for side in expression.args))
        parts = [self.condition(each) for each in expression.args]
        if isinstance(expression, sympy.Not):
            return self.unary("not", parts[0])
        if not isinstance(expression, sympy.And | sympy.Or):
            raise RuleError(f"the condition {expression} on sizes is not supported")
        return functools.reduce(lambda a, b: self.binary("and" if isinstance(expression, sympy.And) else "or", a, b), parts)

    def weight(self, name: str, entry: Weight, shape: Shape, dtype: torch.dtype) -> Tensor:
        name = self.weights.add(name, entry)
        return self.op("disc.weight", [], shape, dtype, name=ir.StringAttr.get(name))

    def iota(self, shape: Shape, dim: int, dtype: torch.dtype) -> Tensor:
        dimension = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
        if is_static(shape):
            return self.op("stablehlo.iota", [], shape, dtype, iota_dimension=dimension)
        return self.op("stablehlo.dynamic_iota", [self.shape_operand(shape)], shape, dtype, iota_dimension=dimension)

    # --- elementwise --------------------------------------------------------------------------------------------------------

    def convert(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if x.dtype == dtype:
            return x
        if dtype == torch.bool:
            return self.compare("ne", x, self.scalar(0, x.dtype))
        if x.dtype.is_floating_point and dtype in WRAPPING:
            x = self._whole(x, dtype)
        return self.op("stablehlo.convert", [x.value], x.shape, dtype)

    def _whole(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """A float as the signed integer by way of which eager's kernels convert to `dtype`; that then wraps as any integer does. Its lowest
        number represents NaN and everything out of range."""
        word = torch.int64 if dtype == torch.int64 or (dtype, x.dtype) == (torch.uint8, torch.float64) else torch.int32
        wide = self.convert(x, torch.float32) if x.dtype in REDUCED_PRECISION else x
        low, high = (self.scalar(sign * 2.0 ** (torch.iinfo(word).bits - 1), wide.dtype) for sign in (-1, 1))
        inside = self.binary("and", self.compare("ge", wide, low), self.compare("lt", wide, high))
        return self.op("stablehlo.convert", [self.select(inside, wide, low).value], x.shape, word)

    def unary(self, name: str, x: Tensor) -> Tensor:
        return self.op(name if "." in name else f"stablehlo.{name}", [x.value], x.shape, x.dtype)

    def binary(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """`a <name> b` of one dtype; shapes that are not known to be equal go through `chlo.broadcast_<name>`.

        Raises: RuleError for a difference of bools, which eager refuses, too.
        """
        if name == "subtract" and a.dtype == torch.bool:
            raise RuleError("bools cannot be subtracted")
        if same_shape(a.shape, b.shape):
            return self.op(f"stablehlo.{name}", [a.value, b.value], a.shape, a.dtype)
        return self.op(f"chlo.broadcast_{name}", [a.value, b.value], self.broadcast_shape(a.shape, b.shape), a.dtype)

    def compare(self, direction: str, a: Tensor, b: Tensor) -> Tensor:
        dialect = "stablehlo" if same_shape(a.shape, b.shape) else "chlo"
        name = "stablehlo.compare" if dialect == "stablehlo" else "chlo.broadcast_compare"
        attribute = ir.Attribute.parse(f"#{dialect}<comparison_direction {COMPARISONS[direction]}>")
        shape = self.broadcast_shape(a.shape, b.shape)
        return self.op(name, [a.value, b.value], shape, torch.bool, comparison_direction=attribute)

    def select(self, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        operands = [condition.value, a.value, b.value]
        if same_shape(a.shape, b.shape) and same_shape(condition.shape, a.shape):
            return self.op("stablehlo.select", operands, a.shape, a.dtype)
        shape = self.broadcast_shape(self.broadcast_shape(condition.shape, a.shape), b.shape)
        return self.op("chlo.broadcast_select", operands, shape, a.dtype)

    def broadcast_shape(self, a: Shape, b: Shape) -> Shape:
        rank = max(len(a), len(b))
        padded = [(1,) * (rank - len(shape)) + shape for shape in (a, b)]
        return tuple(y if x == 1 else x if y == 1 or not isinstance(y, int) else y for x, y in zip(*padded, strict=True))

    def math(self, x: Tensor, body: Callable[[Tensor], Tensor]) -> Tensor:
        """`body` in f32 when x has a reduced precision, as PyTorch's CPU kernels compute."""
        if x.dtype not in REDUCED_PRECISION:
            return body(x)
        return self.convert(body(self.convert(x, torch.float32)), x.dtype)

    # --- shapes -------------------------------------------------------------------------------------------------------------

    def reshape(self, x: Tensor, shape: Shape) -> Tensor:
        if same_shape(x.shape, shape):
            return x
        if is_static(shape):
            return self.op("stablehlo.reshape", [x.value], shape, x.dtype)
        return self.op("stablehlo.dynamic_reshape", [x.value, self.shape_operand(shape)], shape, x.dtype)

    def unsqueeze(self, x: Tensor, dim: int) -> Tensor:
        return self.reshape(x, (*x.shape[:dim], 1, *x.shape[dim:]))

    def transpose(self, x: Tensor, permutation: Sequence[int]) -> Tensor:
        if list(permutation) == list(range(x.rank)):
            return x
        shape = tuple(x.shape[i] for i in permutation)
        return self.op("stablehlo.transpose", [x.value], shape, x.dtype, permutation=integers(permutation))

    def broadcast(self, x: Tensor, shape: Shape, dims: Sequence[int] | None = None) -> Tensor:
        """`x` expanded to `shape`; input dim i goes to dims[i] (default: aligned at the right, as in PyTorch).

        Raises: RuleError when a dim is neither 1 nor the result's size.
        """
        dims = list(range(len(shape) - x.rank, len(shape))) if dims is None else list(dims)
        if same_shape(x.shape, shape) and dims == list(range(x.rank)):
            return x
        if is_static(x.shape) and is_static(shape):
            return self.op("stablehlo.broadcast_in_dim", [x.value], shape, x.dtype, broadcast_dimensions=integers(dims))
        kept = [i for i, dim in enumerate(dims) if same_size(x.shape[i], shape[dim])]
        expanded = [i for i in range(x.rank) if i not in kept and x.shape[i] == 1]
        attributes = {"broadcast_dimensions": integers(dims)}
        attributes["known_expanding_dimensions"] = integers(expanded)
        attributes["known_nonexpanding_dimensions"] = integers(kept)
        return self.op("stablehlo.dynamic_broadcast_in_dim", [x.value, self.shape_operand(shape)], shape, x.dtype, **attributes)

    def concatenate(self, tensors: Sequence[Tensor], dim: int) -> Tensor:
        if len(tensors) == 1:
            return tensors[0]
        total: Size = to_size(sum((sympy.sympify(tensor.shape[dim]) for tensor in tensors), sympy.Integer(0)))
        shape = (*tensors[0].shape[:dim], total, *tensors[0].shape[dim + 1 :])
        dimension = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
        return self.op("stablehlo.concatenate", [tensor.value for tensor in tensors], shape, tensors[0].dtype, dimension=dimension)

    def slice(self, x: Tensor, starts: Sequence[Size], sizes: Shape, strides: Sequence[int]) -> Tensor:
        """The box of `sizes` elements from `starts`; the caller has clamped."""
        if same_shape(x.shape, sizes) and all(stride == 1 for stride in strides):
            return x
        limits = [slice_limit(start, size, stride) for start, size, stride in zip(starts, sizes, strides, strict=True)]
        if is_static(x.shape) and is_static(tuple(starts)) and is_static(tuple(limits)):
            attributes = {"start_indices": starts, "limit_indices": limits, "strides": strides}
            return self.op(
                "stablehlo.slice", [x.value], sizes, x.dtype, **{k: integers([int(i) for i in v]) for k, v in attributes.items()}
            )
        operands = [x.value, self.shape_operand(starts), self.shape_operand(limits), self.shape_operand(strides)]
        return self.op("stablehlo.real_dynamic_slice", operands, sizes, x.dtype)

    # --- regions ------------------------------------------------------------------------------------------------------------

    def scalar_region(self, op: ir.Operation, kind: str | None, dtype: torch.dtype) -> None:
        """Fills the region of a reduction or scatter: (a, b) → a <kind> b, or → b when kind is None."""
        scalar = tensor_type((), dtype)
        block = ir.Block.create_at_start(op.regions[0], [scalar, scalar], [op.location, op.location])
        with ir.InsertionPoint(block):
            result = block.arguments[1]
            if kind is not None:
                result = ir.Operation.create(f"stablehlo.{kind}", results=[scalar], operands=list(block.arguments)).result
            ir.Operation.create("stablehlo.return", operands=[result])

    def reduce(self, x: Tensor, kind: str, initial: bool | int | float, dims: Sequence[int]) -> Tensor:
        if not dims:
            return x
        shape = tuple(size for i, size in enumerate(x.shape) if i not in dims)
        operands = [x.value, self.scalar(initial, x.dtype).value]
        attributes = {"dimensions": integers(sorted(dims))}
        op = ir.Operation.create(
            "stablehlo.reduce", results=[tensor_type(shape, x.dtype)], operands=operands, attributes=attributes, regions=1
        )
        self.scalar_region(op, kind, x.dtype)
        return Tensor(op.result, shape, x.dtype)
