"""What cannot be compiled is refused with the user's line, whatever PyTorch itself makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import disc
from disc.errors import UnsupportedOpError
from disc.frontend import decompositions


class FactorsComplex(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.ldl_factor(torch.complex(x, x))[0].abs()


class TakesAiry(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.airy_ai(x)


@pytest.mark.parametrize(
    ("model", "example", "reason"),
    [(FactorsComplex(), torch.ones(3, 3), "complex numbers"), (TakesAiry(), torch.ones(3, 4), "special_airy_ai")],
)
def test_refused_with_the_line(model: torch.nn.Module, example: torch.Tensor, reason: str) -> None:
    with pytest.raises(UnsupportedOpError, match=reason) as caught:
        disc.compile(model, (example,), options=disc.Options(cache=False))
    assert "test_unsupported.py:" in str(caught.value)


def test_a_decomposition_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"no airy function of {x.dim()} dims\nand more")

    monkeypatch.setitem(decompositions.OURS, torch.ops.aten.special_airy_ai.default, broken)
    with pytest.raises(UnsupportedOpError, match=r"(?m)fails \(ValueError: no airy function of 2 dims\)$"):
        disc.compile(TakesAiry(), (torch.ones(3, 4),), options=disc.Options(cache=False))


class Scales(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * round(x.shape[1] / 3, 2)


def test_symbols_are_said_in_the_users_words() -> None:
    with pytest.raises(UnsupportedOpError, match=r"(?m)\(s\d+ = dim 1 of input 'x'\)$"):
        disc.compile(Scales(), (torch.ones(2, 10),), options=disc.Options(cache=False))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("%r = stablehlo.real %x : (tensor<?xf32>) -> tensor<?xf32>", "stablehlo.real at line 2: there is no rule"),
        ("%r = stablehlo.imag %x : (tensor<?xf32>) -> tensor<?xf32>", "stablehlo.imag at line 2: there is no rule"),
        ("%r = chlo.conj %x : tensor<?xf32> -> tensor<?xf32>", "chlo.conj at line 2: there is no rule"),
        (
            "%r = stablehlo.custom_call @own(%x) : (tensor<?xf32>) -> tensor<?xf32>",
            "stablehlo.custom_call at line 2: there is no rule for the target 'own'",
        ),
        (
            "%0 = stablehlo.custom_call @lapack_spotrf_ffi(%x) : (tensor<?xf32>) -> tensor<?xf32>\n%r = stablehlo.negate %0 : tensor<?xf32>",
            "stablehlo.custom_call at line 2: its operands or attributes are not those of 'lapack_spotrf_ffi'",
        ),
        (
            "%0 = stablehlo.custom_call @Sharding(%x) : (tensor<?xf32>) -> tensor<?xf64>\n"
            "%r = stablehlo.convert %0 : (tensor<?xf64>) -> tensor<?xf32>",
            "stablehlo.custom_call at line 2: its results are not those of 'Sharding'",
        ),
        (
            "%s = stablehlo.constant dense<1> : tensor<1xui64>\n%t, %u = stablehlo.rng_bit_generator %s, algorithm = PHILOX :"
            " (tensor<1xui64>) -> (tensor<1xui64>, tensor<ui32>)\n%f = stablehlo.convert %u : (tensor<ui32>) -> tensor<f32>\n"
            "%r = chlo.broadcast_add %x, %f : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>",
            "stablehlo.rng_bit_generator at line 3: a state of tensor<1xui64>",
        ),
        (
            '%r = "stablehlo.collective_broadcast"(%x) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<?xf32>) -> tensor<?xf32>',
            "stablehlo.collective_broadcast at line 2: it exchanges data with other devices",
        ),
        (
            "%0 = stablehlo.convert %x : (tensor<?xf32>) -> tensor<?xf8E4M3FN>\n"
            "%r = stablehlo.convert %0 : (tensor<?xf8E4M3FN>) -> tensor<?xf32>",
            "stablehlo.convert at line 2: tensors of f8E4M3FN are not supported",
        ),
    ],
)
def test_refused_ops_of_stablehlo(lines: str, reason: str, tmp_path: Path) -> None:
    """Ops and types that once went as far as code generation and ended there as a bug of ours."""
    path = tmp_path / "model.mlir"
    path.write_text(f"func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {{\n{lines}\nreturn %r : tensor<?xf32>\n}}")
    with pytest.raises(UnsupportedOpError, match=reason):
        disc.compile(path, options=disc.Options(cache=False))
