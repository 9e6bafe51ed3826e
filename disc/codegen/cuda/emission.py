"""The kernel of a fusion on a GPU."""

from __future__ import annotations

from disc.codegen.cuda.attention import attention_versions
from disc.codegen.cuda.gemm import product_versions
from disc.codegen.cuda.kernel import DeviceChoice, DeviceKernel
from disc.codegen.cuda.rows import loop_versions, row_versions
from disc.codegen.plan.attention import read_attention
from disc.codegen.plan.contraction import read_contraction
from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.index import checks_indices
from disc.codegen.plan.rows import check_single_dot, plan_rows
from disc.codegen.plan.symbols import body_symbols
from disc.errors import CompilerBug
from disc.shapes import Dim
from disc.speculation.block_families import ANY_PRODUCT, ATTENTION
from disc.speculation.block_trees import SINGLE, BlockTree, one_schedule
from disc.targets.thresholds import Thresholds


def _extents(fusion: Fusion, thresholds: Thresholds) -> tuple[Dim, ...]:
    """What the kernel loops over."""
    space = fusion.space()
    if fusion.kind == "compute":
        return read_contraction(space, check_single_dot(fusion.body)).extents
    if fusion.kind == "attention":
        products = read_attention(fusion.body)[:2]
        return tuple(extent for node in products for extent in read_contraction(space, node).extents)
    if fusion.kind == "stitch":
        plan = plan_rows(space, fusion.body, frozenset(), thresholds)
        return plan.groups(space), space.env.product(plan.space[len(plan.group_dims) :])
    return tuple(space.env.product(root.dims) for root in fusion.body.yields)


ANY_SIZE = one_schedule(ANY_PRODUCT)


def emit_device(fusion: Fusion, thresholds: Thresholds, tree: BlockTree = ANY_SIZE, precision: str = SINGLE) -> DeviceKernel:
    """All versions of a fusion's kernel. tree: of the schedules of its product; precision: of products of f32, "tf32x3" or "tf32".

    Raises CompilerBug for a fusion that it has no kernel for, TargetError for what a user may write and has none."""
    body = fusion.body
    symbols = body_symbols(fusion.space(), body, *_extents(fusion, thresholds))
    choice: DeviceChoice | None = None
    if fusion.kind == "loop":
        versions = loop_versions(fusion, symbols)
    elif fusion.kind == "stitch":
        versions = row_versions(fusion, symbols, thresholds)
    elif fusion.kind == "compute":
        versions, choice = product_versions(fusion, symbols, tree, precision)
    elif fusion.kind == "attention":
        versions = attention_versions(fusion, symbols, ATTENTION, precision)
    else:
        raise CompilerBug(f"fusion {fusion.name}: no CUDA kernel of kind {fusion.kind}")
    return DeviceKernel(fusion.name, fusion.kind, symbols, versions, checks_indices(fusion.checked, body), choice)
