"""Thresholds stand in the table of their target, each with its unit and its source, and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import disc
from disc.api import compile_imported
from disc.artifact.file import read_manifest
from disc.codegen.session import compile_state
from disc.frontend.models import import_model
from disc.ir.dialect import make_context
from disc.ir.weights import WeightTable
from disc.speculation.session import Session, open_session
from disc.targets.x86 import read_target

DISC = Path(__file__).resolve().parents[3] / "disc"
DECIDING = ("codegen", "passes", "speculation")
# Numbers that are no thresholds of a target, and why.
LAYOUT, SEARCH, COMPILING, MEASURING, VALUES, LEGAL = (
    "a layout or interface that several parts of the project agree on", "bounds the work of an algorithm of the compiler",
    "about the machine that compiles, not the one that runs", "how schedules are measured and fitted", "decides about values, not time",
    "what a plan may say at all: bounds of scratch and code, whatever the target",
)  # fmt: skip
WHOLE = {"codegen/host/abi.py": LAYOUT, "codegen/x86/math/": "coefficients of series and tables of functions"}
ALLOWED = {
    "codegen/cuda/assemble.py:PORTABLE": "the oldest GPUs that code is made for",
    "codegen/cuda/assemble.py:PTX_VERSION": "what drivers read",
    "codegen/cuda/attention.py:CHUNK": "a size for which heads that registers do not hold have no measurements yet",
    "codegen/cuda/attention.py:(MOST_HELD, MOST_HELD_SINGLE)": "registers of a thread, whatever the GPU",
    "codegen/cuda/attention.py:WIDE": "registers of a thread, whatever the GPU",
    "codegen/cuda/descriptors.py:ABI": LAYOUT,
    "codegen/cuda/descriptors.py:ADDRESS": LAYOUT,
    "codegen/cuda/descriptors.py:ALIGNMENT": LAYOUT,
    "codegen/cuda/descriptors.py:PRODUCT_ABI": LAYOUT,
    "codegen/cuda/emission.py:MOST_ELEMENTS": LEGAL,
    "codegen/cuda/joins.py:WORD": LAYOUT,
    "codegen/cuda/kernel.py:DeviceVersion.stages": "Triton's own default",
    "codegen/cuda/maps.py:FACTORS": "of a product",
    "codegen/cuda/maps.py:FIRST_ARCHITECTURE": "the first GPUs with the instructions",
    "codegen/cuda/maps.py:MAP_BYTES": LAYOUT,
    "codegen/cuda/rows.py:MOST_NARROW": "what 32 bits hold",
    "codegen/cuda/scatters.py:NEVER": "the largest 64-bit number",
    "codegen/cuda/vectors.py:BYTES": "the widest load of every GPU",
    "codegen/host/buffers.py:LINE": LAYOUT,
    "codegen/host/buffers.py:LONGEST_PLACE": "bounds the text of an expression, whatever the CPU",
    "codegen/host/buffers.py:SAMPLE": SEARCH,
    "codegen/host/flow.py:MOST_BYTES": LAYOUT,
    "codegen/host/flow.py:POINTER_BYTES": LAYOUT,
    "codegen/host/launches.py:COST_UNITS": LAYOUT,
    "codegen/host/launches.py:_AHEAD": LAYOUT,
    "codegen/manifest.py:LEAST_NUMBER": VALUES,
    "codegen/host/launches.py:FLOAT_BYTES": LAYOUT,
    "codegen/host/launches.py:GRID": LAYOUT,
    "codegen/mlir/mlir_c.py:_NOWHERE": "an address that is never called",
    "codegen/mlir/parts.py:LEAST": COMPILING,
    "codegen/mlir/parts.py:LOOP": COMPILING,
    "codegen/mlir/parts.py:PARTS": COMPILING,
    "codegen/plan/search/astar.py:MOST_CANDIDATES": "bounds the time of a search",
    "codegen/plan/search/astar.py:_LEAST_GAIN": "rounding",
    "codegen/plan/search/model.py:WIDTHS": "what is tried: the rates of the table decide",
    "codegen/plan/search/rows.py:SHORT": "what is tried: the rates of the table decide",
    "codegen/plan/winograd.py:POINTS": "points of the algorithm",
    "codegen/x86/attention/kernels.py:MOST_KEYS": LEGAL,
    "codegen/x86/attention/kernels.py:MOST_ROWS": LEGAL,
    "codegen/x86/conv/expansion.py:MOST_BYTES": LEGAL,
    "codegen/x86/conv/indirect_plan.py:MOST_ROWS": LEGAL,
    "codegen/x86/conv/taps.py:ENTRY": LAYOUT,
    "codegen/x86/conv/window.py:MOST_ROWS": LEGAL,
    "codegen/x86/conv/window_last.py:MOST_SUMS": LEGAL,
    "codegen/x86/conv/winograd_plan.py:MOST_BLOCK": LEGAL,
    "codegen/x86/conv/winograd_plan.py:SIZES": LEGAL,
    "codegen/x86/gemm/dots.py:LANES": "the shuffles of this kernel are written for so many lanes",
    "codegen/x86/gemm/kernels.py:MOST_ROWS": LEGAL,
    "codegen/x86/gemm/plan.py:LINE": LAYOUT,
    "codegen/x86/gemm/plan.py:PANELS": LEGAL,
    "codegen/x86/gemm/split_k.py:COUNTER": LAYOUT,
    "codegen/x86/gemm/split_k.py:MULTIPLE": LAYOUT,
    "codegen/x86/rows/regions.py:MOST_PARTS": LEGAL,
    "codegen/x86/rows/regions.py:MOST_SHORT": LEGAL,
    "codegen/x86/rows/regions.py:MOST_TOGETHER": LEGAL,
    "passes/fusion/clusters.py:MOST_RESHAPES": SEARCH,
    "passes/graph/convert_dots.py:ConvertDots.least": VALUES,
    "passes/graph/fold_constants.py:FoldConstants.growth": "size of the artifact",
    "passes/graph/fold_constants.py:FoldConstants.small": "size of the program text",
    "passes/graph/fold_tables.py:FoldTables.most_work": COMPILING,
    "passes/graph/fold_tables.py:FoldTables.rows": "memory of the compiler",
    "passes/graph/quantize_dots.py:LEVELS": VALUES,
    "passes/graph/quantize_dots.py:MOST_CONTRACTED": VALUES,
    "passes/graph/quantize_dots.py:QuantizeDots.early": VALUES,
    "passes/graph/quantize_dots.py:QuantizeDots.small": VALUES,
    "passes/graph/quantize_weights.py:LEAST": VALUES,
    "passes/graph/quantize_weights.py:MOST": VALUES,
    "passes/graph/quantize_weights.py:ROWS": COMPILING,
    "passes/graph/quantize_weights.py:TRIED": VALUES,
    "passes/graph/simplify.py:_MAXIMUM_SWEEPS": SEARCH,
    "passes/graph/simplify_elementwise.py:_PRECISION": VALUES,
    "passes/graph/turn_weights.py:VECTOR": "elements in the widest load of every GPU",
    "passes/shape/host_values.py:MAX_DENOMINATOR": SEARCH,
    "passes/shape/host_values.py:MAX_ELEMENTS": SEARCH,
    "passes/shape/name_dims.py:MAX_ROUNDS": SEARCH,
    "passes/shape/named_form.py:DATA_OPERANDS": "positions of operands",
    "speculation/input_bench.py:(WIDTH, HEADS)": MEASURING,
    "speculation/input_bench.py:LIMITS": MEASURING,
    "speculation/input_bench.py:SIZES": MEASURING,
    "speculation/inputs.py:SAME": MEASURING,
    "speculation/bench.py:COLD_BYTES": MEASURING,
    "speculation/block_families.py:_TILED": "the family of schedules that is searched",
    "speculation/block_families.py:_HALF_HEADS": "the family of schedules that is searched",
    "speculation/block_families.py:_LARGER": "the family of schedules that is searched",
    "speculation/block_families.py:_SINGLE_HEADS": "the family of schedules that is searched",
    "speculation/block_families.py:_PARTS": "the family of schedules that is searched",
    "speculation/block_fit.py:(ATTENTION_TOP, ATTENTION_LEAVES)": MEASURING,
    "speculation/block_families.py:FEW_ROWS": MEASURING,
    "speculation/block_fit.py:(FEW_TOP, FEW_LEAVES)": MEASURING,
    "speculation/block_fit.py:IMPOSSIBLE": MEASURING,
    "speculation/block_fit.py:UNSURE": MEASURING,
    "speculation/block_fit.py:(LEAVES, CORRECTED_LEAVES)": MEASURING,
    "speculation/block_fit.py:(NEAR, MEAN_WEIGHT)": MEASURING,
    "speculation/block_fit.py:SHARES": MEASURING,
    "speculation/block_fit.py:(TOP, CORRECTED_TOP)": MEASURING,
    "speculation/block_fit.py:DIGITS": "decimals that any CPU computes alike",
    "speculation/block_schedules.py:BlockSchedule.group": "a default; every family may say another",
    "speculation/block_model.py:BYTES": "the widest load of every GPU",
    "speculation/block_schedules.py:MAP_BOX": "the largest box of a tensor map",
    "speculation/block_schedules.py:TENSOR_ROWS": "rows of an instruction of tensor cores",
    "speculation/block_schedules.py:SPLIT_PROGRAMS": "bounds scratch",
    "speculation/block_schedules.py:MAPPED_PROGRAMS": "bounds scratch",
    "codegen/cuda/joins.py:COUNTERS": "as many as SPLIT_PROGRAMS has blocks",
    "speculation/fit.py:FOLDS": MEASURING,
    "speculation/fit.py:LEAVES": MEASURING,
    "speculation/policy.py:PANEL": LAYOUT,
    "speculation/policy.py:RULED": MEASURING,
    "speculation/policy.py:RULED_DEEP": MEASURING,
    "speculation/policy.py:RULED_ROWS": MEASURING,
    "speculation/policy.py:RULED_STRIDED": MEASURING,
    "speculation/policy.py:WHOLE_K": "the name of a value of the family of schedules",
    "speculation/schedules.py:TILE_ROWS": LAYOUT,
    "speculation/block_trees.py:HEADS": "the family of schedules that is searched",
    "speculation/block_bench.py:(WARM, MEASURED)": MEASURING,
    "speculation/block_bench.py:LEAST": MEASURING,
    "speculation/sizes.py:ATTENTION_BATCHES": MEASURING,
    "speculation/sizes.py:MEASURED_MATRICES": MEASURING,
    "speculation/sizes.py:MEASURED_ROWS": MEASURING,
    "speculation/sizes.py:BATCHED": MEASURING,
    "speculation/sizes.py:COARSE_ROWS": MEASURING,
    "speculation/sizes.py:DEVICE_BATCHED": MEASURING,
    "speculation/sizes.py:DEVICE_LINEAR": MEASURING,
    "speculation/sizes.py:DEVICE_ROWS": MEASURING,
    "speculation/sizes.py:KEYS": MEASURING,
    "speculation/sizes.py:LARGEST": MEASURING,
    "speculation/sizes.py:LINEAR": MEASURING,
    "speculation/sizes.py:QUERIES": MEASURING,
    "speculation/sizes.py:ROWS": MEASURING,
    "speculation/sizes.py:TRANSPOSED": MEASURING,
    "speculation/tune.py:TOP": MEASURING,
}


def is_number(value: ast.expr) -> bool:
    """A number but 0 and 1, arithmetic on numbers, or a collection that holds some."""
    match value:
        case ast.Constant(value=bool()):
            return False
        case ast.Constant(value=int() | float() as number):
            return number not in (0, 1)
        case ast.UnaryOp(operand=operand):
            return is_number(operand)
        case ast.BinOp(left=left, right=right):
            return is_number(left) or is_number(right)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return any(is_number(part) for part in parts)
        case ast.Dict(keys=keys, values=values):
            return any(part is not None and is_number(part) for part in (*keys, *values))
        case _:
            return False


def numbers_in(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """The names of a module, and of the classes in it, that are given numbers where they are defined."""
    for statement in body:
        match statement:
            case ast.Assign(targets=targets, value=value) if is_number(value):
                yield from (f"{prefix}{ast.unparse(target)}" for target in targets)
            case ast.AnnAssign(target=target, value=ast.expr() as value) if is_number(value):
                yield f"{prefix}{ast.unparse(target)}"
            case ast.ClassDef(name=name, body=inner):
                yield from numbers_in(inner, f"{name}.")
            case _:
                pass


def found() -> set[str]:
    """ "path:name" of every number."""
    paths = {str(path.relative_to(DISC)): path for folder in DECIDING for path in (DISC / folder).rglob("*.py")}
    return {
        f"{place}:{name}"
        for place, path in paths.items()
        if not place.startswith(tuple(WHOLE))
        for name in numbers_in(ast.parse(path.read_text()).body)
    }


def test_no_threshold_stands_outside_the_tables() -> None:
    """A new number belongs in the table of its target (`disc/targets/thresholds.py`); or say in ALLOWED why it is no threshold."""
    assert sorted(found() - set(ALLOWED)) == []
    assert sorted(set(ALLOWED) - found()) == []


@pytest.mark.parametrize(
    ("text", "names"),
    [("MOST = 5", ["MOST"]), ("MOST: int = 1 << 20", ["MOST"]), ("ROWS = {8: 4}", ["ROWS"]), ("A, B = 4, 2", ["(A, B)"]), ("STEP = -0.5", ["STEP"]),
     ("class A:\n    least: int = 8", ["A.least"]), ("NAME = 'x'", []), ("ON = True", []), ("count = 0", []), ("WIDE = NARROW", [])],
)  # fmt: skip
def test_the_rule_itself(text: str, names: list[str]) -> None:
    assert list(numbers_in(ast.parse(text).body)) == names


def rows_of_the_table(table: str) -> list[tuple[str, str]]:
    """(field, comment) of every number in a table."""
    source = (DISC / "targets" / table).read_text()
    lines = source.splitlines()
    rows: list[tuple[str, str]] = []
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or not re.fullmatch(r"\w+Thresholds|Rates|Gpu", ast.unparse(call.func)):
            continue
        for field in call.keywords:
            line = field.value.lineno - 1
            above = line
            while lines[above - 1].lstrip().startswith("#"):
                above -= 1
            rows.append((f"{ast.unparse(call.func)}.{field.arg}", "\n".join(lines[above : line + 1])))
    return rows


@pytest.mark.parametrize(("table", "least"), [("x86_thresholds.py", 60), ("cuda_thresholds.py", 55), ("gpu_model_thresholds.py", 10)])
def test_every_threshold_says_its_source(table: str, least: int) -> None:
    groups = {
        "device",
        "rates",
        "graph",
        "fusion",
        "versions",
        "rules",
        "rows",
        "gemm",
        "window",
        "indirect",
        "winograd",
        "expansion",
        "attention",
        "architecture",
        "product",
    }
    rows = [(name, text) for name, text in rows_of_the_table(table) if name.partition(".")[2] not in groups or "#" in text]
    assert len(rows) > least
    assert [name for name, text in rows if not re.search(r"# (derived|measured|chosen|vendor)\b", text, re.IGNORECASE)] == []


def test_levels_differ_where_registers_do() -> None:
    narrow, wide = (read_target(level).thresholds for level in ("x86-64-v3", "x86-64-v4"))
    assert (narrow.gemm.vectors, wide.gemm.vectors) == (2, 4) and (narrow.window.rows, wide.window.rows) == (4, 8)
    assert narrow.device == wide.device, "passes run once for all targets of a device"


class Chain(nn.Module):
    """Three element-wise ops, which are one kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.tanh(x) + 1)


def test_targets_that_decide_differently_are_fused_apart(tmp_path: Path) -> None:
    session = open_session(["x86-64-v3", "x86-64-v4"])
    own = session.targets[0].thresholds
    assert compile_state(WeightTable(), session).thresholds == own.device
    alone = replace(session.targets[0], thresholds=replace(own, device=replace(own.device, fusion=replace(own.device.fusion, most_ops=1))))
    mixed: Session = replace(session, targets=(alone, session.targets[1]), options=disc.Options(cache=False))
    imported = import_model(Chain(), (torch.ones(5),), ({0: torch.export.Dim.DYNAMIC},), make_context())
    compile_imported(imported, mixed).save(tmp_path / "chain.disc")
    kernels = {name: len(read_manifest(tmp_path / "chain.disc", name)["kernels"]) for name in ("x86-64-v3", "x86-64-v4")}
    assert kernels == {"x86-64-v3": 3, "x86-64-v4": 1}
