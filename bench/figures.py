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


def peer_names(result: Record) -> list[str]:
    """The peers that were measured at some shape, without disc, in the order of the run."""
    return list(dict.fromkeys(name for row in result["rows"] for name in row["ms"] if name != "disc"))


def ratio(row: Record, peer: str) -> float:
    """How many times longer the peer takes than disc; NaN where either is missing or wrong."""
    if {"disc", peer} & set(row["wrong"]) or not {"disc", peer} <= set(row["ms"]):
        return math.nan
    return row["ms"][peer]["median"] / row["ms"]["disc"]["median"]


def ratios(result: Record, peer: str) -> list[float]:
    """Those of the shapes that have one."""
    return [value for row in result["rows"] if not math.isnan(value := ratio(row, peer))]


def share(row: Record, name: str, part: str = "limit") -> float:
    """The time that the call must take, over the time that it took; NaN where either is unknown. part: "limit" (the roofline), "compute_ms"
    or "memory_ms"."""
    least = row.get("bound")
    if not least or name not in row["ms"]:
        return math.nan
    needed = max(least["compute_ms"], least["memory_ms"]) if part == "limit" else least[part]
    return needed / row["ms"][name]["median"]


def shares(result: Record, name: str) -> list[float]:
    return [value for row in result["rows"] if not math.isnan(value := share(row, name))]


def summary(results: Sequence[Record], peers: Sequence[str]) -> tuple[list[float], float]:
    """Geometric means over the results, each counting the same: of every peer's ratios, and of disc's shares."""
    means = [[geomean(ratios(result, peer)) for result in results] for peer in peers]
    own = [geomean(shares(result, "disc")) for result in results]
    return [geomean(_known(column)) for column in means], geomean(_known(own))


def _known(values: Iterable[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]
