"""Runs passes on an IR file and prints the result: disc debug opt FILE --passes=name-dims,resolve-broadcasts

`python -m disc.cli.debug.opt` is the same without the command line's libraries, for the many runs of golden tests, and goes on behind a
module that is refused.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch_mlir import ir

from disc.cli.debug.options import DEFAULT_TARGET, EMIT_HELP, FILE_HELP, LOCATIONS_HELP, PASSES_HELP, STAGE_HELP, TARGET_HELP
from disc.codegen.choose_kernels import ChooseKernels
from disc.codegen.session import compile_state, generate
from disc.errors import DiscError
from disc.ir.dialect import disc_context
from disc.ir.ops import block_ops, main_block, string_attr
from disc.ir.passes import run_passes
from disc.ir.stages import check_stage, parse_module
from disc.ir.weights import STORAGE, Weight, WeightTable
from disc.passes.pipelines import parse_passes
from disc.speculation.session import open_session


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


def split_modules(text: str) -> list[str]:
    """The modules of a file, which lines `// -----` separate."""
    return re.split(r"^// -----.*$", text, flags=re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 1 where a module is refused, with the reason on standard error."""
    options = _parser().parse_args(arguments)
    text = sys.stdin.read() if options.file == "-" else _read(options.file)
    failed = False
    for part in split_modules(text):
        try:
            print(_run(part, options), flush=True)
        except DiscError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            failed = True
    return 1 if failed else 0


def replay(text: str, arguments: Sequence[str]) -> DiscError | None:
    """What the arguments of a report raise on its module; None: nothing."""
    try:
        _run(text, _parser().parse_args([*arguments, "-"]))
    except DiscError as error:
        return error
    return None


def _run(text: str, options: argparse.Namespace) -> str:
    return run(text, options.passes, options.stage, options.locations, options.emit, options.target)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"{path} cannot be read: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="disc debug opt", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", help=FILE_HELP)
    parser.add_argument("--passes", default="", help=PASSES_HELP)
    parser.add_argument("--stage", help=STAGE_HELP)
    parser.add_argument("--emit", metavar="ISA", help=EMIT_HELP)
    parser.add_argument("--target", default=DEFAULT_TARGET, help=f"{TARGET_HELP} Default: {DEFAULT_TARGET}.")
    parser.add_argument("--locations", action="store_true", help=LOCATIONS_HELP)
    return parser


if __name__ == "__main__":
    sys.exit(main())
