"""Writes tools/constraints.txt: the version of every package that any extra or group of pyproject.toml brings, by pip's resolver.

python tools/lock.py             # what there is stays, what is missing comes in its newest version
python tools/lock.py --upgrade   # the newest of everything that the ranges allow

Needs the package index. `pip install -c tools/constraints.txt` and tools/setup.sh use the file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "tools" / "constraints.txt"
HEAD = "# Every package that an extra or a group of pyproject.toml brings, as the tests run with it; made by tools/lock.py.\n"
OURS = "disc-compiler"


def locked(report: dict[str, Any]) -> list[str]:
    """The lines, in order, of pip's report. A local version ("2.13.0+cpu") says which build a machine took; each has its own."""
    versions: dict[str, str] = {each["metadata"]["name"].lower(): each["metadata"]["version"] for each in report["install"]}
    return [f"{name}=={version.partition('+')[0]}" for name, version in sorted(versions.items()) if name != OURS]


def resolve(constraints: list[str]) -> dict[str, Any]:
    """pip's report on all extras and groups. Raises subprocess.CalledProcessError where they do not fit together."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    with tempfile.TemporaryDirectory() as folder:
        python, report = f"{folder}/venv/bin/python", f"{folder}/report.json"
        subprocess.run([sys.executable, "-m", "venv", f"{folder}/venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", "pip>=25.1,<27"], check=True)
        asked = [word for group in groups for word in ("--group", f"{ROOT}/pyproject.toml:{group}")]
        command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--report", report, *constraints, *asked, f"{ROOT}[all]"]
        subprocess.run(command, check=True)
        return json.loads(Path(report).read_text())


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--upgrade"]):
        print(__doc__)
        return 2
    lines = locked(resolve([] if arguments else ["--constraint", str(LOCK)]))
    LOCK.write_text(HEAD + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
