"""Compiles a module of stage `named` once, runs it on many shapes and both ISA levels, and compares it with the interpreter.

How far a result may be from the interpreter's is measured: the module is also interpreted with noise of a few units in the last place
on every result that rounds, and what that changes, times a margin, is the tolerance. Values that need no rounding must be equal.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch_mlir import ir

from disc.api import executable_of
from disc.codegen.session import compile_state, generate
from disc.config import Options
from disc.errors import DiscError
from disc.ir.bf16 import bf16_bits, bf16_values
from disc.ir.dialect import disc_context
from disc.ir.interp.oracle import Symbols, evaluate_op, make_scope
from disc.ir.interp.values import element_name, held_dtype, stored_weight
from disc.ir.ops import block_ops, int_attr, ints_attr, main_block, string_attr
from disc.ir.passes import CompileState, run_passes
from disc.ir.stages import check_stage, load_env, parse_module
from disc.ir.weights import WeightTable
from disc.passes.pipelines import pipeline
from disc.passes.shape.normalize_reductions import NormalizeReductions
from disc.ral.executable import Executable
from disc.shapes import parse_dim
from disc.speculation.schedules import Schedule
from disc.speculation.session import open_session
from disc.speculation.tree import LEAF, Tree
from disc.targets.x86 import host_isa

Array = np.ndarray[Any, Any]
# Small blocks, so that the small matrices of random graphs take several; both sides of a choice occur.
TREE = Tree((Schedule(12, 16, 1, 0), Schedule(6, 64, 0, 1)), ((0, 5, 1, 2), (LEAF, 0, 0, 0), (LEAF, 1, 0, 0)))
TARGETS = ("x86-64-v3", "x86-64-v4") if host_isa() == "x86-64-v4" else ("x86-64-v3",)
ROUNDING = {"f64": 2.0**-50, "f32": 2.0**-21, "f16": 2.0**-9, "bf16": 2.0**-6}  # some units in the last place
STEPS = (1.0, 2.0**-3, 2.0**-6, 2.0**-12, 2.0**-20)  # sums of multiples of a step are exact below 2^mantissa steps
MANTISSA = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
SAMPLES, MARGIN = 3, 8.0
SMALL, LARGE = (1, 2, 3, 4, 5), (7, 8, 9, 13, 15, 16, 17, 31, 32, 33, 67)
SIZE_CHOICES = 6

SUMS = frozenset({"stablehlo.dot_general", "stablehlo.reduce", "disc.cumulative"})
ROUND_ONCE: dict[str, Callable[[Array, Array], Array]] = {
    "stablehlo.add": np.add, "stablehlo.subtract": np.subtract, "stablehlo.multiply": np.multiply,
}  # fmt: skip
_HLO = "abs and ceil clamp compare concatenate constant convert floor maximum minimum negate not or reverse select sign transpose xor"
_DISC = "broadcast_in_dim diagonals dim_value gather iota pad reshape slice unfold weight"
NEVER_ROUND = frozenset([*(f"stablehlo.{name}" for name in _HLO.split()), *(f"disc.{name}" for name in _DISC.split())])


@dataclass(frozen=True)
class Failure:
    """What went wrong. kind: what must stay the same while the module shrinks; text: all that is known."""

    kind: str
    text: str


def check(text: str, seed: int = 0, shapes: int = SIZE_CHOICES) -> Failure | None:
    """Compiles and runs the module; None where everything agrees. The inputs depend on `seed` and the symbols alone."""
    with disc_context():
        return _check(text, seed, shapes)


def _check(text: str, seed: int, shapes: int) -> Failure | None:
    try:
        module = normalized(text)
        module.operation.verify()
        check_stage(module, "named")
    except (DiscError, ir.MLIRError) as error:
        return Failure("invalid module", str(error))
    weights = small_weights(module, np.random.default_rng(seed))
    runs = [_inputs(module, sizes, seed, number) for number, sizes in enumerate(_sizes(module, np.random.default_rng(seed), shapes))]
    try:
        wanted = [interpret_noisily(module, inputs, weights) for inputs in runs]
    except Exception as error:
        return Failure("the interpreter refuses", "".join(traceback.format_exception(error)))
    try:
        executables = compile_named(normalized(text), weights)
    except Exception as error:
        inner = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
        return Failure(f"{type(error.__cause__ or error).__name__} in {inner.name}", "".join(traceback.format_exception(error)))
    elements = [element_name(argument.type) for argument in main_block(module).arguments]
    for inputs, results in zip(runs, wanted, strict=True):
        for isa, executable in executables.items():
            failure = _compare(executable, isa, elements, inputs, results)
            if failure is not None:
                return failure
    return None


def normalized(text: str) -> ir.Module:
    """The module with reductions as the stages after the front end require them."""
    module = parse_module(text)
    NormalizeReductions().apply(module, CompileState(WeightTable(), Options(cache=False)))
    return module


def compile_named(module: ir.Module, weights: WeightTable) -> dict[str, Executable]:
    """One executable per ISA level that this machine runs."""
    session = open_session(TARGETS, Options(cache=False, threads=2), TREE)
    state = compile_state(WeightTable(dict(weights.entries)), session)
    run_passes(module, pipeline(stage="named", tree=session.tree), state)
    built = generate(module, state, session)
    return {isa: executable_of(module, built, session, {"single": False}, isa=isa) for isa in TARGETS}


def _compare(executable: Executable, isa: str, elements: Sequence[str], inputs: Sequence[Array], wanted: Sequence[Noisy]) -> Failure | None:
    sizes = ", ".join(str(each.shape) for each in inputs)
    given = [bf16_bits(each) if element == "bf16" else each for each, element in zip(inputs, elements, strict=True)]
    try:
        results = executable(*given)
    except DiscError as error:
        return Failure(f"{type(error).__name__} at run time", f"{isa}, inputs {sizes}: {error}")
    assert isinstance(results, tuple)
    for number, (ours, theirs) in enumerate(zip(results, wanted, strict=True)):
        held = bf16_values(ours) if theirs.element == "bf16" else ours
        difference = theirs.difference(held)
        if difference:
            return Failure("wrong values", f"result {number} on {isa}, inputs {sizes}: {difference}")
    return None


# --- data -------------------------------------------------------------------------------------------------------------------


def small_weights(module: ir.Module, random: np.random.Generator) -> WeightTable:
    """Multiples of 1/8 for every `disc.weight`."""
    table = WeightTable()
    for op in block_ops(main_block(module)):
        if op.name == "disc.weight":
            shape, element = list(ir.RankedTensorType(op.results[0].type).shape), element_name(op.results[0].type)
            table.entries[string_attr(op, "name")] = stored_weight(_data(shape, element, random), element)
    return table


def _data(shape: Sequence[int], element: str, random: np.random.Generator) -> Array:
    dtype = held_dtype(element)
    if dtype.kind == "f":
        return (random.integers(-16, 17, size=shape) / 8).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, size=shape).astype(dtype)
    return random.integers(0 if dtype.kind == "u" else -9, 10, size=shape).astype(dtype)


def _sizes(module: ir.Module, random: np.random.Generator, count: int) -> list[dict[str, int]]:
    """Values of the base symbols: all ones, one of them zero, each large in turn, and dims that may broadcast being 1 or the full size."""
    names = sorted(load_env(module).sources)
    partners = _partners(module)
    found: list[dict[str, int]] = []
    for number in range(count):
        large = names[(number + int(random.integers(len(names)))) % len(names)] if names else ""
        sizes = {name: int(random.choice(LARGE if name == large else SMALL)) for name in names}
        if number == 0:
            sizes = dict.fromkeys(names, 1)
        if number == 1:
            sizes[large] = 0
        for narrow, wide in partners.items():
            if narrow in sizes and (wide.isdecimal() or wide in sizes):
                sizes[narrow] = int(random.choice([1, int(wide) if wide.isdecimal() else sizes[wide]]))
        found.append(sizes)
    return found


def _partners(module: ir.Module) -> dict[str, str]:
    """Symbol of a dim that may broadcast → the symbol or size it broadcasts to."""
    found: dict[str, str] = {}
    for op in block_ops(main_block(module)):
        for axis in ints_attr(op, "maybe"):
            narrow, wide = (ir.ArrayAttr(ir.RankedTensorType(value.type).encoding) for value in (op.operands[0], op.results[0]))
            found[str(narrow[axis]).removeprefix("@")] = str(wide[ints_attr(op, "dims")[axis]]).removeprefix("@").split(" :")[0]
    return found


def _inputs(module: ir.Module, sizes: dict[str, int], seed: int, number: int) -> list[Array]:
    """Data for every argument; the fourth choice of sizes gets NaN, infinities and negative zeros."""
    values = dict(sizes)
    for op in module.body.operations:
        if op.operation.name == "disc.symbolic_dim" and "expr" in op.operation.attributes:
            values[string_attr(op.operation, "sym_name")] = parse_dim(string_attr(op.operation, "expr")).evaluate(sizes)
    scope = make_scope(values, None)
    arrays: list[Array] = []
    for argument in main_block(module).arguments:
        random = np.random.default_rng((seed, number, len(arrays)))
        array = _data(scope.shape(argument.type), element_name(argument.type), random)
        if number == 3 and array.dtype.kind == "f":
            special = random.choice(np.array([np.nan, np.inf, -np.inf, -0.0]), size=array.shape)
            array = np.where(random.random(array.shape) < 0.1, special, array).astype(array.dtype)
        arrays.append(array)
    return arrays


# --- the interpreter with noise ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noisy:
    """A value, and the same value after noise (none for one that needed no rounding)."""

    value: Array
    element: str
    samples: tuple[Array, ...] = ()

    def variant(self, number: int) -> Array:
        return self.samples[number] if self.samples else self.value

    def difference(self, ours: Array) -> str:
        """How `ours` differs by more than it may; "" where it does not."""
        if ours.shape != self.value.shape or ours.dtype != self.value.dtype:
            return f"{ours.dtype}{ours.shape} instead of {self.value.dtype}{self.value.shape}"
        if ours.dtype.kind != "f":
            differs, undecided = ours != self.value, _any([each != self.value for each in self.samples], ours.shape)
        else:
            differs, undecided = self._float_difference(ours.astype(np.float64))
        places = np.argwhere(differs & ~undecided)
        shown = ", ".join(f"{ours[tuple(at)]!s} for {self.value[tuple(at)]!s} at {[int(each) for each in at]}" for at in places[:4])
        return f"{len(places)} of {ours.size} elements, {'rounded' if self.samples else 'exact'}: {shown}" if len(places) else ""

    def _float_difference(self, ours: Array) -> tuple[Array, Array]:
        theirs = self.value.astype(np.float64)
        noisy = [each.astype(np.float64) for each in self.samples]
        with np.errstate(all="ignore"):
            finite = np.isfinite(theirs)
            same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
            # Terms that are equal round alike, where noise averages out: hence a least tolerance.
            allowed = 4 * ROUNDING[self.element] * np.abs(theirs) if noisy else np.zeros_like(theirs)
            for each in noisy:
                allowed = np.maximum(allowed, MARGIN * np.abs(each - theirs))
            tiny = np.finfo(self.value.dtype).tiny if noisy else 0.0
            differs = np.where(finite, ~(np.abs(ours - theirs) <= allowed + tiny), ~same) & ~same
        undecided = _any([(np.isnan(each) != np.isnan(theirs)) | (np.isinf(each) != np.isinf(theirs)) for each in noisy], ours.shape)
        return differs, undecided


def _any(masks: Sequence[Array], shape: tuple[int, ...]) -> Array:
    return np.any(masks, axis=0) if masks else np.zeros(shape, np.bool_)


@dataclass
class _Run:
    symbols: dict[str, int]
    weights: WeightTable
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def results(self, op: ir.Operation, operands: list[Noisy]) -> list[Noisy]:
        values = self.evaluate(op, [each.value for each in operands])
        elements = [element_name(result.type) for result in op.results]
        if not any(each.samples for each in operands) and self.is_exact(op, [each.value for each in operands], values):
            return [Noisy(value, element) for value, element in zip(values, elements, strict=True)]
        samples = [self.evaluate(op, [each.variant(number) for each in operands]) for number in range(SAMPLES)]
        rounds = op.name not in NEVER_ROUND or op.name == "stablehlo.convert"
        scales = self.scales(op, operands, values) if rounds else values
        found: list[Noisy] = []
        for position, (value, element) in enumerate(zip(values, elements, strict=True)):
            noisy = [each[position] for each in samples]
            if rounds and element in ROUNDING:
                noisy = [self.disturbed(each, scales[position], element) for each in noisy]
            found.append(Noisy(value, element, tuple(noisy)))
        return found

    def evaluate(self, op: ir.Operation, operands: list[Array]) -> list[Array]:
        return evaluate_op(op, operands, self.symbols, self.weights)

    def scales(self, op: ir.Operation, operands: list[Noisy], values: list[Array]) -> list[Array]:
        """What rounding errors are relative to: for a sum the sum of magnitudes; a scan rounds once per term."""
        if op.name not in SUMS or len(op.results) > 1 or values[0].dtype.kind != "f":
            return values
        totals = self.evaluate(op, [np.abs(each.value) for each in operands])
        rounds = 1.0 + values[0].shape[int_attr(op, "dim")] / 16 if op.name == "disc.cumulative" else 1.0
        return [total.astype(np.float64) * rounds for total in totals]

    def disturbed(self, value: Array, scale: Array, element: str) -> Array:
        with np.errstate(all="ignore"):
            noise = self.random.choice([-1.0, 1.0], value.shape) * self.random.uniform(0.5, 1.0, value.shape) * ROUNDING[element]
            change = np.where(np.isfinite(scale), scale.astype(np.float64) * noise, 0.0)
            return (value.astype(np.float64) + change).astype(value.dtype)

    def is_exact(self, op: ir.Operation, operands: list[Array], values: list[Array]) -> bool:
        """True when every implementation must compute exactly these values from these operands."""
        if op.name in NEVER_ROUND or all(value.dtype.kind != "f" for value in values):
            return True
        with np.errstate(all="ignore"):
            if op.name in ROUND_ONCE:
                wide = np.longdouble if values[0].dtype == np.float64 else np.float64
                full = ROUND_ONCE[op.name](operands[0].astype(wide), operands[1].astype(wide))
                return bool(np.array_equal(full, values[0].astype(wide), equal_nan=True))
            if op.name not in SUMS:
                return False
            if len(values) > 1 or (op.name == "stablehlo.reduce" and "stablehlo.add" not in str(op)):
                return True
            total = self.evaluate(op, [np.abs(each) for each in operands])[0].astype(np.float64)
        parts = [*(each.astype(np.float64) for each in operands), total]
        limit = 2.0 ** MANTISSA[element_name(op.results[0].type)] * self.step(parts[:-1])
        return all(bool(np.isfinite(each).all()) for each in parts) and bool((total <= limit).all())

    @staticmethod
    def step(operands: Sequence[Array]) -> float:
        """The finest step of products of the operands' elements."""
        step = 1.0
        with np.errstate(all="ignore"):
            for each in operands:
                step *= next((size for size in STEPS if bool((np.mod(each, size) == 0).all())), 0.0)
        return step


def interpret_noisily(module: ir.Module, inputs: Sequence[Array], weights: WeightTable) -> list[Noisy]:
    """Runs `@main` with noise beside it. Raises CompilerBug where a value is too large for a test."""
    run = _Run(Symbols(module, inputs).values, weights)
    block = main_block(module)
    values: dict[ir.Value, Noisy] = {
        argument: Noisy(array, element_name(argument.type)) for argument, array in zip(block.arguments, inputs, strict=True)
    }
    for op in block_ops(block):
        operands = [values[operand] for operand in op.operands]
        if op.name == "func.return":
            return operands
        values.update(zip(op.results, run.results(op, operands), strict=True))
    return []
