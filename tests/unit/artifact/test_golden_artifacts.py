"""Artifacts of every version, kept as they were written: each still gives its results, or is refused with the advice to rebuild it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from containers import taken_apart

from disc.artifact import file as artifact
from disc.errors import ArtifactError
from disc.ral import executable

GOLDEN = Path(__file__).parents[2] / "golden"
FILES = sorted(GOLDEN.glob("*/*.disc"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_gives_its_results_or_says_rebuild(path: Path) -> None:
    try:
        exe = executable.load(path, threads=1)
    except ArtifactError as error:
        assert taken_apart(path.read_bytes()).version != artifact.FORMAT_VERSION, error
        assert "rebuild" in str(error)
        return
    stored = np.load(path.with_suffix(".npz"))
    result = exe(*(stored[f"input{index}"] for index in range(len(exe.manifest["inputs"]))))
    for index, each in enumerate(result if isinstance(result, tuple) else (result,)):
        np.testing.assert_allclose(each, stored[f"output{index}"], rtol=2e-5, atol=2e-6)
    artifact.verify(path)


def test_there_are_some() -> None:
    assert len(FILES) >= 3
