"""A model whose recursion instances alone decide, as an artifact that runs without its code and without PyTorch."""

from __future__ import annotations

import linecache
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from disc.artifact.file import Contents, write_structures
from disc.artifact.manifest import STORAGE, Manifest, StoredManifest, results_of
from disc.artifact.structures import MOST_KINDS, NODES, ROOT, ROOTS, KindRecord, StructuresRecord, TableRecord, tensor_names
from disc.config import VERSION
from disc.errors import SaveError
from disc.frontend.batched.functions import Function
from disc.frontend.batched.model import Model
from disc.frontend.batched.regions import Region
from disc.frontend.batched.saving_skeleton import save_skeleton
from disc.frontend.batched.structural import Asked, Recursion, refused_line
from disc.ral.schedule import Question

STORED = {name for name in STORAGE if name != "bf16"}  # what tables of NumPy have


def save_model(model: Model, path: str | os.PathLike[str], examples: Sequence[object] = ()) -> None:
    """Writes the artifact. examples: instances that ran; those of earlier batches count, too, unless no tensors can say what they
    are beside these. Raises SaveError, which names the line that needs Python; OutputError."""
    found = model.recursion_to_save()
    if not isinstance(found, Recursion):
        known = [*examples, *model.examples]
        why = model.why_not_native()
        if why is not None:
            raise SaveError(f"the model cannot be saved: {why}")
        if not known:
            raise _not_yet(model.root, found)
        try:
            save_skeleton(model, path, known)
        except SaveError:
            if not examples or len(known) == len(examples):
                raise
            save_skeleton(model, path, examples)
        return
    blocks = [each.contents() for each in found.executables]
    manifest = _manifest(found, blocks, model.root)
    write_structures(
        path, manifest, [_with_names(each, call.columns, model.root) for each, (_, call) in zip(blocks, found.paths, strict=True)]
    )


def _with_names(block: Contents, columns: Sequence[str], root: Function) -> Contents:
    """The program with messages that name its numbers as users do, `tree.word`; they are its last inputs."""
    names = [each["name"] for each in block.manifest["inputs"]][-len(columns) :] if columns else []
    shown = {f"input '{name}'": f"input '{root.parameters()[-1]}.{column}'" for name, column in zip(names, columns, strict=True)}

    def renamed(message: str) -> str:
        return next((message.replace(name, own) for name, own in shown.items() if name in message), message)

    targets = {
        isa: {**record, "checks": [{"message": renamed(each["message"])} for each in record["checks"]]}
        for isa, record in block.manifest["targets"].items()
    }
    return block._replace(manifest=cast("StoredManifest", {**block.manifest, "targets": targets}))


def _not_yet(root: Function, reason: str) -> SaveError:
    """Of a model that has not run."""
    line, _ = refused_line(root)
    if not line:
        return SaveError(f"the model cannot be saved: {root.file}:{root.original.__code__.co_firstlineno}: {reason}")
    text = linecache.getline(root.file, line).strip()
    where = f"{root.file}:{line}" + (f": `{text}`" if text else "")
    return SaveError(f"the model cannot be saved yet: {where} has not run; give `save` instances that come there")


def _manifest(recursion: Recursion, blocks: Sequence[Contents], root: Function) -> Manifest:
    record = _record(recursion, blocks, root)
    names = tensor_names(record)
    dims = [NODES] * (len(names) - 1) + [ROOTS]
    types = [record["tables"][table] for table in record["results"]]
    structure: Mapping[str, object] = {} if isinstance(recursion.result, int) else {"structure": _structure(recursion.result)}
    return cast(
        "Manifest",
        {
            "compiler": f"disc {VERSION}",
            "inputs": [{"name": name, "dtype": "i64", "dims": [dim]} for name, dim in zip(names, dims, strict=True)],
            "outputs": [
                {"name": f"output{number}", "dtype": each["dtype"], "rank": 1 + len(each["dims"]), "dims": [ROOTS, *each["dims"]]}
                for number, each in enumerate(types)
            ],
            "single": isinstance(recursion.result, int),
            **structure,
            "symbols": [
                {"name": NODES, "min": 0, "divisor": 1, "source": "arg0.0"},
                {"name": ROOTS, "min": 0, "divisor": 1, "source": f"arg{len(names) - 1}.0"},
            ],
            "checks": [],
            "kernels": [],
            "counters": [],
            "options": {},
            "structures": record,
        },
    )


def _record(recursion: Recursion, blocks: Sequence[Contents], root: Function) -> StructuresRecord:
    """Raises SaveError for what tensors cannot say."""
    kinds = [_kind(call.region, call.rows, call.columns) for _, call in recursion.paths]
    order = root.original.__code__.co_names  # as the code reads them
    fields = sorted({row["field"] for kind in kinds for row in kind["rows"]}, key=order.index)
    columns = sorted({name for kind in kinds for name in kind["columns"]}, key=order.index)
    arrays = _of_arrays(recursion.question, [{row["field"] for row in kind["rows"]} for kind in kinds], fields)
    columns += [name for name in dict.fromkeys(_attributes(arrays)) if name not in (*fields, *columns)]
    _check_names(root, fields, columns, kinds)
    _check_children([asked for asked, _ in recursion.paths], kinds, fields, root)
    tables, results = _tables(recursion, blocks, root)
    return {
        "name": root.parameters()[-1],
        "fields": fields,
        "columns": columns,
        "tables": tables,
        "results": results,
        "kinds": kinds,
        "objects": _question_record(recursion.question),
        "arrays": _question_record(arrays),
    }


def _kind(region: Region, rows: Sequence[tuple[str, int]], columns: Sequence[str]) -> KindRecord:
    return {
        "name": region.name,
        "line": f"{Path(region.file).name}:{region.line}",
        "rows": [{"field": field, "result": result} for field, result in rows],
        "columns": list(columns),
    }


def _tables(recursion: Recursion, blocks: Sequence[Contents], root: Function) -> tuple[list[TableRecord], list[int]]:
    """The tables, and the one of each result."""
    types: list[TableRecord] = [
        {"dtype": record["dtype"], "dims": list(kind.shape)}
        for record, kind in zip(results_of(blocks[0].manifest), recursion.results, strict=True)
    ]
    unstored = next((each["dtype"] for each in types if each["dtype"] not in STORED), None)
    if unstored is not None:
        raise SaveError(f"{root.name} returns {unstored}, which NumPy does not have: return f32")
    tables: list[TableRecord] = []
    for each in types:
        if each not in tables:
            tables.append(each)
    return tables, [tables.index(each) for each in types]


def _check_names(root: Function, fields: Sequence[str], columns: Sequence[str], kinds: Sequence[KindRecord]) -> None:
    if not fields and not columns:
        raise SaveError(f"{root.name} reads nothing of its instances")
    if len(kinds) > MOST_KINDS:
        raise SaveError(f"{root.name} has {len(kinds)} kinds of nodes; at most {MOST_KINDS} are saved")
    both = {*fields} & {*columns}
    if both or ROOT in (*fields, *columns):
        raise SaveError(f"{root.name}: the attribute {(*both, ROOT)[0]!r} is a node and a number, or has a name that is taken")


def _check_children(asked: Sequence[Asked], kinds: Sequence[KindRecord], fields: Sequence[str], root: Function) -> None:
    """A child that is there is one that its node reads: the linearizer refuses others."""
    for answers, kind in zip(asked, kinds, strict=True):
        own = {row["field"] for row in kind["rows"]}
        for name, is_none, answer in answers:
            if name in fields and answer != is_none and name not in own:
                raise SaveError(f"{root.name}: a node at {kind['line']} has a {name!r} that it does not read, which tensors cannot say")


def _of_arrays(question: Question | int, own: Sequence[set[str]], fields: Sequence[str]) -> Question | int:
    """The questions as numbers answer them: what an attribute tells that is neither a child nor a number, such as a property, is asked of a
    child that one side alone has. Where there is none, the attribute becomes a column."""
    if isinstance(question, int):
        return question
    yes, no = (_of_arrays(each, own, fields) for each in (question.yes, question.no))
    if question.attribute not in fields:
        sides = [[own[kind] for kind in _kinds_in(each)] for each in (yes, no)]
        for name in fields:
            here, there = ([name in each for each in side] for side in sides)
            if all(here) and not any(there):
                return Question(name, True, no, yes)
            if all(there) and not any(here):
                return Question(name, True, yes, no)
    return Question(question.attribute, question.is_none, yes, no)


def _kinds_in(question: Question | int) -> list[int]:
    return [question] if isinstance(question, int) else [*_kinds_in(question.yes), *_kinds_in(question.no)]


def _attributes(question: Question | int) -> list[str]:
    return [] if isinstance(question, int) else [question.attribute, *_attributes(question.yes), *_attributes(question.no)]


def _question_record(question: Question | int) -> object:
    if isinstance(question, int):
        return question
    yes, no = _question_record(question.yes), _question_record(question.no)
    return {"attribute": question.attribute, "none": question.is_none, "yes": yes, "no": no}


def _structure(result: object) -> object:
    """As `disc.artifact.structure` has it."""
    return {"tuple": [_structure(each) for each in cast("tuple[object, ...]", result)]} if isinstance(result, tuple) else result
