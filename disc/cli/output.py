"""What the commands of the CLI share: their common options, tables, JSON, and a spinner for people who wait at a terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from disc.errors import printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value on standard output instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Ops = Annotated[
    list[str] | None,
    typer.Option("--op", help="OP=LIBRARY:SYMBOL binds a custom op that the artifact needs to a C function; repeat for each."),
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Threads per call; default: DISC_THREADS, OMP_NUM_THREADS or all cores allowed.")
]


class UnwrittenError(OSError):
    """Standard output cannot be written: its disk is full, its terminal is gone."""


class _StandardOutput(io.FileIO):
    """Tells its own errors from those of other files. A reader that has left is a BrokenPipeError, as ever."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UnwrittenError(error.errno, error.strerror) from error


@contextlib.contextmanager
def standard_output() -> Iterator[None]:
    """In the body, errors of writing standard output are `UnwrittenError`s, and a stream that the caller has closed (`>&-`) takes what
    comes, so that nothing else that is opened becomes standard output."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    before = sys.stdout
    if before is sys.__stdout__ and isinstance(before, io.TextIOWrapper):
        before.flush()
        raw = _StandardOutput(before.fileno(), "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), before.encoding, before.errors,
            line_buffering=before.line_buffering, write_through=before.write_through,
        )  # fmt: skip
    try:
        yield
        sys.stdout.flush()  # what cannot be written is said by the command, not by Python when it ends
    except (BrokenPipeError, UnwrittenError):
        discard(sys.stdout)
        raise
    finally:
        sys.stdout = before


def discard(stream: TextIO) -> None:
    """Lets nothing more reach a stream that failed; neither does what it still holds."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


@contextlib.contextmanager
def announcing() -> Iterator[None]:
    """For what a server prints when it answers: it goes on where nobody reads that any more, or the disk below it is full."""
    try:
        yield
        sys.stdout.flush()
    except OSError:
        discard(sys.stdout)


def print_json(value: object) -> None:
    """Readable in any language; what a terminal would obey is escaped."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    print(re.sub(r"[^\n -~]", lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1) -> None:
    """A table; the first `left` columns hold text, the others numbers. Piped output is plain and never cut."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    Console(width=None if sys.stdout.isatty() else 10_000, highlight=False).print(table)


@contextlib.contextmanager
def spinner(text: str) -> Iterator[None]:
    """Shows `text` and a spinner on standard error while the body runs, on a terminal only."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


@contextlib.contextmanager
def progress(text: str, verbose: bool) -> Iterator[Callable[[str, float], None]]:
    """Takes the steps of a compile: on a terminal next to a spinner, with `verbose` as lines on standard error, else not shown."""
    if verbose or not sys.stderr.isatty():
        last = ""

        def line(name: str, share: float) -> None:
            nonlocal last
            if verbose and name != last:  # the export is announced here and, for what is exported already, by the compiler
                print(f"{share:4.0%} {name}", file=sys.stderr, flush=True)
            last = name

        yield line
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield lambda name, share: status.update(f"{text}: {name} ({share:.0%})")


def byte_size(count: int) -> str:
    """ "1.5 MiB"."""
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def duration(seconds: float) -> str:
    """ "1.234 ms"."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3f} {unit}"
    return f"{seconds:.3f} s"


def type_text(dtype: str, dims: Sequence[int | str]) -> str:
    """ "f32[S0, 768]"."""
    return f"{dtype}[{', '.join(map(str, dims))}]"
