"""Decisions of libraries whose meaning is known: what must really hold where PyTorch answered a comparison of sizes.

A library may test for a size of 1 for speed, or where the answer matters for some of its inputs only. Each entry says why less suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from disc.frontend.conditions import relation
from disc.frontend.symbols import to_size
from disc.shapes import ALWAYS, Condition, any_of

Weaken = Callable[[Mapping[str, object], Condition], Condition]


def _attention(names: Mapping[str, object], decided: Condition) -> Condition:
    """`q_length > 1 and attention_mask is None and is_causal`, `q_length == 1`: one query is not hidden from later keys, and groups of
    heads are laid out otherwise. Without a mask, a single query that was compiled as causal sees the first key alone: right where there
    is no other."""
    query, key = names.get("query"), names.get("key")
    if not isinstance(query, torch.Tensor) or not isinstance(key, torch.Tensor):
        return decided
    if names.get("attention_mask") is not None or names.get("is_causal") is False:
        return ALWAYS
    queries, keys = (to_size(each.shape[2]) for each in (query, key))
    if isinstance(queries, int) or set(decided.symbols()) != {str(symbol) for symbol in queries.free_symbols}:
        return decided
    return any_of((relation("!=", queries, 1), relation("==", queries, keys)))


def _cache_length(names: Mapping[str, object], decided: Condition) -> Condition:
    """`if self.keys.numel() == 0: return 0`, else `self.keys.shape[-2]`: the same where there are no positions."""
    keys = getattr(names.get("self"), "keys", None)
    if not isinstance(keys, torch.Tensor) or keys.dim() < 2:
        return decided
    return any_of((relation("==", to_size(keys.shape[-2]), 0), decided))


def _expanded_positions(names: Mapping[str, object], decided: Condition) -> Condition:
    """`if batch_size != position_ids.shape[0]: position_ids = position_ids.expand(batch_size, -1)`: one row expanded to one is itself."""
    positions, rows = names.get("position_ids"), names.get("inputs_embeds")
    if not isinstance(positions, torch.Tensor) or not isinstance(rows, torch.Tensor):
        return decided
    batch, one = to_size(rows.shape[0]), to_size(positions.shape[0]) == 1
    return ALWAYS if one and not isinstance(batch, int) and decided == relation("!=", batch, 1) else decided


KNOWN: dict[tuple[str, str], Weaken] = {
    ("transformers/cache_utils.py", "get_seq_length"): _cache_length,
    ("transformers/masking_utils.py", "_preprocess_mask_arguments"): _expanded_positions,
    ("transformers/integrations/sdpa_attention.py", "sdpa_attention_forward"): _attention,
}


def weakened(path: str, function: str, names: Mapping[str, object], decided: Condition) -> Condition:
    """What must hold for a condition that was decided in this function, with these local variables."""
    for (ending, name), weaken in KNOWN.items():
        if function == name and path.replace("\\", "/").endswith(ending):
            return weaken(names, decided)
    return decided
