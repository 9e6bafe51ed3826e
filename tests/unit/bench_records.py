"""Records as the benchmark writes them, small."""

from __future__ import annotations

from bench.suites.stream import quantiles


def timing(median: float) -> dict[str, float]:
    return {"median": median, "low": median, "high": median, "spread": 0.01, "turns": 3}


def row(disc_ms: float, peer_ms: float, *, wrong: tuple[str, ...] = (), held_out: bool | None = None) -> dict[str, object]:
    """2 ms of multiply-adds, 1 ms of bytes."""
    return {
        "shape": "1x16", "held_out": held_out, "work": {"flops": 2_000_000, "read": 10, "written": 10}, "bound": {"compute_ms": 2.0, "memory_ms": 1.0},
        "ms": {"disc": timing(disc_ms), "eager": timing(peer_ms)}, "first_s": {"disc": 0.1, "eager": 2.0},
        "error": {"disc": 1e-6, "eager": 0.0}, "wrong": list(wrong), "failed": {}, "load": 0.0,
    }  # fmt: skip


def record(disc_ms: float, peer_ms: float, *, wrong: tuple[str, ...] = (), suite: str = "models") -> dict[str, object]:
    limits = {"flops": 1e9, "reads": {"1024": 2e10, "268435456": 1e10}, "copies": {"1024": 2e10, "268435456": 8e9}, "how": "how"}
    result = {
        "case": "bert", "title": "BERT-base", "threads": 1, "dtype": "fp32", "limits": limits, "setup_s": {"disc": 3.0, "eager": 0.0},
        "skipped": {"ort": "not installed"}, "rows": [row(disc_ms, peer_ms, wrong=wrong)],
        "memory": {"shape": "1x16", "mib": {"disc": {"start": 50.0, "load": 500.0, "calls": 510.0}, "eager": {"calls": 777.0}}, "failed": {}},
    }  # fmt: skip
    return {"suite": suite, "results": [result], "peers": {"eager": "how eager is run"}, **told()}


def told() -> dict[str, object]:
    """What every record says beside its results."""
    return {"date": "today", "machine": idle_machine(), "command": "python -m bench.run", "smoke": [], "failed": []}


def idle_machine() -> dict[str, object]:
    return {
        "cpu": "CPU", "family": "1", "model": "2", "cores": 2, "memory_gib": 4.0, "flags": ["avx2"], "kernel": "6", "python": "3.11",
        "versions": {"torch": "2"}, "commit": "abc", "load": 0.0,
    }  # fmt: skip


def stream_record() -> dict[str, object]:
    result = {
        "case": "bert-small", "title": "BERT", "threads": 2, "dtype": "bf16", "shapes": 1000, "processes": 3, "compiles": 1, "first_s": 11.0,
        "steady_s": 10.0, "ratio": 1.1, "quantiles": quantiles([1.0, 2.0]), "again": quantiles([1.0, 1.5]), "resident_mib": [10.0, 11.0],
        "arena_mib": 1.0, "error": 1e-6,
    }  # fmt: skip
    return {"suite": "stream", "results": [result], **told()}


def compile_record() -> dict[str, object]:
    artifact = {"bytes": 2.0**20, "save_s": 1.0, "load_s": 0.01, "first_call_s": 0.3, "second_call_s": 0.1}
    result = {"case": "bert", "title": "BERT", "threads": 1, "cold_s": {"total": 9.0}, "cached_s": {"cached: from the module": 0.25},
              "artifact": artifact, "error": 1e-6, "setup_s": {"ort": 0.5, "inductor": 46.0}}  # fmt: skip
    return {"suite": "compile", "results": [result], **told()}
