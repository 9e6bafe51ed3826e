"""What ends the work for a client that goes away."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Withdrawal:
    """One request's, or one stream's, for one request after another. It holds nothing of a request that is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._action: Callable[[], object] | None = None
        self._gone = False

    def on_leave(self, action: Callable[[], object]) -> bool:
        """`action` is called when the client goes; False: it has gone already, and there is no point in going on."""
        with self._lock:
            if not self._gone:
                self._action = action
            return not self._gone

    def done(self) -> None:
        """The request has its answer."""
        with self._lock:
            self._action = None

    @property
    def gone(self) -> bool:
        return self._gone

    def leave(self) -> None:
        """The client has gone."""
        with self._lock:
            self._gone, action, self._action = True, self._action, None
        if action is not None:
            action()
