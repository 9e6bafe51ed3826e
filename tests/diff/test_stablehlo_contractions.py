"""Dots and convolutions of StableHLO in layouts that no PyTorch program writes, against StableHLO's reference interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
from stablehlo_oracle import OracleProgram

import disc
from disc.config import Options
from disc.errors import UnsupportedOpError


def dot(left: str, right: str, result: str, numbers: str) -> str:
    return f"""func.func @main(%x: tensor<{left}>, %y: tensor<{right}>) -> tensor<{result}> {{
  %0 = stablehlo.dot_general %x, %y, {numbers} : (tensor<{left}>, tensor<{right}>) -> tensor<{result}>
  return %0 : tensor<{result}> }}"""


def convolution(
    source: str, kernel: str, result: str, window: str, feature_groups: int = 1, batch_groups: int = 1, spatial: int = 2
) -> str:
    places = ", ".join(str(place) for place in range(spatial))
    dims = f"[b, f, {places}]x[o, i, {places}]->[b, f, {places}]" if spatial else "[b, f]x[o, i]->[b, f]"
    groups = f"{{batch_group_count = {batch_groups} : i64, feature_group_count = {feature_groups} : i64}}"
    types = f"(tensor<{source}>, tensor<{kernel}>) -> tensor<{result}>"
    return f"""func.func @main(%x: tensor<{source}>, %w: tensor<{kernel}>) -> tensor<{result}> {{
  %0 = stablehlo.convolution(%x, %w) dim_numbers = {dims}, window = {{{window}}} {groups} : {types}
  return %0 : tensor<{result}> }}"""


MATRICES = "contracting_dims = [1] x [0]"
PROGRAMS = {
    **{f"matrices of {kind}": dot(f"Nx5x{kind}", f"5x6x{kind}", f"Nx6x{kind}", MATRICES) for kind in ("i32", "f64", "ui8")},
    **{f"{kind} to {to}": dot(f"Nx8x{kind}", f"8x6x{kind}", f"Nx6x{to}", MATRICES)
       for kind, to in (("i8", "i32"), ("bf16", "f32"), ("f16", "f32"), ("f64", "f32"))},
    "bf16 by f32": dot("Nx8xbf16", "8x6xf32", "Nx6xf32", MATRICES),
    "outer": dot("Nxf32", "6xf32", "Nx6xf32", "contracting_dims = [] x []"),
    "scalars": dot("f32", "f32", "f32", "contracting_dims = [] x []"),
    "batch last": dot("3xNx2xf32", "4x5x2xf32", "2x3xNx4x5xf32", "batching_dims = [2] x [2], contracting_dims = [] x []"),
    "two contracted": dot("2xNx3x4xf32", "4x5x2x3xf32", "2xNx5xf32", "batching_dims = [0] x [2], contracting_dims = [2, 3] x [3, 0]"),
    "only batch": dot("Nx3xf32", "Nx3xf32", "Nx3xf32", "batching_dims = [0, 1] x [0, 1], contracting_dims = [] x []"),
    "dilated source": convolution("Nx3x6x6xf32", "4x3x3x3xf32", "Nx4x12x11xf32", "pad = [[2, 1], [0, 2]], lhs_dilate = [2, 2]"),
    "negative padding": convolution("Nx3x6x6xf32", "4x3x3x3xf32", "Nx4x3x4xf32", "pad = [[-1, 0], [0, 0]]"),
    "reversed": convolution("Nx3x6x6xf32", "4x3x3x3xf32", "Nx4x4x4xf32", "reverse = [true, false]"),
    "integers": convolution("Nx3x6x6xi32", "4x3x3x3xi32", "Nx4x4x4xi32", "stride = [1, 1]"),
    "groups": convolution("Nx4x6x6xf32", "8x2x3x3xf32", "Nx8x3x3xf32", "stride = [2, 2], pad = [[1, 0], [1, 0]]", feature_groups=2),
    "groups of the batch": convolution("4x3x6x6xf32", "4x3x3x3xf32", "2x4x4x4xf32", "stride = [1, 1]", batch_groups=2),
    "one dim": convolution("Nx4x9xf32", "6x2x3xf32", "Nx6x7xf32", "stride = [1]", feature_groups=2, spatial=1),
    "three dims": convolution("Nx2x4x4x4xf32", "3x2x2x2x2xf32", "Nx3x3x3x3xf32", "stride = [1, 1, 1]", spatial=3),
    "no dim": convolution("Nx4xf32", "6x4xf32", "Nx6xf32", "", spatial=0),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_reference_agrees(name: str) -> None:
    program = OracleProgram(PROGRAMS[name])
    for size in (0, 1, 5, 17):
        program.check({"N": size}, relative=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (dot("?x5xi1", "5x6xi1", "?x6xi1", MATRICES), "bools"),
    ],
)
def test_refused_before_code_generation(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "program.mlir"
    path.write_text(text)
    with pytest.raises(UnsupportedOpError, match=message):
        disc.compile(path, options=Options(cache=False))
