"""The pages of the documentation site: those that are made are what the sources say, no link is dead, the site builds without the network."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import docs
from disc.config import Options
from disc.serving.settings import ServerSettings, settings_of, settings_schema

ROOT = Path(__file__).parents[2]


def test_the_settings_page_and_the_schema_are_what_the_sources_say() -> None:
    assert docs.SETTINGS.read_text() == docs.settings_page(), "run: python tools/docs.py --write"
    assert docs.SCHEMA.read_text() == docs.schema_file(), "run: python tools/docs.py --write"


def test_every_option_of_compiling_has_its_words() -> None:
    words = docs.described(Options)
    assert set(words) == {each.name for each in dataclasses.fields(Options)} and all(words.values())


def test_every_table_of_the_server_is_there() -> None:
    """What the settings take, the page has, with a description."""
    schema = settings_schema()
    assert set(schema["$defs"]) == {name for _, name, _ in docs.TABLES if name}
    for table in (schema, *schema["$defs"].values()):
        assert table["additionalProperties"] is False and all(key["description"] for key in table["properties"].values())
    assert settings_of({}) == ServerSettings()


def test_the_page_says_types_bounds_and_defaults() -> None:
    page = docs.settings_page()
    for row in (
        "| `http_port` | int, 0 to 65535 | `8000` |",
        "| `idle_s` | float, more than 0 | `300.0` |",
        "| `certificate` | str | needed |",
        "| `pad` | table of floats |  |",
        "| `warm_up` | list of str | `[]` |",
        '| `copy` | `"when_needed"` or `"always"` or `"never"` | `"when_needed"` |',
    ):
        assert row in page


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "tools/mkdocs.yml").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f": {page.name}\n" not in menu] == []


def test_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    page, other, file = (tmp_path / "docs" / name for name in ("page.md", "other.md", "file.toml"))
    other.touch()
    file.touch()
    page.write_text("[a](other.md#few-rows) [b](../docs/file.toml) [c](https://example.org/x) [d](#here)")
    assert docs.relinked(page, {other: "other.md"}) == "[a](other.md#few-rows) b (`docs/file.toml`) [c](https://example.org/x) [d](#here)"
    page.write_text("[a](none.md)")
    with pytest.raises(ValueError, match=r"docs/page\.md: there is no none\.md"):
        docs.relinked(page, {})


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the group docs")
def test_the_site_builds_without_the_network(tmp_path: Path) -> None:
    """Every page of the menu, nothing of other servers in them; a dead link within a page ends it."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", "build", "__pycache__", "results", ".venv"))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(tree)}
    built = subprocess.run([tree / "tools/docs.sh"], env=environment, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr[-3000:]
    pages = list((tree / "build/site").glob("*.html"))
    assert len(pages) > 12
    for page in pages:
        assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="https?://(?!.*rel="canonical")', page.read_text()), page
    assert "Runs the model" in (tree / "build/site/api.html").read_text(), "docstrings"
    (tree / "docs/glossary.md").write_text("[dead](kernels.md#no-such-heading)\n")
    dead = subprocess.run([tree / "tools/docs.sh"], env=environment, capture_output=True, text=True, timeout=300)
    assert dead.returncode != 0 and "no-such-heading" in dead.stdout + dead.stderr
