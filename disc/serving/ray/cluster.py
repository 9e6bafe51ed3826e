"""Compiles and measures on the machines of a Ray cluster: `disc ray compile` and `disc ray tune`.

Every machine needs the same disc, with the extra `compile` for compiling, and `tune` as well for measuring. Ray runs what it is sent: a
cluster is for people who trust each other, and its ports are for the cluster alone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from disc.config import read_environment
from disc.errors import ConfigurationError, DiscError, how_to_install
from disc.ral import _ral
from disc.speculation.fit import Fitted
from disc.speculation.policy import ruled_points
from disc.speculation.records import Record, read_record
from disc.speculation.schedules import Schedule
from disc.speculation.sizes import Point, coarse_points, fine_points
from disc.speculation.tree import read_tree, write_tree
from disc.speculation.tune import TOP, Measure, Round, tune
from disc.targets.x86 import native_target

_PLAIN = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True)
class Machine:
    """One node. cpus: those available to Ray. kind: its CPU, cores and ISA; one tree is fitted per kind. threads: its cores."""

    node: str
    cpus: float
    kind: str
    threads: int


class Machines:
    """The nodes of a Ray cluster."""

    def __init__(self, address: str, working_dir: Path | None = None) -> None:
        """address: as of `ray.init`, "auto" for the cluster of this machine. working_dir: sent to the machines, for code of the user's.

        Raises ConfigurationError when Ray is not installed, or there is no cluster.
        """
        try:
            import ray
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"this needs {error.name}; install it with: {how_to_install('ray')}") from error
        self._ray = ray
        environment = {"working_dir": str(working_dir)} if working_dir is not None else {}
        try:
            ray.init(address, runtime_env=environment, log_to_driver=False, ignore_reinit_error=True)
        except ConnectionError as error:
            raise ConfigurationError(f"there is no Ray cluster at {address}: {error}") from error

    def found(self) -> list[Machine]:
        """The machines that are there, in the order of their names."""
        alive = sorted((each["NodeID"], each["Resources"].get("CPU", 0.0)) for each in self._ray.nodes() if each["Alive"])
        nodes = [(node, cpus) for node, cpus in alive if cpus]
        with ThreadPoolExecutor(max(len(nodes), 1)) as pool:
            described = pool.map(lambda node: self.run(node[0], 0.0, describe), nodes)
            return [Machine(node, cpus, *each) for (node, cpus), each in zip(nodes, described, strict=True)]

    def run(self, node: str, cpus: float, function: Callable[..., Any], *arguments: object) -> Any:
        """The result of `function` on this very node, with so many of its CPUs. Raises LostError when the node is gone."""
        from ray.exceptions import RayError, RayTaskError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        task = self._ray.remote(function).options(num_cpus=cpus, scheduling_strategy=strategy, max_retries=0)
        try:
            return self._ray.get(task.remote(*arguments))
        except RayTaskError:
            raise
        except RayError as error:
            raise LostError(f"{type(error).__name__}: {error}") from error

    def spread(self, cpus: float, function: Callable[..., Any], arguments: Sequence[tuple[object, ...]]) -> Iterator[tuple[int, Any]]:
        """(number, result) of each call as it ends, on whatever machines have room; calls of a machine that is lost run elsewhere."""
        task = self._ray.remote(function).options(num_cpus=cpus, scheduling_strategy="SPREAD", max_retries=3)
        pending = {task.remote(*each): number for number, each in enumerate(arguments)}
        while pending:
            done, _ = self._ray.wait(list(pending), num_returns=1)
            for reference in done:
                yield pending.pop(reference), self._ray.get(reference)


class LostError(DiscError):
    """A machine of the cluster is gone."""


def describe() -> tuple[str, int]:
    """The kind of this machine, and its cores."""
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    threads = int(_ral.find_cores("")["threads"])
    return f"{names[0] if names else 'unknown CPU'}, {threads} threads, {native_target()}", threads


# --- compiling -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compiled:
    """What became of one model. node: where. error: the message of `disc compile`, or None. artifact: its file, empty with an error."""

    node: str
    seconds: float
    error: str | None
    artifact: bytes


def compile_one(name: str, content: bytes | None, options: Sequence[str]) -> Compiled:
    """Runs `disc compile` in a process of its own, in a new folder. content: of the file `name`; None: it is `package.module:factory`."""
    import ray

    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="disc-ray-") as folder:
        model, output = name, Path(folder) / "model.disc"
        if content is not None:
            model = str(Path(folder) / f"model{Path(name).suffix}")
            Path(model).write_bytes(content)
        command = [sys.executable, "-m", "disc.cli", "compile", model, "-o", str(output), "--json", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        error = None if done.returncode == 0 else _said(done).replace(model, name)
        artifact = output.read_bytes() if error is None else b""
    return Compiled(ray.get_runtime_context().get_node_id(), time.monotonic() - start, error, artifact)


def _said(done: subprocess.CompletedProcess[str]) -> str:
    try:
        return json.loads(done.stdout)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return (done.stderr.strip().splitlines() or [f"disc compile ended with {done.returncode}"])[-1]


def compile_many(
    machines: Machines, models: Sequence[str], folder: Path, options: Sequence[str], cpus: float
) -> Iterator[tuple[Path, Compiled]]:
    """(artifact, how it went) for each model as it is done; those without an error lie in `folder`, which is made.

    models: .pt2, .onnx, .mlir, .mlirbc files of this machine, which are sent, or `package.module:factory`, which the machines must be able
    to import. Raises ConfigurationError for two models of one name, or a file that cannot be read.
    """
    names = [Path(model.rpartition(":")[2] or model).stem for model in models]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigurationError(f"two models would be written to {twice}.disc")
    folder.mkdir(parents=True, exist_ok=True)
    contents = [_content(model) for model in models]
    arguments = [(model, content, tuple(options)) for model, content in zip(models, contents, strict=True)]
    for number, result in machines.spread(cpus, compile_one, arguments):
        path = folder / f"{names[number]}.disc"
        if result.error is None:
            partial = path.with_name(f".{path.name}.part")
            partial.write_bytes(result.artifact)
            os.replace(partial, path)
        yield path, result


def _content(model: str) -> bytes | None:
    if ":" in model and not os.path.exists(model):
        return None
    try:
        return Path(model).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{model} cannot be read: {error.strerror}") from error


# --- measuring -------------------------------------------------------------------------------------------------------------

MeasureOn = Callable[[Machine, Sequence[Point], Sequence[Schedule]], Sequence[str]]
"""The records of these sizes on a machine, one line each. Raises LostError when the machine is gone."""


def measure(points: Sequence[Point], schedules: Sequence[Schedule]) -> list[str]:
    """The records of these sizes on this machine, one line each."""
    from disc.api import compile_with_tree
    from disc.speculation.bench import Bench

    bench = Bench(compile_with_tree, tuple(schedules))
    return [bench.measure(point).to_json() for point in points]


def install(tree: str) -> None:
    """Programs compiled on this machine from now on choose by this tree."""
    write_tree(read_environment().cache_dir, read_tree(tree))


def tune_kinds(
    machines: Sequence[Machine],
    measure_on: MeasureOn,
    store: Path,
    coarse: Callable[[Machine], Sequence[Point]],
    fine: Callable[[Machine], Sequence[Point]],
    ruled: Callable[[Machine], Sequence[Point]] = lambda _: (),
    top: int = TOP,
) -> dict[str, Fitted]:
    """`speculation.tune.tune` on all machines at once, with one tree per kind of machine (paper 002, §5.2.2).

    The sizes of a kind are spread over its machines. Records are kept in `store`, so an interrupted run goes on. coarse, fine, ruled: the
    sizes, as `coarse_points`, `fine_points` and `ruled_points`. Raises DiscError when a kind has no machine left.
    """
    kinds = {kind: list(same) for kind, same in groupby(sorted(machines, key=lambda each: each.kind), key=lambda each: each.kind)}

    def one_kind(kind: str) -> Fitted:
        same, folder = kinds[kind], store / slug(kind)
        tuned = tune(folder, coarse(same[0]), fine(same[0]), spread_over(same, measure_on), ruled=ruled(same[0]), top=top)
        assert tuned is not None  # it may take as long as it takes
        write_tree(folder, tuned.fitted.tree)
        return tuned.fitted

    with ThreadPoolExecutor(max(len(kinds), 1)) as pool:
        return dict(zip(kinds, pool.map(one_kind, kinds), strict=True))


def slug(kind: str) -> str:
    """A file name for a kind of machine."""
    return _PLAIN.sub("-", kind).strip("-").lower()


def spread_over(machines: Sequence[Machine], measure_on: MeasureOn) -> Measure:
    """Each machine takes the next sizes that share a program until there are none; what a lost machine had taken, another does.

    Measuring raises DiscError when no machine is left.
    """

    def measure(round_: Round, points: Sequence[Point]) -> Iterator[Record]:
        program = lambda point: (point.n, point.k, point.batch, point.weights, point.transposed)  # noqa: E731
        waiting = deque(list(same) for _, same in groupby(points, key=program))
        idle, lost = deque(machines), ""
        running: dict[Future[Sequence[str]], tuple[Machine, list[Point]]] = {}
        with ThreadPoolExecutor(len(machines)) as pool:
            while waiting or running:
                while waiting and idle:
                    machine, taken = idle.popleft(), waiting.popleft()
                    running[pool.submit(measure_on, machine, taken, round_.schedules)] = (machine, taken)
                if not running:
                    raise DiscError(f"no machine of the kind {machines[0].kind!r} is left: {lost}; run it again, it goes on from here")
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    machine, taken = running.pop(future)
                    try:
                        lines = future.result()
                    except LostError as error:
                        waiting.append(taken)
                        lost = str(error)
                        continue
                    idle.append(machine)
                    yield from map(read_record, lines)

    return measure


def tune_cluster(machines: Machines, store: Path, threads: Sequence[int] | None = None) -> Mapping[str, Fitted]:
    """`tune_kinds` with the sizes of `disc tune`, and the trees put where each machine's compiles look for them."""

    def counts(machine: Machine) -> list[int]:
        return list(threads) if threads else list(dict.fromkeys((1, machine.threads)))

    found = machines.found()
    fitted = tune_kinds(
        found,
        on_ray(machines),
        store,
        lambda machine: coarse_points(counts(machine)[0]),
        lambda machine: fine_points(counts(machine)),
        lambda machine: ruled_points(counts(machine)),
    )
    for machine in found:
        machines.run(machine.node, 0.0, install, fitted[machine.kind].tree.to_json())
    return fitted


def on_ray(machines: Machines) -> MeasureOn:
    """Measures with a whole machine, so that nothing else runs there."""
    return lambda machine, points, schedules: machines.run(machine.node, machine.cpus, measure, tuple(points), tuple(schedules))
