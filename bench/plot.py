"""One picture of a result, how the peers compare and how close to the limits all are: `python -m bench.plot RESULT.json [PNG]`."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import Record, peer_names, ratio, share, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 12, 2.6  # inches of the picture, and of one row of it


def plot(record: Record, path: Path) -> str | None:
    """Writes a PNG; or says why it cannot."""
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed (pip install --group bench)"
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    draw = {"compile": _compile, "stream": _stream}.get(record["suite"], _calls)
    rows = len(record["results"])
    figure = Figure((WIDTH, HEIGHT * rows + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{record['suite']}, {record['date']}, {record['machine']['cpu']}, commit {record['machine']['commit']}", fontsize=9)
    for axes, result in zip(figure.subplots(rows, 2, squeeze=False), record["results"], strict=True):
        draw(axes[0], axes[1], result)
        axes[0].set_title(title(result), fontsize=9)
    figure.savefig(path, dpi=100)
    return None


def _calls(left: Axes, right: Axes, result: Record) -> None:
    """Left: how many times longer each peer takes than disc, by shape. Right: everybody's share of the roofline."""
    names = [row["shape"] for row in result["rows"]]
    places = list(range(len(names)))
    peers = peer_names(result)
    width = 0.8 / max(1, len(peers))
    for number, peer in enumerate(peers):
        heights = [ratio(row, peer) for row in result["rows"]]
        left.bar([place + (number - (len(peers) - 1) / 2) * width for place in places], heights, width, label=peer, color=f"C{number + 1}")
    for number, name in enumerate(["disc", *peers]):
        right.plot(places, [share(row, name) * 100 for row in result["rows"]], "o-", label=name, color=f"C{number}", markersize=3)
    left.axhline(1, color="black", linewidth=0.8)
    left.set_ylabel("time ÷ disc's", fontsize=8)
    right.set_ylabel("% of the limit", fontsize=8)
    right.set_ylim(0, None)
    for axes in (left, right):
        axes.set_xticks(places, names)
        axes.tick_params(labelsize=7)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7)


def _compile(left: Axes, right: Axes, result: Record) -> None:
    """Left: the stages of a cold compile; right: compiles that the cache answers. Seconds."""
    for axes, seconds in ((left, result["cold_s"]), (right, result["cached_s"])):
        bars = axes.barh(list(seconds), list(seconds.values()))
        axes.bar_label(bars, fmt="%.2f s", fontsize=7)
        axes.invert_yaxis()
        axes.tick_params(labelsize=7)


def _stream(left: Axes, right: Axes, result: Record) -> None:
    """Left: quantiles of the first time of a shape over its steady time; right: resident memory along the stream."""
    bars = left.bar(list(result["quantiles"]), list(result["quantiles"].values()))
    left.bar_label(bars, fmt="%.2f", fontsize=7)
    right.plot(result["resident_mib"], "o-")
    right.set_ylim(0, None)
    right.set_ylabel("resident MiB", fontsize=8)


def main(result: str, picture: str | None = None) -> int:
    """Next to the result where no path is given; pictures are not kept in git."""
    path = Path(picture) if picture else Path(result).with_suffix(".png")
    reason = plot(json.loads(Path(result).read_text()), path)
    print(reason or f"written: {path}", file=sys.stderr)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
