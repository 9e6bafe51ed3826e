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
    """The function, which waits until no other thread traces.

    What it has entered of `torch.func`'s transforms when it fails is left: a graph that is interpreted leaves them itself, but not where
    one of its ops raises, and `torch.randn` would fail from then on.
    """

    @functools.wraps(function)
    def locked(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
        from torch._dynamo.convert_frame import compile_lock

        with compile_lock:
            depth = _functorch.get_dynamic_layer_stack_depth()
            try:
                return function(*args, **kwargs)
            except BaseException:
                _functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
                raise

    return locked
