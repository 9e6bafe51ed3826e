"""The file of a model that is served, protected from writers.

A mapped file that is overwritten in place changes the weights under running calls, and one that is truncated ends the process with SIGBUS.
So a model reads either the file itself, which its other readers share, under a lease of the kernel (a process that opens it for writing
waits until this process has copied it to memory and gives the lease up), or, where the kernel gives no lease, a copy from the beginning.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

from disc.errors import ArtifactError
from disc.ral.executable import Executable

# A lease that another process is about to break is announced by a signal, SIGIO if none is named, which would end the process. Nobody needs
# it:
# `is_wanted` asks. SIGURG is ignored unless a program says otherwise.
_ANNOUNCED_BY = signal.SIGURG
_F_SETSIG, _F_ADD_SEALS = 10, 1033
_SEALS = 1 | 2 | 4 | 8  # F_SEAL_SEAL, _SHRINK, _GROW, _WRITE


class Stamp(NamedTuple):
    """Detects whether a path leads to the same file, and whether that was written to."""

    device: int
    inode: int
    changed_ns: int
    size: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        return cls(status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)

    def same_file(self, other: Stamp) -> bool:
        return (self.device, self.inode) == (other.device, other.inode)


class Source:
    """An artifact's file, opened. note: what has become of it since, for those who administer; "" = nothing."""

    def __init__(self, path: Path, copy: str) -> None:
        """copy: as in `ModelSettings`. Raises ArtifactError."""
        self.path = path
        self.note = ""
        self.no_lease = ""  # why the kernel gave none, where one was asked for
        try:
            # O_NONBLOCK: opening a named pipe must not wait for a writer.
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self.stamp = Stamp.of(os.fstat(self._file))
            self.leased = copy == "when_needed" and self._take_lease()
            self._memory = None if self.leased or copy == "never" else _in_memory(self._file)
        except OSError as error:
            raise ArtifactError(f"'{path}': cannot be opened: {error.strerror}") from None

    @property
    def copied(self) -> bool:
        """Whether the model reads memory of its own."""
        return self._memory is not None

    @property
    def readable(self) -> str:
        """The path to load from: this very file, or its copy."""
        return f"/proc/self/fd/{self._file if self._memory is None else self._memory}"

    def is_wanted(self) -> bool:
        """Whether a process is waiting to write to the file. To be polled."""
        if not self.leased:
            return False
        now = time.monotonic()
        if fcntl.fcntl(self._file, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
            return True
        self._held = now
        return False

    def move_to_memory(self, executable: Executable) -> None:
        """From now on the model reads a copy. Calls may run meanwhile. Raises OSError, ArtifactError: it may have been written to."""
        memory = _in_memory(self._file)
        if time.monotonic() - self._held > _break_s():
            os.close(memory)
            raise ArtifactError("the kernel let a writer in before the file was copied")
        executable.remap(memory)
        self._memory = memory

    def give_up_lease(self) -> None:
        """Lets waiting writers continue."""
        self.leased = False
        with contextlib.suppress(OSError):  # the kernel took it: it waits for no longer than fs.lease-break-time
            fcntl.fcntl(self._file, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def _take_lease(self) -> bool:
        """Whether the kernel gave one: the file is the user's own, not open for writing, and its file system has leases."""
        try:
            fcntl.fcntl(self._file, _F_SETSIG, _ANNOUNCED_BY)
            self._held = time.monotonic()  # when no writer was waiting yet
            fcntl.fcntl(self._file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError as error:
            self.no_lease = error.strerror
            return False
        return True

    def look(self) -> bool:
        """Sets `note` by what the path leads to now; False: the bytes that the model reads may have changed."""
        try:
            now = Stamp.of(os.stat(self.path))
        except OSError:
            self.note = "its file is gone; the model goes on from the file that was loaded"
            return True
        if now == self.stamp:
            return True
        if not now.same_file(self.stamp):
            self.note = "another file is in its place; load the model to serve that"
            return True
        self.note = "its file was overwritten; the model goes on from the bytes that were loaded"
        return self.leased or self.copied

    def __del__(self) -> None:
        for descriptor in (getattr(self, "_file", None), getattr(self, "_memory", None)):
            if descriptor is not None:
                os.close(descriptor)


def _break_s() -> float:
    """For how long the kernel surely lets a writer wait: it takes whole seconds, and the clock may have ticked just before."""
    try:
        return int(Path("/proc/sys/fs/lease-break-time").read_text()) - 1
    except (OSError, ValueError):
        return 0


def _in_memory(file: int) -> int:
    """A memory file with the bytes of `file`, sealed against changes. Raises OSError."""
    memory = os.memfd_create("disc-artifact", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        position = 0
        while moved := os.sendfile(memory, file, position, 1 << 30):
            position += moved
        fcntl.fcntl(memory, _F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(memory)
        raise
    return memory
