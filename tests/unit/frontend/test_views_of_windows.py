"""Forms of functions of sizes: a view whose last size PyTorch would find by dividing products."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import disc
from disc.config import Options
from disc.frontend.exported import export_module


class Windows(torch.nn.Module):
    """Maps [b, h, w, c] padded to whole windows of 4 x 4, as windows, and as maps again."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        _, h, w, c = x.shape
        x = F.pad(x, (0, 0, 0, (4 - w % 4) % 4, 0, (4 - h % 4) % 4))
        b, h, w, _ = x.shape
        parts = x.view(b, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 4, 4, c)
        whole = parts.view(-1, h // 4, w // 4, 4, 4, c).transpose(2, 3).contiguous().view(-1, h, w, c)
        return parts, whole, torch.reshape(whole, shape=(b, -1, c))


def test_the_rest_of_a_view_is_what_equal_dims_leave() -> None:
    example = (torch.randn(2, 9, 7, 6),)
    program = export_module(Windows(), example)
    views = [node for node in program.graph.nodes if node.target in (torch.ops.aten.view.default, torch.ops.aten.reshape.default)]
    assert len(views) == 5 and not any(-1 in [size for size in node.args[1] if isinstance(size, int)] for node in views)
    compiled = disc.compile(Windows(), example, options=Options(cache=False))
    for shape in ((1, 4, 8, 6), (3, 5, 9, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), Windows()(x), atol=0, rtol=0)


class Rows(torch.nn.Module):
    """Lines [b, t] in rows of 4, behind dims of 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t = x.shape
        return ~x.reshape(b * (t // 4), 4)[:, None, None, :]


def test_a_view_has_the_sizes_that_it_was_given() -> None:
    """PyTorch's own splits b * t into rows of `b * t // (b * (t // 4))`, which no later op sees to be 4."""
    example = (torch.rand(2, 8) < 0.5,)
    program = export_module(Rows(), example)
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "call_function"]
    shapes = [value.shape for value in values if isinstance(value, torch.Tensor)]
    assert len(shapes) >= 3 and all(isinstance(shape[-1], int) and shape[-1] == 4 for shape in shapes)
    compiled = disc.compile(Rows(), example, options=Options(cache=False))
    for shape in ((1, 4), (3, 12), (5, 0)):
        x = torch.rand(shape) < 0.5
        torch.testing.assert_close(compiled(x), Rows()(x), atol=0, rtol=0)
