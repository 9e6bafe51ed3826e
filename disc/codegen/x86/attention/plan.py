"""The plan of an attention kernel over blocks of keys: where things lie in scratch, which micro-kernels it calls."""

from __future__ import annotations

from dataclasses import dataclass

from disc.codegen.plan.index import ZERO
from disc.codegen.plan.softmax import Causal, Segments, Softmax
from disc.codegen.x86.function import rounded_up
from disc.codegen.x86.gemm.dots import dots_name, dots_source
from disc.codegen.x86.gemm.plan import ROWS, Gemm
from disc.codegen.x86.plans import AttentionBlocksPlan
from disc.ir.graph import Node
from disc.shapes import Dim


@dataclass(eq=False)
class Blocks:
    """The parts of the kernel. scores, probability: the nodes between the dots; plan: what was decided."""

    first: Gemm
    second: Gemm
    scores: Node
    probability: Node
    softmax: Softmax
    causal: Causal | None
    segments: Segments | None
    plan: AttentionBlocksPlan

    @property
    def columns(self) -> Dim:
        """Floats from row to row of the unfinished results."""
        return rounded_up(self.second.contraction.n, 16)

    def row_blocks(self) -> Dim:
        """Tasks of a batch."""
        return (self.first.contraction.m + (self.plan.rows - 1)) // self.plan.rows

    def places(self) -> dict[str, Dim]:
        """Byte offsets in scratch; "end" is its size.

        queries: packed rows of the first dot; keys, values: tile and panel of the first and of the second; then the row pointers of both,
        the scores, maxima, sums and scales of the rows, and the unfinished results.
        """
        rows, keys = self.plan.rows, self.plan.keys
        queries = rounded_up(self.first.contraction.k, 16) * (rows * self.first.left_size) if self.first.left is None else ZERO
        sizes = {
            "queries": queries + self.first.left_offset,
            "keys": self.first.scratch(),
            "values": Dim.of(self.second.tile_bytes + keys * self.second.panel_step),
            "query_rows": Dim.of(rows * 8),
            "score_rows": Dim.of(rows * 8),
            "scores": Dim.of(rows * keys * 4),
            "maxima": Dim.of(rows * 4),
            "sums": Dim.of(rows * 4),
            "scales": Dim.of(rows * 4),
            "results": self.columns * (rows * 4),
        }
        offsets: dict[str, Dim] = {}
        total = ZERO
        for name, size in sizes.items():
            offsets[name] = total
            total = total + rounded_up(size, 64)
        return {**offsets, "end": total + 64}

    def row_counts(self) -> tuple[int, ...]:
        """The heights of tiles that occur."""
        m = self.first.contraction.m
        if not m.is_const or m.const == 0 or self.segments is not None:
            return tuple(range(1, ROWS + 1))
        heights = {size for rows in parts_of(m.const, self.plan.rows) for size in parts_of(rows, ROWS)}
        return tuple(sorted(heights))

    def vector_counts(self, gemm: Gemm) -> tuple[int, ...]:
        """The widths of tiles of `gemm` that occur, in vectors."""
        most = gemm.width // gemm.lanes
        return (most,) if self.whole_tiles(gemm) else tuple(range(1, most + 1))

    def whole_tiles(self, gemm: Gemm) -> bool:
        """True when every tile of `gemm` has all its columns."""
        n = gemm.contraction.n
        return n.is_const and n.const % gemm.width == 0 and (gemm is self.second or (self.causal is None and self.segments is None))

    def micro_kernels(self) -> tuple[tuple[str, int, int], ...]:
        """Those that the kernel calls."""
        gemms = (self.first, self.second)
        return tuple((gemm.form.name, rows, count) for gemm in gemms for rows in self.row_counts() for count in self.vector_counts(gemm))

    def functions(self) -> tuple[tuple[str, str], ...]:
        """The shared functions that the kernel calls besides micro-kernels, as (name, MLIR text)."""
        k = self.first.contraction.k
        return ((dots_name(k.const), dots_source(k.const, self.first.target.thresholds.gemm.dot_ahead)),) if self.plan.dots else ()


def parts_of(whole: int, most: int) -> set[int]:
    """The sizes of as few equal parts as hold at most `most` each."""
    count = -(-whole // most)
    return {whole // count, -(-whole // count)}
