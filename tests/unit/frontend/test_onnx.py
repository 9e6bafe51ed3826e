"""ONNX files, compiled and compared with the standard's own evaluator, at many sizes each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

import disc
from disc.config import Options
from disc.errors import DiscError, InputRankError, ShapeConstraintError
from disc.frontend.onnx.dims import example_sizes
from disc.frontend.onnx.inputs import Input

HEADER = '<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
RANDOM = np.random.default_rng(0)


def save(text: str, path: Path, weights: Mapping[str, np.ndarray] | None = None, header: str = HEADER) -> onnx.ModelProto:
    model = parser.parse_model(header + text)
    for name, value in (weights or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.save(model, path)
    return model


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def check(compiled: disc.Executable, model: onnx.ModelProto, *inputs: np.ndarray) -> None:
    expected = ReferenceEvaluator(model).run(None, dict(zip((each.name for each in model.graph.input), inputs, strict=True)))
    results = compiled(*map(torch.from_numpy, inputs))
    for have, want in zip(results if isinstance(results, tuple | list) else [results], expected, strict=True):
        np.testing.assert_allclose(have.numpy(), want, rtol=2e-5, atol=2e-5)


HEADS = """
heads (float[batch, length, 8] x, float[batch, length] mask) => (float[batch, length, 8] y, int64[2] sizes) {
  shape = Shape (x)
  zero = Constant <value: tensor = int64 {0}> ()
  one = Constant <value: tensor = int64 {1}> ()
  first = Gather (shape, zero)
  second = Gather (shape, one)
  axis = Constant <value: tensor = int64[1] {0}> ()
  b = Unsqueeze (first, axis)
  t = Unsqueeze (second, axis)
  sizes = Concat <axis: int = 0> (t, b)
  two = Constant <value: tensor = int64[1] {2}> ()
  rest = Constant <value: tensor = int64[1] {-1}> ()
  wanted = Concat <axis: int = 0> (b, t, two, rest)
  projected = MatMul (x, w)
  split = Reshape (projected, wanted)
  q = Transpose <perm: ints = [0, 2, 1, 3]> (split)
  k = Transpose <perm: ints = [0, 2, 3, 1]> (split)
  scores = MatMul (q, k)
  axes = Constant <value: tensor = int64[2] {1, 2}> ()
  open = Unsqueeze (mask, axes)
  masked = Add (scores, open)
  shares = Softmax <axis: int = -1> (masked)
  mixed = MatMul (shares, q)
  back = Transpose <perm: ints = [0, 2, 1, 3]> (mixed)
  flat = Concat <axis: int = 0> (b, t, rest)
  y = Reshape (back, flat)
}"""


def test_sizes_stay_symbols(tmp_path: Path) -> None:
    model = save(HEADS, tmp_path / "heads.onnx", {"w": normal(8, 8)})
    compiled = disc.compile(tmp_path / "heads.onnx", options=Options(cache=False))
    names = [(each["name"], len(each["dims"])) for each in compiled.manifest["inputs"]]
    assert names == [("x", 3), ("mask", 2)]
    for batch, length in ((1, 1), (2, 3), (1, 17), (5, 8)):
        check(compiled, model, normal(batch, length, 8), np.where(normal(batch, length) > 1, -1e9, 0).astype(np.float32))
    empty = compiled(torch.zeros(0, 3, 8), torch.zeros(0, 3))[0]
    assert tuple(empty.shape) == (0, 3, 8)
    with pytest.raises(ShapeConstraintError, match="mask"):  # the file says that both batches are one
        compiled(torch.zeros(2, 3, 8), torch.zeros(1, 3))


OPERATORS = """
many (float[n, m] x, int64[k] at) => (float[a, b] picked, float[c, d] turned, float[e, f] piece, float[g] most, int8[i, j] small, float[o, p] wide) {
  picked = Gather <axis: int = 1> (x, at)
  starts = Constant <value: tensor = int64[2] {-1, -1}> ()
  ends = Constant <value: tensor = int64[2] {-9223372036854775807, -9223372036854775807}> ()
  axes = Constant <value: tensor = int64[2] {0, 1}> ()
  steps = Constant <value: tensor = int64[2] {-1, -2}> ()
  turned = Slice (x, starts, ends, axes, steps)
  shape = Shape (x)
  two = Constant <value: tensor = int64 {2}> ()
  half = Div (shape, two)
  zeros = Constant <value: tensor = int64[2] {0, 0}> ()
  piece = Slice (x, zeros, half)
  most = ReduceMax <axes: ints = [0], keepdims: int = 0> (x)
  scale = Constant <value: tensor = float {0.1}> ()
  point = Constant <value: tensor = int8 {3}> ()
  small = QuantizeLinear (x, scale, point)
  pads = Constant <value: tensor = int64[4] {1, 0, 2, 1}> ()
  wide = Pad <mode: string = "edge"> (x, pads)
}"""


def test_operators_at_many_sizes(tmp_path: Path) -> None:
    model = save(OPERATORS, tmp_path / "many.onnx")
    compiled = disc.compile(tmp_path / "many.onnx", options=Options(cache=False))
    for rows, columns in ((1, 2), (2, 3), (7, 16), (16, 5), (33, 1)):
        check(compiled, model, normal(rows, columns) * 20, RANDOM.integers(-columns, columns, 4))


CHUNKS = """
chunks (float[n, m] x) => (float[n, a] first, float[n, b] second) {
  shape = Shape <start: int = 1> (x)
  one = Constant <value: tensor = int64[1] {1}> ()
  two = Constant <value: tensor = int64[1] {2}> ()
  zero = Constant <value: tensor = int64[1] {0}> ()
  rounded = Add (shape, one)
  half = Div (rounded, two)
  past = Mul (half, two)
  first = Slice (x, zero, half, one)
  second = Slice (x, half, past, one)
}"""


def test_a_slice_may_end_behind_the_last_element(tmp_path: Path) -> None:
    """As PyTorch's exporter writes `chunk`: for odd sizes alone the second part would end there."""
    model = save(CHUNKS, tmp_path / "chunks.onnx")
    compiled = disc.compile(tmp_path / "chunks.onnx", options=Options(cache=False))
    for rows, columns in ((3, 4), (2, 5), (1, 2), (4, 7)):
        check(compiled, model, normal(rows, columns))


CLAMPED = """
clamped (float[n, 4] x) => (float[a, 4] last, float[c, 4] steps, float[d, 4] first, float[e, 4] inner, float[f, 4] most, float[g, 4] both,
    float[h, 4] rest, float[i, 4] back) {
  zero = Constant <value: tensor = int64[1] {0}> ()
  two = Constant <value: tensor = int64[1] {2}> ()
  end = Constant <value: tensor = int64[1] {9223372036854775807}> ()
  minus3 = Constant <value: tensor = int64[1] {-3}> ()
  five = Constant <value: tensor = int64[1] {5}> ()
  one = Constant <value: tensor = int64[1] {1}> ()
  minus1 = Constant <value: tensor = int64[1] {-1}> ()
  start = Constant <value: tensor = int64[1] {-9223372036854775807}> ()
  inner = Slice (x, one, five, zero)
  most = Slice (x, zero, minus1, zero)
  both = Slice (x, minus3, minus1, zero)
  rest = Slice (x, two, end, zero)
  back = Slice (x, five, start, zero, minus1)
  last = Slice (x, minus3, end, zero)
  steps = Slice (x, minus3, end, zero, two)
  first = Slice (x, zero, five, zero)
}"""


@pytest.mark.parametrize("example", [2, 7])
def test_a_slice_of_constants_takes_what_there_is(example: int, tmp_path: Path) -> None:
    """For sizes on either side of the constants, whichever the example has."""
    model = save(CLAMPED, tmp_path / "clamped.onnx")
    compiled = disc.compile(tmp_path / "clamped.onnx", (normal(example, 4),), options=Options(cache=False))
    for rows in (0, 1, 2, 3, 4, 5, 6, 9):
        check(compiled, model, normal(rows, 4))


def test_a_slice_backward_starts_at_an_element(tmp_path: Path) -> None:
    """Of x[-3::-2] with 1 or 2 rows the standard takes the first, as ONNX Runtime does; NumPy takes none."""
    save(
        """
back (float[n, 4] x) => (float[m, 4] y, float[n, 1] z) {
  zero = Constant <value: tensor = int64[1] {0}> ()
  one = Constant <value: tensor = int64[1] {1}> ()
  minus2 = Constant <value: tensor = int64[1] {-2}> ()
  minus3 = Constant <value: tensor = int64[1] {-3}> ()
  minus9 = Constant <value: tensor = int64[1] {-9}> ()
  end = Constant <value: tensor = int64[1] {-9223372036854775807}> ()
  y = Slice (x, minus3, end, zero, minus2)
  z = Slice (x, minus9, end, one, minus2)
}""",
        tmp_path / "back.onnx",
    )
    compiled = disc.compile(tmp_path / "back.onnx", options=Options(cache=False))
    for rows in (0, 1, 2, 3, 4, 9):
        x = torch.randn(rows, 4)
        y, z = compiled(x)
        assert torch.equal(y, torch.flip(x[: max(rows - 2, min(rows, 1))], [0])[::2])
        assert torch.equal(z, x[:, :1])


BRANCH = """
branch (float[n, 3] x) => (float[n, 3] y, float[n, 3] z, int64[k] w) {
  shape = Shape <end: int = 1> (x)
  axis = Constant <value: tensor = int64[1] {0}> ()
  n = Squeeze (shape, axis)
  one = Constant <value: tensor = int64 {1}> ()
  none = Constant <value: tensor = int64 {0}> ()
  four = Constant <value: tensor = int64 {4}> ()
  alone = Equal (n, one)
  some = Greater (n, none)
  few = LessOrEqual (n, four)
  fits = And (some, few)
  y = If (alone) <then_branch = yes () => (float[n, 3] a) { a = Neg (x) }, else_branch = no () => (float[n, 3] b) { b = Exp (x) }>
  z = If (fits) <
    then_branch = fit () => (float[n, 3] c) { first = Gather <axis: int = 0> (x, none) c = Add (x, first) },
    else_branch = long () => (float[n, 3] d) { d = Identity (y) }
  >
  count = If (few) <
    then_branch = all () => (int64 e) { e = Identity (n) }, else_branch = half () => (int64 f) { two = Constant <value: tensor = int64 {2}> () f = Div (n, two) }
  >
  least = Where (few, count, four)
  w = Range (none, least, one)
}"""


def test_sizes_choose_a_branch_in_every_call(tmp_path: Path) -> None:
    """Whatever the example has, 0 and 1 too, which PyTorch takes no size to be; what a branch demands is demanded where it is taken."""
    model = save(BRANCH, tmp_path / "branch.onnx", header=HEADER.replace("17", "18"))
    for example in (2, 7):
        compiled = disc.compile(tmp_path / "branch.onnx", (normal(example, 3),), options=Options(cache=False))
        for rows in (0, 1, 2, 4, 5, 13):
            check(compiled, model, normal(rows, 3))


SQUEEZED = """
squeezed (float[n, 3] x) => (float y) {
  shape = Shape <end: int = 1> (x)
  one = Constant <value: tensor = int64[1] {1}> ()
  axis = Constant <value: tensor = int64[1] {0}> ()
  alone = Equal (shape, one)
  z = If (alone) <
    then_branch = yes () => (float[3] a) { a = Squeeze (x, axis) }, else_branch = no () => (float[n, 3] b) { b = Exp (x) }
  >
  y = ReduceSum <keepdims: int = 0> (z)
}"""


def test_branches_of_different_ranks_are_checked_in_every_call(tmp_path: Path) -> None:
    """The trace takes one branch; sizes of the other are refused, naming the node, also where PyTorch takes no size to be 1."""
    save(SQUEEZED, tmp_path / "branch.onnx", header=HEADER.replace("17", "18"))
    compiled = disc.compile(tmp_path / "branch.onnx", options=Options(cache=False))
    x = torch.randn(4, 3)
    assert torch.allclose(compiled(x), x.exp().sum())
    with pytest.raises(ShapeConstraintError, match=r"'x' must not be 1 \(decided at branch\.onnx:If_5:5\)"):
        compiled(torch.randn(1, 3))


NONE = """
none (float[n, 2] x) => (float[n, 2] sums, float[k] values, int64[k] first, int64[n] which, int64[k] counts) {
  axis = Constant <value: tensor = int64 {0}> ()
  sums = CumSum <exclusive: int = 1> (x, axis)
  whole = Round (x)
  values, first, which, counts = Unique (whole)
}"""


def test_running_sums_and_unique_elements_of_no_rows(tmp_path: Path) -> None:
    model = save(NONE, tmp_path / "none.onnx")
    compiled = disc.compile(tmp_path / "none.onnx", options=Options(cache=False))
    for rows in (1, 5):
        check(compiled, model, normal(rows, 2))
    assert [tuple(each.shape) for each in compiled(torch.zeros(0, 2))] == [(0, 2), *[(0,)] * 4]


BLOCK = """
block (float[n, 4] x) => (float[n, 8] y) {
  y = local.twice (x)
}
<domain: "local", opset_import: ["" : 17, "local" : 1]>
scaled (a) => (b) { two = Constant <value: tensor = float {2.0}> () b = Mul (a, two) }
<domain: "local", opset_import: ["" : 17, "local" : 1]>
twice (a) => (c) { b = local.scaled (a) c = Concat <axis: int = 1> (a, b) }
"""


def test_local_functions(tmp_path: Path) -> None:
    header = HEADER.replace('"com.microsoft"', '"local"')
    model = save(BLOCK, tmp_path / "block.onnx", header=header)
    check(disc.compile(tmp_path / "block.onnx", options=Options(cache=False)), model, normal(3, 4))


def test_external_data_and_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights beside the model are read, and count for the key of the cache."""
    monkeypatch.setenv("DISC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DISC_CACHE", "1")
    model = save("f (float[n, 64] x) => (float[n, 64] y) { y = MatMul (x, w) }", tmp_path / "plain.onnx", {"w": normal(64, 64)})
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    x, plain = normal(3, 64), onnx.load(tmp_path / "plain.onnx")
    first = disc.compile(path)
    check(first, plain, x)
    assert (first.stats()["compiles"], disc.compile(path).stats()["compiles"]) == (1, 0)
    data = bytearray((tmp_path / "weights.bin").read_bytes())
    data[:4] = np.float32(100).tobytes()
    (tmp_path / "weights.bin").write_bytes(data)
    plain.graph.initializer[0].raw_data = bytes(data)
    check(disc.compile(path), plain, x)


SCALED = """
scaled (float[n, 8] x) => (float[n, 8] y) {
  half = Constant <value: tensor = float {0.5}> ()
  h = MatMul (x, w)
  scaled = Mul (h, half)
  least = Max (scaled, zero)
  y = Mul (least, gain)
}"""


def test_numbers_are_written_into_kernels(tmp_path: Path) -> None:
    """Constants and initializers of one element; other weights stay data. Of many different ones, those that stand there more than once."""
    weights = {"w": normal(8, 8), "zero": np.float32(0.0), "gain": np.float32(3.0).reshape(1)}
    model = save(SCALED, tmp_path / "model.onnx", weights)
    compiled = disc.compile(tmp_path / "model.onnx")
    check(compiled, model, normal(5, 8))
    assert "input    f32[]" not in str(compiled.explain()) and "input    f32[1]" not in str(compiled.explain())
    products = "\n".join(f"  m{i + 1} = Mul (m{i}, s{i})" for i in range(20))
    many = f"f (float[n, 8] m0) => (float[n, 8] y) {{\n{products}\n  p = Mul (m20, same)\n  y = Mul (p, equal)\n}}"
    numbers = {f"s{i}": np.float32(1 + i / 16) for i in range(20)} | {"same": np.float32(0.3), "equal": np.float32(0.3)}
    model = save(many, tmp_path / "many.onnx", numbers)
    compiled = disc.compile(tmp_path / "many.onnx")
    check(compiled, model, normal(5, 8))
    assert str(compiled.explain()).count("input    f32[]") == 20


MICROSOFT = """
fused (float[b, t, 16] x, float[b, t, 16] skip) => (float[b, t, 16] y, float[b, t, 16] rotated, float[b, t, 8] product) {
  gelu = com.microsoft.BiasGelu (x, bias)
  y = com.microsoft.SkipLayerNormalization <epsilon: float = 0.00001> (gelu, skip, gamma, beta)
  rotated = com.microsoft.RotaryEmbedding <num_heads: int = 2> (x, positions, cosines, sines)
  product = com.microsoft.MatMulNBits <K: int = 16, N: int = 8, bits: int = 4, block_size: int = 16> (x, packed, scales)
}"""


def test_operators_of_onnx_runtime(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    angles = RANDOM.uniform(0, 3, (32, 4)).astype(np.float32)
    weights = {
        "bias": normal(16), "gamma": normal(16), "beta": normal(16), "positions": np.zeros(1, np.int64), "cosines": np.cos(angles),
        "sines": np.sin(angles), "packed": RANDOM.integers(0, 256, (8, 1, 8)).astype(np.uint8), "scales": normal(8),
    }  # fmt: skip
    save(MICROSOFT, tmp_path / "fused.onnx", weights)
    session = runtime.InferenceSession(str(tmp_path / "fused.onnx"), providers=["CPUExecutionProvider"])
    compiled = disc.compile(tmp_path / "fused.onnx", options=Options(cache=False))
    for batch, length in ((1, 1), (3, 7)):
        inputs = [normal(batch, length, 16), normal(batch, length, 16)]
        for have, want in zip(compiled(*inputs), session.run(None, dict(zip(("x", "skip"), inputs, strict=True))), strict=True):
            np.testing.assert_allclose(np.asarray(have), want, rtol=1e-4, atol=1e-4)


def test_example_sizes() -> None:
    ids, mask = Input("ids", torch.int64, ("b", "t")), Input("mask", torch.int64, ("b2", "past + t"))
    past = Input("past", torch.float32, ("b", 4, "past", 8))
    by_name, *_, alike = example_sizes([ids, mask, past])
    assert by_name[1][1] == by_name[2][2] + by_name[0][1] and by_name[2][1] == 4
    assert alike[0][0] == alike[1][0] == alike[2][0]


def test_examples_choose_the_sizes(tmp_path: Path) -> None:
    """A concatenation that fits a table of 5 rows alone is traced at sizes that the user gives."""
    text = "f (float[n, 3] x) => (float[5, 3] y) { two = Constant <value: tensor = float[2, 3] {1, 2, 3, 4, 5, 6}> () \
            both = Concat <axis: int = 0> (x, two) y = Add (both, five) }"
    model = save(text, tmp_path / "f.onnx", {"five": normal(5, 3)})
    compiled = disc.compile(tmp_path / "f.onnx", (torch.ones(3, 3),), options=Options(cache=False))
    check(compiled, model, normal(3, 3))
    with pytest.raises(InputRankError, match=r"input 'x' is float32\['n', 3\], not \[3, 4\]"):
        disc.compile(tmp_path / "f.onnx", (torch.ones(3, 4),))


def test_dims_that_are_one_in_the_example_are_broadcast(tmp_path: Path) -> None:
    """They are fixed where the graph cannot be traced else; dims of two names would become one."""
    text = "row (float[n, 4] x, float[m, 4] bias) => (float[k, 4] y) { y = Add (x, bias) }"
    model = save(text, tmp_path / "row.onnx")
    compiled = disc.compile(tmp_path / "row.onnx", (normal(5, 4), normal(1, 4)), options=Options(cache=False))
    for rows in (0, 1, 7):
        check(compiled, model, normal(rows, 4), normal(1, 4))
    with pytest.raises(ShapeConstraintError, match=r"'bias'.*dim 0 must be 1, got 7"):
        compiled(torch.ones(7, 4), torch.ones(7, 4))


ITEMS = """
items (seq(float[n, 3]) xs, float[m, 3] y, optional(float[m, 3]) z) => (float[a, 3] y0, bool there) {
  more = SequenceInsert (xs, y)
  y0 = ConcatFromSequence <axis: int = 0> (more)
  there = OptionalHasElement (z)
}"""


def test_sequences_are_as_long_as_their_examples(tmp_path: Path) -> None:
    save(ITEMS, tmp_path / "items.onnx", header='<ir_version: 9, opset_import: ["" : 18]>\n')
    one, two, y = torch.randn(2, 3), torch.randn(4, 3), torch.randn(5, 3)
    exe = disc.compile(tmp_path / "items.onnx", ([one, two], y, None), options=Options(cache=False))
    assert [each["name"] for each in exe.manifest["inputs"]] == ["xs[0]", "xs[1]", "y"]
    for rows in (1, 7):
        first = torch.randn(rows, 3)
        joined, there = exe(first, two, y)  # pyright: ignore[reportGeneralTypeIssues]
        torch.testing.assert_close(joined, torch.cat([first, two, y]))
        assert not there
    empty = disc.compile(tmp_path / "items.onnx", ([], y, y), options=Options(cache=False))
    joined, there = empty(y, y)  # pyright: ignore[reportGeneralTypeIssues]
    assert torch.equal(joined, y) and there
    for given, words in ((None, "input 'xs'.*whose length the file does not say: give example_inputs"), ((one, y, y), "'xs' is a sequence: give a list"),
                         (([one], [y], y), "'y' is a tensor, not a list"), (([one], None, y), "'y' is a tensor, not a NoneType"),
                         (([one], torch.ones(2), y), r"input 'y' is float32")):  # fmt: skip
        with pytest.raises(DiscError, match=words):
            disc.compile(tmp_path / "items.onnx", given)
