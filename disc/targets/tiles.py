"""What the runtime computes in tiles of convolutions (`ral/src/library/winograd.h`), and where that pays."""

from __future__ import annotations

from disc.targets.thresholds import FusionThresholds

WINDOWS = ((3, 3), (5, 5))
POSITIONS = 36  # of a patch: products of matrices


def should_tile(channels: int, outputs: int, limits: FusionThresholds) -> bool:
    """Profit: channels enough for products of matrices, and transformed kernels, or their gradients, that stay near."""
    return min(channels, outputs) >= limits.tiled_channels and POSITIONS * channels * outputs * 4 <= limits.tiled_bytes
