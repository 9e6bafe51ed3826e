"""`Executable.explain`: what each kernel is, why, which version ran, and how close it comes to the machine's limit."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from disc.artifact.bounds import EXPLAINED
from disc.artifact.manifest import Manifest, arguments_of, results_of
from disc.errors import ArtifactError, printable
from disc.explain.gpus import gpu_limits, gpu_of, resident_blocks
from disc.explain.machine import MachineLimits, machine_limits
from disc.explain.page import page
from disc.explain.sources import source_texts
from disc.explain.sweep import Sweep
from disc.explain.sweep import sweep as sweep
from disc.explain.symbols import sizes_of, symbol_text
from disc.explain.text import text_lines
from disc.ral.executable import Executable, Profiled
from disc.ral.skeletal import skeleton_lines
from disc.ral.structured import structure_lines
from disc.shapes import parse_dim

Record = Mapping[str, object]
SECONDS, MOST_CALLS = 0.2, 25  # of the calls that are measured, after the first one of these
RESOURCES = ("threads", "registers", "stack", "shared", "scratch", "bytes")  # of a version on a GPU


@dataclass(frozen=True)
class VersionReport:
    """One version of a kernel; `runs` counts the launches that took it. On a GPU: grid: blocks along x, y, z, expressions over the symbols;
    resources: threads and bytes of shared memory of a block, registers and bytes of stack (what spills lies there) of a thread, bytes of
    code; blocks: of a launch in the profiled call, where it ran there; resident: blocks that an SM runs at a time; occupancy: the share of
    the SM's threads that these have. predicted: picoseconds that a launch takes one thread by the rates of the target, an expression over
    the symbols; "" where nobody counted."""

    function: str
    guard: str
    runs: int
    grid: tuple[str, ...] = ()
    resources: Mapping[str, int] = field(default_factory=dict)
    blocks: int | None = None
    resident: int | None = None
    occupancy: float | None = None
    predicted: str = ""


@dataclass(frozen=True)
class LaunchReport:
    """One place in the program that runs a kernel. number: of the place, from 0; operands: what made each input ("arg0", "kernel3", a
    weight's name); runs: how often, in the profiled call or since loading; seconds: of the profiled call.

    lines: the user's; modules: the paths of those that it belongs to; inputs, results: types; flops, bytes and tasks: expressions over the
    symbols, None where nobody counted.
    """

    number: int
    name: str
    operands: tuple[str, ...]
    lines: tuple[str, ...]
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    tasks: str
    flops: str | None
    bytes: str | None
    runs: int
    seconds: float | None
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """One kernel in a profiled call, all its launches together. flops, bytes: None where they were not counted.

    share: of the time of all kernels; limit_share: the least time that the machine's limits allow, over the time taken; bound: the limit
    that decides, "compute" or "memory". predicted: seconds of one thread, by the rates of the target, of the versions that ran.
    """

    seconds: float
    share: float
    flops: int | None = None
    bytes: int | None = None
    gflops: float | None = None
    gbytes: float | None = None
    limit_share: float | None = None
    bound: str | None = None
    predicted: float | None = None


@dataclass(frozen=True)
class KernelReport:
    """One kernel and all its launches. lines: those of all launches.

    inputs, results, notes, plan, scratch (bytes per thread), tasks, flops and bytes are those of the first launch: another one may be over
    other symbols, and a version has a guard for each of these. plan: what was decided, as `disc.plan` has it. Both it and scratch are "" in
    artifacts of compilers that did not say.
    """

    name: str
    kind: str
    ops: tuple[str, ...]
    lines: tuple[str, ...]
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    notes: tuple[str, ...]
    plan: str
    scratch: str
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
    threads: per call; copied_inputs: how many were not contiguous and were copied, since loading.
    decisions: what became of the conditions on sizes under which the program was exported: their numbers, then those among the checks.
    fixed_dims: who fixed a dim that could have been dynamic. structures: the kinds of nodes of a model over structures.
    calls: how many were measured; seconds are their medians. sweep: the time over the sizes of a symbol, where somebody added it.
    sources: the text of each line, of those that this machine has, as it has them now.
    """

    isa: str
    threads: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    symbols: tuple[str, ...]
    checks: tuple[str, ...]
    decisions: tuple[str, ...]
    fixed_dims: tuple[str, ...]
    sizes: Mapping[str, int]
    kernels: tuple[KernelReport, ...]
    seconds: float | None
    copied_inputs: int
    limits: MachineLimits | None
    structures: tuple[str, ...] = ()
    calls: int = 0
    sources: Mapping[str, str] = field(default_factory=dict)
    sweep: Sweep | None = None

    def __str__(self) -> str:
        return "\n".join(map(printable, text_lines(self)))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    def to_html(self) -> str:
        """One page that needs nothing else."""
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
    threads = 0 if executable.isa.startswith("cuda:") else executable.threads
    return _explanation(
        _Ran(executable, manifest, executable.isa, threads, [counters[name] for name in manifest["counters"]]), times, {}, None, 0
    )


def explain_call(executable: Executable, inputs: Sequence[object], profiled: Callable[[], Profiled]) -> Explanation:
    """What the program does on these inputs. profiled: runs them."""
    _check_records(executable.manifest)
    profiled()  # the first call allocates and touches its memory
    calls = _calls(executable.manifest, profiled)
    call = calls[-1]
    _check_records(call.manifest)
    seconds = [statistics.median(each) for each in zip(*([seconds for _, seconds in each.kernels] for each in calls), strict=True)]
    times = [(runs, middle) for (runs, _), middle in zip(call.kernels, seconds, strict=True)]
    limits = machine_limits(executable.threads) if call.gpu is None else gpu_limits(call.gpu)
    ran = _Ran(executable, call.manifest, call.isa, executable.threads if call.gpu is None else 0, call.counters)
    return _explanation(ran, times, sizes_of(call.manifest, inputs), limits, len(calls))


def _calls(manifest: Manifest, profiled: Callable[[], Profiled]) -> list[Profiled]:
    """Several, for medians; one of a model that calls change: that keeps tensors, or writes its inputs."""
    state = manifest.get("state")
    most = 1 if state is not None and (state["buffers"] or state["written"]) else MOST_CALLS
    calls = [profiled()]
    end = time.perf_counter() + SECONDS
    while len(calls) < most and time.perf_counter() < end:
        calls.append(profiled())
    return calls


@dataclass(frozen=True)
class _Ran:
    """Which program is explained. isa, manifest: of its code; threads: of a call, 0 on a GPU; counters: in the manifest's order."""

    executable: Executable
    manifest: Manifest
    isa: str
    threads: int
    counters: Sequence[int]


def _structures(manifest: Manifest) -> tuple[str, ...]:
    """The kinds of nodes, or the skeleton."""
    if "skeleton" in manifest:
        return tuple(skeleton_lines(manifest["skeleton"]))
    return tuple(structure_lines(manifest["structures"])) if "structures" in manifest else ()


def _check_records(manifest: Manifest) -> None:
    """Raises ArtifactError for an artifact whose kernels are described by name only."""
    for record in manifest["kernels"]:
        if not record.keys() >= EXPLAINED:
            raise ArtifactError(f"the artifact says nothing of kernel '{record['name']}' but its name: compile it again with this version")


def _explanation(
    ran: _Ran, times: Sequence[tuple[int, float | None]], sizes: Mapping[str, int], limits: MachineLimits | None, calls: int
) -> Explanation:
    manifest = ran.manifest
    total = sum(seconds or 0.0 for _, seconds in times) if limits is not None else None
    groups: dict[str, list[int]] = {}
    for number, record in enumerate(manifest["kernels"]):
        groups.setdefault(str(record["kernel"]), []).append(number)
    kernels = [_kernel(ran, numbers, times, sizes, limits, total) for numbers in groups.values()]
    return Explanation(
        isa=ran.isa,
        threads=ran.threads,
        inputs=tuple(f"{record['name']}: {record['dtype']}[{', '.join(map(str, record['dims']))}]" for record in arguments_of(manifest)),
        outputs=tuple(
            f"{record['name']}: {record['dtype']}[{', '.join(map(str, record.get('dims', ['?'] * record['rank'])))}]"
            for record in results_of(manifest)
        ),
        symbols=tuple(symbol_text(record, manifest) for record in manifest["symbols"]),
        checks=tuple(check_text(record["message"]) for record in manifest["checks"]),
        decisions=decision_texts(manifest),
        fixed_dims=tuple(manifest.get("fixed_dims", ())),
        sizes=sizes,
        kernels=tuple(kernels),
        seconds=total,
        copied_inputs=cast("int", ran.executable.stats()["copied_inputs"]),
        limits=limits,
        calls=calls,
        sources=source_texts(line for kernel in kernels for line in kernel.lines),
        structures=_structures(manifest),
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


def _kernel(
    ran: _Ran,
    numbers: Sequence[int],
    times: Sequence[tuple[int, float | None]],
    sizes: Mapping[str, int],
    limits: MachineLimits | None,
    total: float | None,
) -> KernelReport:
    """All launches of one kernel; each of their records describes the kernel."""
    records: Sequence[Record] = ran.manifest["kernels"]
    record = records[numbers[0]]
    launches = tuple(_launch(number, records[number], *times[number]) for number in numbers)
    versions = _versions([records[number] for number in numbers], ran, sizes)
    measured = None
    if limits is not None and total is not None:
        measured = _measured(launches, sizes, limits.of(record.get("arithmetic", "")), total)
        alike = all(records[number]["versions"] == record["versions"] for number in numbers)
        measured = dataclasses.replace(measured, predicted=_predicted(versions, sizes) if alike else None)
    return KernelReport(
        name=str(record["kernel"]),
        kind=str(record["kind"]),
        ops=_texts(record, "ops"),
        lines=tuple(dict.fromkeys(line for launch in launches for line in launch.lines)),
        inputs=launches[0].inputs,
        results=launches[0].results,
        notes=_texts(record, "notes"),
        plan=str(record.get("plan", "")),
        scratch=str(record.get("scratch", "")),
        tasks=launches[0].tasks,
        flops=launches[0].flops,
        bytes=launches[0].bytes,
        versions=versions,
        launches=launches,
        measured=measured,
    )


def _predicted(versions: Sequence[VersionReport], sizes: Mapping[str, int]) -> float | None:
    """Seconds of one thread of all launches; None where a version that ran has no prediction."""
    ran = [(version.runs, version.predicted) for version in versions if version.runs]
    if not ran or any(not text or not set(parse_dim(text).symbols()) <= sizes.keys() for _, text in ran):
        return None
    return sum(runs * parse_dim(text).evaluate(sizes) for runs, text in ran) * 1e-12


def _launch(number: int, record: Record, runs: int, seconds: float | None) -> LaunchReport:
    return LaunchReport(
        number=number,
        name=str(record["name"]),
        operands=_texts(record, "operands"),
        lines=_texts(record, "lines"),
        inputs=_texts(record, "inputs"),
        results=_texts(record, "results"),
        tasks=str(record["tasks"]),
        flops=cast("str | None", record["flops"]),
        bytes=cast("str | None", record["bytes"]),
        runs=runs,
        seconds=seconds,
        modules=_texts(record, "modules"),
    )


def _versions(records: Sequence[Record], ran: _Ran, sizes: Mapping[str, int]) -> tuple[VersionReport, ...]:
    """Of all launches of a kernel: a counter is a version under one guard, in the order of the versions."""
    found: dict[int, tuple[int, VersionReport]] = {}
    for record in records:
        versions, numbers = cast("list[Record]", record["versions"]), cast("list[int]", record["counters"])
        for place, (each, number) in enumerate(zip(versions, numbers, strict=True)):
            found.setdefault(number, (place, _version(each, ran, ran.counters[number], sizes)))
    return tuple(version for _, version in sorted(found.values(), key=lambda each: each[0]))


def _version(record: Record, ran: _Ran, runs: int, sizes: Mapping[str, int]) -> VersionReport:
    resources = {name: cast("int", record[name]) for name in RESOURCES if name in record}
    grid = _texts(record, "grid")
    predicted = str(record.get("predicted", ""))
    plain = VersionReport(str(record["function"]), str(record["guard"]), runs, grid, resources, predicted=predicted)
    gpu = gpu_of(ran.isa)
    if gpu is None or not resources.keys() >= {"threads", "registers", "shared"}:
        return plain
    resident = resident_blocks(gpu, resources["threads"], resources["registers"], resources["shared"])
    known = runs > 0 and "persistent" not in record and all(set(parse_dim(each).symbols()) <= sizes.keys() for each in grid)
    blocks = math.prod(parse_dim(each).evaluate(sizes) for each in grid) if known else None
    return dataclasses.replace(plain, blocks=blocks, resident=resident, occupancy=resident * resources["threads"] / gpu.threads)


def _texts(record: Record, key: str) -> tuple[str, ...]:
    return tuple(str(each) for each in cast("list[object]", record.get(key, [])))


def _measured(launches: Sequence[LaunchReport], sizes: Mapping[str, int], limits: MachineLimits, total: float) -> Measured:
    seconds = sum(launch.seconds or 0.0 for launch in launches)
    share = seconds / total if total else 0.0
    counts = [(launch.runs, launch.flops, launch.bytes) for launch in launches]
    known = [(runs, flops, moved) for runs, flops, moved in counts if flops is not None and moved is not None
             and set(parse_dim(flops).symbols()) | set(parse_dim(moved).symbols()) <= sizes.keys()]  # fmt: skip
    if len(known) != len(launches) or not seconds:
        return Measured(seconds, share)
    flops = sum(runs * parse_dim(each).evaluate(sizes) for runs, each, _ in known)
    moved = sum(runs * parse_dim(each).evaluate(sizes) for runs, _, each in known)
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
