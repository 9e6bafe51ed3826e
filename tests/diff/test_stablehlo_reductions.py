"""Reductions, windows and scatters of StableHLO against its reference interpreter: any initial value, any body, several operands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from stablehlo_oracle import OracleProgram

FLOATS = ("f32", "f64", "bf16")


def applied(kind: str, number: int, element: str, source: str, initial: str, dims: str, result: str) -> str:
    types = f"(tensor<{source}{element}>, tensor<{element}>) -> tensor<{result}{element}>"
    return f"%{number} = stablehlo.reduce(%x init: %{initial}) applies stablehlo.{kind} across dimensions = {dims} : {types}"


def function(arguments: str, lines: list[str], results: list[tuple[str, str]]) -> str:
    names, types = ", ".join(name for name, _ in results), ", ".join(kind for _, kind in results)
    return f"func.func @main({arguments}) -> ({types}) {{\n  " + "\n  ".join([*lines, f"return {names} : {types}"]) + "\n}"


@pytest.mark.parametrize(
    "element", ["f32", "bf16", "i1", "i32", *(pytest.param(each, marks=pytest.mark.long) for each in ("f64", "ui8", "i64"))]
)
def test_initial_value_counts_once(element: str) -> None:
    """It was added once per accumulator. Rows, columns, everything and nothing, from a constant and from an input."""
    value = {"i1": "true"}.get(element, "3.0" if element in FLOATS else "3")
    lines, results = [f"%c = stablehlo.constant dense<{value}> : tensor<{element}>"], []
    for kind in ("add", "multiply", "maximum", "minimum", *(() if element in FLOATS else ("and", "or", "xor"))):
        for initial, dims, result in (("c", "[1]", "4x"), ("i", "[1]", "4x"), ("i", "[0]", "Nx"), ("c", "[0, 1]", ""), ("i", "[]", "4xNx")):
            lines.append(applied(kind, len(results), element, "4xNx", initial, dims, result))
            results.append((f"%{len(results)}", f"tensor<{result}{element}>"))
    program = OracleProgram(function(f"%x: tensor<4xNx{element}>, %i: tensor<{element}>", lines, results))
    for size in (0, 1, 6, 40):
        program.check({"N": size}, relative=1e-5)


ARGMAX = """%p = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %q = stablehlo.compare NE, %a, %a : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %r = stablehlo.or %p, %q : tensor<i1>
    %e = stablehlo.compare EQ, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %l = stablehlo.compare LT, %ia, %ib : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %el = stablehlo.and %e, %l : tensor<i1>
    %pi = stablehlo.or %r, %el : tensor<i1>
    %v = stablehlo.select %r, %a, %b : tensor<i1>, tensor<f32>
    %w = stablehlo.select %pi, %ia, %ib : tensor<i1>, tensor<i32>
    stablehlo.return %v, %w : tensor<f32>, tensor<i32>"""
BODIES = {
    "subtract": "%s = stablehlo.subtract %a, %b : tensor<f32>",
    "decay": "%k = stablehlo.constant dense<5.000000e-01> : tensor<f32>\n %m = stablehlo.multiply %a, %k : tensor<f32>\n"
    " %s = stablehlo.add %m, %b : tensor<f32>",
    "last": "%s = stablehlo.add %b, %b : tensor<f32>",
}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "dims", "result"),
    [("4xN", "[1]", "4x"), ("4xN", "[0]", "Nx"), ("4xN", "[0, 1]", ""), ("3xNx5", "[0, 2]", "Nx"), ("Nx1", "[1]", "Nx")],
)
def test_any_body_keeps_its_order(source: str, dims: str, result: str) -> None:
    """Bodies that are no plain op: arg-extremes of two operands, a difference, a decaying sum, the last element."""
    one, pair = f"tensor<{result}f32>", f"tensor<{result}f32>, tensor<{result}i32>"
    lines = [
        "%c = stablehlo.constant dense<0xFF800000> : tensor<f32>",
        "%z = stablehlo.constant dense<0> : tensor<i32>",
        "%h = stablehlo.constant dense<5.000000e-01> : tensor<f32>",
        f"%0:2 = stablehlo.reduce(%x init: %c), (%y init: %z) across dimensions = {dims} :"
        f" (tensor<{source}xf32>, tensor<{source}xi32>, tensor<f32>, tensor<i32>) -> ({pair})",
        f"  reducer(%a: tensor<f32>, %b: tensor<f32>) (%ia: tensor<i32>, %ib: tensor<i32>) {{ {ARGMAX} }}",
    ]
    results = [("%0#0", one), ("%0#1", f"tensor<{result}i32>")]
    for number, body in enumerate(BODIES.values(), 1):
        lines.append(f"%{number} = stablehlo.reduce(%x init: %h) across dimensions = {dims} : (tensor<{source}xf32>, tensor<f32>) -> {one}")
        lines.append(f"  reducer(%a: tensor<f32>, %b: tensor<f32>) {{ {body} stablehlo.return %s : tensor<f32> }}")
        results.append((f"%{number}", one))
    program = OracleProgram(function(f"%x: tensor<{source}xf32>, %y: tensor<{source}xi32>", lines, results))
    for size in (0, 1, 6, 33):
        program.check({"N": size}, relative=1e-5)


def windows(kind: str, element: str, value: str, attributes: str, source: str, result: str) -> str:
    body = f"^bb0(%a: tensor<{element}>, %b: tensor<{element}>): %s = stablehlo.{kind} %a, %b : tensor<{element}> stablehlo.return %s"
    types = f"(tensor<{source}x{element}>, tensor<{element}>) -> tensor<{result}x{element}>"
    lines = [f"%c = stablehlo.constant dense<{value}> : tensor<{element}>"]
    for number, initial in enumerate(("c", "i")):
        operands = f'"stablehlo.reduce_window"(%x, %{initial})'
        lines.append(f"%{number} = {operands} ({{ {body} : tensor<{element}> }}) {{{attributes}}} : {types}")
    both = [(f"%{number}", f"tensor<{result}x{element}>") for number in range(2)]
    return function(f"%x: tensor<{source}x{element}>, %i: tensor<{element}>", lines, both)


ACROSS = "window_dimensions = array<i64: 1, 3>"


def padded(low: int, high: int) -> str:
    return f"padding = dense<[[0, 0], [{low}, {high}]]> : tensor<2x2xi64>"


def holes(size: int, base: int) -> int:
    return (size - 1) * base + 1 if size else 0


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (windows("add", "f32", "3.0", f"{ACROSS}, {padded(1, 1)}", "4xN", "4xM"), lambda n: n),
        (windows("maximum", "f32", "0.0", f"{ACROSS}, {padded(1, 1)}", "4xN", "4xM"), lambda n: n),
        (windows("add", "f32", "0.0", f"{ACROSS}, base_dilations = array<i64: 1, 2>, {padded(1, 2)}", "4xN", "4xM"), lambda n: max(holes(n, 2) + 1, 0)),
        (
            windows("add", "f32", "3.0", f"{ACROSS}, base_dilations = array<i64: 2, 3>, window_strides = array<i64: 1, 2>, {padded(1, 2)}", "4xN", "7xM"),
            lambda n: holes(n, 3) // 2 + 1,
        ),
        (
            windows("minimum", "i32", "5", f"{ACROSS}, base_dilations = array<i64: 1, 2>, window_dilations = array<i64: 1, 2>, {padded(2, 2)}", "4xN", "4xM"),
            lambda n: holes(n, 2),
        ),
        (windows("add", "f32", "1.0", f"window_dimensions = array<i64: 1, 8>, {padded(7, 0)}", "4x8", "4x8"), lambda n: 0),
        (windows("add", "f32", "1.0", f"{ACROSS}, {padded(-1, 1)}", "4xN", "4xM"), lambda n: max(n - 2, 0)),
    ],
)  # fmt: skip
def test_windows(text: str, count: Callable[[int], int]) -> None:
    """What pads a window is the initial value, which then counts; holes between the elements count likewise."""
    program = OracleProgram(text)
    for size in (0, 1, 6, 40):
        program.check({"N": size, "M": count(size)}, relative=1e-5)


def test_windows_of_several_operands() -> None:
    sizes = "{window_dimensions = array<i64: 1, 3>, padding = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>}"
    types = "(tensor<4xNxf32>, tensor<4xNxi32>, tensor<f32>, tensor<i32>) -> (tensor<4xNxf32>, tensor<4xNxi32>)"
    head = "^bb0(%a: tensor<f32>, %ai: tensor<i32>, %b: tensor<f32>, %bi: tensor<i32>):"
    selecting = """%p = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %s = stablehlo.select %p, %a, %b : tensor<i1>, tensor<f32>
      %m = stablehlo.select %p, %ai, %bi : tensor<i1>, tensor<i32>"""
    apart = "%s = stablehlo.add %a, %b : tensor<f32>\n %m = stablehlo.maximum %ai, %bi : tensor<i32>"
    lines = ["%z = stablehlo.constant dense<7> : tensor<i32>"]
    for number, body in enumerate((selecting, apart)):
        region = f"({{ {head} {body} stablehlo.return %s, %m : tensor<f32>, tensor<i32> }})"
        lines.append(f'%{number}:2 = "stablehlo.reduce_window"(%x, %y, %i, %z) {region} {sizes} : {types}')
    results = [(f"%{number}#{place}", f"tensor<4xNx{'if'[place == 0]}32>") for number in range(2) for place in range(2)]
    program = OracleProgram(function("%x: tensor<4xNxf32>, %y: tensor<4xNxi32>, %i: tensor<f32>", lines, results))
    for size in (0, 1, 6, 40):
        program.check({"N": size}, relative=1e-5)


def select_and_scatter(direction: str, kind: str, element: str, value: str, attributes: str, source: str, updates: str) -> str:
    pair, scalar = f"^bb0(%a: tensor<{element}>, %b: tensor<{element}>):", f"tensor<{element}>"
    select = f"%p = stablehlo.compare {direction}, %a, %b : ({scalar}, {scalar}) -> tensor<i1> stablehlo.return %p : tensor<i1>"
    scatter = f"%q = stablehlo.{kind} %a, %b : {scalar} stablehlo.return %q : {scalar}"
    types = f"(tensor<{source}x{element}>, tensor<{updates}x{element}>, {scalar}) -> tensor<{source}x{element}>"
    lines = [
        f"%c = stablehlo.constant dense<{value}> : {scalar}",
        f'%0 = "stablehlo.select_and_scatter"(%x, %s, %c) ({{ {pair} {select} }}, {{ {pair} {scatter} }}) {{{attributes}}} : {types}',
    ]
    arguments = f"%x: tensor<{source}x{element}>, %s: tensor<{updates}x{element}>"
    return function(arguments, lines, [("%0", f"tensor<{source}x{element}>")])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (
            select_and_scatter("GE", "add", "f32", "0.0", f"{ACROSS}, window_strides = array<i64: 1, 2>, {padded(1, 1)}", "4xN", "4xM"),
            lambda n: (n - 1) // 2 + 1,
        ),
        (select_and_scatter("GT", "add", "f64", "0.0", "window_dimensions = array<i64: 2, 2>", "4xN", "3xM"), lambda n: max(n - 1, 0)),
        (
            select_and_scatter("LE", "maximum", "i32", "-3", f"{ACROSS}, window_strides = array<i64: 1, 3>", "4xN", "4xM"),
            lambda n: n // 3,
        ),
    ],
)  # fmt: skip
def test_select_and_scatter(text: str, count: Callable[[int], int]) -> None:
    program = OracleProgram(text)
    for size in (1, 6, 40):
        if count(size):
            program.check({"N": size, "M": count(size)}, relative=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        "%s = stablehlo.add %a, %b : tensor<f32>\n %m = stablehlo.maximum %ai, %bi : tensor<i32>",
        """%p = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
        %s = stablehlo.select %p, %a, %b : tensor<i1>, tensor<f32>
        %m = stablehlo.select %p, %ai, %bi : tensor<i1>, tensor<i32>""",
    ],
)
def test_scatter_of_several_tensors(body: str) -> None:
    numbers = (
        "#stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>"
    )
    types = "(tensor<Nx3xf32>, tensor<Nx3xi32>, tensor<4x1xi32>, tensor<4x3xf32>, tensor<4x3xi32>) -> (tensor<Nx3xf32>, tensor<Nx3xi32>)"
    region = f"^bb0(%a: tensor<f32>, %ai: tensor<i32>, %b: tensor<f32>, %bi: tensor<i32>): {body} stablehlo.return %s, %m"
    attributes = f"{{scatter_dimension_numbers = {numbers}, indices_are_sorted = false, unique_indices = false}}"
    line = f'%0:2 = "stablehlo.scatter"(%x, %y, %i, %u, %v) ({{ {region} : tensor<f32>, tensor<i32> }}) {attributes} : {types}'
    arguments = "%x: tensor<Nx3xf32>, %y: tensor<Nx3xi32>, %i: tensor<4x1xi32>, %u: tensor<4x3xf32>, %v: tensor<4x3xi32>"
    program = OracleProgram(function(arguments, [line], [("%0#0", "tensor<Nx3xf32>"), ("%0#1", "tensor<Nx3xi32>")]))
    for size in (0, 1, 6, 40):
        program.check({"N": size}, relative=1e-5)
