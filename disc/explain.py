"""`Executable.explain`: what each kernel is, why, which version ran, and how near it comes to the machine's limit."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import cast

from disc.artifact import Manifest
from disc.artifact_bounds import EXPLAINED
from disc.errors import ArtifactError, printable
from disc.machine import Limits, machine_limits
from disc.ral.executable import Executable
from disc.shapes import parse_dim

Record = Mapping[str, object]


@dataclass(frozen=True)
class VersionReport:
    """One version of a kernel; `runs` counts the launches that took it."""

    function: str
    guard: str
    runs: int


@dataclass(frozen=True)
class LaunchReport:
    """One place in the program that runs a kernel. operands: what made each input ("arg0", "kernel3", a weight's name)."""

    number: int
    name: str
    operands: tuple[str, ...]
    runs: int
    seconds: float | None


@dataclass(frozen=True)
class Measured:
    """One kernel in a profiled call, all its launches together. flops, bytes: None where nobody counted them.

    share: of the time of all kernels; limit_share: the least time that the machine's limits allow, over the time taken; bound: the limit
    that decides, "compute" or "memory".
    """

    seconds: float
    share: float
    flops: int | None = None
    bytes: int | None = None
    gflops: float | None = None
    gbytes: float | None = None
    limit_share: float | None = None
    bound: str | None = None


@dataclass(frozen=True)
class KernelReport:
    """One kernel and all its launches. `flops`, `bytes` and `tasks` are expressions over the symbols, per launch."""

    name: str
    kind: str
    ops: tuple[str, ...]
    lines: tuple[str, ...]
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    notes: tuple[str, ...]
    tasks: str
    flops: str | None
    bytes: str | None
    versions: tuple[VersionReport, ...]
    launches: tuple[LaunchReport, ...]
    measured: Measured | None

    @property
    def runs(self) -> int:
        return sum(launch.runs for launch in self.launches)


@dataclass(frozen=True)
class Explanation:
    """The report. `str()` is a table, `to_json()` and `to_html()` have everything.

    sizes: symbol → its value in the profiled call, {} without one; symbols: what each one is; checks: the conditions that are checked.
    decisions: what became of the conditions on sizes under which the program was exported: their numbers, then those among the checks.
    """

    isa: str
    threads: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    symbols: tuple[str, ...]
    checks: tuple[str, ...]
    decisions: tuple[str, ...]
    sizes: Mapping[str, int]
    kernels: tuple[KernelReport, ...]
    seconds: float | None
    copied_inputs: int
    limits: Limits | None

    def __str__(self) -> str:
        return "\n".join(map(printable, _text_lines(self)))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    def to_html(self) -> str:
        """One page that needs nothing else."""
        from disc.explain_page import page

        return page(self)


def explain(executable: Executable) -> Explanation:
    """What the program is, and which versions ran since loading."""
    stats = executable.stats()
    counters, launches = cast("dict[str, int]", stats["counters"]), cast("dict[str, int]", stats["kernels"])
    manifest = executable.manifest
    _check_records(manifest)
    names = Counter(str(record["name"]) for record in manifest["kernels"])
    # Launches of one name are only counted together; each gets its part (every call runs all of them).
    times = [(launches[str(record["name"])] // names[str(record["name"])], None) for record in manifest["kernels"]]
    return _explanation(executable, counters, times, {}, None)


def explain_call(executable: Executable, inputs: Sequence[object], profiled: Callable[[], list[tuple[int, float]]]) -> Explanation:
    """What the program does on these inputs. profiled: runs them; launches and seconds per kernel of the manifest."""
    _check_records(executable.manifest)
    profiled()  # the first call allocates and touches its memory
    before = cast("dict[str, int]", executable.stats()["counters"])
    times = profiled()
    after = cast("dict[str, int]", executable.stats()["counters"])
    counters = {name: after[name] - before[name] for name in after}
    limits = machine_limits(executable.threads)
    return _explanation(executable, counters, times, _sizes(executable.manifest, inputs), limits)


def _check_records(manifest: Manifest) -> None:
    """Raises ArtifactError for an artifact whose kernels are described by name only."""
    for record in manifest["kernels"]:
        if not record.keys() >= EXPLAINED:
            raise ArtifactError(f"the artifact says nothing of kernel '{record['name']}' but its name: compile it again with this version")


def _sizes(manifest: Manifest, inputs: Sequence[object]) -> dict[str, int]:
    """The value of every symbol for these inputs."""
    sizes: dict[str, int] = {}
    for record in manifest["symbols"]:
        if "source" in record:
            argument, _, dim = record["source"].removeprefix("arg").partition(".")
            given = inputs[int(argument)]
            sizes[record["name"]] = int(given.shape[int(dim)]) if dim else int(given)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    return sizes


def _explanation(
    executable: Executable,
    counters: Mapping[str, int],
    times: Sequence[tuple[int, float | None]],
    sizes: Mapping[str, int],
    limits: Limits | None,
) -> Explanation:
    manifest = executable.manifest
    total = sum(seconds or 0.0 for _, seconds in times) if limits is not None else None
    groups: dict[str, list[int]] = {}
    for number, record in enumerate(manifest["kernels"]):
        groups.setdefault(str(record["kernel"]), []).append(number)
    values = [counters[name] for name in manifest["counters"]]
    kernels = [_kernel(manifest["kernels"], numbers, values, times, sizes, limits, total) for numbers in groups.values()]
    return Explanation(
        isa=executable.isa,
        threads=executable.threads,
        inputs=tuple(f"{record['name']}: {record['dtype']}[{', '.join(map(str, record['dims']))}]" for record in manifest["inputs"]),
        outputs=tuple(
            f"{record['name']}: {record['dtype']}[{', '.join(map(str, record.get('dims', ['?'] * record['rank'])))}]"
            for record in manifest["outputs"]
        ),
        symbols=tuple(symbol_text(cast("Record", record), manifest) for record in manifest["symbols"]),
        checks=tuple(check_text(record["message"]) for record in manifest["checks"]),
        decisions=decision_texts(manifest),
        sizes=sizes,
        kernels=tuple(kernels),
        seconds=total,
        copied_inputs=cast("int", executable.stats()["copied_inputs"]),
        limits=limits,
    )


def check_text(message: str) -> str:
    """What must hold, without what a failure adds: "dim 0 must be a multiple of 8" of "dim 0 must be a multiple of 8: got {actual}"."""
    message = message.replace("index {actual} is out of range for a dim of size {expected}", "every index must fit its dim")
    condition, _, found = message.rpartition(": ")
    return condition if condition and "{" in found else message


def decision_texts(manifest: Manifest) -> tuple[str, ...]:
    """ "12 conditions on sizes: 9 proved, 2 about strides alone, 1 checked in every call", then each that is checked; () without any."""
    record = manifest.get("decisions")
    if record is None:
        return ()
    proved, layout, checked = record["proved"], record["layout"], record["checked"]
    total = proved + layout + len(checked)
    counts = f"{proved} proved, {layout} about strides alone, {len(checked)} checked in every call"
    return (f"{total} condition{'' if total == 1 else 's'} on sizes: {counts}", *(f"  {check_text(message)}" for message in checked))


def symbol_text(record: Record, manifest: Manifest) -> str:
    """ "S0 = dim 1 of input 'ids', 0 to 512, a multiple of 8"."""
    text = str(record["name"])
    if "source" in record:
        argument, _, dim = str(record["source"]).removeprefix("arg").partition(".")
        name = manifest["inputs"][int(argument)]["name"]
        text += f" = dim {dim} of input '{name}'" if dim else f" = the value of input '{name}'"
    text += f", {record['min']} to {record.get('max', 'any')}"
    return text + (f", a multiple of {record['divisor']}" if record["divisor"] != 1 else "")


def _kernel(
    records: Sequence[Record],
    numbers: Sequence[int],
    counters: Sequence[int],
    times: Sequence[tuple[int, float | None]],
    sizes: Mapping[str, int],
    limits: Limits | None,
    total: float | None,
) -> KernelReport:
    """All launches of one kernel; what describes the kernel stands in the record of each of them."""
    record = records[numbers[0]]
    counted = [counters[number] for number in cast("list[int]", record["counters"])]
    versions = cast("list[dict[str, str]]", record["versions"])
    launches = tuple(
        LaunchReport(number, str(records[number]["name"]), _texts(records[number], "operands"), *times[number]) for number in numbers
    )
    return KernelReport(
        name=str(record["kernel"]),
        kind=str(record["kind"]),
        ops=_texts(record, "ops"),
        lines=_texts(record, "lines"),
        inputs=_texts(record, "inputs"),
        results=_texts(record, "results"),
        notes=_texts(record, "notes"),
        tasks=str(record["tasks"]),
        flops=cast("str | None", record["flops"]),
        bytes=cast("str | None", record["bytes"]),
        versions=tuple(VersionReport(each["function"], each["guard"], runs) for each, runs in zip(versions, counted, strict=True)),
        launches=launches,
        measured=_measured(record, launches, sizes, limits, total) if limits is not None and total is not None else None,
    )


def _texts(record: Record, key: str) -> tuple[str, ...]:
    return tuple(str(each) for each in cast("list[object]", record.get(key, [])))


def _measured(record: Record, launches: Sequence[LaunchReport], sizes: Mapping[str, int], limits: Limits, total: float) -> Measured:
    runs, seconds = sum(launch.runs for launch in launches), sum(launch.seconds or 0.0 for launch in launches)
    share = seconds / total if total else 0.0
    if record["flops"] is None or record["bytes"] is None or not seconds:
        return Measured(seconds, share)
    flops, moved = (runs * parse_dim(str(record[key])).evaluate(sizes) for key in ("flops", "bytes"))
    return Measured(
        seconds=seconds,
        share=share,
        flops=flops,
        bytes=moved,
        gflops=flops / seconds * 1e-9,
        gbytes=moved / seconds * 1e-9,
        limit_share=limits.least_seconds(flops, moved) / seconds,
        bound="compute" if flops / limits.gflops > moved / limits.gbytes else "memory",
    )


# ---- Text -------------------------------------------------------------------------------------------------------------------------

_COLUMNS = ("kernel", "kind", "runs", "time", "share", "GFLOP/s", "GB/s", "of limit")


def _text_lines(report: Explanation) -> list[str]:
    lines = [f"{len(report.kernels)} kernels, {sum(len(kernel.launches) for kernel in report.kernels)} launches, {report.isa}, "
             f"{report.threads} thread{'' if report.threads == 1 else 's'}"]  # fmt: skip
    lines += [f"input  {each}" for each in report.inputs] + [f"output {each}" for each in report.outputs]
    for text in report.symbols:
        size = report.sizes.get(text.split(" ")[0])
        lines.append(f"symbol {text}" + (f" (here {size})" if size is not None else ""))
    lines += [f"check  {each}" for each in report.checks]
    lines += [f"export {each}" for each in report.decisions]
    if report.limits is not None and report.seconds is not None:
        lines.append(f"limits {report.limits.gflops:.0f} GFLOP/s, {report.limits.gbytes:.1f} GB/s: {report.limits.source}")
        lines.append(f"time   {report.seconds * 1e3:.3f} ms in kernels")
    if report.copied_inputs:
        lines.append(f"copies {report.copied_inputs} inputs were not contiguous and were copied since loading")
    kernels = sorted(report.kernels, key=lambda kernel: -(kernel.measured.seconds if kernel.measured else 0.0))
    return [*lines, "", *_table(kernels), "", *(line for kernel in kernels for line in _details(kernel))]


def _table(kernels: Sequence[KernelReport]) -> list[str]:
    rows = [_COLUMNS, *(table_cells(kernel) for kernel in kernels)]
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


def _details(kernel: KernelReport) -> list[str]:
    lines = [f"{kernel.name}: {kernel.kind}", f"  ops      {counted_names(kernel.ops)}"]
    lines += [f"  line     {short_line(line)}" for line in kernel.lines]
    lines += [f"  {word}{each}" for word, all_of in (("input    ", kernel.inputs), ("result   ", kernel.results)) for each in all_of]
    lines += [f"  version  {version.guard or 'any shape'}: ran {version.runs} times" for version in kernel.versions]
    lines += [f"  note     {note}" for note in kernel.notes]
    if kernel.flops is not None:
        lines.append(f"  work     {kernel.flops} flops, {kernel.bytes} bytes, {kernel.tasks} tasks per launch")
    return lines


def counted_names(ops: Sequence[str]) -> str:
    """ "add x2, multiply": op names without their dialects, in order of first use; constants are left out."""
    counts = Counter(op.split(".", 1)[-1] for op in ops if op != "stablehlo.constant")
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in counts.items())


def short_line(line: str) -> str:
    """The last three parts of the path are enough to know the file."""
    parts = PurePath(line).parts
    return line if len(parts) <= 3 else str(PurePath(*parts[-3:]))
