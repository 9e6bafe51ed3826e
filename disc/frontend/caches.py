"""transformers' caches of keys and values among the arguments and results of a module: for torch.export they are plain structures.

model(ids, past_key_values=DynamicCache)  →  model(ids, past_key_values=CacheLayers([{"key": tensor, "value": tensor}, ...]))

What the model does to its cache in place is among its results, where it returns the cache; a cache that is given is not written.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from disc.artifact.structure import LAYER
from disc.errors import ExportError, InputTypeError
from disc.ral.caches import Layer, cache_of, is_cache, layers_of

Value = TypeVar("Value")


class CacheLayers(list[Layer]):
    """The key and the value of each layer, [batch, heads, length, size]."""


def _with_keys(layers: CacheLayers) -> list[tuple[Any, object]]:
    return [(pytree.SequenceKey(place), each) for place, each in enumerate(layers)]


pytree.register_pytree_node(
    CacheLayers,
    lambda layers: (list(layers), None),
    lambda layers, _: CacheLayers(layers),
    serialized_type_name="disc.CacheLayers",
    flatten_with_keys_fn=lambda layers: (_with_keys(layers), None),
)


def without_caches(inputs: tuple[object, ...], named: Mapping[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
    """Example inputs with layers in the place of caches. Raises InputTypeError for a cache that has no such form, or no tensors."""
    if "transformers.cache_utils" not in sys.modules:
        return inputs, dict(named)
    return _replaced((inputs, dict(named)), is_cache, _example_layers)


def is_layers(value: object) -> bool:
    return isinstance(value, CacheLayers)


def growing_dims(layers: CacheLayers) -> object:
    """The dims that are dynamic where the user names none: batch and length; heads and size are the model's."""
    return CacheLayers({part: {0: Dim.AUTO, 2: Dim.AUTO} for part in each} for each in layers)


def takes_layers(model: torch.nn.Module, inputs: object) -> torch.nn.Module:
    """The model, with layers in the place of caches, among its arguments and in what it returns; of the same class, with the same weights.

    inputs: of the example. A model that has no cache among them, and no part of transformers', is returned as it is.
    """
    if not any(map(is_layers, pytree.tree_leaves(inputs, is_leaf=is_layers))) and not any(map(_is_pretrained, model.modules())):
        return model
    taking = copy.copy(model)
    run = taking.forward

    @functools.wraps(run)
    def forward(*inputs: object, **named: object) -> object:
        inputs, named = _replaced((inputs, named), is_layers, lambda layers: cache_of(cast("CacheLayers", layers)))
        return _replaced(run(*inputs, **named), is_cache, _returned_layers)

    taking.forward = forward
    return taking


def _is_pretrained(module: torch.nn.Module) -> bool:
    kind = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    return kind is not None and isinstance(module, kind)


def _example_layers(cache: object) -> CacheLayers:
    layers = layers_of(cache, "the cache of the example")
    if not layers:
        raise InputTypeError(
            "the cache of the example is empty: give one whose layers have tensors [batch, heads, length, size], such as "
            "model(ids).past_key_values; the length does not matter"
        )
    return CacheLayers(layers)


def _returned_layers(cache: object) -> CacheLayers:
    try:
        return CacheLayers(layers_of(cache, "the cache that the model returns"))
    except InputTypeError as error:
        hint = "give the model a DynamicCache() made without a config, or set model.config.use_cache = False"
        raise ExportError(f"{error}: {hint}") from None


def _replaced(value: Value, matches: Callable[[object], bool], replace: Callable[[object], object]) -> Value:
    """The value itself where nothing in it matches."""
    if not any(map(matches, pytree.tree_leaves(value, is_leaf=matches))):
        return value
    return pytree.tree_map(lambda leaf: replace(leaf) if matches(leaf) else leaf, value, is_leaf=matches)


def by_parts(tree: pytree.TreeSpec) -> bool:
    """Whether the tree is a DynamicCache as transformers registers it with PyTorch for exports of one's own: a list of keys, and one of
    values. Not one that keeps the last tokens alone."""
    whole = f"{tree.type.__module__}.{tree.type.__qualname__}" == "transformers.cache_utils.DynamicCache"
    if not whole or not isinstance(tree.context, list) or len(tree.context) != 2:
        return False
    kinds, windows = tree.context
    layers = [part.num_children for part in tree.children()]
    return kinds == ["key_cache", "value_cache"] and layers == [len(windows)] * 2 and all(window is None for window in windows)


def input_names(names: Iterable[str], tree: pytree.TreeSpec) -> list[str]:
    """The names of a program's inputs, those of a cache's tensors as "past_key_values.0.key". tree: of the arguments."""
    return list(_named(tree, iter(names)))


def _named(tree: pytree.TreeSpec, names: Iterator[str]) -> Iterator[str]:
    if tree.is_leaf():
        yield next(names)
    elif tree.type is CacheLayers:
        for place in range(tree.num_children):
            yield from (_dotted(next(names), f"_{place}_{part}", place, part) for part in LAYER)
    elif by_parts(tree):
        for part, layers in zip(LAYER, tree.children(), strict=True):
            yield from (_dotted(next(names), f"_{part}_cache_{place}", place, part) for place in range(layers.num_children))
    else:
        for child in tree.children():
            yield from _named(child, names)


def _dotted(name: str, end: str, place: int, part: str) -> str:
    """ "past_key_values.0.key" of "past_key_values_0_key"; a name that has another end stays."""
    prefix = name.removesuffix(end)
    return name if prefix == name else f"{prefix}.{place}.{part}"
