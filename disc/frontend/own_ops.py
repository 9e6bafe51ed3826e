"""What defines ops of this compiler in PyTorch, under `disc::`: whoever reads the name of one imports this module."""

from disc.frontend import checked_values as checked_values
from disc.frontend import complex_matrices as complex_matrices
from disc.frontend import distribution_forms as distribution_forms
from disc.frontend import finite as finite
from disc.frontend import fourier as fourier
from disc.frontend import grouped_products as grouped_products
from disc.frontend import multinomials as multinomials
from disc.frontend import tiled_gradients as tiled_gradients
