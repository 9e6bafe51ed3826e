"""Forms of code in PyTorch's library of Python that no mode of functions sees, while a module is traced."""

from __future__ import annotations

from contextlib import AbstractContextManager

from disc.frontend.flexible_attention import FORMS as ATTENTION
from disc.frontend.replaced import replaced
from disc.frontend.validated_distributions import FORMS as DISTRIBUTIONS


def library_forms() -> AbstractContextManager[None]:
    return replaced({**ATTENTION, **DISTRIBUTIONS})
