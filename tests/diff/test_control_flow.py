"""Branches and loops of StableHLO against its reference interpreter: no trip, one, many; nested; weights and reductions within."""

from __future__ import annotations

import re

import numpy as np
import pytest
from stablehlo_oracle import OracleProgram

import disc
from disc.errors import ShapeConstraintError

ROWS, WORD, BIT = "tensor<Nx4xf32>", "tensor<i64>", "tensor<i1>"
BELOW = f"stablehlo.compare LT, %i, %n : ({WORD}, {WORD}) -> {BIT}"
ONES = f"""%zero = stablehlo.constant dense<0> : {WORD}
  %one = stablehlo.constant dense<1> : {WORD}"""
TABLE = np.arange(320, dtype=np.float32).reshape(4, 80) % 7 / 8 - 0.375  # large enough to become a weight

LOOP = f"""func.func @main(%x: {ROWS}, %n: {WORD}, %m: tensor<4x4xf32>) -> ({ROWS}, {WORD}, {ROWS}) {{
  {ONES}
  %y:3 = stablehlo.while(%i = %zero, %a = %x, %b = %x) : {WORD}, {ROWS}, {ROWS}
    cond {{ %p = {BELOW}
      stablehlo.return %p : {BIT} }}
    do {{ %j = stablehlo.add %i, %one : {WORD}
      %d = stablehlo.dot_general %a, %m, contracting_dims = [1] x [0] : ({ROWS}, tensor<4x4xf32>) -> {ROWS}
      %t = stablehlo.tanh %d : {ROWS}
      stablehlo.return %j, %b, %t : {WORD}, {ROWS}, {ROWS} }}
  %z = stablehlo.add %y#1, %x : {ROWS}
  return %z, %y#0, %y#2 : {ROWS}, {WORD}, {ROWS}
}}"""

NESTED = f"""func.func @main(%x: {ROWS}, %n: {WORD}) -> {ROWS} {{
  {ONES}
  %f = stablehlo.constant dense<0.0> : tensor<f32>
  %w = stablehlo.constant dense<{TABLE.tolist()}> : tensor<4x80xf32>
  %u = stablehlo.constant dense<{TABLE.T.tolist()}> : tensor<80x4xf32>
  %y:2 = stablehlo.while(%i = %zero, %a = %x) : {WORD}, {ROWS}
    cond {{ %p = {BELOW}
      stablehlo.return %p : {BIT} }}
    do {{ %j = stablehlo.add %i, %one : {WORD}
      %c:2 = stablehlo.while(%k = %zero, %b = %a) : {WORD}, {ROWS}
        cond {{ %p = stablehlo.compare LT, %k, %i : ({WORD}, {WORD}) -> {BIT}
          stablehlo.return %p : {BIT} }}
        do {{ %l = stablehlo.add %k, %one : {WORD}
          %d = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : ({ROWS}, tensor<4x80xf32>) -> tensor<Nx80xf32>
          %t = stablehlo.tanh %d : tensor<Nx80xf32>
          %e = stablehlo.dot_general %t, %u, contracting_dims = [1] x [0] : (tensor<Nx80xf32>, tensor<80x4xf32>) -> {ROWS}
          %g = stablehlo.add %e, %x : {ROWS}
          stablehlo.return %l, %g : {WORD}, {ROWS} }}
      %s = stablehlo.reduce(%c#1 init: %f) applies stablehlo.add across dimensions = [0, 1] : ({ROWS}, tensor<f32>) -> tensor<f32>
      %big = stablehlo.compare GT, %s, %f : (tensor<f32>, tensor<f32>) -> {BIT}
      %h = "stablehlo.if"(%big) ({{
        %v = stablehlo.negate %c#1 : {ROWS}
        stablehlo.return %v : {ROWS}
      }}, {{
        stablehlo.return %x : {ROWS}
      }}) : ({BIT}) -> {ROWS}
      stablehlo.return %j, %h : {WORD}, {ROWS} }}
  return %y#1 : {ROWS}
}}"""

CASE = f"""func.func @main(%x: {ROWS}, %k: tensor<i32>) -> ({ROWS}, tensor<f32>, tensor<4xf32>) {{
  %f = stablehlo.constant dense<0.5> : tensor<f32>
  %w = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
  %y:3 = "stablehlo.case"(%k) ({{
    %e = stablehlo.exponential %x : {ROWS}
    stablehlo.return %e, %f, %w : {ROWS}, tensor<f32>, tensor<4xf32>
  }}, {{
    %g = stablehlo.add %f, %f : tensor<f32>
    %v = stablehlo.negate %w : tensor<4xf32>
    stablehlo.return %x, %g, %v : {ROWS}, tensor<f32>, tensor<4xf32>
  }}, {{
    %r = stablehlo.reduce(%x init: %f) applies stablehlo.maximum across dimensions = [0, 1] : ({ROWS}, tensor<f32>) -> tensor<f32>
    %m = stablehlo.multiply %x, %x : {ROWS}
    stablehlo.return %m, %r, %w : {ROWS}, tensor<f32>, tensor<4xf32>
  }}) : (tensor<i32>) -> ({ROWS}, tensor<f32>, tensor<4xf32>)
  return %y#0, %y#1, %y#2 : {ROWS}, tensor<f32>, tensor<4xf32>
}}"""

ONE_BRANCH = f"""func.func @main(%x: {ROWS}, %k: tensor<i32>) -> {ROWS} {{
  %y = "stablehlo.case"(%k) ({{
    %e = stablehlo.negate %x : {ROWS}
    stablehlo.return %e : {ROWS}
  }}) : (tensor<i32>) -> {ROWS}
  return %y : {ROWS}
}}"""


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 4)).astype(np.float32)


def test_a_loop_carries_values_that_swap() -> None:
    program, matrix = OracleProgram(LOOP), rows(4) / 2
    for count, trips in ((3, 0), (3, 1), (1, 2), (17, 7), (0, 2)):
        program.check({"N": count}, relative=1e-5, inputs=[rows(count), np.array(trips), matrix])


def test_loops_and_branches_are_nested_with_weights_within() -> None:
    program = OracleProgram(NESTED)
    for count, trips in ((3, 0), (2, 1), (5, 2), (1, 4), (0, 3)):
        program.check({"N": count}, relative=1e-4, inputs=[rows(count), np.array(trips)])


@pytest.mark.parametrize("text", [CASE, ONE_BRANCH])
def test_an_index_that_no_branch_has_takes_the_last(text: str) -> None:
    program = OracleProgram(text)
    for count in (0, 1, 5):
        for index in (0, 1, 2, 3, -1, 2**31 - 1):
            program.check({"N": count}, inputs=[rows(count), np.array(index, np.int32)])


def test_a_carried_shape_that_changes_is_refused(tmp_path: object) -> None:
    text = """func.func @main(%x: tensor<?x4xf32>, %p: tensor<i1>) -> tensor<?x4xf32> {
      %y = stablehlo.while(%a = %x) : tensor<?x4xf32>
        cond { stablehlo.return %p : tensor<i1> }
        do { %b = stablehlo.concatenate %a, %x, dim = 0 : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
          stablehlo.return %b : tensor<?x4xf32> }
      return %y : tensor<?x4xf32> }"""
    path = f"{tmp_path}/model.mlir"
    with open(path, "w") as file:
        file.write(text)
    with pytest.raises(ShapeConstraintError, match=re.escape("stablehlo.while at line 2: dim 0 of value 0 that the loop carries")):
        disc.compile(path)
