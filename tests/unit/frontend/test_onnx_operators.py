"""Operators of ONNX that are more than one function of PyTorch: control flow on data, recurrent layers, narrow types, detectors, sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import disc
from disc.config import Options
from disc.frontend.onnx.narrow import decoded, encoded, wrapped
from tests.unit.frontend.test_onnx import HEADER, RANDOM, check, normal, save

NEW = '<ir_version: 11, opset_import: ["" : 24]>\n'
EIGHT_BITS = {
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn, TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2, TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    TensorProto.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
}  # fmt: skip


def compiled(path: Path) -> Callable[..., list[np.ndarray]]:
    """Takes and gives arrays."""
    run = disc.compile(path, options=Options(cache=False))

    def call(*inputs: np.ndarray) -> list[np.ndarray]:
        results = run(*inputs)
        return [np.asarray(each) for each in (results if isinstance(results, tuple | list) else [results])]

    return call


@pytest.mark.parametrize("kind", [*EIGHT_BITS, TensorProto.FLOAT8E8M0], ids=TensorProto.DataType.Name)
def test_floats_of_8_bits_and_fewer(kind: int) -> None:
    """Every code's value, and what rounds to it: values between codes, ties, what is too large, NaN, zeros of both signs."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    codes = np.arange(16 if kind == TensorProto.FLOAT4E2M1 else 256, dtype=np.uint8)
    values = codes.view(dtype).astype(np.float32)
    np.testing.assert_array_equal(decoded(torch.from_numpy(codes), kind).numpy(), values)
    some = np.sort(values[np.isfinite(values)])
    between = np.concatenate([some, (some[1:] / 2 + some[:-1] / 2), normal(3000) * some.max() / 4, normal(3000) * 2**-9])
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 3e38, 1e-44, -1e-40], np.float32)
    x = np.concatenate([np.nextafter(between, np.float32(9e9)), between, np.nextafter(between, np.float32(-9e9)), special]).astype(
        np.float32
    )
    if kind == TensorProto.FLOAT8E8M0:
        for saturate, rounding in ((True, "up"), (True, "nearest"), (False, "down"), (False, "up")):
            expected = numpy_helper.to_float8e8m0(x, saturate, rounding).view(np.uint8)
            np.testing.assert_array_equal(encoded(torch.from_numpy(x), kind, saturate=saturate, rounding=rounding).numpy(), expected)
        return
    with np.errstate(all="ignore"):
        plain, saturated = x.astype(dtype).view(np.uint8), numpy_helper.saturate_cast(x, dtype).view(np.uint8)
    np.testing.assert_array_equal(encoded(torch.from_numpy(x), kind, saturate=False).numpy()[:-7], plain[:-7])
    kept = ~np.isnan(x)  # the sign of a NaN says nothing
    np.testing.assert_array_equal(encoded(torch.from_numpy(x), kind, saturate=False).numpy()[kept], plain[kept])
    expected = plain if kind == TensorProto.FLOAT4E2M1 else saturated
    np.testing.assert_array_equal(encoded(torch.from_numpy(x), kind).numpy()[kept], expected[kept])


def test_integers_of_few_bits() -> None:
    x = torch.arange(-40, 40)
    for kind, dtype in ((TensorProto.INT4, ml_dtypes.int4), (TensorProto.UINT4, ml_dtypes.uint4)):
        expected = x.numpy().astype(dtype)
        assert wrapped(x, kind).tolist() == [int(each) for each in expected]


NARROW = """
narrow (float[n, 4] x, float8e4m3fn[n, 4] codes, int4[n, 4] few) => (float8e5m2[n, 4] small, float[n, 4] y, int4[n, 4] turned) {
  small = Cast <to: int = 19> (x)
  wide = Cast <to: int = 1> (codes)
  counts = Cast <to: int = 1> (few)
  sum = Add (wide, counts)
  scale = Constant <value: tensor = float {0.5}> ()
  turned = QuantizeLinear <output_dtype: int = 22> (x, scale)
  back = DequantizeLinear (turned, scale)
  y = Add (sum, back)
}"""


def test_narrow_types_as_inputs_and_results(tmp_path: Path) -> None:
    """Floats come and go as their codes, integers as their values; bits that an int4 has not are left out."""
    save(NARROW, tmp_path / "m.onnx", header=NEW)
    run = compiled(tmp_path / "m.onnx")
    for rows in (0, 1, 5, 17):
        x, codes = normal(rows, 4) * 3, RANDOM.integers(0, 127, (rows, 4)).astype(np.uint8)
        few = RANDOM.integers(-8, 8, (rows, 4)).astype(np.int8)
        small, y, turned = run(x, codes, few)
        np.testing.assert_array_equal(small, numpy_helper.saturate_cast(x, np.dtype(ml_dtypes.float8_e5m2)).view(np.uint8))
        quantized = np.clip(np.rint(x / 0.5), -8, 7)
        np.testing.assert_array_equal(turned, quantized.astype(np.int8))
        np.testing.assert_allclose(y, codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) + few + quantized * 0.5, rtol=1e-6)
    np.testing.assert_array_equal(run(x, codes, (few + 16).astype(np.int8))[1], y)


FLOW = """
flow (float[n, 3] x, int64 most) => (float[n, 3] y, float[n, 3] power, float[3] last, float[n, 3] sums) {
  total = ReduceSum <keepdims: int = 0> (x)
  nothing = Constant <value: tensor = float {0.0}> ()
  positive = Greater (total, nothing)
  y = If (positive) <then_branch = yes () => (float[n, 3] a) { a = Mul (x, w) },
                     else_branch = no () => (float[n, 3] b) { two = Constant <value: tensor = float {2.0}> () b = Sub (x, two) }>
  go = Constant <value: tensor = bool {1}> ()
  power = Loop (most, go, x) <body = turn (int64 i, bool on, float[n, 3] p) => (bool next, float[n, 3] q) {
    q = Mul (p, w)
    size = ReduceMax <keepdims: int = 0> (q)
    bound = Constant <value: tensor = float {50.0}> ()
    next = Less (size, bound)
  }>
  start = Constant <value: tensor = float[3] {0, 0, 0}> ()
  last, sums = Scan <num_scan_inputs: int = 1, body = add (float[3] s, float[3] row) => (float[3] t, float[3] u) {
    t = Add (s, row)
    u = Mul (t, w)
  }> (start, x)
}"""


def test_control_flow_on_data(tmp_path: Path) -> None:
    """Both branches, loops of no turn, of all and until the data say so, a scan over 1 row and many: one compile."""
    model = save(FLOW, tmp_path / "flow.onnx", {"w": np.array([1.5, 2.0, -1.0], np.float32)})
    run = disc.compile(tmp_path / "flow.onnx", options=Options(cache=False))
    for rows, most, sign in ((1, 0, 1), (2, 3, -1), (7, 100, 1), (7, 4, -1)):
        check(run, model, np.abs(normal(rows, 3)) * sign, np.array(most))


BRANCHES = """
branches (float[b, t] x) => (float[b, t] y) {
  positive = Abs (x)
  sum = ReduceSum <keepdims: int = 0> (x)
  zero = Constant <value: tensor = float {0}> ()
  five = Constant <value: tensor = float {5}> ()
  above = Greater (sum, zero)
  small = Less (sum, five)
  y = If (above) <
    then_branch = outer () => (float[b, t] a) {
      a = If (small) <
        then_branch = inner () => (float[b, t] c) { c = Neg (x) },
        else_branch = other () => (float[b, t] d) { d = Sqrt (positive) }
      >
    },
    else_branch = rest () => (float[b, t] e) {
      one = Constant <value: tensor = float {1}> ()
      two = Add (one, one)
      e = Mul (x, two)
    }
  >
}"""


def test_branches_within_branches(tmp_path: Path) -> None:
    """A constant that was computed while a branch was traced lost the graphs of the branches within it."""
    model = save(BRANCHES, tmp_path / "branches.onnx")
    run = disc.compile(tmp_path / "branches.onnx", options=Options(cache=False))
    for rows, sign in ((1, 1), (2, -1), (7, 1), (0, 1)):
        check(run, model, np.abs(normal(rows, 3)) * sign)


LAYERS = """
layers (float[t, b, 3] x, int32[b] lengths) => (float[t, 2, b, 4] y, float[2, b, 4] h, float[2, b, 4] c, float[t, 1, b, 4] z) {
  y, h, c = LSTM <hidden_size: int = 4, direction: string = "bidirectional"> (x, w, r, bias, lengths)
  z = GRU <hidden_size: int = 4, linear_before_reset: int = 1> (x, gw, gr)
}"""


def test_recurrent_layers_over_any_length(tmp_path: Path) -> None:
    """Against ONNX Runtime: the standard's evaluator has neither lengths nor directions."""
    runtime = pytest.importorskip("onnxruntime")
    weights = {"w": normal(2, 16, 3), "r": normal(2, 16, 4), "bias": normal(2, 32), "gw": normal(1, 12, 3), "gr": normal(1, 12, 4)}
    save(LAYERS, tmp_path / "layers.onnx", weights)
    session = runtime.InferenceSession(str(tmp_path / "layers.onnx"), providers=["CPUExecutionProvider"])
    run = compiled(tmp_path / "layers.onnx")
    for length, batch in ((1, 1), (5, 3), (40, 2)):
        inputs = [normal(length, batch, 3), RANDOM.integers(1, length + 1, batch).astype(np.int32)]
        for have, want in zip(run(*inputs), session.run(None, dict(zip(("x", "lengths"), inputs, strict=True))), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


def test_models_of_old_operator_sets(tmp_path: Path) -> None:
    """Softmax of set 9 is one over all dims from its axis on"""
    text = "f (float[n, 2, 3] x) => (float[n, 2, 3] y) { y = Softmax <axis: int = 1> (x) }"
    save(text, tmp_path / "m.onnx", header='<ir_version: 4, opset_import: ["" : 9]>\n')
    x = normal(5, 2, 3)
    expected = torch.softmax(torch.from_numpy(x).flatten(1), 1).reshape(5, 2, 3).numpy()
    np.testing.assert_allclose(compiled(tmp_path / "m.onnx")(x)[0], expected, rtol=1e-5)


@pytest.mark.parametrize(("dims", "slope"), [("n, 3", (3,)), ("n, 3, m", (3,)), ("n, 3, m, m", (1,))])
def test_slopes_along_the_channels(dims: str, slope: tuple[int, ...], tmp_path: Path) -> None:
    """PRelu before set 7, of which two nodes share their slopes."""
    text = f"f (float[{dims}] x, float[{','.join(map(str, slope))}] s) => (float[{dims}] y) {{ h = PRelu (x, s) g = Neg (h) y = PRelu (g, s) }}"
    slopes = normal(*slope)
    save(text, tmp_path / "m.onnx", {"s": slopes}, header='<ir_version: 3, opset_import: ["" : 6]>\n')
    x = normal(*[{"n": 5, "3": 3, "m": 2}[each] for each in dims.split(", ")])
    h = torch.nn.functional.prelu(torch.from_numpy(x), torch.from_numpy(slopes))
    np.testing.assert_allclose(compiled(tmp_path / "m.onnx")(x)[0], torch.nn.functional.prelu(-h, torch.from_numpy(slopes)), rtol=1e-5)


BOXES = """
boxes (float[b, n, 4] at, float[b, c, n] scores, float[k] x) => (int64[s, 3] kept, float[u] values, int64[u] first, int64[k] which, int64[u] count) {
  most = Constant <value: tensor = int64 {3}> ()
  overlap = Constant <value: tensor = float {0.4}> ()
  least = Constant <value: tensor = float {0.1}> ()
  kept = NonMaxSuppression (at, scores, most, overlap, least)
  values, first, which, count = Unique <sorted: int = 0> (x)
}"""


def test_sizes_that_depend_on_data(tmp_path: Path) -> None:
    """Against ONNX Runtime."""
    runtime = pytest.importorskip("onnxruntime")
    save(BOXES, tmp_path / "boxes.onnx")
    session = runtime.InferenceSession(str(tmp_path / "boxes.onnx"), providers=["CPUExecutionProvider"])
    run = compiled(tmp_path / "boxes.onnx")
    for batch, count, classes, numbers in ((1, 1, 1, 1), (2, 9, 3, 13), (1, 40, 2, 100)):
        corners = RANDOM.uniform(0, 4, (batch, count, 2)).astype(np.float32)
        at = np.concatenate([corners, corners + RANDOM.uniform(0.5, 3, corners.shape)], -1).astype(np.float32)
        inputs = [at, RANDOM.uniform(0, 1, (batch, classes, count)).astype(np.float32), RANDOM.integers(0, 7, numbers).astype(np.float32)]
        expected = session.run(None, dict(zip(("at", "scores", "x"), inputs, strict=True)))
        for have, want in zip(run(*inputs), expected, strict=True):
            np.testing.assert_array_equal(have, want)


SOUND = """
sound (float[b, t, 1] x) => (float[b, f, 9, 2] y, float[b, 10, 1] back, float[b, t, 9, 2] whole) {
  step = Constant <value: tensor = int64 {4}> ()
  size = Constant <value: tensor = int64 {16}> ()
  y = STFT (x, step, window, size)
  rows = Constant <value: tensor = int64[2] {0, 0}> ()
  ends = Constant <value: tensor = int64[2] {9223372036854775807, 10}> ()
  part = Slice (x, rows, ends)
  axis = Constant <value: tensor = int64 {1}> ()
  ten = Constant <value: tensor = int64 {10}> ()
  half = DFT <onesided: int = 1> (part, ten, axis)
  back = DFT <onesided: int = 1, inverse: int = 1> (half, ten, axis)
  nine = Constant <value: tensor = int64 {9}> ()
  open = Unsqueeze (x, axis)
  still = Constant <value: tensor = int64[4] {0, 2, 1, 3}> ()
  moved = Transpose <perm: ints = [0, 2, 1, 3]> (open)
  whole = DFT (moved, nine, two)
}"""


def test_fourier_transforms(tmp_path: Path) -> None:
    save(SOUND, tmp_path / "sound.onnx", {"window": np.hanning(16).astype(np.float32), "two": np.array(2)}, header=NEW)
    run = compiled(tmp_path / "sound.onnx")
    for batch, length in ((1, 16), (3, 37)):
        x = normal(batch, length, 1)
        y, back, whole = run(x)
        frames = np.lib.stride_tricks.sliding_window_view(x[..., 0], 16, 1)[:, ::4] * np.hanning(16)
        transformed = np.fft.rfft(frames)
        np.testing.assert_allclose(y, np.stack([transformed.real, transformed.imag], -1), atol=2e-5)
        np.testing.assert_allclose(back, x[:, :10], atol=2e-6)
        padded = np.fft.fft(x, 9, -1)
        np.testing.assert_allclose(whole, np.stack([padded.real, padded.imag], -1), atol=2e-5)


SPECTRA = """
spectra (float[b, t, 1] x) => (float[b, t, 2] whole, float[b, h, 2] half, float[b, t, 2] back, float[b, r, 1] real) {
  axis = Constant <value: tensor = int64 {1}> ()
  whole = DFT (x, , axis)
  half = DFT <onesided: int = 1> (x, , axis)
  back = DFT <inverse: int = 1> (whole, , axis)
  real = DFT <onesided: int = 1, inverse: int = 1> (half, , axis)
}"""


def test_fourier_transforms_of_dynamic_length(tmp_path: Path) -> None:
    save(SPECTRA, tmp_path / "spectra.onnx", header=NEW)
    run = compiled(tmp_path / "spectra.onnx")
    for batch, length in ((2, 2), (1, 13), (3, 64)):
        x = normal(batch, length, 1)
        whole, half, back, real = run(x)
        for have, want in ((whole, np.fft.fft(x[..., 0])), (half, np.fft.rfft(x[..., 0])), (back, x[..., 0] + 0j)):
            np.testing.assert_allclose(have, np.stack([want.real, want.imag], -1), atol=2e-5)
        even = 2 * (length // 2)
        np.testing.assert_allclose(real[..., 0], np.fft.irfft(np.fft.rfft(x[..., 0]), even), atol=2e-5)


STACKING = """
stacking (float[n] x, float limit, int64 most) => (float[n] last, float[k, n] rows) {
  zero = Sub (x, x)
  last, rows = Loop (most, , zero) <body = turn (int64 i, bool on, float[n] s) => (bool next, float[n] t, float[n] row) {
    t = Add (s, x) row = Mul (t, t)
    sum = ReduceSum <keepdims: int = 0> (t)
    next = Less (sum, limit)
  }>
}"""


def test_stacked_results_of_loops_that_data_end(tmp_path: Path) -> None:
    """Ended by the condition, by the number of turns, before the first."""
    save(STACKING, tmp_path / "stacking.onnx", header=NEW)
    run = compiled(tmp_path / "stacking.onnx")
    for size, limit, most, turns in ((3, 9.5, 100, 4), (2, 9.5, 2, 2), (5, 1.0, 7, 1), (4, 1.0, 0, 0)):
        x = np.ones(size, np.float32)
        last, rows = run(x, np.float32(limit), np.array(most))
        expected = np.arange(1, turns + 1, dtype=np.float32)[:, None] * x
        np.testing.assert_allclose(last, turns * x)
        np.testing.assert_allclose(rows, expected**2)
        assert rows.shape == (turns, size)


UNSIGNED = """
unsigned (uint64[n] a, uint64[n] b) => (uint64[n] q, uint64[n] r, uint64[n] most, bool[n] more, uint64[n] shifted) {
  q = Div (a, b) r = Mod (a, b) most = Max (a, b) more = Greater (a, b)
  small = Constant <value: tensor = uint64 {63}> ()
  places = BitwiseAnd (b, small)
  shifted = BitShift <direction: string = "RIGHT"> (a, places)
}"""


def test_unsigned_integers_of_64_bits(tmp_path: Path) -> None:
    header = HEADER.replace("17", "18")
    save(UNSIGNED, tmp_path / "m.onnx", header=header)
    ends = np.array([1, 2, 2**32 - 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1], np.uint64)
    a, b = (each.reshape(-1) for each in np.meshgrid(np.append(ends, np.uint64(0)), ends))
    q, r, most, more, shifted = compiled(tmp_path / "m.onnx")(np.ascontiguousarray(a), np.ascontiguousarray(b))
    for have, want in ((q, a // b), (r, a % b), (most, np.maximum(a, b)), (more, a > b), (shifted, a >> (b & np.uint64(63)))):
        np.testing.assert_array_equal(have, want)


@pytest.mark.long
def test_an_average_of_places_in_an_image(tmp_path: Path) -> None:
    """RoiAlign and DeformConv at dynamic sizes."""
    text = """regions (float[b, c, h, w] x, float[r, 4] at, int64[r] which, float[b, 8, p, q] off) => (float[r, c, 2, 3] y, float[b, 2, p, q] z) {
      y = RoiAlign <output_height: int = 2, output_width: int = 3, sampling_ratio: int = 2, spatial_scale: float = 0.5> (x, at, which)
      z = DeformConv <kernel_shape: ints = [2, 2]> (x, weight, off)
    }"""
    model = save(text, tmp_path / "m.onnx", {"weight": normal(2, 3, 2, 2)}, header=HEADER.replace("17", "19"))
    run = compiled(tmp_path / "m.onnx")
    for batch, height, width, count in ((1, 6, 5, 1), (2, 7, 9, 5)):
        corners = RANDOM.uniform(0, 6, (count, 2)).astype(np.float32)
        at = np.concatenate([corners, corners + RANDOM.uniform(1, 8, corners.shape)], 1).astype(np.float32)
        which, off = RANDOM.integers(0, batch, count), normal(batch, 8, height - 1, width - 1)
        x = normal(batch, 3, height, width)
        expected = ReferenceEvaluator(model).run(None, {"x": x, "at": at, "which": which, "off": off})
        for have, want in zip(run(x, at, which, off), expected, strict=True):
            np.testing.assert_allclose(have, np.asarray(want), rtol=1e-4, atol=1e-4)


def test_checks_of_the_file_hold_for_narrow_weights(tmp_path: Path) -> None:
    """Packed weights of 4 bits, inside of the file and beside it."""
    weight = RANDOM.integers(-8, 8, (4, 6)).astype(ml_dtypes.int4)
    text = "f (float[n, 4] x) => (float[n, 6] y) { scale = Constant <value: tensor = float {0.25}> () d = DequantizeLinear (w, scale) y = MatMul (x, d) }"
    model = save(text, tmp_path / "m.onnx", {"w": weight}, header=NEW)
    x = normal(3, 4)
    expected = x @ (weight.astype(np.float32) * 0.25)
    np.testing.assert_allclose(compiled(tmp_path / "m.onnx")(x)[0], expected, rtol=1e-5, atol=1e-5)
    onnx.save(model, tmp_path / "out.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    np.testing.assert_allclose(compiled(tmp_path / "out.onnx")(x)[0], expected, rtol=1e-5, atol=1e-5)


CONTRIB = """
contrib (float[b, t, 64] q, float[b, t, 32] k, float[b, t, 32] v, float[b, 2, p, 16] past, int32[b] lengths, int32[b, t] ids, int32[b, t] mask) =>
    (float[b, t, 64] y, float[b, 2, r, 16] keys, float[b, 2, r, 16] values, float[b, t, 32] z) {
  total = Constant <value: tensor = int32 {9}> ()
  y, keys, values = com.microsoft.GroupQueryAttention <num_heads: int = 4, kv_num_heads: int = 2, do_rotary: int = 1>
      (q, k, v, past, past, lengths, total, cosines, sines)
  x, seen = com.microsoft.EmbedLayerNormalization (ids, ids, words, places, words, gamma, beta, mask)
  z = com.microsoft.Attention <num_heads: int = 2, unidirectional: int = 1> (x, weight, bias, mask)
}"""


def test_attention_of_onnx_runtime(tmp_path: Path) -> None:
    """A prompt without a cache, a step behind one, a chunk behind one: one compile."""
    runtime = pytest.importorskip("onnxruntime")
    angles = RANDOM.uniform(0, 3, (32, 8)).astype(np.float32)
    weights = {
        "cosines": np.cos(angles), "sines": np.sin(angles), "words": normal(20, 32), "places": normal(16, 32), "gamma": normal(32),
        "beta": normal(32), "weight": normal(32, 96) / 4, "bias": normal(96),
    }  # fmt: skip
    save(CONTRIB, tmp_path / "contrib.onnx", weights)
    session = runtime.InferenceSession(str(tmp_path / "contrib.onnx"), providers=["CPUExecutionProvider"])
    run = compiled(tmp_path / "contrib.onnx")
    names = ("q", "k", "v", "past", "lengths", "ids", "mask")
    for batch, length, past in ((1, 9, 0), (2, 1, 8), (1, 3, 6)):
        tokens = [normal(batch, length, width) for width in (64, 32, 32)]
        inputs = [
            *tokens,
            normal(batch, 2, past, 16),
            np.full(batch, 8, np.int32),
            RANDOM.integers(0, 20, (batch, length)).astype(np.int32),
        ]
        inputs.append((RANDOM.uniform(0, 1, (batch, length)) < 0.7).astype(np.int32) | (np.arange(length) == 0).astype(np.int32))
        expected = session.run(None, dict(zip(names, inputs, strict=True)))
        for have, want in zip(run(*inputs), expected, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4)


QUANTIZED = """
quantized (uint8[b, 3, m] x, uint8[b, 3, m] y, float[b, 8] a) =>
    (uint8[b, 3, m] sum, uint8[b, 3, m] product, uint8[b, 3, m] share, uint8[b, 3, m] leaky, uint8[b, 3, m] soft, uint8[b, 3, 1] mean,
     uint8[b, 6, m] both, uint8[b, 5] gemm, float[b, 5] plain, float[b, 5] dynamic, uint8[b, 8] stored) {
  sum = com.microsoft.QLinearAdd (x, s, z, y, t, u, r, q)
  product = com.microsoft.QLinearMul (x, s, z, y, t, u, r, q)
  share = com.microsoft.QLinearSigmoid (x, s, z, r, q)
  leaky = com.microsoft.QLinearLeakyRelu <alpha: float = 0.2> (x, s, z, r, q)
  soft = com.microsoft.QLinearSoftmax <axis: int = -1, opset: int = 13> (x, s, z, fine, none)
  mean = com.microsoft.QLinearGlobalAveragePool <channels_last: int = 0> (x, s, z, r, q)
  both = com.microsoft.QLinearConcat <axis: int = 1> (r, q, x, s, z, y, t, u)
  stored = com.microsoft.QuantizeLinear (a, s, z)
  gemm = com.microsoft.QGemm (stored, s, z, w, v, wz, bias, r, q)
  plain = com.microsoft.MatMulIntegerToFloat (stored, w, s, v, z, wz, shift)
  dynamic = com.microsoft.DynamicQuantizeMatMul (a, w, v, wz, shift)
}"""


def test_quantized_operators_of_onnx_runtime(tmp_path: Path) -> None:
    """To one step, by which roundings of other orders differ."""
    runtime = pytest.importorskip("onnxruntime")
    scales = {"s": 0.05, "t": 0.04, "r": 0.07, "fine": 1 / 128, "v": 0.03}
    zeros = {"z": 120, "u": 100, "q": 90, "none": 0}
    weights = {
        **{name: np.array(each, np.float32) for name, each in scales.items()}, **{name: np.array(each, np.uint8) for name, each in zeros.items()},
        "w": RANDOM.integers(-127, 128, (8, 5)).astype(np.int8), "wz": np.array(0, np.int8), "shift": normal(5),
        "bias": RANDOM.integers(-99, 99, 5).astype(np.int32),
    }  # fmt: skip
    save(QUANTIZED, tmp_path / "q.onnx", weights)
    session = runtime.InferenceSession(str(tmp_path / "q.onnx"), providers=["CPUExecutionProvider"])
    run = compiled(tmp_path / "q.onnx")
    for batch, length in ((1, 1), (3, 17)):
        inputs = [RANDOM.integers(0, 256, (batch, 3, length)).astype(np.uint8) for _ in range(2)]
        inputs.append(normal(batch, 8))
        expected = session.run(None, dict(zip(("x", "y", "a"), inputs, strict=True)))
        for have, want in zip(run(*inputs), expected, strict=True):
            assert have.dtype == want.dtype
            np.testing.assert_allclose(have.astype(np.float64), want, atol=1e-4 if want.dtype == np.float32 else 1)
