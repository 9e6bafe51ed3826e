"""Operators of `ai.onnx.ml` on tensors of numbers: features made ready, linear models, support vectors, trees of decisions."""

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
    if len(labels) != scores.shape[-1]:
        raise NodeError(f"{len(labels)} labels for {scores.shape[-1]} scores", unsupported=False)
    return torch.tensor(labels)[torch.argmax(scores, -1)]


def _two_classes(node: Node, labels: Sequence[int], score: Tensor, least: float, complement: bool) -> Result:
    """Of two classes by the one score, [rows], of the second, as ONNX Runtime has it. least: above which it is that class; complement:
    whether the first has what is missing to 1, otherwise the opposite."""
    chosen = torch.where(score > least, labels[1], labels[0])
    if node.attr_text("post_transform", "NONE") == "LOGISTIC":
        return chosen, torch.sigmoid(torch.stack((-score, score), -1))
    if node.attr_text("post_transform", "NONE") not in ("NONE", "SOFTMAX"):
        raise NodeError(f"scores of two classes transformed by {node.attr_text('post_transform', 'NONE')}")
    return chosen, torch.stack((1 - score if complement else -score, score), -1)


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
    x, weight = _features(node), _floats(node, "coefficients", [])
    if not weight.numel() or weight.numel() % targets:
        raise NodeError(f"{weight.numel()} coefficients for {targets} targets", unsupported=False)
    weight = weight.to(x.dtype).reshape(targets, -1)
    return x @ weight.t() + _floats(node, "intercepts", [0.0]).to(x.dtype)


def _linear_regressor(node: Node) -> Tensor:
    return _transformed(node, _linear_scores(node, node.attr_int("targets", 1)).float())


def _linear_classifier(node: Node) -> Result:
    labels, intercepts = _classes(node, "classlabels_ints"), node.attr_floats("intercepts") if node.given("intercepts") else [0.0]
    if len(labels) == 2 and len(intercepts) == 1 and len(node.attr_floats("coefficients")) == _features(node).shape[-1]:
        return _two_classes(node, labels, _linear_scores(node, 1).float().squeeze(-1), 0.0, complement=True)
    scores = _linear_scores(node, len(labels)).float()
    return _labels(labels, scores), _transformed(node, scores)


# --- support vectors --------------------------------------------------------------------------------------------------------------


def _kernel(node: Node, x: Tensor, vectors: Tensor) -> Tensor:
    """[rows, vectors]: how alike each row is to each vector."""
    gamma, shift, degree = (node.attr_floats("kernel_params") if node.given("kernel_params") else [0.0, 0.0, 3.0])[:3]
    kind = node.attr_text("kernel_type", "LINEAR")
    if kind == "RBF":
        difference = x.unsqueeze(1) - vectors
        return torch.exp(-gamma * (difference * difference).sum(-1))
    product = x @ vectors.t()
    if kind == "LINEAR":
        return product
    if kind not in ("POLY", "SIGMOID"):
        raise NodeError(f"kernels of type {kind}", unsupported=False)
    return (gamma * product + shift) ** degree if kind == "POLY" else torch.tanh(gamma * product + shift)


def _vector_regressor(node: Node) -> Tensor:
    x, weights = _features(node).float(), _floats(node, "coefficients", [])
    count = node.attr_int("n_supports", 0)
    if count:
        vectors = _floats(node, "support_vectors", [])
        if weights.numel() != count or not vectors.numel() or vectors.numel() % count:
            raise NodeError(f"{vectors.numel()} numbers and {weights.numel()} coefficients for {count} support vectors", unsupported=False)
        scores = _kernel(node, x, vectors.reshape(count, -1)) @ weights.unsqueeze(-1)
    else:
        scores = _kernel(node, x, weights.unsqueeze(0))
    scores = scores + _floats(node, "rho", [0.0])[0]
    if node.attr_int("one_class", 0):
        return torch.where(scores > 0, 1.0, -1.0)
    return _transformed(node, scores)


# --- trees ------------------------------------------------------------------------------------------------------------------------


class _Trees:
    """All nodes of all trees in one table each: where a row goes next, itself from a leaf.

    modes: how each compares, "LEAF" of leaves; sides: the next place of each, where that holds and where not.
    """

    def __init__(self, modes: Sequence[str], sides: Sequence[Sequence[int]], roots: Sequence[int]) -> None:
        """Raises: NodeError for trees that are none."""
        self.modes, self.next, self.roots = modes, sides, roots
        self.depth = self._depth()

    def _depth(self) -> int:
        level, depth = set(self.roots), 0
        while level := {side[place] for side in self.next for place in level if side[place] != place}:
            depth += 1
            if depth > len(self.modes):
                raise NodeError("its trees have a cycle", unsupported=False)
        return depth

    def leaves(self, features: Tensor, bounds: Tensor, missing: Sequence[int], x: Tensor) -> Tensor:
        """[rows, trees]: the place where each row ends. features, bounds: what each node compares with what; missing: which take NaN for
        true."""
        kinds = sorted({mode for mode in self.modes if mode != "LEAF"})
        if unknown := [kind for kind in kinds if kind not in COMPARISONS]:
            raise NodeError(f"branches of mode {unknown[0]}")
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


def _numbered(node: Node) -> tuple[_Trees, dict[tuple[int, int], int]]:
    """The trees of an operator that numbers the nodes of each, and the place of each node."""
    keys = list(zip(node.attr_ints("nodes_treeids"), node.attr_ints("nodes_nodeids"), strict=True))
    places, modes = {key: place for place, key in enumerate(keys)}, _texts(node, "nodes_modes")

    def place_of(key: tuple[int, int]) -> int:
        if key not in places:
            raise NodeError(f"node {key[1]} of tree {key[0]} is not there", unsupported=False)
        return places[key]

    sides = [
        [
            place if mode == "LEAF" else place_of((tree, target))
            for place, ((tree, _), mode, target) in enumerate(zip(keys, modes, node.attr_ints(f"nodes_{side}nodeids"), strict=True))
        ]
        for side in ("true", "false")
    ]
    targets = {target for side in sides for place, target in enumerate(side) if target != place}
    return _Trees(modes, sides, [place for place in range(len(keys)) if place not in targets]), places


def _weights(node: Node, name: str) -> Tensor:
    stored = node.attributes.get(f"{name}_as_tensor")
    return stored if isinstance(stored, Tensor) else _floats(node, name, [])


def _tree_sums(node: Node, kind: str, targets: int) -> Tensor:
    """[rows, targets]: what the leaves add up to. kind: how the attributes of leaves begin."""
    (trees, places), x = _numbered(node), _features(node)
    weights = _weights(node, f"{kind}_weights")
    keys = zip(node.attr_ints(f"{kind}_treeids"), node.attr_ints(f"{kind}_nodeids"), strict=True)
    slots = [places[key] * targets + target for key, target in zip(keys, node.attr_ints(f"{kind}_ids"), strict=True)]
    table = torch.zeros(len(trees.modes) * targets, dtype=weights.dtype).index_add(0, torch.tensor(slots), weights)
    missing = node.attr_ints("nodes_missing_value_tracks_true", [0] * len(trees.modes))
    ends = trees.leaves(torch.tensor(node.attr_ints("nodes_featureids")), _weights(node, "nodes_values").to(x.dtype), missing, x)
    sums = table.reshape(-1, targets)[ends].sum(1)
    aggregate = node.attr_text("aggregate_function", "SUM")
    if aggregate not in ("SUM", "AVERAGE"):
        raise NodeError(f"leaves that are combined by {aggregate}")
    sums = sums / len(trees.roots) if aggregate == "AVERAGE" else sums
    base = _weights(node, "base_values")
    return (sums + base if base.numel() else sums).float()


TREE_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
AGGREGATES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda leaves: leaves.mean(1), lambda leaves: leaves.sum(1), lambda leaves: leaves.amin(1), lambda leaves: leaves.amax(1),
)  # fmt: skip


def _ensemble(node: Node) -> Tensor:
    """Inner nodes and leaves are numbered each for themselves, through all trees; the leaves stand behind the inner nodes here."""
    x, targets = _features(node), node.attr_int("n_targets", 1)
    splits, modes, weights = (node.attributes.get(name) for name in ("nodes_splits", "nodes_modes", "leaf_weights"))
    if not isinstance(splits, Tensor) or not isinstance(modes, Tensor) or not isinstance(weights, Tensor):
        raise NodeError("its attributes 'nodes_splits', 'nodes_modes' and 'leaf_weights' are no tensors", unsupported=False)
    inner, leaves = splits.numel(), weights.numel()
    ends = list(range(inner, inner + leaves))

    def side(name: str) -> list[int]:
        numbers = zip(node.attr_ints(f"nodes_{name}nodeids"), node.attr_ints(f"nodes_{name}leafs"), strict=True)
        found = [number + inner if is_leaf else number for number, is_leaf in numbers]
        if any(not 0 <= each < inner + leaves for each in found):
            raise NodeError("a node leads to one that is not there", unsupported=False)
        return [*found, *ends]

    names = [TREE_MODES[each] if 0 <= each < len(TREE_MODES) else str(each) for each in modes.tolist()]
    trees = _Trees([*names, *["LEAF"] * leaves], [side("true"), side("false")], node.attr_ints("tree_roots"))
    nothing = torch.zeros(leaves)
    features = torch.cat([torch.tensor(node.attr_ints("nodes_featureids")), nothing.to(torch.int64)])
    missing = [*node.attr_ints("nodes_missing_value_tracks_true", [0] * inner), *[0] * leaves]
    at = trees.leaves(features, torch.cat([splits.to(x.dtype), nothing.to(x.dtype)]), missing, x) - inner
    aggregate, transform = node.attr_int("aggregate_function", 1), node.attr_int("post_transform", 0)
    if not 0 <= aggregate < len(AGGREGATES) or (aggregate > 1 and targets > 1) or transform not in (0, 1, 2):
        raise NodeError(f"leaves of {targets} targets that are combined by function {aggregate}, transformed by {transform}")
    table = torch.zeros(leaves, targets, dtype=weights.dtype)
    table[torch.arange(leaves), torch.tensor(node.attr_ints("leaf_targetids"))] = weights
    sums = AGGREGATES[aggregate](table[at])
    return (sums, torch.softmax(sums, -1), torch.sigmoid(sums))[transform]


def _tree_regressor(node: Node) -> Tensor:
    return _transformed(node, _tree_sums(node, "target", node.attr_int("n_targets", 1)))


def _tree_classifier(node: Node) -> Result:
    labels = _classes(node, "classlabels_int64s")
    if len(labels) == 2:
        if any(node.attr_ints("class_ids")) or _weights(node, "base_values").numel() > 1:
            raise NodeError("two classes whose leaves are not all of the first: these have several conventions")
        stored = node.attributes.get("class_weights_as_tensor")
        weights = stored.tolist() if isinstance(stored, Tensor) else node.attr_floats("class_weights")
        are_positive = all(weight >= 0 for weight in weights)
        return _two_classes(node, labels, _tree_sums(node, "class", 1).squeeze(-1), 0.5 if are_positive else 0.0, are_positive)
    scores = _tree_sums(node, "class", len(labels))
    return _labels(labels, scores), _transformed(node, scores)


RULES: dict[str, Rule] = {
    "Scaler": _scaler, "Normalizer": _normalizer, "Binarizer": _binarizer, "Imputer": _imputer, "FeatureVectorizer": _vectorizer,
    "ArrayFeatureExtractor": _extractor, "LabelEncoder": _encoder, "LinearRegressor": _linear_regressor,
    "LinearClassifier": _linear_classifier, "TreeEnsembleRegressor": _tree_regressor, "TreeEnsembleClassifier": _tree_classifier,
    "TreeEnsemble": _ensemble, "SVMRegressor": _vector_regressor,
}  # fmt: skip
