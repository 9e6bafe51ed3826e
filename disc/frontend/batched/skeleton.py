"""What a model that decides by values is without its tensor code: its functions in instructions (`lowering.py`), a block for each form of
its regions, and how its instances lie in tensors (`instance_types.py`). `saving_skeleton.py` saves it, `interpreted.py` runs it."""

from __future__ import annotations

import ast
import base64
import linecache
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Protocol, cast

import torch

from disc.artifact.skeletons import OUTPUTS, TOKENS, SkeletonRecord, SlotRecord
from disc.artifact.structures import TableRecord
from disc.frontend.batched.functions import Function
from disc.frontend.batched.instance_types import Asked, Instances, Slots
from disc.frontend.batched.instructions import LANGUAGE, NeedsPython
from disc.frontend.batched.lowering import Lowering, has_more_parameters, not_understood
from disc.frontend.batched.members import Members
from disc.frontend.batched.regions import INDEX, Kind
from disc.frontend.batched.rows import RowClass, containers, parts_of
from disc.frontend.batched.skeleton_values import Constants, Entry, NotSkeletal, Unsayable
from disc.frontend.batched.steps import Compute, walk
from disc.ir.python_source import parse_expression

_DTYPES = {torch.bool: "i1", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.uint8: "ui8",
           torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}  # fmt: skip


class Learnt(Protocol):
    """A model of which something is known by running it (`Model`)."""

    target: Any
    root: Function
    members: Members

    def find(self, callee: Any) -> Function | None: ...
    def functions(self) -> list[Function]: ...
    def learnt(self, original: FunctionType, arguments: Sequence[object]) -> Function: ...


class Skeleton:
    """programs: the kinds that have one, by the number of their block. kinds: all of them, in the order of the record. Raises NotSkeletal,
    which names the line that needs Python."""

    def __init__(self, model: Learnt, examples: Sequence[Any], taken: Callable[[Kind], bool], *, partial: bool = False) -> None:
        """examples: instances that ran. taken: says which kinds with programs are part of it. partial: as of `Lowering`."""
        self._model, self._root, self._taken = model, model.root, taken
        self._tables: dict[RowClass, int] = {}
        self._rows: list[list[object]] = []
        self._held: dict[int, int] = {}  # constant rows of each table
        self.programs: list[Kind] = []
        self.kinds: list[Kind] = []
        if self._root.source is None:
            raise _needs_python(not_understood(self._root))
        given = 1 + isinstance(model.target, torch.nn.Module)  # the module and the instance
        if len(self._root.parameters()) < given:
            raise NotSkeletal(f"{self._root.name} names no parameter for the instance")
        self.name = self._root.parameters()[given - 1]
        self.constants = Constants(model.find)
        self._target = self._root.original if not isinstance(model.target, torch.nn.Module) else model.target
        first = has_more_parameters(self._root, given) or model.members.several
        self.constants.object(Entry(self._target) if first else self._target)
        self.instances = self._instances(examples)
        self.lowering = Lowering(self.constants, given, self.instances.mask, torch.Tensor, {*self.instances.methods}, partial=partial)
        try:
            self._lower()
        except NeedsPython as needed:
            raise _needs_python(needed) from None
        self._kinds, self._regions = self._blocks()

    def _instances(self, examples: Sequence[Any]) -> Instances:
        """What instances are; properties that the code asks for read attributes, too."""
        asked = self._asked()
        while True:
            found = Instances(self.name, examples, asked, Slots(self.table, self.constants))
            for name, getters in found.getters.items():
                for getter in getters:
                    self._model.learnt(getter, found.with_getter(name, getter))
            again = self._asked()
            if again == asked:
                return found
            asked = again

    def _asked(self) -> Asked:
        """What the code asks of objects that are no modules."""
        found = Asked({}, set(), set(), set())
        for function in self._model.functions():
            found.keys |= _texts_in(function.original.__code__)
            for step in walk(function.source.steps) if function.source is not None else ():
                if isinstance(step, Compute):
                    _note_asked(step, f"{function.file}:{step.line}", found)
        return found

    def _lower(self) -> None:
        """All functions, with properties of instances. Raises NeedsPython."""
        lowering = self.lowering
        lowering.lower_model(self._root, self._target)
        self._getters: dict[str, list[tuple[int, int]]] = {}
        self._methods: dict[str, list[tuple[int, int]]] = {}
        for name in self.instances.getters:
            found = self.instances.getter_masks(name)
            self._getters[name] = [(lowering.lower(self._model.learnt(getter, ())), mask) for getter, mask in found]
        for name in self.instances.methods:
            methods = [(self._model.find(method), mask) for method, mask in self.instances.method_masks(name)]
            self._methods[name] = [(lowering.lower(method), mask) for method, mask in methods if method is not None]
        for name in (*self.instances.names, *self._getters, *self._methods):
            lowering.name(name)
        self.constants.finish(lowering.names, lowering.functions, lowering.asked)

    def _name(self, name: str) -> list[object]:
        """An attribute: the slot of nodes that have it, of which classes, and whether a node has it; functions of properties and methods,
        and of which classes."""
        found = self.instances
        slots = (found.names.get(name, -1), found.field_mask(name), found.presences.get(name, -1))
        return [name, *slots, self._getters.get(name, []), self._methods.get(name, [])]

    # --- rows and blocks --------------------------------------------------------------------------------------------------------

    def _blocks(self) -> tuple[list[list[object]], list[list[object]]]:
        kinds: list[list[object]] = []
        regions: list[list[object]] = []
        for number, region in enumerate(self.lowering.regions):
            own: list[int] = []
            for kind_key, kind in region.kinds.items():
                tokens = self._tokens(kind_key)
                if tokens is not None and (self._taken(kind) or not _has_program(kind)):
                    own.append(len(kinds))
                    kinds.append(self._kind(number, kind, tokens))
            regions.append([region.name, f"{Path(region.file).name}:{region.line}", region.uses(), own])
        return kinds, regions

    def _kind(self, region: int, kind: Kind, tokens: list[int]) -> list[object]:
        rows, results = [self.table(each) for each in kind.rows], [self.table(each) for each in kind.results]
        block, places = -1, []
        self.kinds.append(kind)
        if _has_program(kind):
            block = len(self.programs)
            self.programs.append(kind)
        else:
            with torch.no_grad():
                places = [self._constant_row(value, table) for value, table in zip(kind.run(), results, strict=True)]
        return [region, tokens, block, places, rows, results, kind.values, kind.cost, self._outputs(kind)]

    def _constant_row(self, value: torch.Tensor, table: int) -> int:
        data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        self._rows.append([table, base64.b64encode(data).decode()])
        self._held[table] = self._held.get(table, 0) + 1
        return self._held[table] - 1

    def _tokens(self, key: tuple[object, ...]) -> list[int] | None:
        """A region's key as the machine makes it; None for one that holds what no instance of the saved model can have."""
        tokens: list[int] = []
        for part in key:
            made = self._token(part)
            if made is None:
                return None
            tokens += made
        return tokens

    def _token(self, part: Any) -> list[int] | None:
        number = TOKENS.index
        if isinstance(part, RowClass):
            return [number("row"), self.table(part)]
        if part == INDEX:
            return [number("index")]
        if not isinstance(part, tuple) or len(part) < 2:
            return None
        first, second = part[0], part[1]
        if first == "float":
            return [number("float"), struct.unpack("<q", struct.pack("<d", float.fromhex(second)))[0]]
        if first in ("object", "method"):
            found = self.constants.known(part[1:] if first == "object" and len(part) > 2 else second if first == "object" else part)
            return [number("object"), found] if found is not None else None
        if first in (list, tuple):
            return [number("list" if first is list else "tuple"), second]
        if first in (bool, int):
            return [number("bool" if first is bool else "int"), int(second)]
        if first is str:
            return [number("text"), self.constants.number(second)[1]]
        if second is None:
            return [number("none")]
        found = self.constants.known(id(second))
        return [number("object"), found] if found is not None else None

    def _outputs(self, kind: Kind) -> list[int]:
        """What a region returns, of what its block computes."""
        text, environment = kind.written
        tree = parse_expression(text)
        assert isinstance(tree, ast.Tuple)
        return [number for each in tree.elts for number in self._output(each, environment, kind)]

    def _output(self, node: ast.expr, environment: dict[str, object], kind: Kind) -> list[int]:
        number = OUTPUTS.index
        if isinstance(node, ast.IfExp):  # given[n], as a row or a tensor
            return [number("given"), _subscript(cast("ast.Compare", node.test).left.value)]  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            return [number("made"), _subscript(node)]
        if isinstance(node, ast.Subscript):  # containers(arguments)[n]
            path = _path_of(kind.kept, containers(kind.kept)[_subscript(node)])
            return [number("argument"), path[0], len(path) - 1, *path[1:]]
        if isinstance(node, ast.Name):
            try:
                return [number("constant"), self.constants.place(self.constants.number(environment[node.id]))]
            except Unsayable as reason:
                raise NotSkeletal(f"{kind.region.file}:{kind.region.line}: {reason}") from None
        if isinstance(node, ast.Tuple | ast.List):
            parts = [part for each in node.elts for part in self._output(each, environment, kind)]
            return [number("tuple" if isinstance(node, ast.Tuple) else "list"), len(node.elts), *parts]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":  # dict(zip(keys, (parts)))
            keys, parts = cast("ast.Call", node.args[0]).args
            texts = cast("tuple[object, ...]", environment[cast("ast.Name", keys).id])
            made = [number("dict"), len(texts)]
            for key, part in zip(texts, cast("ast.Tuple", parts).elts, strict=True):
                if not isinstance(key, str):
                    break
                made += [self.constants.place(self.constants.number(key)), *self._output(part, environment, kind)]
            else:
                return made
        where = f"{kind.region.file}:{kind.region.line}"
        raise NotSkeletal(
            f"{where}: tensor code there makes a record, or a dict of keys that are no texts: return tuples or lists of tensors"
        )

    # --- what it is -------------------------------------------------------------------------------------------------------------

    def table_records(self) -> list[TableRecord]:
        """What lies in each table."""
        return [{"dtype": _DTYPES[each.dtype], "dims": list(each.shape)} for each in self._tables]

    def record(self, results: Sequence[SlotRecord]) -> SkeletonRecord:
        """results: how results lie in tensors."""
        self.instances.slots.finish()
        return {
            "language": LANGUAGE,
            "name": self.name,
            "functions": [
                {
                    "name": code.name,
                    "file": Path(code.file).name,
                    "parameters": len(code.parameters),
                    "registers": code.registers,
                    "memo": code.memo,
                    "code": code.code,
                    "lines": code.lines,
                }
                for code in self.lowering.code
            ],
            "constants": [list(each) for each in self.constants.numbers],
            "texts": self.constants.texts,
            "names": [self._name(each) for each in self.lowering.names],
            "objects": self.constants.records(),
            "tables": self.table_records(),
            "rows": self._rows,
            "regions": self._regions,
            "kinds": self._kinds,
            "slots": self.instances.slots.records,
            "results": list(results),
            "nodes": self.instances.nodes,
            "root": self.instances.root,
            "result": 0,
            "kind": self.instances.kind,
            "domains": self.instances.slots.domains,
        }

    def table(self, kind: RowClass) -> int:
        """The number of the table of such rows. Raises NotSkeletal."""
        if kind.dtype not in _DTYPES:
            raise NotSkeletal(f"it has tensors of {kind.dtype}")
        return self._tables.setdefault(kind, len(self._tables))

    @property
    def tables(self) -> list[RowClass]:
        return [*self._tables]


def _texts_in(value: object) -> set[str]:
    """The texts among the constants of code."""
    if isinstance(value, CodeType):
        return set().union(*map(_texts_in, value.co_consts))
    return {value} if isinstance(value, str) else set().union(*map(_texts_in, value)) if isinstance(value, tuple | frozenset) else set()


def _note_asked(step: Compute, line: str, found: Asked) -> None:
    """Adds what a step asks of a node."""
    value, of_nodes = step.value, bool(step.seen.kinds & {"object", "tensors", "container"})
    if isinstance(value, ast.Attribute) and of_nodes:
        found.attributes.setdefault(value.attr, line)
    if isinstance(value, ast.Compare) and isinstance(value.ops[0], ast.In | ast.NotIn):
        found.presence |= _text_of(value.left)
    if not isinstance(value, ast.Call):
        return
    if isinstance(value.func, ast.Attribute):
        if step.seen.categories == {"function"} and "object" in step.seen.kinds:
            found.methods.add(value.func.attr)
        found.presence |= _text_of(value.args[0]) if value.func.attr == "get" and value.args else set()
    elif isinstance(value.func, ast.Name) and value.func.id in ("getattr", "hasattr") and of_nodes and len(value.args) > 1:
        for name in _text_of(value.args[1]):
            found.attributes.setdefault(name, line)
            if value.func.id == "hasattr" or len(value.args) > 2:
                found.presence.add(name)


def _text_of(node: ast.expr) -> set[str]:
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def _has_program(kind: Kind) -> bool:
    """Others depend on weights alone."""
    return bool(kind.rows or kind.values)


def _subscript(node: ast.expr) -> int:
    assert isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    return int(node.slice.value)  # pyright: ignore[reportArgumentType]


def _path_of(values: Sequence[object], wanted: object) -> list[int]:
    """The places that lead to a container, by identity."""
    for place, each in enumerate(values):
        if each is wanted:
            return [place]
        parts = parts_of(each)
        if parts is not None:
            found = _path_of(parts, wanted)
            if found:
                return [place, *found]
    return []


def _needs_python(needed: NeedsPython) -> NotSkeletal:
    text = linecache.getline(needed.file, needed.line).strip()
    where = f"{needed.file}:{needed.line}" + (f": `{text}`" if text else "")
    if needed.new:
        return NotSkeletal(f"{where} has not run", new=True)
    return NotSkeletal(f"{where} needs Python: {needed.reason}")
