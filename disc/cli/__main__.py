"""The `disc` command, and `python -m disc.cli`."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Runs the command line; returns the exit code."""
    # The commands take a moment to load. Ctrl-C in it ends the process as it does any other, without a traceback of imports.
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from disc.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    return run()


if __name__ == "__main__":
    sys.exit(main())
