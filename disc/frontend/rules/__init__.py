"""The table of overrides: ATen overload → the function that emits StableHLO for a call that does not go through torch-mlir."""

from __future__ import annotations

from disc.frontend.rules import (
    complex_matrices,
    contractions,
    distributions,
    divisions,
    elementwise,
    factorizations,
    fourier,
    histograms,
    indexing,
    linalg,
    max_pooling,
    pooling,
    random,
    reductions,
    signs,
    sorting,
    special,
    views,
)
from disc.frontend.rules.overrides import Override


def _merged() -> dict[object, Override]:
    table: dict[object, Override] = {}
    for module in (
        elementwise,
        signs,
        views,
        reductions,
        contractions,
        divisions,
        indexing,
        pooling,
        random,
        distributions,
        sorting,
        linalg,
        factorizations,
        special,
        histograms,
        max_pooling,
    ):
        for op, override in module.OVERRIDES.items():
            if op in table:
                raise ValueError(f"two rules for {op}")
            table[op] = override
    return table


OVERRIDES = _merged()
_OF_PACKAGES: dict[str, Override] = {
    **sorting.OF_PACKAGES,
    **fourier.OF_PACKAGES,
    **complex_matrices.OF_PACKAGES,
    **contractions.OF_PACKAGES,
    **random.OF_PACKAGES,
    **distributions.OF_PACKAGES,
    **special.OF_PACKAGES,
}


def override_of(op: object) -> Override | None:
    """What replaces torch-mlir's form of an op; ops of other packages are known by their names."""
    return OVERRIDES.get(op) or _OF_PACKAGES.get(str(op))
