"""What a manifest says of a model over trees and graphs: how a structure is written as tensors, and what is computed for each kind of node.

On the wire a structure named `tree` is one i64 tensor for each column (`tree.word`, [nodes]) and each field (`tree.left`, [nodes]: numbers
of nodes), where -1 is none, and `tree.root`, [roots]. A question about a node is {"attribute": a name, "none": whether it asks for None,
else for truth, "yes": what is known then, "no": ...}, or the number of a kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict, cast

if TYPE_CHECKING:
    from disc.artifact.manifest import InputRecord, OutputRecord

NODES, ROOTS, ROOT = "nodes", "roots", "root"
MOST_KINDS = 32
_MOST_QUESTIONS = 512
_LARGEST = 1 << 40  # elements of a row


class RowRecord(TypedDict):
    """A row that the block of a kind reads: result `result` of the child in `field`."""

    field: str
    result: int


class TableRecord(TypedDict):
    """Rows of one type; dims: of a row."""

    dtype: str
    dims: list[int]


class KindRecord(TypedDict):
    """What is computed for nodes of one kind, by the block of the same number. name, line: of the block, for display. columns: the
    numbers that it reads besides rows."""

    name: str
    line: str
    rows: list[RowRecord]
    columns: list[str]


class StructuresRecord(TypedDict):
    """results: the table of each result of a block; every kind has the same. objects, arrays: the questions that decide the kind of a
    Python object, and of a node of tensors."""

    name: str
    fields: list[str]
    columns: list[str]
    tables: list[TableRecord]
    results: list[int]
    kinds: list[KindRecord]
    objects: object
    arrays: object


def tensor_names(record: StructuresRecord) -> list[str]:
    """The inputs, in their order: columns, fields, roots."""
    return [f"{record['name']}.{each}" for each in (*record["columns"], *record["fields"], ROOT)]


def fields_of(kind: KindRecord) -> list[str]:
    """The fields in which nodes of a kind have a child."""
    return list(dict.fromkeys(row["field"] for row in kind["rows"]))


def malformed_structures(record: StructuresRecord, inputs: Sequence[InputRecord], outputs: Sequence[OutputRecord]) -> str | None:
    """What is wrong with the record of an untrusted file whose values have their types; None if it may be true."""
    names = [*record["columns"], *record["fields"], ROOT]
    if len(set(names)) < len(names):
        return "manifest.structures: a name that is given twice"
    if [each["name"] for each in inputs] != tensor_names(record) or any(
        (each["dtype"], len(each["dims"])) != ("i64", 1) for each in inputs
    ):
        return "manifest.structures: inputs that are not its columns, fields and roots"
    if len(names) == 1:
        return "manifest.structures: nodes of which nothing is given"
    return _kinds(record) or _tables(record, outputs) or _questions(record)


def _kinds(record: StructuresRecord) -> str | None:
    if not 1 <= len(record["kinds"]) <= MOST_KINDS:
        return f"manifest.structures.kinds: {len(record['kinds'])}, not 1 to {MOST_KINDS}"
    for number, kind in enumerate(record["kinds"]):
        rows = kind["rows"]
        if any(row["field"] not in record["fields"] or not 0 <= row["result"] < len(record["results"]) for row in rows):
            return f"manifest.structures.kinds[{number}].rows: of no field, or no result"
        if not set(kind["columns"]) <= set(record["columns"]):
            return f"manifest.structures.kinds[{number}].columns: a column that there is not"
    return None


def _tables(record: StructuresRecord, outputs: Sequence[OutputRecord]) -> str | None:
    tables = record["tables"]
    for number, table in enumerate(tables):
        size = 1
        for dim in table["dims"]:
            size *= max(dim, 1)
        if any(dim < 0 for dim in table["dims"]) or size > _LARGEST:
            return f"manifest.structures.tables[{number}]: a size that no row can have"
    if any(not 0 <= table < len(tables) for table in record["results"]):
        return "manifest.structures.results: a table that there is not"
    if [each["dtype"] for each in outputs] != [tables[table]["dtype"] for table in record["results"]]:
        return "manifest.structures.results: not the types of the outputs"
    return None


def _questions(record: StructuresRecord) -> str | None:
    known = {*record["columns"], *record["fields"]}
    for key in ("objects", "arrays"):
        waiting: list[object] = [record[key]]
        seen = 0
        while waiting:
            node = waiting.pop()
            seen += 1
            if isinstance(node, int) and not isinstance(node, bool) and 0 <= node < len(record["kinds"]):
                continue
            question = cast("dict[str, object]", node)
            if not isinstance(node, dict) or not {"attribute", "none", "yes", "no"} <= node.keys() or seen > _MOST_QUESTIONS:
                return f"manifest.structures.{key}: a question that is none"
            name = question["attribute"]
            if not isinstance(name, str) or not isinstance(question["none"], bool) or (key == "arrays" and name not in known):
                return f"manifest.structures.{key}: a question about nothing"
            waiting += [question["yes"], question["no"]]
    return None
