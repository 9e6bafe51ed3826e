"""Tracing by PyTorch, by one thread of the process at a time.

While a thread traces, torch.fx has put methods of its own into `torch.nn.Module`, and `torch.export` has set settings of the process; two
that trace at once put back each other's, so that graphs are wrong, exports fail, and modules stay patched. The lock is torch.compile's own,
which other threads of the user may hold.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


def alone(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The function, which waits until no other thread traces."""

    @functools.wraps(function)
    def locked(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        from torch._dynamo.convert_frame import compile_lock

        with compile_lock:
            return function(*args, **kwargs)

    return locked
