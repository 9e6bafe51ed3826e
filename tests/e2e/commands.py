"""Commands of `disc`, run within a test."""

from __future__ import annotations

import json

import pytest

from disc.cli.main import main


def output_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    """What a command prints with --json; it must end well."""
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)
