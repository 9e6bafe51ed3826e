"""A model that decides by values, as an artifact that runs without its code and without PyTorch: its skeleton, and a program for each of
its blocks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.utils._pytree import tree_leaves

from disc.artifact.file import Contents, write_structures
from disc.artifact.manifest import STORAGE, Manifest
from disc.artifact.skeletons import DTYPES, ITEMS, TENSOR, SkeletonRecord, SlotRecord, tensors_of
from disc.config import VERSION
from disc.errors import ArtifactError, InstanceError, SaveError, StructureError
from disc.frontend.batched.instance_types import Slots
from disc.frontend.batched.launches import executable_of
from disc.frontend.batched.model import Model
from disc.frontend.batched.regions import Kind
from disc.frontend.batched.skeleton import Skeleton
from disc.frontend.batched.skeleton_values import NotSkeletal
from disc.ral.executable import load


def save_skeleton(model: Model, path: str | os.PathLike[str], examples: Sequence[Any]) -> None:
    """Writes the artifact. examples: instances that show all that instances can be. Raises SaveError, which names the line that needs
    Python; OutputError."""
    if not examples:
        raise SaveError("the model cannot be saved yet: no instance has run; give `save` some")
    results = model.run_until_known(examples)
    _refuse_weights(model.target, results)
    try:
        saving = _Saving(Skeleton(model, examples, lambda kind: True), results)
    except NotSkeletal as reason:
        end = "; give `save` instances that come there" if reason.new else ""
        raise SaveError(f"the model cannot be saved{' yet' if reason.new else ''}: {reason}{end}") from None
    blocks = [_contents(each) for each in saving.skeleton.programs]
    if not blocks:
        raise SaveError(f"the model cannot be saved: {model.root.name} computes nothing of its instances")
    unchecked = f"{os.fspath(path)}.unchecked"
    try:
        write_structures(unchecked, saving.manifest(model.root.name), blocks)
        _check_runs(unchecked, examples)
        os.replace(unchecked, path)
    except ArtifactError as error:
        raise SaveError(f"the model cannot be saved: it has {len(blocks)} blocks, more than a file has sections for") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(unchecked)


def _check_runs(path: str, examples: Sequence[Any]) -> None:
    """What runs in Python has to run without it. Raises SaveError for examples that the saved model refuses."""
    try:
        load(path, threads=1).batch(examples)
    except InstanceError as error:
        number, reason = next(iter(error.failures.items()))
        raise SaveError(f"the model cannot be saved: without Python, instance {number} fails: {type(reason).__name__}: {reason}") from error
    except StructureError as error:
        raise SaveError(f"the model cannot be saved: it takes no instances without Python: {error}") from error


def _refuse_weights(target: object, results: Sequence[Any]) -> None:
    """Results lie in tables of what was computed, where weights do not. Raises SaveError for a weight among them."""
    if not isinstance(target, torch.nn.Module):
        return
    names = {id(weight): name for name, weight in (*target.named_parameters(), *target.named_buffers())}
    returned = next((names[id(each)] for each in tree_leaves(results) if id(each) in names), None)
    if returned is not None:
        raise SaveError(f"the model cannot be saved: it returns its weight '{returned}' itself; let it return a copy, `{returned}.clone()`")


def _contents(kind: Kind) -> Contents:
    found = executable_of(kind)
    if found is None:
        where = f"{kind.region.file}:{kind.region.line}"
        raise SaveError(
            f"the model cannot be saved: {where}: the block there is no compiled program ({kind.refusal or 'it was not compiled'})"
        )
    return found.contents()


class _Saving:
    """The manifest of a skeleton."""

    def __init__(self, skeleton: Skeleton, results: Sequence[Any]) -> None:
        """results: of examples. Raises NotSkeletal for what tensors cannot say."""
        self.skeleton = skeleton
        self.results = Slots(skeleton.table, skeleton.constants)
        self.results.found(results, "output", 0, results=True)
        self.results.finish()
        _name_results(self.results.records)

    def manifest(self, name: str) -> Manifest:
        """name: of the model. Raises SaveError."""
        record = self.skeleton.record(self.results.records)
        _check_results(record, name)
        inputs, outputs = tensors_of(record["slots"]), tensors_of(record["results"])
        dims = [[f"s{number}", *_dims(record, each)] for number, each in enumerate(inputs)]
        single = len(outputs) == 1 and record["results"][0]["kind"] not in ("parts", ITEMS)
        return cast(
            "Manifest",
            {
                "compiler": f"disc {VERSION}",
                "inputs": [
                    {"name": each["name"], "dtype": _dtype(record, each), "dims": own} for each, own in zip(inputs, dims, strict=True)
                ],
                "outputs": [
                    {"name": each["name"], "dtype": _dtype(record, each), "rank": 1 + len(_dims(record, each))} for each in outputs
                ],
                "single": single,
                "symbols": [{"name": f"s{number}", "min": 0, "divisor": 1, "source": f"arg{number}.0"} for number in range(len(inputs))],
                "checks": [],
                "kernels": [],
                "counters": [],
                "options": {},
                "skeleton": record,
            },
        )


def _dims(record: SkeletonRecord, slot: SlotRecord) -> list[int]:
    return record["tables"][slot["table"]]["dims"] if slot["kind"] == TENSOR else []


def _dtype(record: SkeletonRecord, slot: SlotRecord) -> str:
    dtype = record["tables"][slot["table"]]["dtype"] if slot["kind"] == TENSOR else DTYPES[slot["kind"]]
    if dtype not in STORAGE:
        raise SaveError(f"the model cannot be saved: {slot['name']} is {dtype}")
    return dtype


def _check_results(record: SkeletonRecord, name: str) -> None:
    for each in record["results"]:
        if each["kind"] == TENSOR and record["tables"][each["table"]]["dtype"] == "bf16":
            raise SaveError(f"{name} returns bf16, which NumPy does not have: return f32")


def _name_results(records: Sequence[SlotRecord]) -> None:
    """A single result is `output0`, as everywhere."""
    for each in records:
        head, _, rest = each["name"].partition(".")
        if head == "output":
            each["name"] = f"output0{'.' if rest else ''}{rest}"
