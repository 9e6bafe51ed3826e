"""int8 dots on every ISA level of this machine: exact sums against NumPy in i64; quantized layers against the same steps in NumPy; models."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from compiled import plans_of, randn
from levels import levels_of_this_test
from models import MODELS, shapes
from torch import nn
from torch.export import Dim

import disc
from disc.codegen.x86.plans import GemmPlan, ProductPlan
from disc.config import Options
from disc.ir.weights import SCALED_BLOCK
from disc.passes.graph.quantize_weights import quantize_columns
from disc.ral.executable import Executable, load
from disc.targets.x86 import host_isa

VNNI_ISA = host_isa(("ui8",))
ISAS = tuple(dict.fromkeys(("x86-64-v3", host_isa(), VNNI_ISA)))
SIZES = (0, 1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 127)

PRODUCTS = """
func.func @main(%a: tensor<?x?x?xui8>, %b: tensor<?x?x?xi8>) -> tensor<?x?x?xi32> {
  %0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [LEFT] x [RIGHT]
    : (tensor<?x?x?xui8>, tensor<?x?x?xi8>) -> tensor<?x?x?xi32>
  return %0 : tensor<?x?x?xi32>
}
"""


def product_plans(executable: disc.Executable) -> list[ProductPlan]:
    """How the operands of its products are read."""
    return [plan.product for plan in plans_of(executable) if isinstance(plan, GemmPlan)]


def compiled(
    model: nn.Module | Path, inputs: Sequence[torch.Tensor] | None, dims: object = None, isas: Sequence[str] = ISAS[-1:]
) -> Executable:
    """With int8, for the best ISA level: what is quantized is the same for all."""
    return disc.compile(model, inputs, dims, target=isas, options=Options(dtype="int8"))  # pyright: ignore[reportArgumentType]


def on_every_isa(
    model: nn.Module | Path, inputs: Sequence[torch.Tensor] | None = None, dims: object = None, isas: Sequence[str] = ISAS
) -> list[Executable]:
    """One compile with int8 for levels of this machine, loaded once for each."""
    isas = levels_of_this_test(isas)
    program = compiled(model, inputs, dims, isas)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.disc"
        program.save(path)
        return [load(path, isa=isa) for isa in isas]


def program(text: str) -> list[Executable]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.mlir"
        path.write_text(text)
        return on_every_isa(path)


def random_bytes(dtype: npt.DTypeLike, *sizes: int) -> npt.NDArray[np.integer]:
    """All values of the type, its extremes more often than others: what saturates shows."""
    info, generator = np.iinfo(dtype), np.random.default_rng(sum(sizes))
    values = generator.integers(info.min, info.max + 1, sizes, dtype=dtype)
    kind = generator.integers(0, 4, sizes)
    return np.where(kind == 0, info.max, np.where(kind == 1, info.min, values)).astype(dtype)


@cache
def products(left: int, right: int) -> list[Executable]:
    return program(PRODUCTS.replace("LEFT", str(left)).replace("RIGHT", str(right)))


# The contracted dims: rows and columns that are read in place, B packed by columns or by transposing, A packed row by row.
@pytest.mark.parametrize(("left", "right"), [(2, 1), (2, 2), (1, 1)])
def test_products_of_every_size(left: int, right: int) -> None:
    """One compile with all of m, n and k dynamic, batched; exact."""
    for executable in products(left, right):
        for m, n, k in [(m, n, k) for m in SIZES for n in SIZES for k in SIZES if (m * 7 + n * 3 + k) % 7 == 0 or k < 2]:
            a, b = random_bytes(np.uint8, 2, m, k), random_bytes(np.int8, 2, k, n)
            ours = executable(a if left == 2 else a.swapaxes(1, 2).copy(), b if right == 1 else b.swapaxes(1, 2).copy())
            wanted = a.astype(np.int64) @ b.astype(np.int64)
            np.testing.assert_array_equal(np.asarray(ours), wanted, err_msg=f"{executable.isa} {m}x{n}x{k}")


@pytest.mark.parametrize(("k", "n"), [(8, 17), (15, 17), (17, 63), (64, 64), (65, 65), (126, 127), (3, 40)])
def test_weights_packed_ahead_of_time(k: int, n: int) -> None:
    weight = random_bytes(np.int8, k, n)
    data = f'dense<"0x{weight.tobytes().hex()}"> : tensor<{k}x{n}xi8>'
    executables = program(f"""
        func.func @main(%a: tensor<?x{k}xui8>) -> tensor<?x{n}xi32> {{
          %w = stablehlo.constant {data}
          %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : (tensor<?x{k}xui8>, tensor<{k}x{n}xi8>) -> tensor<?x{n}xi32>
          return %0 : tensor<?x{n}xi32>
        }}""")
    for executable in executables:
        assert product_plans(executable)[0].right == "packed-ahead"
        for m in (0, 1, 2, 5, 6, 7, 13, 121, 250):
            a = random_bytes(np.uint8, m, k)
            np.testing.assert_array_equal(np.asarray(executable(a)), a.astype(np.int64) @ weight.astype(np.int64), err_msg=executable.isa)


def scaled_dot(u: npt.NDArray[np.integer], q: npt.NDArray[np.integer], steps: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """u [..., k], q [n, k], steps [n, blocks]: exact sums of every block, added in order by fused multiply-adds in f32."""
    result = np.zeros((*u.shape[:-1], len(q)), np.float32)
    for block in range(steps.shape[1]):
        part = slice(block * SCALED_BLOCK, (block + 1) * SCALED_BLOCK)
        exact = u[..., part].astype(np.float64) @ q[:, part].astype(np.float64).T
        result = (result + exact * steps[:, block].astype(np.float64)).astype(np.float32)
    return result


def quantized_layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> npt.NDArray[np.float32]:
    """The steps of `quantize-dots` in f32: x [..., k], weight [n, k]."""
    rows, columns = x.numpy(), quantize_columns(weight.numpy())
    low, high = rows.min(-1, keepdims=True), rows.max(-1, keepdims=True)
    width = np.maximum(high - low, np.float32(2.0**-100))
    u = np.rint((rows - low) * (np.float32(255) / width))
    products = scaled_dot(u, columns.values, columns.steps)
    return products * (width * np.float32(1 / 255)) + low * columns.totals + bias.numpy()


def mean_error(ours: torch.Tensor, wanted: torch.Tensor) -> float:
    """The mean absolute error in units of the mean magnitude."""
    return float((ours - wanted).abs().mean() / wanted.abs().mean())


def linear(k: int, n: int) -> nn.Linear:
    torch.manual_seed(k * 1000 + n)
    return nn.Linear(k, n).eval()


# k: whole blocks, and what is left of them: less than a block, whole groups of four, single bytes.
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("k", "n"), [(32, 32), (33, 65), (64, 127), (65, 64), (100, 40), (127, 33), (128, 64), (129, 33), (194, 129),
                                       (255, 33), (256, 64), (260, 40), (768, 64)])  # fmt: skip
def test_layers(k: int, n: int) -> None:
    """Exactly the steps of the pass, near the layer in f32, in one kernel for the rows and one for the products."""
    layer = linear(k, n)
    for executable in on_every_isa(layer, (randn(2, 3, k),), ({0: Dim.AUTO, 1: Dim.AUTO},)):
        assert [kernel["kind"] for kernel in executable.manifest["kernels"]] == ["stitch", "compute"]
        for sizes in ((0, 3), (1, 1), (1, 7), (2, 6), (11, 13)):
            x = randn(*sizes, k)
            ours = torch.as_tensor(executable(x))
            wanted = quantized_layer(x, layer.weight.detach(), layer.bias.detach())
            np.testing.assert_allclose(ours.numpy(), wanted, rtol=1e-6, atol=1e-6, err_msg=executable.isa)
            if ours.numel():
                assert mean_error(ours, layer(x).detach()) < 0.015


def test_rows_that_are_hard_to_quantize() -> None:
    """Constant, zero, tiny and huge rows, and rows of one sign."""
    layer = linear(64, 32)
    x = torch.stack([
        torch.zeros(64), torch.full((64,), 3.0), torch.full((64,), -1e-3), randn(64) * 1e-38, randn(64) * 1e30, randn(64).abs(), randn(64) - 9,
    ])  # fmt: skip
    for executable in on_every_isa(layer, (randn(3, 64),)):
        ours, wanted = torch.as_tensor(executable(x)), layer(x).detach()
        assert bool(((ours - wanted).abs().amax(-1) <= 0.05 * wanted.abs().amax(-1)).all()), executable.isa


def test_parts_of_k() -> None:
    """Sums stay in scratch from one part of k to the next, which starts with a block."""
    layer = linear(5000, 40)
    for executable in on_every_isa(layer, (randn(3, 5000),), ({0: Dim.AUTO},)):
        for rows in (1, 7, 130):
            x = randn(rows, 5000)
            wanted = quantized_layer(x, layer.weight.detach(), layer.bias.detach())
            np.testing.assert_allclose(np.asarray(executable(x)), wanted, rtol=1e-5, atol=1e-5, err_msg=executable.isa)


def test_steps_follow_the_blocks() -> None:
    """Blocks that differ by orders of magnitude, zero and tiny ones: each is as exact as alone."""
    block = SCALED_BLOCK
    weight = np.random.default_rng(0).standard_normal((32, 3 * block + 8)).astype(np.float32)
    weight[:, block : 2 * block] *= np.float32(1e-4)
    weight[:, 2 * block : 3 * block] = 0.0
    weight[3, :block] = 1e-35
    columns = quantize_columns(weight)
    ours = columns.values * np.repeat(columns.steps, block, axis=1)[:, : weight.shape[1]]
    assert columns.steps.shape == (32, 4)
    assert not ours[:, 2 * block : 3 * block].any()
    for part in (slice(block, 2 * block), slice(3 * block, None)):
        assert np.abs(ours[:, part] - weight[:, part]).mean() < 0.008 * np.abs(weight[:, part]).mean()
    np.testing.assert_allclose(ours.sum(-1), columns.totals, rtol=1e-4, atol=1e-4)


def test_weights_that_are_not_finite() -> None:
    """A column with an infinity or NaN is not a finite number; the others are as they were."""
    layer, odd = linear(128, 32), linear(128, 32)
    with torch.no_grad():
        odd.weight[3, 5], odd.weight[30, 127] = math.inf, math.nan
    for plain, executable in zip(on_every_isa(layer, (randn(3, 128),)), on_every_isa(odd, (randn(3, 128),)), strict=True):
        x = randn(3, 128)
        ours, wanted = torch.as_tensor(executable(x)), torch.as_tensor(plain(x))
        kept = [column for column in range(32) if column not in (3, 30)]
        assert torch.equal(ours[:, kept], wanted[:, kept])
        assert not bool(torch.isfinite(ours[:, [3, 30]]).any()), executable.isa


def test_special_values() -> None:
    """A row with an infinity, a NaN or an overflowing range is not finite; its neighbors are as they would be alone."""
    layer = linear(64, 32)
    clean = randn(5, 64)
    x = clean.clone()
    x[0, 5], x[1, 63], x[3, 0] = math.inf, math.nan, -math.inf
    x[4, 0], x[4, 1] = 3e38, -3e38
    for executable in on_every_isa(layer, (clean,)):
        ours, alone = torch.as_tensor(executable(x)), torch.as_tensor(executable(clean))
        assert torch.equal(ours[2], alone[2])
        assert not bool(torch.isfinite(ours[[0, 1, 3, 4]]).any()), executable.isa


def test_shared_rows_are_quantized_once() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = linear(64, 64), linear(64, 48)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tanh(self.first(x)), torch.exp(self.second(x))

    executable = compiled(Two().eval(), (randn(3, 64),))
    assert [kernel["kind"] for kernel in executable.manifest["kernels"]].count("stitch") == 1


def test_what_is_not_quantized() -> None:
    """Short contractions, few columns, products of activations: these are rounded to bf16."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow, self.short = linear(64, 31), linear(31, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.short(self.narrow(x))
            return y @ y.mT

    executable = compiled(Mixed().eval(), (randn(3, 64),))
    assert all("ui8" not in text for kernel in executable.manifest["kernels"] for text in kernel["inputs"])
    assert any("bf16" in text for kernel in executable.manifest["kernels"] for text in kernel["inputs"])


def test_weights_are_bytes() -> None:
    executable = compiled(linear(128, 128), (randn(2, 128),))
    assert [weight["size"] for weight in executable.manifest["weights"] if weight["dtype"] == "i8"] == [128 * 128 + 128 * 4]


def test_explain_says_what_was_quantized_and_why_not() -> None:
    """Of 13 equal layers the first stays as it is; the others are bytes; products of activations are no rows times a weight."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(linear(64, 64) for _ in range(13))
            self.head = linear(64, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return self.head(x @ x.mT @ x)

    executable = compiled(Deep().eval(), (randn(3, 64),))
    forms = [product.form for product in product_plans(executable)]
    assert [form.startswith("u8") for form in forms] == [False, *[True] * 12, False, False, False]  # the first; no weight; fewer than 32
    assert "among the first dots" in str(executable.explain())


def test_the_smallest_dots_are_not_quantized() -> None:
    """Of 24 equal layers the first two stay as they are, and so does the small one behind them."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(linear(64, 64) for _ in range(24))
            self.small = linear(64, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return self.small(x)

    executable = compiled(Deep().eval(), (randn(3, 64),))
    forms = [product.form for product in product_plans(executable)]
    assert [form.startswith("u8") for form in forms] == [False, False, *[True] * 22, False]


def test_native_takes_the_instructions_that_are_used() -> None:
    assert disc.compile(linear(64, 64), (randn(2, 64),), options=Options(dtype="int8")).isa == VNNI_ISA


@pytest.mark.parametrize("name", ["bert", "gpt2", *(pytest.param(each, marks=pytest.mark.long) for each in ("vit", "t5"))])
def test_models(name: str) -> None:
    """Close to f32 in the mean; the attention is still one kernel. Without VNNI the layers above are what AVX-512 has of its own."""
    model, inputs, dims = MODELS[name]()
    for executable in on_every_isa(model, inputs, dims, tuple(dict.fromkeys((ISAS[0], ISAS[-1])))):
        assert "attention" in [kernel["kind"] for kernel in executable.manifest["kernels"]]
        for sizes in shapes(name)[::2]:
            with torch.no_grad():
                wanted = model(*sizes)
            leaves = zip(torch.utils._pytree.tree_leaves(executable(*sizes)), torch.utils._pytree.tree_leaves(wanted), strict=True)
            for ours, theirs in leaves:
                if isinstance(theirs, torch.Tensor) and theirs.numel():
                    assert mean_error(ours, theirs) <= 0.03, f"{executable.isa} {[tuple(each.shape) for each in sizes]}"
