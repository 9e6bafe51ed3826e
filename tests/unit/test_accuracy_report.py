"""tools/accuracy_report.py: its arithmetic, and one small model from compile to report."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from bench.cases import CASES, Case
from bench.cases.case import random_tensor
from tools import accuracy_report
from tools.accuracy_report import chosen, main, measure, relative_error

TINY = Case("tiny", "Tiny", lambda: nn.Linear(64, 48), lambda shape: (random_tensor(shape[0], 64),), ((1,), (7,), (9,)), (0,), (5,))


def test_relative_to_the_mean_magnitude() -> None:
    expected = torch.tensor([1.0, -3.0, 0.0, 4.0])  # 2 on average
    assert relative_error(expected, expected) == (0, 0)
    assert relative_error(torch.tensor([1.5, -3.0, 0.0, 3.5]), expected) == (0.125, 0.25)
    assert relative_error(torch.tensor([1.0, -3.0, -8.0, 4.0]), expected) == (1, 4), "an element that should be zero counts as any other"


def test_sums_do_not_round() -> None:
    expected = torch.full((1 << 12,), 1000.0, dtype=torch.float16)  # their sum is beyond f16
    assert relative_error(expected + 1, expected) == (0.001, 0.001)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_no_small_error(wrong: float) -> None:
    assert relative_error(torch.tensor([1.0, wrong]), torch.ones(2)) == (math.inf, math.inf)


@pytest.mark.parametrize("expected", [torch.zeros(2), torch.empty(0), torch.tensor([1.0, math.nan]), torch.tensor([1.0, math.inf])])
def test_no_scale(expected: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="mean magnitude"):
        relative_error(torch.ones_like(expected), expected)


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="differ"):
        relative_error(torch.ones(1), torch.ones(3))


def test_chosen_shapes() -> None:
    assert chosen("bert-small=1x16,3x21") == (CASES["bert-small"], ((1, 16), (3, 21)))
    assert chosen("bert-small")[1] == CASES["bert-small"].shapes[:2]
    for text, says in (("bort", "no model 'bort'"), ("vit=1x2x3", "shapes of vit")):
        with pytest.raises(ValueError, match=says):
            chosen(text)


def test_each_dtype_rounds_as_it_should() -> None:
    rows = list(measure(TINY, [(1,), (7,)], ["bf16", "f16", "int8"], 1))
    assert [(row.dtype, row.shape) for row in rows] == [(dtype, shape) for dtype in ("f32", "bf16", "f16", "int8") for shape in "17"]
    for row in rows:
        low, high = {"f32": (0, 1e-6), "f16": (1e-5, 1e-3), "bf16": (2e-4, 1e-2), "int8": (1e-3, 3e-2)}[row.dtype]
        assert low <= row.mean < high and row.mean <= row.max < 10 * high


def test_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(accuracy_report.CASES, "tiny", TINY)
    assert main(["--model", "tiny=7", "--dtype", "bf16", "--output", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*/accuracy.json")
    value, text, printed = json.loads(path.read_text()), path.with_suffix(".md").read_text(), capsys.readouterr().out
    assert value["command"] == "tools/accuracy_report.py --model tiny=7 --dtype bf16"
    assert [(row["model"], row["dtype"], row["shape"]) for row in value["results"]] == [("tiny", "f32", "7"), ("tiny", "bf16", "7")]
    assert value["definition"] == accuracy_report.DEFINITION and value["machine"]["commit"]
    assert accuracy_report.DEFINITION in text and accuracy_report.DEFINITION in printed
    assert "## Tiny" in text and f"| bf16  | 7     |      0 | {value['results'][1]['mean']:.1e} |" in text


@pytest.mark.parametrize("arguments", [["--dtype", "f32"], ["--model", "bort"]])
def test_mistakes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert "error: " in capsys.readouterr().err
