"""Operators of `ai.onnx.ml` on tensors of numbers: features made ready, linear models, trees of decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.values import NodeError, Result

Rule = Callable[[Node], Result]
COMPARISONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "BRANCH_LEQ": torch.le, "BRANCH_LT": torch.lt, "BRANCH_GTE": torch.ge, "BRANCH_GT": torch.gt, "BRANCH_EQ": torch.eq,
    "BRANCH_NEQ": torch.ne,
}  # fmt: skip


def _features(node: Node) -> Tensor:
    """[rows, features] of floats; one row where there is no dim of rows."""
    x = node.tensor(0)
    x = x if x.dtype == torch.float64 else x.float()
    return x if x.dim() > 1 else x.unsqueeze(0)


def _texts(node: Node, name: str) -> list[str]:
    found = node.attributes.get(name)
    if not isinstance(found, list):
        raise NodeError(f"its attribute '{name}' is missing", unsupported=False)
    return [each.decode(errors="replace") if isinstance(each, bytes) else str(each) for each in found]


def _floats(node: Node, name: str, default: Sequence[float]) -> Tensor:
    return torch.tensor(node.attr_floats(name) if node.given(name) else list(default), dtype=torch.float32)


def _transformed(node: Node, scores: Tensor) -> Tensor:
    how = node.attr_text("post_transform", "NONE")
    if how == "NONE":
        return scores
    if how == "LOGISTIC":
        return torch.sigmoid(scores)
    if how == "SOFTMAX":
        return torch.softmax(scores, -1)
    raise NodeError(f"scores transformed by {how}")


def _classes(node: Node, attribute: str) -> list[int]:
    if not node.given(attribute):
        raise NodeError("its labels are strings")
    return list(node.attr_ints(attribute))


def _labels(labels: Sequence[int], scores: Tensor) -> Tensor:
    """The label of the highest score."""
    if len(labels) != scores.shape[-1] or len(labels) < 3:
        raise NodeError(f"{len(labels)} classes; models of two classes have several conventions")
    return torch.tensor(labels)[torch.argmax(scores, -1)]


def _scaler(node: Node) -> Tensor:
    return (node.tensor(0).float() - _floats(node, "offset", [0.0])) * _floats(node, "scale", [1.0])


def _normalizer(node: Node) -> Tensor:
    x, norm = node.tensor(0).float(), node.attr_text("norm", "MAX")
    if norm not in ("MAX", "L1", "L2"):
        raise NodeError(f"norm '{norm}'", unsupported=False)
    size = x.amax(-1, True) if norm == "MAX" else x.abs().sum(-1, True) if norm == "L1" else torch.sqrt((x * x).sum(-1, True))
    return x / torch.where(size == 0, torch.ones_like(size), size)


def _binarizer(node: Node) -> Tensor:
    x = node.tensor(0)
    return (x > node.attr_float("threshold", 0.0)).to(x.dtype)


def _imputer(node: Node) -> Tensor:
    x = node.tensor(0)
    if not x.is_floating_point():
        values = torch.tensor(node.attr_ints("imputed_value_int64s"), dtype=x.dtype)
        return torch.where(x == node.attr_int("replaced_value_int64", 0), values, x)
    values, missing = _floats(node, "imputed_value_floats", []).to(x.dtype), node.attr_float("replaced_value_float", 0.0)
    return torch.where(torch.isnan(x) if missing != missing else x == missing, values, x)


def _vectorizer(node: Node) -> Tensor:
    parts = [each if each.dim() > 1 else each.unsqueeze(0) for each in node.tensors()]
    sizes = node.attr_ints("inputdimensions")
    if len(sizes) != len(parts) or any(part.dim() != 2 or part.shape[1] != size for part, size in zip(parts, sizes, strict=False)):
        raise NodeError("its inputs are not of the sizes in `inputdimensions`")
    return torch.cat([part.float() for part in parts], 1)


def _extractor(node: Node) -> Tensor:
    x, places = node.tensor(0), node.tensor(1).reshape(-1)
    return torch.index_select(x if x.dim() > 1 else x.unsqueeze(0), -1, places)


def _encoder(node: Node) -> Tensor:
    """Of numbers to numbers, by comparing with every key."""
    x = node.tensor(0)
    kinds = {torch.float32: "floats", torch.int64: "int64s"}
    if x.dtype not in kinds or not node.given(f"keys_{kinds[x.dtype]}"):
        raise NodeError("its keys are no attribute of numbers of the input's type")
    keys = torch.tensor(node.attributes[f"keys_{kinds[x.dtype]}"], dtype=x.dtype)
    dtype = next((kind for kind, name in kinds.items() if node.given(f"values_{name}")), None)
    if dtype is None:
        raise NodeError("its values are no attribute of numbers")
    values = torch.tensor(node.attributes[f"values_{kinds[dtype]}"], dtype=dtype)
    default = node.attr_float("default_float", -0.0) if dtype == torch.float32 else node.attr_int("default_int64", -1)
    same = x.unsqueeze(-1) == keys
    if x.is_floating_point():
        same = same | (torch.isnan(x).unsqueeze(-1) & torch.isnan(keys))
    first = torch.argmax(same.to(torch.int64), -1)
    return torch.where(same.any(-1), values[first], torch.full_like(values[first], default))


def _linear_scores(node: Node, targets: int) -> Tensor:
    x = _features(node)
    weight = _floats(node, "coefficients", []).to(x.dtype).reshape(targets, -1)
    return x @ weight.t() + _floats(node, "intercepts", [0.0]).to(x.dtype)


def _linear_regressor(node: Node) -> Tensor:
    return _transformed(node, _linear_scores(node, node.attr_int("targets", 1)).float())


def _linear_classifier(node: Node) -> Result:
    labels = _classes(node, "classlabels_ints")
    scores = _linear_scores(node, len(labels)).float()
    return _labels(labels, scores), _transformed(node, scores)


# --- trees ------------------------------------------------------------------------------------------------------------------------


class _Trees:
    """All nodes of all trees in one table each: where a row goes next, itself from a leaf."""

    def __init__(self, node: Node) -> None:
        """Raises: NodeError for trees that are none."""
        keys = list(zip(node.attr_ints("nodes_treeids"), node.attr_ints("nodes_nodeids"), strict=True))
        self.places = {key: place for place, key in enumerate(keys)}
        self.modes = _texts(node, "nodes_modes")
        both = [node.attr_ints(f"nodes_{side}nodeids") for side in ("true", "false")]
        self.next = [
            [
                place if mode == "LEAF" else self._place((tree, target))
                for place, ((tree, _), mode, target) in enumerate(zip(keys, self.modes, side, strict=True))
            ]
            for side in both
        ]
        targets = {target for side in self.next for place, target in enumerate(side) if target != place}
        self.roots = [place for place in range(len(keys)) if place not in targets]
        self.depth = self._depth()

    def _place(self, key: tuple[int, int]) -> int:
        if key not in self.places:
            raise NodeError(f"node {key[1]} of tree {key[0]} is not there", unsupported=False)
        return self.places[key]

    def _depth(self) -> int:
        level, depth = set(self.roots), 0
        while level := {side[place] for side in self.next for place in level if side[place] != place}:
            depth += 1
            if depth > len(self.modes):
                raise NodeError("its trees have a cycle", unsupported=False)
        return depth

    def leaves(self, node: Node, x: Tensor) -> Tensor:
        """[rows, trees]: the node where each row ends."""
        kinds = sorted({mode for mode in self.modes if mode != "LEAF"})
        if unknown := [kind for kind in kinds if kind not in COMPARISONS]:
            raise NodeError(f"branches of mode {unknown[0]}")
        count = len(self.modes)
        features = torch.tensor(node.attr_ints("nodes_featureids"))
        bounds, missing = _weights(node, "nodes_values").to(x.dtype), node.attr_ints("nodes_missing_value_tracks_true", [0] * count)
        yes, no = (torch.tensor(side) for side in self.next)
        modes = [torch.tensor([mode == kind for mode in self.modes]) for kind in kinds]
        at = (torch.zeros_like(x[:, :1], dtype=torch.int64) + torch.tensor(self.roots)).reshape(-1, len(self.roots))
        for _ in range(self.depth):
            value, bound = torch.gather(x, 1, features[at]), bounds[at]
            taken = COMPARISONS[kinds[0]](value, bound)
            for kind, own in zip(kinds[1:], modes[1:], strict=True):
                taken = torch.where(own[at], COMPARISONS[kind](value, bound), taken)
            if any(missing):
                taken = taken | (torch.isnan(value) & torch.tensor([bool(each) for each in missing])[at])
            at = torch.where(taken, yes[at], no[at])
        return at


def _weights(node: Node, name: str) -> Tensor:
    stored = node.attributes.get(f"{name}_as_tensor")
    return stored if isinstance(stored, Tensor) else _floats(node, name, [])


def _tree_sums(node: Node, kind: str, targets: int) -> Tensor:
    """[rows, targets]: what the leaves add up to. kind: how the attributes of leaves begin."""
    trees, x = _Trees(node), _features(node)
    weights = _weights(node, f"{kind}_weights")
    keys = zip(node.attr_ints(f"{kind}_treeids"), node.attr_ints(f"{kind}_nodeids"), strict=True)
    slots = [trees.places[key] * targets + target for key, target in zip(keys, node.attr_ints(f"{kind}_ids"), strict=True)]
    table = torch.zeros(len(trees.modes) * targets, dtype=weights.dtype).index_add(0, torch.tensor(slots), weights)
    sums = table.reshape(-1, targets)[trees.leaves(node, x)].sum(1)
    aggregate = node.attr_text("aggregate_function", "SUM")
    if aggregate not in ("SUM", "AVERAGE"):
        raise NodeError(f"leaves that are combined by {aggregate}")
    sums = sums / len(trees.roots) if aggregate == "AVERAGE" else sums
    base = _weights(node, "base_values")
    return (sums + base if base.numel() else sums).float()


def _tree_regressor(node: Node) -> Tensor:
    return _transformed(node, _tree_sums(node, "target", node.attr_int("n_targets", 1)))


def _tree_classifier(node: Node) -> Result:
    labels = _classes(node, "classlabels_int64s")
    scores = _tree_sums(node, "class", len(labels))
    return _labels(labels, scores), _transformed(node, scores)


RULES: dict[str, Rule] = {
    "Scaler": _scaler, "Normalizer": _normalizer, "Binarizer": _binarizer, "Imputer": _imputer, "FeatureVectorizer": _vectorizer,
    "ArrayFeatureExtractor": _extractor, "LabelEncoder": _encoder, "LinearRegressor": _linear_regressor,
    "LinearClassifier": _linear_classifier, "TreeEnsembleRegressor": _tree_regressor, "TreeEnsembleClassifier": _tree_classifier,
}  # fmt: skip
