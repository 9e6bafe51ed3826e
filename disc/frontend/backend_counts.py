"""What of `torch.compile`'s graphs is compiled, and what runs in PyTorch: counted, and named in a `DiscWarning` once."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import fx

from disc.errors import DiscError, UnsupportedOp, UnsupportedOpError, warn
from disc.frontend.locations import line_text


@dataclass
class Statistics:
    """What the backend did since the process started (or `reset_statistics`).

    graphs: graphs handed over by PyTorch; compiled: modules compiled (a graph with eager ops gives several);
    cached: how many of these came from the compile cache; eager: op name → how many nodes run in PyTorch.
    failed: error → graphs and parts that run in PyTorch because they could not be compiled; refused_calls: error → calls that ran in
    PyTorch because the compiled code refused their inputs. untraced: line → functions of which Dynamo, which stopped there, gave no graph.
    """

    graphs: int = 0
    compiled: int = 0
    cached: int = 0
    eager: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    refused_calls: Counter[str] = field(default_factory=Counter)
    untraced: Counter[str] = field(default_factory=Counter)


_statistics = Statistics()
_named: set[str] = set()


def statistics() -> Statistics:
    """The live counters."""
    return _statistics


def reset_statistics() -> None:
    """Counts from zero, and names again in warnings what runs in PyTorch."""
    global _statistics
    _statistics = Statistics()
    _named.clear()


def report(refused: Mapping[fx.Node, UnsupportedOp]) -> None:
    """One warning for all that was not named before, and the counters."""
    _statistics.eager.update(op.op for op in refused.values())
    lines = sorted({str(op) for op in refused.values()} - _named)
    _named.update(lines)
    if lines:
        warn("disc leaves these ops to PyTorch:\n  " + "\n  ".join(lines))


def failed(error: Exception, strict: bool, graph: fx.Graph) -> None:
    """Counts a graph or part that will run in PyTorch, and warns. strict: `error` is raised instead."""
    if strict:
        raise error
    _statistics.failed[type(error).__name__] += 1
    _statistics.eager.update(op.op for op in (error.ops if isinstance(error, UnsupportedOpError) else ()))
    what = str(error) if isinstance(error, DiscError) else f"{type(error).__name__}: {error}\n{_saved(graph)}"
    warn_once(f"disc leaves a graph ({place_of(graph)}) to PyTorch, which could not be compiled: {what}")


def warn_once(message: str) -> None:
    if message not in _named:
        _named.add(message)
        warn(message)


def place_of(graph: fx.Graph) -> str:
    """Where the graph begins and ends in the user's sources."""
    lines = [line for line in (line_text(node) for node in graph.nodes if node.op == "call_function") if line != "unknown line"]
    return "unknown lines" if not lines else lines[0] if lines[0] == lines[-1] else f"{lines[0]} to {lines[-1]}"


def _saved(graph: fx.Graph) -> str:
    """Keeps the graph of a failure that has no reproducer of its own."""
    with tempfile.NamedTemporaryFile("w", prefix="disc-graph-", suffix=".txt", delete=False) as file:
        file.write(str(graph))
    return f"the graph is saved as {file.name}"
