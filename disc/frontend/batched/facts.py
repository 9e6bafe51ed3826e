"""What the blocks of a model were made with, and whether it is still so: globals and closures of its functions, settings, weights and
attributes of its modules; and whether what a call runs is still the code that was read."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Sequence
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from disc.frontend.batched.contents import address_of
from disc.frontend.batched.values import CONSTANTS, HOOKS, HOOKS_OF_ALL, hooks_of
from disc.ral._ral import Facts

TABLES = ("_parameters", "_buffers", "_modules")
GLOBALS, ATTRIBUTES = 2, 3  # how deep their values are looked at


def globals_of(function: FunctionType) -> list[object]:
    """The values of the globals and of the closure that the code names."""
    names, known = names_in(function.__code__), function.__globals__
    return [known[name] for name in names if name in known] + [cell.cell_contents for cell in _cells(function)]


def names_in(code: CodeType, *, texts: bool = False) -> dict[str, None]:
    """The names of globals and attributes in a function's code, those of generators and lambdas too. texts: and whatever text of it may be
    such a name, as of `getattr(self, "scale")`."""
    found = dict.fromkeys(code.co_names)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found |= names_in(each, texts=texts)
        elif texts and isinstance(each, str) and each.isidentifier():
            found[each] = None
    return found


def attributes_held(modules: Iterable[torch.nn.Module]) -> set[str]:
    """The names of all that modules hold besides weights, hooks and modules."""
    return {name for module in modules for name in vars(module) if name not in TABLES and name not in HOOKS}


def _cells(function: FunctionType) -> list[CellType]:
    """Those that hold something."""
    return [cell for cell in function.__closure__ or () if cell != CellType()]


def code_of_calls(modules: Sequence[torch.nn.Module]) -> tuple[object, ...]:
    """What calls of the modules run: their classes, the methods of these, `forward`s of their own, and how many hooks there are."""
    classes = dict.fromkeys(map(type, modules))
    called = [(each, each.forward, each.__call__) for each in classes]
    return (*map(len, HOOKS_OF_ALL), *called, *((type(each), vars(each).get("forward"), *map(len, hooks_of(each))) for each in modules))


def gathered(functions: Iterable[FunctionType], modules: Sequence[torch.nn.Module], more: Collection[str] = ()) -> tuple[object, ...]:
    """Equal as long as everything is as it was: compared in full, some 100 us. more: names of attributes that are asked for otherwise than
    by name."""
    facts: list[object] = []
    attributes = set(more)
    for function in functions:
        attributes |= names_in(function.__code__, texts=True).keys()
        facts += [_fact(value, GLOBALS) for value in (*globals_of(function), function.__defaults__, function.__kwdefaults__)]
    for module in modules:
        facts += [id(module), module.training]
        facts += [(name, id(each)) for table in TABLES for name, each in getattr(module, table).items()]
        facts += [(name, _fact(value, ATTRIBUTES)) for name, value in module.__dict__.items() if name in attributes]
    facts += [(id(owner), name, _fact(inspect.getattr_static(owner, name), ATTRIBUTES)) for owner, name in _of_classes(modules, attributes)]
    return tuple(facts)


def _of_classes(modules: Iterable[torch.nn.Module], attributes: set[str]) -> list[tuple[type, str]]:
    """The attributes, methods among them, that modules have from their classes: (class, name). Not those that are made when asked for."""
    owners = dict.fromkeys(map(type, modules))
    asked = [(owner, name) for owner in owners for name in sorted(attributes) if hasattr(owner, name)]
    return [(owner, name) for owner, name in asked if getattr(owner, name) is getattr(owner, name)]


def _fact(value: Any, depth: int) -> object:
    """What tells whether a value is still the same."""
    if isinstance(value, torch.Tensor):
        return id(value), value._version, address_of(value)
    if isinstance(value, CONSTANTS):
        return type(value), repr(value) if isinstance(value, float) else value
    if depth and isinstance(value, list | tuple):
        return (type(value), *(_fact(each, depth - 1) for each in value))
    if depth and isinstance(value, dict):
        return (type(value), *((id(key), _fact(each, depth - 1)) for key, each in value.items()))
    if depth and _has_attributes(value):
        return id(value), *((name, _fact(each, depth - 1)) for name, each in vars(value).items())
    return id(value)


def _has_attributes(value: object) -> bool:
    return hasattr(value, "__dict__") and not callable(value) and not isinstance(value, ModuleType)


def watched(
    functions: Iterable[FunctionType],
    modules: Sequence[torch.nn.Module],
    weights: Iterable[torch.Tensor],
    more: Collection[str] = (),
    *,
    gradients: bool = False,
) -> Facts:
    """The same by identity, and the versions of weights, for a quick look: where that finds a difference, what is equal may have taken the
    place of something. gradients: weights that have some may change with every batch, but not which do."""
    facts = Facts()
    attributes = set(more)
    for function in functions:
        attributes |= names_in(function.__code__, texts=True).keys()
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            facts.add_attribute(function, name)
        for name in names_in(function.__code__):
            facts.add_item(function.__globals__, name)
        for cell in function.__closure__ or ():
            facts.add_cell(cell)
        for value in globals_of(function):
            _watch(facts, value, GLOBALS)
    for module in modules:
        held = module.__dict__
        facts.add_dict(held, {"training", *TABLES, *HOOKS, *attributes})
        for name in TABLES:
            facts.add_dict(held[name], set(held[name]))
        facts.add_attribute(module, "__class__")
        for hooks in hooks_of(module):
            facts.add_dict(hooks, set())
        for name in attributes & held.keys():
            _watch(facts, held[name], ATTRIBUTES)
    for owner, name in _of_classes(modules, attributes):
        facts.add_attribute(owner, name)
        _watch(facts, inspect.getattr_static(owner, name), ATTRIBUTES)
    for name in ("forward", "__call__"):
        for each in dict.fromkeys(map(type, modules)):
            facts.add_attribute(each, name)
    for hooks in HOOKS_OF_ALL:
        facts.add_dict(hooks, set())
    for each in weights:
        if gradients:
            facts.add_attribute(each, "requires_grad")
        if not gradients or not each.requires_grad:
            facts.add_tensor(each)
    return facts


def _watch(facts: Facts, value: Any, depth: int) -> None:
    """As `_fact` of what the value holds; the value itself is watched where it is held."""
    if isinstance(value, torch.Tensor):
        facts.add_tensor(value)
    elif isinstance(value, CONSTANTS) or not depth:
        return
    elif isinstance(value, list | tuple):
        facts.add_sequence(value)
        for each in value:
            _watch(facts, each, depth - 1)
    elif isinstance(value, dict) or _has_attributes(value):
        held = value if isinstance(value, dict) else vars(value)
        facts.add_dict(held, set(held))
        for each in held.values():
            _watch(facts, each, depth - 1)
