"""Models that take several arguments: an instance is a tuple of these, and a function of one instance takes their place."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Sequence
from types import FunctionType

import torch

from disc.errors import InputTypeError


class Members:
    """What a model takes of an instance. names: the parameters that a call must give, in order; of one, the instance is what it gets."""

    def __init__(self, target: torch.nn.Module | FunctionType) -> None:
        self._module = isinstance(target, torch.nn.Module)
        self._target = target
        called = target.forward if isinstance(target, torch.nn.Module) else target
        self.names = [each.name for each in inspect.signature(called).parameters.values() if _is_needed(each)]
        self.several = len(self.names) > 1

    def check(self, instances: Sequence[object]) -> None:
        """Raises InputTypeError where a model of several arguments is given no tuple of them."""
        for number, each in enumerate(instances) if self.several else ():
            if not isinstance(each, tuple | list) or len(each) != len(self.names):
                raise self._refusal(number, each)

    def _refusal(self, number: int, instance: object) -> InputTypeError:
        given = f"a {type(instance).__name__}" + (f" of {len(instance)}" if isinstance(instance, tuple | list) else "")
        wanted = f"({', '.join(self.names)}): give a tuple of {len(self.names)} for each instance"
        return InputTypeError(f"instance {number} is {given}; the model takes {wanted}")

    def call(self, instance: object) -> object:
        """What the model itself makes of an instance."""
        return self._target(*instance) if self.several else self._target(instance)  # pyright: ignore[reportGeneralTypeIssues]

    def function(self) -> FunctionType:
        """The function whose calls are instances: the model's own, or one that hands it the members of a tuple."""
        original = type(self._target).forward if isinstance(self._target, torch.nn.Module) else self._target
        return self._spread(original) if self.several else original

    def _spread(self, original: FunctionType) -> FunctionType:
        own, called = ("self, ", "self") if self._module else ("", "_model")
        members = ", ".join(f"argument{place}" for place in range(len(self.names)))
        text = f"def {original.__name__}({own}instance):\n    {members} = instance\n    return {called}({members})\n"
        file = f"<the arguments of {original.__qualname__}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # what reads the source of functions looks there
        names = {"__name__": original.__module__, "_model": self._target}
        exec(compile(text, file, "exec"), names)
        made = names[original.__name__]
        assert isinstance(made, FunctionType)
        made.__qualname__ = original.__qualname__
        return made


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) and parameter.default is parameter.empty
