"""What is known of a tensor that has not been computed: from the trace that the program follows, as long as its guards hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from disc.frontend.lazy.tensors import LazyTensor
from disc.frontend.lazy.traces import Made, Run

UNKNOWN = object()  # the tensor has to be computed
OF_KIND: Mapping[str, Callable[[Made], object]] = {
    "dtype": lambda made: made.dtype,
    "device": lambda made: made.device,
    "layout": lambda made: torch.strided,
    "requires_grad": lambda made: made.requires_grad,
    "is_leaf": lambda made: made.is_leaf,
    "is_floating_point": lambda made: made.dtype.is_floating_point,
    "is_complex": lambda made: made.dtype.is_complex,
    "is_signed": lambda made: made.dtype.is_signed,
    "itemsize": lambda made: made.dtype.itemsize,
    "element_size": lambda made: made.dtype.itemsize,
    "get_device": lambda made: -1,
    "is_cpu": lambda made: True,
    **dict.fromkeys(
        ("is_cuda", "is_meta", "is_sparse", "is_quantized", "is_nested", "is_mkldnn", "is_sparse_csr", "is_inference"), lambda made: False
    ),
}
OF_GRADIENTS = ("requires_grad", "is_leaf")
OF_SIZES: Mapping[str, Callable[[torch.Size], object]] = {
    "shape": lambda sizes: sizes,
    "size": lambda sizes: sizes,
    "dim": len,
    "ndim": len,
    "ndimension": len,
    "numel": math.prod,
    "nelement": math.prod,
}


def fact(name: str, subject: LazyTensor, run: Run, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    """What `name` says of a pending value of the run, or UNKNOWN."""
    sizes = sizes_of(subject._number, run)
    if name in OF_KIND and (sizes is not None or any(each.goes_on(run) for each in run.here.ahead)):
        return OF_KIND[name](subject._facts)
    if sizes is None:
        return UNKNOWN
    if name == "size" and (args or kwargs):
        dim = args[0] if args else kwargs.get("dim")
        return sizes if dim is None else sizes[dim] if isinstance(dim, int) and -len(sizes) <= dim < len(sizes) else UNKNOWN
    if name == "__len__" and sizes:
        return sizes[0]
    if name == "nbytes":
        return math.prod(sizes) * subject._facts.dtype.itemsize
    return OF_SIZES[name](sizes) if name in OF_SIZES else UNKNOWN


def sizes_of(number: int, run: Run) -> torch.Size | None:
    """Those of a pending value, by a trace that the run may still follow."""
    for variant in run.here.ahead:
        sizes = variant.sizes(number, run)
        if sizes is not None:
            return sizes
    return None


def by_data(number: int, run: Run) -> bool:
    """Whether the sizes of a pending value depend on data, in a trace that the run may still follow."""
    return any(number not in variant.shapes and variant.goes_on(run) for variant in run.here.ahead)
