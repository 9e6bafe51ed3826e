"""Random calls of PyTorch's ops: right, or refused by a `DiscError`. A run of every test session, and a long one behind --long.

python -m tests.fuzz.ops --only NUMBER              # one that failed, again
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(folder: Path, *arguments: str) -> dict[str, object]:
    out = folder / "report.json"
    command = [sys.executable, "-m", "tests.fuzz.ops", "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert out.is_file(), done.stderr[-4000:]
    return json.loads(out.read_text())


def check(report: dict[str, object], least: int) -> None:
    failures = report["failures"]
    assert isinstance(failures, list) and isinstance(report["outcomes"], dict)
    texts = [f"{each['number']} ({each['through']}) {each['kind']}: {each['program']}\n{each['text']}" for each in failures]
    assert not texts, f"{len(texts)} failures\n" + "\n".join(texts[:20])
    assert report["outcomes"]["right"] > 0.4 * least  # most calls are valid, and compiled
    assert int(str(report["programs"])) >= least


def test_random_calls(tmp_path: Path) -> None:
    check(run(tmp_path, "--programs", "60", "--calls", "8", "--first", "1000000", "--workers", "2"), 60)


@pytest.mark.long
def test_more_random_calls(tmp_path: Path) -> None:
    check(run(tmp_path, "--programs", "10000", "--first", "2000000"), 10_000)
