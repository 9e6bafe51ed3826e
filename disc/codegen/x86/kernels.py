"""The kernel of a plan: what emits which."""

from __future__ import annotations

from dataclasses import replace

from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.kernel import Kernel
from disc.codegen.plan.library import LibraryPlan, emit_library
from disc.codegen.plan.text import Plan
from disc.codegen.x86.attention.kernels import emit_attention
from disc.codegen.x86.choose import expansion_of
from disc.codegen.x86.conv.expansion import emit_expansion
from disc.codegen.x86.conv.indirect import emit_indirect
from disc.codegen.x86.conv.indirect_plan import read_indirect
from disc.codegen.x86.conv.pool import emit_pool
from disc.codegen.x86.conv.window import emit_window, read_window
from disc.codegen.x86.conv.window_last import emit_last_window, read_last_window
from disc.codegen.x86.conv.winograd import emit_winograd
from disc.codegen.x86.conv.winograd_plan import read_winograd
from disc.codegen.x86.gemm.kernels import emit_compute
from disc.codegen.x86.notes import notes_of
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
)
from disc.codegen.x86.rows.kernels import emit_rows
from disc.codegen.x86.rows.sequential import emit_sequential
from disc.codegen.x86.rows.updates import emit_update
from disc.errors import CompilerBug
from disc.targets.target import Target


def emit(name: str, fusion: Fusion, plan: Plan, target: Target) -> Kernel:
    """The kernel of a plan that the fusion may have, with what the plan says of itself. Raises CompilerBug for another one."""
    return replace(_emit(name, fusion, plan, target), notes=notes_of(plan, fusion.body, target))


def _emit(name: str, fusion: Fusion, plan: Plan, target: Target) -> Kernel:
    body = fusion.body
    if isinstance(plan, RowsPlan):
        return emit_rows(name, body, fusion.kind, fusion.space(), target, fusion.guards, plan)
    if isinstance(plan, UpdatePlan) and fusion.kind == "loop":
        return emit_update(name, fusion, target)
    if isinstance(plan, GemmPlan):
        return emit_compute(name, body, fusion.space(), target, fusion.weights, plan)
    if isinstance(plan, AttentionBlocksPlan | AttentionRowsPlan):
        return emit_attention(name, body, fusion.space(), target, plan)
    if isinstance(plan, LibraryPlan):
        return emit_library(name, body, fusion.env, plan)
    if isinstance(plan, ScanPlan | ScatterPlan | UpdatePlan):
        return emit_sequential(name, body, fusion.space(), target, plan)
    if isinstance(plan, IndirectPlan | WinogradPlan):
        return _convolution(name, fusion, plan, target)
    return _window(name, fusion, plan, target)


def _convolution(name: str, fusion: Fusion, plan: IndirectPlan | WinogradPlan, target: Target) -> Kernel:
    space = fusion.space()
    indirect = read_indirect(space, fusion.body, target, fusion.weights, plan.direct if isinstance(plan, WinogradPlan) else plan)
    if indirect is not None and isinstance(plan, IndirectPlan):
        return emit_indirect(name, fusion.body, space, indirect)
    winograd = read_winograd(indirect, plan) if indirect is not None and isinstance(plan, WinogradPlan) else None
    if winograd is None:
        raise _unfit(fusion, plan)
    return emit_winograd(name, fusion.body, space, winograd)


def _window(name: str, fusion: Fusion, plan: Plan, target: Target) -> Kernel:
    space, body = fusion.space(), fusion.body
    if isinstance(plan, ExpansionPlan):
        expansion = expansion_of(fusion, space, target, plan)
        if expansion is not None:
            return emit_expansion(name, space, expansion)
    if isinstance(plan, WindowLastPlan):
        last = read_last_window(space, body, target, plan)
        if last is not None:
            return emit_last_window(name, body, space, last)
    if isinstance(plan, DepthwisePlan | PoolPlan):
        window = read_window(space, body, target, plan)
        if window is not None:
            emit = emit_pool if isinstance(plan, PoolPlan) else emit_window
            return emit(name, body, space, window)
    raise _unfit(fusion, plan)


def _unfit(fusion: Fusion, plan: Plan) -> CompilerBug:
    return CompilerBug(f"fusion {fusion.name} cannot be a kernel {plan.name}")
