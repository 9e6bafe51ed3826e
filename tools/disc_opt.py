#!/usr/bin/env python
"""Runs passes on an IR file and prints the result: python tools/disc_opt.py FILE --passes=name-dims,resolve-broadcasts"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from torch_mlir import ir

from disc.api import compile_state, generate, open_session
from disc.codegen.choose_kernels import ChooseKernels
from disc.errors import DiscError
from disc.ir.dialect import disc_context
from disc.ir.ops import block_ops, main_block, string_attr
from disc.ir.passes import run_passes
from disc.ir.stages import check_stage, parse_module
from disc.ir.weights import STORAGE, Weight, WeightTable
from disc.passes.pipelines import parse_passes

DEFAULT_TARGET = "x86-64-v3"


def stand_in_weights(module: ir.Module) -> WeightTable:
    """Data for every `disc.weight`: a file of IR does not hold it, so each gets small integers, the same in every run."""
    table = WeightTable()
    for op in block_ops(main_block(module)):
        if op.name != "disc.weight":
            continue
        kind = ir.RankedTensorType(op.results[0].type)
        dtype = str(kind.element_type)
        values = np.arange(int(np.prod(kind.shape)), dtype=np.int64).reshape(kind.shape) % 7
        table.entries[string_attr(op, "name")] = Weight(values.astype(STORAGE[dtype]), dtype)
    return table


def run(text: str, passes: str, stage: str | None, locations: bool, emit: str | None, target: str = DEFAULT_TARGET) -> str:
    """The text of one module after `passes`, kernels chosen for `target`, or of its kernels and host entry for `emit`."""
    with disc_context():
        module = parse_module(text)
        session = open_session(emit or target)
        state = compile_state(stand_in_weights(module), session)
        run_passes(module, parse_passes(passes), state)
        if emit:
            run_passes(module, (ChooseKernels(),), state)  # plans that stand there already are kept
        if stage:
            check_stage(module, stage)
        if emit:
            (made,) = generate(module, state, session).targets.values()
            return made.listing.text
        return module.operation.get_asm(enable_debug_info=locations)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="IR file, or - for standard input; lines `// -----` separate modules")
    parser.add_argument("--passes", default="", help="comma-separated names; mlir:NAME for a pass of MLIR")
    parser.add_argument("--stage", help="check that the result is legal at this stage: imported, named or fused")
    parser.add_argument(
        "--emit", metavar="ISA", help="generate code for a module of stage fused, and print it: x86-64-v3, x86-64-v4 or a GPU such as sm_90"
    )
    parser.add_argument("--target", default=DEFAULT_TARGET, help="what kernels are chosen for, such as x86-64-v4 (default: %(default)s)")
    parser.add_argument("--locations", action="store_true", help="print locations")
    options = parser.parse_args()
    text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text()
    failed = False
    for part in re.split(r"^// -----.*$", text, flags=re.MULTILINE):
        try:
            print(run(part, options.passes, options.stage, options.locations, options.emit, options.target), flush=True)
        except DiscError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
