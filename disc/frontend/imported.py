"""What every front end delivers: a module at stage `imported`, its weights, and how to rebuild the user's outputs."""

from __future__ import annotations

import itertools
from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import cast

from torch.utils import _pytree as pytree
from torch_mlir import ir

from disc.artifact.structure import RETURN_TYPES
from disc.errors import warn
from disc.frontend.caches import CacheLayers, by_parts
from disc.ir.weights import WeightTable

Constant = int | float | bool | str | None


@dataclass(frozen=True)
class OutputSpec:
    """How the flat results become the user's value.

    constants: flat position → value, for outputs that no tensor computes (None, numbers); tree: the pytree of all flat outputs
    (None: a flat list); names: one per result of the function. structure: as of `structure_of`;
    shown: what users know the results by, by number, where the model or its file has names for them.
    """

    names: tuple[str, ...]
    constants: dict[int, Constant] = field(default_factory=dict)
    tree: pytree.TreeSpec | None = None
    structure: object = None
    shown: Mapping[int, str] = field(default_factory=dict)

    def is_single(self) -> bool:
        """True when the user's value is one tensor, not a tuple or another structure: so is the result of a function with just one."""
        return not self.constants and (len(self.names) == 1 if self.tree is None else self.tree.is_leaf())

    def rebuild(self, results: Sequence[object]) -> object:
        """The user's nested value from the flat results of the function."""
        remaining = iter(results)
        count = len(self.names) + len(self.constants)
        flat = [self.constants[i] if i in self.constants else next(remaining) for i in range(count)]
        return flat if self.tree is None else pytree.tree_unflatten(flat, self.tree)


def structure_of(tree: pytree.TreeSpec, constants: Mapping[int, Constant]) -> object:
    """How the results stand within the user's value (`disc.artifact.structure`); None for one tensor, for a plain tuple of tensors, and for
    values of classes that have no such form, with a warning: a call returns a tuple there. constants: as of `OutputSpec`."""
    numbers = itertools.count()
    leaves = [{"value": constants[place]} if place in constants else next(numbers) for place in range(tree.num_leaves)]
    try:
        found = _structure(tree, iter(leaves))
    except _NoForm as error:
        warn(f"the model returns a {error}, of which a program knows nothing: a call gives all its tensors as one tuple")
        return None
    return None if isinstance(found, int) or found == {"tuple": list(range(tree.num_leaves))} else found


class _NoForm(Exception):
    """A part of the user's value is of this class."""


def _structure(tree: pytree.TreeSpec, leaves: Iterator[object]) -> object:
    """Raises _NoForm."""
    if tree.is_leaf():
        return next(leaves)
    parts = [_structure(child, leaves) for child in tree.children()]
    kind, context = tree.type, tree.context
    if kind in (tuple, list):
        return {kind.__name__: parts}
    if kind in (dict, OrderedDict) and all(isinstance(key, int | str) for key in context):
        return {"dict" if kind is dict else "ordered": [list(each) for each in zip(context, parts, strict=True)]}
    if kind is CacheLayers:
        return {"cache": parts}
    if by_parts(tree):
        keys, values = (cast("dict[str, list[object]]", part)["list"] for part in parts)
        return {"cache": [{"dict": [["key", key], ["value", value]]} for key, value in zip(keys, values, strict=True)]}
    if kind is namedtuple:  # so PyTorch marks all of them; the class is the context
        return _record("named_tuple", context, context._fields, parts)
    if kind.__module__ == RETURN_TYPES:  # what `x.max(-1)`, `topk`, `linalg.svd` return
        return _record("named_tuple", kind, cast("Sequence[str]", vars(kind)["__match_args__"]), parts)
    if is_dataclass(kind) and issubclass(kind, OrderedDict):  # transformers' ModelOutput
        return _record("record", kind, context, parts)
    raise _NoForm(f"{kind.__module__}.{kind.__qualname__}")


def _record(form: str, kind: type, names: Sequence[str], parts: Sequence[object]) -> object:
    return {form: f"{kind.__module__}:{kind.__qualname__}", "fields": [list(each) for each in zip(names, parts, strict=True)]}


@dataclass(frozen=True)
class FixedArgument:
    """An argument of the example that is no tensor: a constant of the program. position: among all leaves of a call, tensors too."""

    name: str
    position: int
    value: Constant


@dataclass(frozen=True)
class Imported:
    """A module at stage `imported` and all that belongs to it.

    input_names: one per argument of the function; inputs_tree: the pytree of the user's (args, kwargs), whose flat leaves
    at `argument_leaves` are the arguments (the others, `fixed`, are constants of the program).
    """

    module: ir.Module
    weights: WeightTable
    input_names: tuple[str, ...]
    outputs: OutputSpec
    inputs_tree: pytree.TreeSpec | None = None
    argument_leaves: tuple[int, ...] | None = None
    fixed: tuple[FixedArgument, ...] = ()
