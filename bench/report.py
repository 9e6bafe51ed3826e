"""Tables of results, as Markdown (also readable on a terminal), and the ratios that are the point of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from bench.figures import Record, best, milliseconds_of, of_group, peer_names, peer_of, ratio, share, summary, title, variant_names

HELD_OUT, BEST = " †", " *"  # marks of shapes and of times
GROUPS_MEAN = (
    "tuned: the data that schedules and thresholds were fitted to holds the size (of networks: the number of rows); "
    f"held out ({HELD_OUT.strip()}): it does not, or the network is of a family that nothing was tuned for."
)


def markdown(record: Record) -> str:
    """The whole report of a run."""
    results: Sequence[Record] = record["results"]
    write = {"compile": _compile, "stream": _stream}.get(record["suite"], _calls)
    sections = [head(record), *_settings(record)]
    sections += [write(result) for result in results]
    if write is _calls and results:
        sections.append(means(results))
    failed = [f"- **{', '.join(entry['cases'])}, {entry['threads']} threads, {entry['dtype']} failed**: {entry['reason']}"
              for entry in record["failed"]]  # fmt: skip
    return "\n\n".join([*sections, *(["\n".join(failed)] if failed else [])]) + "\n"


def head(record: Record) -> str:
    """The title, and what machine and commit the figures are of."""
    machine = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    lines = [
        f"# {record['suite']}, {record['date']}",
        "",
        f"{machine['cpu']} (family {machine['family']}, model {machine['model']}), {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{' '.join(machine['flags'])}; Linux {machine['kernel']}, Python {machine['python']}, {versions}; commit {machine['commit']}; "
        f"load {machine['load']}.",
        "",
        f"`{record['command']}`",
    ]
    if record.get("froze"):
        lines += ["", "Other work stood still whenever something was timed (`bench.freezer`); the load is what ran even then."]
    if record["smoke"]:
        lines += ["", f"**A smoke test: {'; '.join(record['smoke'])}.**"]
    return "\n".join(lines)


def _settings(record: Record) -> list[str]:
    """How each peer was run."""
    if "peers" not in record:
        return []
    return ["\n".join(["## Settings", "", *(f"- **{name}**: {settings}" for name, settings in record["peers"].items())])]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, padded so that it reads well as text; all columns but the first are right-aligned."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [[cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in enumerate(zip(row, widths, strict=True))]
             for row in (cells[0], rule, *cells[1:])]  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- timed calls ----------------------------------------------------------------------------------------------------------------


def _calls(result: Record) -> str:
    peers = peer_names(result)
    header = ["shape", "disc ms", "spread", "of FMA", "of bandwidth", "of limit", *(f"{peer} ms" for peer in peers),
              *(f"{peer} ÷ disc" for peer in peers), "error"]  # fmt: skip
    setup = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result["setup_s"].items() if seconds)
    slow = ", ".join(f"{name} {seconds:.1f} s" for name in ["disc", *peers] if (seconds := _first_seconds(result, name)) > 1)
    lines = [
        f"## {title(result)}",
        "",
        f"{_limits(result)} Set-up, two at a time: {setup or 'none'}."
        + f" First calls of all shapes together, recompiles included: {slow}." * bool(slow),
        *_run(result),
        *(f"{name} was skipped: {reason}" for name, reason in result["skipped"].items()),
        *(f"{name} failed at {row['shape']}: {reason}" for row in result["rows"] for name, reason in row["failed"].items()),
        "",
        table(header, [_shape_row(row, peers) for row in result["rows"]]),
    ]  # fmt: skip
    return "\n".join([*lines, *_compiling(result), *_launches(result), *_recordings(result), *_variants(result), *_memory(result)])


def _run(result: Record) -> list[str]:
    """Which run a case is of, if not of that of the others."""
    run = result.get("run")
    return [f"Of a later run: {run['date']}, commit {run['commit']}, load {run['load']}, `{run['command']}`."] if run else []


def _compiling(result: Record) -> list[str]:
    """What compiling a step of training costs, and for how many sizes it is enough."""
    found = result.get("compiling")
    if not found:
        return []
    if "failed" in found:
        return ["", f"Its compiling could not be measured: {found['failed']}"]
    return ["", f"Until the first step of disc has ended: {found['seconds']['cold']:.1f} s, from the compile cache "
            f"{found['seconds']['cached']:.1f} s. Compiles for {found['sizes']} other sizes: {found['compiles']}."]  # fmt: skip


def _launches(result: Record) -> list[str]:
    """Kernels of a call, where there are several kinds of disc."""
    counts = {name: count for name, count in result.get("launches", {}).items() if count is not None}
    if len(counts) < 2:
        return []
    return ["", f"Kernels of a call: {', '.join(f'{name} {count}' for name, count in counts.items())}."]


def _recordings(result: Record) -> list[str]:
    """What recording costs, where calls are recorded: per recorded call, and as shares of a step (paper 004, Table 2)."""
    header = ["", "shape", "calls", "us a call", "hash", "transformation", "computation", "first ÷ cached transformation"]
    rows = [
        [name, row["shape"], f"{cost['calls']:.0f}", f"{cost['recording'] / max(cost['calls'], 1):.2f}",
         *(f"{cost[part] / cost['step']:.1%}" for part in ("hash", "transformation", "computation")),
         f"{cost['first_transformation'] / cost['transformation']:,.0f}" if cost["transformation"] else "-"]
        for row in result["rows"]
        for name, cost in row.get("recording", {}).items()
    ]  # fmt: skip
    about = "Recording: until the model has returned, per recorded call; hash, transformation and computation as shares of a call."
    return ["", about, "", table(header, rows)] if rows else []


def _variants(result: Record) -> list[str]:
    """Milliseconds of every variant of the peers that have several; the one that counts as the peer at a shape is marked."""
    names = variant_names(result)
    several = [name for name in names if sum(peer_of(other) == peer_of(name) for other in names) > 1]
    if not several:
        return []

    def cell(row: Record, name: str) -> str:
        if name not in row["ms"]:
            return "-"
        return milliseconds(row["ms"][name]["median"]) + BEST * (best(row, peer_of(name)) == name)

    rows = [[name, *(cell(row, name) for row in result["rows"])] for name in several]
    about = f"Milliseconds of the variants; {BEST.strip()}: the fastest that is right, which counts as the peer."
    return ["", about, "", table(["", *(row["shape"] for row in result["rows"])], rows)]


def _limits(result: Record) -> str:
    limits = result["limits"]
    if limits is None:
        return "The machine's limits could not be measured."
    largest = max(limits["reads"], key=int)
    return (
        f"Limits with {result['threads']} thread{'s' * (result['threads'] != 1)}: {limits['flops'] * 1e-9:.0f} GF/s; out of cache, read "
        f"{limits['reads'][largest] * 1e-9:.1f} GB/s, copy {limits['copies'][largest] * 1e-9:.1f} GB/s ({limits['how']})."
    )


def _first_seconds(result: Record, name: str) -> float:
    return sum(row["first_s"].get(name, 0.0) for row in result["rows"])


def _shape_row(row: Record, peers: Sequence[str]) -> list[str]:
    times = row["ms"]
    own = times.get("disc")
    wrong = f" WRONG: {' '.join(row['wrong'])}" if row["wrong"] else ""
    return [
        row["shape"] + HELD_OUT * (row.get("held_out") is True),
        milliseconds(own["median"]) if own else "-",
        f"{own['spread']:.0%}" if own else "-",
        *(_percent(share(row, "disc", part)) for part in ("compute_ms", "memory_ms", "limit")),
        *(milliseconds(milliseconds_of(row, peer)) for peer in peers),
        *(_ratio(ratio(row, peer)) for peer in peers),
        (f"{row['error']['disc']:.1e}" if own else "-") + wrong,
    ]


def milliseconds(value: float) -> str:
    """With four digits at most where there are decimals."""
    if math.isnan(value):
        return "-"
    return f"{value:.2f}" if value >= 1 else f"{value:.4f}"


def _ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0%}"


def _memory(result: Record) -> list[str]:
    """Resident memory, where it was measured."""
    memory = result.get("memory")
    if not memory:
        return []
    trained = any("step" in mib for mib in memory["mib"].values())
    parts = ("start", "load", "calls", *["step"] * trained)
    rows = [[name, *(f"{mib[part]:.0f}" if part in mib else "-" for part in parts)] for name, mib in memory["mib"].items()]
    failed = [f"{name}: its memory could not be measured: {reason}" for name, reason in memory["failed"].items()]
    about = f"Resident MiB at {memory['shape']}: after the imports, peak until loaded, peak during calls (within PyTorch: calls alone)."
    about += " step: what one takes beyond a step at the example's shape." * trained
    return ["", about, *failed, "", table(["", "imports", *parts[1:]], rows)]


GROUPS = {"tuned": False, "held out": True}  # and whether the size is held out


def means(results: Sequence[Record]) -> str:
    """Geometric means per result, and over the results, each counting the same; sizes that the tuning data holds apart from the others."""
    each = [(f"{title(result)}{', ' * bool(name)}{name}", *row) for result in results for name, *row in _rows([result], _peers(results))]
    peers, all_rows = mean_rows(results)
    total = [(f"**all{', ' * bool(name)}{name}**", *row) for name, *row in all_rows]
    rows = [[name, *ratios_of, own] for name, ratios_of, own in (*each, *total)]
    header = ["", *(f"{peer} ÷ disc" for peer in peers), "of limit"]
    return f"## Geometric means over the shapes (above 1: disc is faster)\n\n{table(header, rows)}\n\n{GROUPS_MEAN}"


MeanRow = tuple[str, list[str], str]  # the group of sizes, "" for all; the ratio to each peer; the share of the limit


def mean_rows(results: Sequence[Record]) -> tuple[list[str], list[MeanRow]]:
    """The peers, and their means over all results for each group of sizes that there is."""
    return _peers(results), _rows(results, _peers(results))


def _peers(results: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(name for result in results for name in peer_names(result)))


def _rows(results: Sequence[Record], peers: Sequence[str]) -> list[MeanRow]:
    """All sizes last, and only where they are of both groups or of none."""
    groups = {name: [part for result in results if (part := of_group(result, held_out))["rows"]] for name, held_out in GROUPS.items()}
    known = {name: parts for name, parts in groups.items() if parts}
    if len(known) != 1:
        known[""] = list(results)
    rows: list[MeanRow] = []
    for name, parts in known.items():
        ratios_of, own = summary(parts, peers)
        rows.append((name, [_ratio(value) for value in ratios_of], _percent(own)))
    return rows


# --- the other suites -----------------------------------------------------------------------------------------------------------


def _compile(result: Record) -> str:
    artifact = result["artifact"]
    rows = [[f"cold: {name}", f"{seconds:.2f} s"] for name, seconds in result["cold_s"].items()]
    rows += [[name, f"{seconds:.2f} s"] for name, seconds in result["cached_s"].items()]
    rows += [
        [f"save {artifact['bytes'] / 2**20:.0f} MiB", f"{artifact['save_s']:.2f} s"],
        ["load", f"{artifact['load_s'] * 1e3:.1f} ms"],
        ["first call after load (waits for the check of the weights)", f"{artifact['first_call_s'] * 1e3:.0f} ms"],
        ["second call", f"{artifact['second_call_s'] * 1e3:.1f} ms"],
        ["error of the loaded artifact against eager", f"{result['error']:.1e}"],
    ]
    rows += [[f"{name}: until it can be called", f"{seconds:.2f} s"] for name, seconds in result["setup_s"].items()]
    return f"## {result['title']}\n\n{table(['step', 'value'], rows)}"


def _stream(result: Record) -> str:
    rows = [
        ["different shapes", str(result["shapes"])],
        ["compiles", str(result["compiles"])],
        ["first pass", f"{result['first_s']:.1f} s"],
        ["sum of steady times", f"{result['steady_s']:.1f} s"],
        ["first pass ÷ steady", f"{result['ratio']:.3f}"],
        ["first ÷ steady of a shape: median, 90 %, 99 %, largest", _quantiles(result["quantiles"])],
        ["first ÷ second pass: median, 90 %, 99 %, largest", _quantiles(result["again"])],
        ["resident MiB: start, each quarter, after the steady pass", " ".join(map(str, result["resident_mib"]))],
        ["buffers held MiB", str(result["arena_mib"])],
        ["largest error against eager", f"{result['error']:.1e}"],
    ]
    about = (
        f"The whole stream in {result['processes']} fresh processes; of each shape, the median over the processes. Steady: the median of "
        "three more calls at once, which find weights and buffers in the caches. Second pass: the same call after the same other shape, "
        "which has left the caches as they were the first time."
    )
    return f"## {title(result)}\n\n{about}\n\n{table(['', 'value'], rows)}"


def _quantiles(values: Record) -> str:
    return " ".join(f"{value:.2f}" for value in values.values())
