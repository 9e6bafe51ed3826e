"""Says how many calls of the test models go through torch-mlir, and how many take an override.

    python tools/import_share.py [--check]

--check: exit status 1 where docs/architecture.md says otherwise.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from disc.frontend import lowering  # noqa: E402
from disc.frontend.exported import export_module, import_exported  # noqa: E402
from disc.ir.dialect import make_context  # noqa: E402
from tests.models import MODELS  # noqa: E402


def count(name: str) -> Counter[str]:
    """Calls of one model by the way they are lowered."""
    ways: Counter[str] = Counter()
    emit = lowering.emit
    overrides = lowering.OVERRIDES

    def counted(*given):  # pyright: ignore
        ways["torch-mlir"] += 1
        return emit(*given)

    class Counted(dict):  # pyright: ignore[reportMissingTypeArgument]
        def get(self, key, default=None):  # pyright: ignore
            ways["calls"] += 1
            return super().get(key, default)

    lowering.emit, lowering.OVERRIDES = counted, Counted(overrides)
    try:
        model, inputs, shapes = MODELS[name]()
        with torch.no_grad():
            import_exported(export_module(model, inputs, shapes), make_context())
    finally:
        lowering.emit, lowering.OVERRIDES = emit, overrides
    return ways


def main() -> int:
    total: Counter[str] = Counter()
    for name in MODELS:
        ways = count(name)
        total += ways
        print(f"{name}: {ways['torch-mlir']} of {ways['calls']}", flush=True)
    share = f"{total['torch-mlir']:,} of {total['calls']:,} calls"
    print(share)
    if "--check" in sys.argv[1:] and share not in (ROOT / "docs" / "architecture.md").read_text():
        print("docs/architecture.md says otherwise", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
