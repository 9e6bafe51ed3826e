"""What a record of timed calls says: ratios, shares of the limits, their means. Pure arithmetic on what JSON gives back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]


def geomean(values: Iterable[float]) -> float:
    """NaN of an empty list."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def title(result: Record) -> str:
    """ "BERT-base, 1 thread, fp32"."""
    threads = result["threads"]
    return f"{result['title']}, {threads} thread{'s' * (threads != 1)}, {result.get('dtype', 'fp32')}"


def peer_of(name: str) -> str:
    """ "openvino/onnx", a variant, is one of "openvino"."""
    return name.partition("/")[0]


def variant_names(result: Record) -> list[str]:
    """All that was measured at some shape, without disc, in the order of the run."""
    return list(dict.fromkeys(name for row in result["rows"] for name in row["ms"] if name != "disc"))


def peer_names(result: Record) -> list[str]:
    """The peers that some variant was measured of."""
    return list(dict.fromkeys(map(peer_of, variant_names(result))))


def best(row: Record, peer: str) -> str | None:
    """The variant that counts as the peer at this shape: the fastest whose result is right."""
    right = [name for name in row["ms"] if peer_of(name) == peer and name not in row["wrong"]]
    return min(right, key=lambda name: row["ms"][name]["median"], default=None)


def milliseconds_of(row: Record, peer: str) -> float:
    """NaN where it was not measured, or is wrong."""
    name = best(row, peer)
    return math.nan if name is None else row["ms"][name]["median"]


def ratio(row: Record, peer: str) -> float:
    """How many times longer the peer takes than disc; NaN where either is missing or wrong."""
    return milliseconds_of(row, peer) / milliseconds_of(row, "disc")


def ratios(result: Record, peer: str) -> list[float]:
    """Those of the shapes that have one."""
    return _known(ratio(row, peer) for row in result["rows"])


def share(row: Record, peer: str, part: str = "limit") -> float:
    """The time that the call must take, over the time that it took; NaN where either is unknown. part: "limit" (the roofline), "compute_ms"
    or "memory_ms"."""
    least = row.get("bound")
    if not least:
        return math.nan
    needed = max(least["compute_ms"], least["memory_ms"]) if part == "limit" else least[part]
    return needed / milliseconds_of(row, peer)


def shares(result: Record, peer: str) -> list[float]:
    return _known(share(row, peer) for row in result["rows"])


def of_group(result: Record, held_out: bool) -> Record:
    """The result with those shapes alone that are in no tuning table (held_out), or those that are in one."""
    return {**result, "rows": [row for row in result["rows"] if row.get("held_out") is held_out]}


def summary(results: Sequence[Record], peers: Sequence[str]) -> tuple[list[float], float]:
    """Geometric means over the results, each counting the same: of every peer's ratios, and of disc's shares."""
    means = [[geomean(ratios(result, peer)) for result in results] for peer in peers]
    own = [geomean(shares(result, "disc")) for result in results]
    return [geomean(_known(column)) for column in means], geomean(_known(own))


def _known(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]
