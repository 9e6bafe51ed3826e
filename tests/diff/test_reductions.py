"""Reductions over every axis, alone and fused with what is around them; scans; normalizations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compiled import function_text, module_program, randn, text_program
from torch import nn

CUBES = [(1, 1, 1), (1, 7, 16), (7, 1, 17), (3, 5, 1), (2, 3, 5), (4, 15, 9), (3, 17, 33), (2, 70, 3), (2, 2, 131)]
EMPTY = [(0, 2, 3), (2, 0, 3), (3, 2, 0)]
AXES: list[tuple[int, ...]] = [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)]
FEW_AXES: list[tuple[int, ...]] = [(1,), (2,), (0, 1, 2)]


def axes_for(dtype: torch.dtype) -> list[tuple[int, ...]]:
    """Every set of axes for f32; for the other types a column, a row and a whole reduction."""
    return AXES if dtype == torch.float32 else FEW_AXES


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool])
def test_sums(dtype: torch.dtype) -> None:
    """Empty reductions give the identity."""

    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        results = [x.sum(axes, keepdim=number % 2 == 0) for number, axes in enumerate(axes_for(dtype))]
        results += [x.any(1), x.all(2, keepdim=True), x.all()]
        results += [x.prod(axis) for axis in (1, 2)] if dtype != torch.bfloat16 and dtype != torch.float16 else []
        return results

    program = module_program(forward, randn(2, 3, 4, dtype=dtype))
    for shape in CUBES + EMPTY:
        program.check(randn(*shape, dtype=dtype).clamp(-2, 2) if dtype != torch.bool else randn(*shape, dtype=dtype))


def test_independent_reductions_share_a_kernel() -> None:
    """What reads the same rows is one launch, also where the results are rows."""

    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.sum(1), x.amax(1), x.softmax(1), x - x.amin(1, keepdim=True)]

    program = module_program(forward, randn(3, 5))
    for shape in ((3, 5), (1, 1), (17, 33), (5, 130), (2, 1024), (0, 4)):
        program.check(randn(*shape))
    for executable in program.executables:
        before = executable.stats()["launches"]
        executable(randn(7, 40))
        after = executable.stats()["launches"]
        assert isinstance(before, int) and after == before + 1


def gradients_of_channels(x: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
    """What a step of training gives behind a convolution: the values themselves, and sums of them, of which the lanes are not the channels."""
    masked, places = torch.where(x > 0, gradient, 0.0), x[:, :, ::2, ::2]
    return [masked, masked.sum((0, 2, 3)), places * 2, (places * 2).sum((2, 3)), gradient.transpose(2, 3).sum((0, 3)), x.amax((0, 2))]


def test_sums_beside_what_they_sum() -> None:
    program = module_program(gradients_of_channels, randn(2, 3, 4, 5), randn(2, 3, 4, 5))
    for shape in ((2, 3, 28, 28), (1, 1, 1, 1), (3, 64, 7, 7), (2, 5, 3, 131), (2, 2, 64, 48), (9, 4, 1, 17), (2, 1, 2100, 2080)):
        program.check(randn(*shape), randn(*shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_extremes(dtype: torch.dtype) -> None:
    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        results = [x.amax(axes, keepdim=number % 2 == 0) for number, axes in enumerate(axes_for(dtype))]
        return [*results, x.amin(1), x.amin(2), x.argmax(1), x.argmin(2, keepdim=True), *x.max(2), x.argmax()]

    program = module_program(forward, randn(2, 3, 4, dtype=dtype))
    for shape in CUBES:
        program.check(randn(*shape, dtype=dtype))


def test_nan_and_infinity() -> None:
    """NaN wins in extremes; sums carry it; rows of -inf stay what eager makes of them."""

    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            x.amax(0),
            x.amax(1),
            x.amin(0),
            x.amin(1),
            x.sum(1),
            x.argmax(1),
            x.argmin(0),
            x.softmax(1),
            x.logsumexp(1),
            x.cummax(1)[0],
            x.max(),
            x.isnan().any(1),
        ]

    program = module_program(forward, randn(3, 4))
    for rows, columns in ((3, 5), (16, 17), (5, 33), (2, 130)):
        for value in (float("nan"), float("inf"), float("-inf")):
            x = randn(rows, columns)
            x[0, columns // 2] = value
            x[1, 0] = value
            x[1, columns - 1] = value
            program.check(x)
        program.check(torch.full((rows, columns), float("-inf")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_means_and_variances(dtype: torch.dtype) -> None:
    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        results = [x.mean(axes, keepdim=True) for axes in axes_for(dtype)] + [x.var(axes, correction=0) for axes in axes_for(dtype)]
        return [*results, x.std(2, correction=0), x.norm(dim=2), x.pow(2).mean(-1, keepdim=True).sqrt(), x - x.mean(1, keepdim=True)]

    program = module_program(forward, randn(2, 3, 4, dtype=dtype))
    for shape in CUBES:
        program.check(randn(*shape, dtype=dtype))


def softmaxes(x: torch.Tensor) -> list[torch.Tensor]:
    results = [F.softmax(x, axis) for axis in range(3)] + [F.log_softmax(x, axis) for axis in range(3)]
    results += [x.logsumexp(axis) for axis in range(3)] + [
        F.softmax(x * 2 + 1, -1).sum(1),
        F.softmax(x.transpose(1, 2), -1),
        F.softmax(x, -1).transpose(0, 2).exp(),
    ]
    return [
        *results,
        F.softmax(x.masked_fill(x > 1, float("-inf")), -1),
        F.softmin(x, 1),
        F.normalize(x, dim=-1),
        F.gelu(x) / F.gelu(x).abs().amax(-1, keepdim=True).clamp(min=1),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.long)])
def test_softmaxes(dtype: torch.dtype) -> None:
    program = module_program(softmaxes, randn(2, 3, 4, dtype=dtype))
    for shape in CUBES:
        program.check(randn(*shape, dtype=dtype))
    if dtype != torch.bfloat16:
        for shape in EMPTY[:2]:
            program.check(randn(*shape, dtype=dtype))


class Norms(nn.Module):
    """Layers with weights of a static width, chained so that a value feeds several reductions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.LayerNorm(width)
        self.rms = nn.RMSNorm(width)
        self.scale = nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        added = x + y
        normed = self.layer(added)
        return [
            normed,
            self.rms(x),
            F.layer_norm(x, x.shape[1:]),
            added,
            self.rms(normed * self.scale).softmax(-1),
            normed.mean(1),
            (normed * x).sum((1, 2)),
            normed.transpose(1, 2) + 1,
        ]


@pytest.mark.parametrize("width", [1, 16, 33, 257])
def test_normalizations(width: int) -> None:
    program = module_program(Norms(width), randn(2, 3, width), randn(2, 3, width), dynamic=[(0, 1), (0, 1)])
    for first, second in ((1, 1), (3, 5), (2, 16), (7, 3)):
        program.check(randn(first, second, width), randn(first, second, width, seed=1))
    executable = program.executables[0]
    with torch.no_grad():
        results = executable(torch.zeros(0, 3, width), torch.zeros(0, 3, width))
    assert isinstance(results, tuple | list) and tuple(results[0].shape) == (0, 3, width)


def test_group_and_batch_norm() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.group, self.batch, self.instance = nn.GroupNorm(2, 6), nn.BatchNorm2d(6), nn.InstanceNorm2d(6, affine=True)
            self.batch.running_mean = torch.randn(6)
            self.batch.running_var = torch.rand(6) + 0.5

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [self.group(x), self.batch(x), self.instance(x), F.relu(self.batch(x)) + x]

    program = module_program(Model(), randn(2, 6, 5, 7), dynamic=[(0, 2, 3)])
    for batch, height, width in ((1, 2, 3), (3, 5, 7), (2, 16, 17), (1, 33, 9)):
        program.check(randn(batch, 6, height, width))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_scans(dtype: torch.dtype) -> None:
    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        results = [x.cumsum(axis) for axis in range(3)] + [x.cummax(axis)[0] for axis in range(3)]
        results += [x.cumprod(axis) for axis in range(3)] + [x.cummin(1)[0]] if dtype != torch.bfloat16 else []
        return [*results, (x * 2).cumsum(2) + 1, x.cumsum(1).sum(2), x.transpose(0, 2).cumsum(1)]

    program = module_program(forward, randn(2, 3, 4, dtype=dtype))
    for shape in CUBES + EMPTY:
        program.check(randn(*shape, dtype=dtype).clamp(-1, 1), tolerance=None if dtype != torch.bfloat16 else 0.06)


def fused(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Reductions whose operands are views, joins and other reductions."""
    centered = x - x.mean(-1, keepdim=True)
    return [
        torch.cat([x, y], 2).sum(2), torch.cat([x, y], 1).amax(1), F.pad(x, (1, 2)).sum(2), x[:, 1:].sum(1), x.flip(2).cumsum(2), x.transpose(0, 2).sum(2),
        (x * y).sum(), (x + y).mean((0, 1)), centered.pow(2).sum(-1), centered.abs().amax((1, 2)), x.sum(0).softmax(-1), x.sum(2).sum(1), x.sum(2, keepdim=True) * y,
        x.amax(2).argmax(1), (x > y).sum(2), (x > 0).float().mean(1), x.sum((1, 2), keepdim=True) + y, x.exp().sum(-1).log() + y.exp().sum(-1).log(), x.reshape(-1).sum(0),
        x.reshape(x.shape[0], -1).softmax(1), x.sum(1).unsqueeze(1).expand_as(x) + y,
    ]  # fmt: skip


def test_fused_reductions() -> None:
    program = module_program(fused, randn(2, 3, 4), randn(2, 3, 4))
    for shape in [*CUBES[4:], (1, 2, 16), (5, 2, 64)]:
        program.check(randn(*shape), randn(*shape, seed=3))


def test_reduction_of_two_values() -> None:
    """A custom body over two operands: the greatest value and the sum of its companions."""
    m = "tensor<?x?xf32>"
    text = f"""func.func @main(%x: {m}, %y: {m}) -> (tensor<?xf32>, tensor<?xf32>, tensor<?xf32>) {{
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.reduce(%x init: %low), (%y init: %zero) across dimensions = [1] : ({m}, {m}, tensor<f32>, tensor<f32>) -> (tensor<?xf32>, tensor<?xf32>)
    reducer(%a: tensor<f32>, %c: tensor<f32>) (%b: tensor<f32>, %d: tensor<f32>) {{
      %1 = stablehlo.maximum %a, %c : tensor<f32>
      %2 = stablehlo.add %b, %d : tensor<f32>
      stablehlo.return %1, %2 : tensor<f32>, tensor<f32>
    }}
  %3 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : ({m}, tensor<f32>) -> tensor<?xf32>
  return %0#0, %0#1, %3 : tensor<?xf32>, tensor<?xf32>, tensor<?xf32>
}}"""
    program = text_program(text)
    for rows, columns in ((0, 3), (3, 0), (1, 1), (3, 16), (5, 17), (17, 9), (2, 200)):
        x, y = (randn(rows, columns, seed=seed).mul(4).round().numpy() for seed in (0, 1))
        program.check([x, y])


@pytest.mark.parametrize("element", ["i32", "ui8", "f64", "i1"])
def test_reductions_of_every_body(element: str) -> None:
    """All the plain bodies over rows, columns and both, from their identities (the rest from any value)."""
    names = (
        ["and", "or", "xor"] if element == "i1" else ["add", "multiply", "maximum", "minimum"] + ([] if element == "f64" else ["and", "or"])
    )
    matrix, row = f"tensor<?x?x{element}>", f"tensor<?x{element}>"
    body = []
    for name in names:
        initial = {"add": "%zero", "xor": "%zero", "multiply": "%one"}.get(name, "%v")
        for axis in ("0", "1"):
            body.append(
                (
                    f"stablehlo.reduce(%x init: {initial}) applies stablehlo.{name} across dimensions = [{axis}] : ({matrix}, tensor<{element}>) -> {row}",
                    row,
                )
            )
        body.append(
            (
                f"stablehlo.reduce(%x init: {initial}) applies stablehlo.{name} across dimensions = [0, 1] : ({matrix}, tensor<{element}>) -> tensor<{element}>",
                f"tensor<{element}>",
            )
        )
    program = text_program(function_text(f"%x: {matrix}, %v: tensor<{element}>, %zero: tensor<{element}>, %one: tensor<{element}>", body))
    dtype = {"i32": torch.int32, "i8": torch.int8, "ui8": torch.uint8, "f64": torch.float64, "i1": torch.bool}[element]
    for rows, columns in ((0, 3), (3, 0), (1, 1), (3, 16), (5, 17), (9, 33)):
        values = randn(rows, columns, dtype=dtype)
        values = values.round().clamp(-1, 1) if element == "f64" else values
        scalars = [torch.tensor(each, dtype=dtype).numpy() for each in (0, 1)]
        for start in scalars:
            program.check([values.numpy(), start, *scalars])
