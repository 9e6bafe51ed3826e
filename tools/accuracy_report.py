#!/usr/bin/env python3
"""How far results in a reduced type (`Options(dtype=...)`) are from eager PyTorch in f32; the same for our own f32, as the baseline.

Two numbers per output, both relative to the mean magnitude of what eager returns, so that elements near zero do not count for more:

    mean = mean |ours - f32| / mean |f32|          max = max |ours - f32| / mean |f32|

Weights and inputs are seeded: the weights are not trained ones, and a task's own metric may react more or less. Nothing is timed.

    tools/accuracy_report.py --model bert=1x16,3x21 vit --dtype bf16,int8 --output bench/results     # accuracy.md, .json of this machine
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import disc
from bench.cases import CASES, Case, Shape, build, parse_shapes, shape_name
from bench.store import command_line, keep, new_record
from disc.config import DTYPES, Options

BASELINE = "f32"
DEFINITION = "mean = mean |ours - f32| / mean |f32|, max = max |ours - f32| / mean |f32|, where f32 is what eager PyTorch returns."


@dataclass(frozen=True)
class Row:
    """The errors of one output of `model`, compiled in `dtype`, called with inputs of `shape`."""

    model: str
    dtype: str
    shape: str
    output: int
    mean: float
    max: float


def relative_error(ours: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """(mean, max) of |ours - expected| over mean |expected|: both tensors of one shape, with elements, of floats.

    Infinite where `ours` has a value that is not finite. Raises ValueError when the shapes differ, and when `expected` gives no scale:
    empty, all zero, or not finite.
    """
    if ours.shape != expected.shape:
        raise ValueError(f"shapes {tuple(ours.shape)} and {tuple(expected.shape)} differ")
    scale = float(expected.double().abs().mean())
    if not (0 < scale < math.inf):
        raise ValueError(f"the mean magnitude of what is expected is {scale}: nothing is relative to that")
    if not bool(ours.isfinite().all()):
        return math.inf, math.inf
    error = (ours.double() - expected.double()).abs()
    return float(error.mean()) / scale, float(error.max()) / scale


def measure(case: Case, shapes: Sequence[Shape], dtypes: Sequence[str], threads: int | None) -> Iterator[Row]:
    """The rows of one case: the baseline first, then `dtypes`; one compile each, called with every shape."""
    model = build(case)
    inputs = [case.inputs(shape) for shape in shapes]
    with torch.no_grad():
        expected = [tree_leaves(model(*each)) for each in inputs]
        for dtype in (BASELINE, *dtypes):
            options = Options(dtype=dtype, threads=threads, cache=False)
            executable = disc.compile(model, case.inputs(case.example), case.dynamic_shapes, options=options)
            for shape, each, wanted in zip(shapes, inputs, expected, strict=True):
                for number, pair in enumerate(zip(tree_leaves(executable(*each)), wanted, strict=True)):
                    if pair[1].is_floating_point():
                        yield Row(case.name, dtype, shape_name(shape), number, *relative_error(*pair))


def markdown(rows: Sequence[Row], machine: dict[str, object]) -> str:
    """The report, one table per model. machine: as `bench.machine.describe` gives it."""
    lines = [
        "# Accuracy of reduced types", "", DEFINITION, "",
        f"Seeded weights (not trained) and inputs. Machine and versions are in the JSON; commit {machine['commit']}.",
    ]  # fmt: skip
    for model in dict.fromkeys(row.model for row in rows):
        title = CASES[model].title if model in CASES else model
        lines += ["", f"## {title}", "", "| dtype | shape | output |    mean |     max |", "| ----- | ----- | -----: | ------: | ------: |"]
        of_model = [row for row in rows if row.model == model]
        lines += [f"| {row.dtype:5} | {row.shape:5} | {row.output:6} | {row.mean:.1e} | {row.max:.1e} |" for row in of_model]
    return "\n".join(lines) + "\n"


def chosen(text: str) -> tuple[Case, tuple[Shape, ...]]:
    """ "bert=1x16,3x21" → the case and the shapes; "bert" → its first two. Raises ValueError for anything else."""
    name, _, shapes = text.partition("=")
    if name not in CASES:
        raise ValueError(f"there is no model {name!r}; there are {', '.join(CASES)}")
    return CASES[name], parse_shapes(shapes, CASES[name]) if shapes else CASES[name].shapes[:2]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["bert-small"], help="cases of bench/cases, each with =SHAPE,... or its first two")
    parser.add_argument("--dtype", default=",".join(DTYPES[1:]), help=f"of {', '.join(DTYPES[1:])} (default: all)")
    parser.add_argument("--threads", type=int, help="threads per call (default: all cores)")
    parser.add_argument("--output", type=Path, help="folder of the result, such as bench/results (default: it is printed alone)")
    options = parser.parse_args(arguments)
    dtypes = options.dtype.split(",")
    if unknown := set(dtypes) - set(DTYPES[1:]):
        parser.error(f"--dtype {', '.join(sorted(unknown))}: choose of {', '.join(DTYPES[1:])}")
    try:
        cases = [chosen(text) for text in options.model]
    except ValueError as error:
        parser.error(str(error))
    if options.threads:
        torch.set_num_threads(options.threads)
    print(DEFINITION)
    given = command_line("tools/accuracy_report.py", sys.argv[1:] if arguments is None else arguments)
    record, rows = new_record("accuracy", given, []), list[Row]()
    for case, shapes in cases:
        for row in measure(case, shapes, dtypes, options.threads):
            print(f"{row.model:12} {row.dtype:5} {row.shape:9} output {row.output}  mean {row.mean:.1e}  max {row.max:.1e}", flush=True)
            rows.append(row)
        if options.output:
            found = {**record, "definition": DEFINITION, "results": [asdict(row) for row in rows], "smoke": []}  # nothing is timed
            keep(found, markdown(rows, record["machine"]), "accuracy", options.output)  # after every model, should the run be interrupted
    return 0 if all(math.isfinite(row.max) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
