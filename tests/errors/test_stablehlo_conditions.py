"""StableHLO files: ops that disc does not know are refused by name, also where they have no result; JAX's assertions are checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import disc
from disc.errors import ShapeConstraintError, UnsupportedOpError

KIND = "tensor<?x4xf32>"


def program(body: str, before: str = "") -> str:
    return f"{before}\nfunc.func @main(%a: {KIND}) -> {KIND} {{ {body}\n return %a : {KIND} }}"


FOREIGN = {
    "cf.assert": program('%t = arith.constant false\n cf.assert %t, "boom"'),
    "llvm.inline_asm": program('llvm.inline_asm has_side_effects "ud2", "" : () -> ()'),
    "llvm.call": program("llvm.call @abort() : () -> ()", "llvm.func @abort()"),
    "func.call": program("func.call @abort() : () -> ()", "func.func private @abort()"),
    "func.call ": "func.func @main(%a: tensor<?x4xf32>) -> tensor<?x4xf32> { %b = func.call @again(%a) : (tensor<?x4xf32>) -> tensor<?x4xf32>\n"
    " return %b : tensor<?x4xf32> }\nfunc.func private @again(%a: tensor<?x4xf32>) -> tensor<?x4xf32> {\n"
    " %b = func.call @again(%a) : (tensor<?x4xf32>) -> tensor<?x4xf32>\n return %b : tensor<?x4xf32> }",
    "memref.store": program(
        "%p = memref.alloc() : memref<4xf32>\n %c = arith.constant 9 : index\n %v = arith.constant 1.0 : f32\n"
        " memref.store %v, %p[%c] : memref<4xf32>"
    ),
    "vector.print": program("%v = arith.constant 1.0 : f32\n vector.print %v : f32"),
    "tensor.extract": f"""func.func @main(%a: {KIND}) -> {KIND} {{
      %c = arith.constant 1 : index
      %x = tensor.extract %a[%c, %c] : {KIND}
      %s = tensor.from_elements %x : tensor<f32>
      %d = arith.constant 0 : index
      %n = tensor.dim %a, %d : {KIND}
      %q = arith.constant 4 : index
      %sh = tensor.from_elements %n, %q : tensor<2xindex>
      %b = stablehlo.dynamic_broadcast_in_dim %s, %sh, dims = [] : (tensor<f32>, tensor<2xindex>) -> {KIND}
      return %b : {KIND} }}""",
    "external.call": program(
        '"external.call"() {function = "aten::save", target = "torch:{}", numbers = ["0"], tensors = 0 : i64} : () -> ()'
    ),
    "stablehlo.custom_call": program("stablehlo.custom_call @launch_missiles(%a) {has_side_effect = true} : (tensor<?x4xf32>) -> ()"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_op_is_refused_by_name_and_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.mlir"
    path.write_text(FOREIGN[name])
    with pytest.raises(UnsupportedOpError, match=rf"{name.strip()} at line \d+: "):
        disc.compile(path)


JAX = """module @jit_f {
  func.func public @main(%arg0: tensor<?x3x?x?xf32>) -> (tensor<?x3xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.get_dimension_size %arg0, dim = 0 : (tensor<?x3x?x?xf32>) -> tensor<i32>
    %1 = stablehlo.get_dimension_size %arg0, dim = 2 : (tensor<?x3x?x?xf32>) -> tensor<i32>
    %c = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.compare GE, %0, %c, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.custom_call @shape_assertion(%2, %0) {api_version = 2 : i32, error_message = "Expected value >= 1 for dimension variable 'b'. \
Obtained dimension variables: 'b' = {0} from specification 'b' for dimension args[0].shape[0] (= {0}).", has_side_effect = true} \
: (tensor<i1>, tensor<i32>) -> ()
    %3 = stablehlo.get_dimension_size %arg0, dim = 3 : (tensor<?x3x?x?xf32>) -> tensor<i32>
    %4 = stablehlo.compare EQ, %3, %1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.custom_call @shape_assertion(%4, %3, %1) {api_version = 2 : i32, error_message = "Found inconsistency between dimension size \
args[0].shape[3] (= {0}) and the specification 'h' (= {1}).", has_side_effect = true} : (tensor<i1>, tensor<i32>, tensor<i32>) -> ()
    %5 = call @_wrapped_jax_export_main(%0, %1, %arg0) : (tensor<i32>, tensor<i32>, tensor<?x3x?x?xf32>) -> tensor<?x3xf32>
    return %5 : tensor<?x3xf32>
  }
  func.func private @_wrapped_jax_export_main(%arg0: tensor<i32> {jax.global_constant = "b"}, %arg1: tensor<i32> {jax.global_constant = "h"},
      %arg2: tensor<?x3x?x?xf32>) -> tensor<?x3xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg2 init: %cst) applies stablehlo.add across dimensions = [2, 3] : (tensor<?x3x?x?xf32>, tensor<f32>) \
-> tensor<?x3xf32>
    return %0 : tensor<?x3xf32>
  }
}"""


def test_assertions_of_jax_are_checked_with_its_message(tmp_path: Path) -> None:
    path = tmp_path / "model.mlir"
    path.write_text(JAX)
    exe = disc.compile(path)
    x = np.arange(2 * 3 * 16, dtype=np.float32).reshape(2, 3, 4, 4)
    np.testing.assert_allclose(np.asarray(exe(x)), x.sum((2, 3)))
    with pytest.raises(ShapeConstraintError, match=r"args\[0\].shape\[3\] \(= 5\) and the specification 'h' \(= 4\)"):
        exe(np.zeros((2, 3, 4, 5), np.float32))
    with pytest.raises(ShapeConstraintError, match=r"Expected value >= 1 for dimension variable 'b'.*'b' = 0 from"):
        exe(np.zeros((0, 3, 4, 4), np.float32))


def test_an_assertion_that_never_holds(tmp_path: Path) -> None:
    path = tmp_path / "model.mlir"
    path.write_text(
        program('%t = stablehlo.constant dense<false> : tensor<i1>\n stablehlo.custom_call @shape_assertion(%t) '
                '{error_message = "no sizes do", has_side_effect = true} : (tensor<i1>) -> ()')
    )  # fmt: skip
    with pytest.raises(ShapeConstraintError, match="no sizes do"):
        disc.compile(path)


@pytest.mark.parametrize(
    ("comparison", "wrong"), [("NE, %n, %seven", {7}), ("LE, %square, %forty", {7, 8, 9}), ("GE, %square, %forty", {5, 6})]
)
def test_an_assertion_of_a_branch_that_is_no_fact_is_checked(comparison: str, wrong: set[int], tmp_path: Path) -> None:
    """What it demands is no order of sizes, which the compiler could learn."""
    path = tmp_path / "model.mlir"
    path.write_text(f"""func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> {{
      %n = stablehlo.get_dimension_size %a, dim = 0 : (tensor<?xf32>) -> tensor<i32>
      %four = stablehlo.constant dense<4> : tensor<i32>
      %seven = stablehlo.constant dense<7> : tensor<i32>
      %forty = stablehlo.constant dense<40> : tensor<i32>
      %square = stablehlo.multiply %n, %n : tensor<i32>
      %many = stablehlo.compare GT, %n, %four, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %r = "stablehlo.if"(%many) ({{
        %holds = stablehlo.compare {comparison}, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.custom_call @shape_assertion(%holds, %n) {{api_version = 2 : i32, error_message = "bad {{0}}", has_side_effect = true}}
          : (tensor<i1>, tensor<i32>) -> ()
        %e = stablehlo.exponential %a : tensor<?xf32>
        stablehlo.return %e : tensor<?xf32>
      }}, {{
        stablehlo.return %a : tensor<?xf32>
      }}) : (tensor<i1>) -> tensor<?xf32>
      return %r : tensor<?xf32> }}""")
    compiled = disc.compile(path)
    for size in (5, 6, 7, 8, 9):
        if size in wrong:
            with pytest.raises(ShapeConstraintError, match=f"bad {size}"):
                compiled(np.ones(size, np.float32))
        else:
            np.testing.assert_allclose(np.asarray(compiled(np.ones(size, np.float32))), np.exp(np.ones(size, np.float32)), rtol=1e-6)
