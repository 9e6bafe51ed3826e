"""Kernels of fusions of kind "library" that a GPU has: scans, scatters, sorting and its kin, products and sums of groups."""

from __future__ import annotations

from disc.codegen.cuda.grouped import GROUPED, grouped_extents, grouped_versions
from disc.codegen.cuda.kernel import DeviceVersion
from disc.codegen.cuda.ranks import COUNT, SEARCH, SORTS, TOPK, rank_extents, rank_versions
from disc.codegen.cuda.scans import SCAN, scan_extents, scan_versions
from disc.codegen.cuda.scatters import SCATTER, scatter_extents, scatter_versions
from disc.codegen.cuda.segments import SEGMENTS, segment_extents, segment_versions
from disc.codegen.plan.fusion import Fusion
from disc.ir.graph import Node
from disc.ir.op_table import LIBRARY, SEQUENTIAL
from disc.shapes import Dim

OPS = frozenset((SCAN, SCATTER, *SORTS, SEARCH, COUNT, GROUPED, SEGMENTS))


def library_op(fusion: Fusion) -> Node:
    """The op of the fusion that is computed alone; of several results the first."""
    found = next(node for node in fusion.body.nodes if node.op in SEQUENTIAL or node.op in LIBRARY)
    return found.siblings[0] if found.siblings else found


def library_extents(fusion: Fusion) -> tuple[Dim, ...]:
    """What the kernel loops over."""
    node = library_op(fusion)
    if node.op == SCAN:
        return scan_extents(fusion)
    if node.op == SCATTER:
        return scatter_extents(fusion)
    if node.op == SEGMENTS:
        return segment_extents(fusion, node)
    return grouped_extents(node) if node.op == GROUPED else rank_extents(fusion, node)


def library_versions(fusion: Fusion, symbols: tuple[str, ...], precision: str) -> tuple[DeviceVersion, ...]:
    """The versions of the fusion's kernel. precision: of products of f32. Raises TargetError for what its emitter has no code for."""
    node = library_op(fusion)
    if node.op == SCAN:
        return scan_versions(fusion, symbols)
    if node.op == SCATTER:
        return scatter_versions(fusion, symbols)
    if node.op == GROUPED:
        return grouped_versions(fusion, node, symbols, precision)
    if node.op == SEGMENTS:
        return segment_versions(fusion, node, symbols)
    return rank_versions(fusion, node, symbols)


def library_reports(op: str) -> str:
    """What a fault of the op's kernel means, "" for an index out of range."""
    return {
        TOPK: "top-k wants {actual} elements of lines of {expected}",
        GROUPED: "groups end at {actual}, which is before the group's begin or beyond the {expected} rows",
    }.get(op, "")
