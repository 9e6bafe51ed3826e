"""How many bytes of requests the process holds at a time: taken before the memory is, given back when the request ends."""

from __future__ import annotations

import threading

from disc.errors import OverloadedError


class Holding:
    """A number of bytes that many requests share."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken = 0

    @property
    def taken(self) -> int:
        return self._taken

    def take(self, size: int) -> None:
        """Raises OverloadedError, and takes nothing, where too little is left."""
        with self._lock:
            if self._taken + size > self._most:
                raise OverloadedError(f"requests under way hold {self._taken} bytes of the {self._most} that they may together")
            self._taken += size

    def give(self, size: int) -> None:
        with self._lock:
            self._taken -= size
