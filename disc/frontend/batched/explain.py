"""What became of a model's functions, as text."""

from __future__ import annotations

from collections.abc import Iterator

from disc.frontend.batched.model import Model
from disc.frontend.batched.regions import Kind


def explained(model: Model) -> str:
    """Blocks with their launches, and what did not batch, with its line."""
    return "\n".join(_lines(model))


def _lines(model: Model) -> Iterator[str]:
    counts = model.counts
    order = f"one after another, as {model.ordered}" if model.ordered else "side by side"
    order = f"all in Python, as {model.in_python}" if model.in_python else order
    yield f"{counts.batches} batches, {counts.instances} instances, {order}; {counts.launches} launches of compiled blocks"
    yield f"{counts.walked} of them by a native walk over the instances" + (f"; not others: {model.recursion}" if model.recursion else "")
    yield "blocks (straight-line tensor code; rows: block calls in one launch):"
    for region in model.regions():
        for kind in region.kinds.values():
            yield f"  {_kind_text(kind)}"
        for reason, times in region.irregular.items():
            yield f"  {region.name} ({region.file}:{region.line}): ran {times} times in PyTorch: {reason}"
    yield "in Python:"
    for function in model.functions():
        if function.refusal is not None:
            line = function.refusal.line or function.original.__code__.co_firstlineno
            yield f"  {function.name} ({function.file}:{line}): {function.refusal.reason}"
    for reason, line in counts.in_python.items():
        yield f"  {reason}{f' ({line})' if line else ''}"
    if counts.immediate:
        yield f"  {counts.immediate} results were computed at once, as they were used as tensors outside of blocks"


def _kind_text(kind: Kind) -> str:
    region = kind.region
    rows = sum(size * times for size, times in kind.sizes.items())
    launches = sum(kind.sizes.values())
    text = f"{region.name} ({region.file}:{region.line}), {region.steps} operations: "
    parts = [f"{rows} rows in {launches} launches, at most {max(kind.sizes)}" for _ in [0] if launches]
    if kind.eager:
        why = kind.refusal or "it was not called often enough to be compiled"
        parts.append(f"{kind.eager} one by one in PyTorch: {why}")
    return text + ("; ".join(parts) or "constant")
