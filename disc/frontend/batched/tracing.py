"""Running a region once without data: what it returns, which weights it reads, and whether it is a pure function of tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from disc.frontend.batched.blocks import Block
from disc.frontend.batched.contents import Contents
from disc.frontend.batched.regions import Kind, NotRegular, Outputs, Region, Views
from disc.frontend.batched.rows import Row, RowClass, containers, is_record, parts_of, row_class
from disc.frontend.batched.values import CONSTANTS, GIVEN
from disc.frontend.export_errors import quiet
from disc.frontend.random_ops import draws

STREAM = 4e4  # bytes of weights that a launch reads in a microsecond

_tracing = threading.local()


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
        self.indexed: set[int] = set()
        self._stand_ins: list[torch.Tensor] = []  # of weights: as long as they live, no other tensor has their memory's address
        self.held = {_memory(each) for each in inputs}
        self._mode = mode

    def __torch_dispatch__(self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        del types
        if draws(func, args, kwargs or {}):
            raise NotRegular(f"{func} draws random numbers", effects=True)
        self.indexed |= _indexed(func, args) - self.weights.keys()
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


def _indexed(func: Any, args: Sequence[Any]) -> set[int]:
    """The identity of the tensor of which an op reads some rows."""
    reads_rows = func in (torch.ops.aten.index.Tensor, torch.ops.aten.embedding.default, torch.ops.aten.select.int)
    return {id(args[0])} if reads_rows else set()


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Indexing(TorchFunctionMode):
    """What PyTorch would read numbers for that differ from instance to instance, and so are tensors without dims: indexing by them, and
    tensors made of them."""

    def __torch_function__(self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        del types
        if func is torch.Tensor.__getitem__:
            base, index = args
            entries = index if isinstance(index, tuple) else (index,)
            if any(map(_is_number, entries)) and all(_is_number(each) or type(each) is int for each in entries):
                indices = [each if isinstance(each, torch.Tensor) else torch.tensor(each) for each in entries]
                return torch.ops.aten.index.Tensor(base, indices)
        if func in GIVEN and len(args) == 1:
            data, dtype = args[0], (kwargs or {}).get("dtype")
            if isinstance(data, list | tuple) and any(map(_is_number, data)):
                data = torch.stack([each if isinstance(each, torch.Tensor) else torch.tensor(each) for each in data])
            if isinstance(data, torch.Tensor):
                return data.to(dtype or (data.dtype if data.dtype == torch.int64 else torch.get_default_dtype()), copy=True)
        return func(*args, **(kwargs or {}))


def _is_number(entry: object) -> bool:
    return isinstance(entry, torch.Tensor) and entry.dim() == 0 and entry.dtype == torch.int64


def make_kind(region: Region, arguments: Sequence[object], rows: Sequence[object], values: int) -> Kind:
    """Runs the region once without data. Raises NotRegular for one that is no pure function of tensors."""
    classes = tuple(each.kind if isinstance(each, Row) else row_class(each) for each in rows)  # pyright: ignore
    arguments = tuple(_emptied(each) for each in arguments)
    counted = [(place in region.indices and type(each) is int) for place, each in enumerate(arguments)]

    def filled(flat: Sequence[torch.Tensor]) -> list[object]:
        leaves, numbers = iter(flat[: len(classes)]), iter(flat[len(classes) :])
        return [next(numbers) if index else rebuilt(each, leaves) for each, index in zip(arguments, counted, strict=True)]

    traced = _traced(region.code, filled, classes, values)
    outputs, places, plain, written = _outputs(traced)
    leaves = _leaves(traced.found, {})
    results = tuple(row_class(leaves[place]) for place in places)
    if any(isinstance(size, torch.SymInt) for each in results for size in each.shape):
        raise NotRegular("a size depends on values")

    def run(*flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with Indexing():
            computed = _leaves(region_code(*filled(flat)), {})
        return tuple(computed[place] for place in places)

    region_code = region.code
    block = Block(region.name, BlockModule(run, arguments, [each for each, _ in traced.weights]), classes, values, results)
    views = _views(traced, [leaves[place] for place in places])
    return Kind(region, classes, values, results, run, outputs, plain, views, block, traced.weights, _cost(traced), arguments, written)


def _cost(traced: _Traced) -> float:
    """What a launch takes however many rows it has, in microseconds, roughly: a start, and the weights that it reads whole."""
    return 1.0 + sum(each.nbytes for each, _ in traced.weights if id(each) not in traced.indexed) / STREAM


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
        return self._run(*inputs)


@dataclass(frozen=True)
class _Traced:
    """found: what a region returned for `arguments` with `inputs` in the place of rows. weights: what it read besides, and their contents.
    indexed: identities of weights of which it read rows alone. held: the memory of both."""

    found: tuple[object, ...]
    arguments: Sequence[object]
    inputs: Sequence[torch.Tensor]
    weights: tuple[tuple[torch.Tensor, Contents], ...]
    indexed: set[int]
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
            with quiet(), watch, Indexing():
                found = code(*arguments)
        except NotRegular:
            raise
        except Exception as error:
            raise NotRegular(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error
        finally:
            _tracing.active = False
    return _Traced(found, arguments, inputs, tuple((each, Contents.of(each)) for each in watch.weights.values()), watch.indexed, watch.held)


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


def _leaves(value: Any, held: dict[int, int]) -> list[Any]:
    """Tensors, containers named in `held`, and whatever is no container, in order."""
    parts = None if id(value) in held else parts_of(value)
    return [value] if parts is None else [leaf for each in parts for leaf in _leaves(each, held)]


def _remade(kind: type, values: Sequence[object]) -> object:
    """A dataclass's instance with these values of its fields."""
    made = object.__new__(kind)
    for name, each in zip(kind.__dataclass_fields__, values, strict=True):  # pyright: ignore[reportAttributeAccessIssue]
        object.__setattr__(made, name, each)
    return made


def _outputs(traced: _Traced) -> tuple[Outputs, list[int], bool, tuple[str, dict[str, object]]]:
    """What makes the region's outputs of the results, which of the tensors among the outputs are results, whether the outputs are the
    results, in order, and the expression of the first with its names."""
    written = _Written(traced)
    text = "".join(f"{written.value(each)}, " for each in traced.found)
    plain = text == "".join(f"made[{number}], " for number in range(len(written.places)))
    made = eval(f"lambda made, given, arguments: ({text})", written.environment)
    return made, written.places, plain, (f"({text})", written.environment)


class _Written:
    """Outputs as expressions of `made` (rows of the results), `given` (rows) and `arguments`. places: of the results among all leaves."""

    def __init__(self, traced: _Traced) -> None:
        self.environment: dict[str, object] = {"remade": _remade, "containers": containers}
        self.places: list[int] = []
        self._held = {id(each): number for number, each in enumerate(containers(traced.arguments))}
        self._inputs = traced.inputs
        self._first: dict[int, int] = {}  # the result that a tensor is, by identity
        self._leaves = 0

    def value(self, value: Any) -> str:
        """The container anew, unless it is an argument's; else where the value comes from."""
        parts = None if id(value) in self._held else parts_of(value)
        if parts is None:
            text = self._leaf(value)
            self._leaves += len(_leaves(value, {}))
            return text
        inner = "".join(f"{self.value(each)}, " for each in parts)
        kind = type(value)
        if kind is tuple:
            return f"({inner})"
        if isinstance(value, tuple):
            return f"{self._constant(kind)}({inner})" if hasattr(kind, "_fields") else f"{self._constant(kind)}(({inner}))"
        if isinstance(value, list):
            return f"[{inner}]"
        if isinstance(value, dict):
            return f"dict(zip({self._constant(tuple(value))}, ({inner})))"
        return f"remade({self._constant(kind)}, ({inner}))"

    def _constant(self, value: object) -> str:
        name = f"constant{len(self.environment)}"
        self.environment[name] = value
        return name

    def _leaf(self, leaf: Any) -> str:
        """Where an output comes from: a result, an argument or a part of one as it is, or a constant."""
        if id(leaf) in self._held:
            return f"containers(arguments)[{self._held[id(leaf)]}]"
        if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise NotRegular("a number depends on values")
        place = next((place for place, each in enumerate(self._inputs) if each is leaf), None)
        if place is not None:
            return f"(given[{place}] if given[{place}].launch is not None else given[{place}].value)"
        if not isinstance(leaf, FakeTensor):
            return self._constant(leaf)
        if id(leaf) not in self._first:
            self._first[id(leaf)] = len(self.places)
            self.places.append(self._leaves)
        return f"made[{self._first[id(leaf)]}]"
