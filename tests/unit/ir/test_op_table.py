"""Every op of the table has the rules that it needs, and no rule is for an op that is not there."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from disc.codegen.plan import probe
from disc.codegen.x86 import elementwise as x86_elementwise
from disc.codegen.x86 import structural as x86_structural
from disc.codegen.x86.math.functions import BINARY_F64, UNARY, UNARY_F64
from disc.errors import CompilerBug
from disc.ir.control import REGION_OPS
from disc.ir.dialect import disc_context
from disc.ir.interp import oracle
from disc.ir.op_table import CONTROL, ELEMENTWISE, EXTERNAL, IMPORTED, OPS, Kind, rules_by_op
from disc.ir.stages import parse_module
from disc.passes.fusion import tabulate_distances
from disc.passes.graph import find_batch_dim, simplify, split_batch, token_rules
from disc.passes.shape import host_rules, named_form, shape_rules

ROOT = Path(__file__).parents[3]
KERNELS = (Kind.DOT, Kind.CONVOLUTION, Kind.SEQUENTIAL, Kind.LIBRARY)  # each has a kernel, not a rule for a value at an index
HOST = (Kind.STORED, Kind.SIZE, Kind.CONTROL, Kind.END)
TABLES: dict[str, Mapping[str, object]] = {
    "interpreter": oracle.RULES, "name-dims": shape_rules.RULES, "named form": named_form.REWRITES, "sizes": host_rules.HOST_RULES,
    "simplify": simplify.RULES, "find-batch-dim": find_batch_dim.RULES, "pack-sequences": token_rules.RULES,
    "split-batch": split_batch._SOURCES, "tabulate-distances": tabulate_distances._FORMS, "probe": probe._RULES,
    "x86 elementwise": x86_elementwise.RULES, "x86 structural": x86_structural.RULES,
}  # fmt: skip
# Lists of three and more ops that are no table of rules, each with the reason why no trait of the table says the same.
OWN_LISTS = {
    ("disc/ir/stages.py", ""): "what stands beside fusions is the definition of stage `fused`",
    ("disc/ir/rewriting.py", "splat_value"): "the views that a splat is written with; what others make of one is folded before",
}
OF_SIZES = ("arith.", "math.", "shape.", "tensor.")  # shape arithmetic of front ends, no ops of stage `named`


def test_every_op_can_be_interpreted() -> None:
    assert sorted(OPS.keys() - oracle.RULES.keys()) == ["external.call", "func.return"]  # a custom op is the runtime's to call


def test_every_op_that_a_front_end_may_deliver_gets_dims() -> None:
    assert sorted(IMPORTED.keys() - shape_rules.RULES.keys()) == []


def test_every_op_that_a_front_end_may_deliver_becomes_one_of_stage_named() -> None:
    sizes = {"stablehlo.get_dimension_size"}  # their values are made where they are read
    known = OPS.keys() | named_form.REWRITES.keys() | sizes | REGION_OPS  # outlined afterwards
    assert [name for name in IMPORTED if name not in known and not name.startswith("chlo.broadcast_")] == []


def test_every_op_has_code() -> None:
    functions = UNARY.keys() | UNARY_F64.keys() | BINARY_F64.keys()
    elementwise = {name for name in ELEMENTWISE if name in x86_elementwise.RULES or name.partition(".")[2] in functions}
    views = {op.name for op in OPS.values() if op.kind is Kind.VIEW}
    own = {op.name for op in OPS.values() if op.kind in (*KERNELS, *HOST)}
    assert sorted(OPS.keys() - elementwise - x86_structural.RULES.keys() - views - own) == []


@pytest.mark.parametrize("table", TABLES)
def test_no_rule_is_for_an_op_without_a_record(table: str) -> None:
    names = [name for name in TABLES[table] if name not in OPS and name not in IMPORTED and name != "kernel.fusion"]
    assert [name for name in names if not name.startswith(OF_SIZES)] == []


def test_a_rule_for_an_unknown_op_is_a_bug() -> None:
    with pytest.raises(CompilerBug, match=r"stablehlo\.sort"):
        rules_by_op("test", {"stablehlo.sort": None})


def test_dialects_have_the_ops_of_the_table() -> None:
    with disc_context() as context:
        parse_module("")  # loads chlo
        unregistered = [op.name for op in OPS.values() if not context.is_registered_operation(op.name)]
        assert sorted(unregistered) == sorted(CONTROL | {EXTERNAL})  # operands of any number and types, which IRDL does not have


def own_lists(path: Path) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(file, function, names) of every list, tuple or set of three and more ops."""
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            texts = [each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            names = tuple(text for text in texts if text in OPS or text in IMPORTED)
            if len(names) >= 3:
                around = [each.name for each in functions if each.lineno <= node.lineno <= (each.end_lineno or 0)]
                yield str(path.relative_to(ROOT)), around[-1] if around else "", names


def test_no_list_of_ops_is_kept_beside_the_table() -> None:
    """A new op would be forgotten there: ask a trait of the table. Tables of rules are checked above."""
    table = ROOT / "disc" / "ir" / "op_table.py"
    found = [each for path in sorted((ROOT / "disc").rglob("*.py")) if path != table for each in own_lists(path)]
    assert [each for each in found if each[:2] not in OWN_LISTS] == []
    assert {each[:2] for each in found} == set(OWN_LISTS), "a reason without a list"


def test_lists_of_ops_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "one.py"
    path.write_text('def f(op):\n    return op in {"stablehlo.add", "disc.slice", "stablehlo.pad"}\n\nPAIR = ("disc.slice", "disc.pad")\n')
    assert list(own_lists(path)) == [("one.py", "f", ("stablehlo.add", "disc.slice", "stablehlo.pad"))]
