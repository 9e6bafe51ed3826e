"""x86 as code generation sees it: which kernel a fusion becomes, its emission, shared functions, object code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from disc.codegen.mlir.lower import compile_objects, link_shared
from disc.codegen.plan.fusion import Fusion, KernelPlan
from disc.codegen.plan.kernel import Kernel
from disc.codegen.x86.attention.kernels import emit_attention
from disc.codegen.x86.conv.expansion import Expansion, emit_expansion, read_expansion, read_link
from disc.codegen.x86.conv.indirect import emit_indirect
from disc.codegen.x86.conv.indirect_plan import read_indirect
from disc.codegen.x86.conv.pool import emit_pool
from disc.codegen.x86.conv.window import emit_window, read_window
from disc.codegen.x86.conv.window_last import emit_last_window, read_last_window
from disc.codegen.x86.conv.winograd import emit_winograd
from disc.codegen.x86.conv.winograd_plan import read_winograd
from disc.codegen.x86.gemm.kernels import emit_compute
from disc.codegen.x86.gemm.micro import micro_source
from disc.codegen.x86.rows.kernels import emit_rows
from disc.codegen.x86.rows.sequential import emit_sequential
from disc.errors import CompilerBug
from disc.speculation.tree import Tree
from disc.targets.target import Target


@dataclass(frozen=True)
class _Chosen:
    """emit: makes the kernel of a name."""

    emit: Callable[[str], Kernel]
    joins: int | None = None


class _X86:
    """`Backend` of device "cpu"."""

    def choose(self, fusion: Fusion, target: Target, tree: Tree) -> _Chosen:
        """Of the kernels that may take the fusion, the one that should."""
        joined = _expansion(fusion, target)
        if joined is not None:
            return joined
        space, body, kind = fusion.space(), fusion.body, fusion.kind
        if kind in ("compute", "loop"):
            found = _window(fusion, target)
            if found is not None:
                return _Chosen(found)
        if kind == "compute":
            indirect = read_indirect(space, body, target, fusion.weights)
            winograd = read_winograd(indirect) if indirect is not None else None
            if winograd is not None:
                return _Chosen(lambda name: emit_winograd(name, body, space, winograd))
            if indirect is not None:
                return _Chosen(lambda name: emit_indirect(name, body, space, indirect))
            return _Chosen(lambda name: emit_compute(name, body, space, target, fusion.weights, tree))
        if kind in ("loop", "stitch"):
            return _Chosen(lambda name: emit_rows(name, body, kind, space, target, fusion.guards))
        if kind == "attention":
            return _Chosen(lambda name: emit_attention(name, body, space, target))
        if kind == "library":
            return _Chosen(lambda name: emit_sequential(name, body, space, target))
        raise CompilerBug(f"fusion {fusion.name} has the unknown kind {kind!r}")

    def emit(self, name: str, fusion: Fusion, plan: KernelPlan, target: Target) -> Kernel:
        """The kernel of a plan."""
        del fusion, target
        assert isinstance(plan, _Chosen)
        return plan.emit(name)

    def shared(self, kernels: Sequence[Kernel], target: Target) -> Sequence[str]:
        """Micro-kernels, then the other shared functions."""
        micro = dict.fromkeys(each for kernel in kernels for each in kernel.micro_kernels)
        functions = dict(each for kernel in kernels for each in kernel.functions)
        return [*(micro_source(form, rows, vectors, target.lanes) for form, rows, vectors in micro), *functions.values()]

    def assemble(self, source: str, target: Target, threads: int) -> bytes:
        """A shared object."""
        return link_shared(compile_objects(source, target, threads))


X86 = _X86()


def _window(fusion: Fusion, target: Target) -> Callable[[str], Kernel] | None:
    """The kernel of a fusion around one window."""
    space, body = fusion.space(), fusion.body
    last = read_last_window(space, body, target)
    if last is not None:
        return lambda name: emit_last_window(name, body, space, last)
    window = read_window(space, body, target)
    if window is None:
        return None
    emit = emit_pool if window.kernel_at is None else emit_window
    return lambda name: emit(name, body, space, window)


def _expansion(fusion: Fusion, target: Target) -> _Chosen | None:
    """A depthwise convolution and the product which makes its source are one kernel, in the place of the convolution."""
    if fusion.kind != "compute" or not any(node.integer("feature_group_count", 1) > 1 for node in fusion.body.nodes):
        return None
    space = fusion.space()
    link = read_link(space, fusion.body, target)
    product = fusion.maker(link.argument) if link is not None else None
    if link is None or product is None or product.kind != "compute":
        return None
    plan: Expansion | None = read_expansion(space, product.body, link, target, product.weights)
    return None if plan is None else _Chosen(partial(emit_expansion, space=space, plan=plan), link.argument)
