"""The ordered lists of passes, and every pass by its name."""

from __future__ import annotations

from collections.abc import Sequence

from disc.errors import DiscError
from disc.ir.passes import Pass, UpstreamPass
from disc.passes.channels_last import ChannelsLast
from disc.passes.clone_producers import CloneProducers
from disc.passes.convert_dots import ConvertDots
from disc.passes.find_batch_dim import FindBatchDim
from disc.passes.fold_batch_norm import FoldBatchNorm
from disc.passes.fold_constants import FoldConstants
from disc.passes.fold_pads import FoldPads
from disc.passes.fold_transposes import FoldTransposes
from disc.passes.form_fusions import FormFusions
from disc.passes.fuse_attention import FuseAttention
from disc.passes.fuse_compute import FuseCompute
from disc.passes.fuse_elementwise import FuseElementwise
from disc.passes.merge_dots import MergeDots
from disc.passes.merge_slices import MergeSlices
from disc.passes.name_dims import NameDims
from disc.passes.normalize_reductions import NormalizeReductions
from disc.passes.pack_sequences import PackSequences
from disc.passes.quantize_dots import QuantizeDots
from disc.passes.resolve_broadcasts import ResolveBroadcasts
from disc.passes.simplify import Simplify
from disc.passes.split_batch import SplitBatch
from disc.passes.stitch import Stitch
from disc.passes.store_constants import StoreConstants
from disc.passes.tabulate_distances import TabulateDistances

# imported → named
FRONT: tuple[Pass, ...] = (
    NormalizeReductions(),
    NameDims(),
    ResolveBroadcasts(),
)

# named → named
GRAPH: tuple[Pass, ...] = (
    Simplify(),
    SplitBatch(),
    FindBatchDim(),
    FoldTransposes(),
    MergeDots(),
    MergeSlices(),
    FoldBatchNorm(),
    FoldPads(),
    ChannelsLast(),
    FoldConstants(),
    Simplify(),
    StoreConstants(),
)


def graph_passes(dtype: str) -> tuple[Pass, ...]:
    """GRAPH for computing dots in `dtype`: conversions enter before constants are folded, so that weights are converted once; weights are
    quantized after they are folded, as a whole."""
    if dtype == "f32":
        return GRAPH
    place = GRAPH.index(FoldConstants())
    narrow = (FoldConstants(), QuantizeDots(), ConvertDots("bf16")) if dtype == "int8" else (ConvertDots(dtype),)
    return (*GRAPH[:place], *narrow, *GRAPH[place:])


# named → fused (paper §4.1: small fusions first, then larger ones from them)
FUSION: tuple[Pass, ...] = (
    TabulateDistances(),
    CloneProducers(),
    FuseElementwise(),
    FuseCompute(),
    Stitch(),
    FuseAttention(),
    FormFusions(),
)

REGISTRY: dict[str, type[Pass]] = {
    one.name: one
    for one in (
        NormalizeReductions,
        NameDims,
        ResolveBroadcasts,
        FindBatchDim,
        Simplify,
        SplitBatch,
        FoldTransposes,
        MergeDots,
        MergeSlices,
        FoldBatchNorm,
        FoldPads,
        ChannelsLast,
        QuantizeDots,
        ConvertDots,
        FoldConstants,
        StoreConstants,
        PackSequences,
        TabulateDistances,
        CloneProducers,
        FuseElementwise,
        FuseCompute,
        Stitch,
        FuseAttention,
        FormFusions,
    )
}


def parse_passes(text: str, more: Sequence[type[Pass]] = ()) -> Sequence[Pass]:
    """ "name-dims,resolve-broadcasts" → the passes; names of MLIR's own passes are written `mlir:cse`.

    more: passes of other packages (speculation) that the caller can also run.
    """
    registry = {**REGISTRY, **{one.name: one for one in more}}
    passes: list[Pass] = []
    for name in filter(None, text.split(",")):
        if name.startswith("mlir:"):
            passes.append(UpstreamPass(name.removeprefix("mlir:")))
        elif name in registry:
            passes.append(registry[name]())
        else:
            raise DiscError(f"there is no pass {name!r}; the passes are {', '.join(registry)}")
    return passes
