"""What `torch.distributions` checks of parameters and samples, while a module is exported: an assertion of the program.

    torch.distributions.Normal(mean, deviation)             # eager: raises ValueError unless every deviation is above 0
                                                            → a call is refused in which one is not

PyTorch's own code asks in Python whether all values fit, which is a branch that depends on data.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

_IS_ALL_TRUE = torch._is_all_true  # pyright: ignore[reportPrivateImportUsage]
_VALIDATING = (Distribution.__init__.__code__, Distribution._validate_sample.__code__)
_SYMMETRIC, _SEMIDEFINITE, _DEFINITE = (
    type(each) for each in (constraints.symmetric, constraints.positive_semidefinite, constraints.positive_definite)
)


def _is_all_true(valid: Tensor) -> object:
    """PyTorch's, but for a distribution that validates."""
    frame = sys._getframe(1)
    if frame.f_code not in _VALIDATING:
        return _IS_ALL_TRUE(valid)
    torch._assert_async(valid.all(), _demand(frame))  # pyright: ignore[reportPrivateImportUsage]
    return True


def _demand(frame: FrameType) -> str:
    known = frame.f_locals
    what, fits = (known["param"], known["constraint"]) if "param" in known else ("the value", known["support"])
    return f"{what} of {type(known['self']).__name__} satisfies {fits!r}"


def _symmetric(rest: Callable[[Tensor], Tensor]) -> Callable[[object, Tensor], Tensor]:
    """A constraint of symmetric matrices, without asking first whether they are: both are said of each matrix."""
    return lambda _, value: torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1) & rest(value)


FORMS: dict[tuple[Any, str], object] = {
    (torch, "_is_all_true"): _is_all_true,
    (_SYMMETRIC, "check"): _symmetric(lambda value: torch.ones(value.shape[:-2], dtype=torch.bool)),
    (_SEMIDEFINITE, "check"): _symmetric(lambda value: torch.linalg.eigvalsh(value).ge(0).all(-1)),
    (_DEFINITE, "check"): _symmetric(lambda value: torch.linalg.cholesky_ex(value).info.eq(0)),
}
