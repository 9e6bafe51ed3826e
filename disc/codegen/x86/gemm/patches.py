"""Packs the patches of a convolution into a panel: row pieces of the source are copied, bounds are decided once per piece and tap.

A panel holds 64 output positions. Those of one output row read neighboring elements of one source row, so a piece of a row is loaded
as whole vectors (even lanes of two for stride 2) under a mask that serves every channel: channels are the innermost loop. Elements of 16
bits are copied as they are; where a panel has them in pairs, two rows are joined afterwards, where they lie (`pairs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from disc.codegen.mlir.builder import Builder, register_element
from disc.codegen.plan.contraction import Contraction, WindowAxis, trace_views
from disc.codegen.plan.index import ONE, IndexSpace, split_linear
from disc.codegen.x86.function import Frame
from disc.codegen.x86.memory import Buffer, load_contiguous, load_gather, store_contiguous
from disc.ir.graph import Node
from disc.shapes import Dim

BATCH = Dim.symbol("gb")


@dataclass(frozen=True)
class SourceAxis:
    """A window axis and how many elements lie from one source position to the next."""

    window: WindowAxis
    step: Dim


@dataclass(frozen=True)
class Patches:
    """The source of a convolution in memory: element (channel, positions) of a batch bound to its variables is at
    base + channel * channel_step + the sum of position * step."""

    leaf: Node
    base: Dim
    channel_step: Dim
    channels: Dim
    axes: tuple[SourceAxis, ...]

    @property
    def taps(self) -> int:
        """The number of window positions."""
        count = 1
        for axis in self.axes:
            count *= axis.window.window
        return count


def read_patches(space: IndexSpace, contraction: Contraction, batch: Dim = BATCH) -> Patches | None:
    """The patches of a convolution whose source lies in memory under views that keep it affine; None otherwise. batch: the batch of the
    contraction, in declared variables."""
    windows, element = contraction.windows, contraction.right.node.element
    if windows is None or not windows.axes or register_element(element) != register_element(contraction.node.element):
        return None
    names = ["pc", *(f"p{number}" for number in range(len(windows.axes)))]
    for name, extent in zip(names, (windows.channels, *(axis.size for axis in windows.axes)), strict=True):
        space.variable(name, extent)
    index = windows.at(batch, Dim.symbol(names[0]), [Dim.symbol(name) for name in names[1:]])
    traced = trace_views(space, contraction.right.node, index)
    if traced is None:
        return None
    base, steps = traced[1], []
    for name in names:
        form = split_linear(base, name)
        if form is None or any(other in form[0].symbols() for other in names):
            return None
        steps.append(form[0])
        base = form[1]
    axes = tuple(SourceAxis(axis, step) for axis, step in zip(windows.axes, steps[1:], strict=True))
    return Patches(traced[0], base, steps[0], windows.channels, _joined(axes))


def _joined(axes: tuple[SourceAxis, ...]) -> tuple[SourceAxis, ...]:
    """Neighbouring axes with windows of 1, nothing skipped or padded, become one: a 1x1 convolution reads whole planes."""
    result = list(axes)
    while len(result) > 1:
        outer, inner = result[-2:]
        plain = all((axis.window.window, axis.window.stride, axis.window.low) == (1, 1, 0) for axis in (outer, inner))
        whole = all(axis.window.size == axis.window.out for axis in (outer, inner))
        if not (plain and whole and outer.step == inner.step * inner.window.size):
            break
        length = outer.window.size * inner.window.size
        result[-2:] = [SourceAxis(replace(inner.window, size=length, out=length), inner.step)]
    return tuple(result)


def pack_patches(frame: Frame, patches: Patches, element: str, panel: int, scratch: str, column: str, column_end: str) -> None:
    """panel[k][column] of the output positions [column, column_end), k = (channel, window position). element: of the panel, as wide as the
    source's; i16 for the bits of bf16 and f16."""
    b = frame.b
    inner = patches.axes[-1].window
    width = b.scalar(inner.out)
    first = b.op(f"arith.divui {column}, {width} : i64")
    last = b.op(f"arith.divui {b.op(f'arith.subi {column_end}, {b.index(1)} : i64')}, {width} : i64")
    target = Buffer(scratch, (), element)
    with b.loop(first, b.op(f"arith.addi {last}, {b.index(1)} : i64"), b.index(1)) as row:
        row_start = b.op(f"arith.muli {row.index}, {width} : i64")
        start = b.op(f"arith.maxsi {column}, {row_start} : i64")
        end = b.op(f"arith.minsi {column_end}, {b.op(f'arith.addi {row_start}, {width} : i64')} : i64")
        outer = _outer_positions(b, patches, row.index)
        with b.loop(start, end, b.index(b.lanes)) as strip:
            tail = frame.emitter.tail_mask(b.op(f"arith.subi {end}, {strip.index} : i64"))
            piece = _Piece(frame, patches, panel, target, b.op(f"arith.subi {strip.index}, {column} : i64"), tail)
            piece.taps(outer, b.op(f"arith.subi {strip.index}, {row_start} : i64"))


def _outer_positions(b: Builder, patches: Patches, row: str) -> list[str]:
    """The output positions on all axes but the last of the flat output row."""
    positions: list[str] = []
    rest = row
    for axis in reversed(patches.axes[1:-1]):
        size = b.scalar(axis.window.out)
        quotient = b.op(f"arith.divui {rest}, {size} : i64")
        positions.append(b.op(f"arith.subi {rest}, {b.op(f'arith.muli {quotient}, {size} : i64')} : i64"))
        rest = quotient
    if len(patches.axes) > 1:
        positions.append(rest)
    return positions[::-1]


@dataclass(frozen=True, eq=False)
class _Piece:
    """Up to a vector of output positions of one output row, at `place` of the panel's rows."""

    frame: Frame
    patches: Patches
    panel: int
    target: Buffer
    place: str
    tail: str

    def taps(self, outer: Sequence[str], position: str) -> None:
        """Copies every window position of every channel; `outer`, `position`: where the first lane's window stands."""
        b = self.frame.b
        axes = self.patches.axes

        def nest(number: int, tap: str, offset: str, inside: str | None) -> None:
            axis = axes[number]
            with _positions(b, axis.window.window) as window:
                at = _source_position(b, axis.window, outer[number] if number < len(outer) else position, window)
                here = b.op(f"arith.addi {b.op(f'arith.muli {tap}, {b.index(axis.window.window)} : i64')}, {window} : i64")
                if number == len(axes) - 1:
                    moved = b.op(f"arith.addi {offset}, {b.op(f'arith.muli {at}, {b.scalar(axis.step)} : i64')} : i64")
                    self._channels(here, moved, self._masks(axis.window, at, inside))
                    return
                valid = b.op(f"arith.cmpi ult, {at}, {b.scalar(axis.window.size)} : i64")
                near = b.op(f"arith.select {valid}, {at}, {b.index(0)} : i64")  # masked loads are slow where nothing is mapped
                moved = b.op(f"arith.addi {offset}, {b.op(f'arith.muli {near}, {b.scalar(axis.step)} : i64')} : i64")
                nest(number + 1, here, moved, valid if inside is None else b.op(f"arith.andi {inside}, {valid} : i1"))

        nest(0, b.index(0), b.scalar(self.patches.base), None)

    def _masks(self, axis: WindowAxis, at: str, inside: str | None) -> list[str]:
        """The lanes of each load that lie in the source: one load, or two for the even lanes of both."""
        b, vector = self.frame.b, self.frame.b.vec("i32")
        spans = [axis.stride] if axis.stride != 2 or not self._contiguous() else [1, 1]
        masks: list[str] = []
        for number, span in enumerate(spans):
            numbers = ", ".join(str((number * b.lanes + lane) * span) for lane in range(b.lanes))
            lanes = b.constant(f"arith.constant dense<[{numbers}]> : {vector}")
            first = b.op(f"vector.broadcast {b.op(f'arith.trunci {at} : i64 to i32')} : i32 to {vector}")
            limit = b.op(f"vector.broadcast {b.op(f'arith.trunci {b.scalar(axis.size)} : i64 to i32')} : i32 to {vector}")
            mask = b.op(f"arith.cmpi ult, {b.op(f'arith.addi {first}, {lanes} : {vector}')}, {limit} : {vector}")
            if len(spans) == 1:
                mask = b.op(f"arith.andi {mask}, {self.tail} : {b.vec('i1')}")
            if inside is not None:
                everywhere = b.op(f"vector.broadcast {inside} : i1 to {b.vec('i1')}")
                mask = b.op(f"arith.andi {mask}, {everywhere} : {b.vec('i1')}")
            masks.append(mask)
        return masks

    def _contiguous(self) -> bool:
        return self.patches.axes[-1].step == ONE

    def _channels(self, tap: str, offset: str, masks: list[str]) -> None:
        b, patches = self.frame.b, self.patches
        load = self._loader(masks)
        start = b.op(f"arith.addi {b.op(f'arith.muli {tap}, {b.index(self.panel)} : i64')}, {self.place} : i64")
        with b.loop(b.index(0), b.scalar(patches.channels), b.index(1)) as channel:
            moved = b.op(f"arith.muli {channel.index}, {b.scalar(patches.channel_step)} : i64")
            value = load(b.op(f"arith.addi {offset}, {moved} : i64"))
            row = b.op(f"arith.muli {channel.index}, {b.index(patches.taps * self.panel)} : i64")
            store_contiguous(b, self.target, b.op(f"arith.addi {start}, {row} : i64"), value, self.tail)

    def _loader(self, masks: list[str]) -> Callable[[str], str]:
        """offset of the first lane → the lanes."""
        b, axis = self.frame.b, self.patches.axes[-1]
        leaf = self.frame.emitter.leaves[self.patches.leaf]
        assert isinstance(leaf, Buffer)
        source = replace(leaf, element="i16") if self.target.element == "i16" else leaf
        if len(masks) == 2:
            even = ", ".join(str(2 * lane) for lane in range(b.lanes))
            vector = b.vec(self.target.element)

            def halves(offset: str) -> str:
                low = load_contiguous(b, source, offset, masks[0])
                high = load_contiguous(b, source, b.op(f"arith.addi {offset}, {b.index(b.lanes)} : i64"), masks[1])
                return b.op(f"vector.shuffle {low}, {high} [{even}] : {vector}, {vector}")

            return halves
        if axis.window.stride == 1 and self._contiguous():
            return lambda offset: load_contiguous(b, source, offset, masks[0])
        numbers = ", ".join(str(lane * axis.window.stride) for lane in range(b.lanes))
        lanes = b.constant(f"arith.constant dense<[{numbers}]> : {b.vec('i64')}")
        steps = b.op(f"vector.broadcast {b.scalar(axis.step)} : i64 to {b.vec('i64')}")
        lanes = b.op(f"arith.muli {lanes}, {steps} : {b.vec('i64')}")

        def strided(offset: str) -> str:
            moved = b.op(f"vector.broadcast {offset} : i64 to {b.vec('i64')}")
            return load_gather(b, source, b.op(f"arith.addi {lanes}, {moved} : {b.vec('i64')}"), masks[0])

        return strided


@contextmanager
def _positions(b: Builder, count: int) -> Iterator[str]:
    """A loop over window positions; none for a window of 1."""
    if count == 1:
        yield b.index(0)
        return
    with b.loop(b.index(0), b.index(count), b.index(1)) as loop:
        yield loop.index


def _source_position(b: Builder, axis: WindowAxis, out: str, window: str) -> str:
    """out * stride + window * dilation - low."""
    moved = b.op(f"arith.muli {out}, {b.index(axis.stride)} : i64")
    tap = b.op(f"arith.muli {window}, {b.index(axis.dilation)} : i64")
    return b.op(f"arith.subi {b.op(f'arith.addi {moved}, {tap} : i64')}, {b.index(axis.low)} : i64")
