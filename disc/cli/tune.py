"""`disc tune`."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from disc.cli.output import AsJson, Debug, print_json
from disc.config import read_environment
from disc.errors import DiscError, how_to_install
from disc.ral import _ral

if TYPE_CHECKING:
    from collections.abc import Sequence

    from disc.speculation.tune import Bench, Point

TOP = 12  # schedules measured at every size; more gain less than measuring them costs


def tune_command(
    threads: Annotated[list[int] | None, typer.Option("--threads", min=1, help="Measure with this many threads; may be repeated.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Stop measuring after this long; a later run goes on from there.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what earlier runs measured.")] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Measure the GEMM schedules on this machine and choose among them by that from now on.

    Takes about half an hour of an idle machine; may be interrupted and started again. Programs compiled later use the result.
    """
    for module in ("torch_mlir", "sklearn"):
        if importlib.util.find_spec(module) is None:
            raise DiscError(f"disc tune needs {module}; install it with: {how_to_install('compile', 'tune')}")
    from disc.api import compile_with_tree
    from disc.speculation.schedules import FAMILY, write_tree
    from disc.speculation.tune import Bench, best_schedules, coarse_points, fine_points, fit, read_records

    folder = read_environment().cache_dir
    counts = threads or list(dict.fromkeys((1, _ral.find_cores("")["threads"])))
    coarse, fine = folder / "tune" / "coarse.jsonl", folder / "tune" / "fine.jsonl"
    if fresh:
        for path in (coarse, fine):
            path.unlink(missing_ok=True)
    until = time.monotonic() + (float("inf") if minutes is None else minutes * 60)
    finished = _measure("all schedules", coarse_points(counts[0]), coarse, Bench(compile_with_tree), until)
    schedules = best_schedules(read_records(coarse), TOP) if finished else FAMILY
    finished = finished and _measure(f"the best {TOP}", fine_points(counts), fine, Bench(compile_with_tree, schedules), until)
    if not finished:
        raise DiscError("time ran out before all sizes were measured: run disc tune again, it goes on from here")
    fitted = fit(read_records(fine), schedules)
    path = write_tree(folder, fitted.tree)
    if as_json:
        print_json({"tree": str(path), "fitted": vars(fitted.fitted), "held_out": vars(fitted.held_out)})
        return
    print(f"fitted   {fitted.fitted}\nheld out {fitted.held_out}\nwritten  {path}")


def _measure(title: str, wanted: Sequence[Point], store: Path, bench: Bench, until: float) -> bool:
    """Measures what is missing, with a bar on a terminal; False when time ran out."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from disc.speculation.tune import collect

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(title, total=len(wanted))
        for done, _ in collect(wanted, store, bench):
            progress.update(task, completed=done)
            if time.monotonic() > until:
                return done == len(wanted)
    return True
