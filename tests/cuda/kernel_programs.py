"""Programs whose kernels for GPUs are checked in Triton's interpreter; run as a process of its own: `python kernel_programs.py NAME`.

Prints how many versions of kernels gave what the interpreter of the IR gives.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from device_oracle import Checked
from fused_programs import CONVOLUTION, Layers, Rows, Sums
from library_programs import PROGRAMS as LIBRARY_PROGRAMS
from torch import nn

from disc.config import Options
from disc.ir.bf16 import round_to_bf16
from disc.ir.interp.values import Array
from disc.speculation.block_families import FAMILIES
from disc.speculation.block_schedules import BlockSchedule, ProductSchedule, read_schedule
from disc.speculation.block_trees import every_leaf

DYNAMIC = torch.export.Dim.DYNAMIC
FLOAT = "abs ceil exponential exponential_minus_one floor log log_plus_one logistic negate round_nearest_afz round_nearest_even rsqrt sign sine cosine sqrt tan tanh cbrt"
CHLO = "acos acosh asin asinh atan atanh cosh sinh erf erfc erf_inv lgamma digamma square"
TESTS = "is_inf is_pos_inf is_neg_inf"
INTEGER = "abs negate sign not popcnt count_leading_zeros"
PAIRS = "add subtract multiply divide maximum minimum remainder power"
BITS = "and or xor shift_left shift_right_arithmetic shift_right_logical"
TYPES = ("f32", "f64", "bf16", "f16", "i1", "i8", "i32", "i64", "ui8", "ui32")
SPECIAL = (0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, np.inf, -np.inf, np.nan, 1e-30, 3e38, -100, 20, 0.25, 7, -7)


def drawn(element: str, seed: int, count: int = 48) -> Array:
    """Values of a type with those at which ops are special."""
    random = np.random.default_rng(seed)
    if element in ("f32", "f64", "bf16", "f16"):
        with np.errstate(over="ignore"):
            values = np.concatenate([random.permutation(np.array(SPECIAL)), random.normal(size=count - len(SPECIAL)) * 3])
            return round_to_bf16(values.astype("f4")) if element == "bf16" else values.astype(f"f{int(element[1:]) // 8}")
    if element == "i1":
        return random.integers(0, 2, count).astype(bool)
    dtype = np.dtype(("u" if element[0] == "u" else "") + "int" + element.lstrip("ui"))
    limits = np.iinfo(dtype)
    values = random.integers(-9 if limits.min < 0 else 0, 9, count).astype(dtype)
    values[:4] = [limits.min, limits.max, 0, 1]
    return random.permutation(values)


def every_op(element: str) -> str:
    """A program of all element-wise ops on a type."""
    t, bools, lines = f"tensor<?x{element}>", "tensor<?xi1>", list[tuple[str, str]]()
    floats = element in ("f32", "f64", "bf16", "f16")
    signless = INTEGER if element[0] == "i" else " ".join(op for op in INTEGER.split() if op not in ("abs", "negate", "sign"))
    unary = FLOAT if floats else "not" if element == "i1" else signless
    pairs = PAIRS if floats else "and or xor" if element == "i1" else f"{PAIRS} {BITS}"
    lines += [(f"stablehlo.{op} %a : {t}", t) for op in unary.split()]
    lines += [(f"stablehlo.{op} %a, %b : {t}", t) for op in (f"{pairs} atan2" if floats else pairs).split()]
    lines += [(f"stablehlo.compare {sign}, %a, %b : ({t}, {t}) -> {bools}", bools) for sign in ("EQ", "NE", "LT", "GE")]
    lines += [(f"stablehlo.convert %a : ({t}) -> tensor<?x{to}>", f"tensor<?x{to}>") for to in TYPES if to != element]
    if floats:
        lines += [(f"chlo.{op} %a : {t} -> {t}", t) for op in CHLO.split()]
        lines += [(f"chlo.{op} %a : {t} -> {bools}", bools) for op in TESTS.split()]
        lines.append((f"stablehlo.is_finite %a : ({t}) -> {bools}", bools))
    body = "\n  ".join(f"%r{number} = {text}" for number, (text, _) in enumerate(lines))
    types = ", ".join(type_ for _, type_ in lines)
    results = ", ".join(f"%r{number}" for number in range(len(lines)))
    return f"func.func @main(%a: {t}, %b: {t}) -> ({types}) {{\n  {body}\n  return {results} : {types}\n}}"


def elementwise() -> Iterator[int]:
    """Every element-wise op on every type."""
    for element in TYPES:
        with tempfile.TemporaryDirectory() as folder:
            program = Checked.of_text(every_op(element), Path(folder))
        yield program.check([drawn(element, 0), drawn(element, 1)], 1e-6)


def some_elementwise() -> Iterator[int]:
    """A few ops on every type, in one kernel each."""
    for element in TYPES:
        t = f"tensor<?x{element}>"
        steps = ["divide", "remainder", "power", "maximum"] if element != "i1" else ["and", "xor"]
        lines = [f"%r{number} = stablehlo.{op} {'%a' if not number else f'%r{number - 1}'}, %b : {t}" for number, op in enumerate(steps)]
        body = "\n  ".join(lines)
        text = f"func.func @main(%a: {t}, %b: {t}) -> {t} {{\n  {body}\n  return %r{len(steps) - 1} : {t}\n}}"
        with tempfile.TemporaryDirectory() as folder:
            program = Checked.of_text(text, Path(folder))
        yield program.check([drawn(element, 0), drawn(element, 1)], 1e-5)


class Layer(nn.Module):
    """A product with an epilogue, rows with two rounds of reductions, columns, parts of a concatenation, a pool, indices."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.table = nn.Linear(24, 40), nn.LayerNorm(40), nn.Embedding(11, 7)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.norm(torch.nn.functional.gelu(self.linear(x)))
        joined = torch.cat([y[:, :3] * 2, x.exp(), x.flip(1)[:, ::5]], -1)
        pooled = torch.nn.functional.max_pool1d(y, 3, 2, 1)
        return torch.softmax(y, -1), joined, y.sum(0), pooled, self.table(ids) + 1, x.argmax(1)


def layer() -> Iterator[int]:
    """Several sizes of one program: no row, one, a prime, a block and one more."""
    torch.manual_seed(0)
    model = Layer().eval()
    program = Checked.of_model(model, (torch.randn(5, 24), torch.zeros(5, dtype=torch.int64)), ({0: DYNAMIC}, {0: DYNAMIC}))
    random = np.random.default_rng(0)
    for rows in (0, 1, 7, 64, 65):
        yield program.check([random.normal(size=(rows, 24)).astype("f4"), random.integers(0, 11, rows)])


def rows() -> Iterator[int]:
    """Versions of a row kernel on both sides of their guards."""
    yield from _rows((0, 5), (3, 1), (17, 33), (2, 129))


def long_rows() -> Iterator[int]:
    """Those of the longest rows, and of rows that are gone through in parts."""
    yield from _rows((1, 1025), (1, 4097), (1, 16385))


def shared_rows() -> Iterator[int]:
    """So few that programs share them, with a launch for each round of reductions and one for the results; of any length."""
    yield from _rows((2, 32772), (1, 40001))


def long_shared_rows() -> Iterator[int]:
    """The least of the length from which most programs share a row; other numbers of rows, also of rows that have no other versions."""
    yield from _rows((1, 262144), (8, 262148), (64, 32768))
    program = Checked.of_model(FewWords(), (torch.randn(3, 50257),), ({0: DYNAMIC},))
    yield program.check([np.random.default_rng(0).normal(size=(3, 50257)).astype("f4")])


class FewWords(nn.Module):
    """Rows of one length: what a language model is trained with, and a norm whose mean is a result, too."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean = x.mean(-1, keepdim=True)
        return torch.log_softmax(x, -1), (x - mean).square().mean(-1), mean


def _rows(*sizes: tuple[int, int]) -> Iterator[int]:
    program = Checked.of_model(Rows(), (torch.randn(3, 5),), ({0: DYNAMIC, 1: DYNAMIC},))
    random = np.random.default_rng(0)
    for count, length in sizes:
        yield program.check([random.normal(size=(count, length)).astype("f4")])


def sums() -> Iterator[int]:
    """So few that programs share them, by the least lengths of both, and more."""
    yield from _sums(((1, 32768), (1024, 5)), ((3, 32771), (4099, 65)))


def long_sums() -> Iterator[int]:
    yield from _sums(((1, 262145), (4096, 130)), ((65, 32768), (1023, 2049)))


def _sums(*sizes: tuple[tuple[int, int], tuple[int, int]]) -> Iterator[int]:
    dims = ({0: DYNAMIC, 1: DYNAMIC}, {0: DYNAMIC, 1: DYNAMIC})
    program = Checked.of_model(Sums(), (torch.randn(3, 5), torch.randn(4, 6)), dims)
    random = np.random.default_rng(0)
    for shapes in sizes:
        yield program.check([random.normal(size=shape).astype("f4") for shape in shapes])


class Products(nn.Module):
    """Products with batches, a transposed side and an epilogue that reads a bias; a convolution with padding and strides."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 5, 3, 2, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.relu(x @ y.mT), (x.double() @ y.double().mT), torch.tanh(self.convolution(image))


def products() -> Iterator[int]:
    """Sizes around those of a block."""
    torch.manual_seed(0)
    example = (torch.randn(2, 5, 7), torch.randn(2, 3, 7), torch.randn(2, 3, 9, 8))
    dims = ({0: DYNAMIC, 1: DYNAMIC, 2: DYNAMIC}, {0: DYNAMIC, 1: DYNAMIC, 2: DYNAMIC}, {2: DYNAMIC, 3: DYNAMIC})
    program = Checked.of_model(Products().eval(), example, dims)
    random = np.random.default_rng(0)
    for m, n, k in ((1, 1, 1), (65, 3, 33), (7, 65, 0)):
        shapes = ((2, m, k), (2, n, k), (2, 3, 9, 8))
        yield program.check([random.normal(size=shape).astype("f4") for shape in shapes])


def convolutions() -> Iterator[int]:
    """Channels-last, one group and two, with strides and padding."""
    random = np.random.default_rng(0)
    for groups in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            program = Checked.of_text(CONVOLUTION.format(groups=groups, channels=32 // groups), Path(folder))
        for sizes in ((1, 1, 1), (2, 5, 9)):
            shapes = (*sizes, 32), (3, 3, 32 // groups, 24)
            yield program.check([random.normal(size=shape).astype("f4") for shape in shapes])


class Attention(nn.Module):
    """With a mask, and causal with fewer queries than keys."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, attn_mask=mask), attend(k, k, v, is_causal=True)


def attention() -> Iterator[int]:
    """Queries and keys around a block of each, in f32 and bf16."""
    random = np.random.default_rng(0)
    for dtype in (torch.float32, torch.bfloat16):
        example = [torch.randn(2, 3, 5, 20, dtype=dtype), *(torch.randn(2, 3, 6, 20, dtype=dtype) for _ in range(2))]
        dims = ({0: DYNAMIC, 2: DYNAMIC}, {0: DYNAMIC, 2: DYNAMIC}, {0: DYNAMIC, 2: DYNAMIC}, {2: DYNAMIC, 3: DYNAMIC})
        program = Checked.of_model(Attention(), (*example, torch.zeros(1, 1, 5, 6, dtype=dtype)), dims)
        for queries, keys in ((1, 1), (65, 3), (7, 130)):
            shapes = ((1, 3, queries, 20), (1, 3, keys, 20), (1, 3, keys, 20), (1, 1, queries, keys))
            inputs = [random.normal(size=shape).astype("f4") for shape in shapes]
            yield program.check([round_to_bf16(each) for each in inputs] if dtype is torch.bfloat16 else inputs)
    yield from _packed_attention(random)


class Heads(nn.Module):
    """Attention over a sequence."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.unflatten(-1, (2, 20)).transpose(1, 2) for each in x.chunk(3, -1))
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _packed_attention(random: np.random.Generator) -> Iterator[int]:
    """Sequences of one token, of a block of rows and of more; and one with bounds beyond the tokens: nothing there is read."""
    options = Options(packed=True, cache=False)
    program = Checked.of_model(Heads(), (torch.randn(2, 5, 120),), ({0: DYNAMIC, 1: DYNAMIC},), options=options, tree=None)
    for lengths, beyond in (((1, 16, 33), 0), ((19,), 100)):
        ends = np.cumsum(lengths, dtype=np.int64)
        bounds = ends - np.array(lengths, np.int64) - beyond, ends + beyond
        x = random.normal(size=(1, sum(lengths), 120)).astype("f4")
        yield program.check([x, *(np.repeat(each, lengths) for each in bounds), *bounds])


def schedules() -> Iterator[int]:
    """A schedule of each form: one block, several, with halves, with parts of k, of which some are empty; persistent; of few rows; by
    tensor maps."""
    forms = ("32x64x32+w4+s3+g2", "16x32x64+w4+s3+g8+h2", "16x32x32+w4+s3+g8/4", "16x64x128+w4+s4+g8/8", "16x32x64+w4+s3+g2+p",
             "16x64x32+w4+s3+g8+p+h2", "8x64x64+w4+s1+g8", "4x32x64+w4+s3+g2/8",
             "16x64x64+w4+s3+g8+t", "32x32x32+w4+s3+g2+t+p", "16x32x128+w4+s3+g8+t+h2/2")  # fmt: skip
    yield from _scheduled(tuple(map(read_schedule, forms)), 33)


class Layouts(nn.Module):
    """Products whose factors lie either way."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ z, x @ w.mT, y.mT @ z, y.mT @ w.mT


def maps() -> Iterator[int]:
    """Tensor maps of every layout, and persistent programs without, alone and in batches: blocks and one more or less, where rows are
    multiples of 16 bytes and where not, and nothing to sum."""
    names = ("16x32x64+w4+s3+g2+t", "32x16x32+w4+s3+g8+t+p", "16x16x32+w4+s3+g8+t/4", "32x16x32+w4+s3+g8+p")
    large = ("64x64x64+w4+s4+g8+t", "128x128x64+w8+s3+g8+t+p")  # boxes as wide as a swizzle, for the instructions of whole warp groups
    random = np.random.default_rng(0)
    for dtype, width in ((torch.float32, 4), (torch.bfloat16, 8)):
        for batch in ((), (2,)):
            whole = dtype is torch.bfloat16 and not batch
            forms = tuple(
                each
                for each in map(read_schedule, (*names, *large) if whole else names)
                if isinstance(each, BlockSchedule) and not (batch and each.mapped and each.persistent)
            )
            example = tuple(torch.randn(*batch, *shape, dtype=dtype) for shape in ((16, 24), (24, 16), (24, 8), (8, 24)))
            dims = tuple(dict.fromkeys((len(batch), len(batch) + 1), DYNAMIC) for _ in example)
            program = Checked.of_model(Layouts(), example, dims, tree=every_leaf(forms))
            sizes = ((16, 32, 64), (8, 40, 72), (7, 13, 29), (8, 8, 0), (0, 8, 16), (1, 1, 1), (136, 72, 136))
            for m, n, k in sizes[: None if whole else 5]:
                shapes = ((m, k), (k, m), (k, n), (n, k))
                inputs = [round_to_bf16(random.normal(size=(*batch, *shape)).astype("f4")) for shape in shapes]
                found, seen = program.check(inputs), program.run(inputs)
                # Each schedule where loads of 16 bytes are possible, and the versions for any size; with k = 0 none of maps.
                mapped = sum(
                    version.maps > 0 and version.guard.holds(each.sizes, 1 << 30)
                    for number, kernel in enumerate(program.kernels)
                    for each in seen[number]
                    for version in kernel.versions
                )
                assert mapped == (4 * sum(each.mapped for each in forms) if k > 0 and not (m % width or n % width or k % width) else 0), (
                    m,
                    n,
                    k,
                    mapped,
                )
                yield found


def few_rows() -> Iterator[int]:
    """Schedules of few rows, where some of a block are none, and where factors are computed, in batches."""
    forms = tuple(map(read_schedule, ("1x64x64+w4+s4+g8", "2x64x64+w4+s3+g8/4", "4x32x64+w4+s3+g8", "8x32x64+w4+s3+g8")))
    for rows in (0, 1, 3):
        yield from _scheduled(forms, rows)
    torch.manual_seed(0)
    example = (torch.randn(2, 5, 7), torch.randn(2, 3, 7), torch.randn(2, 3, 9, 8))
    dims = ({0: DYNAMIC, 1: DYNAMIC, 2: DYNAMIC}, {0: DYNAMIC, 1: DYNAMIC, 2: DYNAMIC}, {2: DYNAMIC, 3: DYNAMIC})
    program = Checked.of_model(Products().eval(), example, dims, tree=every_leaf(forms))
    random = np.random.default_rng(0)
    for m, n, k in ((1, 1, 1), (5, 33, 65), (3, 5, 0)):
        shapes = ((2, m, k), (2, n, k), (2, 3, 5, 4))
        yield program.check([random.normal(size=shape).astype("f4") for shape in shapes])


class Ones(nn.Module):
    """Products, each of whose sizes is 1 or varies; with a bias behind them."""

    def forward(self, bias: torch.Tensor, *factors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.bmm(left, right) + bias for left, right in zip(factors[::2], factors[1::2], strict=True))


def ones() -> Iterator[int]:
    """Every such product, by schedules of each form, and with sizes whose tensor maps may be made and others."""
    names = ("32x32x32+w4+s3+g8", "16x32x32+w4+s3+g8/2", "16x16x32+w4+s3+g8+p", "16x32x32+w4+s3+g8+t", "16x32x32+w4+s3+g8+t+p",
             "16x32x32+w4+s3+g8+h2", "1x32x32+w4+s3+g8", "4x32x32+w4+s3+g2/2")  # fmt: skip
    forms = tuple(map(read_schedule, names))
    random = np.random.default_rng(0)
    varies = tuple(itertools.product((False, True), repeat=4))

    def shapes(sizes: tuple[int, int, int, int]) -> list[tuple[int, ...]]:
        own = [[size if varied else 1 for size, varied in zip(sizes, each, strict=True)] for each in varies]
        return [(1,), *(shape for b, m, n, k in own for shape in ((b, m, k), (b, k, n)))]

    example = [torch.randn(shape) for shape in shapes((3, 5, 6, 7))]
    dims = tuple({axis: DYNAMIC for axis, size in enumerate(each.shape) if size > 1} for each in example)
    program = Checked.of_model(Ones(), tuple(example), (dims[0], dims[1:]), tree=every_leaf(forms))
    assert [kernel.kind for kernel in program.kernels].count("compute") == sum(1 for _ in varies)
    for sizes in ((2, 8, 12, 36), (1, 5, 35, 3), (3, 33, 1, 5)):
        yield program.check([random.normal(size=shape).astype("f4") for shape in shapes(sizes)])


def every_schedule() -> Iterator[int]:
    """All that are compiled for any GPU."""
    found = dict.fromkeys(each for kinds in FAMILIES.values() for family in kinds.values() for each in family)
    yield from _scheduled(tuple(found), 17)


def _scheduled(forms: tuple[ProductSchedule, ...], rows: int) -> Iterator[int]:
    torch.manual_seed(0)
    model = Layers(200, 72).eval()
    program = Checked.of_model(model, model.example(), model.dims(), tree=every_leaf(forms))
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 200)).astype("f4")
    yield program.check([x, round_to_bf16(x)])


class FewQueries(nn.Module):
    """Attention without a mask, causal, and with a head that registers do not hold."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, wide: torch.Tensor) -> tuple[torch.Tensor, ...]:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v), attend(q, k, v, is_causal=True), attend(wide, wide, wide)


class OneQuery(nn.Module):
    """Attention, written out."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.mT, -1) @ v + 1


def few_queries() -> Iterator[int]:
    """So few queries that programs share the keys, and more."""
    example = (torch.randn(1, 1, 3, 20), torch.randn(1, 1, 6, 20), torch.randn(1, 1, 6, 20), torch.randn(1, 1, 4, 272))
    program = Checked.of_model(FewQueries(), example, tuple({2: DYNAMIC} for _ in example))
    random = np.random.default_rng(0)
    for queries, keys in ((1, 513), (17, 70), (3, 0)):
        shapes = ((1, 1, queries, 20), (1, 1, keys, 20), (1, 1, keys, 20), (1, 1, queries, 272))
        yield program.check([random.normal(size=shape).astype("f4") for shape in shapes])
    for heads, width in ((1, 5), (2, 1)):  # one query, and what is attended to has one number
        example = (torch.randn(1, heads, 1, 20), torch.randn(1, heads, 6, 20), torch.randn(1, heads, 6, width))
        program = Checked.of_model(OneQuery(), example, ({}, {2: DYNAMIC}, {2: DYNAMIC}))
        for keys in (1, 70):
            shapes = ((1, heads, 1, 20), (1, heads, keys, 20), (1, heads, keys, width))
            yield program.check([random.normal(size=shape).astype("f4") for shape in shapes])


PROGRAMS: dict[str, Callable[[], Iterator[int]]] = {
    "elementwise": elementwise, "some_elementwise": some_elementwise, "layer": layer, "rows": rows, "shared_rows": shared_rows, "long_rows": long_rows, "long_shared_rows": long_shared_rows, "sums": sums, "long_sums": long_sums, "products": products, "convolutions": convolutions, "attention": attention,
    "schedules": schedules, "maps": maps, "ones": ones, "few_rows": few_rows, "every_schedule": every_schedule, "few_queries": few_queries,
    **LIBRARY_PROGRAMS,
}  # fmt: skip

if __name__ == "__main__":
    for program in sys.argv[1:]:
        print(program, sum(PROGRAMS[program]()))
