"""The ordered lists of passes, and every pass by its name."""

from __future__ import annotations

from collections.abc import Sequence

from disc.codegen.choose_kernels import ChooseKernels
from disc.codegen.plan.attention import no_softmax
from disc.errors import DiscError, did_you_mean
from disc.ir.passes import Pass, UpstreamPass
from disc.passes.fusion.clone_producers import CloneProducers
from disc.passes.fusion.form_fusions import FormFusions
from disc.passes.fusion.fuse_attention import FuseAttention
from disc.passes.fusion.fuse_compute import FuseCompute
from disc.passes.fusion.fuse_elementwise import FuseElementwise
from disc.passes.fusion.stitch import Stitch
from disc.passes.fusion.tabulate_distances import TabulateDistances
from disc.passes.graph.channels_last import ChannelsLast
from disc.passes.graph.convert_dots import ConvertDots
from disc.passes.graph.count_loops import CountLoops
from disc.passes.graph.find_batch_dim import FindBatchDim
from disc.passes.graph.fold_batch_norm import FoldBatchNorm
from disc.passes.graph.fold_constants import FoldConstants
from disc.passes.graph.fold_pads import FoldPads
from disc.passes.graph.fold_tables import FoldTables
from disc.passes.graph.fold_transposes import FoldTransposes
from disc.passes.graph.hoist_invariants import HoistInvariants
from disc.passes.graph.lift_batch import LiftBatch
from disc.passes.graph.map_rows import MapRows
from disc.passes.graph.merge_dots import MergeDots
from disc.passes.graph.merge_slices import MergeSlices
from disc.passes.graph.pack_sequences import PackSequences
from disc.passes.graph.quantize_dots import QuantizeDots
from disc.passes.graph.simplify import Simplify
from disc.passes.graph.split_batch import SplitBatch
from disc.passes.graph.split_reductions import SplitReductions
from disc.passes.graph.store_constants import StoreConstants
from disc.passes.graph.tile_convolutions import TileConvolutions
from disc.passes.graph.turn_shared import TurnShared
from disc.passes.graph.turn_weights import TurnWeights
from disc.passes.shape.name_dims import NameDims
from disc.passes.shape.normalize_reductions import NormalizeReductions
from disc.passes.shape.resolve_broadcasts import ResolveBroadcasts
from disc.speculation.tree import Tree
from disc.speculation.versions import SpeculateVersions

# imported → named
FRONT: tuple[Pass, ...] = (
    NormalizeReductions(),
    NameDims(),
    ResolveBroadcasts(),
)

# named → named, of what is computed for many instances: before the others, which see products over all of them
BLOCK: tuple[Pass, ...] = (LiftBatch(), FoldTables(), MapRows())

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
    CountLoops(),
    HoistInvariants(),
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


# named → fused (paper §4.1: small fusions first, then larger ones from them), the versions of each kernel, and, for every target, its plan
FUSION: tuple[Pass, ...] = (
    TabulateDistances(),
    TurnShared(),
    TileConvolutions(),
    SplitReductions(),
    CloneProducers(),
    FuseElementwise(),
    FuseCompute(),
    Stitch(),
    FuseAttention(),
    FormFusions(),
    SpeculateVersions(),
    ChooseKernels(),
)


def fusion_passes(tree: Tree | None, device: str = "cpu") -> tuple[Pass, ...]:
    """FUSION for the targets of a device, with schedules of GEMMs on CPUs chosen by `tree`; None: by the tree that comes with disc. For
    GPUs weights are turned, reductions stay whole, versions of kernels are those of their emitters, and attention is one with a softmax."""
    first = FUSION[:-1]
    if device == "cuda":
        own = {FuseAttention.name: FuseAttention(no_softmax)}
        left_out = (SplitReductions.name, SpeculateVersions.name)
        first = (TurnWeights(), *(own.get(each.name, each) for each in first if each.name not in left_out))
    return (*first, ChooseKernels(tree))


def to_named(dtype: str = "f32", block: bool = False) -> tuple[Pass, ...]:
    """imported → named, for computing dots in `dtype`. block: for what is computed for many instances."""
    return (*FRONT, *(BLOCK if block else ()), *graph_passes(dtype))


def pipeline(dtype: str = "f32", stage: str = "imported", tree: Tree | None = None) -> tuple[Pass, ...]:
    """Every pass from `stage`, imported or named, up to code generation. tree: as of `fusion_passes`."""
    return (*(to_named(dtype) if stage == "imported" else graph_passes(dtype)), *fusion_passes(tree))


REGISTRY: dict[str, type[Pass]] = {
    one.name: one
    for one in (
        NormalizeReductions,
        NameDims,
        ResolveBroadcasts,
        LiftBatch,
        FoldTables,
        MapRows,
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
        CountLoops,
        HoistInvariants,
        StoreConstants,
        PackSequences,
        TabulateDistances,
        TurnShared,
        TurnWeights,
        TileConvolutions,
        SplitReductions,
        CloneProducers,
        FuseElementwise,
        FuseCompute,
        Stitch,
        FuseAttention,
        FormFusions,
        SpeculateVersions,
        ChooseKernels,
    )
}


def parse_passes(text: str) -> Sequence[Pass]:
    """ "name-dims,resolve-broadcasts" → the passes; names of MLIR's own passes are written `mlir:cse`."""
    passes: list[Pass] = []
    for name in filter(None, text.split(",")):
        if name.startswith("mlir:"):
            passes.append(UpstreamPass(name.removeprefix("mlir:")))
        elif name in REGISTRY:
            passes.append(REGISTRY[name]())
        else:
            raise DiscError(f"there is no pass {name!r}{did_you_mean(name, REGISTRY)}; the passes are {', '.join(REGISTRY)}")
    return passes
