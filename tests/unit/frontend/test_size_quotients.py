"""Quotients of sizes that a model computes in steps: equal to Python's, made without a search for a shorter form."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
from sympy.solvers import inequalities
from torch.utils._sympy.functions import FloorDiv, Mod

from disc.frontend.size_quotients import quick_quotients

H, W = sympy.symbols("h w", integer=True, positive=True)


def _padded(size: Any, window: Any) -> Any:
    return size + Mod(window - Mod(size, window), window)


def test_a_common_factor_is_cancelled_without_simplification(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a quotient was simplified")

    monkeypatch.setattr(sympy, "simplify", refuse)
    with quick_quotients():
        height = _padded(FloorDiv(H + 1, 2), 4)
        width = _padded(FloorDiv(W + 1, 2), 4)
        quotients = [
            (6 * H + 4 * W, sympy.Integer(8)),
            (4 * H + 2, sympy.Integer(4)),
            (8 * H * W, 12 * W),
            (height * width * 32, 64 * width),
            (3 * height * width + 6 * width * W, 9 * width),
            (height * width, 2 * width),
            (6 * width, 4 * width),
            (height * width * 2 + width * W, 3 * width),
            (H * W, H + W),
            (2 * H * W, 4 * (H + W)),
            (-6 * H, sympy.Integer(4)),
        ]
        found = [FloorDiv(*each) for each in quotients]
    for (above, below), quotient in zip(quotients, found, strict=True):
        for h in (1, 2, 7, 16):
            for w in (1, 3, 8):
                values = {H: sympy.Integer(h), W: sympy.Integer(w)}
                assert int(quotient.xreplace(values)) == int(above.xreplace(values)) // int(below.xreplace(values)), (above, below, h, w)
    assert found[3] == FloorDiv(height, 2) and found[6] == 1  # the common factor is gone


def test_pytorch_has_its_own_again() -> None:
    before = FloorDiv.eval
    with pytest.raises(RuntimeError), quick_quotients():
        assert FloorDiv.eval != before
        raise RuntimeError
    assert FloorDiv.eval == before


@pytest.mark.parametrize("positive", [True, None])
def test_a_lone_bound_is_what_sympy_makes_of_it(positive: bool | None) -> None:
    size = sympy.Symbol("size", integer=True, positive=positive)
    real = sympy.Symbol("real")
    asked = [
        ({size >= 2}, size),
        ({size >= 2, size <= 7}, size),
        ({size <= 7}, size),
        ({size > 3}, size),
        ({2 * size >= 8}, size),
        ({real >= 2}, real),
    ]
    wanted = [inequalities.reduce_inequalities(*each) for each in asked]
    with quick_quotients():
        assert [inequalities.reduce_inequalities(*each) for each in asked] == wanted
    assert wanted[0] == sympy.Le(2, size)
