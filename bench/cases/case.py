"""What is measured: one model, or one layer, with the shapes it is called with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.export import Dim

Inputs = tuple[torch.Tensor, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One model. `dynamic`: the dims of every input that may change. `example`: the shape to compile with, not among `shapes`. `network`: a
    whole one, whose memory counts and which has processes of its own, so that memory and times do not depend on the case before. `tuned`:
    whether the compiler was tuned with this shape; None where nothing was tuned by sizes. `tolerance`: of results, None: the dtype's.
    `variadic`: `forward` takes them as `*inputs`."""

    name: str
    title: str
    build: Callable[[], nn.Module]
    inputs: Callable[[Shape], Inputs]
    shapes: tuple[Shape, ...]
    dynamic: tuple[int, ...]
    example: Shape
    network: bool = False
    tuned: Callable[[Shape], bool] | None = None
    tolerance: float | None = None
    variadic: bool = False

    @property
    def dynamic_shapes(self) -> tuple[object, ...]:
        """As `torch.export` and `disc.compile` take them."""
        each: tuple[object, ...] = tuple({dim: Dim.AUTO for dim in self.dynamic} for _ in self.inputs(self.example))
        return (each,) if self.variadic else each


def build(case: Case) -> nn.Module:
    """The model with its seeded weights, in evaluation mode."""
    torch.manual_seed(0)
    return case.build().eval()


def parse_shapes(text: str | None, case: Case) -> tuple[Shape, ...]:
    """ "1x16,4x50" → ((1, 16), (4, 50)); None = the shapes of the case. Raises ValueError for anything else."""
    if not text:
        return case.shapes
    shapes = tuple(tuple(int(size) for size in part.split("x")) for part in text.split(","))
    if any(len(shape) != len(case.example) or min(shape) < 1 for shape in shapes):
        raise ValueError(f"shapes of {case.name} are written as {shape_name(case.example)},..., not {text!r}")
    return shapes


def shape_name(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def random_tensor(*sizes: int) -> torch.Tensor:
    """Normal values that depend on the sizes alone."""
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))
