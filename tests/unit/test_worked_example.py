"""The worked example of docs/architecture.md: every line of IR that it shows is in the dump of a compile, in this order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "docs/architecture.md").read_text().partition("## A worked example")[2]
DUMPS = {  # the heading of a step → the end of the name of its dump
    "Imported": "normalize-reductions", "Named": "resolve-broadcasts", "Simplified": "simplify", "Fused": "speculate-versions",
    "Kernel": "kernels-x86-64-v4", "Host entry": "kernels-x86-64-v4",
}  # fmt: skip
SHORT = {"rows": "tensor<?x?x64xf32, [@S0, @S1, 64]>", "row": "tensor<?x?x1xf32, [@S0, @S1, 1]>"}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dumps of the program as the page has it, for one target."""
    folder = tmp_path_factory.mktemp("dump")
    code = EXAMPLE.partition("```python\n")[2].partition("```")[0].rstrip().removesuffix(")") + ', target="x86-64-v4")\n'
    script = "import disc, torch\nfrom torch.export import Dim\n" + code
    environment = {**os.environ, "DISC_DUMP": str(folder), "DISC_CACHE": "0"}
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, check=True, timeout=120)
    return folder


def plain(line: str) -> str:
    """Without locations, comments and the numbers of values."""
    line = re.sub(r" loc\((?:[^()]|\([^()]*\))*\)|\s*// .*", "", line)
    return " ".join(re.sub(r"%[\w#]+(:\d+)?", "%", line).split())


def shown(step: str) -> list[str]:
    match = re.search(rf"\*\*{step}\*\*.*?```mlir\n(.*?)```", EXAMPLE.replace(".**", "**"), re.S)
    assert match is not None
    lines = [plain(line) for line in match[1].splitlines() if line.strip() not in ("", "...")]
    long = [re.sub(r"\b(rows|row)\b", lambda short: SHORT[short[1]], line) for line in lines]
    return long if step in ("Simplified", "Fused") else lines


@pytest.mark.parametrize("step", DUMPS)
def test_what_it_shows_is_dumped(dump: Path, step: str) -> None:
    path = sorted(dump.glob(f"*-{DUMPS[step]}.mlir"))[0]
    made, place = [plain(line) for line in path.read_text().splitlines()], 0
    for line in shown(step):
        pattern = re.compile(".*".join(map(re.escape, line.split("..."))))
        found = next((number for number in range(place, len(made)) if pattern.fullmatch(made[number])), None)
        assert found is not None, f"not in {path.name} behind line {place}: {line}"
        place = found + 1
