"""A plain function of tensors as the module that torch.export takes."""

from __future__ import annotations

import functools
import inspect
from types import BuiltinFunctionType, FunctionType, MethodType

import torch


def as_module(model: object) -> torch.nn.Module | None:
    """The function, method or partial as a module whose weights are those of the modules that it names; None: it is none of these.

    Modules are found as the method's own object, and by the names that the code of the function reads, from its closure or its file.
    """
    owners: dict[str, torch.nn.Module] = {}
    inner: object = model
    while isinstance(inner, functools.partial):
        inner = inner.func
    if isinstance(inner, MethodType) and isinstance(inner.__self__, torch.nn.Module):
        owners["self"] = inner.__self__
    elif isinstance(inner, FunctionType):
        names = inspect.getclosurevars(inner)
        owners = {name: value for name, value in {**names.globals, **names.nonlocals}.items() if isinstance(value, torch.nn.Module)}
    elif isinstance(inner, BuiltinFunctionType) and (inner.__module__ or "torch").startswith("torch"):  # it has no signature to trace by
        return as_module(lambda *inputs: inner(*inputs))
    elif not isinstance(inner, MethodType):
        return None
    module = _Function()
    for name, owner in owners.items():
        module.add_module(f"{name}_", owner)  # behind it no name is taken that a Module has
    module.training = False
    object.__setattr__(module, "forward", model)
    return module


class _Function(torch.nn.Module):
    """Its `forward` is the function, set on the instance so that it has the function's own signature."""
