"""What the commands of the CLI share: their common options, tables, JSON, and a spinner for people who wait at a terminal."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import typer

from disc.errors import printable

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value on standard output instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Ops = Annotated[
    list[str] | None,
    typer.Option("--op", help="OP=LIBRARY:SYMBOL binds a custom op that the artifact needs to a C function; repeat for each."),
]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Threads per call; default: DISC_THREADS, OMP_NUM_THREADS or all cores allowed.")
]


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
