"""tools/import_share.py: how many calls go through torch-mlir is what the record, and the document, say."""

from __future__ import annotations

import pytest

from tools import import_share
from tools.import_share import Share, count, differences, main, recorded


@pytest.mark.parametrize("name", ["mlp", "vit", "t5-encoder"])
def test_counts_are_the_recorded_ones(name: str) -> None:
    assert differences({name: count(name)}) == []


def test_every_difference_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    torch_mlir, calls = recorded()["mlp"]
    monkeypatch.setattr(import_share, "count", lambda name: Share(torch_mlir - 1, calls))  # one call more takes an override
    assert main(["mlp", "--check"]) == 1
    assert f"mlp: {torch_mlir - 1} of {calls} calls; recorded: {torch_mlir} of {calls} calls" in capsys.readouterr().err
    assert main(["mlp"]) == 0, "no comparison was asked for"


def test_the_document_says_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    record = recorded()
    monkeypatch.setattr(import_share, "recorded", lambda: {**record, "mlp": Share(0, 1)})
    (found,) = differences({})
    assert "architecture.md" in found
    monkeypatch.setattr(import_share, "recorded", lambda: {name: share for name, share in record.items() if name != "mlp"})
    assert "['mlp']" in differences({})[0]
