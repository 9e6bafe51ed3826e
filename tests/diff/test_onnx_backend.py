"""Cases of `onnx.backend.test` by `tools/onnx_backend.py`: a few of them always, all with `--long`."""

from __future__ import annotations

import json
from pathlib import Path

import onnx_backend
import pytest

SAMPLE = {
    "gather": "test_gather_negative_indices", "attention": "test_attention_3d_gqa", "resize": "test_resize_downsample_sizes_cubic",
    "qlinearconv": "test_qlinearconv", "rangeop": "test_range_int32_type_negative_delta_expanded",
    "lstm": "test_lstm_with_peepholes",
}  # fmt: skip


@pytest.mark.parametrize(("module", "name"), SAMPLE.items())
def test_cases(module: str, name: str, tmp_path: Path) -> None:
    (case,) = (each for each in onnx_backend.cases([name], [module]) if each.name == name)
    found = onnx_backend.run(case, tmp_path)
    if found.kind == "refused":
        again = onnx_backend.with_constants(case)
        assert again is not None, found
        found = onnx_backend.run(again, tmp_path)
    assert found.kind == "right", found


@pytest.mark.long
def test_every_case_is_right_or_refused(tmp_path: Path) -> None:
    """What the record has as right stays right; nothing is wrong, and no exception is raw."""
    recorded = set(json.loads(onnx_backend.RECORD.read_text())["right"])
    faults: list[str] = []
    for case in onnx_backend.cases():
        found = onnx_backend.run(case, tmp_path)
        if found.kind in ("wrong", "raw") or (case.name in recorded and found.kind != "right"):
            faults.append(f"{case.name}: {found}")
    assert not faults
