"""Which kernel a fusion should be on x86, and whether it may be the one that a plan says."""

from __future__ import annotations

from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.index import IndexSpace
from disc.codegen.plan.library import LibraryPlan, choose_library, is_library, may_be_library
from disc.codegen.plan.text import Plan
from disc.codegen.x86.attention.kernels import choose_attention, may_attend
from disc.codegen.x86.conv.expansion import Expansion, may_expand, read_expansion, read_link
from disc.codegen.x86.conv.indirect_plan import may_be_indirect, read_indirect
from disc.codegen.x86.conv.window import may_slide, read_window
from disc.codegen.x86.conv.window_last import may_slide_last, read_last_window
from disc.codegen.x86.conv.winograd_plan import may_be_tiled, may_be_winograd, read_winograd
from disc.codegen.x86.gemm.kernels import choose_compute, may_compute
from disc.codegen.x86.plans import (
    AttentionBlocksPlan,
    AttentionRowsPlan,
    DepthwisePlan,
    ExpansionPlan,
    GemmPlan,
    IndirectPlan,
    PoolPlan,
    RowsPlan,
    ScanPlan,
    ScatterPlan,
    UpdatePlan,
    WindowLastPlan,
    WinogradPlan,
    check,
)
from disc.codegen.x86.rows.regions import choose_rows, may_be_rows
from disc.codegen.x86.rows.sequential import choose_sequential, may_be_sequential
from disc.codegen.x86.rows.updates import may_update
from disc.errors import CompilerBug
from disc.speculation.tree import Tree
from disc.targets.target import Target


def choose(fusion: Fusion, target: Target, tree: Tree) -> Plan:
    """Of the kernels that may take the fusion, the one that should. tree: of schedules of GEMMs."""
    body, kind, weights = fusion.body, fusion.kind, fusion.weights
    if kind in ("compute", "loop"):
        found = _sliding(fusion, target)
        if found is not None:
            return found
    space = fusion.space()
    if kind == "compute":
        indirect = read_indirect(space, body, target, weights)
        if indirect is None:
            return choose_compute(fusion.space(), body, target, weights, tree)
        winograd = read_winograd(indirect)
        return winograd.plan if winograd is not None else indirect.plan
    if kind in ("loop", "library") and may_update(fusion):
        return UpdatePlan()
    if kind in ("loop", "stitch"):
        return choose_rows(body, kind, space, target, fusion.guards)
    if kind == "attention":
        return choose_attention(space, body, target)
    if kind == "library":
        return choose_library(body) if is_library(body) else choose_sequential(body)
    raise CompilerBug(f"fusion {fusion.name} has the unknown kind {kind!r}")


def _sliding(fusion: Fusion, target: Target) -> Plan | None:
    """The plan of a kernel around one window; None where there is none that slides."""
    expansion = expansion_of(fusion, fusion.space(), target)
    if expansion is not None:
        return expansion.plan
    last = read_last_window(fusion.space(), fusion.body, target)
    if last is not None:
        return last.plan
    window = read_window(fusion.space(), fusion.body, target)
    return window.plan if window is not None else None


def expansion_of(fusion: Fusion, space: IndexSpace, target: Target, plan: ExpansionPlan | None = None) -> Expansion | None:
    """A depthwise convolution with the product that makes its source, where both may be one kernel."""
    if fusion.kind != "compute" or not any(node.integer("feature_group_count", 1) > 1 for node in fusion.body.nodes):
        return None
    link = read_link(space, fusion.body, target, plan and plan.window)
    product = fusion.maker(link.argument) if link is not None else None
    if link is None or product is None or product.kind != "compute":
        return None
    return read_expansion(space, product.body, link, target, product.weights, plan)


def may_have(fusion: Fusion, plan: Plan, target: Target) -> None:
    """Raises IllegalPlan where the fusion cannot be the kernel of the plan."""
    body, weights = fusion.body, fusion.weights
    kinds = [kind for kind, plans in _KINDS.items() if isinstance(plan, plans)]
    check(fusion.kind in kinds, "", f"a fusion of kind {fusion.kind} cannot be a kernel {plan.name}")
    if isinstance(plan, RowsPlan):
        may_be_rows(body, fusion.kind, fusion.space(), target, fusion.guards, plan)
    elif isinstance(plan, UpdatePlan):
        check(may_update(fusion), "", "needs a slice or a scatter over an argument which nothing reads afterwards")
    elif isinstance(plan, GemmPlan):
        may_compute(fusion.space(), body, target, weights, plan)
    elif isinstance(plan, IndirectPlan | WinogradPlan):
        direct = plan.direct if isinstance(plan, WinogradPlan) else plan
        found = read_indirect(fusion.space(), body, target, weights, direct)
        check(found is not None, "", "needs a convolution with its channels last, by a constant kernel that has them so too")
        assert found is not None
        may_be_indirect(found, direct)
        if isinstance(plan, WinogradPlan):
            check(may_be_tiled(found), "", "needs a 3x3 convolution of f32 by strides of 1, over a multiple of 16 channels")
            may_be_winograd(plan)
    elif isinstance(plan, WindowLastPlan):
        check(read_last_window(fusion.space(), body, target, plan) is not None, "", "needs one window over values with their channels last")
        may_slide_last(plan)
    elif isinstance(plan, DepthwisePlan | PoolPlan):
        window = read_window(fusion.space(), body, target, plan)
        check(window is not None, "", "needs one window over planes")
        assert window is not None
        may_slide(window, plan)
    elif isinstance(plan, ExpansionPlan):
        expansion = expansion_of(fusion, fusion.space(), target)
        check(expansion is not None, "", "needs a depthwise convolution of what a product makes for it alone")
        assert expansion is not None
        may_expand(expansion, plan)
    elif isinstance(plan, AttentionBlocksPlan | AttentionRowsPlan):
        may_attend(fusion.space(), body, target, plan)
    elif isinstance(plan, LibraryPlan):
        may_be_library(body, plan)
    elif isinstance(plan, ScanPlan | ScatterPlan):
        check(not is_library(body), "", "needs a scan or scatter")
        may_be_sequential(body, plan)


_KINDS: dict[str, tuple[type[Plan], ...]] = {
    "loop": (RowsPlan, UpdatePlan, PoolPlan, WindowLastPlan),
    "stitch": (RowsPlan,),
    "compute": (GemmPlan, IndirectPlan, WinogradPlan, DepthwisePlan, WindowLastPlan, ExpansionPlan),
    "attention": (AttentionBlocksPlan, AttentionRowsPlan),
    "library": (LibraryPlan, ScanPlan, ScatterPlan, UpdatePlan),
}
