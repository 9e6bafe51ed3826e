"""`TfIdfVectorizer` on integers: how often runs of tokens occur."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from disc.frontend.onnx.node import Node
from disc.frontend.onnx.values import NodeError, Result

Rule = Callable[[Node], Result]


def _vectorized(node: Node) -> Tensor:
    """tokens [length] or [batch, length] → [values] or [batch, values].

    A run of n tokens of the pool is looked for with 0 to `max_skip_count` tokens left out between each two of its tokens.
    """
    x, mode = node.tensor(0), node.attr_text("mode")
    if not node.given("pool_int64s"):
        raise NodeError("a pool of strings")
    pool, starts, places = node.attr_ints("pool_int64s"), node.attr_ints("ngram_counts"), node.attr_ints("ngram_indexes")
    counts: list[Tensor] = []
    kept: list[int] = []
    number = 0
    for i, start in enumerate(starts):
        size, end = i + 1, starts[i + 1] if i + 1 < len(starts) else len(pool)
        runs = torch.tensor(pool[start:end]).reshape(-1, size)
        if node.attr_int("min_gram_length") <= size <= node.attr_int("max_gram_length") and len(runs):
            counts.append(_occurrences(x, runs, node.attr_int("max_skip_count") if size > 1 else 0))
            kept += places[number : number + len(runs)]
        number += len(runs)
    width = max(places) + 1
    to_place = torch.zeros(len(kept), width)
    to_place[torch.arange(len(kept)), torch.tensor(kept)] = 1.0
    found = torch.matmul(torch.cat(counts, -1), to_place)
    weights = torch.tensor(node.attr_floats("weights")) if node.given("weights") else torch.ones(width)
    if mode == "TF":
        return found
    return found * weights if mode == "TFIDF" else torch.where(found > 0, weights, torch.zeros_like(found))


def _occurrences(x: Tensor, runs: Tensor, most_skipped: int) -> Tensor:
    """[..., runs], f32."""
    size = runs.shape[1]
    total = torch.zeros(*x.shape[:-1], runs.shape[0])
    for skipped in range(most_skipped + 1):
        reach = (size - 1) * (skipped + 1)
        length = x.shape[-1] - reach
        if isinstance(length, int) and length <= 0:
            continue
        same = torch.ones([], dtype=torch.bool)
        for k in range(size):
            same = same & (x.narrow(-1, k * (skipped + 1), length).unsqueeze(-1) == runs[:, k].to(x.dtype))
        total = total + same.to(torch.float32).sum(-2)
    return total


RULES: dict[str, Rule] = {"TfIdfVectorizer": _vectorized}
