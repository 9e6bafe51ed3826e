"""Commands of `disc`, and what people paste into a shell, run within a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from disc.cli.main import main

NAMESPACE = ["unshare", "--map-root-user", "--net"]  # ports of its own, where the kernel lets us


def shell(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """The script in bash, which stops at the first command that fails."""
    command = ["bash", "-euo", "pipefail", "-c", script]
    if subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0:
        command = [*NAMESPACE, "bash", "-euo", "pipefail", "-c", f"ip link set lo up; {script}"]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "DISC_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def output_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    """What a command prints with --json; it must end well."""
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)
