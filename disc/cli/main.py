"""The `disc` command: its list of commands, and how errors become messages and exit codes."""

from __future__ import annotations

import contextlib
import errno
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated

from disc.errors import how_to_install

try:
    import rich  # noqa: F401  # tables are printed with it
    import typer
except ModuleNotFoundError as error:
    raise SystemExit(f"the disc command needs {error.name}; install it with: {how_to_install()}") from error

from disc.cli.bench.command import bench_command
from disc.cli.compile import compile_command
from disc.cli.compile_server import compile_server_command
from disc.cli.debug.command import debug_app
from disc.cli.help import Command, Group, examples
from disc.cli.machine import cache_app, doctor_command
from disc.cli.output import UnwrittenError, discard, print_json, standard_output
from disc.cli.ray import ray_app
from disc.cli.run import explain_command, inspect_command, run_command, sign_command, verify_command
from disc.cli.serve import serve_command
from disc.cli.tune import tune_command
from disc.config import VERSION
from disc.errors import CompilerBug, DiscError, DiscWarning, printable

DONE, YOURS, OURS, INTERRUPTED = 0, 1, 2, 130
# What the system says where the machine lacks something, and disc does what it should.
LACKING = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
}  # fmt: skip
BUILD, RUN, LOOK, SERVE, MACHINE = "Compile", "Run and measure", "Look into an artifact", "Serve", "Machine and compiler"  # in the help

app = typer.Typer(name="disc", cls=Group, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})


def _print_version(asked: bool) -> None:
    if asked:
        print(f"disc {VERSION}")
        raise typer.Exit


@app.callback()
def disc_command(
    version: Annotated[
        bool, typer.Option("--version", "-V", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Compile a model once, run it at every input shape."""


def _add(name: str, command: Callable[..., None], panel: str) -> None:
    app.command(name, cls=Command, rich_help_panel=panel, epilog=examples(name))(command)


_add("compile", compile_command, BUILD)
_add("run", run_command, RUN)
_add("inspect", inspect_command, LOOK)
_add("verify", verify_command, LOOK)
_add("sign", sign_command, LOOK)
_add("bench", bench_command, RUN)
_add("explain", explain_command, LOOK)
_add("compile-server", compile_server_command, BUILD)
_add("serve", serve_command, SERVE)
_add("doctor", doctor_command, MACHINE)
_add("tune", tune_command, BUILD)
app.add_typer(cache_app, name="cache", rich_help_panel=MACHINE)
app.add_typer(ray_app, name="ray", rich_help_panel=SERVE)
app.add_typer(debug_app, name="debug", rich_help_panel=MACHINE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code: 0 done, 1 the user's mistake, 2 ours."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    before, warnings.formatwarning = warnings.formatwarning, _warning_text
    code = DONE
    try:
        with standard_output():
            code = _run(given)
        return code
    except KeyboardInterrupt:  # before a command has begun: typer sees to what comes in one
        return INTERRUPTED
    except BrokenPipeError:  # the reader has enough, as in `disc explain model.disc | head`
        return code
    except UnwrittenError as error:
        _tell(f"disc: standard output cannot be written: {error.strerror}")
        return YOURS
    finally:
        warnings.formatwarning = before


def _run(given: Sequence[str]) -> int:
    """The exit code. Raises BrokenPipeError and UnwrittenError of standard output."""
    try:
        return app(given, prog_name="disc", standalone_mode=False) or DONE
    except (BrokenPipeError, UnwrittenError):
        raise
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # which typer takes for a mistake
            raise ended.__context__ from None
        raise
    except Exception as error:
        code = _exit_code(error)
        if "--debug" in given:
            traceback.print_exc()
        with contextlib.suppress(BrokenPipeError):
            _report(error, code, as_json="--json" in given)
        return code


def _warning_text(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """A command is no line of the user's code, so our warnings name none."""
    if issubclass(category, DiscWarning):
        return "disc: warning: " + "".join(f"{printable(each)}\n" for each in str(message).splitlines())
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def _exit_code(error: Exception) -> int:
    if isinstance(error, CompilerBug):
        return OURS
    if _is_lacking(error):
        return YOURS
    return YOURS if isinstance(error, DiscError | typer.TyperException | typer.Abort) else OURS


def _is_lacking(error: Exception) -> bool:
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and not isinstance(error, DiscError) and error.errno in LACKING)


def _message(error: Exception) -> str:
    if isinstance(error, typer.TyperException):
        return _click_text(error)
    if isinstance(error, OSError) and _is_lacking(error):
        return f"{error.filename}: {error.strerror}" if error.filename is not None else str(error.strerror)
    if isinstance(error, MemoryError):
        return f"there is not enough memory: {error}" if str(error) else "there is not enough memory"
    return str(error) or type(error).__name__


def _click_text(error: typer.TyperException) -> str:
    """Of a command line that is none; where there are too many arguments or too few, with those that the command has."""
    message, context = error.format_message(), getattr(error, "ctx", None)
    usage = " ".join(context.get_usage().split()) if context is not None and "argument" in message else ""
    return f"{message.rstrip('.')}; {usage[0].lower()}{usage[1:]}" if usage else message


def _report(error: Exception, code: int, *, as_json: bool) -> None:
    """The message: on standard error, or as JSON on standard output."""
    message = "\n".join([_message(error), *getattr(error, "__notes__", ())])
    message = "\n".join(map(printable, message.split("\n")))
    kind = type(error).__name__
    if as_json:
        print_json({"error": {"kind": kind, "message": message, "exit_code": code}})
        return
    if code == YOURS:
        if message:  # else the help has been printed, which is the message
            _tell(f"disc: {message}")
        return
    _tell(
        f"disc: {kind}: {message}\n"
        "This is a mistake in disc, not in your model. Please report it with the command, the output of `disc doctor`,\n"
        "and the traceback that the same command prints with --debug."
    )


def _tell(message: str) -> None:
    """On standard error; where that cannot be written, the exit code is all that is left."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)
