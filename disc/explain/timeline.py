"""A traced call as a timeline that Perfetto and Chrome's about:tracing open: a row per thread, and one for the launches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from disc.artifact.manifest import Manifest
from disc.errors import printable
from disc.explain.text import counted_names, module_text
from disc.ral.executable import TraceEvent

PROCESS, LAUNCHES = 1, 0  # numbers of the process and of the row of launches


def timeline(events: Sequence[TraceEvent], manifest: Manifest) -> str:
    """JSON in Chrome's trace event format: microseconds since the first event."""
    begin = min((event.start_ns for event in events), default=0)
    threads = list(dict.fromkeys(event.thread for event in events))
    names = {LAUNCHES: "launches", **{thread: f"thread {thread}" for thread in threads}}
    rows: list[dict[str, object]] = [
        {"ph": "M", "pid": PROCESS, "tid": number, "name": "thread_name", "args": {"name": name}} for number, name in names.items()
    ]
    records = cast("Sequence[Mapping[str, object]]", manifest["kernels"])
    for number, start, end in _spans(events):
        rows.append(_row(LAUNCHES, start - begin, end - start, records[number], {}))
    for event in events:
        tasks = {} if event.first < 0 else {"tasks": f"{event.first} to {event.end}"}
        rows.append(_row(event.thread, event.start_ns - begin, event.end_ns - event.start_ns, records[event.kernel], tasks))
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": rows})


def _spans(events: Sequence[TraceEvent]) -> list[tuple[int, int, int]]:
    """Launches one after the other, as they ran: the number, first start and last end of each. Loops make several of one number."""
    found: list[tuple[int, int, int]] = []
    for event in sorted(events, key=lambda event: event.start_ns):
        if found and found[-1][0] == event.kernel:
            number, start, end = found.pop()
            found.append((number, start, max(end, event.end_ns)))
        else:
            found.append((event.kernel, event.start_ns, event.end_ns))
    return found


def _row(thread: int, start_ns: int, ns: int, record: Mapping[str, object], more: Mapping[str, object]) -> dict[str, object]:
    texts = {key: [printable(str(each)) for each in cast("Sequence[object]", record.get(key, ()))] for key in ("ops", "lines", "modules")}
    module = module_text(texts["modules"])
    about = {
        "kernel": printable(str(record.get("kernel", ""))),
        "module": module,
        "ops": counted_names(texts["ops"]),
        "lines": texts["lines"],
    }
    return {
        "ph": "X", "pid": PROCESS, "tid": thread, "ts": start_ns / 1e3, "dur": ns / 1e3, "name": module or printable(str(record["name"])),
        "cat": printable(str(record.get("kind", ""))), "args": {**about, **more},
    }  # fmt: skip
