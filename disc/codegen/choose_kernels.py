"""choose-kernels: each fusion gets the plan of its kernel, for every target.

    "kernel.fusion"(%a, %w) ({...}) {kind = "compute"}
    →  "kernel.fusion"(%a, %w) ({...}) {kind = "compute", disc.plan = {"x86-64-v4" = "gemm{product = product{...}, ...}"}}

A plan says all that a device decides of a kernel: which one it is, how its operands are read, tiles, what is kept on chip; what code is
made of it follows from the plan and the fusion alone. A plan that stands there already is kept where the fusion can have it, whether it is
a good one or not, and refused where not. A kernel may compute what an operand's fusion makes as well (`KernelPlan.joins`); that fusion has
a plan of its own all the same, of which then no kernel is made.
Requires and keeps stage `fused`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.codegen.backend import backend_of
from disc.codegen.fusions import Place, read_functions, read_fusions
from disc.codegen.plan.fusion import PLAN
from disc.errors import PlanError
from disc.ir.graph import Snapshot
from disc.ir.passes import CompileState, Pass
from disc.ir.stages import dot_elements, load_env
from disc.speculation.tree import Tree, packaged_tree
from disc.targets.select import for_program
from disc.targets.target import Target


@dataclass(frozen=True)
class ChooseKernels(Pass):
    """Writes the attribute `disc.plan` on every fusion. tree: what chooses the schedules of GEMMs; None: the one that comes with disc."""

    name: ClassVar[str] = "choose-kernels"
    tree: Tree | None = None

    def apply(self, module: ir.Module, state: CompileState) -> None:
        env = load_env(module)
        snapshot = Snapshot(env)
        places = read_fusions(module, env, read_functions(module, snapshot))
        tree = self.tree or packaged_tree()
        targets = for_program(state.targets, sorted(dot_elements(module)))
        plans = {target.name: _plans(places, target, tree) for target in targets}
        for number, place in enumerate(places):
            given = dict(place.plans)
            given.update((name, texts[number]) for name, texts in plans.items())
            snapshot.ops[place.node.id].attributes[PLAN] = ir.DictAttr.get({name: ir.StringAttr.get(text) for name, text in given.items()})


def _plans(places: Sequence[Place], target: Target, tree: Tree) -> list[str]:
    """The plans of all fusions for one target; those that are equal are planned once."""
    backend = backend_of(target)
    chosen: dict[tuple[object, ...], str] = {}
    texts: list[str] = []
    for place in places:
        given = place.plans.get(target.name)
        if given is not None:
            texts.append(_kept(place, given, target))
            continue
        key = place.planned_by
        if key not in chosen:
            chosen[key] = str(backend.choose(place.work, target, tree))
        texts.append(chosen[key])
    return texts


def _kept(place: Place, text: str, target: Target) -> str:
    """A plan that somebody wrote. Raises PlanError where the fusion cannot have it."""
    backend = backend_of(target)
    where = f"the plan of fusion {place.work.name} for {target.name}"
    try:
        plan = backend.read(text)
    except ValueError as error:
        raise PlanError(f"{where}: {error}") from error
    refusal = backend.refusal(place.work, plan, target)
    if refusal is not None:
        field, reason = refusal
        raise PlanError(f"{where}: {f'{field} ' if field else ''}{reason}")
    return str(plan)
