"""The result file of the op fuzzer: chunks that were run at one revision or several, and what became of every failure."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHOWN = 1500  # characters of a failure's text that are kept


@dataclass
class Chunk:
    """Some of the programs `first` to `last` at one revision: all of them with one worker. named: only those whose op's name this regular
    expression finds (`op_programs.first_name`). outcomes: kind → calls."""

    revision: str
    first: int
    calls_per_compile: int
    last: int = -1
    compiled: int = 0
    cpu_seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    named: str = ""

    def calls(self) -> int:
        return sum(self.outcomes.values())


@dataclass
class Failure:
    """again: the outcomes of the program at a later revision, and that revision; empty until it was run again."""

    number: int
    through: str
    program: str
    kind: str
    where: str
    text: str
    revision: str
    again: dict[str, object] = field(default_factory=dict)

    def is_open(self) -> bool:
        from tests.fuzz.op_check import FINE

        return not self.again or any(kind not in FINE for kind in self.again["outcomes"])  # pyright: ignore[reportGeneralTypeIssues]


@dataclass
class Report:
    chunks: list[Chunk] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    @staticmethod
    def read(path: Path) -> Report:
        kept = json.loads(path.read_text())
        chunks = [Chunk(**{**each, "outcomes": Counter(each["outcomes"])}) for each in kept["chunks"]]
        return Report(chunks, Counter(kept["refused by"]), [Failure(**each) for each in kept["failures"]])

    def calls(self) -> int:
        return sum(chunk.calls() for chunk in self.chunks)

    def next_number(self) -> int:
        return max((chunk.last for chunk in self.chunks), default=-1) + 1

    def add(self, record: dict[str, Any]) -> list[Failure]:
        """Counts a program of the last chunk; returns its failures, one for each kind."""
        chunk = self.chunks[-1]
        chunk.compiled, chunk.last = chunk.compiled + 1, max(chunk.last, record["number"])
        for kind, text, _ in record["outcomes"]:
            chunk.outcomes[kind] += 1
            if kind in ("refused", "both refuse") and text:
                self.refusals[text.split(":")[0]] += 1
        new = failures_of(record, chunk.revision)
        self.failures += new
        return new

    def note_again(self, record: dict[str, Any], revision: str) -> list[Failure]:
        """How a program that failed ends now; returns what still fails."""
        outcomes = Counter(kind for kind, _, _ in record["outcomes"])
        for failure in self.failures:
            if failure.number == record["number"]:
                failure.again = {"revision": revision, "outcomes": dict(outcomes)}
        return failures_of(record, revision)

    def open_failures(self) -> list[Failure]:
        return [failure for failure in self.failures if failure.is_open()]

    def summary(self) -> dict[str, object]:
        outcomes: Counter[str] = sum((chunk.outcomes for chunk in self.chunks), Counter())
        classes = Counter(f"{each.kind}: {each.where}" for each in self.failures)
        return {
            "programs": self.calls(),
            "compiled": sum(chunk.compiled for chunk in self.chunks),
            "cpu seconds": round(sum(chunk.cpu_seconds for chunk in self.chunks), 1),
            "outcomes": dict(outcomes.most_common()),
            "programs that failed": len({each.number for each in self.failures}),
            "of them still failing when run again": len({each.number for each in self.open_failures()}),
            "refused by": dict(self.refusals.most_common()),
            "classes of failures": dict(classes.most_common()),
        }

    def write(self, path: Path) -> None:
        whole = {**self.summary(), "chunks": [vars(each) for each in self.chunks], "failures": [vars(each) for each in self.failures]}
        made = path.with_suffix(".new")
        made.write_text(json.dumps(whole, indent=1) + "\n")
        made.replace(path)


def failures_of(record: dict[str, Any], revision: str) -> list[Failure]:
    from tests.fuzz.op_check import FINE

    first = {kind: (text, where) for kind, text, where in reversed(record["outcomes"]) if kind not in FINE}
    return [
        Failure(record["number"], record["through"], record["program"], kind, where, _shown(text), revision)
        for kind, (text, where) in first.items()
    ]


def _shown(text: str) -> str:
    """Without the paths of this machine."""
    return text.replace(f"{ROOT}/", "").replace(f"{tempfile.gettempdir()}/", "")[:SHOWN]


def show(failures: Sequence[Failure]) -> str:
    lines = (
        f"{each.number} {each.through} {each.kind}: {each.program[:200]}\n    {each.where}: {(each.text.splitlines() or [''])[0][:250]}"
        for each in failures
    )
    return "\n".join(lines)


def revision() -> str:
    """Of the sources; with `+` where they hold changes that are not committed."""

    def git(*arguments: str) -> str:
        return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--", "disc", "tests/fuzz") else "")
