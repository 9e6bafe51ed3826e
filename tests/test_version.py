"""One version everywhere."""

from __future__ import annotations

import tomllib
from pathlib import Path

import disc


def test_the_package_and_its_project_file_agree() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert disc.__version__ == project["project"]["version"]
