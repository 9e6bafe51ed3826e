"""Regions: places in a function with straight-line tensor code. A region and what of its arguments is constant make a `Kind`: one block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from disc.frontend.batched.blocks import Block, Lifted
from disc.frontend.batched.rows import Row, RowClass, is_record
from disc.frontend.batched.values import CONSTANTS

INDEX = "index"  # in a key: an int that indexes a tensor and may differ from instance to instance
STRUCTURES = 8  # kinds of one region that are compiled, at most: others run in PyTorch
ENOUGH = 4  # launches of a kind before it is compiled
_tracing = threading.local()


class NotRegular(Exception):
    """A call of a region that cannot become a launch. effects: running it does more than compute its results."""

    def __init__(self, reason: str, *, effects: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.effects = reason, effects


Source = Callable[[Sequence[Row], Sequence[Row], Sequence[object]], object]  # an output, of (results, rows given, arguments)
Outputs = Callable[[Sequence[Row], Sequence[Row], Sequence[object]], tuple[object, ...]]


@dataclass(frozen=True)
class Views:
    """given, made: places of the rows that a kind is given and of its results, which share memory where PyTorch computes them."""

    given: tuple[int, ...]
    made: tuple[int, ...]


@dataclass(eq=False)
class Kind:
    """A region with given constants: what is one block. rows, values, results: as of `Block`.

    run: flat tensors of one instance → results. outputs: makes what the region returns of the rows of the results, of those that it was
    given and of its arguments. views: the rows that it is given and its results that are views of each other or of weights; None where
    there are none. weights: the tensors that it read, which all instances share, and their versions. consumed: another block has read a
    result. sizes: how many rows its launches had: size → launches.
    """

    region: Region
    rows: tuple[RowClass, ...]
    values: int
    results: tuple[RowClass, ...]
    run: Callable[..., tuple[torch.Tensor, ...]]
    outputs: Outputs
    views: Views | None
    block: Block
    weights: tuple[tuple[torch.Tensor, int], ...]
    kept: object
    number: int = 0
    lifted: Lifted | None = None
    refusal: str | None = None
    consumed: bool = False
    calls: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    eager: int = 0

    def stale(self) -> bool:
        return any(tensor._version != version for tensor, version in self.weights)


@dataclass(eq=False)
class Region:
    """name: "TreeLSTM.forward:12". code: the steps as a function of `inputs`, which returns a tuple. indices: the places of inputs that
    only index tensors. steps: how many operations it has."""

    name: str
    line: int
    file: str
    code: Callable[..., tuple[object, ...]]
    inputs: tuple[str, ...]
    indices: frozenset[int]
    steps: int
    kinds: dict[tuple[object, ...], Kind] = field(default_factory=dict)
    irregular: dict[str, int] = field(default_factory=dict)

    def describe(self, arguments: Sequence[object], rows: list[object], values: list[int]) -> tuple[object, ...]:
        """The key of a call; fills in the rows (and given tensors) and index values among the arguments. Raises NotRegular."""
        key: list[object] = []
        for place, each in enumerate(arguments):
            kind = type(each)
            if kind is Row:
                key.append(each.kind)  # pyright: ignore[reportAttributeAccessIssue]
                rows.append(each)
            elif kind is int and place in self.indices:
                key.append(INDEX)
                values.append(each)  # pyright: ignore[reportArgumentType]
            else:
                _describe(each, key, rows, self.inputs[place])
        return tuple(key)


def _describe(value: Any, key: list[object], rows: list[object], name: str) -> None:
    kind = type(value)
    if kind is Row:
        key.append(value.kind)
        rows.append(value)
    elif isinstance(value, torch.nn.Parameter):
        key.append(("weight", id(value)))
    elif kind is torch.Tensor:
        key.append(RowClass(tuple(value.shape), value.dtype))
        rows.append(value)
    elif isinstance(value, float):
        key.append(("float", value.hex()))
    elif isinstance(value, CONSTANTS):
        key.append((kind, repr(value) if kind in (slice, complex) else value))
    elif isinstance(value, torch.nn.Module | FunctionType | BuiltinFunctionType | type):
        key.append(("object", id(value)))
    elif isinstance(value, MethodType):
        key.append(("method", id(value.__func__), id(value.__self__)))
    elif isinstance(value, list | tuple):
        key.append((kind, len(value)))
        for each in value:
            _describe(each, key, rows, name)
    elif isinstance(value, dict):
        key.append((kind, tuple(value)))
        for each in value.values():
            _describe(each, key, rows, name)
    elif is_record(value):
        key.append((kind,))
        for field_name in kind.__dataclass_fields__:
            _describe(getattr(value, field_name), key, rows, name)
    else:
        raise NotRegular(f"`{name}` is a {kind.__name__}")


def rebuilt(value: Any, leaves: Iterator[torch.Tensor]) -> Any:
    """The argument with the next of `leaves` in the place of each row and given tensor, in the order of `describe`."""
    kind = type(value)
    if kind is Row or kind is torch.Tensor:
        return next(leaves)
    if isinstance(value, CONSTANTS):
        return value
    if isinstance(value, tuple):
        made = [rebuilt(each, leaves) for each in value]
        return kind(*made) if hasattr(kind, "_fields") else kind(made)
    if isinstance(value, list):
        return [rebuilt(each, leaves) for each in value]
    if isinstance(value, dict):
        return {name: rebuilt(each, leaves) for name, each in value.items()}
    if is_record(value) and not isinstance(value, type):
        copy = object.__new__(kind)
        for name in kind.__dataclass_fields__:
            object.__setattr__(copy, name, rebuilt(getattr(value, name), leaves))
        return copy
    return value


class _Watch(TorchDispatchMode):
    """Notes which tensors the ops read that are no arguments; refuses what is more than a computation. held: the memory of arguments and of
    these weights."""

    def __init__(self, mode: FakeTensorMode, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.weights: dict[int, torch.Tensor] = {}
        self._stand_ins: list[torch.Tensor] = []  # of weights: as long as they live, no other tensor has their memory's address
        self.held = {_memory(each) for each in inputs}
        self._mode = mode

    def __torch_dispatch__(self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        del types
        if torch.Tag.nondeterministic_seeded in func.tags and not _without_dropout(func, args, kwargs or {}):
            raise NotRegular(f"{func} draws random numbers", effects=True)
        args, kwargs = pytree.tree_map(self._without_data, (args, kwargs or {}))
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._check_write(func, args[number] if number < len(args) else (kwargs or {}).get(argument.name))
        return func(*args, **(kwargs or {}))

    def _without_data(self, value: object) -> object:
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            return value
        self.weights[id(value)] = value
        found = self._mode.from_tensor(value)
        self._stand_ins.append(found)
        self.held.add(_memory(found))
        return found

    def _check_write(self, func: object, value: object) -> None:
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, torch.Tensor) and _memory(each) in self.held:
                raise NotRegular(f"{func} changes in place what another name may hold", effects=True)


def _without_dropout(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether it is an attention that would draw random numbers for dropout alone, and has none."""
    names = [each.name for each in func._schema.arguments]
    if "dropout_p" not in names:
        return False
    place = names.index("dropout_p")
    return (args[place] if place < len(args) else kwargs.get("dropout_p", 0.0)) == 0.0


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Indexing(TorchFunctionMode):
    """Indexing by numbers that differ from instance to instance: by tensors without dims, which PyTorch would read."""

    def __torch_function__(self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        del types
        if func is torch.Tensor.__getitem__:
            base, index = args
            entries = index if isinstance(index, tuple) else (index,)
            if any(map(_is_number, entries)) and all(_is_number(each) or type(each) is int for each in entries):
                indices = [each if isinstance(each, torch.Tensor) else torch.tensor(each) for each in entries]
                return torch.ops.aten.index.Tensor(base, indices)
        return func(*args, **(kwargs or {}))


def _is_number(entry: object) -> bool:
    return isinstance(entry, torch.Tensor) and entry.dim() == 0 and entry.dtype == torch.int64


def make_kind(region: Region, arguments: Sequence[object], rows: Sequence[object], values: int) -> Kind:
    """Runs the region once without data. Raises NotRegular for one that is no pure function of tensors."""
    classes = tuple(each.kind if isinstance(each, Row) else RowClass(tuple(each.shape), each.dtype) for each in rows)  # pyright: ignore
    arguments = tuple(_emptied(each) for each in arguments)
    counted = [(place in region.indices and type(each) is int) for place, each in enumerate(arguments)]

    def filled(flat: Sequence[torch.Tensor]) -> list[object]:
        leaves, numbers = iter(flat[: len(classes)]), iter(flat[len(classes) :])
        return [next(numbers) if index else rebuilt(each, leaves) for each, index in zip(arguments, counted, strict=True)]

    traced = _traced(region.code, filled, classes, values)
    outputs, places = _outputs(traced)
    leaves = _leaves(traced.found, {})
    results = tuple(RowClass(tuple(leaves[place].shape), leaves[place].dtype) for place in places)
    if any(isinstance(size, torch.SymInt) for each in results for size in each.shape):
        raise NotRegular("a size depends on values")

    def run(*flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        computed = _leaves(region_code(*filled(flat)), {})
        return tuple(computed[place] for place in places)

    region_code = region.code
    block = Block(region.name, BlockModule(run, arguments, [each for each, _ in traced.weights]), classes, values, results)
    views = _views(traced, [leaves[place] for place in places])
    return Kind(region, classes, values, results, run, outputs, views, block, traced.weights, arguments)


def _views(traced: _Traced, results: Sequence[torch.Tensor]) -> Views | None:
    """What shares memory where PyTorch computes the region: a change in place of one of these would change another."""
    memory = [_memory(each) for each in results]
    made = tuple(place for place, each in enumerate(memory) if each in traced.held or memory.count(each) > 1)
    given = tuple(place for place, each in enumerate(traced.inputs) if _memory(each) in memory)
    return Views(given, made) if made else None


class BlockModule(torch.nn.Module):
    """A block as a module of one instance, which has the modules and weights that it uses."""

    def __init__(self, run: Callable[..., tuple[torch.Tensor, ...]], arguments: Sequence[object], weights: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._run = run
        for number, each in enumerate(arguments):
            if isinstance(each, torch.nn.Module):
                self.add_module(f"owner{number}", each)
        owned = {id(each) for each in (*self.parameters(), *self.buffers())}
        for number, each in enumerate(weights):
            if id(each) in owned:
                continue
            if isinstance(each, torch.nn.Parameter):
                self.register_parameter(f"weight{number}", each)
            else:
                self.register_buffer(f"weight{number}", each)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with Indexing():
            return self._run(*inputs)


@dataclass(frozen=True)
class _Traced:
    """found: what a region returned for `arguments` with `inputs` in the place of rows. weights: what it read besides, and their versions.
    held: the memory of both."""

    found: tuple[object, ...]
    arguments: Sequence[object]
    inputs: Sequence[torch.Tensor]
    weights: tuple[tuple[torch.Tensor, int], ...]
    held: set[int]


def _traced(
    code: Callable[..., tuple[object, ...]],
    filled: Callable[[Sequence[torch.Tensor]], list[object]],
    classes: Sequence[RowClass],
    values: int,
) -> _Traced:
    """Runs the code on tensors without data. Raises NotRegular."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        inputs = [torch.empty(each.shape, dtype=each.dtype) for each in classes]
        numbers = [torch.zeros((), dtype=torch.int64) for _ in range(values)]
        watch = _Watch(mode, inputs)
        arguments = filled([*inputs, *numbers])
        _tracing.active = True
        try:
            with watch, Indexing():
                found = code(*arguments)
        except NotRegular:
            raise
        except Exception as error:
            raise NotRegular(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error
        finally:
            _tracing.active = False
    return _Traced(found, arguments, inputs, tuple((each, each._version) for each in watch.weights.values()), watch.held)


def straight(classified: Callable[[object], bool]) -> Callable[[Any], Any]:
    """What a region calls its callees through: refuses, when the region is traced, a callee that is no straight-line tensor code."""

    def check(callee: Any) -> Any:
        if getattr(_tracing, "active", False) and not classified(callee):
            raise NotRegular(f"it calls {getattr(callee, '__qualname__', type(callee).__name__)}, which is no straight line", effects=True)
        return callee

    return check


def _emptied(value: Any) -> Any:
    """The argument without its tensors' data, which a kind would keep alive."""
    return rebuilt(value, iter(lambda: _PLACE, None)) if not isinstance(value, torch.nn.Module) else value


_PLACE: torch.Tensor = torch.empty(0)


def _containers(value: Any, found: list[object]) -> list[object]:
    """The containers that can be changed, of an argument or of all, those inside of others behind these."""
    if isinstance(value, list | dict) or is_record(value):
        found.append(value)
    for each in _parts(value) or ():
        _containers(each, found)
    return found


def _parts(value: Any) -> list[Any] | None:
    """What a container holds; None for what is none."""
    if isinstance(value, torch.Size):
        return None
    if isinstance(value, tuple | list):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    return [getattr(value, name) for name in type(value).__dataclass_fields__] if is_record(value) else None


def _leaves(value: Any, held: dict[int, int]) -> list[Any]:
    """Tensors, containers named in `held`, and whatever is no container, in order."""
    parts = None if id(value) in held else _parts(value)
    return [value] if parts is None else [leaf for each in parts for leaf in _leaves(each, held)]


def _filled(value: Any, leaves: Iterator[object], held: dict[int, int]) -> Any:
    """The container anew, with the next of `leaves` for each leaf."""
    kind = type(value)
    parts = None if id(value) in held else _parts(value)
    if parts is None:
        return next(leaves)
    made = [_filled(each, leaves, held) for each in parts]
    if isinstance(value, tuple):
        return kind(*made) if hasattr(kind, "_fields") else kind(made)
    if isinstance(value, list):
        return made
    if isinstance(value, dict):
        return dict(zip(value, made, strict=True))
    copy = object.__new__(kind)
    for name, each in zip(kind.__dataclass_fields__, made, strict=True):
        object.__setattr__(copy, name, each)
    return copy


def _outputs(traced: _Traced) -> tuple[Outputs, list[int]]:
    """What makes the region's outputs of the results, and which of the tensors among the outputs are results."""
    held = {id(each): number for number, each in enumerate(_containers(list(traced.arguments), [])[1:])}
    places: list[int] = []
    first: dict[int, int] = {}  # the result that a tensor is, by identity
    sources: list[Source] = []
    flat = 0
    for leaf in _leaves(traced.found, held):
        sources.append(_source(leaf, held, traced.inputs, places, first, flat))
        flat += len(_leaves(leaf, {}))

    def outputs(made: Sequence[Row], given: Sequence[Row], arguments: Sequence[object]) -> tuple[object, ...]:
        values = iter([source(made, given, arguments) for source in sources])
        return tuple(_filled(each, values, held) for each in traced.found)

    return outputs, places


def _source(leaf: Any, held: dict[int, int], inputs: Sequence[torch.Tensor], places: list[int], first: dict[int, int], flat: int) -> Source:
    """Where an output comes from: a result, an argument or a part of one as it is, or a constant. flat: its place among all leaves."""
    if id(leaf) in held:
        number = held[id(leaf)]
        return lambda made, given, arguments: _containers(list(arguments), [])[1 + number]
    if not isinstance(leaf, torch.Tensor):
        if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise NotRegular("a number depends on values")
        return lambda made, given, arguments: leaf
    for place, each in enumerate(inputs):
        if each is leaf:
            return lambda made, given, arguments: given[place] if given[place].launch is not None else given[place].value
    if not isinstance(leaf, FakeTensor):
        return lambda made, given, arguments: leaf
    if id(leaf) not in first:
        first[id(leaf)] = len(places)
        places.append(flat)
    order = first[id(leaf)]
    return lambda made, given, arguments: made[order]
