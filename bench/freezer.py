"""Stops other work on the machine while something is timed: `--freeze FOLDER` of `bench.run` names the control group of that work.

A group of the kernel's freezer, version 1 (`/sys/fs/cgroup/freezer/NAME`) or 2 (any group but the root): none of its processes runs
between a freeze and a thaw, whatever it was doing. So a machine that tests or compiles something else is idle whenever a figure is taken,
and only the set-up of peers competes with that work. What else runs then is counted as ever (`bench.machine.others_running`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

SECONDS = 10.0  # within which a group stands still, or there is something wrong with it


class CannotFreeze(Exception):
    """The folder is no control group that can be frozen, or one that does not stand still."""


@contextlib.contextmanager
def frozen(folder: str | None) -> Iterator[None]:
    """No process of the group runs within; None = there is no group. Thaws it whatever happens. Raises CannotFreeze."""
    if folder is None:
        yield
        return
    group = Path(folder)
    try:
        _freeze(group)
        yield
    finally:
        _thaw(group)


def _freeze(group: Path) -> None:
    _write(group, "FROZEN", "1")
    end = time.monotonic() + SECONDS
    while not _stands_still(group):
        if time.monotonic() > end:
            raise CannotFreeze(f"{group} does not stand still after {SECONDS:.0f} s")
        time.sleep(0.005)


def _thaw(group: Path) -> None:
    with contextlib.suppress(CannotFreeze):
        _write(group, "THAWED", "0")


def _write(group: Path, first: str, second: str) -> None:
    """Version 1 takes words, version 2 digits."""
    if (group / "freezer.state").exists():
        file, text = group / "freezer.state", first
    elif (group / "cgroup.freeze").exists():
        file, text = group / "cgroup.freeze", second
    else:
        raise CannotFreeze(f"{group} is no control group that can be frozen: neither freezer.state nor cgroup.freeze is in it")
    try:
        file.write_text(text)
    except OSError as error:
        raise CannotFreeze(f"{file}: {error.strerror}") from error


def _stands_still(group: Path) -> bool:
    if (group / "freezer.state").exists():
        return (group / "freezer.state").read_text().strip() == "FROZEN"
    return "frozen 1" in (group / "cgroup.events").read_text().splitlines()
