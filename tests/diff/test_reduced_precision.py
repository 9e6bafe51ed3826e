"""bf16 and f16 dots on every ISA level of this machine, against torch in f64 on the same rounded operands; whole models against f32."""

from __future__ import annotations

import copy
import math
import re
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from compiled import plans_of, randn
from levels import levels_of_this_test
from models import MODELS, shapes
from torch import nn
from torch.nn import functional

import disc
from disc.codegen.x86.plans import IndirectPlan
from disc.config import Options
from disc.errors import DiscError, TargetError
from disc.ral.executable import Executable, load
from disc.targets.x86 import ISAS as ALL_ISAS
from disc.targets.x86 import host_isa

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
BF16_ISA = host_isa(("bf16",))
ISAS = {"bf16": tuple(dict.fromkeys(("x86-64-v3", host_isa(), BF16_ISA))), "f16": tuple(dict.fromkeys(("x86-64-v3", host_isa())))}
SIZES = (0, 1, 2, 15, 16, 17, 63, 64, 65, 127)
# Sums of k products in f32, in any order and with k roundings at most, of the accumulated magnitude; a few are enough.
SUM_ULPS = 16


def on_every_isa(
    model: nn.Module, inputs: Sequence[torch.Tensor], dims: object, dtype: str, isas: Sequence[str] | None = None
) -> list[Executable]:
    """One compile in mixed precision for levels in `isas`, or in all whose code differs in this type, loaded once for each."""
    isas = levels_of_this_test(isas or ISAS[dtype])
    compiled = disc.compile(model.eval(), tuple(inputs), dims, target=isas, options=Options(dtype=dtype))  # pyright: ignore[reportArgumentType]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.disc"
        compiled.save(path)
        return [load(path, isa=isa) for isa in isas]


class Product(nn.Module):
    """a @ b, b as it is or transposed."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.transposed = transposed

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ (b.mT if self.transposed else b)


class Layer(nn.Module):
    """gelu(x @ weight + bias)."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        torch.manual_seed(k * 1000 + n)
        self.linear = nn.Linear(k, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.linear(x))


def check_sums(ours: torch.Tensor, a: torch.Tensor, b: torch.Tensor, where: str) -> None:
    """`ours` is a @ b but for the rounding of sums in f32."""
    exact = a.double() @ b.double()
    magnitude = a.double().abs() @ b.double().abs()
    error = (ours.double() - exact).abs()
    assert ours.shape == exact.shape and ours.dtype == torch.float32, where
    assert bool((error <= SUM_ULPS * 2.0**-23 * magnitude + 1e-30).all()), (
        f"{where}: off by {float((error / magnitude).max())} of the magnitude"
    )


@cache
def products(dtype: str, transposed: bool) -> list[Executable]:
    return on_every_isa(Product(transposed), (randn(3, 5, 24), randn(3, 7, 24) if transposed else randn(3, 24, 7)), None, dtype)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_products_of_every_size(dtype: str, transposed: bool) -> None:
    """One compile with all of m, n and k dynamic, batched."""
    for executable in products(dtype, transposed):
        for m, n, k in [(m, n, k) for m in SIZES for n in SIZES for k in SIZES if (m * 7 + n * 3 + k) % 5 == 0 or k < 2]:
            a, b = randn(2, m, k), randn(2, k, n, seed=1)
            ours = executable(a, b.mT.contiguous() if transposed else b)
            assert isinstance(ours, torch.Tensor)
            rounded = a.to(DTYPES[dtype]), b.to(DTYPES[dtype])
            check_sums(ours, *rounded, f"{executable.isa} {m}x{n}x{k}")


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(("k", "n"), [(8, 1), (15, 17), (17, 63), (64, 64), (65, 65), (127, 127), (16, 2)])
def test_layers_with_weights(dtype: str, k: int, n: int) -> None:
    """Weights packed ahead of time, odd k padded, with an epilogue."""
    layer, narrow = Layer(k, n), DTYPES[dtype]
    weight, bias = layer.linear.weight.detach().to(narrow).double(), layer.linear.bias.detach().double()
    for executable in on_every_isa(layer, (randn(3, k),), None, dtype):
        for m in (0, 1, 2, 5, 6, 7, 13, 121, 250):
            x = randn(m, k)
            ours = executable(x)
            wanted = functional.gelu(x.to(narrow).double() @ weight.T + bias)
            torch.testing.assert_close(ours, wanted.float(), rtol=1e-5, atol=1e-5, msg=lambda text, isa=executable.isa: f"{isa} {text}")


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_short_contractions_stay_f32(dtype: str) -> None:
    """Positions times frequencies: a position above 256 has no bf16."""
    executable = on_every_isa(Product(False), (randn(5, 1), randn(1, 7)), ({0: torch.export.Dim.AUTO}, {1: torch.export.Dim.AUTO}), dtype)[
        -1
    ]
    positions, frequencies = torch.arange(1000.0)[:, None] + 0.25, randn(1, 9)
    assert torch.equal(torch.as_tensor(executable(positions, frequencies)), positions @ frequencies)


def test_special_values() -> None:
    """Infinities and NaN pass through every form of micro-kernel; the padding of an odd k brings no NaN."""
    for executable in products("bf16", False):
        a, b = torch.ones(1, 1, 17), torch.ones(1, 17, 3)
        a[0, 0, 16], b[0, 16] = math.inf, torch.tensor([1.0, -1.0, math.nan])
        ours = torch.as_tensor(executable(a, b)).flatten().tolist()
        assert ours[:2] == [math.inf, -math.inf] and math.isnan(ours[2]), executable.isa


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_convolutions(dtype: str) -> None:
    """Few channels, read channels first: they stay f32, but for those that are products of matrices."""
    narrow = DTYPES[dtype]
    for model, rounded in ((nn.Conv2d(5, 7, 3, stride=2, padding=1), False), (nn.Conv2d(5, 24, 4, stride=4), True)):
        for executable in on_every_isa(model, (randn(2, 5, 8, 20),), ({0: torch.export.Dim.AUTO},), dtype):
            for batch in (1, 3):
                x, weight = randn(batch, 5, 8, 20), model.weight.detach()
                if rounded:
                    x, weight = x.to(narrow), weight.to(narrow)
                bias = model.bias.detach().double() if model.bias is not None else None
                wanted = functional.conv2d(x.double(), weight.double(), bias, model.stride, model.padding)  # pyright: ignore[reportArgumentType]
                torch.testing.assert_close(executable(x.float()), wanted.float(), rtol=1e-5, atol=1e-5)


# input and output channels, kernel, stride, padding, dilation: a panel in one chunk of taps, in several, runs that are unrolled
WINDOWS = [(160, 152, (3, 3), 1, 1, 1), (400, 336, (3, 3), 2, 1, 1), (170, 130, (3, 3), 1, 2, 2), (520, 96, (3, 3), 1, 1, 1),
           (24, 40, (7, 7), 1, 3, 1), (420, 400, (5, 1), (2, 1), (2, 0), 1)]  # fmt: skip
PLANES = ((1, 1, 1), (2, 2, 3), (1, 7, 7), (0, 5, 5), (3, 13, 17), (1, 11, 22), (1, 1, 67))


@pytest.mark.parametrize("window", WINDOWS)
def test_convolutions_channels_last(window: tuple[int, int, tuple[int, int], int, int, int]) -> None:
    """Pairs of channels: exact products of what was rounded, for windows inside and outside the source."""
    torch.manual_seed(0)
    model = nn.Conv2d(*window)
    weight, bias = model.weight.detach().bfloat16().double(), model.bias.detach().double()  # pyright: ignore[reportOptionalMemberAccess]
    channels = window[0]
    dims = (dict.fromkeys((0, 2, 3), torch.export.Dim.AUTO),)
    for executable in on_every_isa(model, (randn(2, channels, 9, 10),), dims, "bf16"):
        assert any(isinstance(plan, IndirectPlan) for plan in plans_of(executable))
        for batch, height, width in PLANES:
            x = randn(batch, channels, height, width)
            settings = (model.stride, model.padding, model.dilation)
            wanted = functional.conv2d(x.bfloat16().double(), weight, bias, *settings)
            magnitude = functional.conv2d(x.bfloat16().double().abs(), weight.abs(), bias.abs(), *settings)
            error = (torch.as_tensor(executable(x)).double() - wanted).abs()
            assert bool((error <= SUM_ULPS * 2.0**-23 * magnitude).all()), f"{executable.isa} {tuple(x.shape)}"


class Convolution(nn.Module):
    """A convolution by a kernel that is made at run time, as in training."""

    def __init__(self, stride: int, padding: int, dilation: int) -> None:
        super().__init__()
        self.settings = (stride, padding, dilation)

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.relu(functional.conv2d(x, weight, None, *self.settings))


# channels, kernel, stride, padding, dilation: odd and even numbers of values in a window
PATCHES = [
    (1, 5, 1, 2, 1),
    (4, 3, 2, 1, 1),
    (5, 3, 1, 5, 1),
    (5, 3, 2, 3, 3),
    (7, 1, 2, 0, 1),
    (3, 7, 2, 3, 1),
    (6, 2, 3, 1, 2),
    (2, 4, 4, 0, 1),
]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("patch", PATCHES)
def test_patches(patch: tuple[int, int, int, int, int], dtype: str) -> None:
    """Patches of 16 bits, which are joined to pairs for bf16; planes within and beyond vectors and panels."""
    channels, kernel, *settings = patch
    narrow, model = DTYPES[dtype], Convolution(*settings)
    weight = (randn(13, channels, kernel, kernel) / (channels * kernel * kernel) ** 0.5).to(narrow)
    dims = (dict.fromkeys((0, 2, 3), torch.export.Dim.AUTO), {})
    for executable in on_every_isa(model, (randn(2, channels, 19, 20).to(narrow), weight), dims, dtype):
        assert "patches packed" in str(executable.explain())
        for batch, height, width in (*PLANES, (2, 16, 15), (1, 32, 33), (1, 65, 7), (2, 8, 67)):
            if min(height, width) + 2 * settings[1] > (kernel - 1) * settings[2]:
                x = randn(batch, channels, height, width).to(narrow)
                ours = torch.as_tensor(executable(x, weight))
                torch.testing.assert_close(ours.double(), model(x.double(), weight.double()), atol=0.02, rtol=0.01)


def test_an_odd_number_of_channels_stays_f32() -> None:
    """Pairs would reach into the next position."""
    torch.manual_seed(0)
    model = nn.Conv2d(161, 152, 3, padding=1)
    x = randn(2, 161, 5, 6)
    for executable in on_every_isa(model, (x,), None, "bf16"):
        with torch.no_grad():
            torch.testing.assert_close(executable(x), model(x), rtol=1e-5, atol=2e-5)


def relative_error(ours: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((ours.double() - wanted.double()).norm() / wanted.double().norm())


def outputs(result: object) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


# f16 takes the same passes and kernels as bf16 to other micro-kernels: two models have all of these.
@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        *(("bf16", name) for name in ("bert", "t5", "llama")),
        ("f16", "bert"),
        *(pytest.param(*each, marks=pytest.mark.long) for each in (("bf16", "gpt2"), ("bf16", "vit"), ("f16", "t5"))),
    ],
)
def test_models_in_mixed_precision(dtype: str, name: str) -> None:
    """Close to f32 in the mean, with mostly the same greatest element; the attention is still one kernel.

    By AVX2 and by the best instructions: products and layers, above, are all that AVX-512 without those for bf16 has of its own.
    """
    model, inputs, dims = MODELS[name]()
    same, rows = 0, 0
    for executable in on_every_isa(model, inputs, dims, dtype, tuple(dict.fromkeys((ISAS[dtype][0], ISAS[dtype][-1])))):
        kinds = [kernel["kind"] for kernel in executable.manifest["kernels"]]
        assert "attention" in kinds
        for sizes in shapes(name)[::2]:
            with torch.no_grad():
                wanted = outputs(model(*sizes))
            for ours, theirs in zip(outputs(executable(*sizes)), wanted, strict=True):
                assert ours.dtype == torch.float32
                assert relative_error(ours, theirs) <= 2e-2, f"{executable.isa} {[tuple(each.shape) for each in sizes]}"
                same += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
                rows += theirs[..., 0].numel()
    assert same >= 0.95 * rows


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("bf16", "llama"),
        ("f16", "gpt2"),
        *(pytest.param(*each, marks=pytest.mark.long) for each in (("bf16", "bert"), ("bf16", "gpt2"), ("f16", "bert"), ("f16", "llama"))),
    ],
)
def test_models_of_that_type(name: str, dtype: str) -> None:
    """model.bfloat16(): as near to f32 as eager is in that type."""
    model, inputs, dims = MODELS[name]()
    narrow = copy.deepcopy(model).to(DTYPES[dtype])
    compiled = disc.compile(narrow, inputs, dims)  # pyright: ignore[reportArgumentType]
    assert compiled.isa == (BF16_ISA if dtype == "bf16" else host_isa())
    for sizes in shapes(name)[1:8:2]:
        with torch.no_grad():
            wanted, eager = outputs(model(*sizes)), outputs(narrow(*sizes))
        for ours, theirs, reference in zip(outputs(compiled(*sizes)), eager, wanted, strict=True):
            assert ours.dtype == DTYPES[dtype]
            assert relative_error(ours, reference) <= 1.5 * relative_error(theirs, reference) + 1e-3


def test_native_takes_bf16_instructions_only_where_they_are_used() -> None:
    layer, inputs = Layer(16, 16).eval(), (randn(2, 16),)
    assert disc.compile(layer, inputs).isa == host_isa()
    assert disc.compile(layer, inputs, options=Options(dtype="bf16")).isa == BF16_ISA
    assert disc.compile(layer, inputs, options=Options(dtype="f16")).isa == host_isa()


def test_weights_are_stored_narrow() -> None:
    """Half the bytes of the weights, in one layout for all levels."""
    executable = on_every_isa(Layer(128, 128), (randn(2, 128),), None, "bf16")[0]
    sizes = {weight["dtype"]: weight["size"] for weight in executable.manifest["weights"] if len(weight["shape"]) == 3}
    assert sizes == {"bf16": 128 * 128 * 2}


def test_errors() -> None:
    with pytest.raises(DiscError, match="dtype='int4': choose one of f32, bf16, f16, int8"):
        Options(dtype="int4")
    assert [Options(dtype=str(each)) for each in ("float16", "fp16", "half", torch.float16)] == [Options(dtype="f16")] * 4
    with pytest.raises(TargetError, match=re.escape(f"the targets are native, {', '.join(ALL_ISAS)}")):
        disc.compile(Layer(2, 2), (randn(2, 2),), target="x86-64-v4+amx")


MIXED = {
    "add": torch.add, "sub": lambda x, y: y - x, "mul": torch.mul, "div": torch.div, "remainder": lambda x, y: y % x,
    "fmod": lambda x, y: torch.fmod(y, x), "twice": lambda x, y: torch.add(x, y, alpha=2), "sum": lambda x, y: y.sum(0, dtype=x.dtype),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_integers_are_rounded_before_they_meet_floats_of_16_bits(dtype: str) -> None:
    """As eager converts them: what is beyond the type's range is infinite, however close the other operand is to its opposite."""
    compiled = disc.compile(lambda x, y: [each(x, y) for each in MIXED.values()], (torch.ones(9, dtype=DTYPES[dtype]), torch.ones(9).int()))
    for size in (2, 5, 40):  # of one element alone eager's products take the integer as it is
        x, y = (torch.randn(size) * 300).to(DTYPES[dtype]), torch.randint(-1 << 20, 1 << 20, (size,), dtype=torch.int32)
        for name, result, expected in zip(MIXED, compiled.flat(x, y), [each(x, y) for each in MIXED.values()], strict=True):
            assert torch.equal(result.nan_to_num(nan=7), expected.nan_to_num(nan=7)) or name == "sum", name
            torch.testing.assert_close(result, expected, equal_nan=True)
