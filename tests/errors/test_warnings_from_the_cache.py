"""What is warned of when a program is imported is said again where it comes from the cache."""

from pathlib import Path

import pytest
import torch

import disc
from disc.errors import DiscWarning


def test_a_model_in_training_mode_is_named_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISC_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("DISC_CACHE", raising=False)
    for compiles in (1, 0):
        torch.manual_seed(0)
        with pytest.warns(DiscWarning, match=r"the model is in training mode.*call model.eval\(\)"):
            exe = disc.compile(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)), (torch.randn(2, 4),))
        assert exe.stats()["compiles"] == compiles


def test_a_model_without_warnings_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISC_CACHE_DIR", str(tmp_path))
    assert "warnings" not in disc.compile(torch.nn.ReLU(), (torch.randn(2, 4),)).manifest
