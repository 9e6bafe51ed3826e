"""What the package says of itself: one version everywhere, and the names that users call."""

from __future__ import annotations

import tomllib
from pathlib import Path

import disc


def test_the_package_and_its_project_file_agree() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert disc.__version__ == project["project"]["version"]


def test_dir_shows_what_users_call() -> None:
    assert dir(disc) == sorted(disc.__all__)
    assert all(hasattr(disc, name) for name in dir(disc))
