"""tile-convolutions: a convolution by a kernel that is no constant, as in training, is computed in tiles by the runtime.

    %1 = stablehlo.convolution(%x, %w), window 5x5      ─►      %1 = "disc.tiled_convolution"(%x, %w) {top = 2, left = 2}

Winograd's method takes 36 multiplications for a tile of 2x2 results by a window of 5x5, and of 4x4 by 3x3, where the window itself takes
100 and 144. Convolutions of bf16 and f16 are computed in f32 and rounded once, by windows of 5x5 in tiles of 4x4 results with 64
multiplications: rounding hides what those lose, while products of bf16 would be 16 times as far off as the convolution itself.
Constant kernels are transformed ahead of time and have kernels of their own, whose epilogues do more (`x86/conv/winograd.py`).
Requires stage `named`, before any groups; keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from disc.ir.ops import block_ops, build, replace_op
from disc.ir.passes import CompileState, FunctionPass
from disc.passes.graph.channels_last_ops import Convolution, read_convolution
from disc.passes.graph.constants import constant_values
from disc.targets.tiles import WINDOWS, should_tile

ELEMENTS = ("f32", "bf16", "f16")


@dataclass(frozen=True)
class TileConvolutions(FunctionPass):
    """Replaces what should be computed in tiles."""

    name: ClassVar[str] = "tile-convolutions"

    def apply_block(self, block: ir.Block, module: ir.Module, state: CompileState) -> None:
        constants = constant_values(block)
        for op in [each for each in block_ops(block) if each.name == "stablehlo.convolution"]:
            convolution = read_convolution(op)
            if convolution is None or op.operands[1] in constants or not may_tile(convolution):
                continue
            if should_tile(convolution.inputs, convolution.outputs, state.thresholds.fusion):
                (top, _), (left, _) = convolution.pads
                made = build("disc.tiled_convolution", list(op.operands), [op.results[0].type], {"top": top, "left": left}, before=op)
                replace_op(op, list(made.results))


def may_tile(convolution: Convolution) -> bool:
    """Legality: planes of floats of at most 32 bits, a window that the runtime has tiles for, by strides of 1."""
    steps = (*convolution.strides, *convolution.dilations, convolution.groups)
    return convolution.plain and convolution.element in ELEMENTS and convolution.window in WINDOWS and all(step == 1 for step in steps)
