"""Every rule of `lift-batch` against a loop over the instances, in the interpreter: all arguments lifted, and every choice of shared ones."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from torch_mlir import ir

from disc.errors import CompilerBug, DiscError
from disc.ir.dialect import disc_context
from disc.ir.interp.oracle import interpret
from disc.ir.interp.values import element_name, held_dtype
from disc.ir.op_table import Kind, of_kind
from disc.ir.ops import main_block, main_function
from disc.ir.passes import CompileState
from disc.ir.stages import check_stage, parse_module
from disc.passes.graph.lift_batch import SHARED, LiftBatch
from disc.passes.graph.lift_rules import RULES

COUNTS = (0, 1, 3)


def t(*dims: int, element: str = "f32") -> str:
    return f"tensor<{'x'.join(map(str, dims))}x{element}, [{', '.join(map(str, dims))}]>" if dims else f"tensor<{element}>"


# op → (types of its operands, type of the result, the text with {0}, {1}, ... for operands).
CASES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "reshape": ((t(4, 6),), t(8, 3), '"disc.reshape"({0}) : ({in}) -> {out}'),
    "broadcast": ((t(6),), t(4, 6), '"disc.broadcast_in_dim"({0}) {{dims = array<i64: 1>, maybe = array<i64>}} : ({in}) -> {out}'),
    "broadcast number": ((t(),), t(4, 6), '"disc.broadcast_in_dim"({0}) {{dims = array<i64>, maybe = array<i64>}} : ({in}) -> {out}'),
    "transpose": ((t(2, 3, 5),), t(5, 2, 3), "stablehlo.transpose {0}, dims = [2, 0, 1] : ({in}) -> {out}"),
    "slice": ((t(7, 3),), t(3, 2), '"disc.slice"({0}) {{starts = ["1", "1"], strides = array<i64: 2, 1>}} : ({in}) -> {out}'),
    "reverse": ((t(4, 3),), t(4, 3), "stablehlo.reverse {0}, dims = [1] : {out}"),
    "concatenate": ((t(2, 3), t(4, 3)), t(6, 3), "stablehlo.concatenate {0}, {1}, dim = 0 : ({in}) -> {out}"),
    "pad": ((t(2, 3), t()), t(5, 5), '"disc.pad"({0}, {1}) {{low = ["1", "0"], interior = array<i64: 1, 1>}} : ({in}) -> {out}'),
    "add": ((t(4, 6), t(4, 6)), t(4, 6), "stablehlo.add {0}, {1} : {out}"),
    "add numbers": ((t(), t()), t(), "stablehlo.add {0}, {1} : {out}"),
    "select": ((t(element="i1"), t(4), t(4)), t(4), "stablehlo.select {0}, {1}, {2} : {p0}, {out}"),
    "select elements": ((t(4, element="i1"), t(4), t(4)), t(4), "stablehlo.select {0}, {1}, {2} : {p0}, {out}"),
    "clamp": ((t(), t(4), t()), t(4), "stablehlo.clamp {0}, {1}, {2} : ({in}) -> {out}"),
    "reduce": ((t(4, 6),), t(4), "stablehlo.reduce({0} init: %zero) applies stablehlo.add across dimensions = [1] : ({p0}, tensor<f32>) -> {out}"),
    "dot": ((t(4, 6), t(6, 5)), t(4, 5), "stablehlo.dot_general {0}, {1}, contracting_dims = [1] x [0] : ({in}) -> {out}"),
    "matrix and vector": ((t(4, 6), t(6)), t(4), "stablehlo.dot_general {0}, {1}, contracting_dims = [1] x [0] : ({in}) -> {out}"),
    "vectors": ((t(6), t(6)), t(), "stablehlo.dot_general {0}, {1}, contracting_dims = [0] x [0] : ({in}) -> {out}"),
    "batched dot": (
        (t(2, 6, 4), t(2, 5, 6)), t(2, 4, 5),
        "stablehlo.dot_general {0}, {1}, batching_dims = [0] x [0], contracting_dims = [1] x [2] : ({in}) -> {out}",
    ),
    "dot of three dims": ((t(4, 6), t(2, 6, 3)), t(4, 2, 3), "stablehlo.dot_general {0}, {1}, contracting_dims = [1] x [1] : ({in}) -> {out}"),
    "cumulative": ((t(4, 6),), t(4, 6), '"disc.cumulative"({0}) {{dim = 1 : i64, kind = "sum"}} : ({in}) -> {out}'),
    "gather": (
        (t(7, 3), t(5, element="i64")), t(5, 3),
        '"disc.gather"({0}, {1}) {{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], '
        'start_index_map = [0], index_vector_dim = 1>, sizes = ["1", "3"]}} : ({in}) -> {out}',
    ),
    "gather of one": (
        (t(3, 7), t(element="i64")), t(3),
        '"disc.gather"({0}, {1}) {{dimension_numbers = #stablehlo.gather<offset_dims = [0], collapsed_slice_dims = [1], '
        'start_index_map = [1], index_vector_dim = 0>, sizes = ["3", "1"]}} : ({in}) -> {out}',
    ),
    "gather of own rows": (
        (t(4, 7), t(4, 2, element="i64")), t(4, 2),
        '"disc.gather"({0}, {1}) {{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], '
        'start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, sizes = ["1", "1"]}} : ({in}) -> {out}',
    ),
    "dynamic slice": (
        (t(7, 4), t(element="i64"), t(element="i64")), t(3, 4),
        "stablehlo.dynamic_slice {0}, {1}, {2}, sizes = [3, 4] : ({in}) -> {out}",
    ),
    "update": (
        (t(7, 4), t(2, 4), t(element="i64"), t(element="i64")), t(7, 4),
        "stablehlo.dynamic_update_slice {0}, {1}, {2}, {3} : ({in}) -> {out}",
    ),
    "convolution": (
        (t(1, 3, 8), t(5, 3, 3)), t(1, 5, 6),
        "stablehlo.convolution({0}, {1}) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], window = {{}} "
        "{{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : ({in}) -> {out}",
    ),
    "window": (
        (t(3, 8),), t(3, 6),
        '"stablehlo.reduce_window"({0}, %low) ({{\n^bb0(%a: tensor<f32>, %b: tensor<f32>):\n'
        "%m = stablehlo.maximum %a, %b : tensor<f32>\nstablehlo.return %m : tensor<f32>\n}}) "
        "{{window_dimensions = array<i64: 1, 3>}} : ({p0}, tensor<f32>) -> {out}",
    ),
    "sort": ((t(3, 5),), t(3, 5), '"disc.sort"({0}) {{dim = 1 : i64, descending = false}} : ({in}) -> ({out}, tensor<3x5xi64, [3, 5]>)'),
    "topk": ((t(3, 5),), t(3, 2), '"disc.topk"({0}) {{dim = 1 : i64, largest = true}} : ({in}) -> ({out}, tensor<3x2xi64, [3, 2]>)'),
    "diagonals": ((t(3, 9),), t(3, 4, 5), '"disc.diagonals"({0}) {{row = 1 : i64, column = 2 : i64}} : ({in}) -> {out}'),
    "unfold": ((t(3, 9),), t(3, 4, 3), '"disc.unfold"({0}) {{dim = 1 : i64, step = 2 : i64}} : ({in}) -> {out}'),
}  # fmt: skip
REFUSED = {"pad": {1}, "convolution": {1}, "update": {2, 3}}  # operands that only shared ones are taken for


def module_of(name: str, shared: tuple[bool, ...]) -> ir.Module:
    operands, result, form = CASES[name]
    attributes = [" {disc.shared}" if each else "" for each in shared]
    arguments = ", ".join(f"%x{number}: {kind}{more}" for number, (kind, more) in enumerate(zip(operands, attributes, strict=True)))
    names = {f"p{number}": kind for number, kind in enumerate(operands)}
    line = form.format(*(f"%x{number}" for number in range(len(operands))), **{"in": ", ".join(operands), "out": result}, **names)
    several = ":2" if name in ("sort", "topk") else ""
    return parse_module(
        f"func.func @main({arguments}) -> {result} {{\n%zero = stablehlo.constant dense<0.0> : tensor<f32>\n"
        f"%low = stablehlo.constant dense<0xFF800000> : tensor<f32>\n%y{several} = {line}\nreturn %y{'#0' if several else ''} : {result}\n}}"
    )


def data(module: ir.Module, seed: int) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for number, argument in enumerate(main_block(module).arguments):
        kind, random = ir.RankedTensorType(argument.type), np.random.default_rng((seed, number))
        element = element_name(kind)
        values = random.integers(0, 3, kind.shape) if element != "f32" else random.standard_normal(kind.shape)
        found.append(np.asarray(values).astype(held_dtype(element)))
    return found


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    operands = CASES[name][0]
    for shared in product((False, True), repeat=len(operands)):
        with disc_context():
            plain, lifted = module_of(name, tuple(False for _ in operands)), module_of(name, shared)
            own = {number for number, each in enumerate(shared) if not each}
            if not own or own & REFUSED.get(name, set()):
                with pytest.raises(DiscError) as refused:
                    LiftBatch().apply(lifted, CompileState())
                assert not isinstance(refused.value, CompilerBug)
                continue
            LiftBatch().apply(lifted, CompileState())
            lifted.operation.verify()
            check_stage(lifted, "named")
            instances = [data(plain, seed) for seed in range(max(COUNTS))]
            for instance in instances:
                instance[:] = [instances[0][number] if shared[number] else each for number, each in enumerate(instance)]
            wanted = [interpret(plain, instance)[0] for instance in instances]
            for count in COUNTS:
                inputs = [
                    each
                    if shared[number]
                    else np.array([instance[number] for instance in instances[:count]], each.dtype).reshape(count, *each.shape)
                    for number, each in enumerate(instances[0])
                ]
                (result,) = interpret(lifted, inputs)
                assert result.shape == (count, *wanted[0].shape)
                for instance in range(count):
                    np.testing.assert_allclose(result[instance], wanted[instance], rtol=1e-5, atol=1e-6)


def test_every_rule_has_a_case() -> None:
    """Element-wise ops share one rule; `disc.philox` has one that refuses."""
    texts = " ".join(form for _, _, form in CASES.values())
    missing = [name for name in RULES if name not in of_kind(Kind.ELEMENTWISE) and name not in texts]
    assert missing == []


REFUSALS = {
    "scatter": (
        '"disc.count"(%x) : (tensor<4xi64, [4]>) -> tensor<9xi64, [9]>',
        "disc.count at .*: it cannot be computed for several instances at once",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_by_name(name: str) -> None:
    line, message = REFUSALS[name]
    with disc_context():
        module = parse_module(
            f"func.func @main(%x: tensor<4xi64, [4]>) -> tensor<9xi64, [9]> {{\n%y = {line}\nreturn %y : tensor<9xi64, [9]>\n}}"
        )
        with pytest.raises(DiscError, match=message):
            LiftBatch().apply(module, CompileState())


def test_shared_argument_that_is_no_argument_of_rows() -> None:
    with disc_context():
        module = parse_module(
            "func.func @main(%x: tensor<4xf32, [4]> {disc.shared}) -> tensor<4xf32, [4]> {\nreturn %x : tensor<4xf32, [4]>\n}"
        )
        assert SHARED in str(main_function(module).attributes["arg_attrs"])
        with pytest.raises(DiscError, match="nothing to compute for each"):
            LiftBatch().apply(module, CompileState())
