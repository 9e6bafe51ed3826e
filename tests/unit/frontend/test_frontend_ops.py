"""Single ops: import, name the dims, interpret, and compare with PyTorch at sizes that the export has not seen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from disc.frontend.exported import export_module, import_exported
from disc.frontend.imported import Imported
from disc.ir.dialect import make_context
from disc.ir.interp.oracle import interpret
from disc.ir.passes import CompileState, run_passes
from disc.passes.shape.name_dims import NameDims
from disc.passes.shape.resolve_broadcasts import ResolveBroadcasts

Inputs = tuple[torch.Tensor, ...]
Function = Callable[..., object]


class Wrapped(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.function(*inputs)


def random(*shape: int, dtype: torch.dtype = torch.float32, high: int = 10) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    if dtype.is_floating_point:
        return torch.randn(*shape, generator=generator).to(dtype)
    if dtype == torch.bool:
        return torch.randn(*shape, generator=generator) > 0
    return torch.randint(0 if dtype == torch.uint8 else -high, high, shape, generator=generator).to(dtype)


def indices(*shape: int, high: int) -> torch.Tensor:
    return random(*shape, dtype=torch.int64, high=high).abs() % high


def floats(*sizes: tuple[int, ...]) -> Callable[[int], Inputs]:
    """Inputs at scale n: each size that is negative becomes -size + n."""
    return lambda n: tuple(random(*(-s + n if s < 0 else s for s in size)) for size in sizes)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The interpreter holds bf16 in f32."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()


def named(model: nn.Module, inputs: Inputs) -> Imported:
    imported = import_exported(export_module(model, inputs), make_context())
    assert "torch." not in str(imported.module)
    run_passes(imported.module, [NameDims(), ResolveBroadcasts()], CompileState(weights=imported.weights))
    return imported


def assert_agrees(imported: Imported, model: nn.Module, inputs: Inputs, tolerance: float = 1e-4) -> None:
    with torch.no_grad():
        wanted = [leaf for leaf in tree_leaves(model(*inputs)) if leaf is not None]
    results = interpret(imported.module, [to_numpy(tensor) for tensor in inputs], imported.weights)
    given = [leaf for leaf in tree_leaves(imported.outputs.rebuild(results)) if leaf is not None]
    assert len(given) == len(wanted)
    for ours, theirs in zip(given, wanted, strict=True):
        expected = to_numpy(theirs) if isinstance(theirs, torch.Tensor) else np.asarray(theirs)
        assert np.shape(ours) == expected.shape
        assert np.asarray(ours).dtype == expected.dtype
        np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance)


X = floats((-3, -5, 8))
XY = floats((-3, -5, 8), (-3, -5, 8))
MATRIX = floats((-3, -5))
LONGS: Callable[[int], Inputs] = lambda n: (random(3 + n, 5 + n, dtype=torch.int64),)  # noqa: E731

CASES: dict[str, tuple[Function, Callable[[int], Inputs]]] = {
    "add-alpha": (lambda x, y: torch.add(x, y, alpha=2), XY),
    "add-mixed": (lambda x, y: x + y, lambda n: (random(3 + n), random(3 + n, dtype=torch.int64))),
    "rsub": (lambda x: 2 - x, X),
    "broadcast": (lambda x, y: x * y, floats((-3, 1, 8), (1, -5, 1))),
    "size-as-data": (lambda x: x * x.shape[0] + x.shape[1] / 2, X),
    "div-floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), XY),
    "div-trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), XY),
    "floor-divide-int": (lambda x: x // 3 + x // -4, LONGS),
    "remainder-int": (lambda x: x % 3 + x % -4, LONGS),
    "remainder-float": (lambda x: x % 0.7, X),
    "fmod": (lambda x: torch.fmod(x, 0.7), X),
    "true-divide-int": (lambda x: x / 3, LONGS),
    "pow": (lambda x: x**2 + x.abs() ** 0.5 + x**3 + x.abs() ** 1.5 + 2**x, X),
    "comparisons": (lambda x, y: (x > y) | (x <= 0.5) & ~(x == y), XY),
    "where": (lambda x: torch.where(x > 0, x, -1.0), X),
    "masked-fill": (lambda x: x.masked_fill(x > 0, float("-inf")), X),
    "clamp": (lambda x: x.clamp(-0.5, 0.5) + x.clamp(min=0) + x.clamp(max=0.1), X),
    "activations": (lambda x: F.relu(x) + F.gelu(x) + F.gelu(x, approximate="tanh") + F.silu(x) + F.elu(x) + F.leaky_relu(x), X),
    "activations-2": (lambda x: F.hardswish(x) + F.hardsigmoid(x) + F.softplus(x) + F.mish(x) + F.relu6(x) + F.selu(x), X),
    "unary": (lambda x: x.exp() + x.abs().log1p() + x.sin() + x.cos() + x.tanh() + x.sigmoid() + x.erf() + x.sign() + x.expm1(), X),
    "rounding": (lambda x: x.floor() + x.ceil() + x.round() + x.trunc() + x.frac(), X),
    "logs": (lambda x: x.abs().log2() + x.abs().log10() + x.exp2() + x.abs().rsqrt() + x.reciprocal(), X),
    "nan": (lambda x: torch.isnan(x / x.relu()) | torch.isinf(1 / x.relu()), X),
    "casts": (lambda x: (x.to(torch.int32), x.bool(), x.double(), x.half().float()), X),
    "bits": (lambda x: (x & 3) | (x ^ 5) | (x << 1), LONGS),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), XY),
    "softmax": (lambda x: F.softmax(x, -1) + F.log_softmax(x, 1), X),
    "sum": (lambda x: (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True)), X),
    "mean": (lambda x: (x.mean(), x.mean(1), x.mean((0, 2), keepdim=True)), X),
    "var": (lambda x: (x.var(1), x.std(-1, keepdim=True), x.var(0, correction=0), x.var()), X),
    "norm": (lambda x: (x.norm(dim=-1), F.normalize(x, dim=1)), X),
    "extremes": (lambda x: (x.amax(1), x.amin((0, 1)), x.max(), x.min(1)[0], x.max(2)), X),
    "arg-extremes": (lambda x: (x.argmax(1), x.argmin(-1), x.argmax()), X),
    "any-all": (lambda x: ((x > 0).any(1), (x > -1).all(), (x > 0).any()), X),
    "prod": (lambda x: (x.prod(1), x.prod()), MATRIX),
    "logsumexp": (lambda x: x.logsumexp(1), X),
    "cumulative": (lambda x: (x.cumsum(1), x.cumprod(0), x.cummax(1)[0]), X),
    "cumsum-int": (lambda x: x.cumsum(1), LONGS),
    "view": (lambda x: x.view(x.shape[0], -1).view(-1, 4), X),
    "flatten": (lambda x: (x.flatten(1), x.flatten(0, 1), x.unflatten(2, (2, 4))), X),
    "permute": (lambda x: (x.permute(2, 0, 1), x.transpose(0, 1), x.mT, x.unsqueeze(1).squeeze(1)), X),
    "expand": (lambda x: x.unsqueeze(1).expand(-1, 4, -1, x.shape[1] and 8), floats((-3, -5, 8))),
    "repeat": (lambda x: (x.repeat(2, 1, 3), x.repeat_interleave(2, 1)), X),
    "cat": (lambda x, y: (torch.cat([x, y], 1), torch.stack([x, x], 1), torch.cat([x, y.double()], 0)), XY),
    "split": (lambda x: (*x.split(3, 2), *x.chunk(2, -1), *x.unbind(2)), X),
    "slice": (lambda x: (x[:, 1:], x[1:-1], x[..., -3:], x[:, :2], x[..., ::2], x[..., 1::3]), floats((-5, -6, 8))),
    "slice-by-size": (lambda x, y: x[:, : y.shape[0]], lambda n: (random(3 + n, 9 + n), random(4 + n))),
    "slice-empty": (lambda x: x[:, 0:0], X),
    "select": (lambda x: (x[0], x[:, -1], x.select(2, 3)), X),
    "select-scatter": (lambda x, y: (x.select_scatter(y[0], 0, 1), x.slice_scatter(y[:, :1], 1, 1, 2)), XY),
    "flip-roll": (lambda x: (x.flip(1), x.roll(1, 2), x.roll(2, 0)), X),
    "triangles": (lambda x: (x.tril(), x.triu(1)), MATRIX),
    "pad": (lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, 1, 2, 0), value=3.0), F.pad(x, (-1, 0))), X),
    "pad-by-size": (lambda x, y: F.pad(x, (0, y.shape[0])), lambda n: (random(3 + n, 4), random(5 + n))),
    "pad-reflect": (lambda x: (F.pad(x, (1, 2), mode="reflect"), F.pad(x, (1, 2), mode="replicate")), X),
    "creation": (lambda x: (torch.zeros(x.shape[0], 2), torch.full_like(x, 3), torch.ones(x.shape[1]), torch.eye(x.shape[0])), X),
    "arange": (lambda x: (torch.arange(x.shape[1]), torch.arange(2, 2 * x.shape[0], 3), torch.arange(x.shape[0]) * 0.5), X),
    "linspace": (lambda x: x + torch.linspace(0, 1, 8), X),
    "matmul": (lambda x, y: (x @ y, x[0] @ y, x @ y[0], x @ y[0, :, 0], x[0, 0] @ y), floats((-3, -5, 8), (-3, 8, 4))),
    "matmul-broadcast": (lambda x, y: x @ y, floats((-2, 3, -5, 8), (3, 8, -4))),
    "einsum": (lambda x, y: (torch.einsum("bsd,btd->bst", x, y), torch.einsum("bsd,bsd->bs", x, y)), XY),
    "einsum-heads": (lambda x, y: torch.einsum("bhsd,bhtd->bhst", x, y), floats((-2, 3, -5, 4), (-2, 3, -7, 4))),
    "addmm": (lambda x, y, z: torch.addmm(x, y, z, beta=0.5, alpha=2), floats((-3, 6), (-3, 4), (4, 6))),
    "outer": (lambda x, y: (torch.outer(x, y), torch.dot(x, x)), floats((-3,), (-5,))),
    "gather": (lambda x, i: torch.gather(x, 1, i), lambda n: (random(3 + n, 9), indices(3 + n, 4 + n, high=9))),
    "index-select": (lambda x, i: x.index_select(1, i), lambda n: (random(3 + n, 9, 4), indices(4 + n, high=9))),
    "index": (lambda x, i: x[i], lambda n: (random(9, 4 + n), random(3 + n, 2, dtype=torch.int64, high=9))),
    "index-middle": (lambda x, i: x[:, i, i], lambda n: (random(3 + n, 9, 9), random(3 + n, dtype=torch.int64, high=9))),
    "index-apart": (lambda x, i: x[i, :, i], lambda n: (random(9, 4 + n, 9), random(3 + n, dtype=torch.int64, high=9))),
    "index-list": (lambda x: x[:, [0, 2, -1]], X),
    "embedding": (lambda w, i: F.embedding(i, w), lambda n: (random(11, 4), indices(3 + n, 5 + n, high=11))),
    "one-hot": (lambda i: F.one_hot(i, 7), lambda n: (indices(3 + n, high=7),)),
    "scatter": (lambda x, i, s: x.scatter(1, i, s), lambda n: (random(3 + n, 9), torch.arange(4).expand(3 + n, 4), random(3 + n, 4))),
    "scatter-add": (lambda x, i, s: x.scatter_add(1, i, s), lambda n: (random(3 + n, 9), indices(3 + n, 6, high=9), random(3 + n, 6))),
    "scatter-value": (lambda x, i: x.scatter(1, i, 2.0), lambda n: (random(3 + n, 9), indices(3 + n, 6, high=9))),
    "index-add": (lambda x, i, s: x.index_add(0, i, s), lambda n: (random(9, 4 + n), indices(6, high=9), random(6, 4 + n))),
    "index-put": (lambda x, i, v: x.index_put((i,), v, accumulate=True), lambda n: (random(9, 4 + n), indices(6, high=9), random(6, 4 + n))),
    "mask-assign": (lambda x: x.masked_fill(x > 0, 2.0).index_put((x < -1,), torch.tensor(5.0)), X),
    "diagonal": (lambda x: (x.diagonal(dim1=1, dim2=2), torch.diag_embed(x[0])), floats((-3, 4, 4))),
    "pools": (lambda x: (F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)), floats((-1, 3, -8, -9))),
    "pools-1d": (lambda x: (F.max_pool1d(x, 2), F.avg_pool1d(x, 3, 1, 1)), floats((-2, 3, 9))),
    "adaptive-pool": (lambda x: (F.adaptive_avg_pool2d(x, 1), F.adaptive_max_pool2d(x, 1)[..., 0]), floats((-1, 3, -8, -9))),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2.0), floats((-1, 3, -4, -5))),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), floats((-1, 3, -4, -5))),
    "bilinear-corners": (lambda x: F.interpolate(x, size=(7, 9), mode="bilinear", align_corners=True), floats((-1, 3, -4, -5))),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), floats((-2, 4, -5, 8), (-2, 4, -7, 8), (-2, 4, -7, 8))),
    "attention-causal": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.3), floats((-2, 4, -5, 8))),
    "attention-gqa": (lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), floats((-2, 4, -5, 8), (-2, 2, -5, 8))),
    "layer-norm": (lambda x: (F.layer_norm(x, (8,)), F.rms_norm(x, (8,))), X),
    "group-norm": (lambda x: F.group_norm(x, 2), floats((-2, 4, -5))),
    "instance-norm": (lambda x: F.instance_norm(x), floats((-2, 4, -5))),
    "pixel-shuffle": (lambda x: F.pixel_shuffle(x, 2), floats((-2, 8, -3, -4))),
    "unfold": (lambda x: x.unfold(1, 3, 2), floats((-2, 9))),
    "losses": (lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y), F.smooth_l1_loss(x, y)), XY),
    "cosine": (lambda x, y: F.cosine_similarity(x, y), XY),
    "bf16": (lambda x: (F.softmax(x, -1), x.sum(-1), x + x, F.layer_norm(x, (8,))), lambda n: (random(3 + n, 5, 8, dtype=torch.bfloat16),)),
    "uint8": (lambda x: (x + x, x.float() / 255, x // 2), lambda n: (random(3 + n, 5, dtype=torch.uint8),)),
    "rank-0": (lambda x: (x.sum().unsqueeze(0), F.softmax(x.sum(), 0), x.sum().exp()), X),
    "outputs": (lambda x: {"a": x, "b": (None, [x + 1, 3]), "n": x.shape[0]}, X),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_op_agrees_with_pytorch(name: str) -> None:
    function, make_inputs = CASES[name]
    model = Wrapped(function)
    imported = named(model, make_inputs(0))
    for scale in (0, 2, 1, 6):
        assert_agrees(imported, model, make_inputs(scale), 2e-2 if name == "bf16" else 1e-4)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Inputs]]] = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), floats((-2, 4, -9))),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), floats((-2, 4, -9, -11))),
    "conv2d-depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), floats((-2, 4, -9, -11))),
    "conv2d-same": (lambda: nn.Conv2d(4, 6, 3, padding="same"), floats((-2, 4, -9, -11))),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), floats((-1, 2, -4, -5, -6))),
    "conv-transpose": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), floats((-2, 4, -5, -6))),
    "conv-transpose-1d": (lambda: nn.ConvTranspose1d(4, 6, 4, stride=2, dilation=2), floats((-2, 4, -5))),
    "batch-norm": (lambda: nn.BatchNorm2d(4), floats((-2, 4, -5, -6))),
    "linear": (lambda: nn.Linear(8, 4), X),
    "bilinear": (lambda: nn.Bilinear(4, 4, 3), floats((-3, 4), (-3, 4))),
    "attention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), floats((-2, -5, 8), (-2, -5, 8), (-2, -5, 8))),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), floats((-2, -5, 8))),
    "pools": (lambda: nn.Sequential(nn.MaxPool2d(2, ceil_mode=True), nn.AdaptiveAvgPool2d(1)), floats((-2, 4, 9, 11))),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer_agrees_with_pytorch(name: str) -> None:
    build, make_inputs = LAYERS[name]
    torch.manual_seed(0)
    model = build().eval()
    imported = named(model, make_inputs(0))
    for scale in (0, 1, 4):
        assert_agrees(imported, model, make_inputs(scale))


def test_sizes_zero_and_one() -> None:
    """An export on sizes 3 and 5 serves 0 and 1; so does one on sizes 1."""
    model = nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.LayerNorm(4))
    for example in (random(3, 5, 8), random(1, 1, 8)):
        imported = named(model, (example,))
        for batch, length in ((0, 3), (1, 1), (2, 0), (7, 3)):
            assert_agrees(imported, model, (random(batch, length, 8),))
