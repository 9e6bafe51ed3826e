"""What code generation needs from a device. `build.py` knows nothing else of it.

A device is found by `Target.device`. Its module is loaded when it is first used, so that a compile loads no other device's.
`register_backend` adds one; its targets are added by `disc.targets.select.register_family`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from disc.codegen.plan.fusion import Fusion, KernelPlan
from disc.codegen.plan.kernel import Kernel
from disc.codegen.plan.listing import Assembled, Listing, Means
from disc.errors import TargetError
from disc.speculation.tree import Tree
from disc.targets.target import Target


class Backend(Protocol):
    """What a device implements."""

    def choose(self, fusion: Fusion, target: Target, tree: Tree) -> KernelPlan:
        """The plan of a kernel for a fusion. tree: what chooses the schedules of GEMMs. Must depend on nothing else: equal fusions share a
        kernel. Raises CompilerBug for a fusion that it has no kernel for."""
        ...

    def read(self, text: str) -> KernelPlan:
        """The plan that `str` made the text of. Raises ValueError for a text that is none."""
        ...

    def refusal(self, fusion: Fusion, plan: KernelPlan, target: Target) -> tuple[str, str] | None:
        """Why the fusion cannot have this plan, which somebody wrote: (the field that is to blame, "" for all of it; the reason). None
        where it can: then `emit` makes a kernel of it that is right, fast or not."""
        ...

    def emit(self, name: str, fusion: Fusion, plan: KernelPlan, target: Target) -> Kernel:
        """The kernel `name` of a plan that is not refused: on a CPU MLIR text that defines `Version.function` of all its versions
        (`void f(i64* args, i64 begin, i64 end, void* scratch)`: pointers of the arguments, of the results, then `symbols`), and
        what the host needs to call them. Its arguments are the fusion's; of one that joins its maker, the maker's, then its own but that
        one. `checks_indices`, and the notes of the fusion, are added by the caller."""
        ...

    def shared(self, kernels: Sequence[Kernel], target: Target) -> Sequence[str]:
        """The MLIR text of every function that these kernels call and do not define, each once."""
        ...

    def assemble(self, listing: Listing, target: Target, means: Means) -> Assembled:
        """The code section of the artifact for this program: what the runtime loads. The result does not depend on the means. Raises
        CompilerBug for text that does not lower, TargetError where the machine lacks a tool."""
        ...


def _x86() -> Backend:
    from disc.codegen.x86.backend import X86

    return X86


def _cuda() -> Backend:
    from disc.codegen.cuda.backend import CUDA

    return CUDA


_BACKENDS: dict[str, Callable[[], Backend]] = {"cpu": _x86, "cuda": _cuda}


def register_backend(device: str, load: Callable[[], Backend]) -> None:
    """Adds a device, or replaces it. load: called for every use of the backend."""
    _BACKENDS[device] = load


def backend_of(target: Target) -> Backend:
    """The backend of a target's device. Raises TargetError for a device without one."""
    if target.device not in _BACKENDS:
        raise TargetError(f"no code is generated for device {target.device!r} (target {target.name})")
    return _BACKENDS[target.device]()
