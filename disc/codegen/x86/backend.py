"""x86 as code generation sees it: which kernel a fusion becomes, its emission, shared functions, object code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from disc.codegen.mlir.lower import compile_objects, link_shared
from disc.codegen.plan.fusion import Fusion, KernelPlan
from disc.codegen.plan.kernel import Kernel
from disc.codegen.plan.listing import Assembled, Listing, Means
from disc.codegen.plan.text import IllegalPlan, Plan, read_plan
from disc.codegen.x86.choose import choose, may_have
from disc.codegen.x86.gemm.micro import micro_source
from disc.codegen.x86.kernels import emit
from disc.codegen.x86.plans import KINDS
from disc.speculation.tree import Tree
from disc.targets.target import Target


class _X86:
    """`Backend` of device "cpu"."""

    def choose(self, fusion: Fusion, target: Target, tree: Tree) -> KernelPlan:
        """Of the kernels that may take the fusion, the one that should."""
        return choose(fusion, target, tree)

    def read(self, text: str) -> KernelPlan:
        """The plan of a text."""
        return read_plan(text, KINDS)

    def refusal(self, fusion: Fusion, plan: KernelPlan, target: Target) -> tuple[str, str] | None:
        """By the predicates of the kernel."""
        try:
            may_have(fusion, cast("Plan", plan), target)
        except IllegalPlan as error:
            return error.field, error.reason
        return None

    def emit(self, name: str, fusion: Fusion, plan: KernelPlan, target: Target) -> Kernel:
        """The kernel of a plan."""
        return emit(name, fusion, cast("Plan", plan), target)

    def shared(self, kernels: Sequence[Kernel], target: Target) -> Sequence[str]:
        """Micro-kernels, then the other shared functions."""
        micro = dict.fromkeys(each for kernel in kernels for each in kernel.micro_kernels)
        functions = dict(each for kernel in kernels for each in kernel.functions)
        return [*(micro_source(form, rows, vectors, target.lanes) for form, rows, vectors in micro), *functions.values()]

    def assemble(self, listing: Listing, target: Target, means: Means) -> Assembled:
        """A shared object."""
        return Assembled(link_shared(compile_objects(listing.text, target, means.threads)))


X86 = _X86()
