"""Running functions of PyTorch while it traces, without a trace of that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def untraced() -> Iterator[None]:
    """No gradients, and no mode sees what runs.

    The order counts: a trace that sees gradients turned off and on again splits its graph there, and so loses the graphs of branches.
    """
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield
