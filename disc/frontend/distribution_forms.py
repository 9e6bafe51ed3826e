"""Distributions of which PyTorch cannot infer the shape: ops of this compiler in their place, and PyTorch's, too, for graphs that are not
compiled."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_SAMPLE_DIRICHLET = torch._sample_dirichlet  # pyright: ignore[reportPrivateImportUsage]
_OPS = torch.library.Library("disc", "FRAGMENT")
_OPS.define("binomial(Tensor count, Tensor prob) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_OPS.define("dirichlet(Tensor alpha) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_OPS.impl("binomial", torch.binomial, "CPU")
_OPS.impl("dirichlet", _SAMPLE_DIRICHLET, "CPU")
_OPS.impl("binomial", lambda count, prob: count.new_empty(torch.broadcast_shapes(count.shape, prob.shape)), "Meta")
_OPS.impl("dirichlet", torch.empty_like, "Meta")


def binomial(count: Tensor, prob: Tensor, generator: torch.Generator | None = None) -> Tensor:
    return torch.binomial(count, prob, generator) if generator is not None else torch.ops.disc.binomial(count, prob)


def dirichlet(alpha: Tensor, generator: torch.Generator | None = None) -> Tensor:
    return _SAMPLE_DIRICHLET(alpha, generator) if generator is not None else torch.ops.disc.dirichlet(alpha)


FORMS: dict[Callable[..., object], Callable[..., object]] = {torch.binomial: binomial, _SAMPLE_DIRICHLET: dirichlet}
