"""Whether attributes of Python objects may be read by a walk: objects that do more than hold them would see the difference."""

from __future__ import annotations

import dis
import inspect
from types import CodeType, FunctionType, SimpleNamespace


class NotPlain(Exception):
    """Objects of a type do more than hold the attributes that are read."""


_HARMLESS = frozenset({"RESUME", "COPY_FREE_VARS", "LOAD_FAST", "LOAD_ATTR", "LOAD_CONST", "IS_OP", "UNARY_NOT", "RETURN_VALUE", "NOP",
                       "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE",
                       "JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", "POP_TOP", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE",
                       "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "RETURN_CONST", "COPY"})  # fmt: skip

_FINDERS = (object.__getattribute__, SimpleNamespace.__getattribute__, tuple.__getattribute__)  # the same code under several names


Getter = tuple[FunctionType, CodeType, "str | None", bool]


def check_plain(kind: type, names: set[str]) -> dict[str, Getter]:
    """Raises NotPlain where reading these attributes of objects of a type runs code that may do more than tell what they hold.

    Returns the functions of its properties by name, each with its code, and the attribute where all that it tells is whether that is None;
    true: whether it is not None."""
    if kind.__getattribute__ not in _FINDERS or hasattr(kind, "__getattr__"):
        raise NotPlain(f"{kind.__name__} finds its attributes by code of its own")
    getters: dict[str, Getter] = {}
    for name in names:
        held = inspect.getattr_static(kind, name, None)
        if isinstance(held, property):
            getters[name] = _checked_getter(kind, held.fget)
        elif hasattr(type(held), "__get__") and not inspect.ismemberdescriptor(held):
            raise NotPlain(f"{kind.__name__}.{name} runs code")
    return getters


def _checked_getter(kind: type, getter: object) -> Getter:
    """A property may tell something of attributes that objects hold."""
    if not isinstance(getter, FunctionType) or getter.__code__.co_argcount != 1:
        raise NotPlain(f"a property of {kind.__name__} runs code")
    before, code = "", getter.__code__
    for each in dis.get_instructions(code):
        if each.opname not in _HARMLESS:
            raise NotPlain(f"{getter.__qualname__} does more than to look at attributes")
        if each.opname == "LOAD_ATTR" and before != "LOAD_FAST":
            raise NotPlain(f"{getter.__qualname__} looks at attributes of others")
        before = each.opname
    names = set(code.co_names)
    if any(isinstance(inspect.getattr_static(kind, name, None), property) for name in names):
        raise NotPlain(f"{getter.__qualname__} asks another property")
    check_plain(kind, names)
    return getter, code, *_none_test(code)


def _none_test(code: CodeType) -> tuple[str | None, bool]:
    """The attribute of `return self.attribute is None`, and whether it is `is not None`; None for other code."""
    steps = [(each.opname, each.argval) for each in dis.get_instructions(code) if each.opname not in ("RESUME", "NOP")]
    match steps:
        case [("LOAD_FAST", _), ("LOAD_ATTR", str(name)), ("LOAD_CONST", None), ("IS_OP", inverted), ("RETURN_VALUE", _)]:
            return name, bool(inverted)
    return None, False
