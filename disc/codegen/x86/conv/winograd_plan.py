"""The plan of a Winograd convolution: which convolutions, tiles of which size, places in scratch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from disc.codegen.plan.kernel import PackedWeight
from disc.codegen.x86.conv.indirect_plan import Indirect, TapAxis
from disc.codegen.x86.conv.taps import ENTRY
from disc.codegen.x86.gemm.plan import PANEL, ROWS
from disc.shapes import Dim, dim_max, dim_min
from disc.targets.thresholds import WinogradThresholds, WinogradTile


@dataclass(frozen=True, eq=False)
class Winograd:
    """A 3x3 convolution by strides of 1, channels last, in tiles of `tile` x `tile` outputs.

    direct: the same convolution through a table of addresses; it computes what has few outputs: less than `least` in a tile, or than
    `enough` beyond those. axes: down and across the image.
    packed: panels of the transformed weights, then those that `direct` reads.
    """

    direct: Indirect
    tile: int
    least: int
    enough: int
    channels: int
    axes: tuple[TapAxis, TapAxis]
    packed: PackedWeight

    @property
    def patch(self) -> int:
        """Positions of a patch along one axis."""
        return self.tile + 2

    @property
    def products(self) -> int:
        """Products of matrices, one for each position of a patch."""
        return self.patch**2

    @property
    def matrix_bytes(self) -> int:
        """Of one panel of one matrix of weights."""
        return self.channels * self.direct.panel_step

    @property
    def transformed_bytes(self) -> int:
        return self.products * self.matrix_bytes * self.direct.panels

    @property
    def down(self) -> Dim:
        return (self.axes[0].window.out + (self.tile - 1)) // self.tile

    @property
    def across(self) -> Dim:
        return (self.axes[1].window.out + (self.tile - 1)) // self.tile

    @property
    def tiles(self) -> Dim:
        """Of all images."""
        return self.direct.images * self.down * self.across

    @property
    def block(self) -> int:
        """Tiles of a task at most: a multiple of the rows that a micro-kernel takes."""
        limits = self.direct.target.thresholds.winograd
        if self.transformed_bytes <= limits.resident_bytes:
            return limits.resident_block
        return max(limits.block_bytes // (self.products * (self.channels + PANEL) * 4) // ROWS, 1) * ROWS

    @property
    def blocks(self) -> Dim:
        return (self.tiles + (self.block - 1)) // self.block

    @property
    def pays(self) -> Dim:
        """1 where there are outputs enough, 0 where `direct` computes them."""
        return dim_min(dim_max(self.direct.rows - self.tiles * self.least, Dim.of(0)) // self.enough, Dim.of(1))

    @property
    def tasks(self) -> Dim:
        """A block of tiles and a panel each, or those of `direct`."""
        return self.pays * self.blocks * self.direct.panels + (Dim.of(1) - self.pays) * self.direct.tasks

    # --- scratch, in bytes: sums of a tile, table of a patch, addresses of rows, zeros, transformed patches, products --------------

    @property
    def patches_step(self) -> int:
        """Bytes from one position of the transformed patches to the next: a line more than they take, or all would share a cache set."""
        return self.block * self.channels * 4 + 64

    @property
    def products_step(self) -> int:
        """Bytes from one product to the next."""
        return self.block * PANEL * 4 + 64

    @property
    def table_offset(self) -> int:
        return self.tile**2 * PANEL * 4

    @property
    def rows_offset(self) -> int:
        return self.table_offset + self.patch * ENTRY * 8

    @property
    def zeros_offset(self) -> int:
        return self.rows_offset + self.block * 8

    @property
    def patches_offset(self) -> int:
        return -(-(self.zeros_offset + self.channels * 4) // 64) * 64

    @property
    def products_offset(self) -> int:
        return self.patches_offset + self.products * self.patches_step

    @property
    def scratch(self) -> int:
        return max(self.products_offset + self.products * self.products_step + 64, self.direct.scratch)


def read_winograd(direct: Indirect) -> Winograd | None:
    """The plan for a convolution of f32 where it may be faster; None otherwise. The same for every ISA level, since all share weights."""
    axes = direct.runs.axes
    if direct.form.name != "f32" or len(axes) != 2 or direct.group:
        return None
    if any((axis.window.window, axis.window.stride, axis.window.dilation) != (3, 1, 1) for axis in axes):
        return None
    channels = direct.packed.k // 9
    tile = _tile(channels, direct.columns, direct.target.thresholds.winograd)
    if tile is None or channels % 16:
        return None
    packed = replace(direct.packed, tile=tile.size)
    plan = Winograd(direct, tile.size, tile.least, tile.enough, channels, (axes[0], axes[1]), packed)
    plan = replace(plan, direct=replace(direct, packed=packed, offset=plan.transformed_bytes))
    return plan if plan.pays != Dim.of(0) else None


def _tile(channels: int, columns: int, limits: WinogradThresholds) -> WinogradTile | None:
    """The tiles to compute; None where the transforms or the transformed weights cost more than is gained."""
    if min(channels, columns) < limits.channels:
        return None
    return next((tile for tile in limits.tiles if (tile.size + 2) ** 2 * channels * columns * 4 <= tile.bytes), None)
