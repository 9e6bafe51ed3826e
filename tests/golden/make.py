"""Writes this version's golden artifacts: `python tests/golden/make.py`. Done once per release; what is there is never written again.

Each is a small compiled program for x86-64-v3 and, beside it, inputs and the results that eager PyTorch gave for them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import disc

FOLDER = Path(__file__).parent / disc.__version__


class Rows(nn.Module):
    """A stitched chain over rows, with a weight and a scalar input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.softmax(self.norm(x) * scale, -1), x.sum(1)


class Attention(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v)


def programs() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """Name → model and the inputs of the golden call; every dim is dynamic."""
    torch.manual_seed(0)
    return {
        "linear": (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), (torch.randn(5, 8),)),
        "rows": (Rows(), (torch.randn(3, 7, 24), torch.tensor(0.5))),
        "attention": (Attention(), tuple(torch.randn(2, 2, length, 16) for length in (3, 5, 5))),
    }


def main() -> None:
    if FOLDER.exists():
        sys.exit(f"{FOLDER} is there already: golden artifacts do not change")
    FOLDER.mkdir()
    for name, (model, inputs) in programs().items():
        exe = disc.compile(model.eval(), inputs, target=["x86-64-v3"], options=disc.Options(cache=False))
        for kernel in exe.manifest["kernels"]:
            kernel["lines"] = [Path(line).name for line in kernel["lines"]]  # without the folders of this machine
        exe.save(FOLDER / f"{name}.disc")
        with torch.no_grad():
            expected = model(*inputs)
        arrays = {f"input{index}": each.numpy() for index, each in enumerate(inputs)}
        results = expected if isinstance(expected, tuple) else (expected,)
        np.savez_compressed(FOLDER / f"{name}.npz", **arrays, **{f"output{index}": each.numpy() for index, each in enumerate(results)})


if __name__ == "__main__":
    main()
