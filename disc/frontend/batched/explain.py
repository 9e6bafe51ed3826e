"""What became of a model's functions, as text."""

from __future__ import annotations

from collections.abc import Iterator

from disc.errors import counted
from disc.frontend.batched.model import Model
from disc.frontend.batched.regions import Kind
from disc.frontend.batched.trained_blocks import TrainedBlock


def explained(model: Model) -> str:
    """Blocks with their launches, and what did not batch, with its line."""
    return "\n".join(_lines(model))


def _lines(model: Model) -> Iterator[str]:
    counts = model.counts
    order = f"one after another, as {model.ordered}" if model.ordered else "side by side"
    order = f"all in Python, as {model.in_python}" if model.in_python else order
    ran = f"{counted(counts.batches, 'batch')}, {counted(counts.instances, 'instance')}, {order}"
    yield f"{ran}; {counted(counts.launches, 'launch')} of compiled blocks"
    yield f"{counts.walked} of them by a native walk over the instances" + (f"; not others: {model.recursion}" if model.recursion else "")
    if model.recursion is not None and not model.gradients:
        native = f"native{f', and Python where {model.left}' if model.left is not None else ''}"
        ran = native if model.interpreted is None else f"Python, because {model.interpreted}"
        yield f"skeleton: {ran}; {counted(counts.interpreted, 'batch')} by the interpreter"
    yield "blocks (straight-line tensor code; rows: block calls in one launch):"
    for region in model.regions():
        for kind in region.kinds.values():
            yield f"  {_kind_text(kind)}"
        for reason, times in region.irregular.items():
            yield f"  {region.name} ({region.file}:{region.line}): ran {counted(times, 'time')} in PyTorch: {reason}"
    if counts.in_python or any(each.refusal is not None for each in model.functions()):
        yield "in Python:"
    for function in model.functions():
        if function.refusal is not None:
            line = function.refusal.line or function.original.__code__.co_firstlineno
            yield f"  {function.name} ({function.file}:{line}): {function.refusal.reason}"
    for reason, line in counts.in_python.items():
        yield f"  {reason}{f' ({line})' if line else ''}"
    if counts.immediate:
        were = "was" if counts.immediate == 1 else "were"
        yield f"  {counted(counts.immediate, 'result')} {were} computed at once, used as tensors outside of blocks"


def _kind_text(kind: Kind) -> str:
    region = kind.region
    rows = sum(size * times for size, times in kind.sizes.items())
    launches = sum(kind.sizes.values())
    text = f"{region.name} ({region.file}:{region.line}), {counted(region.steps, 'operation')}: "
    parts = [f"{counted(rows, 'row')} in {counted(launches, 'launch')}, at most {max(kind.sizes)}" for _ in [0] if launches]
    if kind.eager:
        why = kind.refusal or "it was not called often enough to be compiled"
        parts.append(f"{kind.eager} one by one in PyTorch: {why}")
    if isinstance(kind.lifted, TrainedBlock):
        parts += kind.lifted.notes()
    elif kind.lifted is not None and kind.lifted.executable is not None:
        parts += [f"functions of rows of {text}" for text in kind.lifted.executable.manifest.get("folded_tables", ())]
    return text + ("; ".join(parts) or "constant")
