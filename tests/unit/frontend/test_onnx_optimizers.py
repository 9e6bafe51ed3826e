"""Operators of `ai.onnx.preview.training`, against ONNX's reference: two tensors of dynamic size, first and later steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import disc
from disc.config import Options

DOMAIN = "ai.onnx.preview.training"
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "Adagrad": ("Adagrad", 1, {"norm_coefficient": 0.001, "epsilon": 1e-5, "decay_factor": 0.1}),
    "Adam": ("Adam", 2, {"norm_coefficient": 0.001, "alpha": 0.95, "beta": 0.1, "epsilon": 1e-7}),
    "Adam, decayed after": ("Adam", 2, {"norm_coefficient_post": 0.01}),
    "Momentum": ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.5, "mode": "standard"}),
    "Momentum, nesterov": ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.5, "mode": "nesterov"}),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_of_optimizers(name: str, tmp_path: Path) -> None:
    operator, kept, attributes = CASES[name]
    letters = "XGVH"[: 2 + kept]
    given = [f"{letter}{place}" for letter in letters for place in (1, 2)]
    made = [f"new_{letter}{place}" for letter in letters.replace("G", "") for place in (1, 2)]
    node = helper.make_node(operator, ["R", "T", *given], made, domain=DOMAIN, **attributes)
    inputs = [helper.make_tensor_value_info("R", TensorProto.FLOAT, []), helper.make_tensor_value_info("T", TensorProto.INT64, [])]
    inputs += [helper.make_tensor_value_info(each, TensorProto.FLOAT, ["n"] if each[-1] == "1" else ["n", "m"]) for each in given]
    outputs = [helper.make_tensor_value_info(each, TensorProto.FLOAT, [None] * int(each[-1])) for each in made]
    graph = helper.make_graph([node], operator, inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)], ir_version=10)
    onnx.save(model, tmp_path / "model.onnx")
    exe, reference = disc.compile(tmp_path / "model.onnx", options=Options(cache=False)), ReferenceEvaluator(model)
    random = np.random.default_rng(0)
    for n, m, steps in ((3, 5, 0), (1, 1, 1), (7, 2, 12), (0, 4, 3)):
        tensors = [random.random([n] if each[-1] == "1" else [n, m], np.float32) for each in given]
        call = [np.array(0.1, np.float32), np.array(steps, np.int64), *tensors]
        wanted = reference.run(None, dict(zip(("R", "T", *given), call, strict=True)))
        for have, want in zip(exe.flat(*call), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(have), np.asarray(want), 1e-5, 1e-6)
