"""The command itself: who takes part, on which inputs, and the table."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import typer

from disc.artifact.manifest import InputRecord, arguments_of
from disc.artifact.output import check_output
from disc.cli.bench.figures import CHECKED, Figures, difference, figures_of, numbers
from disc.cli.bench.peers import PEERS, Array, obstacle, peers_of
from disc.cli.bench.plot import check_plot, save_plot
from disc.cli.bench.process import TIMED, PeerFailed, StoppedProcess
from disc.cli.bench.timing import CallTimes, in_turns, time_callers
from disc.cli.inputs import RANDOM_HELP, example_sizes, random_inputs
from disc.cli.output import AsJson, Debug, Ops, Threads, duration, print_json, print_table, spinner
from disc.cli.run import Device, Graphs
from disc.config import Options
from disc.errors import ConfigurationError, InputRankError, UnsupportedFormatError
from disc.ral.custom_functions import register_ops
from disc.ral.executable import Executable, load
from disc.ral.gpu_programs import device_code

ROUNDS = 5  # turns that each has per set of sizes
WARM_UP_CALLS = 3


def bench_command(
    model: Annotated[str, typer.Argument(help="A .disc file, or what `disc compile` takes.", metavar="MODEL")],
    shapes: Annotated[list[str] | None, typer.Option("--shape", help=f"One set of sizes; may be repeated. {RANDOM_HELP}")] = None,
    against: Annotated[str | None, typer.Option(help=f"Also time the model in these, by commas: {', '.join(PEERS)}.")] = None,
    source: Annotated[str | None, typer.Option(help="What the .disc file was compiled from, for the peers to run.")] = None,
    task: Annotated[str | None, typer.Option(help="Of hf:FOLDER: feature-extraction, text-classification, fill-mask and so on.")] = None,
    callers: Annotated[int, typer.Option(min=1, max=256, help="Throughput: as many call at the same time.")] = 1,
    seconds: Annotated[float, typer.Option(min=0.01, help="How long to run each set.")] = 1.0,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (.png, .svg or .pdf).")] = None,
    threads: Threads = None,
    device: Device = None,
    graphs: Graphs = 0,
    ops: Ops = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Time calls on random inputs, per set of sizes, alone or in turns with other runtimes; on a GPU with the copies there and back."""
    if plot is not None:
        check_plot(plot)
        check_output(plot)
    names = peers_of(against) if against is not None else []
    origin = _origin(model, source, names)
    register_ops(ops or ())
    executable = _executable(model, task, threads, device, graphs)
    records = arguments_of(executable.manifest)
    _check_shapes(records, shapes)
    rows: list[Figures] = []
    with _peers(names, origin, task, records, executable.threads, callers) as peers:
        for text in shapes or [""]:
            with spinner(f"timing {text}"):
                rows += _rows(executable, text, peers, callers, seconds)
    if plot is not None:
        save_plot(plot, rows, callers)
    skipped = peers.skipped
    if as_json:
        more = {"skipped": skipped} if names else {}
        print_json({
            "threads": executable.threads, "isa": executable.isa, "callers": callers, "shapes": [row.record() for row in rows], **more
        })  # fmt: skip
        return
    _print(rows, bool(names), callers)
    for name, reason in skipped.items():
        print(f"{name} was not timed: {reason}")
    if plot is not None:
        print(f"wrote {plot}")


def _origin(model: str, source: str | None, names: Sequence[str]) -> str:
    """What the peers run. Raises ConfigurationError where that is not known."""
    if source is not None and not (names and model.endswith(".disc")):
        raise ConfigurationError("--source is for a .disc file that is timed --against others")
    if names and model.endswith(".disc") and source is None:
        raise ConfigurationError(f"what do the others run? {model} holds code of disc alone: add --source MODEL, as `disc compile` took it")
    origin = source or model
    if names and origin.endswith((".mlir", ".mlirbc", ".disc")):
        raise ConfigurationError(f"the peers run PyTorch and ONNX models; {origin} is neither")
    return origin


def _executable(model: str, task: str | None, threads: int | None, device: str | None, graphs: int) -> Executable:
    """The artifact, or the model compiled. Raises what either raises."""
    if model.endswith(".disc"):
        return load(model, threads=threads, isa=device_code(device), graphs=graphs)
    for name, given in (("--device", device is not None), ("--graphs", graphs > 0)):
        if given:
            raise ConfigurationError(f"{name} is for .disc files: compile the model first")
    if not model.startswith("hf:") and task is not None:
        raise UnsupportedFormatError("--task is for hf:FOLDER")
    with spinner(f"compiling {model}"):
        import disc

        compile_model = disc.compile  # a DiscError says what to install where the compiler is not

        options = Options(threads=threads)
        if model.endswith((".onnx", ".mlir", ".mlirbc")):
            return compile_model(model, options=options)
        from disc.cli.bench.source import read_source
        from disc.frontend.exported import export_module, load_pt2

        if model.endswith(".pt2"):
            return compile_model(load_pt2(model), options=options)
        found = read_source(model, task)
        return compile_model(export_module(found.module, found.args, found.shapes, found.kwargs), options=options)


def _check_shapes(records: Sequence[InputRecord], shapes: Sequence[str] | None) -> None:
    if not shapes and any(isinstance(dim, str) for record in records for dim in record["dims"]):
        raise InputRankError(f"which sizes? give --shape once or more, such as --shape {example_sizes(records)}")


class Peers:
    """The processes that take part, and why others do not. folder: shared by them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, StoppedProcess] = {}
        self.skipped: dict[str, str] = {}

    def first_call(self, name: str, arrays: Sequence[Array]) -> tuple[float, list[Array]]:
        """Seconds and results. Raises PeerFailed."""
        given, made = self.folder / "inputs.npz", self.folder / "outputs.npz"
        np.savez(given, *arrays)
        first = self.running[name].seconds("bind", "first", inputs=str(given), outputs=str(made))
        with np.load(made, allow_pickle=False) as archive:
            return first, [archive[f"arr_{number}"] for number in range(len(archive.files))]

    def turn(self, name: str, seconds: float) -> CallTimes:
        answer = self.running[name].ask("turn", seconds=seconds)
        return CallTimes(cast("float", answer["wall"]), cast("list[float]", answer["calls"]))


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM in the body ends the command as an exception does: the peers' folder, of models in other forms, is removed."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _peers(
    names: Sequence[str], source: str, task: str | None, records: Sequence[InputRecord], threads: int, callers: int
) -> Iterator[Peers]:
    """Starts them; one that cannot build the model is skipped with its reason."""
    environment = {**TIMED, "OMP_NUM_THREADS": str(threads)}
    with _ended_in_order(), tempfile.TemporaryDirectory(prefix="disc-bench-") as folder, contextlib.ExitStack() as stack:
        peers = Peers(Path(folder))
        settings = {"source": source, "task": task, "records": records, "threads": threads, "callers": callers, "folder": folder}
        for name in names:
            reason = obstacle(name, source)
            if reason is None:
                process = stack.enter_context(StoppedProcess(name, "disc.cli.bench.worker", environment))
                try:
                    with spinner(f"starting {name}"):
                        process.ask("open", peer=name, **settings)
                    peers.running[name] = process
                except PeerFailed as error:
                    reason = str(error)
            if reason is not None:
                peers.skipped[name] = reason
        yield peers


def _rows(executable: Executable, text: str, peers: Peers, callers: int, seconds: float) -> list[Figures]:
    """One row per runtime, disc first. A peer that fails on these sizes is skipped from here on."""
    records = arguments_of(executable.manifest)
    made = random_inputs(records, text)
    arrays = [made[record["name"]] for record in records]
    start = time.perf_counter()
    executable(*arrays)
    firsts = {"disc": time.perf_counter() - start}
    for _ in range(WARM_UP_CALLS):
        executable(*arrays)
    results = {"disc": numbers(executable, executable.flat(*arrays))}
    for name in list(peers.running):
        try:
            firsts[name], results[name] = peers.first_call(name, arrays)
        except PeerFailed as error:
            peers.skipped[name] = f"{text}: {error}"
            del peers.running[name]
    expected = results.get("eager", results["disc"])
    turns = {"disc": lambda: time_callers([lambda: executable(*arrays)] * callers, seconds / ROUNDS)}
    turns |= {name: lambda name=name: peers.turn(name, seconds / ROUNDS) for name in peers.running}
    timed = in_turns(turns, ROUNDS)
    rows = [figures_of(text, name, turn, firsts[name], difference(results[name], expected)) for name, turn in timed.items()]
    return [row.against(rows[0], callers) for row in rows]


def _print(rows: Sequence[Figures], compared: bool, callers: int) -> None:
    columns = ("median", "p10", "p90", "p95", "p99", "first")
    more = (*(("model",) if compared else ()), "calls", *columns, *(("calls/s",) if callers > 1 else ()))
    last = ("disc's speed-up", "differs by") if compared else ()
    table: list[list[object]] = []
    for row in rows:
        line: list[object] = [row.shape, *([row.model] if compared else []), row.calls]
        line += [duration(cast("float", getattr(row, name))) for name in columns]
        line += [f"{row.per_second:.1f}"] if callers > 1 else []
        table.append(line + ([_speed_up(row), f"{row.difference:.1e}"] if compared else []))
    print_table(("shape", *more, *last), table, left=2 if compared else 1)
    wrong = [f"{row.model} ({row.shape})" for row in rows if not row.right]
    if wrong:
        print(f"{', '.join(wrong)}: results differ by more than {CHECKED:g} of the largest value: these times say nothing")


def _speed_up(row: Figures) -> str:
    return "" if row.model == "disc" else f"{row.speed_up:.2f}" if row.speed_up is not None else "-"
