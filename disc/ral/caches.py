"""transformers' `DynamicCache` among the inputs and results of a program, whose tensors are `past_key_values.0.key`,
`past_key_values.0.value`, `past_key_values.1.key` and so on: [batch, heads, length, size] each.

transformers is used where the process has it; without it, layers are mappings: [{"key": ..., "value": ...}, ...].
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from disc.artifact.structure import LAYER
from disc.errors import InputRankError, InputTypeError
from disc.ral.widen import DTYPES

if TYPE_CHECKING:
    import torch

Layer = dict[str, object]
_PLACE = re.compile(r"(.+)\.([0-9]+)\.(key|value)")
_LENGTH = 2  # the axis of a layer's tensors that grows


def is_cache(value: object) -> bool:
    """Whether it is a cache of transformers, of any kind."""
    if "transformers.cache_utils" not in sys.modules:
        return False
    return any(base.__name__ == "Cache" and base.__module__ == "transformers.cache_utils" for base in type(value).__mro__)


def layers_of(cache: object, where: str) -> list[Layer]:
    """The tensors of a cache; [] for one that has none yet. where: what it is, for errors.

    Raises InputTypeError for a cache of another kind than a DynamicCache, or one that keeps a part of the tokens alone.
    """
    if not any(base.__name__ == "DynamicCache" for base in type(cache).__mro__):
        instead = "leave cache_implementation away, or give DynamicCache(): its length is a size like any other"
        raise InputTypeError(
            f"{where} is of {type(cache).__name__}; of transformers' caches, only a DynamicCache can be compiled; {instead}"
        )
    layers = cast("list[Any]", cast("Any", cache).layers)
    if not any(getattr(layer, "is_initialized", True) for layer in layers):
        return []
    for number, layer in enumerate(layers):
        if type(layer).__name__ != "DynamicLayer" or not layer.is_initialized:
            what = "has no tensors" if type(layer).__name__ == "DynamicLayer" else f"is a {type(layer).__name__}"
            raise InputTypeError(f"layer {number} of {where} {what}; every layer has to be a DynamicLayer, of all tokens, with tensors")
        if getattr(layer.keys, "ndim", 4) != 4 or getattr(layer.values, "ndim", 4) != 4:
            raise InputTypeError(f"layer {number} of {where} has tensors of {layer.keys.ndim} dims; expected [batch, heads, length, size]")
    return [{"key": layer.keys, "value": layer.values} for layer in layers]


def cache_of(layers: Sequence[Layer]) -> object:
    """The DynamicCache of these tensors of torch; the layers themselves where transformers is not loaded, and for other tensors.

    No tensor is copied.
    """
    module: Any = sys.modules.get("transformers.cache_utils")
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if module is None or tensor is None or not all(isinstance(value, tensor) for layer in layers for value in layer.values()):
        return list(layers)
    cache = module.DynamicCache()
    for each in cast("Sequence[dict[str, torch.Tensor]]", layers):
        layer = module.DynamicLayer()
        layer.keys, layer.values = key, value = each["key"], each["value"]
        layer.dtype, layer.device, layer.is_initialized = key.dtype, value.device, True
        cache.layers.append(layer)
    return cache


class CacheInputs:
    """The caches among a program's inputs, by what its inputs are called."""

    def __init__(self, arguments: Sequence[Mapping[str, Any]], fixed: Collection[int]) -> None:
        """arguments: their records in the manifest. fixed: at which places of a call what is no tensor stands."""
        self._records = {str(record["name"]): record for record in arguments}
        self._fixed = fixed
        self._members: dict[str, list[str]] = {}
        for name in self._records:
            place = _PLACE.fullmatch(name)
            if place is not None:
                self._members.setdefault(place[1], []).append(name)

    def spread(self, inputs: tuple[object, ...], named: Mapping[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
        """The inputs of a call with the tensors of each cache in its place.

        A cache without tensors becomes one of length 0. Raises InputTypeError, InputRankError for what does not fit.
        """
        groups = [prefix for prefix in self._members if prefix in named]
        if not groups and not any(map(is_cache, inputs)):
            return inputs, dict(named)
        given = {name: value for name, value in named.items() if name not in groups}
        empty: list[str] = []
        for prefix in groups:
            self._add(prefix, named[prefix], given, empty)
        flat = self._flat(inputs, given, empty)
        for name in empty:
            given[name] = self._zeros(name, given)
        by_position = {name for name, _ in flat}
        by_name = {name: value for name, value in given.items() if name not in by_position}
        return tuple(value if name is None else given[name] for name, value in flat), by_name

    def _flat(self, inputs: tuple[object, ...], given: dict[str, object], empty: list[str]) -> list[tuple[str | None, object]]:
        """What stands at each place: the name of an input, whose value is put into `given`; or None and a value that is no input."""
        flat: list[tuple[str | None, object]] = []
        names = list(self._records)
        tensors = sum(1 for value in inputs if not is_cache(value)) + sum(map(len, self._members.values()))
        fixed = () if tensors == len(names) else self._fixed  # they may be left out
        for value in inputs:
            if len(flat) in fixed or not names:
                flat.append((None, value))
                continue
            place = _PLACE.fullmatch(names[0])
            taken = names[:1]
            if is_cache(value):
                if place is None:
                    raise InputTypeError(f"input '{names[0]}' is no cache, and got a {type(value).__name__}")
                taken = self._members[place[1]]
                self._add(place[1], value, given, empty)
            else:
                given[names[0]] = value
            flat += [(name, None) for name in taken]
            names = [name for name in names if name not in taken]
        return flat

    def _add(self, prefix: str, value: object, given: dict[str, object], empty: list[str]) -> None:
        """Puts the tensors of a cache into `given`, or into `empty` the names of those that there are none for."""
        layers = layers_of(value, f"input '{prefix}'") if is_cache(value) else _plain_layers(prefix, value)
        if not layers:
            empty += self._members[prefix]
            return
        found = {f"{prefix}.{number}.{part}": tensor for number, layer in enumerate(layers) for part, tensor in layer.items()}
        if len(found) != len(self._members[prefix]):
            raise InputRankError(
                f"input '{prefix}' is a cache of {len(layers)} layers; the model's has {len(self._members[prefix]) // len(LAYER)}"
            )
        given |= found

    def _zeros(self, name: str, given: Mapping[str, object]) -> object:
        """Of length 0. Raises InputTypeError where no other input tells the batch."""
        record = self._records[name]
        like, sizes = self._known(given)
        shape = [0 if axis == _LENGTH else sizes.get(dim, dim) for axis, dim in enumerate(record["dims"])]
        if like is None or not all(isinstance(size, int) for size in shape):
            raise InputTypeError(f"input '{name}': the cache is empty, and no other input tells its batch: give tensors of length 0")
        return like.new_zeros(shape, dtype=getattr(sys.modules["torch"], DTYPES[record["dtype"]]))

    def _known(self, given: Mapping[str, object]) -> tuple[Any, dict[str, int]]:
        """A tensor among the inputs, and the sizes of the symbols in their dims."""
        like, sizes = None, {}
        for name, value in given.items():
            shape = getattr(value, "shape", None)
            if shape is None or name not in self._records:
                continue
            like = value if hasattr(value, "new_zeros") else like
            sizes |= {dim: size for dim, size in zip(self._records[name]["dims"], shape, strict=False) if isinstance(dim, str)}
        return like, sizes


def _plain_layers(prefix: str, value: object) -> list[Layer]:
    """Layers as a call returns them without transformers."""
    if not isinstance(value, list | tuple) or not all(isinstance(each, Mapping) and set(each) == set(LAYER) for each in value):
        raise InputTypeError(
            f"input '{prefix}': expected a DynamicCache or [{{'key': ..., 'value': ...}}, ...], got a {type(value).__name__}"
        )
    return [dict(each) for each in value]
