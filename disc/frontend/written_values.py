"""Values of PyTorch's compiler as JSON, and graphs node by node. To read them calls nothing but what is listed: classes and functions. What
PyTorch then makes of texts among them (guards), and what graphs compute, is code: files are read where nobody else may write.

(x, 0.5)     ◄─►     {"tuple": [{"node": "x"}, {"float": "0x1.0000000000000p-1"}]}
"""

from __future__ import annotations

import collections
import enum
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import fx
from torch.fx.immutable_collections import immutable_dict, immutable_list

_OPERATORS = """getitem add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge and_ or_ xor not_ lshift rshift invert index"""
_SYMBOLIC = [name for name in dir(torch) if name.startswith(("sym_", "_sym_")) and callable(getattr(torch, name))]
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"operator.{name}": getattr(operator, name) for name in _OPERATORS.split()},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt", "log2", "pow")},
    **{f"torch.{name}": getattr(torch, name) for name in _SYMBOLIC},
    **{each.__name__: each for each in (round, max, min, abs, int, float)},
}
_NAMES = {function: name for name, function in _FUNCTIONS.items()}
_KINDS = (torch.Tensor, torch.nn.Parameter, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool, str, type(None))
_TYPES: dict[str, type] = {each.__qualname__: each for each in _KINDS}
_NODES = ("placeholder", "call_function", "get_attr", "output")
_TORCH = (torch.dtype, torch.layout, torch.memory_format)
NAMESPACES = frozenset(["aten", "prims", "prim", "disc"])  # of ops that are PyTorch's own, or ours


class UnwritableError(Exception):
    """A value has no form here."""


class Writer:
    """Writes and reads values. classes: those of objects, which are written by their attributes, or by what `__getstate__` gives where they
    have a `__setstate__`; types: those that values may be themselves."""

    def __init__(self, classes: Iterable[type], types: Iterable[type] = ()) -> None:
        self._classes = {each.__qualname__: each for each in classes}
        self._types = _TYPES | {each.__qualname__: each for each in types}

    def text(self, value: object) -> str:
        """Raises UnwritableError."""
        return json.dumps(self._form(value), separators=(",", ":"))

    def value(self, text: str) -> Any:
        """What `text` was given. Raises ValueError for another text, KeyError, TypeError or AttributeError for one of other classes."""
        return self._value(json.loads(text), {})

    # --- writing ----------------------------------------------------------------------------------------------------------------------

    def _form(self, value: object) -> object:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return {"float": value.hex()}
        if isinstance(value, fx.Node):
            return {"node": value.name}
        if isinstance(value, enum.Enum):
            return {"enum": [self._class_name(type(value)), value.name]}
        if isinstance(value, torch.Size):
            return {"size": [self._form(each) for each in value]}
        if isinstance(value, tuple) and type(value) is tuple:
            return {"tuple": [self._form(each) for each in value]}
        if type(value) in (list, immutable_list):
            return [self._form(each) for each in cast("list[object]", value)]
        if type(value) in (dict, immutable_dict):
            return {"dict": [[self._form(key), self._form(each)] for key, each in cast("dict[object, object]", value).items()]}
        if isinstance(value, collections.defaultdict) and value.default_factory is list:
            return {"lists": [[self._form(key), self._form(each)] for key, each in value.items()]}
        if type(value) in (set, frozenset):
            return {type(value).__name__: [self._form(each) for each in sorted(cast("set[Any]", value))]}
        if isinstance(value, slice):
            return {"slice": [self._form(each) for each in (value.start, value.stop, value.step)]}
        if isinstance(value, _TORCH):
            return {"torch": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, fx.GraphModule):
            return {"graph": self._graph(value)}
        if isinstance(value, type):
            if self._types.get(value.__qualname__) is not value:
                raise UnwritableError(f"class {value.__qualname__}")
            return {"type": value.__qualname__}
        return {"object": [self._class_name(type(value)), self._form(_state(value))]}

    def _class_name(self, kind: type) -> str:
        if self._classes.get(kind.__qualname__) is not kind:
            raise UnwritableError(f"an object of class {kind.__qualname__}")
        return kind.__qualname__

    def _graph(self, module: fx.GraphModule) -> object:
        parts = dict(module.named_children())
        held = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
        nodes = list[object]()
        for node in module.graph.nodes:
            if node.op == "get_attr" and node.target not in parts:
                held.append(str(node.target))
            if node.op not in _NODES:
                raise UnwritableError(f"a node that is a {node.op}")
            target = function_name(node.target) if node.op == "call_function" else str(node.target)
            nodes.append([node.op, node.name, target, self._form(node.args), self._form(node.kwargs)])
        if held:
            raise UnwritableError(f"tensors of a graph ({', '.join(held)})")
        used = {str(node.target) for node in module.graph.find_nodes(op="get_attr")}
        return [nodes, [[name, self._form(part)] for name, part in parts.items() if name in used]]

    # --- reading ----------------------------------------------------------------------------------------------------------------------

    def _value(self, form: Any, nodes: Mapping[str, fx.Node]) -> Any:
        if isinstance(form, list):
            return [self._value(each, nodes) for each in form]
        if not isinstance(form, dict):
            return form
        ((kind, content),) = form.items()
        if kind == "float":
            return float.fromhex(content)
        if kind == "node":
            return nodes[content]
        if kind == "enum":
            return self._classes[content[0]][content[1]]  # pyright: ignore[reportIndexIssue]
        if kind in ("tuple", "size", "set", "frozenset", "slice"):
            make = {"tuple": tuple, "size": torch.Size, "set": set, "frozenset": frozenset, "slice": lambda parts: slice(*parts)}[kind]
            return make([self._value(each, nodes) for each in content])
        if kind in ("dict", "lists"):
            pairs = [(self._value(key, nodes), self._value(each, nodes)) for key, each in content]
            return dict(pairs) if kind == "dict" else collections.defaultdict(list, pairs)
        if kind == "torch":
            found = getattr(torch, content)
            if not isinstance(found, _TORCH):
                raise ValueError(f"torch.{content} is no dtype, layout or memory format")
            return found
        if kind == "device":
            return torch.device(content)
        if kind == "graph":
            return self._module(content)
        if kind == "type":
            return self._types[content]
        if kind == "object":
            return _restored(self._classes[content[0]], self._value(content[1], nodes))
        raise ValueError(f"there is no form {kind!r}")

    def _module(self, form: Any) -> fx.GraphModule:
        listed, parts = form
        root, graph, nodes = torch.nn.Module(), fx.Graph(), dict[str, fx.Node]()
        for name, part in parts:
            root.add_module(name, self._value(part, {}))
        for op, name, target, args, kwargs in listed:
            called = function_of(target) if op == "call_function" else target
            words = [name, *(key for key, _ in kwargs["dict"]), *([target] if op in ("placeholder", "get_attr") else [])]
            if op not in _NODES or not all(isinstance(each, str) and each.isidentifier() for each in words):
                raise ValueError(f"a node that is a {op} {name}")
            nodes[name] = graph.create_node(op, called, tuple(self._value(args, nodes)), self._value(kwargs, nodes), name)
        return fx.GraphModule(root, graph)


def function_name(target: object) -> str:
    """Of what a node calls. Raises UnwritableError."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        name = f"higher_order.{target.name()}"
    elif isinstance(target, torch._ops.OpOverload):
        name = f"ops.{target}"
    else:
        name = _NAMES.get(cast("Callable[..., Any]", target), "")
    try:
        found = function_of(name)
    except (AttributeError, KeyError, ValueError) as error:
        raise UnwritableError(f"a call of {target}") from error
    if found is not target:
        raise UnwritableError(f"a call of {target}")
    return name


def function_of(name: str) -> Any:
    """Raises AttributeError, KeyError or ValueError where there is none of that name."""
    kind, _, rest = name.partition(".")
    if kind == "higher_order":
        return getattr(torch.ops.higher_order, rest)
    if kind != "ops":
        return _FUNCTIONS[name]
    namespace, packet, overload = rest.split(".")
    if namespace not in NAMESPACES:
        raise ValueError(f"{rest} is no op of PyTorch's own, nor of ours")
    if namespace == "disc":
        from disc.frontend import own_ops  # noqa: F401  # which defines them
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _state(value: object) -> object:
    return value.__getstate__() if hasattr(value, "__setstate__") else dict(vars(value))


def _restored(kind: type, state: Any) -> object:
    made = object.__new__(kind)
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)  # pyright: ignore[reportAttributeAccessIssue]
    else:
        for name, each in state.items():
            object.__setattr__(made, name, each)
    return made
