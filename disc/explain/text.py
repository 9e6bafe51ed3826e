"""The text form of an explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from disc.errors import counted
from disc.explain.sweep import sweep_lines, time_text

if TYPE_CHECKING:
    from disc.explain.report import Explanation, KernelReport, VersionReport

MODULES_SHOWN = 4
_COLUMNS = ("kernel", "kind", "runs", "time", "share", "GFLOP/s", "GB/s", "of limit")
_RESOURCES = ("kernel", "version", "threads", "registers", "spilled", "shared", "per SM", "occupancy", "runs")


def text_lines(report: Explanation) -> list[str]:
    """The explanation for a terminal."""
    launches = sum(len(kernel.launches) for kernel in report.kernels)
    facts = [counted(len(report.kernels), "kernel"), counted(launches, "launch"), report.isa]
    lines = [", ".join([*facts, *([counted(report.threads, "thread")] if report.threads else [])])]
    lines += [f"input  {each}" for each in report.inputs] + [f"output {each}" for each in report.outputs]
    lines += report.structures
    for text in report.symbols:
        size = report.sizes.get(text.split(" ")[0])
        lines.append(f"symbol {text}" + (f" (here {size})" if size is not None else ""))
    lines += [f"fixed  {each}" for each in report.fixed_dims]
    lines += [f"check  {each}" for each in report.checks]
    lines += [f"export {each}" for each in report.decisions]
    if report.limits is not None and report.seconds is not None:
        lines.append(f"limits {report.limits.gflops:.0f} GFLOP/s, {report.limits.gbytes:.1f} GB/s: {report.limits.source}")
        lines.append(f"time   {time_text(report.seconds)} in kernels{calls_text(report.calls)}")
    if report.copied_inputs:
        lines.append(f"copies {report.copied_inputs} inputs were not contiguous and were copied since loading")
    kernels = sorted(report.kernels, key=lambda kernel: -(kernel.measured.seconds if kernel.measured else 0.0))
    swept = ["", *sweep_lines(report.sweep)] if report.sweep is not None else []
    resources = resource_rows(report.kernels)
    tables = [*_aligned([_COLUMNS[: _shown(kernels)], *(table_cells(each)[: _shown(kernels)] for each in kernels)]), ""]
    tables += [*_aligned([_RESOURCES, *resources]), ""] if resources else []
    return [*lines, *swept, "", *tables, *(line for kernel in kernels for line in _details(kernel, report.sources))]


def calls_text(calls: int) -> str:
    """ ", the median of 25 calls"; "" where one was measured."""
    return f", the median of {calls} calls" if calls > 1 else ""


def _shown(kernels: Sequence[KernelReport]) -> int:
    """How many columns have anything to say."""
    return len(_COLUMNS) if any(kernel.measured for kernel in kernels) else _COLUMNS.index("time")


def resource_rows(kernels: Sequence[KernelReport]) -> list[tuple[str, ...]]:
    """A row for each version on a GPU, which its code gives without one."""
    found: list[tuple[str, ...]] = []
    for kernel in kernels:
        versions = [each for each in kernel.versions if each.resident is not None]
        for number, each in enumerate(versions):
            numbers = [str(each.resources.get(name, 0)) for name in ("threads", "registers", "stack", "shared")]
            found.append((kernel.name, str(number), *numbers, str(each.resident), f"{each.occupancy:.0%}", str(each.runs)))
    return found


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells in columns, the first two to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[:2] = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        lines.append("  ".join(cells))
    return lines


def table_cells(kernel: KernelReport) -> tuple[str, ...]:
    """One row of the table; "-" where nothing was measured."""
    cells = (kernel.name, kernel.kind, str(kernel.runs))
    measured = kernel.measured
    if measured is None:
        return (*cells, "-", "-", "-", "-", "-")
    cells = (*cells, f"{measured.seconds * 1e6:.1f} µs", f"{measured.share:.1%}")
    if measured.gflops is None or measured.gbytes is None or measured.limit_share is None:
        return (*cells, "-", "-", "-")
    return (*cells, f"{measured.gflops:.1f}", f"{measured.gbytes:.1f}", limit_text(measured.limit_share, measured.bound))


def limit_text(share: float, bound: str | None) -> str:
    """ "71% memory"; what is faster than the limit, which is one of memory, lies in a cache."""
    return "in cache" if share > 1 else f"{share:.0%} {bound}"


def _details(kernel: KernelReport, sources: Mapping[str, str]) -> list[str]:
    lines = [f"{kernel.name}: {kernel.kind}", f"  ops      {counted_names(kernel.ops)}"]
    modules = list(dict.fromkeys(filter(None, (module_text(launch.modules) for launch in kernel.launches))))
    more = f" and {len(modules) - MODULES_SHOWN} more" if len(modules) > MODULES_SHOWN else ""
    lines += [f"  module   {', '.join(modules[:MODULES_SHOWN])}{more}"] if modules else []
    lines += [f"  line     {short_line(line)}{f'  {sources[line]}' if line in sources else ''}" for line in kernel.lines]
    lines += [f"  {word}{each}" for word, all_of in (("input    ", kernel.inputs), ("result   ", kernel.results)) for each in all_of]
    for version in kernel.versions:
        lines.append(f"  version  {version.guard or 'any shape'}: ran {version.runs} times")
        lines += [f"  {word}{each}" for word, each in (("grid     ", grid_text(version)), ("code     ", resources_text(version))) if each]
    if kernel.measured is not None and kernel.measured.predicted is not None:
        predicted, seconds = kernel.measured.predicted, kernel.measured.seconds
        lines.append(f"  model    {time_text(predicted)} of one thread were predicted, {time_text(seconds)} measured")
    lines += [f"  note     {note}" for note in kernel.notes]
    alike = {(each.inputs, each.results, each.flops, each.bytes, each.tasks): each for each in reversed(kernel.launches)}
    for number, launch in enumerate(reversed(alike.values())):  # over other symbols after the first
        lines += [f"  also     {', '.join(launch.inputs)} -> {', '.join(launch.results)}"] if number else []
        if launch.flops is not None:
            lines.append(f"  work     {launch.flops} flops, {launch.bytes} bytes, {launch.tasks} tasks per launch")
    return lines


def grid_text(version: VersionReport) -> str:
    """ "S0 x 4: 128 blocks, 8 of them on an SM at a time, 50% of its threads"; "" for a version on a CPU."""
    words = [f"{version.blocks} blocks"] if version.blocks is not None else []
    if version.resident is not None and version.occupancy is not None:
        words.append(f"{version.resident} on an SM at a time, {version.occupancy:.0%} of its threads")
    return " x ".join(version.grid) + (f": {', '.join(words)}" if words else "")


def resources_text(version: VersionReport) -> str:
    """ "128 threads, 96 registers, 36864 bytes of shared memory, 17368 bytes of code"; "" for a version on a CPU."""
    words = {
        "threads": "threads", "registers": "registers", "stack": "bytes of stack", "shared": "bytes of shared memory",
        "scratch": "bytes of global memory for each block", "bytes": "bytes of code",
    }  # fmt: skip
    return ", ".join(f"{count} {words[name]}" for name, count in version.resources.items() if count)


def counted_names(ops: Sequence[str]) -> str:
    """ "add x2, multiply": op names without their dialects, in order of first use; constants are left out."""
    counts = Counter(op.split(".", 1)[-1] for op in ops if op != "stablehlo.constant")
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in counts.items())


def module_text(modules: Sequence[str]) -> str:
    """ "encoder.layer.3.attention": the module that more than half of these belong to, or "". What stands apart is computed once for
    several modules, as a mask is, and belongs to the first."""
    paths = [module.split(".") for module in modules]
    shared: list[str] = []
    while deeper := [path for path in paths if len(path) > len(shared) and path[: len(shared)] == shared]:
        (part, count) = Counter(path[len(shared)] for path in deeper).most_common(1)[0]
        if 2 * count <= len(paths):
            break
        shared.append(part)
    return ".".join(shared)


def short_line(line: str) -> str:
    """The last three parts of the path are enough to know the file."""
    parts = PurePath(line).parts
    return line if len(parts) <= 3 else str(PurePath(*parts[-3:]))
