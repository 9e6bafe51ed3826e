"""What the runtime computes in tiles of convolutions (`ral/src/library/winograd.h`), and where that pays."""

from __future__ import annotations

from disc.targets.thresholds import FusionThresholds

WINDOWS = ((3, 3), (5, 5))
# Products of matrices of a patch of 6x6. One of 8x8 has 64, for 5x5 windows of 16 bits: with transformed kernels of 3.1 to 5.1 MiB (112 to
# 144 channels, planes of 14x14, forward and both gradients) it takes 0.53 to 0.56 of the time without tiles (16 images, one Zen core).
POSITIONS = 36


def should_tile(channels: int, outputs: int, limits: FusionThresholds) -> bool:
    """Profit: channels enough for products of matrices, and transformed kernels, or their gradients, of patches of 6x6 that stay near."""
    return min(channels, outputs) >= limits.tiled_channels and POSITIONS * channels * outputs * 4 <= limits.tiled_bytes
