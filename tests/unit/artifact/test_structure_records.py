"""What a manifest says of structures, from a file that nobody vouches for."""

from __future__ import annotations

import copy
import inspect
import re
from typing import Any, cast

import pytest

from disc.artifact.manifest import InputRecord, OutputRecord
from disc.artifact.structures import StructuresRecord, malformed_structures, tensor_names
from disc.ral import executable
from disc.ral.structured import StructuredProgram

RECORD: StructuresRecord = {
    "name": "tree",
    "fields": ["left", "right"],
    "columns": ["word"],
    "tables": [{"dtype": "f32", "dims": [8]}],
    "results": [0, 0],
    "kinds": [
        {"name": "leaf", "line": "", "rows": [], "columns": ["word"]},
        {"name": "node", "line": "", "rows": [{"field": "left", "result": 0}, {"field": "right", "result": 1}], "columns": []},
    ],
    "objects": {"attribute": "is_leaf", "none": False, "yes": 0, "no": 1},
    "arrays": {"attribute": "left", "none": True, "yes": 0, "no": 1},
}
OUTPUTS = [cast("OutputRecord", {"name": f"output{number}", "dtype": "f32", "rank": 2}) for number in range(2)]


def inputs_of(record: StructuresRecord) -> list[InputRecord]:
    return [{"name": name, "dtype": "i64", "dims": ["nodes"]} for name in tensor_names(record)]


def test_a_good_one() -> None:
    assert tensor_names(RECORD) == ["tree.word", "tree.left", "tree.right", "tree.root"]
    assert malformed_structures(RECORD, inputs_of(RECORD), OUTPUTS) is None


def endless() -> dict[str, Any]:
    question: dict[str, Any] = {"attribute": "left", "none": True, "yes": 0, "no": 1}
    for _ in range(600):
        question = {"attribute": "left", "none": True, "yes": question, "no": 1}
    return question


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("fields",), ["left", "left"], "given twice"),
        (("columns",), ["left"], "given twice"),
        (("fields",), ["left", "root"], "given twice"),
        (("kinds",), [], "not 1 to"),
        (("kinds", 1, "rows", 0, "field"), "up", "of no field"),
        (("kinds", 1, "rows", 0, "result"), 2, "no result"),
        (("kinds", 1, "rows", 0, "result"), -1, "no result"),
        (("kinds", 0, "columns"), ["words"], "a column that there is not"),
        (("tables", 0, "dims"), [-1], "a size that no row can have"),
        (("tables", 0, "dims"), [1 << 40, 1 << 40], "a size that no row can have"),
        (("results",), [0, 1], "a table that there is not"),
        (("results",), [0], "no result"),
        (("tables", 0, "dtype"), "f64", "not the types of the outputs"),
        (("arrays", "attribute"), "is_leaf", "a question about nothing"),
        (("arrays", "attribute"), 3, "a question about nothing"),
        (("arrays", "yes"), 2, "a question that is none"),
        (("arrays", "yes"), True, "a question that is none"),
        (("objects", "no"), {"attribute": "x"}, "a question that is none"),
        (("objects",), endless(), "a question that is none"),
    ],
)
def test_what_is_refused(path: tuple[Any, ...], value: Any, problem: str) -> None:
    record: Any = copy.deepcopy(RECORD)
    at = record
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    found = malformed_structures(record, inputs_of(record), OUTPUTS)
    assert found is not None
    assert problem in found


def test_inputs_are_those_of_the_structure() -> None:
    inputs = inputs_of(RECORD)
    for wrong in (inputs[:-1], inputs[::-1], [*inputs[:-1], {**inputs[-1], "dtype": "i32"}], [*inputs[:-1], {**inputs[-1], "dims": []}]):
        assert malformed_structures(RECORD, cast("list[InputRecord]", wrong), OUTPUTS) is not None


def test_a_program_over_structures_stands_in_place_of_a_context() -> None:
    """It has all that executables ask of one."""
    asked = set(re.findall(r"\b(?:_context|own)\.(\w+)", inspect.getsource(executable)))
    assert {"stats", "graph_stats", "counters", "verify"} <= asked
    assert [name for name in asked if not hasattr(StructuredProgram, name)] == []
