"""Makes recorded calls again, with tensors or with what traces them."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.utils import _pytree as pytree

from disc.frontend.lazy.calls import filled
from disc.frontend.lazy.traces import Context, Made, Run, Step
from disc.frontend.locations import OURS, frame_text

INSIDE = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(OURS[:-1]) + os.sep)


@contextmanager
def context(state: Context) -> Iterator[None]:
    """Gradients and autocast as they were when a call was recorded, whatever they are now."""
    with torch.set_grad_enabled(state.grad):
        if state.autocast is None and not torch.is_autocast_enabled("cpu"):
            yield
        else:
            with torch.autocast("cpu", state.autocast, enabled=state.autocast is not None):
                yield


def run_again(run: Run) -> list[torch.Tensor]:
    """Has PyTorch make the calls of a run, and gives their results to what stands for them; also to the caller.

    Raises: what PyTorch raises, with a note of the line where the call was recorded.
    """
    values = list[torch.Tensor]()
    try:
        make_again(run.here.steps(), run.scalars, run.inputs, values)
    finally:
        for number in run.live():
            if number < len(values):
                run.proxy(number)._value = values[number]
    return values


def make_again(
    steps: Sequence[Step], numbers: Sequence[Sequence[float]], inputs: Sequence[torch.Tensor], values: list[torch.Tensor]
) -> None:
    """Has PyTorch make calls with these numbers and inputs; appends what they give to `values`. Raises: as `run_again`."""
    for step, scalars in zip(steps, numbers, strict=True):
        try:
            with context(step.context):
                result = step.func(*filled(step.args, values, inputs, scalars), **filled(step.kwargs, values, inputs, scalars))
            leaves = [result] if step.form is None else pytree.tree_leaves(result)
            if len(leaves) != len(step.results):
                raise RuntimeError(
                    f"disc.lazy: a call gives {len(leaves)} results, and {len(step.results)} for other sizes: call flush() before"
                )
        except Exception as error:
            error.add_note(f"disc.lazy: the call was recorded at {step.line}")
            raise
        values += [leaf for leaf, each in zip(leaves, step.results, strict=True) if type(each) is Made]


def user_place() -> tuple[str, str]:
    """The user's line that is running, as "file.py:3" and as PyTorch writes it into stack traces."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame = frame.f_back
    if frame is None:
        return "unknown line", ""
    path, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(path, line).strip()
    return frame_text(path, line), f'  File "{path}", line {line}, in {frame.f_code.co_name}\n    {text}\n'
