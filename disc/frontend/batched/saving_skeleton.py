"""A model that decides by values, as an artifact that runs without its code and without PyTorch: its skeleton in instructions
(`lowering.py`), a program for each block, and how its instances lie in tensors (`instance_types.py`)."""

from __future__ import annotations

import ast
import base64
import linecache
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch

from disc.artifact.file import Contents, write_structures
from disc.artifact.manifest import STORAGE, Manifest
from disc.artifact.skeletons import DTYPES, ITEMS, OUTPUTS, TENSOR, TOKENS, SkeletonRecord, SlotRecord, tensors_of
from disc.artifact.structures import TableRecord
from disc.config import VERSION
from disc.errors import ArtifactError, SaveError
from disc.frontend.batched.instance_types import Instances, Slots
from disc.frontend.batched.launches import executable_of
from disc.frontend.batched.lowering import Lowering, NeedsPython
from disc.frontend.batched.model import Model
from disc.frontend.batched.regions import INDEX, Kind
from disc.frontend.batched.rows import RowClass, containers, parts_of
from disc.frontend.batched.skeleton_values import Constants, Unsayable
from disc.frontend.batched.steps import Compute, walk

_DTYPES = {torch.bool: "i1", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.uint8: "ui8",
           torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}  # fmt: skip


def save_skeleton(model: Model, path: str | os.PathLike[str], examples: Sequence[Any]) -> None:
    """Writes the artifact. examples: instances that show all that instances can be. Raises SaveError, which names the line that needs
    Python; OutputError."""
    saving = _Saving(model, examples)
    blocks = [_contents(each) for each in saving.programs]
    if not blocks:
        raise SaveError(f"the model cannot be saved: {model.root.name} computes nothing of its instances")
    try:
        write_structures(path, saving.manifest(), blocks)
    except ArtifactError as error:
        raise SaveError(f"the model cannot be saved: it has {len(blocks)} blocks, more than a file has sections for") from error


def _contents(kind: Kind) -> Contents:
    found = executable_of(kind)
    if found is None:
        where = f"{kind.region.file}:{kind.region.line}"
        raise SaveError(
            f"the model cannot be saved: {where}: the block there is no compiled program ({kind.refusal or 'it was not compiled'})"
        )
    return found.contents()


class _Saving:
    """programs: the kinds that have one, by the number of their block."""

    def __init__(self, model: Model, examples: Sequence[Any]) -> None:
        self._model, self._root = model, model.root
        self._tables: dict[RowClass, int] = {}
        self._rows: list[list[object]] = []
        self._held: dict[int, int] = {}  # constant rows of each table
        self.programs: list[Kind] = []
        self.name = self._root.parameters()[-1]
        if not examples:
            raise SaveError("the model cannot be saved yet: no instance has run; give `save` some")
        results = model.run_until_known(examples)
        self._constants = Constants(model.find)
        self._constants.object(self._root.original if not isinstance(model.target, torch.nn.Module) else model.target)
        self.instances = self._instances(examples)
        self._lowering = Lowering(self._constants, self.instances.mask, torch.Tensor)
        try:
            self._lower()
        except NeedsPython as needed:
            raise _needs_python(needed) from None
        self.results = Slots(self._table)
        self.results.found(results, "output", 0, results=True)
        _name_results(self.results.records)
        self._check_results()
        self._kinds, self._regions = self._blocks()

    def _instances(self, examples: Sequence[Any]) -> Instances:
        """What instances are; properties that the code asks for read attributes, too."""
        attributes = self._attributes()
        while True:
            found = Instances(self.name, examples, attributes, self._table)
            for name, getters in found.getters.items():
                for getter in getters:
                    self._model.learnt(getter, found.with_getter(name, getter))
            again = self._attributes()
            if again.keys() == attributes.keys():
                return found
            attributes = again

    def _attributes(self) -> dict[str, str]:
        """What the code reads of objects that are no modules: name → "file:line"."""
        found: dict[str, str] = {}
        for function in self._model.functions():
            for step in walk(function.source.steps) if function.source is not None else ():
                value = step.value if isinstance(step, Compute) else None
                if isinstance(value, ast.Attribute) and step.seen.kinds & {"object", "tensors"}:
                    found.setdefault(value.attr, f"{function.file}:{step.line}")
        return found

    def _lower(self) -> None:
        """All functions, with properties of instances. Raises NeedsPython."""
        lowering = self._lowering
        lowering.lower(self._root)
        self._getters: dict[str, int] = {}
        for name, getters in self.instances.getters.items():
            if len(getters) > 1:
                where = self.instances.attributes[name]
                raise SaveError(f"the model cannot be saved: {where}: '{name}' is another property in another class")
            self._getters[name] = lowering.lower(self._model.learnt(getters[0], ()))
        for name in (*self.instances.names, *self._getters):
            lowering.name(name)
        self._constants.finish(lowering.names, lowering.functions)

    def _name(self, name: str) -> list[object]:
        """An attribute: the slot of nodes that have it, and of which classes; the function of a property, and of which."""
        found = self.instances
        return [name, found.names.get(name, -1), found.field_mask(name), self._getters.get(name, -1), found.getter_mask(name)]

    # --- rows and blocks --------------------------------------------------------------------------------------------------------

    def _table(self, kind: RowClass) -> int:
        if kind.dtype not in _DTYPES:
            raise SaveError(f"the model cannot be saved: it has tensors of {kind.dtype}")
        return self._tables.setdefault(kind, len(self._tables))

    def _blocks(self) -> tuple[list[list[object]], list[list[object]]]:
        kinds: list[list[object]] = []
        regions: list[list[object]] = []
        for number, region in enumerate(self._lowering.regions):
            own: list[int] = []
            for kind_key, kind in region.kinds.items():
                tokens = self._tokens(kind_key)
                if tokens is not None:
                    own.append(len(kinds))
                    kinds.append(self._kind(number, kind, tokens))
            indices = [int(place in region.indices) for place in range(len(region.inputs))]
            regions.append([region.name, f"{Path(region.file).name}:{region.line}", indices, own])
        return kinds, regions

    def _kind(self, region: int, kind: Kind, tokens: list[int]) -> list[object]:
        rows, results = [self._table(each) for each in kind.rows], [self._table(each) for each in kind.results]
        block, places = -1, []
        if rows or kind.values:
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
            return [number("row"), self._table(part)]
        if part == INDEX:
            return [number("index")]
        if not isinstance(part, tuple) or len(part) < 2:
            return None
        first, second = part[0], part[1]
        if first == "float":
            return [number("float"), struct.unpack("<q", struct.pack("<d", float.fromhex(second)))[0]]
        if first in ("object", "method"):
            found = self._constants.known(part[1:] if first == "object" and len(part) > 2 else second if first == "object" else part)
            return [number("object"), found] if found is not None else None
        if first in (list, tuple):
            return [number("list" if first is list else "tuple"), second]
        if first in (bool, int):
            return [number("bool" if first is bool else "int"), int(second)]
        if first is str:
            return [number("text"), self._constants.number(second)[1]]
        if second is None:
            return [number("none")]
        found = self._constants.known(id(second))
        return [number("object"), found] if found is not None else None

    def _outputs(self, kind: Kind) -> list[int]:
        """What a region returns, of what its block computes."""
        text, environment = kind.written
        tree = ast.parse(text, mode="eval").body
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
                return [number("constant"), self._constants.place(self._constants.number(environment[node.id]))]
            except Unsayable as reason:
                raise SaveError(f"the model cannot be saved: {kind.region.file}:{kind.region.line}: {reason}") from None
        if isinstance(node, ast.Tuple | ast.List):
            parts = [part for each in node.elts for part in self._output(each, environment, kind)]
            return [number("tuple" if isinstance(node, ast.Tuple) else "list"), len(node.elts), *parts]
        where = f"{kind.region.file}:{kind.region.line}"
        raise SaveError(
            f"the model cannot be saved: {where}: tensor code there makes a dict or a record: return tuples or lists of tensors"
        )

    # --- what is written --------------------------------------------------------------------------------------------------------

    def _check_results(self) -> None:
        for each in self.results.records:
            if each["kind"] == TENSOR and self._table_records()[each["table"]]["dtype"] == "bf16":
                raise SaveError(f"{self._root.name} returns bf16, which NumPy does not have: return f32")

    def _table_records(self) -> list[TableRecord]:
        return [{"dtype": _DTYPES[each.dtype], "dims": list(each.shape)} for each in self._tables]

    def _record(self) -> SkeletonRecord:
        return {
            "name": self.name,
            "functions": [
                {
                    "name": function.name,
                    "file": Path(function.file).name,
                    "parameters": len(code.parameters),
                    "registers": code.registers,
                    "memo": not function.changes_arguments(),
                    "code": code.code,
                    "lines": code.lines,
                }
                for function, code in zip(self._lowering.functions, self._lowering.code, strict=True)
            ],
            "constants": [list(each) for each in self._constants.numbers],
            "texts": self._constants.texts,
            "names": [self._name(each) for each in self._lowering.names],
            "objects": self._constants.records(),
            "tables": self._table_records(),
            "rows": self._rows,
            "regions": self._regions,
            "kinds": self._kinds,
            "slots": self.instances.slots.records,
            "results": self.results.records,
            "nodes": self.instances.nodes,
            "root": self.instances.root,
            "result": 0,
            "kind": self.instances.kind,
            "domains": self.instances.slots.domains,
        }

    def manifest(self) -> Manifest:
        record = self._record()
        inputs, outputs = tensors_of(record["slots"]), tensors_of(record["results"])
        dims = [[f"s{number}", *self._dims(each)] for number, each in enumerate(inputs)]
        single = len(outputs) == 1 and record["results"][0]["kind"] not in ("parts", ITEMS)
        return cast(
            "Manifest",
            {
                "compiler": f"disc {VERSION}",
                "inputs": [{"name": each["name"], "dtype": self._dtype(each), "dims": own} for each, own in zip(inputs, dims, strict=True)],
                "outputs": [{"name": each["name"], "dtype": self._dtype(each), "rank": 1 + len(self._dims(each))} for each in outputs],
                "single": single,
                "symbols": [{"name": f"s{number}", "min": 0, "divisor": 1, "source": f"arg{number}.0"} for number in range(len(inputs))],
                "checks": [],
                "kernels": [],
                "counters": [],
                "options": {},
                "skeleton": record,
            },
        )

    def _dims(self, slot: SlotRecord) -> list[int]:
        return self._table_records()[slot["table"]]["dims"] if slot["kind"] == TENSOR else []

    def _dtype(self, slot: SlotRecord) -> str:
        dtype = self._table_records()[slot["table"]]["dtype"] if slot["kind"] == TENSOR else DTYPES[slot["kind"]]
        if dtype not in STORAGE:
            raise SaveError(f"the model cannot be saved: {slot['name']} is {dtype}")
        return dtype


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


def _name_results(records: Sequence[SlotRecord]) -> None:
    """A single result is `output0`, as everywhere."""
    for each in records:
        head, _, rest = each["name"].partition(".")
        if head == "output":
            each["name"] = f"output0{'.' if rest else ''}{rest}"


def _needs_python(needed: NeedsPython) -> SaveError:
    text = linecache.getline(needed.file, needed.line).strip()
    where = f"{needed.file}:{needed.line}" + (f": `{text}`" if text else "")
    if needed.new:
        return SaveError(f"the model cannot be saved yet: {where} has not run; give `save` instances that come there")
    return SaveError(f"the model cannot be saved: {where} needs Python: {needed.reason}")
