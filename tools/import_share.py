"""Counts the calls of the test models that go through torch-mlir; the others take overrides.

python tools/import_share.py [MODEL ...]     # prints the counts
python tools/import_share.py --check         # exit status 1 where the record or docs/architecture.md says otherwise
python tools/import_share.py --record        # writes the record
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from disc.frontend import lowering  # noqa: E402
from disc.frontend.exported import export_module, import_exported  # noqa: E402
from disc.ir.dialect import make_context  # noqa: E402
from tests.models import MODELS  # noqa: E402

RECORD = ROOT / "tools" / "data" / "import_share.json"
DOCUMENT = ROOT / "docs" / "architecture.md"


class Share(NamedTuple):
    """torch_mlir: how many of the calls of ATen ops go through torch-mlir."""

    torch_mlir: int
    calls: int

    def __str__(self) -> str:
        return f"{self.torch_mlir:,} of {self.calls:,} calls"


def count(name: str) -> Share:
    """Exports and imports the model."""
    emitted, calls = 0, 0
    emit, override_of = lowering.emit, lowering.override_of

    def counted(*given):  # pyright: ignore
        nonlocal emitted
        emitted += 1
        return emit(*given)

    def looked_up(op):  # pyright: ignore
        nonlocal calls
        calls += 1
        return override_of(op)

    lowering.emit, lowering.override_of = counted, looked_up
    try:
        model, inputs, shapes = MODELS[name]()
        with torch.no_grad():
            import_exported(export_module(model, inputs, shapes), make_context())
    finally:
        lowering.emit, lowering.override_of = emit, override_of
    return Share(emitted, calls)


def recorded() -> dict[str, Share]:
    return {name: Share(**numbers) for name, numbers in json.loads(RECORD.read_text()).items()}


def total(shares: Iterable[Share]) -> Share:
    return Share(*map(sum, zip(*shares, strict=True)))


def differences(counts: Mapping[str, Share]) -> list[str]:
    """What the record says otherwise of these models, or the document of what is recorded; [] where all agree."""
    record = recorded()
    found = [f"{name}: {share}; recorded: {record.get(name)}" for name, share in counts.items() if record.get(name) != share]
    if set(record) != set(MODELS):
        found.append(f"models of the tests alone, or of the record: {sorted(set(record) ^ set(MODELS))}")
    if f"{total(record.values())} go through torch-mlir" not in DOCUMENT.read_text():
        found.append(f"{DOCUMENT.name} does not say that {total(record.values())} go through torch-mlir")
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: all ({', '.join(MODELS)})")
    parser.add_argument("--check", action="store_true", help="compare with the record")
    parser.add_argument("--record", action="store_true", help="write the record, of all models")
    options = parser.parse_args(arguments)
    if unknown := set(options.models) - set(MODELS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    if options.record and options.models:
        parser.error("--record takes all models")
    counts: dict[str, Share] = {}
    for name in options.models or MODELS:
        counts[name] = count(name)
        print(f"{name}: {counts[name]}", flush=True)
    print(f"together: {total(counts.values())}")
    if options.record:
        RECORD.write_text(json.dumps({name: share._asdict() for name, share in counts.items()}, indent=1) + "\n")
    found = differences(counts) if options.check or options.record else []
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
