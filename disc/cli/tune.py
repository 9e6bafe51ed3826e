"""`disc tune`."""

from __future__ import annotations

import importlib.util
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from disc.cli.output import AsJson, Debug, print_json
from disc.config import read_environment
from disc.errors import DiscError, how_to_install
from disc.ral import _ral

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import TaskID

    from disc.speculation.records import Record
    from disc.speculation.tune import Progress, Round

TIME_RAN_OUT = "time ran out before all sizes were measured: run disc tune again, it continues from here"


def tune_command(
    threads: Annotated[list[int] | None, typer.Option("--threads", min=1, help="Measure with this many threads; may be repeated.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Stop measuring after this long; a later run continues from there.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what earlier runs measured.")] = False,
    device: Annotated[
        str, typer.Option(help="cpu, or cuda:N for one of this machine's GPUs: products for GPUs of its kind, cuBLASLt among them.")
    ] = "cpu",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Measure the GEMM schedules on this machine, and how many values a fusion should read; later compiles choose by the results.

    Takes about half an hour of an idle machine; may be interrupted and started again. Programs compiled later use the result.
    """
    until = time.monotonic() + (float("inf") if minutes is None else minutes * 60)
    if device != "cpu":
        if threads:
            raise DiscError(f"disc tune --device {device} measures kernels of a GPU, which have no --threads")
        _tune_gpu(device, fresh, until, as_json)
        return
    for module in ("torch_mlir", "sklearn"):
        if importlib.util.find_spec(module) is None:
            raise DiscError(f"disc tune needs {module}; install it with: {how_to_install('compile', 'tune')}")
    from disc.api import compile_with_inputs, compile_with_tree
    from disc.speculation.bench import on_this_machine
    from disc.speculation.input_bench import measure_inputs, measured_inputs, missing_programs
    from disc.speculation.inputs import STORE, fit_inputs, write_limits
    from disc.speculation.policy import ruled_points
    from disc.speculation.sizes import coarse_points, fine_points
    from disc.speculation.tree import write_tree
    from disc.speculation.tune import forget, tune
    from disc.targets.x86_thresholds import CPU

    folder = read_environment().cache_dir
    inputs = folder / "tune" / STORE
    counts = threads or list(dict.fromkeys((1, _ral.find_cores("")["threads"])))
    if fresh:
        forget(folder / "tune")
    for record in measure_inputs(compile_with_inputs, inputs):
        print(f"measured  {record.program} of {record.rows} rows, by how many values a fusion reads", file=sys.stderr)
        if time.monotonic() > until:
            break
    if missing_programs(inputs):
        raise DiscError(TIME_RAN_OUT)
    with _bars() as progress:
        sizes = coarse_points(counts[0]), fine_points(counts)
        measure = on_this_machine(compile_with_tree)
        tuned = tune(folder / "tune", *sizes, measure, ruled=ruled_points(counts), until=until, progress=progress)
    if tuned is None:
        raise DiscError(TIME_RAN_OUT)
    limits = fit_inputs(measured_inputs(inputs), CPU.fusion.most_inputs)
    limits_path = write_limits(folder, limits)
    path, fitted = write_tree(folder, tuned.fitted.tree), tuned.fitted
    if as_json:
        print_json(
            {
                "tree": str(path),
                "fitted": vars(fitted.fitted),
                "held_out": vars(fitted.held_out),
                "rules": [asdict(rule) for rule in fitted.rules],
                "inputs": {"path": str(limits_path), **asdict(limits)},
            }
        )
        return
    most = ", ".join(f"{count} in a {kind} fusion" for kind, count in asdict(limits).items())
    print(f"{fitted.describe()}\ninputs    at most {most}\nwritten   {path}, {limits_path}")


def _tune_gpu(device: str, fresh: bool, until: float, as_json: bool) -> None:
    """Measures products on a GPU, and fits the trees for its kind. Raises TargetError where there is none of that number."""
    for module in ("torch_mlir", "sklearn", "triton"):
        if importlib.util.find_spec(module) is None:
            raise DiscError(f"disc tune --device {device} needs {module}; install it with: {how_to_install('compile', 'tune', 'cuda')}")
    from disc.api import compile_with_blocks
    from disc.speculation.block_bench import fit_products, measure_products, missing_products, read_products, store_of
    from disc.speculation.block_trees import write_trees
    from disc.speculation.gpus import find_device
    from disc.speculation.sizes import measured_sizes

    found, folder, sizes = find_device(device), read_environment().cache_dir, measured_sizes()
    architecture = found.gpu.architecture
    store = store_of(folder / "tune", found)
    if fresh:
        store.unlink(missing_ok=True)
    for record in measure_products(compile_with_blocks, found, store, sizes):
        schedule, best = min(record["times"].items(), key=lambda each: each[1])
        size = f"{record['m']} x {record['n']}, {record['k']} of k"
        print(f"measured  {record['kind']} {size}: {best:.1f} us by {schedule}", file=sys.stderr)
        if time.monotonic() > until:
            break
    if missing_products(store, architecture, sizes):
        raise DiscError(TIME_RAN_OUT)
    tuned = fit_products(found, read_products(store))
    path = write_trees(folder, architecture, tuned.trees, found.product)
    if as_json:
        judged = {kind: [vars(each) for each in quality if each is not None] for kind, quality in tuned.quality.items()}
        print_json({"trees": str(path), "gpu": found.product, "kinds": judged})
        return
    print(f"{found.product}\n{tuned.describe()}\nwritten   {path}")


@contextmanager
def _bars() -> Iterator[Progress]:
    """A bar per round, on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(round_: Round, done: int, record: Record) -> None:
            if round_.name not in tasks:
                tasks[round_.name] = bars.add_task(round_.name, total=len(round_.points))
            bars.update(tasks[round_.name], completed=done)

        yield progress
