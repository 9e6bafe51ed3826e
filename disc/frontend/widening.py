"""The sizes on which a module is exported.

    example x: [1, 1, 4] of x.squeeze(1)        → exported on [2, 1, 4]: a batch of any size; dim 1 stays, as squeeze at model.py:12 needs

torch.export would take an example's size of 0 or 1 for a constant, so dims of such a size that are to be dynamic are widened. Those that
the model needs as they are stay.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim

from disc.errors import ShapeConstraintError
from disc.frontend.examples import named_tensors

Key = tuple[int, int]  # the id of a tensor of the example, and a dim of it
LeafMap = Callable[[torch.Tensor, object], object]
SIZES = (2, 5)  # that a dim gets: the second where the trace takes the first for a constant (of `x[1:]` one element is left)


@dataclass(frozen=True)
class Need:
    """Why a dim keeps the size that it has in the example: "where at model.py:12 needs it". by_weight: a weight has that size."""

    why: str
    by_weight: bool = False


class Widening:
    """The example of a module with each dynamic dim of size 0 or 1 widened, unless it is needed as it is.

    sizes: of the widened dims; kept: the needs of the others.
    """

    def __init__(self, bound: inspect.BoundArguments, specs: Mapping[str, object]) -> None:
        """Raises: ShapeConstraintError for an entry of `specs` that fits no input."""
        self.bound = bound
        self.sizes: dict[Key, int] = {}
        self.kept: dict[Key, Need] = {}
        self._grown: frozenset[Key] = frozenset()
        self._times = 1
        self._specs = dict(specs)
        self.unnamed = False  # PyTorch is asked for dims that are dynamic, without the names and ranges that were given
        self._large: dict[int, list[Key]] = {}  # the other dynamic dims, by their size
        self._given: set[Key] = set()  # dims that were asked for by name, or as DYNAMIC
        self._named: dict[Key, Dim] = {}  # dims that were asked for by name
        self._mapped(self._collect)
        roots = {dim.__name__: key for key, dim in self._named.items() if key in self.sizes and not is_derived(dim)}
        # Dims that are computed of widened ones, as `4 * Dim("h")`: of which, and how.
        computed = {key: root_of(dim) for key, dim in self._named.items() if is_derived(dim)}
        self._computed = {key: (roots[root.__name__], self._named[key]) for key, root in computed.items() if root.__name__ in roots}
        self._taken = [dict(self.sizes)]

    @property
    def specs(self) -> dict[str, object]:
        """What PyTorch is given, by parameter; dims that are kept are static."""
        declared = self.declared
        if not self.unnamed:
            return declared
        return {name: _map_specs(value, declared.get(name), _without_names) for name, value in self.bound.arguments.items()}

    @property
    def declared(self) -> dict[str, object]:
        """The specs as they were given, by parameter; dims that are kept are static."""
        return {name: _map_specs(value, self._specs.get(name), self._left) for name, value in self.bound.arguments.items()}

    def forget_names(self) -> bool:
        """From now on PyTorch is asked for dims without names: it refuses a name for each condition that it cannot prove of the whole
        range, also for those that concern sizes of 1 alone. False: this was done before."""
        if self.unnamed or not self._named:
            return False
        self.unnamed = True
        return True

    def arguments(self, kept: Collection[Key] = ()) -> inspect.BoundArguments:
        """The widened example; `kept` stay as they are, too."""
        return self._mapped(lambda tensor, spec: self._widened(tensor, kept))

    def was_given(self, key: Key) -> bool:
        return key in self._given

    def keep(self, key: Key, need: Need) -> None:
        """Raises: ShapeConstraintError for a dim that was asked for."""
        del self.sizes[key]
        self.kept[key] = need
        if key in self._given:
            name, tensor = next((name, tensor) for name, tensor in named_tensors(self.bound.arguments) if id(tensor) == key[0])
            size = tensor.shape[key[1]]
            raise ShapeConstraintError(
                f"dynamic_shapes does not fit the model: dim {key[1]} of input '{name}' is {size} in the example and has to be: {need.why}"
            )

    def widen_more(self, key: Key) -> bool:
        """Takes the next size for a dim. False: there is none."""
        larger = [size for size in SIZES if size > self.sizes[key]]
        self.sizes[key] = larger[0] if larger else self.sizes[key]
        return bool(larger)

    def resize(self, sizes: Mapping[Key, int]) -> bool:
        """Takes other sizes for some dims. False: these were taken before."""
        after = {**self.sizes, **sizes}
        if not sizes or after in self._taken:
            return False
        self._taken.append(after)
        self.sizes = after
        return True

    def by_size(self) -> list[list[Key]]:
        """The dynamic dims that the example has larger than 1, those of one size together."""
        return list(self._large.values())

    def larger(self, keys: Collection[Key], times: int) -> Widening:
        """The same with these dims that many times as large."""
        other = copy.copy(self)
        other._grown, other._times = frozenset(keys), times
        return other

    def _mapped(self, function: LeafMap) -> inspect.BoundArguments:
        arguments = {name: _map_values(value, self._specs.get(name), function) for name, value in self.bound.arguments.items()}
        return inspect.BoundArguments(self.bound.signature, OrderedDict(arguments))

    def _collect(self, tensor: torch.Tensor, spec: object) -> object:
        for dim, size in dynamic_dims(spec).items():
            if not -tensor.dim() <= dim < tensor.dim():
                name = next(name for name, each in named_tensors(self.bound.arguments) if each is tensor)
                raise ShapeConstraintError(f"dynamic_shapes has an entry for dim {dim} of input '{name}', which has {tensor.dim()} dims")
            key = (id(tensor), dim % tensor.dim())
            if tensor.shape[dim] <= 1:
                self.sizes[key] = SIZES[0]
            else:
                self._large.setdefault(tensor.shape[dim], []).append(key)
            if size is not Dim.AUTO:
                self._given.add(key)
            if isinstance(size, Dim):
                self._named[key] = size
        return tensor

    def _widened(self, tensor: torch.Tensor, kept: Collection[Key]) -> torch.Tensor:
        result = tensor
        for dim in range(tensor.dim()):
            key = (id(tensor), dim)
            source, computed = self._computed.get(key, (key, None))
            if source in self.sizes and source not in kept:
                size = self.sizes[source]
                result = _resized(result, dim, size if computed is None else computed_of(computed, size))
            if key in self._grown:
                result = result.repeat_interleave(self._times, dim)
        return result

    def _left(self, tensor: torch.Tensor, spec: object) -> object:
        static = {dim for dim in range(tensor.dim()) if (id(tensor), dim) in self.kept}
        if not static:
            return spec
        left = {dim: size for dim, size in dynamic_dims(spec).items() if dim % tensor.dim() not in static}
        return left if isinstance(spec, Mapping) else [left.get(dim) for dim in range(tensor.dim())]


def _without_names(_: torch.Tensor, spec: object) -> object:
    return {dim: Dim.DYNAMIC if isinstance(size, Dim) else size for dim, size in dynamic_dims(spec).items()}


def dynamic_dims(spec: object) -> dict[int, object]:
    """The dims of a tensor that its spec declares dynamic, and as what."""
    entries = spec.items() if isinstance(spec, Mapping) else enumerate(spec) if isinstance(spec, list | tuple) else ()
    return {dim: size for dim, size in entries if size is not None and size is not Dim.STATIC and not isinstance(size, int)}


def is_derived(dim: Dim) -> bool:
    """Whether it is computed of another one, `4 * Dim("h") + 1`."""
    return hasattr(dim, "root")


def root_of(dim: Any) -> Dim:
    """Of which it is computed; of others themselves."""
    return dim.root if is_derived(dim) else dim


def computed_of(dim: Any, root: int) -> int:
    """Its size where its root has this one."""
    return int(dim.fn(root)) if is_derived(dim) else root


def _resized(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    have = tensor.shape[dim]
    if have == 0:
        return tensor.new_zeros([size if i == dim else other for i, other in enumerate(tensor.shape)])
    return tensor.index_select(dim, torch.arange(size, device=tensor.device) % have)


def _map_values(value: object, spec: object, function: LeafMap) -> object:
    """The value with each tensor that has a spec replaced."""
    if spec is None:
        return value
    if isinstance(value, torch.Tensor):
        return function(value, spec)
    if isinstance(value, Mapping) and isinstance(spec, Mapping):
        named = {name: _map_values(part, spec.get(name), function) for name, part in value.items()}
        return OrderedDict(named) if isinstance(value, OrderedDict) else named
    if isinstance(value, list | tuple) and isinstance(spec, list | tuple):
        if len(value) != len(spec):
            raise ShapeConstraintError(f"dynamic_shapes has {len(spec)} entries for a {type(value).__name__} of {len(value)} inputs")
        parts = [_map_values(part, inner, function) for part, inner in zip(value, spec, strict=True)]
        return type(value)(parts) if isinstance(value, list) else _tuple_as(value, parts)
    return value


def _map_specs(value: object, spec: object, function: LeafMap) -> object:
    """The spec with that of each tensor replaced."""
    if isinstance(value, torch.Tensor):
        return spec if spec is None else function(value, spec)
    if isinstance(value, Mapping) and isinstance(spec, Mapping):
        return {name: _map_specs(value.get(name), inner, function) for name, inner in spec.items()}
    if isinstance(value, list | tuple) and isinstance(spec, list | tuple):
        parts = [_map_specs(part, inner, function) for part, inner in zip(value, spec, strict=True)]
        return parts if isinstance(spec, list) else _tuple_as(spec, parts)
    return spec


def _tuple_as(given: tuple[object, ...], parts: Sequence[object]) -> tuple[object, ...]:
    """A tuple of the same class: a named one keeps its fields."""
    of_parts: Any = getattr(type(given), "_make", tuple)
    return of_parts(parts)
