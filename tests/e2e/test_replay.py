"""tools/disc_replay.py: the small models compile to what is recorded (test_models.py compares the others), and what it says of changes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from disc_replay import differences, recorded_differences
from replay_digests import Links, compile_models, describe, digests_of, recorded_digests, small_models, stable
from shared_objects import own_objects

import disc
from tests.models import MODELS

Descriptions = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Descriptions:
    """What the small models compile to."""
    with own_objects():
        return compile_models(list(small_models()), tmp_path_factory.mktemp("replay"))


def test_small_models_compile_to_what_is_recorded(small: Descriptions) -> None:
    recorded = recorded_digests()
    assert {name: recorded_differences(recorded[name], each) for name, each in small.items()} == {name: [] for name in small}


def test_every_model_is_recorded() -> None:
    assert set(recorded_digests()) == {*MODELS, *small_models()}


def test_every_change_is_seen(small: Descriptions) -> None:
    old = small["perceptron"]
    assert differences(old, copy.deepcopy(old)) == []
    code, weights, words = copy.deepcopy(old), copy.deepcopy(old), copy.deepcopy(old)
    code["objects"]["x86-64-v3"] = code["objects"]["x86-64-v4"]
    weights["weights"] = "0"
    words["manifest"]["targets"]["x86-64-v4"]["kernels"][0]["notes"].append("another note")
    assert differences(old, code) == recorded_differences(digests_of(old), code) == ["objects for x86-64-v3"]
    assert differences(old, weights) == ["weights"]
    assert any("another note" in line for line in differences(old, words))
    assert recorded_differences(digests_of(old), words) == ["manifest"]
    error = {"error": "CompilerBug: no"}
    assert differences(old, error) == recorded_differences(digests_of(old), error) == ["error: CompilerBug: no"]
    assert recorded_differences(None, old) == ["not recorded"]


def test_source_lines_do_not_count(small: Descriptions) -> None:
    message = "index {actual} is out of range for a dim of size 3 at torch/sparse.py:191, a/b-c.py:2 (gather)"
    assert stable({"message": message, "lines": ["a.py:3"]}) == {
        "message": "index {actual} is out of range for a dim of size 3 at (gather)"
    }
    assert ".py:" not in json.dumps([each["manifest"] for each in small.values()])


def test_code_that_was_linked_out_of_sight_is_an_error(tmp_path: Path) -> None:
    model, inputs, _ = small_models()["elementwise"]
    disc.compile(model, inputs).save(tmp_path / "model.disc")
    with pytest.raises(LookupError, match="no `ld` on PATH"):
        describe(tmp_path / "model.disc", Links(tmp_path / "log"))
