"""Lines of the server's log."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta

import pytest

from disc.serving.logs import log


def test_a_line_has_its_time_in_words(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "disc.serving"):
        log("loaded", model="bert")
    line = json.loads(caplog.messages[0])
    time = datetime.fromisoformat(line.pop("time"))
    assert time.tzinfo is not None and abs(datetime.now(UTC) - time) < timedelta(minutes=1)
    assert line == {"event": "loaded", "model": "bert"}
