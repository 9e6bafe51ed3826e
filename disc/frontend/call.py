"""One call of an ATen op as a rule sees it: arguments by schema name, with types, and what PyTorch says of the results."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from disc.frontend.op_builder import RuleError, Tensor
from disc.frontend.symbols import Shape, Size, to_shape, to_size

TAKES_NOTHING = "disc_takes_nothing"  # metadata of nodes in the decomposition of an op that takes dims of size 0
NOT_DECOMPOSED = "disc_not_decomposed"  # metadata of nodes whose decomposition cannot be traced: why
Scalar = bool | int | float


class Call:
    """The bound arguments and result metadata of `node`.

    arguments: schema name → Tensor, size, literal, list of those, or None.
    """

    def __init__(self, node: fx.Node, arguments: Mapping[str, object]) -> None:
        self.node = node
        self.arguments = arguments

    @property
    def op(self) -> torch._ops.OpOverload:
        """Raises: RuleError for what is no op of PyTorch's."""
        if not isinstance(self.node.target, torch._ops.OpOverload):
            raise RuleError(f"{self.node.target} is no op of PyTorch")
        return self.node.target

    def has(self, name: str) -> bool:
        return self.arguments.get(name) is not None

    def raw(self, name: str) -> object:
        return self.arguments.get(name)

    def tensor(self, name: str) -> Tensor:
        value = self.arguments[name]
        if not isinstance(value, Tensor):
            raise RuleError(f"argument {name} is not a tensor")
        return value

    def optional_tensor(self, name: str) -> Tensor | None:
        return self.tensor(name) if self.has(name) else None

    def tensors(self, name: str) -> list[Tensor]:
        values = self._sequence(name)
        tensors = [value for value in values if isinstance(value, Tensor)]
        if len(tensors) != len(values):
            raise RuleError(f"argument {name} is not a list of tensors")
        return tensors

    def optional_tensors(self, name: str) -> list[Tensor | None]:
        return [value if isinstance(value, Tensor) else None for value in self._sequence(name)]

    def _sequence(self, name: str) -> Sequence[object]:
        value = self.arguments[name]
        if not isinstance(value, list | tuple):
            raise RuleError(f"argument {name} is not a list")
        return value

    def integer(self, name: str) -> int:
        value = self.arguments[name]
        if not isinstance(value, int):
            raise RuleError(f"argument {name} must be a constant integer")
        return int(value)

    def integers(self, name: str) -> list[int]:
        value = self.arguments[name]
        if isinstance(value, int):
            return [value]
        values = self._sequence(name)
        constants = [item for item in values if isinstance(item, int)]
        if len(constants) != len(values):
            raise RuleError(f"argument {name} must be constant integers")
        return constants

    def size(self, name: str) -> Size:
        return to_size(self.arguments[name])

    def sizes(self, name: str) -> Shape:
        return to_shape(self._sequence(name))

    def flag(self, name: str) -> bool:
        return bool(self.arguments.get(name))

    def scalar(self, name: str) -> Scalar:
        value = self.arguments[name]
        if not isinstance(value, bool | int | float):
            raise RuleError(f"argument {name} must be a constant number")
        return value

    def text(self, name: str) -> str | None:
        value = self.arguments.get(name)
        return value if isinstance(value, str) else None

    @property
    def results(self) -> list[torch.Tensor]:
        value = self.node.meta["val"]
        return list(value) if isinstance(value, list | tuple) else [value]

    @property
    def shape(self) -> Shape:
        return to_shape(self.results[0].shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.results[0].dtype


def arguments_by_name(node: fx.Node, op: object = None) -> dict[str, object]:
    """The arguments of a call, defaults too, by the names in the schema of its op. op: another one that the call is taken for."""
    op = node.target if op is None else op
    if not hasattr(op, "_schema"):
        return {f"arg{i}": argument for i, argument in enumerate(node.args)}
    names, defaults = _parameters(op)
    return {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}


@functools.cache
def _parameters(op: object) -> tuple[tuple[str, ...], dict[str, object]]:
    """The names of an op's parameters, and the defaults of those that have one."""
    parameters = op._schema.arguments  # pyright: ignore[reportAttributeAccessIssue]
    defaults = {each.name: each.default_value for each in parameters if each.has_default_value()}
    return tuple(each.name for each in parameters), defaults
