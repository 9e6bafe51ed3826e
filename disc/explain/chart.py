"""The picture of a sweep: time over size as SVG, with a line and a letter wherever other versions of the kernels run."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

from disc.errors import printable
from disc.explain.sweep import Sweep, letters, time_text, version_texts

WIDTH, HEIGHT = 720, 320  # of the picture, pixels at its full size
LEFT, RIGHT, TOP, BOTTOM = 70, 14, 34, 44  # margins, pixels
MOST_TICKS = 10  # on an axis
LOGARITHMIC_FROM = 16.0  # greatest over least size
LETTER_SPACE = 14.0  # pixels between two letters of versions, at least

Place = Callable[[float], float]  # a value's pixel


def sweep_html(found: Sweep) -> str:
    """The picture, the sizes that were refused, a table of all points, and what the letters are. Names out of files are escaped."""
    others = ", ".join(f"{name} = {size}" for name, size in found.others.items())
    parts = [
        f"<h2>Time over {_escaped(found.symbol)}{_escaped(f' at {others}') if others else ''}</h2>",
        f'<div class="wide">{chart(found)}</div>',
    ]
    parts += [f"<p>{_escaped(f'{found.symbol} = {size} is refused: {reason}')}</p>" for size, reason in found.refused]
    parts.append("<details><summary>all sizes, and the versions that ran</summary>")
    parts.append(_table(found))
    for number, texts in enumerate(version_texts(found)):
        lines = "".join(f"<li><code>{_escaped(text.strip())}</code></li>" for text in texts)
        parts.append(f"<p><b>versions {letters(number)}</b></p><ul>{lines}</ul>" if texts else "")
    return f'<section class="sweep">{"".join(parts)}</details></section>'


def chart(found: Sweep) -> str:
    """The picture: medians as a line, the middle half of the calls at each size as a band behind it."""
    sizes = [point.size for point in found.points]
    low, high = min(point.low for point in found.points) * 0.9, max(point.high for point in found.points) * 1.02
    if _is_wide(sizes):  # both axes: time in proportion to size is a straight line
        across, marks = _logarithmic(min(sizes), max(sizes), LEFT, WIDTH - RIGHT, [2.0**power for power in range(63)])
        decades = [factor * 10.0**power for power in range(-9, 6) for factor in (1, 2, 5)]
        up, times = _logarithmic(low, high, HEIGHT - BOTTOM, TOP, decades)
    else:
        across, marks = _linear(min(sizes), max(sizes), LEFT, WIDTH - RIGHT)
        up, times = _linear(0.0, high, HEIGHT - BOTTOM, TOP)
    parts = [
        _line("grid", LEFT, up(value), WIDTH - RIGHT, up(value)) + _text("right", LEFT - 6, up(value) + 4, time_text(value))
        for value in times
    ]
    parts += [_text("middle", across(value), HEIGHT - BOTTOM + 18, f"{value:g}") for value in marks]
    parts.append(_text("middle", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, found.symbol))
    parts += _changes(found, across)
    if len(found.points) > 1:
        edge = [(across(point.size), up(point.high)) for point in found.points]
        edge += [(across(point.size), up(point.low)) for point in reversed(found.points)]
        parts.append(f'<path class="band" d="M{_path(edge)}Z"/>')
        parts.append(f'<path class="median" d="M{_path([(across(point.size), up(point.seconds)) for point in found.points])}"/>')
    for point in found.points:
        about = f"{found.symbol} = {point.size}: {time_text(point.seconds)}, versions {letters(point.versions)}"
        parts.append(f'<circle cx="{across(point.size):.1f}" cy="{up(point.seconds):.1f}" r="3"><title>{_escaped(about)}</title></circle>')
    label = _escaped(f"time of a call over {found.symbol}")
    return f'<svg class="chart" role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(parts)}</svg>'


def _changes(found: Sweep, across: Place) -> list[str]:
    """Where other versions run than at the size before: a line, what changes as its title, and the letter where there is room."""
    if len(found.versions) == 1:
        return []
    parts: list[str] = []
    last = -math.inf
    for place, point in enumerate(found.points):
        changes = found.changes(place)
        if place and not changes:
            continue
        x = across(point.size)
        lines = [f"from {found.symbol} = {point.size} on: versions {letters(point.versions)}", *changes]
        title = "\n".join(map(_escaped, lines))
        letter = _text("middle", x, TOP - 8, letters(point.versions)) if x - last >= LETTER_SPACE else ""
        last = x if letter else last
        parts.append(f'<g class="change">{_line("", x, TOP, x, HEIGHT - BOTTOM)}{letter}<title>{title}</title></g>')
    return parts


def _is_wide(sizes: Sequence[int]) -> bool:
    return min(sizes) > 0 and max(sizes) / min(sizes) >= LOGARITHMIC_FROM


def _linear(least: float, most: float, start: float, end: float) -> tuple[Place, list[float]]:
    """Where values lie between two pixels, and which ones are written."""
    step = _step((most - least) / 5)
    ticks = [step * number for number in range(math.ceil(least / step), math.floor(most / step * (1 + 1e-9)) + 1)]
    return lambda value: start + ((value - least) / (most - least) if most > least else 0.5) * (end - start), ticks


def _logarithmic(least: float, most: float, start: float, end: float, ticks: Sequence[float]) -> tuple[Place, list[float]]:
    """The same where equal ratios are equally long. ticks: candidates."""
    first, last = math.log2(least), math.log2(most)
    within = [tick for tick in ticks if least <= tick <= most]
    return lambda value: start + (math.log2(value) - first) / (last - first) * (end - start), within[:: -(-len(within) // MOST_TICKS) or 1]


def _step(least: float) -> float:
    """1, 2 or 5 times a power of ten: the first from `least` on."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= least)


def _table(found: Sweep) -> str:
    columns = (found.symbol, "time", "a quarter took less than", "a quarter took more than", "calls", "versions")
    head = "".join(f'<th class="number">{_escaped(each)}</th>' for each in columns)
    rows = [
        (str(point.size), time_text(point.seconds), time_text(point.low), time_text(point.high), str(point.calls), letters(point.versions))
        for point in found.points
    ]
    body = "".join("<tr>" + "".join(f'<td class="number">{_escaped(each)}</td>' for each in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(style: str, x: float, y: float, text: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    return html.escape(printable(text))
