"""The picture of `disc bench --plot`: time of a call over the sets of sizes, one line per runtime; with callers also calls per second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from disc.artifact.output import writing
from disc.cli.bench.figures import Figures
from disc.errors import ConfigurationError, UnsupportedFormatError, how_to_install

KINDS = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Raises UnsupportedFormatError for a name of no picture, ConfigurationError where nothing is installed that draws."""
    if path.suffix not in KINDS:
        raise UnsupportedFormatError(f"--plot {path}: pictures are {', '.join(KINDS)} files")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"--plot needs {error.name}; install it with: {how_to_install('peers')}") from error


def save_plot(path: Path, rows: Sequence[Figures], callers: int) -> None:
    """Draws what the table has. Runtimes whose results are not right have a dotted line."""
    from matplotlib.figure import Figure

    shapes = list(dict.fromkeys(row.shape for row in rows))
    figure = Figure(figsize=(max(5.0, 1.2 * len(shapes) + 3), 4 if callers == 1 else 7), layout="constrained")
    panels = figure.subplots(1 if callers == 1 else 2, 1, sharex=True, squeeze=False)[:, 0].tolist()
    for name in dict.fromkeys(row.model for row in rows):
        _lines(panels, [row for row in rows if row.model == name], shapes)
    panels[0].set(ylabel="ms per call: median, p10 to p90", yscale="log")
    if callers > 1:
        panels[1].set(ylabel=f"calls per second of {callers} callers")
        panels[1].set_ylim(bottom=0)
    panels[-1].set_xticks(range(len(shapes)), [shape.replace(",", "\n") or "fixed sizes" for shape in shapes], fontsize=8)
    panels[0].legend()
    with writing(path):
        figure.savefig(path)


def _lines(panels: Sequence[Any], rows: Sequence[Figures], shapes: Sequence[str]) -> None:
    places = [shapes.index(row.shape) for row in rows]
    style = "o-" if all(row.right for row in rows) else "o:"
    medians = [row.median * 1e3 for row in rows]
    spread = [[(row.median - row.p10) * 1e3 for row in rows], [(row.p90 - row.median) * 1e3 for row in rows]]
    panels[0].errorbar(places, medians, yerr=spread, fmt=style, capsize=3, label=rows[0].model)
    for panel in panels[1:]:
        panel.plot(places, [row.per_second for row in rows], style)
