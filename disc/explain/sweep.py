"""How long a call takes over the sizes of one symbol, and which versions of the kernels run at each of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from disc.artifact.manifest import Manifest
from disc.errors import CompilerBug, DiscError, ShapeConstraintError
from disc.explain.symbols import find_symbols, inputs_at, sizes_of
from disc.ral.executable import Executable, Profiled

SECONDS = 0.2  # of calls at one size, as far as the bounds on their number allow
LEAST, MOST = 5, 200  # calls at one size
ANY_SHAPE = "any shape"

Versions = Mapping[str, tuple[str, ...]]  # kernel → the guards of those that ran


@dataclass(frozen=True)
class SweepPoint:
    """One size. seconds: of a call, the median of `calls`; a quarter of them took less than `low`, a quarter more than `high`. versions:
    which ran, a place in `Sweep.versions`."""

    size: int
    seconds: float
    low: float
    high: float
    calls: int
    versions: int


@dataclass(frozen=True)
class Sweep:
    """Sizes of a symbol ("S1", or "S0, S2") in rising order; others: the sizes of the other symbols. refused: sizes that a call refused,
    and why. versions: each choice of versions that ran at some size, in the order in which they came."""

    symbol: str
    others: Mapping[str, int]
    points: tuple[SweepPoint, ...]
    refused: tuple[tuple[int, str], ...]
    versions: tuple[Versions, ...]

    def __str__(self) -> str:
        return "\n".join(sweep_lines(self))

    def changes(self, place: int) -> list[str]:
        """What runs at a point otherwise than at the one before it: "stitch_exp_2: divides(16, S1)"; [] where nothing changes."""
        if place == 0:
            return []
        before, now = (self.versions[self.points[each].versions] for each in (place - 1, place))
        return [f"{kernel}: {' and '.join(guards)}" for kernel, guards in now.items() if before.get(kernel) != guards]


def sweep(
    executable: Executable, symbol: str, sizes: Sequence[int], inputs: Sequence[object], profiled: Callable[[Sequence[object]], Profiled]
) -> Sweep:
    """Runs calls on these inputs at each size of a symbol ("S1", or "x.1" for dim 1 of input 'x'; "S0,S2": of several that have the same).
    profiled: one with its counts.

    Raises ShapeConstraintError for a symbol that is not there, and where every size is refused.
    """
    manifest = executable.manifest
    names = find_symbols(manifest, symbol)
    name = ", ".join(names)
    wanted = sorted(set(sizes))
    if not wanted or wanted[0] < 0:
        raise ShapeConstraintError(f"sizes of {name} are numbers from 0 on, at least one of them: got {list(sizes)}")
    points: list[SweepPoint] = []
    refused: list[tuple[int, str]] = []
    versions: list[Versions] = []
    for size in wanted:
        try:
            given = inputs_at(manifest, inputs, names, size)
            call = profiled(given)
            times = _times(executable, given, on_gpu=call.gpu is not None)
        except CompilerBug:
            raise
        except DiscError as error:
            refused.append((size, str(error)))
            continue
        ran = _versions_of(call)
        if ran not in versions:
            versions.append(ran)
        low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
        points.append(SweepPoint(size, middle, low, high, len(times), versions.index(ran)))
    if not points:
        raise ShapeConstraintError(f"every size of {name} is refused: at {refused[0][0]}: {refused[0][1]}")
    others = {each: size for each, size in sizes_of(manifest, inputs).items() if each not in names}
    return Sweep(name, others, tuple(points), tuple(refused), tuple(versions))


def _times(executable: Executable, inputs: Sequence[object], *, on_gpu: bool) -> list[float]:
    """Seconds of calls; the first, which allocates memory of these sizes, was before."""
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < LEAST or (len(times) < MOST and time.perf_counter() - begin < SECONDS):
        start = time.perf_counter()
        executable(*inputs)
        if on_gpu:
            executable.synchronize()  # a call does not wait for it
        times.append(time.perf_counter() - start)
    return times


def _versions_of(call: Profiled) -> Versions:
    """Those that ran, of kernels that have several."""
    found: dict[str, dict[str, None]] = {}
    manifest: Manifest = call.manifest
    for record in manifest["kernels"]:
        versions, numbers = cast("list[Mapping[str, object]]", record["versions"]), cast("list[int]", record["counters"])
        if len(versions) > 1:
            guards = found.setdefault(str(record["kernel"]), {})
            ran = (str(each["guard"]) for each, number in zip(versions, numbers, strict=True) if call.counters[number])
            guards.update(dict.fromkeys(guard or ANY_SHAPE for guard in ran))
    return {kernel: tuple(guards) for kernel, guards in found.items()}


def letters(place: int) -> str:
    """A, B, ... Z, AA, AB: what a choice of versions is called."""
    return (letters(place // 26 - 1) if place >= 26 else "") + chr(ord("A") + place % 26)


def sweep_lines(found: Sweep) -> list[str]:
    """The sweep for a terminal: a table, then what each change of versions is, where it comes for the first time."""
    others = ", ".join(f"{name} = {size}" for name, size in found.others.items())
    lines = [f"time over {found.symbol}{f' at {others}' if others else ''}: medians of {LEAST} to {MOST} calls", ""]
    rows = [(found.symbol, "time", "middle half of the calls", "versions")]
    rows += [
        (str(point.size), time_text(point.seconds), f"{time_text(point.low)} to {time_text(point.high)}", letters(point.versions))
        for point in found.points
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines += [""] + [f"refused {found.symbol} = {size}: {reason}" for size, reason in found.refused]
    return lines + [text for number, texts in enumerate(version_texts(found)) for text in (f"versions {letters(number)}", *texts)]


def version_texts(found: Sweep) -> list[list[str]]:
    """For each choice of versions: of the kernels whose version changes in the sweep, which one ran."""
    changing = [kernel for kernel in found.versions[0] if len({each.get(kernel) for each in found.versions}) > 1]
    return [[f"  {kernel}: {' and '.join(each.get(kernel, ()))}" for kernel in changing] for each in found.versions]


def time_text(seconds: float) -> str:
    """ "12.3 µs", "1.23 ms"."""
    factor, unit = next((each for each in ((1.0, "s"), (1e3, "ms")) if seconds * each[0] >= 1), (1e6, "µs"))
    return f"{seconds * factor:.3g} {unit}"
