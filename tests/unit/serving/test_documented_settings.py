"""docs/deployment.md says what the settings of a server are."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from disc.serving.settings import Limits, ModelSettings, settings_of

ROOT = Path(__file__).parents[3]
DEPLOYMENT = (ROOT / "docs" / "deployment.md").read_text()
SHOWN = tomllib.loads(re.search(r"```toml\n(.*?)```", DEPLOYMENT, re.S)[1])  # pyright: ignore[reportOptionalSubscript]
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30, "KiB/s": 1 << 10, "s": 1, "": 1}


def test_the_settings_that_are_shown_are_read_and_its_limits_and_defaults_are_ours() -> None:
    settings = settings_of(SHOWN)
    assert settings.limits == Limits() and settings.defaults == ModelSettings()
    assert settings.models["bert"].concurrency == 2


def number(text: str) -> float:
    """ "64 MiB", "2^26", "600 s" → the number."""
    match = re.fullmatch(r"(\d+)(?:\^(\d+))? ?([A-Za-z/]*)", text)
    assert match is not None, text
    return int(match[1]) ** int(match[2] or "1") * UNITS[match[3]]


def test_the_table_of_limits_has_every_limit_with_its_default() -> None:
    table = DEPLOYMENT.partition("| setting | default |")[2].partition("\n\n")[0]
    said: dict[str, float] = {}
    for row in re.findall(r"^\| (`.*?) \| (.*?) \|", table, re.M):
        names = re.findall(r"`(\w+)`", row[0])
        values = [number(text) for text in row[1].split(", ")]
        said |= dict(zip(names, values if len(values) == len(names) else values * len(names), strict=True))
    assert said == {each.name: pytest.approx(each.default) for each in fields(Limits)}
