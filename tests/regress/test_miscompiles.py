"""Wrong values and crashes that were found once, each as small as it could be made."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from compiled import function_text, module_program, randn, text_program

import disc
from disc.config import Options


def test_input_returned_as_it_is() -> None:
    """The output buffer took the place of the input, so every reader of the input read garbage."""
    vector = "tensor<?xf32>"
    program = text_program(
        function_text(f"%x: {vector}", [(f"stablehlo.convert %x : {vector}", vector), (f"stablehlo.abs %x : {vector}", vector)])
    )
    program.check([np.array([1.0, -2.0], np.float32)])


def test_value_returned_twice() -> None:
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.exp()
        return y, y

    module_program(forward, randn(5)).check(randn(3))


def test_small_constant_of_several_values() -> None:
    """A kernel took the first value of a constant for all of them: batch norm of few channels was wrong."""
    table = torch.tensor([1.0, 2.0, 3.0])
    module_program(lambda x: x * table, randn(4, 3), dynamic=[(0,)]).check(randn(5, 3))
    text = """func.func @main(%x: tensor<3xi32>) -> tensor<3xi32> {
  %c = stablehlo.constant dense<[5, 6, 7]> : tensor<3xi32>
  %0 = stablehlo.add %x, %c : tensor<3xi32>
  return %0 : tensor<3xi32>
}"""
    text_program(text).check([np.array([1, 2, 3], np.int32)])


def test_row_reduction_before_a_dim_of_size_one() -> None:
    """The kept last dim of size 1 was counted as a row: as many rows were stored as the input has elements."""
    program = module_program(lambda x: F.layer_norm(x, (1,)).mean(1), randn(2, 3, 1), dynamic=[(0, 1)])
    for first, second in ((1, 1), (3, 5), (7, 30)):
        program.check(randn(first, second, 1))


def test_nested_reduction_with_several_accumulators() -> None:
    """Each turn of the outer loop gave the total so far to every accumulator of the inner one."""
    program = module_program(lambda x: x[:, :-1].sum((0, 1)), randn(4, 5))
    for shape in ((2, 3), (5, 130), (33, 65)):
        program.check(randn(*shape))


def test_symbol_of_a_slice_start() -> None:
    """A kernel did not receive a size that only the start of a slice names."""
    program = module_program(lambda x, y: x[y.shape[0] - 1 :].flip(0) + 0, randn(40), randn(5))
    for count in (1, 7, 17):
        program.check(randn(60), randn(count))


def test_example_given_twice() -> None:
    """torch.export took one tensor given as two inputs for one input."""
    example = randn(3, 4)
    module_program(lambda x, y: x * y + x, example, example).check(randn(3, 5), randn(3, 5, seed=1))


def test_lgamma_of_tiny_negative_numbers() -> None:
    module_program(torch.lgamma, randn(5, dtype=torch.float64)).check(torch.tensor([-1e-300, -1e-200, 1e-300, -0.5], dtype=torch.float64))


def test_example_given_twice_by_name() -> None:
    """The same for inputs given by name: the results were those of swapped inputs."""

    class Minus(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x - y

    example = randn(3, 4)
    exe = disc.compile(Minus(), {"x": example, "y": example}, options=Options(cache=False))
    x, y = randn(3, 5), randn(3, 5, seed=1)
    torch.testing.assert_close(exe(x, y), x - y)


def test_negative_bit_of_weights_and_examples() -> None:
    """torch keeps `x.conj().imag` as its memory and a bit that says "negated"."""

    class Negated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch._neg_view(randn(4, 4)))
            self.register_buffer("bias", torch._neg_view(randn(4)))
            self.constant = torch._neg_view(torch.arange(4.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight + self.bias + self.constant

    module_program(Negated(), torch._neg_view(randn(3, 4))).check(torch._neg_view(randn(5, 4)))


def test_gelu_of_huge_numbers() -> None:
    """tanh stopped at 1 - 2^-24, so that the result for -1e38 was -3e30."""
    program = module_program(lambda x: (F.gelu(x, approximate="tanh"), torch.tanh(x), F.gelu(x)), randn(3))
    for value in (-10.0, -100.0, -1e4, -1e38, 1e6):
        for size in (1, 64):
            program.check(torch.full((size,), value), tolerance=1e-6 if value > 0 else 0.0)


def test_rows_that_read_a_dot_twice_between_dots() -> None:
    """The logits of CLIP: the kernel for rows between two dots took the square of the first dot for all that its rows read."""

    class Normalized(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = torch.nn.Linear(32, 16, bias=False)

        def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
            y = self.project(x)
            return y / torch.sqrt((y * y).sum(-1, keepdim=True)) @ text.t() * 14.3

    program = module_program(Normalized(), randn(3, 32), randn(4, 16), dynamic=[(0,), (0,)])
    for rows, columns in ((1, 1), (7, 3), (40, 33)):
        program.check(randn(rows, 32), randn(columns, 16))


def test_views_and_extremes_of_scalars() -> None:
    """The rules of `argmax` and `unfold` took it that there is a dim."""

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.argmax(dim=0, keepdim=True), x.argmin(dim=-1), x.argmax(), x.unfold(0, 1, 2), x.unfold(0, 0, 1)

    module_program(forward, torch.tensor(3.0)).check(torch.tensor(2.0))


def test_a_depthwise_window_with_one_position() -> None:
    """Its epilogue was made outside of the loop that holds its values: the code did not parse."""
    weight, bias = torch.randn(4, 1, 4), torch.randn(4)
    module_program(lambda x: F.conv1d(x, weight, bias, groups=4), randn(2, 4, 4)).check(randn(2, 4, 4))
