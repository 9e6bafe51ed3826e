"""`disc debug`: what runs passes, finds the kernel that is wrong, shrinks a module, and runs a report again."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from disc.cli.debug.options import DEFAULT_TARGET, EMIT_HELP, FILE_HELP, LOCATIONS_HELP, PASSES_HELP, STAGE_HELP, TARGET_HELP
from disc.cli.help import Command, Group, examples
from disc.cli.output import Debug
from disc.config import DTYPES
from disc.errors import ConfigurationError, UnsupportedFormatError, how_to_install

if TYPE_CHECKING:
    from disc.ir.reports import Report

debug_app = typer.Typer(
    cls=Group, name="debug", no_args_is_help=True, help="Look into the compiler: run passes, find a wrong kernel, shrink a failing module."
)

OPT = "-m disc.cli.debug.opt"
Module = Annotated[Path, typer.Argument(metavar="FILE", help="A file of IR, or the zip file that an internal error leaves.")]


@debug_app.command("opt", cls=Command, epilog=examples("debug opt"))
def opt_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help=FILE_HELP)],
    passes: Annotated[str, typer.Option(help=PASSES_HELP)] = "",
    stage: Annotated[str | None, typer.Option(help=STAGE_HELP)] = None,
    emit: Annotated[str | None, typer.Option(metavar="ISA", help=EMIT_HELP)] = None,
    target: Annotated[str, typer.Option(help=TARGET_HELP)] = DEFAULT_TARGET,
    locations: Annotated[bool, typer.Option("--locations", help=LOCATIONS_HELP)] = False,
    debug: Debug = False,
) -> None:
    """Run passes on a file of IR and print the result."""
    _needs_compiler()
    from disc.cli.debug.opt import run, split_modules

    text = sys.stdin.read() if file == "-" else _read(Path(file))
    for part in split_modules(text):
        print(run(part, passes, stage, locations, emit, target))


@debug_app.command("bisect", cls=Command, epilog=examples("debug bisect"))
def bisect_command(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="package.module:factory, a function that returns (module, example_inputs[, dynamic_shapes])."),
    ],
    sizes: Annotated[str, typer.Option(help="Of every input, as 2x17,2x17; default: those of the example.")] = "",
    precision: Annotated[str, typer.Option("--amp", help=f"As of disc compile: {', '.join(DTYPES)}.")] = "f32",
    debug: Debug = False,
) -> None:
    """Find the kernel that computes wrong values: print how far each one's results are from the reference interpreter's."""
    _needs_compiler()
    from disc.cli.debug.bisect import bisect

    bisect(model, sizes, precision)


@debug_app.command("reduce", cls=Command, epilog=examples("debug reduce"))
def reduce_command(
    module: Module,
    check: Annotated[
        str | None, typer.Option(help="Shell command that fails on the module; {} is the file. Default: what a report says.")
    ] = None,
    match: Annotated[str, typer.Option(help="Text that the output of the failing command holds.")] = "",
    seconds: Annotated[float, typer.Option(min=0.0, help="When to stop.")] = 600.0,
    debug: Debug = False,
) -> None:
    """Shrink a module while a command keeps failing on it, and print the smallest one found."""
    _needs_compiler()
    from disc.cli.debug.reduce import command_check, shrink

    if check is not None:
        text = _read(module)
    else:
        report = _report(module)
        text, check, match = (
            report.module,
            f"{shlex.quote(sys.executable)} {OPT} {report.arguments} {{}}",
            match or _first_line(report.error),
        )
    fails = command_check(check, match)
    if not fails(text):
        raise UnsupportedFormatError(f"{module}: the command does not fail on it: {check}")
    print(shrink(text, fails, seconds))


@debug_app.command("replay", cls=Command, epilog=examples("debug replay"))
def replay_command(
    report: Annotated[Path, typer.Argument(metavar="REPORT.zip", help="The zip file that an internal error leaves.")],
    debug: Debug = False,
) -> None:
    """Run the failing part of the compiler again on the IR of a report. Exits with 1 where it fails again."""
    _needs_compiler()
    from disc.cli.debug.opt import replay

    found = _report(report)
    error = replay(found.module, shlex.split(found.arguments))
    print(f"it was: {found.where}: {_first_line(found.error)}")
    print("now: no error" if error is None else f"now: {error}")
    if error is not None:
        raise typer.Exit(1)


def _report(path: Path) -> Report:
    from disc.ir.reports import read_report

    return read_report(path)


def _read(path: Path) -> str:
    if path.suffix == ".zip":
        return _report(path).module
    try:
        return path.read_text()
    except OSError as error:
        raise UnsupportedFormatError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UnsupportedFormatError(f"{path} is no text: {error}") from error


def _first_line(error: object) -> str:
    """The reason alone: what stands behind it may name files of the machine."""
    return str(error).partition("\n")[0]


def _needs_compiler() -> None:
    """Raises ConfigurationError where the compiler's packages are missing."""
    try:
        import torch_mlir  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"disc debug needs {error.name}; install it with: {how_to_install('compile')}") from error
