"""Structured logs: one JSON object per line, through Python's logging (logger "disc.serving").

A line is one `json.dumps`; what is ours beside it is that clients and libraries cannot fill the log, which packages for JSON logs
(python-json-logger, structlog) leave to their users.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from datetime import UTC, datetime

SELDOM_S = 10.0  # at most one message of a kind in this time
_LOGGER = logging.getLogger("disc.serving")
_seldom: dict[str, tuple[float, int]] = {}  # by message: when it was last logged, and how often it was suppressed since
_seldom_lock = threading.Lock()


def log(event: str, **fields: object) -> None:
    """Writes one event. Never give it tokens or tensors."""
    _LOGGER.info("%s", _line(event, **fields))


def log_seldom(event: str, *, message: str, **fields: object) -> None:
    """Writes an event that clients can cause as often as they like: the same message once in `SELDOM_S`."""
    unsaid = _unsaid(message)
    if unsaid is not None:
        log(event, message=message, unsaid=unsaid, **fields)


def _line(event: str, **fields: object) -> str:
    return json.dumps({"time": _now(), "event": event, **fields}, default=str, ensure_ascii=False)


def _now() -> str:
    """ "2026-11-22T09:30:00.123+00:00"."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _unsaid(message: str) -> int | None:
    """None: it was logged a moment ago."""
    now = time.monotonic()
    with _seldom_lock:
        last, unsaid = _seldom.get(message, (-SELDOM_S, 0))
        if now - last < SELDOM_S:
            _seldom[message] = (last, unsaid + 1)
            return None
        if len(_seldom) > 1000:
            _seldom.clear()
        _seldom[message] = (now, 0)
        return unsaid


class _Libraries(logging.Handler):
    """What libraries say (gRPC, aiohttp, asyncio, warnings), in the form of our own log."""

    def emit(self, record: logging.LogRecord) -> None:
        message = f"{record.name}: {record.getMessage()}"
        if (unsaid := _unsaid(message)) is None:
            return
        error = None if record.exc_info is None or record.exc_info[1] is None else repr(record.exc_info[1])
        try:
            print(_line("library", level=record.levelname, message=message, error=error, unsaid=unsaid), file=sys.stderr, flush=True)
        except OSError:  # whoever logged this goes on without a log
            self.handleError(record)


def log_to_stderr() -> None:
    """What a server process does with its log, and with those of its libraries; a program that has the server inside sets up its own."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False
    logging.getLogger().addHandler(_Libraries(logging.WARNING))
    logging.captureWarnings(True)
    threading.excepthook = _log_thread


def _log_thread(ended: threading.ExceptHookArgs) -> None:
    name = None if ended.thread is None else ended.thread.name
    log("fault", thread=name, error=f"{ended.exc_type.__name__}: {ended.exc_value}")
