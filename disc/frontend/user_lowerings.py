"""Lowerings of the user's: an op in torch functions, used in place of the op wherever a program calls it."""

from __future__ import annotations

import dis
import hashlib
import threading
import types
from collections.abc import Callable, Iterator

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from disc.errors import DiscError, UnsupportedOp, UnsupportedOpError
from disc.frontend.symbols import same_shape, to_shape

Op = torch._ops.OpOverload
Lowering = Callable[..., object]
_LIBRARIES = frozenset(["builtins", "math", "operator", "torch"])
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format)


_registered: dict[Op, Lowering] = {}


def register_lowering(op: object, function: Lowering) -> None:
    """From now on every call of `op` is compiled as `function(*args, **kwargs)`, with the op's arguments.

    op: an op of `torch.ops` (a packet means its default overload), what `torch.library.custom_op` gives, or a name ("mylib::scale"). An op
    that writes its arguments has no lowering. function: made of torch functions on tensors and sizes; returns what the op returns, with
    the same shapes and dtypes, which is checked where a program is compiled. It takes precedence over disc's own rules, and enters the key
    of the compile cache; where it refers to what has no value that can be compared (an object, a tensor, a module of the user's), programs
    are compiled anew.

    Raises DiscError for what is no such op. Compiling raises UnsupportedOpError, with the op and the user's line, where the function fails.
    """
    found = _overload(op)
    if found._schema.is_mutable:
        raise DiscError(f"disc.register_lowering: {found} writes its arguments; a lowering gives new values")
    if not callable(function):
        raise DiscError(f"disc.register_lowering: the lowering of {found} is a {type(function).__name__}, which cannot be called")
    _registered[found] = function


def _overload(op: object) -> Op:
    op = getattr(op, "_opoverload", op)  # of torch.library.custom_op
    if isinstance(op, str):
        namespace, _, rest = op.partition("::")
        name, _, overload = rest.partition(".")
        try:
            op = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
        except (AttributeError, RuntimeError) as error:
            raise DiscError(f"disc.register_lowering: there is no op {op!r} in this process") from error
    if isinstance(op, torch._ops.OpOverloadPacket):
        op = getattr(op, "default", op)
    if not isinstance(op, Op):
        raise DiscError(f"disc.register_lowering: {op!r} is no op, or none with a default overload")
    return op


def lowering_of(op: object) -> Lowering | None:
    """What was registered for an op."""
    return _registered.get(op) if isinstance(op, Op) else None


def registered_table() -> dict[torch._ops.OperatorBase, Lowering]:
    """The lowerings for PyTorch's own tracing: what fails in one names the op."""
    return {op: _for_tracing(op, each) for op, each in _registered.items()}


def lowerings_digest() -> str | None:
    """Of all that is registered, as it is now; "" where nothing is. None: a lowering cannot be told from another one."""
    digests = {str(op): _digest(each) for op, each in _registered.items()}
    return None if None in digests.values() else "\n".join(f"{op} {digest}" for op, digest in sorted(digests.items()))


def failed_lowering(op: object, error: Exception, place: str = "unknown line") -> UnsupportedOpError:
    """The error for a lowering that raised `error`. place: the user's line that calls the op."""
    lines = str(error).strip().splitlines() or [""]
    what = str(error) if isinstance(error, _Promise) else f"{type(error).__name__}: {lines[0]}"
    return UnsupportedOpError([UnsupportedOp(str(op), f"its lowering (disc.register_lowering) failed: {what}", place)])


class _Promise(Exception):
    """A lowering gives something else than its op."""


def check_promise(found: object, wanted: object) -> None:
    """Raises an exception for `failed_lowering` where what a lowering returned is not what the op gives, both without data."""
    pair = [list(each) if isinstance(each, tuple | list) else [each] for each in (found, wanted)]
    if len(pair[0]) != len(pair[1]):
        raise _Promise(f"it returns {len(pair[0])} values, the op {len(pair[1])}")
    for number, (own, theirs) in enumerate(zip(*pair, strict=True)):
        if not isinstance(theirs, torch.Tensor):
            continue
        if not isinstance(own, torch.Tensor):
            raise _Promise(f"value {number} is a {type(own).__name__}, that of the op a tensor")
        if own.dtype != theirs.dtype or own.dim() != theirs.dim() or not same_shape(to_shape(own.shape), to_shape(theirs.shape)):
            kinds = [f"{each.dtype} {list(to_shape(each.shape))}" for each in (own, theirs)]
            raise _Promise(f"value {number} is {kinds[0]}, that of the op {kinds[1]}")


def check_trace(op: object, graph: fx.Graph) -> None:
    """Raises an exception for `failed_lowering` where what a lowering of `op` was traced to calls the op, or writes what it is given."""
    if any(node.target is op for node in graph.nodes):
        raise _Promise("it calls the op itself")
    if any(source.op == "placeholder" for node in graph.nodes for source in map(_source, _written(node))):
        raise _Promise("it writes an argument, and the op does not")


def _written(node: fx.Node) -> list[fx.Node]:
    """The tensors that a call of an op writes."""
    if not isinstance(node.target, Op) or not node.target._schema.is_mutable:
        return []
    arguments = zip(node.target._schema.arguments, node.args, strict=False)  # what is written stands first, never by keyword but for `out`
    given = [value for each, value in arguments if each.alias_info is not None and each.alias_info.is_write]
    return [each for each in given if isinstance(each, fx.Node)]


def _source(node: fx.Node) -> fx.Node:
    """The tensor that a view is of; the node itself where it is none."""
    while isinstance(node.target, Op) and any(each.alias_info is not None for each in node.target._schema.returns):
        first = node.args[0] if node.args else None
        if not isinstance(first, fx.Node):
            break
        node = first
    return node


_active = threading.local()  # ops: whose lowerings this thread traces


def _for_tracing(op: Op, function: Lowering) -> Lowering:
    def traced(*args: object, **kwargs: object) -> object:
        within: tuple[Op, ...] = getattr(_active, "ops", ())
        try:
            if op in within:
                raise _Promise("it calls the op itself")
            _active.ops = (*within, op)
            found = function(*args, **kwargs)
            with disable_proxy_modes_tracing():
                wanted = op(*args, **kwargs)
            check_promise(found, wanted)
        except UnsupportedOpError:  # of a lowering within
            raise
        except Exception as error:
            raise failed_lowering(op, error) from error
        finally:
            _active.ops = within
        return found

    return traced


# --- what makes two functions the same ----------------------------------------------------------------------------------------


def _digest(function: object) -> str | None:
    """Of a function's code, its defaults, and all values that it refers to."""
    try:
        return hashlib.sha256("\n".join(_facts(function, set())).encode()).hexdigest()
    except _Opaque:
        return None


class _Opaque(Exception):
    """A value that cannot be compared with that of another process."""


def _facts(value: object, seen: set[int]) -> Iterator[str]:
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, tuple | frozenset):
        for each in sorted(value, key=repr) if isinstance(value, frozenset) else value:
            yield from _facts(each, seen)
    elif isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in _LIBRARIES:  # another's attributes may be anything
        yield f"module {value.__name__}"
    elif isinstance(value, types.FunctionType) and not _is_library(value):
        if id(value) not in seen:
            seen.add(id(value))
            yield from _function_facts(value, seen)
    elif isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        yield f"op {value}"
    elif _is_library(value):
        yield f"{value.__module__}.{value.__qualname__}"  # pyright: ignore[reportAttributeAccessIssue]
    else:
        raise _Opaque


def _is_library(value: object) -> bool:
    """Whether its name says what it is: a function of PyTorch, or what Python itself comes with."""
    if not isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return False
    module = str(value.__module__).partition(".")[0]  # functions of `torch._C` have none
    return module in ("builtins", "math", "operator") or (not isinstance(value, type) and module in ("torch", "None"))


def _function_facts(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    yield from _code_facts(function.__code__, seen)
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield from _facts(value, seen)
    for cell in function.__closure__ or ():
        yield from _facts(cell.cell_contents, seen)
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            yield name
            yield from _facts(function.__globals__[name], seen)


def _code_facts(code: types.CodeType, seen: set[int]) -> Iterator[str]:
    if any(each.opname == "IMPORT_NAME" for each in dis.get_instructions(code)):
        raise _Opaque
    yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars} {code.co_argcount} {code.co_flags}"
    for constant in code.co_consts:
        yield from _code_facts(constant, seen) if isinstance(constant, types.CodeType) else _facts(constant, seen)


def _global_names(code: types.CodeType) -> set[str]:
    own = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*(_global_names(each) for each in code.co_consts if isinstance(each, types.CodeType)))
