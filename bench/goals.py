"""Puts the figures of the results into docs/speed_goals.md: `python -m bench.goals`.

There, `<!--least models-fp32-t1-->1.05<!--/-->` holds what `least` below says of the result of that name, the latest where several machines
have one. Further words are the function's other arguments.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.figures import Record, geomean, peer_names, ratio, ratios, share
from bench.machine import ROOT
from bench.report import mean_rows
from bench.store import RESULTS

GOALS = ROOT / "docs" / "speed_goals.md"
MARK = re.compile(r"<!--(\w[^>]*?)-->(.*?)<!--/-->")


def main() -> int:
    GOALS.write_text(filled(GOALS.read_text(), RESULTS))
    print(f"written: {GOALS}", file=sys.stderr)
    return 0


def filled(text: str, folder: Path) -> str:
    """The text with every marked figure as the results in `folder` have it. Raises FileNotFoundError for a result that is not there,
    KeyError for a function that is not."""

    def figure(mark: re.Match[str]) -> str:
        name, stem, *arguments = mark[1].split()
        return f"<!--{mark[1]}-->{FIGURES[name](latest(folder, stem), *arguments)}<!--/-->"

    return MARK.sub(figure, text)


def latest(folder: Path, stem: str) -> dict[str, Any]:
    """The newest result of that name."""
    found = [json.loads(path.read_text()) for path in folder.glob(f"*/{stem}.json")]
    if not found:
        raise FileNotFoundError(f"no result {stem}.json in {folder}")
    return max(found, key=lambda record: record["date"])


# --- figures of timed calls -----------------------------------------------------------------------------------------------------


def means(record: Record, group: str = "") -> str:
    """How many times longer each peer takes. group: "tuned", "held-out", or all sizes."""
    peers, rows = mean_rows(record["results"])
    known = {name: found for name, found, _ in rows}
    found = known.get(group.replace("-", " "), next(iter(known.values())) if len(known) == 1 else None)
    if found is None:
        return "none"
    return ", ".join(f"{peer} {value}" for peer, value in zip(peers, found, strict=True) if value != "-")


def case_means(record: Record, case: str) -> str:
    """The same of one case, over all its shapes."""
    (result,) = (each for each in record["results"] if each["case"] == case)
    return ", ".join(f"{peer} {geomean(ratios(result, peer)):.2f}" for peer in peer_names(result))


def mean_of(record: Record, peer: str, cases: str, shapes: str) -> str:
    """How many times longer a peer takes, over some shapes of some cases; both with commas between them."""
    found = [
        ratio(row, peer)
        for each in record["results"]
        if each["case"] in cases.split(",")
        for row in each["rows"]
        if row["shape"] in shapes.split(",")
    ]
    return f"{geomean(found):.2f}"


def best_peers(record: Record) -> str:
    """Of each case, the mean over its shapes against the peer that is best there."""
    return ", ".join(f"{each['title']} {geomean(least for _, least, _ in _least([each])):.2f}" for each in record["results"])


def least(record: Record) -> str:
    """The shape at which a peer comes nearest."""
    where, value, peer = min(_least(record["results"]), key=lambda each: each[1])
    return f"{value:.2f} ({where}, {peer})"


def below(record: Record, limit: str, kind: str = "") -> str:
    """The shapes at which the best peer is below the limit. kind: "layers" leaves networks out."""
    found = list(_least([each for each in record["results"] if kind != "layers" or not each["memory"]]))
    under = sorted((each for each in found if each[1] < float(limit)), key=lambda each: each[1])
    shown = "; ".join(f"{where} {value:.2f}" for where, value, _ in under)
    return f"{len(under)} of {len(found)}" + f" ({shown})" * bool(under)


def _least(results: Sequence[Record]) -> Iterator[tuple[str, float, str]]:
    """Of every shape: what it is, the least ratio to a peer, which peer. disc in another dtype is no peer."""
    for result in results:
        for row in result["rows"]:
            each = {peer: ratio(row, peer) for peer in peer_names(result) if not peer.startswith("disc")}
            known = {peer: value for peer, value in each.items() if not math.isnan(value)}
            if known:
                best = min(known, key=known.__getitem__)
                yield f"{result['title']} {row['shape']}", known[best], best


def multiply_adds(record: Record, size: str) -> str:
    """The share of the multiply-add limit, on average and from where to where, at shapes whose sizes have at least that product."""
    found = [(share(row, "disc", "compute_ms"), f"{result['title']} {row['shape']}") for result in record["results"]
             for row in result["rows"] if math.prod(map(int, row["shape"].split("x"))) >= int(size)]  # fmt: skip
    (low, lowest), (high, highest) = min(found), max(found)
    return f"{sum(value for value, _ in found) / len(found):.1%}, from {low:.0%} ({lowest}) to {high:.0%} ({highest})"


def bandwidth(record: Record, shape: str) -> str:
    """The share of the bandwidth limit of every case that has the shape."""
    rows = {result["title"]: row for result in record["results"] for row in result["rows"] if row["shape"] == shape}
    return ", ".join(f"{title} {share(row, 'disc', 'memory_ms'):.0%}" for title, row in rows.items())


def memory(record: Record) -> str:
    """Resident memory during calls, over that of the best peer, from where to where over the networks."""
    found: list[float] = []
    for result in record["results"]:
        if result["memory"]:
            calls = {name: mib["calls"] for name, mib in result["memory"]["mib"].items()}
            found.append(calls.pop("disc") / min(value for name, value in calls.items() if not name.startswith("disc")))
    return f"{min(found):.2f}-{max(found):.2f}"


def microseconds(record: Record) -> str:
    (result,) = record["results"]
    return f"{result['rows'][0]['ms']['disc']['median'] * 1e3:.1f} µs"


# --- figures of the other suites ------------------------------------------------------------------------------------------------


def stream(record: Record) -> str:
    (result,) = record["results"]
    first, again = result["quantiles"]["p99"], result["again"]["p99"]
    p99 = f"p99 {first:.2f} against calls repeated at once, {again:.2f} against a second pass"
    return f"{result['ratio']:.3f}; {p99}; compiles: {result['compiles']}"


def compiling(record: Record) -> str:
    result = record["results"][0]
    cold, again = result["cold_s"]["total"], result["cold_s"]["total, in a process that has compiled (median)"]
    module, program = result["cached_s"]["cached: from the module"], result["cached_s"]["cached: from the exported program"]
    cached = f"cached {program:.2f} s from an exported program, {module:.1f} s from a module"
    return f"{cold:.1f} s ({again:.1f} in a process that has compiled); {cached}"


FIGURES: dict[str, Callable[..., str]] = {
    "means": means,
    "case-means": case_means,
    "mean-of": mean_of,
    "best-peers": best_peers,
    "least": least,
    "below": below,
    "multiply-adds": multiply_adds,
    "bandwidth": bandwidth,
    "memory": memory,
    "microseconds": microseconds,
    "stream": stream,
    "compiling": compiling,
}


if __name__ == "__main__":
    sys.exit(main())
