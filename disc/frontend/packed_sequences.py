"""`pack_padded_sequence` and `pad_packed_sequence` while a module is traced: lengths are data, the number of sequences is not.

PyTorch takes all of a packed sequence for data. Here its `batch_sizes` knows where it came from, and its data the padded rows that were
packed, so that recurrent layers go over these, with what lies behind a sequence's end left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch.fx.experimental.symbolic_shapes import statically_known_true

from disc.frontend.checked_values import checked, required
from disc.frontend.replaced import replaced

Size = int | torch.SymInt
Known = TypeVar("Known")


@dataclass(frozen=True)
class Packed:
    """alive: [length, batch], whether a sequence has an element there. index: [length, batch], the row of that element in the packed data,
    0 where there is none; places: of each row, its place among those of `alive`, row after row. lengths: [batch], in decreasing order."""

    lengths: Tensor
    alive: Tensor
    index: Tensor
    places: Tensor

    @property
    def batch(self) -> Size:
        return self.alive.shape[1]

    def padded(self, data: Tensor) -> Tensor:
        """[length, batch, ...]; what is behind the end of a sequence is anything."""
        known = _known(data, _Rows)
        if known is not None and known.packed is self and known.version == known.rows._version:
            return known.rows
        return data.index_select(0, self.index.flatten()).reshape(*self.alive.shape, *data.shape[1:])

    def packed(self, rows: Tensor) -> Tensor:
        """The data of what is [length, batch, ...]."""
        data = rows.flatten(0, 1).index_select(0, self.places)
        if not rows.is_inference():
            _remember(data, _Rows(self, rows, rows._version))
        return data


@dataclass(frozen=True)
class _Rows:
    """What data was packed of. version: of the rows then; where they were written since, they have another."""

    packed: Packed
    rows: Tensor
    version: int


@dataclass(frozen=True)
class _Batch:
    """The number of sequences of `batch_sizes` that come from elsewhere."""

    size: Size


def _remember(x: Tensor, known: Packed | _Rows | _Batch) -> None:
    """Until the tensor is written. Where no gradients are kept track of, so are no writes."""
    setattr(x, _KNOWN, (known, None if x.is_inference() else x._version))


def _known(x: object, kind: type[Known]) -> Known | None:
    known, version = getattr(x, _KNOWN, (None, None))
    written = isinstance(x, Tensor) and version is not None and x._version != version
    return known if isinstance(known, kind) and not written else None


_KNOWN = "_disc_known"  # an attribute of tensors


def packed_of(batch_sizes: object) -> Packed | None:
    """What the packed sequence was made of, where `pack` made it."""
    return _known(batch_sizes, Packed)


def packed_by_sizes(batch_sizes: Tensor, batch: Size, rows: Size) -> Packed:
    """Of a packed sequence of another origin. rows: of its data."""
    before = torch.cat((batch_sizes[:1], batch_sizes))[:-1]
    holds = (batch_sizes > 0) & (batch_sizes <= before) & (batch_sizes[:1] == batch) & (batch_sizes.sum() == rows)
    sizes = required(batch_sizes, holds, "batch_sizes of a packed sequence must be those of its data, in decreasing order")
    alive = _numbers(batch, sizes) < sizes.unsqueeze(1)
    ends = sizes.cumsum(0)
    row = _numbers(rows, sizes)
    step = torch.searchsorted(ends, row, right=True)
    places = row - (ends - sizes).index_select(0, step) + cast("Tensor", step * batch)
    return Packed(alive.sum(0), alive, _index(alive, sizes), places)


def _numbers(size: Size, like: Tensor) -> Tensor:
    return torch.arange(size, device=like.device)  # pyright: ignore[reportCallIssue, reportArgumentType]


def _index(alive: Tensor, sizes: Tensor) -> Tensor:
    rank = (sizes.cumsum(0) - sizes).unsqueeze(1) + _numbers(alive.shape[1], alive)
    return torch.where(alive, rank, 0)


def pack(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """`torch._pack_padded_sequence`."""
    rows = x.transpose(0, 1) if batch_first else x
    torch._check(
        lengths.dim() == 1 and lengths.shape[0] == rows.shape[1],
        lambda: f"Expected `len(lengths)` to be equal to batch_size, but got {lengths.shape[0]} (batch_size={rows.shape[1]})",
    )
    lengths = _checked(lengths, rows.shape[0])
    alive = _numbers(rows.shape[0], lengths).unsqueeze(1) < lengths
    sizes = alive.sum(1)
    with sizes_of_data(x):
        longest = cast("int", lengths.max().item())
        places = alive.flatten().nonzero().squeeze(1)
    torch._check(longest <= rows.shape[0])
    packed = Packed(lengths, alive, _index(alive, sizes), places)
    batch_sizes = sizes.index_select(0, _numbers(longest, sizes))
    _remember(batch_sizes, packed)
    return packed.packed(rows), batch_sizes


def _checked(lengths: Tensor, most: Size) -> Tensor:
    what = "pack_padded_sequence: a length must be at most that of the padded input: got {actual}"
    lengths = checked(lengths, most + 1, what)
    what = "Length of all samples has to be greater than 0, but {actual} or more in `lengths` are not"
    lengths = required(lengths, lengths > 0, what)
    before = torch.cat((lengths[:1], lengths))[:-1]
    what = "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True; {actual} or more exceed the one before"
    return required(lengths, lengths <= before, what)


def pad(
    data: Tensor,
    batch_sizes: Tensor,
    batch_first: bool,
    padding_value: float,
    total_length: Size | None,
    batch: Size | None = None,
) -> tuple[Tensor, Tensor]:
    """`torch._pad_packed_sequence`; total_length: at least that of the longest sequence, None for just that. batch: the number of
    sequences, where it is known."""
    longest = batch_sizes.shape[0]
    if total_length is not None:
        torch._check(total_length >= longest, lambda: f"Expected total_length to be at least {longest}, the length of the longest sequence")
    packed = packed_of(batch_sizes)
    if packed is None:
        packed = packed_by_sizes(batch_sizes, batch_of(batch_sizes) if batch is None else batch, data.shape[0])
    shown = packed.alive.reshape(*packed.alive.shape, *[1] * (data.dim() - 1))
    rows = torch.where(shown, packed.padded(data), padding_value)
    rows = _lengthened(rows, longest if total_length is None else total_length, padding_value)
    return (rows.transpose(0, 1) if batch_first else rows), packed.lengths


def _lengthened(rows: Tensor, length: Size, padding_value: float) -> Tensor:
    """As many rows as `length` says: the first ones, or further ones of padding."""
    if statically_known_true(rows.shape[0] == length):
        return rows
    if not statically_known_true(length <= rows.shape[0]):
        rows = torch.cat((rows, rows.new_full((length, *rows.shape[1:]), padding_value)))
    return rows.index_select(0, _numbers(length, rows))


def batch_of(batch_sizes: Tensor) -> Size:
    """The number of sequences, `batch_sizes[0]`."""
    packed, found = packed_of(batch_sizes), _known(batch_sizes, _Batch)
    if packed is not None:
        return packed.batch
    if found is None:
        with sizes_of_data(batch_sizes):
            found = _Batch(cast("int", batch_sizes[0].item()))
        torch._check(found.size >= 0)
        _remember(batch_sizes, found)
    return found.size


def item(x: Tensor, index: object) -> object:
    """`x[index]`: the first batch size is the number of sequences."""
    packed = packed_of(x) if isinstance(index, int) and index == 0 else None
    return torch.Tensor.__getitem__(x, index) if packed is None else packed.batch  # pyright: ignore[reportArgumentType]


@contextmanager
def sizes_of_data(x: Tensor) -> Iterator[None]:
    """Within, a trace of `x` takes sizes out of data, whether or not the program around it may."""
    mode = detect_fake_mode((x,))
    env = mode.shape_env if mode is not None else None
    if env is None:
        yield
        return
    kept = env.settings
    env.settings = replace(kept, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    try:
        yield
    finally:
        env.settings = kept


@dataclass(frozen=True)
class _Padded:
    """As much of a padded input as `nn.RNNBase` asks for."""

    batch: Size

    def size(self, dim: int) -> Size:
        return self.batch


@contextmanager
def sizes_of_packed_batches() -> Iterator[None]:
    """Modules of recurrent layers make a Python number of the number of sequences; within, they take it as it is."""
    kept = {(nn.RNNBase, "get_expected_hidden_size"): nn.RNNBase.get_expected_hidden_size,
            (nn.LSTM, "get_expected_cell_size"): nn.LSTM.get_expected_cell_size}  # fmt: skip
    with replaced({place: _of_batch(original) for place, original in kept.items()}):
        yield


def _of_batch(original: Callable[..., object]) -> Callable[..., object]:
    def expected(self: nn.RNNBase, x: Tensor, batch_sizes: Tensor | None) -> object:
        packed = packed_of(batch_sizes)
        return original(self, x, batch_sizes) if packed is None else original(self, _Padded(packed.batch), None)

    return expected


FORMS: dict[Callable[..., object], Callable[..., object]] = {
    torch._pack_padded_sequence: pack,  # pyright: ignore[reportPrivateImportUsage]
    torch._pad_packed_sequence: pad,  # pyright: ignore[reportPrivateImportUsage]
}
