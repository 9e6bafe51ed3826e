"""`docs/operators.md` is true: every operator has a row, no row rests on what has changed, and rows that are run again end as recorded.

A row that fails here: `python tools/operators.py` runs what is stale again and writes record and document.
"""

from __future__ import annotations

import dataclasses

import operators
import pytest

from tests.operators.op_cases import cases_of
from tests.operators.op_rows import COMPILED, FAULT, Row, read_record, verified
from tests.operators.stablehlo_cases import verified_stablehlo

RECORD = read_record()
# One of each kind: lowered by torch-mlir, by a rule, by a decomposition; StableHLO's; one that is refused.
SOME = ("core/aten.full_like.default", "core/aten.cumsum.default", "core/aten.slice_scatter.default", "core/aten.randperm.default",
        "stablehlo/stablehlo.compare", "stablehlo/stablehlo.outfeed")  # fmt: skip


def again(row: Row) -> Row:
    if row.family == "stablehlo":
        return verified_stablehlo(row.name)
    return verified(row.family, row.name, cases_of(row.family, row.name, row.samples))


def test_every_operator_has_a_row_that_rests_on_what_is_there() -> None:
    assert operators.stale(RECORD) == []


def test_the_document_says_what_is_recorded() -> None:
    assert operators.DOCUMENT.read_text() == operators.render(RECORD.values())


def test_rows_agree_with_themselves() -> None:
    for row in RECORD.values():
        assert row.agreeing <= row.cases and row.sizes_right <= row.sizes
        assert (row.status == COMPILED) == (row.agreeing == row.cases > 0)
        assert row.reason or row.status == COMPILED or not row.cases


def test_no_operator_fails() -> None:
    assert [f"{row.name}: {row.reason}" for row in RECORD.values() if row.status == FAULT] == []


def test_almost_all_of_core_aten_agrees_with_eager() -> None:
    rows = [row for row in RECORD.values() if row.family == "core"]
    assert sum(row.status == COMPILED for row in rows) >= 0.97 * len(rows)


@pytest.mark.parametrize("key", SOME)
def test_rows_end_as_recorded(key: str) -> None:
    row = again(RECORD[key])
    assert (row.status, row.dtypes) == (RECORD[key].status, RECORD[key].dtypes), row.reason


@pytest.mark.long
@pytest.mark.parametrize("key", sorted(RECORD))
def test_all_rows_end_as_recorded(key: str) -> None:
    row = again(RECORD[key])
    assert row.status == RECORD[key].status, row.reason


def test_what_has_changed_makes_a_row_stale() -> None:
    key = "core/aten.add.Tensor"
    changed = dataclasses.replace(RECORD[key], rests_on={"aten.add.Tensor": "another route"})
    assert operators.stale({**RECORD, key: changed}) == [key]
    assert operators.stale({each: row for each, row in RECORD.items() if each != key}) == [key]
    gone = dataclasses.replace(RECORD[key], name="aten.gone.default")
    assert operators.stale({**RECORD, gone.key(): gone}) == [gone.key()]
