"""What every front end delivers: a module at stage `imported`, its weights, and how to rebuild the user's outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch.utils import _pytree as pytree
from torch_mlir import ir

from disc.ir.weights import WeightTable

Constant = int | float | bool | str | None


@dataclass(frozen=True)
class OutputSpec:
    """How the flat results become the user's value.

    constants: flat position → value, for outputs that no tensor computes (None, numbers); tree: the pytree of all flat outputs
    (None: a flat list); names: one per result of the function.
    """

    names: tuple[str, ...]
    constants: dict[int, Constant] = field(default_factory=dict)
    tree: pytree.TreeSpec | None = None

    def is_single(self) -> bool:
        """True when the user's value is one tensor, not a tuple or another structure: so is the result of a function with just one."""
        return not self.constants and (len(self.names) == 1 if self.tree is None else self.tree.is_leaf())

    def rebuild(self, results: Sequence[object]) -> object:
        """The user's nested value from the flat results of the function."""
        remaining = iter(results)
        count = len(self.names) + len(self.constants)
        flat = [self.constants[i] if i in self.constants else next(remaining) for i in range(count)]
        return flat if self.tree is None else pytree.tree_unflatten(flat, self.tree)


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
