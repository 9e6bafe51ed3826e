"""The plan of a Winograd convolution: which convolutions, tiles of which size, places in scratch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from disc.codegen.plan.kernel import PackedWeight
from disc.codegen.x86.conv.indirect_plan import Indirect, TapAxis
from disc.codegen.x86.conv.taps import ENTRY
from disc.codegen.x86.gemm.plan import PANEL, ROWS
from disc.codegen.x86.plans import WinogradPlan, check
from disc.shapes import Dim, dim_max, dim_min
from disc.targets.thresholds import WinogradThresholds, WinogradTile

SIZES = (2, 4)  # of tiles, whose transforms there are
MOST_BLOCK = 600  # tiles of a task: their patches and products lie in scratch


@dataclass(frozen=True, eq=False)
class Winograd:
    """A 3x3 convolution by strides of 1, channels last, in tiles of `tile` x `tile` outputs.

    direct: the same convolution through a table of addresses; it computes what has few outputs. channels: in; axes: down and across the
    image. packed: panels of the transformed weights, then those that `direct` reads; plan: what was decided.
    """

    direct: Indirect
    channels: int
    axes: tuple[TapAxis, TapAxis]
    packed: PackedWeight
    plan: WinogradPlan

    @property
    def tile(self) -> int:
        """Outputs of a tile along one axis."""
        return self.plan.tile

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
        """Tiles of a task at most."""
        return self.plan.block

    @property
    def blocks(self) -> Dim:
        return (self.tiles + (self.block - 1)) // self.block

    @property
    def pays(self) -> Dim:
        """1 where there are outputs enough, 0 where `direct` computes them."""
        return dim_min(dim_max(self.direct.rows - self.tiles * self.plan.least, Dim.of(0)) // self.plan.enough, Dim.of(1))

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


def read_winograd(direct: Indirect, plan: WinogradPlan | None = None) -> Winograd | None:
    """A convolution of f32 in tiles; None where it cannot be, or, without a plan, where it should not be."""
    if not may_be_tiled(direct):
        return None
    if plan is not None:
        return _of_tiles(direct, plan)
    tile = _tile(direct.packed.k // 9, direct.columns, direct.target.thresholds.winograd)
    if tile is None:
        return None
    found = _of_tiles(direct, WinogradPlan(tile.size, 0, tile.least, tile.enough, direct.plan))
    return None if found.pays == Dim.of(0) else replace(found, plan=replace(found.plan, block=_block(found)))


def may_be_tiled(direct: Indirect) -> bool:
    """True for a 3x3 convolution of f32 by strides of 1 over whole vectors of channels."""
    axes = direct.runs.axes
    if direct.form.name != "f32" or len(axes) != 2 or direct.group or direct.packed.k // 9 % 16:
        return False
    return all((axis.window.window, axis.window.stride, axis.window.dilation) == (3, 1, 1) for axis in axes)


def may_be_winograd(plan: WinogradPlan) -> None:
    """Raises IllegalPlan for a plan that no convolution can have."""
    check(plan.tile in SIZES, "tile", f"must be {' or '.join(map(str, SIZES))}")
    check(0 < plan.block <= MOST_BLOCK and plan.block % ROWS == 0, "block", f"must be a multiple of {ROWS} up to {MOST_BLOCK}")
    check(plan.least >= 0, "least", "must be at least 0")
    check(plan.enough > 0, "enough", "must be at least 1")


def _of_tiles(direct: Indirect, plan: WinogradPlan) -> Winograd:
    axes, packed = direct.runs.axes, replace(direct.packed, tile=plan.tile)
    found = Winograd(direct, direct.packed.k // 9, (axes[0], axes[1]), packed, plan)
    return replace(found, direct=replace(direct, packed=packed, offset=found.transformed_bytes))


def _block(found: Winograd) -> int:
    """Tiles of a task: a multiple of the rows that a micro-kernel takes."""
    limits = found.direct.target.thresholds.winograd
    if found.transformed_bytes <= limits.resident_bytes:
        return limits.resident_block
    return max(limits.block_bytes // (found.products * (found.channels + PANEL) * 4) // ROWS, 1) * ROWS


def _tile(channels: int, columns: int, limits: WinogradThresholds) -> WinogradTile | None:
    """The tiles to compute; None where the transforms or the transformed weights cost more than is gained."""
    if min(channels, columns) < limits.channels:
        return None
    return next((tile for tile in limits.tiles if (tile.size + 2) ** 2 * channels * columns * 4 <= tile.bytes), None)
