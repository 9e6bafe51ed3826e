"""A dim that is padded up to a multiple is written as one: chunks of it have the size that the program gives them, not a quotient of sums."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import disc
from disc.frontend.exported import export_module


class Chunks(torch.nn.Module):
    """Sums within chunks, as linear attention begins."""

    def __init__(self, chunk: int, negated: bool) -> None:
        super().__init__()
        self.chunk, self.negated = chunk, negated

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        missing = -length % self.chunk if self.negated else (self.chunk - length % self.chunk) % self.chunk
        chunks = F.pad(x, (0, 0, 0, missing)).reshape(x.shape[0], -1, self.chunk, x.shape[2])
        return chunks.cumsum(2).reshape(x.shape[0], -1, x.shape[2])[:, :length]


@pytest.mark.parametrize("negated", [False, True])
def test_chunks_have_their_size(negated: bool) -> None:
    model, example = Chunks(8, negated), torch.randn(2, 13, 4)
    (chunks,) = (node for node in export_module(model, (example,)).graph.nodes if node.name == "cumsum")
    assert chunks.meta["val"].shape[2] == 8 and isinstance(chunks.meta["val"].shape[2], int)
    compiled = disc.compile(model, (example,), options=disc.Options(cache=False))
    for length in (1, 5, 7, 8, 9, 17):
        x = torch.randn(3, length, 4)
        torch.testing.assert_close(compiled(x), model(x))


def test_other_padding_stays() -> None:
    class Other(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return F.pad(x, (0, y.shape[0] % 4)), F.pad(x, (x.shape[1] % 4, (x.shape[1] + 1) % 4), value=2.0)

    model = Other()
    compiled = disc.compile(model, (torch.randn(2, 5), torch.randn(7)), options=disc.Options(cache=False))
    for length, other in ((4, 3), (6, 8), (9, 5)):
        x, y = torch.randn(3, length), torch.randn(other)
        torch.testing.assert_close(compiled(x, y), model(x, y))
