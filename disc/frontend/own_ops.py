"""What defines ops of this compiler in PyTorch, under `disc::`: whoever reads the name of one imports this module."""

from disc.frontend import (
    checked_values,
    complex_matrices,
    distribution_forms,
    finite,
    fourier,
    grouped_products,
    multinomials,
    tiled_gradients,
)

DEFINING = (
    checked_values,
    complex_matrices,
    distribution_forms,
    finite,
    fourier,
    grouped_products,
    multinomials,
    tiled_gradients,
)
