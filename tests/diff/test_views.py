"""Views and copies: broadcasts, reshapes, transposes, slices, pads, concatenations, iota, reverse; through StableHLO and through torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compiled import SIZES, Function, function_text, module_program, randn, text_program, to_bits

from disc.errors import ShapeConstraintError
from disc.ir.interp.values import held_dtype

ELEMENTS = ("f64", "f32", "f16", "bf16", "i64", "i16", "ui8", "i1")
MATRICES = [(0, 5), (5, 0), (1, 1), (1, 7), (7, 1), (3, 16), (16, 3), (17, 15), (8, 9), (13, 31), (64, 67)]
CUBES = [(0, 2, 3), (2, 0, 3), (3, 2, 0), (1, 1, 1), (1, 7, 16), (7, 1, 17), (3, 5, 1), (2, 3, 5), (4, 15, 9), (3, 17, 33)]


def numbers(shape: tuple[int, ...], element: str) -> np.ndarray:
    generator = np.random.default_rng(sum(shape))
    values = generator.integers(0, 100, shape)
    return to_bits((values > 50) if element == "i1" else values.astype(held_dtype(element)), element)


# --- StableHLO --------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("element", ELEMENTS)
def test_views_of_every_type(element: str) -> None:
    """Transpose, reverse, slice, pad, concatenate, reshape move bits of any type."""
    m = f"tensor<?x?x{element}>"
    body = [
        (f"stablehlo.transpose %x, dims = [1, 0] : ({m}) -> {m}", m),
        (f"stablehlo.reverse %x, dims = [1] : {m}", m),
        (f"stablehlo.reverse %x, dims = [0, 1] : {m}", m),
        (f"stablehlo.concatenate %x, %x, dim = 0 : ({m}, {m}) -> {m}", m),
        (f"stablehlo.concatenate %x, %x, %x, dim = 1 : ({m}, {m}, {m}) -> {m}", m),
        (f"stablehlo.pad %x, %v, low = [1, 2], high = [0, 3], interior = [0, 0] : ({m}, tensor<{element}>) -> {m}", m),
        (f"stablehlo.pad %x, %v, low = [0, 1], high = [2, 0], interior = [2, 1] : ({m}, tensor<{element}>) -> {m}", m),
        (f"stablehlo.broadcast_in_dim %v, dims = [] : (tensor<{element}>) -> tensor<3x{element}>", f"tensor<3x{element}>"),
    ]
    program = text_program(function_text(f"%x: {m}, %v: tensor<{element}>", body))
    for shape in MATRICES:
        program.check([numbers(shape, element), numbers((), element)])


def test_iota_of_every_type() -> None:
    body = [(f"stablehlo.iota dim = 1 : tensor<3x19x{element}>", f"tensor<3x19x{element}>") for element in ELEMENTS[:-1]]
    body.append(("stablehlo.negate %x : tensor<?xf32>", "tensor<?xf32>"))
    text_program(function_text("%x: tensor<?xf32>", body)).check([np.ones(3, np.float32)])


BROADCAST = """func.func @main(%x: tensor<?x?xf32>, %y: tensor<?x?xf32>) -> (tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>, tensor<?xf32>) {
  %0 = chlo.broadcast_add %x, %y : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = chlo.broadcast_multiply %0, %x : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %3 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [1] : (tensor<?x?xf32>, tensor<f32>) -> tensor<?xf32>
  return %0, %1, %2, %3 : tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf32>, tensor<?xf32>
}"""


def test_sizes_that_may_be_one() -> None:
    """Whether a dim broadcasts is decided per call, for both operands; sizes that do not fit are an error of the call."""
    program = text_program(BROADCAST)
    for rows, columns in itertools.product((1, 2, 16, 17), (1, 3, 8, 31)):
        whole = numbers((rows, columns), "f32")
        for other in {(rows, columns), (1, columns), (rows, 1), (1, 1)}:
            program.check([whole, numbers(other, "f32")], ulps=16)
            program.check([numbers(other, "f32"), whole], ulps=16)
    program.check([numbers((0, 3), "f32"), numbers((1, 3), "f32")])
    program.check([numbers((1, 1), "f32"), numbers((0, 5), "f32")])
    for executable in program.executables:
        for left, right in (((2, 3), (3, 3)), ((2, 3), (2, 2)), ((4, 1), (3, 5)), ((0, 3), (2, 3))):
            with pytest.raises(ShapeConstraintError):
                executable(numbers(left, "f32"), numbers(right, "f32"))


def test_dynamic_slices_and_updates() -> None:
    """Starts are data, clamped so that the slice lies inside."""
    m = "tensor<?x?xf32>"
    body = [
        (f"stablehlo.dynamic_slice %x, %i, %j, sizes = [2, 3] : ({m}, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>", "tensor<2x3xf32>"),
        (f"stablehlo.dynamic_update_slice %x, %u, %i, %j : ({m}, tensor<2x2xf32>, tensor<i32>, tensor<i32>) -> {m}", m),
        (f"stablehlo.dynamic_update_slice %x, %w, %i, %j : ({m}, {m}, tensor<i32>, tensor<i32>) -> {m}", m),
    ]
    arguments = f"%x: {m}, %w: {m}, %u: tensor<2x2xf32>, %i: tensor<i32>, %j: tensor<i32>"
    program = text_program(function_text(arguments, body))
    update = numbers((2, 2), "f32") + 200
    for rows, columns in ((2, 3), (3, 16), (17, 5), (9, 33)):
        for i, j in ((0, 0), (1, 2), (-5, 4), (100, 100), (rows - 1, columns - 2)):
            x, w = numbers((rows, columns), "f32"), numbers((rows - 1, columns - 2), "f32") + 300
            program.check([x, w, update, np.array(i, np.int32), np.array(j, np.int32)])


# --- torch ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_permutations(dtype: torch.dtype) -> None:
    """All permutations of rank 3, plain and after arithmetic."""

    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        orders = list(itertools.permutations(range(3)))
        return [x.permute(order) + 1 for order in orders] + [(x * 2).permute(order) for order in orders]

    program = module_program(forward, randn(2, 3, 4, dtype=dtype))
    for shape in [*CUBES, (33, 65, 2), (2, 70, 40)]:
        program.check(randn(*shape, dtype=dtype))


def turned(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Read across rows, from their ends, from the last row, or both; beside reads along rows, padded, and of 16 bits."""
    left, right, both = torch.rot90(x), torch.rot90(x, 3), x.flip(0, 1).t()
    pieces = [F.pad(x, (1, 0, 2, 0)).t().flip(0), x[:, ::2].t().flip(1).exp()]
    return [left.clone(), right * 2, both + 1, left - right, y.permute(2, 0, 1).flip(0, 2) + 1, torch.rot90(x.bfloat16()) + 1, *pieces]


def test_reversed_transposes() -> None:
    program = module_program(turned, randn(3, 4), randn(2, 3, 4))
    for rows, columns in ((1, 1), (0, 5), (5, 0), (1, 17), (17, 1), (16, 32), (15, 33), (31, 13), (67, 131)):
        program.check(randn(rows, columns), randn(3, rows, columns))


TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int16, torch.uint8, torch.bool)


def every_other(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Of whole and of partial vectors, alone and combined, summed, and from an odd element on."""
    first = [part for x in tensors for part in (x[:, ::2].clone(), x[:, 1::2].contiguous())]
    x, y = tensors[:2]
    return [*first, x[:, 0:8:2] - x[:, 1:8:2], (x[:, ::2] * 2).sum(1), y[:, ::2].exp(), y[1:, 1::2].amax(1)]


def test_every_other_element_of_every_type() -> None:
    """Two loads and a shuffle: the last element of a tensor is that of its memory, too."""
    program = module_program(every_other, *(torch.ones(3, 12).to(dtype) for dtype in TYPES))
    for rows, columns in ((2, 8), (2, 9), (3, 31), (4, 32), (2, 33), (5, 64), (2, 127)):
        program.check(
            *(torch.arange(rows * columns).remainder(97 if dtype != torch.bool else 2).reshape(rows, columns).to(dtype) for dtype in TYPES)
        )


def repeated(length: torch.Tensor, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Each element two, four or eight times in a row, cut or filled up to a length that no factor is known of: from the first one on, and
    behind others; so, too, the elements of two tensors in turns."""
    size, found = length.shape[0], list[torch.Tensor]()
    for number, x in enumerate(tensors):
        times = (2, 4, 8)[number % 3]
        each = x.unsqueeze(2).expand(-1, -1, times).flatten(1)
        found += [F.pad(each, (before, size), value=1).narrow(1, 0, size) for before in (0, 1, times + 1)]
        found.append(F.pad(torch.stack((x, x.flip(0)), 2).flatten(1), (0, size)).narrow(1, 0, size))
        found += [F.pad(x, (before, 2), value=1)[:, ::2] for before in (0, 3)]
    return found


def test_repeated_elements_of_every_type() -> None:
    """A load of what a vector holds, and a shuffle: the last element of a tensor is that of its memory, too."""
    program = module_program(repeated, torch.ones(9), *(torch.ones(3, 12).to(dtype) for dtype in TYPES))
    for rows, columns, length in ((2, 8, 16), (2, 9, 16), (3, 4, 31), (1, 16, 28), (2, 7, 14), (4, 33, 67), (2, 127, 130), (2, 3, 131)):
        program.check(
            torch.ones(length),
            *(torch.arange(rows * columns).remainder(97 if dtype != torch.bool else 2).reshape(rows, columns).to(dtype) for dtype in TYPES),
        )


def split_and_merge(x: torch.Tensor) -> list[torch.Tensor]:
    a, b, c = x.shape
    return [
        x.reshape(a * b, c), x.reshape(a, b * c), x.reshape(-1), x.reshape(a * b, c).reshape(a, b, c) + 1,
        x.transpose(1, 2).reshape(a, b * c), x.transpose(0, 1).reshape(b, a * c) * 2, x.permute(2, 1, 0).reshape(-1).exp(),
        x.reshape(b, a, c), x.reshape(c, a * b), x.unsqueeze(1).expand(a, 3, b, c).reshape(a * 3, b, c), x.unsqueeze(-1).squeeze(-1) + x,
        x.reshape(-1).reshape(b, a * c).sum(1), x.transpose(0, 2).reshape(c, a * b).sum(0), x.reshape(a * b, c).sum(0),
    ]  # fmt: skip


def test_reshapes_of_symbolic_products() -> None:
    program = module_program(split_and_merge, randn(2, 3, 4))
    for shape in CUBES:
        program.check(randn(*shape))


def test_heads() -> None:
    """Split of the last dim by a constant, a transpose, and back."""

    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        heads = x.reshape(x.shape[0], x.shape[1], 4, 8).transpose(1, 2)
        groups = x.reshape(x.shape[0], x.shape[1], 2, 16)
        return [
            heads * 2,
            (heads + 1).transpose(1, 2).reshape(x.shape),
            groups.softmax(-1).reshape(x.shape),
            groups.sum(2),
            x.chunk(4, -1)[3] + 1,
        ]

    program = module_program(forward, randn(2, 3, 32), dynamic=[(0, 1)])
    for first, second in ((0, 3), (3, 0), (1, 1), (1, 17), (5, 7), (2, 33)):
        program.check(randn(first, second, 32))


def slices(x: torch.Tensor) -> list[torch.Tensor]:
    rows, columns = x.shape
    return [
        x[:, 1:], x[1:, :-1] * 2, x[-2:], x[:, -3:-1], x[::2], x[:, ::3] + 1, x[1::2, 1::2], x[rows // 2 :], x[:, columns - 1 :], x[:, : columns // 2],
        x.narrow(0, 1, 2), x[:, 1:] - x[:, :-1], x[0], x[:, -1], x[2:3, 3:4], x.diff(dim=0), x.flip(0), x.flip(0, 1), x.roll(2, 1), x.roll((1, -1), (0, 1)),
    ]  # fmt: skip


def test_slices() -> None:
    program = module_program(slices, randn(6, 8))
    for shape in ((4, 4), (5, 7), (16, 17), (17, 16), (33, 9), (7, 64)):
        program.check(randn(*shape))


def pads(x: torch.Tensor) -> list[torch.Tensor]:
    return [
        F.pad(x, (1, 2)), F.pad(x, (0, 0, 2, 1), value=3.0), F.pad(x, (-1, 2)), F.pad(x, (2, -1, -1, 0)), F.pad(x, (-1, -1, -1, -1)), F.pad(x, (3, 0), value=-1).exp(),
        F.pad(x.exp(), (1, 1, 1, 1)).sum(1), F.pad(x, (0, x.shape[0])), F.pad(x, (1, 1)).transpose(0, 1) + 1, F.pad(x[None, None], (1, 1, 2, 2), mode="reflect"),
        F.pad(x[None, None], (2, 1, 1, 1), mode="replicate"), F.pad(x[None, None], (1, 1, 1, 1), mode="circular"),
        F.pad(x[None], (-1, 2), mode="reflect"), F.pad(x[None, None], (2, -1, -1, 3), mode="replicate"), F.pad(x[None, None, None], (1, 0, 2, 1, 0, 2), mode="replicate"),
    ]  # fmt: skip


def test_pads() -> None:
    program = module_program(pads, randn(6, 8))
    for shape in ((4, 4), (5, 7), (16, 17), (17, 15), (9, 33)):
        program.check(randn(*shape))


def reversed_parts(x: torch.Tensor) -> list[torch.Tensor]:
    """Lanes that a part does not reach lie before its first element, or, where it is read from its end, behind its last one."""
    both = torch.cat([x[:, 1:6].flip(1), x, x[:, -6:-1].flip(1)], 1)
    return [
        both,
        both.unfold(1, 4, 3).clone(),
        torch.cat([x, x.flip(1)], 1).unfold(1, 5, 2).clone(),
        torch.cat([x.flip(0), x, x.flip(0, 1)], 0).unfold(1, 3, 2) + 1,
    ]


def test_reversed_parts() -> None:
    program = module_program(reversed_parts, randn(2, 40))
    for shape in ((1, 7), (2, 9), (1, 33), (3, 64), (2, 81)):
        program.check(randn(*shape))


def rolled(x: torch.Tensor) -> list[torch.Tensor]:
    """By more than there is, back, by a size, of several dims, of all elements in their order, and between other ops."""
    a, b = x.shape
    return [
        x.roll(3), x.roll(-5) * 2, x.roll(0), x.roll(1, 0), x.roll((2, -1), (0, 1)), x.roll(a // 2, 1), x.roll(-b, 0), x.roll(2 - a, 1),
        x.exp().roll(700, 1).sum(1), (x.roll(1, 1) - x).roll(-1, 1), x.t().roll(9) + 1,
    ]  # fmt: skip


def test_rolls() -> None:
    program = module_program(rolled, randn(4, 5))
    for shape in ((0, 3), (3, 0), (1, 1), (2, 1), (1, 5), (3, 7), (17, 33), (64, 48), (30, 500)):
        program.check(randn(*shape))


def joins(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """x and y differ in dim 1 only."""
    return [
        torch.cat([x, y], 1), torch.cat([y, x, y], 1) * 2, torch.cat([x, x.exp()], 0), torch.cat([x, y], 1).sum(1), torch.cat([x, y], 1).sum(0),
        torch.cat([x[:, 1:], x[:, :1]], 1), torch.cat([-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], -1), torch.stack([x, x + 1]), torch.stack([x, x * 2], 1),
        torch.stack([x, x - 1], -1), torch.cat([x, y], 1).transpose(0, 1) + 1, torch.cat([torch.zeros_like(x), y], 1), torch.cat([x, torch.ones(x.shape[0], 1)], 1),
    ]  # fmt: skip


def test_concatenations() -> None:
    program = module_program(joins, randn(3, 4), randn(3, 5))
    for rows, left, right in ((0, 3, 4), (1, 1, 1), (3, 5, 0), (5, 7, 9), (2, 16, 17), (17, 15, 33)):
        program.check(randn(rows, left), randn(rows, right))


def ranges(x: torch.Tensor) -> list[torch.Tensor]:
    rows, columns = x.shape
    return [
        torch.arange(columns) + x, torch.arange(rows)[:, None] * x, torch.arange(columns - 1, -1, -1), torch.arange(2, rows * 2, 2), torch.arange(rows * columns).reshape(rows, columns),
        torch.full((rows, columns), 2.5), torch.zeros(columns, rows), torch.ones_like(x) * columns, x.tril(), x.triu(1), torch.eye(rows), torch.arange(rows)[:, None] >= torch.arange(columns),
        x.masked_fill(torch.ones_like(x, dtype=torch.bool).tril(-1), float("-inf")), torch.arange(columns, dtype=torch.float32) / columns,
        x.new_full((rows,), rows), torch.where(x > 0, x, torch.tensor(0.0)), x.repeat(2, 3), x.repeat_interleave(2, 1), x.expand(3, rows, columns) + 1,
    ]  # fmt: skip


def test_ranges_and_fills() -> None:
    program = module_program(ranges, randn(3, 4))
    for shape in MATRICES[2:]:
        program.check(randn(*shape))


ONE_DIM: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x[None] + x[:, None], lambda x: x.unfold(0, 2, 1) + 0, lambda x: x.flip(0) - x, lambda x: torch.cat([x, x.flip(0)]), lambda x: x.repeat(3) + 1,
]  # fmt: skip


def test_one_dim() -> None:
    function: Function = lambda x: [each(x) for each in ONE_DIM]  # noqa: E731
    program = module_program(function, randn(5))
    for size in SIZES[2:]:
        program.check(randn(size))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_torch_broadcasts(dtype: torch.dtype) -> None:
    """Static ones, scalars and missing leading dims."""

    def forward(x: torch.Tensor, row: torch.Tensor, scalar: torch.Tensor) -> list[torch.Tensor]:
        return [
            x + row,
            row * x,
            x - scalar,
            row[None] + x,
            x.sum(0, keepdim=True).to(dtype) + x,
            x.amax(1, keepdim=True) * x,
            row[None, :] * row[:, None],
            scalar + row,
        ]

    program = module_program(forward, randn(3, 4, dtype=dtype), randn(4, dtype=dtype), randn(dtype=dtype))
    for shape in MATRICES[2:]:
        program.check(randn(*shape, dtype=dtype), randn(shape[1], dtype=dtype), randn(dtype=dtype))
