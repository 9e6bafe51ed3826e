"""Library kernels against eager: sorts and what is made of them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from compiled import Wrapped, assert_close, module_program, randn, text_program

import disc
from disc.errors import InputValueError, ShapeConstraintError
from disc.ral.executable import Executable

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LINES = ((2, 3), (0, 3), (3, 0), (1, 1), (5, 97), (3, 96), (95, 4), (131, 260))


def special(x: torch.Tensor) -> torch.Tensor:
    """With NaN, infinities and both zeros among the values, where there is room."""
    values = (float("nan"), -0.0, 0.0, float("inf"), -float("inf"), -0.0, float("nan"), 0.0)
    flat = x.flatten()
    for place, value in enumerate(values[: max(flat.numel() - 2, 0)]):
        flat[place * 3 % flat.numel()] = value
    return flat.reshape(x.shape)


@functools.cache
def compiled(function: Callable[..., object], dtypes: tuple[torch.dtype, ...]) -> Executable:
    """The function over matrices of these dtypes, for this machine: what computes them is the same for all."""
    return disc.compile(Wrapped(function).eval(), tuple(randn(4, 5, dtype=dtype) for dtype in dtypes))


def matrices(shape: tuple[int, int], dtypes: tuple[torch.dtype, ...]) -> list[torch.Tensor]:
    found = [randn(*shape, dtype=dtype, seed=number) for number, dtype in enumerate(dtypes)]
    return [special(x) if x.dtype.is_floating_point else x for x in found]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]) if x.dtype.is_floating_point else x


def sorts(*inputs: torch.Tensor) -> list[torch.Tensor]:
    orders = [(x, dim, bool((number + dim) % 2)) for number, x in enumerate(inputs) for dim in (0, -1)]
    return [each for x, dim, descending in orders for each in torch.sort(x, dim=dim, descending=descending, stable=True)]


@pytest.mark.parametrize("dtypes", [FLOATS, (*INTEGERS, torch.bool)], ids=["floats", "integers"])
def test_sorts(dtypes: tuple[torch.dtype, ...]) -> None:
    """All dtypes, both dims, both orders; equal elements keep their order, also those that only look different."""
    for shape in LINES:
        inputs = matrices(shape, dtypes)
        for ours, theirs in zip(compiled(sorts, dtypes)(*inputs), sorts(*inputs), strict=True):
            assert torch.equal(bits(ours), bits(theirs)), f"{theirs.dtype} {shape}"


KEYS: dict[str, Callable[[int], torch.Tensor]] = {
    "near each other": lambda count: torch.randint(-40, 40, (count,)),
    "of exactly 32 bits": lambda count: torch.randint(0, 2**32, (count,)).index_fill(0, torch.tensor([0]), 0).index_fill(0, torch.tensor([1]), 2**32 - 1),
    "of 33 bits": lambda count: torch.randint(0, 2**33, (count,)) - 2**32,
    "all over": lambda count: torch.randint(-(2**62), 2**62, (count,)) * 2,
    "some with the first 32 bits of others": lambda count: torch.cat([torch.randint(2**61, 2**62, (count - count // 8,)), torch.arange(count // 8) // 2 * -(2**40) + torch.arange(count // 8) % 2]),
    "most with the same first 32 bits": lambda count: torch.randint(0, 50, (count,)).index_fill(0, torch.tensor([count // 2]), 2**62),
}  # fmt: skip


@pytest.mark.parametrize("keys", KEYS)
def test_sorts_of_64_bits(keys: str) -> None:
    """Whether 32 bits tell all keys of a line apart, some, or few."""
    dtypes = (torch.int64, torch.float64)
    for count in (95, 96, 97, 512, 1000):
        torch.manual_seed(count)
        whole = KEYS[keys](count)
        halves = whole.view(torch.float64).nan_to_num() if keys != "near each other" else whole.double()
        for inputs in ((whole.reshape(1, -1), halves.reshape(1, -1)), (whole.reshape(-1, 1), halves.reshape(-1, 1))):
            for ours, theirs in zip(compiled(sorts, dtypes)(*inputs), sorts(*inputs), strict=True):
                assert torch.equal(bits(ours), bits(theirs)), f"{theirs.dtype} {tuple(theirs.shape)}"


def test_sorts_of_what_is_computed() -> None:
    """Operands that are views, constants and values of other kernels, of three dims; results that nothing reads, and that others do."""

    def sorts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        middle = torch.sort(x * 2, dim=1).values + 1
        flat = torch.sort(x.reshape(-1), stable=True).indices
        turned = torch.sort(x.permute(2, 0, 1), dim=1, descending=True).values
        constant = torch.sort(torch.ones_like(x), dim=2, stable=True).indices
        return middle, flat, turned, constant, torch.sort(x.amax()).indices

    program = module_program(sorts, randn(2, 3, 4))
    for shape in ((2, 3, 4), (1, 1, 1), (7, 11, 13), (5, 100, 3)):
        program.check(randn(*shape))


def selections(*inputs: torch.Tensor) -> list[torch.Tensor]:
    found = [
        pair
        for number, x in enumerate(inputs)
        for pair in (torch.topk(x, 3, -1, bool(number % 2)), torch.topk(x, x.shape[0] // 2, 0, not number % 2), torch.topk(x, x.shape[1]))
    ]
    return [each for pair in found for each in pair]


@pytest.mark.parametrize("dtypes", [FLOATS, INTEGERS], ids=["floats", "integers"])
def test_topk(dtypes: tuple[torch.dtype, ...]) -> None:
    """The values, and what is at the places: of equal elements any may be first. k is 0 and above, small and up to the size."""
    for shape in ((4, 5), (0, 3), (1, 3), (3, 64), (2, 139), (2, 140), (9, 7), (9, 250), (5, 3000), (300, 4)):
        inputs = matrices(shape, dtypes)
        ours, theirs = compiled(selections, dtypes)(*inputs), selections(*inputs)
        for number in range(0, len(theirs), 2):
            x, dim = inputs[number // 6], 0 if number % 6 == 2 else 1
            values, indices = ours[number : number + 2]
            torch.testing.assert_close(values, theirs[number], rtol=0, atol=0, equal_nan=True)
            torch.testing.assert_close(x.gather(dim, indices), values, rtol=0, atol=0, equal_nan=True)
            assert torch.sort(indices, dim).values.diff(dim=dim).ne(0).all(), f"a place is there twice: {x.dtype} {shape}"


def test_more_than_there_are() -> None:
    """The call is refused with its line before anything runs."""
    program = module_program(lambda x: torch.topk(x, 5).values, randn(3, 7))
    for executable in program.executables:
        with pytest.raises(ShapeConstraintError, match=r"must be at least 5 .*test_library\.py"):
            executable(randn(3, 4))


def test_searches() -> None:
    """One line for all values, and a line for each; values that are there, beyond both ends, and NaN on either side."""

    def searches(lines: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
        line = lines[0]
        return [
            torch.searchsorted(lines, values), torch.searchsorted(lines, values, right=True, out_int32=True),
            torch.searchsorted(line, values, side="right"), torch.searchsorted(line, 0.25), torch.bucketize(values, line),
            torch.searchsorted(lines.bfloat16(), values.bfloat16(), right=True), torch.bucketize(0.5, line.int()),
            torch.searchsorted(lines.flip(-1), values, sorter=torch.argsort(lines.flip(-1))),
        ]  # fmt: skip

    program = module_program(searches, randn(3, 20), randn(3, 7))
    for rows, size, count in ((3, 20, 7), (1, 1, 1), (2, 5, 0), (4, 64, 700), (2, 257, 3)):
        lines = torch.sort(special(randn(rows, size)).round(decimals=1), stable=True).values
        program.check(lines, special(randn(rows, count).round(decimals=1)))


def test_histograms() -> None:
    """Elements on borders, outside, NaN, and enough that threads count apart."""

    def histograms(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.histc(x, 4, -1, 1), torch.histc(x * 10, 100, -5, 20)]

    program = module_program(histograms, randn(3, 5))
    for shape in ((3, 5), (0, 4), (1, 1), (300, 301)):
        program.check(special(randn(*shape).mul(4).round().div(4)))


def test_histograms_from_the_least_to_the_largest() -> None:
    """Limits of the data; borders given; weights; densities; elements that are all equal; nothing. What is not finite has no limits."""

    def histograms(x: torch.Tensor, weight: torch.Tensor, borders: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.histc(x, 5), torch.histc(x, 7, 2, 2), *torch.histogram(x, 6), *x.histogram(4, range=(-1.0, 1.5), weight=weight),
            *torch.histogram(x, borders), *torch.histogram(x, borders, weight=weight, density=True),
        ]  # fmt: skip

    program = module_program(histograms, randn(3, 5), randn(3, 5), torch.linspace(-1, 1, 4))
    for shape, count in (((3, 5), 3), ((0, 4), 2), ((1, 1), 9), ((40, 31), 17)):
        program.check(randn(*shape), randn(*shape), randn(count).sort().values)
    program.check(torch.ones(2, 3), randn(2, 3), torch.tensor([0.0, 1.0]))
    for executable in program.executables:
        with pytest.raises(InputValueError, match=r"check_finite at .*: a number is (nan|inf|-inf): it must be finite"):
            executable(special(randn(3, 5)), randn(3, 5), torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.int32])
def test_divisors_and_multiples(dtype: torch.dtype) -> None:
    """Zeros, negative numbers, the highest, whose multiples wrap as eager's do. (With the lowest one eager divides by -1 and ends.)"""
    program = module_program(lambda x, y: (torch.gcd(x, y), torch.lcm(x, y)), *(torch.ones(3, 5, dtype=dtype) for _ in range(2)))
    limits = torch.iinfo(dtype)
    some = torch.tensor([0, 1, 2, 12, 18, 97, limits.max, limits.min + 1, limits.max - 1, limits.max // 2 + 1], dtype=torch.int64)
    every = torch.cat([some, -some] if dtype.is_signed else [some]).to(dtype)
    x, y = torch.meshgrid(every, every, indexing="ij")
    program.check(x, y)
    for shape in ((0, 3), (1, 1), (300, 7)):
        program.check(*(torch.randint(limits.min // 2, limits.max // 2, shape, dtype=dtype) for _ in range(2)))


def test_groups_in_the_types_for_which_pytorch_tells_no_sizes() -> None:
    def product(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.grouped_mm(rows, matrices, offs=ends)

    program = module_program(product, randn(6, 16), randn(3, 16, 8), torch.tensor([2, 2, 6], dtype=torch.int32))
    rows, matrices = randn(41, 32), randn(3, 32, 24)
    program.check(rows, matrices, torch.tensor([0, 17, 41], dtype=torch.int32))


def grouped_reference(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    found, begin = torch.zeros(len(rows), matrices.shape[2], dtype=rows.dtype), 0
    for matrix, end in zip(matrices, ends.tolist(), strict=True):
        found[begin:end] = (rows[begin:end].double() @ matrix.double()).to(rows.dtype)
        begin = end
    return found


GROUPED = """
func.func @main(%x: tensor<?x?xELEMENT> {disc.dims = ["s", "k"]}, %w: tensor<4x?x?xELEMENT> {disc.dims = [4, "k", "n"]}, %e: tensor<4xi64> {disc.dims = [4]}) -> tensor<?x?xELEMENT> {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %rows = tensor.dim %x, %c0 : tensor<?x?xELEMENT>
  %columns = tensor.dim %w, %c2 : tensor<4x?x?xELEMENT>
  %sizes = tensor.from_elements %rows, %columns : tensor<2xindex>
  %0 = "disc.dynamic_grouped_dot"(%x, %w, %e, %sizes) : (tensor<?x?xELEMENT>, tensor<4x?x?xELEMENT>, tensor<4xi64>, tensor<2xindex>) -> tensor<?x?xELEMENT>
  return %0 : tensor<?x?xELEMENT>
}
"""


@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_in_groups(dtype: torch.dtype) -> None:
    """Groups without rows, of one, of few, of a tile and around it, of several tasks; columns and depths around panels; rows behind all groups."""
    element = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    program = text_program(GROUPED.replace("ELEMENT", element))
    shapes = ((1, 1, 1), (7, 5, 64), (13, 300, 70), (230, 33, 129), (0, 4, 5), (13, 11, 1100), (5, 0, 3), (530, 9, 300))
    for number, (rows, depth, columns) in enumerate(shapes):
        ends = torch.tensor([0, min(rows, 1), min(rows, 7), rows - rows // 20]) if number % 2 else torch.tensor([rows] * 4)
        x, w = randn(rows, depth, dtype=dtype), randn(4, depth, columns, dtype=dtype)
        for executable in program.executables:
            found = executable(*(storage(each) for each in (x, w)), ends.numpy())
            assert_close(restored(found, dtype), grouped_reference(x, w, ends), None, f"{rows} {depth} {columns} on {executable.isa}")


def storage(x: torch.Tensor) -> np.ndarray:
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def restored(x: object, dtype: torch.dtype) -> torch.Tensor:
    found = torch.from_numpy(np.array(x))
    return found.view(dtype) if dtype == torch.bfloat16 else found


def test_groups_that_end_before_they_begin() -> None:
    """What a library function finds wrong is an error of the call, with the op, its line and the values; the next call is well."""
    program = text_program(GROUPED.replace("ELEMENT", "f32"))
    x, w = randn(6, 4).numpy(), randn(4, 4, 5).numpy()
    for ends, where in (([1, 3, 2, 6], r"group 2 ends at row 2, which must be from 3 to 6"), ([0, 0, 0, 7], "ends at row 7")):
        for executable in program.executables:
            with pytest.raises(InputValueError, match=f"grouped_dot.*: .*{where}"):
                executable(x, w, np.array(ends))
            executable(x, w, np.array([1, 2, 3, 6]))


def test_order_statistics() -> None:
    """Medians, modes and quantiles by sorting; lines with NaN, of NaN alone, of one element; of equal elements any index."""

    def statistics(x: torch.Tensor) -> list[torch.Tensor]:
        pairs = [
            torch.kthvalue(x, 2, 1),
            torch.median(x, 1, keepdim=True),
            torch.nanmedian(x, 1, keepdim=True),
            torch.mode(x.nan_to_num(), 1),
        ]
        places = [x.nan_to_num().gather(1, pair[1].reshape(-1, 1)) for pair in pairs]
        whole = [x.median(), x.nanmedian(), torch.median(x[:, :4].nan_to_num().int(), 0).values, torch.msort(x)]
        return [*(pair[0] for pair in pairs), *places, *whole, torch.quantile(x, 0.3, 1)]

    executable = disc.compile(Wrapped(statistics).eval(), (randn(4, 5),))
    for shape in ((4, 5), (1, 4), (6, 33)):
        for values in (randn(*shape).mul(2).round(), special(randn(*shape)), torch.full(shape, float("nan"))):
            for number, (ours, theirs) in enumerate(zip(executable(values), statistics(values), strict=True)):
                torch.testing.assert_close(ours, theirs, equal_nan=True, msg=lambda text, at=(number, shape): f"{at}: {text}")


def test_long_lines() -> None:
    """A line whose keys need every digit."""

    def sorts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *torch.sort(x, stable=True), *torch.sort(x.double() * 1e200, descending=True, stable=True)

    program = module_program(sorts, randn(5))
    program.check(randn(70_001))
