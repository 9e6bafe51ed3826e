"""What is taken along to a machine with a GPU in place of arrays: seeds of arguments, sketches of results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpu_parts.arrays import PIECES, Arrays, Stored
from gpu_parts.driver import Array
from gpu_parts.report import BOUNDS, Row
from gpu_parts.weights import to_bf16

SIZE = 16411  # a prime beyond what is stored whole


def _stored(folder: Path, wanted: Array, element: str) -> tuple[Arrays, str]:
    stored = Stored()
    name = stored.result(wanted, element)
    np.savez_compressed(folder / "arrays.npz", **stored.plain)
    return Arrays(folder / "arrays.npz", stored.about), name


@pytest.mark.parametrize("element", ["f32", "f64", "bf16"])
def test_a_sketch_tells_how_far_a_result_is_off(tmp_path: Path, element: str) -> None:
    """The norm of the difference, of whatever elements; a single one counts as much as it differs."""
    random = np.random.default_rng(0)
    plain = random.standard_normal(SIZE).astype("f8" if element == "f64" else "f4")
    noise = random.standard_normal(SIZE).astype(plain.dtype)

    def as_stored(array: Array) -> Array:
        return to_bf16(array) if element == "bf16" else array

    arrays, name = _stored(tmp_path, as_stored(plain), element)
    assert arrays.layout(name) == ((SIZE,), as_stored(plain).dtype)

    def share(found: Array) -> float:
        row = Row("")
        text = arrays.judge(row, as_stored(found), name, element)
        assert (text == "") == (row.worst <= 1)
        return row.worst * BOUNDS[element]

    far = 0.5 if element == "bf16" else 1e-3  # bf16 itself rounds by 2e-3
    one = plain.copy()
    one[SIZE - 1] += 300 * far
    assert share(plain) < 1e-9
    assert share(plain + far * noise) == pytest.approx(far, rel=0.15)
    assert share(one) == pytest.approx(300 * far / np.linalg.norm(plain), rel=0.05)
    one[3] = np.nan if element != "bf16" else np.inf
    assert share(one) == np.inf


def test_a_checksum_tells_that_an_integer_differs(tmp_path: Path) -> None:
    wanted = np.arange(SIZE)
    arrays, name = _stored(tmp_path, wanted, "i64")
    assert arrays.judge(Row(""), wanted, name, "i64") == ""
    for at in (0, PIECES, SIZE - 1):
        found = wanted.copy()
        found[at] += 1
        assert "differs" in arrays.judge(Row(""), found, name, "i64")


def test_arguments_are_stored_once_and_large_ones_as_seeds(tmp_path: Path) -> None:
    stored, random = Stored(), np.random.default_rng(0)
    small, large = random.standard_normal((3, 5)).astype("f4"), random.standard_normal((73, 257)).astype("f4")
    drawn = [stored.draw(large, f"some {bf16}", bf16=bf16) for bf16 in (False, True)]
    assert all(each.std() == pytest.approx(1, rel=0.02) and abs(each.mean()) < 0.02 for each in drawn)
    given = {stored.argument(array): array for array in (small, small.copy(), drawn[0], drawn[0].reshape(257, 73), to_bf16(drawn[1]))}
    assert len(given) == 4 and len(stored.plain) == 1
    np.savez_compressed(tmp_path / "arrays.npz", **stored.plain)
    arrays = Arrays(tmp_path / "arrays.npz", stored.about)
    for name, array in given.items():
        assert np.array_equal(arrays.argument(name), array) and arrays.layout(name) == (array.shape, array.dtype)


def test_results_that_are_not_finite_are_stored_whole(tmp_path: Path) -> None:
    wanted = np.ones(SIZE, "f4")
    wanted[7] = np.nan
    arrays, name = _stored(tmp_path, wanted, "f32")
    assert arrays.judge(Row(""), wanted, name, "f32") == ""
    assert "differs" in arrays.judge(Row(""), np.ones(SIZE, "f4"), name, "f32")
