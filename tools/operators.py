"""Writes docs/operators.md: which operators disc compiles, from running a few calls of each and comparing with eager PyTorch.

python tools/operators.py                # runs the rows that are missing, or rest on something that has changed; writes record and document
python tools/operators.py --family core  # of these rows those of one family
python tools/operators.py NAME ...       # runs these rows (aten.topk.default, interpolate, stablehlo.sort)
python tools/operators.py --all          # runs all of them (half an hour of one core)
python tools/operators.py --check        # runs nothing; exit status 1 where the record is stale or the document is another one
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "diff")]

from tests.fuzz import ops as runner  # noqa: E402
from tests.operators.op_rows import (  # noqa: E402
    COMPILED,
    EAGER,
    FAULT,
    IN_PART,
    NO_CASE,
    REFUSED,
    Row,
    read_record,
    verified,
    write_record,
)

DOCUMENT = ROOT / "docs" / "operators.md"
ROWS_PER_PROCESS, SECONDS = 25, 240.0  # of CPU time for a row
STATUSES = (COMPILED, IN_PART, EAGER, REFUSED, FAULT, NO_CASE)
TITLES = {
    "core": ("Core ATen", "the ops with the tag `torch.Tag.core`"),
    "prims": ("Prims", "`torch.ops.prims`"),
    "functional": ("torch.nn.functional", "the functions of `torch.nn.functional`"),
    "stablehlo": ("StableHLO", "the ops of the specification, and of the dialect besides"),
}
WHOLE = ("core", "stablehlo")  # families of which every member must have a row; of the others some may not have been run yet
HEAD = """# Operators

Made by `tools/operators.py` from results: a few calls of each operator are compiled, and what was compiled is called with the inputs of
the call, with the same in other memory layouts, and with inputs of other sizes. Not written by hand: after a change of rules run it, and
commit what it writes; `tests/operators/test_operators.py` fails where a row is stale.

- *compiled*: all calls that were tried agree with eager PyTorch (StableHLO: with its reference interpreter).
- *in part*: some do; the reason is that of the first that does not.
- *eager in torch.compile*: `disc.compile` refuses it; under torch.compile it runs in PyTorch between compiled parts.
- *refused*: by a `DiscError`, for the reason given.
- *fault*: a wrong result, or an error that is no refusal.
- *no case*: there is no call that eager takes on a CPU.

Dtypes: those in which all calls that were tried agree. Other sizes: of the sets of inputs of other sizes than the example's that eager
takes, those that agree; the compiled program refuses the others. The test of a row: `python -m pytest tests/operators --long -k "NAME"`.
"""


def members(families: Sequence[str] = tuple(TITLES)) -> list[str]:
    """The keys (family/name) of all rows that there can be."""
    from tests.operators.op_cases import names
    from tests.operators.stablehlo_cases import CASES

    return [f"{family}/{name}" for family in families for name in (CASES if family == "stablehlo" else names(family))]


def stale(record: Mapping[str, Row]) -> list[str]:
    """Keys of rows that are missing, or rest on something else than now; and of rows of what is no operator any more."""
    missing = [key for key in members(WHOLE) if key not in record]
    return missing + [key for key, row in record.items() if row.is_stale()] + sorted(set(record) - set(members()))


# --- running --------------------------------------------------------------------------------------------------------------------


def run(keys: Sequence[str], workers: int) -> Iterator[Row]:
    """The rows, each in a process that may end."""
    from tests.operators.op_cases import FAMILIES, Cases, all_cases
    from tests.operators.stablehlo_cases import verified_stablehlo

    wanted = [tuple(key.split("/", 1)) for key in keys]
    families = [family for family in FAMILIES if any(family == of for of, _ in wanted)]
    cases = {(family, name): found for family in families for name, found in all_cases(family).items()}

    def one(number: int, calls: int, state: Any) -> dict[str, object]:
        family, name = wanted[number]
        if state is not None:
            state[0], text = runner.STAGES.index("compile"), f"{family}/{name}".encode()
            state[1 : 2 + len(text)] = text + b"\0"
        row = verified_stablehlo(name) if family == "stablehlo" else verified(family, name, cases.get((family, name), Cases({})))
        return vars(row)

    for number, record in enumerate(runner.records(list(range(len(wanted))), 0, workers, one, ROWS_PER_PROCESS, SECONDS), 1):
        if "outcomes" in record:  # the process ended, or hung
            family, name = wanted[record["number"]]
            record = vars(Row(family, name, FAULT, reason=str(record["outcomes"][0][1])))
        row = Row(**record)
        print(
            f"{number}/{len(wanted)} {row.key()}: {row.status} {row.agreeing}/{row.cases} {row.sizes_right}/{row.sizes} {row.reason}"[:300],
            flush=True,
        )
        yield row


# --- the document ---------------------------------------------------------------------------------------------------------------


def render(rows: Iterable[Row]) -> str:
    rows = list(rows)
    lines = [HEAD, "| | operators | run |" + "".join(f" {status} |" for status in STATUSES), "|---|---|---|" + "---|" * len(STATUSES)]
    for family, (title, _) in TITLES.items():
        counts = [sum(row.family == family and row.status == status for row in rows) for status in STATUSES]
        lines.append(f"| {title} | {len(members([family]))} | {sum(counts)} |" + "".join(f" {count or ''} |" for count in counts))
    for family, (title, what) in TITLES.items():
        lines += [
            "",
            f"## {title}",
            "",
            f"{what[0].upper()}{what[1:]}.",
            "",
            "| operator | status | dtypes | calls | other sizes | reason |",
            "|---|---|---|---|---|---|",
        ]
        for row in (each for each in rows if each.family == family):
            calls = f"{row.agreeing} of {row.cases}" if row.cases else ""
            sizes = f"{row.sizes_right} of {row.sizes}" if row.sizes else ""
            lines.append(f"| {_cell(row.name)} | {row.status} | {', '.join(row.dtypes)} | {calls} | {sizes} | {_cell(row.reason)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'").replace("*", "\\*").replace("<", "&lt;").replace("\n", " ")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--family", nargs="+", choices=tuple(TITLES), default=tuple(TITLES), help="only rows of these")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(arguments)
    runner.prepare()
    record = read_record()
    wanted = {key: key.split("/", 1)[1] for key in members()}
    if unknown := set(options.names) - set(wanted.values()):
        parser.error(f"no such operator: {', '.join(sorted(unknown))}")
    old = stale(record)
    if options.check:
        found = [f"stale: {key}" for key in old]
        if DOCUMENT.read_text() != render(record.values()):
            found.append(f"{DOCUMENT.name} is not of the record")
        print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
        return 1 if found else 0
    if options.names:
        keys = [key for key, name in wanted.items() if name in options.names]
    else:
        keys = [key for key in wanted if options.all or key not in record or key in old]
    keys = [key for key in keys if key.split("/")[0] in options.family]
    record = {key: row for key, row in record.items() if key in wanted}
    for row in run(keys, options.workers):
        record[row.key()] = row
        write_record(record.values())  # what was stopped goes on from here
    DOCUMENT.write_text(render(read_record().values()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
