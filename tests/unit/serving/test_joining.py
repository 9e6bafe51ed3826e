"""Requests that agree in what has no rows are joined along the rows of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from disc.artifact.bounds import SHARED
from disc.serving.joining import Concatenate, Inputs
from disc.serving.signature import Batch


@dataclass
class Request:
    inputs: Inputs

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"S0": self.inputs[0].shape[0]}


def request(rows: int, places: list[int], factor: float = 1.0) -> Request:
    return Request([np.full((rows, 4), float(rows)), np.array(places), np.array(factor)])


def test_what_has_no_rows_must_be_equal() -> None:
    joining = Concatenate(Batch("S0", (0, SHARED, SHARED), (0,), None))
    first, more = request(1, [0, 2]), request(3, [0, 2])
    assert joining.key(first) == joining.key(more) is not None
    for other in (request(1, [0, 3]), request(1, [0]), request(1, [0, 2], 2.0)):
        assert joining.key(other) != joining.key(first)
    rows, places, factor = joining.join([first, more])
    np.testing.assert_array_equal(rows, np.concatenate([first.inputs[0], more.inputs[0]]))
    np.testing.assert_array_equal(places, [0, 2])
    assert factor == 1.0
    parts = joining.split([rows], [first, more])
    np.testing.assert_array_equal(parts[0][0], first.inputs[0])
    np.testing.assert_array_equal(parts[1][0], more.inputs[0])
