"""The transform of weights for Winograd's minimal filtering ("Fast Algorithms for Convolutional Neural Networks", Lavin and Gray 2015).

F(m x m, 3x3) computes tiles of m x m outputs of a 3x3 convolution, Y = A^T [sum over channels of (G g G^T) * (B^T d B)] A, from weights
g and patches d of (m + 2) x (m + 2), with (m + 2)^2 multiplications instead of 9 m^2. What kernels do of it:
`x86/conv/winograd_transforms.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# G, by the tile's outputs per axis: rows are the points 0, 1, -1 (and 2, -2), infinity.
POINTS = {
    2: np.array([[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]]),
    4: np.array(
        [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]
    ),
}


def transform_weights(weights: np.ndarray[Any, Any], tile: int) -> np.ndarray[Any, Any]:
    """(3, 3, channels, columns) → G g G^T, (tile + 2, tile + 2, channels, columns), computed in f64 and of the weights' element type."""
    points = POINTS[tile]
    with np.errstate(over="ignore", invalid="ignore"):  # weights may be infinite or large
        along = np.tensordot(points, weights.astype(np.float64), (1, 0))
        return np.tensordot(points, along, (1, 1)).swapaxes(0, 1).astype(weights.dtype)
