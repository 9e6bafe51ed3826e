"""The table of coefficients is what tools/fit_polynomials.py writes."""

from __future__ import annotations

from pathlib import Path

import fit_polynomials
import pytest


def test_the_pieces_of_tanh_are_those_that_the_tool_writes() -> None:
    """The last interval is no fit: a fitted one stops below 1."""
    (pieces,) = (each for each in fit_polynomials.PIECES if each.name == "TANH_PIECES_F32")
    assert fit_polynomials.rendered_pieces(pieces) in fit_polynomials.TABLE.read_text()


@pytest.mark.long
def test_the_table_is_what_the_tool_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = fit_polynomials.TABLE.read_text()
    monkeypatch.setattr(fit_polynomials, "TABLE", tmp_path / "coefficients.py")
    fit_polynomials.main([])
    assert (tmp_path / "coefficients.py").read_text() == kept
