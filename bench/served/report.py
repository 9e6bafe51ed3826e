"""The figures of a run with the goals that they are judged by, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.report import table

Results = Mapping[str, Any]
Row = tuple[str, str, str]  # what, goal, figure


def report(results: Mapping[str, Results]) -> str:
    """One table for each suite that ran."""
    return "\n\n".join(
        f"## {name}\n\n{_WORDS[name]}\n\n{table(('', 'goal', 'figure'), _ROWS[name](each))}" for name, each in results.items()
    )


def _overhead(each: Results) -> list[Row]:
    ms, added, beyond = each["ms"], each["added to the call"], each["added to the echo"]
    return [
        ("added to the call, p50", "≤ 0.3 ms", f"{added['p50']:.2f} ms"),
        ("added to the call, p99", "≤ 1 ms", f"{added['p99']:.2f} ms"),
        ("added to gRPC's own echo, p50", "", f"{beyond['p50']:.2f} ms"),
        ("added to gRPC's own echo, p99", "", f"{beyond['p99']:.2f} ms"),
        *((f"{name}, p50 and p99", "", f"{each['p50']:.3f}, {each['p99']:.3f} ms") for name, each in ms.items()),
    ]


def _overload(each: Results) -> list[Row]:
    return [row for kind in ("model", "transport") for row in _one_overload(kind, each[kind])]


def _one_overload(kind: str, each: Results) -> list[Row]:
    capacity, over = each["capacity"], each["overloaded"]
    times = f"{over['offered'] / capacity['answered']:.1f} times capacity"
    refusals = f"{over['refusal_ms']['p50']:.1f}, {over['refusal_ms']['p99']:.1f} ms" if over["refusal_ms"] else "none was refused"
    others = sum(capacity["others"].values()) + sum(over["others"].values())
    goals = ("≥ 90 %", "≤ 10 ms", "≤ 1.2") if kind == "model" else ("", "", "")
    return [
        (f"{kind}: capacity", "", f"{capacity['answered']:.0f} per second"),
        (f"{kind}: offered", "", f"{over['offered']:.0f} per second, {times}; {over['refused']:.0f} refused"),
        (f"{kind}: goodput over capacity", goals[0], f"{100 * each['goodput']:.0f} %"),
        (f"{kind}: refusals p50, p99", goals[1], refusals),
        (f"{kind}: memory over that at capacity", goals[2], f"{each['memory']:.2f} ({each['steady MiB']:.0f} MiB at capacity)"),
        (f"{kind}: neither answered nor refused", "0", str(others)),
    ]


def _reload(each: Results) -> list[Row]:
    return [(f"memory after {each['cycles']} cycles over that after 50", "≤ +2 %", f"{100 * each['growth']:+.2f} %")]


def _drain(each: Results) -> list[Row]:
    health, ends = each["not serving ms"], each["exit s"]
    return [
        ("servers terminated", "", str(each["times"])),
        ("accepted requests lost", "0", f"{each['lost']} of {each['answered']}"),
        ("ends that no client should see", "0", str(len(each["unexpected"]))),
        ("NOT_SERVING after, p50, p90 and most", "≤ 100 ms", f"{health['p50']:.1f}, {health['p90']:.1f}, {health['most']:.1f} ms"),
        ("process ended after, p50 and most", "≤ 30 s", f"{ends['p50']:.1f}, {ends['most']:.1f} s"),
    ]


def _soak(each: Results) -> list[Row]:
    requests, memory, files = each["requests"], each["memory MiB"], each["open files"]
    return [
        ("requests", "", ", ".join(f"{count} {name}" for name, count in requests.items())),
        ("errors", "0", str(each["errors"])),
        ("memory, settled and at the end", "flat", f"{memory['settled']:.1f}, {memory['end']:.1f} MiB"),
        ("slope of memory", "", f"{each['memory slope MiB per hour']:.1f} MiB per hour"),
        ("open files, settled and at the end", "flat", f"{files['settled']:.0f}, {files['end']:.0f}"),
    ]


_ROWS = {"overhead": _overhead, "overload": _overload, "reload": _reload, "drain": _drain, "soak": _soak}
_WORDS = {
    "overhead": "S3. 64 KiB in and out at concurrency 1, a gRPC client in Python, the four in turns. The echo of gRPC's Python server is "
    "the floor of any handler in Python.",
    "overload": "S4. *model*: a BERT of four layers, 128 tokens, one thread for the model, else the default settings; requests at random "
    "moments at three times the capacity. *transport*: a model that takes no time for 512 KiB, clients that ask again at once. The load "
    "generator shares the machine.",
    "reload": "S6.",
    "drain": "S5. SIGTERM to a server that six gRPC clients and an HTTP client ask without pause.",
    "soak": "R4. Random lengths and batches over gRPC and HTTP, with mistakes, cancelled requests and new connections.",
}
