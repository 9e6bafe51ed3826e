"""Compiles a small model of every architecture of transformers and compares it with eager at other sizes.

    python tools/sweep_models.py --output architectures.json                     # every architecture; goes on where it stopped
    python tools/sweep_models.py --output architectures.json --again             # those that did not end well
    python tools/sweep_models.py --output architectures.json bert clip           # these

Each model runs in a process of its own with limits of CPU time and memory. Outcomes: "right" (results that jump in eager itself where
weights change in their last bit, such as those of a choice among nearly equal scores, are listed as unstable and not compared);
"refused" (a DiscError that names the cause); "export" (refused, and torch.export refuses it, too, with the sizes that vary dynamic, or
what it exports refuses them); "eager" (the library cannot build or run the model as this tool makes it); and those that must not be:
"wrong", "slow" (right, after more than 60 s of CPU time to compile), "bug" (a CompilerBug), "raw" (another exception), "limit" (time or
memory), "crash". Exit status: 0 where none of these is there. A family is a folder of the library; one model of each comes first.
"""

from __future__ import annotations

import argparse
import collections
import copy
import functools
import json
import multiprocessing
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_models import Tiny, architectures, build

import disc
import disc.api  # loaded once, before the processes are forked
from disc.errors import CompilerBug, DiscError
from disc.frontend.export_errors import quiet

# Batch, length of the text, share of the usual image size. The last are for models that fix the length, or take no batch of one.
EXAMPLE = (2, 8, 1.0)
OTHERS = ((3, 11, 1.0), (1, 5, 1.0), (4, 24, 1.0), (2, 13, 1.5), (3, 8, 1.0), (1, 8, 1.0), (5, 8, 1.0))
ENOUGH = 3  # sizes other than the example's
ROOT = Path(__file__).resolve().parents[1]
FINE = ("right", "refused", "export", "eager")
CPU_SECONDS, MEMORY_BYTES, WALL_SECONDS = 240, 12 << 30, 3000
TOLERANCE = 1e-4  # of the largest value of a result
SHARE = 10  # a result is unstable where eager, computed from weights of another rounding, is at least this part as far from itself
SLOW_SECONDS = 60  # of CPU time, to compile


def judge(model_type: str, class_name: str) -> dict[str, Any]:
    """The outcome of one architecture."""
    try:
        tiny = build(model_type, class_name, (EXAMPLE, *OTHERS))
        example = tiny.inputs(*EXAMPLE)
    except Exception as error:
        return {"outcome": "eager", "detail": _brief(error)}
    found: dict[str, Any] = {"inputs": {name: list(value.shape) for name, value in example.items()}}
    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = disc.compile(tiny.module, tuple(example.values()), options=disc.Options(cache=False, threads=1))
    except CompilerBug as error:
        return {**found, "outcome": "bug", "detail": str(error)[:2000]}
    except DiscError as error:
        return {**found, "outcome": "refused", "detail": f"{type(error).__name__}: {error}"[:1500], **_export_too(tiny)}
    except Exception as error:
        return {**found, "outcome": "raw", "detail": _brief(error), "trace": traceback.format_exc()[-3000:]}
    found |= {"kernels": len(compiled.manifest["kernels"]), "compile_seconds": round(time.process_time() - start, 1)}
    found |= _compared(tiny, compiled)
    if found["outcome"] == "refused":
        return {**found, **_export_too(tiny)}
    return {**found, "outcome": "slow"} if found["outcome"] == "right" and found["compile_seconds"] > SLOW_SECONDS else found


def _export_too(tiny: Tiny) -> dict[str, Any]:
    """The outcome "export" and the reason, where torch.export refuses the model, too, if each dim that eager varies is dynamic."""
    example = tiny.inputs(*EXAMPLE)
    others = list(_taken(tiny, OTHERS))
    varying = {
        name: {
            dim: torch.export.Dim.DYNAMIC
            for dim, size in enumerate(value.shape)
            if any(name in inputs and inputs[name].shape[dim] != size for inputs in others)
        }
        for name, value in example.items()
    }
    try:
        with warnings.catch_warnings(), quiet():
            warnings.simplefilter("ignore")
            exported = torch.export.export(tiny.module, (), example, dynamic_shapes=varying).module()
    except Exception as error:
        return {"outcome": "export", "export": _brief(error)}
    refusals: list[str] = []
    for inputs in others:
        try:
            exported(**inputs)
        except Exception as error:
            refusals.append(_brief(error))
    return {"outcome": "export", "export": refusals[0]} if len(others) - len(refusals) < ENOUGH and refusals else {}


def _taken(tiny: Tiny, sizes: Sequence[tuple[int, int, float]]) -> Iterator[dict[str, torch.Tensor]]:
    """The inputs of those sizes that eager takes."""
    for each in sizes:
        inputs = tiny.inputs(*each)
        try:
            with torch.no_grad():
                tiny.module(**inputs)
        except Exception:
            continue
        yield inputs


def _compared(tiny: Tiny, compiled: disc.Executable) -> dict[str, Any]:
    """Right where every size that eager takes gives eager's values, or is refused by name, and enough of them are computed."""
    if not _repeats(tiny):
        return {"outcome": "eager", "detail": "eager gives other results each time: it draws random numbers"}
    computed, refusals, unstable, count, worst = [], [], set[int](), 0, 0.0
    for sizes in (EXAMPLE, *OTHERS):
        inputs = tiny.inputs(*sizes)
        try:
            with torch.no_grad():
                expected = tiny.module(**inputs)
        except Exception:
            continue  # eager does not take these sizes
        try:
            results = compiled(*inputs.values())
        except CompilerBug as error:
            return {"outcome": "bug", "detail": str(error)[:2000]}
        except DiscError as error:
            refusals.append(f"{sizes}: {type(error).__name__}: {error}"[:500])
            continue
        except Exception as error:
            return {"outcome": "raw", "detail": f"a call at {sizes}: {_brief(error)}"}
        count = len(expected)
        moved: Sequence[torch.Tensor] = ()
        for index, (ours, eager) in enumerate(zip(_all(results), expected, strict=True)):
            difference = _difference(ours, eager)
            if difference > TOLERANCE and index not in unstable:
                moved = moved or _all(_moved(tiny.module, inputs))
                if _difference(moved[index], eager) >= difference / SHARE:
                    unstable.add(index)
            if index in unstable:
                continue
            worst = max(worst, difference)
            if difference > TOLERANCE:
                return {
                    "outcome": "wrong",
                    "detail": f"result {index} at {sizes}: {difference:.2g} of the largest value; {list(eager.shape)}",
                }
        computed.append({name: list(value.shape) for name, value in inputs.items()})
    others = len({str(shapes) for shapes in computed}) - 1
    if others < ENOUGH:
        detail = f"right at {others} other sizes alone; " + ("; ".join(refusals) or "eager takes no more")
        return {"outcome": "refused" if refusals else "eager", "detail": detail}
    if count and len(unstable) == count:
        return {"outcome": "eager", "detail": "every result jumps in eager, too, where weights change in their last bit"}
    more = {**({"refused_sizes": refusals} if refusals else {}), **({"unstable": sorted(unstable)} if unstable else {})}
    return {"outcome": "right", "sizes": others, "error": float(f"{worst:.2g}"), **more}


def _moved(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> object:
    """Eager's results where every weight and input is one rounding larger."""

    def larger(value: torch.Tensor) -> torch.Tensor:
        return value * (1 + torch.finfo(value.dtype).eps) if value.is_floating_point() else value

    other = copy.deepcopy(module)
    with torch.no_grad():
        for weight in other.parameters():
            weight.copy_(larger(weight))
        return other(**{name: larger(value) for name, value in inputs.items()})


def _repeats(tiny: Tiny) -> bool:
    """Whether eager gives the same results twice."""
    inputs = tiny.inputs(*EXAMPLE)
    with torch.no_grad():
        first, second = (_all(tiny.module(**inputs)) for _ in range(2))
    return all(map(torch.equal, map(torch.nan_to_num, first), map(torch.nan_to_num, second)))


def _all(results: object) -> Sequence[torch.Tensor]:
    return results if isinstance(results, tuple | list) else (results,)  # type: ignore[return-value]


def _difference(ours: torch.Tensor, eager: torch.Tensor) -> float:
    """The largest difference as a share of the largest finite value; infinite where shape, dtype or the non-finite places differ."""
    if ours.shape != eager.shape or ours.dtype != eager.dtype:
        return float("inf")
    if not eager.is_floating_point():
        return 0.0 if torch.equal(ours, eager) else float("inf")
    finite = eager.isfinite()
    if not torch.equal(torch.nan_to_num(ours[~finite]), torch.nan_to_num(eager[~finite])) or not ours[finite].isfinite().all():
        return float("inf")
    if not finite.any():
        return 0.0
    return float((ours[finite] - eager[finite]).abs().max() / max(1e-3, float(eager[finite].abs().max())))


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


# --- processes ------------------------------------------------------------------------------------------------------------------


def _work(sender: Connection, model_type: str, class_name: str) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    torch.set_num_threads(1)
    try:
        found = judge(model_type, class_name)
    except MemoryError:
        found = {"outcome": "limit", "detail": "memory"}
    used = resource.getrusage(resource.RUSAGE_SELF)
    sender.send({**found, "cpu_seconds": round(used.ru_utime + used.ru_stime, 1)})


def run_one(model_type: str, class_name: str) -> dict[str, Any]:
    """`judge` in a forked process, which has the libraries loaded."""
    forking = multiprocessing.get_context("fork")
    receiver, sender = forking.Pipe(duplex=False)
    process = forking.Process(target=_work, args=(sender, model_type, class_name))
    process.start()
    sender.close()
    try:
        found = receiver.recv() if receiver.poll(WALL_SECONDS) else {"outcome": "limit", "detail": f"{WALL_SECONDS} s"}
    except EOFError:
        process.join()
        found = {"outcome": "crash", "detail": f"exit code {process.exitcode}"}
        if process.exitcode == -signal.SIGXCPU:
            found = {"outcome": "limit", "detail": f"{CPU_SECONDS} s of CPU time"}
    process.kill()
    process.join()
    return {"architecture": model_type, "class": class_name, "revision": _revision(), **_without_paths(found)}


@functools.cache
def _revision() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _without_paths(found: dict[str, Any]) -> dict[str, Any]:
    """The same with paths relative to the library, the checkout, the home or the temporary folder that they lie in."""
    folders = (str(Path(torch.__file__).parents[1]), str(ROOT), str(Path.home()), tempfile.gettempdir())
    pattern = re.compile("|".join(re.escape(folder) + "/" for folder in folders if folder != "/"))
    return {key: pattern.sub("", value) if isinstance(value, str) else value for key, value in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", help="model types; default: all that are not in the file yet")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--again", action="store_true", help="those in the file that did not end well")
    parser.add_argument("--until", type=float, default=float("inf"), help="start none after so many minutes")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    rows = {row["architecture"]: row for row in json.loads(arguments.output.read_text())["rows"]} if arguments.output.exists() else {}
    every = architectures()
    wanted = arguments.only or [
        name for name in _in_order(every) if (name in rows and rows[name]["outcome"] != "right" if arguments.again else name not in rows)
    ]
    start = time.monotonic()
    for name in wanted:
        if time.monotonic() - start > 60 * arguments.until:
            break
        rows[name] = run_one(name, every[name])
        print(
            f"{name:30} {rows[name]['outcome']:8} {rows[name].get('cpu_seconds', '-'):>6} {rows[name].get('detail', '')[:150]!r}",
            flush=True,
        )
        _write(arguments.output, rows)
    return 0 if all(row["outcome"] in FINE for row in rows.values()) else 1


def _in_order(every: Mapping[str, str]) -> list[str]:
    """One model of each family first: the one whose name is the family's, else the first."""
    families: dict[str, list[str]] = {}
    for name in every:
        families.setdefault(family(name, every[name]), []).append(name)
    firsts = [min(names, key=lambda name: (name.replace("-", "_") != kind, name)) for kind, names in sorted(families.items())]
    return firsts + [name for name in every if name not in firsts]


def family(name: str, class_name: str) -> str:
    """The folder of the library that the class lies in."""
    found = getattr(transformers, class_name, None)
    return found.__module__.split(".")[-2] if found is not None else name


def _write(path: Path, rows: dict[str, dict[str, Any]]) -> None:
    count = collections.Counter(row["outcome"] for row in rows.values())
    versions = {"disc": disc.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    table = {"versions": versions, "count": dict(sorted(count.items())), "rows": [rows[name] for name in sorted(rows)]}
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
