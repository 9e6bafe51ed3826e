"""Operators of `ai.onnx.ml` on numbers, against ONNX Runtime: one compile, several numbers of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import disc
from disc.config import Options
from disc.errors import UnsupportedOpError

runtime = pytest.importorskip("onnxruntime")
DOMAIN = "ai.onnx.ml"
Array = np.ndarray
RANDOM = np.random.default_rng(0)
ODD = np.array([[np.nan, 1, 0, 3], [np.inf, -np.inf, 0, np.nan]], np.float32)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def model(
    operator: str, inputs: Sequence[tuple[str, type, Sequence[str | int]]], results: Sequence[type], **attributes: Any
) -> onnx.ModelProto:
    """opset: among the attributes, where it is not 3."""
    made, opset = [f"y{place}" for place in range(len(results))], attributes.pop("opset", 3)
    node = helper.make_node(operator, [name for name, *_ in inputs], made, domain=DOMAIN, **attributes)
    given = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), dims) for name, kind, dims in inputs]
    ranks = [1, 2] if len(results) > 1 else [len(inputs[0][2])]
    outputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [None] * rank)
        for name, kind, rank in zip(made, results, ranks, strict=True)
    ]
    graph = helper.make_graph([node], operator, given, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, opset)], ir_version=10)


def compiled(made: onnx.ModelProto, folder: Path) -> disc.Executable:
    onnx.save(made, folder / "model.onnx")
    return disc.compile(folder / "model.onnx", options=Options(cache=False))


def check(made: onnx.ModelProto, calls: Sequence[Sequence[Array]], folder: Path) -> None:
    exe = compiled(made, folder)
    session = runtime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    for call in calls:
        wanted = session.run(None, {each.name: array for each, array in zip(made.graph.input, call, strict=True)})
        found = exe(*call)
        for have, want in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(have), want, 1e-5, 1e-5)


FLOATS = ("x", np.float32, ("n", 4))
ROWS = [[normal(rows, 4)] for rows in (3, 1, 7)]
CASES: Mapping[str, tuple[str, Sequence[Any], Sequence[type], Sequence[Sequence[Array]], Mapping[str, Any]]] = {
    "Scaler": ("Scaler", [FLOATS], [np.float32], ROWS, {"scale": [1.0, 2.0, 3.0, 4.0], "offset": [0.1, 0.2, 0.3, 0.4]}),
    "Scaler, one": ("Scaler", [FLOATS], [np.float32], ROWS, {"scale": [2.0], "offset": [0.1]}),
    **{
        f"Normalizer, {norm}": ("Normalizer", [FLOATS], [np.float32], [*ROWS, [np.zeros((2, 4), np.float32)]], {"norm": norm})
        for norm in ("MAX", "L1", "L2")
    },
    "Binarizer": ("Binarizer", [FLOATS], [np.float32], ROWS, {"threshold": 0.3}),
    "Imputer": (
        "Imputer", [FLOATS], [np.float32], [*ROWS, [ODD]], {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": float("nan")},
    ),
    "Imputer, whole": (
        "Imputer", [("x", np.int64, ("n", 4))], [np.int64], [[np.array([[3, 1, 3, 0]])]], {"imputed_value_int64s": [9], "replaced_value_int64": 3},
    ),
    "FeatureVectorizer": (
        "FeatureVectorizer", [FLOATS, ("z", np.float32, ("n", 2))], [np.float32], [[normal(3, 4), normal(3, 2)]], {"inputdimensions": [4, 2]},
    ),
    "ArrayFeatureExtractor": (
        "ArrayFeatureExtractor", [FLOATS, ("i", np.int64, (2,))], [np.float32], [[normal(3, 4), np.array([2, 0])]], {},
    ),
    "LabelEncoder": (
        "LabelEncoder", [("x", np.int64, ("n",))], [np.float32], [[np.array([1, 5, 2, 9])]],
        {"keys_int64s": [1, 5, 9], "values_floats": [0.5, 1.5, 2.5], "default_float": -2.0},
    ),
    "LinearRegressor": (
        "LinearRegressor", [FLOATS], [np.float32], ROWS,
        {"coefficients": [float(each) for each in range(8)], "intercepts": [0.5, 1.0], "targets": 2},
    ),
    **{
        f"LinearClassifier, {how}": (
            "LinearClassifier", [FLOATS], [np.int64, np.float32], ROWS,
            {"coefficients": normal(12).tolist(), "intercepts": [0.5, 1.0, 0.1], "classlabels_ints": [10, 20, 7], "post_transform": how},
        )
        for how in ("NONE", "LOGISTIC", "SOFTMAX")
    },
    **{
        f"LinearClassifier of two classes, {how}, {rows} rows of weights": (
            "LinearClassifier", [FLOATS], [np.int64, np.float32], [*ROWS, [normal(50, 4)]],
            {"coefficients": normal(4 * rows).tolist(), "intercepts": [0.5, 1.0][:rows], "classlabels_ints": [10, 7], "post_transform": how},
        )
        for how in ("NONE", "LOGISTIC", "SOFTMAX")
        for rows in (1, 2)
    },
    **{
        f"SVMRegressor, {kernel}, {one_class}": (
            "SVMRegressor", [FLOATS], [np.float32], ROWS,
            {"coefficients": normal(5).tolist(), "support_vectors": normal(20).tolist(), "n_supports": 5, "kernel_type": kernel,
             "kernel_params": [0.3, 0.2, 2.0], "rho": [0.1], "one_class": one_class},
        )
        for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID")
        for one_class in (0, 1)
    },
    "SVMRegressor without vectors": (
        "SVMRegressor", [FLOATS], [np.float32], ROWS, {"coefficients": normal(4).tolist(), "kernel_type": "LINEAR", "rho": [0.1], "kernel_params": [0.0, 0.0, 3.0]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_features_and_linear_models(name: str, tmp_path: Path) -> None:
    operator, inputs, results, calls, attributes = CASES[name]
    check(model(operator, inputs, results, **attributes), calls, tmp_path)


def trees(mode: str, targets: int, tracks: bool) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Attributes of nodes, and of leaves without the beginnings of their names, of five random trees."""
    random = np.random.default_rng(1)
    nodes: dict[str, list[Any]] = {}
    leaves: dict[str, list[Any]] = {}

    def grown(tree: int, depth: int, counted: list[int]) -> int:
        own, place = counted[0], len(nodes.get("nodeids", ()))
        counted[0] += 1
        splits = depth > 0 and random.random() < 0.85
        described = {
            "nodeids": own, "treeids": tree, "featureids": int(random.integers(4)), "values": float(random.standard_normal()),
            "modes": mode if splits else "LEAF", "truenodeids": 0, "falsenodeids": 0, "missing_value_tracks_true": int(tracks),
        }  # fmt: skip
        for key, value in described.items():
            nodes.setdefault(key, []).append(value)
        if splits:
            nodes["truenodeids"][place] = grown(tree, depth - 1, counted)
            nodes["falsenodeids"][place] = grown(tree, depth - 1, counted)
        for target in range(targets) if not splits else ():
            for key, value in {"treeids": tree, "nodeids": own, "ids": target, "weights": float(random.standard_normal())}.items():
                leaves.setdefault(key, []).append(value)
        return own

    for tree in range(5):
        grown(tree, 4, [0])
    return {f"nodes_{key}": value for key, value in nodes.items()}, leaves


@pytest.mark.parametrize("tracks", [False, True], ids=["", "tracks NaN"])
@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GT", "BRANCH_GTE"])
def test_trees_of_decisions(mode: str, tracks: bool, tmp_path: Path) -> None:
    calls = [*ROWS, [ODD]]
    for targets, aggregate in ((1, "SUM"), (3, "AVERAGE")):
        nodes, leaves = trees(mode, targets, tracks)
        of = {f"target_{key}": value for key, value in leaves.items()}
        how = {"n_targets": targets, "aggregate_function": aggregate, "base_values": [0.5] * targets}
        check(model("TreeEnsembleRegressor", [FLOATS], [np.float32], **how, **nodes, **of), calls, tmp_path)
    nodes, leaves = trees(mode, 3, tracks)
    of = {f"class_{key}": value for key, value in leaves.items()}
    for how in ("NONE", "SOFTMAX"):
        made = model(
            "TreeEnsembleClassifier", [FLOATS], [np.int64, np.float32], classlabels_int64s=[4, 5, 9], post_transform=how, **nodes, **of
        )
        check(made, calls, tmp_path)


@pytest.mark.parametrize("how", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("are_positive", [False, True])
def test_trees_of_two_classes(are_positive: bool, how: str, tmp_path: Path) -> None:
    nodes, leaves = trees("BRANCH_LEQ", 1, tracks=False)
    leaves["weights"] = [abs(each) / 5 for each in leaves["weights"]] if are_positive else leaves["weights"]
    of = {f"class_{key}": value for key, value in leaves.items()}
    for base in ({}, {"base_values": [0.25]}):
        labels = {"classlabels_int64s": [4, 9], "post_transform": how, **base}
        made = model("TreeEnsembleClassifier", [FLOATS], [np.int64, np.float32], **labels, **nodes, **of)
        check(made, [*ROWS, [normal(50, 4)]], tmp_path)


@pytest.mark.parametrize(("aggregate", "targets"), [(0, 2), (1, 1), (1, 3), (2, 1), (3, 1)])
def test_ensembles_of_version_5(aggregate: int, targets: int, tmp_path: Path) -> None:
    """Two trees: of three inner nodes and four leaves, of one and two."""
    floats = {"nodes_splits": [0.1, -0.5, 0.7, 0.2], "leaf_weights": [1.0, -2.0, 3.0, 0.5, 0.25, -1.0]}
    tensors = {name: helper.make_tensor(name, onnx.TensorProto.FLOAT, (len(values),), values) for name, values in floats.items()}
    modes = helper.make_tensor("nodes_modes", onnx.TensorProto.UINT8, (4,), bytes([0, 1, 3, 2]), raw=True)
    made = model(
        "TreeEnsemble", [FLOATS], [np.float32], opset=5, **tensors, nodes_modes=modes, nodes_featureids=[0, 1, 2, 3],
        nodes_truenodeids=[1, 0, 2, 4], nodes_trueleafs=[0, 1, 1, 1], nodes_falsenodeids=[2, 1, 3, 5], nodes_falseleafs=[0, 1, 1, 1],
        tree_roots=[0, 3], leaf_targetids=[place % targets for place in range(6)], n_targets=targets, aggregate_function=aggregate,
    )  # fmt: skip
    check(made, ROWS, tmp_path)


def test_what_has_several_conventions_is_refused_by_name(tmp_path: Path) -> None:
    nodes, leaves = trees("BRANCH_LEQ", 2, tracks=False)
    of = {f"class_{key}": value for key, value in leaves.items()}
    with pytest.raises(UnsupportedOpError, match="several conventions"):
        compiled(model("TreeEnsembleClassifier", [FLOATS], [np.int64, np.float32], classlabels_int64s=[4, 9], **nodes, **of), tmp_path)
    with pytest.raises(UnsupportedOpError, match="are strings"):
        labels = {"classlabels_strings": ["a", "b"], "coefficients": [1.0] * 4, "intercepts": [0.5]}
        compiled(model("LinearClassifier", [FLOATS], [np.int64, np.float32], **labels), tmp_path)
