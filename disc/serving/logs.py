"""Structured logs: one JSON object per line, through Python's logging (logger "disc.serving")."""

from __future__ import annotations

import json
import logging
import sys
import time

_LOGGER = logging.getLogger("disc.serving")


def log(event: str, **fields: object) -> None:
    """Writes one event. Never give it tokens or tensors."""
    _LOGGER.info("%s", json.dumps({"time": round(time.time(), 3), "event": event, **fields}, default=str, ensure_ascii=False))


def log_to_stderr() -> None:
    """What a server process does with its log; a program that has the server inside sets up its own."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False
