"""The queries of fusion on groups."""

from __future__ import annotations

from disc.ir.dialect import disc_context
from disc.ir.stages import parse_module
from disc.passes.fusion.clusters import Clusters
from disc.targets.x86_thresholds import CPU

# In program order: the first op of group 0, groups 1, 2 and 3, the last op of group 0.
AROUND = """func.func @main(%x: tensor<4xf32, [4]>) -> (tensor<4xf32, [4]>, tensor<4xf32, [4]>) {
  %a = stablehlo.negate %x {disc.group = 0 : i64, disc.kind = "loop"} : tensor<4xf32, [4]>
  %b = stablehlo.abs %x {disc.group = 1 : i64, disc.kind = "loop"} : tensor<4xf32, [4]>
  %c = stablehlo.sine %a {disc.group = 2 : i64, disc.kind = "loop"} : tensor<4xf32, [4]>
  %d = stablehlo.cosine %b {disc.group = 3 : i64, disc.kind = "loop"} : tensor<4xf32, [4]>
  %e = stablehlo.add %d, %x {disc.group = 0 : i64, disc.kind = "loop"} : tensor<4xf32, [4]>
  return %c, %e : tensor<4xf32, [4]>, tensor<4xf32, [4]>
}"""


def test_a_circle_through_a_group_with_ops_on_both_sides_is_seen() -> None:
    """Gradients have such groups: rows of the forward pass, and what the backward pass makes of them."""
    with disc_context():
        module = parse_module(AROUND)
        clusters = Clusters(module, CPU)
        groups = {cluster.id: cluster for cluster in clusters.all()}
        assert clusters.would_cycle(groups[1], groups[2])  # 1 → 3 → 0 → 2
        assert not clusters.would_cycle(groups[1], groups[3])
        assert not clusters.would_cycle(groups[0], groups[2])
