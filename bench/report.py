"""Tables of results, as Markdown (also readable on a terminal), and the ratios that are the point of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]  # what JSON gives back


def markdown(record: Record) -> str:
    """The whole report of a run."""
    results: Sequence[Record] = record["results"]
    sections = [_head(record)]
    sections += [SECTIONS[record["suite"]](result) for result in results]
    if record["suite"] == "models":
        sections.append(_summary(results))
    failed = [f"- **{entry['model']}, {entry['threads']} threads failed**: {entry['reason']}" for entry in record["failed"]]
    return "\n\n".join([*sections, *(["\n".join(failed)] if failed else [])]) + "\n"


def _head(record: Record) -> str:
    machine = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        f"# {record['suite']}, {record['date']}",
        "",
        f"{machine['cpu']} (family {machine['family']}, model {machine['model']}), {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{' '.join(machine['flags'])}; Linux {machine['kernel']}, Python {machine['python']}, {versions}; commit {machine['commit']}; "
        f"load before the run {machine['load']}.",
    ]
    if machine["load"] > 0.3:
        lines += ["", "**The machine was not idle: take these figures as a smoke test.**"]
    return "\n".join(lines)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, padded so that it reads well as text; all columns but the first are right-aligned."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [[cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in enumerate(zip(row, widths, strict=True))]
             for row in (cells[0], rule, *cells[1:])]  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def geomean(values: Iterable[float]) -> float:
    """NaN of an empty list."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def peer_names(result: Record) -> list[str]:
    """The peers that were measured, without disc, in the order of the run."""
    return [name for name in result["rows"][0]["ms"] if name != "disc"] if result["rows"] else []


def ratios(result: Record, peer: str) -> list[float]:
    """Per shape, how many times longer the peer takes than disc; without shapes where either was wrong."""
    rows = [row for row in result["rows"] if not {"disc", peer} & set(row["wrong"]) and {"disc", peer} <= set(row["ms"])]
    return [row["ms"][peer]["median"] / row["ms"]["disc"]["median"] for row in rows]


def limit_ms(result: Record, row: Record) -> float:
    """The time of the matrix products alone at the limit of multiply-adds."""
    return row["flops"] / result["fma_flops"] * 1e3


def limit_shares(result: Record) -> list[float]:
    """Per shape, the limit's time over disc's."""
    return [limit_ms(result, row) / row["ms"]["disc"]["median"] for row in result["rows"] if "disc" in row["ms"]]


def _models(result: Record) -> str:
    peers = peer_names(result)
    header = ["shape", "disc ms", "spread", "of limit", *(f"{peer} ms" for peer in peers), *(f"{peer} ÷ disc" for peer in peers), "error"]
    text = table(header, [_shape_row(result, row, peers) for row in result["rows"]])
    setup = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result["setup_s"].items() if seconds)
    slow = ", ".join(f"{name} {seconds:.1f} s" for name in ["disc", *peers] if (seconds := _first_seconds(result, name)) > 1)
    return "\n".join([
        f"## {result['title']}, {result['threads']} thread{'s' * (result['threads'] != 1)}, fp32",
        "",
        f"Limit {result['fma_flops'] * 1e-9:.0f} GF/s, copy {result['copy_bytes'] * 1e-9:.1f} GB/s ({result['limits']}). Set-up: {setup}."
        + f" First calls of all shapes together, recompiles included: {slow}." * bool(slow),
        *(f"{name} was skipped: {reason}" for name, reason in result["skipped"].items()),
        "",
        text,
    ])  # fmt: skip


def _first_seconds(result: Record, name: str) -> float:
    return sum(row["first_s"].get(name, 0.0) for row in result["rows"])


def _shape_row(result: Record, row: Record, peers: Sequence[str]) -> list[str]:
    times = row["ms"]
    if "disc" not in times:
        return [row["shape"], "-", "-", "-", *(f"{times[peer]['median']:.2f}" for peer in peers), *("-" for _ in peers), "-"]
    own = times["disc"]
    return [
        row["shape"],
        f"{own['median']:.2f}",
        f"{own['spread']:.0%}",
        f"{limit_ms(result, row) / own['median']:.0%}",
        *(f"{times[peer]['median']:.2f}" for peer in peers),
        *(f"{times[peer]['median'] / own['median']:.2f}" for peer in peers),
        f"{row['error']['disc']:.1e}" + (f" WRONG: {' '.join(row['wrong'])}" if row["wrong"] else ""),
    ]


def _summary(results: Sequence[Record]) -> str:
    """Geometric means per model, and over the models, each model counting the same."""
    peers = list(dict.fromkeys(name for result in results for name in peer_names(result)))
    rows: list[list[str]] = []
    for threads in sorted({result["threads"] for result in results}):
        chosen = [result for result in results if result["threads"] == threads]
        means = [[geomean(ratios(result, peer)) for peer in peers] for result in chosen]
        shares = [geomean(limit_shares(result)) for result in chosen]
        for result, mean, share in zip(chosen, means, shares, strict=True):
            rows.append([f"{result['title']}, {threads}", *map(_ratio, mean), f"{share:.0%}"])
        overall = [geomean(value for value in column if not math.isnan(value)) for column in zip(*means, strict=True)]
        rows.append([f"**all, {threads}**", *map(_ratio, overall), f"{geomean(s for s in shares if not math.isnan(s)):.0%}"])
    header = ["model, threads", *(f"{peer} ÷ disc" for peer in peers), "of limit"]
    return f"## Geometric means over the shapes (above 1: disc is faster)\n\n{table(header, rows)}"


def _ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _overhead(result: Record) -> str:
    figures = result["us"].items()
    rows = [[name, *(f"{us[key]:.2f}" for key in ("median", "low", "high")), f"{result['error'][name]:.0e}"] for name, us in figures]
    return "\n".join([
        f"## x + 1 on four elements, {result['threads']} thread{'s' * (result['threads'] != 1)}",
        "",
        *(f"{name} was skipped: {reason}" for name, reason in result["skipped"].items()),
        table(["", "µs per call", "low", "high", "error"], rows),
    ])  # fmt: skip


def _compile(result: Record) -> str:
    artifact = result["artifact"]
    cached = sorted(result["cached_s"][1:])
    rows = [[f"cold: {name}", f"{seconds:.2f} s"] for name, seconds in result["cold_s"].items()]
    rows += [["compile that fills the cache", f"{result['cached_s'][0]:.2f} s"]]
    rows += [["compile from the cache (median)", f"{cached[len(cached) // 2]:.2f} s"]] if cached else []
    rows += [
        [f"save {artifact['bytes'] / 2**20:.0f} MiB", f"{artifact['save_s']:.2f} s"],
        ["load", f"{artifact['load_s'] * 1e3:.1f} ms"],
        ["first call after load (waits for the check of the weights)", f"{artifact['first_call_s'] * 1e3:.0f} ms"],
        ["second call", f"{artifact['second_call_s'] * 1e3:.1f} ms"],
        ["error of the loaded artifact against eager", f"{result['error']:.1e}"],
    ]
    rows += [["inductor, dynamic: set-up and first call", f"{result['inductor_s']:.1f} s"]] if "inductor_s" in result else []
    return f"## {result['title']}\n\n{table(['step', 'value'], rows)}"


def _stream(result: Record) -> str:
    rows = [
        ["different shapes", str(result["shapes"])],
        ["compiles", str(result["compiles"])],
        ["first pass", f"{result['first_s']:.1f} s"],
        ["sum of steady times", f"{result['steady_s']:.1f} s"],
        ["first pass ÷ steady", f"{result['ratio']:.3f}"],
        ["resident MiB: start, each quarter, after the steady pass", " ".join(map(str, result["resident_mib"]))],
        ["buffers held MiB", str(result["arena_mib"])],
        ["largest error against eager", f"{result['error']:.1e}"],
    ]
    return f"## {result['title']}, {result['threads']} thread{'s' * (result['threads'] != 1)}\n\n{table(['', 'value'], rows)}"


SECTIONS = {"models": _models, "overhead": _overhead, "compile": _compile, "stream": _stream}
