"""System shared memory: inputs that a client on this machine leaves in a POSIX region instead of sending them.

Off by default: a region's name is a file name of the server's machine. Only names are taken that cannot leave /dev/shm, and only regular
files there. Inputs are read, not mapped: a client may change or shrink its region at any time, which must not reach a running model, nor
end the server with a bus error.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from dataclasses import dataclass

from disc.errors import RequestError, UnsupportedRequestError
from disc.serving.holding import Holding

FOLDER = "/dev/shm"
MOST_REGIONS = 1024
_KEY = re.compile(r"/?[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}")


@dataclass(frozen=True)
class Region:
    """A registered part of a POSIX shared memory object. offset, size: bytes. descriptor: of the open file."""

    name: str
    key: str
    offset: int
    size: int
    descriptor: int

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self.descriptor, size, self.offset + offset)

    def __del__(self) -> None:
        os.close(self.descriptor)  # when neither the table nor a request under way has it


class SharedBytes:
    """An input within a region. Nothing is read, and no memory taken, before `read`: by then its size is known to be right."""

    def __init__(self, region: Region, offset: int, size: int, holding: Holding) -> None:
        self._region = region
        self._offset = offset
        self._holding = holding
        self._held = 0
        self.nbytes = size

    def read(self) -> memoryview:
        """The bytes, which count as held as long as this object lives. Raises RequestError, OverloadedError."""
        self._holding.take(self.nbytes)
        self._held += self.nbytes
        content = self._region.read(self._offset, self.nbytes)
        if len(content) < self.nbytes:
            raise RequestError(f"region {self._region.name[:100]!r} has become smaller than it was registered")
        return memoryview(content)

    def __del__(self) -> None:
        self._holding.give(self._held)


class Regions:
    """The regions that clients have registered; none where it is not enabled."""

    def __init__(self, enabled: bool, holding: Holding) -> None:
        """holding: what all inputs of requests under way may take together."""
        self._enabled = enabled
        self._holding = holding
        self._lock = threading.Lock()
        self._regions: dict[str, Region] = {}

    def _check_enabled(self) -> None:
        if not self._enabled:
            raise UnsupportedRequestError("shared memory is switched off on this server")

    def register(self, name: str, key: str, offset: int, size: int) -> None:
        """Opens a region. Raises RequestError; the messages reveal nothing about other files."""
        self._check_enabled()
        if not name or len(name) > 255:
            raise RequestError("a region needs a name of at most 255 characters")
        region = Region(name, key, offset, size, _opened(key, offset, size))
        with self._lock:
            if name in self._regions:
                raise RequestError(f"a region {name[:100]!r} is registered already")
            if len(self._regions) >= MOST_REGIONS:
                raise RequestError(f"at most {MOST_REGIONS} regions can be registered")
            self._regions[name] = region

    def unregister(self, name: str) -> None:
        """Forgets a region, or all for ""; requests under way keep the memory."""
        self._check_enabled()
        with self._lock:
            if not name:
                self._regions.clear()
            elif self._regions.pop(name, None) is None:
                raise RequestError(f"no region {name[:100]!r} is registered")

    def status(self, name: str) -> list[Region]:
        """One region, or all for ""."""
        self._check_enabled()
        with self._lock:
            if name and name not in self._regions:
                raise RequestError(f"no region {name[:100]!r} is registered")
            return [self._regions[name]] if name else list(self._regions.values())

    def part(self, name: str, offset: int, size: int) -> SharedBytes:
        """An input. Raises RequestError."""
        self._check_enabled()
        with self._lock:
            region = self._regions.get(name)
        if region is None:
            raise RequestError(f"no region {name[:100]!r} is registered")
        if offset < 0 or size < 0 or offset > region.size or size > region.size - offset:
            raise RequestError(f"the input does not lie within region {name[:100]!r} of {region.size} bytes")
        return SharedBytes(region, offset, size, self._holding)


def _opened(key: str, offset: int, size: int) -> int:
    """A descriptor of the shared memory object, which is at least as large."""
    if not _KEY.fullmatch(key):
        raise RequestError("the key of a region must be the name of a POSIX shared memory object")
    refused = RequestError("there is no such shared memory object of at least that size")
    try:
        descriptor = os.open(os.path.join(FOLDER, key.lstrip("/")), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        raise refused from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or size <= 0 or offset > status.st_size or size > status.st_size - offset:
        os.close(descriptor)
        raise refused
    return descriptor
