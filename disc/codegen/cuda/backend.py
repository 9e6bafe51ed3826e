"""NVIDIA GPUs as code generation sees them: which kernel a fusion becomes, its versions, the section with their code and the host's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from disc.codegen.cuda.assemble import assemble, tool_facts
from disc.codegen.cuda.cubin import Cubin
from disc.codegen.cuda.descriptors import descriptor_source
from disc.codegen.cuda.emission import choose_device, emit_device, may_have
from disc.codegen.cuda.kernel import DeviceChoice, DeviceVersion
from disc.codegen.cuda.library import library_reports
from disc.codegen.cuda.plans import KINDS, HostPlan, LibraryPlan
from disc.codegen.mlir.lower import compile_object, compile_objects, link_shared
from disc.codegen.plan.fusion import Fusion, KernelPlan
from disc.codegen.plan.index import ZERO
from disc.codegen.plan.kernel import Ahead, BlockChoice, Blocks, Kernel, Version
from disc.codegen.plan.library import LibraryPlan as HostLibraryPlan
from disc.codegen.plan.library import emit_library
from disc.codegen.plan.listing import Assembled, Listing, Means
from disc.codegen.plan.summary import kernel_ops, traffic
from disc.codegen.plan.text import IllegalPlan, Plan, read_plan
from disc.errors import CompilerBug
from disc.speculation.tree import Tree
from disc.targets.target import Target
from disc.targets.thresholds import Gpu


@dataclass(frozen=True)
class CudaKernel(Kernel):
    """device: the code of each of `versions`."""

    device: tuple[DeviceVersion, ...] = ()


class _Cuda:
    """`Backend` of device "cuda"."""

    def choose(self, fusion: Fusion, target: Target, tree: Tree) -> KernelPlan:
        """By the kind of the fusion. tree: of CPUs, is not asked."""
        del tree
        return choose_device(fusion, target)

    def read(self, text: str) -> KernelPlan:
        """The plan of a text."""
        return read_plan(text, KINDS)

    def refusal(self, fusion: Fusion, plan: KernelPlan, target: Target) -> tuple[str, str] | None:
        """By what Triton and the kernels' emitters take."""
        try:
            may_have(fusion, cast("Plan", plan))
        except IllegalPlan as error:
            return error.field, error.reason
        return None

    def emit(self, name: str, fusion: Fusion, plan: KernelPlan, target: Target) -> Kernel:
        """The kernel of a plan: its source is the text of each version, which nothing of MLIR reads."""
        if isinstance(plan, HostPlan):
            return emit_library(name, fusion.body, fusion.env, HostLibraryPlan(plan.function))
        made = emit_device(fusion, cast("Plan", plan), target)
        versions = tuple(
            Version(f"{name}_v{number}", each.guard, blocks=_blocks(f"{name}_v{number}", each, made.choice))
            for number, each in enumerate(made.versions)
        )
        choice = made.choice and BlockChoice(made.choice.tree.nodes, len(made.choice.tree.schedules), made.choice.features)
        space, last = fusion.space(), made.versions[-1].grid
        functions = _functions(zip((version.function for version in versions), made.versions, strict=True))
        source = "\n".join(f"# {function}\n{each.text}" for function, each in functions.items())
        return CudaKernel(
            fusion.name, fusion.kind, versions, made.symbols, space.env.product(last), ZERO, ZERO, source, fusion.body.lines(),
            kernel_ops(fusion.body), bytes=traffic(space, fusion.body), block_choice=choice, device=made.versions,
            arithmetic=made.arithmetic, flops=made.flops, checks_indices=made.checks_indices,
            reports=library_reports(plan.op) if isinstance(plan, LibraryPlan) else "",
        )  # fmt: skip

    def shared(self, kernels: Sequence[Kernel], target: Target) -> Sequence[str]:
        """None: Triton's functions are within each text."""
        return []

    def assemble(self, listing: Listing, target: Target, means: Means) -> Assembled:
        """A shared object of the host code, with the GPU's code as its data."""
        gpu, host = _gpu(target), target.host()
        versions: dict[str, DeviceVersion] = {}
        for kernel in listing.kernels:
            if kernel.library is not None:
                continue
            if not isinstance(kernel, CudaKernel):
                raise CompilerBug(f"kernel {kernel.name} is none of a GPU")
            versions |= _functions(zip((each.function for each in kernel.versions), kernel.device, strict=True))
        cubins = assemble([each for each in versions.values() if each.product is None], gpu, means.threads, means.kernels)
        objects = compile_objects(listing.host, host, means.threads, external=frozenset(versions))
        data = compile_object(descriptor_source(versions, cubins, gpu.architecture), host)
        facts = {name: _facts(cubins[version.key]) for name, version in versions.items() if version.product is None}
        tools: Mapping[str, object] = {**tool_facts(), "abi": max((each.abi for each in cubins.values()), default=0)}
        return Assembled(link_shared([*objects, data]), facts, tools)


def _functions(versions: Iterable[tuple[str, DeviceVersion]]) -> dict[str, DeviceVersion]:
    """Versions, and what is launched ahead of them, by their names, in the order of launches."""
    found: dict[str, DeviceVersion] = {}
    for function, version in versions:
        found |= {_ahead(function, number): each for number, each in enumerate(version.ahead)}
        found[function] = version
    return found


def _ahead(function: str, number: int) -> str:
    """The name of what is launched ahead of a version."""
    return f"{function}_{number}"


def _blocks(function: str, version: DeviceVersion, choice: DeviceChoice | None) -> Blocks:
    words = ""
    if choice is not None and version.schedule is not None:
        words = f"{choice.tree.schedules[version.schedule].describe()}, {choice.tree.source}"
    elif version.ahead:
        words = f"{len(version.ahead) + 1} launches"
    scratch, zeroed = (version.scratch.bytes, version.scratch.zeroed) if version.scratch is not None else (None, None)
    numbers = () if version.product is None else version.product.numbers
    ahead = tuple(Ahead(_ahead(function, number), each.grid) for number, each in enumerate(version.ahead))
    return Blocks(version.grid, version.schedule, words, scratch, zeroed, numbers, ahead, version.persistent)


def _gpu(target: Target) -> Gpu:
    if target.gpu is None:
        raise CompilerBug(f"target {target} has no GPU")
    return target.gpu


def _facts(cubin: Cubin) -> Mapping[str, object]:
    """What `explain` says of a version."""
    return {
        "threads": cubin.threads, "registers": cubin.registers, "stack": cubin.stack, "shared": cubin.shared,
        "bytes": len(cubin.code), **({"scratch": cubin.scratch} if cubin.scratch else {}),
    }  # fmt: skip


CUDA = _Cuda()
