"""Programs at stage `fused`, and their kernels for GPUs. Loads no Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch_mlir import ir

from disc.api import compile_state, open_session
from disc.codegen.cuda.emission import emit_device
from disc.codegen.cuda.plans import KINDS, ProductPlan, product_plan
from disc.codegen.fusions import read_functions, read_fusions
from disc.codegen.plan.text import Plan, read_plan
from disc.config import Options
from disc.frontend.imported import Imported
from disc.frontend.models import import_model, import_program
from disc.ir.dialect import make_context
from disc.ir.graph import Snapshot
from disc.ir.passes import run_passes
from disc.ir.stages import load_env
from disc.passes.pipelines import fusion_passes, to_named
from disc.speculation.block_trees import BlockTree

NUMBER = "test.number"  # of a fusion, in the order of the program


class Fused:
    """A program at stage `fused`, and its kernels. tree: of the schedules of products, in place of the one that is chosen."""

    def __init__(self, imported: Imported, options: Options | None = None, tree: BlockTree | None = None) -> None:
        session = open_session("sm_90", options or Options(cache=False))
        state = compile_state(imported.weights, session)
        run_passes(imported.module, to_named(session.options.dtype), state)
        run_passes(imported.module, fusion_passes(session.tree, "cuda"), state)
        self.module, self.weights, self.target = imported.module, imported.weights, session.targets[0]
        env = load_env(self.module)
        snapshot = Snapshot(env)
        self.places = read_fusions(self.module, env, read_functions(self.module, snapshot))
        self.kernels = [
            emit_device(place.work, _with(tree, read_plan(place.plans[self.target.name], KINDS)), self.target) for place in self.places
        ]
        with self.module.context:
            for number, place in enumerate(self.places):  # names are not unique
                snapshot.ops[place.node.id].attributes[NUMBER] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)

    @classmethod
    def of_model(cls, model: nn.Module, inputs: tuple[torch.Tensor, ...], dims: Any, tree: BlockTree | None = None) -> Self:
        return cls(import_model(model, inputs, dims, make_context()), tree=tree)

    @classmethod
    def of_text(cls, text: str, folder: Path) -> Self:
        path = folder / "program.mlir"
        path.write_text(text)
        return cls(import_program(path, make_context()))


def _with(tree: BlockTree | None, plan: Plan) -> Plan:
    return product_plan(tree, plan.precision) if tree is not None and isinstance(plan, ProductPlan) else plan


class Kinds(nn.Module):
    """A kernel of every kind: a block of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(64, 192), nn.Linear(64, 64), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (each.unflatten(-1, (4, 16)).transpose(1, 2) for each in self.first(x).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.norm(x + nn.functional.gelu(self.last(attended))), x.flip(1)

    @staticmethod
    def example() -> tuple[torch.Tensor, ...]:
        return (torch.randn(2, 5, 64),)

    @staticmethod
    def dims() -> Any:
        dynamic = torch.export.Dim.DYNAMIC
        return ({0: dynamic, 1: dynamic},)
