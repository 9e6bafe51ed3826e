"""The page of `disc explain` in a real browser. Installs its driver, so with --long only."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import disc

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)")]


def test_a_report_is_legible_on_a_phone(tmp_path: Path) -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2).eval()
    report = disc.compile(model, torch.randn(2, 5, 64)).explain(torch.randn(3, 33, 64))
    (tmp_path / "report.html").write_text(report.to_html())
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", "playwright==1.65.2"], check=True, timeout=900)
    script = Path(__file__).with_name("report_check.py")
    command = [str(python), str(script), str(CHROMIUM), f"file://{tmp_path}/report.html", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    for name, width in (("wide", 1280), ("phone", 390)):
        assert seen[name]["said"] == [] and seen[name]["scrolls"] == width and seen[name]["reach"] <= width, seen[name]
        assert seen[name]["letters"] > 10 and seen[name]["overlaps"] == 0
        assert seen[f"{name}, in sight"], "what is chosen at the end of the page"
        assert "per launch" in seen[f"{name}, chosen"] and seen[f"{name}, found"] == 0
    assert [each.split(",")[0] for each in seen["phone"]["columns"]] == ["kernel", "time", "share", "of limit"]
    assert len(seen["wide"]["columns"]) == 10
