"""What the fuzzer of the whole compiler found: every module in graphs/ runs on many shapes and agrees with the interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "fuzz"))

from oracle import check

GRAPHS = sorted((Path(__file__).resolve().parent / "graphs").glob("*.mlir"))


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.stem)
def test_found_by_the_fuzzer(path: Path) -> None:
    failure = check(path.read_text())
    assert failure is None, f"{failure.kind}\n{failure.text}"
