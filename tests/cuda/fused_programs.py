"""Programs at stage `fused`, and their kernels for GPUs. Loads no Triton."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch_mlir import ir

from disc.codegen.cuda.emission import emit_device
from disc.codegen.cuda.gemm import may_have_maps
from disc.codegen.cuda.plans import KINDS, AttentionPlan, ProductPlan, attention_plan, product_plan
from disc.codegen.fusions import read_functions, read_fusions
from disc.codegen.packed import packed_refusal
from disc.codegen.plan.fusion import Fusion
from disc.codegen.plan.text import Plan, read_plan
from disc.codegen.session import compile_state
from disc.config import Options
from disc.frontend.imported import Imported
from disc.frontend.models import import_model, import_program
from disc.ir.dialect import make_context
from disc.ir.graph import Snapshot
from disc.ir.passes import run_passes
from disc.ir.stages import load_env
from disc.passes.graph.pack_sequences import PackSequences
from disc.passes.pipelines import fusion_passes, to_named
from disc.speculation.block_families import ANY_PRODUCT
from disc.speculation.block_schedules import AttentionBlock
from disc.speculation.block_trees import AttentionTree, BlockTree, leaves, one_schedule
from disc.speculation.session import open_session

NUMBER = "test.number"  # of a fusion, in the order of the program
# Over channels-last values. groups, and the channels of each: of the source.
CONVOLUTION = """func.func @main(%x: tensor<?x?x?x32xf32>, %w: tensor<3x3x{channels}x24xf32>) -> tensor<?x?x?x24xf32> {{
  %r = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {{stride = [2, 1], pad = [[1, 1], [0, 2]]}} {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}} : (tensor<?x?x?x32xf32>, tensor<3x3x{channels}x24xf32>) -> tensor<?x?x?x24xf32>
  return %r : tensor<?x?x?x24xf32>
}}"""


ANY_SIZE = one_schedule(ANY_PRODUCT)


def every_block(blocks: Sequence[AttentionBlock]) -> AttentionTree:
    """A tree of attention that reaches every schedule."""
    return AttentionTree(tuple(blocks), leaves(len(blocks)))


class Fused:
    """A program at stage `fused`, and its kernels. tree: of the schedules of products, beside some of attention; None: what is chosen."""

    def __init__(
        self, imported: Imported, options: Options | None = None, tree: BlockTree | None = ANY_SIZE, target: str = "sm_90"
    ) -> None:
        session = open_session(target, options or Options(cache=False))
        state = compile_state(imported.weights, session)
        run_passes(imported.module, to_named(session.options.dtype), state)
        if session.options.packed:
            run_passes(imported.module, [PackSequences()], state)
            assert packed_refusal(imported.module) is None, packed_refusal(imported.module)
        run_passes(imported.module, fusion_passes(session.tree, "cuda"), state)
        self.module, self.weights, self.target = imported.module, imported.weights, session.targets[0]
        env = load_env(self.module)
        snapshot = Snapshot(env)
        self.places = read_fusions(self.module, env, read_functions(self.module, snapshot))
        self.kernels = [
            emit_device(place.work, _with(tree, place.work, read_plan(place.plans[self.target.name], KINDS)), self.target)
            for place in self.places
        ]
        with self.module.context:
            for number, place in enumerate(self.places):  # names are not unique
                snapshot.ops[place.node.id].attributes[NUMBER] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)

    @classmethod
    def of_model(cls, model: nn.Module, inputs: tuple[torch.Tensor, ...], dims: Any, **how: Any) -> Self:
        return cls(import_model(model, inputs, dims, make_context()), **how)

    @classmethod
    def of_text(cls, text: str, folder: Path, **how: Any) -> Self:
        path = folder / "program.mlir"
        path.write_text(text)
        return cls(import_program(path, make_context()), **how)


def _with(tree: BlockTree | None, work: Fusion, plan: Plan) -> Plan:
    """With a tree of the test's in place of the one that is chosen, without tensor maps that cannot load the factors: of attention, blocks of
    which programs share the keys, and others."""
    if tree is not None and isinstance(plan, AttentionPlan):
        return attention_plan(every_block((AttentionBlock(16, 64, 4, 2, parts=8), AttentionBlock(32, 32, 4, 2))), plan.precision)
    if tree is not None and isinstance(plan, ProductPlan):
        return product_plan(tree.without_maps(lambda each: may_have_maps(work, [each]), tree.blocks), plan.precision)
    return plan


class Layers(nn.Module):
    """A layer with a bias and GELU, in f32 and bf16."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return nn.functional.gelu(self.one(x)), nn.functional.gelu(self.two(y))

    def example(self) -> tuple[torch.Tensor, ...]:
        return torch.randn(5, self.one.in_features), torch.randn(5, self.one.in_features, dtype=torch.bfloat16)

    @staticmethod
    def dims() -> Any:
        return ({0: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC})


class Masked(nn.Module):
    """Attention with a mask of numbers."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    @staticmethod
    def example(head: int, element: torch.dtype) -> tuple[torch.Tensor, ...]:
        query, key = (torch.zeros(2, 4, length, head, dtype=element) for length in (5, 7))
        return query, key, key.clone(), torch.zeros(2, 1, 5, 7, dtype=element)

    @staticmethod
    def dims() -> Any:
        rows = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}
        return rows, rows, rows, {**rows, 3: torch.export.Dim.DYNAMIC}


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


class Rows(nn.Module):
    """Rows of any length: a softmax and a norm."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.softmax(x, -1), (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()


class Sums(nn.Module):
    """Of few long rows, of everything, and of few long columns."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(-1).abs(), torch.relu(x.mean()), x.amax(-1), y.sum(0) * 2, (y * y).sum(0) - y.amin(0)
