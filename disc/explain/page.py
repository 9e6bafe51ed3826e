"""The HTML form of an explanation: the page's frame is page.html, the data goes in as JSON, the graph as SVG."""

from __future__ import annotations

import html
import json
import re
import textwrap
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING

from disc.errors import counted, printable
from disc.explain.chart import sweep_html
from disc.explain.sweep import time_text
from disc.explain.text import calls_text, counted_names, module_text

if TYPE_CHECKING:
    from disc.explain.report import Explanation, KernelReport

BOX_WIDTH, BOX_HEIGHT, BOX_GAP = 430, 34, 10  # pixels
COLORS = {
    "loop": "#3b82f6", "stitch": "#10b981", "compute": "#f59e0b", "attention": "#ef4444", "library": "#a855f7", "reduce": "#06b6d4",
    "other": "#ec4899", "another": "#84cc16",
}  # fmt: skip
LONGEST_FACT = 200  # characters of one line above the table
ARC_SPACE = 170  # pixels left of the boxes, for edges that pass over other boxes; a narrow screen does not show them
MARGIN = 6  # pixels beside the boxes there


def page(report: Explanation) -> str:
    """The whole page. Names out of the user's files are escaped; nothing is loaded from elsewhere."""
    frame = resources.files("disc.explain").joinpath("page.html").read_text()
    data = json.dumps(_shown(json.loads(report.to_json()))).replace("<", "\\u003c")  # valid JSON that cannot close its script element
    colors, legend = _kinds(report)
    filled = frame.replace("<!--HEADER-->", _header(report)).replace("<!--LEGEND-->", legend).replace("/*KINDS*/", colors)
    filled = filled.replace("<!--SWEEP-->", sweep_html(report.sweep) if report.sweep is not None else "")
    return filled.replace("<!--GRAPH-->", _graph(report)).replace("/*DATA*/", data)


def _kinds(report: Explanation) -> tuple[str, str]:
    """Style and legend of the kinds that the report has. A kind that is no plain word, as in a file of unknown origin, has no color."""
    kinds = sorted({kernel.kind for kernel in report.kernels if re.fullmatch(r"[a-z]+", kernel.kind)})
    rest = iter(COLORS[kind] for kind in COLORS if kind not in kinds)
    colors = {kind: COLORS.get(kind) or next(rest, "#888") for kind in kinds}
    style = "\n".join(f".{kind} {{ --kind: {color}; }}" for kind, color in colors.items())
    return style, "".join(f'<span class="{kind}"><i></i>{kind}</span>' for kind in kinds)


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def _shown(value: object) -> object:
    """JSON with its texts as they may be shown."""
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return printable(value) if isinstance(value, str) else value


def _header(report: Explanation) -> str:
    launches = sum(len(kernel.launches) for kernel in report.kernels)
    facts = [f"{counted(len(report.kernels), 'kernel')} in {counted(launches, 'launch')}", report.isa, f"threads: {report.threads}"]
    if report.seconds is not None and report.limits is not None:
        facts.append(f"{time_text(report.seconds)} in kernels{calls_text(report.calls)}")
        facts.append(f"limits: {report.limits.gflops:.0f} GFLOP/s, {report.limits.gbytes:.1f} GB/s ({report.limits.source})")
    lines = [f"<p>{' · '.join(_escaped(fact) for fact in facts)}</p>"]
    sizes = " · ".join(f"{name} = {value}" for name, value in report.sizes.items())
    rows = [
        ("inputs", report.inputs),
        ("outputs", report.outputs),
        ("symbols", report.symbols),
        ("fixed", report.fixed_dims),
        ("checks", report.checks),
        ("exported under", report.decisions),
    ]
    rows += [("this call", (sizes,))] if sizes else []
    return "\n".join([*lines, *(_fact(title, entries) for title, entries in rows if entries)])


def _fact(title: str, entries: Sequence[str]) -> str:
    """A line; what is longer opens on a click."""
    shown = [f"<code>{_escaped(entry)}</code>" for entry in entries]
    if sum(map(len, entries)) <= LONGEST_FACT:
        return f"<p><b>{title}</b> {' · '.join(shown)}</p>"
    items = "".join(f"<li>{each}</li>" for each in shown)
    return f'<details class="fact"><summary><b>{title}</b> {len(entries)}</summary><ul>{items}</ul></details>'


def _graph(report: Explanation) -> str:
    """Launches from top to bottom; an edge from each to the launches that read its results."""
    boxes = sorted((launch.number, group) for group, kernel in enumerate(report.kernels) for launch in kernel.launches)
    rows = {number: row for row, (number, _) in enumerate(boxes)}
    longest = max((_seconds(report.kernels[group], number) for number, group in boxes), default=0.0)
    parts = [_edge(rows[source], rows[target]) for source, target in _edges(report)]
    parts += [_box(report.kernels[group], group, number, rows[number], longest) for number, group in boxes]
    height = len(boxes) * (BOX_HEIGHT + BOX_GAP) + BOX_GAP
    width = ARC_SPACE + BOX_WIDTH + 10
    boxes_alone = f"{ARC_SPACE - MARGIN} 0 {BOX_WIDTH + 2 * MARGIN} {height}"
    return f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" data-boxes="{boxes_alone}">{"".join(parts)}</svg>'


def _edges(report: Explanation) -> list[tuple[int, int]]:
    """(producer, consumer) by launch number, each once."""
    found: dict[tuple[int, int], None] = {}
    for kernel in report.kernels:
        for launch in kernel.launches:
            for operand in launch.operands:
                if operand.startswith("kernel") and operand[6:].isdecimal():
                    found[int(operand[6:]), launch.number] = None
    return sorted(found)


def _edge(source: int, target: int) -> str:
    if target == source + 1:
        x = ARC_SPACE + BOX_WIDTH // 2
        return f'<path class="edge" data-from="{source}" data-to="{target}" d="M{x},{_top(source) + BOX_HEIGHT} L{x},{_top(target)}"/>'
    start, end = _top(source) + BOX_HEIGHT * 2 // 3, _top(target) + BOX_HEIGHT // 3
    reach = ARC_SPACE - min(30 + 12 * (target - source), ARC_SPACE - 5)
    curve = f"M{ARC_SPACE},{start} C{reach},{start} {reach},{end} {ARC_SPACE},{end}"
    return f'<path class="edge" data-from="{source}" data-to="{target}" d="{curve}"/>'


def _box(kernel: KernelReport, group: int, number: int, row: int, longest: float) -> str:
    top, seconds = _top(row), _seconds(kernel, number)
    bar = round(BOX_WIDTH * seconds / longest) if longest else 0
    module = module_text(next(launch.modules for launch in kernel.launches if launch.number == number))
    named = f"{module}: " if module else ""
    title = _escaped(textwrap.shorten(f"{number} {named}{_telling_ops(kernel)}", 52, placeholder=" …"))
    time = f"{seconds * 1e6:.1f} µs" if kernel.measured is not None else ""
    return (
        f'<g class="box {_escaped(kernel.kind)}" data-kernel="{group}" data-launch="{number}" data-row="{row}" tabindex="0">'
        f'<rect class="body" x="{ARC_SPACE}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5"/>'
        f'<rect class="time" x="{ARC_SPACE}" y="{top + BOX_HEIGHT - 4}" width="{bar}" height="4"/>'
        f'<text x="{ARC_SPACE + 8}" y="{top + 20}">{title}</text>'
        f'<text class="right" x="{ARC_SPACE + BOX_WIDTH - 8}" y="{top + 20}">{time}</text></g>'
    )


def _telling_ops(kernel: KernelReport) -> str:
    """ "dot_general, add, tanh" of the kernel "compute_dot_general_add_tanh_8": the ops that the compiler named it by."""
    rest = kernel.name.removeprefix(f"{kernel.kind}_")
    names = sorted({op.split(".", 1)[-1] for op in kernel.ops}, key=len, reverse=True)
    words: list[str] = []
    while rest and not rest.isdecimal():
        word = next((name for name in names if rest == name or rest.startswith(f"{name}_")), None)
        if word is None:
            return counted_names(kernel.ops)
        words.append(word)
        rest = rest[len(word) + 1 :]
    return ", ".join(words) or counted_names(kernel.ops)


def _top(row: int) -> int:
    return BOX_GAP + row * (BOX_HEIGHT + BOX_GAP)


def _seconds(kernel: KernelReport, number: int) -> float:
    return next(launch.seconds or 0.0 for launch in kernel.launches if launch.number == number)
